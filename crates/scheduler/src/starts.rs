//! A START from its arrival until it is confirmed or answered. Each START has an answer.
//!
//! ```text
//!            ┌── it exists, or is being started: already_running, instance_exists
//!            │   to the controller that sent it
//!  START ────┤
//!            ├─ fits a ready node ──▶ sent ──┬─ STATS: it runs, or has ended
//!            │                          ▲    ├─ StartFailure ────────────────────┐
//!            │                        READY  └─ no sign in time: launch_failure ─┤
//!            │                          │                                        ▼
//!            ├─ fits a waiting node ──▶ held ── too many, too long, a stop: full_cloud
//!            │                             ╲╲── no such node any more: full_cloud
//!            │                              ╲── a node runs the instance: already_running
//!            └─ no node, no room: full_cloud, no_cn, no_net_cn
//! ```

use std::time::Instant;

use log::debug;
use uuid::Uuid;

use super::held::{HeldStart, detached, with_trace_of};
use super::instances::PendingStart;
use super::placement::{Allocation, Verdict};
use super::unplaced::UnplacedStart;
use super::{Scheduler, answers, limited};
use ssntp::payload::Id;
use ssntp::proto::Frame;
use ssntp::server::{Context, SessionInfo};
use ssntp_payload::{StartFailure, StartFailureReason};
use ssntp_transport::excerpt;

impl Scheduler {
    pub(super) fn start_command(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        self.starts.received += 1;
        match UnplacedStart::read(from.uuid(), frame.clone(), cx.now()) {
            Ok(start) if self.instances.taken(start.instance).is_some() => self.refuse_taken(cx, &start),
            Ok(start) => self.place(cx, Some(from), start),
            Err(e) => {
                limited!(info, self.log, cx, from.uuid(), "START refused";
                    "{from}: START refused: {}", excerpt(&e));
                self.starts
                    .failed(StartFailureReason::from(&e).word(), cx.now(), cx.now());
                answers::refuse(cx, from, frame, &e.into());
            }
        }
    }

    /// Answers a START of an instance that exists. Only its sender gets this failure, which would also
    /// settle the START of another controller for the same instance.
    pub(super) fn refuse_taken(&mut self, cx: &mut Context<'_>, start: &UnplacedStart) {
        if let Some((reason, node)) = self.instances.taken(start.instance) {
            self.starts.failed(reason.word(), start.received, cx.now());
            let mut failure = start.failure(reason);
            failure.node_uuid = node.map(Id::from).unwrap_or_default();
            answers::send(cx, start.from, &Frame::of(&failure));
        }
    }

    /// Sends a START to a node, holds it, or answers it. `from` is its sender if the START has
    /// just arrived, so that its trace can be forwarded.
    pub(super) fn place(&mut self, cx: &mut Context<'_>, from: Option<&SessionInfo>, start: UnplacedStart) {
        if let Some((start, reason)) = self.try_place(cx, from, start) {
            self.refuse_start(cx, &start, reason);
        }
    }

    /// Like [`place`](Self::place), but returns a START that must be answered, with the reason.
    pub(super) fn try_place(
        &mut self,
        cx: &mut Context<'_>,
        from: Option<&SessionInfo>,
        mut start: UnplacedStart,
    ) -> Option<(UnplacedStart, StartFailureReason)> {
        // Checked before a node makes an allocation.
        if self.instances.is_full() {
            limited!(warn, self.log, cx, start.from, "too many in flight";
                "START of {}: too many are in flight", start.instance);
            return Some((start, StartFailureReason::FullCloud));
        }
        let instance = start.instance;
        loop {
            let reason = match self.placement.place(&start.needs, Some(start.from)) {
                // If the START cannot be sent to a node, that node is closed, so this loop ends.
                Verdict::Placed(allocation) => match self.deliver(cx, from, start, allocation) {
                    None => return None,
                    Some(back) => {
                        start = back;
                        continue;
                    }
                },
                Verdict::Wait(node) if self.held.has_room(start.frame.encoded_len()) => {
                    start.frame = with_trace_of(&start.frame, detached(&start.frame));
                    let bytes = start.frame.encoded_len();
                    self.held.push(HeldStart { start, node }, bytes, cx.now());
                    self.instances.hold(instance);
                    return None;
                }
                Verdict::Wait(_) => StartFailureReason::FullCloud,
                Verdict::NoRoom => StartFailureReason::FullCloud,
                Verdict::NoNode if start.needs.network_node => StartFailureReason::NoNetCn,
                Verdict::NoNode => StartFailureReason::NoCn,
            };
            return Some((start, reason));
        }
    }

    /// Answers a START that was not sent to a node.
    fn refuse_start(&mut self, cx: &mut Context<'_>, start: &UnplacedStart, reason: StartFailureReason) {
        debug!(target: "ssntp::scheduler", "START of {}: {reason}", start.instance);
        self.starts.failed(reason.word(), start.received, cx.now());
        self.instances.refused(start.instance);
        self.free_address(start.instance);
        answers::to_controllers(cx, &start.failure(reason));
    }

