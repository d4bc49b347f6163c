//! The incremental codec of an established session.
//!
//! ```text
//!  bytes as they come          Codec::decode                 items
//!  ...|hdr|pay|hdr|pay|hdr|pa  ────────────▶  Run{STATS ×2}, Run{READY ×1}
//!                        └ stays in the buffer until the rest arrives
//! ```
//!
//! Frames are handed on as [`Run`]s: consecutive frames of one kind, in wire
//! form, in one shared piece of memory. A router looks a run's kind up once
//! and passes the bytes on as they are; whoever wants single frames iterates.
//! The codec holds no memory: the buffer is the caller's, and [`Codec::wanted`]
//! tells how long the frame at its front is, so that the caller can reserve it.

use bytes::{Buf, Bytes, BytesMut};

use super::{
    Command, ErrorCode, Frame, FrameKind, FrameType, HEADER_LEN, Header, MAJOR, MAX_TRACE_LEN, Operands,
    ProtocolError, TRACE_FLAG, Trace,
};

/// The default limit of a payload: 16 MiB.
pub const DEFAULT_MAX_PAYLOAD: u32 = 16 * 1024 * 1024;

/// Consecutive frames of one kind without trace, in wire form.
///
/// A clone shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    kind: FrameKind,
    frames: u32,
    bytes: Bytes,
}

impl Run {
    /// A run of one frame; its trace, where it has one, is left out.
    pub fn of(frame: &Frame) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_LEN + frame.payload_bytes().len());
        let mut header = frame.header();
        // The frames of a run have no trace block behind their headers.
        header.major &= !TRACE_FLAG;
        bytes.extend(header.encode());
        bytes.extend(frame.payload_bytes());
        Self {
            kind: frame.kind(),
            frames: 1,
            bytes: bytes.into(),
        }
    }

    /// Whole frames of one kind without trace, each with a payload of at most `max_payload`
    /// bytes. `None` if the bytes are something else.
    pub(crate) fn read(bytes: Bytes, max_payload: u32) -> Option<Self> {
        let (mut at, mut frames, kind) = (0, 0, Header::decode(&bytes)?.kind);
        while at < bytes.len() {
            let header = Header::decode(bytes.get(at..)?)?;
            let is_plain = header.major == MAJOR && header.kind == kind && !kind.is_handshake();
            if !is_plain || header.word > max_payload {
                return None;
            }
            at += HEADER_LEN + header.word as usize;
            frames += 1;
        }
        (at == bytes.len()).then_some(Self { kind, frames, bytes })
    }

    /// What all its frames are.
    pub fn kind(&self) -> FrameKind {
        self.kind
    }

    /// The number of frames, at least one.
    pub fn len(&self) -> u32 {
        self.frames
    }

    /// Whether there is no frame in it, which never happens to a decoded run.
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// The frames as they are on the wire, one after the other.
    pub fn wire(&self) -> &Bytes {
        &self.bytes
    }

    /// Cuts the run after so many frames and gives back what follows them,
    /// where something does. Both share the memory.
    pub fn split_off(&mut self, frames: u32) -> Option<Self> {
        if self.frames <= frames {
            return None;
        }
        let mut at = 0;
        for _ in 0..frames {
            // A run consists of whole frames.
            let header = Header::decode(self.bytes.get(at..)?)?;
            at += HEADER_LEN + header.word as usize;
        }
        let rest = Self {
            kind: self.kind,
            frames: self.frames - frames,
            bytes: self.bytes.split_off(at),
        };
        self.frames = frames;
        Some(rest)
    }

    /// The frames one by one; each payload is a slice of the shared bytes.
    pub fn frames(&self) -> Frames<'_> {
        Frames { run: self, at: 0 }
    }
}

/// The frames of a [`Run`].
#[derive(Debug)]
pub struct Frames<'a> {
    run: &'a Run,
    at: usize,
}

