//! Runs a core, step by step.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connections::{Connections, Threads};
use super::{Action, Admitted, Core, DispatchEvent, DispatcherFigures, Drops, EVENTS, Verdict, View};
use crate::budget::Budget;
use crate::end::EndReason;
use crate::flow::{Credit, Delivery, Flow, Input};
use crate::histogram::Histogram;
use crate::host::after;
use crate::link::Link;
use crate::outbox::{Limits, Outbox};
use crate::socket::Duplex;
use crate::table::{ConnectionId, Numbers};

/// The limits that a runner sets for its connections.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The limits of one connection's queue.
    pub queue: Limits,
    /// The memory of all queues together.
    pub budget: Budget,
    /// The memory of received items that are not handled yet, of all connections together.
    pub received: Budget,
    /// The time for which a receiver below the pace may pause others.
    pub patience: Duration,
    /// The time that an ending connection has to send its queue.
    pub parting: Duration,
    /// The time that all connections together have for that at a stop.
    pub grace: Duration,
}

/// A core with its connections and their turns.
pub struct Runner<C: Core, T: Threads = Link> {
    core: C,
    settings: Settings,
    flow: Flow<C::Item>,
    connections: Connections<T>,
    numbers: Numbers,
    actions: Vec<Action>,
    /// An empty list, for actions that follow from those that are being carried out.
    spare: Vec<Action>,
    /// True if no event waits. Only then the dispatcher may send instead of writers.
    quiet: Box<dyn Fn() -> bool + Send>,
    /// Counts the items that were handled. For each item the dispatcher itself sends at most once
    /// to a connection. The writer sends the rest, in as few writes as possible.
    step: u64,
    /// True if there is nothing else to do after the present item.
    last: bool,
    /// The time at which a stop aborts the remaining connections.
    stopping: Option<Instant>,
    exiting: bool,
    due: Option<Instant>,
    /// The times that events waited, the ages of input at its turn, and the processor time of turns.
    waits: Histogram,
    ages: Histogram,
    turns: Histogram,
}

impl<C: Core + fmt::Debug, T: Threads> fmt::Debug for Runner<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("core", &self.core)
            .field("connections", &self.connections.table.len())
            .finish_non_exhaustive()
    }
}

impl<C: Core, T: Threads> Runner<C, T> {
    /// A runner without connections. `quiet` is true if no event waits.
    pub fn new(core: C, settings: Settings, quiet: impl Fn() -> bool + Send + 'static) -> Self {
        Self {
            core,
            flow: Flow::new(settings.patience),
            connections: Connections::new(settings.parting),
            settings,
            numbers: Numbers::default(),
            actions: Vec::new(),
            spare: Vec::new(),
            quiet: Box::new(quiet),
            step: 0,
            last: false,
            stopping: None,
            exiting: false,
            due: None,
            waits: Histogram::default(),
            ages: Histogram::default(),
            turns: Histogram::default(),
        }
    }

    /// The core, for tests and simulations that step the dispatcher.
    pub fn core(&self) -> &C {
        &self.core
    }

    /// The core to be changed, for tests and simulations that step the dispatcher.
    pub fn core_mut(&mut self) -> &mut C {
        &mut self.core
    }

    /// The flow, for tests and simulations that step the dispatcher.
    pub fn flow(&self) -> &Flow<C::Item> {
        &self.flow
    }

    /// True if [`DispatchEvent::Exit`] has come and every connection has ended.
    pub fn is_over(&self) -> bool {
        self.exiting && self.connections.table.is_empty()
    }

    /// True if no connection has input for a turn.
    pub fn is_idle(&self) -> bool {
        self.flow.is_idle()
    }

    /// The time at which [`tick`](Self::tick) is due.
    pub fn next_deadline(&mut self) -> Option<Instant> {
        self.due = [
            self.core.next_deadline(),
            self.flow.next_deadline(),
            self.connections.next_deadline(),
            self.stopping,
        ]
        .into_iter()
        .flatten()
        .min();
        self.due
    }

    /// Records how long the next event has waited.
    pub fn waited(&mut self, wait: Duration) {
        self.waits.record(wait);
    }

