//! What TLS checks of a peer's certificate: the checks of rustls, and the limits and revocation
//! lists of [`Trust`].

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use ssntp_transport::tls::{Acceptor, CertificateFault, Connector, Successor, TlsError};

use crate::der::algorithms;
use crate::error::Fault;
use crate::identity::Identity;
use crate::inspect::CertificateInfo;
use crate::trust::Trust;
use crate::version_1::Version1;
use ssntp_transport::provider;

impl Trust {
    /// Accepts TLS connections as `identity`, of clients with a certificate of this trust.
    ///
    /// # Errors
    /// [`TlsError::Configuration`] if the certificates cannot be used.
    pub fn acceptor(&self, identity: &Identity) -> Result<Acceptor, TlsError> {
        self.verifying(identity, false)
    }

    /// As [`acceptor`](Self::acceptor), for protocols without roles: clients may also show a
    /// certificate of X.509 version 1 that an authority of this trust has issued itself. Its
    /// signature and lifetime are checked; it has no usages and no names.
    ///
    /// # Errors
    /// As [`acceptor`](Self::acceptor).
    pub fn acceptor_of_any_version(&self, identity: &Identity) -> Result<Acceptor, TlsError> {
        self.verifying(identity, true)
    }

    fn verifying(&self, identity: &Identity, any_version: bool) -> Result<Acceptor, TlsError> {
        self.warn_if_revoked(identity);
        let chain = self.of_clients();
        let clients = OfClients {
            chain: chain.map_err(|e| TlsError::Configuration(e.to_string()))?,
            trust: self.clone(),
            any_version,
        };
        Acceptor::new(identity.certified_key(), Arc::new(clients))
    }

    /// Connects as `identity` to servers of this trust whose certificate holds the name that is
    /// dialled.
    ///
    /// # Errors
    /// As [`acceptor`](Self::acceptor).
    pub fn connector(&self, identity: &Identity) -> Result<Connector, TlsError> {
        ServerCheck::Name(self).connector(Some(identity))
    }
}

/// The check that a client makes of a server.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ServerCheck<'a> {
    /// The certificate comes from an authority of this trust and holds the name that is connected
    /// to.
    Name(&'a Trust),
    /// The certificate comes from an authority of this trust. The holder of any server certificate
    /// of that authority can pose as the server. Certificates of X.509 version 1, which do not state
    /// their usage, are accepted as well.
    Authority(&'a Trust),
    /// No check. The bytes are encrypted, but an attacker between the two ends can pose as the
    /// server and read them.
    Nothing,
}

impl ServerCheck<'_> {
    /// Connects with TLS and this check of the server. Proves `identity` to servers that ask for a
    /// certificate.
    ///
    /// # Errors
    /// As [`Trust::acceptor`].
    pub fn connector(self, identity: Option<&Identity>) -> Result<Connector, TlsError> {
        let (trust, any_name) = match self {
            Self::Name(trust) => (Some(trust), false),
            Self::Authority(trust) => (Some(trust), true),
            Self::Nothing => (None, true),
        };
        if let (Some(trust), Some(identity)) = (trust, identity) {
            trust.warn_if_revoked(identity);
        }
        let chain = |trust: &Trust| {
            let roots = Arc::clone(trust.roots());
            let chain = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
            let chain = chain.map_err(|e| TlsError::Configuration(e.to_string()))?;
            Ok::<_, TlsError>((chain, trust.clone()))
        };
        let servers = OfServers {
            chain: trust.map(chain).transpose()?,
            any_name,
        };
        Connector::new(Arc::new(servers), identity.map(Identity::certified_key))
    }
}

/// Checks that no revocation list goes back to an older one.
fn check_follows(trust: Option<&Trust>, former: Option<&Trust>) -> Result<(), String> {
    let both = trust.zip(former);
    let checked = both.map_or(Ok(()), |(trust, former)| trust.check_follows(former));
    checked.map_err(|fault| fault.to_string())
}

