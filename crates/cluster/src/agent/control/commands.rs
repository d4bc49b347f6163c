//! What each command does, and the failures that answer it.
//!
//! Where several reasons apply, the first of this list is given.
//!
//! | command | reason | when |
//! |---|---|---|
//! | START | `invalid_payload`, `invalid_data` | the payload is refused, or no driver could make sense of it |
//! | | `launch_failure` | the node is OFFLINE, or has no state directory, or no driver for it |
//! | | `node_maintenance` | from EVACUATE to Restore |
//! | | `already_running`, `instance_exists` | the instance is here, and runs or doesn't |
//! | | `launch_failure`, `image_failure`, `full_cn` | the node's own policy doesn't let it have that |
//! | | `network_failure` | its networking can't be made sense of |
//! | | `full_cn` | memory, disk or number of instances don't allow it, or the state directory is full |
//! | | `image_failure` | an image or a volume isn't there |
//! | | `launch_failure` | the driver says so |
//! | STOP | `no_instance` | it isn't here, or the node is OFFLINE |
//! | | `already_stopped` | it has ended already |
//! | RESTART | `no_instance` | it isn't here |
//! | | `launch_failure` | the node is OFFLINE, in maintenance or full; or the driver says so |
//! | | `already_running` | it hasn't ended |
//! | | `instance_corrupt` | what was known of it is lost |
//! | DELETE | `no_instance` | it isn't here, or the node is OFFLINE |
//! | | `invalid_data` | its record can't be removed, or it may run and this agent has no driver for it: it is still here, as it was |
//! | AttachVolume, DetachVolume | `no_instance` | it isn't here |
//! | | `attach_failure`, `detach_failure` | the node is OFFLINE; there is no such volume; too many commands wait |
//! | | `not_supported` | the node has no volumes, or the driver takes none |
//! | | `instance_failure` | it is ending, or what was known of it is lost, or it refuses |
//! | | `already_attached`, `not_attached` | |
//! | | `state_failure` | it can't be written down |
//!
//! A command for another node is answered with `no_instance` (START names
//! none). EVACUATE and Restore have no failure: where they can't be read they
//! are answered with InvalidFrameType, as the scheduler does.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use log::{debug, info};
use serde::Deserialize;
use uuid::Uuid;

use super::{Cause, Control, Instance, Job, LaunchJob, Life, Mode, Origin};
use crate::agent::driver::{Cancel, Driver, LaunchError, LaunchFault, Place};
use crate::agent::store::{self, NodeRecord, Record, RecordAfter};
use crate::scheduler::placement::Needs;
use crate::subnet::{Subnet, is_mac};
use ssntp::payload::{
    AttachVolumeFailureReason, Delete, DeleteFailure, DeleteFailureReason, Error, Evacuate, Id,
    InvalidFrameType, Networking, NextState, Payload, Restart, RestartFailure, RestartFailureReason, Restore,
    Start, StartFailureReason, StartPayload, Stop, StopFailure, StopFailureReason, Storage, yaml,
};
use ssntp::proto::{Command, Frame};
use ssntp_transport::excerpt;

