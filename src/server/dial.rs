//! Dials each peer until there is a link to it, and again when the link has ended.
//!
//! ```text
//!            ┌── the pause is over ──▶ attempt ── linked ───────▶ Linked ─┐
//!  Redial:  Wait ◀── no link, or this server itself ──┘                     │
//!            └◀───────────────── the link has ended ◀──────────────────────┘
//! ```
//!
//! [`Redial`] decides when to dial, without a thread or a clock. [`Dialler`] has a thread for each peer.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select};
use log::{info, warn};
use uuid::Uuid;

use super::accept::EntryRunner;
use super::entry::{Entry, NoEntry};
use super::handle::ServerHandle;
use super::links::{DialledPeer, DialledPeers, LINK_PROTOCOL, LinkFailure, PeerState};
use crate::jitter::random_share;
use ssntp_pki::CertificateInfo;
use ssntp_transport::{Duplex, LogLimit, Target, TcpOptions, deadline, excerpt, now, remaining, threads};

/// The first pause after a failed attempt, and the longest. Each pause is shortened at random by up
/// to a half, so that servers that lost each other do not dial at the same time.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// The pause after an attempt that reached this server itself. The name may resolve to another server
/// later.
const OWN_PAUSE: Duration = Duration::from_secs(60);
/// The longest time for connecting the socket. TLS and HELLO have the handshake timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The next thing to do for a peer, from [`Redial::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Dial now, then call [`Redial::attempted`].
    Now,
    /// Wait until this time.
    Wait(Instant),
    /// Wait until the link to this server ends.
    Linked(Uuid),
}

/// The schedule by which a peer is dialled.
#[derive(Debug, Default)]
pub struct Redial {
    /// The server that was found at the peer's address.
    known: Option<Uuid>,
    /// The time since which there is a link to that server.
    linked: Option<Instant>,
    /// The last pause, before it was shortened; zero at first.
    pause: Duration,
    /// The earliest time of the next attempt.
    next: Option<Instant>,
}

impl Redial {
    /// The thing to do at the time `now`. `share` is a random number from 0 to 1: 0 halves the next
    /// pause, 1 leaves it whole.
    /// `is_linked` returns true if there is a link to a server, whichever side has dialled.
    pub fn next(&mut self, now: Instant, share: f64, is_linked: impl Fn(Uuid) -> bool) -> Attempt {
        if let Some(server) = self.known.filter(|server| is_linked(*server)) {
            self.linked.get_or_insert(now);
            return Attempt::Linked(server);
        }
        if let Some(since) = self.linked.take() {
            // The pause is short again only after a link that lasted, so that two servers that link
            // and end the link at once do not dial without a pause.
            if now.saturating_duration_since(since) > PAUSES[1] {
                self.pause = Duration::ZERO;
            }
            self.wait(now, share);
        }
        match self.next.filter(|next| now < *next) {
            Some(next) => Attempt::Wait(next),
            None => Attempt::Now,
        }
    }

    /// Notes the result of an attempt: the server that was found, if any, and the reason for which
    /// there is no link, if there is none.
    pub fn attempted(&mut self, server: Option<Uuid>, why: Option<&NoEntry>, now: Instant, share: f64) {
        // A known server stays known after a failure, because it may dial this server. `next` then finds
        // that link, and this server does not dial.
        self.known = match why {
            Some(NoEntry::Link(LinkFailure::Own)) => {
                self.next = Some(now + OWN_PAUSE);
                return;
            }
            Some(NoEntry::Link(LinkFailure::Duplicate(server))) => Some(*server),
            Some(_) => self.known,
            None => server.or(self.known),
        };
        self.wait(now, share);
    }

    fn wait(&mut self, now: Instant, share: f64) {
        let [first, longest] = PAUSES;
        self.pause = (self.pause * 2).clamp(first, longest);
        self.next = Some(now + self.pause.mul_f64(0.5 + share / 2.0));
    }
}

