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
//! The STARTs that nodes were given are remembered as long as the instances exist, in
//! [`MOST_BYTES`]. Instances without a remembered START, because there was no room or an
//! earlier scheduler gave it, are not moved.

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

/// Why an instance is not moved, as StartFailure says it: another scheduler was given its
/// START, or the START is no longer remembered.
const UNKNOWN: &str = "not_moved_unknown";

/// A START that a node was given.
#[derive(Debug)]
enum Given {
    Movable {
        payload: Bytes,
        /// The controller that sent it.
        from: Uuid,
        /// Its node starts it again by itself: an instance that has ended may run again.
        restarts: bool,
    },
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
    /// The STARTs that were added since those of gone instances were forgotten.
    added: usize,
    /// By node, the instances that are started elsewhere once they have ended.
    moving: HashMap<Uuid, HashSet<Uuid>>,
    /// The number of instances that have ended and were placed again.
    moved: u64,
}

impl Moves {
    /// Remembers a START that a node was given.
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

    /// Forgets the STARTs of instances that are gone. It is called so rarely that each added
    /// START pays for looking at a few entries.
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

    /// The number of instances that are being moved, and of those that were moved.
    pub(super) fn counted(&self) -> (usize, u64) {
        (self.moving.values().map(HashSet::len).sum(), self.moved)
    }

    /// Ends the moves of a node.
    pub(super) fn end(&mut self, node: Uuid) -> bool {
        self.moving.remove(&node).is_some()
    }

    /// A controller has sent another command for an instance, which replaces its move.
    pub(super) fn leave(&mut self, instance: Uuid, node: Option<Uuid>) {
        if let Some(moving) = node.and_then(|node| self.moving.get_mut(&node)) {
            moving.remove(&instance);
        }
    }

    /// Takes the START of an instance that was to be moved, and has ended.
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
    /// A node was sent EVACUATE with `move`. The controller is told which instances stay.
    pub(super) fn begin_move(&mut self, cx: &mut Context<'_>, from: &SessionInfo, node: Uuid) {
        // A READY of the node may have crossed the command: it must get no START.
        self.placement.suspend(node, true);
        let mut moving = HashSet::new();
        for (instance, has_ended) in self.instances.of(node) {
            let why = match self.moves.given.get(&instance) {
                Some(Given::Movable { restarts, .. }) if *restarts || !has_ended => {
                    moving.insert(instance);
                    continue;
                }
                // It stays ended, so nobody expects it to run elsewhere.
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

    /// A node is evacuated, or its evacuation was ended: its status counts again.
    pub(super) fn end_move(&mut self, node: Uuid) {
        if self.moves.moving.contains_key(&node) {
            self.placement.suspend(node, false);
        }
    }

    /// An instance has ended and is gone from its node. If it is being moved, it is started
    /// elsewhere.
    pub(super) fn move_on(&mut self, cx: &mut Context<'_>, instance: Uuid, node: Uuid) {
        let Some((payload, controller)) = self.moves.take(instance, node) else {
            return;
        };
        // InstanceStopped keeps it as ended, but its UUID has to be free to be placed again.
        self.instances.over(instance, false);
        // It counts as a START that has just come.
        self.starts.received += 1;
        match Waiting::read(controller, Frame::with_payload(Command::START, payload), cx.now()) {
            Ok(start) => self.place(cx, None, start),
            // It could be read when it came, so this does not happen.
            Err(e) => warn!(target: "ssntp::scheduler", "instance {instance} is not moved: {e}"),
        }
    }
}
