//! What a client knows about itself: one snapshot, for pages that show it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::{ClientCounters, ServerInfo};

/// A snapshot of a client, see
/// [`ClientHandle::figures`](super::ClientHandle::figures). What counts, counts
/// from its start, over all its sessions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientFigures {
    /// The server of the session that stands.
    pub server: Option<ServerInfo>,
    /// Since when it stands, or since when none does. By the wall clock as it is
    /// now.
    pub since: SystemTime,
    /// What it has carried.
    pub counters: ClientCounters,
    /// Attempts that failed, by the word for the reason
    /// ([`DialFault::word`](super::DialFault::word)).
    pub failures: BTreeMap<&'static str, u64>,
    /// Frames that wait to be sent, on the session or until one stands.
    pub frames_waiting: u64,
    /// Their bytes.
    pub bytes_waiting: u64,
}

impl ClientFigures {
    /// Those of a client that has not been connected since then.
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
