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
//!   (see [`flow`](super::flow)), carries out the core's actions, and watches time
//!   limits. It has no thread and no clock either, so a simulation runs the same
//!   code step by step.
//! * [`run`] is the thread: it takes events and tells the runner the time.
//! * [`events`] is the only way in. Readers use it through a [`Feed`].
//!
//! The life of a connection, from its admission to the end of its threads:
//!
//! ```text
//!  Admit ─ Core::admit ──▶ Starting ─ Started(Ok) ──▶ Running
//!                            │  │                       │ end(): by the core, by its
//!            Started(Err) ───┘  └────────▶ Ending ◀─────┘ reader's end, or by a stop
//!                 │                          │  its line and its queue are sent, for
//!                 ▼                          │  as long as `parting`; then it is cut off
//!               gone ◀─ joined ─ Finished ───┘
//! ```
//!
//! A connection is in the runner's table from its admission until its threads
//! are joined. Limits are compared with the length of that table; there is no
//! second count that could differ from it.

pub mod events;
mod feed;
mod figures;
mod life;
mod runner;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

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
pub use crate::flow::{DistantChange, Origin};
use crate::link::Link;
use crate::outbox::{Gauge, Limits, Outbox};
use crate::socket::Duplex;
use crate::stream::{Load, Outgoing};
use crate::table::ConnectionId;

/// The capacity of the channel of events. It is large enough that a burst of readers does
/// not wait, and small enough that the events are mostly one batch of each reader.
pub const EVENTS: usize = 256;

/// The state of a protocol's server: input and the time go in, actions come out.
///
/// Every call appends to `actions`. No call waits.
pub trait Core: Send + Sized + 'static {
    /// A decoded piece of a peer's input.
    type Item: Send + 'static;
    /// A newcomer's request to be admitted.
    type Request: Send + 'static;
    /// The answer to an admitted newcomer.
    type Grant: Send + 'static;
    /// The reason why a newcomer is not admitted.
    type Refusal: Send + 'static;

    /// To whom the memory of a newcomer's queue is charged, such as its certificate. All
    /// connections of one owner together may take half of what there is.
    fn owner(request: &Self::Request) -> Option<&[u8]> {
        let _ = request;
        None
    }

    /// How much may wait for a newcomer. Default: as much as for every other one.
    fn limits(request: &Self::Request, default: Limits) -> Limits {
        let _ = request;
        default
    }

    /// Decides about a newcomer, which gets the number `id` if it is admitted. There are
    /// `standing` connections already, including those that are ending.
    fn admit(
        &mut self,
        id: ConnectionId,
        request: Self::Request,
        gauge: Gauge,
        standing: usize,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<Self::Grant, Self::Refusal>;

    /// Called after an admission: the newcomer was `told`, or it is gone already.
    fn admitted(&mut self, id: ConnectionId, told: bool, now: Instant, actions: &mut Vec<Action>) {
        if !told {
            self.ended(id, EndReason::Local, now, actions);
        }
    }

    /// Deals with about `most` frames of an item, at most. Returns how many they were, and
    /// the rest of the item.
    fn item(
        &mut self,
        id: ConnectionId,
        item: Self::Item,
        most: u32,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> (u32, Option<Self::Item>);

    /// Counts the bytes of a connection's next items.
    fn received(&mut self, id: ConnectionId, bytes: u64, now: Instant);

    /// Called when a connection has ended by itself. Its way out is being closed.
    fn ended(&mut self, id: ConnectionId, reason: EndReason, now: Instant, actions: &mut Vec<Action>);

    /// Called when a connection that was admitted is out of the table: its threads are joined,
    /// or were never started.
    fn gone(&mut self, id: ConnectionId) {
        let _ = id;
    }

    /// Tells the time of day, which may jump. Called before events, and before each turn.
    fn time_of_day(&mut self, wall: SystemTime) {
        let _ = wall;
    }

    /// Called with the items of a connection that ended before its turn.
    fn left(&mut self, id: ConnectionId, items: Vec<Self::Item>);

    /// Called if more waits for a connection than it may have, with the `newest` item that
    /// nobody waits with. Returns which item is dropped. Called again for the next one, unless
    /// an action ends the connection.
    fn full(&mut self, to: ConnectionId, newest: Load, now: Instant, actions: &mut Vec<Action>) -> Drops;

    /// Called when an origin at another dispatcher has to wait, or may go on: see
    /// [`Origin::Distant`].
    fn distant(&mut self, change: DistantChange, now: Instant, actions: &mut Vec<Action>) {
        let _ = (change, now, actions);
    }

    /// Called after each step, so that an application can be told of the results. Called
    /// again until it appends no action.
    fn settle(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let _ = (now, actions);
    }

    /// When [`tick`](Self::tick) is to be called next.
    fn next_deadline(&mut self) -> Option<Instant>;

    /// Does the work that is due at that time.
    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>);

    /// Ends every connection and admits no newcomers from now on.
    fn stop(&mut self, now: Instant, actions: &mut Vec<Action>);
}

