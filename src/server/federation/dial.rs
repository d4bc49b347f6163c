//! Dials the servers of a list until there is a link to each of them.
//!
//! ```text
//!  dial ─▶ thread ssntp-peer-N ─▶ attempt ── a link stands ─▶ wait until it ends ─┐
//!                    ▲              │  └── it is this server itself ─▶ the end     │
//!                    └── back-off ◀─┴─────────────────────────────────────────────┘
//! ```

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::select;
use log::{info, warn};
use uuid::Uuid;

use super::LINK_PROTOCOL;
use super::frames::LinkFrame;
use super::join::{NoLink, join, part, receive_hello};
use crate::client::random_share;
use crate::server::accept::CoreEvents;
use crate::server::config::Environment;
use crate::server::now;
use ssntp_transport::dispatch::Admission;
use ssntp_transport::tls::Connector;
use ssntp_transport::{Cancel, LogLimit, Outgoing, Target, TcpOptions, deadline, excerpt, threads};

/// The first pause after an attempt that failed, and the longest. A pause is between a half
/// and all of that, so that servers that lost each other do not dial at the same moments.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// What has become of a peer that is dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// No link stands; why the last attempt failed, or empty before the first one.
    Trying(String),
    /// There is a link to the server with this UUID, whoever has dialled.
    Linked(Uuid),
    /// It is this server itself, and is not dialled again.
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

/// Dials the peers of a server, see [`Server::dialler`](super::super::Server::dialler).
///
/// # Threads
/// Cheap to clone, and `Send`. A thread `ssntp-peer-N` for each peer; the server joins them
/// when it ends. No call blocks.
#[derive(Clone)]
pub struct Dialler {
    shared: Arc<Shared>,
}

struct Shared {
    environment: Arc<Environment>,
    events: CoreEvents,
    tcp: TcpOptions,
    peers: Mutex<Peers>,
}

#[derive(Default)]
struct Peers {
    closed: bool,
    /// Counts the threads, for their names.
    number: u64,
    dialled: HashMap<String, Dialled>,
    /// Threads that were told to end.
    leaving: Vec<JoinHandle<()>>,
}

struct Dialled {
    cancel: Cancel,
    state: Arc<Mutex<PeerState>>,
    thread: JoinHandle<()>,
}

impl fmt::Debug for Dialler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.peers()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dialler {
    pub(in crate::server) fn new(environment: Arc<Environment>, events: CoreEvents, tcp: TcpOptions) -> Self {
        Self {
            shared: Arc::new(Shared {
                environment,
                events,
                tcp,
                peers: Mutex::default(),
            }),
        }
    }

