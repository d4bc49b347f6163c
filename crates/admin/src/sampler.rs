//! A thread that calls the application's function for a [`Snapshot`] of its figures (the
//! *source*), and the last result of that function, which all pages share.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Snapshot, now};
use ssntp_transport::{after, left, threads};

/// How old the figures of a page may be. So the source is called at most once in this time.
pub(super) const MAX_AGE: Duration = Duration::from_secs(1);
/// How long a page waits for the source.
const PATIENCE: Duration = Duration::from_secs(1);

/// The function of the application that makes a snapshot.
pub(super) type Source = dyn Fn() -> Result<Snapshot, String> + Send + Sync;
/// A result of the source, or why there is none, for people.
type Sample = Result<Arc<Snapshot>, String>;

/// The last result of the source.
#[derive(Debug)]
pub(super) struct Figures {
    state: Mutex<State>,
    /// Notified when a page wants a snapshot, when the source has returned, and on close.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// A page waits for a snapshot, and the source has not been called for it yet.
    wanted: bool,
    /// When the current call of the source began. None if there is none.
    asked: Option<Instant>,
    /// The last result of the source, and when the source returned it.
    found: Option<(Instant, Sample)>,
    closed: bool,
}

impl Figures {
    /// Returns a snapshot that is at most [`MAX_AGE`] old. Waits for the source for at most
    /// [`PATIENCE`]. The error says why there is no snapshot.
    pub(super) fn snapshot(&self) -> Sample {
        let deadline = after(now(), PATIENCE);
        let mut state = self.lock();
        loop {
            if state.closed {
                return Err("the server of these pages is stopping".into());
            }
            let now = now();
            // An error also counts for a second, so that a source that fails is not called more
            // often than one that works.
            if let Some((at, found)) = &state.found
                && now.saturating_duration_since(*at) < MAX_AGE
            {
                return found.clone();
            }
            let Ok(left) = left(deadline) else {
                // The call may have begun long before this page came, and the longer time tells the
                // reader more.
                let asked = state
                    .asked
                    .map_or(PATIENCE, |at| now.saturating_duration_since(at));
                return Err(format!(
                    "the application has not answered for {:.1} s",
                    asked.as_secs_f64()
                ));
            };
            // One call serves all pages: a page that comes during a call waits for the result of
            // that call.
            if !state.wanted && state.asked.is_none() {
                state.wanted = true;
                self.changed.notify_all();
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Calls the source whenever a snapshot is wanted, until this is closed.
    fn run(&self, source: &Source) {
        let mut state = self.lock();
        loop {
            if state.closed {
                return;
            }
            if !std::mem::take(&mut state.wanted) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.asked = Some(now());
            drop(state);
            // A panic in the application's function must not end this thread: the next
            // call may succeed.
            let found = catch_unwind(AssertUnwindSafe(source));
            let found = found
                .unwrap_or_else(|_| Err("the application's function for these pages panicked".into()))
                .map(Arc::new);
            state = self.lock();
            state.asked = None;
            // The old snapshot may be large, so it is dropped without the lock.
            let before = state.found.replace((now(), found));
            self.changed.notify_all();
            drop(state);
            drop(before);
            state = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that calls the source.
#[derive(Debug)]
pub(super) struct Sampler {
    figures: Arc<Figures>,
    thread: JoinHandle<()>,
}

impl Sampler {
    pub(super) fn start(source: Box<Source>) -> io::Result<Self> {
        let figures = Arc::new(Figures {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let of_thread = Arc::clone(&figures);
        let thread = threads::spawn("ssntp-figures", move || of_thread.run(&*source))?;
        Ok(Self { figures, thread })
    }

    pub(super) fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.figures)
    }

    /// Ends all waits for a snapshot at once. The thread ends as soon as the source has
    /// returned.
    pub(super) fn close(&self) {
        self.figures.lock().closed = true;
        self.figures.changed.notify_all();
    }

    /// Closes this and waits until the thread has ended.
    pub(super) fn join(self) {
        self.close();
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, Sender, bounded};

    use super::*;

    /// Makes a sampler whose source sends a message to `asked` for each call, and returns once
    /// `hold` is closed.
    fn counting(asked: Sender<()>, hold: Receiver<()>) -> Sampler {
        let source = move || {
            asked.send(()).unwrap();
            let _ = hold.recv();
            Ok(Snapshot::default())
        };
        Sampler::start(Box::new(source)).unwrap()
    }

    #[test]
    fn whatever_is_asked_the_source_is_asked_once() {
        let (asked, questions) = bounded(1000);
        let sampler = counting(asked, bounded(0).1);
        let began = now();
        let figures = sampler.figures();
        let threads = (0..8).map(|_| {
            let figures = Arc::clone(&figures);
            threads::spawn("t", move || {
                (0..100).for_each(|_| drop(figures.snapshot().unwrap()))
            })
            .unwrap()
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // One more for each second that this host took.
        let most = 1 + began.elapsed().as_secs();
        assert!(questions.len() as u64 <= most, "{}", questions.len());
        sampler.join();
    }

    #[test]
    fn a_source_that_does_not_answer_holds_a_page_up_for_a_second() {
        let (asked, _questions) = bounded(10);
        let (held, hold) = bounded(0);
        let sampler = counting(asked, hold);
        let why = sampler.figures().snapshot().unwrap_err();
        assert!(why.contains("has not answered for"), "{why}");
        drop(held);
        let figures = sampler.figures();
        while figures.snapshot().is_err() {}
        sampler.join();
        assert_eq!(
            figures.snapshot().unwrap_err(),
            "the server of these pages is stopping"
        );
    }
}
