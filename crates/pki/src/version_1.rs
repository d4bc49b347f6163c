//! X.509 certificates of version 1, which webpki does not read. A plain `openssl x509 -req` makes them.
//!
//! They have no extensions. So they give no roles, hold no names that could be compared with the dialled
//! one, limit no usages, and cannot be distinguished from an authority's. The checks here are that a
//! trusted authority's key signed the certificate, under that authority's name; that this key may sign
//! certificates; that the present time is within the lifetime; and that the peer holds the certificate's
//! key. Intermediate authorities are not searched for, and the certificate cannot issue others.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::KeyUsage;
use x509_parser::x509::X509Version;

use crate::der::{self, PublicKey, algorithms, is_signed_by};
use crate::trust::Trust;

/// A certificate of version 1.
#[derive(Debug)]
pub(crate) struct Version1<'a>(X509Certificate<'a>);

impl<'a> Version1<'a> {
    /// Reads a certificate. `None` if it is of another version, or broken.
    pub(crate) fn read(certificate: &'a CertificateDer<'_>) -> Option<Self> {
        let parsed = der::certificate(certificate).ok()?;
        (parsed.version() == X509Version::V1).then_some(Self(parsed))
    }

    /// The public key as SubjectPublicKeyInfo.
    pub(crate) fn key(&self) -> SubjectPublicKeyInfoDer<'_> {
        SubjectPublicKeyInfoDer::from(self.0.public_key().raw)
    }

    /// Checks that one of the authorities issued it, and that it is valid at this time.
    pub(crate) fn verify(&self, trust: &Trust, now: UnixTime) -> Result<(), CertificateError> {
        let validity = self.0.validity();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < validity.not_before.timestamp() {
            return Err(CertificateError::NotValidYet);
        }
        if now > validity.not_after.timestamp() {
            return Err(CertificateError::Expired);
        }
        let mut found = CertificateError::UnknownIssuer;
        for authority in trust.authorities() {
            let issuer = der::certificate(&authority.der).map_err(|_| CertificateError::BadEncoding)?;
            let may_issue = der::key_may(&issuer, KeyUsage::key_cert_sign);
            if !may_issue.map_err(|_| CertificateError::BadEncoding)?
                || issuer.subject().as_raw() != self.0.issuer().as_raw()
            {
                continue;
            }
            if is_signed_by(self.0.as_raw(), issuer.public_key().raw) {
                return Ok(());
            }
            found = CertificateError::BadSignature;
        }
        Err(found)
    }

    /// Checks the signature with which the peer proves in TLS 1.2 that it holds the key.
    pub(crate) fn verify_tls12(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let of_scheme = |(scheme, _): &&(SignatureScheme, _)| *scheme == signed.scheme;
        let usable = algorithms().mapping.iter().find(of_scheme);
        let usable = usable.map_or(&[][..], |(_, algorithms)| algorithms);
        let key = PublicKey::read(self.0.public_key().raw).ok_or(CertificateError::BadEncoding)?;
        if key.has_signed(message, signed.signature(), usable.iter().copied()) {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }
}
