//! The effect of each command, and the failures that answer it.
//!
//! If several reasons apply, the answer names the first one of this list.
//!
//! | command | reason | when |
//! |---|---|---|
//! | START | `invalid_payload`, `invalid_data` | the payload is invalid, or no driver could run such an instance |
//! | | `launch_failure` | the node is OFFLINE, or has no state directory, or no driver for the instance |
//! | | `node_maintenance` | the node is evacuated: from EVACUATE to Restore |
//! | | `already_running`, `instance_exists` | the node has an instance of this UUID, which runs or has ended |
//! | | `launch_failure`, `image_failure`, `full_cn` | the node's policy does not allow the instance |
//! | | `network_failure` | the networking is invalid |
//! | | `full_cn` | memory, disk, the number of instances or the state directory has no room |
//! | | `image_failure` | an image or a volume does not exist |
//! | | `launch_failure` | the driver could not launch the instance |
//! | STOP | `no_instance` | the node does not have the instance, or is OFFLINE |
//! | | `already_stopped` | the instance has ended already |
//! | RESTART | `no_instance` | the node does not have the instance |
//! | | `launch_failure` | the node is OFFLINE, in maintenance or full, or the driver could not launch the instance |
//! | | `already_running` | the instance has not ended |
//! | | `instance_corrupt` | the START of the instance is lost |
//! | | `network_failure` | the networking is invalid, or could not be set up |
//! | DELETE | `no_instance` | the node does not have the instance, or is OFFLINE |
//! | | `invalid_data` | the record can't be removed, or the instance may run and this agent lacks its driver: the instance is unchanged |
//! | AttachVolume, DetachVolume | `no_instance` | the node does not have the instance |
//! | | `attach_failure`, `detach_failure` | the node is OFFLINE, the volume does not exist, or too many volume commands wait |
//! | | `not_supported` | the node has no volumes, or the driver supports none |
//! | | `instance_failure` | the instance is ending, its START is lost, or the machine refuses the volume |
//! | | `already_attached`, `not_attached` | the volume is attached already, or is not attached |
//! | | `state_failure` | the change can't be written to disk |
//!
//! A command that names another node is answered with `no_instance`; START names no node.
//! EVACUATE and Restore have no failure frame: an invalid one is answered with InvalidFrameType,
//! as by the scheduler.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use log::{debug, info};
use uuid::Uuid;

use super::refusals::{check_networking, unsupported};
use super::{Cause, Control, Instance, Job, LaunchJob, Life, Mode, Origin};
use crate::driver::{Cancel, Driver, LaunchError, LaunchFault};
use crate::store::{self, NodeRecord, Record, RecordAfter};
use ssntp::payload::Id;
use ssntp::proto::{Command, Frame};
use ssntp_cluster::Needs;
use ssntp_cluster::refusal::{self, Refused};
use ssntp_payload::{
    CommandSubject, Delete, Evacuate, NextState, Restart, Restore, Start, StartPayload, Stop, Storage,
};
use ssntp_transport::excerpt;

impl Control {
    pub(super) fn command(&mut self, frame: &Frame) {
        let command = Command(frame.kind().operand);
        let result = match command {
            Command::START => self.start(frame),
            Command::STOP => self.stop(frame),
            Command::RESTART => self.restart(frame),
            Command::DELETE => self.delete(frame),
            Command::EVACUATE => self.evacuate(frame),
            Command::RESTORE => self.restore(frame),
            Command::ATTACH_VOLUME => self.attach(frame),
            Command::DETACH_VOLUME => self.detach(frame),
            Command::CONFIGURE => {
                self.configure(frame.payload_bytes());
                self.announce(false);
                Ok(())
            }
            _ if frame.kind().is_of_streams() => self.stream(frame),
            _ => {
                debug!("{}: {command} is not for agents", self.settings.node);
                Ok(())
            }
        };
        if let Err(refused) = result {
            let subject = CommandSubject::of(frame);
            let kind = frame.kind().name().unwrap_or("refused");
            let about = excerpt(&subject.instance_uuid);
            self.complain(kind, format_args!("{command} {about} refused: {refused}"));
            self.fail(command, subject, &refused);
        }
        if command == Command::START {
            // A scheduler with the strict policy sends the next START only after this status.
            self.announce(true);
            self.stats_soon();
        }
    }

