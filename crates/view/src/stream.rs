//! The output of an instance as a stream: see [`Controller::stream`](crate::Controller::stream).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};
use thiserror::Error;
use uuid::Uuid;

use crate::error::CommandError;
use ssntp::client::{ClientError, ClientHandle};
use ssntp::payload::InvalidFrameType;
use ssntp::proto::{Command, ErrorCode, Event, Frame};
use ssntp_payload::{
    MAX_STREAM_CREDIT, OpenStream, Outputs, StreamCredit, StreamData, StreamEndReason, StreamEnded,
    close_stream, stream_of,
};
use ssntp_transport::locked;

/// The maximum number of events that wait to be received: all pieces that the credit allows, each of which
/// costs at least 29 bytes, and the first and the last event.
const MAX_PIECES: usize = MAX_STREAM_CREDIT as usize / 29 + 2;
/// The received bytes after which credit is returned: half of the credit, so that the node can
/// keep sending while the credit is on its way.
const RETURN_CREDIT: u32 = MAX_STREAM_CREDIT / 2;

/// The output of an instance that a stream requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRequest {
    /// The outputs. Default: both.
    pub outputs: Outputs,
    /// The number of last lines of each output with which the stream begins. Default: all lines
    /// that the node keeps.
    pub tail: Option<u32>,
    /// True to receive further output until the instance has ended. Default: false.
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
    /// The node has found the instance, and begins to send its output.
    Opened,
    /// A piece of output. Its boundaries have no meaning.
    Data {
        /// The output to which the piece belongs.
        output: Outputs,
        /// True if output before this piece may be missing, because the log was written faster
        /// than it was read.
        missing: bool,
        /// The piece.
        bytes: Bytes,
    },
    /// The last event.
    Ended(Result<(), StreamError>),
}

/// The reason why a stream ended before all output was sent.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The scheduler or the node has ended it.
    #[error("{}", match text.as_str() {
        "" => format!("the stream has ended: {reason}"),
        _ => format!("{text} ({reason})"),
    })]
    Ended {
        /// The reason, as a code of the protocol.
        reason: StreamEndReason,
        /// The reason in words; may be empty.
        text: String,
    },
    /// The version of the scheduler has no streams.
    #[error("the scheduler is of a version without streams")]
    OldScheduler,
    /// The scheduler refuses the request.
    #[error("the scheduler refuses the stream: {0}")]
    Refused(String),
    /// The scheduler has sent more than its credit.
    #[error("the scheduler has sent more than it was asked for")]
    Overrun,
    /// The session with the scheduler has ended.
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

/// A stream of an instance's output. It holds at most 128 KiB; the node sends no more until these
/// are received. Dropping it ends the stream.
///
/// # Threads
/// `Send` and `Sync`. The waits end when the session or the controller ends.
#[derive(Debug)]
pub struct OutputStream {
    id: Uuid,
    events: Receiver<StreamEvent>,
    /// The bytes that were received and have not been returned as credit yet.
    received: Mutex<u32>,
    client: ClientHandle,
    streams: Arc<Streams>,
}

impl OutputStream {
    /// Opens a stream. It is registered before OpenStream is sent, so that no answer can arrive too
    /// early.
    pub(crate) fn open(
        client: ClientHandle,
        streams: &Arc<Streams>,
        instance: Uuid,
        request: StreamRequest,
    ) -> Result<Self, CommandError> {
        let id = Uuid::new_v4();
        let (sender, events) = bounded(MAX_PIECES);
        streams.insert(id, sender);
        let stream = Self {
            id,
            events,
            received: Mutex::new(0),
            client,
            streams: Arc::clone(streams),
        };
        let open = OpenStream {
            stream: id,
            instance,
            outputs: request.outputs,
            follow: request.follow,
            tail: request.tail,
            credit: MAX_STREAM_CREDIT,
        };
        // If this fails, `stream` is dropped, which removes its registration.
        let sent = stream.client.send(open.frame());
        sent.map_err(|e| CommandError::Send(e.fault().clone()))?;
        Ok(stream)
    }

    /// Waits for the next event; `None` if none arrives in time, or after the last one.
    pub fn recv_timeout(&self, limit: Duration) -> Option<StreamEvent> {
        self.events.recv_timeout(limit).ok()
    }

    /// The channel of the events, for `select!`. It is disconnected after the last event. Pass the
    /// bytes of each [`Data`](StreamEvent::Data) to [`return_credit`](Self::return_credit); otherwise
    /// the stream stops when its credit is used up.
    pub fn events(&self) -> &Receiver<StreamEvent> {
        &self.events
    }

