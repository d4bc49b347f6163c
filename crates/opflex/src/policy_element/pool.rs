//! The servers of the element and their states.
//!
//! ```text
//!            time                connected             identity
//!  Waiting ────────> Connecting ───────────> Connected ────────> Ready
//!     ^                  │                       │    │            │
//!     └──────────────────┴───── failure ─────────┴────│────────────┘
//!     │                                               │ lists only other servers
//!     └───── no other server can be used ─────── Parked
//! ```
//!
//! A server is identified by the characters of its address; an IPv6 address may have or
//! lack brackets. Some servers are configured, the others are learned from the lists that
//! servers send. As in libopflex, a server is used only if its own list has the address that
//! was dialled. A server with an empty list, which libopflex does not use, is used for its
//! roles.
//!
//! A learned server is removed when no list has it any more. After some failures in a row
//! it is given up: it is removed, unless the list of a ready server has it. In that case it
//! is dialled from time to time, and the health does not depend on it. If servers are parked, and
//! all others have failed, the element begins again with the configured servers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::event::{Health, PeerState};
use super::settings::ElementSettings;
use crate::message::{IdentityResult, Role};
use crate::peer::{CloseReason, ConnectionId, Due, Keepalive, bracketed};
use crate::rpc::Random;
use ssntp_transport::after;

/// The number of failures in a row after which a learned server is given up, as in libopflex.
const MAX_FAILURES: u32 = 4;
/// The maximum number of learned servers; further ones are not dialled.
const MAX_LEARNED: usize = 64;

/// One server.
#[derive(Debug)]
pub(super) struct KnownServer {
    configured: bool,
    stage: Stage,
    /// Failed attempts in a row.
    failures: u32,
    /// The addresses in its latest list.
    listed: BTreeSet<String>,
}

#[derive(Debug)]
enum Stage {
    Waiting {
        until: Instant,
    },
    Connecting {
        connection: ConnectionId,
        until: Instant,
    },
    Open {
        connection: ConnectionId,
        keepalive: Keepalive,
        /// The roles of the server, which is ready then. `None` until it has sent its identity.
        roles: Option<Vec<Role>>,
    },
    Parked,
}

/// An action that is due for a server.
#[derive(Debug)]
pub(super) enum Need {
    /// Dial the server at this address.
    Dial(String),
    /// Send an echo, or end the connection or the attempt.
    Connection(ConnectionId, Due),
}

/// All servers.
#[derive(Debug)]
pub(super) struct Pool {
    peers: BTreeMap<String, KnownServer>,
    by_connection: HashMap<ConnectionId, String>,
    next_connection: u64,
    /// The time at which the element begins again with the configured servers.
    fallback: Option<Instant>,
    random: Random,
}

impl Pool {
    pub(super) fn new(settings: &ElementSettings, random: Random, now: Instant) -> Self {
        let mut pool = Self {
            peers: BTreeMap::new(),
            by_connection: HashMap::new(),
            next_connection: 1,
            fallback: None,
            random,
        };
        // IPv6 addresses in one form, so that a server is not dialled twice.
        for address in &settings.peers {
            pool.add(bracketed(address), true, now);
        }
        pool
    }

    /// The health. Parked servers, and learned servers that were given up, do not count.
    pub(super) fn health(&self) -> Health {
        let is_wanted = |peer: &&KnownServer| !matches!(peer.stage, Stage::Parked) && !peer.is_given_up();
        let ready = self.peers.values().filter(|peer| peer.roles().is_some()).count();
        match self.peers.values().filter(is_wanted).count() {
            _ if ready == 0 => Health::Down,
            all if ready == all => Health::Healthy,
            _ => Health::Degraded,
        }
    }

    pub(super) fn states(&self) -> impl Iterator<Item = (&str, PeerState)> {
        self.peers
            .iter()
            .map(|(address, peer)| (address.as_str(), peer.stage.state()))
    }

    pub(super) fn state(&self, address: &str) -> Option<PeerState> {
        self.peers.get(address).map(|peer| peer.stage.state())
    }

    pub(super) fn address(&self, connection: ConnectionId) -> Option<&str> {
        self.by_connection.get(&connection).map(String::as_str)
    }

    /// The connections to ready servers of a role.
    pub(super) fn ready(&self, role: &Role) -> Vec<ConnectionId> {
        let has_role = |peer: &&KnownServer| peer.roles().is_some_and(|roles| roles.contains(role));
        let ready = self.peers.values().filter(has_role);
        ready.filter_map(|peer| peer.stage.connection()).collect()
    }

    /// The roles of a ready server; `None` for any other.
    pub(super) fn roles(&self, connection: ConnectionId) -> Option<&[Role]> {
        self.peers.get(self.by_connection.get(&connection)?)?.roles()
    }