    /// Answers a command that was not carried out.
    pub(super) fn fail(&mut self, command: Command, mut subject: CommandSubject, refused: &Refused) {
        subject.node_uuid = self.settings.node.into();
        let instance = subject.instance_uuid.clone();
        let Some(failure) = refusal::failure(command, subject, refused) else {
            return self.report(refusal::invalid_frame(command.into(), refused.word));
        };
        if command == Command::START {
            self.start_failed(instance, refused.word, failure.clone());
        }
        self.report(failure);
    }

    fn start(&mut self, frame: &Frame) -> Result<(), Refused> {
        let mut payload: StartPayload = frame.payload()?;
        store::name_own_volumes(&mut payload.start);
        let id = payload.start.instance_uuid;
        // This START replaces an earlier one that failed, so the earlier failure is not reported again.
        self.failed.retain(|failed| failed.instance != id);
        // A copy, so that the other frames in the same buffer are not kept in memory.
        let received = Bytes::copy_from_slice(frame.payload_bytes());
        let start = &payload.start;
        let needs = Needs::of(start).map_err(|path| Refused::invalid(format!("{path} is below zero")))?;
        // An empty name stands for a volume that is made and deleted with the instance.
        let is_name =
            |storage: &Storage| storage.boot || storage.id.is_empty() || storage.id.uuid().is_some();
        if !start.storage.iter().all(is_name) {
            return Err(Refused::invalid("a volume's name is not a UUID"));
        }
        let volumes = Self::volumes_of(start);
        let is_twice =
            |(n, (id, _)): (usize, &(Uuid, bool))| volumes.iter().take(n).any(|(other, _)| other == id);
        // To attach the second one would fail, because the link of the volume exists already.
        if volumes.iter().enumerate().any(is_twice) {
            return Err(Refused::invalid("a volume is listed twice"));
        }
        // Faults of the START come before the state of the node, because the START would fail on
        // any other node as well.
        let driver = match self.choose(start) {
            Err(e) if e.fault == LaunchFault::Data => return Err(e.into()),
            driver => driver,
        };
        if self.offline {
            return Err(Refused::new("launch_failure", "the node is OFFLINE"));
        }
        if self.mode != Mode::Normal {
            return Err("node_maintenance".into());
        }
        match self.instances.get(&id) {
            Some(instance) if instance.is_running() => return Err("already_running".into()),
            Some(_) => return Err("instance_exists".into()),
            None => {}
        }
        // The error that no driver takes the START comes only now, because the reasons above come
        // first in the list.
        let driver = driver?;
        self.settings.policy.check(driver.name(), start)?;
        if let Some(what) = unsupported(start) {
            return Err(Refused::new("launch_failure", what));
        }
        // An instance without a record would be lost when the agent ends.
        let Some(root) = &self.settings.state else {
            let why = "this agent has no state directory";
            return Err(Refused::new("launch_failure", why));
        };
        let place = store::place(root, id);
        check_networking(start, self.settings.network.as_deref())
            .map_err(|why| Refused::new("network_failure", why))?;
        if !self.has_room(&needs, false) {
            return Err("full_cn".into());
        }
        if !volumes.is_empty() && !self.settings.has_volumes {
            return Err(Refused::new("image_failure", "this node has no volumes"));
        }
        let record = Record {
            driver: driver.name().to_owned(),
            ..Record::default()
        };
        let instance = Instance {
            driver: Some(driver),
            start: Some(Arc::new(payload)),
            command_id: CommandSubject::of(frame).command_id,
            volumes: volumes.iter().map(|(volume, _)| *volume).collect(),
            ..Instance::new(place, record, Life::Launching(Cause::Start), self.now)
        };
        self.instances.insert(id, instance);
        self.launch(id, Origin::Start(received), volumes);
        Ok(())
    }

    /// Gives the workers the job that launches an instance. The state of the instance is
    /// `Launching` already.
    fn launch(&mut self, id: Uuid, origin: Origin, volumes: Vec<(Uuid, bool)>) {
        let Some(instance) = self.instances.get(&id) else {
            return;
        };
        let (Some(driver), Some(payload)) = (instance.driver.clone(), instance.start.clone()) else {
            return;
        };
        let (record, cancel) = (instance.record(), instance.cancel.clone());
        self.job(Job::Launch(Box::new(LaunchJob {
            instance: id,
            driver,
            payload,
            record,
            origin,
            user: self.launcher.child_user.clone(),
            volumes,
            cancel,
            network: self.settings.network.clone(),
        })));
    }

