//! The agents of one thread.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use log::{debug, info, warn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use uuid::Uuid;

use super::session::{Dialer, Session};
use super::{Counts, FleetConfig, Stop, now};
use crate::agent::control::{Action, Control, Done, Input, Job, Settings, StreamOrder};
use crate::agent::driver::{Driver, EndSink, Ended, Launch, Running, SimulateDriver};
use crate::agent::policy::Policy;
use crate::agent::store;
use crate::machine::Facts;
use ssntp::Role;
use ssntp::proto::{Frame, StreamEndReason, StreamEnded};

/// The longest pause before an agent that has no session connects again.
const PAUSE: Duration = Duration::from_secs(2);
/// How long all sessions of a thread may take to be ended in order.
const PARTING: Duration = Duration::from_millis(500);

/// The agents of one thread.
pub(super) struct Crew {
    pub(super) members: Vec<Member>,
    pub(super) dialer: Arc<Dialer>,
    pub(super) shared: Arc<Counts>,
    pub(super) stop: Arc<Stop>,
}

impl Crew {
    pub(super) fn run(mut self) {
        while !self.stop.cancel.is_cancelled() {
            let now = now();
            let to_dial = self
                .members
                .iter()
                .position(|m| m.session.is_none() && m.redial <= now);
            if let Some(index) = to_dial {
                self.members[index].dial(&self.dialer, &self.stop, &self.shared);
            }
            for member in &mut self.members {
                if member.control.next_deadline() <= now {
                    member.handle(Input::Tick, &self.shared);
                }
            }
            for index in self.wait(to_dial.is_some()) {
                self.members[index].receive(&self.shared);
            }
        }
        let end = now() + PARTING;
        for member in &mut self.members {
            member.part(end);
        }
    }

    /// Waits until there is something to do; the members that have something
    /// to read.
    fn wait(&self, busy: bool) -> Vec<usize> {
        let due = |member: &Member| match member.session {
            Some(_) => member.control.next_deadline(),
            None => member.redial.min(member.control.next_deadline()),
        };
        let wait = match (busy, self.members.iter().map(due).min()) {
            (true, _) => Duration::ZERO,
            (false, Some(due)) => due.saturating_duration_since(now()).min(PAUSE),
            (false, None) => PAUSE,
        };
        let sessions = self.members.iter().enumerate();
        let sessions: Vec<_> = sessions
            .filter_map(|(index, member)| Some((index, member.session.as_ref()?)))
            .collect();
        let mut fds: Vec<_> = sessions
            .iter()
            .map(|(_, session)| session.fd())
            .chain([self.stop.wake.as_fd()])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let wait = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(1),
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => {
                // Short of memory: the next look may have more luck.
                warn!("the fleet cannot wait: {e}");
                self.stop.cancel.pause(PAUSE);
            }
        }
        let ready = sessions
            .iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty());
        ready.map(|((index, _), _)| *index).collect()
    }
}

/// One agent.
pub(super) struct Member {
    uuid: Uuid,
    control: Control,
    driver: Arc<SimulateDriver>,
    facts: Facts,
    sink: EndSink,
    ends: Arc<Mutex<Vec<Ended>>>,
    session: Option<Session>,
    redial: Instant,
}

impl Member {
    pub(super) fn new(config: &FleetConfig, role: Role, index: usize) -> Self {
        let (uuid, driver) = (Uuid::new_v4(), Arc::new(SimulateDriver::new()));
        let facts = Facts {
            mem_total_mb: config.mem_mb,
            mem_available_mb: config.mem_mb,
            disk_total_mb: config.disk_mb,
            disk_available_mb: config.disk_mb,
            load: 0,
            cpus_online: 16,
            hostname: format!("simulated-{index}"),
            networks: Vec::new(),
        };
        let settings = Settings {
            node: uuid,
            role,
            drivers: vec![driver.clone()],
            policy: Arc::default(),
            state: Some("/simulated".into()),
            has_volumes: false,
            mem_mb: Some(config.mem_mb),
            disk_mb: Some(config.disk_mb),
            max_instances: config.max_instances,
            interval: config.interval,
            grace: Duration::from_secs(10),
        };
        let ends = Arc::new(Mutex::new(Vec::new()));
        let sink_ends = Arc::clone(&ends);
        Self {
            uuid,
            control: Control::new(settings, facts.clone(), now()),
            driver,
            facts,
            sink: Arc::new(move |ended| {
                sink_ends
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(ended)
            }),
            ends,
            session: None,
            redial: now(),
        }
    }

    fn dial(&mut self, dialer: &Dialer, stop: &Stop, shared: &Counts) {
        match dialer.dial(self.uuid, &stop.cancel) {
            Ok(session) => {
                let configuration = Some(session.configuration.clone()).filter(|yaml| !yaml.is_empty());
                self.session = Some(session);
                shared.connected.fetch_add(1, Ordering::Relaxed);
                self.handle(Input::Connected { configuration }, shared);
                // What came with CONNECTED.
                self.receive(shared);
            }
            Err(why) => {
                debug!("{}: {why}", self.uuid);
                shared.lost.fetch_add(1, Ordering::Relaxed);
                self.pause();
            }
        }
    }

