//! What can be wrong with files, certificates, keys and requests, by who has
//! to mend it.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a certificate or key could not be loaded, made or saved.
///
/// Each text is one line that names the file and what is wrong with it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read: it is missing, not readable, or too large.
    /// The system says why.
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file could not be written. What stood there before is unchanged.
    Write {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file stands where a new one should go and overwriting was not asked
    /// for. Nothing was changed.
    Exists {
        /// The file that is there.
        path: PathBuf,
    },
    /// A file was read and its content will not do. Replace the file.
    Content {
        /// The file, or where the text came from.
        origin: String,
        /// What is wrong with it.
        fault: Fault,
    },
    /// The caller asked for a certificate that cannot be issued.
    Request(BadRequest),
    /// The crate was built without cryptography: build it with the feature
    /// `aws-lc-rs` or `ring`.
    NoProvider,
    /// The cryptography library failed, which it should not; trying again is
    /// the only remedy.
    Crypto(String),
}

impl Error {
    pub(super) fn content(origin: impl Into<String>) -> impl FnOnce(Fault) -> Self {
        let origin = origin.into();
        |fault| Self::Content { origin, fault }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, source } => write!(f, "{}: cannot read: {source}", path.display()),
            Self::Write { path, source } => write!(f, "{}: cannot write: {source}", path.display()),
            Self::Exists { path } => write!(f, "{}: exists already", path.display()),
            Self::Content { origin, fault } => write!(f, "{origin}: {fault}"),
            Self::Request(request) => request.fmt(f),
            Self::NoProvider => {
                f.write_str("built without cryptography: enable the feature aws-lc-rs or ring")
            }
            Self::Crypto(text) => write!(f, "cryptography failed: {text}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => Some(source),
            Self::Content { fault, .. } => Some(fault),
            Self::Request(request) => Some(request),
            _ => None,
        }
    }
}

impl From<BadRequest> for Error {
    fn from(request: BadRequest) -> Self {
        Self::Request(request)
    }
}

