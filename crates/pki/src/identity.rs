//! The identity that this side shows to its peers: a certificate chain, and the private key of its
//! first certificate or a signer that holds the key.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use uuid::Uuid;

use crate::error::{Error, Fault};
use crate::inspect::CertificateInfo;
use crate::pem::Sections;
use crate::role::Role;
use crate::{der, limits, store};
use ssntp_transport::provider;

/// A certificate chain and its private key, which are checked to belong together. The key may be
/// outside of this process: [`with_signer`](Self::with_signer).
///
/// The roles that may be advertised in the handshake are those of the chain's first certificate
/// (docs/protocol.md, "Roles").
///
/// # Threads
/// A clone is cheap and shares everything; `Send` and `Sync`. Only the loading functions block, on
/// the disk.
#[derive(Clone)]
pub struct Identity(Arc<IdentityParts>);

struct IdentityParts {
    certified: Arc<CertifiedKey>,
    info: CertificateInfo,
}

impl Identity {
    /// Loads one PEM file with the certificate, then any intermediate ones, and the private key in any
    /// place. Blocks while the file is read.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Content`] if the file is not PEM or has no certificate or not exactly
    /// one key, the key cannot be used or belongs to another certificate, or the certificate is broken,
    /// not valid at present, or without a role.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        Self::load_with(path, None, None)?.check_usable(&store::origin(path))
    }

    /// Loads the certificates from one PEM file and the private key from another. Blocks while the
    /// files are read.
    ///
    /// # Errors
    /// As [`load`](Self::load). Each names the file with the fault.
    pub fn load_parts(certificates: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self, Error> {
        let (certificates, key) = (certificates.as_ref(), key.as_ref());
        let identity = Self::load_with(certificates, Some(key), None)?;
        identity.check_usable(&store::origin(certificates))
    }

    fn load_with(certificates: &Path, key: Option<&Path>, passphrase: Option<&[u8]>) -> Result<Self, Error> {
        // Errors name the file with the fault; a mismatch names both files.
        let origin = store::origin(certificates);
        let key_origin = key.map_or_else(|| origin.clone(), store::origin);
        let sections = store::load(certificates)?;
        let chain = sections.certificates().map_err(Error::content(&origin))?;
        let apart = key.map(store::load).transpose()?;
        let with_key = apart.as_ref().unwrap_or(&sections);
        let private = with_key
            .key_under(passphrase)
            .map_err(Error::content(&key_origin))?;
        // The warning is for keys without a passphrase.
        if !with_key.encrypted {
            store::warn_of_open_key(key.unwrap_or(certificates));
        }
        let both = match key {
            Some(_) => format!("{key_origin} (with {origin})"),
            None => key_origin,
        };
        Self::assemble(chain.to_vec(), private, &origin, &both)
    }

    /// Loads an identity for a protocol without SSNTP's roles: any certificate is accepted, also one
    /// without a role and one of X.509 version 1. The key may be in a file of its own, and may be
    /// encrypted (PKCS#8, `BEGIN ENCRYPTED PRIVATE KEY`) under a passphrase. Blocks while the files
    /// are read.
    ///
    /// # Errors
    /// As [`load_parts`](Self::load_parts) without [`Fault::NoRole`]; [`Fault::EncryptedKey`] if the key
    /// needs a passphrase and none is given, and [`Fault::WrongPassphrase`].
    pub fn load_without_role(
        certificates: &Path,
        key: Option<&Path>,
        passphrase: Option<&[u8]>,
    ) -> Result<Self, Error> {
        let identity = Self::load_with(certificates, key, passphrase)?;
        let valid = identity.info().check_validity(der::now());
        let origin = store::origin(certificates);
        valid.map(|()| identity).map_err(Error::content(origin))
    }

    /// Reads a PEM text as [`load`](Self::load) reads a file. Errors name it `origin`.
    ///
    /// # Errors
    /// As [`load`](Self::load) without [`Error::Read`].
    pub fn from_pem(pem: &[u8], origin: &str) -> Result<Self, Error> {
        let sections = Sections::read(pem).map_err(Error::content(origin))?;
        let chain = sections.certificates().map_err(Error::content(origin))?;
        let key = sections.key().map_err(Error::content(origin))?;
        Self::assemble(chain.to_vec(), key, origin, origin)?.check_usable(origin)
    }

    /// Takes certificates, our own first, and the private key in DER. Errors call them `the
    /// certificates` and `the private key`.
    ///
    /// # Errors
    /// As [`load`](Self::load) without [`Error::Read`]; [`Fault::NotDer`] instead of "not PEM".
    pub fn from_der(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, Error> {
        Self::assemble(chain, key, CERTIFICATES, KEY)?.check_usable(CERTIFICATES)
    }

    /// Takes certificates, our own first, and a signer with the first one's private key. The key may be
    /// outside of this process, in a hardware module or an agent.
    ///
    /// The signer is called once for each full handshake, on the handshake's thread, and by several
    /// threads at once. A call cannot be interrupted, so it should return well within the time limit
    /// of a handshake. Its error ends that handshake only.
    ///
    /// # Errors
    /// As [`from_der`](Self::from_der). That the key belongs to the certificate is checked if
    /// [`SigningKey::public_key`] returns the public key; otherwise peers find a wrong key.
    pub fn with_signer(
        chain: Vec<CertificateDer<'static>>,
        signer: Arc<dyn SigningKey>,
    ) -> Result<Self, Error> {
        let info = first_of(&chain).map_err(Error::content(CERTIFICATES))?;
        let certified = certify(chain, signer).map_err(Error::content(KEY))?;
        Self(Arc::new(IdentityParts { certified, info })).check_usable(CERTIFICATES)
    }

    /// Joins chain and key without a check of lifetime and roles.
    pub(crate) fn assemble(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        origin: &str,
        key_origin: &str,
    ) -> Result<Self, Error> {
        let info = first_of(&chain).map_err(Error::content(origin))?;
        limits::check_key(&info.key).map_err(Error::content(origin))?;
        let key = signing_key(key, key_origin)?;
        let certified = certify(chain, key).map_err(Error::content(key_origin))?;
        Ok(Self(Arc::new(IdentityParts { certified, info })))
    }

    fn check_usable(self, origin: &str) -> Result<Self, Error> {
        let valid = self.info().check_validity(der::now());
        let judged = valid.and_then(|()| match self.roles() {
            Role::NONE => Err(Fault::NoRole),
            _ => Ok(self),
        });
        judged.map_err(Error::content(origin))
    }

    /// The certificates, our own first, each followed by its issuer's.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.0.certified.cert
    }

    /// The chain and its key in rustls's type.
    pub fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.certified)
    }

    /// The roles that the certificate gives. They may be none only after
    /// [`load_without_role`](Self::load_without_role).
    pub fn roles(&self) -> Role {
        self.0.info.roles
    }

    /// The UUID to which the certificate binds its holder, if there is one.
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

