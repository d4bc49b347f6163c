//! The jobs of the agent that can block. The threads of the [`Pool`] do them.

use std::io;

use log::warn;
use uuid::Uuid;

use super::Pool;
use crate::control::{Done, Input, Job, LaunchJob, Origin, VolumeOp, ephemeral};
use crate::driver::{Driver, InstanceDir, Launch, Measurable, Reason, Refused, RunId, Running, Usage};
use crate::network::Attachment;
use crate::store::{PASSABLE, Store, make_dirs, millis};
use crate::tree;
use ssntp_cluster::machine;
use ssntp_transport::{locked, wall_clock};

const MB: u64 = 1 << 20;

impl Pool {
    pub(super) fn run(&self, job: Job) {
        match job {
            Job::Launch(job) => self.launch(*job),
            Job::Save { instance, record } => {
                let saved = self.store().and_then(|store| store.save(instance, &record));
                if let Err(e) = saved {
                    let why = e.to_string();
                    self.done(Done::Unsaved { instance, why });
                }
            }
            Job::SaveNode(node, then) => {
                match (self.store().and_then(|store| store.save_node(&node)), then) {
                    (Ok(()), Some(next)) => self.done(Done::Evacuated(next)),
                    (Ok(()), None) => {}
                    (Err(e), _) => self.done(Done::NodeUnsaved { why: e.to_string() }),
                }
            }
            Job::Detach(instance) => self.detach(instance),
            Job::Terminate(driver, running) => {
                warn_of(&running, "asked to end", driver.terminate(&running));
                self.signalled(&running);
            }
            Job::Kill(driver, running) => {
                warn_of(&running, "killed", driver.kill(&running));
                self.signalled(&running);
            }
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
                let tunnels = match (&self.network, &self.store) {
                    (Some(network), Some(store)) => network.tunnels(&|it| store.place(it).dir().to_owned()),
                    _ => Vec::new(),
                };
                let mut usages = Vec::new();
                for (driver, subjects) in &subjects {
                    for (subject, usage) in subjects.iter().zip(driver.measure(subjects)) {
                        self.limit_disk(subject, &usage);
                        usages.push((subject.place.instance(), subject.handle.clone(), usage));
                    }
                }
                // Without a state directory there are no instances, and the root file system is
                // measured.
                let disk = self.store.as_ref().map_or("/".as_ref(), |store| store.root());
                let facts = machine::read(disk);
                self.done(Done::Measured {
                    facts,
                    usages,
                    tunnels,
                });
            }
        }
    }

    fn launch(&self, job: LaunchJob) {
        let instance = job.instance;
        {
            let mut queues = locked(&self.queues);
            // The agent may have begun to end since the job was taken from the queue.
            if queues.stop {
                job.cancel.cancel();
            }
            queues.launches.insert(instance, job.cancel.clone());
        }
        let mut made = Vec::new();
        let result = self.try_launch(&job, &mut made);
        locked(&self.queues).launches.remove(&instance);
        if result.is_err() {
            self.detach(instance);
        }
        let running = match (&result, &self.store) {
            (Ok((handle, _)), Some(store)) => Some(Running {
                place: store.place(instance),
                handle: handle.clone(),
            }),
            // The files of a START that failed are removed. An instance that has run before keeps its
            // files.
            (Err(_), Some(store)) if matches!(job.origin, Origin::Start(_)) => {
                if let Err(e) = store.remove(instance, &made) {
                    warn!("instance {instance}: its launch failed, and its files can't be removed: {e}");
                }
                None
            }
            _ => None,
        };
        self.done(Done::Launched { instance, result });
        // The watch begins last, so that the end of the run is never reported before its launch.
        if let Some(running) = running {
            job.driver.watch(&running, &self.sink);
        }
    }

    /// Launches an instance. Returns the ID of its run and the time at which the run began, in
    /// milliseconds since 1970. Adds to `made` the volumes that it has made and that are deleted
    /// with the instance, even if it returns an error.
    fn try_launch(&self, job: &LaunchJob, made: &mut Vec<Uuid>) -> Result<(RunId, u64), Refused> {
        let unsaved = |e: io::Error| Refused::io("its record cannot be saved", &e);
        let store = self.store().map_err(unsaved)?;
        let place = store.place(job.instance);
        match &job.origin {
            Origin::Start(received) => store.create(job.instance, received, &job.record),
            // The launch replaces the files of the run before. If its end is not on the disk by then,
            // the next agent takes a launch that fails for the first one, and removes the instance.
            Origin::Again(changes) => store.save(job.instance, &job.record).and_then(|()| {
                changes
                    .as_ref()
                    .map_or(Ok(()), |it| store.save_restart(job.instance, it))
            }),
        }
        .map_err(unsaved)?;
        let own = |range: &_| store.own_uid(job.instance, range);
        let user = self.policy.user(&job.user, own)?;
        store
            .enclose(&place, user)
            .map_err(|e| Refused::io(place.dir().display(), &e))?;
        if matches!(job.origin, Origin::Again(_)) {
            // An instance that was killed because of `disk_mb` must not be started again with the same
            // files.
            let measured = self.too_large(&place, Some(0));
            if let Some(why) = measured.map_err(|e| Refused::io(place.work().display(), &e))? {
                return Err(Refused::new(Reason::FullCn, why));
            }
        }
        let ephemeral = ephemeral(&job.payload.start);
        for (volume, make) in &job.volumes {
            let missing = || Refused::new(Reason::ImageFailure, format!("there is no volume {volume}"));
            let found = store.volume(*volume).ok_or_else(missing)?;
            if *make {
                // Only a volume that this launch makes may be deleted if the launch fails, because a
                // volume that exists has data.
                if ephemeral.contains(volume) && !found.path.exists() {
                    made.push(*volume);
                }
                make_dirs(&found.path, PASSABLE).map_err(|e| Refused::io(found.path.display(), &e))?;
            }
            let (volume, attach) = (*volume, true);
            self.volume(job.instance, &*job.driver, None, VolumeOp { volume, attach })
                .map_err(|e| Refused::new(Reason::ImageFailure, e.why))?;
        }
        let network = match &self.network {
            Some(network) => Attachment::of(&job.payload.start)
                .and_then(|to| to.map(|to| network.check(&to).map(|()| to)).transpose())
                .map_err(|why| Refused::new(Reason::NetworkFailure, why))?
                .map(|to| network.wire(job.instance, to)),
            None => None,
        };
        let launch = Launch {
            place: &place,
            payload: &job.payload,
            user,
            policy: &self.policy,
            cancel: &job.cancel,
            network: network.as_deref(),
        };
        let mut began = 0;
        let handle = job.driver.launch(&launch, &mut |handle| {
            // The wall clock, because STATS show it to people.
            began = millis(wall_clock());
            store.save(job.instance, &job.record.running(handle, began))
        })?;
        Ok((handle, began))
    }

    /// Attaches a volume to an instance, or detaches it. The link in the instance's directory
    /// records that the volume is attached, so the link is made first and removed last.
    fn volume(
        &self,
        instance: Uuid,
        driver: &dyn Driver,
        handle: Option<&RunId>,
        op: VolumeOp,
    ) -> Result<(), Refused> {
        let failed = |why: String| Refused::new(Reason::AttachFailure, why);
        let state =
            |e: io::Error| Refused::new(Reason::StateFailure, format!("its record can't be saved: {e}"));
        let store = self.store().map_err(state)?;
        let place = store.place(instance);
        let volume = store
            .volume(op.volume)
            .ok_or_else(|| Refused::new(Reason::NotSupported, "this node has no volumes"))?;
        if op.attach {
            if !volume.path.is_dir() {
                return Err(failed(format!("there is no volume {}", volume.path.display())));
            }
            store.link(&place, &volume).map_err(state)?;
            let lent = store.lend(&place, &volume);
            let lent = lent.map_err(|e| failed(format!("{}: {e}", volume.path.display())));
            // On failure the link is removed again, because the volume would count as attached.
            let attached = lent.and_then(|()| driver.attach(&place, handle, &volume));
            attached.inspect_err(|_| {
                if let Err(e) = store.unlink(&place, op.volume) {
                    warn!("instance {instance}: volume {}: {e}", op.volume);
                }
            })
        } else {
            // The instance releases the volume first. Without the link, another instance could get
            // the volume meanwhile.
            driver.detach(&place, handle, &volume)?;
            store.unlink(&place, op.volume).map_err(state)
        }
    }

    /// Has an instance killed whose directory `work` is larger than the policy's `disk_mb`.
    fn limit_disk(&self, subject: &Measurable, usage: &Usage) {
        let (Some(most), Some(handle)) = (self.policy.disk_mb, &subject.handle) else {
            return;
        };
        // The usage contains all directories of the instance. If it is within the limit, so is
        // `work`, which alone counts for the limit, with the removed files.
        if (0..=i64::from(most)).contains(&usage.disk_mb) {
            return;
        }
        let why = match self.too_large(&subject.place, usage.removed) {
            Ok(Some(why)) => why,
            Ok(None) => return,
            // The size is unknown, and the next measurement tries again.
            Err(e) => {
                return warn!(
                    "instance {}: its disk cannot be measured: {e}",
                    subject.place.instance()
                );
            }
        };
        // A worker kills it after its earlier jobs, which may be slow.
        self.done(Done::Condemned {
            instance: subject.place.instance(),
            handle: handle.clone(),
            why,
        });
    }

    /// The reason why the files of an instance are too large, if they are: those in its directory,
    /// and those that it has removed and still uses. Files that are too many to count are too large,
    /// because an instance could otherwise avoid the limit.
    ///
    /// # Errors
    /// The files can't be measured for now.
    fn too_large(&self, place: &InstanceDir, removed: Option<u64>) -> io::Result<Option<String>> {
        let Some(most) = self.policy.disk_mb else {
            return Ok(None);
        };
        let mb = |bytes: u64| bytes.div_ceil(MB);
        Ok(match (tree::disk_usage(&place.work())?, removed) {
            (Some(named), Some(removed)) if mb(named + removed) <= u64::from(most) => None,
            (Some(named), Some(0)) => Some(format!(
                "its directory has {} MB, and {most} are allowed (policy: disk_mb)",
                mb(named)
            )),
            (Some(named), Some(removed)) => Some(format!(
                "its directory has {} MB with {} in removed files that it still uses, and {most} are allowed (policy: disk_mb)",
                mb(named + removed),
                mb(removed)
            )),
            (None, _) => Some("its directory has too many files, or is too deep (policy: disk_mb)".into()),
            (_, None) => Some("it uses too many files at a time (policy: disk_mb)".into()),
        })
    }

    fn detach(&self, instance: Uuid) {
        if let Some(network) = &self.network {
            network.detach(instance);
        }
    }

    fn store(&self) -> io::Result<&Store> {
        self.store
            .as_deref()
            .ok_or_else(|| io::Error::other("there is no state directory"))
    }

    fn signalled(&self, running: &Running) {
        let instance = running.place.instance();
        self.done(Done::Signalled { instance });
    }

    fn done(&self, done: Done) {
        // This fails only if the agent has ended. The next agent reads the state from the disk.
        let _ = self.inputs.send(Input::Done(done));
    }
}

fn warn_of(running: &Running, action: &str, result: io::Result<()>) {
    if let Err(e) = result {
        warn!("instance {} can't be {action}: {e}", running.place.instance());
    }
}
