//! The methods of OpFlex: typed parameters and results (draft section 4.2).
//!
//! ```text
//!  rpc::Message ──> Incoming ──┬─ Request    a method with its parameters: carry out, answer
//!                              ├─ Refused    answer with this error
//!                              ├─ Result     of a request of ours, read as its id says
//!                              ├─ Failure    of a request of ours
//!                              ├─ BadResult  as good as no answer
//!                              └─ Stray      ignore
//! ```
//!
//! Both the forms of the draft and those of libopflex are read, and what was
//! read prints back as the same JSON value. Members that neither knows are kept
//! in identities, errors and managed objects, which others may want to see, and
//! skipped elsewhere. A member with the wrong type, or a known one twice, makes
//! a request one to be refused; it never ends the connection.
//!
//! | file | what |
//! |---|---|
//! | `incoming` | the enums over all methods, and how a message becomes one |
//! | `decoder` | bytes to [`Incoming`] |
//! | `method`, `role` | the names |
//! | `error_response` | the error of a response and its codes |
//! | `target` | the members for URI and identifier, in resolve and unresolve |
//! | `echo`, `identity` | for every session |
//! | `policy_resolve`, `policy_unresolve`, `policy_update` | with a policy repository |
//! | `endpoint_declare`, `endpoint_undeclare`, `endpoint_resolve`, `endpoint_unresolve`, `endpoint_update` | with an endpoint registry |
//! | `state_report` | with an observer |
//! | `custom` | of libopflex's inspector |

mod custom;
mod decoder;
mod echo;
mod endpoint_declare;
mod endpoint_resolve;
mod endpoint_undeclare;
mod endpoint_unresolve;
mod endpoint_update;
mod error_response;
mod identity;
mod incoming;
mod method;
mod policy_resolve;
mod policy_unresolve;
mod policy_update;
mod role;
mod state_report;
mod target;

pub use self::custom::{Custom, CustomResult};
pub use self::decoder::Decoder;
pub use self::echo::Echo;
pub use self::endpoint_declare::EndpointDeclare;
pub use self::endpoint_resolve::{EndpointResolve, EndpointResolveResult};
pub use self::endpoint_undeclare::EndpointUndeclare;
pub use self::endpoint_unresolve::EndpointUnresolve;
pub use self::endpoint_update::EndpointUpdate;
pub use self::error_response::{ErrorCode, ErrorResponse};
pub use self::identity::{Identity, IdentityResult, PROTO_VERSION, Peer, Proxies};
pub use self::incoming::{Incoming, Reply, Request};
pub use self::method::Method;
pub use self::policy_resolve::{PolicyResolve, PolicyResolveResult};
pub use self::policy_unresolve::PolicyUnresolve;
pub use self::policy_update::{Deletion, PolicyUpdate};
pub use self::role::Role;
pub use self::state_report::StateReport;
