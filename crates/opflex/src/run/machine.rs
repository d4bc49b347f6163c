//! What a server and an element have in common on their dispatchers: the life of a
//! connection between the transport's runner and a core.
//!
//! ```text
//!  Runner ── admit, item, ended, full … ─▶ Machine ── the core's calls ─▶ Side
//!     ◀── Send, End ── Peers ◀── hand_on ─────┘                            │
//!                                   ◀───────── the core's actions ─────────┘
//! ```
//!
//! [`Side`] is what differs: who is admitted, what a message means, and what is logged.

use std::thread::JoinHandle;
use std::time::Instant;

use log::debug;

use super::connection::{Messages, Peers, deal};
use super::{CallError, StartError, guard};
use crate::model::{ManagedObject, Tree};
use crate::peer::ConnectionId;
use ssntp_transport::dispatch::{self, Action, Core, DispatchEvent, Events, Queue, Runner, Settings};
use ssntp_transport::{self, EndReason, Gauge, Outgoing, threads};

/// The way into a dispatcher.
pub(super) type SideEvents<S> = Events<DispatchEvent<Machine<S>>>;

/// A server or an element: a core, and what stands around it.
pub(super) trait Side: Send + Sized + 'static {
    /// The state machine of the protocol.
    type Core: Contents;
    /// A connection that asks to be admitted.
    type Newcomer: Send + 'static;
    /// Why it is not admitted.
    type Refusal: Send + 'static;
    /// The target of the log lines.
    const LOG: &'static str;

    fn core(&self) -> &Self::Core;

    /// Admits a connection and tells the core of it, or refuses it. So many connections
    /// are there already, those that are ending included.
    fn admit(
        &mut self,
        id: ssntp_transport::ConnectionId,
        newcomer: Self::Newcomer,
        standing: usize,
        peers: &mut Peers,
        now: Instant,
    ) -> Result<ConnectionId, Self::Refusal>;

    /// Takes the next message, or makes the next piece of an answer. True if the answer
    /// goes on, and `None` if there was nothing to do.
    fn step(&mut self, connection: ConnectionId, messages: &mut Messages, now: Instant) -> Option<bool>;

    /// Bytes have arrived.
    fn received(&mut self, connection: ConnectionId, bytes: u64, now: Instant);

    /// A connection has ended, or is about to.
    fn gone(&mut self, connection: ConnectionId, peer: &str, why: Gone, now: Instant);

    /// Connections whose certificates are not trusted any more, and why.
    fn untrusted(&self, peers: &Peers) -> Vec<(ConnectionId, String)>;

    /// Gives what the core wants sent and ended to `peers`.
    fn hand_on(&mut self, peers: &mut Peers, now: Instant, actions: &mut Vec<Action>);

    fn settle(&mut self, _: Instant) {}
    fn next_deadline(&self) -> Option<Instant>;
    fn tick(&mut self, now: Instant);
    fn stop(&mut self, now: Instant);
    /// What the core wanted at the stop has been handed on.
    fn stopped(&mut self) {}
}

/// Why a connection is gone.
#[derive(Debug)]
pub(super) enum Gone {
    /// It ended by itself.
    Ended(EndReason),
    /// Its queue is full, so the peer takes too little.
    Full,
    /// Its certificate is not trusted any more.
    Untrusted(String),
}

/// What an inspector shows: trees, and objects that stand in none.
pub(super) trait Contents {
    fn trees(&self) -> [&Tree; 2];
    /// The objects behind a place in an order of their own. Several may share a place.
    fn others(&self, place: Option<u64>) -> Box<dyn Iterator<Item = (u64, &ManagedObject)> + '_>;
}

/// All state of a server or an element.
pub(super) struct Machine<S> {
    pub(super) side: S,
    pub(super) peers: Peers,
}

impl<S: Side> Machine<S> {
    pub(super) fn new(side: S) -> Self {
        let peers = Peers::default();
        Self { side, peers }
    }

    /// Runs it on a thread of its own.
    pub(super) fn spawn(
        self,
        name: &str,
        settings: Settings,
        queue: Queue<DispatchEvent<Self>>,
    ) -> Result<JoinHandle<()>, StartError> {
        // The runner sends short frames itself only while no event waits.
        let watch = queue.watch();
        let runner = Runner::new(self, settings, move || watch.is_empty());
        threads::spawn(name, move || dispatch::run(runner, &queue)).map_err(StartError::Thread)
    }

    pub(super) fn hand_on(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.side.hand_on(&mut self.peers, now, actions);
        self.peers.flush(actions);
    }