impl Control {
    pub(super) fn command(&mut self, now: Instant, frame: &Frame) {
        match Command(frame.kind().operand) {
            Command::START => {
                if let Err((instance, restart, refused)) = self.start(frame) {
                    self.complain(
                        "START refused",
                        format_args!("START of {instance} refused: {refused}"),
                    );
                    let detail = excerpt(&refused.why).to_string();
                    self.start_failed(instance, refused.reason, detail, restart);
                }
                // A scheduler that is strict waits for this before the next.
                self.announce(true);
                self.stats_soon(now);
            }
            Command::STOP => {
                if let Err((instance_uuid, reason)) = self.stop(now, frame) {
                    self.tell(&StopFailure {
                        node_uuid: self.settings.node.into(),
                        instance_uuid,
                        reason,
                    });
                }
            }
            Command::RESTART => {
                if let Err((instance_uuid, refused)) = self.restart(now, frame) {
                    self.complain(
                        "RESTART refused",
                        format_args!("RESTART of {instance_uuid} refused: {refused}"),
                    );
                    self.tell(&RestartFailure {
                        node_uuid: self.settings.node.into(),
                        instance_uuid,
                        reason: refused.reason,
                        detail: excerpt(&refused.why).to_string(),
                    });
                }
            }
            Command::DELETE => {
                if let Err((instance_uuid, reason)) = self.delete(now, frame) {
                    self.tell(&DeleteFailure {
                        node_uuid: self.settings.node.into(),
                        instance_uuid,
                        reason,
                    });
                }
            }
            Command::EVACUATE => self.evacuate(now, frame),
            Command::RESTORE => self.restore(now, frame),
            Command::ATTACH_VOLUME => self.attach(frame),
            Command::DETACH_VOLUME => self.detach(frame),
            Command::CONFIGURE => {
                self.configure(frame.payload_bytes());
                self.announce(false);
            }
            _ if frame.kind().is_of_streams() => self.stream(frame),
            _ => debug!("{}: {} is not for agents", self.settings.node, frame.kind()),
        }
    }

    fn start(&mut self, frame: &Frame) -> Result<(), (Id, bool, Refused<StartFailureReason>)> {
        let mut payload: StartPayload = frame.payload().map_err(|e| {
            let about = About::of(frame);
            (about.instance_uuid, about.restart, Refused::unreadable(&e))
        })?;
        store::name_own_volumes(&mut payload.start);
        let id = payload.start.instance_uuid;
        let restart = payload.start.restart;
        // Another attempt: how the one before ended is of no interest any more.
        self.failed.retain(|(_, failure)| failure.instance_uuid != id);
        // A copy: what came with it is not to be kept as well.
        let received = Bytes::copy_from_slice(frame.payload_bytes());
        self.start_payload(id, payload, received)
            .map_err(|refused| (id.into(), restart, refused))
    }