/// An action that a core wants done.
#[derive(Debug)]
pub enum Action {
    /// Send an item. If the receiver has no room, the item waits in the receiver's line, and
    /// its origin with it.
    Send {
        /// Who caused it.
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
        /// Whether it ends at once. Otherwise everything that waits for it is sent first.
        abort: bool,
    },
    /// Hold a connection back, or let it go on, for another dispatcher's sake. Each hold is let
    /// go once.
    Hold {
        /// The connection.
        id: ConnectionId,
        /// Whether it is held.
        held: bool,
    },
    /// End all connections, as a stop by the owner does.
    Stop,
}

/// What a receiver loses that has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drops {
    /// The newest item that nobody waits with.
    Newest,
    /// The oldest item that nobody waits with.
    Oldest,
}

/// A newcomer that was admitted.
#[derive(Debug)]
pub struct Admitted<G> {
    /// Its number.
    pub id: ConnectionId,
    /// Its way out.
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

/// A function that looks at the core on the dispatcher's thread and changes nothing.
pub type Look<C> = dyn FnOnce(&C, &View<'_, <C as Core>::Item>) + Send;

/// The state of a runner, for a [`Look`].
pub struct View<'a, I> {
    /// The time of the look.
    pub now: Instant,
    /// The flow between the connections.
    pub flow: &'a Flow<I>,
    /// Connections from their admission until their threads are joined.
    pub connections: usize,
    /// The dispatcher's figures, except for those that only the asking thread knows.
    pub dispatcher: DispatcherFigures,
    /// The budget of frames that wait to be sent.
    pub queues: BudgetFigures,
    /// The budget of received frames.
    pub received: BudgetFigures,
}

impl<I> fmt::Debug for View<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("connections", &self.connections)
            .field("dispatcher", &self.dispatcher)
            .finish_non_exhaustive()
    }
}

/// The only way into the dispatcher.
pub enum DispatchEvent<C: Core, T = Link> {
    /// A newcomer asks to be admitted. From then on its stream can be shut down.
    Admit(Box<C::Request>, Arc<dyn Duplex>, Sender<Verdict<C>>),
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
    /// Another thread changes the core.
    Call(Box<Call<C>>),
    /// Another thread looks at the core.
    Look(Box<Look<C>>),
    /// End every connection, and admit no newcomers.
    Stop,
    /// From now on only readers and writers send events.
    Exit,
}

impl<C: Core, T> fmt::Debug for DispatchEvent<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DispatchEvent")
    }
}

impl<C: Core> Events<DispatchEvent<C>> {
    /// Asks the dispatcher to admit a newcomer and waits for the answer. `None` if the
    /// dispatcher has ended. It answers every request, even while it stops.
    pub fn admit(&self, request: C::Request, stream: Arc<dyn Duplex>) -> Option<Verdict<C>> {
        let (reply, verdict) = crossbeam_channel::bounded(1);
        self.send(DispatchEvent::Admit(Box::new(request), stream, reply))
            .ok()?;
        self.answer(&verdict)
    }

    /// Runs `look` on the dispatcher's thread. Returns its result, and how busy the
    /// dispatcher is. `None` if the dispatcher has ended.
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

/// Whether this thread is the dispatcher of any server. A dispatcher must not wait for
/// another one, which may be waiting for it.
pub fn is_dispatcher() -> bool {
    IS_DISPATCHER.get()
}

/// Runs until [`DispatchEvent::Exit`] has come and every connection has ended.
pub fn run<C: Core, T: Threads>(mut runner: Runner<C, T>, events: &Queue<DispatchEvent<C, T>>) {
    IS_DISPATCHER.set(true);
    while !runner.is_over() {
        let due = runner.next_deadline();
        let mut first = None;
        if runner.is_idle() {
            match events.next(due) {
                Ok(event) => first = Some(event),
                Err(RecvTimeoutError::Timeout) => {}
                // There are no senders left, and so no connections.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        let now = clock();
        runner.core_mut().time_of_day(wall_clock());
        // All events that have come are handled before the next turn, so that the turn
        // goes to the connection that has waited longest, not to the busiest one.
        for _ in 0..EVENTS {
            let Some((event, sent)) = first.take().or_else(|| events.try_next()) else {
                break;
            };
            runner.waited(now.saturating_duration_since(sent));
            runner.handle(event, now);
        }
        // Again, so that no frame leaves before it has come.
        runner.core_mut().time_of_day(wall_clock());
        runner.turn(now, processor_time);
        runner.tick(now);
    }
}

#[expect(clippy::disallowed_methods, reason = "the dispatcher tells the core the time")]
fn clock() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the dispatcher tells the core the time of day"
)]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// The processor time of this thread. Turns are measured by it, so that a turn does not
/// count as longer because the system ran other threads meanwhile.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
