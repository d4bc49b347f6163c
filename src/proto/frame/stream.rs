//! Streams: the output of an instance on its way to a controller. These frames are an addition of
//! this project, from operand 0x40 on, and their payloads are plain bytes. `docs/streams.md`
//! describes the bytes and the rules for senders.
//!
//! ```text
//!  controller                    scheduler                     agent
//!    OpenStream (credit) ───────────▶ finds the node ─────────▶ reads its logs
//!    ◀──────────────────────────────────────────────── StreamOpened
//!    ◀─────────────────────────────────── StreamData, as far as there is credit
//!    StreamCredit ────────────────────────────────────────────▶ goes on
//!    CloseStream ─────────────────────────────────────────────▶ drops the stream
//!    ◀──────────────────────────────────────── StreamEnded, with the reason
//! ```

use byteorder::{BigEndian, ByteOrder};
use bytes::Bytes;
use ssntp_transport::cut;
use uuid::Uuid;

use super::{Command, Event, Frame, FrameKind, HEADER_LEN};

/// The most bytes of an instance's output in one StreamData.
pub const MAX_STREAM_CHUNK: usize = 32 * 1024;
/// The most credit that a stream may have at a time.
pub const MAX_STREAM_CREDIT: u32 = 128 * 1024;
/// The most bytes of text in StreamEnded.
pub const MAX_STREAM_TEXT: usize = 512;

const UUID_LEN: usize = 16;
// Two UUIDs, outputs and flags, the number of lines, the credit.
const OPEN_LEN: usize = 44;
// The UUID, the output and flags.
const DATA_HEAD: usize = UUID_LEN + 4;
const FOLLOW: u8 = 1;
const MISSING: u8 = 1;
const ALL_LINES: u32 = u32::MAX;

/// A set of an instance's outputs, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outputs(pub u8);

impl Outputs {
    /// The standard output; of a virtual machine, its serial port.
    pub const STDOUT: Self = Self(1);
    /// The standard error; of a virtual machine, the messages of QEMU.
    pub const STDERR: Self = Self(2);
    /// Both outputs.
    pub const BOTH: Self = Self(3);

    /// True if the set contains all of `others`.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// `stdout`, `stderr`, `both`, or `none`. Other bits are ignored.
    pub const fn name(self) -> &'static str {
        match self.0 & Self::BOTH.0 {
            1 => "stdout",
            2 => "stderr",
            3 => "both",
            _ => "none",
        }
    }
}

/// The payload of OpenStream (COMMAND 0x40): a controller asks for the output of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenStream {
    /// The stream's UUID, which its controller chooses at random.
    pub stream: Uuid,
    /// The instance.
    pub instance: Uuid,
    /// The outputs.
    pub outputs: Outputs,
    /// True to go on with later output until the instance has ended.
    pub follow: bool,
    /// The number of the last lines of each output to begin with; `None`: all that are kept.
    pub tail: Option<u32>,
    /// The first credit: see [`StreamData::cost`].
    pub credit: u32,
}

impl OpenStream {
    /// Reads a payload; `None` if it is too short or the stream's UUID is nil. Further bytes are
    /// ignored.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        if payload.len() < OPEN_LEN {
            return None;
        }
        let lines = u32_at(payload, 36)?;
        Some(Self {
            stream: stream_of(payload)?,
            instance: uuid_at(payload, UUID_LEN)?,
            outputs: Outputs(*payload.get(32)?),
            follow: payload.get(33)? & FOLLOW != 0,
            tail: (lines != ALL_LINES).then_some(lines),
            credit: u32_at(payload, 40)?,
        })
    }

    /// The frame.
    pub fn frame(&self) -> Frame {
        let mut payload = Vec::with_capacity(OPEN_LEN);
        payload.extend(self.stream.as_bytes());
        payload.extend(self.instance.as_bytes());
        payload.extend([self.outputs.0, u8::from(self.follow) * FOLLOW, 0, 0]);
        payload.extend(self.tail.unwrap_or(ALL_LINES).to_be_bytes());
        payload.extend(self.credit.to_be_bytes());
        Frame::with_payload(Command::OPEN_STREAM, payload)
    }
}

/// The payload of StreamCredit (COMMAND 0x41): further credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCredit {
    /// The stream.
    pub stream: Uuid,
    /// Bytes, as [`StreamData::cost`] counts them.
    pub bytes: u32,
}

impl StreamCredit {
    /// Reads a payload; `None` if it is too short or the stream's UUID is nil.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        Some(Self {
            stream: stream_of(payload)?,
            bytes: u32_at(payload, UUID_LEN)?,
        })
    }

    /// The frame.
    pub fn frame(&self) -> Frame {
        let payload = [&self.stream.as_bytes()[..], &self.bytes.to_be_bytes()].concat();
        Frame::with_payload(Command::STREAM_CREDIT, payload)
    }
}

/// CloseStream (COMMAND 0x42): the controller ends the stream. It is not answered.
pub fn close_stream(stream: Uuid) -> Frame {
    Frame::with_payload(Command::CLOSE_STREAM, stream.as_bytes().to_vec())
}

/// StreamOpened (EVENT 0x40): an agent has found the instance and begins to send.
pub fn stream_opened(stream: Uuid) -> Frame {
    Frame::with_payload(Event::STREAM_OPENED, stream.as_bytes().to_vec())
}

