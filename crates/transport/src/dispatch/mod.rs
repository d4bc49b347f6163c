//! The dispatcher: one thread that owns all state of a server, and the life of
//! its connections.
//!
//! ```text
//!  handshake threads ─ Admit, Started ──┐                 ┌──────── Core ────────┐
//!  readers ─ Items, Ended, Finished ────┤                 │ state of a protocol: │
//!  writers ─ Room ──────────────────────┼─▶ Events ─▶ Runner  input and the time │
//!  handles ─ Call, Look ────────────────┤     │           │ in, actions out      │
//!  owner ─ Stop, Exit ──────────────────┘     │           └──────────┬───────────┘
//!                                             │  turns               │ Action
//!                                            Flow ◀──────────────────┘
//!                                             └─▶ outboxes (never waits)
//! ```
//!
//! * A [`Core`] is a protocol's state without sockets, threads or clock. SSNTP's
//!   and OpFlex's servers are one each.
//! * The [`Runner`] runs a core: it keeps the connections, lets them take turns
//!   (see [`flow`](super::flow)), carries out what the core wants, and watches
//!   over time limits. It has no thread and no clock either, so that a simulation
//!   runs the same code step by step.
//! * [`run`] is the thread: it takes events and tells the runner the time.
//! * [`events`] is the only way in, and [`Feed`] the reader's.
//!
//! The life of a connection, from consent to the end of its threads:
//!
//! ```text
//!  Admit ─ Core::admit ──▶ Starting ─ Started(Ok) ──▶ Running
//!                            │  │                       │ end(): by the core, by its
//!            Started(Err) ───┘  └────────▶ Ending ◀─────┘ reader's end, or by a stop
//!                 │                          │  the queue is flushed, for as long
//!                 ▼                          │  as `parting`; then it is cut off
//!               gone ◀─ joined ─ Finished ───┘
//! ```
//!
//! A connection is in the runner's table from its admission until its threads
//! are joined, and the length of that table is what limits are compared with:
//! there is no second count that could differ from it.

pub mod events;
mod feed;
mod figures;
mod life;
mod runner;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender};
use rustix::time::{ClockId, clock_gettime};

pub use self::events::{Events, Queue};
pub use self::feed::Feed;
pub use self::figures::DispatcherFigures;
pub use self::life::{Admission, Threads};
pub use self::runner::{Runner, Settings};
use crate::budget::BudgetFigures;
use crate::end::EndReason;
use crate::flow::{Credit, Flow};
use crate::link::Link;
use crate::outbox::{Gauge, Outbox};
use crate::stream::outgoing::Outgoing;
use crate::table::ConnectionId;

/// Room in the channel of events: enough that a burst of readers need not
/// wait, and a batch is mostly one read.
pub const EVENTS: usize = 256;

/// The state of a protocol's server: input and the time in, actions out.
///
/// Every call appends to `actions` what is to be done. Nothing here waits.
pub trait Core: Send + Sized + 'static {
    /// What readers find.
    type Item: Send + 'static;
    /// What a newcomer asks with.
    type Request: Send + 'static;
    /// What an admitted newcomer needs to know.
    type Grant: Send + 'static;
    /// What an admitted newcomer holds until its threads are joined.
    type Place: Send + 'static;
    /// Why a newcomer is not admitted.
    type Refusal: Send + 'static;

    /// Judges a newcomer, who becomes `id` where it is admitted. So many
    /// connections are there already, those that are ending included.
    fn admit(
        &mut self,
        id: ConnectionId,
        request: Self::Request,
        gauge: Gauge,
        standing: usize,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(Self::Grant, Self::Place), Self::Refusal>;

    /// The newcomer has been told, or could not be and is gone again.
    fn admitted(&mut self, id: ConnectionId, told: bool, now: Instant, actions: &mut Vec<Action>) {
        if !told {
            self.ended(id, EndReason::Local, now, actions);
        }
    }

    /// Deals with at most about so many frames of an item. Gives back how many
    /// they were, and what is left of the item.
    fn item(
        &mut self,
        id: ConnectionId,
        item: Self::Item,
        most: u32,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> (u32, Option<Self::Item>);

    /// So many bytes have been received for what comes next from it.
    fn received(&mut self, id: ConnectionId, bytes: u64, now: Instant);

    /// A connection has come to an end by itself. Its way out is being closed.
    fn ended(&mut self, id: ConnectionId, reason: EndReason, now: Instant, actions: &mut Vec<Action>);

    /// Items of a connection that ended, which nobody will deal with.
    fn left(&mut self, id: ConnectionId, items: Vec<Self::Item>);

    /// An item does not fit into the queue of a connection, and nobody waits
    /// for it. Sent again, it would come back again. False where it is dropped,
    /// and true where an action sends it.
    fn full(&mut self, to: ConnectionId, item: Outgoing, now: Instant, actions: &mut Vec<Action>) -> bool;

    /// Something has been dealt with: a chance to tell an application of what
    /// came of it. Called until it appends no more.
    fn settle(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let _ = (now, actions);
    }

    /// When [`tick`](Self::tick) is to be called, if nothing happens before.
    fn next_deadline(&mut self) -> Option<Instant>;

    /// Does what is due.
    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>);

    /// End every connection and admit nobody any more.
    fn stop(&mut self, now: Instant, actions: &mut Vec<Action>);
}