    /// The first driver that accepts a START; if no driver does, the reasons of all drivers.
    fn choose(&self, start: &Start) -> Result<Arc<dyn Driver>, LaunchError> {
        let mut refused = LaunchError::launch("");
        for driver in &self.settings.drivers {
            match driver.check(start) {
                Ok(()) => return Ok(Arc::clone(driver)),
                // This driver would run it if it were right, so what the others run does not matter.
                Err(e) if e.fault != LaunchFault::Launch => refused = e,
                Err(e) if refused.fault == LaunchFault::Launch => {
                    let separator = if refused.why.is_empty() { "" } else { "; " };
                    refused.why = format!("{}{separator}{}", refused.why, e.why);
                }
                Err(_) => {}
            }
        }
        if self.settings.drivers.is_empty() {
            refused.why = "this agent has no drivers".into();
        }
        Err(refused)
    }

    /// The volumes that a START attaches; the flag is true if the volume may be made. The driver
    /// handles the volumes to boot from.
    fn volumes_of(start: &Start) -> Vec<(Uuid, bool)> {
        let attached = start.storage.iter().filter(|storage| !storage.boot);
        attached
            .filter_map(|storage| Some((storage.id.uuid()?, storage.local)))
            .collect()
    }

    fn stop(&mut self, frame: &Frame) -> Result<(), Refused> {
        let stop: Stop = frame.payload()?;
        let (id, instance) = self.target(&stop.workload_agent_uuid, &stop.instance_uuid)?;
        if !instance.can_be_stopped() {
            return Err("already_stopped".into());
        }
        let after = match instance.is_persistent() {
            true => RecordAfter::Keep,
            false => RecordAfter::Delete,
        };
        self.end(id, after);
        Ok(())
    }

    fn delete(&mut self, frame: &Frame) -> Result<(), Refused> {
        let delete: Delete = frame.payload()?;
        let (id, instance) = self.target(&delete.workload_agent_uuid, &delete.instance_uuid)?;
        // The instance may run. If its files were deleted, no agent could find its processes.
        if instance.is_out_of_reach() {
            return Err(Refused::invalid(
                "it may run, and this agent does not have its driver",
            ));
        }
        let after = match delete.stop {
            true => RecordAfter::Release,
            false => RecordAfter::Delete,
        };
        self.end(id, after);
        Ok(())
    }

    /// The instance of this node that a STOP or DELETE names.
    fn target(&self, node: &Id, instance: &Id) -> Result<(Uuid, &Instance), Refused> {
        match self.addressed(node, instance)? {
            // A node that is OFFLINE acts as if it had no instances.
            _ if self.offline => Err("no_instance".into()),
            found => Ok(found),
        }
    }

    fn restart(&mut self, frame: &Frame) -> Result<(), Refused> {
        let restart: Restart = frame.payload()?;
        let (id, instance) = self.addressed(&restart.workload_agent_uuid, &restart.instance_uuid)?;
        if self.offline || self.mode != Mode::Normal {
            let why = "the node is OFFLINE or in maintenance";
            return Err(Refused::new("launch_failure", why));
        }
        match instance.life {
            Life::Stopped(_) => {}
            Life::Removing(_) => return Err("no_instance".into()),
            _ => return Err("already_running".into()),
        }
        let start = instance.start.as_ref().ok_or("instance_corrupt")?;
        let before = Arc::clone(start);
        let payload = Arc::new(StartPayload {
            start: store::restarted(&start.start, restart),
            user_data: start.user_data.clone(),
            meta_data: start.meta_data.clone(),
        });
        let Some(driver) = &instance.driver else {
            let why = "this agent has no driver for it";
            return Err(Refused::new("launch_failure", why));
        };
        self.settings.policy.check(driver.name(), &payload.start)?;
        check_networking(&payload.start, self.settings.network.as_deref())
            .map_err(|why| Refused::new("network_failure", why))?;
        let needs = Needs::of(&payload.start).map_err(|_| "invalid_data")?;
        if !self.has_room(&needs, true) {
            return Err(Refused::new("launch_failure", "the node has no room for it"));
        }
        let Some(instance) = self.instances.get_mut(&id) else {
            return Err("no_instance".into());
        };
        // The last STATS said `exited`. If the instance ends before the next STATS, `ended` sends
        // STATS first.
        instance.restart_unreported = true;
        instance.command_id = CommandSubject::of(frame).command_id;
        // This run was commanded, so its restarts are counted from the beginning.
        instance.record.restarts_in_row = 0;
        // Only the changes are written, because the START is kept as it was received.
        let changes = store::changes(&before.start, &payload.start).map(Box::new);
        self.launch_again(id, Cause::Restart, payload, changes);
        self.stats_soon();
        Ok(())
    }

