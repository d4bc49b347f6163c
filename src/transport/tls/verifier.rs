//! How each side checks the other's certificate: as rustls does, and by the
//! limits of [`Trust`].

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

use super::{ServerCheck, TlsError};
use crate::pki::Trust;

/// What a server checks clients by.
pub(super) fn of_clients(
    trust: &Trust,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::clone(trust.roots());
    let chain = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
    Ok(Arc::new(OfClients {
        chain: chain.map_err(|e| TlsError::Configuration(e.to_string()))?,
        trust: trust.clone(),
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

fn within_limits(
    trust: &Trust,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), Error> {
    let checked = trust.check_limits(end_entity, intermediates);
    checked.map_err(|fault| CertificateError::Other(OtherError(Arc::new(fault))).into())
}

#[derive(Debug)]
struct OfClients {
    chain: Arc<dyn ClientCertVerifier>,
    trust: Trust,
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
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        within_limits(&self.trust, end_entity, intermediates)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
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
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
