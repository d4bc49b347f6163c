//! `ssntp ctl logs`: prints the output of an instance.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde_json::{Value, json};
use ssntp_daemon::{
    Choices, Failure, Output, note, one_of, print_json, print_text, printable, reader_is_gone,
};
use ssntp_payload::Outputs;
use ssntp_view::{
    FindError, Instance, OutputStream, StreamError, StreamEvent, StreamRequest, View, incomplete,
};
use uuid::Uuid;

use super::moves::WORKLOAD;
use super::{Invocation, Session};

/// The time limit for the first answer of the instance's node, unless --timeout is given.
const OPENING: Duration = Duration::from_secs(10);
/// The time between two checks that our standard output still has a reader.
const POLL: Duration = Duration::from_millis(500);
/// The length of a line in one JSON object, in bytes. A longer line is printed in several objects.
const LONGEST_LINE: usize = 64 * 1024;

/// Print the output of an instance
///
/// The instance's standard output is printed to the standard output, and its standard
/// error to the standard error; on a terminal, control characters are escaped. The logs
/// of an instance that has ended are kept for as long as its node keeps the instance.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The instance: its UUID, the beginning of it, or its name; or a workload
    ///
    /// Of several that have ended, the last one is meant.
    instance: String,
    /// Continue with new output until the instance has ended
    #[arg(short, long)]
    follow: bool,
    /// Print only the last lines of each output; with --follow, continue with new ones
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// The output to print
    #[arg(long, value_parser = one_of(OUTPUTS), default_value = "both")]
    output: Outputs,
}

#[rustfmt::skip] // A table: one row a word.
const OUTPUTS: Choices<Outputs> = &[
    ("stdout", "The standard output of a process, or the serial port of a virtual machine", Outputs::STDOUT),
    ("stderr", "The standard error of a process, or of QEMU", Outputs::STDERR),
    ("both", "Both", Outputs::BOTH),
];

pub(super) fn run(cx: &Invocation, args: &Args) -> Result<(), Failure> {
    let session = Session::open_complete(cx)?;
    let instance = session.controller.look(|view| found(view, &args.instance))?;
    let request = StreamRequest {
        outputs: args.output,
        tail: args.tail,
        follow: args.follow,
    };
    let stream = session.controller.stream(instance, request)?;
    let mut printer = Printer::new(cx.options.json.then_some(instance));
    let end = print(cx, args.follow, &stream, &mut printer);
    // Also after a signal or a failure: the output may have ended within a line.
    printer.finish()?;
    end
}

/// The instance with this name or beginning of a UUID, or the only one of a workload that runs; if none runs,
/// the one that ended last.
fn found(view: &View, text: &str) -> Result<Uuid, Failure> {
    let missing = match view.find_latest_instance(text) {
        Err(e @ (FindError::NoUuid { .. } | FindError::None { .. })) => e,
        found => return Ok(found?),
    };
    let is_of = |one: &&Instance| one.stats.labels.get(WORKLOAD).is_some_and(|of| of == text);
    let all: Vec<_> = view.instances().filter(is_of).collect();
    let alive: Vec<_> = all.iter().copied().filter(|one| one.is_alive()).collect();
    match (alive.as_slice(), all.as_slice()) {
        ([], []) => Err(missing.into()),
        ([], _) => {
            let latest = all.iter().max_by_key(|one| (&*one.stats.ended, one.since));
            latest.map(|one| one.uuid).ok_or_else(|| missing.into())
        }
        ([one], _) => Ok(one.uuid),
        _ => {
            let names = alive.iter().map(|one| &*one.stats.name);
            Err(Failure::new(format!(
                "{} instances of {text} run: {}",
                alive.len(),
                names.take(8).collect::<Vec<_>>().join(", ")
            )))
        }
    }
}

/// Prints the output until it has ended.
fn print(cx: &Invocation, follow: bool, stream: &OutputStream, printer: &mut Printer) -> Result<(), Failure> {
    let mut limit = cx.options.limit_or(OPENING);
    let mut timeout = crossbeam_channel::after(limit);
    let tick = crossbeam_channel::tick(POLL);
    loop {
        let event = crossbeam_channel::select! {
            recv(stream.events()) -> event => event,
            recv(cx.stop.channel()) -> _ => return Err(cx.stop.interrupted()),
            recv(tick) -> _ => if reader_is_gone() { return Ok(()) } else { continue },
            recv(timeout) -> _ => {
                let seconds = limit.as_secs_f64();
                return Err(Failure::new(format!("the instance's node has sent nothing in {seconds} s")));
            }
        };
        match event {
            Ok(StreamEvent::Data {
                output,
                missing,
                bytes,
            }) => {
                printer.print(output, missing, &bytes)?;
                // Only after printing, so that a slow terminal slows the node down.
                stream.return_credit(&bytes);
            }
            Ok(StreamEvent::Ended(how)) => return Ok(how?),
            Ok(_) => {}
            // The controller drops the stream if its events are not received fast enough.
            Err(_) => return Err(Failure::new(StreamError::Overrun)),
        }
        limit = cx.options.limit();
        // With --follow, an instance may be silent for hours.
        timeout = if follow {
            crossbeam_channel::never()
        } else {
            crossbeam_channel::after(limit)
        };
    }
}

/// Prints both outputs of an instance.
struct Printer {
    stdout: Form,
    stderr: Form,
    /// The instance, if the output is JSON.
    json: Option<Uuid>,
}

/// The form in which one output is printed, with the bytes of an incomplete character or line.
enum Form {
    Raw,
    /// For a terminal. The bytes are the beginning of a character.
    Escaped(Vec<u8>),
    /// As JSON. The bytes are the beginning of a line. The flag is true if output may be missing in
    /// this line or before it.
    Lines(Vec<u8>, bool),
}

