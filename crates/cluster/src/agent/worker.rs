//! The threads that do what takes a moment: launching, stopping, writing to
//! disk, measuring.
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
//! Nobody waits for another's slow disk. What ends an instance needs no place
//! that an image's copy could hold, for each kind of job has a crew of its own.
//! And in a crew a job that has taken [`SLOW`] gives up its place: the next one is
//! begun by a further thread.
//!
//! | crew | its jobs | places | threads at most | when all of them are at slow jobs |
//! |---|---|---|---|---|
//! | prompt | ask, kill, watch, write records | 4 | 16 | the others wait |
//! | launch | launch, copy images, make and attach volumes | 4 | 64 | STARTs are `pending`, until their limit |
//! | remove | delete directories and volumes | 2 | 16 | the others wait, `stopping` |
//! | measure | measure the node | 1 | 1 | STATS go out with the last figures |
//!
//! The queues have no bound of their own: the state machine gives a job only
//! where an instance changes, and bounds the number of these.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::warn;
use uuid::Uuid;

use super::control::{Done, Input, Job, LaunchJob, Origin, VolumeOp, ephemeral};
use super::driver::{
    Cancel, Driver, EndSink, Handle, Launch, LaunchError, LaunchFault, Place, Running, Subject, Usage,
    VolumeError, VolumeFault,
};
use super::figures::CrewFigures;
use super::policy::Policy;
use super::store::{PASS, Store, make_dirs, millis};
use super::tree;
use crate::machine::Facts;
use ssntp_transport::threads;

/// How long a job may take before it counts as slow, and holds no place any more.
/// Launching a process takes some 20 ms; only images and disks take longer.
const SLOW: Duration = Duration::from_secs(1);
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

/// Which threads do a job: see the table above.
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
            Job::Measure(_) => Self::Measure,
            Job::Save { .. } | Job::SaveNode(..) | Job::Terminate(..) | Job::Kill(..) | Job::Watch(..) => {
                Self::Prompt
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Prompt => "work",
            Self::Launch => "launch",
            Self::Remove => "remove",
            Self::Measure => "measure",
        }
    }

    /// How many jobs are begun side by side, slow ones apart.
    fn places(self) -> usize {
        match self {
            Self::Prompt | Self::Launch => 4,
            Self::Remove => 2,
            Self::Measure => 1,
        }
    }

    fn most_threads(self) -> usize {
        match self {
            Self::Prompt | Self::Remove => 16,
            Self::Launch => 64,
            Self::Measure => 1,
        }
    }
}

/// The workers.
#[derive(Debug)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
    /// Disconnected once every worker has ended.
    ended: Receiver<()>,
}

struct Shared {
    queues: Mutex<Queues>,
    /// For each crew: something came in, or the end.
    news: [Condvar; Crew::ALL.len()],
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
    busy: HashSet<Key>,
    crews: [Hands; Crew::ALL.len()],
    /// Under way.
    launches: HashMap<Uuid, Cancel>,
    /// Held by each worker; `None` once no others are to be started.
    alive: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    stop: bool,
}

