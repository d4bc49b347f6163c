//! The streams of instances' output, from the nodes to the controllers that opened them: a table.
//! No stream has a thread.
//!
//! ```text
//!  OpenStream ─▶ find the node ────────▶ table: controller, node, credit
//!                      │ not found             │ data of that node, within the credit
//!                      ▼                       ▼
//!                 StreamEnded            only the session of that controller
//! ```
//!
//! A stream belongs to the session that opened it and to the session of the node, and ends
//! with either of them. If a node sends a frame for a stream of another node, it is dropped.
//!
//! A controller that reads slowly does not hold back other connections: its queue holds at most
//! its credit, [`MAX_STREAM_CREDIT`] for each of [`MAX_OF_SESSION`] streams, 4 MiB in all. That is
//! far below the mark at which senders have to wait.

use std::collections::HashMap;

use log::debug;
use uuid::Uuid;

use super::out::{Out, limited};
use ssntp::payload::InvalidFrameType;
use ssntp::proto::{Command, Event, Frame};
use ssntp::server::{SessionInfo, SessionKey};
use ssntp_cluster::refusal::Reason;
use ssntp_payload::{
    MAX_STREAM_CREDIT, OpenStream, Outputs, StreamCredit, StreamData, StreamEndReason, StreamEnded,
    close_stream, stream_of,
};

/// The maximum number of streams of one controller's session.
const MAX_OF_SESSION: usize = 32;
/// The maximum number of streams of one node.
const MAX_OF_NODE: usize = 64;
/// The maximum number of streams in all: their data in the queues of controllers is at most 64 MiB. The
/// number is small enough that the streams of a session are found by visiting all of them.
const MAX_STREAMS: usize = 512;
/// The length limit of an InvalidFrameType that is read, in bytes: it holds two numbers and a word.
const MAX_REFUSAL: usize = 1024;

/// The open streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    by_id: HashMap<Uuid, Stream>,
    /// The number of streams that were opened.
    opened: u64,
}

#[derive(Debug)]
struct Stream {
    controller: SessionInfo,
    node: SessionInfo,
    credit: u32,
}

impl Stream {
    /// True if this is the controller's or the node's session.
    fn is_of(&self, session: SessionKey) -> bool {
        self.controller.key() == session || self.node.key() == session
    }
}

/// Why a stream is not opened: the reason and the text.
type Refusal = (StreamEndReason, String);

impl Streams {
    /// The number of streams of a session.
    fn of(&self, session: SessionKey) -> usize {
        self.by_id.values().filter(|stream| stream.is_of(session)).count()
    }

    /// The number of open streams, and of those that were opened.
    pub(super) fn counted(&self) -> (usize, u64) {
        (self.by_id.len(), self.opened)
    }

    /// Handles a stream frame of a controller. `find` returns the node of an instance, or a text why
    /// there is none.
    pub(super) fn handle_command(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        frame: &Frame,
        find: impl FnOnce(Uuid) -> Result<Uuid, String>,
    ) {
        let payload = frame.payload_bytes();
        match Command(frame.kind().operand) {
            Command::OPEN_STREAM => match OpenStream::decode(payload) {
                // If the UUID is in use, StreamEnded cannot be the answer: it would end the other
                // stream of that UUID.
                Some(open) if !self.by_id.contains_key(&open.stream) => {
                    if let Err((reason, text)) = self.open(out, from, frame, &open, find) {
                        send_ended(out, from, open.stream, reason, text);
                    }
                }
                _ => out.invalid_frame(from, frame.kind(), &Reason::InvalidData),
            },
            Command::STREAM_CREDIT => {
                let own = StreamCredit::decode(payload).and_then(|credit| {
                    let stream = self.by_id.get_mut(&credit.stream)?;
                    (stream.controller.key() == from.key()).then_some((credit, stream))
                });
                let Some((credit, stream)) = own else {
                    return note_late(from, frame);
                };
                stream.credit = stream.credit.saturating_add(credit.bytes);
                // The bound of a controller's queue relies on this limit.
                if stream.credit > MAX_STREAM_CREDIT {
                    let text = format!("its credit would be more than {MAX_STREAM_CREDIT} bytes");
                    return self.end(out, credit.stream, StreamEndReason::REFUSED, &text);
                }
                let node = stream.node.uuid();
                pass_on(out, from, node, frame);
            }
            _ => {
                let own = stream_of(payload).filter(|id| {
                    let stream = self.by_id.get(id);
                    stream.is_some_and(|stream| stream.controller.key() == from.key())
                });
                match own.and_then(|id| self.by_id.remove(&id)) {
                    Some(stream) => pass_on(out, from, stream.node.uuid(), frame),
                    None => note_late(from, frame),
                }
            }
        }
    }

