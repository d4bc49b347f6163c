//! The methods of OpFlex: typed parameters and results (draft section 4.2).
//!
//! ```text
//!  rpc::Message ──> Incoming ──┬─ Request    a method with its parameters: carry out, answer
//!                              ├─ Refused    answer with this error
//!                              ├─ Result     a request of this side succeeded
//!                              ├─ Failure    a request of this side failed
//!                              ├─ BadResult  a malformed result, treated as no answer
//!                              └─ Stray      ignore
//! ```
//!
//! The forms of the draft and those of libopflex are accepted. Reading and writing a value gives
//! the same JSON value. Unknown members are kept in identities, errors and managed objects, which
//! may be forwarded, and are skipped elsewhere. A request is refused if a member has the wrong type
//! or if a known member appears twice; the connection stays open.
//!
//! | file | contents |
//! |---|---|
//! | `incoming` | the enums over all methods, and the reading of messages |
//! | `decoder` | bytes to [`Incoming`] |
//! | `method`, `role` | the names |
//! | `error_response` | the error of a response and its codes |
//! | `echo`, `identity` | the methods of every session |
//! | `store`, `resolve`, `update` | the methods of a policy repository, and with other member names of an endpoint registry |
//! | `endpoint_declare`, `endpoint_undeclare` | the methods of an endpoint registry alone |
//! | `state_report` | the method of an observer |
//! | `custom` | the method of the inspector and of the control socket |

mod custom;
mod decoder;
mod echo;
mod endpoint_declare;
mod endpoint_undeclare;
mod error_response;
mod identity;
mod incoming;
mod method;
mod resolve;
mod role;
mod state_report;
mod store;
mod update;

pub use self::custom::{Custom, CustomResult};
pub use self::decoder::{Decoder, Identified};
pub use self::echo::Echo;
pub use self::endpoint_declare::EndpointDeclare;
pub use self::endpoint_undeclare::EndpointUndeclare;
pub use self::error_response::{ErrorCode, ErrorResponse};
pub use self::identity::{Identity, IdentityResult, PROTO_VERSION, Peer, Proxies};
pub use self::incoming::{Incoming, Reply, Request};
pub use self::method::Method;
pub use self::resolve::Resolve;
pub use self::role::Role;
pub use self::state_report::StateReport;
pub(crate) use self::store::PerStore;
pub use self::store::Store;
pub use self::update::{Deletion, Update};
