//! Moves: after EVACUATE with `move`, the instances of the node are started on other nodes.
//!
//! ```text
//!  EVACUATE, move ──▶ node: it ends its instances
//!                       │ InstanceStopped, or STATS without it: an instance is gone from there
//!                       ▼
//!                     the START of the instance ──▶ placed as if it had just arrived
//! ```
//!
//! No instance ever runs twice: it is started elsewhere only after its node has reported its end.
//! An instance that does not end, even when it is killed, is not moved. The instances of a dead
//! node are not moved either, because the node may only be unreachable.
//!
//! A node that was sent EVACUATE receives no further START. If it refuses a START that was already
//! on its way, because it is in maintenance or full, or if the evacuation cancels a START, that
//! START is placed again.
//!
//! The scheduler remembers each START that it has sent to a node as long as the instance exists,
//! but at most [`MAX_BYTES`] of them. An instance whose START is not remembered is not moved:
//! there was no room for the START, or an earlier scheduler sent it to the node.

use std::collections::HashMap;

use bytes::Bytes;
use uuid::Uuid;

use super::unplaced::UnplacedStart;
use ssntp::proto::{Command, Frame};
use ssntp_payload::{CommandSubject, Reason, StartFailure};

/// The memory for remembered STARTs, in bytes: 64 thousand STARTs of one kibibyte.
const MAX_BYTES: usize = 64 << 20;
/// The bytes that an entry takes in addition to its START.
const ENTRY: usize = 128;

/// A START that was sent to a node.
#[derive(Debug)]
struct SentStart {
    payload: Bytes,
    /// The controller that sent it.
    from: Uuid,
    /// True if the node restarts the instance by itself. Then an instance that has ended may run
    /// again, so it is moved as well.
    restarts: bool,
    /// The reason in StartFailure why the instance cannot run on another node; `None` if it can.
    immovable: Option<Reason>,
}

impl SentStart {
    fn bytes(&self) -> usize {
        self.payload.len() + ENTRY
    }
}

/// The remembered STARTs, and the instances that are being moved.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    starts: HashMap<Uuid, SentStart>,
    bytes: usize,
    /// The instances that will be started elsewhere once they have ended, each with its node.
    moving: HashMap<Uuid, Uuid>,
    /// The number of instances that have ended and were placed again.
    moved: u64,
}

impl Moves {
    /// Remembers a START that was sent to a node, unless there is no room for it.
    pub(super) fn remember(&mut self, start: &UnplacedStart) {
        let sent = SentStart {
            // Copied, because the payload is a part of a longer read and keeps it in memory.
            payload: Bytes::copy_from_slice(start.frame.payload_bytes()),
            from: start.from,
            restarts: start.restarts,
            immovable: start.immovable.clone(),
        };
        self.forget(start.instance);
        self.keep(start.instance, sent);
    }

    /// Remembers the id of a START that an earlier leader sent, so that a failure repeats it, unless
    /// there is no room for it: then a failure of that START has no `command_id`.
    pub(super) fn adopt(&mut self, instance: Uuid, command_id: &str) {
        // Every JSON string is also a YAML string.
        let id = serde_json::Value::from(command_id);
        let sent = SentStart {
            payload: format!("start:\n  command_id: {id}\n").into(),
            from: Uuid::nil(),
            restarts: false,
            immovable: Some(Reason::NotMovedUnknown),
        };
        self.keep(instance, sent);
    }

    /// Adds a START of an instance that has none, if there is room for it.
    fn keep(&mut self, instance: Uuid, sent: SentStart) {
        if self.bytes + sent.bytes() <= MAX_BYTES {
            self.bytes += sent.bytes();
            self.starts.insert(instance, sent);
        }
    }

    /// Forgets the START and the move of an instance that no longer exists.
    pub(super) fn handle_gone(&mut self, instance: Uuid) {
        self.forget(instance);
        self.moving.remove(&instance);
    }