/// The names in errors for input from memory.
const CERTIFICATES: &str = "the certificates";
const KEY: &str = "the private key";

fn first_of(chain: &[CertificateDer<'static>]) -> Result<CertificateInfo, Fault> {
    CertificateInfo::from_der(chain.first().ok_or(Fault::NoCertificate)?)
}

/// The key as a signer.
pub(crate) fn signing_key(key: PrivateKeyDer<'static>, origin: &str) -> Result<Arc<dyn SigningKey>, Error> {
    let load = || {
        if der::is_pem(key.secret_der()) {
            return Err(Fault::NotDer);
        }
        let loaded = provider().key_provider.load_private_key(key);
        loaded.map_err(|error| Fault::UnusableKey(error.to_string()))
    };
    load().map_err(Error::content(origin))
}

/// Joins a chain and its key. Fails if the key is known to belong to another certificate.
pub(crate) fn certify(
    chain: Vec<CertificateDer<'static>>,
    key: Arc<dyn SigningKey>,
) -> Result<Arc<CertifiedKey>, Fault> {
    let own = match chain.first() {
        Some(first) => der::certificate(first)?.public_key().raw.to_vec(),
        None => return Err(Fault::NoCertificate),
    };
    // Some signers do not return their public key. Then peers find a wrong key.
    match key.public_key() {
        Some(public) if *public != *own => Err(Fault::KeyMismatch),
        _ => Ok(Arc::new(CertifiedKey::new(chain, key))),
    }
}
