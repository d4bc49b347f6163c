//! Reads the fields of one frame, one after the other.

use std::io::{self, BufRead, Read};

use serde::Serialize;
use serde_json::{Value, json};
use ssntp::Role;
use ssntp::proto::{
    Command, Event, FrameKind, FrameType, MAJOR, MAX_STREAM_CHUNK, MAX_STREAM_TEXT, MAX_TRACE_LEN,
    MAX_TRACE_NODES, Outputs, Status, StreamEndReason, TRACE_FLAG, TraceParent,
};
use uuid::Uuid;

use super::frame::{Field, Frame, Problem};
use crate::output::printable;

/// The longest payload that is read, in bytes: four times what peers accept by default.
pub(super) const MAX_PAYLOAD: usize = 64 << 20;
/// The only version of the trace block.
const TRACE_VERSION: u8 = 1;

/// Reads one frame. The methods that read a field note a problem and return `None` if bytes are
/// missing.
pub(super) struct Walk<'a> {
    source: &'a mut dyn BufRead,
    /// The offset after the last byte that was read.
    seen: usize,
    /// The bytes of the present part of the frame that were read and not yet used for a field.
    part: Vec<u8>,
    /// The name of the part.
    within: &'static str,
    frame: Frame,
    failed: Option<io::Error>,
}

/// The result of reading a frame.
pub(super) struct Walked {
    pub(super) frame: Frame,
    /// True if it is unknown where the next frame begins.
    pub(super) lost: bool,
    pub(super) failed: Option<io::Error>,
}

impl<'a> Walk<'a> {
    pub(super) fn frame_at(at: usize, source: &'a mut dyn BufRead) -> Walked {
        let mut walk = Self {
            source,
            seen: at,
            part: Vec::new(),
            within: "the input",
            frame: Frame {
                at,
                ..Frame::default()
            },
            failed: None,
        };
        let lost = walk.frame().is_none();
        // All bytes that were read count, including those after a fault, because the next frame begins
        // after them.
        walk.frame.len = walk.seen - at;
        Walked {
            frame: walk.frame,
            lost,
            failed: walk.failed,
        }
    }

    /// The offset of the next byte.
    fn at(&self) -> usize {
        self.seen - self.part.len()
    }

    /// Reads the next bytes of the frame, for fields of this length in total.
    fn load(&mut self, len: usize) {
        (self.part, self.within) = (self.read(len), "the input");
    }

    /// The whole frame; `None` if it is unknown where it ends.
    fn frame(&mut self) -> Option<()> {
        let start = self.at();
        self.load(4);
        let major = self.byte("major")?;
        let (version, flag) = (major & !TRACE_FLAG, major & TRACE_FLAG != 0);
        let flagged = if flag { ", trace flag" } else { "" };
        self.text(format!("{version}{flagged}"));
        if version != MAJOR {
            self.problem(start, format!("major version {version}, not {MAJOR}"));
        }
        self.byte("minor")?;
        let frame_type = FrameType(self.byte("type")?);
        self.text(format!("{:#x} {frame_type}", frame_type.0));
        let operand = self.byte("operand")?;
        let kind = FrameKind::new(frame_type, operand);
        self.text(format!("{operand:#x} {kind}"));
        self.frame.kind = Some(kind);
        // Another version may have its lengths at other offsets.
        if version != MAJOR {
            return None;
        }
        if !frame_type.is_known() {
            self.problem(start + 2, format!("unknown type {frame_type}"));
        } else if !(kind.is_known() || kind.is_application()) {
            let what = format!("unknown operand {operand:#04x} of {frame_type}");
            self.problem(start + 3, what);
        }
        if kind.is_handshake() {
            self.handshake(kind)?;
        } else {
            // The length of the payload comes before the trace block, and the payload after it.
            self.load(4);
            let announced = self.number("payload length")?;
            if flag {
                self.trace()?;
            }
            // A wrong length is reported at the offset of the length field, which follows four bytes.
            self.payload(start + 4, announced)?;
        }
        Some(())
    }

    fn handshake(&mut self, kind: FrameKind) -> Option<()> {
        // A role and two UUIDs.
        self.load(4 + 16 + 16);
        let at = self.at();
        let role = self.role("role")?;
        if role.is_empty() {
            self.problem(at, "no role is advertised".to_owned());
        } else if role.unknown_bits() != 0 {
            self.problem(at, format!("bits {:#x} are not a role", role.unknown_bits()));
        }
        if kind == Status::CONNECTED {
            self.uuid("server")?;
            self.uuid("client")?;
            let at = self.at();
            self.load(4);
            let announced = self.number("payload length")?;
            return self.payload(at, announced);
        }
        let at = self.at();
        if self.uuid("source")?.is_nil() {
            self.problem(at, "the source is nil".to_owned());
        }
        let at = self.at();
        if !self.uuid("destination")?.is_nil() {
            self.problem(at, "the destination is not nil".to_owned());
        }
        Some(())
    }