/// What a core wants done.
#[derive(Debug)]
pub enum Action {
    /// Send this. Sends that a connection's items cause make that connection
    /// wait where the receiver has no room.
    Send { to: ConnectionId, item: Outgoing },
    /// Send this in place of the oldest items that wait.
    SendDroppingOldest { to: ConnectionId, item: Outgoing },
    /// End a connection: once what waits for it is sent, or at once.
    End { id: ConnectionId, abort: bool },
    /// End all of them, as a stop of the owner does.
    Stop,
}

/// A newcomer that was admitted.
#[derive(Debug)]
pub struct Admitted<G> {
    pub id: ConnectionId,
    pub outbox: Outbox,
    pub credit: Arc<Credit>,
    pub grant: G,
}

/// What a newcomer is told.
pub type Verdict<C> = Result<Admitted<<C as Core>::Grant>, <C as Core>::Refusal>;

/// Something to be done on the dispatcher.
pub type Call<C> = dyn FnOnce(&mut C, Instant, &mut Vec<Action>) + Send;

/// Something that looks at everything on the dispatcher, and changes nothing.
pub type Look<C> = dyn FnOnce(&C, &View<'_, <C as Core>::Item>) + Send;

/// A runner as it shows itself to a [`Look`].
pub struct View<'a, I> {
    pub now: Instant,
    pub flow: &'a Flow<I>,
    /// Connections from their admission until their threads are joined.
    pub connections: usize,
    /// But for what only the sender of the look knows.
    pub dispatcher: DispatcherFigures,
    pub queues: BudgetFigures,
    pub received: BudgetFigures,
}

/// The only way into the dispatcher.
pub enum DispatchEvent<C: Core, T = Link> {
    /// A newcomer asks to be admitted.
    Admit(Box<C::Request>, Sender<Verdict<C>>),
    /// The threads of an admitted connection run, or could not be started.
    Started(ConnectionId, std::io::Result<T>),
    /// A reader found items in so many bytes.
    Items(ConnectionId, Vec<C::Item>, u64),
    /// A queue has room again, as its writer was asked to tell.
    Room(ConnectionId),
    /// A reader has come to an end.
    Ended(ConnectionId, EndReason),
    /// The threads of a connection are about to end.
    Finished(ConnectionId),
    /// Another thread has something to be done here.
    Call(Box<Call<C>>),
    /// Another thread wants to look.
    Look(Box<Look<C>>),
    /// End every connection, admit nobody.
    Stop,
    /// Nobody will send anything more but the readers and writers.
    Exit,
}

impl<C: Core> Events<DispatchEvent<C>> {
    /// Asks the dispatcher to admit a newcomer, and waits for its verdict; none
    /// where the dispatcher is gone. It answers every request, also while it
    /// stops.
    pub fn admit(&self, request: C::Request) -> Option<Verdict<C>> {
        let (reply, verdict) = crossbeam_channel::bounded(1);
        self.send(DispatchEvent::Admit(Box::new(request), reply)).ok()?;
        self.answer(&verdict)
    }

    /// Gives back what a look at everything makes of it, with how busy the
    /// dispatcher is; none where it is gone.
    pub fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&C, &View<'_, C::Item>) -> T + Send + 'static,
    ) -> Option<(T, DispatcherFigures)> {
        let (asked, events) = (clock(), self.len());
        let (reply, seen) = crossbeam_channel::bounded(1);
        let look = move |core: &C, view: &View<'_, C::Item>| {
            let dispatcher = DispatcherFigures {
                events,
                waited: clock().saturating_duration_since(asked),
                ..view.dispatcher
            };
            let _ = reply.send((look(core, view), dispatcher));
        };
        self.send(DispatchEvent::Look(Box::new(look))).ok()?;
        self.answer(&seen)
    }
}

thread_local! {
    static IS_DISPATCHER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is a dispatcher, of whatever server: it must not wait
/// for another one, which may be waiting for it.
pub fn is_dispatcher() -> bool {
    IS_DISPATCHER.get()
}

/// Runs until [`DispatchEvent::Exit`] has come and every connection has ended.
pub fn run<C: Core, T: Threads>(mut runner: Runner<C, T>, events: &Queue<DispatchEvent<C, T>>) {
    IS_DISPATCHER.set(true);
    while !runner.is_over() {
        let due = runner.next_deadline();
        let mut event = None;
        if runner.is_idle() {
            match events.next(due) {
                Ok(first) => event = Some(first),
                Err(RecvTimeoutError::Timeout) => {}
                // Every sender is gone, and with them every connection.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        let now = clock();
        events.ask_for_sample(now);
        if let Some(event) = event {
            runner.waited(events.waited());
            runner.handle(event, now);
        }
        // What has come is put where it belongs before anybody takes a turn, so
        // that a turn is given to who waits longest, not to who shouts loudest.
        for _ in 0..EVENTS {
            let Some(event) = events.try_next() else { break };
            runner.waited(events.waited());
            runner.handle(event, now);
        }
        runner.turn(now, processor_time);
        runner.tick(now);
    }
}

#[expect(clippy::disallowed_methods, reason = "the dispatcher tells the core the time")]
fn clock() -> Instant {
    Instant::now()
}

/// How long this thread has had a processor: a turn in which the system gave it
/// to others took no longer than without that.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
