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
//! | `method` | the names |
//! | `error_response` | the error of a response and its codes |
//! | `identity` | the method that begins a session, and the roles |
//! | `store`, `resolve` | the two kinds of objects, and the methods that resolve them |
//! | `params` | the parameters of all other methods |

mod decoder;
mod error_response;
mod identity;
mod incoming;
mod method;
mod params;
mod resolve;
mod store;

pub use self::decoder::{Decoder, Identified};
pub use self::error_response::{ErrorCode, ErrorResponse};
pub use self::identity::{Identity, IdentityResult, PROTO_VERSION, Peer, Proxies, Role};
pub use self::incoming::{Incoming, Reply, Request};
pub use self::method::Method;
pub use self::params::{
    Custom, CustomResult, Deletion, Echo, EndpointDeclare, EndpointUndeclare, StateReport, Update,
};
pub use self::resolve::Resolve;
pub(crate) use self::store::PerStore;
pub use self::store::Store;