    /// Launches an instance of this node again. `changes` are those of a RESTART to its START.
    pub(super) fn launch_again(
        &mut self,
        id: Uuid,
        cause: Cause,
        payload: Arc<StartPayload>,
        changes: Option<Box<Restart>>,
    ) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        instance.life = Life::Launching(cause);
        instance.start = Some(payload);
        // The flag of an earlier launch may be set, and must not cancel this one.
        instance.cancel = Cancel::default();
        self.launch(id, Origin::Again(changes), Vec::new());
        // The launch reduces the free memory, and may change the status of the node.
        self.announce(false);
    }

    fn evacuate(&mut self, frame: &Frame) -> Result<(), Refused> {
        let evacuate: Evacuate = frame.payload()?;
        self.is_this(&evacuate.workload_agent_uuid)?;
        if self.offline {
            self.announce(true);
            self.stats_soon();
            return Ok(());
        }
        if let Some(more) = self.log.admit((), "evacuated", self.now) {
            let next = excerpt(&evacuate.next_state);
            info!("{}: evacuated, next is {next}{more}", self.settings.node);
        }
        // A later EVACUATE wins, even while an earlier one is under way, or its next state waits for
        // the node's record to be saved.
        self.next_state = evacuate.next_state;
        self.reached = None;
        let is_empty = self.mode == Mode::Maintenance;
        if !is_empty {
            self.mode = Mode::Evacuating;
        }
        self.save_node();
        if is_empty {
            // This EVACUATE is a repetition. Its sender waits for the status, so it is sent again.
            self.announce(true);
            self.stats_soon();
            self.reach_next_state();
        } else {
            let within = match evacuate.deadline {
                // 0 means that EVACUATE sets no deadline.
                0 => self.settings.grace,
                seconds => Duration::from_secs(seconds.into()),
            };
            self.evacuate_all(within);
        }
        Ok(())
    }

    /// Saves the node's record, and then reports the next state of the machine that waits for it, if
    /// there is one.
    pub(super) fn save_node(&mut self) {
        let record = NodeRecord {
            // An evacuation under way counts as maintenance, so the next agent continues it.
            maintenance: self.mode != Mode::Normal,
            next_state: self.next_state.clone(),
            offline: self.offline,
        };
        self.job(Job::SaveNode(record, self.reached.clone()));
    }

    /// Reports the next state of the machine to the agent's owner. That it was reported is recorded
    /// first, because otherwise the next agent of a machine that was rebooted would report `reboot`
    /// again.
    pub(super) fn reach_next_state(&mut self) {
        match std::mem::take(&mut self.next_state) {
            NextState::Maintenance => {}
            next => {
                self.reached = Some(next);
                self.save_node();
            }
        }
    }

    /// Asks all instances to end, and kills those that have not ended within this time.
    pub(super) fn evacuate_all(&mut self, within: Duration) {
        let instances = self.instances.iter();
        let running = instances.filter(|(_, instance)| instance.can_be_stopped());
        // Collected first, because `end_within` changes the instances.
        let running: Vec<_> = running
            .map(|(id, instance)| (*id, instance.is_persistent()))
            .collect();
        for (id, persistent) in running {
            let after = match persistent {
                true => RecordAfter::Evacuate,
                false => RecordAfter::Release,
            };
            self.end_within(id, after, within);
        }
    }

    fn restore(&mut self, frame: &Frame) -> Result<(), Refused> {
        self.is_this(&frame.payload::<Restore>()?.workload_agent_uuid)?;
        if !self.offline && self.mode != Mode::Normal {
            if let Some(more) = self.log.admit((), "restored", self.now) {
                info!("{}: restored{more}", self.settings.node);
            }
            self.mode = Mode::Normal;
            self.next_state = NextState::Maintenance;
            self.reached = None;
            self.save_node();
        }
        // The status answers Restore, so it is sent even if nothing has changed.
        self.announce(true);
        self.stats_soon();
        Ok(())
    }

    /// Checks that a command for a whole node is for this node.
    fn is_this(&self, node: &Id) -> Result<(), Refused> {
        match *node == self.settings.node {
            true => Ok(()),
            false => Err("invalid_data".into()),
        }
    }

    /// The instance that a command names.
    pub(super) fn addressed(&self, node: &Id, instance: &Id) -> Result<(Uuid, &Instance), Refused> {
        let (Some(node), Some(id)) = (node.uuid(), instance.uuid()) else {
            return Err("invalid_data".into());
        };
        let found = self.instances.get(&id).filter(|_| node == self.settings.node);
        Ok((id, found.ok_or("no_instance")?))
    }
}
