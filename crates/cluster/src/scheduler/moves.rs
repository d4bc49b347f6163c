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
//! A node that is sent EVACUATE gets no START any more. One that it refuses all the same,
//! because it is in maintenance or full, or that the evacuation has cancelled, is placed again.
//!
//! The scheduler remembers each START that it sent to a node for as long as the instance
//! exists, but keeps at most [`MOST_BYTES`] of them. An instance is not moved if its START
//! is not remembered: there was no room for it, or an earlier scheduler sent it to the node.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use log::{info, warn};
use uuid::Uuid;

use super::Scheduler;
use super::instances::{Instances, PendingStart};
use super::placement::Suspension;
use super::waiting::Waiting;
use ssntp::payload::{CommandSubject, StartFailure};
use ssntp::proto::{Command, Frame};
use ssntp::server::{Context, SessionInfo};

/// The memory for remembered STARTs: 64 thousand of one kibibyte.
const MOST_BYTES: usize = 64 << 20;
/// The bytes that an entry takes beside its START.
const ENTRY: usize = 128;

/// Why an instance is not moved, as StartFailure says it: its START is not remembered,
/// because there was no room for it or an earlier scheduler sent it to the node.
const UNKNOWN: &str = "not_moved_unknown";

/// To how many nodes a START is sent in all if each refuses it because it is full or in
/// maintenance. A node may have room, and its own policy refuse this one.
const MOST_NODES: u8 = 4;

/// What is remembered of a START that was sent to a node.
#[derive(Debug)]
struct Given {
    payload: Bytes,
    /// The controller that sent it.
    from: Uuid,
    /// Whether the node starts the instance again by itself. Then an instance that has ended
    /// may run again, so it is moved as well.
    restarts: bool,
    /// Why the instance, once it has run, can run on no other node, as StartFailure says it.
    stays: Option<&'static str>,
}

impl Given {
    fn bytes(&self) -> usize {
        self.payload.len() + ENTRY
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
        let given = Given {
            // Copied, because the payload is a piece of a longer read that it would keep.
            payload: Bytes::copy_from_slice(start.frame.payload_bytes()),
            from: start.from,
            restarts: start.restarts,
            stays: start.stays,
        };
        self.forget(start.instance);
        self.added += 1;
        // Looking at all entries takes as long as there are entries, so it is spread over many
        // additions: half as many as entries, or an eighth if the memory is full.
        let is_due = self.added > 1024 + self.given.len() / 2;
        if is_due || (self.bytes + given.bytes() > MOST_BYTES && self.added > self.given.len() / 8) {
            self.leave_out_gone(instances);
        }
        if self.bytes + given.bytes() <= MOST_BYTES {
            self.bytes += given.bytes();
            self.given.insert(start.instance, given);
        }
    }

