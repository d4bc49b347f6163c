//! The checks of a peer's certificate: those of rustls, and the limits and revocation lists of
//! [`Trust`].

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

use super::{ServerCheck, TlsError};
use crate::pki::{CertificateInfo, Fault, Trust, Version1, algorithms, provider};

/// The check that a server makes of clients.
///
/// With `any_version`, certificates of X.509 version 1 that an authority issued itself are accepted
/// as well, see [`Version1`], and so is a trusted authority's own certificate.
pub(super) fn of_clients(trust: &Trust, any_version: bool) -> Result<Arc<OfClients>, TlsError> {
    let roots = Arc::clone(trust.roots());
    let chain = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
    Ok(Arc::new(OfClients {
        chain: chain.map_err(|e| TlsError::Configuration(e.to_string()))?,
        trust: trust.clone(),
        any_version,
    }))
}

/// The check that a client makes of servers.
pub(super) fn of_servers(check: ServerCheck<'_>) -> Result<Arc<OfServers>, TlsError> {
    let (trust, any_name) = match check {
        ServerCheck::Name(trust) => (Some(trust), false),
        ServerCheck::Authority(trust) => (Some(trust), true),
        ServerCheck::Nothing => (None, true),
    };
    let chain = |trust: &Trust| {
        let roots = Arc::clone(trust.roots());
        let chain = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        let chain = chain.map_err(|e| TlsError::Configuration(e.to_string()))?;
        Ok::<_, TlsError>((chain, trust.clone()))
    };
    Ok(Arc::new(OfServers {
        chain: trust.map(chain).transpose()?,
        any_name,
    }))
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

fn refused(fault: Fault) -> Error {
    CertificateError::Other(OtherError(Arc::new(fault))).into()
}

/// Checks that no certificate is revoked.
///
/// The alert for a revoked certificate states that, and its holder then stays away. An overdue list
/// is not the peer's fault, so the alert states only that the handshake failed, and the peer tries
/// again.
fn not_revoked(
    trust: &Trust,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), Error> {
    let now = UNIX_EPOCH + Duration::from_secs(now.as_secs());
    let checked = trust.check_revocation(end_entity, intermediates, now);
    checked.map_err(|fault| match fault {
        Fault::Revoked { .. } => CertificateError::Revoked.into(),
        Fault::RevocationListOverdue { .. } => Error::General(fault.to_string()),
        fault => refused(fault),
    })
}

/// The checks of a chain that webpki does not make.
fn check_chain(
    trust: &Trust,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), Error> {
    trust.check_limits(end_entity, intermediates).map_err(refused)?;
    not_revoked(trust, end_entity, intermediates, now)
}

/// The check of a peer's certificate without a chain: one of X.509 version 1, or that of a trusted
/// authority, such as a self-signed one. OpenSSL accepts both, too. `None` for any other certificate.
///
/// The handshake proves that the peer holds the key. With an authority's key it could issue itself any
/// certificate.
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
            let at = UNIX_EPOCH + Duration::from_secs(now.as_secs());
            match may_be(own) {
                true => own.check_validity(at).map_err(refused),
                false => Err(CertificateError::InvalidPurpose.into()),
            }
        }
    };
    Some(judged.and_then(|()| not_revoked(trust, cert, &[], now)))
}

#[derive(Debug)]
pub(super) struct OfClients {
    chain: Arc<dyn ClientCertVerifier>,
    pub(super) trust: Trust,
    /// True to accept certificates of X.509 version 1, and of authorities, as well.
    any_version: bool,
}

impl OfClients {
    /// Verifies the chain of a client, its own certificate first.
    pub(super) fn verify(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Error> {
        let (first, rest) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.verify_client_cert(first, rest, now).map(drop)
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
        check_chain(&self.trust, end_entity, intermediates, now)?;
        Ok(verified)
    }

    check_keys!();
}

/// Checks the chain and the name only if the configuration requires that. It always checks that
/// the server holds the key of its certificate.
#[derive(Debug)]
pub(super) struct OfServers {
    chain: Option<(Arc<WebPkiServerVerifier>, Trust)>,
    any_name: bool,
}

impl OfServers {
    pub(super) fn trust(&self) -> Option<&Trust> {
        self.chain.as_ref().map(|(_, trust)| trust)
    }

    /// Verifies the chain of a server that has to prove `name`, its own certificate first.
    pub(super) fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let (first, rest) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.verify_server_cert(first, rest, name, &[], now).map(drop)
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
        check_chain(trust, end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    check_keys!();
}
