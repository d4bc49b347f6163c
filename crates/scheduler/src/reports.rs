//! Reports of agents. They are forwarded to the controllers if the agent is allowed to make them.
//!
//! A node may report on itself and its own instances, a concentrator on itself. Any other report
//! is dropped, counted and logged. If STATS list instances of other nodes, these instances are
//! removed from the STATS.

use std::collections::HashSet;
use std::fmt;

use log::debug;
use serde::Deserialize;
use uuid::Uuid;

use super::held::with_trace_of;
use super::instances::StartFailed;
use super::placement::Suspension;
use super::{Scheduler, limited};
use ssntp::Role;
use ssntp::payload::{Id, MAX_READ_LEN, yaml};
use ssntp::proto::{ErrorCode, Event, Frame, FrameType};
use ssntp::server::{Context, SessionInfo};
use ssntp_payload::{
    Delete, DeleteFailure, DeleteFailureReason, StartFailure, StartFailureReason, Stats, StatsSummary,
};
use ssntp_transport::excerpt;

/// The length limit of an event or failure, in bytes. They hold a few UUIDs and addresses, and
/// controllers keep and queue thousands of them.
const MAX_REPORT: usize = 8 << 10;
/// The length limit of a TraceReport, in bytes: an agent reports one frame with its hops.
const MAX_TRACE_REPORT: usize = 64 << 10;

/// The entities that an event or a failure names.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Subject {
    node_uuid: Id,
    concentrator_uuid: Id,
    instance_uuid: Id,
}

/// An event: its subject is below a root key, and each kind of event has its own. Other keys are
/// ignored, as the receivers of the event do.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Rooted {
    #[serde(
        rename = "instance_deleted",
        alias = "instance_stopped",
        alias = "concentrator_instance_added",
        alias = "public_ip_assigned",
        alias = "public_ip_unassigned"
    )]
    subject: Subject,
}

impl Subject {
    /// Reads the subject of a frame; `None` if it is too long or cannot be read.
    fn read(frame: &Frame) -> Option<Self> {
        let bytes = frame.payload_bytes();
        if bytes.len() > MAX_REPORT {
            return None;
        }
        if frame.kind().frame_type != FrameType::EVENT {
            return yaml::decode(bytes).ok();
        }
        // Two of these root keys are an error, so no sender can hide the subject behind another one.
        yaml::decode(bytes).ok().map(|rooted: Rooted| rooted.subject)
    }
}

impl Scheduler {
    /// Handles STATS of a node.
    pub(super) fn stats(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let (node, now) = (from.uuid(), cx.now());
        let stats = match StatsSummary::read(frame.payload_bytes()) {
            Ok(stats) => stats,
            Err(e) => return self.reject_report(cx, from, frame, &e),
        };
        if stats.node_uuid != node {
            return self.reject_report(cx, from, frame, &format_args!("of node {}", stats.node_uuid));
        }
        // The node is not stale, even if some of the listed instances are not its own.
        let was_stale = self.nodes.reported(node, stats.interval, now);
        let interval = self.nodes.interval(node);
        let report = self.instances.report(node, &stats.instances, interval, now);
        for instance in self.commands.report(node, &stats, now) {
            self.moves.user_ended(instance);
        }
        let mut forwarded = Some(frame.clone());
        if let Some(one) = report.foreign.iter().next() {
            let why = format_args!("instance {one} and {} others in all", report.foreign.len() - 1);
            self.reject_report(cx, from, frame, &why);
            forwarded = without(frame, &report.foreign);
        }
        if let Some(forwarded) = forwarded {
            forward(cx, from, &forwarded);
            let own = stats.instances.len() - report.foreign.len().min(stats.instances.len());
            self.nodes.keep_stats(node, &forwarded, own);
        }
        // Failures follow the STATS that explain them.
        for instance in report.held {
            let held = self.held.position(|held| held.start.instance == instance);
            if let Some(held) = held.and_then(|at| self.held.take(at)) {
                self.refuse_taken(cx, &held.start);
            }
        }
        for received in report.started {
            self.starts.started(received, now);
        }
        for (instance, pending) in report.lost {
            self.start_lost(cx, instance, &pending);
        }
        for instance in report.unwanted {
            self.delete_given_up(cx, instance, node);
        }
        for instance in report.gone {
            // Usually InstanceStopped has moved it before, but that event may be lost.
            self.move_on(cx, instance, node);
            self.free_address(instance);
        }
        // Last, because held STARTs may be sent to the node now.
        if was_stale {
            self.placement.resume(node, Suspension::Stale);
            self.node_changed(cx, node);
        }
    }

