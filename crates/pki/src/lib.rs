//! Certificates: the identity of a peer and its roles.
//!
//! Every peer of a cluster shows one certificate, issued by the cluster's authority. The
//! roles are extended key usages in it, so a peer cannot claim a role that the authority
//! did not give (docs/protocol.md, "Roles").
//!
//! ```text
//!   Authority --issue--> Issued --PEM file--> Identity   shown to peers
//!       |                                        |
//!     trust()                              chain(), key(), roles(), uuid()
//!       v
//!     Trust  --verify(chain)-->  CertificateInfo         checked of peers
//!     roots(), names()
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `identity` | [`Identity`]: a certificate chain with its private key, or with a signer |
//! | `trust` | [`Trust`]: the authorities, and the check that a TLS peer makes |
//! | `inspect` | [`CertificateInfo`]: the facts in one certificate |
//! | `kept` | [`KeptCertificate`]: the certificate of a session, in little memory |
//! | `limits` | the limits that certificates of a chain set for each other |
//! | `revocation` | [`RevocationLists`]: the lists that a trust checks |
//! | `list` | [`RevocationList`]: the facts in one revocation list, [`Serial`] |
//! | `version_1` | certificates of X.509 version 1, for protocols without roles |
//! | `eku` | roles as object identifiers |
//! | `host` | [`Host`]: a DNS name or an address |
//! | `der` | reading DER, for the other files |
//! | `store` | files of certificates and keys in PEM, [`load_certificates`] |
//! | `pem` | PEM texts, cut into sections |
//! | `authority` | `Authority`, `Issuer`, `JoinToken` and what they sign (feature `issue`) |
//! | `role` | [`Role`]: a set of roles |
//! | `verifier` | what TLS checks of a peer's certificates, [`ServerCheck`] |
//! | `error` | [`Error`], [`Fault`], [`BadRequest`] |
//!
//! A throw-away authority, without a file:
//!
#![cfg_attr(feature = "issue", doc = "```")]
#![cfg_attr(not(feature = "issue"), doc = "```ignore")]
//! use ssntp_pki::{Authority, AuthorityRequest, CertificateRequest, Role};
//!
//! let authority = Authority::new(&AuthorityRequest::default())?;
//! let agent = authority.issue(&CertificateRequest::new(Role::AGENT))?.identity();
//! assert_eq!(agent.roles(), Role::AGENT);
//! authority.trust().verify(agent.chain())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No function here opens a socket. Loading and saving block on the disk, making an RSA key takes up
//! to seconds, and the rest is quick.
//!
//! # Features
//!
//! `aws-lc-rs` (default) and `ring` choose the cryptography; with both, aws-lc-rs is used.
//! `issue` adds `Authority`, `Issuer` and `JoinToken`. `encrypted-keys` reads private keys under a passphrase; it is a
//! feature because it brings 24 crates.

#![deny(missing_docs)]

#[cfg(feature = "issue")]
mod authority;
mod der;
mod eku;
mod error;
mod host;
mod identity;
mod inspect;
mod kept;
mod limits;
mod list;
mod pem;
mod revocation;
mod role;
mod store;
mod trust;
mod verifier;
mod version_1;

/// Types of rustls that are in signatures here. Further types for a [`SigningKey`] are in
/// [`rustls`].
#[doc(no_inline)]
pub use rustls::{
    pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer},
    sign::{CertifiedKey, SigningKey},
};

#[cfg(feature = "issue")]
pub use self::authority::*;
pub use self::der::{chain_from_der, rfc3339};
pub use self::error::{BadRequest, Error, Fault};
pub use self::host::{Host, ParseHostError};
pub use self::identity::Identity;
pub use self::inspect::CertificateInfo;
pub use self::kept::KeptCertificate;
pub use self::list::{RevocationList, RevocationReason, Revoked, Serial};
pub use self::revocation::RevocationLists;
pub use self::role::{ParseRoleError, Role};
pub use self::store::load_certificates;
pub use self::trust::Trust;
pub use self::verifier::ServerCheck;
pub use ssntp_transport::{provider, sha256};