    fn start_payload(
        &mut self,
        id: Uuid,
        payload: StartPayload,
        received: Bytes,
    ) -> Result<(), Refused<StartFailureReason>> {
        use StartFailureReason as Reason;

        let start = &payload.start;
        let below_zero = |path| Refused::new(Reason::InvalidData, format!("{path} is below zero"));
        let needs = Needs::of(start).map_err(below_zero)?;
        let is_name =
            |storage: &Storage| storage.boot || storage.id.is_empty() || storage.id.uuid().is_some();
        if !start.storage.iter().all(is_name) {
            return Err(Refused::new(Reason::InvalidData, "a volume's name is no UUID"));
        }
        let volumes = self.volumes_of(start);
        let is_twice =
            |(n, (id, _)): (usize, &(Uuid, bool))| volumes.iter().take(n).any(|(other, _)| other == id);
        if volumes.iter().enumerate().any(is_twice) {
            return Err(Refused::new(Reason::InvalidData, "a volume is there twice"));
        }
        let driver = match self.choose(start) {
            Err(e) if e.fault == LaunchFault::Data => return Err(e.into()),
            driver => driver,
        };
        if self.offline {
            return Err(Refused::new(Reason::LaunchFailure, "the node is OFFLINE"));
        }
        if self.mode != Mode::Normal {
            return Err(Reason::NodeMaintenance.into());
        }
        match self.instances.get(&id) {
            Some(instance) if instance.is_running() => return Err(Reason::AlreadyRunning.into()),
            Some(_) => return Err(Reason::InstanceExists.into()),
            None => {}
        }
        let driver = driver?;
        self.settings.policy.check(driver.name(), start)?;
        if let Some(what) = unsupported(start) {
            return Err(Refused::new(Reason::LaunchFailure, what));
        }
        let Some(root) = &self.settings.state else {
            let why = "this agent has no state directory";
            return Err(Refused::new(Reason::LaunchFailure, why));
        };
        let place = store::place(root, id);
        check_networking(&start.networking).map_err(|why| Refused::new(Reason::NetworkFailure, why))?;
        if !self.has_room(&needs, false) {
            return Err(Reason::FullCn.into());
        }
        if !volumes.is_empty() && !self.settings.has_volumes {
            return Err(Refused::new(Reason::ImageFailure, "this node has no volumes"));
        }
        let record = Record {
            driver: driver.name().to_owned(),
            ..Record::default()
        };
        let origin = Origin::Start(received);
        self.launch(id, place, driver, Arc::new(payload), record, volumes, origin);
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "all that a launch is made from, once")]
    fn launch(
        &mut self,
        id: Uuid,
        place: Place,
        driver: Arc<dyn Driver>,
        payload: Arc<StartPayload>,
        record: Record,
        volumes: Vec<(Uuid, bool)>,
        origin: Origin,
    ) {
        let instance = Instance {
            driver: Some(Arc::clone(&driver)),
            start: Some(Arc::clone(&payload)),
            volumes: volumes.iter().map(|(volume, _)| *volume).collect(),
            ..Instance::new(place, record.clone(), Life::Launching(Cause::Start), self.now)
        };
        let cancel = instance.cancel.clone();
        self.instances.insert(id, instance);
        self.job(Job::Launch(Box::new(LaunchJob {
            instance: id,
            driver,
            payload,
            record,
            origin,
            user: self.launcher.child_user.clone(),
            volumes,
            cancel,
        })));
    }

    /// The driver that takes it; or what all of them say.
    fn choose(&self, start: &Start) -> Result<Arc<dyn Driver>, LaunchError> {
        let mut refused = LaunchError::launch("");
        for driver in &self.settings.drivers {
            match driver.check(start) {
                Ok(()) => return Ok(Arc::clone(driver)),
                Err(e) => {
                    let separator = if refused.why.is_empty() { "" } else { "; " };
                    refused.why = format!("{}{separator}{}", refused.why, e.why);
                    if e.fault != LaunchFault::Launch {
                        refused.fault = e.fault;
                    }
                }
            }
        }
        if self.settings.drivers.is_empty() {
            refused.why = "this agent only reports".into();
        }
        Err(refused)
    }

    /// The volumes that a START attaches, and whether each may be made: those
    /// it boots from are the driver's concern.
    fn volumes_of(&self, start: &Start) -> Vec<(Uuid, bool)> {
        let attached = start.storage.iter().filter(|storage| !storage.boot);
        attached
            .filter_map(|storage| Some((storage.id.uuid()?, storage.local)))
            .collect()
    }

    fn stop(&mut self, now: Instant, frame: &Frame) -> Result<(), (Id, StopFailureReason)> {
        use StopFailureReason as Reason;

        let stop: Stop = frame.payload().map_err(|e| {
            let about = self.unreadable(frame, &e);
            (about.instance_uuid, Reason::from(&e))
        })?;
        let fail = |reason| (stop.instance_uuid.clone(), reason);
        let id = stop.instance_uuid.uuid().ok_or(fail(Reason::InvalidData))?;
        let instance = self
            .addressed(&stop.workload_agent_uuid, id)
            .map_err(|refused| fail(refused.into()))?;
        if self.offline {
            return Err(fail(Reason::NoInstance));
        }
        if !instance.can_be_stopped() {
            return Err(fail(Reason::AlreadyStopped));
        }
        let after = match instance.is_persistent() {
            true => RecordAfter::Keep,
            false => RecordAfter::Delete,
        };
        self.end(id, after, now);
        Ok(())
    }

    fn delete(&mut self, now: Instant, frame: &Frame) -> Result<(), (Id, DeleteFailureReason)> {
        use DeleteFailureReason as Reason;

        let delete: Delete = frame.payload().map_err(|e| {
            let about = self.unreadable(frame, &e);
            (about.instance_uuid, Reason::from(&e))
        })?;
        let fail = |reason| (delete.instance_uuid.clone(), reason);
        let id = delete.instance_uuid.uuid().ok_or(fail(Reason::InvalidData))?;
        self.addressed(&delete.workload_agent_uuid, id)
            .map_err(|refused| fail(refused.into()))?;
        if self.offline {
            return Err(fail(Reason::NoInstance));
        }
        if self.instances.get(&id).is_some_and(Instance::is_out_of_reach) {
            let why = format_args!("DELETE of {id}: it may run, and its driver isn't here");
            self.complain("DELETE", why);
            return Err(fail(Reason::InvalidData));
        }
        let after = match delete.stop {
            true => RecordAfter::Release,
            false => RecordAfter::Delete,
        };
        self.end(id, after, now);
        Ok(())
    }

    fn restart(&mut self, now: Instant, frame: &Frame) -> Result<(), (Id, Refused<RestartFailureReason>)> {
        let restart: Restart = frame
            .payload()
            .map_err(|e| (About::of(frame).instance_uuid, Refused::unreadable(&e)))?;
        let named = restart.instance_uuid.clone();
        self.restart_payload(now, restart)
            .map_err(|refused| (named, refused))
    }

    fn restart_payload(
        &mut self,
        now: Instant,
        restart: Restart,
    ) -> Result<(), Refused<RestartFailureReason>> {
        use RestartFailureReason as Reason;

        let id = restart.instance_uuid.uuid().ok_or(Reason::InvalidData)?;
        let instance = self
            .addressed(&restart.workload_agent_uuid, id)
            .map_err(Reason::from)?;
        if self.offline || self.mode != Mode::Normal {
            let why = "the node is OFFLINE or in maintenance";
            return Err(Refused::new(Reason::LaunchFailure, why));
        }
        match instance.life {
            Life::Stopped(_) => {}
            Life::Removing(_) => return Err(Reason::NoInstance.into()),
            _ => return Err(Reason::AlreadyRunning.into()),
        }
        let start = instance.start.as_ref().ok_or(Reason::InstanceCorrupt)?;
        let before = Arc::clone(start);
        let payload = Arc::new(StartPayload {
            start: store::restarted(&start.start, restart),
            user_data: start.user_data.clone(),
            meta_data: start.meta_data.clone(),
        });
        let driver = match &instance.driver {
            Some(driver) => Arc::clone(driver),
            None => {
                let why = "this agent has no driver for it";
                return Err(Refused::new(Reason::LaunchFailure, why));
            }
        };
        self.settings.policy.check(driver.name(), &payload.start)?;
        check_networking(&payload.start.networking)
            .map_err(|why| Refused::new(Reason::NetworkFailure, why))?;
        let needs = Needs::of(&payload.start).map_err(|_| Reason::InvalidData)?;
        if !self.has_room(&needs, true) {
            return Err(Refused::new(Reason::LaunchFailure, "there is no room"));
        }
        let Some(instance) = self.instances.get_mut(&id) else {
            return Err(Reason::NoInstance.into());
        };
        instance.restart_untold = true;
        instance.record.restarts_in_row = 0;
        let news = store::changes(&before.start, &payload.start).map(Box::new);
        self.launch_again(id, Cause::Restart, driver, payload, news);
        self.stats_soon(now);
        Ok(())
    }

    /// Launches an instance that was there before, with what is new in its START.
    pub(super) fn launch_again(
        &mut self,
        id: Uuid,
        cause: Cause,
        driver: Arc<dyn Driver>,
        payload: Arc<StartPayload>,
        news: Option<Box<Restart>>,
    ) {
        let user = self.launcher.child_user.clone();
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        instance.life = Life::Launching(cause);
        instance.start = Some(Arc::clone(&payload));
        instance.cancel = Cancel::default();
        let (record, cancel) = (instance.record(), instance.cancel.clone());
        self.job(Job::Launch(Box::new(LaunchJob {
            instance: id,
            driver,
            payload,
            record,
            origin: Origin::Again(news),
            user,
            volumes: Vec::new(),
            cancel,
        })));
        self.announce(false);
    }

    fn evacuate(&mut self, now: Instant, frame: &Frame) {
        let evacuate: Evacuate = match self.node_command(frame, |e: &Evacuate| &e.workload_agent_uuid) {
            Some(evacuate) => evacuate,
            None => return,
        };
        if self.offline {
            self.announce(true);
            self.stats_soon(now);
            return;
        }
        if let Some(more) = self.log.admit((), "evacuated", now) {
            let next = excerpt(&evacuate.next_state);
            info!("{}: evacuated, next is {next}{more}", self.settings.node);
        }
        self.next_state = evacuate.next_state;
        let is_empty = self.mode == Mode::Maintenance;
        if !is_empty {
            self.mode = Mode::Evacuating;
        }
        self.save_node(None);
        if is_empty {
            // Whoever asked again looks at STATS as well.
            self.announce(true);
            self.stats_soon(now);
            self.reach_next_state();
        } else {
            let within = match evacuate.deadline {
                0 => self.settings.grace,
                seconds => Duration::from_secs(seconds.into()),
            };
            self.evacuate_all(now, within);
        }
    }

    pub(super) fn save_node(&mut self, then: Option<NextState>) {
        let record = NodeRecord {
            maintenance: self.mode != Mode::Normal,
            next_state: self.next_state.clone(),
            offline: self.offline,
        };
        self.job(Job::SaveNode(record, then));
    }

    /// What the agent was told comes next is for whoever looks after the
    /// machine. First it is written down that this was said: otherwise a
    /// machine that boots again would be told to boot again.
    pub(super) fn reach_next_state(&mut self) {
        match std::mem::take(&mut self.next_state) {
            NextState::Maintenance => {}
            next => self.save_node(Some(next)),
        }
    }

    /// Ends all instances, and kills those that have not ended `within` that time.
    pub(super) fn evacuate_all(&mut self, now: Instant, within: Duration) {
        let instances = self.instances.iter();
        let running = instances.filter(|(_, instance)| instance.can_be_stopped());
        let running: Vec<_> = running
            .map(|(id, instance)| (*id, instance.is_persistent()))
            .collect();
        for (id, persistent) in running {
            let after = match persistent {
                true => RecordAfter::Evacuate,
                false => RecordAfter::Release,
            };
            self.end_within(id, after, now, within);
        }
    }

    fn restore(&mut self, now: Instant, frame: &Frame) {
        if self
            .node_command(frame, |r: &Restore| &r.workload_agent_uuid)
            .is_none()
        {
            return;
        }
        if !self.offline && self.mode != Mode::Normal {
            if let Some(more) = self.log.admit((), "restored", now) {
                info!("{}: restored{more}", self.settings.node);
            }
            self.mode = Mode::Normal;
            self.next_state = NextState::Maintenance;
            self.save_node(None);
        }
        self.announce(true);
        self.stats_soon(now);
    }

    /// Reads a command that is about the node as a whole; `None` where it was
    /// refused.
    fn node_command<T: Payload>(&mut self, frame: &Frame, node: impl Fn(&T) -> &Id) -> Option<T> {
        let refusal = match frame.payload::<T>() {
            Ok(payload) if *node(&payload) == self.settings.node => return Some(payload),
            Ok(_) => "invalid_data",
            Err(e) if e.is_malformed() => "invalid_payload",
            Err(_) => "invalid_data",
        };
        self.complain("refused", format_args!("{} refused: {refusal}", frame.kind()));
        self.tell(&InvalidFrameType::new(frame.kind(), refusal.into()));
        None
    }

    /// What a command is about that cannot be read.
    pub(super) fn unreadable(&mut self, frame: &Frame, error: &Error) -> About {
        self.complain("unreadable", format_args!("{} refused: {error}", frame.kind()));
        About::of(frame)
    }

    /// The instance that a command names.
    pub(super) fn addressed(&self, node: &Id, id: Uuid) -> Result<&Instance, Misaddressed> {
        match node.uuid() {
            None => Err(Misaddressed::NoNode),
            Some(node) if node != self.settings.node => Err(Misaddressed::NotHere),
            Some(_) => self.instances.get(&id).ok_or(Misaddressed::NotHere),
        }
    }
}

