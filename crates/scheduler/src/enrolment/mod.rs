//! Nodes that join with a token: where their tokens and certificates are kept, and the commands of operators.
//!
//! ```text
//!  newcomer's thread, ssntp-enrol ─ update ───────▶ Enrolments ─ change ─▶ file, or document of the engine
//!                                                      ▲ │ revoked ─▶ the server's trust
//!  dispatcher ─ ManageEnrolment ─▶ ssntp-tokens ───────┘ └ answer ─▶ dispatcher ─▶ operator
//! ```
//!
//! Each change is stored before anybody hears of it. Several schedulers share the document: a change counts
//! if nobody has changed the document since it was read, and is tried again otherwise.
//!
//! | file | holds |
//! |---|---|
//! | `store` | [`Enrolments`]: the owner of the records ([`EnrolmentRecords`](ssntp::pki::EnrolmentRecords)), and where they are kept |
//! | `clerk` | [`Clerk`]: the commands of operators, and its thread |

mod clerk;
mod store;

pub(crate) use self::clerk::{Clerk, no_issuer, with_operator};
pub use self::store::Enrolments;
