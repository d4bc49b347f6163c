//! `ssntp decode`: names every field of frames.
//!
//! The input is walked field by field rather than through the codec, so that
//! a frame that the codec refuses is still shown up to the byte where it goes
//! wrong. What one frame has wrong inside its own length does not keep the
//! next one from being read; what leaves the length in doubt does.
//!
//! The input may be endless: one frame of it is in memory at a time.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use ssntp::Role;
use ssntp::proto::{FrameKind, FrameType, MAJOR, MAX_TRACE_LEN, MAX_TRACE_NODES, Status, TRACE_FLAG};
use uuid::Uuid;

use crate::failure::Failure;
use crate::output::{Output, printable};
use crate::signals::Stop;

/// The longest payload that is read: four times what peers take by default.
const MAX_PAYLOAD: usize = 64 << 20;
/// After so many problems the input is no frames: a device named by mistake.
const MAX_PROBLEMS: usize = 1000;
/// Nor is it where so many blanks are between two hexadecimal digits.
const MAX_BLANKS: usize = 1 << 20;
/// The only version of the trace block.
const TRACE_VERSION: u8 = 1;

/// Name every field of frames
///
/// The input holds frames one after the other, as raw bytes or, where it begins
/// with a hexadecimal digit or a blank, as digits (0x is passed over). It is
/// read as it comes. Offsets count the frames' bytes. Exits with 1 where
/// something is wrong, and reads no further where too much is.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object per frame and line
    #[arg(long)]
    json: bool,
    /// The frames, - for the standard input
    #[arg(default_value = "-")]
    file: PathBuf,
}

/// Runs `ssntp decode`.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let _stop = Stop::install()?;
    let name = match args.file.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => args.file.display().to_string(),
    };
    let fail = |what: &dyn fmt::Display| Failure::new(format_args!("{name}: {what}"));
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => fail(&error),
        _ => fail(&format_args!("cannot read: {error}")),
    };
    let mut frames = open(&args.file).and_then(Frames::of).map_err(unreadable)?;
    let mut output = Output::new();
    let (mut count, mut problems) = (0, 0);
    let mut first = None;
    for frame in frames.by_ref() {
        count += 1;
        if args.json {
            output.json(frame.to_json())?;
        } else {
            frame.print(count, &mut output)?;
        }
        problems += frame.problems.len();
        first = first.or(frame.problems.into_iter().next());
        if problems >= MAX_PROBLEMS {
            break;
        }
    }
    output.flush()?;
    if let Some(error) = frames.failed {
        return Err(unreadable(error));
    }
    match (first, problems) {
        (None, _) if count == 0 => Err(fail(&"no frame in it")),
        (None, _) => Ok(()),
        (Some(first), 1) => Err(fail(&first)),
        (Some(first), MAX_PROBLEMS..) => Err(fail(&format_args!(
            "{first} (and {} more; nothing is read from offset {:#x} on)",
            problems - 1,
            frames.at
        ))),
        (Some(first), more) => Err(fail(&format_args!("{first} (and {} more)", more - 1))),
    }
}

fn open(file: &Path) -> io::Result<Box<dyn BufRead>> {
    Ok(match file.as_os_str() == "-" {
        true => Box::new(BufReader::new(io::stdin())),
        false => Box::new(BufReader::new(File::open(file)?)),
    })
}

/// The frames of an input, up to the one behind which nothing can be read.
struct Frames {
    source: Box<dyn BufRead>,
    at: usize,
    ended: bool,
    failed: Option<io::Error>,
}

impl Frames {
    /// Raw frames begin with 0x00 or 0x80 and so are never taken for digits.
    fn of(mut source: Box<dyn BufRead>) -> io::Result<Self> {
        let begin = source.fill_buf()?.first();
        let is_text = begin.is_some_and(|c| c.is_ascii_hexdigit() || c.is_ascii_whitespace());
        Ok(Self {
            source: match is_text {
                true => Box::new(BufReader::new(Digits::new(source))),
                false => source,
            },
            at: 0,
            ended: false,
            failed: None,
        })
    }
}

