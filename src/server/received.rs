//! The path of a received frame: it is counted, reported to watching operators, filtered by the sender's
//! role, forwarded by the rules, and then given to the application.
//!
//! ```text
//!  Item ─▶ count ─▶ watchers ─▶ filter ─▶ Rule: role, function ─▶ Handler::run, Handler::frame
//!                     ├─▶ a request or an answer ─▶ exchange
//!                     └─▶ a command of operators ─▶ operators
//! ```
//!
//! A [`Run`] is one or more frames of one kind that arrived one after the other. They are forwarded as
//! the bytes that were received. A traced frame is handled alone, because each receiver gets it with
//! other timestamps.

use std::sync::Arc;

use log::debug;

use super::core::ServerCore;
use super::delivery::SharedEncoding;
use super::disconnect::DisconnectReason;
use super::federation::ForwardBody;
use super::operators::is_of_operators;
use super::routing::Rule;
use super::sessions::{SessionId, SessionInfo};
use crate::proto::{Command, ErrorCode, Frame, Item, Run, answer_to_unsupported};
use ssntp_transport::Outgoing;
use ssntp_transport::Role;

impl ServerCore {
    pub(super) fn handle_item(&mut self, id: SessionId, item: Item) {
        // If there is no such session, the item belongs to a link, or to a session that an earlier item of
        // the same batch has ended.
        let Some(session) = self.state.sessions.get_mut(id) else {
            return self.link_item(id.0, item);
        };
        let info = Arc::clone(&session.info);
        let (kind, frames) = (item.kind(), item.frames());
        session.counters.frames_received += u64::from(frames);
        if let Item::Unsupported(kind) = item {
            session.counters.frames_unsupported += 1;
            debug!(target: "ssntp::server", "{info}: unsupported frame {kind}");
            if let Some(answer) = answer_to_unsupported(kind) {
                self.state.answer(id, &answer, 1);
            }
            return;
        }
        let bytes = match &item {
            Item::Run(run) => run.wire().len(),
            Item::Traced(frame) => frame.encoded_len(),
            Item::Unsupported(_) => 0,
        };
        // Counted before the filter, so that the figures show attempts as well.
        self.state.tally.received(kind, frames, bytes as u64);
        if !self.state.watchers.is_empty() {
            self.state
                .notify_watchers(&info, kind, frames.into(), bytes as u64);
        }
        // Before the filter, because a client needs no permission to leave.
        if kind == ErrorCode::CONNECTION_FAILURE || kind == ErrorCode::CONNECTION_ABORTED {
            let reason = DisconnectReason::PeerRefused(ErrorCode(kind.operand));
            return self.state.end(id, reason, false);
        }
        // Before the filter, because a request that is refused needs an answer that names it.
        if self.state.environment.operands.is_request(kind) {
            return self.exchange(&info, item);
        }
        if is_of_operators(kind) {
            return self.handle_commands(&info, &item);
        }
        if !self.state.filter.allows(info.role, kind) {
            return self.state.filtered(id, kind, frames);
        }
        let configures = self.state.takes_configure
            && kind == Command::CONFIGURE
            && info.role.intersects(Role::CONTROLLER);
        match item {
            Item::Run(run) if configures => {
                // Each CONFIGURE is checked by itself. They are rare, so the cost does not matter.
                for frame in run.frames() {
                    if self.state.configure(id, &frame) {
                        self.route_run(&info, &Run::of(&frame));
                    }
                }
            }
            Item::Run(run) => self.route_run(&info, &run),
            Item::Traced(frame) => {
                if configures && !self.state.configure(id, &frame) {
                    return;
                }
                self.route_frame(&info, &frame);
                self.guarded("frame", |handler, cx| handler.frame(cx, &info, frame));
            }
            Item::Unsupported(_) => {}
        }
    }

    fn route_run(&mut self, info: &Arc<SessionInfo>, run: &Run) {
        match self.state.rules.get(run.kind()) {
            Some(Rule::Multicast(role)) => {
                let role = *role;
                // All receivers share the received bytes, so nothing is encoded again.
                let item = Outgoing::whole(run.wire().clone(), run.len());
                let here = self
                    .state
                    .fan_out(Some(info.uuid), role, run.kind(), |_| item.clone());
                let state = &mut self.state;
                let elsewhere = state.send_to_remote_role(Some(info.uuid), role, || ForwardBody::from(run));
                if here == 0 && elsewhere == 0 {
                    state.tally.unreceived += u64::from(run.len());
                }
            }
            Some(Rule::Function(_)) => {
                // The payload of each frame keeps the bytes of the whole run alive.
                for frame in run.frames() {
                    self.state.route_by_function(info, &frame, run.wire().len());
                }
            }
            None => {}
        }
        // After the rules, so that frames that the handler sends arrive behind the frame that caused
        // them.
        self.guarded("frame", |handler, cx| handler.run(cx, info, run));
    }

    pub(super) fn route_frame(&mut self, info: &Arc<SessionInfo>, frame: &Frame) {
        match self.state.rules.get(frame.kind()) {
            Some(Rule::Multicast(role)) => {
                let role = *role;
                let mut encoding = SharedEncoding::new(frame, &self.state);
                let state = &mut self.state;
                let here = state.fan_out(Some(info.uuid), role, frame.kind(), |session| {
                    encoding.for_session(session)
                });
                let elsewhere = state.send_to_remote_role(Some(info.uuid), role, || encoding.for_link());
                if here == 0 && elsewhere == 0 {
                    state.tally.unreceived += 1;
                }
            }
            Some(Rule::Function(_)) => self
                .state
                .route_by_function(info, frame, frame.payload_bytes().len()),
            None => {}
        }
    }
}