/// What a crew has to do, and who does it.
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
        let shared = Arc::new(Shared {
            queues: Mutex::new(queues),
            news: Default::default(),
            store,
            policy,
            inputs,
            // Once the agent is gone, nobody has to know.
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
        let queue = queues.jobs.entry(key).or_default();
        queue.push_back(job);
        if queue.len() == 1
            && !queues.busy.contains(&key)
            && let Some(crew) = queues.pass_on(key)
        {
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
    /// What is quick and matters is still done: instances that were not
    /// launched yet are not.
    fn drop(&mut self) {
        {
            let mut queues = self.shared.queues();
            queues.stop = true;
            queues.alive = None;
            queues.launches.values().for_each(Cancel::cancel);
            for jobs in queues.jobs.values_mut() {
                jobs.retain(|job| !matches!(job, Job::Launch(_) | Job::Measure(_) | Job::Watch(..)));
            }
            // The next of a key may be another crew's now.
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
        if self.ended.recv_timeout(LAST_JOBS) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            // A file system that doesn't answer: the thread can't be woken.
            warn!("a worker does not end, and is left behind");
            return;
        }
        let threads = std::mem::take(&mut self.shared.queues().threads);
        for worker in threads {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A further thread for a crew.
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
        queues.threads.retain(|worker| !worker.is_finished());
        queues.threads.push(worker);
        Ok(())
    }

    fn work(self: &Arc<Self>, crew: Crew) {
        while let Some((key, job)) = self.next(crew) {
            self.run(job);
            let mut queues = self.queues();
            queues.busy.remove(&key);
            queues.crews[crew as usize].begun.remove(&key);
            if let Some(other) = queues.pass_on(key)
                && other != crew
            {
                self.news[other as usize].notify_one();
            }
        }
        let mut queues = self.queues();
        queues.crews[crew as usize].threads -= 1;
        if queues.stop {
            // There may be nobody left whom the next job wakes.
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
            let quick = |begun: &&Instant| now.saturating_duration_since(**begun) < SLOW;
            let has_place = hands.begun.values().filter(quick).count() < crew.places();
            if has_place && let Some(key) = hands.ready.pop_front() {
                hands.begun.insert(key, now);
                let needs_another = hands.idle == 0 && hands.threads < crew.most_threads();
                if needs_another && let Err(e) = self.hire(&mut queues, crew) {
                    // Those that are there go on with it, later.
                    warn!("no further thread to {}: {e}", crew.name());
                }
                let job = queues.jobs.get_mut(&key).and_then(VecDeque::pop_front);
                if let Some(job) = job {
                    queues.busy.insert(key);
                    return Some((key, job));
                }
                queues.jobs.remove(&key);
                queues.crews[crew as usize].begun.remove(&key);
                continue;
            }
            // What is under way may never end, but has nothing behind it.
            let is_over = queues.stop && queues.jobs.values().all(VecDeque::is_empty);
            let hands = &mut queues.crews[crew as usize];
            if is_over || hands.idle >= crew.places() {
                return None;
            }
            hands.idle += 1;
            // Until one of those under way gives up its place.
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
            Job::Remove {
                instance,
                driver,
                ephemeral,
            } => {
                let result = self.store().and_then(|store| {
                    if let Some(driver) = driver {
                        driver.forget(&store.place(instance));
                    }
                    store.remove(instance, &ephemeral)
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
                let usages: Vec<_> = subjects.iter().flat_map(measure).collect();
                let all = subjects
                    .iter()
                    .flat_map(|(driver, of_driver)| of_driver.iter().map(move |subject| (driver, subject)));
                for ((driver, subject), (_, usage)) in all.zip(&usages) {
                    self.limit_disk(&**driver, subject, usage);
                }
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
        let (mut made, mut began) = (Vec::new(), 0);
        let result = self.try_launch(&job, &mut made, &mut began);
        self.queues().launches.remove(&instance);
        let running = match (&result, &self.store) {
            (Ok(handle), Some(store)) => Some(Running {
                place: store.place(instance),
                handle: handle.clone(),
            }),
            (Err(_), Some(store)) if matches!(job.origin, Origin::Start(_)) => {
                if let Err(e) = store.remove(instance, &made) {
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

    /// Gives the run, and in `began` when it did. What volumes it has made that are
    /// to go with the instance is told in any case.
    fn try_launch(
        &self,
        job: &LaunchJob,
        made: &mut Vec<Uuid>,
        began: &mut u64,
    ) -> Result<Handle, LaunchError> {
        let unsaved = |e: io::Error| LaunchError::io("its state cannot be saved", &e);
        let store = self.store().map_err(unsaved)?;
        let place = store.place(job.instance);
        match &job.origin {
            Origin::Start(received) => store.create(job.instance, received, &job.record),
            Origin::Again(Some(news)) => store.save_restart(job.instance, news),
            Origin::Again(None) => Ok(()),
        }
        .map_err(unsaved)?;
        let own = |range: &_| store.own_uid(job.instance, range);
        let user = self.policy.user(&job.user, own)?;
        store
            .enclose(&place, user)
            .map_err(|e| LaunchError::io(place.dir().display(), &e))?;
        if matches!(job.origin, Origin::Again(_))
            && let Some(why) = self.too_large(&place)
        {
            return Err(LaunchError::new(LaunchFault::Full, why));
        }
        let ephemeral = ephemeral(&job.payload.start);
        for (volume, make) in &job.volumes {
            if *make
                && store.volume(*volume).is_some_and(|volume| !volume.path.exists())
                && ephemeral.contains(volume)
            {
                made.push(*volume);
            }
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

/// What the instances of one driver use.
pub(super) fn measure((driver, subjects): &(Arc<dyn Driver>, Vec<Subject>)) -> Vec<(Uuid, Usage)> {
    let ids = subjects.iter().map(|subject| subject.place.instance());
    ids.zip(driver.measure(subjects)).collect()
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

#[expect(clippy::disallowed_methods, reason = "how long a job has taken")]
fn now() -> Instant {
    Instant::now()
}