    /// Dials a server until there is a link to it, and again whenever that ends. False if it is
    /// dialled already, or the server has stopped.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn dial(&self, target: impl Into<Target>) -> io::Result<bool> {
        let target = target.into();
        let mut peers = lock(&self.shared.peers);
        let name = match &target {
            // Listeners in memory have no addresses.
            Target::Memory(_) => format!("{target}-{}", peers.number),
            Target::Address(_) => target.to_string(),
        };
        if peers.closed || peers.dialled.contains_key(&name) {
            return Ok(false);
        }
        peers.number += 1;
        let cancel = Cancel::new();
        let state = Arc::new(Mutex::new(PeerState::Trying(String::new())));
        let mut peer = PeerThread {
            target,
            environment: Arc::clone(&self.shared.environment),
            events: self.shared.events.clone(),
            tcp: self.shared.tcp,
            cancel: cancel.clone(),
            state: Arc::clone(&state),
            log: LogLimit::default(),
        };
        let thread = threads::spawn(format!("ssntp-peer-{}", peers.number), move || peer.run())?;
        let dialled = Dialled {
            cancel,
            state,
            thread,
        };
        peers.dialled.insert(name, dialled);
        Ok(true)
    }

    /// Dials a server no more. A link that stands goes on until it ends. False if the server
    /// was not dialled.
    pub fn undial(&self, target: &Target) -> bool {
        let mut peers = lock(&self.shared.peers);
        let dialled = peers.dialled.remove(&target.to_string());
        let was_dialled = dialled.is_some();
        // The thread may be waiting for the dispatcher, which may be the caller: it is joined
        // once it has ended, or with the server.
        peers.leaving.retain(|thread| !thread.is_finished());
        peers.leaving.extend(dialled.map(Dialled::leave));
        was_dialled
    }

    /// The peers that are dialled, by address, and what has become of each.
    pub fn peers(&self) -> Vec<(String, PeerState)> {
        let peers = lock(&self.shared.peers);
        let dialled = peers.dialled.iter();
        let mut all: Vec<_> = dialled
            .map(|(name, peer)| (name.clone(), lock(&peer.state).clone()))
            .collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    /// Ends all threads and joins them.
    pub(in crate::server) fn close(&self) {
        let mut peers = lock(&self.shared.peers);
        peers.closed = true;
        let dialled = std::mem::take(&mut peers.dialled);
        let mut leaving = std::mem::take(&mut peers.leaving);
        drop(peers);
        leaving.extend(dialled.into_values().map(Dialled::leave));
        for thread in leaving {
            // A panic has been logged by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Dialled {
    fn leave(self) -> JoinHandle<()> {
        self.cancel.cancel();
        self.thread
    }
}

/// One thread, and the peer that it dials.
struct PeerThread {
    target: Target,
    environment: Arc<Environment>,
    events: CoreEvents,
    tcp: TcpOptions,
    cancel: Cancel,
    state: Arc<Mutex<PeerState>>,
    log: LogLimit<()>,
}

impl PeerThread {
    /// Waits while a link to the server stands. The next pause is short again only after a link
    /// that stood for a while, so that two servers which do not fit do not dial in a circle.
    fn wait_for_end(&self, server: Option<Uuid>, pause: &mut Duration) {
        let [first, longest] = PAUSES;
        let began = now();
        if server.is_some_and(|server| self.wait(server)) && began.elapsed() > longest {
            *pause = first;
        }
    }

    fn run(&mut self) {
        let [first, longest] = PAUSES;
        let mut pause = first;
        let mut known = None;
        while !self.cancel.is_cancelled() {
            // The peer may have dialled.
            self.wait_for_end(known, &mut pause);
            match self.attempt() {
                Ok(server) | Err(NoLink::Duplicate(server)) => known = Some(server),
                Err(NoLink::Own) => {
                    info!(target: "ssntp::server", "{}: it is this server's own address", self.target);
                    *lock(&self.state) = PeerState::Own;
                    return;
                }
                Err(why) => self.note(&why),
            }
            self.wait_for_end(known, &mut pause);
            if !self.cancel.pause(pause.mul_f64(0.5 + random_share() / 2.0)) {
                return;
            }
            pause = (pause * 2).min(longest);
        }
    }

    fn note(&mut self, why: &NoLink) {
        *lock(&self.state) = PeerState::Trying(excerpt(why).to_string());
        if !self.cancel.is_cancelled()
            && let Some(more) = self.log.admit((), "no link", now())
        {
            warn!(target: "ssntp::server", "{}: no link: {}{more}", self.target, excerpt(why));
        }
    }

    /// Waits until the link to a server ends, or until it is cancelled. False if there is no link.
    fn wait(&self, server: Uuid) -> bool {
        let standing = self
            .environment
            .joins
            .as_ref()
            .and_then(|joins| joins.standing(server));
        let Some(link) = standing else { return false };
        *lock(&self.state) = PeerState::Linked(server);
        select! {
            recv(link) -> _ => {}
            recv(self.cancel.done()) -> _ => {}
        }
        *lock(&self.state) = PeerState::Trying("the link has ended".into());
        true
    }

    /// Makes a link. Returns the server's UUID.
    fn attempt(&self) -> Result<Uuid, NoLink> {
        let environment = &self.environment;
        let refused = |e: &dyn fmt::Display| NoLink::Refused(e.to_string());
        let (role, max_payload) = (environment.role, environment.max_payload);
        let look = self
            .events
            .look(move |core, _| core.state.links.hello(role, max_payload));
        let (own, _) = look.ok_or_else(|| refused(&"the server has stopped"))?;
        let in_force = environment.in_force();
        let credentials = &in_force.credentials;
        let connector = Connector::mutual(&credentials.identity, &credentials.trust);
        let connector = connector.map_err(|e| refused(&e))?.protocol(LINK_PROTOCOL);
        let stream = self.target.connect(&self.tcp, CONNECT, &self.cancel);
        let stream = stream.map_err(NoLink::Lost)?;
        let _watch = self.cancel.watch(&stream);
        let address = stream.peer();
        let deadline = deadline(environment.handshake_timeout);
        let secured = connector.connect(
            Arc::clone(&stream),
            self.target.server_name(),
            &environment.pool,
            deadline,
        );
        let mut secured = secured.map_err(|e| refused(&e))?;
        if secured.alpn.as_deref() != Some(LINK_PROTOCOL) {
            return Err(refused(&"it takes no links: it runs without peers"));
        }
        let exchange = || {
            let peer = join(environment, &secured.peer, &in_force)?;
            let hello = Outgoing::whole(LinkFrame::Hello(own).encode(), 1);
            secured.halves.transmit.transmit(&[hello]).map_err(NoLink::Lost)?;
            let hello = receive_hello(&mut secured.halves, deadline)?;
            peer.check(environment, &hello)?;
            let server = hello.uuid;
            let admitted = peer.admit(&self.events, hello, Arc::clone(&stream), address, true)?;
            Ok((peer, server, admitted))
        };
        let (peer, server, admitted) = match exchange() {
            Ok(joined) => joined,
            Err(why) => {
                part(&mut secured.halves, environment.uuid, &why);
                return Err(why);
            }
        };
        let mut admission = Admission::new(admitted.id, self.events.clone());
        peer.start(
            environment,
            &self.events,
            admitted,
            &mut admission,
            secured.halves,
        );
        Ok(server)
    }
}
