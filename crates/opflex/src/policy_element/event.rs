//! What a policy element wants done, and what it has to tell.

use std::fmt;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::message::{ErrorResponse, Method, Proxies, Store};
use crate::model::{ChangeKind, ManagedObject, Name, Target, Uri};
use crate::peer::{CloseReason, ConnectionId};

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// Connect to a server, and report `connected` or `disconnected` with the
    /// number given here.
    Dial {
        /// The number of the new connection.
        connection: ConnectionId,
        /// `host:port`.
        address: String,
    },
    /// Send these bytes.
    Send {
        /// On this connection.
        connection: ConnectionId,
        /// One message with its NUL.
        frame: Bytes,
    },
    /// End the connection once what was sent before is on its way, or stop
    /// dialling. The element has already forgotten it.
    Close {
        /// This connection.
        connection: ConnectionId,
        /// Why, for the log.
        reason: CloseReason,
    },
    /// Tell who is interested.
    Tell(ElementEvent),
}

/// How much of what should be connected is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No server is ready.
    Down,
    /// Some servers are ready, or all are and something is not answered after
    /// several attempts.
    Degraded,
    /// All servers are ready, and answer.
    Healthy,
}

/// How far the element is with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// It will be dialled.
    Waiting,
    /// It is dialled.
    Connecting,
    /// It is connected, and its identity asked for.
    Connected,
    /// It can be used.
    Ready,
    /// It named others and is left alone until none of them can be reached.
    Parked,
}

/// Something that happened. Its JSON is what `ssntp opflex element --watch --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ElementEvent {
    /// The health changed.
    Health {
        /// The new health.
        health: Health,
    },
    /// A server is in another state.
    Peer {
        /// `host:port`.
        address: String,
        /// The new state; `None` when the server is not wanted any more.
        #[serde(serialize_with = "state_or_dropped")]
        state: Option<PeerState>,
        /// What led to it, where something went wrong.
        #[serde(serialize_with = "text_or_null")]
        reason: Option<CloseReason>,
    },
    /// A server told where the element is.
    Location {
        /// The location.
        location: String,
    },
    /// A server told the proxies of transport mode.
    Proxies(Proxies),
    /// A resolve was answered for the first time.
    Resolved {
        /// Policy or endpoint.
        what: Store,
        /// The class.
        subject: Name,
        /// Which object.
        #[serde(serialize_with = "text")]
        target: Target,
        /// Whether the server had it.
        found: bool,
    },
    /// Policy or endpoints that are held changed, in the order of their URIs.
    Changed {
        /// Policy or endpoints.
        what: Store,
        /// The objects.
        objects: Vec<ObjectChange>,
    },
    /// Objects went because nobody wants them any more.
    #[serde(rename = "changed")]
    Forgotten {
        /// Policy or endpoints.
        what: Store,
        /// The objects.
        objects: Vec<ObjectChange>,
    },
    /// A request was answered with an error. It is sent again in time.
    Refused {
        /// `host:port` of the server.
        address: String,
        /// The method.
        method: Method,
        /// What it was about.
        about: String,
        /// The answer.
        error: ErrorResponse,
    },
    /// An answer was not taken, since the element holds as much as it may. The
    /// resolve counts as unanswered and is sent again.
    NotTaken {
        /// What was asked for.
        about: String,
        /// How many objects there are room for.
        limit: usize,
    },
    /// The alarm of the draft (4.2.4): no server has answered after several
    /// attempts. Health is no more than degraded until one does.
    Unanswered {
        /// The method.
        method: Method,
        /// What it is about.
        about: String,
        /// How often it has been sent.
        attempts: u32,
    },
    /// So many events before this one are lost, because nobody took them in
    /// time. Only what runs the element tells it.
    Missed {
        /// How many.
        count: u64,
    },
}

/// One object that changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectChange {
    /// What happened.
    #[serde(rename = "change")]
    pub kind: ChangeKind,
    /// Its class.
    pub subject: Name,
    /// Where it is, or was.
    pub uri: Uri,
    /// The object as it is now, unless it is gone.
    pub object: Option<ManagedObject>,
}

fn state_or_dropped<S: Serializer>(state: &Option<PeerState>, serializer: S) -> Result<S::Ok, S::Error> {
    match state {
        Some(state) => state.serialize(serializer),
        None => serializer.serialize_str("dropped"),
    }
}

fn text_or_null<S: Serializer>(value: &Option<impl fmt::Display>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(ToString::to_string).serialize(serializer)
}

fn text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
