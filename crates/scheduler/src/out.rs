//! The way out of the rooms: frames to clients and to other schedulers, and the log lines that a
//! peer can cause. A room that sends gets it as an argument, because the next step may depend on
//! whether a frame was sent.

use std::time::Instant;

use log::debug;
use uuid::Uuid;

use super::messages::{Intent, Message};
use ssntp::Role;
use ssntp::payload::Payload;
use ssntp::proto::{Frame, FrameKind};
use ssntp::server::{Context, SendError, SessionInfo};
use ssntp_cluster::refusal::{self, Reason, Refused};
use ssntp_transport::{LogLimit, More};

/// Writes a log line that a peer can cause, unless that peer has caused too many of its kind:
/// level, way out, peer, kind, and the line.
macro_rules! limited {
    ($level:ident, $out:expr, $peer:expr, $kind:literal; $($line:tt)+) => {
        if let Some(more) = $out.admit_line($peer, $kind) {
            log::$level!(target: "ssntp::scheduler", "{}{more}", format_args!($($line)+));
        }
    };
}
pub(crate) use limited;

/// The server's context, and the limits of the log.
#[derive(Debug)]
pub(crate) struct Out<'a, 'b> {
    pub(crate) cx: &'a mut Context<'b>,
    log: &'a mut LogLimit<Uuid>,
}

impl<'a, 'b> Out<'a, 'b> {
    pub(crate) fn new(cx: &'a mut Context<'b>, log: &'a mut LogLimit<Uuid>) -> Self {
        Self { cx, log }
    }

    pub(crate) fn now(&self) -> Instant {
        self.cx.now()
    }

    /// Admits a line of this kind about a peer; see [`limited`].
    pub(crate) fn admit_line(&mut self, peer: Uuid, kind: &'static str) -> Option<More> {
        self.log.admit(peer, kind, self.cx.now())
    }

    /// Sends a frame to one client. It fails only if the client's session has ended or is about to
    /// end, so the frame may be dropped.
    pub(crate) fn send(&mut self, to: Uuid, frame: &Frame) {
        if let Err(e) = self.cx.send(to, frame) {
            debug!(target: "ssntp::scheduler", "{} for {to}: {e}", frame.kind());
        }
    }

    /// Sends a frame to every controller. It fails only for kinds that may not be sent.
    pub(crate) fn send_to_controllers(&mut self, frame: &Frame) {
        if let Err(e) = self.cx.multicast(Role::CONTROLLER, frame) {
            debug!(target: "ssntp::scheduler", "{} for all controllers: {e}", frame.kind());
        }
    }

    pub(crate) fn tell_controllers<T: Payload>(&mut self, payload: &T) {
        self.send_to_controllers(&Frame::of(payload));
    }

    /// Forwards a client's frame to all controllers. It fails only for kinds that may not be sent.
    pub(crate) fn forward_to_controllers(&mut self, from: &SessionInfo, frame: &Frame) {
        let _ = self.cx.forward_all(from, Role::CONTROLLER, frame);
    }

    /// Sends a START or another frame to a node: forwarded with its trace if its sender is known.
    pub(crate) fn deliver(
        &mut self,
        from: Option<&SessionInfo>,
        to: Uuid,
        frame: &Frame,
    ) -> Result<(), SendError> {
        match from {
            Some(from) => self.cx.forward(from, to, frame),
            None => self.cx.send(to, frame),
        }
    }

    /// Refuses a frame that is not forwarded: with the failure of its command if it has one, which
    /// every controller gets, and with InvalidFrameType to its sender otherwise.
    pub(crate) fn refuse(&mut self, from: &SessionInfo, frame: &Frame, refused: &Refused) {
        match refusal::failure_of(frame, refused) {
            Some(failure) => self.send_to_controllers(&failure),
            None => self.invalid_frame(from, frame.kind(), &refused.reason),
        }
    }

    pub(crate) fn invalid_frame(&mut self, to: &SessionInfo, kind: FrameKind, reason: &Reason) {
        self.send(to.uuid(), &refusal::invalid_frame(kind, reason));
    }

    /// Sends intents to the other schedulers.
    pub(crate) fn send_intents(&mut self, intents: &[Intent]) {
        for message in Message::of(intents) {
            self.cx.send_to_servers(&message);
        }
    }
}
