//! X.509 certificates of version 1, which webpki does not read: what a plain
//! `openssl x509 -req` makes.
//!
//! They have no extensions, so they give no roles, hold no names that could be
//! compared with what was dialled, limit no usages, and cannot be told from an
//! authority's. What can be checked of one, and is checked here, is that the
//! key of an authority that is trusted itself signed it, under that authority's
//! name; that this key may sign certificates; that the present time is within
//! its lifetime; and that the peer holds its key. An authority in between is not
//! looked for, and the certificate issues none itself.

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::KeyUsage;
use x509_parser::x509::X509Version;

use super::Trust;
use super::der::{self, PublicKey, is_signed_by};

/// A certificate of version 1.
pub struct Version1<'a>(X509Certificate<'a>, &'a [u8]);

impl<'a> Version1<'a> {
    /// Reads one; `None` where it is of another version, or broken.
    pub fn read(certificate: &'a CertificateDer<'_>) -> Option<Self> {
        let parsed = der::certificate(certificate).ok()?;
        (parsed.version() == X509Version::V1).then_some(Self(parsed, certificate))
    }

    /// Its public key, in the form of a certificate.
    pub fn key(&self) -> SubjectPublicKeyInfoDer<'_> {
        SubjectPublicKeyInfoDer::from(self.0.public_key().raw)
    }

    /// Checks that one of the authorities issued it, and that it is valid.
    pub fn verify(
        &self,
        trust: &Trust,
        now: UnixTime,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), CertificateError> {
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
            if is_signed_by(self.1, issuer.public_key().raw, algorithms) {
                return Ok(());
            }
            found = CertificateError::BadSignature;
        }
        Err(found)
    }

    /// Checks that the peer holds the key, as TLS 1.2 has it proved.
    pub fn verify_tls12(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        let of_scheme = |(scheme, _): &&(SignatureScheme, _)| *scheme == signed.scheme;
        let usable = algorithms.mapping.iter().find(of_scheme);
        let usable = usable.map_or(&[][..], |(_, algorithms)| algorithms);
        let key = PublicKey::read(self.0.public_key().raw).ok_or(CertificateError::BadEncoding)?;
        let mut usable = usable
            .iter()
            .filter(|usable| key.is_for(usable.public_key_alg_id().as_ref()));
        let proved = usable.any(|usable| {
            usable
                .verify_signature(key.bits, message, signed.signature())
                .is_ok()
        });
        match proved {
            true => Ok(()),
            false => Err(CertificateError::BadSignature.into()),
        }
    }
}
