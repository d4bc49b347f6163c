//! The answers that the scheduler makes itself: a failure to every controller, or
//! InvalidFrameType to the sender of a frame that has no failure.

use log::debug;
use uuid::Uuid;

use ssntp::Role;
use ssntp::payload::Payload;
use ssntp::proto::{Frame, FrameKind};
use ssntp::server::{Context, SessionInfo};
use ssntp_cluster::refusal::{self, Refused};

/// Refuses a frame that is not forwarded: with the failure of its command if it has one, and with
/// InvalidFrameType otherwise.
pub(super) fn refuse(cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame, refused: &Refused) {
    match refusal::failure_of(frame, refused) {
        Some(failure) => send_to_controllers(cx, &failure),
        None => invalid_frame(cx, from, frame.kind(), refused.word),
    }
}

pub(super) fn to_controllers<T: Payload>(cx: &mut Context<'_>, payload: &T) {
    send_to_controllers(cx, &Frame::of(payload));
}

/// Sends a frame to every controller. It fails only for kinds that may not be sent.
pub(super) fn send_to_controllers(cx: &mut Context<'_>, frame: &Frame) {
    if let Err(e) = cx.multicast(Role::CONTROLLER, frame) {
        debug!(target: "ssntp::scheduler", "{} for all controllers: {e}", frame.kind());
    }
}

pub(super) fn invalid_frame(cx: &mut Context<'_>, to: &SessionInfo, kind: FrameKind, word: &'static str) {
    send(cx, to.uuid(), &refusal::invalid_frame(kind, word));
}

/// Sends a frame to one client. It fails only if the client's session has ended or is about to
/// end, so the frame may be dropped.
pub(super) fn send(cx: &mut Context<'_>, to: Uuid, frame: &Frame) {
    if let Err(e) = cx.send(to, frame) {
        debug!(target: "ssntp::scheduler", "{} for {to}: {e}", frame.kind());
    }
}
