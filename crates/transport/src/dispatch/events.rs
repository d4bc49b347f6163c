//! The channel into the dispatcher, and how the dispatcher waits at its end.
//!
//! ```text
//!  producers ── send ──▶ bounded channel ──▶ dispatcher: next()
//!       └ asleep? ──▶ unpark ─────────────────▶ parked while it is empty
//! ```
//!
//! The channel's own wait spins and yields before it sleeps. A thread that yields counts as
//! running: the system queues it behind a reader on the same core although another core is
//! idle, which costs 7 to 14 % of the throughput on two cores. A sleeping thread is woken on an
//! idle core. So the dispatcher sleeps at once, and a sender wakes it with a system call only if
//! it sleeps.
//!
//! Each event carries the time at which it was sent, to measure how long it waited.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, SendError, Sender, TryRecvError, TrySendError};

use crate::host::{nap, now};

/// Both ends of a channel with room for `capacity` events.
pub fn channel<T>(capacity: usize) -> (Events<T>, Queue<T>) {
    let (sender, receiver) = crossbeam_channel::bounded(capacity);
    let bell = Arc::new(Bell::default());
    // Carries no message: it is disconnected when the queue is dropped.
    let (lives, life) = crossbeam_channel::bounded(0);
    let events = Events {
        channel: sender,
        bell: Ring(Arc::clone(&bell)),
        life,
    };
    (
        events,
        Queue {
            channel: receiver,
            bell,
            _lives: lives,
        },
    )
}

#[derive(Debug, Default)]
struct Bell {
    /// True while the dispatcher sleeps or is about to.
    asleep: AtomicBool,
    /// True if the dispatcher has been asked to stop.
    stops: AtomicBool,
    dispatcher: OnceLock<Thread>,
}

impl Bell {
    fn ring(&self) {
        // This fence pairs with the one in `next`. Here the event was sent before the fence, and
        // `asleep` is read after it. There `asleep` is set before the fence, and the channel is
        // read after it. So either the dispatcher finds the event, or `asleep` is seen here.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(dispatcher) = self.dispatcher.get()
        {
            dispatcher.unpark();
        }
    }
}

/// Rings when it is dropped, so that the dispatcher notices the end of the last producer.
#[derive(Clone, Debug)]
struct Ring(Arc<Bell>);

impl Drop for Ring {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// The sending end of the channel. Each clone is a further producer.
#[derive(Debug)]
pub struct Events<T> {
    // Dropped before the bell rings.
    channel: Sender<(T, Instant)>,
    bell: Ring,
    life: Receiver<Infallible>,
}

impl<T> Clone for Events<T> {
    fn clone(&self) -> Self {
        Self {
            channel: self.channel.clone(),
            bell: self.bell.clone(),
            life: self.life.clone(),
        }
    }
}

impl<T> Events<T> {
    /// Sends an event. Blocks while the channel is full.
    pub fn send(&self, event: T) -> Result<(), SendError<(T, Instant)>> {
        self.channel.send((event, now()))?;
        self.bell.0.ring();
        Ok(())
    }

    /// Waits for the answer to an event. `None` if the dispatcher ends first. An event that is in
    /// the channel at that time stays there together with the sender of its answer, so waiting
    /// for the answer alone would never end.
    pub fn answer<A>(&self, answer: &Receiver<A>) -> Option<A> {
        crossbeam_channel::select! {
            recv(answer) -> answer => answer.ok(),
            recv(self.life) -> _ => answer.try_recv().ok(),
        }
    }

    /// A channel that is disconnected once the dispatcher has ended.
    pub fn life(&self) -> &Receiver<Infallible> {
        &self.life
    }

    /// Sends an event if the channel has room. Never blocks.
    pub fn try_send(&self, event: T) -> Result<(), TrySendError<(T, Instant)>> {
        self.channel.try_send((event, now()))?;
        self.bell.0.ring();
        Ok(())
    }

    /// Asks the dispatcher to stop, also while the channel is full. Never blocks.
    pub fn stop(&self) {
        self.bell.0.stops.store(true, Ordering::SeqCst);
        self.bell.0.ring();
    }

