//! The code that servers and elements share: a [`Machine`] runs on the dispatcher, between
//! the transport's runner and a core. It admits connections, passes their messages to the
//! core, carries out the core's actions, and removes connections that have ended.
//!
//! ```text
//!  Runner ── admit, item, ended, full … ─▶ Machine ── the core's calls ─▶ Side
//!     ◀── Send, End ── Peers ◀── carry_out ─────┘                            │
//!                                   ◀───────── the core's actions ─────────┘
//! ```
//!
//! [`Side`] has the differences: admission, the handling of messages, and log lines.

use std::time::Instant;

use log::{debug, error};

use super::config::{CallError, StartError};
use super::connection::{Messages, Peers};
use crate::model::{ManagedObject, Tree};
use crate::peer::ConnectionId;
use ssntp_transport::ConnectionId as TransportId;
use ssntp_transport::dispatch::{
    self, Action, Core, DispatchEvent, Drops, Events, Origin, Queue, Runner, Settings,
};
use ssntp_transport::rustls::{self, AlertDescription};
use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{EndReason, Load, OutboxCounters, guard};

/// Sends events to the dispatcher of a [`Machine`].
pub(super) type SideEvents<S> = Events<DispatchEvent<Machine<S>>>;

/// A server or an element, for the machine.
pub(super) trait Side: Send + Sized + 'static {
    /// A connection that asks to be admitted.
    type Newcomer: Send + 'static;
    /// A position among the objects that are in no tree.
    type Place: Clone + PartialEq + Send + 'static;
    /// The target of the log lines.
    const LOG: &'static str;

    /// The owner to which the memory of a connection is charged, as for [`Core`].
    fn owner(_: &Self::Newcomer) -> Option<&[u8]> {
        None
    }
    /// The trees whose objects an inspector shows.
    fn trees(&self) -> [&Tree; 2];
    /// The objects for an inspector that are in no tree, each with its position in their order, behind
    /// a position or from the first one on. Several objects may have the same position.
    fn others(&self, place: Option<Self::Place>) -> impl Iterator<Item = (Self::Place, &ManagedObject)>;

    /// Admits a connection and begins its session in the core, or refuses it, also if TLS was replaced
    /// since its handshake. `standing` is the number of other connections, including those that are
    /// ending.
    fn admit(
        &mut self,
        id: TransportId,
        newcomer: Self::Newcomer,
        standing: usize,
        peers: &mut Peers,
        now: Instant,
    ) -> Result<ConnectionId, String>;

    /// Handles the next message, or makes the next piece of an answer. Returns true if the answer has
    /// more pieces, and `None` if there was no message and no piece.
    fn handle_next(
        &mut self,
        connection: ConnectionId,
        messages: &mut Messages,
        now: Instant,
    ) -> Option<bool>;

    /// Records that bytes have arrived on a connection.
    fn received(&mut self, connection: ConnectionId, bytes: u64, now: Instant);

    /// Called when an admitted connection is out of the transport's table.
    fn on_removed(&mut self, _: TransportId) {}

    /// Ends the session of a connection in the core: it has ended, or is about to be closed.
    fn ended(&mut self, connection: ConnectionId, why: EndCause, now: Instant);

    /// Carries out the actions of the core.
    fn carry_out(&mut self, peers: &mut Peers, now: Instant, actions: &mut Vec<Action>);

    /// Called after each step of the dispatcher. An element releases the references that the
    /// application has dropped.
    fn settle(&mut self, _: Instant) {}
    fn next_deadline(&self) -> Option<Instant>;
    fn tick(&mut self, now: Instant);
    /// Carries out the last actions of the core.
    fn stop(&mut self, peers: &mut Peers, now: Instant, actions: &mut Vec<Action>);
}

/// The reason for which a connection has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndCause {
    /// The transport has ended it.
    #[error("ended: {0}{words}", words = words_for(.0))]
    Ended(EndReason),
    #[error("too slow: its queue is full, it is disconnected")]
    Full,
    #[error("not trusted any more, it is disconnected: {0}")]
    Untrusted(String),
}

