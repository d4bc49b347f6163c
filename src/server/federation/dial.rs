//! Dials the servers of a list until there is a link to each of them.
//!
//! ```text
//!            ┌── the pause is over ──▶ attempt ── a link stands ─▶ Linked ─┐
//!  Redial:  Wait ◀── no link, or this server itself ──┘                     │
//!            └◀───────────────── the link has ended ◀──────────────────────┘
//! ```
//!
//! [`Redial`] says when, and has no thread and no clock; [`Dialler`] has a thread for each peer.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::select;
use log::{info, warn};
use uuid::Uuid;

use super::LINK_PROTOCOL;
use super::join::NoLink;
use crate::client::random_share;
use crate::server::accept::{CoreEvents, Passage};
use crate::server::config::Environment;
use crate::server::entry::{Entry, NoEntry, Why};
use crate::server::now;
use ssntp_transport::pki::CertificateInfo;
use ssntp_transport::tls::Connector;
use ssntp_transport::{Cancel, LogLimit, Target, TcpOptions, deadline, excerpt, threads};

/// The first pause after an attempt that failed, and the longest. A pause is between a half
/// and all of that, so that servers that lost each other do not dial at the same moments.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// The pause after an attempt that has led to this server itself. Its name may lead elsewhere later.
const OWN: Duration = Duration::from_secs(60);
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// What [`Redial`] wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Dial now, and tell [`Redial::attempted`].
    Now,
    /// Nothing until then.
    Wait(Instant),
    /// Nothing while the link to this server stands.
    Linked(Uuid),
}

/// When a peer is dialled.
#[derive(Debug)]
pub struct Redial {
    /// The server that was found there.
    known: Option<Uuid>,
    /// Since when the link to it stands.
    linked: Option<Instant>,
    pause: Duration,
    next: Option<Instant>,
}

impl Redial {
    /// A peer that has not been dialled yet.
    pub fn new() -> Self {
        let [pause, _] = PAUSES;
        Self {
            known: None,
            linked: None,
            pause,
            next: None,
        }
    }

    /// What to do at that time. `share` is a random number between 0 and 1; `stands` tells
    /// whether there is a link to a server, whoever has dialled.
    pub fn next(&mut self, now: Instant, share: f64, stands: impl Fn(Uuid) -> bool) -> Attempt {
        if let Some(server) = self.known.filter(|server| stands(*server)) {
            self.linked.get_or_insert(now);
            return Attempt::Linked(server);
        }
        if let Some(since) = self.linked.take() {
            // The pause is short again only after a link that stood for a while, so that two
            // servers which do not fit do not dial in a circle.
            let [first, longest] = PAUSES;
            if now.saturating_duration_since(since) > longest {
                self.pause = first;
            }
            self.wait(now, share);
        }
        match self.next.filter(|next| now < *next) {
            Some(next) => Attempt::Wait(next),
            None => Attempt::Now,
        }
    }

    /// The peer was dialled: which server was found, if one, and why there is no link.
    pub fn attempted(&mut self, server: Option<Uuid>, why: Option<&NoEntry>, now: Instant, share: f64) {
        self.known = match why {
            Some(NoEntry(Why::Link(NoLink::Own))) => {
                self.next = Some(now + OWN);
                return;
            }
            Some(NoEntry(Why::Link(NoLink::Duplicate(server)))) => Some(*server),
            Some(_) => self.known,
            None => server.or(self.known),
        };
        self.wait(now, share);
    }

    fn wait(&mut self, now: Instant, share: f64) {
        let [_, longest] = PAUSES;
        self.next = Some(now + self.pause.mul_f64(0.5 + share / 2.0));
        self.pause = (self.pause * 2).min(longest);
    }
}

impl Default for Redial {
    fn default() -> Self {
        Self::new()
    }
}