/// What is wrong with a PEM text, a certificate or a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// There is no PEM section in it at all; perhaps it is DER.
    NotPem,
    /// It is PEM where the binary form, DER, should be.
    NotDer,
    /// A PEM section is broken: no end line, or no base64 in it.
    BadPem(String),
    /// No section holds a certificate.
    NoCertificate,
    /// No section holds a private key in a known form (PKCS#8, PKCS#1, SEC1).
    NoKey,
    /// The private key is protected with a passphrase, and none was given, or
    /// it is in the old form with `Proc-Type`. Decrypt it first.
    EncryptedKey,
    /// The passphrase is not that of the private key, or the key is encrypted
    /// in a way that is not known.
    WrongPassphrase(String),
    /// More than one private key; which one is meant cannot be told.
    SeveralKeys(usize),
    /// Something else where a certificate should be, or a broken one.
    BadCertificate(String),
    /// A SAN begins with `urn:uuid:` and is no UUID, is the nil UUID, or
    /// contradicts another one.
    BadUuid(String),
    /// A certificate that should be an authority's is not one.
    NotAuthority {
        /// Whose certificate it is.
        subject: String,
    },

    /// No section holds a revocation list.
    NoRevocationList,
    /// Something else where a revocation list should be, a broken one, or one of a
    /// kind that is not understood.
    BadRevocationList(String),
    /// A revocation list has the name of a trusted authority, whose key did not
    /// sign it: it is another authority's of the same name, or was changed.
    RevocationListSignature {
        /// Whose list it should be.
        issuer: String,
    },
    /// An authority signed a revocation list and has a key usage without cRLSign.
    NotForRevocationLists {
        /// Whose list it is.
        issuer: String,
    },
    /// There should be a newer revocation list; or the clock is wrong.
    RevocationListOverdue {
        /// Whose list it is.
        issuer: String,
        /// Since when, in RFC 3339 form.
        next_update: String,
    },

    /// The cryptography library does not take the private key.
    UnusableKey(String),
    /// The private key belongs to another certificate.
    KeyMismatch,

    /// The certificate was valid until then.
    Expired {
        /// The last moment, in RFC 3339 form.
        not_after: String,
    },
    /// The certificate will be valid from then on; or the clock is wrong.
    NotYetValid {
        /// The first moment, in RFC 3339 form.
        not_before: String,
    },
    /// The certificate's issuer has revoked it.
    Revoked {
        /// Whose certificate it is: the peer's, or an authority's in between.
        subject: String,
        /// Its serial number.
        serial: String,
    },
    /// The certificate gives no SSNTP role.
    NoRole,

    /// An authority's own certificate where a peer's should be.
    AuthorityAsPeer,
    /// None of the trusted authorities issued the certificate.
    UnknownIssuer {
        /// Who did, according to the certificate.
        issuer: String,
    },
    /// The issuer's name is right and the signature is not: it is another
    /// authority of the same name, or the certificate was changed.
    BadSignature,
    /// The certificate has a key usage without digitalSignature, and TLS peers
    /// prove themselves by signatures.
    NotForSignatures,
    /// The certificate gives a role that its issuer may not give: the issuer's
    /// own extended key usage lacks it.
    RoleNotIssuers {
        /// Whose extended key usage it is.
        issuer: String,
    },
    /// More authorities stand between the certificate and a trusted one than
    /// that one allows.
    PathTooLong,
    /// The certificate has a server's role and no serverAuth usage.
    NotForServers,
    /// The certificate has a client's role and no clientAuth usage.
    NotForClients,
    /// The certificate has a server's role and no name or address by which a
    /// client could check that it reached the right server.
    NoHost,
    /// TLS peers refuse the certificate for another reason.
    Refused(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPem => f.write_str("not PEM: there is no -----BEGIN line"),
            Self::NotDer => f.write_str("not DER but PEM: there is a -----BEGIN line"),
            Self::BadPem(why) => write!(f, "broken PEM: {why}"),
            Self::NoCertificate => f.write_str("no certificate in it"),
            Self::NoKey => f.write_str("no private key in it"),
            Self::EncryptedKey => f.write_str("the private key is encrypted; decrypt it first"),
            Self::WrongPassphrase(why) => {
                write!(f, "the private key is not decrypted by the passphrase: {why}")
            }
            Self::SeveralKeys(count) => write!(f, "{count} private keys in it, there must be one"),
            Self::BadCertificate(why) => write!(f, "not a certificate: {why}"),
            Self::BadUuid(uri) => write!(f, "the certificate's SAN {uri:?} is not its one valid UUID"),
            Self::NotAuthority { subject } => {
                write!(
                    f,
                    "the certificate of {subject:?} is not a certificate authority's"
                )
            }
            Self::NoRevocationList => f.write_str("no revocation list in it"),
            Self::BadRevocationList(why) => write!(f, "not a revocation list: {why}"),
            Self::RevocationListSignature { issuer } => write!(
                f,
                "the revocation list of {issuer:?} is not signed by the trusted authority of that name"
            ),
            Self::NotForRevocationLists { issuer } => write!(
                f,
                "{issuer:?} may not sign revocation lists: its key usage lacks cRLSign"
            ),
            Self::RevocationListOverdue { issuer, next_update } => write!(
                f,
                "the revocation list of {issuer:?} should have been replaced at {next_update}"
            ),
            Self::UnusableKey(why) => write!(f, "the private key cannot be used: {why}"),
            Self::KeyMismatch => f.write_str("the private key does not belong to the first certificate"),
            Self::Expired { not_after } => write!(f, "the certificate expired at {not_after}"),
            Self::NotYetValid { not_before } => {
                write!(f, "the certificate is not valid before {not_before}")
            }
            Self::Revoked { subject, serial } => {
                write!(
                    f,
                    "the certificate of {subject:?} is revoked (serial number {serial})"
                )
            }
            Self::NoRole => f.write_str("the certificate gives no SSNTP role"),
            Self::AuthorityAsPeer => {
                f.write_str("this is an authority's certificate; issue one for the peer itself")
            }
            Self::UnknownIssuer { issuer } => {
                write!(
                    f,
                    "the certificate was issued by {issuer:?}, which is not trusted"
                )
            }
            Self::BadSignature => f.write_str(
                "the certificate's signature is not its issuer's (another authority of that name?)",
            ),
            Self::NotForSignatures => {
                f.write_str("the certificate's key usage lacks digitalSignature, which TLS needs")
            }
            Self::RoleNotIssuers { issuer } => {
                write!(f, "the certificate has a role that {issuer:?} may not give")
            }
            Self::PathTooLong => f.write_str("more authorities in between than the trusted one allows"),
            Self::NotForServers => f.write_str("the certificate has a server's role but no serverAuth usage"),
            Self::NotForClients => f.write_str("the certificate has a client's role but no clientAuth usage"),
            Self::NoHost => f.write_str("a server's certificate without DNS name or IP address"),
            Self::Refused(why) => write!(f, "TLS refuses the certificate: {why}"),
        }
    }
}

