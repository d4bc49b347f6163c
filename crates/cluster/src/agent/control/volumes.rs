//! AttachVolume and DetachVolume. Those of one instance are done one after
//! the other; while it launches, they wait.

use std::sync::Arc;

use uuid::Uuid;

use super::commands::Misaddressed;
use super::{Control, Job, MAX_VOLUME_OPS, Phase, VolumeOp};
use crate::agent::driver::{VolumeError, VolumeFault};
use ssntp::payload::{
    AttachVolume, AttachVolumeFailure, AttachVolumeFailureReason, DetachVolume, DetachVolumeFailure,
    DetachVolumeFailureReason, Error, Id, Start,
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
        let instance = self.addressed(node, id).map_err(|refused| match refused {
            Misaddressed::NoNode => VolumeRefusal::Data,
            Misaddressed::NotHere => VolumeRefusal::NoInstance,
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
            let why = format_args!("volume {} of instance {id}: {e}", op.volume);
            self.complain("volume", why);
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

/// The volumes that go with an instance.
pub(crate) fn ephemeral(start: &Start) -> Vec<Uuid> {
    let go = start
        .storage
        .iter()
        .filter(|storage| storage.ephemeral && !storage.boot);
    go.filter_map(|storage| storage.id.uuid()).collect()
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
