//! The dispatcher: one thread that owns all state of a server, and the table of its connections.
//!
//! ```text
//!  handshake threads ─ Admit, Started ──┐                 ┌──────── Core ────────┐
//!  readers ─ Items, Unread, Ended, … ───┤                 │ state of a protocol: │
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
//! * The [`Runner`] runs a core: it keeps the connections, gives them turns (see
//!   [`flow`](super::flow)), carries out the core's actions, and enforces time limits. It has no
//!   thread and no clock, so a simulation runs the same code step by step.
//! * [`run`] is the body of the dispatcher's thread: it receives events and passes the time in.
//! * [`events`] is the only way in. Readers use it through a [`Feed`].
//!
//! The life of a connection, from its admission to the end of its threads:
//!
//! ```text
//!  Admit ─ Core::admit ──▶ Starting ─ Started(Ok) ──▶ Running
//!                            │  │                       │ end(): by the core, by its
//!            Started(Err) ───┘  └────────▶ Ending ◀─────┘ reader's end, or by a stop
//!                 │                          │  its line and its queue are sent, for
//!                 ▼                          │  as long as `parting`; then it is aborted
//!               gone ◀─ joined ─ Finished ───┘
//! ```
//!
//! A connection is in the runner's table from its admission until its threads are joined. Limits
//! are compared with the length of that table; there is no second count.

mod connections;
pub mod events;
mod feed;
mod figures;
mod runner;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{RecvTimeoutError, Sender};
use rustix::time::{ClockId, clock_gettime};

pub use self::connections::{Admission, Threads};
pub use self::events::{Events, Queue};
pub use self::feed::Feed;
pub use self::figures::DispatcherFigures;
pub use self::runner::{Runner, Settings};
use crate::budget::BudgetFigures;
use crate::end::EndReason;
use crate::flow::{Credit, Flow};
pub use crate::flow::{Origin, RemotePause};
use crate::host::{now, wall_clock};
use crate::link::Link;
use crate::outbox::{Limits, Outbox, OutboxCounters};
use crate::socket::Duplex;
use crate::stream::{Load, Outgoing};
use crate::table::ConnectionId;

/// The capacity of the channel of events: large enough that a burst of readers does not wait,
/// and small enough that each reader has mostly one batch in it.
pub const EVENTS: usize = 256;