    /// Returns the credit of a piece, so that the node can send more. Blocks only while the
    /// session's queue is full.
    pub fn return_credit(&self, bytes: &Bytes) {
        let mut received = locked(&self.received);
        *received = received.saturating_add(StreamData::cost_of(bytes.len()));
        if *received < RETURN_CREDIT {
            return;
        }
        let credit = StreamCredit {
            stream: self.id,
            bytes: std::mem::take(&mut *received),
        };
        drop(received);
        // Added before the frame is sent, so that no piece can arrive without credit.
        self.streams.add_credit(credit);
        // If this fails, the session has ended, and the stream with it.
        let _ = self.client.send(credit.frame());
    }
}

impl Drop for OutputStream {
    fn drop(&mut self) {
        // A stream that has ended already needs no CloseStream.
        if self.streams.forget(self.id) {
            // If this fails, the session is about to end, which ends the stream as well.
            let _ = self.client.try_send(close_stream(self.id));
        }
    }
}

/// The open streams. The controller's thread feeds them and never waits for a receiver, because a
/// stream has room for all its credit.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    open: Mutex<HashMap<Uuid, Stream>>,
}

/// The sending end of a stream.
#[derive(Debug)]
struct Stream {
    events: Sender<StreamEvent>,
    credit: u32,
    is_opened: bool,
}

impl Streams {
    fn insert(&self, id: Uuid, events: Sender<StreamEvent>) {
        let stream = Stream {
            events,
            credit: MAX_STREAM_CREDIT,
            is_opened: false,
        };
        locked(&self.open).insert(id, stream);
    }

    fn add_credit(&self, credit: StreamCredit) {
        if let Some(stream) = locked(&self.open).get_mut(&credit.stream) {
            stream.credit = stream.credit.saturating_add(credit.bytes);
        }
    }

    /// Forgets a stream; true if it was still open.
    fn forget(&self, id: Uuid) -> bool {
        locked(&self.open).remove(&id).is_some()
    }

    /// Handles a stream frame. A frame of an unknown stream has crossed the end of that stream.
    pub(crate) fn frame(&self, frame: &Frame) {
        let payload = frame.payload_bytes();
        let mut open = locked(&self.open);
        let Some(id) = stream_of(payload) else { return };
        let Some(stream) = open.get_mut(&id) else { return };
        let end = match Event(frame.kind().operand) {
            Event::STREAM_OPENED => {
                stream.is_opened = true;
                stream.send(StreamEvent::Opened)
            }
            Event::STREAM_DATA => stream.data(StreamData::decode(payload)),
            Event::STREAM_ENDED => match StreamEnded::decode(payload) {
                Some(ended) if ended.reason == StreamEndReason::DONE => Some(Ok(())),
                Some(StreamEnded { reason, text, .. }) => Some(Err(StreamError::Ended { reason, text })),
                None => Some(Err(StreamError::broken())),
            },
            _ => None,
        };
        if let Some(end) = end
            && let Some(stream) = open.remove(&id)
        {
            stream.send(StreamEvent::Ended(end));
        }
    }

    /// Handles InvalidFrameType. If it refuses OpenStream, each stream that has not been opened yet
    /// ends.
    pub(crate) fn refused(&self, frame: &Frame) {
        let mut open = locked(&self.open);
        // Every frame except those of streams passes here, so the cheap checks come first.
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
        open.retain(|_, stream| {
            if !stream.is_opened {
                stream.send(StreamEvent::Ended(Err(error.clone())));
            }
            stream.is_opened
        });
    }

    /// Ends all streams, because the session or the controller has ended.
    pub(crate) fn end(&self, error: &StreamError) {
        for (_, stream) in locked(&self.open).drain() {
            stream.send(StreamEvent::Ended(Err(error.clone())));
        }
    }
}

impl Stream {
    /// Sends an event to the receiver. The channel has room for all that the credit allows. If it
    /// is full, the scheduler has sent too much: returns the end of the stream.
    fn send(&self, event: StreamEvent) -> Option<Result<(), StreamError>> {
        let sent = self.events.try_send(event);
        sent.is_err().then_some(Err(StreamError::Overrun))
    }

    fn data(&mut self, data: Option<StreamData>) -> Option<Result<(), StreamError>> {
        let Some(data) = data else {
            return Some(Err(StreamError::broken()));
        };
        // Without this check the scheduler could fill the memory.
        let Some(remaining) = self.credit.checked_sub(data.cost()) else {
            return Some(Err(StreamError::Overrun));
        };
        self.credit = remaining;
        self.send(StreamEvent::Data {
            output: data.output,
            missing: data.missing,
            // Copied, because the payload is a part of a longer read and keeps it in memory.
            bytes: Bytes::copy_from_slice(&data.data),
        })
    }
}

/// The number of bytes at the end of a piece of output that begin a character but do not complete it. The
/// next piece has the others.
pub fn incomplete(bytes: &[u8]) -> usize {
    let end = bytes
        .utf8_chunks()
        .last()
        .map_or(&[][..], |chunk| chunk.invalid());
    // An error without a length means that the character is incomplete and not invalid.
    let is_incomplete = str::from_utf8(end).is_err_and(|e| e.error_len().is_none());
    if is_incomplete { end.len() } else { 0 }
}
