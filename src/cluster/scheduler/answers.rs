//! What the scheduler answers itself: failures, to every controller, and
//! InvalidFrameType where a frame has no failure, to its sender.

use std::collections::BTreeMap;

use log::debug;
use serde::Deserialize;

use crate::Role;
use crate::payload::{
    self, AssignPublicIpFailure, AttachVolumeFailure, AttachVolumeFailureReason, DeleteFailure,
    DeleteFailureReason, DetachVolumeFailure, DetachVolumeFailureReason, Id, InvalidFrameType,
    InvalidFrameTypeReason, Payload, PublicIpFailureReason, RestartFailure, RestartFailureReason,
    StartFailure, StartFailureReason, StopFailure, StopFailureReason, UnassignPublicIpFailure, yaml,
};
use crate::printable::excerpt;
use crate::proto::{Command, Frame, FrameKind, FrameType};
use crate::server::{Context, SessionInfo};

/// Why a command goes nowhere.
#[derive(Clone, Copy, Debug)]
pub(super) enum Why<'a> {
    /// Its payload is refused.
    Unreadable(&'a payload::Error),
    /// Whom it names is not connected.
    NotConnected,
}

/// Answers a frame that goes nowhere: with the failure of its command, else
/// with InvalidFrameType.
pub(super) fn refuse(cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame, why: Why<'_>) {
    match failure(frame, why) {
        Some(failure) => send_to_controllers(cx, &failure),
        None => {
            let reason = match why {
                Why::Unreadable(e) if e.is_malformed() => "invalid_payload",
                Why::Unreadable(_) => "invalid_data",
                Why::NotConnected => "not_connected",
            };
            invalid_frame(cx, from, frame.kind(), reason.into());
        }
    }
}

/// Tells a controller that it may not command at present.
pub(super) fn role_not_allowed(cx: &mut Context<'_>, to: &SessionInfo, kind: FrameKind) {
    invalid_frame(cx, to, kind, InvalidFrameTypeReason::RoleNotAllowed);
}

/// Tells every controller.
pub(super) fn to_controllers<T: Payload>(cx: &mut Context<'_>, payload: &T) {
    send_to_controllers(cx, &Frame::of(payload));
}

fn send_to_controllers(cx: &mut Context<'_>, frame: &Frame) {
    if let Err(e) = cx.multicast(Role::CONTROLLER, frame) {
        debug!(target: "ssntp::scheduler", "{} for all controllers: {e}", frame.kind());
    }
}

/// Answers a frame that can neither be read nor be answered otherwise.
pub(super) fn invalid_data(cx: &mut Context<'_>, to: &SessionInfo, kind: FrameKind) {
    invalid_frame(cx, to, kind, "invalid_data".into());
}

fn invalid_frame(cx: &mut Context<'_>, to: &SessionInfo, kind: FrameKind, reason: InvalidFrameTypeReason) {
    let answer = Frame::of(&InvalidFrameType::new(kind, reason));
    if let Err(e) = cx.send(to.uuid(), &answer) {
        debug!(target: "ssntp::scheduler", "{to}: the answer to {kind}: {e}");
    }
}

/// What a command is about, as far as it can be read when the command as a
/// whole cannot.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct About {
    workload_agent_uuid: Id,
    instance_uuid: Id,
    volume_uuid: Id,
    concentrator_uuid: Id,
    tenant_uuid: Id,
    public_ip: String,
    private_ip: String,
    vnic_mac: String,
    restart: bool,
}

impl About {
    fn of(frame: &Frame) -> Self {
        // Only START has more than one document.
        let mut found: Vec<_> = yaml::documents(frame.payload_bytes())
            .take(3)
            .filter_map(|document| yaml::decode::<BTreeMap<String, Self>>(document.bytes).ok())
            .flat_map(BTreeMap::into_values)
            .filter(|about| *about != Self::default())
            .collect();
        let names_instance = |about: &Self| !about.instance_uuid.is_empty();
        let best = found.iter().position(names_instance).unwrap_or(0);
        match found.is_empty() {
            true => Self::default(),
            false => found.swap_remove(best),
        }
    }
}

fn failure(frame: &Frame, why: Why<'_>) -> Option<Frame> {
    if frame.kind().frame_type != FrameType::COMMAND {
        return None;
    }
    let about = || About::of(frame);
    Some(match Command(frame.kind().operand) {
        Command::START => {
            let about = about();
            Frame::of(&StartFailure {
                node_uuid: Id::default(),
                instance_uuid: about.instance_uuid,
                reason: reason(why, StartFailureReason::FullCloud),
                restart: about.restart,
                detail: detail(why),
            })
        }
        Command::STOP => {
            let about = about();
            Frame::of(&StopFailure {
                node_uuid: about.workload_agent_uuid,
                instance_uuid: about.instance_uuid,
                reason: reason(why, StopFailureReason::NoInstance),
            })
        }
        Command::DELETE => {
            let about = about();
            Frame::of(&DeleteFailure {
                node_uuid: about.workload_agent_uuid,
                instance_uuid: about.instance_uuid,
                reason: reason(why, DeleteFailureReason::NoInstance),
            })
        }
        Command::RESTART => {
            let about = about();
            Frame::of(&RestartFailure {
                node_uuid: about.workload_agent_uuid,
                instance_uuid: about.instance_uuid,
                reason: reason(why, RestartFailureReason::NoInstance),
                detail: detail(why),
            })
        }
        Command::ATTACH_VOLUME => {
            let about = about();
            Frame::of(&AttachVolumeFailure {
                node_uuid: about.workload_agent_uuid,
                instance_uuid: about.instance_uuid,
                volume_uuid: about.volume_uuid,
                reason: reason(why, AttachVolumeFailureReason::NoInstance),
            })
        }
        Command::DETACH_VOLUME => {
            let about = about();
            Frame::of(&DetachVolumeFailure {
                node_uuid: about.workload_agent_uuid,
                instance_uuid: about.instance_uuid,
                volume_uuid: about.volume_uuid,
                reason: reason(why, DetachVolumeFailureReason::NoInstance),
            })
        }
        Command::ASSIGN_PUBLIC_IP => {
            let about = about();
            Frame::of(&AssignPublicIpFailure {
                concentrator_uuid: about.concentrator_uuid,
                tenant_uuid: about.tenant_uuid,
                instance_uuid: about.instance_uuid,
                public_ip: about.public_ip,
                private_ip: about.private_ip,
                vnic_mac: about.vnic_mac,
                reason: reason(why, PublicIpFailureReason::NoInstance),
            })
        }
        Command::RELEASE_PUBLIC_IP => {
            let about = about();
            Frame::of(&UnassignPublicIpFailure {
                concentrator_uuid: about.concentrator_uuid,
                tenant_uuid: about.tenant_uuid,
                instance_uuid: about.instance_uuid,
                public_ip: about.public_ip,
                private_ip: about.private_ip,
                vnic_mac: about.vnic_mac,
                reason: reason(why, PublicIpFailureReason::NoInstance),
            })
        }
        _ => return None,
    })
}

/// What a payload is refused for, as its sender may read it.
fn detail(why: Why<'_>) -> String {
    match why {
        Why::Unreadable(error) => excerpt(error).to_string(),
        Why::NotConnected => String::new(),
    }
}

fn reason<'a, R: From<&'a payload::Error>>(why: Why<'a>, not_connected: R) -> R {
    match why {
        Why::Unreadable(error) => error.into(),
        Why::NotConnected => not_connected,
    }
}
