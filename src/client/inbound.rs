//! The bounded channel of events to the application.
//!
//! The channel itself bounds the number of events. A ledger of the events that were put in bounds
//! their bytes, so that the application can receive from the plain channel. One thread at a time
//! puts events in: the client's thread before and after a session, the reader during it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError};

use super::event::ClientEvent;
use ssntp_transport::Limits;

#[derive(Debug)]
pub(super) struct Inbound {
    events: Sender<ClientEvent>,
    /// Disconnected when the client is closed.
    done: Receiver<Infallible>,
    capacity: usize,
    limit: u64,
    /// The bytes of each event that was put in, oldest first. Entries of events that the application
    /// has received are removed from time to time.
    ledger: VecDeque<u32>,
    bytes: u64,
}

/// The bound of the channel's capacity, because it allocates the memory for all its events at once.
const MOST_EVENTS: usize = 1 << 20;

/// A thread that waits until fewer bytes are queued polls, because the channel wakes senders only if it is full of
/// events. This is the first interval; each further one is twice as long.
const FIRST_POLL: Duration = Duration::from_millis(1);
/// The longest interval at which such a thread polls.
const LONGEST_POLL: Duration = Duration::from_millis(16);

impl Inbound {
    pub(super) fn new(limits: Limits, done: Receiver<Infallible>) -> (Self, Receiver<ClientEvent>) {
        // At least one, because `offer` puts in the last event of a closed client without waiting,
        // which a channel without capacity never accepts.
        let capacity = usize::try_from(limits.frames).unwrap_or(usize::MAX);
        let capacity = capacity.clamp(1, MOST_EVENTS);
        let (events, receiver) = crossbeam_channel::bounded(capacity);
        let inbound = Self {
            events,
            done,
            capacity,
            limit: limits.bytes,
            ledger: VecDeque::new(),
            bytes: 0,
        };
        (inbound, receiver)
    }

    /// Puts in an event of `bytes` bytes, and waits for room. Returns false if the client was closed
    /// meanwhile.
    pub(super) fn deliver(&mut self, event: ClientEvent, bytes: usize) -> bool {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if self.bytes + u64::from(bytes) > self.limit && !self.wait_for_room(bytes) {
            return false;
        }
        match self.events.try_send(event) {
            Ok(()) => {}
            Err(TrySendError::Full(event)) => {
                let sent = crossbeam_channel::select! {
                    send(self.events, event) -> sent => sent.is_ok(),
                    recv(self.done) -> _ => false,
                };
                if !sent {
                    return false;
                }
            }
            Err(TrySendError::Disconnected(_)) => return false,
        }
        self.bytes += u64::from(bytes);
        self.ledger.push_back(bytes);
        // Not for each event, because reading the channel's length touches a cache line that the
        // application writes. The factor 2 makes the cost of an event constant on average.
        if self.ledger.len() > 2 * self.capacity {
            self.forget_received();
        }
        true
    }

    /// Puts in an event if there is room.
    pub(super) fn offer(&mut self, event: ClientEvent) {
        // If there is no room, the application only finds the channel disconnected.
        let _ = self.events.try_send(event);
    }

    fn wait_for_room(&mut self, bytes: u32) -> bool {
        let mut interval = FIRST_POLL;
        loop {
            self.forget_received();
            if self.bytes == 0 || self.bytes + u64::from(bytes) <= self.limit {
                return true;
            }
            if self.done.recv_timeout(interval) == Err(crossbeam_channel::RecvTimeoutError::Disconnected) {
                return false;
            }
            interval = (interval * 2).min(LONGEST_POLL);
        }
    }

    fn forget_received(&mut self) {
        let waiting = self.events.len();
        while self.ledger.len() > waiting {
            let taken = self.ledger.pop_front().unwrap_or_default();
            self.bytes -= u64::from(taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Command, Frame};
    use ssntp_transport::{Cancel, threads};

    fn event(len: usize) -> ClientEvent {
        ClientEvent::Frame(Frame::with_payload(Command::STATS, vec![0; len]))
    }

    fn inbound(frames: u64, bytes: u64) -> (Inbound, Receiver<ClientEvent>, Cancel) {
        let cancel = Cancel::new();
        let (inbound, events) = Inbound::new(Limits { frames, bytes }, cancel.done().clone());
        (inbound, events, cancel)
    }

    #[test]
    fn events_and_bytes_are_bounded_until_the_application_takes_some() {
        for (frames, bytes) in [(4, u64::MAX), (1000, 400)] {
            let (mut inbound, events, _cancel) = inbound(frames, bytes);
            let waiting = events.clone();
            let thread = threads::spawn("t", move || {
                for _ in 0..200 {
                    assert!(inbound.deliver(event(100), 100));
                    assert!(waiting.len() <= 4);
                }
            });
            let received = events.iter().count();
            thread.unwrap().join().unwrap();
            assert_eq!(received, 200);
        }
    }

    #[test]
    fn an_unlimited_channel_has_the_largest_capacity() {
        let (mut inbound, events, _cancel) = inbound(u64::MAX, u64::MAX);
        assert!(inbound.deliver(event(100), 100));
        assert_eq!((events.len(), events.capacity()), (1, Some(MOST_EVENTS)));
    }

    #[test]
    fn one_long_event_may_wait_alone() {
        let (mut inbound, events, _cancel) = inbound(10, 100);
        assert!(inbound.deliver(event(1000), 1000));
        events.recv().unwrap();
        assert!(inbound.deliver(event(1000), 1000));
    }

    #[test]
    fn closing_ends_both_kinds_of_waiting() {
        for (frames, bytes) in [(1, u64::MAX), (1000, 100)] {
            let (mut inbound, _events, cancel) = inbound(frames, bytes);
            assert!(inbound.deliver(event(100), 100));
            let thread = threads::spawn("t", move || inbound.deliver(event(100), 100));
            cancel.cancel();
            assert!(!thread.unwrap().join().unwrap());
        }
    }
}
