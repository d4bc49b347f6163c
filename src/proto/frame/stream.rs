//! Streams: what an instance has written, on its way to a controller. Frames of
//! this project's own, from operand 0x40 on, with payloads of plain bytes:
//! `docs/streams.md` has them byte by byte, and who may send what when.
//!
//! ```text
//!  controller                    scheduler                     agent
//!    OpenStream (credit) ───────────▶ whose instance? ────────▶ reads its logs
//!    ◀──────────────────────────────────────────────── StreamOpened
//!    ◀─────────────────────────────────── StreamData, as far as there is credit
//!    StreamCredit ────────────────────────────────────────────▶ goes on
//!    CloseStream ─────────────────────────────────────────────▶ forgets it
//!    ◀──────────────────────────────────────────────── StreamEnded, why
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
const OPEN_LEN: usize = 44;
const DATA_HEAD: usize = UUID_LEN + 4;
const FOLLOW: u8 = 1;
const MISSING: u8 = 1;
const ALL_LINES: u32 = u32::MAX;

/// Which of an instance's outputs: a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outputs(pub u8);

impl Outputs {
    /// What it writes to its standard output; of a virtual machine, to its
    /// serial port.
    pub const STDOUT: Self = Self(1);
    /// What it writes to its standard error; of a virtual machine, what QEMU
    /// complains of.
    pub const STDERR: Self = Self(2);
    /// Both.
    pub const BOTH: Self = Self(3);

    /// Whether all of `others` are among them.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// `stdout`, `stderr`, or `both`; other bits mean nothing.
    pub const fn name(self) -> &'static str {
        match self.0 & Self::BOTH.0 {
            1 => "stdout",
            2 => "stderr",
            3 => "both",
            _ => "none",
        }
    }
}

/// The payload of OpenStream (COMMAND 0x40): a controller asks for what an
/// instance has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenStream {
    /// The stream's name, which its controller makes up at random.
    pub stream: Uuid,
    /// Whose output.
    pub instance: Uuid,
    /// Which output.
    pub outputs: Outputs,
    /// Whether to go on with what it writes from now on, until it has ended.
    pub follow: bool,
    /// How many of the last lines of each output to begin with; `None` is all
    /// that is kept.
    pub tail: Option<u32>,
    /// Its first credit: see [`StreamData::cost`].
    pub credit: u32,
}

impl OpenStream {
    /// Reads a payload; `None` where it is too short, or names no stream. What
    /// follows what is known is ignored.
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

/// The payload of StreamCredit (COMMAND 0x41): so much more may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCredit {
    /// The stream.
    pub stream: Uuid,
    /// Bytes, as [`StreamData::cost`] counts them.
    pub bytes: u32,
}

impl StreamCredit {
    /// Reads a payload; `None` where it is too short, or names no stream.
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

/// CloseStream (COMMAND 0x42): nothing more is wanted. Nothing answers it.
pub fn close_stream(stream: Uuid) -> Frame {
    Frame::with_payload(Command::CLOSE_STREAM, stream.as_bytes().to_vec())
}

/// StreamOpened (EVENT 0x40): an agent has found the instance, and begins.
pub fn stream_opened(stream: Uuid) -> Frame {
    Frame::with_payload(Event::STREAM_OPENED, stream.as_bytes().to_vec())
}

/// The payload of StreamData (EVENT 0x41): a piece of what an instance has
/// written. Where it begins and ends means nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamData {
    /// The stream.
    pub stream: Uuid,
    /// Which output it is of, one alone.
    pub output: Outputs,
    /// Whether something before it may be missing: it was removed from the log
    /// before it could be read.
    pub missing: bool,
    /// The bytes: at least one, at most [`MAX_STREAM_CHUNK`].
    pub data: Bytes,
}

impl StreamData {
    /// Reads a payload, whose memory it shares; `None` where it is none, names
    /// no stream, or has too few or too many bytes.
    pub fn decode(payload: &Bytes) -> Option<Self> {
        let output = Outputs(*payload.get(UUID_LEN)?);
        let data = payload.len().checked_sub(DATA_HEAD)?;
        // A piece comes from one output, and an empty one would cost credit for nothing.
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

    /// How much credit it takes: the length of the whole frame, so that many
    /// short ones cost what they take of memory.
    pub fn cost(&self) -> u32 {
        Self::cost_of(self.data.len())
    }

    /// How much credit a chunk of so many bytes takes.
    pub fn cost_of(data: usize) -> u32 {
        // Credit pays for headers as well. Else many pieces of one byte would cost a controller
        // far more memory than it allowed.
        u32::try_from(HEADER_LEN + DATA_HEAD + data).unwrap_or(u32::MAX)
    }

    /// How many bytes a chunk may have with so much credit.
    pub fn room(credit: u32) -> usize {
        let head = HEADER_LEN + DATA_HEAD;
        (credit as usize).saturating_sub(head).min(MAX_STREAM_CHUNK)
    }
}

/// The payload of StreamEnded (EVENT 0x42): nothing more will come. Nothing
/// answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEnded {
    /// The stream.
    pub stream: Uuid,
    /// Why.
    pub reason: StreamEndReason,
    /// The story, in words; may be empty.
    pub text: String,
}

impl StreamEnded {
    /// An end with its story.
    pub fn new(stream: Uuid, reason: StreamEndReason, text: impl Into<String>) -> Self {
        Self {
            stream,
            reason,
            text: text.into(),
        }
    }

    /// Reads a payload; `None` where it is too short or too long, or names no
    /// stream. What is no text is replaced.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let text = payload.get(UUID_LEN + 1..)?;
        // It is printed on a terminal, so it is one line and not a log.
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
    /// Why a stream has ended. Unknown values survive and print as hex.
    StreamEndReason after "" => {
        /// All that was asked for has been sent.
        0 DONE = "done";
        /// No node has that instance.
        1 NO_INSTANCE = "no_instance";
        /// Its node is not connected, or has left meanwhile.
        2 NOT_CONNECTED = "not_connected";
        /// There are too many streams: of this session, of the node, or in all.
        3 TOO_MANY = "too_many";
        /// The node cannot read the log.
        4 UNREADABLE = "unreadable";
        /// What was asked for makes no sense, or there was more credit than may be.
        5 REFUSED = "refused";
        /// The agent did not keep the rules.
        6 BROKEN = "broken";
        /// The agent does not know streams.
        7 NOT_SUPPORTED = "not_supported";
    }
}

impl FrameKind {
    /// Whether it is a frame of streams.
    pub fn is_of_streams(self) -> bool {
        self.is_known() && matches!(self.operand, 0x40..=0x42)
    }
}

/// The stream that the payload of a frame of streams begins with; `None` where
/// it is too short, or the nil UUID.
pub fn stream_of(payload: &[u8]) -> Option<Uuid> {
    uuid_at(payload, 0).filter(|stream| !stream.is_nil())
}

fn uuid_at(payload: &[u8], at: usize) -> Option<Uuid> {
    Uuid::from_slice(payload.get(at..at + UUID_LEN)?).ok()
}

fn u32_at(payload: &[u8], at: usize) -> Option<u32> {
    payload.get(at..at + 4).map(BigEndian::read_u32)
}