/// Dials the peers of a server, see [`Server::dialler`](super::Server::dialler).
///
/// # Threads
/// Cheap to clone, and `Send`. Each peer has a thread `ssntp-peer-N`, which the server joins when it
/// stops. No call blocks.
#[derive(Clone)]
pub struct Dialler {
    pub(super) handle: ServerHandle,
    pub(super) tcp: TcpOptions,
}

impl fmt::Debug for Dialler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.peers()).finish()
    }
}

impl Dialler {
    /// Dials a server until there is a link to it, and again whenever the link ends. False if the
    /// server is dialled already, or this server has stopped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn dial(&self, target: impl Into<Target>) -> io::Result<bool> {
        let target = target.into();
        let dialler = self.clone();
        self.dialled().add(target.to_string(), |name, peer| {
            let log = LogLimit::default();
            let mut dialled = PeerThread {
                target,
                dialler,
                peer,
                log,
            };
            threads::spawn(name, move || dialled.run())
        })
    }

    /// Stops dialling a server. An existing link stays until it ends. False if the server was not
    /// dialled.
    pub fn undial(&self, target: &Target) -> bool {
        self.dialled().remove(&target.to_string())
    }

    /// The peers that are dialled, sorted by address, with the state of each.
    pub fn peers(&self) -> Vec<(String, PeerState)> {
        self.dialled().list()
    }

    /// Cancels all threads and joins them.
    pub(super) fn close(&self) {
        self.dialled().close();
    }

    fn dialled(&self) -> &DialledPeers {
        &self.handle.environment.peers
    }
}

/// The thread of one peer.
struct PeerThread {
    target: Target,
    dialler: Dialler,
    peer: DialledPeer,
    log: LogLimit<()>,
}

impl PeerThread {
    fn run(&mut self) {
        let mut redial = Redial::default();
        while !self.peer.cancel.is_cancelled() {
            let is_linked = |server| self.link_to(server).is_some();
            match redial.next(now(), random_share(), is_linked) {
                Attempt::Now => {
                    let attempt = self.attempt();
                    let why = attempt.as_ref().err();
                    let server = attempt.as_ref().ok().copied().flatten();
                    redial.attempted(server, why, now(), random_share());
                    if let Some(why) = why {
                        self.report(why);
                    }
                }
                Attempt::Wait(until) => {
                    if !self.peer.cancel.pause(remaining(until)) {
                        return;
                    }
                }
                Attempt::Linked(server) => self.wait_for_end(server),
            }
        }
    }

    /// Notes the failure of an attempt in the peer's state and in the log.
    fn report(&mut self, why: &NoEntry) {
        let state = match why {
            // The link exists. The next call of Redial::next returns Attempt::Linked.
            NoEntry::Link(LinkFailure::Duplicate(_)) => return,
            NoEntry::Link(LinkFailure::Own) => PeerState::Own,
            _ => PeerState::Trying(excerpt(why).to_string()),
        };
        let before = self.peer.set(state.clone());
        if state == PeerState::Own {
            if before != state {
                info!(target: "ssntp::server", "{}: it is this server's own address", self.target);
            }
            return;
        }
        if !self.peer.cancel.is_cancelled()
            && let Some(more) = self.log.admit((), "no link", now())
        {
            warn!(target: "ssntp::server", "{}: no link: {}{more}", self.target, excerpt(why));
        }
    }

    /// Waits until the link to a server ends, or until this thread is cancelled.
    fn wait_for_end(&self, server: Uuid) {
        let Some(link) = self.link_to(server) else {
            return;
        };
        self.peer.set(PeerState::Linked(server));
        select! {
            recv(link) -> _ => {}
            recv(self.peer.cancel.done()) -> _ => {}
        }
        self.peer.set(PeerState::Trying("the link has ended".into()));
    }

    /// A channel that is disconnected when the link to a server ends; `None` without a link. The
    /// dispatcher is asked, because it alone knows the links.
    fn link_to(&self, server: Uuid) -> Option<Receiver<Infallible>> {
        let events = &self.dialler.handle.events;
        let look = events.look(move |core, _| core.link_to(server));
        look.and_then(|(link, _)| link)
    }

