//! Errors of files, certificates, keys and requests, grouped by the input at fault.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::role::Role;

/// The reason why a certificate or key could not be loaded, made or saved.
///
/// Each text is one line with the file and the fault.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read: it is missing, not readable, or too large.
    #[error("{}: cannot read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file could not be written. An existing file is unchanged.
    #[error("{}: cannot write: {source}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file exists and overwriting was not requested. No file was changed.
    #[error("{}: exists already", path.display())]
    Exists {
        /// The existing file.
        path: PathBuf,
    },
    /// A file was read, but its content cannot be used. Replace the file.
    #[error("{origin}: {fault}")]
    Content {
        /// The file, or the name of the text's source.
        origin: String,
        /// The fault in the content.
        #[source]
        fault: Fault,
    },
    /// The requested certificate cannot be issued.
    #[error(transparent)]
    Request(#[from] BadRequest),
    /// The cryptography library failed. This is unexpected; try again.
    #[error("cryptography failed: {0}")]
    Crypto(String),
}

impl Error {
    /// Makes the error for a fault in `origin`, a file or another source.
    pub(crate) fn content(origin: impl Into<String>) -> impl FnOnce(Fault) -> Self {
        let origin = origin.into();
        |fault| Self::Content { origin, fault }
    }
}

/// A fault in a PEM text, a certificate or a key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The text has no PEM section; perhaps it is DER.
    #[error("not PEM: it has no -----BEGIN line")]
    NotPem,
    /// The bytes are PEM, but the binary form, DER, is expected.
    #[error("not DER but PEM: it has a -----BEGIN line")]
    NotDer,
    /// A PEM section is broken: it has no end line, or is not base64.
    #[error("broken PEM: {0}")]
    BadPem(String),
    /// No section holds a certificate.
    #[error("it holds no certificate")]
    NoCertificate,
    /// No section holds a private key in a known form (PKCS#8, PKCS#1, SEC1).
    #[error("it holds no private key")]
    NoKey,
    /// The private key is encrypted under a passphrase, and none was given, or it is in the old form
    /// with `Proc-Type`. Decrypt it first.
    #[error("the private key is encrypted; decrypt it first")]
    EncryptedKey,
    /// The passphrase does not decrypt the private key, or the kind of
    /// encryption is not supported.
    #[error("the passphrase does not decrypt the private key: {0}")]
    WrongPassphrase(String),
    /// The file holds several private keys; only one is allowed.
    #[error("it holds {0} private keys; there must be one")]
    SeveralKeys(usize),
    /// The bytes are no certificate, or a broken one.
    #[error("not a certificate: {0}")]
    BadCertificate(String),
    /// A SAN begins with `urn:uuid:` but is no UUID, is the nil UUID, or contradicts another one.
    #[error("the certificate's SAN {0:?} is no valid UUID, or contradicts another one")]
    BadUuid(String),
    /// A certificate that should be an authority's is not one: that of this subject.
    #[error("the certificate of {0:?} is not a certificate authority's")]
    NotAuthority(String),

    /// No section holds a revocation list.
    #[error("it holds no revocation list")]
    NoRevocationList,
    /// The bytes are no revocation list, or a broken one, or one of an unsupported kind.
    #[error("not a revocation list: {0}")]
    BadRevocationList(String),
    /// A revocation list has the name of a trusted authority, this issuer, but not its signature: it comes
    /// from another authority of the same name, or was changed.
    #[error("the revocation list of {0:?} is not signed by the trusted authority of that name")]
    RevocationListSignature(String),
    /// An authority, this issuer, signed a revocation list, but its key usage lacks cRLSign.
    #[error("{0:?} may not sign revocation lists: its key usage lacks cRLSign")]
    NotForRevocationLists(String),
    /// A newer revocation list is due, or the clock is wrong.
    #[error("the revocation list of {issuer:?} should have been replaced at {next_update}")]
    RevocationListOverdue {
        /// The issuer of the list.
        issuer: String,
        /// The time at which the newer list was due, in RFC 3339 form.
        next_update: String,
    },

    /// Expiry of lists is enforced, and none of them is of a trusted authority, but all of these issuers, so
    /// they would check no peer.
    #[error("no revocation list is of a trusted authority, only of {0}: no peer would be checked")]
    RevocationListsOfOthers(String),
    /// A revocation list is older than the one in force, so certificates that were revoked in between
    /// would be accepted again.
    #[error(
        "the revocation list of {issuer:?} is older than the one in force, which was signed at {in_force}"
    )]
    RevocationListOlder {
        /// The issuer of the list.
        issuer: String,
        /// The time at which the list in force was signed, in RFC 3339 form.
        in_force: String,
    },

    /// There is no signing request (PKCS#10), or it has a signature or key that cannot be used.
    #[error("the signing request cannot be used: {0}")]
    SigningRequest(String),
    /// The certificate has a key with which no peer can prove itself here.
    #[error(
        "a key of the kind {0} is not supported: P-256, P-384, P-521, Ed25519 and RSA of 2048 to 8192 bits are"
    )]
    UnsupportedKey(String),
    /// The cryptography library does not take the private key.
    #[error("the private key cannot be used: {0}")]
    UnusableKey(String),
    /// The private key belongs to another certificate.
    #[error("the private key does not belong to the first certificate")]
    KeyMismatch,

    /// The certificate has expired.
    #[error("the certificate expired at {not_after}; the clock says {clock}")]
    Expired {
        /// The last moment of its lifetime, in RFC 3339 form.
        not_after: String,
        /// The time of the check, in RFC 3339 form.
        clock: String,
    },
    /// The certificate is not valid yet, or the clock is wrong.
    #[error("the certificate is not valid before {not_before}; the clock says {clock}")]
    NotYetValid {
        /// The first moment of its lifetime, in RFC 3339 form.
        not_before: String,
        /// The time of the check, in RFC 3339 form.
        clock: String,
    },
    /// The certificate's issuer has revoked it.
    #[error("the certificate of {subject:?} is revoked (serial number {serial})")]
    Revoked {
        /// The subject: the peer, or an intermediate authority.
        subject: String,
        /// The serial number.
        serial: String,
    },
    /// The certificate gives no SSNTP role.
    #[error("the certificate gives no SSNTP role")]
    NoRole,

    /// An authority's own certificate is used as a peer's certificate.
    #[error("this is an authority's certificate; issue one for the peer itself")]
    AuthorityAsPeer,
    /// No trusted authority issued the certificate; it names this issuer.
    #[error("the certificate was issued by {0:?}, which is not trusted")]
    UnknownIssuer(String),
    /// The shown chain has a gap, or ends below an authority that is not trusted.
    #[error(
        "the intermediate certificate of {subject:?} was issued by {issuer:?}, which is neither shown nor trusted"
    )]
    MissingIssuer {
        /// The holder of the last intermediate certificate that belongs to the chain.
        subject: String,
        /// The issuer that it names.
        issuer: String,
    },
    /// The issuer's name is right but the signature is not: it is another authority of the same name,
    /// or the certificate was changed.
    #[error(
        "the certificate's signature is not its issuer's: another authority has that name, or its RSA key has fewer than 2048 bits"
    )]
    BadSignature,
    /// A certificate of the chain has an extension that counts for its validity and that TLS does not know.
    #[error("the certificate of {subject:?} has the critical extension {oid}, which is unknown here")]
    CriticalExtension {
        /// The subject of the certificate.
        subject: String,
        /// The object identifier of the extension.
        oid: String,
    },
    /// The certificate has a key usage without digitalSignature. TLS peers prove their identity with
    /// signatures.
    #[error("the certificate's key usage lacks digitalSignature, which TLS needs")]
    NotForSignatures,
    /// The certificate gives a role that its issuer may not give, because the issuer's own extended
    /// key usage lacks it.
    #[error("the certificate has the role {role}, which {issuer:?} may not give")]
    RoleNotIssuers {
        /// The first role that it may not give.
        role: Role,
        /// The issuer.
        issuer: String,
    },
    /// There are more intermediate authorities than the trusted authority allows.
    #[error("there are more intermediate authorities than the trusted authority allows")]
    PathTooLong,
    /// A server shows no certificate of the authority whose key is known.
    #[error(
        "the server shows no certificate of the authority that is expected: it is another cluster's, or lets no node join"
    )]
    NotPinned,
    /// The certificate of a peer that should be a server gives no role of servers.
    #[error("the certificate has the roles {0}, but no server's role")]
    NotServer(Role),
    /// A server's certificate does not hold the name by which it is dialled.
    #[error("the server's certificate is for {hosts}, and not for {name}")]
    NotForName {
        /// The name that was dialled.
        name: String,
        /// The names and addresses in the certificate.
        hosts: String,
    },
    /// The certificate has a server's role and no serverAuth usage.
    #[error("the certificate has a server's role but no serverAuth usage")]
    NotForServers,
    /// The certificate has a client's role and no clientAuth usage.
    #[error("the certificate has a client's role but no clientAuth usage")]
    NotForClients,
    /// The certificate has a server's role but no name or address by which a client could check that
    /// it reached the right server.
    #[error("the certificate has a server's role but no DNS name or IP address")]
    NoHost,
    /// TLS peers refuse the certificate for another reason.
    #[error("TLS refuses the certificate: {0}")]
    Refused(String),
}