/// The state of a protocol's server: input and the time go in, actions come out.
///
/// Each method appends to `actions`. None blocks.
pub trait Core: Send + Sized + 'static {
    /// A decoded piece of a peer's input.
    type Item: Send + 'static;
    /// A newcomer's request for admission.
    type Request: Send + 'static;
    /// The answer to an admitted newcomer.
    type Grant: Send + 'static;
    /// The reason for a refusal.
    type Refusal: Send + 'static;

    /// The owner to which the memory of a newcomer's queue is charged, such as its certificate.
    /// All connections of one owner together may take half of the budget. Default: none.
    fn owner(request: &Self::Request) -> Option<&[u8]> {
        let _ = request;
        None
    }

    /// The number under which a newcomer is known each time that it connects, such as its UUID. While items
    /// that its former connection has caused wait, the new one is paused. Default: none.
    fn sender(request: &Self::Request) -> Option<u128> {
        let _ = request;
        None
    }

    /// The limits of a newcomer's queue. Default: `default`.
    fn limits(request: &Self::Request, default: Limits) -> Limits {
        let _ = request;
        default
    }

    /// Decides whether to admit a newcomer, whose number is `id`. There are `standing`
    /// connections already, including those that are ending, and those that have ended while items that they
    /// have caused wait.
    fn admit(
        &mut self,
        id: ConnectionId,
        request: Self::Request,
        counters: OutboxCounters,
        standing: usize,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<Self::Grant, Self::Refusal>;

    /// Called after an admission. `answered` is true if the newcomer has got the answer, and false if
    /// it has left.
    fn admitted(&mut self, id: ConnectionId, answered: bool, now: Instant, actions: &mut Vec<Action>) {
        if !answered {
            self.ended(id, EndReason::Local, now, actions);
        }
    }

    /// Handles about `most` frames of an item. Returns the number of handled frames, and the rest
    /// of the item.
    fn item(
        &mut self,
        id: ConnectionId,
        item: Self::Item,
        most: u32,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> (u32, Option<Self::Item>);

    /// Called with the length in bytes of a connection's next items.
    fn received(&mut self, id: ConnectionId, bytes: u64, now: Instant);

    /// Called every six seconds while a connection is not read, because it waits for others or for memory. So its
    /// peer gets no answers meanwhile.
    fn on_unread(&mut self, id: ConnectionId, now: Instant, actions: &mut Vec<Action>) {
        let _ = (id, now, actions);
    }

    /// Called when a connection has ended by itself. Its queue is being closed.
    fn ended(&mut self, id: ConnectionId, reason: EndReason, now: Instant, actions: &mut Vec<Action>);

    /// Called when an admitted connection is out of the table: its threads are joined, or were
    /// never started.
    fn on_removed(&mut self, id: ConnectionId) {
        let _ = id;
    }

    /// Sets the time of day, which may jump. Called before events, and before each turn.
    fn time_of_day(&mut self, wall: SystemTime) {
        let _ = wall;
    }

    /// Called with the items of a connection that ended before its turn.
    fn on_unhandled(&mut self, id: ConnectionId, items: Vec<Self::Item>);

    /// Called if the line of a connection exceeds its limit, with the `newest` loose item, which
    /// pauses no origin. Returns which such item is dropped. Called again until the line fits, unless an
    /// action ends the connection.
    fn on_line_full(
        &mut self,
        to: ConnectionId,
        newest: Load,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Drops;

    /// Called when an origin at another dispatcher is to be paused, or is to go on: see
    /// [`Origin::Remote`].
    fn on_remote_pause(&mut self, change: RemotePause, now: Instant, actions: &mut Vec<Action>) {
        let _ = (change, now, actions);
    }

    /// Called after each step, for callbacks of the application. Called again until it appends
    /// no action.
    fn settle(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let _ = (now, actions);
    }

    /// The time at which [`tick`](Self::tick) is due.
    fn next_deadline(&mut self) -> Option<Instant>;

    /// Does the work that is due at that time.
    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>);

    /// Ends every connection and admits no newcomers from now on.
    fn stop(&mut self, now: Instant, actions: &mut Vec<Action>);
}

/// An action that a core asks the runner for.
#[derive(Debug)]
pub enum Action {
    /// Send an item. If the receiver's queue has no room, the item joins the receiver's line and
    /// is charged to its origin, which is paused.
    Send {
        /// The cause of the item.
        origin: Origin,
        /// The receiver.
        to: ConnectionId,
        /// The item.
        item: Outgoing,
    },
    /// End a connection.
    End {
        /// The connection.
        id: ConnectionId,
        /// True to end at once; false to send the connection's line and queue first.
        abort: bool,
    },
    /// Pause a connection, or end a pause, as another dispatcher demands. Each pause has one end.
    Pause {
        /// The connection.
        id: ConnectionId,
        /// True to pause it, false to end that pause.
        paused: bool,
    },
    /// End all connections, as a stop by the owner does.
    Stop,
}

/// The item that a receiver without room loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drops {
    /// The newest loose item.
    Newest,
    /// The oldest loose item.
    Oldest,
}

/// A newcomer that was admitted.
#[derive(Debug)]
pub struct Admitted<G> {
    /// Its number.
    pub id: ConnectionId,
    /// Its queue.
    pub outbox: Outbox,
    /// The credit of its reader.
    pub credit: Arc<Credit>,
    /// The core's answer.
    pub grant: G,
}

/// The answer to a newcomer.
pub type Verdict<C> = Result<Admitted<<C as Core>::Grant>, <C as Core>::Refusal>;

/// A function that changes the core on the dispatcher's thread.
pub type Call<C> = dyn FnOnce(&mut C, Instant, &mut Vec<Action>) + Send;

/// A function that reads the core on the dispatcher's thread.
pub type Look<C> = dyn FnOnce(&C, &View<'_, <C as Core>::Item>) + Send;

/// The state of a runner, for a [`Look`].
#[derive(Debug)]
pub struct View<'a, I> {
    /// The time of the call.
    pub now: Instant,
    /// The flow between the connections.
    pub flow: &'a Flow<I>,
    /// Connections from their admission until their threads are joined.
    pub connections: usize,
    /// The dispatcher's figures, without those that [`Events::look`] adds.
    pub dispatcher: DispatcherFigures,
    /// The budget of frames that wait to be sent.
    pub queues: BudgetFigures,
    /// The budget of received frames.
    pub received: BudgetFigures,
}

