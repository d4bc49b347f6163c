//! The check of the reports of agents and concentrators, before they are forwarded to the
//! controllers.
//!
//! A node may report on itself and its own instances, a concentrator on itself. Any other report
//! is dropped, counted and logged. If STATS list instances of other nodes, these instances are
//! removed from the STATS.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use uuid::Uuid;

use super::out::{Out, limited};
use super::parking::with_trace_of;
use ssntp::Role;
use ssntp::payload::{Id, MAX_READ_LEN, yaml};
use ssntp::proto::{ErrorCode, Event, Frame, FrameType};
use ssntp::server::SessionInfo;
use ssntp_payload::Stats;
use ssntp_transport::{excerpt, excerpt_bytes};

/// The length limit of an event or failure, in bytes. They hold a few UUIDs and addresses, and
/// controllers keep and queue thousands of them.
const MAX_REPORT: usize = 8 << 10;
/// The length limit of a TraceReport, in bytes: an agent reports one frame with its hops.
const MAX_TRACE_REPORT: usize = 64 << 10;

/// The entities that an event or a failure names.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Subject {
    node_uuid: Id,
    concentrator_uuid: Id,
    pub(super) instance_uuid: Id,
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

/// The counters of reports that are not forwarded.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// The number of dropped reports.
    foreign: u64,
    invalid_frames: u64,
}

impl Reports {
    /// The number of dropped reports, and of InvalidFrameType frames.
    pub(super) fn counted(&self) -> (u64, u64) {
        (self.foreign, self.invalid_frames)
    }

    /// Counts and logs InvalidFrameType, which is not forwarded.
    pub(super) fn handle_invalid_frame(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        self.invalid_frames += 1;
        limited!(warn, out, from.uuid(), "InvalidFrameType";
            "{from}: InvalidFrameType, {} so far: {}", self.invalid_frames, excerpt_bytes(frame.payload_bytes()));
    }

    /// Forwards a TraceReport to the controllers.
    pub(super) fn handle_trace(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        if frame.payload_bytes().len() > MAX_TRACE_REPORT {
            self.reject(out, from, frame, &"it is too long");
        } else {
            out.forward_to_controllers(from, frame);
        }
    }

    /// The entities that an event or failure names. If its sender may not report on them, rejects
    /// the frame and returns `None`. `is_foreign` is true for an instance of another node.
    pub(super) fn own_subject(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        frame: &Frame,
        is_foreign: impl FnOnce(Uuid) -> bool,
    ) -> Option<Subject> {
        let Some(subject) = Subject::read(frame) else {
            self.reject(out, from, frame, &"it is too long, or cannot be read");
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
            Some(instance) => is_foreign(instance),
            None => false,
        };
        if others(&subject.node_uuid) || (of_cnci && others(&subject.concentrator_uuid)) || foreign_instance {
            let (node, cnci) = (&subject.node_uuid, &subject.concentrator_uuid);
            let about = format_args!("of node {node:?}, concentrator {cnci:?}, instance {instance:?}");
            self.reject(out, from, frame, &about);
            return None;
        }
        Some(subject)
    }

    /// Drops a report, counts it and logs it.
    pub(super) fn reject(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        frame: &Frame,
        why: &dyn fmt::Display,
    ) {
        self.foreign += 1;
        let (kind, count) = (frame.kind(), self.foreign);
        limited!(warn, out, from.uuid(), "not its own";
            "{from}: {kind} dropped: it is invalid, or its sender may not report it: {}; {count} so far", excerpt(why));
    }
}

/// STATS with these instances in the list `foreign` instead of `instances`; `None` if the STATS
/// are too long for that. Keys that this version does not know are lost.
pub(super) fn without(frame: &Frame, foreign: &HashSet<Uuid>) -> Option<Frame> {
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
    use crate::{Scheduler, SchedulerConfig};
    use ssntp::proto::Command;
    use ssntp::testkit::{HandlerTest, Testkit};
    use ssntp_payload::{InstanceState, InstanceStats, Ready, Start, StartFailure};

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
