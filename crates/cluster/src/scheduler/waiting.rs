//! A START that has been read: what placement needs, and what a move needs.

use std::time::Instant;

use bytes::Bytes;
use uuid::Uuid;

use super::placement::Needs;
use ssntp::payload::yaml::{self, ErrorKind};
use ssntp::payload::{
    self, CommandSubject, Persistence, RestartPolicy, Start, StartFailure, StartFailureReason, Storage,
};
use ssntp::proto::{Command, Frame};

/// Why an instance cannot be moved, as StartFailure says it.
const PERSISTENT: &str = "not_moved_persistent";
const STORAGE: &str = "not_moved_storage";
const BOUND: &str = "not_moved_bound";

/// A START that has been read, and that no node was given yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) frame: Frame,
    pub(super) needs: Needs,
    pub(super) instance: Uuid,
    pub(super) restart: bool,
    /// The controller.
    pub(super) from: Uuid,
    /// When it came.
    pub(super) received: Instant,
    /// Why it can run on no other node than its first one; none if it can.
    pub(super) stays: Option<&'static str>,
    /// How many nodes it was sent to.
    pub(super) nodes: u8,
    /// Whether its node starts it again by itself.
    pub(super) restarts: bool,
}

impl Waiting {
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
            // `give` counts each node that it is sent to.
            nodes: 0,
            stays: stays(&start),
            restarts: start.restart_policy != RestartPolicy::Never,
        })
    }

    /// Copies the payload, which is a piece of a longer read, so that waiting does not keep
    /// the whole read in memory.
    pub(super) fn detach(&mut self) {
        let payload = Bytes::copy_from_slice(self.frame.payload_bytes());
        let mut own = Frame::with_payload(Command::START, payload);
        if let Some(trace) = self.frame.take_trace() {
            own = own.traced(trace);
        }
        self.frame = own;
    }

    pub(super) fn failure(&self, reason: StartFailureReason) -> StartFailure {
        StartFailure {
            instance_uuid: self.instance.into(),
            reason,
            restart: self.restart,
            command_id: CommandSubject::of(&self.frame).command_id,
            ..StartFailure::default()
        }
    }
}

/// Why an instance can run on no other node than its first one; none if it can.
fn stays(start: &Start) -> Option<&'static str> {
    let wanted = &start.requirements;
    // A volume that is made on the node and goes with the instance can be made elsewhere.
    let moves =
        |storage: &Storage| storage.boot || storage.id.is_empty() || (storage.local && storage.ephemeral);
    // A persistent instance keeps its disk, which is on that node.
    if start.persistence != Persistence::Unset {
        Some(PERSISTENT)
    } else if !start.storage.iter().all(moves) {
        Some(STORAGE)
    } else if !wanted.node_id.is_empty() || !wanted.hostname.is_empty() {
        Some(BOUND)
    } else {
        None
    }
}