    /// Handles an agent's event, which is for the controllers.
    pub(super) fn node_event(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let event = Event(frame.kind().operand);
        if event == Event::TRACE_REPORT {
            match frame.payload_bytes().len() > MAX_TRACE_REPORT {
                true => self.reject_report(cx, from, frame, &"it is too long"),
                false => forward(cx, from, frame),
            }
            return;
        }
        // Checked first: a report on an instance of another node would free that UUID.
        let Some(subject) = self.own_subject(cx, from, frame) else {
            return;
        };
        forward(cx, from, frame);
        match event {
            Event::INSTANCE_DELETED | Event::INSTANCE_STOPPED => {
                if let Some(instance) = subject.instance_uuid.uuid() {
                    // The event was forwarded above, so the failures and STARTs that it causes
                    // follow it.
                    if self.commands.ended(from.uuid(), instance) {
                        self.moves.user_ended(instance);
                    }
                    let is_kept = event == Event::INSTANCE_STOPPED;
                    if let Some(received) = self.instances.ended(instance, is_kept) {
                        self.starts.started(received, cx.now());
                    }
                    match is_kept {
                        true => self.move_on(cx, instance, from.uuid()),
                        false => self.free_address(instance),
                    }
                }
                self.nodes.instance_event(from.uuid(), frame);
            }
            _ => {
                self.cncis.event(from, frame);
                // Only then, because the addresses of all concentrators are searched.
                if event == Event::PUBLIC_IP_ASSIGNED
                    && frame.payload().is_ok_and(|ip| self.tenants.is_outdated(&ip))
                {
                    self.tenants.to_check.extend(subject.instance_uuid.uuid());
                }
            }
        }
    }

    /// Handles an agent's failure, which is for the controllers.
    pub(super) fn node_failure(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let Some(subject) = self.own_subject(cx, from, frame) else {
            return;
        };
        if frame.kind() == ErrorCode::START_FAILURE {
            return self.start_failed(cx, from, frame);
        }
        // A failure of the scheduler's own DELETE is not forwarded: controllers did not send it.
        let has_no_instance = |failure: DeleteFailure| failure.reason == DeleteFailureReason::NoInstance;
        if frame.kind() == ErrorCode::DELETE_FAILURE
            && frame.payload().is_ok_and(has_no_instance)
            && let Some(instance) = subject.instance_uuid.uuid()
            && self.instances.free_given_up(instance)
        {
            return self.free_address(instance);
        }
        if let Some(answer) = self.answer_of(from, frame, cx.now()) {
            forward(cx, from, &answer);
        }
    }

