//! The threads that do what takes a moment: launching, stopping, writing to
//! disk, measuring.
//!
//! ```text
//!  agent thread ── Job ─▶ one queue an instance ─▶ workers ── Done ─▶ agent thread
//! ```
//!
//! The agent's thread never waits for a worker. Jobs of one instance are done
//! in their order, by one worker at a time; those of several side by side.
//! The queues have no bound of their own: the state machine gives a job only
//! where an instance changes, and has no more than `max_instances` of them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::warn;
use uuid::Uuid;

use super::control::{Done, Input, Job, LaunchJob, VolumeOp};
use super::driver::{
    Cancel, Driver, EndSink, Handle, Launch, LaunchError, LaunchFault, Place, Running, Subject, Usage,
    VolumeError, VolumeFault,
};
use super::policy::Policy;
use super::store::{PASS, Store, make_dirs, millis};
use super::tree;
use crate::cluster::machine::Facts;
use crate::transport::threads;

const WORKERS: usize = 4;
const MB: u64 = 1 << 20;
/// How long the workers may take at the end for what is still to be done.
const LAST_JOBS: Duration = Duration::from_millis(1200);

/// What a job belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Instance(Uuid),
    Measurement,
    Node,
}

impl Key {
    fn of(job: &Job) -> Self {
        match job {
            Job::Measure(_) => Self::Measurement,
            _ => job.instance().map_or(Self::Node, Self::Instance),
        }
    }
}

/// The workers.
#[derive(Debug)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Disconnected once every worker has ended.
    ended: Receiver<()>,
}

struct Shared {
    queues: Mutex<Queues>,
    /// Something came in, or the end.
    news: Condvar,
    store: Option<Arc<Store>>,
    policy: Arc<Policy>,
    inputs: Sender<Input>,
    sink: EndSink,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Queues {
    jobs: HashMap<Key, VecDeque<Job>>,
    /// Keys that have jobs and no worker, longest waiting first.
    ready: VecDeque<Key>,
    busy: HashSet<Key>,
    /// Under way.
    launches: HashMap<Uuid, Cancel>,
    stop: bool,
}

impl Workers {
    /// Starts the threads. Outcomes and ends of instances go to `inputs`.
    pub(crate) fn start(
        store: Option<Arc<Store>>,
        policy: Arc<Policy>,
        inputs: Sender<Input>,
    ) -> io::Result<Self> {
        let ends = inputs.clone();
        let shared = Arc::new(Shared {
            queues: Mutex::default(),
            news: Condvar::new(),
            store,
            policy,
            inputs,
            // Once the agent is gone, nobody has to know.
            sink: Arc::new(move |ended| drop(ends.send(Input::Ended(ended)))),
        });
        let (alive, ended) = bounded(0);
        let mut workers = Self {
            shared,
            threads: Vec::new(),
            ended,
        };
        for number in 0..WORKERS {
            let (shared, alive) = (Arc::clone(&workers.shared), alive.clone());
            let worker = threads::spawn(format!("ssntp-work-{number}"), move || {
                let _alive: Sender<()> = alive;
                shared.work();
            })?;
            workers.threads.push(worker);
        }
        Ok(workers)
    }

    /// Gives a job to the workers. Does not wait.
    pub(crate) fn give(&self, job: Job) {
        let key = Key::of(&job);
        let mut queues = self.shared.queues();
        let queue = queues.jobs.entry(key).or_default();
        queue.push_back(job);
        if queue.len() == 1 && !queues.busy.contains(&key) {
            queues.ready.push_back(key);
        }
        drop(queues);
        self.shared.news.notify_one();
    }
}

impl Drop for Workers {
    /// What is quick and matters is still done: instances that were not
    /// launched yet are not.
    fn drop(&mut self) {
        {
            let mut queues = self.shared.queues();
            queues.stop = true;
            queues.launches.values().for_each(Cancel::cancel);
            for jobs in queues.jobs.values_mut() {
                jobs.retain(|job| !matches!(job, Job::Launch(_) | Job::Measure(_) | Job::Watch(..)));
            }
        }
        self.shared.news.notify_all();
        if self.ended.recv_timeout(LAST_JOBS) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            // A file system that doesn't answer: the thread can't be woken.
            warn!("a worker does not end, and is left behind");
            return;
        }
        for worker in self.threads.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some((key, job)) = self.next() {
            self.run(job);
            let mut queues = self.queues();
            queues.busy.remove(&key);
            match queues.jobs.get(&key) {
                Some(jobs) if !jobs.is_empty() => queues.ready.push_back(key),
                _ => drop(queues.jobs.remove(&key)),
            }
        }
    }

