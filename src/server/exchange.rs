//! Requests of the application, and the way of their answers.
//!
//! ```text
//!  Request ─ filter ─ an addressee ────────────────────▶ that session
//!                   └ none ─ a rule for the kind ────────▶ its receivers
//!                          └ no rule ────────────────────▶ Handler::request
//!  Reply,  ─ to a client that may send such requests ────▶ that client's session
//!  Refusal └ to this server ─────────────────────────────▶ the thread in `ServerHandle::request`
//! ```
//!
//! A server keeps no state for requests that it forwards: the client that asks chooses the number, and
//! the server replaces the UUID in the frame with that of the sender.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use log::debug;
use uuid::Uuid;

use super::core::{ServerCore, State};
use super::handler::{Context, SendError};
use super::sessions::SessionInfo;
use super::{ServerHandle, dispatch};
use crate::proto::{Exchange, Frame, Item, Step, answer_to_bad_exchange};
use crate::request::{Answer, Request, RequestError};

impl ServerCore {
    /// Handles a frame of a kind that is registered as a request.
    pub(super) fn handle_exchange(&mut self, info: &Arc<SessionInfo>, frame: &Frame) {
        let Some(exchange) = Exchange::read(frame.payload_bytes()) else {
            if let Some(answer) = answer_to_bad_exchange(frame.kind()) {
                self.state.answer(info.id, &answer, 1);
            }
            return;
        };
        // The server writes the sender's UUID, so no client can ask or answer in another one's name.
        let of_sender = Exchange {
            peer: info.uuid,
            ..exchange
        };
        let to_server = exchange.peer.is_nil() || exchange.peer == self.state.environment.uuid;
        match exchange.step {
            Step::Request => {
                let request = Request::new(&of_sender, frame);
                // Checked here, because a refused request needs an answer with its number.
                if !self.state.filter.allows(info.role, frame.kind()) {
                    self.state.not_allowed(info, &request, exchange.peer);
                } else if !to_server {
                    let (state, asking) = (&mut self.state, of_sender.readdress(frame));
                    let sent = state.send_unchecked(Some(info.uuid), exchange.peer, &asking);
                    if sent.is_err() {
                        state.refuse(&request, exchange.peer, "not_connected");
                    }
                } else if self.state.rules.get(frame.kind()).is_some() {
                    self.ask_by_rule(info, &request, &of_sender.readdress(frame));
                } else {
                    let mut panicked = true;
                    self.guarded("request", |handler, cx| {
                        handler.request(cx, info, request.clone());
                        panicked = false;
                    });
                    if panicked {
                        self.state.refuse(&request, Uuid::nil(), "not_answered");
                    }
                }
            }
            Step::Reply | Step::Refusal if to_server => {
                self.state.asking.settle(info.uuid, &exchange, frame);
            }
            Step::Reply | Step::Refusal => {
                self.state
                    .pass_back(info, exchange.peer, &of_sender.readdress(frame));
            }
        }
    }

    /// Forwards the request by the rule for its kind.
    fn ask_by_rule(&mut self, info: &Arc<SessionInfo>, request: &Request, asking: &Frame) {
        // A rule does not report its receivers. If no action was added, the request has no receiver
        // that could answer.
        let before = self.state.actions.len();
        self.route(info, &Item::from(asking));
        if before == self.state.actions.len() {
            self.state.refuse(request, Uuid::nil(), "not_connected");
        }
    }
}

impl State {
    fn not_allowed(&mut self, info: &SessionInfo, request: &Request, addressee: Uuid) {
        if let Some(session) = self.sessions.get_mut(info.id) {
            session.counters.frames_filtered += 1;
        }
        if self.filter.rejects() {
            self.refuse(request, addressee, "not_allowed");
        }
    }

    /// Sends an answer to the client that asked, if that client may send such requests. Otherwise
    /// answers would be a way around the filter.
    fn pass_back(&mut self, info: &SessionInfo, asker: Uuid, answer: &Frame) {
        let Some(role) = self.directory().session(asker).map(SessionInfo::role) else {
            debug!(target: "ssntp::server", "{info}: its answer is dropped: {asker} has gone");
            return;
        };
        if !self.filter.allows(role, answer.kind()) {
            if let Some(session) = self.sessions.get_mut(info.id) {
                session.counters.frames_filtered += 1;
            }
            return;
        }
        if let Err(e) = self.send_unchecked(Some(info.uuid), asker, answer) {
            debug!(target: "ssntp::server", "{info}: its answer is dropped: {e}");
        }
    }

