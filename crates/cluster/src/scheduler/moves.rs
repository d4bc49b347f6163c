//! Moves: after EVACUATE with `move`, instances that can run elsewhere are started there.
//!
//! ```text
//!  EVACUATE, move ──▶ node: it ends its instances
//!                       │ InstanceStopped: an instance has ended, and is gone from there
//!                       ▼
//!                     the START that had made it ──▶ placed as if it had just come
//! ```
//!
//! So no instance ever runs twice: it is started elsewhere only after its node has said that
//! it has ended. An instance that does not end, even when it is killed, is not moved. Neither
//! are the instances of a dead node, because it may only be out of reach.
//!
//! The scheduler remembers each START that it sent to a node for as long as the instance
//! exists, but keeps at most [`MOST_BYTES`] of them. An instance is not moved if its START
//! is not remembered: there was no room for it, or an earlier scheduler sent it to the node.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use log::{info, warn};
use uuid::Uuid;

use super::Scheduler;
use super::instances::Instances;
use super::waiting::Waiting;
use ssntp::payload::StartFailure;
use ssntp::proto::{Command, Frame};
use ssntp::server::{Context, SessionInfo};

/// The memory for remembered STARTs: 64 thousand of one kibibyte.
const MOST_BYTES: usize = 64 << 20;
/// The bytes that an entry takes beside its START.
const ENTRY: usize = 128;

/// Why an instance is not moved, as StartFailure says it: its START is not remembered,
/// because there was no room for it or an earlier scheduler sent it to the node.
const UNKNOWN: &str = "not_moved_unknown";

/// What is remembered of a START that was sent to a node.
#[derive(Debug)]
enum Given {
    /// The instance can run on another node.
    Movable {
        payload: Bytes,
        /// The controller that sent it.
        from: Uuid,
        /// Whether the node starts the instance again by itself. Then an instance that has
        /// ended may run again, so it is moved as well.
        restarts: bool,
    },
    /// The instance can run on no other node than its first one, for this reason, which is
    /// written as StartFailure says it.
    Stays(&'static str),
}

impl Given {
    fn bytes(&self) -> usize {
        match self {
            Self::Movable { payload, .. } => payload.len() + ENTRY,
            Self::Stays(_) => ENTRY,
        }
    }
}

/// The remembered STARTs, and the instances that are being moved.
#[derive(Debug, Default)]
pub(super) struct Moves {
    given: HashMap<Uuid, Given>,
    bytes: usize,
    /// How many STARTs were to be remembered since those of gone instances were last
    /// forgotten.
    added: usize,
    /// By node, the instances that will be started elsewhere once they have ended.
    moving: HashMap<Uuid, HashSet<Uuid>>,
    /// The number of instances that have ended and were placed again.
    moved: u64,
}

impl Moves {
    /// Remembers a START that was sent to a node, unless there is no room for it.
    pub(super) fn keep(&mut self, start: &Waiting, instances: &Instances) {
        let given = match start.stays {
            Some(why) => Given::Stays(why),
            None => Given::Movable {
                // Copied, because the payload is a piece of a longer read that it would keep.
                payload: Bytes::copy_from_slice(start.frame.payload_bytes()),
                from: start.from,
                restarts: start.restarts,
            },
        };
        self.forget(start.instance);
        self.added += 1;
        let is_due = self.added > 1024 + self.given.len() / 2;
        if is_due || (self.bytes + given.bytes() > MOST_BYTES && self.added > self.given.len() / 8) {
            self.leave_out_gone(instances);
        }
        if self.bytes + given.bytes() <= MOST_BYTES {
            self.bytes += given.bytes();
            self.given.insert(start.instance, given);
        }
    }

    /// Forgets the STARTs and the moves of instances that no longer exist. This looks at all
    /// entries, so it is called only after many STARTs: on average that is a few entries for
    /// each START.
    fn leave_out_gone(&mut self, instances: &Instances) {
        self.added = 0;
        self.given
            .retain(|instance, _| instances.node_of(*instance).is_some());
        self.bytes = self.given.values().map(Given::bytes).sum();
        self.moving.retain(|_, moving| {
            moving.retain(|instance| instances.node_of(*instance).is_some());
            !moving.is_empty()
        });
    }

