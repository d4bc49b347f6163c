//! The servers that are dialled, with the state and the thread of each. Their threads write the states;
//! operators and figures read them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use uuid::Uuid;

use ssntp_transport::{Cancel, locked};

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

/// One peer: the state that its dialler sets, and the end of its dialling.
#[derive(Clone, Debug)]
pub(crate) struct DialledPeer {
    state: Arc<Mutex<PeerState>>,
    pub(crate) cancel: Cancel,
}

impl DialledPeer {
    /// Sets the state. Returns the one before.
    pub(crate) fn set(&self, state: PeerState) -> PeerState {
        std::mem::replace(&mut *locked(&self.state), state)
    }
}

/// The peers, and the threads that dial them.
#[derive(Debug, Default)]
pub(crate) struct DialledPeers(Mutex<Peers>);

#[derive(Debug, Default)]
struct Peers {
    closed: bool,
    /// The number of threads that were started. Thread N has the name `ssntp-peer-N`.
    number: u64,
    by_address: BTreeMap<String, DialledPeer>,
    /// Also those of peers that were removed. Such a thread may wait for the dispatcher, and the caller of
    /// `remove` may be the dispatcher, so it is joined at the end.
    threads: Vec<JoinHandle<()>>,
}

impl DialledPeers {
    /// Adds a peer that is not linked yet; `start` starts its thread. False if it is there already, or if
    /// this is closed.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn add(
        &self,
        address: String,
        start: impl FnOnce(String, DialledPeer) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<bool> {
        let mut peers = locked(&self.0);
        if peers.closed || peers.by_address.contains_key(&address) {
            return Ok(false);
        }
        peers.number += 1;
        let peer = DialledPeer {
            state: Arc::new(Mutex::new(PeerState::Trying(String::new()))),
            cancel: Cancel::new(),
        };
        let thread = start(format!("ssntp-peer-{}", peers.number), peer.clone())?;
        peers.threads.retain(|thread| !thread.is_finished());
        peers.threads.push(thread);
        peers.by_address.insert(address, peer);
        Ok(true)
    }

    /// Removes a peer, whose thread ends. False if there is none.
    pub(crate) fn remove(&self, address: &str) -> bool {
        let removed = locked(&self.0).by_address.remove(address);
        removed.inspect(|peer| peer.cancel.cancel()).is_some()
    }

    /// Ends all threads and joins them. No peer is added any more.
    pub(crate) fn close(&self) {
        let mut peers = locked(&self.0);
        peers.closed = true;
        peers.by_address.values().for_each(|peer| peer.cancel.cancel());
        let threads = std::mem::take(&mut peers.threads);
        // Unlocked before the threads are joined, so that other calls do not wait for them.
        drop(peers);
        for thread in threads {
            // A panic has been logged by the panic hook.
            let _ = thread.join();
        }
    }

    /// All peers with their states, sorted by address.
    pub(crate) fn list(&self) -> Vec<(String, PeerState)> {
        let peers = locked(&self.0);
        let each = peers.by_address.iter();
        each.map(|(address, peer)| (address.clone(), locked(&peer.state).clone()))
            .collect()
    }
}
