//! The threads for jobs that can block: launching, stopping, writing to disk, measuring.
//!
//! ```text
//!                          one queue for       ┌▶ crew prompt ──┐
//!  agent thread ── Job ─▶ each instance ───────┼▶ crew launch ──┼─ Done ─▶ agent thread
//!                                              ├▶ crew remove ──┤
//!                                              └▶ crew measure ─┘
//! ```
//!
//! The agent's thread never waits for a worker. The jobs of one instance are done in their order, by
//! one worker at a time. Jobs of several instances are done at the same time.
//!
//! No instance waits for the slow disk of another instance. Each kind of job has a crew of its own,
//! so the job that ends an instance never waits until an image is copied. Within a crew, a job that
//! has taken [`SLOW`] gives up its place, and a further thread begins the next job.
//!
//! | crew | jobs | places | most threads | if all threads are at slow jobs |
//! |---|---|---|---|---|
//! | prompt | ask to end, kill, watch, write records, remove networks | 4 | 16 | further jobs wait |
//! | launch | launch, copy images, make, attach and detach volumes | 4 | 64 | STARTs are `pending`, until their limit |
//! | remove | delete directories and volumes | 2 | 16 | further instances wait as `stopping` |
//! | measure | measure the node, its tunnels and its instances | 1 | 1 | STATS are sent with the last figures |
//!
//! The queues have no limit of their own: the state machine gives a job only if an instance changes,
//! and it limits the number of instances.
//!
//! | file | holds |
//! |---|---|
//! | `jobs` | the work of each job |

mod jobs;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::warn;
use uuid::Uuid;

use super::control::{Input, Job};
use super::driver::{Cancel, NewsSink};
use super::figures::CrewFigures;
use super::network::Network;
use super::policy::Policy;
use super::store::Store;
use ssntp_transport::{locked, locked_again, now, threads};

/// The time after which a job counts as slow and gives up its place. Launching a process takes some
/// 20 ms; only images and disks take longer.
const SLOW: Duration = Duration::from_secs(1);
/// The time limit for the remaining jobs when the agent ends. Together with the limits for the last
/// frames (300 ms) and the last read of a log (500 ms), these are the two seconds that
/// [`Agent`](super::Agent) promises.
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
            Job::SaveNode(..) => Self::Node,
            Job::Launch(job) => Self::Instance(job.instance),
            Job::Save { instance, .. } | Job::Remove { instance, .. } => Self::Instance(*instance),
            Job::Volume { instance, .. } | Job::Detach(instance) => Self::Instance(*instance),
            Job::Terminate(_, running) | Job::Kill(_, running) | Job::Watch(_, running) => {
                Self::Instance(running.place.instance())
            }
        }
    }
}

/// The threads that do a job. The module has a table of the crews.
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

    /// The name of the crew, the number of jobs that it does at the same time (apart from slow ones),
    /// and the maximum number of threads.
    fn limits(self) -> (&'static str, usize, usize) {
        match self {
            Self::Prompt => ("work", 4, 16),
            Self::Launch => ("launch", 4, 64),
            Self::Remove => ("remove", 2, 16),
            Self::Measure => ("measure", 1, 1),
        }
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
    /// One for each crew: notified when the crew gets a job, and when the workers have to end.
    wakers: [Condvar; Crew::ALL.len()],
    store: Option<Arc<Store>>,
    policy: Arc<Policy>,
    network: Option<Arc<dyn Network>>,
    inputs: Sender<Input>,
    sink: NewsSink,
}

#[derive(Default)]
struct Queues {
    /// The jobs that wait. A key has a queue, perhaps an empty one, as long as it is `ready` or a
    /// worker does a job of it.
    jobs: HashMap<Key, VecDeque<Job>>,
    crews: [CrewState; Crew::ALL.len()],
    /// The launches under way, which are cancelled when the agent ends.
    launches: HashMap<Uuid, Cancel>,
    /// Each worker has a clone, so `Workers::ended` is disconnected when all have ended. `None` once
    /// the agent ends and no more workers are started.
    alive: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    stop: bool,
}

/// The jobs and threads of a crew.
#[derive(Default)]
struct CrewState {
    /// The keys whose next job waits for this crew, the longest waiting first.
    ready: VecDeque<Key>,
    /// The jobs under way, each with the time at which it began.
    begun: HashMap<Key, Instant>,
    threads: usize,
    idle: usize,
}

impl Queues {
    /// Makes the next job of a key ready for its crew, which is returned.
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
        network: Option<Arc<dyn Network>>,
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
            wakers: Default::default(),
            store,
            policy,
            network,
            inputs,
            // An end after that of the agent is lost here; the next agent finds it in the state file
            // of the supervisor.
            sink: Arc::new(move |news| drop(ends.send(Input::News(news)))),
        });
        let workers = Self { shared, ended };
        for crew in Crew::ALL {
            let mut queues = locked(&workers.shared.queues);
            workers.shared.start_thread(&mut queues, crew)?;
        }
        Ok(workers)
    }

    /// Gives a job to the workers. Does not wait.
    pub(crate) fn give(&self, job: Job) {
        let key = Key::of(&job);
        let mut queues = locked(&self.shared.queues);
        let is_first = !queues.jobs.contains_key(&key);
        queues.jobs.entry(key).or_default().push_back(job);
        // If jobs of the key are before it, their worker passes the queue on.
        if is_first && let Some(crew) = queues.pass_on(key) {
            self.shared.wakers[crew as usize].notify_one();
        }
    }

    pub(crate) fn figures(&self) -> Vec<CrewFigures> {
        let queues = locked(&self.shared.queues);
        let of = |crew: Crew| {
            let state = &queues.crews[crew as usize];
            CrewFigures {
                name: crew.limits().0,
                threads: state.threads,
                busy: state.begun.len(),
                waiting: state.ready.len(),
            }
        };
        Crew::ALL.map(of).into()
    }
}