impl Iterator for Frames {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        if self.ended {
            return None;
        }
        match self.source.fill_buf() {
            Ok([]) => return None,
            Ok(_) => {}
            Err(error) => {
                self.failed = Some(error);
                self.ended = true;
                return None;
            }
        }
        let mut walk = Walk::new(&mut *self.source, self.at);
        self.ended = walk.frame().is_none();
        self.at = walk.seen;
        walk.frame.len = walk.seen - walk.frame.at;
        self.failed = walk.failed;
        Some(walk.frame)
    }
}

/// The bytes that hexadecimal digits stand for.
struct Digits<R> {
    text: R,
    /// How much of the text was taken.
    taken: usize,
    /// The first half of a byte.
    half: Option<u8>,
    place: Place,
    blanks: usize,
}

/// Where in a word the next character is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Begin,
    /// Behind a 0 that may be the one of 0x, and is not taken for half a byte
    /// yet.
    Zero,
    Inside,
}

impl<R: BufRead> Digits<R> {
    fn new(text: R) -> Self {
        Self {
            text,
            taken: 0,
            half: None,
            place: Place::Begin,
            blanks: 0,
        }
    }

    fn next_byte(&mut self) -> io::Result<Option<u8>> {
        loop {
            let c = self.next_char()?;
            let zero = self.place == Place::Zero;
            if zero && c.is_some_and(|c| c.eq_ignore_ascii_case(&b'x')) {
                self.place = Place::Inside;
                continue;
            }
            // Of the 0 and what comes behind it at most one completes a byte.
            let mut byte = if zero { self.half(0) } else { None };
            match c.map(|c| (c, char::from(c).to_digit(16))) {
                None => {
                    self.place = Place::Begin;
                    return match self.half {
                        Some(_) => Err(self.invalid("an odd number of hexadecimal digits")),
                        None => Ok(byte),
                    };
                }
                Some((_, Some(0))) if self.place == Place::Begin => self.place = Place::Zero,
                Some((_, Some(digit))) => {
                    self.place = Place::Inside;
                    // A digit is below 16.
                    byte = self.half(u8::try_from(digit).unwrap_or_default()).or(byte);
                    self.blanks = 0;
                }
                Some((c, None)) if c.is_ascii_whitespace() => {
                    self.place = Place::Begin;
                    self.blanks += 1;
                    if self.blanks > MAX_BLANKS {
                        return Err(self.invalid("nothing but blanks"));
                    }
                }
                Some((c, None)) => {
                    let what = format!("{:?} is no hexadecimal digit", char::from(c));
                    return Err(self.invalid(&what));
                }
            }
            if byte.is_some() {
                return Ok(byte);
            }
        }
    }

    /// Takes half a byte; gives the byte that it completes.
    fn half(&mut self, value: u8) -> Option<u8> {
        match self.half.take() {
            Some(high) => Some(high << 4 | value),
            None => {
                self.half = Some(value);
                None
            }
        }
    }

