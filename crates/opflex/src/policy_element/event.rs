//! The actions and the events of a policy element.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::message::{ErrorResponse, Method, Proxies, Store};
use crate::model::{ChangeKind, ManagedObject, Name, Target, Uri};
use crate::peer::CloseReason;

/// An action that the caller has to carry out.
pub type ElementAction = crate::peer::Action<ElementEvent>;

/// The state of the element as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No server is ready.
    Down,
    /// Some servers are ready and some are not, or all are ready and a request has no answer after
    /// several attempts.
    Degraded,
    /// All servers are ready, and all requests are answered in time.
    Healthy,
}

/// The state of a server, as the element sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// The server will be dialled.
    Waiting,
    /// The server is being dialled.
    Connecting,
    /// The server is connected, and has not sent its identity yet.
    Connected,
    /// The server has sent its identity and can be used.
    Ready,
    /// The server listed other servers. It is dialled again if none of them can be reached.
    Parked,
}

/// An event for the application. `ssntp opflex element --watch --json` prints it as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ElementEvent {
    /// The health changed.
    Health {
        /// The new health.
        health: Health,
    },
    /// The state of a server changed.
    Peer {
        /// `host:port`.
        address: String,
        /// The new state; `None` if the server was removed.
        #[serde(serialize_with = "state_or_dropped")]
        state: Option<PeerState>,
        /// The reason, if there was a fault.
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
        /// The object, or the objects with an identifier.
        #[serde(serialize_with = "text")]
        target: Target,
        /// True if the server has the object.
        found: bool,
    },
    /// Received policy or endpoints changed, or were removed. The objects are in the order of their
    /// URIs.
    Changed {
        /// Policy or endpoints.
        what: Store,
        /// The objects.
        objects: Vec<ObjectChange>,
    },
    /// A request was answered with an error. It will be repeated.
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
    /// An answer was dropped, because it exceeds the limit of objects. The resolve counts as
    /// unanswered and will be repeated.
    NotTaken {
        /// The resolve.
        about: String,
        /// The limit of objects.
        limit: usize,
    },
    /// The alarm of the draft (4.2.4): no server has answered after several attempts.
    /// Until one answers, the health is degraded at best.
    Unanswered {
        /// The method.
        method: Method,
        /// The object of the request.
        about: String,
        /// The number of attempts.
        attempts: u32,
    },
    /// Earlier events were dropped, because the application received them too slowly. The thread that
    /// runs the core makes this event.
    Missed {
        /// The number of dropped events.
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
    /// The present object; `None` if it was deleted.
    pub object: Option<ManagedObject>,
}

// In JSON, the state of a removed server is the text "dropped" instead of null.
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
