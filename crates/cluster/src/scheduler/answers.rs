//! The answers that the scheduler makes itself: failures, to every controller; and
//! InvalidFrameType to the sender of a frame that has no failure.

use log::debug;

use crate::refusal::{self, Refused};
use ssntp::Role;
use ssntp::payload::Payload;
use ssntp::proto::{Frame, FrameKind};
use ssntp::server::{Context, SessionInfo};

/// Answers a frame that is not forwarded: with the failure of its command if there is one,
/// and with InvalidFrameType otherwise.
pub(super) fn refuse(cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame, refused: &Refused) {
    match refusal::failure_of(frame, refused) {
        Some(failure) => send_to_controllers(cx, &failure),
        None => invalid_frame(cx, from, frame.kind(), refused.word),
    }
}

/// Sends a payload to every controller.
pub(super) fn to_controllers<T: Payload>(cx: &mut Context<'_>, payload: &T) {
    send_to_controllers(cx, &Frame::of(payload));
}

pub(super) fn send_to_controllers(cx: &mut Context<'_>, frame: &Frame) {
    if let Err(e) = cx.multicast(Role::CONTROLLER, frame) {
        debug!(target: "ssntp::scheduler", "{} for all controllers: {e}", frame.kind());
    }
}

/// Answers a frame that has no failure.
pub(super) fn invalid_frame(cx: &mut Context<'_>, to: &SessionInfo, kind: FrameKind, word: &'static str) {
    if let Err(e) = cx.send(to.uuid(), &refusal::invalid_frame(kind, word)) {
        debug!(target: "ssntp::scheduler", "{to}: the answer to {kind}: {e}");
    }
}
