//! Streams of instances' output, between the controllers that asked for them and the nodes
//! that have the instances: a table, without a thread for any of them.
//!
//! ```text
//!  OpenStream ─▶ which node has it?    ─▶ in the table: controller, node, credit
//!                      │                       │ data of that node, within the credit
//!                      ▼                       ▼
//!                 StreamEnded            that controller's session, and no other
//! ```
//!
//! A stream belongs to the session that opened it and to the session of the node, and ends
//! with either. Frames of a node for a stream that is not its own are dropped.
//!
//! A controller that reads slowly holds nobody back: its queue holds no more than its credit,
//! [`MAX_STREAM_CREDIT`] for each of [`MOST_OF_SESSION`] streams, 4 MiB in all. That is far
//! below the mark at which senders have to wait.

use std::collections::HashMap;

use log::debug;
use uuid::Uuid;

use super::answers;
use super::{Scheduler, limited};
use ssntp::payload::InvalidFrameType;
use ssntp::proto::{
    Command, Event, Frame, MAX_STREAM_CREDIT, OpenStream, Outputs, StreamCredit, StreamData, StreamEndReason,
    StreamEnded, close_stream, stream_of,
};
use ssntp::server::{Context, SessionInfo, SessionKey};

/// The most streams of one controller's session.
const MOST_OF_SESSION: usize = 32;
/// The most streams of one node.
const MOST_OF_NODE: usize = 64;
/// The most streams in all, so that no more than 64 MiB wait for controllers. So few that those of
/// a session are found by looking at all of them.
const MOST: usize = 512;
/// The longest InvalidFrameType that is read, in bytes: it holds two numbers and a word.
const LONGEST_REFUSAL: usize = 1024;

/// The open streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    by_id: HashMap<Uuid, Stream>,
    /// The number of frames for streams that were over.
    late: u64,
    /// The number of streams that were opened.
    opened: u64,
}

#[derive(Debug)]
struct Stream {
    controller: End,
    node: End,
    credit: u32,
}

/// One end of a stream.
#[derive(Clone, Copy, Debug)]
struct End {
    session: SessionKey,
    uuid: Uuid,
}

impl End {
    fn of(session: &SessionInfo) -> Self {
        Self {
            session: session.key(),
            uuid: session.uuid(),
        }
    }
}

impl Stream {
    /// Whether it ends with this session, which is at one of its ends.
    fn is_of(&self, session: SessionKey) -> bool {
        self.controller.session == session || self.node.session == session
    }
}

impl Streams {
    /// The number of streams of a session.
    fn of(&self, session: SessionKey) -> usize {
        self.by_id.values().filter(|stream| stream.is_of(session)).count()
    }

    /// The number of open streams, and of those that were opened.
    pub(super) fn counted(&self) -> (usize, u64) {
        (self.by_id.len(), self.opened)
    }
}

/// Why a stream is not opened: the reason and the text.
type Refusal = (StreamEndReason, String);

impl Scheduler {
    /// Takes in a stream frame of a controller.
    pub(super) fn stream_command(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let payload = frame.payload_bytes();
        match Command(frame.kind().operand) {
            Command::OPEN_STREAM => match OpenStream::decode(payload) {
                // StreamEnded names only the UUID, so it would end the other stream of the
                // same UUID.
                Some(open) if !self.streams.by_id.contains_key(&open.stream) => {
                    if let Err((reason, text)) = self.open_stream(cx, from, frame, &open) {
                        tell(
                            cx,
                            from.uuid(),
                            &StreamEnded::new(open.stream, reason, text).frame(),
                        );
                    }
                }
                _ => answers::invalid_frame(cx, from, frame.kind(), "invalid_data"),
            },
            Command::STREAM_CREDIT => {
                let own = StreamCredit::decode(payload).and_then(|credit| {
                    let stream = self.streams.by_id.get_mut(&credit.stream)?;
                    (stream.controller.session == from.key()).then_some((credit, stream))
                });
                let Some((credit, stream)) = own else {
                    return self.late(from, frame);
                };
                stream.credit = stream.credit.saturating_add(credit.bytes);
                // The bound for a controller's queue holds only if no stream has more credit.
                if stream.credit > MAX_STREAM_CREDIT {
                    let text = format!("its credit would be more than {MAX_STREAM_CREDIT} bytes");
                    return self.end_stream(cx, credit.stream, StreamEndReason::REFUSED, &text);
                }
                let node = stream.node.uuid;
                pass_on(cx, from, node, frame);
            }
            _ => {
                let own = stream_of(payload).filter(|id| {
                    let stream = self.streams.by_id.get(id);
                    stream.is_some_and(|stream| stream.controller.session == from.key())
                });
                match own.and_then(|id| self.streams.by_id.remove(&id)) {
                    Some(stream) => pass_on(cx, from, stream.node.uuid, frame),
                    None => self.late(from, frame),
                }
            }
        }
    }

