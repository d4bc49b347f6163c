//! The threads that do jobs which can block: launching, stopping, writing to disk,
//! measuring.
//!
//! ```text
//!                                              ┌▶ crew prompt ──┐
//!  agent thread ── Job ─▶ one queue an instance ┼▶ crew launch ──┼─ Done ─▶ agent thread
//!                                              ├▶ crew remove ──┤
//!                                              └▶ crew measure ─┘
//! ```
//!
//! The agent's thread never waits for a worker. Jobs of one instance are done
//! in their order, by one worker at a time; those of several side by side.
//!
//! No instance waits for the slow disk of another one. Each kind of job has a crew of its
//! own, so the job that ends an instance never waits for an image to be copied. Within a
//! crew, a job that has taken [`SLOW`] gives up its place, and a further thread begins the
//! next one.
//!
//! | crew | its jobs | places | threads at most | when all of them are at slow jobs |
//! |---|---|---|---|---|
//! | prompt | ask, kill, watch, write records | 4 | 16 | the others wait |
//! | launch | launch, copy images, make and attach volumes | 4 | 64 | STARTs are `pending`, until their limit |
//! | remove | delete directories and volumes | 2 | 16 | the others wait, `stopping` |
//! | measure | measure the node | 1 | 1 | STATS go out with the last figures |
//!
//! The queues have no bound of their own: the state machine gives a job only when an
//! instance changes, and it bounds the number of instances.
//!
//! | file | holds |
//! |---|---|
//! | `jobs` | the jobs themselves |

mod jobs;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::warn;
use uuid::Uuid;

pub(super) use self::jobs::measure;
use super::control::{Input, Job};
use super::driver::{Cancel, EndSink};
use super::figures::CrewFigures;
use super::policy::Policy;
use super::store::Store;
use ssntp_transport::threads;

/// How long a job may take before it counts as slow, and holds no place any more.
/// Launching a process takes some 20 ms; only images and disks take longer.
const SLOW: Duration = Duration::from_secs(1);
/// How long the workers may take for the remaining jobs when the agent ends. With the time for
/// the last frames (300 ms) and for the last read of a log (500 ms), it makes the two seconds
/// that [`Agent`](super::Agent) promises.
const LAST_JOBS: Duration = Duration::from_millis(1200);

/// The queue of a job. Jobs with the same key are done one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Instance(Uuid),
    Measurement,
    Node,
}

impl Key {
    fn of(job: &Job) -> Self {
        match job {
            Job::Measure(..) => Self::Measurement,
            _ => job.instance().map_or(Self::Node, Self::Instance),
        }
    }
}

/// The threads that do a job: the module has a table of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crew {
    Prompt,
    Launch,
    Remove,
    Measure,
}

impl Crew {
    const ALL: [Self; 4] = [Self::Prompt, Self::Launch, Self::Remove, Self::Measure];

    fn of(job: &Job) -> Self {
        match job {
            Job::Launch(_) | Job::Volume { .. } => Self::Launch,
            Job::Remove { .. } => Self::Remove,
            Job::Measure(..) => Self::Measure,
            Job::Detach(..)
            | Job::Save { .. }
            | Job::SaveNode(..)
            | Job::Terminate(..)
            | Job::Kill(..)
            | Job::Watch(..) => Self::Prompt,
        }
    }

    /// Its name, how many jobs are begun side by side (slow ones apart), and how many
    /// threads it has at most.
    fn limits(self) -> (&'static str, usize, usize) {
        match self {
            Self::Prompt => ("work", 4, 16),
            Self::Launch => ("launch", 4, 64),
            Self::Remove => ("remove", 2, 16),
            Self::Measure => ("measure", 1, 1),
        }
    }

    fn name(self) -> &'static str {
        self.limits().0
    }

    fn places(self) -> usize {
        self.limits().1
    }

    fn most_threads(self) -> usize {
        self.limits().2
    }
}

/// The workers.
pub(crate) struct Workers {
    shared: Arc<Pool>,
    /// Disconnected once every worker has ended.
    ended: Receiver<()>,
}

