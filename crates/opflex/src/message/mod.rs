//! The methods of OpFlex: typed parameters and results (draft section 4.2).
//!
//! ```text
//!  rpc::Message ──> Incoming ──┬─ Request    a method with its parameters: carry out, answer
//!                              ├─ Refused    answer with this error
//!                              ├─ Result     of a request of ours, read as its id says
//!                              ├─ Failure    of a request of ours
//!                              ├─ BadResult  treated like no answer
//!                              └─ Stray      ignore
//! ```
//!
//! The forms of the draft and those of libopflex are both read. Writing a value that was read gives
//! the same JSON value again. Unknown members are kept in identities, errors and managed objects,
//! which may be passed on, and are skipped elsewhere. A request is refused if a member has the wrong
//! type or if a known member stands twice; the connection goes on.
//!
//! | file | what |
//! |---|---|
//! | `incoming` | the enums over all methods, and how a message becomes one |
//! | `decoder` | bytes to [`Incoming`] |
//! | `method`, `role` | the names |
//! | `error_response` | the error of a response and its codes |
//! | `echo`, `identity` | for every session |
//! | `store`, `resolve`, `update` | with a policy repository, and with other member names with an endpoint registry |
//! | `endpoint_declare`, `endpoint_undeclare` | with an endpoint registry alone |
//! | `state_report` | with an observer |
//! | `custom` | of libopflex's inspector |

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
