//! Where a server's events are dealt with: by its dispatcher, or by a reader
//! in the dispatcher's place.
//!
//! Waking a thread takes longer than most requests do. A reader whose messages
//! find the dispatcher waiting and nothing before them deals with them itself,
//! with all state of the dispatcher in its hands for that time:
//!
//! ```text
//!  reader: messages ── the dispatcher waits, nothing is queued ──▶ lock, deal,
//!     │                                                            answer
//!     └── otherwise ──▶ channel ──▶ dispatcher: lock, deal, answer
//! ```
//!
//! One thread at a time has the state. A reader never waits for it, and stands
//! back when the dispatcher wants it; the dispatcher waits for one batch of a
//! reader at most. Messages of one connection keep their order, since a reader
//! with a batch in the channel uses the channel.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::connection::AtOnce;
use super::now;
use super::serving::{Dispatcher, Event};
use crate::opflex::message::Incoming;
use crate::opflex::peer::ConnectionId;

/// More messages than these are left to the dispatcher, while the reader reads
/// on.
const FEW: usize = 64;

pub(super) struct Desk {
    state: Mutex<Dispatcher>,
    events: Sender<Event>,
    /// The dispatcher is about to take the state.
    wanted: AtomicBool,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

impl Desk {
    pub(super) fn new(dispatcher: Dispatcher, events: Sender<Event>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(dispatcher),
            events,
            wanted: AtomicBool::new(false),
        })
    }

    /// The dispatcher: runs until [`Event::Exit`] has come and every connection
    /// has ended. A panic, here or in a reader that has the state, ends it.
    pub(super) fn run(&self, events: &Receiver<Event>) {
        let Ok(mut state) = self.state.lock() else {
            return;
        };
        while !state.is_over() {
            let deadline = state.wait();
            drop(state);
            let event = match deadline {
                Some(deadline) => events.recv_deadline(deadline),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let event = match event {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.wanted.store(true, Ordering::Release);
            let locked = self.state.lock();
            self.wanted.store(false, Ordering::Release);
            let Ok(locked) = locked else {
                return;
            };
            state = locked;
            state.turn(event, deadline, now());
        }
    }
}

impl AtOnce for Desk {
    fn deal(&self, id: ConnectionId, messages: &mut Vec<Incoming>) -> Option<bool> {
        let others_first = self.wanted.load(Ordering::Acquire) || !self.events.is_empty();
        if others_first || messages.len() > FEW {
            return None;
        }
        let mut state = self.state.try_lock().ok()?;
        let goes_on = state.deal(id, messages, now())?;
        let waits_too_long = state.waits_too_long();
        drop(state);
        if waits_too_long {
            // A full channel has something that makes the dispatcher look.
            let _ = self.events.try_send(Event::Look);
        }
        Some(goes_on)
    }
}
