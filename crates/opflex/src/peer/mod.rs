//! The code that servers and policy elements share.
//!
//! | file | contents |
//! |---|---|
//! | `connection` | the number of a connection |
//! | `action` | the actions that a core asks its caller to carry out |
//! | `close` | the reasons for which this side ends a connection |
//! | `keepalive` | echoes, and the end of a peer that is silent or sends no identity |
//! | `address` | the spelling of addresses in lists of peers |

mod action;
mod address;
mod close;
mod connection;
mod keepalive;

pub use self::action::Action;
pub(crate) use self::action::Actions;
pub(crate) use self::address::{bare, bracketed, host};
pub use self::close::CloseReason;
pub use self::connection::ConnectionId;
pub use self::keepalive::KeepaliveSettings;
pub(crate) use self::keepalive::{Due, Keepalive};
