//! What the reader of a session does with what the server sends.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use log::{debug, warn};

use super::handle::{ClientState, lock};
use super::inbound::Inbound;
use super::{ClientEvent, DisconnectReason, LOG};
use crate::payload::{Draining, InvalidFrameType};
use crate::proto::{
    Command, ErrorCode, Event, Exchange, Frame, FrameKind, Item, Step, answer_to_bad_exchange,
    answer_to_unsupported,
};
use crate::request::Request;
use crate::wire::outgoing;
use ssntp_transport::{EndReason, Outbox, Sink};

/// The longest time, in seconds, within which a client is asked to leave.
const A_DAY: u64 = 86_400;

/// What the reader of a session tells: it hands frames to the application.
#[derive(Debug)]
pub struct SessionSink {
    state: Arc<ClientState>,
    outbox: Outbox,
    /// Told why the session is over; disconnected once its threads are.
    over: Sender<DisconnectReason>,
    /// Told within what time the server asks this client to leave.
    drains: Sender<Duration>,
    /// What the server ended the session with, where it did.
    refused: Option<ErrorCode>,
}

impl SessionSink {
    pub(super) fn new(
        state: Arc<ClientState>,
        outbox: Outbox,
        over: Sender<DisconnectReason>,
        drains: Sender<Duration>,
    ) -> Self {
        Self {
            state,
            outbox,
            over,
            drains,
            refused: None,
        }
    }

    /// Deals with frames of one kind. False if nothing after them is to be dealt with.
    fn take(&mut self, kind: FrameKind, frames: impl Iterator<Item = Frame>, inbound: &mut Inbound) -> bool {
        // The application is told by the reason of the end, and not by a frame.
        if self.is_refusal(kind) {
            return false;
        }
        let asks = self.state.config.operands.is_request(kind);
        for frame in frames {
            if kind == Event::DRAINING {
                self.drain(&frame);
                continue;
            }
            if kind == Command::CONFIGURE {
                // Each replaces the one before it.
                self.state.configure(frame.payload_bytes());
            } else if kind == ErrorCode::INVALID_FRAME_TYPE {
                self.refused_kind(&frame);
            }
            let bytes = frame.encoded_len();
            let goes_on = match asks {
                true => self.exchange(frame, inbound),
                false => inbound.deliver(ClientEvent::Frame(frame), bytes),
            };
            if !goes_on {
                return false;
            }
        }
        true
    }

    /// A request goes to the application, an answer to the thread that waits for it.
    fn exchange(&self, frame: Frame, inbound: &mut Inbound) -> bool {
        let Some(exchange) = Exchange::read(frame.payload_bytes()) else {
            if let Some(answer) = answer_to_bad_exchange(frame.kind()) {
                self.answer(&answer);
            }
            return true;
        };
        if exchange.step == Step::Request {
            let request = Request {
                _under_way: Some(Arc::clone(&self.state.asked)),
                ..Request::new(&exchange, &frame)
            };
            return inbound.deliver(ClientEvent::Request(request), frame.encoded_len());
        }
        lock(&self.state.requests).settle(exchange.peer, &exchange, &frame);
        true
    }

    /// Ends the wait for answers to requests that the server does not know.
    fn refused_kind(&self, frame: &Frame) {
        if let Ok(refusal) = frame.payload::<InvalidFrameType>()
            && self.state.config.operands.is_request(refusal.refused())
        {
            self.state.refused_kind(refusal.refused());
        }
    }

    /// Passes on that the server asks its clients to leave. The first time that it names counts.
    fn drain(&self, frame: &Frame) {
        if let Ok(draining) = frame.payload::<Draining>() {
            let _ = self
                .drains
                .try_send(Duration::from_secs(draining.within_s.min(A_DAY)));
        }
    }

    /// Tells the server what is wrong with a frame. Where the queue is full the
    /// answer is left out: waiting for a server that does not read would block
    /// its own reader.
    fn answer(&self, answer: &Frame) {
        // It is lost if the queue is full: the reader must not wait for its own writer.
        let _ = self.outbox.push(outgoing(answer, false));
    }

    /// Whether the server ends the session with this.
    fn is_refusal(&mut self, kind: FrameKind) -> bool {
        let codes = [ErrorCode::CONNECTION_FAILURE, ErrorCode::CONNECTION_ABORTED];
        self.refused = codes.into_iter().find(|code| kind == *code);
        self.refused.is_some()
    }
}

impl Sink<Item> for SessionSink {
    fn items(&mut self, items: &mut Vec<Item>, bytes: usize) -> bool {
        let state = Arc::clone(&self.state);
        // Counted before they are delivered, so that an application that has received a frame
        // finds it counted.
        let frames: u64 = items.iter().map(|item| u64::from(item.frames())).sum();
        let is_unsupported = |item: &&Item| matches!(item, Item::Unsupported(_));
        let unsupported = items.iter().filter(is_unsupported).count() as u64;
        state.counts.add(|counters| {
            counters.received_bytes += bytes as u64;
            counters.received_frames += frames;
            counters.unsupported += unsupported;
        });
        // The lock is held while the application is waited for. The only other
        // thread that wants it meanwhile is one that closes the client, and
        // that cancels this wait before it asks for the lock.
        let mut inbound = lock(&state.inbound);
        let Some(inbound) = &mut *inbound else {
            // The client ends. What still arrives is read and dropped: a peer
            // whose input nobody reads might not read ours either.
            return true;
        };
        for item in items.drain(..) {
            let goes_on = match item {
                Item::Run(run) => self.take(run.kind(), run.frames(), inbound),
                Item::Traced(frame) => self.take(frame.kind(), std::iter::once(frame), inbound),
                Item::Unsupported(kind) => {
                    debug!(target: LOG, "{} ({}): {kind} is not supported", state.uuid, state.config.role);
                    if let Some(answer) = answer_to_unsupported(kind) {
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
            (Some(code), _) => DisconnectReason::PeerRefused(code),
            (None, EndReason::PeerClosed) => DisconnectReason::PeerClosed,
            (None, EndReason::Local) => DisconnectReason::Closed,
            (None, EndReason::Protocol(e)) => DisconnectReason::Protocol(e.to_string()),
            (None, other) => DisconnectReason::Lost(other.to_string()),
        };
        if let DisconnectReason::Protocol(why) = &reason {
            warn!(target: LOG, "{} ({}): the server broke the protocol: {why}", self.state.uuid, self.state.config.role);
        }
        let _ = self.over.send(reason);
    }

    fn finished(&mut self) {}
}
