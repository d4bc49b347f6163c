//! The channel into the dispatcher, and how the dispatcher waits at its end.
//!
//! ```text
//!  producers ── send ──▶ bounded channel ──▶ dispatcher: next()
//!       └ asleep? ──▶ unpark ─────────────────▶ parked while it is empty
//! ```
//!
//! The channel's own way to wait looks for a while whether something comes, and
//! gives the processor away between two looks. A thread that does that counts as
//! running: the system leaves it in line behind a reader on the same core,
//! although another core has nothing to do. One that sleeps is woken where there
//! is room. So the dispatcher sleeps at once, and whoever sends wakes it, which
//! takes a system call only where it does sleep.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendError, Sender, TryRecvError};

/// Both ends of a channel with room for `capacity` events.
pub(super) fn channel<T>(capacity: usize) -> (Events<T>, Queue<T>) {
    let (sender, receiver) = crossbeam_channel::bounded(capacity);
    let bell = Arc::new(Bell::default());
    let events = Events {
        channel: sender,
        bell: Ring(Arc::clone(&bell)),
    };
    (
        events,
        Queue {
            channel: receiver,
            bell,
        },
    )
}

/// What reading and opening a short frame takes, with some to spare.
const LINGER: Duration = Duration::from_micros(30);

#[derive(Debug, Default)]
struct Bell {
    /// The dispatcher sleeps, or is about to.
    asleep: AtomicBool,
    dispatcher: OnceLock<Thread>,
}

impl Bell {
    fn ring(&self) {
        // With the one in `next`: either that sees what was sent before this, or
        // this sees that it sleeps.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(dispatcher) = self.dispatcher.get()
        {
            dispatcher.unpark();
        }
    }
}

/// Rings when it goes, so that the dispatcher hears of the last producer's end.
#[derive(Clone, Debug)]
struct Ring(Arc<Bell>);

impl Drop for Ring {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// Where events are sent. A clone is another producer.
#[derive(Debug)]
pub(super) struct Events<T> {
    // Dropped before the bell rings.
    channel: Sender<T>,
    bell: Ring,
}

impl<T> Clone for Events<T> {
    fn clone(&self) -> Self {
        Self {
            channel: self.channel.clone(),
            bell: self.bell.clone(),
        }
    }
}

impl<T> Events<T> {
    /// Sends an event; blocks while the channel is full.
    pub(super) fn send(&self, event: T) -> Result<(), SendError<T>> {
        self.channel.send(event)?;
        self.bell.0.ring();
        Ok(())
    }

    /// Sends an event that nothing depends on, if no other waits: the
    /// dispatcher is awake otherwise.
    pub(super) fn hint(&self, event: T) {
        if self.channel.is_empty() && self.channel.try_send(event).is_ok() {
            self.bell.0.ring();
        }
    }
}

/// Where the dispatcher takes events from.
#[derive(Debug)]
pub(super) struct Queue<T> {
    channel: Receiver<T>,
    bell: Arc<Bell>,
}

impl<T> Queue<T> {
    /// The oldest event. Blocks until there is one, until the deadline, or until
    /// the last producer has gone.
    pub(super) fn next(&self, deadline: Option<Instant>) -> Result<T, RecvTimeoutError> {
        loop {
            match self.channel.try_recv() {
                Ok(event) => return Ok(event),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            let left = deadline.map(|at| at.saturating_duration_since(now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(RecvTimeoutError::Timeout);
            }
            self.bell.dispatcher.get_or_init(std::thread::current);
            self.bell.asleep.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            // What came before that was not announced; the end of the last
            // producer shows only when it is looked for.
            match self.channel.try_recv() {
                Err(TryRecvError::Empty) => match left {
                    Some(left) => std::thread::park_timeout(left),
                    None => std::thread::park(),
                },
                Ok(event) => {
                    self.bell.asleep.store(false, Ordering::SeqCst);
                    return Ok(event);
                }
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
            }
            self.bell.asleep.store(false, Ordering::SeqCst);
        }
    }

    /// Stays awake until an event comes that is about to, for at most
    /// 30 microseconds: about what going to sleep and waking would take. Lets
    /// other threads of the same core run.
    pub(super) fn linger(&self) {
        let end = now() + LINGER;
        while self.channel.is_empty() && now() < end {
            std::thread::yield_now();
        }
    }

    /// Another handle, to see whether something waits.
    pub(super) fn watch(&self) -> Watch<T> {
        Watch(self.channel.clone())
    }
}

/// Sees whether events wait.
#[derive(Debug)]
pub(super) struct Watch<T>(Receiver<T>);

impl<T> Watch<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[expect(clippy::disallowed_methods, reason = "timers of the dispatcher")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::after;

    #[test]
    fn a_sleeper_hears_every_producer_and_the_end_of_the_last() {
        const EACH: u32 = 5000;
        let (events, queue) = channel(4);
        let producers: Vec<_> = (0..3)
            .map(|_| {
                let events = events.clone();
                crate::transport::threads::spawn("producer", move || {
                    for n in 0..EACH {
                        events.send(n).unwrap();
                        events.hint(n);
                    }
                })
                .unwrap()
            })
            .collect();
        drop(events);
        let mut taken = 0;
        while queue.next(None).is_ok() {
            taken += 1;
        }
        assert!((3 * EACH..=6 * EACH).contains(&taken), "{taken}");
        assert_eq!(queue.next(None), Err(RecvTimeoutError::Disconnected));
        producers
            .into_iter()
            .for_each(|producer| producer.join().unwrap());
    }

    #[test]
    fn a_deadline_ends_a_wait_and_what_is_there_comes_before_it() {
        let (events, queue) = channel(1);
        events.send(1).unwrap();
        events.hint(2);
        assert_eq!(queue.next(Some(now())), Ok(1));
        assert!(queue.watch().is_empty(), "a hint waits for nothing");
        assert_eq!(queue.next(Some(now())), Err(RecvTimeoutError::Timeout));
        let soon = after(now(), Duration::from_millis(2));
        assert_eq!(queue.next(Some(soon)), Err(RecvTimeoutError::Timeout));
        assert!(now() >= soon);
        queue.linger();
        events.send(3).unwrap();
        queue.linger();
        assert_eq!(queue.next(None), Ok(3));
    }

    #[test]
    fn nobody_is_left_waiting_for_a_dispatcher_that_is_gone() {
        let (events, queue) = channel(1);
        drop(queue);
        events.hint(1);
        assert!(events.send(1).is_err());
    }
}
