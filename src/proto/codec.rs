//! The incremental decoder of an established session.
//!
//! ```text
//!  bytes as they come          Codec::decode                 items
//!  ...|hdr|pay|hdr|pay|hdr|pa  ────────────▶  Run{STATS ×2}, Run{READY ×1}
//!                        └ stays in the buffer until the rest arrives
//! ```
//!
//! The decoder returns frames as [`Run`]s: consecutive frames of one kind, in wire form, in one
//! shared piece of memory. A router looks up the kind of a run once and forwards the bytes
//! unchanged; [`Run::frames`] iterates over single frames. The buffer belongs to the caller.
//! [`Codec::wanted`] is the length of the frame at its front, so that the caller can reserve memory.

use bytes::{Buf, Bytes, BytesMut};

use super::{ErrorCode, Frame, FrameKind, FrameType, Header, Operands, PROBE, ProtocolError, Trace};

/// The type byte of the frames on a link between servers.
pub(crate) const LINK: FrameType = FrameType(0x4c);

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
    /// A run of one frame, without its trace.
    pub fn of(frame: &Frame) -> Self {
        let kind = frame.kind();
        // The frames of a run have no trace block behind their headers.
        let untraced = Frame::with_payload(kind, frame.payload_bytes().clone());
        Self {
            kind,
            frames: 1,
            bytes: untraced.encode(),
        }
    }

    /// Reads whole frames of one kind without trace, each with a payload of at most `max_payload`
    /// bytes. `None` if the bytes are anything else.
    pub(crate) fn read(bytes: Bytes, max_payload: u32) -> Option<Self> {
        let (mut at, mut frames, kind) = (0, 0, Header::decode(&bytes)?.kind);
        while at < bytes.len() {
            let header = Header::decode(bytes.get(at..)?)?;
            let is_plain = header.major == Header::MAJOR && header.kind == kind && !kind.is_handshake();
            if !is_plain || header.word > max_payload {
                return None;
            }
            at += Header::LEN + header.word as usize;
            frames += 1;
        }
        (at == bytes.len()).then_some(Self { kind, frames, bytes })
    }

    /// The kind of all its frames.
    pub fn kind(&self) -> FrameKind {
        self.kind
    }

    /// The number of frames, at least one.
    pub fn len(&self) -> u32 {
        self.frames
    }

    /// True if it has no frame. A decoded run always has one.
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// The frames as they are on the wire, one after the other.
    pub fn wire(&self) -> &Bytes {
        &self.bytes
    }

    /// Cuts the run after `frames` frames, and returns a run of the others. `None` if there are no
    /// others. Both share the memory.
    pub fn split_off(&mut self, frames: u32) -> Option<Self> {
        if self.frames <= frames {
            return None;
        }
        let mut at = 0;
        for _ in 0..frames {
            // A run consists of whole frames.
            let header = Header::decode(self.bytes.get(at..)?)?;
            at += Header::LEN + header.word as usize;
        }
        let rest = Self {
            kind: self.kind,
            frames: self.frames - frames,
            bytes: self.bytes.split_off(at),
        };
        self.frames = frames;
        Some(rest)
    }

    /// Iterates over the single frames. Each payload is a slice of the shared bytes.
    pub fn frames(&self) -> impl Iterator<Item = Frame> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let header = Header::decode(self.bytes.get(at..)?)?;
            let start = at + Header::LEN;
            at = start + header.word as usize;
            // An empty slice would keep the memory of the whole run alive.
            let payload = match header.word {
                0 => Bytes::new(),
                _ => self.bytes.slice(start..at),
            };
            Some(Frame::with_payload(header.kind, payload))
        })
    }
}

/// An item that a decoder finds in the bytes of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Frames without trace.
    Run(Run),
    /// A frame with its trace.
    Traced(Frame),
    /// A frame of an unsupported type or an unknown operand, whose payload was skipped. The sender
    /// gets [`answer`](Self::answer).
    Unsupported(FrameKind),
}

impl Item {
    /// The kind of its frames.
    pub fn kind(&self) -> FrameKind {
        match self {
            Self::Run(run) => run.kind(),
            Self::Traced(frame) => frame.kind(),
            Self::Unsupported(kind) => *kind,
        }
    }

    /// The answer to an unsupported frame. `None` for all others, and for an ERROR, which is never answered
    /// (docs/protocol.md, "Frames").
    pub fn answer(&self) -> Option<Frame> {
        match self {
            Self::Unsupported(kind) if kind.frame_type.is_known() => {
                invalid_frame_type(*kind, "unsupported_operand")
            }
            Self::Unsupported(kind) => invalid_frame_type(*kind, "unsupported_type"),
            Self::Run(_) | Self::Traced(_) => None,
        }
    }