/// A fault in a request to issue, renew or revoke a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadRequest {
    /// A name is empty, longer than 64 characters, or has control characters.
    #[error("{0:?} is not a name of 1 to 64 printable characters")]
    Name(String),
    /// The text is neither a DNS name nor an IP address.
    #[error("{0:?} is not a DNS name or IP address (and takes no port)")]
    Host(String),
    /// A lifetime of 0 days, or of more than 36,500.
    #[error("{0} days is not a lifetime of 1 to 36500 days")]
    Days(u32),
    /// A start before 1970 or after 9999.
    #[error("a lifetime begins between 1970 and 9999")]
    Start,
    /// The authority expires before the lifetime begins, at this time in RFC 3339 form.
    #[error("the authority's own certificate expires at {0}, before the lifetime begins")]
    AuthorityExpires(String),
    /// The mask has bits that are not a role.
    #[error("{0:#x} is not a role")]
    UnknownRole(u32),
    /// An issuer gives the roles of nodes alone, and only those in its own certificate.
    #[error("an issuer gives the roles {given}, not {roles}")]
    IssuerRole {
        /// The roles that were asked for.
        roles: Role,
        /// The roles that it may give.
        given: Role,
    },
    /// The authority's certificate has a path length of 0, so nobody accepts what an issuer below it issues.
    #[error("the authority's own certificate allows no issuer below it (its path length is 0)")]
    NoIssuers,
    /// The nil UUID identifies no holder.
    #[error("the nil UUID identifies no holder")]
    NilUuid,
    /// This build cannot make keys of that kind.
    #[error("making {0} keys needs the feature aws-lc-rs")]
    Key(&'static str),
    /// The text is not a kind of key.
    #[error("{0:?} is not a kind of key (p256, rsa2048, rsa4096, ed25519)")]
    UnknownKey(String),
    /// The authority's name has a form that cannot be repeated exactly in the certificates that it
    /// issues.
    #[error("the authority's name is in an unsupported form")]
    AuthorityName,
    /// The text is not a serial number.
    #[error("{0:?} is not a serial number: hexadecimal with colons, after 0x, or of 16 digits and more")]
    Serial(String),
    /// The text is not a reason to revoke a certificate.
    #[error(
        "{0:?} is not a reason (unspecified, key-compromise, affiliation-changed, superseded, \
         cessation-of-operation, privilege-withdrawn)"
    )]
    Reason(String),
    /// An authority cannot revoke its own certificate.
    #[error("this is the authority's own certificate, which no list revokes")]
    OwnSerial,
    /// The key usage of the authority's certificate lacks cRLSign.
    #[error("the authority's certificate does not allow it to sign revocation lists")]
    NoListSigner,
    /// The certificate holds a part that a new one would not hold.
    #[error("the certificate cannot be renewed as it is: {0}")]
    Renewal(String),
}