/// Why a START or RESTART is refused: the protocol's reason, and the story, where
/// there is more to tell.
#[derive(Debug)]
pub(super) struct Refused<R> {
    pub(super) reason: R,
    pub(super) why: String,
}

impl<R> Refused<R> {
    fn new(reason: R, why: impl Into<String>) -> Self {
        Self {
            reason,
            why: why.into(),
        }
    }
}

impl<R: for<'a> From<&'a Error>> Refused<R> {
    fn unreadable(error: &Error) -> Self {
        Self::new(error.into(), error.to_string())
    }
}

impl<R> From<R> for Refused<R> {
    fn from(reason: R) -> Self {
        Self::new(reason, "")
    }
}

impl<R: fmt::Display> fmt::Display for Refused<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why.as_str() {
            "" => self.reason.fmt(f),
            why => write!(f, "{}: {why}", self.reason),
        }
    }
}

macro_rules! refused_of_launch_error {
    ($($reason:ty),+) => {
        $(impl From<LaunchError> for Refused<$reason> {
            fn from(error: LaunchError) -> Self {
                Self::new(error.fault.into(), error.why)
            }
        })+
    };
}

refused_of_launch_error!(StartFailureReason, RestartFailureReason);

/// Why a command is for no instance of this node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misaddressed {
    /// It names no node, so that it makes no sense.
    NoNode,
    /// The node, or the instance, is another one.
    NotHere,
}

