//! Streams: a stream carries the output of an instance to a controller. These frames are an addition
//! of this project. They have the operands 0x40 to 0x42, and their payloads are plain bytes.
//! `docs/streams.md` describes the bytes and the rules for senders.
//!
//! ```text
//!  controller                    scheduler                     agent
//!    OpenStream (credit) ───────────▶ finds the node ─────────▶ reads the instance's log
//!    ◀──────────────────────────────────────────────── StreamOpened
//!    ◀─────────────────────────────────── StreamData, while credit remains
//!    StreamCredit ────────────────────────────────────────────▶ goes on
//!
//!  either CloseStream ────────────────────────────────────────▶ drops the stream
//!  or     ◀─────────────────────────────────── StreamEnded, with the reason
//! ```

use bytes::Bytes;
use ssntp::proto::fields::{Field, Fields, Notes};
use ssntp::proto::{Command, Event, Frame, FrameKind, Header};
use ssntp_transport::cut;
use uuid::Uuid;

/// The maximum length of the output in one StreamData, in bytes.
pub const MAX_STREAM_CHUNK: usize = 32 * 1024;
/// The maximum credit of a stream that is not used yet, in bytes.
pub const MAX_STREAM_CREDIT: u32 = 128 * 1024;
/// The maximum length of the text in StreamEnded, in bytes.
const MAX_STREAM_TEXT: usize = 512;

const UUID_LEN: usize = 16;
// Two UUIDs; outputs, flags and two zeros; the number of lines; the credit.
const OPEN_LEN: usize = 44;
// The UUID; the output, flags and two zeros.
const DATA_HEAD: usize = UUID_LEN + 4;
// The bit of both flags: of OpenStream to follow, and of StreamData that output is missing.
const FLAG: u8 = 1;
const ALL_LINES: u32 = u32::MAX;

/// A set of an instance's outputs, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outputs(pub u8);

impl Outputs {
    fn read(fields: &mut Fields<'_, impl Notes>, name: &'static str) -> Option<Self> {
        let outputs = Self(fields.u8(name)?);
        fields.meaning(|| format!("{:#x} {}", outputs.0, outputs.name()));
        Some(outputs)
    }

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
    /// The instance that writes the output.
    pub instance: Uuid,
    /// The outputs to send.
    pub outputs: Outputs,
    /// True to send later output as well, until the instance has ended.
    pub follow: bool,
    /// The number of lines at the end of each output's log that are sent first. `None` sends the whole
    /// log.
    pub tail: Option<u32>,
    /// The first credit, in bytes as [`StreamData::cost`] counts them.
    pub credit: u32,
}

impl OpenStream {
    /// Reads a payload; `None` if it is too short or the stream's UUID is nil. Further bytes are
    /// ignored.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        Self::read(&mut Fields::new(payload))
    }

    fn read(fields: &mut Fields<'_, impl Notes>) -> Option<Self> {
        let (stream, instance) = (fields.uuid("stream")?, fields.uuid("instance")?);
        let outputs = Outputs::read(fields, "outputs")?;
        let follow = read_flag(fields, "follow")?;
        let lines = fields.u32("lines")?;
        let open = Self {
            stream,
            instance,
            outputs,
            follow,
            tail: (lines != ALL_LINES).then_some(lines),
            credit: fields.u32("credit")?,
        };
        Some(open).filter(|_| !stream.is_nil())
    }

    /// Encodes the frame.
    pub fn frame(&self) -> Frame {
        let mut payload = Vec::with_capacity(OPEN_LEN);
        payload.extend(self.stream.as_bytes());
        payload.extend(self.instance.as_bytes());
        payload.extend([self.outputs.0, u8::from(self.follow) * FLAG, 0, 0]);
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
    /// Reads a payload; `None` if it is too short or the stream's UUID is nil. Further bytes are ignored.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        Self::read(&mut Fields::new(payload))
    }

    fn read(fields: &mut Fields<'_, impl Notes>) -> Option<Self> {
        let (stream, bytes) = (fields.uuid("stream")?, fields.u32("credit")?);
        Some(Self { stream, bytes }).filter(|_| !stream.is_nil())
    }

    /// Encodes the frame.
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

/// The payload of StreamData (EVENT 0x41): a chunk of the output of an instance. A chunk may begin or end
/// within a line or a character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamData {
    /// The stream.
    pub stream: Uuid,
    /// The output that the bytes come from: stdout or stderr.
    pub output: Outputs,
    /// True if output before this chunk may be missing, because it was removed from the log before
    /// the agent could read it.
    pub missing: bool,
    /// The bytes: at least one, at most [`MAX_STREAM_CHUNK`].
    pub data: Bytes,
}

impl StreamData {
    /// Reads a payload and shares its memory. `None` if the output is not exactly one, the stream's
    /// UUID is nil, or the length is out of range.
    pub fn decode(payload: &Bytes) -> Option<Self> {
        let (stream, output, missing) = Self::read(&mut Fields::new(payload))?;
        Some(Self {
            stream,
            output,
            missing,
            data: payload.slice(DATA_HEAD..),
        })
    }