impl Iterator for Frames<'_> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let header = Header::decode(self.run.bytes.get(self.at..)?)?;
        let start = self.at + HEADER_LEN;
        let end = start + header.word as usize;
        self.at = end;
        // An empty slice would keep the memory of the whole run alive.
        let payload = if header.word == 0 {
            Bytes::new()
        } else {
            self.run.bytes.slice(start..end)
        };
        Some(Frame::with_payload(header.kind, payload))
    }
}

/// What a decoder finds in the bytes of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Frames without trace.
    Run(Run),
    /// A frame with its trace.
    Traced(Frame),
    /// A frame of an unsupported type or an unknown operand. Its payload has
    /// been skipped; [`answer_to_unsupported`](super::answer_to_unsupported)
    /// is what its sender gets.
    Unsupported(FrameKind),
}

impl Item {
    /// What it is, or was.
    pub fn kind(&self) -> FrameKind {
        match self {
            Self::Run(run) => run.kind(),
            Self::Traced(frame) => frame.kind(),
            Self::Unsupported(kind) => *kind,
        }
    }

    /// How many frames of the peer it stands for.
    pub fn frames(&self) -> u32 {
        match self {
            Self::Run(run) => run.len(),
            Self::Traced(_) | Self::Unsupported(_) => 1,
        }
    }
}

/// Decodes the frames of an established session from bytes in any pieces.
#[derive(Debug)]
pub struct Codec {
    max_payload: u32,
    tracing: bool,
    operands: Operands,
    /// The one type whose frames are taken, if these are not the protocol's.
    only: Option<FrameType>,
    /// Bytes of an unsupported frame or an oversized trace block that are
    /// still to be dropped, and what to do after them.
    skip: u64,
    after_skip: AfterSkip,
    wanted: usize,
    bad_traces: u64,
    /// The memory that what is decoded now is cut from, in bytes.
    memory: usize,
}

/// What would keep more than this many times its own length alive is copied.
pub(crate) const MAX_WASTE: usize = 4;

#[derive(Debug)]
enum AfterSkip {
    Nothing,
    Report(FrameKind),
    /// The payload of this many bytes follows a trace block that was dropped.
    Payload(Header),
}

impl Codec {
    /// A codec that takes payloads up to `max_payload` bytes, and trace
    /// blocks where the session agreed on `tracing`.
    pub fn new(max_payload: u32, tracing: bool) -> Self {
        Self {
            max_payload,
            tracing,
            operands: Operands::new(),
            only: None,
            skip: 0,
            after_skip: AfterSkip::Nothing,
            wanted: 0,
            bad_traces: 0,
            memory: 0,
        }
    }

    /// The same codec, which takes frames of the application as well.
    #[must_use]
    pub fn operands(mut self, operands: Operands) -> Self {
        self.operands = operands;
        self
    }

    /// A codec of a link between servers, which takes frames of their own type alone.
    pub(crate) fn of_links(max_payload: u32) -> Self {
        Self {
            only: Some(crate::server::LINK),
            ..Self::new(max_payload, false)
        }
    }

    /// The length of the frame at the front of the buffer, in bytes, once its
    /// header is known; 0 before.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// How many malformed trace blocks have been dropped.
    pub fn bad_traces(&self) -> u64 {
        self.bad_traces
    }