impl std::error::Error for Fault {}

/// What is wrong with a request to issue a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadRequest {
    /// A name is empty, longer than 64 characters, or has control characters.
    Name(String),
    /// A lifetime of no day, or of more than 36,500.
    Days(u32),
    /// A start before 1970 or after 9999.
    Start,
    /// Nothing remains of the lifetime: the authority expires first.
    AuthorityExpires {
        /// When it expires, in RFC 3339 form.
        not_after: String,
    },
    /// Bits that are no role.
    UnknownRole(u32),
    /// The nil UUID, which names nobody.
    NilUuid,
    /// This build cannot make keys of that kind.
    Key(&'static str),
    /// A text that names no kind of key.
    UnknownKey(String),
    /// The authority's name has a form that cannot be repeated exactly in
    /// what it issues.
    AuthorityName,
    /// A text that is no serial number.
    Serial(String),
    /// A text that is no reason to revoke a certificate.
    Reason(String),
    /// An authority cannot revoke itself.
    OwnSerial,
    /// The key usage of the authority's certificate lacks cRLSign.
    NoListSigner,
    /// A certificate says something that a new one would not: what that is.
    Renewal(String),
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name:?} is not a name of 1 to 64 printable characters"),
            Self::Days(days) => write!(f, "{days} days is not a lifetime of 1 to 36500 days"),
            Self::Start => f.write_str("a lifetime begins between 1970 and 9999"),
            Self::AuthorityExpires { not_after } => {
                write!(
                    f,
                    "the authority's own certificate expires at {not_after}, before that"
                )
            }
            Self::UnknownRole(bits) => write!(f, "{bits:#x} is not a role"),
            Self::NilUuid => f.write_str("the nil UUID names nobody"),
            Self::Key(kind) => write!(f, "making {kind} keys needs the feature aws-lc-rs"),
            Self::UnknownKey(text) => {
                write!(
                    f,
                    "{text:?} is not a kind of key (p256, rsa2048, rsa4096, ed25519)"
                )
            }
            Self::AuthorityName => f.write_str("the authority's name is in an unsupported form"),
            Self::Serial(text) => write!(
                f,
                "{text:?} is not a serial number: hexadecimal with colons, after 0x, or of 16 digits and more"
            ),
            Self::Reason(text) => write!(
                f,
                "{text:?} is not a reason (unspecified, key-compromise, affiliation-changed, superseded, \
                 cessation-of-operation, privilege-withdrawn)"
            ),
            Self::OwnSerial => f.write_str("this is the authority's own certificate, which no list revokes"),
            Self::NoListSigner => {
                f.write_str("the authority's certificate does not allow it to sign revocation lists")
            }
            Self::Renewal(why) => write!(f, "the certificate cannot be renewed as it is: {why}"),
        }
    }
}

impl std::error::Error for BadRequest {}
