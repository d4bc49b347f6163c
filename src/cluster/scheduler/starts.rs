//! A START from its arrival until it is confirmed or answered: it never just
//! disappears.
//!
//! ```text
//!            ┌──────────── no node, no room: StartFailure ───────────────┐
//!  START ────┤                                                           │
//!            ├─ fits a ready node ──▶ in flight ─┬─ STATS list it        │
//!            │                          ▲        ├─ StartFailure ────────┤
//!            │                          │        └─ node gone:           │
//!            │                        READY         launch_failure ──────┤
//!            │                          │                                ▼
//!            └─ fits a waiting node ──▶ held ──── too many, too long: full_cloud
//!                                            ╲─── no such node any more: full_cloud
//! ```

use std::time::Instant;

use bytes::Bytes;
use log::{debug, info, warn};
use uuid::Uuid;

use super::in_flight::Flight;
use super::placement::{Handed, Needs, Verdict};
use super::{Scheduler, answers, now};
use crate::payload::yaml::{self, ErrorKind};
use crate::payload::{self, Id, Start, StartFailure, StartFailureReason};
use crate::printable::excerpt;
use crate::proto::{Command, Frame};
use crate::server::{Context, SessionInfo};

/// A START that has been read and is nowhere yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) frame: Frame,
    pub(super) needs: Needs,
    pub(super) instance: Uuid,
    pub(super) restart: bool,
    /// The controller.
    pub(super) from: Uuid,
}

impl Waiting {
    fn read(from: &SessionInfo, frame: &Frame) -> Result<Self, payload::Error> {
        let start: Start = frame.payload()?;
        let needs = Needs::of(&start).map_err(|path| {
            let below = ErrorKind::Invalid(format!("{path} is below zero"));
            payload::Error::from(yaml::Error::new(below))
        })?;
        Ok(Self {
            frame: frame.clone(),
            needs,
            instance: start.instance_uuid,
            restart: start.restart,
            from: from.uuid(),
        })
    }

    /// Gives it a payload of its own: as it came, it is a piece of a longer
    /// read.
    pub(super) fn detach(&mut self) {
        let payload = Bytes::copy_from_slice(self.frame.payload_bytes());
        let mut own = Frame::with_payload(Command::START, payload);
        if let Some(trace) = self.frame.take_trace() {
            own = own.traced(trace);
        }
        self.frame = own;
    }

    fn failure(&self, reason: StartFailureReason) -> StartFailure {
        StartFailure {
            node_uuid: Id::default(),
            instance_uuid: self.instance.into(),
            reason,
            restart: self.restart,
        }
    }
}

impl Scheduler {
    pub(super) fn start_command(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        match Waiting::read(from, frame) {
            Ok(start) => self.place(cx, Some(from), start),
            Err(e) => {
                if let Some(more) = self.log.admit(from.uuid(), "START refused", now()) {
                    info!(target: "ssntp::scheduler", "{from}: START refused: {}{more}", excerpt(&e));
                }
                answers::refuse(cx, from, frame, answers::Why::Unreadable(&e));
            }
        }
    }

    /// Sends a START to a node, holds it, or answers it. `from` is given
    /// while its session's own frame is being handled.
    fn place(&mut self, cx: &mut Context<'_>, from: Option<&SessionInfo>, mut start: Waiting) {
        if let Some(node) = self.in_flight.node_of(start.instance) {
            if let Err(e) = send(cx, from, node, &start.frame) {
                if let Some(more) = self.log.admit(node, "START not sent", now()) {
                    warn!(target: "ssntp::scheduler", "START of {} for {node}: {e}{more}", start.instance);
                }
                let mut failure = start.failure(StartFailureReason::LaunchFailure);
                failure.node_uuid = node.into();
                answers::to_controllers(cx, &failure);
            }
            return;
        }
        if self.in_flight.is_full() {
            if let Some(more) = self.log.admit(start.from, "too many in flight", now()) {
                warn!(target: "ssntp::scheduler",
                    "START of {}: too many are in flight{more}",
                    start.instance
                );
            }
            answers::to_controllers(cx, &start.failure(StartFailureReason::FullCloud));
            return;
        }
        loop {
            let reason = match self.placement.place(&start.needs, Some(start.from)) {
                // Each node that does not take it is closed: this comes to an end.
                Verdict::Placed(handed) => match self.deliver(cx, from, start, handed) {
                    None => return,
                    Some(back) => {
                        start = back;
                        continue;
                    }
                },
                Verdict::Wait(node) => match self.held.keep(start, node, now()) {
                    None => return,
                    Some(back) => {
                        start = back;
                        StartFailureReason::FullCloud
                    }
                },
                Verdict::NoRoom => StartFailureReason::FullCloud,
                Verdict::NoNode if start.needs.network_node => StartFailureReason::NoNetCn,
                Verdict::NoNode => StartFailureReason::NoCn,
            };
            debug!(target: "ssntp::scheduler", "START of {}: {reason}", start.instance);
            answers::to_controllers(cx, &start.failure(reason));
            return;
        }
    }