/// What has become of a peer that is dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// No link stands; why the last attempt failed, or empty before the first one.
    Trying(String),
    /// There is a link to the server with this UUID, whoever has dialled.
    Linked(Uuid),
    /// It is this server itself. Whether it still is, is looked at once a minute.
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
    fn run(&mut self) {
        let mut redial = Redial::new();
        while !self.cancel.is_cancelled() {
            let stands = |server| self.environment.is_linked(server);
            match redial.next(now(), random_share(), stands) {
                Attempt::Now => {
                    let attempt = self.attempt();
                    let why = attempt.as_ref().err();
                    let server = attempt.as_ref().ok().copied().flatten();
                    redial.attempted(server, why, now(), random_share());
                    if let Some(why) = why {
                        self.note(why);
                    }
                }
                Attempt::Wait(until) => {
                    if !self.cancel.pause(until.saturating_duration_since(now())) {
                        return;
                    }
                }
                Attempt::Linked(server) => self.wait_for_end(server),
            }
        }
    }

    fn note(&mut self, why: &NoEntry) {
        let state = match why.0 {
            Why::Link(NoLink::Duplicate(_)) => return,
            Why::Link(NoLink::Own) => PeerState::Own,
            _ => PeerState::Trying(excerpt(why).to_string()),
        };
        let before = std::mem::replace(&mut *lock(&self.state), state.clone());
        if state == PeerState::Own {
            if before != state {
                info!(target: "ssntp::server", "{}: it is this server's own address", self.target);
            }
            return;
        }
        if !self.cancel.is_cancelled()
            && let Some(more) = self.log.admit((), "no link", now())
        {
            warn!(target: "ssntp::server", "{}: no link: {}{more}", self.target, excerpt(why));
        }
    }

    /// Waits until the link to a server ends, or until it is cancelled.
    fn wait_for_end(&self, server: Uuid) {
        let joins = self.environment.joins.as_ref();
        let Some(link) = joins.and_then(|joins| joins.standing(server)) else {
            return;
        };
        *lock(&self.state) = PeerState::Linked(server);
        select! {
            recv(link) -> _ => {}
            recv(self.cancel.done()) -> _ => {}
        }
        *lock(&self.state) = PeerState::Trying("the link has ended".into());
    }

    /// Makes a link. Returns the server's UUID.
    fn attempt(&self) -> Result<Option<Uuid>, NoEntry> {
        let environment = &self.environment;
        let refused = |e: &dyn fmt::Display| NoEntry(Why::Link(NoLink::Refused(e.to_string())));
        let hello = self.events.look(|core, _| core.hello());
        let (hello, _) = hello.ok_or_else(|| refused(&"the server has stopped"))?;
        let in_force = environment.in_force();
        let credentials = &in_force.credentials;
        let connector = Connector::mutual(&credentials.identity, &credentials.trust);
        let connector = connector.map_err(|e| refused(&e))?.protocol(LINK_PROTOCOL);
        let stream = self.target.connect(&self.tcp, CONNECT, &self.cancel);
        let stream = stream.map_err(|e| NoEntry(Why::Link(NoLink::Lost(e))))?;
        let _watch = self.cancel.watch(&stream);
        let address = stream.peer();
        let deadline = deadline(environment.handshake_timeout);
        let secured = connector.connect(
            Arc::clone(&stream),
            self.target.server_name(),
            &environment.pool,
            deadline,
        );
        let secured = secured.map_err(|e| refused(&e))?;
        if secured.alpn.as_deref() != Some(LINK_PROTOCOL) {
            return Err(refused(&"it takes no links: it runs without peers"));
        }
        let leaf = secured.peer.first();
        let leaf = leaf.ok_or_else(|| refused(&"it shows no certificate"))?;
        let certificate = CertificateInfo::from_der(leaf).map_err(|e| refused(&e))?;
        let entry = Entry::server(environment, certificate, secured.peer, address, Some(hello));
        let mut entry = entry.verified_by(&in_force);
        let passage = Passage {
            environment,
            events: &self.events,
            newcomer: None,
            stream,
            deadline,
        };
        match passage.take(&mut entry, secured.halves) {
            Ok(()) => Ok(entry.peer()),
            Err(turned) => {
                let (why, halves) = *turned;
                if let Some(halves) = halves {
                    passage.refuse(halves, &why, "");
                }
                Err(why)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_led_to_this_server_is_looked_at_again_and_may_lead_to_another() {
        let (mut redial, begin, other) = (Redial::new(), now(), Uuid::from_u128(2));
        let own = NoEntry(Why::Link(NoLink::Own));
        assert_eq!(redial.next(begin, 0.5, |_| false), Attempt::Now);
        redial.attempted(None, Some(&own), begin, 0.5);
        assert_eq!(redial.next(begin, 0.5, |_| false), Attempt::Wait(begin + OWN));
        let later = begin + OWN;
        assert_eq!(redial.next(later, 0.5, |_| false), Attempt::Now);
        redial.attempted(Some(other), None, later, 0.5);
        assert_eq!(
            redial.next(later, 0.5, |server| server == other),
            Attempt::Linked(other)
        );
    }
}
