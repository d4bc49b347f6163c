//! A START that has been read: the facts that placement and a move need.

use std::time::Instant;

use uuid::Uuid;

use ssntp::payload;
use ssntp::payload::yaml::{self, ErrorKind};
use ssntp::proto::Frame;
use ssntp_cluster::Needs;
use ssntp_payload::{CommandSubject, Persistence, Reason, RestartPolicy, Start, StartFailure, Storage};

/// A START that has been read, and that has not been sent to a node yet.
#[derive(Debug)]
pub(super) struct UnplacedStart {
    pub(super) frame: Frame,
    pub(super) needs: Needs,
    pub(super) instance: Uuid,
    pub(super) restart: bool,
    /// The controller that sent it.
    pub(super) from: Uuid,
    /// The time of its arrival.
    pub(super) received: Instant,
    /// The reason why the instance cannot run on another node than its first one; `None` if it can.
    pub(super) immovable: Option<Reason>,
    /// The number of nodes to which it was sent.
    pub(super) nodes: u8,
    /// True if its node restarts the instance by itself.
    pub(super) restarts: bool,
    /// True if it names a tenant, and no network of it.
    pub(super) lacks_address: bool,
}

impl UnplacedStart {
    pub(super) fn read(from: Uuid, frame: Frame, now: Instant) -> Result<Self, payload::Error> {
        let start: Start = frame.payload()?;
        let needs = Needs::of(&start).map_err(|path| {
            let below = ErrorKind::Invalid(format!("{path} is below zero"));
            payload::Error::from(yaml::Error::new(below))
        })?;
        Ok(Self {
            frame,
            needs,
            instance: start.instance_uuid,
            restart: start.restart,
            from,
            received: now,
            nodes: 0,
            immovable: immovable(&start),
            restarts: start.restart_policy != RestartPolicy::Never,
            lacks_address: !start.tenant_uuid.is_empty()
                && start.networking.concentrator_uuid.is_empty()
                && start.networking.subnet.is_empty(),
        })
    }

    pub(super) fn failure(&self, reason: Reason) -> StartFailure {
        StartFailure {
            instance_uuid: self.instance.into(),
            reason,
            restart: self.restart,
            command_id: CommandSubject::of(&self.frame).command_id,
            ..StartFailure::default()
        }
    }
}

fn immovable(start: &Start) -> Option<Reason> {
    let wanted = &start.requirements;
    // A volume that is made on the node and deleted with the instance can be made elsewhere.
    let is_movable =
        |storage: &Storage| storage.boot || storage.id.is_empty() || (storage.local && storage.ephemeral);
    // A persistent instance keeps its disk, which is on that node.
    if start.persistence != Persistence::Unset {
        Some(Reason::NotMovedPersistent)
    } else if !start.storage.iter().all(is_movable) {
        Some(Reason::NotMovedStorage)
    } else if !wanted.node_id.is_empty() || !wanted.hostname.is_empty() {
        Some(Reason::NotMovedBound)
    } else {
        None
    }
}