    /// Reads all but the data.
    fn read(fields: &mut Fields<'_, impl Notes>) -> Option<(Uuid, Outputs, bool)> {
        let stream = fields.uuid("stream")?;
        let output = Outputs::read(fields, "output")?;
        let missing = read_flag(fields, "missing")?;
        let data = fields.rest("data");
        let is_one = output == Outputs::STDOUT || output == Outputs::STDERR;
        // An empty chunk would cost credit and carry nothing.
        let is_valid = is_one && !data.is_empty() && data.len() <= MAX_STREAM_CHUNK && !stream.is_nil();
        is_valid.then_some((stream, output, missing))
    }

    /// Encodes the frame.
    pub fn frame(&self) -> Frame {
        let mut payload = Vec::with_capacity(DATA_HEAD + self.data.len());
        payload.extend(self.stream.as_bytes());
        payload.extend([self.output.0, u8::from(self.missing) * FLAG, 0, 0]);
        payload.extend(&self.data);
        Frame::with_payload(Event::STREAM_DATA, payload)
    }

    /// The credit that the chunk costs: the length of the whole frame. Otherwise many short chunks would
    /// take far more memory of a controller than it allowed.
    pub fn cost(&self) -> u32 {
        Self::cost_of(self.data.len())
    }

    /// The credit that a chunk of `data` bytes costs.
    pub fn cost_of(data: usize) -> u32 {
        u32::try_from(Header::LEN + DATA_HEAD + data).unwrap_or(u32::MAX)
    }

    /// The maximum length of a chunk with this credit, in bytes. 0 if the credit is too small.
    pub fn room(credit: u32) -> usize {
        let head = Header::LEN + DATA_HEAD;
        (credit as usize).saturating_sub(head).min(MAX_STREAM_CHUNK)
    }
}

/// The payload of StreamEnded (EVENT 0x42): the stream has ended. The receiver does not
/// answer.
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
    /// The end of a stream for this reason. `text` has details, or is empty.
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
        Self::read(&mut Fields::new(payload))
    }

    fn read(fields: &mut Fields<'_, impl Notes>) -> Option<Self> {
        let stream = fields.uuid("stream")?;
        let reason = StreamEndReason(fields.u8("reason")?);
        fields.meaning(|| format!("{:#x} {reason}", reason.0));
        let text = if fields.remaining() > 0 {
            fields.rest("text")
        } else {
            &[]
        };
        // The text is printed on a terminal, so it is no longer than a message.
        let is_valid = text.len() <= MAX_STREAM_TEXT && !stream.is_nil();
        is_valid.then(|| Self {
            stream,
            reason,
            text: String::from_utf8_lossy(text).into_owned(),
        })
    }

    /// Encodes the frame. A text that is too long is cut.
    pub fn frame(&self) -> Frame {
        let text = cut(&self.text, MAX_STREAM_TEXT);
        let payload = [&self.stream.as_bytes()[..], &[self.reason.0], text.as_bytes()].concat();
        Frame::with_payload(Event::STREAM_ENDED, payload)
    }
}

ssntp::named! {
    /// The reason for the end of a stream. Unknown values are kept, and print as hex.
    StreamEndReason after "" => {
        /// All of the requested output was sent.
        0 DONE = "done";
        /// No node has that instance.
        1 NO_INSTANCE = "no_instance";
        /// The node of the instance is not connected, or disconnected while the stream was open.
        2 NOT_CONNECTED = "not_connected";
        /// Too many streams are open: of this session, of the node, or in total.
        3 TOO_MANY = "too_many";
        /// The node cannot read the log.
        4 UNREADABLE = "unreadable";
        /// The request is not valid, or its credit is too large.
        5 REFUSED = "refused";
        /// The agent violated the rules of the stream protocol.
        6 BROKEN = "broken";
        /// The agent does not support streams.
        7 NOT_SUPPORTED = "not_supported";
    }
}

/// The UUID of the stream, with which the payload of each frame of streams begins. `None` if the
/// payload is too short or the UUID is nil.
pub fn stream_of(payload: &[u8]) -> Option<Uuid> {
    let stream = Fields::new(payload).uuid("stream");
    stream.filter(|stream| !stream.is_nil())
}

/// A byte whose lowest bit is a flag, and two reserved bytes.
fn read_flag(fields: &mut Fields<'_, impl Notes>, name: &'static str) -> Option<bool> {
    let is_set = fields.u8(name)? & FLAG != 0;
    fields.meaning(|| if is_set { "yes" } else { "no" }.to_owned());
    fields.reserved(2)?;
    Some(is_set)
}

/// Reads the fields of a payload for `ssntp decode`. A payload of another frame is one field. False if the
/// payload is not one of its kind.
#[doc(hidden)]
pub fn read_payload(kind: FrameKind, fields: &mut Fields<'_, Vec<Field>>) -> bool {
    if kind == Command::OPEN_STREAM {
        OpenStream::read(fields).is_some()
    } else if kind == Command::STREAM_CREDIT {
        StreamCredit::read(fields).is_some()
    } else if kind == Event::STREAM_DATA {
        StreamData::read(fields).is_some()
    } else if kind == Event::STREAM_ENDED {
        StreamEnded::read(fields).is_some()
    } else if kind.is_of_streams() {
        fields.uuid("stream").is_some_and(|stream| !stream.is_nil())
    } else {
        fields.rest("payload");
        true
    }
}
