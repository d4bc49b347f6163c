//! What a policy element wants done, and what it has to tell.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ElementEvent {
    /// The health changed.
    Health(Health),
    /// A server is in another state.
    Peer {
        /// `host:port`.
        address: String,
        /// The new state; `None` when the server is not wanted any more.
        state: Option<PeerState>,
        /// What led to it, where something went wrong.
        reason: Option<CloseReason>,
    },
    /// A server told where the element is.
    Location(String),
    /// A server told the proxies of transport mode.
    Proxies(Proxies),
    /// A resolve was answered for the first time.
    Resolved {
        /// Policy or endpoint.
        what: Store,
        /// The class.
        subject: Name,
        /// Which object.
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
    Missed(u64),
}

impl ElementEvent {
    /// The event as `ssntp opflex element --watch --json` prints it.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Health(health) => {
                json!({ "event": "health", "health": format!("{health:?}").to_lowercase() })
            }
            Self::Peer {
                address,
                state,
                reason,
            } => json!({
                "event": "peer",
                "address": address,
                "state": state.map_or("dropped".to_owned(), |state| format!("{state:?}").to_lowercase()),
                "reason": reason.as_ref().map(ToString::to_string),
            }),
            Self::Location(location) => json!({ "event": "location", "location": location }),
            Self::Proxies(proxies) => json!({
                "event": "proxies", "v4": proxies.v4, "v6": proxies.v6, "mac": proxies.mac,
            }),
            Self::Resolved {
                what,
                subject,
                target,
                found,
            } => json!({
                "event": "resolved", "what": what.name(), "subject": subject,
                "target": target.to_string(), "found": found,
            }),
            Self::Changed { what, objects } | Self::Forgotten { what, objects } => {
                json!({ "event": "changed", "what": what.name(), "objects": objects })
            }
            Self::Refused {
                address,
                method,
                about,
                error,
            } => json!({
                "event": "refused", "address": address, "method": method.name(), "about": about, "error": error,
            }),
            Self::NotTaken { about, limit } => json!({
                "event": "not_taken", "about": about, "limit": limit,
            }),
            Self::Unanswered {
                method,
                about,
                attempts,
            } => json!({
                "event": "unanswered", "method": method.name(), "about": about, "attempts": attempts,
            }),
            Self::Missed(count) => json!({ "event": "missed", "count": count }),
        }
    }
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
