//! The actions of a core, and the numbers of its connections.

use std::convert::Infallible;
use std::fmt;
use std::time::Instant;

use bytes::Bytes;
use serde::Serialize;

use super::close::CloseReason;
use crate::message::Method;
use crate::rpc::{Frame, Id};

/// The number of a connection in a core. A number is never reused, so a late event of an ended
/// connection cannot be mistaken for an event of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// An action that the caller of a core has to carry out. `E` is the type of the events for the
/// application; a server has none.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Action<E = Infallible> {
    /// Connect to a server, and report `connected` or `disconnected` with the number of the
    /// connection. Only a policy element dials.
    Dial {
        /// The number of the new connection.
        connection: ConnectionId,
        /// `host:port`.
        address: String,
    },
    /// Send these bytes. Several connections may share them.
    Send {
        /// The connection.
        connection: ConnectionId,
        /// One message with its NUL.
        frame: Bytes,
    },
    /// The identity of the peer is accepted: set the flag of [`Decoder::identified`], so that
    /// longer messages are accepted.
    ///
    /// [`Decoder::identified`]: crate::message::Decoder::identified
    Identified {
        /// The connection.
        connection: ConnectionId,
    },
    /// End the connection after all earlier frames are sent, or stop dialling. The core has
    /// already removed the connection.
    Close {
        /// The connection.
        connection: ConnectionId,
        /// The reason, for the log.
        reason: CloseReason,
    },
    /// Pass an event to the application.
    Event(E),
}

/// The actions that a core has added and its caller has not taken, in their order.
#[derive(Debug)]
pub(crate) struct Actions<E = Infallible> {
    list: Vec<Action<E>>,
    /// The time from which the clock in echoes counts.
    start: Instant,
}

impl<E> Actions<E> {
    pub(crate) fn new(start: Instant) -> Self {
        let list = Vec::new();
        Self { list, start }
    }

    pub(crate) fn take(&mut self) -> Vec<Action<E>> {
        std::mem::take(&mut self.list)
    }

    pub(crate) fn push(&mut self, action: Action<E>) {
        self.list.push(action);
    }

    pub(crate) fn send(&mut self, connection: ConnectionId, frame: Bytes) {
        self.push(Action::Send { connection, frame });
    }

    /// Sends the echo with this number, with the age of the core in milliseconds as libopflex does.
    pub(crate) fn echo(&mut self, connection: ConnectionId, number: u64, now: Instant) {
        let method = Method::Echo.name();
        let clock = now.saturating_duration_since(self.start).as_millis();
        self.send(
            connection,
            Frame::request(&Id::call(method, number), method, &[clock]),
        );
    }
}
