//! Certificates for keys that do not leave their holder.
//!
//! ```text
//!  holder     key ─▶ signing request (PKCS#10): name, roles, hosts, UUID, signed by the key
//!                         │
//!  authority              └─▶ Authority::sign: the key from the request, and the rest from
//!                                              the authority's own request ─▶ certificate
//! ```

use std::fs;
use std::path::Path;

use rcgen::{KeyPair, SubjectPublicKeyInfo};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::issue::{Authority, PRIVATE, PUBLIC, crypto, generate, key_pair_of, subject_params};
use super::request::CertificateRequest;
use crate::error::{Error, Fault};
use crate::inspect::CertificateInfo;
use crate::pem::Sections;
use crate::{der, store};

impl CertificateRequest {
    /// Writes a signing request (PKCS#10, PEM) to the file `to`, signed by the key in the file `key`. If
    /// that file does not exist, a key is made and written with mode 0600. Returns true if it existed.
    /// The request states no lifetime; the authority sets it.
    ///
    /// # Errors
    /// [`Error::Request`] if the request cannot be met, [`Error::Content`] if the file `key` holds no
    /// key, [`Error::Read`], [`Error::Write`], [`Error::Crypto`].
    pub fn write_signing_request(&self, key: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<bool, Error> {
        let key = key.as_ref();
        let mut params = subject_params(self, (0, 0))?;
        // The authority chooses the number.
        params.serial_number = None;
        let had_key = fs::symlink_metadata(key).is_ok();
        let pair = if had_key {
            load_key(key)?
        } else {
            generate(self.key)?
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
    key_pair_of(&store::read(path)?).map_err(Error::content(store::origin(path)))
}

impl Authority {
    /// Issues a certificate for the key of the signing request in the PEM file `from`, and writes it to
    /// the file `to`. The signing request has to be signed by that key. Only its key counts: name, roles,
    /// hosts and UUID are those of `request`.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Write`]; [`Error::Content`] if the file holds no signing request, several, or one
    /// whose signature or key cannot be used; [`Error::Request`], [`Error::Crypto`].
    pub fn sign(
        &self,
        request: &CertificateRequest,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<CertificateInfo, Error> {
        let path = from.as_ref();
        let unfit = Error::content(store::origin(path));
        let text = store::read(path)?;
        let key = requested(&text, |_, key| Ok(key)).map_err(unfit)?;
        let params = self.params_for(request)?;
        let (certificate, info) = self.certify(&params, &key)?;
        store::write(to.as_ref(), &certificate.pem(), PUBLIC)?;
        Ok(info)
    }
}

/// Calls `take` with the only signing request of a PEM text, which has to be signed by its own key, and with
/// that key.
pub(crate) fn requested<T>(
    text: &[u8],
    take: impl FnOnce(&X509CertificationRequest<'_>, SubjectPublicKeyInfo) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let unfit = |why: &str| Fault::SigningRequest(why.to_owned());
    let requests = Sections::read(text)?.requests;
    let request = match requests.as_slice() {
        [request] => request,
        [] => return Err(unfit("there is no CERTIFICATE REQUEST")),
        _ => return Err(unfit("there are several; each is signed from a file of its own")),
    };
    let parsed = X509CertificationRequest::from_der(request);
    let (_, parsed) = parsed.map_err(|e| unfit(&e.to_string()))?;
    let key = parsed.certification_request_info.subject_pki.raw;
    if !der::is_signed_by(request, key) {
        let why = "the request is not signed by its own key";
        return Err(Fault::UnusableKey(why.to_owned()));
    }
    let key = SubjectPublicKeyInfo::from_der(key);
    take(
        &parsed,
        key.map_err(|_| unfit("keys of this kind are not supported"))?,
    )
}
