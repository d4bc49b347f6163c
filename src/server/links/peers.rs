//! The servers that are dialled, with the state of each. Diallers write it; operators and figures read it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

/// The state of a peer that is dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// There is no link. The text is the reason: the last attempt failed, or the link has ended. It is
    /// empty before the first attempt.
    Trying(String),
    /// There is a link to the server with this UUID, whichever side has dialled.
    Linked(Uuid),
    /// The address is that of this server itself. It is dialled again once a minute.
    Own,
}

impl fmt::Display for PeerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trying(why) if why.is_empty() => f.write_str("not linked"),
            Self::Trying(why) => write!(f, "not linked: {why}"),
            Self::Linked(uuid) => write!(f, "linked to {uuid}"),
            Self::Own => f.write_str("this server"),
        }
    }
}

/// The state of one peer, which its dialler sets.
#[derive(Clone, Debug)]
pub(crate) struct DialledPeer(Arc<Mutex<PeerState>>);

impl DialledPeer {
    /// Sets the state. Returns the one before.
    pub(crate) fn set(&self, state: PeerState) -> PeerState {
        std::mem::replace(&mut *lock(&self.0), state)
    }
}

/// The peers by address.
#[derive(Debug, Default)]
pub(crate) struct DialledPeers(Mutex<BTreeMap<String, DialledPeer>>);

impl DialledPeers {
    /// Adds a peer that is not linked yet.
    pub(crate) fn add(&self, address: String) -> DialledPeer {
        let peer = DialledPeer(Arc::new(Mutex::new(PeerState::Trying(String::new()))));
        lock(&self.0).insert(address, peer.clone());
        peer
    }

    /// Removes a peer. Its dialler may still set its state, which is not shown any more.
    pub(crate) fn remove(&self, address: &str) {
        lock(&self.0).remove(address);
    }

    /// All peers with their states, sorted by address.
    pub(crate) fn list(&self) -> Vec<(String, PeerState)> {
        let peers = lock(&self.0);
        let each = peers.iter();
        each.map(|(address, peer)| (address.clone(), lock(&peer.0).clone()))
            .collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
