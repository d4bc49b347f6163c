//! Runs a core, step by step.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::life::{Lives, Threads};
use super::{Action, Admitted, Core, DispatchEvent, DispatcherFigures, EVENTS, Verdict, View};
use crate::budget::Budget;
use crate::end::EndReason;
use crate::flow::{Credit, Delivery, Flow, Input};
use crate::histogram::Histogram;
use crate::host::deadline::after;
use crate::link::Link;
use crate::outbox::{Limits, Outbox};
use crate::stream::outgoing::Outgoing;
use crate::table::{ConnectionId, Numbers};

/// How a runner treats its connections.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How much may wait for one connection.
    pub queue: Limits,
    /// How much all queues may take together.
    pub budget: Budget,
    /// How much may be received and not dealt with, of all connections
    /// together.
    pub received: Budget,
    /// How long others wait for a receiver that does not keep the pace.
    pub patience: Duration,
    /// How long a connection that ends may take to send what waits.
    pub parting: Duration,
    /// The same at a stop.
    pub grace: Duration,
}

/// A core with its connections, and whose turn it is.
pub struct Runner<C: Core, T: Threads = Link> {
    core: C,
    settings: Settings,
    flow: Flow<C::Item>,
    lives: Lives<T, C::Place>,
    numbers: Numbers,
    actions: Vec<Action>,
    /// Whether no event waits: then the dispatcher may do what writers would.
    quiet: Box<dyn Fn() -> bool + Send>,
    /// Counts what is dealt with, item by item: a connection is sent to past
    /// its writer once for each. What a handler sends beyond that is for the
    /// writer, in as few writes as it can.
    step: u64,
    /// Nothing else is to be done after the present item.
    last: bool,
    /// When a stop cuts off who is left.
    stopping: Option<Instant>,
    exiting: bool,
    due: Option<Instant>,
    /// How long events waited, as far as that was measured, and how long turns
    /// took.
    waits: Histogram,
    turns: Histogram,
}

impl<C: Core + fmt::Debug, T: Threads> fmt::Debug for Runner<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("core", &self.core)
            .field("connections", &self.lives.len())
            .finish_non_exhaustive()
    }
}

impl<C: Core, T: Threads> Runner<C, T> {
    pub fn new(core: C, settings: Settings, quiet: impl Fn() -> bool + Send + 'static) -> Self {
        Self {
            core,
            flow: Flow::new(settings.budget.clone(), settings.patience),
            lives: Lives::new(settings.parting),
            settings,
            numbers: Numbers::default(),
            actions: Vec::new(),
            quiet: Box::new(quiet),
            step: 0,
            last: false,
            stopping: None,
            exiting: false,
            due: None,
            waits: Histogram::default(),
            turns: Histogram::default(),
        }
    }

    /// For tests and simulations that step the dispatcher.
    pub fn core(&self) -> &C {
        &self.core
    }

    /// For tests and simulations that step the dispatcher.
    pub fn core_mut(&mut self) -> &mut C {
        &mut self.core
    }

    /// For tests and simulations that step the dispatcher.
    pub fn flow(&self) -> &Flow<C::Item> {
        &self.flow
    }

    /// For tests and simulations that step the dispatcher.
    pub fn standing(&self) -> usize {
        self.lives.len()
    }

    /// Whether [`DispatchEvent::Exit`] has come and every connection has ended.
    pub fn is_over(&self) -> bool {
        self.exiting && self.lives.is_empty()
    }

    /// Whether nobody has input to be dealt with.
    pub fn is_idle(&self) -> bool {
        self.flow.is_idle()
    }

    /// When [`tick`](Self::tick) is to be called next.
    pub fn next_deadline(&mut self) -> Option<Instant> {
        self.due = [
            self.core.next_deadline(),
            self.flow.next_deadline(),
            self.lives.next_deadline(),
            self.stopping,
        ]
        .into_iter()
        .flatten()
        .min();
        self.due
    }

    /// The event that comes next has waited so long, as far as that was measured.
    pub fn waited(&mut self, wait: Option<Duration>) {
        if let Some(wait) = wait {
            self.waits.record(wait);
        }
    }