/// The payload of StreamData (EVENT 0x41): a piece of the output of an instance. The bounds of a
/// piece have no meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamData {
    /// The stream.
    pub stream: Uuid,
    /// The output: exactly one.
    pub output: Outputs,
    /// True if output before this piece may be missing, because it was removed from the log before
    /// the agent could read it.
    pub missing: bool,
    /// The bytes: at least one, at most [`MAX_STREAM_CHUNK`].
    pub data: Bytes,
}

impl StreamData {
    /// Reads a payload and shares its memory. `None` if the output is not exactly one, the stream's
    /// UUID is nil, or the length is out of range.
    pub fn decode(payload: &Bytes) -> Option<Self> {
        let output = Outputs(*payload.get(UUID_LEN)?);
        let data = payload.len().checked_sub(DATA_HEAD)?;
        // A piece comes from one output. An empty piece would cost credit and carry no output.
        let is_one = output == Outputs::STDOUT || output == Outputs::STDERR;
        if !is_one || data == 0 || data > MAX_STREAM_CHUNK {
            return None;
        }
        Some(Self {
            stream: stream_of(payload)?,
            output,
            missing: payload.get(UUID_LEN + 1)? & MISSING != 0,
            data: payload.slice(DATA_HEAD..),
        })
    }

    /// The frame.
    pub fn frame(&self) -> Frame {
        let mut payload = Vec::with_capacity(DATA_HEAD + self.data.len());
        payload.extend(self.stream.as_bytes());
        payload.extend([self.output.0, u8::from(self.missing) * MISSING, 0, 0]);
        payload.extend(&self.data);
        Frame::with_payload(Event::STREAM_DATA, payload)
    }

    /// The credit that it costs: the length of the whole frame, so that many short pieces cost as
    /// much as the memory that they take.
    pub fn cost(&self) -> u32 {
        Self::cost_of(self.data.len())
    }

    /// The credit that a piece of `data` bytes costs.
    pub fn cost_of(data: usize) -> u32 {
        // Credit includes headers. Otherwise many pieces of one byte would take far more memory of a
        // controller than it allowed.
        u32::try_from(HEADER_LEN + DATA_HEAD + data).unwrap_or(u32::MAX)
    }

    /// The most bytes that a piece may have with this credit.
    pub fn room(credit: u32) -> usize {
        let head = HEADER_LEN + DATA_HEAD;
        (credit as usize).saturating_sub(head).min(MAX_STREAM_CHUNK)
    }
}

/// The payload of StreamEnded (EVENT 0x42): the stream has ended. It is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEnded {
    /// The stream.
    pub stream: Uuid,
    /// The reason.
    pub reason: StreamEndReason,
    /// Details as text; may be empty.
    pub text: String,
}

impl StreamEnded {
    /// An end with details.
    pub fn new(stream: Uuid, reason: StreamEndReason, text: impl Into<String>) -> Self {
        Self {
            stream,
            reason,
            text: text.into(),
        }
    }

    /// Reads a payload; `None` if it is too short or too long, or the stream's UUID is nil. Bytes
    /// that are not UTF-8 are replaced.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let text = payload.get(UUID_LEN + 1..)?;
        // The text is printed on a terminal, so its length is that of a message.
        (text.len() <= MAX_STREAM_TEXT).then_some(())?;
        Some(Self {
            stream: stream_of(payload)?,
            reason: StreamEndReason(*payload.get(UUID_LEN)?),
            text: String::from_utf8_lossy(text).into_owned(),
        })
    }

    /// The frame; a text that is too long is cut.
    pub fn frame(&self) -> Frame {
        let text = cut(&self.text, MAX_STREAM_TEXT);
        let payload = [&self.stream.as_bytes()[..], &[self.reason.0], text.as_bytes()].concat();
        Frame::with_payload(Event::STREAM_ENDED, payload)
    }
}

super::operand::named! {
    /// The reason for the end of a stream. Unknown values are kept, and print as hex.
    StreamEndReason after "" => {
        /// All of the requested output was sent.
        0 DONE = "done";
        /// No node has that instance.
        1 NO_INSTANCE = "no_instance";
        /// The node of the instance is not connected, or has disconnected meanwhile.
        2 NOT_CONNECTED = "not_connected";
        /// There are too many streams: of this session, of the node, or in total.
        3 TOO_MANY = "too_many";
        /// The node cannot read the log.
        4 UNREADABLE = "unreadable";
        /// The request is not valid, or its credit is too large.
        5 REFUSED = "refused";
        /// The agent broke the rules for streams.
        6 BROKEN = "broken";
        /// The agent does not support streams.
        7 NOT_SUPPORTED = "not_supported";
    }
}

impl FrameKind {
    /// True for the frames of streams.
    pub fn is_of_streams(self) -> bool {
        self.is_known() && matches!(self.operand, 0x40..=0x42)
    }
}

/// The UUID of the stream, with which the payload of each frame of streams begins. `None` if the
/// payload is too short or the UUID is nil.
pub fn stream_of(payload: &[u8]) -> Option<Uuid> {
    uuid_at(payload, 0).filter(|stream| !stream.is_nil())
}

fn uuid_at(payload: &[u8], at: usize) -> Option<Uuid> {
    Uuid::from_slice(payload.get(at..at + UUID_LEN)?).ok()
}

fn u32_at(payload: &[u8], at: usize) -> Option<u32> {
    payload.get(at..at + 4).map(BigEndian::read_u32)
}