    /// Sends a START to the node that was found; returns the START if that fails.
    fn deliver(
        &mut self,
        cx: &mut Context<'_>,
        from: Option<&SessionInfo>,
        start: UnplacedStart,
        allocation: Allocation,
    ) -> Option<UnplacedStart> {
        let (instance, node) = (start.instance, allocation.node);
        // The deadline depends on how often this node reports.
        let interval = self.nodes.interval(node);
        self.instances.assign(&start, allocation, interval, cx.now());
        // Sent before the START: if this scheduler ends now, the next one knows of the START.
        self.send_intents(cx);
        let sent = match from {
            Some(from) => cx.forward(from, node, &start.frame),
            None => cx.send(node, &start.frame),
        };
        match sent {
            Ok(()) => {
                debug!(target: "ssntp::scheduler", "START of {instance} goes to {node}");
                self.starts.given += 1;
                // After `assign`, because `remember` may drop the STARTs of unknown instances.
                self.moves.remember(&start, &self.instances);
                None
            }
            Err(e) => {
                // The node's queue is full or closed, so its session is about to end.
                limited!(warn, self.log, cx, node, "START not sent"; "START of {instance} for {node}: {e}");
                self.instances.unassign(instance);
                self.placement.close(node);
                Some(start)
            }
        }
    }

    /// Places held STARTs after a change of a node: they may fit it now, or no longer fit it.
    pub(super) fn node_changed(&mut self, cx: &mut Context<'_>, node: Uuid) {
        let mut at = 0;
        // By index, because delivering and placing a START changes the queue.
        while self.placement.is_ready(node)
            && let Some(held) = self.held.get_mut(at)
        {
            let start = &held.start;
            // A client that is both controller and agent does not receive its own STARTs.
            let allocation = match start.from == node {
                true => None,
                false => self.placement.place_on(node, &start.needs),
            };
            let Some(allocation) = allocation else {
                at += 1;
                continue;
            };
            let Some(HeldStart { start, .. }) = self.held.take(at) else {
                break;
            };
            if let Some(start) = self.deliver(cx, None, start, allocation) {
                self.place(cx, None, start);
            }
        }
        self.reconsider(cx, node);
    }

    /// The STARTs that wait for a READY of `node` and no longer fit it wait for another node, are
    /// sent to one, or are answered.
    fn reconsider(&mut self, cx: &mut Context<'_>, node: Uuid) {
        let mut at = 0;
        while let Some(held) = self.held.get_mut(at) {
            let needs = &held.start.needs;
            if held.node != node || self.placement.would_fit(node, needs) {
                at += 1;
                continue;
            }
            // The sender is left out of the search, as in `try_place`.
            let from = held.start.from;
            let verdict = self.placement.place(needs, Some(from));
            if let Verdict::Wait(other) = verdict {
                held.node = other;
                at += 1;
                continue;
            }
            let Some(HeldStart { start, .. }) = self.held.take(at) else {
                break;
            };
            let back = match verdict {
                Verdict::Placed(allocation) => self.deliver(cx, None, start, allocation),
                _ => Some(start),
            };
            if let Some(start) = back {
                self.place(cx, None, start);
            }
        }
    }

    /// Answers STARTs that were held too long, and those that no node has answered in time.
    pub(super) fn expire_starts(&mut self, cx: &mut Context<'_>, now: Instant) {
        while let Some(HeldStart { start, .. }) = self.held.expire(now) {
            limited!(info, self.log, cx, start.from, "no READY in time";
                "START of {}: no node has sent READY in time", start.instance);
            self.refuse_start(cx, &start, StartFailureReason::FullCloud);
        }
        for (instance, pending) in self.instances.expire(now) {
            self.start_lost(cx, instance, &pending);
            // If the node starts the instance later, it must not run, because its START has failed.
            self.delete_given_up(cx, instance, pending.allocation.node);
        }
    }

    /// Answers held STARTs when the scheduler stops. STARTs that were sent to nodes are not
    /// answered: the nodes report their outcome to the next scheduler.
    pub(super) fn refuse_held(&mut self, cx: &mut Context<'_>) {
        while let Some(HeldStart { start, .. }) = self.held.take(0) {
            self.refuse_start(cx, &start, StartFailureReason::FullCloud);
        }
    }

    /// Answers a START with a failure, because its node has not answered it.
    pub(super) fn start_lost(&mut self, cx: &mut Context<'_>, instance: Uuid, pending: &PendingStart) {
        let node = pending.allocation.node;
        self.starts.failed("no_answer", pending.received, cx.now());
        self.free_address(instance);
        limited!(warn, self.log, cx, node, "STARTs lost";
            "START of {instance}: node {node} has not reported its outcome");
        let failure = StartFailure {
            node_uuid: node.into(),
            instance_uuid: instance.into(),
            reason: StartFailureReason::LaunchFailure,
            restart: pending.restart,
            detail: "its node has not said what became of it".into(),
            command_id: self.moves.command_id(instance),
        };
        answers::to_controllers(cx, &failure);
    }
}