    /// Dials each address of the server in turn, until one is linked. Returns the UUID of the server that it
    /// is linked to now.
    fn attempt(&self) -> Result<Option<Uuid>, NoEntry> {
        let lost = |e| NoEntry::Link(LinkFailure::Lost(e));
        let mut result = Err(lost(io::ErrorKind::NotFound.into()));
        for (address, limit) in self
            .target
            .addresses(CONNECT_TIMEOUT, &self.peer.cancel)
            .map_err(lost)?
        {
            let stream = address.connect(&self.dialler.tcp, limit, &self.peer.cancel);
            result = stream.map_err(lost).and_then(|stream| self.meet(stream));
            if result.is_ok() || self.peer.cancel.is_cancelled() {
                break;
            }
        }
        result
    }

    fn meet(&self, stream: Arc<dyn Duplex>) -> Result<Option<Uuid>, NoEntry> {
        let ServerHandle {
            environment, events, ..
        } = &self.dialler.handle;
        let refused = |e: &dyn fmt::Display| NoEntry::Link(LinkFailure::Refused(e.to_string()));
        // The dispatcher makes it, because only the dispatcher knows the newest token.
        let hello = events.look(|core, _| core.hello());
        let (hello, _) = hello.ok_or_else(|| refused(&"this server has stopped"))?;
        let active = environment.active();
        let credentials = &active.credentials;
        let connector = credentials.trust.connector(&credentials.identity);
        let connector = connector.map_err(|e| refused(&e))?.protocol(LINK_PROTOCOL);
        // Shuts the socket down if this thread is cancelled during the handshake.
        let _watch = self.peer.cancel.watch(&stream);
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
            return Err(refused(
                &"it does not offer links: it is a server without peers, or no SSNTP server",
            ));
        }
        let leaf = secured.peer.first();
        let leaf = leaf.ok_or_else(|| refused(&"it sent no certificate"))?;
        let certificate = CertificateInfo::from_der(leaf).map_err(|e| refused(&e))?;
        let entry = Entry::server(environment, certificate, secured.peer, address, Some(hello));
        let mut entry = entry.verified_by(&active);
        let runner = EntryRunner {
            environment,
            events,
            newcomer: None,
            stream,
            deadline,
        };
        runner.run(&mut entry, secured.halves)?;
        Ok(entry.peer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_reached_this_server_is_dialled_again_after_a_minute() {
        let (mut redial, begin, other) = (Redial::default(), now(), Uuid::from_u128(2));
        let own = NoEntry::Link(LinkFailure::Own);
        assert_eq!(redial.next(begin, 0.5, |_| false), Attempt::Now);
        redial.attempted(None, Some(&own), begin, 0.5);
        assert_eq!(
            redial.next(begin, 0.5, |_| false),
            Attempt::Wait(begin + OWN_PAUSE)
        );
        let later = begin + OWN_PAUSE;
        assert_eq!(redial.next(later, 0.5, |_| false), Attempt::Now);
        redial.attempted(Some(other), None, later, 0.5);
        assert_eq!(
            redial.next(later, 0.5, |server| server == other),
            Attempt::Linked(other)
        );
    }

    #[test]
    fn the_pauses_grow_while_links_are_short_and_begin_again_after_one_that_lasted() {
        let (mut redial, mut at, other) = (Redial::default(), now(), Uuid::from_u128(2));
        let mut pause_after = |linked: Duration| {
            redial.attempted(Some(other), None, at, 1.0);
            assert_eq!(redial.next(at, 1.0, |_| true), Attempt::Linked(other));
            at += linked;
            let Attempt::Wait(until) = redial.next(at, 1.0, |_| false) else {
                panic!("it dials without a pause");
            };
            let pause = until - at;
            at = until;
            assert_eq!(redial.next(at, 1.0, |_| false), Attempt::Now);
            pause
        };
        let short = Duration::from_millis(1);
        let pauses: Vec<_> = (0..20).map(|_| pause_after(short)).collect();
        assert!(pauses.is_sorted() && pauses[0] < pauses[1], "{pauses:?}");
        assert_eq!(pauses[19], PAUSES[1]);
        assert!(pause_after(PAUSES[1] + short) < PAUSES[1] / 2);
    }
}