    /// Puts an event where it belongs; what readers found waits for its turn.
    pub fn handle(&mut self, event: DispatchEvent<C, T>, now: Instant) {
        self.begin_step(self.flow.is_idle());
        match event {
            DispatchEvent::Items(id, items, bytes) => {
                self.core.received(id, bytes, now);
                let credit = Credit::memory_of::<C::Item>(items.len(), bytes);
                self.flow.arrived(id, items, credit);
                return;
            }
            DispatchEvent::Room(id) => {
                let full = self.flow.room(id);
                self.overflow(id, full, now);
            }
            DispatchEvent::Admit(request, reply) => {
                let verdict = self.admit(*request, now);
                let id = verdict.as_ref().ok().map(|admitted| admitted.id);
                // Who is replaced leaves before the newcomer is told.
                self.perform(None, now);
                let told = reply.send(verdict).is_ok();
                if let Some(id) = id {
                    self.core.admitted(id, told, now, &mut self.actions);
                    if !told {
                        // A newcomer that was cut has stopped waiting: its
                        // connection ends before it begins.
                        self.never_started(id);
                    }
                }
            }
            DispatchEvent::Started(id, Ok(threads)) => {
                if self.lives.started(id, threads) {
                    self.numbers.give(id);
                }
            }
            DispatchEvent::Started(id, Err(e)) => {
                if self.lives.is_open(id) {
                    self.core.ended(id, EndReason::Io(e), now, &mut self.actions);
                }
                self.never_started(id);
            }
            DispatchEvent::Ended(id, reason) => {
                if self.lives.is_open(id) {
                    self.flow.ended(id, reason);
                }
                return;
            }
            // What the peer sent before its end may still wait for turns; then
            // the connection goes when they have come to that end.
            DispatchEvent::Finished(id) => {
                if !self.flow.has_end(id) {
                    self.end_of(id, EndReason::Local, now);
                }
                if self.lives.finished(id) {
                    self.numbers.give(id);
                }
            }
            DispatchEvent::Call(call) => {
                call(&mut self.core, now, &mut self.actions);
            }
            DispatchEvent::Look(look) => return look(&self.core, &self.view(now)),
            DispatchEvent::Stop => self.stop(now),
            DispatchEvent::Exit => self.exiting = true,
        }
        self.perform(None, now);
    }

    /// Lets the next connection take its turn. `clock` measures what the core
    /// makes of the frames, in whatever time counts. What is then done about them is not counted: it is
    /// done once for an item, however many frames that has, so shorter turns
    /// would only have it done more often.
    pub fn turn(&mut self, now: Instant, clock: impl Fn() -> Duration) {
        let Some((id, most)) = self.flow.next_turn() else {
            return;
        };
        let (mut frames, mut took) = (0, Duration::ZERO);
        while frames < most {
            let Some(input) = self.flow.take(id) else { break };
            self.begin_step(!self.flow.has_input(id) && self.flow.is_idle());
            match input {
                Input::Item(item) => {
                    let began = clock();
                    let (done, rest) = self.core.item(id, item, most - frames, now, &mut self.actions);
                    took += clock().saturating_sub(began);
                    frames = frames.saturating_add(done.max(1));
                    if let Some(rest) = rest {
                        self.last = false;
                        self.flow.put_back(id, rest);
                    }
                    self.perform(Some(id), now);
                }
                Input::End(reason) => {
                    self.end_of(id, reason, now);
                    self.perform(None, now);
                }
            }
        }
        self.flow.end_turn(id, frames, took);
        if frames > 0 {
            self.turns.record(took);
        }
    }

