//! Certificates for keys that stay with their holder.
//!
//! ```text
//!  holder     key ─▶ signing request (PKCS#10): name, roles, hosts, UUID, signed by the key
//!                         │
//!  authority              └─▶ Authority::sign: the key from the request, and all else
//!                                              as the authority decides ─▶ certificate
//! ```

use std::fs;
use std::path::Path;

use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData,
    SignatureAlgorithm,
};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::issue::{Authority, PRIVATE, PUBLIC, crypto, generate, key_pair, wanted};
use super::request::CertificateRequest;
use super::{CertificateInfo, Error, Fault, der, provider, store};

impl CertificateRequest {
    /// Writes a signing request (PKCS#10, PEM) to the file `to`, signed by the key in the file
    /// `key`. That is made if it does not exist, with mode 0600. Returns whether it existed. The
    /// lifetime is for the authority to decide.
    ///
    /// # Errors
    /// [`Error::Request`] if the request cannot be met, [`Error::Content`] if the file holds
    /// another thing than a key, [`Error::Read`], [`Error::Write`], [`Error::Crypto`].
    pub fn write_signing_request(&self, key: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<bool, Error> {
        let key = key.as_ref();
        let mut params = wanted(self)?;
        // An authority chooses the number.
        params.serial_number = None;
        let had_key = fs::symlink_metadata(key).is_ok();
        let pair = match had_key {
            true => load_key(key)?,
            false => generate(self.key)?,
        };
        let made = params.serialize_request(&pair).map_err(crypto)?;
        let pem = made.pem().map_err(crypto)?;
        if !had_key {
            store::write(key, &pair.serialize_pem(), PRIVATE)?;
        }
        store::write(to.as_ref(), &pem, PUBLIC)?;
        Ok(had_key)
    }
}

fn load_key(path: &Path) -> Result<KeyPair, Error> {
    let sections = store::read(path)?;
    let key = store::Sections::read(&sections).and_then(|sections| sections.key());
    key.and_then(|key| key_pair(&key))
        .map_err(Error::content(store::origin(path)))
}

impl Authority {
    /// Issues a certificate for the key of the signing request in a PEM file, and writes it to the
    /// file `to`. The request has to be signed by that key. Nothing else in it counts: name,
    /// roles, hosts and UUID are those of `request`.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Write`]; [`Error::Content`] if the file holds no signing request, or one whose
    /// signature or key cannot be used; [`Error::Request`], [`Error::Crypto`].
    pub fn sign(
        &self,
        request: &CertificateRequest,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<CertificateInfo, Error> {
        let path = from.as_ref();
        let unfit = Error::content(store::origin(path));
        let pem = store::read(path)?;
        let key = Holder::read(&pem).map_err(unfit)?;
        let params = self.params_for(request)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(crypto)?;
        self.check_issuer_name(certificate.der())?;
        let info = CertificateInfo::from_der(certificate.der());
        let info = info.map_err(Error::content("the new certificate"))?;
        store::write(to.as_ref(), &certificate.pem(), PUBLIC)?;
        Ok(info)
    }
}

/// The public key of a holder.
struct Holder {
    algorithm: &'static SignatureAlgorithm,
    bits: Vec<u8>,
}

impl Holder {
    fn read(pem: &[u8]) -> Result<Self, Fault> {
        let unfit = |why: &str| Fault::SigningRequest(why.to_owned());
        let request = rustls_pemfile::csr(&mut &*pem).ok().flatten();
        let request = request.ok_or_else(|| unfit("there is no CERTIFICATE REQUEST"))?;
        let parsed = X509CertificationRequest::from_der(&request);
        let (_, parsed) = parsed.map_err(|e| unfit(&e.to_string()))?;
        let key = &parsed.certification_request_info.subject_pki;
        let algorithms = provider().map_err(|e| unfit(&e.to_string()))?;
        if !der::is_signed_by(&request, key.raw, &algorithms.signature_verification_algorithms) {
            return Err(Fault::UnusableKey(
                "the request is not signed by its own key".into(),
            ));
        }
        let bits = key.subject_public_key.data.to_vec();
        let known = [
            &PKCS_ECDSA_P256_SHA256,
            &PKCS_ECDSA_P384_SHA384,
            &PKCS_ED25519,
            &PKCS_RSA_SHA256,
        ];
        known
            .map(|algorithm| Self {
                algorithm,
                bits: bits.clone(),
            })
            .into_iter()
            .find(|holder| holder.subject_public_key_info() == key.raw)
            .ok_or_else(|| unfit("keys of this kind are not supported"))
    }
}

impl PublicKeyData for Holder {
    fn der_bytes(&self) -> &[u8] {
        &self.bits
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}