    /// The trace block. After a fault inside it, the rest of the frame is read; after a wrong length, the
    /// rest cannot be read.
    fn trace(&mut self) -> Option<()> {
        let at = self.at();
        self.load(4);
        let announced = self.number("trace length")?;
        let block = self.announced(at, "trace block", announced, MAX_TRACE_LEN)?;
        self.inside(block, "the trace block", Self::trace_fields);
        Some(())
    }

    /// The bytes of a part with its length at `length_at`. Both faults here are faults of that length, so
    /// it is unknown where the next frame begins.
    fn announced(&mut self, length_at: usize, part: &str, announced: u32, most: usize) -> Option<Vec<u8>> {
        let len = usize::try_from(announced).unwrap_or(usize::MAX);
        // Compared before the part is read, because the field can announce 4 GiB.
        if len > most {
            return self.fail(
                length_at,
                format!("a {part} of {announced} bytes, more than {most}"),
            );
        }
        let bytes = self.read(len);
        if bytes.len() < len {
            let there = bytes.len();
            let what = format!("a {part} of {announced} bytes is announced and {there} follow");
            return self.fail(length_at, what);
        }
        Some(bytes)
    }

    /// Reads the fields of a part whose bytes were read already. After problems inside the part, reading
    /// continues at its end.
    fn inside(&mut self, bytes: Vec<u8>, within: &'static str, fields: impl FnOnce(&mut Self) -> Option<()>) {
        (self.part, self.within) = (bytes, within);
        let _ = fields(self);
        self.part.clear();
    }

    fn trace_fields(&mut self) -> Option<()> {
        let at = self.at();
        let version = self.byte("trace version")?;
        if version != TRACE_VERSION {
            return self.fail(at, format!("trace block version {version}, not {TRACE_VERSION}"));
        }
        let len = self.byte("label length")?;
        let at = self.at();
        let label = self.take("label", len.into())?;
        let label = String::from_utf8_lossy(&label).into_owned();
        self.field("label", at, json!(label));
        self.text(printable(&label));
        if let Some(parent) = TraceParent::in_label(&label) {
            self.field("trace id", at, json!(parent.trace_id()));
            self.field("span id", at, json!(parent.span_id()));
        }
        self.time("start")?;
        self.time("end")?;
        let at = self.at();
        let count = self.byte("node count")?;
        if usize::from(count) > MAX_TRACE_NODES {
            return self.fail(at, format!("{count} nodes, more than {MAX_TRACE_NODES}"));
        }
        for node in 0..count {
            self.uuid(&format!("node {node} uuid"))?;
            self.role(&format!("node {node} role"))?;
            self.time(&format!("node {node} received"))?;
            self.time(&format!("node {node} sent"))?;
        }
        let rest = self.part.len();
        if rest > 0 {
            self.problem(
                self.at(),
                format!("{rest} bytes of the trace block after its last node"),
            );
        }
        Some(())
    }

    /// The payload, with its length at `length_at`.
    fn payload(&mut self, length_at: usize, announced: u32) -> Option<()> {
        if announced == 0 {
            return Some(());
        }
        let bytes = self.announced(length_at, "payload", announced, MAX_PAYLOAD)?;
        match self.frame.kind.filter(|kind| kind.is_of_streams()) {
            Some(kind) => self.inside(bytes, "the payload", |walk| walk.stream_fields(kind)),
            None => self.inside(bytes, "the payload", |walk| walk.content("payload")),
        }
        Some(())
    }

    /// The payload of a frame of streams (docs/streams.md).
    fn stream_fields(&mut self, kind: FrameKind) -> Option<()> {
        let at = self.at();
        if self.uuid("stream")?.is_nil() {
            self.problem(at, "the stream is nil".to_owned());
        }
        if kind == Command::OPEN_STREAM {
            self.uuid("instance")?;
            self.outputs("outputs")?;
            self.flag("follow")?;
            self.number("lines")?;
            self.number("credit")?;
        } else if kind == Command::STREAM_CREDIT {
            self.number("credit")?;
        } else if kind == Event::STREAM_DATA {
            self.outputs("output")?;
            self.flag("missing")?;
            let (at, len) = (self.at(), self.part.len());
            if len == 0 || len > MAX_STREAM_CHUNK {
                self.problem(at, format!("{len} bytes of output, not 1 to {MAX_STREAM_CHUNK}"));
            }
            self.content("data")?;
        } else if kind == Event::STREAM_ENDED {
            let reason = StreamEndReason(self.byte("reason")?);
            self.text(format!("{:#x} {reason}", reason.0));
            let (at, len) = (self.at(), self.part.len());
            if len > MAX_STREAM_TEXT {
                self.problem(at, format!("{len} bytes of text, more than {MAX_STREAM_TEXT}"));
            }
            if len > 0 {
                self.content("text")?;
            }
        }
        Some(())
    }

