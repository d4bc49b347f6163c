//! The actions and the events of a policy element.

use std::fmt;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::message::{ErrorResponse, Method, Proxies, Store};
use crate::model::{ChangeKind, ManagedObject, Name, Target, Uri};
use crate::peer::{CloseReason, ConnectionId};

/// An action that the caller has to carry out.
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
    /// The identity of the peer is accepted: set what [`Decoder::identified`] gave, so that
    /// longer messages are taken.
    ///
    /// [`Decoder::identified`]: crate::message::Decoder::identified
    Identified {
        /// On this connection.
        connection: ConnectionId,
    },
    /// End the connection once everything before is sent, or stop dialling. The
    /// element has already forgotten it.
    Close {
        /// This connection.
        connection: ConnectionId,
        /// Why, for the log.
        reason: CloseReason,
    },
    /// Pass an event to the application.
    Tell(ElementEvent),
}

/// How many of the servers are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No server is ready.
    Down,
    /// Some servers are ready, or all are and a request has no answer after several
    /// attempts.
    Degraded,
    /// All servers are ready, and all requests are answered in time.
    Healthy,
}

/// The state of a server, as the element sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// It will be dialled.
    Waiting,
    /// It is being dialled.
    Connecting,
    /// It is connected, and has not sent its identity yet.
    Connected,
    /// It has sent its identity and can be used.
    Ready,
    /// It named other servers. It is dialled again when none of those can be reached.
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
        /// The new state; `None` if the element has dropped the server.
        #[serde(serialize_with = "state_or_dropped")]
        state: Option<PeerState>,
        /// The reason, if something went wrong.
        #[serde(serialize_with = "text_or_null")]
        reason: Option<CloseReason>,
    },
    /// A server sent the location of the element.
    Location {
        /// The location.
        location: String,
    },
    /// A server sent the proxies of transport mode.
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
    /// Policy or endpoints that are held changed, or are not held any more, in
    /// the order of their URIs.
    Changed {
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
        /// The object of the request.
        about: String,
        /// The answer.
        error: ErrorResponse,
    },
    /// An answer was dropped, because the element would hold more objects than it may.
    /// The resolve counts as unanswered and is sent again.
    NotTaken {
        /// The resolve.
        about: String,
        /// The most objects.
        limit: usize,
    },
    /// The alarm of the draft (4.2.4): no server has answered after several attempts.
    /// Until one answers, the health is degraded at best.
    Unanswered {
        /// The method.
        method: Method,
        /// The object of the request.
        about: String,
        /// How often it has been sent.
        attempts: u32,
    },
    /// Events before this one are lost, because the application took them too slowly. The
    /// core does not make this event, its runner does.
    Missed {
        /// How many.
        count: u64,
    },
}

/// One object that changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectChange {
    /// The kind of the change.
    #[serde(rename = "change")]
    pub kind: ChangeKind,
    /// Its class.
    pub subject: Name,
    /// Its URI.
    pub uri: Uri,
    /// The object as it is now; `None` if it is gone.
    pub object: Option<ManagedObject>,
}

// JSON has a text for each state, so a server that is dropped has one as well.
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
