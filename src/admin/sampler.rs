//! The thread that asks the source, and what it found last.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Row, Snapshot, Source, now};
use crate::transport::{after, left, threads};

/// How old what a page shows may be, and so how often the source is asked at most.
const AGE: Duration = Duration::from_secs(1);
/// How long a page waits for the source.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a page shows, or why there is nothing.
type Found<T> = Result<Arc<T>, String>;
pub(super) type Rows = Vec<Box<dyn Row>>;

/// What the source said last.
#[derive(Debug)]
pub(super) struct Figures {
    state: Mutex<State>,
    /// Something is wanted, or found, or this was closed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    snapshot: Kept<Snapshot>,
    sessions: Kept<Rows>,
    closed: bool,
}

/// One of the source's answers.
struct Kept<T> {
    wanted: bool,
    /// Since when the source is at it.
    asked: Option<Instant>,
    /// What it said, and when.
    found: Option<(Instant, Found<T>)>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            wanted: false,
            asked: None,
            found: None,
        }
    }
}

impl<T> std::fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept")
            .field("wanted", &self.wanted)
            .finish_non_exhaustive()
    }
}

impl Figures {
    /// What the process says of itself. Waits for it, a second at most.
    pub(super) fn snapshot(&self) -> Found<Snapshot> {
        self.find(|state| &mut state.snapshot)
    }

    /// Who is connected. Waits for it, a second at most.
    pub(super) fn sessions(&self) -> Found<Rows> {
        self.find(|state| &mut state.sessions)
    }

    fn find<T>(&self, of: fn(&mut State) -> &mut Kept<T>) -> Found<T> {
        let deadline = after(now(), PATIENCE);
        let mut state = self.lock();
        loop {
            if state.closed {
                return Err("it is stopping".into());
            }
            let kept = of(&mut state);
            let now = now();
            if let Some((at, found)) = &kept.found
                && now.saturating_duration_since(*at) < AGE
            {
                return found.clone();
            }
            let Ok(left) = left(deadline) else {
                let asked = kept.asked.map_or(PATIENCE, |at| now.saturating_duration_since(at));
                return Err(format!("it has not answered for {:.1} s", asked.as_secs_f64()));
            };
            if !kept.wanted && kept.asked.is_none() {
                kept.wanted = true;
                self.changed.notify_all();
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has the source asked whenever something is wanted, until this is closed.
    fn run(&self, source: &dyn Source) {
        loop {
            let mut state = self.lock();
            while !(state.closed || state.snapshot.wanted || state.sessions.wanted) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.closed {
                return;
            }
            drop(state);
            self.ask(|state| &mut state.snapshot, || source.snapshot());
            self.ask(|state| &mut state.sessions, || source.sessions());
        }
    }

    fn ask<T>(&self, of: fn(&mut State) -> &mut Kept<T>, ask: impl FnOnce() -> Result<T, String>) {
        let mut state = self.lock();
        let kept = of(&mut state);
        if !std::mem::take(&mut kept.wanted) {
            return;
        }
        kept.asked = Some(now());
        drop(state);
        // A fault of an application's figures is no reason to show none any more.
        let found = catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|_| Err("it panicked".into()));
        let mut state = self.lock();
        let kept = of(&mut state);
        kept.asked = None;
        kept.found = Some((now(), found.map(Arc::new)));
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that asks the source.
#[derive(Debug)]
pub(super) struct Sampler {
    figures: Arc<Figures>,
    thread: JoinHandle<()>,
}

impl Sampler {
    pub(super) fn start(source: Arc<dyn Source>) -> io::Result<Self> {
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

    /// Ends every wait for figures, and the thread once the source has answered.
    pub(super) fn close(&self) {
        self.figures.lock().closed = true;
        self.figures.changed.notify_all();
    }

    /// Waits for the thread.
    pub(super) fn join(self) {
        self.close();
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, Sender, bounded};

    use super::*;

    struct Counting(Sender<()>, Receiver<()>);

    impl Source for Counting {
        fn snapshot(&self) -> Result<Snapshot, String> {
            self.0.send(()).unwrap();
            // Disconnected means that nobody holds it up.
            let _ = self.1.recv();
            Ok(Snapshot::default())
        }
    }

    #[test]
    fn whatever_is_asked_the_source_is_asked_once() {
        let (asked, questions) = bounded(1000);
        let sampler = Sampler::start(Arc::new(Counting(asked, crossbeam_channel::bounded(0).1))).unwrap();
        let began = now();
        let figures = sampler.figures();
        let threads = (0..8).map(|_| {
            let figures = Arc::clone(&figures);
            threads::spawn("t", move || (0..100).for_each(|_| drop(figures.snapshot().unwrap()))).unwrap()
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
        let sampler = Sampler::start(Arc::new(Counting(asked, hold))).unwrap();
        let why = sampler.figures().snapshot().unwrap_err();
        assert!(why.contains("has not answered for"), "{why}");
        drop(held);
        let figures = sampler.figures();
        while figures.snapshot().is_err() {}
        sampler.join();
        assert_eq!(figures.snapshot().unwrap_err(), "it is stopping");
    }
}