/// An event for the dispatcher; events are the only way in.
pub enum DispatchEvent<C: Core, T = Link> {
    /// A newcomer requests admission. From then on the runner can shut its stream down.
    Admit(Box<C::Request>, Arc<dyn Duplex>, Sender<Verdict<C>>),
    /// The threads of an admitted connection run, or could not be started.
    Started(ConnectionId, std::io::Result<T>),
    /// A reader has decoded items from this number of bytes. Without both, it reports that its peer is not
    /// silent: a part of a long item has arrived, or waits for memory.
    Items(ConnectionId, Vec<C::Item>, u64),
    /// A reader has waited six seconds for credit or memory, so its peer is not silent.
    Unread(ConnectionId),
    /// A writer reports that its queue has room, as it was requested to.
    Room(ConnectionId),
    /// A reader has ended.
    Ended(ConnectionId, EndReason),
    /// The threads of a connection are about to end.
    Finished(ConnectionId),
    /// Another thread changes the core.
    Call(Box<Call<C>>),
    /// Another thread reads the core.
    Look(Box<Look<C>>),
    /// End every connection, and admit no newcomers.
    Stop,
    /// The owner is done: from now on only readers and writers send events.
    Exit,
}

impl<C: Core, T> fmt::Debug for DispatchEvent<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DispatchEvent")
    }
}

impl<C: Core> Events<DispatchEvent<C>> {
    /// Requests the admission of a newcomer and waits for the answer. `None` if the dispatcher
    /// has ended. Every request is answered, also during a stop.
    pub fn admit(&self, request: C::Request, stream: Arc<dyn Duplex>) -> Option<Verdict<C>> {
        let (reply, verdict) = crossbeam_channel::bounded(1);
        self.send(DispatchEvent::Admit(Box::new(request), stream, reply))
            .ok()?;
        self.answer(&verdict)
    }

    /// Runs `look` on the dispatcher's thread. Returns its result and the dispatcher's figures.
    /// `None` if the dispatcher has ended.
    pub fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&C, &View<'_, C::Item>) -> T + Send + 'static,
    ) -> Option<(T, DispatcherFigures)> {
        let events = self.len();
        let (reply, seen) = crossbeam_channel::bounded(1);
        let look = move |core: &C, view: &View<'_, C::Item>| {
            let dispatcher = DispatcherFigures {
                events,
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

/// True if this thread is the dispatcher of any server. A dispatcher must not wait for another
/// one, which may be waiting for it.
pub fn is_dispatcher() -> bool {
    IS_DISPATCHER.get()
}

/// Runs until [`DispatchEvent::Exit`] has come and every connection has ended.
pub fn run<C: Core, T: Threads>(mut runner: Runner<C, T>, events: &Queue<DispatchEvent<C, T>>) {
    IS_DISPATCHER.set(true);
    while !runner.is_over() {
        let due = runner.next_deadline();
        let mut first = None;
        // While a connection has input, the dispatcher does not sleep.
        if runner.is_idle() {
            match events.next(due) {
                Ok(event) => first = Some(event),
                Err(RecvTimeoutError::Timeout) => {}
                // There are no senders left, and so no connections.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        let now = now();
        runner.core_mut().time_of_day(wall_clock());
        // All events that have arrived are handled before the next turn, so that the turn goes to
        // the connection that has waited longest, not to the busiest one. Their number is bounded, so
        // that a flood of events does not delay that turn without limit.
        for _ in 0..EVENTS {
            let Some((event, sent)) = first.take().or_else(|| events.try_next()) else {
                break;
            };
            runner.waited(now.saturating_duration_since(sent));
            runner.handle(event, now);
        }
        if events.take_stop() {
            runner.handle(DispatchEvent::Stop, now);
        }
        // Read again, so that no frame of the turn leaves before its time of arrival, and no lease that has ended
        // meanwhile is used.
        runner.core_mut().time_of_day(wall_clock());
        let now = self::now();
        runner.turn(now, processor_time);
        runner.tick(now);
    }
}

/// The processor time of this thread. Turns are measured by it, so that a turn does not count as
/// longer because the system ran other threads meanwhile.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