    /// Remembers the id of a START that an earlier leader sent, so that a failure repeats it.
    pub(super) fn adopt(&mut self, instance: Uuid, command_id: &str) {
        // A text of JSON is one of YAML, whatever it holds.
        let id = serde_json::Value::from(command_id);
        let given = Given {
            payload: format!("start:\n  command_id: {id}\n").into(),
            from: Uuid::nil(),
            restarts: false,
            stays: Some(UNKNOWN),
        };
        self.bytes += given.bytes();
        self.given.insert(instance, given);
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

    pub(super) fn forget(&mut self, instance: Uuid) {
        if let Some(given) = self.given.remove(&instance) {
            self.bytes -= given.bytes();
        }
    }

    /// The `command_id` of the START of an instance; empty if it had none.
    pub(super) fn command_id(&self, instance: Uuid) -> String {
        let given = self.given.get(&instance);
        let start = given.map(|given| Frame::with_payload(Command::START, given.payload.clone()));
        start
            .map(|start| CommandSubject::of(&start).command_id)
            .unwrap_or_default()
    }

    /// How many instances are being moved now, and how many were moved before.
    pub(super) fn counted(&self) -> (usize, u64) {
        (self.moving.values().map(HashSet::len).sum(), self.moved)
    }

    /// Ends the moves from a node: its instances are no longer started elsewhere when they
    /// end.
    pub(super) fn end(&mut self, node: Uuid) {
        self.moving.remove(&node);
    }

    /// Ends the move of one instance; false if it is not being moved.
    pub(super) fn cancel(&mut self, instance: Uuid, node: Option<Uuid>) -> bool {
        let moving = node.and_then(|node| self.moving.get_mut(&node));
        moving.is_some_and(|moving| moving.remove(&instance))
    }

    /// Takes the START of an instance, with the controller that sent it.
    fn take(&mut self, instance: Uuid) -> Option<(Uuid, Frame)> {
        let Given { payload, from, .. } = self.given.get(&instance)?;
        let taken = (*from, Frame::with_payload(Command::START, payload.clone()));
        self.forget(instance);
        Some(taken)
    }
}

impl Scheduler {
    /// Begins to move the instances of a node, which was sent EVACUATE with `move`. For each
    /// running instance that cannot be moved, the controller is sent a StartFailure.
    pub(super) fn begin_move(&mut self, cx: &mut Context<'_>, from: &SessionInfo, node: Uuid) {
        let mut moving = HashSet::new();
        for (instance, has_ended) in self.instances.of(node) {
            let given = self.moves.given.get(&instance);
            let why = match given.map(|given| (given.stays, given.restarts)) {
                Some((None, restarts)) if restarts || !has_ended => {
                    moving.insert(instance);
                    continue;
                }
                // No failure is sent for an instance that has ended: nothing stops running. And
                // one that was not started yet is placed again.
                _ if has_ended || self.instances.is_starting(instance) => continue,
                Some((Some(why), _)) => why,
                _ => UNKNOWN,
            };
            let failure = StartFailure {
                node_uuid: node.into(),
                instance_uuid: instance.into(),
                reason: why.into(),
                restart: true,
                ..StartFailure::default()
            };
            // If the controller has left, the failures are of no use.
            let _ = cx.send_payload(from.uuid(), &failure);
        }
        info!(target: "ssntp::scheduler", "{from}: {} instances of {node} are moved", moving.len());
        self.moves.moving.insert(node, moving);
    }

    /// Starts an instance elsewhere that is being moved. It has ended, and is gone from its
    /// node. Does nothing for an instance that is not being moved.
    pub(super) fn move_on(&mut self, cx: &mut Context<'_>, instance: Uuid, node: Uuid) {
        if !self.moves.cancel(instance, Some(node)) {
            return;
        }
        let Some((controller, frame)) = self.moves.take(instance) else {
            return;
        };
        self.moves.moved += 1;
        // After InstanceStopped the scheduler still knows the instance, as ended. It has to be
        // forgotten, so that its UUID is free to be placed again.
        self.instances.over(instance, false);
        // The START counts as one that has just been received.
        self.starts.received += 1;
        match Waiting::read(controller, frame, cx.now()) {
            Ok(start) => self.place(cx, None, start),
            // It could be read when it came, so this does not happen.
            Err(e) => warn!(target: "ssntp::scheduler", "instance {instance} is not moved: {e}"),
        }
    }

    /// Places a START again that its node has refused because it is full or in maintenance.
    /// False if no other node takes it, if enough nodes have refused it, or if it is not
    /// remembered.
    pub(super) fn place_again(
        &mut self,
        cx: &mut Context<'_>,
        instance: Uuid,
        refused: &PendingStart,
    ) -> bool {
        // It never ran there, so there is nothing to move.
        self.moves.cancel(instance, Some(refused.allocation.node));
        let Some((controller, frame)) = self.moves.take(instance).filter(|_| refused.nodes < MOST_NODES)
        else {
            return false;
        };
        // With the time of its arrival, so that the figures count the whole wait.
        let Ok(start) = Waiting::read(controller, frame, refused.received) else {
            return false;
        };
        let (node, nodes) = (refused.allocation.node, refused.nodes);
        // Only during this search: the node may take other STARTs.
        self.placement.suspend(node, Suspension::Refusing);
        let back = self.try_place(cx, None, Waiting { nodes, ..start });
        self.placement.resume(node, Suspension::Refusing);
        // The node has less room than its READY said. A new READY follows every START, also a
        // refused one.
        self.placement.await_ready(node);
        back.is_none()
    }
}