/// The methods that the traits for clients and for servers have in common: they check that the
/// peer holds the key of its certificate, which `verify_client_cert` or `verify_server_cert` has
/// accepted before.
macro_rules! check_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            match Version1::read(cert) {
                Some(old) => old.verify_tls12(message, dss),
                None => verify_tls12_signature(message, cert, dss, &algorithms()),
            }
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            match Version1::read(cert) {
                Some(old) => verify_tls13_signature_with_raw_key(message, &old.key(), dss, &algorithms()),
                None => verify_tls13_signature(message, cert, dss, &algorithms()),
            }
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            algorithms().supported_schemes()
        }
    };
}

/// The error of TLS for a fault that webpki does not look for.
///
/// The alert for a revoked certificate states that, and its holder then stays away. An overdue list
/// is not the peer's fault, so the alert states only that the handshake failed, and the peer tries
/// again.
fn refused(fault: Fault) -> Error {
    match fault {
        Fault::Revoked { .. } => CertificateError::Revoked.into(),
        Fault::RevocationListOverdue { .. } => Error::General(fault.to_string()),
        fault => CertificateError::Other(OtherError(Arc::new(CertificateFault(fault.to_string())))).into(),
    }
}

fn moment(now: UnixTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(now.as_secs())
}

/// The check of a peer's certificate without a chain: one of X.509 version 1, or that of a trusted
/// authority, such as a self-signed one. OpenSSL accepts both, too. `None` for any other certificate.
///
/// The handshake proves that the peer holds the key. If that is the key of an authority, the peer could issue
/// itself any certificate, so accepting it gives nothing away.
fn check_single(
    trust: &Trust,
    cert: &CertificateDer<'_>,
    now: UnixTime,
    may_be: impl FnOnce(&CertificateInfo) -> bool,
) -> Option<Result<(), Error>> {
    let judged = match Version1::read(cert) {
        Some(old) => old.verify(trust, now).map_err(Error::from),
        None => {
            let own = trust.authorities().iter().find(|own| own.der == *cert)?;
            if may_be(own) {
                own.check_validity(moment(now)).map_err(refused)
            } else {
                Err(CertificateError::InvalidPurpose.into())
            }
        }
    };
    let not_revoked = || trust.check_revocation(cert, &[], moment(now)).map_err(refused);
    Some(judged.and_then(|()| not_revoked()))
}

#[derive(Debug)]
struct OfClients {
    chain: Arc<dyn ClientCertVerifier>,
    trust: Trust,
    /// True to accept certificates of X.509 version 1, and of authorities, as well.
    any_version: bool,
}

impl Successor for OfClients {
    fn check_follows(&self, former: &dyn Any) -> Result<(), String> {
        let former = former.downcast_ref::<Self>();
        check_follows(Some(&self.trust), former.map(|former| &former.trust))
    }
}

impl ClientCertVerifier for OfClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Protocols with roles accept neither, because such a certificate gives no role.
        if self.any_version
            && let Some(judged) = check_single(&self.trust, end_entity, now, |own| own.client_auth)
        {
            return judged.map(|()| ClientCertVerified::assertion());
        }
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        let checked = self.trust.check_chain(end_entity, intermediates, moment(now));
        checked.map_err(refused).map(|()| verified)
    }

    check_keys!();
}

/// Checks the chain and the name only if the configuration requires that. It always checks that
/// the server holds the key of its certificate.
#[derive(Debug)]
struct OfServers {
    chain: Option<(Arc<WebPkiServerVerifier>, Trust)>,
    any_name: bool,
}

impl OfServers {
    fn trust(&self) -> Option<&Trust> {
        self.chain.as_ref().map(|(_, trust)| trust)
    }
}

impl Successor for OfServers {
    fn check_follows(&self, former: &dyn Any) -> Result<(), String> {
        let former = former.downcast_ref::<Self>();
        check_follows(self.trust(), former.and_then(Self::trust))
    }
}

impl ServerCertVerifier for OfServers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some((chain, trust)) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        // A certificate of version 1 holds no name, so it cannot prove one.
        if self.any_name
            && let Some(judged) = check_single(trust, end_entity, now, |own| own.server_auth)
        {
            return judged.map(|()| ServerCertVerified::assertion());
        }
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Ok(_) => {}
            // rustls checks the name last, so after this error the rest of the chain is right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_name => {}
            Err(e) => return Err(e),
        }
        let checked = trust.check_chain(end_entity, intermediates, moment(now));
        checked.map_err(refused).map(|()| ServerCertVerified::assertion())
    }

    check_keys!();
}