    /// Takes every complete frame off the front of `input` and appends what
    /// it finds to `items`, in order. An incomplete frame stays. What is found
    /// shares the memory of `input`, unless it is a small part of it: a frame
    /// may wait in a queue that counts its own length alone.
    ///
    /// # Errors
    /// [`ProtocolError`] where the peer broke the protocol; what stood before
    /// the fault is in `items`, and the session has to be closed.
    pub fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Item>) -> Result<(), ProtocolError> {
        self.memory = input.capacity();
        loop {
            self.wanted = 0;
            if !self.skipped(input, items) {
                return Ok(());
            }
            if let AfterSkip::Payload(header) = self.after_skip {
                if !self.payload_after_dropped_trace(header, input, items) {
                    return Ok(());
                }
                continue;
            }
            let header = match self.runs(input, items)? {
                Stop::Incomplete(wanted) => {
                    self.wanted = wanted;
                    return Ok(());
                }
                Stop::Special(header) => header,
            };
            if !self.special(header, input, items)? {
                return Ok(());
            }
        }
    }

    /// Splits the longest prefix of complete, known, untraced frames off
    /// `input`, and says what stands after it.
    fn runs(&mut self, input: &mut BytesMut, items: &mut Vec<Item>) -> Result<Stop, ProtocolError> {
        let bytes: &[u8] = input;
        let mut at = 0;
        // Most reads hold one kind: the first run costs no allocation here.
        let mut run: Option<(FrameKind, u32, usize)> = None;
        let mut earlier: Vec<(FrameKind, u32, usize, usize)> = Vec::new();
        let stop = loop {
            let Some(header) = Header::decode(&bytes[at..]) else {
                break Ok(Stop::Incomplete(0));
            };
            match self.is_plain(&header) {
                Ok(true) => {}
                Ok(false) => break Ok(Stop::Special(header)),
                Err(fault) => break Err(fault),
            }
            let whole = HEADER_LEN + header.word as usize;
            if bytes.len() - at < whole {
                break Ok(Stop::Incomplete(whole));
            }
            match &mut run {
                Some((kind, frames, _)) if *kind == header.kind => *frames += 1,
                Some((kind, frames, start)) => {
                    earlier.push((*kind, *frames, *start, at));
                    run = Some((header.kind, 1, at));
                }
                None => run = Some((header.kind, 1, at)),
            }
            at += whole;
        };
        if let Some((kind, frames, start)) = run {
            let data = input.split_to(at).freeze();
            let slices = earlier.into_iter();
            items.extend(slices.map(|(kind, frames, start, end)| {
                Item::Run(Run {
                    kind,
                    frames,
                    bytes: self.keep(data.slice(start..end)),
                })
            }));
            let bytes = self.keep(if start == 0 { data } else { data.slice(start..) });
            items.push(Item::Run(Run { kind, frames, bytes }));
        }
        stop
    }

    /// The same bytes, in memory of their own where they are a small part of
    /// the input's.
    fn keep(&self, bytes: Bytes) -> Bytes {
        if bytes.len() < self.memory / MAX_WASTE {
            Bytes::copy_from_slice(&bytes)
        } else {
            bytes
        }
    }

    /// Whether a frame without trace is known: such frames are kept together in runs.
    fn is_plain(&self, header: &Header) -> Result<bool, ProtocolError> {
        if header.version() != MAJOR {
            return Err(ProtocolError::Version(header.version()));
        }
        // Before the length is looked at: these two have the role in its place.
        if header.kind.is_handshake() {
            return Err(ProtocolError::HandshakeFrame(header.kind));
        }
        // Known from the header alone, so no byte of a payload that is too long is kept.
        if header.word > self.max_payload {
            return Err(ProtocolError::PayloadTooLong {
                kind: header.kind,
                announced: header.word,
                limit: self.max_payload,
            });
        }
        if header.traced() && !self.tracing {
            return Err(ProtocolError::TraceNotAgreed(header.kind));
        }
        Ok(!header.traced() && self.takes(header.kind))
    }

    fn takes(&self, kind: FrameKind) -> bool {
        match self.only {
            None => kind.is_known() || self.operands.contains(kind),
            Some(only) => kind.frame_type == only,
        }
    }

    /// Handles a frame that is traced or unsupported; false while it is
    /// incomplete.
    fn special(
        &mut self,
        header: Header,
        input: &mut BytesMut,
        items: &mut Vec<Item>,
    ) -> Result<bool, ProtocolError> {
        let mut head = HEADER_LEN;
        let mut block = 0;
        if header.traced() {
            let Some(length) = input.get(HEADER_LEN..HEADER_LEN + 4) else {
                self.wanted = HEADER_LEN + 4;
                return Ok(false);
            };
            let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
            // A block up to the limit of payloads is skipped, and the session goes on. A peer
            // that announces more could keep the session busy with skipping.
            if length > self.max_payload && length as usize > MAX_TRACE_LEN {
                return Err(ProtocolError::TraceTooLong(length));
            }
            head += 4;
            block = length as usize;
        }
        if !self.takes(header.kind) {
            input.advance(head);
            // Both together may exceed 32 bits.
            self.skip = block as u64 + u64::from(header.word);
            self.after_skip = AfterSkip::Report(header.kind);
            return Ok(true);
        }
        if block > MAX_TRACE_LEN {
            self.bad_traces += 1;
            input.advance(head);
            self.skip = block as u64;
            self.after_skip = AfterSkip::Payload(header);
            return Ok(true);
        }
        let whole = head + block + header.word as usize;
        if input.len() < whole {
            self.wanted = whole;
            return Ok(false);
        }
        let frame = input.split_to(whole).freeze();
        let payload = self.keep(frame.slice(head + block..));
        let frame_without = Frame::with_payload(header.kind, payload);
        items.push(match Trace::decode(&frame[head..head + block]) {
            Ok(trace) => Item::Traced(frame_without.traced(trace)),
            // A trace is an extra: its fault costs the trace and not the frame.
            Err(_) => {
                self.bad_traces += 1;
                Item::Run(Run::of(&frame_without))
            }
        });
        Ok(true)
    }

    /// Drops what is to be skipped; false while more of it is to come.
    fn skipped(&mut self, input: &mut BytesMut, items: &mut Vec<Item>) -> bool {
        // Dropped as it arrives: what is skipped takes no memory, however long it is.
        let now = usize::try_from(self.skip).map_or(input.len(), |skip| skip.min(input.len()));
        input.advance(now);
        self.skip -= now as u64;
        if self.skip > 0 {
            return false;
        }
        if let AfterSkip::Report(kind) = self.after_skip {
            self.after_skip = AfterSkip::Nothing;
            items.push(Item::Unsupported(kind));
        }
        true
    }

    fn payload_after_dropped_trace(
        &mut self,
        header: Header,
        input: &mut BytesMut,
        items: &mut Vec<Item>,
    ) -> bool {
        let len = header.word as usize;
        if input.len() < len {
            self.wanted = len;
            return false;
        }
        self.after_skip = AfterSkip::Nothing;
        let payload = input.split_to(len).freeze();
        items.push(Item::Run(Run::of(&Frame::with_payload(header.kind, payload))));
        true
    }
}

