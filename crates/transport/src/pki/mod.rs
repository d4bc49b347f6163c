//! Certificates: who a peer is and what it may be.
//!
//! Every entity of a cluster shows one certificate, issued by the cluster's
//! authority. Its roles are extended key usages in it, so that a peer cannot
//! claim a role that the authority did not give (docs/protocol.md, "Roles").
//!
//! ```text
//!   Authority --issue--> Issued --PEM file--> Identity   what we show
//!       |                                        |
//!     trust()                              chain(), key(), roles(), uuid()
//!       v
//!     Trust  --verify(chain)-->  CertificateInfo         what we believe
//!     roots(), names()
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `identity` | [`Identity`]: certificate chain and private key, or what signs with it |
//! | `trust` | [`Trust`]: the authorities, and the check that a TLS peer would make |
//! | `inspect` | [`CertificateInfo`]: the facts in one certificate |
//! | `limits` | what certificates of a chain limit in each other |
//! | `revocation` | [`RevocationLists`]: certificates that count no longer |
//! | `signature` | signatures that are checked apart from a chain |
//! | `version_1` | certificates of X.509 version 1, for protocols without roles |
//! | `eku` | roles as object identifiers, [`roles_of`] |
//! | `host` | [`Host`]: a DNS name or an address |
//! | `store` | PEM text and files, [`load_certificates`] |
//! | `request` | `AuthorityRequest`, `CertificateRequest`, `KeyKind` (feature `issue`) |
//! | `issue` | `Authority` and what it issues (feature `issue`) |
//! | `renew`, `revoke` | what becomes of that later: `RenewalRequest`, `SignedRevocationList` (feature `issue`) |
//! | `list_info` | [`RevocationListInfo`]: the facts in a revocation list, [`Serial`] |
//! | `provider` | which cryptography is used, [`provider()`] |
//! | `error` | [`Error`], [`Fault`], [`BadRequest`] |
//!
//! A throw-away authority, without a file:
//!
#![cfg_attr(feature = "issue", doc = "```")]
#![cfg_attr(not(feature = "issue"), doc = "```ignore")]
//! use ssntp_transport::Role;
//! use ssntp_transport::pki::{Authority, AuthorityRequest, CertificateRequest};
//!
//! let authority = Authority::new(&AuthorityRequest::default())?;
//! let agent = authority.issue(&CertificateRequest::new(Role::AGENT))?.identity();
//! assert_eq!(agent.roles(), Role::AGENT);
//! authority.trust().verify(agent.chain())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing here opens a socket. Loading and saving block on the disk, making
//! an RSA key takes up to seconds, and the rest is quick.

mod der;
mod eku;
mod error;
mod host;
mod identity;
mod inspect;
#[cfg(feature = "issue")]
mod issue;
mod kept;
mod limits;
mod list;
mod pem;
mod provider;
#[cfg(feature = "issue")]
mod renew;
#[cfg(feature = "issue")]
mod request;
mod revocation;
#[cfg(feature = "issue")]
mod revoke;
mod store;
mod trust;
mod version_1;

/// From rustls, as they stand in signatures here. What else a [`SigningKey`]
/// needs is in [`crate::rustls`].
#[doc(no_inline)]
pub use rustls::{
    pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer},
    sign::{CertifiedKey, SigningKey},
};

pub use self::der::rfc3339;
pub use self::eku::roles_of;
pub use self::error::{BadRequest, Error, Fault};
pub use self::host::{Host, ParseHostError};
pub use self::identity::Identity;
pub use self::inspect::CertificateInfo;
#[cfg(feature = "issue")]
pub use self::issue::{Authority, Issued};
pub use self::kept::KeptCertificate;
pub use self::list::{RevocationList, RevocationReason, Revoked, Serial};
pub use self::provider::provider;
pub use self::provider::ticketer;
#[cfg(feature = "issue")]
pub use self::renew::{RenewalRequest, Renewed};
#[cfg(feature = "issue")]
pub use self::request::{AuthorityRequest, CertificateRequest, KeyKind};
pub use self::revocation::RevocationLists;
#[cfg(feature = "issue")]
pub use self::revoke::SignedRevocationList;
pub use self::store::load_certificates;
pub use self::trust::Trust;
pub use self::version_1::Version1;