    fn next_char(&mut self) -> io::Result<Option<u8>> {
        let next = loop {
            match self.text.fill_buf() {
                Ok(buffer) => break buffer.first().copied(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        let taken = usize::from(next.is_some());
        self.text.consume(taken);
        self.taken += taken;
        Ok(next)
    }

    fn invalid(&self, what: &str) -> io::Error {
        let at = self.taken.saturating_sub(1);
        let text = format!("offset {at:#x} of the digits: {what}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    }
}

impl<R: BufRead> Read for Digits<R> {
    /// A byte at a time, so that an error comes behind all that is good.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(slot) = into.first_mut() else {
            return Ok(0);
        };
        Ok(match self.next_byte()? {
            Some(byte) => {
                *slot = byte;
                1
            }
            None => 0,
        })
    }
}

/// A frame as far as it can be read.
struct Frame {
    at: usize,
    len: usize,
    kind: Option<FrameKind>,
    fields: Vec<Field>,
    problems: Vec<Problem>,
}

struct Field {
    name: String,
    at: usize,
    len: usize,
    value: Value,
    /// The value for people, where it is not the same.
    text: Option<String>,
}

struct Problem {
    at: usize,
    what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {:#x}: {}", self.at, self.what)
    }
}

impl Frame {
    fn print(&self, number: usize, output: &mut Output) -> Result<(), Failure> {
        let kind = match self.kind {
            Some(kind) => format!("{} {kind}", kind.frame_type),
            None => "incomplete header".to_owned(),
        };
        output.line(format_args!(
            "frame {number}: {kind}, {} bytes at {:#x}",
            self.len, self.at
        ))?;
        for field in &self.fields {
            let value = match (&field.text, &field.value) {
                (Some(text), _) | (None, Value::String(text)) => text.clone(),
                (None, other) => other.to_string(),
            };
            let mut lines = value.lines();
            let first = lines.next().unwrap_or_default();
            output.line(format_args!("  {:#08x}  {:<20} {first}", field.at, field.name))?;
            for line in lines {
                output.line(format_args!("  {:8}  {:20} {line}", "", ""))?;
            }
        }
        for problem in &self.problems {
            output.line(format_args!("  {:#08x}  WRONG: {}", problem.at, problem.what))?;
        }
        Ok(())
    }

    fn to_json(&self) -> Value {
        let mut fields = Map::new();
        for field in &self.fields {
            let value = json!({ "offset": field.at, "length": field.len, "value": field.value });
            fields.insert(field.name.replace(' ', "_"), value);
        }
        let problem = |problem: &Problem| json!({ "offset": problem.at, "problem": problem.what });
        json!({
            "offset": self.at,
            "length": self.len,
            "type": self.kind.map(|kind| kind.frame_type.to_string()),
            "operand": self.kind.map(|kind| kind.to_string()),
            "fields": fields,
            "problems": self.problems.iter().map(problem).collect::<Vec<_>>(),
        })
    }
}

/// Walks one frame. The calls that take bytes answer `None`, having noted the
/// problem, where they are not there.
struct Walk<'a> {
    source: &'a mut dyn BufRead,
    at: usize,
    /// Where the bytes end that were read, of which the last may be too few.
    seen: usize,
    /// Where the bytes end that may be taken, and what ends there.
    end: usize,
    within: &'static str,
    frame: Frame,
    failed: Option<io::Error>,
}

impl<'a> Walk<'a> {
    fn new(source: &'a mut dyn BufRead, at: usize) -> Self {
        Self {
            source,
            at,
            seen: at,
            end: usize::MAX,
            within: "the input",
            frame: Frame {
                at,
                len: 0,
                kind: None,
                fields: Vec::new(),
                problems: Vec::new(),
            },
            failed: None,
        }
    }

    /// The whole frame; `None` where it is not known where it ends.
    fn frame(&mut self) -> Option<()> {
        let start = self.at;
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
        if version != MAJOR {
            return None;
        }
        if !frame_type.is_known() {
            self.problem(start + 2, format!("unknown type {frame_type}"));
        } else if !kind.is_known() {
            let what = format!("unknown operand {operand:#04x} of {frame_type}");
            self.problem(start + 3, what);
        }
        if kind.is_handshake() {
            self.handshake(kind)?;
        } else {
            let announced = self.number("payload length")?;
            if flag {
                self.trace()?;
            }
            self.payload(start + 4, announced)?;
        }
        Some(())
    }

    fn handshake(&mut self, kind: FrameKind) -> Option<()> {
        let at = self.at;
        let role = self.role("role")?;
        if role.is_empty() {
            self.problem(at, "no role is advertised".to_owned());
        } else if role.unknown_bits() != 0 {
            self.problem(at, format!("bits {:#x} are no role", role.unknown_bits()));
        }
        if kind == Status::CONNECTED {
            self.uuid("server")?;
            self.uuid("client")?;
            let at = self.at;
            let announced = self.number("payload length")?;
            return self.payload(at, announced);
        }
        let at = self.at;
        if self.uuid("source")?.is_nil() {
            self.problem(at, "the source is nil".to_owned());
        }
        let at = self.at;
        if !self.uuid("destination")?.is_nil() {
            self.problem(at, "the destination is not nil".to_owned());
        }
        Some(())
    }

    /// The trace block. What is wrong inside it costs the block, not the
    /// frame; a length that cannot be true costs the rest.
    fn trace(&mut self) -> Option<()> {
        let at = self.at;
        let announced = self.number("trace length")?;
        let len = usize::try_from(announced).unwrap_or(usize::MAX);
        if len > MAX_TRACE_LEN {
            let what = format!("a trace block of {len} bytes, more than {MAX_TRACE_LEN}");
            self.problem(at, what);
            return None;
        }
        let block = self.read(len);
        if block.len() < len {
            self.beyond(at, "trace block", announced, block.len());
            return None;
        }
        let mut block: &[u8] = &block;
        let mut inside = Walk::new(&mut block, self.at);
        (inside.end, inside.within) = (self.at + len, "the trace block");
        std::mem::swap(&mut inside.frame, &mut self.frame);
        // Whatever was found is noted already.
        let _ = inside.trace_fields();
        self.frame = inside.frame;
        self.at += len;
        Some(())
    }

    fn trace_fields(&mut self) -> Option<()> {
        let at = self.at;
        let version = self.byte("trace version")?;
        if version != TRACE_VERSION {
            let what = format!("trace block version {version}, not {TRACE_VERSION}");
            self.problem(at, what);
            return None;
        }
        let len = self.byte("label length")?;
        let at = self.at;
        let label = self.take("label", len.into())?;
        let label = String::from_utf8_lossy(&label).into_owned();
        self.field("label", at, json!(label));
        self.text(printable(&label));
        self.time("start")?;
        self.time("end")?;
        let at = self.at;
        let count = self.byte("node count")?;
        if usize::from(count) > MAX_TRACE_NODES {
            let what = format!("{count} nodes, more than {MAX_TRACE_NODES}");
            self.problem(at, what);
            return None;
        }
        for node in 0..count {
            self.uuid(&format!("node {node} uuid"))?;
            self.role(&format!("node {node} role"))?;
            self.time(&format!("node {node} received"))?;
            self.time(&format!("node {node} sent"))?;
        }
        if self.at < self.end {
            let what = format!(
                "{} bytes of the trace block after its last node",
                self.end - self.at
            );
            self.problem(self.at, what);
        }
        Some(())
    }

    /// The payload, whose length stood at `length_at`.
    fn payload(&mut self, length_at: usize, announced: u32) -> Option<()> {
        let len = usize::try_from(announced).unwrap_or(usize::MAX);
        if len > MAX_PAYLOAD {
            let what = format!("a payload of {announced} bytes, more than {MAX_PAYLOAD}");
            self.problem(length_at, what);
            return None;
        }
        if len == 0 {
            return Some(());
        }
        let at = self.at;
        let bytes = self.read(len);
        if bytes.len() < len {
            self.beyond(length_at, "payload", announced, bytes.len());
            return None;
        }
        self.at += len;
        match String::from_utf8(bytes) {
            Ok(text) => {
                let lines: Vec<_> = text.lines().map(printable).collect();
                self.field("payload", at, json!(text));
                self.text(format!("{len} bytes of text\n{}", lines.join("\n")));
            }
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let hex: String = error
                    .as_bytes()
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                self.field("payload", at, json!(hex));
                self.text(format!("{len} bytes, no text from byte {valid} on\n{hex}"));
            }
        }
        Some(())
    }

    /// Takes bytes for a field that is then noted by the caller.
    fn take(&mut self, name: &str, len: usize) -> Option<Vec<u8>> {
        let bytes = self.read(len.min(self.end - self.at));
        if bytes.len() < len {
            let (within, there) = (self.within, bytes.len());
            let what = format!("{within} ends inside {name}, with {there} of its {len} bytes");
            self.problem(self.at, what);
            return None;
        }
        self.at += len;
        Some(bytes)
    }

    /// So many bytes, or fewer where the input ends: what is announced costs
    /// no memory before it is there.
    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Err(error) = (&mut *self.source).take(len as u64).read_to_end(&mut bytes) {
            self.failed = Some(error);
        }
        self.seen += bytes.len();
        bytes
    }