    /// Ends connections whose peers are not trusted any more. How many these are.
    pub(super) fn end_untrusted(
        &mut self,
        untrusted: Vec<(ConnectionId, String)>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> usize {
        let count = untrusted.len();
        for (connection, why) in untrusted {
            if let Some(name) = self.peers.name(connection).map(str::to_owned) {
                self.side.gone(connection, &name, Gone::Untrusted(why), now);
                self.peers.end(connection, actions);
            }
        }
        self.hand_on(now, actions);
        count
    }

    /// The transport has ended a connection, or is told to.
    fn remove(
        &mut self,
        id: ssntp_transport::ConnectionId,
        why: Gone,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some((connection, name)) = self.peers.remove(id) else {
            return false;
        };
        self.side.gone(connection, &name, why, now);
        self.hand_on(now, actions);
        true
    }
}

/// Runs `call` on the dispatcher and gives back what it returns.
///
/// # Errors
/// [`CallError::Stopped`], also if the call panicked; [`CallError::OnDispatcher`].
pub(super) fn call<S: Side, T: Send + 'static>(
    events: &SideEvents<S>,
    call: impl FnOnce(&mut Machine<S>, Instant, &mut Vec<Action>) -> T + Send + 'static,
) -> Result<T, CallError> {
    if dispatch::is_dispatcher() {
        return Err(CallError::OnDispatcher);
    }
    let (reply, result) = crossbeam_channel::bounded(1);
    post(events, move |machine, now, actions| {
        guard(S::LOG, || {
            let _ = reply.send(call(machine, now, actions));
        });
        // A call that panicked may have changed the core before.
        machine.hand_on(now, actions);
    });
    events.answer(&result).ok_or(CallError::Stopped)
}

/// Runs `call` on the dispatcher some time, unless that has stopped.
pub(super) fn post<S: Side>(
    events: &SideEvents<S>,
    call: impl FnOnce(&mut Machine<S>, Instant, &mut Vec<Action>) + Send + 'static,
) {
    let _ = events.send(DispatchEvent::Call(Box::new(call)));
}

impl<S: Side> Core for Machine<S> {
    type Item = Messages;
    type Request = S::Newcomer;
    type Grant = ConnectionId;
    type Place = ();
    type Refusal = S::Refusal;

    fn admit(
        &mut self,
        id: ssntp_transport::ConnectionId,
        newcomer: S::Newcomer,
        _: Gauge,
        standing: usize,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(ConnectionId, ()), S::Refusal> {
        let connection = self.side.admit(id, newcomer, standing, &mut self.peers, now)?;
        // TLS may have been replaced since the handshake.
        let untrusted = self.side.untrusted(&self.peers);
        self.end_untrusted(untrusted, now, actions);
        Ok((connection, ()))
    }

    fn item(
        &mut self,
        id: ssntp_transport::ConnectionId,
        messages: Messages,
        most: u32,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> (u32, Option<Messages>) {
        // The core has closed it; what its reader found before that is dropped.
        let Some(connection) = self.peers.connection(id) else {
            return (0, None);
        };
        let dealt = deal(messages, most, actions, |messages, actions| {
            let goes_on = self.side.step(connection, messages, now);
            // Frames for one connection are joined until somebody else's turn comes.
            self.side.hand_on(&mut self.peers, now, actions);
            goes_on
        });
        self.peers.flush(actions);
        dealt
    }

    fn received(&mut self, id: ssntp_transport::ConnectionId, bytes: u64, now: Instant) {
        if let Some(connection) = self.peers.connection(id) {
            self.side.received(connection, bytes, now);
        }
    }

    fn ended(
        &mut self,
        id: ssntp_transport::ConnectionId,
        reason: EndReason,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        self.remove(id, Gone::Ended(reason), now, actions);
    }

    fn left(&mut self, id: ssntp_transport::ConnectionId, items: Vec<Messages>) {
        let messages: usize = items.iter().map(Messages::len).sum();
        debug!(target: S::LOG, "transport connection {id:?} ended before {messages} of its messages were read");
    }

    fn full(
        &mut self,
        id: ssntp_transport::ConnectionId,
        _: Outgoing,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> bool {
        if self.remove(id, Gone::Full, now, actions) {
            actions.push(Action::End { id, abort: true });
        }
        false
    }

    fn settle(&mut self, now: Instant, _: &mut Vec<Action>) {
        self.side.settle(now);
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.side.next_deadline()
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.side.tick(now);
        self.hand_on(now, actions);
    }

    fn stop(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.side.stop(now);
        self.hand_on(now, actions);
        self.side.stopped();
        self.peers.end_all(actions);
    }
}