    fn view(&self, now: Instant) -> View<'_, C::Item> {
        View {
            now,
            flow: &self.flow,
            connections: self.lives.len(),
            dispatcher: DispatcherFigures {
                events: 0,
                max_events: EVENTS,
                with_input: self.flow.with_input(),
                waits: self.waits,
                waited: Duration::ZERO,
                turns: self.turns,
            },
            queues: self.settings.budget.figures(),
            received: self.settings.received.figures(),
        }
    }

    /// Does what was due when [`next_deadline`](Self::next_deadline) was asked
    /// for, if its time has come.
    pub fn tick(&mut self, now: Instant) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.begin_step(self.flow.is_idle());
        self.lives.tick(now);
        if self.stopping.is_some_and(|end| end <= now) {
            self.stopping = Some(after(now, Duration::MAX));
            self.lives.abort_all();
        }
        for (to, full) in self.flow.tick(now) {
            self.overflow(to, full, now);
        }
        self.core.tick(now, &mut self.actions);
        self.perform(None, now);
    }

    fn begin_step(&mut self, last: bool) {
        self.step += 1;
        self.last = last;
    }

    fn admit(&mut self, request: C::Request, now: Instant) -> Verdict<C> {
        let id = self.numbers.take();
        let outbox = Outbox::within(self.settings.queue, self.settings.budget.clone());
        let standing = self.lives.len();
        let granted = self
            .core
            .admit(id, request, outbox.gauge(), standing, now, &mut self.actions);
        let (grant, place) = match granted {
            Ok(granted) => granted,
            Err(refusal) => {
                self.numbers.give(id);
                return Err(refusal);
            }
        };
        let credit = Arc::new(Credit::new(self.settings.received.clone()));
        self.lives.admit(id, outbox.clone(), place);
        self.flow
            .insert(id, outbox.clone(), self.settings.queue.bytes, Arc::clone(&credit));
        Ok(Admitted {
            id,
            outbox,
            credit,
            grant,
        })
    }

    fn never_started(&mut self, id: ConnectionId) {
        self.leave(id);
        if self.lives.never_started(id) {
            self.numbers.give(id);
        }
    }

    /// A connection has come to its end by itself.
    fn end_of(&mut self, id: ConnectionId, reason: EndReason, now: Instant) {
        if self.lives.is_open(id) {
            self.core.ended(id, reason, now, &mut self.actions);
            self.end(id, false, now);
        }
    }

    fn end(&mut self, id: ConnectionId, abort: bool, now: Instant) {
        if self.lives.end(id, abort, now) {
            self.leave(id);
            if self.lives.reap(id) {
                self.numbers.give(id);
            }
        }
    }

    /// A connection takes part no more.
    fn leave(&mut self, id: ConnectionId) {
        let items = self.flow.remove(id);
        if !items.is_empty() {
            self.core.left(id, items);
        }
    }

    fn stop(&mut self, now: Instant) {
        if self.stopping.is_none() {
            self.stopping = Some(after(now, self.settings.grace));
            self.core.stop(now, &mut self.actions);
        }
    }

    fn overflow(&mut self, to: ConnectionId, full: Vec<Outgoing>, now: Instant) {
        for item in full {
            self.full(to, item, now);
            self.perform(None, now);
        }
    }

    /// Does what the core wants done, and what comes of that.
    fn perform(&mut self, sender: Option<ConnectionId>, now: Instant) {
        self.core.settle(now, &mut self.actions);
        let mut actions = std::mem::take(&mut self.actions);
        while !actions.is_empty() {
            for action in actions.drain(..) {
                self.carry_out(action, sender, now);
            }
            self.core.settle(now, &mut self.actions);
            std::mem::swap(&mut actions, &mut self.actions);
        }
        // The list keeps its memory for the next time, unless it was a flood.
        if actions.capacity() <= 4096 {
            self.actions = actions;
        }
    }

    /// An item finds no room and nobody waits for it: the core says what is to
    /// be done. That is done at once: what is sent next may find room, and is
    /// not to overtake an item that goes in place of older ones.
    fn full(&mut self, to: ConnectionId, item: Outgoing, now: Instant) {
        let (load, before) = (item.load(), self.actions.len());
        let is_sent = self.core.full(to, item, now, &mut self.actions);
        if !is_sent && let Some(life) = self.lives.get_mut(to) {
            life.outbox.count_refused(load);
        }
        for answer in self.actions.split_off(before) {
            self.carry_out(answer, None, now);
        }
    }

    fn carry_out(&mut self, action: Action, sender: Option<ConnectionId>, now: Instant) {
        match action {
            Action::Send { to, item } => {
                let at_once = self.may_send_at_once(to);
                let load = item.load();
                match self.flow.deliver(sender, to, item, at_once, now) {
                    Delivery::Taken => {}
                    Delivery::Gone => {
                        if let Some(life) = self.lives.get_mut(to) {
                            life.outbox.count_late(load);
                        }
                    }
                    Delivery::Full(item) => self.full(to, item, now),
                }
            }
            Action::SendDroppingOldest { to, item } => {
                if let Some(life) = self.lives.get_mut(to) {
                    life.outbox.push_dropping_oldest(item);
                }
            }
            Action::End { id, abort } => self.end(id, abort, now),
            Action::Stop => self.stop(now),
        }
    }

    /// Waking a writer takes longer than sealing and writing a short item, so
    /// the dispatcher does that itself while it has nothing else to do.
    fn may_send_at_once(&mut self, to: ConnectionId) -> bool {
        if !self.last || !(self.quiet)() {
            return false;
        }
        let step = self.step;
        self.lives
            .get_mut(to)
            .is_some_and(|life| std::mem::replace(&mut life.sent_in_step, step) != step)
    }
}
