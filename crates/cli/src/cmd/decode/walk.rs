//! Reads frames, part by part, and lets the codec say which bytes are which field.

use std::io::{self, BufRead, BufReader, Read};

use serde_json::{Value, json};
use ssntp::Role;
use ssntp::proto::fields::{self, FieldValue, Part, annotate};
use ssntp::proto::{self, FrameKind, FrameType, Header, Status, Trace, TraceParent};
use ssntp_daemon::printable;

use super::digits::Digits;
use super::frame::{Field, Frame, Problem};

/// The longest payload that is read, in bytes: four times what peers accept by default.
pub(super) const MAX_PAYLOAD: usize = 64 << 20;

/// The frames of an input, up to a frame whose end is unknown. The methods that read a part of a frame note a problem
/// and return `None` if it is unknown where the next part begins.
pub(super) struct Frames {
    source: Box<dyn BufRead>,
    /// The offset after the last byte that was read.
    seen: usize,
    /// The frame that is being read.
    frame: Frame,
    /// True if the end of the last frame is unknown.
    ended: bool,
    /// The error of the input, which is returned next.
    failed: Option<io::Error>,
}

impl Frames {
    /// Recognizes digits by the first byte: raw frames begin with 0x00 or 0x80.
    pub(super) fn of(mut source: Box<dyn BufRead>) -> io::Result<Self> {
        let begin = source.fill_buf()?.first();
        if begin.is_some_and(|c| c.is_ascii_hexdigit() || c.is_ascii_whitespace()) {
            // The buffer is for `fill_buf`, with which `next` sees the end of the input before it reads a frame.
            source = Box::new(BufReader::new(Digits::new(source)));
        }
        Ok(Self {
            source,
            seen: 0,
            frame: Frame::default(),
            ended: false,
            failed: None,
        })
    }

    /// The offset of the next frame.
    pub(super) fn offset(&self) -> usize {
        self.seen
    }

