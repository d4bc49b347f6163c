//! Making certificates, for the feature `issue`: an authority, the issuers below it, and all that they sign.
//!
//! | file | holds |
//! |---|---|
//! | `request` | [`AuthorityRequest`], [`CertificateRequest`], [`KeyKind`] |
//! | `issue` | [`Authority`] and its certificates |
//! | `issuer` | [`Issuer`]: an authority for the roles of nodes; [`SigningRequest`] |
//! | `token` | [`JoinToken`], [`StoredToken`], [`JoinRefusal`] |
//! | `records` | [`EnrolmentRecords`]: which nodes get certificates, and which are revoked |
//! | `renew`, `revoke` | renewing and revoking them: [`RenewalRequest`], [`SignedRevocationList`] |
//! | `signing` | certificates for keys that stay with their holder |

mod issue;
mod issuer;
mod records;
mod renew;
mod request;
mod revoke;
mod signing;
mod token;

pub use self::issue::{Authority, Issued};
pub use self::issuer::{Enrolled, Issuer, SigningRequest, node_key, signing_request};
pub use self::records::EnrolmentRecords;
pub use self::renew::{RenewalRequest, Renewed};
pub use self::request::{AuthorityRequest, CertificateRequest, KeyKind};
pub use self::revoke::SignedRevocationList;
pub use self::token::{JoinRefusal, JoinRequest, JoinToken, ParseTokenError, StoredToken};
