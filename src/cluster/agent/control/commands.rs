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
//! | | `state_failure` | its files can't be removed (not one of the protocol's reasons: none fits) |
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

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use log::{debug, info, warn};
use serde::Deserialize;
use uuid::Uuid;

use super::{Control, Instance, Job, LaunchJob, MAX_VOLUME_OPS, Mode, Phase, VolumeOp};
use crate::cluster::agent::driver::{Driver, LaunchFault, Place, Usage, VolumeError, VolumeFault};
use crate::cluster::agent::store::{self, NodeRecord, Record, RecordAfter};
use crate::cluster::scheduler::placement::Needs;
use crate::cluster::subnet::{Subnet, is_mac};
use crate::payload::{
    AttachVolume, AttachVolumeFailure, AttachVolumeFailureReason, Delete, DeleteFailure, DeleteFailureReason,
    DetachVolume, DetachVolumeFailure, DetachVolumeFailureReason, Error, Evacuate, Id, InvalidFrameType,
    Networking, NextState, Payload, Restart, RestartFailure, RestartFailureReason, Restore, Start,
    StartFailure, StartFailureReason, StartPayload, Stop, StopFailure, StopFailureReason, Storage, yaml,
};
use crate::proto::{Command, Frame};

impl Control {
    pub(super) fn command(&mut self, now: Instant, frame: &Frame) {
        match Command(frame.kind().operand) {
            Command::START => {
                if let Err((instance, restart, reason)) = self.start(frame) {
                    warn!("{}: START of {instance} refused: {reason}", self.settings.node);
                    self.tell(&StartFailure {
                        node_uuid: self.settings.node.into(),
                        instance_uuid: instance,
                        reason,
                        restart,
                    });
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
                if let Err((instance_uuid, reason)) = self.restart(now, frame) {
                    self.tell(&RestartFailure {
                        node_uuid: self.settings.node.into(),
                        instance_uuid,
                        reason,
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
            _ => debug!("{}: {} is not for agents", self.settings.node, frame.kind()),
        }
    }

    fn start(&mut self, frame: &Frame) -> Result<(), (Id, bool, StartFailureReason)> {
        use StartFailureReason as Reason;

        let payload: StartPayload = frame.payload().map_err(|e| {
            let about = About::of(frame, &e);
            (about.instance_uuid, about.restart, Reason::from(&e))
        })?;
        let id = payload.start.instance_uuid;
        let restart = payload.start.restart;
        self.start_payload(id, payload)
            .map_err(|reason| (id.into(), restart, reason))
    }

    fn start_payload(&mut self, id: Uuid, payload: StartPayload) -> Result<(), StartFailureReason> {
        use StartFailureReason as Reason;

        let start = &payload.start;
        let needs = Needs::of(start).map_err(|path| {
            warn!("{}: START of {id}: {path} is below zero", self.settings.node);
            Reason::InvalidData
        })?;
        let is_name =
            |storage: &Storage| storage.boot || storage.id.is_empty() || storage.id.uuid().is_some();
        if !start.storage.iter().all(is_name) {
            return Err(Reason::InvalidData);
        }
        let driver = self.choose(id, start);
        if driver.as_ref().is_err_and(|fault| *fault == LaunchFault::Data) {
            return Err(Reason::InvalidData);
        }
        if self.offline {
            return Err(Reason::LaunchFailure);
        }
        if self.mode != Mode::Normal {
            return Err(Reason::NodeMaintenance);
        }
        match self.instances.get(&id) {
            Some(instance) if instance.is_running() => return Err(Reason::AlreadyRunning),
            Some(_) => return Err(Reason::InstanceExists),
            None => {}
        }
        let driver = driver?;
        let Some(root) = &self.settings.state else {
            warn!(
                "{}: START of {id}: this agent has no state directory",
                self.settings.node
            );
            return Err(Reason::LaunchFailure);
        };
        let place = store::place(root, id);
        if let Err(what) = check_networking(&start.networking) {
            warn!("{}: START of {id}: {what}", self.settings.node);
            return Err(Reason::NetworkFailure);
        }
        if !self.has_room(&needs, false) {
            return Err(Reason::FullCn);
        }
        let volumes = self.volumes_of(start);
        if !volumes.is_empty() && !self.settings.has_volumes {
            warn!("{}: START of {id}: this node has no volumes", self.settings.node);
            return Err(Reason::ImageFailure);
        }
        let record = Record {
            driver: driver.name().to_owned(),
            ..Record::default()
        };
        self.launch(id, place, driver, Arc::new(payload), record, volumes);
        Ok(())
    }

    fn launch(
        &mut self,
        id: Uuid,
        place: Place,
        driver: Arc<dyn Driver>,
        payload: Arc<StartPayload>,
        record: Record,
        volumes: Vec<(Uuid, bool)>,
    ) {
        let instance = Instance {
            place,
            driver: Some(Arc::clone(&driver)),
            start: Some(Arc::clone(&payload)),
            record: record.clone(),
            phase: Phase::Launching { restart: false },
            volumes: volumes.iter().map(|(volume, _)| *volume).collect(),
            volume_ops: VecDeque::new(),
            usage: Usage::default(),
            restart_untold: false,
        };
        self.instances.insert(id, instance);
        self.job(Job::Launch(Box::new(LaunchJob {
            instance: id,
            driver,
            payload,
            record,
            fresh: true,
            user: self.launcher.child_user.clone(),
            volumes,
        })));
    }

    /// The driver that takes it.
    fn choose(&self, id: Uuid, start: &Start) -> Result<Arc<dyn Driver>, LaunchFault> {
        if self.settings.drivers.is_empty() {
            warn!("{}: START of {id}: this agent only reports", self.settings.node);
        }
        let mut refusals = Vec::new();
        for driver in &self.settings.drivers {
            match driver.check(start) {
                Ok(()) => return Ok(Arc::clone(driver)),
                Err(e) => refusals.push(e),
            }
        }
        let mut fault = LaunchFault::Launch;
        // Only now: that one of several doesn't take it is nothing to tell.
        for e in refusals {
            warn!("{}: START of {id}: {e}", self.settings.node);
            if e.fault != LaunchFault::Launch {
                fault = e.fault;
            }
        }
        Err(fault)
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
            let about = About::of(frame, &e);
            (about.instance_uuid, Reason::from(&e))
        })?;
        let fail = |reason| (stop.instance_uuid.clone(), reason);
        let id = stop.instance_uuid.uuid().ok_or(fail(Reason::InvalidData))?;
        let instance = self.addressed(&stop.workload_agent_uuid, id).map_err(|data| {
            fail(if data {
                Reason::InvalidData
            } else {
                Reason::NoInstance
            })
        })?;
        if self.offline {
            return Err(fail(Reason::NoInstance));
        }
        if !instance.is_running() {
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
            let about = About::of(frame, &e);
            (about.instance_uuid, Reason::from(&e))
        })?;
        let fail = |reason| (delete.instance_uuid.clone(), reason);
        let id = delete.instance_uuid.uuid().ok_or(fail(Reason::InvalidData))?;
        self.addressed(&delete.workload_agent_uuid, id).map_err(|data| {
            fail(if data {
                Reason::InvalidData
            } else {
                Reason::NoInstance
            })
        })?;
        if self.offline {
            return Err(fail(Reason::NoInstance));
        }
        let after = match delete.stop {
            true => RecordAfter::Release,
            false => RecordAfter::Delete,
        };
        self.end(id, after, now);
        Ok(())
    }

    fn restart(&mut self, now: Instant, frame: &Frame) -> Result<(), (Id, RestartFailureReason)> {
        use RestartFailureReason as Reason;

        let restart: Restart = frame.payload().map_err(|e| {
            let about = About::of(frame, &e);
            (about.instance_uuid, Reason::from(&e))
        })?;
        let named = restart.instance_uuid.clone();
        self.restart_payload(now, restart)
            .map_err(|reason| (named, reason))
    }

    fn restart_payload(&mut self, now: Instant, restart: Restart) -> Result<(), RestartFailureReason> {
        use RestartFailureReason as Reason;

        let id = restart.instance_uuid.uuid().ok_or(Reason::InvalidData)?;
        let instance = self.addressed(&restart.workload_agent_uuid, id).map_err(|data| {
            if data {
                Reason::InvalidData
            } else {
                Reason::NoInstance
            }
        })?;
        if self.offline || self.mode != Mode::Normal {
            return Err(Reason::LaunchFailure);
        }
        match instance.phase {
            Phase::Stopped => {}
            Phase::Removing => return Err(Reason::NoInstance),
            _ => return Err(Reason::AlreadyRunning),
        }
        let start = instance.start.as_ref().ok_or(Reason::InstanceCorrupt)?;
        let payload = Arc::new(StartPayload {
            start: restarted(&start.start, restart),
            user_data: start.user_data.clone(),
            meta_data: start.meta_data.clone(),
        });
        let driver = match &instance.driver {
            Some(driver) => Arc::clone(driver),
            None => return Err(Reason::LaunchFailure),
        };
        if let Err(what) = check_networking(&payload.start.networking) {
            warn!("{}: RESTART of {id}: {what}", self.settings.node);
            return Err(Reason::NetworkFailure);
        }
        let needs = Needs::of(&payload.start).map_err(|_| Reason::InvalidData)?;
        if !self.has_room(&needs, true) {
            warn!("{}: RESTART of {id}: there is no room", self.settings.node);
            return Err(Reason::LaunchFailure);
        }
        let user = self.launcher.child_user.clone();
        let Some(instance) = self.instances.get_mut(&id) else {
            return Err(Reason::NoInstance);
        };
        instance.phase = Phase::Launching { restart: true };
        instance.restart_untold = true;
        instance.start = Some(Arc::clone(&payload));
        let record = instance.record.clone();
        self.job(Job::Launch(Box::new(LaunchJob {
            instance: id,
            driver,
            payload,
            record,
            fresh: false,
            user,
            volumes: Vec::new(),
        })));
        self.announce(false);
        self.stats_soon(now);
        Ok(())
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
        match &evacuate.next_state {
            NextState::Maintenance => info!("{}: evacuated", self.settings.node),
            // Who does that is not the agent: it says what it was told.
            next => info!("{}: evacuated, next is {next}", self.settings.node),
        }
        if self.mode == Mode::Normal {
            self.job(Job::SaveNode(NodeRecord { maintenance: true }));
        }
        if self.mode == Mode::Maintenance {
            // Whoever asked again looks at STATS as well.
            self.announce(true);
            self.stats_soon(now);
        } else {
            self.mode = Mode::Evacuating;
            self.evacuate_all(now);
        }
    }

    pub(super) fn evacuate_all(&mut self, now: Instant) {
        let running = self
            .instances
            .iter()
            .filter(|(_, instance)| instance.is_running());
        let running: Vec<_> = running
            .map(|(id, instance)| (*id, instance.is_persistent()))
            .collect();
        for (id, persistent) in running {
            let after = match persistent {
                true => RecordAfter::Evacuate,
                false => RecordAfter::Release,
            };
            self.end(id, after, now);
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
            info!("{}: restored", self.settings.node);
            self.mode = Mode::Normal;
            self.job(Job::SaveNode(NodeRecord::default()));
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
        warn!("{}: {} refused: {refusal}", self.settings.node, frame.kind());
        self.tell(&InvalidFrameType::new(frame.kind(), refusal.into()));
        None
    }

    /// The instance that a command names. Otherwise whether the command makes
    /// no sense, or just is not for what is here.
    fn addressed(&self, node: &Id, id: Uuid) -> Result<&Instance, bool> {
        match node.uuid() {
            None => Err(true),
            Some(node) if node != self.settings.node => Err(false),
            Some(_) => self.instances.get(&id).ok_or(false),
        }
    }

    fn attach(&mut self, frame: &Frame) {
        let read = frame.payload::<AttachVolume>();
        let read = read.map(|p| (p.workload_agent_uuid, p.instance_uuid, p.volume_uuid));
        self.volume_command(frame, read, true);
    }

    fn detach(&mut self, frame: &Frame) {
        let read = frame.payload::<DetachVolume>();
        let read = read.map(|p| (p.workload_agent_uuid, p.instance_uuid, p.volume_uuid));
        self.volume_command(frame, read, false);
    }

    fn volume_command(&mut self, frame: &Frame, read: Result<(Id, Id, Id), Error>, attach: bool) {
        let (instance, volume, result) = match read {
            Ok((node, instance, volume)) => {
                let result = self.volume_op(&node, &instance, &volume, attach);
                (instance, volume, result)
            }
            Err(e) => {
                let about = About::of(frame, &e);
                let refusal = match e.is_malformed() {
                    true => VolumeRefusal::Payload,
                    false => VolumeRefusal::Data,
                };
                (about.instance_uuid, about.volume_uuid, Err(refusal))
            }
        };
        if let Err(refusal) = result {
            self.tell_volume(instance, volume, attach, refusal);
        }
    }

    fn volume_op(
        &mut self,
        node: &Id,
        instance: &Id,
        volume: &Id,
        attach: bool,
    ) -> Result<(), VolumeRefusal> {
        let (Some(id), Some(volume)) = (instance.uuid(), volume.uuid()) else {
            return Err(VolumeRefusal::Data);
        };
        let instance = self.addressed(node, id).map_err(|data| {
            if data {
                VolumeRefusal::Data
            } else {
                VolumeRefusal::NoInstance
            }
        })?;
        if self.offline {
            return Err(VolumeRefusal::Failed);
        }
        if !self.settings.has_volumes {
            return Err(VolumeRefusal::NotSupported);
        }
        if instance.start.is_none() || instance.driver.is_none() {
            return Err(VolumeRefusal::Instance);
        }
        if matches!(instance.phase, Phase::Terminating { .. } | Phase::Removing) {
            return Err(VolumeRefusal::Instance);
        }
        // How it will be once all that waits is done.
        let last = instance.volume_ops.iter().rfind(|op| op.volume == volume);
        let attached = last.map_or(instance.volumes.contains(&volume), |op| op.attach);
        if attached == attach {
            return Err(VolumeRefusal::Already);
        }
        if instance.volume_ops.len() >= MAX_VOLUME_OPS {
            return Err(VolumeRefusal::Failed);
        }
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.volume_ops.push_back(VolumeOp { volume, attach });
            if instance.volume_ops.len() == 1 {
                self.next_volume_op(id);
            }
        }
        Ok(())
    }

    /// Does the first volume command of an instance, unless that has to wait.
    pub(super) fn next_volume_op(&mut self, id: Uuid) {
        let Some(instance) = self.instances.get(&id) else {
            return;
        };
        let Some(op) = instance.volume_ops.front().copied() else {
            return;
        };
        match (instance.phase, &instance.driver) {
            (Phase::Active | Phase::Stopped, Some(driver)) => {
                let (driver, handle) = (Arc::clone(driver), instance.record.handle());
                self.job(Job::Volume {
                    instance: id,
                    driver,
                    handle,
                    op,
                });
            }
            (Phase::Launching { .. }, _) => {}
            _ => self.volume_done(
                id,
                op,
                Err(VolumeError::new(VolumeFault::Instance, "the instance is ending")),
            ),
        }
    }

    pub(super) fn volume_done(&mut self, id: Uuid, op: VolumeOp, result: Result<(), VolumeError>) {
        if let Some(instance) = self.instances.get_mut(&id)
            && instance.volume_ops.front() == Some(&op)
        {
            instance.volume_ops.pop_front();
            match (&result, op.attach) {
                (Ok(()), true) => drop(instance.volumes.insert(op.volume)),
                (Ok(()), false) => drop(instance.volumes.remove(&op.volume)),
                (Err(_), _) => {}
            }
        }
        if let Err(e) = result {
            warn!(
                "{}: volume {} of instance {id}: {e}",
                self.settings.node, op.volume
            );
            let refusal = match e.fault {
                VolumeFault::NotSupported => VolumeRefusal::NotSupported,
                VolumeFault::State => VolumeRefusal::State,
                VolumeFault::Instance => VolumeRefusal::Instance,
                VolumeFault::Failed => VolumeRefusal::Failed,
            };
            self.tell_volume(id.into(), op.volume.into(), op.attach, refusal);
        }
        self.next_volume_op(id);
    }

    fn tell_volume(&mut self, instance_uuid: Id, volume_uuid: Id, attach: bool, refusal: VolumeRefusal) {
        let node_uuid = self.settings.node.into();
        if attach {
            self.tell(&AttachVolumeFailure {
                node_uuid,
                instance_uuid,
                volume_uuid,
                reason: refusal.into(),
            });
        } else {
            self.tell(&DetachVolumeFailure {
                node_uuid,
                instance_uuid,
                volume_uuid,
                reason: refusal.into(),
            });
        }
    }
}

/// Why a volume is not attached or detached.
#[derive(Clone, Copy, Debug)]
enum VolumeRefusal {
    Payload,
    Data,
    NoInstance,
    NotSupported,
    Already,
    State,
    Instance,
    Failed,
}

impl From<VolumeRefusal> for AttachVolumeFailureReason {
    fn from(refusal: VolumeRefusal) -> Self {
        match refusal {
            VolumeRefusal::Payload => Self::InvalidPayload,
            VolumeRefusal::Data => Self::InvalidData,
            VolumeRefusal::NoInstance => Self::NoInstance,
            VolumeRefusal::NotSupported => Self::NotSupported,
            VolumeRefusal::Already => Self::AlreadyAttached,
            VolumeRefusal::State => Self::StateFailure,
            VolumeRefusal::Instance => Self::InstanceFailure,
            VolumeRefusal::Failed => Self::AttachFailure,
        }
    }
}

impl From<VolumeRefusal> for DetachVolumeFailureReason {
    fn from(refusal: VolumeRefusal) -> Self {
        match refusal {
            VolumeRefusal::Payload => Self::InvalidPayload,
            VolumeRefusal::Data => Self::InvalidData,
            VolumeRefusal::NoInstance => Self::NoInstance,
            VolumeRefusal::NotSupported => Self::NotSupported,
            VolumeRefusal::Already => Self::NotAttached,
            VolumeRefusal::State => Self::StateFailure,
            VolumeRefusal::Instance => Self::InstanceFailure,
            VolumeRefusal::Failed => Self::DetachFailure,
        }
    }
}

/// The START of an instance with what a RESTART says anew.
fn restarted(start: &Start, restart: Restart) -> Start {
    let mut start = start.clone();
    let said = &restart.requirements;
    if said.mem_mb != 0 || said.vcpus != 0 {
        start.requirements.mem_mb = said.mem_mb;
        start.requirements.vcpus = said.vcpus;
    }
    if restart.persistence.as_str() != "" {
        start.persistence = restart.persistence;
    }
    if restart.fw_type.as_str() != "" {
        start.fw_type = restart.fw_type;
    }
    if restart.networking != Networking::default() {
        start.networking = restart.networking;
    }
    start
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
struct About {
    instance_uuid: Id,
    volume_uuid: Id,
    restart: bool,
}

impl About {
    fn of(frame: &Frame, error: &Error) -> Self {
        warn!("{} refused: {error}", frame.kind());
        yaml::documents(frame.payload_bytes())
            .take(3)
            .filter_map(|document| yaml::decode::<BTreeMap<String, Self>>(document.bytes).ok())
            .find_map(|roots| roots.into_values().find(|about| !about.instance_uuid.is_empty()))
            .unwrap_or_default()
    }
}
