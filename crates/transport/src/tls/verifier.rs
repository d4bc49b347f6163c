//! How each side checks the other's certificate: as rustls does, and by the
//! limits and revocation lists of [`Trust`].

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

use super::{ServerCheck, TlsError};
use crate::pki::{Fault, Trust, Version1};

/// What a server checks clients by.
///
/// With `version_1`, certificates of X.509 version 1 that an authority issued
/// itself are taken as well; see [`Version1`] for what is checked of them.
pub(super) fn of_clients(
    trust: &Trust,
    version_1: bool,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::clone(trust.roots());
    let chain = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
    Ok(Arc::new(OfClients {
        chain: chain.map_err(|e| TlsError::Configuration(e.to_string()))?,
        trust: trust.clone(),
        version_1: version_1.then(|| Arc::clone(provider)),
    }))
}

/// What a client checks servers by.
pub(super) fn of_servers(
    check: ServerCheck<'_>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let (trust, any_name) = match check {
        ServerCheck::Name(trust) => (Some(trust), false),
        ServerCheck::Authority(trust) => (Some(trust), true),
        ServerCheck::Nothing => (None, true),
    };
    let chain = |trust: &Trust| {
        let roots = Arc::clone(trust.roots());
        let chain = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
        let chain = chain.map_err(|e| TlsError::Configuration(e.to_string()))?;
        Ok::<_, TlsError>((chain, trust.clone()))
    };
    Ok(Arc::new(OfServers {
        chain: trust.map(chain).transpose()?,
        any_name,
        provider: Arc::clone(provider),
    }))
}

fn tls12(
    old: &Version1<'_>,
    message: &[u8],
    dss: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    old.verify_tls12(message, dss, algorithms)?;
    Ok(HandshakeSignatureValid::assertion())
}

fn within_limits(
    trust: &Trust,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), Error> {
    let checked = trust.check_limits(end_entity, intermediates);
    checked.map_err(|fault| CertificateError::Other(OtherError(Arc::new(fault))).into())
}

/// The alert for a certificate that is revoked says so, after which its holder
/// stays away. For a list that should have been replaced it says no more than that
/// the handshake failed, since that is no fault of the peer's: it tries again.
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
        fault => CertificateError::Other(OtherError(Arc::new(fault))).into(),
    })
}

#[derive(Debug)]
struct OfClients {
    chain: Arc<dyn ClientCertVerifier>,
    trust: Trust,
    /// What certificates of version 1 are verified with, where they may be.
    version_1: Option<Arc<CryptoProvider>>,
}

impl OfClients {
    fn version_1<'a>(
        &self,
        cert: &'a CertificateDer<'_>,
    ) -> Option<(Version1<'a>, &WebPkiSupportedAlgorithms)> {
        let provider = self.version_1.as_ref()?;
        Some((Version1::read(cert)?, &provider.signature_verification_algorithms))
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
        if let Some((old, algorithms)) = self.version_1(end_entity) {
            old.verify(&self.trust, now, algorithms)?;
            not_revoked(&self.trust, end_entity, &[], now)?;
            return Ok(ClientCertVerified::assertion());
        }
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        within_limits(&self.trust, end_entity, intermediates)?;
        not_revoked(&self.trust, end_entity, intermediates, now)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.version_1(cert) {
            Some((old, algorithms)) => tls12(&old, message, dss, algorithms),
            None => self.chain.verify_tls12_signature(message, cert, dss),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.version_1(cert) {
            Some((old, algorithms)) => {
                verify_tls13_signature_with_raw_key(message, &old.key(), dss, algorithms)
            }
            None => self.chain.verify_tls13_signature(message, cert, dss),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Looks at the chain and the name only where it has to. That the server
/// holds the key of its certificate is always checked.
#[derive(Debug)]
struct OfServers {
    chain: Option<(Arc<WebPkiServerVerifier>, Trust)>,
    any_name: bool,
    provider: Arc<CryptoProvider>,
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
        // It holds no name, so where one is asked for it cannot be the server's.
        if let Some(old) = Version1::read(end_entity).filter(|_| self.any_name) {
            old.verify(trust, now, &self.provider.signature_verification_algorithms)?;
            not_revoked(trust, end_entity, &[], now)?;
            return Ok(ServerCertVerified::assertion());
        }
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Ok(_) => {}
            // The name is checked last, so with this error everything else
            // about the chain was found to be right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_name => {}
            Err(e) => return Err(e),
        }
        within_limits(trust, end_entity, intermediates)?;
        not_revoked(trust, end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match Version1::read(cert) {
            Some(old) => tls12(&old, message, dss, algorithms),
            None => rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match Version1::read(cert) {
            Some(old) => verify_tls13_signature_with_raw_key(message, &old.key(), dss, algorithms),
            None => rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