    /// Handles an event. The items of readers wait for a turn of their connection.
    pub fn handle(&mut self, event: DispatchEvent<C, T>, now: Instant) {
        self.begin_step(self.flow.is_idle());
        match event {
            DispatchEvent::Items(id, items, bytes) => {
                // Before its turn, because also a paused connection counts as alive when it sends.
                self.core.received(id, bytes, now);
                if items.is_empty() && bytes == 0 {
                    // A report that the peer is not silent. It has cost no credit.
                    return;
                }
                let credit = Credit::memory_of::<C::Item>(items.len(), bytes);
                let late = self.flow.arrived(id, items, credit, now);
                // Without a turn there is no action to carry out.
                return self.unhandled(id, late);
            }
            DispatchEvent::Unread(id) => {
                self.core.received(id, 0, now);
                self.core.on_unread(id, now, &mut self.actions);
            }
            DispatchEvent::Room(id) => self.flow.room(id, now),
            DispatchEvent::Admit(request, stream, reply) => {
                let verdict = self.admit(*request, stream, now);
                let id = verdict.as_ref().ok().map(|admitted| admitted.id);
                // A connection that is replaced ends before the newcomer gets the answer.
                self.perform(now);
                // This does not block: the newcomer waits for it, or has dropped the channel.
                let answered = reply.send(verdict).is_ok();
                if let Some(id) = id {
                    self.core.admitted(id, answered, now, &mut self.actions);
                    if !answered {
                        // A newcomer that was cut has stopped waiting, so its connection ends before
                        // its threads are started.
                        self.never_started(id);
                    }
                }
            }
            DispatchEvent::Started(id, Ok(threads)) => {
                if self.connections.started(id, threads) {
                    self.removed(id);
                }
            }
            DispatchEvent::Started(id, Err(e)) => {
                if self.connections.is_open(id) {
                    self.core.ended(id, EndReason::Io(e), now, &mut self.actions);
                }
                self.never_started(id);
            }
            DispatchEvent::Ended(id, reason) => return self.flow.ended(id, reason),
            // Input that arrived before the end may still wait for turns. Then the connection
            // ends after those turns.
            DispatchEvent::Finished(id) => {
                if !self.flow.has_end(id) {
                    self.end_of(id, EndReason::Local, now);
                }
                if !self.connections.is_open(id) {
                    // The line cannot be sent, because the writer has ended.
                    self.flow.remove(id);
                }
                if self.connections.finished(id) {
                    self.removed(id);
                }
            }
            DispatchEvent::Call(call) => {
                call(&mut self.core, now, &mut self.actions);
            }
            DispatchEvent::Look(look) => return look(&self.core, &self.view(now)),
            DispatchEvent::Stop => self.stop(now),
            DispatchEvent::Exit => self.exiting = true,
        }
        self.perform(now);
    }

    /// Gives the next connection its turn. `clock` measures the core's work on each run of frames;
    /// the actions that follow are counted, not measured.
    pub fn turn(&mut self, now: Instant, clock: impl Fn() -> Duration) {
        let Some(id) = self.flow.next_turn() else {
            return;
        };
        if let Some(age) = self.flow.age(id, now) {
            self.ages.record(age);
        }
        let mut took = None;
        while let Some(input) = self.flow.take(id) {
            self.begin_step(!self.flow.has_input(id) && self.flow.is_idle());
            match input {
                Input::Item(item, most) => {
                    let before = clock();
                    let (done, rest) = self.core.item(id, item, most, now, &mut self.actions);
                    let dealing = clock().saturating_sub(before);
                    if let Some(rest) = rest {
                        self.last = false;
                        self.flow.put_back(id, rest);
                    }
                    let actions = self.perform(now);
                    self.flow.charge(id, done.max(1), dealing, actions);
                    took = Some(took.unwrap_or(Duration::ZERO).saturating_add(dealing));
                }
                Input::End(reason) => {
                    self.end_of(id, reason, now);
                    self.perform(now);
                }
            }
        }
        self.flow.end_turn(id);
        if let Some(took) = took {
            self.turns.record(took);
        }
    }