    /// The next frame. An error of the input is returned after the part of the frame that was read.
    pub(super) fn next(&mut self) -> io::Result<Option<Frame>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.ended || self.source.fill_buf()?.is_empty() {
            return Ok(None);
        }
        self.frame.at = self.seen;
        self.ended = self.frame().is_none();
        // All bytes that were read count, including those after a fault, because the next frame begins
        // after them.
        self.frame.len = self.seen - self.frame.at;
        Ok(Some(std::mem::take(&mut self.frame)))
    }

    fn frame(&mut self) -> Option<()> {
        let start = self.seen;
        let bytes = self.read(Header::LEN);
        if let [_, _, frame_type, operand, ..] = *bytes {
            self.frame.kind = Some(FrameKind::new(FrameType(frame_type), operand));
        }
        let version = bytes
            .first()
            .map_or(Header::MAJOR, |major| major & !Header::TRACE_FLAG);
        if version != Header::MAJOR {
            // Another version may have its lengths at other offsets.
            let (fields, _) = annotate(Part::Header, bytes.get(..4).unwrap_or(&bytes));
            self.fields(start, fields);
            return self.lose(start, format!("major version {version}, not {}", Header::MAJOR));
        }
        self.part(Part::Header, "the input", start, &bytes)?;
        let header = Header::decode(&bytes)?;
        let kind = header.kind;
        if !kind.frame_type.is_known() {
            self.problem(start + 2, format!("unknown type {}", kind.frame_type));
        } else if !(kind.is_known() || kind.is_application()) {
            let what = format!("unknown operand {:#04x} of {}", kind.operand, kind.frame_type);
            self.problem(start + 3, what);
        }
        if kind.is_handshake() {
            return self.handshake(start + 4, header);
        }
        // The length of the payload comes before the trace block, and the payload after it.
        if header.traced() {
            let at = self.seen;
            let length = self.read(4);
            let Ok(length) = <[u8; 4]>::try_from(&*length) else {
                let there = length.len();
                let what = format!("the input ends inside trace length, with {there} of its 4 bytes");
                return self.lose(at, what);
            };
            let length = u32::from_be_bytes(length);
            self.field("trace length", at, 4, json!(length), None);
            let block = self.announced(at, "trace block", length, Trace::MAX_LEN)?;
            let at = self.seen - block.len();
            self.part(Part::Trace, "the trace block", at, &block);
        }
        // A wrong length is reported at the offset of the length field.
        self.payload(start + 4, kind, header.word)
    }

    fn handshake(&mut self, role_at: usize, header: Header) -> Option<()> {
        let role = Role::from_bits(header.word);
        if role.is_empty() {
            self.problem(role_at, "no role is advertised".to_owned());
        } else if role.unknown_bits() != 0 {
            self.problem(role_at, format!("bits {:#x} are not a role", role.unknown_bits()));
        }
        let (at, is_answer) = (self.seen, header.kind == Status::CONNECTED);
        let rest = self.read(
            if is_answer {
                proto::Connected::LEN
            } else {
                proto::Connect::LEN
            } - Header::LEN,
        );
        self.part(Part::Handshake(header), "the input", at, &rest)?;
        if is_answer {
            let announced = rest.last_chunk().map_or(0, |length| u32::from_be_bytes(*length));
            return self.payload(self.seen - 4, header.kind, announced);
        }
        // The first of the two UUIDs is the client's own, and it does not know the server's.
        let (source, destination) = rest.split_at(16);
        if source.iter().all(|byte| *byte == 0) {
            self.problem(at, "the source is nil".to_owned());
        }
        if destination.iter().any(|byte| *byte != 0) {
            self.problem(at + 16, "the destination is not nil".to_owned());
        }
        Some(())
    }

    /// The payload, with its length at `length_at`.
    fn payload(&mut self, length_at: usize, kind: FrameKind, announced: u32) -> Option<()> {
        let bytes = self.announced(length_at, "payload", announced, MAX_PAYLOAD)?;
        if !bytes.is_empty() {
            self.part(
                Part::Payload(kind, ssntp_payload::read_payload),
                "the payload",
                self.seen - bytes.len(),
                &bytes,
            );
        }
        Some(())
    }

    /// The bytes of a part with its length at `length_at`. Both faults here are faults of that length.
    fn announced(&mut self, length_at: usize, part: &str, announced: u32, most: usize) -> Option<Vec<u8>> {
        let len = usize::try_from(announced).unwrap_or(usize::MAX);
        // Compared before the part is read, because the field can announce 4 GiB.
        if len > most {
            return self.lose(
                length_at,
                format!("a {part} of {announced} bytes, more than {most}"),
            );
        }
        let bytes = self.read(len);
        if bytes.len() < len {
            let there = bytes.len();
            let what = format!("a {part} of {announced} bytes is announced and {there} follow");
            return self.lose(length_at, what);
        }
        Some(bytes)
    }

    /// Notes the fields of a part that begins at `at`, and the codec's fault, if it finds one.
    fn part(&mut self, part: Part, name: &str, at: usize, bytes: &[u8]) -> Option<()> {
        let (fields, fault) = annotate(part, bytes);
        self.fields(at, fields);
        let Some((offset, what)) = fault else {
            return Some(());
        };
        let subject = if what.starts_with("ends") {
            format!("{name} ")
        } else {
            String::new()
        };
        self.lose(at + offset, format!("{subject}{what}"))
    }

    /// Notes the fields of a part that begins at `at`.
    fn fields(&mut self, at: usize, fields: Vec<fields::Field>) {
        for field in fields {
            let begin = at + field.at;
            let (value, text) = shown(&field);
            self.field(&field.name, begin, field.len, value, text);
            if let (FieldValue::Bytes(label), "label") = (&field.value, &*field.name)
                && let Some(parent) = TraceParent::in_label(&String::from_utf8_lossy(label))
            {
                self.field("trace id", begin, field.len, json!(parent.trace_id()), None);
                self.field("span id", begin, field.len, json!(parent.span_id()), None);
            }
        }
    }

    /// Reads this number of bytes, or fewer if the input ends. The memory grows with the bytes that
    /// arrive, so a length that is only announced costs no memory.
    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Err(error) = (&mut self.source).take(len as u64).read_to_end(&mut bytes) {
            self.failed = Some(error);
        }
        self.seen += bytes.len();
        bytes
    }

    fn field(&mut self, name: &str, at: usize, len: usize, value: Value, text: Option<String>) {
        let name = name.to_owned();
        self.frame.fields.push(Field {
            name,
            at,
            len,
            value,
            text,
        });
    }

    fn lose<T>(&mut self, at: usize, what: String) -> Option<T> {
        self.problem(at, what);
        None
    }

    fn problem(&mut self, at: usize, what: String) {
        self.frame.problems.push(Problem { at, what });
    }
}

/// The value of a field in JSON, and for people if that differs.
fn shown(field: &fields::Field) -> (Value, Option<String>) {
    let meaning = Some(field.meaning.clone()).filter(|meaning| !meaning.is_empty());
    match &field.value {
        FieldValue::Number(number) => (json!(number), meaning),
        FieldValue::Time(0) => (json!(0), Some("unset".to_owned())),
        FieldValue::Time(nanoseconds) => (json!(nanoseconds), Some(format!("{nanoseconds} ns"))),
        FieldValue::Uuid(uuid) => (json!(uuid), None),
        FieldValue::Role(role) => (
            json!(role.to_string()),
            Some(format!("{:#x} {role}", role.bits())),
        ),
        FieldValue::Bytes(label) if field.name == "label" => {
            let label = String::from_utf8_lossy(label);
            (json!(label), Some(printable(&label)))
        }
        FieldValue::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => {
                let lines: Vec<_> = text.lines().map(printable).collect();
                let people = format!("{} bytes of text\n{}", bytes.len(), lines.join("\n"));
                (json!(text), Some(people))
            }
            Err(error) => {
                let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                let (len, valid) = (bytes.len(), error.valid_up_to());
                let people = format!("{len} bytes, not UTF-8 from byte {valid} on\n{hex}");
                (json!(hex), Some(people))
            }
        },
    }
}