    /// Sends a START to the node that was found; gives it back where that
    /// does not take it.
    fn deliver(
        &mut self,
        cx: &mut Context<'_>,
        from: Option<&SessionInfo>,
        start: Waiting,
        handed: Handed,
    ) -> Option<Waiting> {
        match send(cx, from, handed.node, &start.frame) {
            Ok(()) => {
                debug!(target: "ssntp::scheduler", "START of {} goes to {}", start.instance, handed.node);
                let restart = start.restart;
                self.in_flight.add(start.instance, Flight { handed, restart });
                None
            }
            Err(e) => {
                // Its session is about to end.
                let (instance, node) = (start.instance, handed.node);
                if let Some(more) = self.log.admit(node, "START not sent", now()) {
                    warn!(target: "ssntp::scheduler", "START of {instance} for {node}: {e}{more}");
                }
                self.placement.close(handed.node);
                Some(start)
            }
        }
    }

    /// A node takes STARTs again, or none for now, or is gone: what is held
    /// may go to it, or may have to wait for another.
    pub(super) fn node_changed(&mut self, cx: &mut Context<'_>, node: Uuid) {
        let mut at = 0;
        while self.placement.is_ready(node)
            && let Some(held) = self.held.get(at)
        {
            let start = &held.start;
            let elsewhere = self.in_flight.node_of(start.instance).is_some();
            let handed = match elsewhere || start.from == node {
                true => None,
                false => self.placement.place_on(node, &start.needs),
            };
            if handed.is_none() && !elsewhere {
                at += 1;
                continue;
            }
            let Some(start) = self.held.take(at) else { break };
            let back = match handed {
                Some(handed) => self.deliver(cx, None, start, handed),
                None => Some(start),
            };
            if let Some(start) = back {
                self.place(cx, None, start);
            }
        }
        self.reconsider(cx, node);
    }

    /// What waits for a READY of `node` and no longer fits it waits for
    /// another one, or is answered.
    fn reconsider(&mut self, cx: &mut Context<'_>, node: Uuid) {
        let mut at = 0;
        while let Some(held) = self.held.get(at) {
            let needs = &held.start.needs;
            if held.node != node || self.placement.would_fit(node, needs) {
                at += 1;
                continue;
            }
            let from = held.start.from;
            match self.placement.place(needs, Some(from)) {
                Verdict::Wait(other) => {
                    self.held.wait_for(at, other);
                    at += 1;
                }
                Verdict::Placed(handed) => {
                    let back = self
                        .held
                        .take(at)
                        .and_then(|start| self.deliver(cx, None, start, handed));
                    if let Some(start) = back {
                        self.place(cx, None, start);
                    }
                }
                Verdict::NoRoom | Verdict::NoNode => {
                    if let Some(start) = self.held.take(at) {
                        self.place(cx, None, start);
                    }
                }
            }
        }
    }

    /// Answers what was held too long.
    pub(super) fn expire(&mut self, cx: &mut Context<'_>, now: Instant) {
        while let Some(start) = self.held.expire(now) {
            if let Some(more) = self.log.admit(start.from, "no READY in time", now) {
                info!(target: "ssntp::scheduler",
                    "START of {}: no node said READY in time{more}",
                    start.instance
                );
            }
            answers::to_controllers(cx, &start.failure(StartFailureReason::FullCloud));
        }
    }

    /// An agent's StartFailure; the rules have forwarded it.
    pub(super) fn start_failed(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let Ok(failure) = frame.payload::<StartFailure>() else {
            // Forwarded as it is. Its START stays in flight.
            if let Some(more) = self.log.admit(from.uuid(), "StartFailure", now()) {
                warn!(target: "ssntp::scheduler", "{from}: StartFailure that cannot be read{more}");
            }
            return;
        };
        let node = from.uuid();
        let instance = failure.instance_uuid.uuid();
        let Some(flight) = instance.and_then(|instance| self.in_flight.take(instance, node)) else {
            return;
        };
        let has_room = !matches!(
            failure.reason,
            StartFailureReason::FullCn | StartFailureReason::NodeMaintenance
        );
        if has_room && self.placement.take_back(&flight.handed) {
            self.node_changed(cx, node);
        }
    }

    /// Answers every START that a node took with it.
    pub(super) fn node_vanished(&mut self, cx: &mut Context<'_>, node: Uuid) {
        let lost = self.in_flight.take_all(node);
        if !lost.is_empty()
            && let Some(more) = self.log.admit(node, "STARTs lost", now())
        {
            warn!(target: "ssntp::scheduler", "{} STARTs are lost with {node}{more}", lost.len());
        }
        for (instance, flight) in lost {
            debug!(target: "ssntp::scheduler", "START of {instance} is lost with {node}");
            let failure = StartFailure {
                node_uuid: node.into(),
                instance_uuid: instance.into(),
                reason: StartFailureReason::LaunchFailure,
                restart: flight.restart,
            };
            answers::to_controllers(cx, &failure);
        }
    }
}

fn send(
    cx: &mut Context<'_>,
    from: Option<&SessionInfo>,
    to: Uuid,
    frame: &Frame,
) -> Result<(), crate::server::SendError> {
    match from {
        Some(from) => cx.forward(from, to, frame),
        None => cx.send(to, frame),
    }
}