struct Pool {
    queues: Mutex<Queues>,
    /// One for each crew: notified when it has a job, and when the workers are to end.
    news: [Condvar; Crew::ALL.len()],
    store: Option<Arc<Store>>,
    policy: Arc<Policy>,
    inputs: Sender<Input>,
    sink: EndSink,
}

#[derive(Default)]
struct Queues {
    /// The jobs that wait. A key has a queue, perhaps an empty one, as long as it is `ready` or a
    /// worker does a job of it.
    jobs: HashMap<Key, VecDeque<Job>>,
    crews: [Hands; Crew::ALL.len()],
    /// Launches that are under way, so that they can be cancelled when the agent ends.
    launches: HashMap<Uuid, Cancel>,
    /// Each worker has a clone; `None` once no more workers are to be started.
    alive: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    stop: bool,
}

/// The jobs and threads of a crew.
#[derive(Default)]
struct Hands {
    /// Keys whose next job is this crew's and that have no worker, longest
    /// waiting first.
    ready: VecDeque<Key>,
    /// When each job under way was begun.
    begun: HashMap<Key, Instant>,
    threads: usize,
    idle: usize,
}

impl Queues {
    /// Hands an instance's next job to its crew.
    fn pass_on(&mut self, key: Key) -> Option<Crew> {
        let Some(job) = self.jobs.get(&key).and_then(VecDeque::front) else {
            self.jobs.remove(&key);
            return None;
        };
        let crew = Crew::of(job);
        self.crews[crew as usize].ready.push_back(key);
        Some(crew)
    }
}

impl Workers {
    /// Starts the threads. Outcomes and ends of instances go to `inputs`.
    pub(crate) fn start(
        store: Option<Arc<Store>>,
        policy: Arc<Policy>,
        inputs: Sender<Input>,
    ) -> io::Result<Self> {
        let ends = inputs.clone();
        let (alive, ended) = bounded(0);
        let queues = Queues {
            alive: Some(alive),
            ..Queues::default()
        };
        let shared = Arc::new(Pool {
            queues: Mutex::new(queues),
            news: Default::default(),
            store,
            policy,
            inputs,
            // After the agent has ended, the next one finds out from the supervisor.
            sink: Arc::new(move |ended| drop(ends.send(Input::Ended(ended)))),
        });
        let workers = Self { shared, ended };
        for crew in Crew::ALL {
            let mut queues = workers.shared.queues();
            workers.shared.hire(&mut queues, crew)?;
        }
        Ok(workers)
    }

    /// Gives a job to the workers. Does not wait.
    pub(crate) fn give(&self, job: Job) {
        let key = Key::of(&job);
        let mut queues = self.shared.queues();
        let is_first = !queues.jobs.contains_key(&key);
        queues.jobs.entry(key).or_default().push_back(job);
        // With jobs before it, the worker that does them passes the queue on.
        if is_first && let Some(crew) = queues.pass_on(key) {
            self.shared.news[crew as usize].notify_one();
        }
    }

    pub(crate) fn figures(&self) -> Vec<CrewFigures> {
        let queues = self.shared.queues();
        let of = |crew: Crew| {
            let hands = &queues.crews[crew as usize];
            CrewFigures {
                name: crew.name(),
                threads: hands.threads,
                max_threads: crew.most_threads(),
                busy: hands.begun.len(),
                waiting: hands.ready.len(),
            }
        };
        Crew::ALL.map(of).into()
    }
}

impl Drop for Workers {
    /// Quick jobs, such as writing records, are still done. Launches that have not begun are
    /// dropped.
    fn drop(&mut self) {
        {
            let mut queues = self.shared.queues();
            queues.stop = true;
            queues.alive = None;
            queues.launches.values().for_each(Cancel::cancel);
            for jobs in queues.jobs.values_mut() {
                jobs.retain(|job| !matches!(job, Job::Launch(_) | Job::Measure(..) | Job::Watch(..)));
            }
            // With some jobs removed, the next one of a key may be another crew's.
            let waiting: Vec<_> = queues
                .crews
                .iter_mut()
                .flat_map(|hands| hands.ready.drain(..))
                .collect();
            for key in waiting {
                queues.pass_on(key);
            }
        }
        self.shared.news.iter().for_each(Condvar::notify_all);
        // `join` has no time limit, so the channel tells first that all threads have ended.
        if self.ended.recv_timeout(LAST_JOBS) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            // A file system that doesn't answer: the thread can't be woken.
            warn!("a worker has not ended in time; the agent ends without it");
            return;
        }
        let threads = std::mem::take(&mut self.shared.queues().threads);
        for worker in threads {
            let _ = worker.join();
        }
    }
}

