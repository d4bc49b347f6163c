//! What an entity shows to its peers: a certificate chain and the private
//! key of its first certificate.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use uuid::Uuid;

use super::{CertificateInfo, Error, Fault, inspect, provider, store};
use crate::Role;

/// A certificate chain and its private key, checked to belong together.
///
/// The roles that may be advertised in the handshake are the ones of the
/// chain's first certificate (protocol.md, "Roles").
///
/// # Threads
/// A clone is cheap and shares everything; `Send` and `Sync`. Only the
/// loading calls block, on the disk.
#[derive(Clone)]
pub struct Identity(Arc<Inner>);

struct Inner {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    info: CertificateInfo,
}

impl Identity {
    /// Loads one PEM file with the certificate, then any intermediate ones,
    /// and the private key, which may stand anywhere in it. Blocks while the
    /// file is read.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::NoProvider`]; and [`Error::Content`] when the
    /// file is not PEM or has no certificate or not exactly one key, the key
    /// cannot be used or belongs to another certificate, the certificate is
    /// broken, not valid at present, or without a role.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        Self::from_pem(&store::read(path)?, &store::origin(path))
    }

    /// Loads the certificates from one PEM file and the private key from
    /// another. Blocks while the files are read.
    ///
    /// # Errors
    /// As [`load`](Self::load); each names the file that is at fault.
    pub fn load_parts(certificates: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self, Error> {
        let (certificates, key) = (certificates.as_ref(), key.as_ref());
        let origin = store::origin(certificates);
        let key_origin = store::origin(key);
        let sections = store::load(certificates)?;
        let chain = sections.certificates().map_err(Error::content(&origin))?;
        let key = store::load(key)?.key().map_err(Error::content(&key_origin))?;
        let both = format!("{key_origin} (with {origin})");
        let identity = Self::assemble(chain.to_vec(), key, &origin, &both)?;
        identity.judge(&origin)
    }

    /// Reads a PEM text as [`load`](Self::load) reads a file. `origin` is
    /// what errors call it.
    ///
    /// # Errors
    /// As [`load`](Self::load) without [`Error::Read`].
    pub fn from_pem(pem: &[u8], origin: &str) -> Result<Self, Error> {
        let sections = store::Sections::read(pem).map_err(Error::content(origin))?;
        let chain = sections.certificates().map_err(Error::content(origin))?;
        let key = sections.key().map_err(Error::content(origin))?;
        Self::assemble(chain.to_vec(), key, origin, origin)?.judge(origin)
    }

    /// Puts chain and key together without judging lifetime and roles.
    pub(super) fn assemble(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        origin: &str,
        key_origin: &str,
    ) -> Result<Self, Error> {
        let first = chain.first().ok_or(Fault::NoCertificate);
        let info = first.and_then(CertificateInfo::from_der);
        let info = info.map_err(Error::content(origin))?;
        check_key(&info.der, &key, key_origin)?;
        Ok(Self(Arc::new(Inner { chain, key, info })))
    }

    fn judge(self, origin: &str) -> Result<Self, Error> {
        let valid = self.info().check_validity(inspect::now());
        let judged = valid.and_then(|()| match self.roles() {
            Role::NONE => Err(Fault::NoRole),
            _ => Ok(self),
        });
        judged.map_err(Error::content(origin))
    }

    /// The certificates, our own first, each followed by its issuer's.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.0.chain
    }

    /// A copy of the private key.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        self.0.key.clone_key()
    }

    /// The roles that the certificate gives, never none after loading.
    pub fn roles(&self) -> Role {
        self.0.info.roles
    }

    /// The UUID that the certificate binds its holder to, where it does.
    pub fn uuid(&self) -> Option<Uuid> {
        self.0.info.uuid
    }

    /// The facts in our own certificate.
    pub fn info(&self) -> &CertificateInfo {
        &self.0.info
    }
}

impl fmt::Debug for Identity {
    /// The certificate's subject and roles; never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("subject", &self.0.info.subject)
            .field("roles", &self.roles())
            .field("uuid", &self.uuid())
            .finish_non_exhaustive()
    }
}

/// Whether a private key can be used and is the certificate's.
pub(super) fn check_key(
    certificate: &CertificateDer<'static>,
    key: &PrivateKeyDer<'static>,
    origin: &str,
) -> Result<(), Error> {
    let provider = provider()?;
    let check = || {
        let unusable = |error: rustls::Error| Fault::UnusableKey(error.to_string());
        let key = provider
            .key_provider
            .load_private_key(key.clone_key())
            .map_err(unusable)?;
        match CertifiedKey::new(vec![certificate.clone()], key).keys_match() {
            Ok(()) => Ok(()),
            Err(rustls::Error::InconsistentKeys(_)) => Err(Fault::KeyMismatch),
            Err(error) => Err(Fault::BadCertificate(error.to_string())),
        }
    };
    check().map_err(Error::content(origin))
}
