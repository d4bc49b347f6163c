//! The server: policy repository, endpoint registry and observer, in any
//! combination, as one state machine without sockets, threads or clock.
//!
//! ```text
//!                 connected, message, disconnected, tick, edit …
//!                                      │
//!            ┌─────────────────────────▼─────────────────────────┐
//!            │ ServerCore  sessions ─ identity, echoes, counters │
//!            │             │                                     │
//!            │   ┌─────────┴──────┬───────────────────┐          │
//!            │   ▼                ▼                   ▼          │
//!            │ policy         endpoint             observer      │
//!            │ repository     registry               reports     │
//!            │   tree           tree, declarations   numbers     │
//!            │   watchers       watchers                         │
//!            │   └──── Changes ─┴──> push: updates               │
//!            └─────────────────────────┬─────────────────────────┘
//!                                      ▼
//!                      Action::Send(frame) | Action::Close
//! ```
//!
//! One dispatcher owns a [`ServerCore`]. The dispatcher calls the core for each event and
//! passes the time; each call appends [`Action`]s to a list, which the dispatcher carries
//! out. No call blocks. A slow client does not delay other clients, because each client
//! has a queue of its own. A session:
//!
//! ```text
//!  client                                   server
//!    │ connect ────────────────────────────────>│ connected
//!    │<──────────────────────── echo, at once ──│
//!    │ echo ───────────────────────────────────>│ answered, before any identity
//!    │ send_identity ──────────────────────────>│ EPROTO, EDOMAIN, ELOCATION, or
//!    │<──────────────── name, roles, location, ─│
//!    │                  peers with this server  │
//!    │ policy_resolve {uri, prr} ──────────────>│ watch uri until now + prr
//!    │<──────────────────── objects, or none ───│ many: policy_update first
//!    │<── policy_update ────────────────────────│ an edit at or below uri
//!    │ policy_unresolve {uri} ─────────────────>│ end the watch
//!    │ anything else, before send_identity ────>│ ESTATE, and the connection ends
//! ```
//!
//! A large policy is sent in pieces. Each piece is made when the client's queue has room for
//! it. All pieces but the last are updates, and the last piece is the result. So a client
//! has the whole policy when the result arrives.
//!
//! | file | contents |
//! |---|---|
//! | `settings` | the settings |
//! | `core` | [`ServerCore`]: hands each event to the owners below, and collects actions |
//! | `clients` | the connected clients |
//! | `session` | one client: identity, keep-alive |
//! | `counters` | counters of a client's requests |
//! | `agents` | the same counters by name, over all sessions of an agent |
//! | `resolves` | a tree with its resolves, and unfinished answers; the policy repository is no more than that |
//! | `ownership` | the endpoint registry: the element that each endpoint belongs to |
//! | `observer` | the reports |
//! | `push` | makes updates of changes, and finds their receivers |
//! | `roll_up` | numbers over time |

mod agents;
mod clients;
mod core;
mod counters;
mod observer;
mod ownership;
mod push;
mod resolves;
mod roll_up;
mod session;
mod settings;
#[cfg(test)]
mod tests;

pub use self::agents::AgentInfo;
pub use self::core::ServerCore;
pub use self::counters::RequestCounters;
pub use self::observer::{Exported, Observer, Report};
pub use self::ownership::Declared;
pub use self::roll_up::{Interval, Row};
pub use self::session::{Client, SessionInfo};
pub use self::settings::{OnLeave, RollUp, ServerLimits, ServerSettings};
pub use super::message::Store;
pub use super::peer::Action;
