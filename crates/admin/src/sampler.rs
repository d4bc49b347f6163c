//! A thread that calls a function of the application (the *source*), and the last result of that
//! function, which all pages share.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{after, guard, left, locked, locked_again, now};

/// The time for which a page waits for the source.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time after which no page waits for the present call of the source, because all pages that wait
/// could use up the connections.
const HANGS: Duration = Duration::from_secs(2);

/// A result of the source, or the reason why there is none.
pub type Sample<T> = Result<Arc<T>, String>;

/// The last result of the source.
#[derive(Debug)]
pub struct Sampled<T> {
    /// The highest age of a result. The source is called at most once in this time.
    max_age: Duration,
    state: Mutex<State<T>>,
    /// Notified when a page wants a sample, when the source has returned, and on close.
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// A page waits for a sample, and the source has not been called for it yet.
    wanted: bool,
    /// The time at which the present call of the source began.
    call_began: Option<Instant>,
    /// The last result of the source, and the time at which the source returned it.
    last_result: Option<(Instant, Sample<T>)>,
    closed: bool,
}

impl<T> Sampled<T> {
    /// Returns a sample that is not older than the maximum age of the sampler. Waits for the source
    /// for at most a second, and does not wait at all if the source has been working on its present
    /// answer for two seconds. The error is the reason why there is no sample.
    pub fn sample(&self) -> Sample<T> {
        let began = now();
        let mut state = locked(&self.state);
        let patience = after(began, PATIENCE);
        let deadline = state
            .call_began
            .map_or(patience, |at| patience.min(after(at, HANGS)));
        loop {
            if state.closed {
                return Err("the server of these pages is stopping".into());
            }
            let now = now();
            // An error is kept as long as a sample, so that a source that fails is not called more
            // often than one that works. A result from after the beginning of this call is always good.
            if let Some((at, result)) = &state.last_result
                && (*at >= began || now.saturating_duration_since(*at) < self.max_age)
            {
                return result.clone();
            }
            let Ok(left) = left(deadline) else {
                // The call may have begun long before this request, so the age of the call is
                // reported.
                let asked = state
                    .call_began
                    .map_or(PATIENCE, |at| now.saturating_duration_since(at));
                return Err(format!(
                    "the application has not answered for {:.1} s",
                    asked.as_secs_f64()
                ));
            };
            // One call serves all pages: a request that arrives during a call waits for its result.
            if !state.wanted && state.call_began.is_none() {
                state.wanted = true;
                self.changed.notify_all();
            }
            let waited = self.changed.wait_timeout(state, left);
            state = locked_again(waited).0;
        }
    }

    /// Calls the source whenever a sample is wanted, until this is closed.
    fn run(&self, source: impl Fn() -> Result<T, String>) {
        let mut state = locked(&self.state);
        loop {
            if state.closed {
                return;
            }
            if !std::mem::take(&mut state.wanted) {
                state = locked_again(self.changed.wait(state));
                continue;
            }
            // The source is called without the lock, so that pages can time out meanwhile.
            state.call_began = Some(now());
            drop(state);
            // A panic in the application's function must not end this thread: the next
            // call may succeed.
            let result = guard(&source);
            let result = result
                .unwrap_or_else(|_| Err("the application's function for these pages panicked".into()))
                .map(Arc::new);
            state = locked(&self.state);
            state.call_began = None;
            // The old sample may be large, so it is dropped without the lock.
            let before = state.last_result.replace((now(), result));
            self.changed.notify_all();
            drop(state);
            drop(before);
            state = locked(&self.state);
        }
    }
}

/// The thread that calls the source. Dropping it waits for a call of the source that is under
/// way.
#[derive(Debug)]
pub struct Sampler<T> {
    sampled: Arc<Sampled<T>>,
    _thread: Joined,
}

impl<T: Send + Sync + 'static> Sampler<T> {
    /// Starts the thread. `source` is called at most once in `max_age`, and only if a result is
    /// requested.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        name: &'static str,
        max_age: Duration,
        source: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let state = State {
            wanted: false,
            call_began: None,
            last_result: None,
            closed: false,
        };
        let sampled = Arc::new(Sampled {
            max_age,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let of_thread = Arc::clone(&sampled);
        Ok(Self {
            sampled,
            _thread: threads::joined(name, move || of_thread.run(source))?,
        })
    }
}

impl<T> Sampler<T> {
    /// The results.
    pub fn sampled(&self) -> Arc<Sampled<T>> {
        Arc::clone(&self.sampled)
    }

    /// Ends all waits for a sample at once. The thread ends as soon as the source has
    /// returned.
    pub fn close(&self) {
        locked(&self.sampled.state).closed = true;
        self.sampled.changed.notify_all();
    }
}

impl<T> Drop for Sampler<T> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, Sender, bounded};

    use super::*;

    const MAX_AGE: Duration = Duration::from_secs(1);

    /// Makes a sampler whose source sends a message to `asked` for each call, and returns once
    /// `hold` is closed.
    fn counting(asked: Sender<()>, hold: Receiver<()>) -> Sampler<()> {
        let source = move || {
            asked.send(()).unwrap();
            let _ = hold.recv();
            Ok(())
        };
        Sampler::start("t", MAX_AGE, source).unwrap()
    }

    #[test]
    fn many_requests_cause_one_call_of_the_source() {
        let (asked, questions) = bounded(1000);
        let sampler = counting(asked, bounded(0).1);
        let began = now();
        let figures = sampler.sampled();
        let threads = (0..8).map(|_| {
            let figures = Arc::clone(&figures);
            threads::spawn("t", move || {
                (0..100).for_each(|_| drop(figures.sample().unwrap()))
            })
            .unwrap()
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // The source is called once more for each second that a slow host takes.
        let most = 1 + ssntp_transport::elapsed(began).as_secs();
        assert!(questions.len() as u64 <= most, "{}", questions.len());
        drop(sampler);
    }

    #[test]
    fn a_source_that_hangs_delays_a_page_by_a_second() {
        let (asked, _questions) = bounded(10);
        let (held, hold) = bounded(0);
        let sampler = counting(asked, hold);
        let error = sampler.sampled().sample().unwrap_err();
        assert!(error.contains("has not answered for"), "{error}");
        // Only the first of further pages waits, so a thousand of them take no thousand seconds.
        let (figures, (done, is_done)) = (sampler.sampled(), bounded(1));
        let pages = threads::spawn("t", move || {
            let late = (0..1000).filter(|_| figures.sample().is_err());
            done.send(late.count()).unwrap();
        });
        let late = is_done.recv_timeout(Duration::from_secs(120));
        drop(held);
        assert_eq!(late, Ok(1000));
        pages.unwrap().join().unwrap();
        let figures = sampler.sampled();
        while figures.sample().is_err() {}
        drop(sampler);
        assert_eq!(
            figures.sample().unwrap_err(),
            "the server of these pages is stopping"
        );
    }
}
