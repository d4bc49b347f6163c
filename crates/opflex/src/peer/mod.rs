//! The code that servers and policy elements share.
//!
//! | file | contents |
//! |---|---|
//! | `action` | the actions that a core asks its caller to carry out, and the numbers of connections |
//! | `close` | the reasons for which this side ends a connection |
//! | `keepalive` | echoes, and the end of a peer that is silent or sends no identity |
//! | `address` | the spelling of addresses in lists of peers |

mod action;
mod address;
mod close;
mod keepalive;

pub(crate) use self::action::Actions;
pub use self::action::{Action, ConnectionId};
pub(crate) use self::address::{bare, bracketed, host};
pub use self::close::CloseReason;
pub use self::keepalive::KeepaliveSettings;
pub(crate) use self::keepalive::{Due, Keepalive};