    fn array<const N: usize>(&mut self, name: &str) -> Option<[u8; N]> {
        self.take(name, N)?.try_into().ok()
    }

    fn byte(&mut self, name: &str) -> Option<u8> {
        let at = self.at;
        let [byte] = self.array(name)?;
        self.field(name, at, json!(byte));
        Some(byte)
    }

    fn number(&mut self, name: &str) -> Option<u32> {
        let at = self.at;
        let number = u32::from_be_bytes(self.array(name)?);
        self.field(name, at, json!(number));
        Some(number)
    }

    /// Nanoseconds since 1970.
    fn time(&mut self, name: &str) -> Option<()> {
        let at = self.at;
        let nanoseconds = u64::from_be_bytes(self.array(name)?);
        self.field(name, at, json!(nanoseconds));
        self.text(match nanoseconds {
            0 => "unset".to_owned(),
            _ => format!("{nanoseconds} ns"),
        });
        Some(())
    }

    fn uuid(&mut self, name: &str) -> Option<Uuid> {
        let at = self.at;
        let uuid = Uuid::from_bytes(self.array(name)?);
        self.field(name, at, json!(uuid.to_string()));
        Some(uuid)
    }

    fn role(&mut self, name: &str) -> Option<Role> {
        let at = self.at;
        let role = Role::from_bits(u32::from_be_bytes(self.array(name)?));
        self.field(name, at, json!(role.to_string()));
        self.text(format!("{:#x} {role}", role.bits()));
        Some(role)
    }