impl Drop for Workers {
    /// Quick jobs, such as writing records, are still done. Launches that have not begun are
    /// dropped, but the record of a RESTART is written: by it the next agent knows of the RESTART, and answers it.
    fn drop(&mut self) {
        {
            let mut queues = locked(&self.shared.queues);
            queues.stop = true;
            queues.alive = None;
            queues.launches.values().for_each(Cancel::cancel);
            for jobs in queues.jobs.values_mut() {
                for job in jobs.iter_mut() {
                    if let Job::Launch(launch) = job
                        && launch.record.restarting
                    {
                        let (instance, record) = (launch.instance, launch.record.clone());
                        *job = Job::Save { instance, record };
                    }
                }
                jobs.retain(|job| !matches!(job, Job::Launch(_) | Job::Measure(..) | Job::Watch(..)));
            }
            // Jobs were removed, so the next job of a key may belong to another crew.
            let waiting: Vec<_> = queues
                .crews
                .iter_mut()
                .flat_map(|crew| crew.ready.drain(..))
                .collect();
            for key in waiting {
                queues.pass_on(key);
            }
        }
        self.shared.wakers.iter().for_each(Condvar::notify_all);
        // `join` has no time limit, so it is called only after the channel has shown that all threads
        // have ended.
        if self.ended.recv_timeout(LAST_JOBS) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            // The thread waits for a file system that does not answer, and can't be woken.
            warn!("a worker has not ended within {LAST_JOBS:?}; the agent ends without it");
            return;
        }
        let threads = std::mem::take(&mut locked(&self.shared.queues).threads);
        for worker in threads {
            let _ = worker.join();
        }
    }
}

impl Pool {
    /// Starts another thread for a crew.
    fn start_thread(self: &Arc<Self>, queues: &mut Queues, crew: Crew) -> io::Result<()> {
        let Some(alive) = queues.alive.clone() else {
            return Ok(());
        };
        let shared = Arc::clone(self);
        let worker = threads::spawn(format!("ssntp-{}", crew.limits().0), move || {
            let _alive: Sender<()> = alive;
            shared.work(crew);
        })?;
        queues.crews[crew as usize].threads += 1;
        // Threads start and end with the load, so the handles of ended threads would pile up.
        queues.threads.retain(|worker| !worker.is_finished());
        queues.threads.push(worker);
        Ok(())
    }

    fn work(self: &Arc<Self>, crew: Crew) {
        while let Some((key, job)) = self.next(crew) {
            self.run(job);
            let mut queues = locked(&self.queues);
            queues.crews[crew as usize].begun.remove(&key);
            // A job for the same crew is done by this thread, in its next round.
            if let Some(other) = queues.pass_on(key)
                && other != crew
            {
                self.wakers[other as usize].notify_one();
            }
        }
        let mut queues = locked(&self.queues);
        queues.crews[crew as usize].threads -= 1;
        if queues.stop {
            // No later job wakes the other threads, so they are woken to check for the end.
            self.wakers.iter().for_each(Condvar::notify_all);
        }
    }

    /// The next job of a crew; `None` if the thread is not needed any more.
    fn next(self: &Arc<Self>, crew: Crew) -> Option<(Key, Job)> {
        let waker = &self.wakers[crew as usize];
        let (name, places, most_threads) = crew.limits();
        let mut queues = locked(&self.queues);
        loop {
            let state = &mut queues.crews[crew as usize];
            let now = now();
            // Slow jobs hold no place, so a crew may have more threads than places.
            let quick = |begun: &&Instant| now.saturating_duration_since(**begun) < SLOW;
            let has_place = state.begun.values().filter(quick).count() < places;
            if has_place && let Some(key) = state.ready.pop_front() {
                state.begun.insert(key, now);
                // This thread is busy from now on, so another one has to wait for the next job.
                let needs_another = state.idle == 0 && state.threads < most_threads;
                if needs_another && let Err(e) = self.start_thread(&mut queues, crew) {
                    // The job waits for the threads that the crew has.
                    warn!("cannot start another thread to {name}: {e}");
                }
                let job = queues.jobs.get_mut(&key).and_then(VecDeque::pop_front);
                if let Some(job) = job {
                    return Some((key, job));
                }
                queues.jobs.remove(&key);
                queues.crews[crew as usize].begun.remove(&key);
                continue;
            }
            // A thread stays for jobs that wait. A job under way does not keep the others, because it
            // may never end.
            let is_over = queues.stop && queues.jobs.values().all(VecDeque::is_empty);
            let state = &mut queues.crews[crew as usize];
            // A crew needs no more idle threads than places.
            if is_over || state.idle >= places {
                return None;
            }
            state.idle += 1;
            // Sleep until a job under way becomes slow and gives up its place.
            let begun = state.begun.values().filter(quick).min();
            let first = if state.ready.is_empty() {
                None
            } else {
                begun.map(|begun| (*begun + SLOW).saturating_duration_since(now))
            };
            queues = match first {
                Some(wait) => {
                    let waited = waker.wait_timeout(queues, wait);
                    locked_again(waited).0
                }
                None => locked_again(waker.wait(queues)),
            };
            queues.crews[crew as usize].idle -= 1;
        }
    }
}