    fn open_stream(
        &mut self,
        cx: &mut Context<'_>,
        from: &SessionInfo,
        frame: &Frame,
        open: &OpenStream,
    ) -> Result<(), Refusal> {
        if open.credit > MAX_STREAM_CREDIT {
            let text = format!("its credit is more than {MAX_STREAM_CREDIT} bytes");
            return Err((StreamEndReason::REFUSED, text));
        }
        if open.outputs.0 & Outputs::BOTH.0 == 0 {
            return Err((StreamEndReason::REFUSED, "it names no output".into()));
        }
        let node = self.instances.node_of(open.instance).ok_or_else(|| {
            let text = match self.instances.taken(open.instance) {
                Some(_) => format!("instance {} waits for a node", open.instance),
                None => format!("no node has instance {}", open.instance),
            };
            (StreamEndReason::NO_INSTANCE, text)
        })?;
        let directory = cx.directory();
        let node = directory.session(node).map(End::of).ok_or_else(|| {
            let text = format!("its node {node} is not connected");
            (StreamEndReason::NOT_CONNECTED, text)
        })?;
        // The server forwards no frame to its own sender.
        if node.session == from.key() {
            return Err((
                StreamEndReason::REFUSED,
                "it is of this session's own node".into(),
            ));
        }
        let too_many = |what: &str, most: usize| {
            let text = format!("{what} has {most} streams already");
            Err((StreamEndReason::TOO_MANY, text))
        };
        if self.streams.by_id.len() >= MOST {
            return too_many("the scheduler", MOST);
        }
        if self.streams.of(from.key()) >= MOST_OF_SESSION {
            return too_many("this session", MOST_OF_SESSION);
        }
        if self.streams.of(node.session) >= MOST_OF_NODE {
            return too_many("the instance's node", MOST_OF_NODE);
        }
        let stream = Stream {
            controller: End::of(from),
            node,
            credit: open.credit,
        };
        self.streams.opened += 1;
        self.streams.by_id.insert(open.stream, stream);
        pass_on(cx, from, node.uuid, frame);
        Ok(())
    }

    /// Takes in a stream frame of a node.
    pub(super) fn stream_event(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let id = stream_of(frame.payload_bytes());
        let Some((id, stream)) = id.and_then(|id| Some((id, self.streams.by_id.get_mut(&id)?))) else {
            return self.late(from, frame);
        };
        if stream.node.session != from.key() {
            return self.reject_report(cx, from, frame, &format_args!("of stream {id}"));
        }
        let keeps_the_rules = match Event(frame.kind().operand) {
            Event::STREAM_DATA => {
                let data = StreamData::decode(frame.payload_bytes());
                let left = data.and_then(|data| stream.credit.checked_sub(data.cost()));
                // A piece beyond the credit is not passed on: it ends the stream below.
                stream.credit = left.unwrap_or(stream.credit);
                left.is_some()
            }
            Event::STREAM_ENDED => StreamEnded::decode(frame.payload_bytes()).is_some(),
            _ => true,
        };
        let controller = stream.controller.uuid;
        if !keeps_the_rules {
            let kind = frame.kind();
            limited!(warn, self.log, cx, from.uuid(), "stream";
                "{from}: {kind} that is too long, or beyond its stream's credit");
            let text = "its node has sent what it must not";
            return self.end_stream(cx, id, StreamEndReason::BROKEN, text);
        }
        if frame.kind() == Event::STREAM_ENDED {
            self.streams.by_id.remove(&id);
        }
        pass_on(cx, from, controller, frame);
    }

    /// Ends a stream, and tells both ends.
    fn end_stream(&mut self, cx: &mut Context<'_>, id: Uuid, reason: StreamEndReason, text: &str) {
        if let Some(stream) = self.streams.by_id.remove(&id) {
            tell(cx, stream.node.uuid, &close_stream(id));
            let ended = StreamEnded::new(id, reason, text);
            tell(cx, stream.controller.uuid, &ended.frame());
        }
    }

    /// A session has gone: its streams end.
    pub(super) fn streams_disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let over = |_: &Uuid, stream: &mut Stream| stream.is_of(session.key());
        for (id, stream) in self.streams.by_id.extract_if(over) {
            if stream.controller.session == session.key() {
                tell(cx, stream.node.uuid, &close_stream(id));
            } else {
                let text = format!("its node {} has left", session.uuid());
                let ended = StreamEnded::new(id, StreamEndReason::NOT_CONNECTED, text);
                tell(cx, stream.controller.uuid, &ended.frame());
            }
        }
    }

    /// A node has sent InvalidFrameType. If it refuses OpenStream, its version has no streams,
    /// and all streams that were opened to it end.
    pub(super) fn streams_not_supported(&mut self, cx: &mut Context<'_>, node: &SessionInfo, frame: &Frame) {
        if self.streams.of(node.key()) == 0 || frame.payload_bytes().len() > LONGEST_REFUSAL {
            return;
        }
        let refused = frame.payload().map(|answer: InvalidFrameType| answer.refused());
        if !refused.is_ok_and(|refused| refused == Command::OPEN_STREAM) {
            return;
        }
        // The refusal names no stream. A version without streams refuses all of them.
        let opened = |_: &Uuid, stream: &mut Stream| stream.node.session == node.key();
        for (id, stream) in self.streams.by_id.extract_if(opened) {
            let text = format!("its node {} is of a version without streams", node.uuid());
            let ended = StreamEnded::new(id, StreamEndReason::NOT_SUPPORTED, text);
            tell(cx, stream.controller.uuid, &ended.frame());
        }
    }

    /// A frame for a stream that is over: the end and the frame have crossed.
    fn late(&mut self, from: &SessionInfo, frame: &Frame) {
        self.streams.late += 1;
        let (kind, late) = (frame.kind(), self.streams.late);
        debug!(target: "ssntp::scheduler", "{from}: {kind} for no stream of its own; {late} so far");
    }
}

/// Sends a frame. If the receiver has gone, its streams end anyway.
fn tell(cx: &mut Context<'_>, to: Uuid, frame: &Frame) {
    if let Err(e) = cx.send(to, frame) {
        debug!(target: "ssntp::scheduler", "{} for {to}: {e}", frame.kind());
    }
}

fn pass_on(cx: &mut Context<'_>, from: &SessionInfo, to: Uuid, frame: &Frame) {
    if let Err(e) = cx.forward(from, to, frame) {
        debug!(target: "ssntp::scheduler", "{from}: {} for {to}: {e}", frame.kind());
    }
}
