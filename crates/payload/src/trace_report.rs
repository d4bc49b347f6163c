//! TraceReport: the hops of traced frames, with timestamps (EVENT 0x5).
//!
//! Timestamps have the form of [`timestamp`], and are empty if unset.

use crate::timestamp;
use ssntp::payload::Id;
use ssntp::proto::{Command, Frame, FrameKind, FrameType, Trace, TraceNode, TraceParent};
use ssntp::{Role, schema};

schema! {
    /// Traces of frames.
    ///
    /// The payload of TraceReport (EVENT 0x5):
    ///
    /// ```yaml
    /// frames:
    /// - label: job-17
    ///   type: COMMAND
    ///   operand: START
    ///   start_timestamp: 2017-07-14T02:40:00.000000005Z
    ///   end_timestamp: 2017-07-14T02:40:00.25Z
    ///   nodes:
    ///   - ssntp_node_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
    ///     ssntp_role: Controller
    ///     tx_timestamp: 2017-07-14T02:40:00.1Z
    ///     rx_timestamp: ""
    /// ```
    TraceReport = Event::TRACE_REPORT, up to ssntp::payload::yaml::MAX_DOCUMENT_LEN {
        /// One entry for each frame; default: none.
        frames: Vec<FrameTrace>,
    }
}

impl TraceReport {
    /// The report of those frames that have a trace.
    ///
    /// A report of 100 frames is always shorter than the
    /// [longest document](ssntp::payload::yaml::MAX_DOCUMENT_LEN) that is read.
    ///
    /// ```
    /// use ssntp::Role;
    /// use ssntp_payload::TraceReport;
    /// use ssntp::proto::{Command, Frame, Trace};
    /// use uuid::Uuid;
    ///
    /// let mut trace = Trace::new("job-17");
    /// trace.stamp_sent(Uuid::from_u128(1), Role::CONTROLLER, 1_500_000_000_100_000_000);
    /// let frame = Frame::new(Command::STATS).traced(trace);
    ///
    /// let report = TraceReport::from_frames([&frame]);
    /// assert_eq!(report.frames[0].operand, "STATISTICS");
    /// assert_eq!(report.frames[0].nodes[0].tx_timestamp, "2017-07-14T02:40:00.1Z");
    /// ```
    pub fn from_frames<'a>(frames: impl IntoIterator<Item = &'a Frame>) -> Self {
        let traced = |frame: &'a Frame| Some(FrameTrace::new(frame.kind(), frame.trace()?));
        Self {
            frames: frames.into_iter().filter_map(traced).collect(),
        }
    }
}

schema! {
    /// The servers and clients that one frame has passed.
    FrameTrace {
        /// The label that the frame's sender gave the work; default: empty.
        label: String,
        /// The name of the frame's type (`COMMAND`); default: empty.
        #[serde(rename = "type")]
        frame_type: String,
        /// The name of the operand in traces (`START`, `STATISTICS`, `Assign public IP`; the number in an
        /// ERROR frame); default: empty.
        operand: String,
        /// The time at which the work began; default: empty, unset.
        start_timestamp: String,
        /// The time at which the work ended; default: empty, unset.
        end_timestamp: String,
        /// The hops, origin first; default: none.
        nodes: Vec<NodeTrace>,
    }
}

impl FrameTrace {
    /// The trace of a frame of kind `kind`.
    pub fn new(kind: FrameKind, trace: &Trace) -> Self {
        let node = |node: &TraceNode| NodeTrace {
            ssntp_node_uuid: node.uuid.into(),
            ssntp_role: role_name(node.role),
            tx_timestamp: timestamp::format(node.sent_at),
            rx_timestamp: timestamp::format(node.received_at),
        };
        Self {
            label: trace.label().into_owned(),
            frame_type: kind.frame_type.to_string(),
            operand: operand_name(kind),
            start_timestamp: timestamp::format(trace.start),
            end_timestamp: timestamp::format(trace.end),
            nodes: trace.nodes().iter().map(node).collect(),
        }
    }

    /// The trace context in the label.
    pub fn traceparent(&self) -> Option<TraceParent> {
        TraceParent::in_label(&self.label)
    }
}