    pub(super) fn forget(&mut self, instance: Uuid) {
        if let Some(sent) = self.starts.remove(&instance) {
            self.bytes -= sent.bytes();
        }
    }

    /// Forgets the START of an instance that a STOP or DELETE has ended, so that no later move
    /// starts it again. A persistent instance may be restarted, and is not moved anyway.
    pub(crate) fn user_ended(&mut self, instance: Uuid) {
        if self
            .starts
            .get(&instance)
            .is_some_and(|sent| sent.immovable.is_none())
        {
            self.forget(instance);
        }
    }

    /// The `command_id` of the START of an instance; empty if it has none or is not remembered.
    pub(super) fn command_id(&self, instance: Uuid) -> String {
        self.starts.get(&instance).map_or_else(String::new, |sent| {
            let start = Frame::with_payload(Command::START, sent.payload.clone());
            CommandSubject::of(&start).command_id
        })
    }

    /// The number of instances that are being moved, and of those that were moved before.
    pub(crate) fn counted(&self) -> (usize, u64) {
        (self.moving.len(), self.moved)
    }

    /// Cancels the moves from a node: its instances are not started elsewhere when they end.
    pub(super) fn end(&mut self, node: Uuid) {
        self.moving.retain(|_, from| *from != node);
    }

    /// Cancels the move of one instance; false if it is not being moved.
    pub(super) fn cancel(&mut self, instance: Uuid) -> bool {
        self.moving.remove(&instance).is_some()
    }

    /// Begins the move of these instances away from a node, each with true if it has ended. Returns the number
    /// of those that are moved, and a failure for each running one that cannot be.
    pub(super) fn begin(
        &mut self,
        node: Uuid,
        instances: Vec<(Uuid, bool)>,
        is_starting: impl Fn(Uuid) -> bool,
    ) -> (usize, Vec<StartFailure>) {
        self.end(node);
        let before = self.moving.len();
        let mut failures = Vec::new();
        for (instance, has_ended) in instances {
            let reason = match self.starts.get(&instance) {
                Some(SentStart {
                    immovable: None,
                    restarts,
                    ..
                }) => {
                    if *restarts || !has_ended {
                        self.moving.insert(instance, node);
                    }
                    continue;
                }
                Some(sent) => sent.immovable.clone(),
                None => Some(Reason::NotMovedUnknown),
            };
            // An instance that has ended needs no failure, because it does not stop running.
            // An instance that has not been started yet is placed again.
            let reason = reason.filter(|_| !has_ended && !is_starting(instance));
            failures.extend(reason.map(|reason| StartFailure {
                node_uuid: node.into(),
                instance_uuid: instance.into(),
                reason,
                restart: true,
                ..StartFailure::default()
            }));
        }
        (self.moving.len() - before, failures)
    }

    /// An instance that was moved has ended. Takes its START.
    pub(super) fn take_ended(&mut self, instance: Uuid) -> Option<(Uuid, Frame)> {
        let start = self.cancel(instance).then(|| self.take(instance))??;
        self.moved += 1;
        Some(start)
    }

    /// Takes the START of an instance, with the controller that sent it.
    pub(super) fn take(&mut self, instance: Uuid) -> Option<(Uuid, Frame)> {
        let sent = self.starts.remove(&instance)?;
        self.bytes -= sent.bytes();
        Some((sent.from, Frame::with_payload(Command::START, sent.payload)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_starts_of_an_earlier_leader_have_the_bound_of_all_starts() {
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut moves = Moves::default();
        moves.adopt(first, "one");
        let left = moves.bytes;
        moves.bytes = MAX_BYTES - left;
        moves.adopt(second, "two");
        assert_eq!((moves.bytes, moves.command_id(second)), (MAX_BYTES, "two".into()));
        let third = Uuid::from_u128(3);
        moves.adopt(third, "six");
        assert_eq!((moves.bytes, moves.command_id(third)), (MAX_BYTES, String::new()));
    }
}