macro_rules! reasons {
    ($($reason:ty),+) => {
        $(impl From<Misaddressed> for $reason {
            fn from(refused: Misaddressed) -> Self {
                match refused {
                    Misaddressed::NoNode => Self::InvalidData,
                    Misaddressed::NotHere => Self::NoInstance,
                }
            }
        })+
    };
}

reasons!(
    StopFailureReason,
    DeleteFailureReason,
    RestartFailureReason,
    AttachVolumeFailureReason
);

/// What is asked for that no node of this kind does: it had better not run than
/// run without.
fn unsupported(start: &Start) -> Option<String> {
    if start.requirements.privileged {
        return Some("privileged: there are no containers here".into());
    }
    if start.storage.iter().any(|storage| storage.swap) {
        return Some("storage.swap: there are no volumes for swapping".into());
    }
    let policy = &start.restart_policy;
    (!policy.is_known()).then(|| format!("restart_policy: {policy} is not known"))
}

/// What can't be wired.
fn check_networking(networking: &Networking) -> Result<(), String> {
    let Networking {
        vnic_mac,
        subnet,
        private_ip,
        concentrator_ip,
        ..
    } = networking;
    if !vnic_mac.is_empty() && !is_mac(vnic_mac) {
        return Err(format!("{vnic_mac:?} is no MAC address"));
    }
    if !subnet.is_empty() && subnet.parse::<Subnet>().is_err() {
        return Err(format!("{subnet:?} is no subnet"));
    }
    for ip in [private_ip, concentrator_ip] {
        if !ip.is_empty() && ip.parse::<IpAddr>().is_err() {
            return Err(format!("{ip:?} is no IP address"));
        }
    }
    Ok(())
}

/// What a command is about, as far as it can be read when the command as a
/// whole can't.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct About {
    pub(super) instance_uuid: Id,
    pub(super) volume_uuid: Id,
    restart: bool,
}

impl About {
    fn of(frame: &Frame) -> Self {
        yaml::documents(frame.payload_bytes())
            .take(3)
            .filter_map(|document| yaml::decode::<BTreeMap<String, Self>>(document.bytes).ok())
            .find_map(|roots| roots.into_values().find(|about| !about.instance_uuid.is_empty()))
            .unwrap_or_default()
    }
}
