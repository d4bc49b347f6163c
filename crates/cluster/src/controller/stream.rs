//! The output of an instance as a stream: see [`Controller::stream`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};
use thiserror::Error;
use uuid::Uuid;

use super::{CommandError, Controller};
use ssntp::client::{ClientError, ClientHandle, SendFault};
use ssntp::payload::InvalidFrameType;
use ssntp::proto::{
    Command, ErrorCode, Event, Frame, MAX_STREAM_CREDIT, OpenStream, Outputs, StreamCredit, StreamData,
    StreamEndReason, StreamEnded, close_stream, stream_of,
};

/// The most events that wait to be received: all pieces that the credit allows, each of which
/// costs at least 29 bytes, and the beginning and the end.
const PIECES: usize = MAX_STREAM_CREDIT as usize / 29 + 2;
/// Credit is given back when this much was received: half of all, so that the node can go on
/// sending while the credit is on its way.
const GIVE_BACK: u32 = MAX_STREAM_CREDIT / 2;

/// Which output of an instance is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRequest {
    /// The outputs. Default: both.
    pub outputs: Outputs,
    /// The number of last lines of each output to begin with. Default: all that are kept.
    pub tail: Option<u32>,
    /// Whether to send further output, too, until the instance has ended. Default: false.
    pub follow: bool,
}

impl Default for StreamRequest {
    fn default() -> Self {
        Self {
            outputs: Outputs::BOTH,
            tail: None,
            follow: false,
        }
    }
}

/// An event of a stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StreamEvent {
    /// The node has found the instance, and sends its output.
    Opened,
    /// A piece of output. Its boundaries have no meaning.
    Data {
        /// The output that it is from.
        output: Outputs,
        /// Whether output before it may be missing, because the log was written faster than it
        /// was read.
        missing: bool,
        /// The piece.
        bytes: Bytes,
    },
    /// The last event.
    Ended(Result<(), StreamError>),
}

/// Why a stream ended before all was sent.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The scheduler or the node has ended it.
    #[error("{}", match text.as_str() {
        "" => format!("the stream has ended: {reason}"),
        _ => format!("{text} ({reason})"),
    })]
    Ended {
        /// Why, as a code of the protocol.
        reason: StreamEndReason,
        /// Why, in words; may be empty.
        text: String,
    },
    /// The version of the scheduler has no streams.
    #[error("the scheduler is of a version without streams")]
    OldScheduler,
    /// The scheduler does not take the request.
    #[error("the scheduler refuses the stream: {0}")]
    Refused(String),
    /// The scheduler has sent more than its credit.
    #[error("the scheduler has sent more than it was asked for")]
    Overrun,
    /// The session with the scheduler is over.
    #[error("the connection to the scheduler was lost")]
    Lost,
    /// The controller has ended.
    #[error("{0}")]
    Closed(ClientError),
}

impl StreamError {
    fn broken() -> Self {
        Self::Ended {
            reason: StreamEndReason::BROKEN,
            text: String::new(),
        }
    }
}

/// A stream of an instance's output. It holds at most 128 KiB: more is not sent until these
/// are received. Dropping it ends it.
///
/// # Threads
/// `Send` and `Sync`. The waits end when the session or the controller does.
#[derive(Debug)]
pub struct OutputStream {
    id: Uuid,
    events: Receiver<StreamEvent>,
    /// The bytes that were received and not given back as credit yet.
    received: Mutex<u32>,
    client: ClientHandle,
    streams: Arc<Streams>,
}

impl OutputStream {
    /// Waits for the next event; `None` if none has come in time, or after the last one.
    pub fn recv_timeout(&self, limit: Duration) -> Option<StreamEvent> {
        self.events.recv_timeout(limit).ok()
    }

    /// The events, for `select!`; disconnected after the last one. The bytes of each
    /// [`Data`](StreamEvent::Data) must be passed to [`dealt_with`](Self::dealt_with):
    /// otherwise the stream stops when its credit is used up.
    pub fn events(&self) -> &Receiver<StreamEvent> {
        &self.events
    }

    /// Gives back the credit of a piece, so that more is sent. Blocks only while the session's
    /// queue is full.
    pub fn dealt_with(&self, bytes: &Bytes) {
        let mut received = lock(&self.received);
        *received = received.saturating_add(StreamData::cost_of(bytes.len()));
        if *received < GIVE_BACK {
            return;
        }
        let credit = StreamCredit {
            stream: self.id,
            bytes: std::mem::take(&mut *received),
        };
        drop(received);
        // Before it is sent, so that no piece can come that the credit does not cover.
        self.streams.give(credit);
        // If it fails, the session is over, and the stream with it.
        let _ = self.client.send(credit.frame());
    }
}

impl Drop for OutputStream {
    fn drop(&mut self) {
        // A stream that has ended already needs no CloseStream.
        if self.streams.forget(self.id) {
            // If it cannot be sent, the end of the session does the same.
            let _ = self.client.try_send(close_stream(self.id));
        }
    }
}