    /// The number of events in the channel.
    pub(super) fn len(&self) -> usize {
        self.channel.len()
    }
}

/// The dispatcher's end of the channel.
#[derive(Debug)]
pub struct Queue<T> {
    // Dropped before the life ends.
    channel: Receiver<(T, Instant)>,
    bell: Arc<Bell>,
    _lives: Sender<Infallible>,
}

impl<T> Queue<T> {
    /// The oldest event and the time at which it was sent. Blocks until there is an event, until the
    /// deadline or [`Events::stop`], which are told as a timeout, or until the last producer is dropped.
    pub fn next(&self, deadline: Option<Instant>) -> Result<(T, Instant), RecvTimeoutError> {
        let mut is_announced = false;
        loop {
            match self.channel.try_recv() {
                Ok(sent) => return Ok(sent),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) if self.bell.stops.load(Ordering::SeqCst) => {
                    return Err(RecvTimeoutError::Timeout);
                }
                Err(TryRecvError::Empty) => {}
            }
            let left = deadline.map(nap);
            if left.is_some_and(|left| left.is_zero()) {
                return Err(RecvTimeoutError::Timeout);
            }
            if is_announced {
                match left {
                    Some(left) => std::thread::park_timeout(left),
                    None => std::thread::park(),
                }
            } else {
                self.bell.dispatcher.get_or_init(std::thread::current);
                self.bell.asleep.store(true, Ordering::SeqCst);
                fence(Ordering::SeqCst);
            }
            // A sender that was before this fence saw no sleeper and did not ring, so the channel is
            // read once more before the sleep.
            is_announced = !is_announced;
        }
    }

    /// The oldest event and the time at which it was sent, if there is an event.
    pub fn try_next(&self) -> Option<(T, Instant)> {
        self.channel.try_recv().ok()
    }

    /// True once after [`Events::stop`].
    pub fn take_stop(&self) -> bool {
        self.bell.stops.swap(false, Ordering::SeqCst)
    }

    /// A handle that shows whether events wait.
    pub fn watch(&self) -> Watch<T> {
        Watch(self.channel.clone())
    }
}

/// Shows whether events wait in a channel.
#[derive(Debug)]
pub struct Watch<T>(Receiver<(T, Instant)>);

impl<T> Watch<T> {
    /// True if no event waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the channel is full, so that a producer would block.
    pub fn is_full(&self) -> bool {
        self.0.is_full()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host::after;

    #[test]
    fn a_sleeping_dispatcher_gets_all_events_and_the_end_of_the_last_producer() {
        const EACH: u32 = 5000;
        let (events, queue) = channel(4);
        let producers: Vec<_> = (0..3)
            .map(|_| {
                let events = events.clone();
                crate::host::threads::spawn("producer", move || {
                    for n in 0..EACH {
                        events.send(n).unwrap();
                        let _ = events.try_send(n);
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
    fn an_event_of_try_send_wakes_a_sleeping_dispatcher() {
        let (events, queue) = channel(1);
        let bell = Arc::clone(&queue.bell);
        let dispatcher = crate::host::threads::spawn("dispatcher", move || queue.next(None)).unwrap();
        while !bell.asleep.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        events.try_send(1).unwrap();
        assert!(matches!(dispatcher.join().unwrap(), Ok((1, _))));
    }

    #[test]
    fn a_stop_needs_no_room_and_wakes_a_sleeping_dispatcher() {
        let (events, queue) = channel(1);
        events.send(1).unwrap();
        events.stop();
        assert!(matches!(queue.next(None), Ok((1, _))));
        assert_eq!(queue.next(None), Err(RecvTimeoutError::Timeout));
        assert!(queue.take_stop() && !queue.take_stop());
        let bell = Arc::clone(&queue.bell);
        let dispatcher = crate::host::threads::spawn("dispatcher", move || queue.next(None)).unwrap();
        while !bell.asleep.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        events.stop();
        assert_eq!(dispatcher.join().unwrap(), Err(RecvTimeoutError::Timeout));
    }

    #[test]
    fn a_deadline_ends_a_wait_and_what_is_there_comes_before_it() {
        let (events, queue) = channel(1);
        events.send(1).unwrap();
        let watch = queue.watch();
        assert!(!watch.is_empty() && watch.is_full());
        assert!(events.try_send(2).is_err(), "the channel is full");
        assert!(matches!(queue.next(Some(now())), Ok((1, _))));
        assert!(watch.is_empty() && !watch.is_full());
        assert_eq!(queue.next(Some(now())), Err(RecvTimeoutError::Timeout));
        let soon = after(now(), Duration::from_millis(2));
        assert_eq!(queue.next(Some(soon)), Err(RecvTimeoutError::Timeout));
        assert!(now() >= soon);
        events.send(3).unwrap();
        assert!(matches!(
            (queue.try_next(), queue.try_next()),
            (Some((3, _)), None)
        ));
    }

    #[test]
    fn each_event_has_the_time_at_which_it_was_sent() {
        let (events, queue) = channel(2);
        let begin = now();
        events.send('a').unwrap();
        let between = now();
        events.try_send('b').unwrap();
        assert_eq!(events.len(), 2);
        let (Ok(first), Some(second)) = (queue.next(None), queue.try_next()) else {
            panic!("both events have arrived");
        };
        assert!(first.0 == 'a' && (begin..=between).contains(&first.1));
        assert!(second.0 == 'b' && (between..=now()).contains(&second.1));
    }

    #[test]
    fn an_event_for_a_dispatcher_that_has_ended_is_an_error() {
        let (events, queue) = channel(1);
        drop(queue);
        assert!(events.try_send(1).is_err() && events.send(1).is_err());
    }
}