    /// Half of the longest pause at least, and not all at the same time.
    fn pause(&mut self) {
        let share = u32::from(self.uuid.as_bytes()[15]) + 1;
        self.redial = now() + PAUSE / 2 + PAUSE / 2 * share / 256;
    }

    fn lose(&mut self, why: &str, shared: &Counts) {
        if self.session.take().is_some() {
            info!("{}: disconnected: {why}", self.uuid);
            shared.connected.fetch_sub(1, Ordering::Relaxed);
            shared.lost.fetch_add(1, Ordering::Relaxed);
            self.pause();
            self.handle(Input::Disconnected, shared);
        }
    }

    fn receive(&mut self, shared: &Counts) {
        let Some(session) = &mut self.session else { return };
        match session.receive() {
            Ok((frames, end)) => {
                let count = frames.len() as u64;
                shared.received.fetch_add(count, Ordering::Relaxed);
                for frame in frames {
                    self.handle(Input::Frame(frame), shared);
                }
                if end {
                    self.lose("closed by the server", shared);
                }
            }
            Err(why) => self.lose(&why, shared),
        }
    }

    /// An input, and all that follows from it.
    fn handle(&mut self, input: Input, shared: &Counts) {
        let mut inputs = VecDeque::from([input]);
        let mut outgoing = Vec::new();
        while let Some(input) = inputs.pop_front() {
            self.control.handle(now(), input);
            for action in self.control.take_actions() {
                match action {
                    Action::Send(frame) => outgoing.push(frame),
                    // There is no machine to look after.
                    Action::Evacuated(_) => {}
                    Action::Stream(StreamOrder::Open { open, .. }) => {
                        let text = "a simulated instance writes nothing";
                        let ended = StreamEnded::new(open.stream, StreamEndReason::NOT_SUPPORTED, text);
                        outgoing.push(ended.frame());
                    }
                    Action::Stream(_) => {}
                    Action::Job(job) => inputs.extend(self.job(job, shared).map(Input::Done)),
                }
            }
            let ends = std::mem::take(&mut *self.ends.lock().unwrap_or_else(PoisonError::into_inner));
            inputs.extend(ends.into_iter().map(Input::Ended));
        }
        if !outgoing.is_empty() {
            self.send(outgoing, shared);
        }
    }

    /// Sends frames, or keeps those for the next session that it may want.
    fn send(&mut self, frames: Vec<Frame>, shared: &Counts) {
        let sent = match &mut self.session {
            Some(session) => session.send(&frames),
            None => return,
        };
        match sent {
            Ok(()) => {
                shared.sent.fetch_add(frames.len() as u64, Ordering::Relaxed);
            }
            Err(e) => {
                // All of them: how much the server got is not known.
                for frame in frames {
                    self.control.handle(now(), Input::Unsent(frame));
                }
                self.lose(&e.to_string(), shared);
            }
        }
    }

    /// Does a job on the spot.
    fn job(&mut self, job: Job, shared: &Counts) -> Option<Done> {
        match job {
            Job::Launch(job) => {
                let place = store::place("/simulated".as_ref(), job.instance);
                let launch = Launch {
                    place: &place,
                    payload: &job.payload,
                    user: None,
                    policy: &Policy::default(),
                    cancel: &job.cancel,
                };
                let result = self.driver.launch(&launch, &mut |_| Ok(()));
                if let Ok(handle) = &result {
                    shared.launched.fetch_add(1, Ordering::Relaxed);
                    let handle = handle.clone();
                    self.driver.watch(&Running { place, handle }, &self.sink);
                }
                Some(Done::Launched {
                    instance: job.instance,
                    result,
                })
            }
            Job::Terminate(driver, running) | Job::Kill(driver, running) => {
                // Nothing refuses to end here.
                let _ = driver.kill(&running);
                None
            }
            Job::Remove { instance, .. } => {
                self.driver.forget(&store::place("/simulated".as_ref(), instance));
                Some(Done::Removed {
                    instance,
                    result: Ok(()),
                })
            }
            Job::Volume { instance, op, .. } => Some(Done::Volume {
                instance,
                op,
                result: Ok(()),
            }),
            Job::Measure(subjects) => {
                let usages = subjects.iter().flat_map(|(driver, subjects)| {
                    let ids = subjects.iter().map(|subject| subject.place.instance());
                    ids.zip(driver.measure(subjects)).collect::<Vec<_>>()
                });
                Some(Done::Measured {
                    usages: usages.collect(),
                    facts: self.facts.clone(),
                })
            }
            Job::Save { .. } | Job::SaveNode(_, None) | Job::Watch(..) => None,
            Job::SaveNode(_, Some(next)) => Some(Done::Evacuated(next)),
        }
    }

    fn part(&mut self, end: Instant) {
        let left = end.saturating_duration_since(now());
        if let Some(session) = self.session.take()
            && !left.is_zero()
        {
            session.part(left);
        }
    }
}