    fn open(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        frame: &Frame,
        open: &OpenStream,
        find: impl FnOnce(Uuid) -> Result<Uuid, String>,
    ) -> Result<(), Refusal> {
        if open.credit > MAX_STREAM_CREDIT {
            let text = format!("its credit is more than {MAX_STREAM_CREDIT} bytes");
            return Err((StreamEndReason::REFUSED, text));
        }
        if open.outputs.0 & Outputs::BOTH.0 == 0 {
            return Err((StreamEndReason::REFUSED, "it names no output".into()));
        }
        let node = find(open.instance).map_err(|text| (StreamEndReason::NO_INSTANCE, text))?;
        let session = out.cx.directory().session(node).cloned();
        let node = session.ok_or_else(|| {
            let text = format!("its node {node} is not connected");
            (StreamEndReason::NOT_CONNECTED, text)
        })?;
        // The server does not forward a frame to the frame's own sender.
        if node.key() == from.key() {
            let text = "the instance is on this session's own node";
            return Err((StreamEndReason::REFUSED, text.into()));
        }
        for (name, streams, limit) in [
            ("the scheduler", self.by_id.len(), MAX_STREAMS),
            ("this session", self.of(from.key()), MAX_OF_SESSION),
            ("the instance's node", self.of(node.key()), MAX_OF_NODE),
        ] {
            if streams >= limit {
                let text = format!("{name} has {limit} streams already");
                return Err((StreamEndReason::TOO_MANY, text));
            }
        }
        self.opened += 1;
        pass_on(out, from, node.uuid(), frame);
        let (controller, credit) = (from.clone(), open.credit);
        let stream = Stream {
            controller,
            node,
            credit,
        };
        self.by_id.insert(open.stream, stream);
        Ok(())
    }

    /// Handles a stream frame of a node. Returns the stream if it is of another node.
    pub(super) fn handle_event(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        frame: &Frame,
    ) -> Option<Uuid> {
        let id = stream_of(frame.payload_bytes());
        let Some((id, stream)) = id.and_then(|id| Some((id, self.by_id.get_mut(&id)?))) else {
            // An earlier leader may have opened the stream, and the node would keep it.
            if let Some(id) = id.filter(|_| frame.kind() != Event::STREAM_ENDED) {
                out.send(from.uuid(), &close_stream(id));
            }
            note_late(from, frame);
            return None;
        };
        if stream.node.key() != from.key() {
            return Some(id);
        }
        let is_valid = match Event(frame.kind().operand) {
            Event::STREAM_DATA => {
                let data = StreamData::decode(frame.payload_bytes());
                let remaining = data.and_then(|data| stream.credit.checked_sub(data.cost()));
                // Data beyond the credit is not forwarded; the stream ends below.
                stream.credit = remaining.unwrap_or(stream.credit);
                remaining.is_some()
            }
            Event::STREAM_ENDED => StreamEnded::decode(frame.payload_bytes()).is_some(),
            _ => true,
        };
        let controller = stream.controller.uuid();
        if !is_valid {
            let kind = frame.kind();
            limited!(warn, out, from.uuid(), "stream";
                "{from}: {kind} that is too long, or beyond its stream's credit");
            let text = "its node has sent an invalid frame, or more than the credit";
            self.end(out, id, StreamEndReason::BROKEN, text);
            return None;
        }
        if frame.kind() == Event::STREAM_ENDED {
            self.by_id.remove(&id);
        }
        pass_on(out, from, controller, frame);
        None
    }

    /// Ends a stream: sends CloseStream to its node and StreamEnded to its controller.
    fn end(&mut self, out: &mut Out<'_, '_>, id: Uuid, reason: StreamEndReason, text: &str) {
        if let Some(stream) = self.by_id.remove(&id) {
            out.send(stream.node.uuid(), &close_stream(id));
            send_ended(out, &stream.controller, id, reason, text);
        }
    }

    /// Ends the streams of a session that has ended.
    pub(super) fn handle_disconnected(&mut self, out: &mut Out<'_, '_>, session: &SessionInfo) {
        let of_session = |_: &Uuid, stream: &mut Stream| stream.is_of(session.key());
        for (id, stream) in self.by_id.extract_if(of_session) {
            if stream.controller.key() == session.key() {
                out.send(stream.node.uuid(), &close_stream(id));
            } else {
                let text = format!("its node {} has left", session.uuid());
                send_ended(out, &stream.controller, id, StreamEndReason::NOT_CONNECTED, text);
            }
        }
    }

    /// Handles InvalidFrameType of a node. If it refuses OpenStream, the node's version has no
    /// streams, and all streams of the node end.
    pub(super) fn handle_invalid_frame(&mut self, out: &mut Out<'_, '_>, node: &SessionInfo, frame: &Frame) {
        if self.of(node.key()) == 0 || frame.payload_bytes().len() > MAX_REFUSAL {
            return;
        }
        let refused = frame.payload().map(|answer: InvalidFrameType| answer.refused());
        if !refused.is_ok_and(|refused| refused == Command::OPEN_STREAM) {
            return;
        }
        // The refusal names no stream. A version without streams refuses all of them.
        let of_node = |_: &Uuid, stream: &mut Stream| stream.node.key() == node.key();
        for (id, stream) in self.by_id.extract_if(of_node) {
            let text = format!("its node {} is of a version without streams", node.uuid());
            send_ended(out, &stream.controller, id, StreamEndReason::NOT_SUPPORTED, text);
        }
    }
}

/// Drops a frame of a stream that has ended: the frame has crossed the end.
fn note_late(from: &SessionInfo, frame: &Frame) {
    let kind = frame.kind();
    debug!(target: "ssntp::scheduler", "{from}: {kind} for no stream of its own");
}

fn send_ended(
    out: &mut Out<'_, '_>,
    to: &SessionInfo,
    id: Uuid,
    reason: StreamEndReason,
    text: impl Into<String>,
) {
    out.send(to.uuid(), &StreamEnded::new(id, reason, text).frame());
}

/// Forwards a frame. If the receiver's session has ended, so does the stream.
fn pass_on(out: &mut Out<'_, '_>, from: &SessionInfo, to: Uuid, frame: &Frame) {
    if let Err(e) = out.cx.forward(from, to, frame) {
        debug!(target: "ssntp::scheduler", "{from}: {} for {to}: {e}", frame.kind());
    }
}
