//! AttachVolume and DetachVolume. Those of one instance are done one after
//! the other; while it launches, they wait.

use std::sync::Arc;

use uuid::Uuid;

use super::{Control, Job, Life, MAX_VOLUME_OPS, VolumeOp};
use crate::agent::driver::{VolumeError, VolumeFault};
use ssntp::payload::{
    AttachVolume, AttachVolumeFailure, AttachVolumeFailureReason as Reason, DetachVolume,
    DetachVolumeFailure, DetachVolumeFailureReason, Error, Id, Start,
};
use ssntp::proto::Frame;

impl Control {
    pub(super) fn attach(&mut self, frame: &Frame) {
        let read = frame.payload::<AttachVolume>();
        let read = read.map(|p| (p.workload_agent_uuid, p.instance_uuid, p.volume_uuid));
        self.volume_command(frame, read, true);
    }

    pub(super) fn detach(&mut self, frame: &Frame) {
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
                let about = self.unreadable(frame, &e);
                (about.instance_uuid, about.volume_uuid, Err(Reason::from(&e)))
            }
        };
        if let Err(reason) = result {
            self.tell_volume(instance, volume, attach, reason);
        }
    }

    fn volume_op(&mut self, node: &Id, instance: &Id, volume: &Id, attach: bool) -> Result<(), Reason> {
        let (Some(id), Some(volume)) = (instance.uuid(), volume.uuid()) else {
            return Err(Reason::InvalidData);
        };
        let instance = self.addressed(node, id)?;
        if self.offline {
            return Err(Reason::AttachFailure);
        }
        if !self.settings.has_volumes {
            return Err(Reason::NotSupported);
        }
        let is_ending = matches!(instance.life, Life::Terminating { .. } | Life::Removing(_));
        if is_ending || instance.start.is_none() || instance.driver.is_none() {
            return Err(Reason::InstanceFailure);
        }
        // Whether it is attached once all waiting commands are done.
        let last = instance.volume_ops.iter().rfind(|op| op.volume == volume);
        let attached = last.map_or(instance.volumes.contains(&volume), |op| op.attach);
        if attached == attach {
            return Err(Reason::AlreadyAttached);
        }
        // A volume command can block on a machine, so a controller could queue any number.
        if instance.volume_ops.len() >= MAX_VOLUME_OPS {
            return Err(Reason::AttachFailure);
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
            let reason = match e.fault {
                VolumeFault::NotSupported => Reason::NotSupported,
                VolumeFault::State => Reason::StateFailure,
                VolumeFault::Instance => Reason::InstanceFailure,
                VolumeFault::Failed => Reason::AttachFailure,
            };
            self.tell_volume(id.into(), op.volume.into(), op.attach, reason);
        }
        self.next_volume_op(id);
    }

    fn tell_volume(&mut self, instance_uuid: Id, volume_uuid: Id, attach: bool, reason: Reason) {
        let node_uuid = self.settings.node.into();
        if attach {
            self.tell(&AttachVolumeFailure {
                node_uuid,
                instance_uuid,
                volume_uuid,
                reason,
            });
        } else {
            self.tell(&DetachVolumeFailure {
                node_uuid,
                instance_uuid,
                volume_uuid,
                reason: detach_reason(&reason),
            });
        }
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

/// The reason of a DetachVolumeFailure, which has a name of its own for some of them.
fn detach_reason(reason: &Reason) -> DetachVolumeFailureReason {
    match reason {
        Reason::AlreadyAttached => DetachVolumeFailureReason::NotAttached,
        Reason::AttachFailure => DetachVolumeFailureReason::DetachFailure,
        other => other.as_str().into(),
    }
}