impl Pool {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts another thread for a crew.
    fn hire(self: &Arc<Self>, queues: &mut Queues, crew: Crew) -> io::Result<()> {
        let Some(alive) = queues.alive.clone() else {
            return Ok(());
        };
        let shared = Arc::clone(self);
        let worker = threads::spawn(format!("ssntp-{}", crew.name()), move || {
            let _alive: Sender<()> = alive;
            shared.work(crew);
        })?;
        queues.crews[crew as usize].threads += 1;
        // Threads come and go with the load, so the handles of ended ones would pile up.
        queues.threads.retain(|worker| !worker.is_finished());
        queues.threads.push(worker);
        Ok(())
    }

    fn work(self: &Arc<Self>, crew: Crew) {
        while let Some((key, job)) = self.next(crew) {
            self.run(job);
            let mut queues = self.queues();
            queues.crews[crew as usize].begun.remove(&key);
            // A job for the same crew is taken by this thread itself, in its next round.
            if let Some(other) = queues.pass_on(key)
                && other != crew
            {
                self.news[other as usize].notify_one();
            }
        }
        let mut queues = self.queues();
        queues.crews[crew as usize].threads -= 1;
        if queues.stop {
            // No later job wakes the other threads, so they have to look whether it is over.
            self.news.iter().for_each(Condvar::notify_all);
        }
    }

    /// The next job of a crew; `None` once its thread is not needed any more.
    fn next(self: &Arc<Self>, crew: Crew) -> Option<(Key, Job)> {
        let news = &self.news[crew as usize];
        let mut queues = self.queues();
        loop {
            let hands = &mut queues.crews[crew as usize];
            let now = now();
            // Slow jobs hold no place, so the number of threads may exceed that of places.
            let quick = |begun: &&Instant| now.saturating_duration_since(**begun) < SLOW;
            let has_place = hands.begun.values().filter(quick).count() < crew.places();
            if has_place && let Some(key) = hands.ready.pop_front() {
                hands.begun.insert(key, now);
                // This thread is busy from now on, so another one has to wait for the next job.
                let needs_another = hands.idle == 0 && hands.threads < crew.most_threads();
                if needs_another && let Err(e) = self.hire(&mut queues, crew) {
                    // The threads of the crew do the job later.
                    warn!("cannot start another thread to {}: {e}", crew.name());
                }
                let job = queues.jobs.get_mut(&key).and_then(VecDeque::pop_front);
                if let Some(job) = job {
                    return Some((key, job));
                }
                queues.jobs.remove(&key);
                queues.crews[crew as usize].begun.remove(&key);
                continue;
            }
            // A job under way may never end, so only waiting jobs keep a thread.
            let is_over = queues.stop && queues.jobs.values().all(VecDeque::is_empty);
            let hands = &mut queues.crews[crew as usize];
            // More idle threads than places would have nothing to do.
            if is_over || hands.idle >= crew.places() {
                return None;
            }
            hands.idle += 1;
            // Sleep until a job under way becomes slow and gives up its place.
            let begun = hands.begun.values().filter(quick).min();
            let first = match hands.ready.is_empty() {
                true => None,
                false => begun.map(|begun| (*begun + SLOW).saturating_duration_since(now)),
            };
            queues = match first {
                Some(wait) => {
                    let waited = news.wait_timeout(queues, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => news.wait(queues).unwrap_or_else(PoisonError::into_inner),
            };
            queues.crews[crew as usize].idle -= 1;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a job has taken")]
fn now() -> Instant {
    Instant::now()
}