    fn forget(&mut self, instance: Uuid) {
        if let Some(given) = self.given.remove(&instance) {
            self.bytes -= given.bytes();
        }
    }

    /// How many instances are being moved now, and how many were moved before.
    pub(super) fn counted(&self) -> (usize, u64) {
        (self.moving.values().map(HashSet::len).sum(), self.moved)
    }

    /// Ends the moves from a node: its instances are no longer started elsewhere when they
    /// end. Returns false if there was no move from it.
    pub(super) fn end(&mut self, node: Uuid) -> bool {
        self.moving.remove(&node).is_some()
    }

    /// Cancels the move of one instance, because a controller has sent a newer command for it.
    pub(super) fn cancel(&mut self, instance: Uuid, node: Option<Uuid>) {
        if let Some(moving) = node.and_then(|node| self.moving.get_mut(&node)) {
            moving.remove(&instance);
        }
    }

    /// Returns the payload and the controller of an instance's START, and counts the instance
    /// as moved. Returns `None` if the instance is not being moved.
    fn take(&mut self, instance: Uuid, node: Uuid) -> Option<(Bytes, Uuid)> {
        if !self.moving.get_mut(&node)?.remove(&instance) {
            return None;
        }
        let Some(Given::Movable { payload, from, .. }) = self.given.get(&instance) else {
            return None;
        };
        let taken = (payload.clone(), *from);
        self.forget(instance);
        self.moved += 1;
        Some(taken)
    }
}

impl Scheduler {
    /// Begins to move the instances of a node, which was sent EVACUATE with `move`. For each
    /// running instance that cannot be moved, the controller is sent a StartFailure.
    pub(super) fn begin_move(&mut self, cx: &mut Context<'_>, from: &SessionInfo, node: Uuid) {
        // The node may have sent a READY before the command reached it. It must get no START
        // because of that.
        self.placement.suspend(node, true);
        let mut moving = HashSet::new();
        for (instance, has_ended) in self.instances.of(node) {
            let why = match self.moves.given.get(&instance) {
                Some(Given::Movable { restarts, .. }) if *restarts || !has_ended => {
                    moving.insert(instance);
                    continue;
                }
                // No failure is sent for an instance that has ended: nothing stops running.
                _ if has_ended => continue,
                Some(Given::Stays(why)) => *why,
                _ => UNKNOWN,
            };
            let failure = StartFailure {
                node_uuid: node.into(),
                instance_uuid: instance.into(),
                reason: why.into(),
                restart: true,
                detail: String::new(),
            };
            // If the controller has left, the failures are of no use.
            let _ = cx.send_payload(from.uuid(), &failure);
        }
        info!(target: "ssntp::scheduler", "{from}: {} instances of {node} are moved", moving.len());
        self.moves.moving.insert(node, moving);
    }

    /// Makes the status of a node count again for placement, because its evacuation is done or
    /// was called off. Does nothing unless the node is being moved from. It does not end the
    /// moves: see [`Moves::end`].
    pub(super) fn resume_node(&mut self, node: Uuid) {
        if self.moves.moving.contains_key(&node) {
            self.placement.suspend(node, false);
        }
    }

    /// Starts an instance elsewhere that is being moved. It has ended, and is gone from its
    /// node. Does nothing for an instance that is not being moved.
    pub(super) fn move_on(&mut self, cx: &mut Context<'_>, instance: Uuid, node: Uuid) {
        let Some((payload, controller)) = self.moves.take(instance, node) else {
            return;
        };
        // After InstanceStopped the scheduler still knows the instance, as ended. It has to be
        // forgotten, so that its UUID is free to be placed again.
        self.instances.over(instance, false);
        // The START counts as one that has just been received.
        self.starts.received += 1;
        match Waiting::read(controller, Frame::with_payload(Command::START, payload), cx.now()) {
            Ok(start) => self.place(cx, None, start),
            // It could be read when it came, so this does not happen.
            Err(e) => warn!(target: "ssntp::scheduler", "instance {instance} is not moved: {e}"),
        }
    }
}