    /// Handles an agent's StartFailure: the answer to its START, unless that was answered before.
    fn start_failed(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let Ok(failure) = frame.payload::<StartFailure>() else {
            return self.reject_report(cx, from, frame, &"it cannot be read");
        };
        let (node, now) = (from.uuid(), cx.now());
        let Some(instance) = failure.instance_uuid.uuid() else {
            // Its START is not known, so a controller may still wait for this answer.
            return forward(cx, from, frame);
        };
        // The id is looked up before `place_again` takes the START. An agent that was restarted since it
        // received the START does not repeat it.
        let command_id = self.moves.command_id(instance);
        let ids = [&command_id, &failure.command_id];
        if ids[0] != ids[1] && ids.iter().all(|id| !id.is_empty()) {
            // The agent repeats the failure of an earlier START of the instance.
            return debug!(target: "ssntp::scheduler", "{from}: StartFailure of an earlier START");
        }
        let is_refused = matches!(
            failure.reason,
            StartFailureReason::FullCn | StartFailureReason::NodeMaintenance
        );
        match self.instances.failed(instance, node, &failure.reason) {
            StartFailed::Answer(pending) => {
                // If another node accepts the START, it is not answered yet.
                if is_refused && self.place_again(cx, instance, &pending) {
                    return;
                }
                self.starts.failed(failure.reason.word(), pending.received, now);
                match command_id == failure.command_id {
                    true => forward(cx, from, frame),
                    false => {
                        let named = StartFailure {
                            command_id,
                            ..failure.clone()
                        };
                        forward(cx, from, &Frame::of(&named));
                    }
                }
                if !is_refused && self.placement.take_back(&pending.allocation) {
                    self.node_changed(cx, node);
                }
            }
            // The earlier scheduler may have placed the START on a node that has not connected yet.
            StartFailed::Unknown if is_refused => {
                return debug!(target: "ssntp::scheduler", "{from}: StartFailure of a START that another node may have");
            }
            StartFailed::Unknown => forward(cx, from, frame),
            StartFailed::GivenUp => {
                debug!(target: "ssntp::scheduler", "{from}: StartFailure after its deadline")
            }
            // The first failure freed the address. It may be leased again by now.
            StartFailed::Repeated => {
                return debug!(target: "ssntp::scheduler", "{from}: StartFailure again");
            }
            StartFailed::Foreign => return self.reject_report(cx, from, frame, &failure.instance_uuid),
        }
        // The node may have an instance that its STATS have not listed yet.
        if !failure.reason.node_has_instance() {
            self.free_address(instance);
        }
    }

    /// The entities that an event or failure names. If its sender may not report on them, rejects
    /// the frame and returns `None`.
    fn own_subject(&mut self, cx: &Context<'_>, from: &SessionInfo, frame: &Frame) -> Option<Subject> {
        let Some(subject) = Subject::read(frame) else {
            self.reject_report(cx, from, frame, &"it is too long, or cannot be read");
            return None;
        };
        let own = from.uuid();
        let others = |id: &Id| !id.is_empty() && *id != own;
        let kind = frame.kind();
        let of_cnci = kind == Event::PUBLIC_IP_ASSIGNED
            || kind == Event::PUBLIC_IP_UNASSIGNED
            || kind == ErrorCode::ASSIGN_PUBLIC_IP_FAILURE
            || kind == ErrorCode::UNASSIGN_PUBLIC_IP_FAILURE;
        // A concentrator assigns addresses to instances of any node. In other events, a client
        // that is not a node may name only itself as an instance, because the UUID of a
        // concentrator is also the UUID of its instance.
        let is_node = from.role().intersects(Role::AGENT | Role::NETAGENT);
        let instance = &subject.instance_uuid;
        let foreign_instance = match instance.uuid() {
            _ if of_cnci => false,
            _ if !is_node => others(instance),
            Some(instance) => self.instances.is_foreign(instance, own),
            None => false,
        };
        if others(&subject.node_uuid) || (of_cnci && others(&subject.concentrator_uuid)) || foreign_instance {
            let (node, cnci) = (&subject.node_uuid, &subject.concentrator_uuid);
            let about = format_args!("of node {node:?}, concentrator {cnci:?}, instance {instance:?}");
            self.reject_report(cx, from, frame, &about);
            return None;
        }
        Some(subject)
    }

    /// Drops a report, counts it and logs it.
    pub(super) fn reject_report(
        &mut self,
        cx: &Context<'_>,
        from: &SessionInfo,
        frame: &Frame,
        why: &dyn fmt::Display,
    ) {
        self.foreign += 1;
        let (kind, count) = (frame.kind(), self.foreign);
        limited!(warn, self.log, cx, from.uuid(), "not its own";
            "{from}: {kind} dropped: it is invalid, or its sender may not report it: {}; {count} so far", excerpt(why));
    }