    /// The number of its frames.
    pub fn frames(&self) -> u32 {
        match self {
            Self::Run(run) => run.len(),
            Self::Traced(_) | Self::Unsupported(_) => 1,
        }
    }

    /// Each of the frames, with its trace. An unsupported frame has been dropped, so it is not among them.
    pub fn each(&self) -> impl Iterator<Item = Frame> {
        let (run, traced) = match self {
            Self::Run(run) => (Some(run), None),
            Self::Traced(frame) => (None, Some(frame.clone())),
            Self::Unsupported(_) => (None, None),
        };
        run.into_iter().flat_map(Run::frames).chain(traced)
    }
}

impl From<&Frame> for Item {
    fn from(frame: &Frame) -> Self {
        match frame.trace() {
            Some(_) => Self::Traced(frame.clone()),
            None => Self::Run(Run::of(frame)),
        }
    }
}

/// Decodes the frames of an established session from bytes in any pieces.
#[derive(Debug)]
pub struct Codec {
    max_payload: u32,
    tracing: bool,
    operands: Operands,
    /// The only type that is accepted. `None`: the protocol's and the application's frames.
    only: Option<FrameType>,
    /// The number of bytes of an unsupported frame, or of a trace block that is too long, that are
    /// still to be dropped.
    skip: u64,
    /// The header, without trace, of the frame whose trace block is being dropped.
    untraced: Option<Header>,
    /// The kind of that frame, until it was reported.
    unsupported: Option<FrameKind>,
    wanted: usize,
    bad_traces: u64,
    /// The size of the buffer that items are cut from, in bytes.
    memory: usize,
}

/// Returns bytes that keep little more memory alive than their own length, which is all that a queue
/// counts. They share `memory` bytes of memory with others, which may be dropped earlier; if they are less
/// than ten thirteenths of it, they are copied.
pub(crate) fn apart(bytes: Bytes, memory: usize) -> Bytes {
    if bytes.len() * 13 < memory * 10 {
        Bytes::copy_from_slice(&bytes)
    } else {
        bytes
    }
}

impl Codec {
    /// A codec that accepts payloads up to `max_payload` bytes, and trace blocks if `tracing` was
    /// agreed on.
    pub fn new(max_payload: u32, tracing: bool) -> Self {
        Self {
            max_payload,
            tracing,
            operands: Operands::new(),
            only: None,
            skip: 0,
            untraced: None,
            unsupported: None,
            wanted: 0,
            bad_traces: 0,
            memory: 0,
        }
    }

    /// The same codec, which also accepts frames of the application.
    #[must_use]
    pub fn operands(mut self, operands: Operands) -> Self {
        self.operands = operands;
        self
    }

    /// The codec of a link between servers, which accepts only frames of the type of links.
    pub(crate) fn of_links(max_payload: u32) -> Self {
        Self {
            only: Some(LINK),
            ..Self::new(max_payload, false)
        }
    }

    /// The length of the frame at the front of the buffer, in bytes; 0 until its header has
    /// arrived.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// True in the middle of an unsupported frame, or of a trace block that is dropped.
    pub fn skips(&self) -> bool {
        self.skip > 0 || self.untraced.is_some()
    }

    /// The number of malformed trace blocks that were dropped.
    pub fn bad_traces(&self) -> u64 {
        self.bad_traces
    }