/// What the reason of an end lacks: rustls shows only the name of an alert.
fn words_for(reason: &EndReason) -> &'static str {
    let alert = match reason {
        EndReason::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref()),
        _ => None,
    };
    let required = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
    if alert == Some(&required) {
        ": the server requires a certificate"
    } else {
        ""
    }
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

    /// Runs the machine on a thread of its own.
    pub(super) fn spawn(
        self,
        name: &str,
        settings: Settings,
        queue: Queue<DispatchEvent<Self>>,
    ) -> Result<Joined, StartError> {
        // The runner sends short frames itself only while the queue of events is empty.
        let watch = queue.watch();
        let runner = Runner::new(self, settings, move || watch.is_empty());
        threads::joined(name, move || dispatch::run(runner, &queue)).map_err(StartError::Thread)
    }

    pub(super) fn carry_out(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.side.carry_out(&mut self.peers, now, actions);
        self.peers.flush(actions);
    }

    /// Closes connections whose peers are not trusted any more. Returns the length of the list.
    pub(super) fn end_untrusted(
        &mut self,
        untrusted: Vec<(ConnectionId, String)>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> usize {
        let count = untrusted.len();
        for (connection, why) in untrusted {
            if self.peers.end(connection, actions) {
                self.side.ended(connection, EndCause::Untrusted(why), now);
            }
        }
        self.carry_out(now, actions);
        count
    }

    /// Removes a connection that the transport has ended, or is about to end. Returns false if it was
    /// removed before.
    fn remove(&mut self, id: TransportId, why: EndCause, now: Instant, actions: &mut Vec<Action>) -> bool {
        let Some(connection) = self.peers.remove(id) else {
            return false;
        };
        self.side.ended(connection, why, now);
        self.carry_out(now, actions);
        true
    }
}

/// Runs `call` on the dispatcher, waits for it, and returns its result.
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
        if guard(|| reply.send(call(machine, now, actions))).is_err() {
            error!(target: S::LOG, "the application panicked in a call");
        }
        // Also after a panic, because the call may have changed the core before.
        machine.carry_out(now, actions);
    });
    events.answer(&result).ok_or(CallError::Stopped)
}

/// Runs `call` on the dispatcher later, and does not wait for it. If the dispatcher has stopped, the
/// call is dropped.
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
    type Refusal = String;

    fn owner(newcomer: &S::Newcomer) -> Option<&[u8]> {
        S::owner(newcomer)
    }

    fn admit(
        &mut self,
        id: TransportId,
        newcomer: S::Newcomer,
        _: OutboxCounters,
        standing: usize,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<ConnectionId, String> {
        let connection = self.side.admit(id, newcomer, standing, &mut self.peers, now)?;
        self.carry_out(now, actions);
        Ok(connection)
    }

    fn item(
        &mut self,
        id: TransportId,
        mut messages: Messages,
        most: u32,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> (u32, Option<Messages>) {
        // The core has closed the connection; its remaining messages are dropped.
        let Some(connection) = self.peers.connection(id) else {
            return (0, None);
        };
        self.peers.origin = Origin::Connection(id);
        let (before, mut done, mut has_more) = (actions.len(), 0, false);
        // Ends when frames have been passed to the transport, because the next piece of a long answer is
        // made only when the peer's queue has room for it.
        while done < most
            && actions.len() == before
            && let Some(is_unfinished) = self.side.handle_next(connection, &mut messages, now)
        {
            (done, has_more) = (done + 1, is_unfinished);
            // `peers` joins consecutive frames for the same connection.
            self.side.carry_out(&mut self.peers, now, actions);
        }
        self.peers.flush(actions);
        self.peers.origin = Origin::Application;
        (done, (has_more || messages.len() > 0).then_some(messages))
    }

    fn received(&mut self, id: TransportId, bytes: u64, now: Instant) {
        if let Some(connection) = self.peers.connection(id) {
            self.side.received(connection, bytes, now);
        }
    }

    fn ended(&mut self, id: TransportId, reason: EndReason, now: Instant, actions: &mut Vec<Action>) {
        self.remove(id, EndCause::Ended(reason), now, actions);
    }

    fn on_removed(&mut self, id: TransportId) {
        self.side.on_removed(id);
    }

    fn on_unhandled(&mut self, id: TransportId, items: Vec<Messages>) {
        let messages: usize = items.iter().map(Messages::len).sum();
        debug!(target: S::LOG, "transport connection {id:?} ended before {messages} of its messages were processed");
    }

    fn on_line_full(&mut self, id: TransportId, _: Load, now: Instant, actions: &mut Vec<Action>) -> Drops {
        if self.remove(id, EndCause::Full, now, actions) {
            actions.push(Action::End { id, abort: true });
        }
        Drops::Newest
    }

    fn settle(&mut self, now: Instant, _: &mut Vec<Action>) {
        self.side.settle(now);
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.side.next_deadline()
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.side.tick(now);
        self.carry_out(now, actions);
    }

    fn stop(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.side.stop(&mut self.peers, now, actions);
        self.peers.end_all(actions);
    }
}
