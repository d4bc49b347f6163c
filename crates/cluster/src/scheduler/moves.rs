//! Instances that are moved: EVACUATE with `move` has what can run elsewhere started
//! there.
//!
//! ```text
//!  EVACUATE, move ──▶ node: its instances are asked to end
//!                       │ InstanceStopped: it has ended, and is gone from there
//!                       ▼
//!                     the START that had made it ──▶ placed as if it had just come
//! ```
//!
//! An instance so never runs twice: it is started elsewhere only once its node has
//! said that it has ended. One that does not end, even when it is killed, is not
//! moved. Neither is anything of a node that is dead, for nobody can tell whether
//! that is only out of reach.
//!
//! Which STARTs were given to nodes is remembered as long as the instances are
//! there, in [`MOST_BYTES`]; of further ones, and of those that an earlier scheduler
//! had given, nothing is known, and they stay.

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

/// The memory for STARTs of what runs: 64 thousand of one kibibyte.
const MOST_BYTES: usize = 64 << 20;
/// What an entry takes beside its START.
const ENTRY: usize = 128;

/// Why an instance is not moved, as StartFailure says it: another scheduler was given its
/// START, or the START is no longer remembered.
const UNKNOWN: &str = "not_moved_unknown";

/// What is known of a START that a node was given.
#[derive(Debug)]
enum Given {
    Movable {
        payload: Bytes,
        /// The controller that had sent it.
        from: Uuid,
        /// Its node starts it again by itself, so that it may be about to run.
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

/// The STARTs of what runs, and what is being moved.
#[derive(Debug, Default)]
pub(super) struct Moves {
    given: HashMap<Uuid, Given>,
    bytes: usize,
    /// How many were added since those were left out that are gone.
    added: usize,
    /// By their node, what is to be started elsewhere once it has ended.
    moving: HashMap<Uuid, HashSet<Uuid>>,
    /// How many have ended, and were placed anew.
    moved: u64,
}

impl Moves {
    /// A node was given a START.
    pub(super) fn keep(&mut self, start: &Waiting, instances: &Instances) {
        let given = match start.stays {
            Some(why) => Given::Stays(why),
            None => Given::Movable {
                // As it came, it is a piece of a longer read.
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

    /// Each is looked at once for every few that are added.
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

    /// How many are being moved, and how many have been.
    pub(super) fn counted(&self) -> (usize, u64) {
        (self.moving.values().map(HashSet::len).sum(), self.moved)
    }

    /// Nothing of a node is moved any more.
    pub(super) fn end(&mut self, node: Uuid) -> bool {
        self.moving.remove(&node).is_some()
    }

    /// Somebody has another use for an instance.
    pub(super) fn leave(&mut self, instance: Uuid, node: Option<Uuid>) {
        if let Some(moving) = node.and_then(|node| self.moving.get_mut(&node)) {
            moving.remove(&instance);
        }
    }

    /// The START of an instance that was to be moved, and has ended.
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
    /// A node was sent EVACUATE with `move`. Who asked is told what stays.
    pub(super) fn begin_move(&mut self, cx: &mut Context<'_>, from: &SessionInfo, node: Uuid) {
        // What it still says of itself may have crossed the command.
        self.placement.suspend(node, true);
        let mut moving = HashSet::new();
        for (instance, has_ended) in self.instances.of(node) {
            let why = match self.moves.given.get(&instance) {
                Some(Given::Movable { restarts, .. }) if *restarts || !has_ended => {
                    moving.insert(instance);
                    continue;
                }
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
            // Whoever has left does not look.
            let _ = cx.send_payload(from.uuid(), &failure);
        }
        info!(target: "ssntp::scheduler", "{from}: {} instances of {node} are moved", moving.len());
        self.moves.moving.insert(node, moving);
    }

    /// A node is evacuated, or was not after all: what it says of itself holds
    /// again.
    pub(super) fn end_move(&mut self, node: Uuid) {
        if self.moves.moving.contains_key(&node) {
            self.placement.suspend(node, false);
        }
    }

    /// An instance has ended and is gone from its node: it is started elsewhere if
    /// it is to be.
    pub(super) fn move_on(&mut self, cx: &mut Context<'_>, instance: Uuid, node: Uuid) {
        let Some((payload, controller)) = self.moves.take(instance, node) else {
            return;
        };
        self.instances.over(instance, false);
        self.starts.received += 1;
        match Waiting::read(controller, Frame::with_payload(Command::START, payload), cx.now()) {
            Ok(start) => self.place(cx, None, start),
            // It was read when it came.
            Err(e) => warn!(target: "ssntp::scheduler", "instance {instance} is not moved: {e}"),
        }
    }
}