    fn view(&self, now: Instant) -> View<'_, C::Item> {
        View {
            now,
            flow: &self.flow,
            connections: self.connections.table.len(),
            dispatcher: DispatcherFigures {
                events: 0,
                max_events: EVENTS,
                with_input: self.flow.with_input(),
                waits: self.waits,
                ages: self.ages,
                turns: self.turns,
            },
            queues: self.settings.budget.figures(),
            received: self.settings.received.figures(),
        }
    }

    /// Does the work of the last [`next_deadline`](Self::next_deadline), if that time has come.
    pub fn tick(&mut self, now: Instant) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.begin_step(self.flow.is_idle());
        self.connections.tick(now);
        if self.stopping.is_some_and(|end| end <= now) {
            // A time that never comes, so that the connections are aborted once.
            self.stopping = Some(after(now, Duration::MAX));
            self.connections.abort_all();
        }
        // Before the core's own timers, which may send more to slow receivers.
        for slow in self.flow.handle_deadline(now) {
            self.overflow(slow, now);
        }
        self.core.tick(now, &mut self.actions);
        self.perform(now);
    }

    fn begin_step(&mut self, last: bool) {
        self.step += 1;
        self.last = last;
    }

    fn admit(&mut self, request: C::Request, stream: Arc<dyn Duplex>, now: Instant) -> Verdict<C> {
        let id = self.numbers.take();
        // All memory of one owner is counted together.
        let [budget, received] = [&self.settings.budget, &self.settings.received]
            .map(|whole| C::owner(&request).map_or_else(|| whole.clone(), |owner| whole.of(owner)));
        let sender = C::sender(&request);
        let limits = C::limits(&request, self.settings.queue);
        // Made before the verdict, because the core keeps its counters.
        let outbox = Outbox::within(limits, budget);
        // Connections that still end count, because they have threads and descriptors; and those that have
        // ended while their items wait, because these take memory.
        let standing = self.connections.table.len() + self.flow.ended_in_lines();
        let granted = self
            .core
            .admit(id, request, outbox.counters(), standing, now, &mut self.actions);
        let grant = match granted {
            Ok(granted) => granted,
            Err(refusal) => {
                // No table has the number, so it is free at once.
                self.numbers.give(id);
                return Err(refusal);
            }
        };
        let credit = Arc::new(Credit::new(received));
        self.flow
            .insert(id, sender, outbox.clone(), limits, Arc::clone(&credit), now);
        let admitted = Admitted {
            id,
            outbox,
            credit,
            grant,
        };
        self.connections.admit(&admitted, stream);
        Ok(admitted)
    }

    fn never_started(&mut self, id: ConnectionId) {
        // Without a reader there is no input.
        self.flow.remove(id);
        if self.connections.never_started(id) {
            self.removed(id);
        }
    }

    fn removed(&mut self, id: ConnectionId) {
        self.numbers.give(id);
        self.core.on_removed(id);
    }

    /// Handles the end of a connection that has ended by itself.
    fn end_of(&mut self, id: ConnectionId, reason: EndReason, now: Instant) {
        if self.connections.is_open(id) {
            let is_lost = reason.is_loss();
            self.core.ended(id, reason, now, &mut self.actions);
            self.end(id, is_lost, now);
        }
    }

    fn end(&mut self, id: ConnectionId, abort: bool, now: Instant) {
        self.connections.end(id, abort, now);
        let items = if abort {
            self.flow.remove(id)
        } else {
            self.flow.end(id, now)
        };
        self.unhandled(id, items);
        if self.connections.reap(id) {
            self.removed(id);
        }
    }

    fn unhandled(&mut self, id: ConnectionId, items: Vec<C::Item>) {
        if !items.is_empty() {
            self.core.on_unhandled(id, items);
        }
    }

    fn stop(&mut self, now: Instant) {
        if self.stopping.is_none() {
            self.stopping = Some(after(now, self.settings.grace));
            self.core.stop(now, &mut self.actions);
        }
    }

    /// Has the core drop items until the line of a receiver is within its limit. The core's actions
    /// are carried out at once, so that they precede later ones.
    fn overflow(&mut self, to: ConnectionId, now: Instant) {
        while let Some(newest) = self.flow.overflow(to) {
            let before = self.actions.len();
            let drops = self.core.on_line_full(to, newest, now, &mut self.actions);
            self.flow.drop_one(to, drops == Drops::Oldest);
            for action in self.actions.split_off(before) {
                self.carry_out(action, now);
            }
        }
    }

    /// Carries out the core's actions, and those that follow from them. Returns their number.
    fn perform(&mut self, now: Instant) -> u64 {
        let mut count = 0;
        loop {
            self.settle(now);
            if self.actions.is_empty() {
                return count;
            }
            let mut actions = std::mem::replace(&mut self.actions, std::mem::take(&mut self.spare));
            count += actions.len() as u64;
            for action in actions.drain(..) {
                self.carry_out(action, now);
            }
            // The list keeps its memory for the next time, unless it is unusually long.
            actions.shrink_to(4096);
            self.spare = actions;
        }
    }

    fn settle(&mut self, now: Instant) {
        self.core.settle(now, &mut self.actions);
        for change in self.flow.take_remote_pauses() {
            self.core.on_remote_pause(change, now, &mut self.actions);
        }
    }

    fn carry_out(&mut self, action: Action, now: Instant) {
        match action {
            Action::Send { origin, to, item } => {
                let at_once = self.may_send_at_once(to);
                let load = item.load();
                match self.flow.deliver(origin, to, item, at_once, now) {
                    Delivery::Taken => {}
                    Delivery::Overflows => self.overflow(to, now),
                    Delivery::Closed => {
                        if let Some(entry) = self.connections.table.get_mut(to) {
                            entry.outbox.count_late(load);
                        }
                    }
                }
            }
            Action::End { id, abort } => self.end(id, abort, now),
            Action::Pause { id, paused } => self.flow.pause(id, paused, now),
            Action::Stop => self.stop(now),
        }
    }

    /// True if the dispatcher itself may send the next item: it has nothing else to do, and waking
    /// a writer takes longer than sealing and writing a short item.
    fn may_send_at_once(&mut self, to: ConnectionId) -> bool {
        if !self.last || !(self.quiet)() {
            return false;
        }
        let step = self.step;
        self.connections
            .table
            .get_mut(to)
            .is_some_and(|entry| std::mem::replace(&mut entry.sent_in_step, step) != step)
    }
}