/// What stands after the complete plain frames.
enum Stop {
    Incomplete(usize),
    Special(Header),
}

/// The frame that tells the sender of an unsupported frame so, unless that
/// was an ERROR, which is never answered (docs/protocol.md, "Frames").
pub fn answer_to_unsupported(kind: FrameKind) -> Option<Frame> {
    let reason = if kind.frame_type.is_known() {
        "unsupported_operand"
    } else {
        "unsupported_type"
    };
    invalid_frame_type(kind, reason)
}

/// The frame that tells a sender that its role may not send frames of that
/// kind, unless that was an ERROR.
pub fn answer_to_filtered(kind: FrameKind) -> Option<Frame> {
    invalid_frame_type(kind, "role_not_allowed")
}

/// The frame that tells the sender of a request or an answer that it does not
/// begin with an [`Exchange`](super::Exchange).
pub fn answer_to_bad_exchange(kind: FrameKind) -> Option<Frame> {
    invalid_frame_type(kind, "bad_exchange")
}

/// The payload is three plain numbers and words, so that the protocol core
/// needs no YAML writer (docs/payloads.md, "InvalidFrameType").
fn invalid_frame_type(kind: FrameKind, reason: &str) -> Option<Frame> {
    if kind.frame_type == FrameType::ERROR {
        return None;
    }
    let payload = format!(
        "type: {}\noperand: {}\nreason: {reason}\n",
        kind.frame_type.0, kind.operand
    );
    Some(Frame::with_payload(ErrorCode::INVALID_FRAME_TYPE, payload))
}

/// Whether a frame of this kind may be handed to a session at all: CONNECT
/// and CONNECTED belong to the handshake, and unknown kinds would be refused
/// by the peer.
pub fn may_be_sent(kind: FrameKind) -> bool {
    kind.is_known() && !kind.is_handshake() && kind != Command::CONNECT
}
