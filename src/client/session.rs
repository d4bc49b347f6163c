//! Handles the frames that the reader of a session receives from the server.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use log::{debug, warn};

use super::error::SessionEnd;
use super::event::{ClientEvent, LOG};
use super::handle::ClientState;
use super::inbound::Inbound;
use crate::payload::{Draining, InvalidFrameType};
use crate::proto::{Command, ErrorCode, Event, Exchange, Frame, FrameKind, Item, Step, invalid_frame_type};
use crate::request::Request;
use crate::wire::outgoing;
use ssntp_transport::{EndReason, Outbox, Sink, locked, now};

/// The longest time, in seconds, that a server may give its clients to leave.
const A_DAY: u64 = 86_400;

/// Passes the frames of a session's reader to the application, and its end to the core.
#[derive(Debug)]
pub struct SessionSink {
    pub(super) state: Arc<ClientState>,
    pub(super) outbox: Outbox,
    /// Sends the reason for the end of the session; disconnected once its threads have ended.
    pub(super) end: Sender<SessionEnd>,
    /// Sends the time within which the server asks this client to leave.
    pub(super) drain_requests: Sender<Duration>,
    /// The error frame with which the server ended the session.
    pub(super) refused: Option<ErrorCode>,
}

impl SessionSink {
    /// Handles frames of one kind. Returns false if the frames after them are to be ignored.
    fn take(&mut self, kind: FrameKind, frames: impl Iterator<Item = Frame>, inbound: &mut Inbound) -> bool {
        // These two end the session. The application receives them as the reason of `Disconnected`.
        let codes = [ErrorCode::CONNECTION_FAILURE, ErrorCode::CONNECTION_ABORTED];
        self.refused = codes.into_iter().find(|code| kind == *code);
        if self.refused.is_some() {
            return false;
        }
        let is_request = self.state.config.operands.is_request(kind);
        for frame in frames {
            if kind == Event::DRAINING {
                self.drain(&frame);
                continue;
            }
            if kind == Command::CONFIGURE {
                // The handle keeps the latest configuration.
                self.state.configure(frame.payload_bytes());
            } else if kind == ErrorCode::INVALID_FRAME_TYPE {
                if locked(&self.state.counts).silence.takes(&frame) {
                    continue;
                }
                self.refused_kind(&frame);
            }
            let bytes = frame.encoded_len();
            let goes_on = if is_request {
                self.exchange(frame, inbound)
            } else {
                inbound.deliver(ClientEvent::Frame(frame), bytes)
            };
            if !goes_on {
                return false;
            }
        }
        true
    }

    /// Passes a request to the application, and an answer to the thread that waits for it.
    fn exchange(&self, frame: Frame, inbound: &mut Inbound) -> bool {
        let Some(exchange) = Exchange::read(frame.payload_bytes()) else {
            if let Some(answer) = invalid_frame_type(frame.kind(), "bad_exchange") {
                self.answer(&answer);
            }
            return true;
        };
        if exchange.step == Step::Request {
            let request = Request {
                _under_way: Some(Arc::clone(&self.state.open_requests)),
                ..Request::new(&exchange, &frame)
            };
            return inbound.deliver(ClientEvent::Request(request), frame.encoded_len());
        }
        locked(&self.state.requests).settle(exchange.peer, &exchange, &frame);
        true
    }

    /// Ends the wait for answers to requests of a kind that the server does not support.
    fn refused_kind(&self, frame: &Frame) {
        if let Ok(refusal) = frame.payload::<InvalidFrameType>()
            && self.state.config.operands.is_request(refusal.refused())
        {
            locked(&self.state.requests).unsupported(refusal.refused());
        }
    }

    /// Tells the core that the server asks its clients to leave. Only the first request counts.
    fn drain(&self, frame: &Frame) {
        if let Ok(draining) = frame.payload::<Draining>() {
            let within = Duration::from_secs(draining.within_s.min(A_DAY));
            let _ = self.drain_requests.try_send(within);
        }
    }

    /// Sends the server an error about one of its frames.
    fn answer(&self, answer: &Frame) {
        // The answer is dropped if the queue is full. If the reader waited for its own writer, a
        // server that does not read either would block both sides.
        let _ = self
            .outbox
            .push(outgoing(answer, false), self.state.config.queue, false);
    }
}

impl Sink<Item> for SessionSink {
    fn items(&mut self, items: &mut Vec<Item>, bytes: usize) -> bool {
        let state = Arc::clone(&self.state);
        // Frames are counted before they are delivered, so that the counters include each frame
        // that the application has received.
        let frames: u64 = items.iter().map(|item| u64::from(item.frames())).sum();
        let is_unsupported = |item: &&Item| matches!(item, Item::Unsupported(_));
        let unsupported = items.iter().filter(is_unsupported).count() as u64;
        {
            let mut counts = locked(&state.counts);
            counts.counters.received_bytes += bytes as u64;
            counts.counters.received_frames += frames;
            counts.counters.unsupported += unsupported;
            if state.config.idle_limit.is_some() {
                counts.silence.hear(now());
            }
        }
        // The lock is held while the channel of events is full. The only other thread that needs it
        // then is one that closes the client, and a close ends this wait before it takes the lock.
        let mut inbound = locked(&state.inbound);
        let Some(inbound) = &mut *inbound else {
            // The client is closing. Input is still read and dropped, because a server that cannot
            // send may not read our last frames either.
            return true;
        };
        for item in items.drain(..) {
            let goes_on = match item {
                Item::Run(run) => self.take(run.kind(), run.frames(), inbound),
                Item::Traced(frame) => self.take(frame.kind(), std::iter::once(frame), inbound),
                Item::Unsupported(kind) => {
                    // Not a warning: a server could fill the log with it.
                    debug!(target: LOG, "{} ({}): {kind} is not supported", state.uuid, state.config.role);
                    if let Some(answer) = item.answer() {
                        self.answer(&answer);
                    }
                    true
                }
            };
            if !goes_on {
                return false;
            }
        }
        true
    }

    fn ended(&mut self, reason: EndReason) {
        let reason = match (self.refused, reason) {
            (Some(code), _) => SessionEnd::PeerRefused(code),
            (None, EndReason::PeerClosed) => SessionEnd::PeerClosed,
            (None, EndReason::Local) => SessionEnd::Closed,
            (None, EndReason::Protocol(e)) => SessionEnd::Protocol(e.to_string()),
            (None, other) => SessionEnd::Lost(other.to_string()),
        };
        if let SessionEnd::Protocol(why) = &reason {
            warn!(target: LOG, "{} ({}): the server broke the protocol: {why}", self.state.uuid, self.state.config.role);
        }
        let _ = self.end.send(reason);
    }

    fn finished(&mut self) {}
}
