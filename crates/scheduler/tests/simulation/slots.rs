//! The slots for handshakes, and the steps of the accept thread that give them to newcomers.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use super::network::Stream;
use super::threads::Step;
use ssntp_transport::Duplex;
use ssntp_transport::slots::{HandshakeState, LOOK, Slots, Wait};

/// The slots of a server, and the time at which its accept thread checks again for a handshake to cut.
pub(super) struct Acceptance {
    pub(super) slots: Slots<Stream>,
    next_look: Option<Instant>,
    /// The number of handshakes that were cut.
    pub(super) cut: usize,
}

impl Acceptance {
    pub(super) fn new(slots: Slots<Stream>) -> Self {
        Self {
            slots,
            next_look: None,
            cut: 0,
        }
    }
}

/// The slot of a newcomer, with the steps of the accept thread that give it one.
pub(super) struct Slot {
    acceptance: Rc<RefCell<Acceptance>>,
    number: Option<u64>,
    wait: Option<Wait>,
    pub(super) was_cut: bool,
}

impl Slot {
    /// No slot yet.
    pub(super) fn of(acceptance: &Rc<RefCell<Acceptance>>) -> Self {
        Self {
            acceptance: Rc::clone(acceptance),
            number: None,
            wait: None,
            was_cut: false,
        }
    }

    /// Takes a slot, or makes room for one. `None` once the newcomer has one.
    pub(super) fn take(&mut self, stream: &Stream, now: Instant) -> Option<Step> {
        if self.number.is_some() {
            return None;
        }
        let Acceptance {
            slots,
            next_look,
            cut,
        } = &mut *self.acceptance.borrow_mut();
        self.number = slots.take(stream.clone(), now);
        if self.number.is_some() {
            assert!(slots.running() <= slots.limit, "more handshakes than slots");
            return Some(Step::Moved);
        }
        if slots.is_closed {
            return Some(Step::Over);
        }
        if let Some(at) = next_look.filter(|at| now < *at) {
            return Some(Step::Waits(Some(at)));
        }
        *next_look = Some(now + LOOK);
        match slots.cut(now, Duplex::is_readable) {
            Some(slow) => slow.shut_down(),
            None => return Some(Step::Waits(*next_look)),
        }
        *cut += 1;
        Some(Step::Moved)
    }

    pub(super) fn state(&self) -> Option<HandshakeState> {
        self.acceptance.borrow().slots.state_of(self.number?)
    }

    /// Records the cause of the handshake's wait after a step, as its stream does in the product.
    pub(super) fn waits(&mut self, wait: Option<Wait>, now: Instant) {
        let (Some(number), slots) = (self.number, &mut self.acceptance.borrow_mut().slots) else {
            return;
        };
        if wait == self.wait {
            return;
        }
        if let Some(wait) = self.wait {
            slots.goes_on(number, wait, now);
        }
        if let Some(wait) = wait {
            slots.waits(number, wait, now);
        }
        self.wait = wait;
    }

    pub(super) fn give_back(&mut self, now: Instant) {
        self.was_cut |= self.state() == Some(HandshakeState::Cut);
        if let Some(number) = self.number {
            self.acceptance.borrow_mut().slots.give_back(number, now);
        }
    }

    /// The answer of [`Slots::heard`] or [`Slots::admitted`].
    pub(super) fn advance(&self, to: impl FnOnce(&mut Slots<Stream>, u64) -> bool) -> bool {
        let number = self.number;
        number.is_some_and(|number| to(&mut self.acceptance.borrow_mut().slots, number))
    }
}
