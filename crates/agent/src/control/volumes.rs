//! AttachVolume and DetachVolume. The volume commands of one instance are done one after the other,
//! and wait while the instance is launched.

use std::sync::Arc;

use uuid::Uuid;

use super::lifecycle::subject;
use super::{Control, Job, Life, MAX_VOLUME_OPS, VolumeOp};
use crate::driver::{VolumeError, VolumeFault};
use ssntp::payload::Id;
use ssntp::proto::{Command, Frame};
use ssntp_cluster::refusal::Refused;
use ssntp_payload::{AttachVolume, CommandSubject, DetachVolume, Start};

impl Control {
    pub(super) fn attach(&mut self, frame: &Frame) -> Result<(), Refused> {
        let p: AttachVolume = frame.payload()?;
        self.volume_op(&p.workload_agent_uuid, &p.instance_uuid, &p.volume_uuid, true)
    }

    pub(super) fn detach(&mut self, frame: &Frame) -> Result<(), Refused> {
        let p: DetachVolume = frame.payload()?;
        self.volume_op(&p.workload_agent_uuid, &p.instance_uuid, &p.volume_uuid, false)
    }

    fn volume_op(&mut self, node: &Id, instance: &Id, volume: &Id, attach: bool) -> Result<(), Refused> {
        let volume = volume.uuid().ok_or("invalid_data")?;
        let (id, instance) = self.addressed(node, instance)?;
        if self.offline {
            return Err("attach_failure".into());
        }
        if !self.settings.has_volumes {
            return Err("not_supported".into());
        }
        let is_ending = matches!(instance.life, Life::Terminating(_) | Life::Removing(_));
        if is_ending || instance.start.is_none() || instance.driver.is_none() {
            return Err("instance_failure".into());
        }
        // True if the volume will be attached once all waiting commands are done.
        let last = instance.volume_ops.iter().rfind(|op| op.volume == volume);
        let attached = last.map_or(instance.volumes.contains(&volume), |op| op.attach);
        if attached == attach {
            // For DetachVolume, `fail` turns this reason into `not_attached`.
            return Err("already_attached".into());
        }
        // A volume command waits for the system in a machine, so without a limit a controller could
        // queue any number of them.
        if instance.volume_ops.len() >= MAX_VOLUME_OPS {
            return Err("attach_failure".into());
        }
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.volume_ops.push_back(VolumeOp { volume, attach });
            // If others wait before it, `volume_done` begins it.
            if instance.volume_ops.len() == 1 {
                self.next_volume_op(id);
            }
        }
        Ok(())
    }

    /// Begins the first volume command of an instance, unless it has to wait for the launch.
    pub(super) fn next_volume_op(&mut self, id: Uuid) {
        let Some(instance) = self.instances.get(&id) else {
            return;
        };
        let Some(op) = instance.volume_ops.front().copied() else {
            return;
        };
        match (instance.life, &instance.driver) {
            (Life::Active | Life::Stopped(_), Some(driver)) => {
                let (driver, handle) = (Arc::clone(driver), instance.record.handle());
                self.job(Job::Volume {
                    instance: id,
                    driver,
                    handle,
                    op,
                });
            }
            // `launched` and `not_launched` call this function again.
            (Life::Launching(_), _) => {}
            _ => self.volume_done(
                id,
                op,
                Err(VolumeError::new(VolumeFault::Instance, "the instance is ending")),
            ),
        }
    }

    pub(super) fn volume_done(&mut self, id: Uuid, op: VolumeOp, result: Result<(), VolumeError>) {
        if let Some(instance) = self.instances.get_mut(&id)
            // If the instance was deleted and started anew since, the command belonged to the former
            // one.
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
            let why = format_args!("volume {} of instance {id}: {e}", op.volume);
            self.complain("volume", why);
            let word = match e.fault {
                VolumeFault::NotSupported => "not_supported",
                VolumeFault::State => "state_failure",
                VolumeFault::Instance => "instance_failure",
                VolumeFault::Failed => "attach_failure",
            };
            let command = match op.attach {
                true => Command::ATTACH_VOLUME,
                false => Command::DETACH_VOLUME,
            };
            let subject = CommandSubject {
                volume_uuid: op.volume.into(),
                ..subject(id)
            };
            self.fail(command, subject, &word.into());
        }
        self.next_volume_op(id);
    }
}

/// The volumes that are deleted with an instance.
pub(crate) fn ephemeral(start: &Start) -> Vec<Uuid> {
    let go = start
        .storage
        .iter()
        .filter(|storage| storage.ephemeral && !storage.boot);
    go.filter_map(|storage| storage.id.uuid()).collect()
}
