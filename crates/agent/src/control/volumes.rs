//! The volumes of an instance, and its volume commands, which are done one after the other.

use std::collections::{BTreeSet, VecDeque};

use ssntp::payload::Id;
use ssntp::proto::Command;
use ssntp_cluster::refusal::{Reason, Refused};
use ssntp_payload::{CommandSubject, Start, Storage};
use uuid::Uuid;

use super::events::VolumeOp;
use super::outputs::{Outputs, subject};

/// The maximum number of volume commands of one instance that wait or are under way.
pub(super) const MAX_VOLUME_OPS: usize = 16;

/// The volumes of an instance.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    attached: BTreeSet<Uuid>,
    /// Volume commands in the order of their arrival. A worker does the first one.
    ops: VecDeque<VolumeOp>,
}

impl Volumes {
    pub(super) fn new(attached: BTreeSet<Uuid>) -> Self {
        let ops = VecDeque::new();
        Self { attached, ops }
    }

    /// The attached volumes, as STATS list them.
    pub(super) fn ids(&self) -> Vec<Id> {
        self.attached.iter().map(|volume| Id::from(*volume)).collect()
    }

    /// The command that is done first.
    pub(super) fn next(&self) -> Option<VolumeOp> {
        self.ops.front().copied()
    }

    /// Adds a command. True if it is the first one, and can begin.
    ///
    /// # Errors
    /// The volume is attached already, or is not, or too many commands wait.
    pub(super) fn handle_op(&mut self, op: VolumeOp) -> Result<bool, Refused> {
        // True if the volume will be attached once all waiting commands are done.
        let last = self.ops.iter().rfind(|other| other.volume == op.volume);
        let attached = last.map_or(self.attached.contains(&op.volume), |other| other.attach);
        if attached == op.attach {
            // For DetachVolume, the failure turns this reason into `not_attached`.
            return Err(Reason::AlreadyAttached.into());
        }
        // A volume command waits for the system in a machine, so without a limit a controller could
        // queue any number of them.
        if self.ops.len() >= MAX_VOLUME_OPS {
            return Err(Reason::AttachFailure.into());
        }
        self.ops.push_back(op);
        Ok(self.ops.len() == 1)
    }

    /// The first command is done. If the instance was deleted and started anew since, the command
    /// belonged to the former one and changes nothing.
    pub(super) fn handle_done(&mut self, op: VolumeOp, is_done: bool) {
        if self.next() != Some(op) {
            return;
        }
        self.ops.pop_front();
        if is_done && op.attach {
            self.attached.insert(op.volume);
        } else if is_done {
            self.attached.remove(&op.volume);
        }
    }
}

impl VolumeOp {
    /// Answers the command of an instance with its failure.
    pub(super) fn refuse(self, instance: Uuid, why: &Refused, out: &mut Outputs) {
        let line = format_args!("volume {} of instance {instance}: {why}", self.volume);
        out.complain("volume", line);
        let command = if self.attach {
            Command::ATTACH_VOLUME
        } else {
            Command::DETACH_VOLUME
        };
        let subject = CommandSubject {
            volume_uuid: self.volume.into(),
            ..subject(instance)
        };
        out.fail(command, subject, why);
    }
}

/// The volumes that a START attaches; the flag is true if the volume may be made. The driver handles the
/// volumes to boot from.
///
/// # Errors
/// The name of a volume is invalid, or a volume is listed twice.
pub(super) fn asked_by(start: &Start) -> Result<Vec<(Uuid, bool)>, Refused> {
    // An empty name stands for a volume that is made and deleted with the instance.
    let is_name = |storage: &Storage| storage.boot || storage.id.is_empty() || storage.id.uuid().is_some();
    if !start.storage.iter().all(is_name) {
        return Err(Refused::invalid("a volume's name is not a UUID"));
    }
    let asked = start.storage.iter().filter(|storage| !storage.boot);
    let volumes: Vec<_> = asked
        .filter_map(|storage| Some((storage.id.uuid()?, storage.local)))
        .collect();
    // To attach the second one would fail, because the link of the volume exists already.
    let ids: BTreeSet<_> = volumes.iter().map(|(id, _)| id).collect();
    if ids.len() < volumes.len() {
        return Err(Refused::invalid("a volume is listed twice"));
    }
    Ok(volumes)
}

/// The volumes that are deleted with an instance.
pub(crate) fn ephemeral(start: &Start) -> Vec<Uuid> {
    let deleted = start
        .storage
        .iter()
        .filter(|storage| storage.ephemeral && !storage.boot);
    deleted.filter_map(|storage| storage.id.uuid()).collect()
}