    /// A byte whose bits name the outputs of an instance.
    fn outputs(&mut self, name: &str) -> Option<()> {
        let at = self.at();
        let outputs = Outputs(self.byte(name)?);
        self.text(format!("{:#x} {}", outputs.0, outputs.name()));
        if outputs.0 & Outputs::BOTH.0 == 0 {
            self.problem(at, "no output is named".to_owned());
        }
        Some(())
    }

    /// A byte whose lowest bit is a flag, and two reserved bytes.
    fn flag(&mut self, name: &str) -> Option<()> {
        let flag = self.byte(name)?;
        self.text(if flag & 1 == 1 { "yes" } else { "no" }.to_owned());
        self.take("reserved", 2).map(drop)
    }

    /// The bytes up to the end of the part, as text if they are UTF-8.
    fn content(&mut self, name: &str) -> Option<()> {
        let (at, len) = (self.at(), self.part.len());
        match String::from_utf8(self.take(name, len)?) {
            Ok(text) => {
                let lines: Vec<_> = text.lines().map(printable).collect();
                self.field(name, at, json!(text));
                self.text(format!("{len} bytes of text\n{}", lines.join("\n")));
            }
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let bytes = error.as_bytes().iter();
                let hex: String = bytes.map(|byte| format!("{byte:02x}")).collect();
                self.field(name, at, json!(hex));
                self.text(format!("{len} bytes, not UTF-8 from byte {valid} on\n{hex}"));
            }
        }
        Some(())
    }

    /// Reads the bytes of a field, which the caller then notes.
    fn take(&mut self, name: &str, len: usize) -> Option<Vec<u8>> {
        if self.part.len() < len {
            let (within, there) = (self.within, self.part.len());
            let what = format!("{within} ends inside {name}, with {there} of its {len} bytes");
            return self.fail(self.at(), what);
        }
        Some(self.part.drain(..len).collect())
    }

    /// Reads this number of bytes, or fewer if the input ends. The memory grows with the bytes that
    /// arrive, so a length that is only announced costs no memory.
    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Err(error) = (&mut *self.source).take(len as u64).read_to_end(&mut bytes) {
            self.failed = Some(error);
        }
        self.seen += bytes.len();
        bytes
    }

    /// Reads a field of a fixed length, and notes the value that `read` makes from its bytes.
    fn fixed<const N: usize, T: Serialize>(
        &mut self,
        name: &str,
        read: impl FnOnce([u8; N]) -> T,
    ) -> Option<T> {
        let at = self.at();
        let value = read(self.take(name, N)?.try_into().ok()?);
        self.field(name, at, json!(value));
        Some(value)
    }

    fn byte(&mut self, name: &str) -> Option<u8> {
        self.fixed(name, u8::from_be_bytes)
    }

    fn number(&mut self, name: &str) -> Option<u32> {
        self.fixed(name, u32::from_be_bytes)
    }

    fn uuid(&mut self, name: &str) -> Option<Uuid> {
        self.fixed(name, Uuid::from_bytes)
    }

    /// Nanoseconds since 1970.
    fn time(&mut self, name: &str) -> Option<()> {
        let nanoseconds = self.fixed(name, u64::from_be_bytes)?;
        self.text(match nanoseconds {
            0 => "unset".to_owned(),
            _ => format!("{nanoseconds} ns"),
        });
        Some(())
    }

    fn role(&mut self, name: &str) -> Option<Role> {
        let at = self.at();
        let role = Role::from_bits(u32::from_be_bytes(self.take(name, 4)?.try_into().ok()?));
        self.field(name, at, json!(role.to_string()));
        self.text(format!("{:#x} {role}", role.bits()));
        Some(role)
    }

    fn field(&mut self, name: &str, at: usize, value: Value) {
        self.frame.fields.push(Field {
            name: name.to_owned(),
            at,
            len: self.at() - at,
            value,
            text: None,
        });
    }

    /// Sets the text for people of the field that was noted last.
    fn text(&mut self, text: String) {
        if let Some(last) = self.frame.fields.last_mut() {
            last.text = Some(text);
        }
    }

    /// Notes a problem after which the part, or the frame, cannot be read.
    fn fail<T>(&mut self, at: usize, what: String) -> Option<T> {
        self.problem(at, what);
        None
    }

    fn problem(&mut self, at: usize, what: String) {
        self.frame.problems.push(Problem { at, what });
    }
}