    /// Removes every complete frame from the front of `input` and appends what it finds to `items`,
    /// in order. An incomplete frame stays. Items share the memory of `input`, unless they are a
    /// smaller part of it: an item may wait in a queue, which counts only the item's own length.
    ///
    /// # Errors
    /// [`ProtocolError`] if the peer broke the protocol. The frames before the fault are in `items`,
    /// and the session has to be closed.
    pub fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Item>) -> Result<(), ProtocolError> {
        self.memory = input.capacity();
        loop {
            self.wanted = 0;
            if !self.skipped(input, items) {
                return Ok(());
            }
            let Some(header) = self.runs(input, items)? else {
                return Ok(());
            };
            if !self.special(header, input, items)? {
                return Ok(());
            }
        }
    }

    /// Removes the complete, known, untraced frames at the front of `input`. Returns the header
    /// of the traced or unsupported frame after them, or `None` if the next frame is incomplete.
    fn runs(&mut self, input: &mut BytesMut, items: &mut Vec<Item>) -> Result<Option<Header>, ProtocolError> {
        loop {
            // `kind` is set by the first frame.
            let (mut frames, mut at, mut kind) = (0, 0, PROBE);
            // `None` if a run of another kind follows.
            let end = loop {
                let Some(header) = Header::decode(&input[at..]) else {
                    break Some(Ok(None));
                };
                match self.is_plain(&header) {
                    Ok(true) if frames > 0 && header.kind != kind => break None,
                    Ok(true) => kind = header.kind,
                    Ok(false) => break Some(Ok(Some(header))),
                    Err(fault) => break Some(Err(fault)),
                }
                let whole = Header::LEN + header.word as usize;
                if input.len() - at < whole {
                    self.wanted = whole;
                    break Some(Ok(None));
                }
                at += whole;
                frames += 1;
            };
            if frames > 0 {
                let bytes = apart(input.split_to(at).freeze(), self.memory);
                items.push(Item::Run(Run { kind, frames, bytes }));
            }
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// True if a frame is known and has no trace, so that it can be part of a run.
    fn is_plain(&self, header: &Header) -> Result<bool, ProtocolError> {
        if header.version() != Header::MAJOR {
            return Err(ProtocolError::Version(header.version()));
        }
        // Before the length is checked, because these two have the role in its place.
        if header.kind.is_handshake() {
            return Err(ProtocolError::HandshakeFrame(header.kind));
        }
        // Checked with the header alone, so no byte of a payload that is too long is kept.
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

    /// Handles a traced or unsupported frame. Returns false while it is incomplete.
    fn special(
        &mut self,
        header: Header,
        input: &mut BytesMut,
        items: &mut Vec<Item>,
    ) -> Result<bool, ProtocolError> {
        let mut head = Header::LEN;
        let mut block = 0;
        if header.traced() {
            let Some(length) = input.get(Header::LEN..Header::LEN + 4) else {
                self.wanted = Header::LEN + 4;
                return Ok(false);
            };
            let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
            // A block that is too long is dropped as it arrives, and its frame is kept. Without this
            // bound, a peer could keep its session busy with one block of 4 GiB.
            if length > self.max_payload && length as usize > Trace::MAX_LEN {
                return Err(ProtocolError::TraceTooLong(length));
            }
            head += 4;
            block = length as usize;
        }
        if !self.takes(header.kind) {
            input.advance(head);
            // The sum may exceed 32 bits.
            self.skip = block as u64 + u64::from(header.word);
            self.unsupported = Some(header.kind);
            return Ok(true);
        }
        if block > Trace::MAX_LEN {
            self.bad_traces += 1;
            input.advance(head);
            // The header replaces the last bytes of the block, so that a frame without trace remains.
            self.skip = (block - Header::LEN) as u64;
            self.untraced = Some(Header {
                major: header.major & !Header::TRACE_FLAG,
                ..header
            });
            return Ok(true);
        }
        let whole = head + block + header.word as usize;
        if input.len() < whole {
            self.wanted = whole;
            return Ok(false);
        }
        let frame = input.split_to(whole).freeze();
        let payload = apart(frame.slice(head + block..), self.memory);
        let frame_without = Frame::with_payload(header.kind, payload);
        items.push(match Trace::decode(&frame[head..head + block]) {
            Ok(trace) => Item::Traced(frame_without.traced(trace)),
            // A trace is optional, so a fault in it loses the trace but keeps the frame.
            Err(_) => {
                self.bad_traces += 1;
                Item::Run(Run::of(&frame_without))
            }
        });
        Ok(true)
    }

    /// Drops the rest of an unsupported frame or trace block. Returns false until all of it has arrived.
    fn skipped(&mut self, input: &mut BytesMut, items: &mut Vec<Item>) -> bool {
        // Dropped as it arrives, so that it takes no memory, whatever its length.
        let now = usize::try_from(self.skip).map_or(input.len(), |skip| skip.min(input.len()));
        input.advance(now);
        self.skip -= now as u64;
        if self.skip > 0 {
            return false;
        }
        if let Some(header) = self.untraced {
            let Some(end) = input.get_mut(..Header::LEN) else {
                self.wanted = Header::LEN;
                return false;
            };
            end.copy_from_slice(&header.encode());
            self.untraced = None;
        }
        items.extend(self.unsupported.take().map(Item::Unsupported));
        true
    }
}

/// InvalidFrameType for a frame; `None` for an ERROR, which is never answered. Its payload is so simple that the protocol core needs no YAML
/// writer (docs/payloads.md, "InvalidFrameType").
pub(crate) fn invalid_frame_type(kind: FrameKind, reason: &str) -> Option<Frame> {
    if kind.frame_type == FrameType::ERROR {
        return None;
    }
    let payload = format!(
        "type: {}\noperand: {}\nreason: {reason}\n",
        kind.frame_type.0, kind.operand
    );
    Some(Frame::with_payload(ErrorCode::INVALID_FRAME_TYPE, payload))
}