    /// All connections, and all attempts to connect.
    fn connections(&self) -> Vec<ConnectionId> {
        let connections = self.peers.values().filter_map(|peer| peer.stage.connection());
        connections.collect()
    }

    /// Records that a server is being dialled, and returns the number of the new connection.
    pub(super) fn dial(
        &mut self,
        address: &str,
        settings: &ElementSettings,
        now: Instant,
    ) -> Option<ConnectionId> {
        let peer = self.peers.get_mut(address)?;
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let until = after(now, settings.dial_timeout);
        peer.stage = Stage::Connecting { connection, until };
        self.by_connection.insert(connection, address.to_owned());
        Some(connection)
    }

    /// Records that a connection is open. Returns false if the server is not being dialled.
    pub(super) fn connected(
        &mut self,
        connection: ConnectionId,
        settings: &ElementSettings,
        now: Instant,
    ) -> bool {
        let Some(peer) = self.peer_mut(connection) else {
            return false;
        };
        if !matches!(peer.stage, Stage::Connecting { .. }) {
            return false;
        }
        // The time limit of the identity begins with the connection.
        let keepalive = Keepalive::new(&settings.keepalive, settings.identity_timeout, None, now);
        peer.stage = Stage::Open {
            connection,
            keepalive,
            roles: None,
        };
        true
    }

    /// Records that bytes of the server have arrived.
    pub(super) fn received(&mut self, connection: ConnectionId, now: Instant) {
        if let Some(Stage::Open { keepalive, .. }) = self.peer_mut(connection).map(|peer| &mut peer.stage) {
            keepalive.received(now);
        }
    }

    /// Records the identity of a server. Returns false if the server cannot be used and is parked:
    /// it lists only other servers, or it has no roles and lists no servers.
    pub(super) fn identified(&mut self, connection: ConnectionId, identity: &IdentityResult) -> bool {
        let Some(address) = self.by_connection.get(&connection).cloned() else {
            return false;
        };
        let Some(peer) = self.peers.get_mut(&address) else {
            return false;
        };
        // An identity ends a series of failures, also if the server is parked.
        peer.failures = 0;
        peer.listed = identity
            .peers
            .iter()
            .map(|peer| bracketed(&peer.connectivity_info))
            .collect();
        let is_useless = peer.listed.is_empty() && identity.my_role.is_empty();
        if is_useless || !peer.listed.is_empty() && !peer.listed.contains(&address) {
            peer.stage = Stage::Parked;
            self.by_connection.remove(&connection);
            return false;
        }
        if let Stage::Open { keepalive, roles, .. } = &mut peer.stage {
            keepalive.identified();
            *roles = Some(identity.my_role.clone());
        }
        true
    }

    /// Adds the servers of all lists. Removes the learned servers that no list has any more, and
    /// returns their addresses and connections.
    pub(super) fn learn(&mut self, now: Instant) -> Vec<(String, Option<ConnectionId>)> {
        let named: BTreeSet<String> = self
            .peers
            .values()
            .flat_map(|peer| peer.listed.iter().cloned())
            .collect();
        // Lists are long if a server is malicious, so the number of learned servers has a limit.
        for address in &named {
            let learned = self.peers.values().filter(|peer| !peer.configured).count();
            if learned < MAX_LEARNED && !self.peers.contains_key(address) {
                self.add(address.clone(), false, now);
            }
        }
        let gone = self
            .peers
            .iter()
            .filter(|(address, peer)| !peer.configured && !named.contains(*address));
        let gone: Vec<String> = gone.map(|(address, _)| address.clone()).collect();
        gone.into_iter()
            .map(|address| (address.clone(), self.remove(&address)))
            .collect()
    }

    /// Records that a connection or an attempt to connect failed. The server is dialled again later,
    /// or removed.
    pub(super) fn failed(&mut self, connection: ConnectionId, settings: &ElementSettings, now: Instant) {
        let Some(address) = self.by_connection.remove(&connection) else {
            return;
        };
        let still_listed = self.peers.iter().any(|(other, peer)| {
            *other != address && peer.roles().is_some() && peer.listed.contains(&address)
        });
        let Some(peer) = self.peers.get_mut(&address) else {
            return;
        };
        // Only an identity resets the count: a server that closes each connection at once has failed.
        peer.failures += 1;
        if peer.is_given_up() && !still_listed {
            self.peers.remove(&address);
            return;
        }
        // Partly random: all elements of a server that restarts would dial at the same time.
        let until = after(now, wait(settings, peer.failures, &mut self.random));
        peer.stage = Stage::Waiting { until };
    }

