//! A snapshot of a client for monitoring.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::event::{ClientCounters, ServerInfo};

/// A snapshot of a client, see
/// [`ClientHandle::figures`](super::ClientHandle::figures). Counters count from the start of the
/// client, over all its sessions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientFigures {
    /// The server of the present session.
    pub server: Option<Arc<ServerInfo>>,
    /// The time of day at which the present session began. If there is none: the time at which the
    /// last session ended, or the client was started.
    pub since: SystemTime,
    /// The counters.
    pub counters: ClientCounters,
    /// The number of failed attempts by the word for the reason
    /// ([`DialFault::word`](super::DialFault::word)).
    pub failures: BTreeMap<&'static str, u64>,
    /// Frames that wait to be sent, on the session or for the next one.
    pub frames_waiting: u64,
    /// The bytes of these frames.
    pub bytes_waiting: u64,
}

impl ClientFigures {
    /// The figures of a client that has had no session since `since`.
    pub fn new(since: SystemTime) -> Self {
        Self {
            server: None,
            since,
            counters: ClientCounters::default(),
            failures: BTreeMap::new(),
            frames_waiting: 0,
            bytes_waiting: 0,
        }
    }
}