impl Controller {
    /// Asks for the output of an instance through the scheduler; see `docs/streams.md`. A
    /// stream does not survive its session.
    ///
    /// # Errors
    /// [`CommandError::Send`]; any other fault is the last event of the stream.
    pub fn stream(&self, instance: Uuid, request: StreamRequest) -> Result<OutputStream, CommandError> {
        let id = Uuid::new_v4();
        let (sender, events) = bounded(PIECES);
        let streams = Arc::clone(&self.shared.streams);
        // Before OpenStream is sent, so that no answer can come too early.
        streams.insert(id, sender);
        let stream = OutputStream {
            id,
            events,
            received: Mutex::new(0),
            client: self.client.handle(),
            streams,
        };
        let open = OpenStream {
            stream: id,
            instance,
            outputs: request.outputs,
            follow: request.follow,
            tail: request.tail,
            credit: MAX_STREAM_CREDIT,
        };
        match self.client.send(open.frame()) {
            Ok(()) => Ok(stream),
            Err(e) => {
                stream.streams.forget(id);
                // If the client has ended, the reason of that says more than this fault.
                let fault = e.fault().clone();
                Err(match self.client.handle().ended() {
                    Some(reason) => CommandError::Send(SendFault::Ended(reason)),
                    None => CommandError::Send(fault),
                })
            }
        }
    }
}

/// The open streams. The controller's thread feeds them and never waits for a receiver,
/// because a stream has room for all its credit.
#[derive(Debug, Default)]
pub(super) struct Streams {
    open: Mutex<HashMap<Uuid, Fed>>,
}

#[derive(Debug)]
struct Fed {
    events: Sender<StreamEvent>,
    credit: u32,
    is_opened: bool,
}

impl Streams {
    fn insert(&self, id: Uuid, events: Sender<StreamEvent>) {
        let fed = Fed {
            events,
            credit: MAX_STREAM_CREDIT,
            is_opened: false,
        };
        lock(&self.open).insert(id, fed);
    }

    fn give(&self, credit: StreamCredit) {
        if let Some(fed) = lock(&self.open).get_mut(&credit.stream) {
            fed.credit = fed.credit.saturating_add(credit.bytes);
        }
    }

    /// Forgets a stream; returns whether it was still open.
    fn forget(&self, id: Uuid) -> bool {
        lock(&self.open).remove(&id).is_some()
    }

    /// Takes in a stream frame. A frame for a stream that is over has crossed its end.
    pub(super) fn frame(&self, frame: &Frame) {
        let payload = frame.payload_bytes();
        let mut open = lock(&self.open);
        let Some(id) = stream_of(payload) else { return };
        let Some(fed) = open.get_mut(&id) else { return };
        let end = match Event(frame.kind().operand) {
            Event::STREAM_OPENED => {
                fed.is_opened = true;
                fed.tell(StreamEvent::Opened)
            }
            Event::STREAM_DATA => fed.data(StreamData::decode(payload)),
            Event::STREAM_ENDED => match StreamEnded::decode(payload) {
                Some(ended) if ended.reason == StreamEndReason::DONE => Some(Ok(())),
                Some(StreamEnded { reason, text, .. }) => Some(Err(StreamError::Ended { reason, text })),
                None => Some(Err(StreamError::broken())),
            },
            _ => None,
        };
        if let Some(end) = end
            && let Some(fed) = open.remove(&id)
        {
            fed.tell(StreamEvent::Ended(end));
        }
    }

    /// Takes in InvalidFrameType. If it is about OpenStream, it answers each stream that has
    /// not been opened.
    pub(super) fn refused(&self, frame: &Frame) {
        let mut open = lock(&self.open);
        // Every frame but those of streams passes here, so the cheap checks come first.
        if open.is_empty() || frame.kind() != ErrorCode::INVALID_FRAME_TYPE {
            return;
        }
        let Ok(answer) = frame.payload::<InvalidFrameType>() else {
            return;
        };
        if answer.refused() != Command::OPEN_STREAM {
            return;
        }
        let error = match answer.reason.as_str() {
            "unsupported_operand" => StreamError::OldScheduler,
            other => StreamError::Refused(other.to_owned()),
        };
        open.retain(|_, fed| {
            if !fed.is_opened {
                fed.tell(StreamEvent::Ended(Err(error.clone())));
            }
            fed.is_opened
        });
    }

    /// The session or the controller has ended: so do all streams.
    pub(super) fn end(&self, why: &StreamError) {
        for (_, fed) in lock(&self.open).drain() {
            fed.tell(StreamEvent::Ended(Err(why.clone())));
        }
    }
}

impl Fed {
    /// Hands an event over. There is room for all that the credit allows; without room the
    /// scheduler has sent too much, and the stream ends.
    fn tell(&self, event: StreamEvent) -> Option<Result<(), StreamError>> {
        let told = self.events.try_send(event);
        told.is_err().then_some(Err(StreamError::Overrun))
    }

    fn data(&mut self, data: Option<StreamData>) -> Option<Result<(), StreamError>> {
        let Some(data) = data else {
            return Some(Err(StreamError::broken()));
        };
        // Without this check a scheduler could fill the memory.
        let Some(left) = self.credit.checked_sub(data.cost()) else {
            return Some(Err(StreamError::Overrun));
        };
        self.credit = left;
        self.tell(StreamEvent::Data {
            output: data.output,
            missing: data.missing,
            // Copied, because the payload is a piece of a longer read that it would keep.
            bytes: Bytes::copy_from_slice(&data.data),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
