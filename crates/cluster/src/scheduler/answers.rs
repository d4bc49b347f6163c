//! The answers that the scheduler makes itself: failures, to every controller; and
//! InvalidFrameType to the sender of a frame that has no failure.

use log::debug;

use ssntp::Role;
use ssntp::payload::{
    self, AssignPublicIpFailure, AttachVolumeFailure, AttachVolumeFailureReason, CommandFailure,
    CommandSubject, DeleteFailure, DeleteFailureReason, DetachVolumeFailure, DetachVolumeFailureReason,
    InvalidFrameType, InvalidFrameTypeReason, Payload, PublicIpFailureReason, RestartFailure,
    RestartFailureReason, StartFailure, StartFailureReason, StopFailure, StopFailureReason,
    UnassignPublicIpFailure,
};
use ssntp::proto::{Command, Frame, FrameKind, FrameType};
use ssntp::server::{Context, SessionInfo};
use ssntp_transport::excerpt;

/// Why a frame is not forwarded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Why<'a> {
    /// Its payload is refused.
    Unreadable(&'a payload::Error),
    /// The client that it names is not connected.
    NotConnected,
}

/// Answers a frame that is not forwarded: with the failure of its command if there is one,
/// and with InvalidFrameType otherwise.
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

/// Tells a controller that it may not command, because another one is the master.
pub(super) fn role_not_allowed(cx: &mut Context<'_>, to: &SessionInfo, kind: FrameKind) {
    invalid_frame(cx, to, kind, InvalidFrameTypeReason::RoleNotAllowed);
}

/// Sends a payload to every controller.
pub(super) fn to_controllers<T: Payload>(cx: &mut Context<'_>, payload: &T) {
    send_to_controllers(cx, &Frame::of(payload));
}

fn send_to_controllers(cx: &mut Context<'_>, frame: &Frame) {
    if let Err(e) = cx.multicast(Role::CONTROLLER, frame) {
        debug!(target: "ssntp::scheduler", "{} for all controllers: {e}", frame.kind());
    }
}

/// Answers a frame that cannot be read and has no failure.
pub(super) fn invalid_data(cx: &mut Context<'_>, to: &SessionInfo, kind: FrameKind) {
    invalid_frame(cx, to, kind, "invalid_data".into());
}

fn invalid_frame(cx: &mut Context<'_>, to: &SessionInfo, kind: FrameKind, reason: InvalidFrameTypeReason) {
    let answer = Frame::of(&InvalidFrameType::new(kind, reason));
    if let Err(e) = cx.send(to.uuid(), &answer) {
        debug!(target: "ssntp::scheduler", "{to}: the answer to {kind}: {e}");
    }
}

fn failure(frame: &Frame, why: Why<'_>) -> Option<Frame> {
    if frame.kind().frame_type != FrameType::COMMAND {
        return None;
    }
    Some(match Command(frame.kind().operand) {
        Command::START => failed::<StartFailure>(frame, why, StartFailureReason::FullCloud),
        Command::STOP => failed::<StopFailure>(frame, why, StopFailureReason::NoInstance),
        Command::DELETE => failed::<DeleteFailure>(frame, why, DeleteFailureReason::NoInstance),
        Command::RESTART => failed::<RestartFailure>(frame, why, RestartFailureReason::NoInstance),
        Command::ATTACH_VOLUME => {
            failed::<AttachVolumeFailure>(frame, why, AttachVolumeFailureReason::NoInstance)
        }
        Command::DETACH_VOLUME => {
            failed::<DetachVolumeFailure>(frame, why, DetachVolumeFailureReason::NoInstance)
        }
        Command::ASSIGN_PUBLIC_IP => {
            failed::<AssignPublicIpFailure>(frame, why, PublicIpFailureReason::NoInstance)
        }
        Command::RELEASE_PUBLIC_IP => {
            failed::<UnassignPublicIpFailure>(frame, why, PublicIpFailureReason::NoInstance)
        }
        _ => return None,
    })
}

fn failed<F: CommandFailure>(command: &Frame, why: Why<'_>, not_connected: F::Reason) -> Frame {
    let mut subject = CommandSubject::of(command);
    let reason = match why {
        Why::Unreadable(error) => {
            // The text says where the payload is wrong, which the reason cannot.
            subject.detail = excerpt(error).to_string();
            error.into()
        }
        Why::NotConnected => not_connected,
    };
    Frame::of(&F::of(subject, reason))
}
