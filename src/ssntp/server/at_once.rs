//! When the dispatcher sends past idle writers.
//!
//! Waking a writer takes longer than sealing and writing a short frame, so the
//! dispatcher does that itself while it has nothing else to do: no event waits,
//! and the item that it deals with is the last of its event. As soon as there is
//! more, what is to be sent is left to the writers, which run beside it. A
//! session is written to once for each item: what a handler sends beyond that
//! is for its writer, in as few writes as it can.

use super::dispatcher::Event;
use super::events::Watch;

pub(super) struct AtOnce {
    events: Watch<Event>,
    step: Step,
    more: bool,
}

/// Names what the dispatcher deals with at a time; never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step(u64);

impl AtOnce {
    pub(super) fn new(events: Watch<Event>) -> Self {
        Self {
            events,
            step: Step(0),
            more: false,
        }
    }

    /// The dispatcher turns to something else; `more` of the same event follows.
    pub(super) fn begin(&mut self, more: bool) {
        self.step.0 += 1;
        self.more = more;
    }

    /// The step of which a session may be written to now that was written to
    /// in step `last` before.
    pub(super) fn step(&self, last: Step) -> Option<Step> {
        (!self.more && last != self.step && self.events.is_empty()).then_some(self.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_item_and_only_while_nothing_waits() {
        let (events, queue) = super::super::events::channel(1);
        let mut at_once = AtOnce::new(queue.watch());
        at_once.begin(true);
        assert_eq!(at_once.step(Step::default()), None, "more follows");
        at_once.begin(false);
        let step = at_once.step(Step::default());
        assert!(step.is_some());
        assert_eq!(at_once.step(step.unwrap()), None, "once a step");
        at_once.begin(false);
        assert!(at_once.step(step.unwrap()).is_some());
        events.send(Event::Exit).unwrap();
        assert_eq!(at_once.step(Step::default()), None, "an event waits");
    }
}