    /// Removes all learned servers and begins again. Returns the connections to close.
    pub(super) fn reset(&mut self, now: Instant) -> Vec<ConnectionId> {
        let connections = self.connections();
        // Messages that still arrive on these connections are dropped.
        self.by_connection.clear();
        self.peers.retain(|_, peer| peer.configured);
        for peer in self.peers.values_mut() {
            peer.listed.clear();
            peer.failures = 0;
            peer.stage = Stage::Waiting { until: now };
        }
        self.fallback = None;
        connections
    }

    /// Removes all servers. Returns the connections to close.
    pub(super) fn stop(&mut self) -> Vec<ConnectionId> {
        let connections = self.connections();
        self.by_connection.clear();
        self.peers.clear();
        connections
    }

    /// Sets the time to begin again with the configured servers if no server can be used and some are
    /// parked. Call it after each event.
    pub(super) fn settle(&mut self, settings: &ElementSettings, now: Instant) {
        let is_parked = |peer: &KnownServer| matches!(peer.stage, Stage::Parked);
        let has_failed =
            |peer: &KnownServer| matches!(peer.stage, Stage::Waiting { .. } if peer.failures > 0);
        let mut peers = self.peers.values();
        if !self.peers.values().any(is_parked) || !peers.all(|peer| is_parked(peer) || has_failed(peer)) {
            self.fallback = None;
            return;
        }
        // A longer pause, because servers that list only each other would cause an endless loop.
        let in_circles = self.peers.values().any(|peer| !peer.configured);
        let rest = settings.reconnect.saturating_mul(if in_circles { 4 } else { 1 });
        self.fallback.get_or_insert(after(now, rest));
    }

    /// The time at which [`need`](Self::need) returns the next action.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let of_peers = self.peers.values().filter_map(|peer| peer.stage.next_deadline());
        of_peers.chain(self.fallback).min()
    }

    /// The next action that is due at `now`. Call it until it returns `None`.
    pub(super) fn need(&mut self, now: Instant) -> Option<Need> {
        if self.fallback.is_some_and(|at| at <= now) {
            self.reset(now);
        }
        self.peers.iter_mut().find_map(|(address, peer)| {
            peer.stage.next_deadline().filter(|at| *at <= now)?;
            match &mut peer.stage {
                Stage::Waiting { .. } => Some(Need::Dial(address.clone())),
                Stage::Connecting { connection, .. } => Some(Need::Connection(
                    *connection,
                    Due::Close(CloseReason::IdentityTimeout),
                )),
                Stage::Open {
                    connection,
                    keepalive,
                    ..
                } => Some(Need::Connection(*connection, keepalive.due(now)?)),
                Stage::Parked => None,
            }
        })
    }

    fn add(&mut self, address: String, configured: bool, now: Instant) {
        self.peers.insert(
            address,
            KnownServer {
                configured,
                stage: Stage::Waiting { until: now },
                failures: 0,
                listed: BTreeSet::new(),
            },
        );
    }

    fn remove(&mut self, address: &str) -> Option<ConnectionId> {
        let connection = self.peers.remove(address)?.stage.connection()?;
        self.by_connection.remove(&connection);
        Some(connection)
    }

    fn peer_mut(&mut self, connection: ConnectionId) -> Option<&mut KnownServer> {
        self.peers.get_mut(self.by_connection.get(&connection)?)
    }
}

impl KnownServer {
    /// True if it was learned and has failed too often in a row.
    fn is_given_up(&self) -> bool {
        !self.configured && self.failures >= MAX_FAILURES
    }

    /// The roles of a ready server.
    fn roles(&self) -> Option<&[Role]> {
        match &self.stage {
            Stage::Open { roles, .. } => roles.as_deref(),
            _ => None,
        }
    }
}

impl Stage {
    fn state(&self) -> PeerState {
        match self {
            Self::Waiting { .. } => PeerState::Waiting,
            Self::Connecting { .. } => PeerState::Connecting,
            Self::Open { roles: None, .. } => PeerState::Connected,
            Self::Open { .. } => PeerState::Ready,
            Self::Parked => PeerState::Parked,
        }
    }

    /// The number of the connection, or of the attempt at one.
    fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Connecting { connection, .. } | Self::Open { connection, .. } => Some(*connection),
            Self::Waiting { .. } | Self::Parked => None,
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Waiting { until } | Self::Connecting { until, .. } => Some(*until),
            Self::Open { keepalive, .. } => Some(keepalive.next_deadline()),
            Self::Parked => None,
        }
    }
}

/// The pause after a number of failures in a row. The first pauses are short, so that a server that
/// restarts is reached soon; the later pauses double.
fn wait(settings: &ElementSettings, failures: u32, random: &mut Random) -> Duration {
    const SOON: u32 = 3;
    let attempt = failures.saturating_sub(SOON);
    random.delay(settings.reconnect, attempt, settings.reconnect_max)
}