    fn next(&self) -> Option<(Key, Job)> {
        let mut queues = self.queues();
        loop {
            while let Some(key) = queues.ready.pop_front() {
                if let Some(job) = queues.jobs.get_mut(&key).and_then(VecDeque::pop_front) {
                    queues.busy.insert(key);
                    return Some((key, job));
                }
                queues.jobs.remove(&key);
            }
            if queues.stop {
                return None;
            }
            queues = self.news.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(&self, job: Job) {
        match job {
            Job::Launch(job) => self.launch(*job),
            Job::Save { instance, record } => {
                let saved = self.store().and_then(|store| store.save(instance, &record));
                if let Err(e) = saved {
                    warn!("instance {instance}: its state can't be saved: {e}");
                }
            }
            Job::SaveNode(node, then) => {
                match (self.store().and_then(|store| store.save_node(&node)), then) {
                    (Ok(()), Some(next)) => self.done(Done::Evacuated(next)),
                    (Ok(()), None) => {}
                    (Err(e), None) => warn!("the node's state can't be saved: {e}"),
                    (Err(e), Some(next)) => {
                        warn!("the node's state can't be saved, and so {next} is not asked for: {e}");
                    }
                }
            }
            Job::Terminate(driver, running) => warn_of(&running, "asked to end", driver.terminate(&running)),
            Job::Kill(driver, running) => warn_of(&running, "killed", driver.kill(&running)),
            Job::Watch(driver, running) => driver.watch(&running, &self.sink),
            Job::Remove { instance, driver } => {
                let result = self.store().and_then(|store| {
                    if let Some(driver) = driver {
                        driver.forget(&store.place(instance));
                    }
                    store.remove(instance)
                });
                self.done(Done::Removed {
                    instance,
                    result: result.map_err(|e| e.to_string()),
                });
            }
            Job::Volume {
                instance,
                driver,
                handle,
                op,
            } => {
                let result = self.volume(instance, &*driver, handle.as_ref(), op);
                self.done(Done::Volume { instance, op, result });
            }
            Job::Measure(subjects) => {
                let usages = subjects.iter().flat_map(|(driver, subjects)| {
                    let usages = driver.measure(subjects);
                    for (subject, usage) in subjects.iter().zip(&usages) {
                        self.limit_disk(&**driver, subject, usage);
                    }
                    let ids = subjects.iter().map(|subject| subject.place.instance());
                    ids.zip(usages).collect::<Vec<_>>()
                });
                let usages = usages.collect();
                let disk = self.store.as_ref().map_or("/".as_ref(), |store| store.root());
                let facts = Facts::read(disk);
                self.done(Done::Measured { facts, usages });
            }
        }
    }

    fn launch(&self, job: LaunchJob) {
        let instance = job.instance;
        {
            let mut queues = self.queues();
            if queues.stop {
                job.cancel.cancel();
            }
            queues.launches.insert(instance, job.cancel.clone());
        }
        let mut began = 0;
        let result = self.try_launch(&job, &mut began);
        self.queues().launches.remove(&instance);
        let running = match (&result, &self.store) {
            (Ok(handle), Some(store)) => Some(Running {
                place: store.place(instance),
                handle: handle.clone(),
            }),
            (Err(_), Some(store)) if job.fresh => {
                if let Err(e) = store.remove(instance) {
                    warn!("instance {instance}: what is left of it can't be removed: {e}");
                }
                None
            }
            _ => None,
        };
        if result.is_ok() {
            self.done(Done::Began { instance, began });
        }
        self.done(Done::Launched { instance, result });
        // Only now: its end must not be known before its beginning.
        if let Some(running) = running {
            job.driver.watch(&running, &self.sink);
        }
    }

    /// Gives the run, and in `began` when it did.
    fn try_launch(&self, job: &LaunchJob, began: &mut u64) -> Result<Handle, LaunchError> {
        let unsaved = |e: io::Error| LaunchError::io("its state cannot be saved", &e);
        let store = self.store().map_err(unsaved)?;
        let place = store.place(job.instance);
        if job.fresh {
            store
                .create(job.instance, &job.payload, &job.record)
                .map_err(unsaved)?;
        } else {
            store.save_start(job.instance, &job.payload).map_err(unsaved)?;
        }
        let own = |range: &_| store.own_uid(job.instance, range);
        let user = self.policy.user(&job.user, own)?;
        store
            .enclose(&place, user)
            .map_err(|e| LaunchError::io(place.dir().display(), &e))?;
        if !job.fresh
            && let Some(why) = self.too_large(&place)
        {
            return Err(LaunchError::new(LaunchFault::Full, why));
        }
        for (volume, make) in &job.volumes {
            self.attach_at_launch(store, job, *volume, *make)?;
        }
        let launch = Launch {
            place: &place,
            payload: &job.payload,
            user,
            policy: &self.policy,
            cancel: &job.cancel,
        };
        job.driver.launch(&launch, &mut |handle| {
            let mut record = job.record.running(handle);
            record.started = millis(wall_clock());
            *began = record.started;
            store.save(job.instance, &record)
        })
    }

    fn attach_at_launch(
        &self,
        store: &Store,
        job: &LaunchJob,
        volume: Uuid,
        make: bool,
    ) -> Result<(), LaunchError> {
        let missing = || LaunchError::new(LaunchFault::Image, format!("there is no volume {volume}"));
        let found = store.volume(volume).ok_or_else(missing)?;
        if make {
            make_dirs(&found.path, PASS).map_err(|e| LaunchError::io(found.path.display(), &e))?;
        }
        let op = VolumeOp { volume, attach: true };
        self.volume(job.instance, &*job.driver, None, op)
            .map_err(|e| LaunchError::new(LaunchFault::Image, e.why))
    }

    /// The link is the record: it comes first, and goes last.
    fn volume(
        &self,
        instance: Uuid,
        driver: &dyn Driver,
        handle: Option<&Handle>,
        op: VolumeOp,
    ) -> Result<(), VolumeError> {
        let failed = |why: String| VolumeError::new(VolumeFault::Failed, why);
        let state =
            |e: io::Error| VolumeError::new(VolumeFault::State, format!("its state can't be saved: {e}"));
        let store = self.store().map_err(state)?;
        let place = store.place(instance);
        let volume = store
            .volume(op.volume)
            .ok_or_else(|| VolumeError::new(VolumeFault::NotSupported, "this node has no volumes"))?;
        if op.attach {
            if !volume.path.is_dir() {
                return Err(failed(format!("there is no volume {}", volume.path.display())));
            }
            store.link(&place, &volume).map_err(state)?;
            let lent = store.lend(&place, &volume);
            let lent = lent.map_err(|e| failed(format!("{}: {e}", volume.path.display())));
            let attached = lent.and_then(|()| driver.attach(&place, handle, &volume));
            attached.inspect_err(|_| {
                if let Err(e) = store.unlink(&place, op.volume) {
                    warn!("instance {instance}: volume {}: {e}", op.volume);
                }
            })
        } else {
            driver.detach(&place, handle, &volume)?;
            store.unlink(&place, op.volume).map_err(state)
        }
    }

    /// Kills an instance that has more in its directory than it may.
    fn limit_disk(&self, driver: &dyn Driver, subject: &Subject, usage: &Usage) {
        let (Some(most), Some(handle)) = (self.policy.disk_mb, &subject.handle) else {
            return;
        };
        // That is of all its directories.
        if (0..=i64::from(most)).contains(&usage.disk_mb) {
            return;
        }
        let Some(why) = self.too_large(&subject.place) else {
            return;
        };
        let running = Running {
            place: subject.place.clone(),
            handle: handle.clone(),
        };
        let instance = subject.place.instance();
        warn!("instance {instance}: {why}: it is killed");
        // First: it is a part of how it ends.
        self.done(Done::Condemned { instance, why });
        warn_of(&running, "killed", driver.kill(&running));
    }

    /// Why the directory that an instance writes in counts as too large. One
    /// that can't be measured does, too: whoever could avoid that would have no
    /// limit.
    fn too_large(&self, place: &Place) -> Option<String> {
        let most = self.policy.disk_mb?;
        let mb = tree::disk_usage(&place.work()).map(|bytes| bytes.div_ceil(MB));
        match mb {
            Some(mb) if mb <= u64::from(most) => None,
            Some(mb) => Some(format!(
                "its directory holds {mb} MB, and may hold {most} (policy: disk_mb)"
            )),
            None => Some("its directory has too many files, or is too deep (policy: disk_mb)".into()),
        }
    }

    fn store(&self) -> io::Result<&Store> {
        self.store
            .as_deref()
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "there is no state directory"))
    }

    fn done(&self, done: Done) {
        // Once the agent is gone, nobody has to know.
        let _ = self.inputs.send(Input::Done(done));
    }
}

#[expect(clippy::disallowed_methods, reason = "when an instance was started")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

fn warn_of(running: &Running, what: &str, result: io::Result<()>) {
    if let Err(e) = result {
        warn!("instance {} can't be {what}: {e}", running.place.instance());
    }
}