impl Printer {
    fn new(json: Option<Uuid>) -> Self {
        let form = |is_terminal: bool| match (json, is_terminal) {
            (Some(_), _) => Form::Lines(Vec::new(), false),
            (None, true) => Form::Escaped(Vec::new()),
            (None, false) => Form::Raw,
        };
        Self {
            stdout: form(io::stdout().is_terminal()),
            stderr: form(io::stderr().is_terminal()),
            json,
        }
    }

    fn print(&mut self, output: Outputs, missing: bool, bytes: &[u8]) -> Result<(), Failure> {
        if missing && self.json.is_none() {
            let name = output.name();
            note(format_args!(
                "ssntp: some of the instance's {name} may be missing here"
            ));
        }
        let form = match output {
            Outputs::STDERR => &mut self.stderr,
            _ => &mut self.stdout,
        };
        match form {
            Form::Raw => write(output, bytes),
            Form::Escaped(held) => write(output, escaped(held, bytes).as_bytes()),
            Form::Lines(held, gap) => {
                *gap |= missing;
                let mut lines = Output::lock();
                for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
                    held.extend(piece);
                    if held.pop_if(|last| *last == b'\n').is_some() {
                        lines.json(line_of(self.json, output, held, false, gap))?;
                    }
                }
                if held.len() > LONGEST_LINE {
                    // The rest of a character stays for the next piece.
                    let rest = held.split_off(held.len() - incomplete(held));
                    lines.json(line_of(self.json, output, held, true, gap))?;
                    *held = rest;
                }
                lines.flush()
            }
        }
    }

    /// Prints the incomplete character or line at the end of each output.
    fn finish(&mut self) -> Result<(), Failure> {
        for (output, form) in [
            (Outputs::STDOUT, &mut self.stdout),
            (Outputs::STDERR, &mut self.stderr),
        ] {
            match form {
                Form::Escaped(held) if !held.is_empty() => {
                    write(output, printable(&String::from_utf8_lossy(held)).as_bytes())?;
                }
                Form::Lines(held, gap) if !held.is_empty() => {
                    print_json(line_of(self.json, output, held, true, gap))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn write(output: Outputs, bytes: &[u8]) -> Result<(), Failure> {
    if output == Outputs::STDERR {
        return io::stderr().write_all(bytes).map_err(|e| Failure::output(&e));
    }
    print_text(bytes)
}

/// The JSON object of a line. Empties `held`, and resets `gap`.
fn line_of(
    instance: Option<Uuid>,
    output: Outputs,
    held: &mut Vec<u8>,
    partial: bool,
    gap: &mut bool,
) -> Value {
    let bytes = std::mem::take(held);
    let text = String::from_utf8_lossy(&bytes);
    json!({
        "instance": instance, "output": output.name(), "text": text,
        "lossy": matches!(text, std::borrow::Cow::Owned(_)), "partial": partial,
        "missing": std::mem::take(gap),
    })
}

/// Text for a terminal: line ends and tabs stay, and all other characters that are not printable are
/// escaped. An incomplete character or line end is held.
pub(crate) fn escaped(held: &mut Vec<u8>, bytes: &[u8]) -> String {
    held.extend(bytes);
    let whole = std::mem::take(held);
    let mut out = String::new();
    let mut chunks = whole.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        let (mut text, mut invalid) = (chunk.valid(), chunk.invalid());
        if chunks.peek().is_none() {
            if incomplete(invalid) > 0 {
                held.extend(invalid);
                invalid = &[];
            } else if invalid.is_empty()
                && let Some(before) = text.strip_suffix('\r')
            {
                // The line feed of this carriage return may come with the next bytes.
                held.push(b'\r');
                text = before;
            }
        }
        for piece in text.split_inclusive(['\n', '\t']) {
            let end = piece.chars().next_back().filter(|c| matches!(c, '\n' | '\t'));
            let body = end.and_then(|end| piece.strip_suffix(end)).unwrap_or(piece);
            let body = match end {
                Some('\n') => body.strip_suffix('\r').unwrap_or(body),
                _ => body,
            };
            out.push_str(&printable(body));
            out.extend(end);
        }
        if !invalid.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_lines_and_no_control_characters() {
        let mut held = Vec::new();
        assert_eq!(
            escaped(&mut held, b"a\tb\r\n\x1b[2Jc\rd\n"),
            "a\tb\n\\u{1b}[2Jc\\rd\n"
        );
        // A character, and then a line end, in two pieces.
        assert_eq!(escaped(&mut held, b"\xc3"), "");
        assert_eq!(escaped(&mut held, b"\xa4\r"), "\u{e4}");
        assert_eq!(escaped(&mut held, b"\n\xff!"), "\n\u{fffd}!");
        assert!(held.is_empty());
    }

    #[test]
    fn a_long_line_of_json_is_cut_between_characters() {
        for (bytes, rest) in [
            (&b"a\xc3"[..], 1),
            (b"\xf0\x9f\x98", 3),
            (b"\xc3\xa4", 0),
            (b"\xff", 0),
            (b"", 0),
        ] {
            assert_eq!(incomplete(bytes), rest, "{bytes:?}");
        }
    }

    #[test]
    fn a_line_of_json_names_its_instance_and_output() {
        let (mut held, mut gap) = (b"\xffx".to_vec(), true);
        let line = line_of(Some(Uuid::nil()), Outputs::STDERR, &mut held, true, &mut gap);
        let expected = json!({
            "instance": Uuid::nil(), "output": "stderr", "text": "\u{fffd}x",
            "lossy": true, "partial": true, "missing": true,
        });
        assert_eq!((line, held.len(), gap), (expected, 0, false));
    }
}
