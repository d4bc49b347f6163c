//! The agents of one thread.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use log::{debug, info, warn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use uuid::Uuid;

use super::session::{Dialer, Session};
use super::simulate::SimulateDriver;
use super::{Counts, FleetConfig, Stop, now};
use ssntp::Role;
use ssntp_cluster::machine::Facts;
use ssntp_test_support::stepped::{Step, SteppedAgent, SteppedConfig};

/// The longest pause before an agent that has no session connects again.
const PAUSE: Duration = Duration::from_secs(2);
/// The time limit for ending all sessions of a thread in order.
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
                if member.agent.deadline() <= now {
                    member.step(Step::Tick, &self.shared);
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
            Some(_) => member.agent.deadline(),
            None => member.redial.min(member.agent.deadline()),
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
                // The system is short of memory for the moment.
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
    agent: SteppedAgent,
    session: Option<Session>,
    redial: Instant,
    attempt: usize,
}

impl Member {
    pub(super) fn new(config: &FleetConfig, role: Role, index: usize, shared: &Arc<Counts>) -> Self {
        let uuid = Uuid::new_v4();
        let facts = Facts {
            mem_total_mb: config.mem_mb,
            mem_available_mb: config.mem_mb,
            disk_total_mb: config.disk_mb,
            disk_available_mb: config.disk_mb,
            load: 0,
            cpus_online: 16,
            hostname: format!("simulated-{index}"),
            ..Facts::default()
        };
        let stepped = SteppedConfig {
            node: uuid,
            role,
            facts,
            max_instances: config.max_instances,
            interval: config.interval,
        };
        let driver = Arc::new(SimulateDriver::new(Arc::clone(shared)));
        Self {
            uuid,
            agent: SteppedAgent::new(stepped, driver, now()),
            session: None,
            redial: now(),
            // The first attempt uses the address after this one.
            attempt: if config.is_together { usize::MAX } else { index },
        }
    }

    fn dial(&mut self, dialer: &Dialer, stop: &Stop, shared: &Counts) {
        self.attempt = self.attempt.wrapping_add(1);
        match dialer.dial(self.uuid, self.attempt, &stop.cancel) {
            Ok(session) => {
                let configuration = session.configuration.clone();
                self.session = Some(session);
                shared.connected.fetch_add(1, Ordering::Relaxed);
                self.step(Step::Connected(configuration), shared);
                // Frames may have arrived together with CONNECTED, and poll does not report these.
                self.receive(shared);
            }
            Err(why) => {
                debug!("{}: {why}", self.uuid);
                shared.lost.fetch_add(1, Ordering::Relaxed);
                self.pause();
            }
        }
    }

    /// Waits between half of the longest pause and all of it, so that not all agents come
    /// back at the same time.
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
            self.step(Step::Disconnected, shared);
        }
    }

    fn receive(&mut self, shared: &Counts) {
        let Some(session) = &mut self.session else { return };
        match session.receive() {
            Ok((frames, end)) => {
                let count = frames.len() as u64;
                shared.received.fetch_add(count, Ordering::Relaxed);
                for frame in frames {
                    self.step(Step::Frame(frame), shared);
                }
                if end {
                    self.lose("closed by the server", shared);
                }
            }
            Err(why) => self.lose(&why, shared),
        }
    }

    fn step(&mut self, step: Step, shared: &Counts) {
        let frames = self.agent.step(now(), step);
        let Some(session) = self.session.as_mut().filter(|_| !frames.is_empty()) else {
            return;
        };
        match session.send(&frames) {
            Ok(()) => {
                shared.sent.fetch_add(frames.len() as u64, Ordering::Relaxed);
            }
            Err(e) => {
                // The number of frames that the server has received is unknown, so the agent
                // keeps all frames that must not be lost.
                self.agent.step(now(), Step::Unsent(frames));
                self.lose(&e.to_string(), shared);
            }
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