    fn field(&mut self, name: &str, at: usize, value: Value) {
        self.frame.fields.push(Field {
            name: name.to_owned(),
            at,
            len: self.at - at,
            value,
            text: None,
        });
    }

    /// How people see the field that was noted last.
    fn text(&mut self, text: String) {
        if let Some(last) = self.frame.fields.last_mut() {
            last.text = Some(text);
        }
    }

    fn beyond(&mut self, at: usize, what: &str, announced: u32, there: usize) {
        let what = format!("a {what} of {announced} bytes is announced and {there} follow");
        self.problem(at, what);
    }

    fn problem(&mut self, at: usize, what: String) {
        self.frame.problems.push(Problem { at, what });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ssntp::proto::{Command, Connect, Connected, Frame as Wire, Trace};

    use super::*;

    fn frames(input: &[u8]) -> Frames {
        Frames::of(Box::new(io::Cursor::new(input.to_vec()))).unwrap()
    }

    fn problems(input: &[u8]) -> Vec<String> {
        frames(input)
            .flat_map(|frame| frame.problems)
            .map(|problem| problem.to_string())
            .collect()
    }

    fn field<'a>(frame: &'a Frame, name: &str) -> &'a Field {
        frame.fields.iter().find(|field| field.name == name).unwrap()
    }

    fn traced() -> Wire {
        let mut trace = Trace::new("start of a\u{7}");
        trace.start = 5;
        trace.stamp_sent(Uuid::from_u128(7), Role::CONTROLLER, 8);
        trace.stamp_received(Uuid::from_u128(9), Role::SCHEDULER, 10);
        Wire::with_payload(Command::START, "start:\n  x: 1\n").traced(trace)
    }

    #[test]
    fn a_conversation_is_read_frame_by_frame() {
        let mut input = Connect::new(Role::AGENT, Uuid::from_u128(1), true)
            .encode()
            .to_vec();
        let connected = Connected {
            role: Role::SCHEDULER,
            server: Uuid::from_u128(2),
            client: Uuid::from_u128(1),
            trace: true,
            payload: "configure: {}\n".into(),
        };
        input.extend(connected.encode());
        input.extend(traced().encode());
        input.extend(Wire::new(Status::FULL).encode());
        let read: Vec<Frame> = frames(&input).collect();
        assert!(problems(&input).is_empty());
        let lens: Vec<usize> = read.iter().map(|frame| frame.len).collect();
        assert_eq!(lens, [40, 44 + 14, traced().encoded_len(), 8]);
        assert_eq!(field(&read[0], "source").at, 8);
        assert_eq!(field(&read[1], "payload").at, 40 + 44);
        assert_eq!(field(&read[1], "role").value, json!("scheduler"));
        let trace = &read[2];
        assert_eq!(field(trace, "label").text.as_deref(), Some("start of a\\u{7}"));
        assert_eq!(field(trace, "node 1 received").value, json!(10));
        assert_eq!(field(trace, "payload").value, json!("start:\n  x: 1\n"));
        assert_eq!(
            field(trace, "payload").text.as_deref(),
            Some("14 bytes of text\nstart:\n  x: 1")
        );
    }

    #[test]
    fn each_fault_is_told_with_its_offset() {
        let full = Wire::new(Status::FULL).encode();
        for (input, expected) in [
            (
                &full[..5],
                "offset 0x4: the input ends inside payload length, with 1 of its 4 bytes",
            ),
            (&[2, 1, 0, 1, 0, 0, 0, 0], "offset 0x0: major version 2, not 0"),
            (&[0, 1, 2, 1, 0, 0, 0, 0], "offset 0x2: unknown type 0x02"),
            (
                &[0, 1, 0, 0x77, 0, 0, 0, 0],
                "offset 0x3: unknown operand 0x77 of COMMAND",
            ),
            (
                &[0, 1, 0, 1, 0, 0, 1, 0, 65],
                "offset 0x4: a payload of 256 bytes is announced and 1 follow",
            ),
            (
                &[0x80, 1, 0, 1, 0, 0, 0, 0, 0, 0, 16, 1],
                "offset 0x8: a trace block of 4097 bytes, more than 4096",
            ),
            (
                &[0x80, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1],
                "offset 0x8: a trace block of 2 bytes is announced and 1 follow",
            ),
            (
                &[0x80, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2],
                "offset 0xc: trace block version 2, not 1",
            ),
            (
                &[0x80, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 3],
                "offset 0xe: the trace block ends inside label, with 0 of its 3 bytes",
            ),
        ] {
            assert_eq!(problems(input), [expected]);
        }
        let mut connect = Connect::new(Role::from_bits(0x44), Uuid::nil(), false).encode();
        connect[39] = 1;
        assert_eq!(
            problems(&connect),
            [
                "offset 0x4: bits 0x40 are no role",
                "offset 0x8: the source is nil",
                "offset 0x18: the destination is not nil",
            ]
        );
    }

    #[test]
    fn a_bad_trace_block_or_operand_does_not_hide_the_next_frame() {
        let mut input = traced().encode().to_vec();
        input[12] = 9;
        input.extend([0, 1, 7, 7, 0, 0, 0, 2, 65, 66]);
        input.extend(Wire::new(Status::FULL).encode());
        let read: Vec<Frame> = frames(&input).collect();
        assert_eq!(read.len(), 3);
        assert_eq!(problems(&input).len(), 2);
        assert_eq!(field(&read[0], "payload").value, json!("start:\n  x: 1\n"));
    }

    #[test]
    fn hexadecimal_digits_are_told_from_raw_bytes() {
        let bytes = |text: &str| {
            let mut bytes = Vec::new();
            let end = Digits::new(text.as_bytes()).read_to_end(&mut bytes);
            end.map(|_| bytes).map_err(|error| error.to_string())
        };
        assert_eq!(bytes("00 01\n0102 00000000 "), Ok(vec![0, 1, 1, 2, 0, 0, 0, 0]));
        assert_eq!(bytes("0x0001 0XfF 0xA 0xb"), Ok(vec![0, 1, 0xff, 0xab]));
        assert_eq!(bytes("0 0 0 1 1 0"), Ok(vec![0, 1, 0x10]));
        assert_eq!(bytes(""), Ok(vec![]));
        let bad = "offset 0x4 of the digits: 'g' is no hexadecimal digit";
        assert_eq!(bytes("00 0g"), Err(bad.to_owned()));
        assert!(bytes("0x0x").unwrap_err().contains("0x3 of the digits: 'x'"));
        for odd in ["000", "0", "0xfff", "1 "] {
            assert!(bytes(odd).unwrap_err().contains("an odd number"), "{odd}");
        }
        let full = Wire::new(Status::FULL).encode();
        let text: String = full.iter().map(|byte| format!("{byte:02x} ")).collect();
        for input in [&full[..], text.as_bytes()] {
            assert_eq!(frames(input).count(), 1);
            assert!(problems(input).is_empty());
        }
    }

    /// Repeats some bytes for ever, and counts how often they were read.
    struct Endless(&'static [u8], std::rc::Rc<std::cell::Cell<usize>>);

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let filled = into.len().min(self.0.len());
            into[..filled].copy_from_slice(&self.0[..filled]);
            self.1.set(self.1.get() + filled);
            Ok(filled)
        }
    }

    #[test]
    fn an_endless_input_is_read_frame_by_frame() {
        let read = std::rc::Rc::default();
        let zeros = Endless(&[0; 40], std::rc::Rc::clone(&read));
        let mut frames = Frames::of(Box::new(BufReader::with_capacity(40, zeros))).unwrap();
        for n in 0..100 {
            let frame = frames.next().unwrap();
            assert_eq!((frame.at, frame.len), (40 * n, 40));
            assert_eq!(frame.problems.len(), 2, "no role, no source");
            assert!(read.get() <= 40 * (n + 2), "one frame ahead at most");
        }
    }

    #[test]
    fn what_is_announced_is_read_to_its_limit_only() {
        let limit = u32::try_from(MAX_PAYLOAD).unwrap();
        let read = std::rc::Rc::default();
        let endless = Endless(&[0; 8192], std::rc::Rc::clone(&read));
        let mut header = vec![0, 1, 0, 1];
        header.extend((limit + 1).to_be_bytes());
        let source = io::Cursor::new(header).chain(endless);
        let mut frames = Frames::of(Box::new(BufReader::new(source))).unwrap();
        let frame = frames.next().unwrap();
        let told = "offset 0x4: a payload of 67108865 bytes, more than 67108864";
        assert_eq!(frame.problems[0].to_string(), told);
        assert!(frames.next().is_none());
        assert!(read.get() <= 8192, "{}", read.get());
    }

    #[test]
    fn endless_blanks_end_in_an_error() {
        let blanks = Endless(&[b' '; 64], std::rc::Rc::default());
        let mut frames = Frames::of(Box::new(BufReader::new(blanks))).unwrap();
        assert!(frames.next().is_none());
        let told = frames.failed.unwrap().to_string();
        assert_eq!(told, "offset 0x100000 of the digits: nothing but blanks");
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_to_an_end(
            input in proptest::collection::vec(any::<u8>(), 0..300),
            flags in any::<[bool; 3]>(),
        ) {
            let mut input = input;
            // Most random bytes end at their first one; make some headers good.
            for (at, flag) in [(0, flags[0]), (2, flags[1]), (8, flags[2])] {
                if flag && input.len() > at + 3 {
                    input[at] &= 0x80;
                    input[at + 1] = u8::from(at == 8);
                    input[at + 3] &= 0x0f;
                }
            }
            let mut covered = 0;
            for frame in frames(&input) {
                prop_assert_eq!(frame.at, covered);
                covered += frame.len;
                prop_assert!(frame.len > 0 && covered <= input.len());
                for field in &frame.fields {
                    prop_assert!(field.at >= frame.at && field.at + field.len <= covered);
                }
                frame.to_json();
            }
            prop_assert!(covered <= input.len());
        }

        #[test]
        fn changed_frames_are_walked_too(at in 0usize..200, to in any::<u8>(), cut in 0usize..200) {
            let mut input = traced().encode().to_vec();
            if let Some(byte) = input.get_mut(at) {
                *byte = to;
            }
            input.truncate(cut);
            let covered: usize = frames(&input).map(|frame| frame.len).sum();
            prop_assert!(covered <= input.len());
        }
    }
}
