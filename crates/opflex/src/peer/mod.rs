//! The part that both ends of a connection share, servers and elements.
//!
//! | file | what |
//! |---|---|
//! | `connection` | the name of a connection |
//! | `keepalive` | is the other side alive? |
//! | `address` | how lists of peers spell an address |
//! | `close` | why we end a connection |

mod address;
mod close;
mod connection;
mod keepalive;

pub(crate) use self::address::{bare, bracketed, host};
pub use self::close::CloseReason;
pub use self::connection::ConnectionId;
pub use self::keepalive::KeepaliveSettings;
pub(crate) use self::keepalive::{Beat, Keepalive};
