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
use super::delivery::Parcel;
use super::disconnect::DisconnectReason;
use super::operators::is_of_operators;
use super::routing::Rule;
use super::sessions::{SessionId, SessionInfo};
use crate::proto::{Command, ErrorCode, Item, answer_to_unsupported};
use ssntp_pki::Role;

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
            return item.each().for_each(|frame| self.handle_exchange(&info, &frame));
        }
        if is_of_operators(kind) {
            return item.each().for_each(|frame| self.handle_command(&info, &frame));
        }
        if !self.state.filter.allows(info.role, kind) {
            return self.state.filtered(id, kind, frames);
        }
        let configures = self.state.takes_configure
            && kind == Command::CONFIGURE
            && info.role.intersects(Role::CONTROLLER);
        if !configures {
            return self.deliver(&info, item);
        }
        // Each CONFIGURE is checked by itself. They are rare, so the cost does not matter.
        for frame in item.each() {
            if self.state.configure(id, &frame) {
                self.deliver(&info, Item::from(&frame));
            }
        }
    }

    fn deliver(&mut self, info: &Arc<SessionInfo>, item: Item) {
        self.route(info, &item);
        // After the rules, so that frames that the handler sends arrive behind the frame that caused
        // them.
        self.hand_over(info, item);
    }

    /// Gives frames to the application.
    pub(super) fn hand_over(&mut self, info: &SessionInfo, item: Item) {
        self.guarded("frame", |handler, cx| match item {
            Item::Run(run) => handler.run(cx, info, &run),
            Item::Traced(frame) => handler.frame(cx, info, frame),
            Item::Unsupported(_) => {}
        });
    }

    /// Forwards frames by the rule for their kind.
    pub(super) fn route(&mut self, info: &Arc<SessionInfo>, item: &Item) {
        let state = &mut self.state;
        match state.rules.get(item.kind()) {
            Some(Rule::Multicast(role)) => {
                let role = *role;
                let sent = Parcel::of(item, state).map_or(0, |mut parcel| {
                    state.multicast(Some(info.uuid), role, &mut parcel)
                });
                if sent == 0 {
                    state.tally.unreceived += u64::from(item.frames());
                }
            }
            Some(Rule::Function(_)) => {
                // The payload of each frame keeps the bytes of the whole run alive.
                let memory = match item {
                    Item::Run(run) => run.wire().len(),
                    _ => 0,
                };
                for frame in item.each() {
                    state.route_by_function(info, &frame, memory);
                }
            }
            None => {}
        }
    }
}