    /// Sends DELETE for an instance whose START was answered with a failure, so that the answer
    /// stays true.
    pub(super) fn delete_given_up(&mut self, cx: &mut Context<'_>, instance: Uuid, node: Uuid) {
        let delete = Delete {
            instance_uuid: instance.into(),
            workload_agent_uuid: node.into(),
            stop: false,
        };
        if let Err(e) = cx.send_payload(node, &delete) {
            debug!(target: "ssntp::scheduler", "DELETE of {instance} for {node}: {e}");
        }
    }
}

/// Forwards a frame to all controllers. It fails only for kinds that may not be sent.
fn forward(cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
    let _ = cx.forward_all(from, Role::CONTROLLER, frame);
}

/// STATS with these instances in the list `foreign` instead of `instances`; `None` if the STATS
/// are too long for that. Keys that this version does not know are lost.
fn without(frame: &Frame, foreign: &HashSet<Uuid>) -> Option<Frame> {
    // Decoding and encoding the longest STATS would block the dispatcher for tens of milliseconds,
    // each time that a node sends them.
    if frame.payload_bytes().len() > MAX_READ_LEN {
        return None;
    }
    let mut stats: Stats = frame.payload().ok()?;
    let is_own = |id: &Id| id.uuid().is_none_or(|uuid| !foreign.contains(&uuid));
    stats.instances.retain(|listed| is_own(&listed.instance_uuid));
    stats.foreign = foreign.iter().map(|instance| Id::from(*instance)).collect();
    stats.foreign.sort_unstable();
    Some(with_trace_of(frame, Frame::of(&stats)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::SchedulerConfig;
    use ssntp::proto::Command;
    use ssntp::testkit::{HandlerTest, Testkit};
    use ssntp_payload::{InstanceState, InstanceStats, Ready, Start};

    fn stats(node: Uuid, state: &InstanceState, instances: &[Uuid]) -> Frame {
        let instance = |uuid: &Uuid| InstanceStats {
            instance_uuid: (*uuid).into(),
            state: state.clone(),
            ..InstanceStats::default()
        };
        Frame::of(&Stats {
            node_uuid: node.into(),
            instances: instances.iter().map(instance).collect(),
            ..Stats::default()
        })
    }

    #[test]
    fn stats_that_are_too_long_to_be_forwarded_still_count() {
        let kit = Testkit::new().unwrap();
        let config = SchedulerConfig::new().stats_interval(Duration::from_secs(10));
        let scheduler = Scheduler::new(config).unwrap();
        let config = scheduler.serve_with(kit.server_config().unwrap());
        let mut test = HandlerTest::new(config, scheduler).unwrap();
        let mut connect = |role| test.connect(&kit.identity(role).unwrap()).unwrap().uuid();
        let controller = connect(Role::CONTROLLER);
        let (owner, node) = (connect(Role::AGENT), connect(Role::AGENT));
        let (twice, [lost, next]) = (Uuid::new_v4(), [1, 2].map(Uuid::from_u128));
        let is_started = |test: &mut HandlerTest, instance: Uuid| {
            let mut start = Start {
                instance_uuid: instance,
                ..Start::default()
            };
            start.requirements.node_id = node.into();
            let ready = Ready {
                node_uuid: node.into(),
                ..Ready::default()
            };
            test.receive(node, &Frame::of(&ready));
            test.receive(controller, &Frame::of(&start));
            test.sent_to(node)
                .iter()
                .any(|frame| frame.kind() == Command::START)
        };
        test.receive(owner, &stats(owner, &InstanceState::Active, &[twice]));
        assert!(is_started(&mut test, lost));
        test.receive(node, &stats(node, &InstanceState::Pending, &[lost]));
        test.advance(Duration::from_secs(40));
        assert!(!is_started(&mut test, next), "the node is stale");
        test.sent_to(controller);
        // The instance of the other node would have to be removed from these STATS.
        let mut listed = vec![twice];
        listed.extend((0..1000).map(|_| Uuid::new_v4()));
        test.receive(node, &stats(node, &InstanceState::Active, &listed));
        let frames = test.sent_to(controller);
        let [failure] = &frames[..] else {
            panic!("{frames:?}");
        };
        assert_eq!(failure.payload::<StartFailure>().unwrap().instance_uuid, lost);
        assert!(is_started(&mut test, next));
    }
}