    /// Sends a refusal in the name of the addressee `addressee`; nil for the server itself.
    fn refuse(&mut self, request: &Request, addressee: Uuid, why: &str) {
        if let Err(e) = self.respond(request, addressee, &request.refusal(why)) {
            debug!(target: "ssntp::server", "a refusal is dropped: {e}");
        }
    }

    /// Sends an answer to the client that asked, in the name of `addressee`; nil for the server itself.
    fn respond(&mut self, request: &Request, addressee: Uuid, answer: &Frame) -> Result<(), SendError> {
        let own = self.environment.uuid;
        let peer = if addressee.is_nil() { own } else { addressee };
        let addressed = Exchange::read(answer.payload_bytes()).map(|exchange| Exchange { peer, ..exchange });
        let answer = addressed.map_or_else(|| answer.clone(), |exchange| exchange.readdress(answer));
        self.check_length(&answer)?;
        self.send_unchecked(None, request.from(), &answer)
    }
}

impl Context<'_> {
    /// Answers a request of this or an earlier call.
    ///
    /// # Errors
    /// [`SendError`]; the answer was not queued. [`SendError::NotConnected`] if the client that asked
    /// has gone.
    pub fn reply(&mut self, request: &Request, payload: impl Into<Bytes>) -> Result<(), SendError> {
        self.state
            .respond(request, Uuid::nil(), &request.reply(payload.into()))
    }

    /// Refuses a request. The reason `why` is cut to 256 bytes.
    ///
    /// # Errors
    /// As [`reply`](Self::reply).
    pub fn refuse(&mut self, request: &Request, why: &str) -> Result<(), SendError> {
        self.state.respond(request, Uuid::nil(), &request.refusal(why))
    }
}

impl ServerHandle {
    /// Answers a request, see [`Context::reply`].
    ///
    /// # Errors
    /// [`SendError`]; the answer was not queued.
    pub fn reply(&self, request: &Request, payload: impl Into<Bytes>) -> Result<(), SendError> {
        let (request, payload) = (request.clone(), payload.into());
        self.with(move |cx| cx.reply(&request, payload))?
    }

    /// Sends a request to a client of this server and blocks until the answer has come, for at most `limit`.
    /// The kind must be registered as a request
    /// ([`ServerConfig::operands`](super::ServerConfig::operands)). At most 1024 requests wait for
    /// answers at a time.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn request(&self, addressee: Uuid, frame: Frame, limit: Duration) -> Result<Frame, RequestError> {
        if dispatch::is_dispatcher() {
            return Err(RequestError::OnDispatcher);
        }
        let asked = self.with(move |cx| cx.state.ask_as_server(addressee, &frame));
        let (id, answered) = asked.map_err(|_| RequestError::Ended)??;
        let answer = answered.recv_timeout(limit);
        if answer.is_err() {
            let _ = self.post(move |cx| cx.state.asking.forget(id));
        }
        answer.map_err(|e| match e {
            RecvTimeoutError::Timeout => RequestError::TimedOut(limit),
            RecvTimeoutError::Disconnected => RequestError::Ended,
        })?
    }
}

impl State {
    fn ask_as_server(
        &mut self,
        addressee: Uuid,
        frame: &Frame,
    ) -> Result<(u64, Receiver<Answer>), RequestError> {
        if !self.environment.operands.is_request(frame.kind()) {
            return Err(RequestError::Kind(frame.kind()));
        }
        // An answer to a server goes no further than to the server of the client that sends it.
        if self.sessions.of(addressee).is_none() {
            return Err(RequestError::NotConnected);
        }
        let (id, asking, answered) = self.asking.ask(addressee, frame)?;
        let of_server = Exchange {
            step: Step::Request,
            id,
            peer: self.environment.uuid,
        };
        let sent = self
            .check_length(&asking)
            .and_then(|()| self.send_unchecked(None, addressee, &of_server.readdress(&asking)));
        if let Err(e) = sent {
            self.asking.forget(id);
            return Err(match e {
                SendError::TooLong { len, limit } => RequestError::TooLong { len, limit },
                _ => RequestError::NotConnected,
            });
        }
        Ok((id, answered))
    }
}