schema! {
    /// One hop of a frame.
    NodeTrace {
        /// The UUID of the server or client that the frame passed; default: empty.
        ssntp_node_uuid: Id,
        /// The role: `Server`, `Controller`, `CNAgent`, `Scheduler`,
        /// `NetworkingAgent`, `CNCIAgent`, several joined with `-`; default: empty.
        ssntp_role: String,
        /// The time at which the frame left; default: empty, unset.
        tx_timestamp: String,
        /// The time at which the frame arrived; default: empty, unset.
        rx_timestamp: String,
    }
}

/// The name of a role in traces. Bits without a name follow in hexadecimal.
fn role_name(role: Role) -> String {
    const NAMES: [(Role, &str); 6] = [
        (Role::SERVER, "Server"),
        (Role::CONTROLLER, "Controller"),
        (Role::AGENT, "CNAgent"),
        (Role::SCHEDULER, "Scheduler"),
        (Role::NETAGENT, "NetworkingAgent"),
        (Role::CNCIAGENT, "CNCIAgent"),
    ];
    let known = NAMES.iter().filter(|(bit, _)| role.contains(*bit));
    let mut names: Vec<String> = known.map(|(_, name)| (*name).to_owned()).collect();
    if role.unknown_bits() != 0 {
        names.push(format!("{:#x}", role.unknown_bits()));
    }
    names.join("-")
}

/// The name of an operand in traces, which is not always the name of its frame.
fn operand_name(kind: FrameKind) -> String {
    // Programs that read traces expect the texts of the first implementation.
    let printed = match (kind.frame_type, Command(kind.operand)) {
        (FrameType::COMMAND, Command::STATS) => Some("STATISTICS"),
        (FrameType::COMMAND, Command::ASSIGN_PUBLIC_IP) => Some("Assign public IP"),
        (FrameType::COMMAND, Command::RELEASE_PUBLIC_IP) => Some("Release public IP"),
        (FrameType::COMMAND, Command::ATTACH_VOLUME) => Some("Attach storage volume"),
        (FrameType::COMMAND, Command::DETACH_VOLUME) => Some("Detach storage volume"),
        (FrameType::COMMAND, Command::REFRESH_CNCI) => Some("Refresh CNCI List"),
        (FrameType::ERROR, _) => None,
        _ => kind.name(),
    };
    printed.map_or_else(|| kind.operand.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp::proto::{ErrorCode, Event, Status};

    #[test]
    fn operands_have_the_names_of_the_first_implementation() {
        let printed: Vec<_> = Command::ALL.iter().map(|c| operand_name((*c).into())).collect();
        let expected = [
            "CONNECT",
            "START",
            "STOP",
            "STATISTICS",
            "EVACUATE",
            "DELETE",
            "RESTART",
            "Assign public IP",
            "Release public IP",
            "CONFIGURE",
            "Attach storage volume",
            "Detach storage volume",
            "Restore",
            "Refresh CNCI List",
            "OpenStream",
            "StreamCredit",
            "CloseStream",
            "ListSessions",
            "Kick",
            "ListBans",
            "Unban",
            "Tenant",
            "Watch",
            "ListServers",
            "DrainServer",
            "RenewCertificate",
            "ManageEnrolment",
        ];
        assert_eq!(printed, expected);
        assert_eq!(operand_name(ErrorCode::DELETE_FAILURE.into()), "4");
        assert_eq!(operand_name(Status::READY.into()), "READY");
        assert_eq!(operand_name(Event::NODE_CONNECTED.into()), "NodeConnected");
        assert_eq!(operand_name(FrameKind::new(FrameType::COMMAND, 0x77)), "119");
    }

    #[test]
    fn roles_have_the_names_of_the_first_implementation() {
        assert_eq!(role_name(Role::AGENT | Role::NETAGENT), "CNAgent-NetworkingAgent");
        assert_eq!(role_name(Role::SERVER | Role::SCHEDULER), "Server-Scheduler");
        assert_eq!(role_name(Role::CNCIAGENT), "CNCIAgent");
        assert_eq!(role_name(Role::from_bits(0x42)), "Controller-0x40");
        assert_eq!(role_name(Role::NONE), "");
    }
}
