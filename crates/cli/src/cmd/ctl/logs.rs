//! `ssntp ctl logs`: prints the output of an instance.

use std::io::{self, IsTerminal, Write};
use std::str;
use std::time::Duration;

use serde_json::{Value, json};
use ssntp::proto::Outputs;
use ssntp_cluster::controller::{StreamError, StreamEvent, StreamRequest};
use uuid::Uuid;

use super::options::Options;
use super::session::Session;
use super::verbs::find;
use crate::choice::{Choices, one_of};
use crate::failure::Failure;
use crate::output::{Output, note, print_json, printable, reader_is_gone};
use crate::signals::Stop;

/// The time limit for the first answer of the instance's node, unless --timeout is given.
const OPENING: Duration = Duration::from_secs(10);
/// The time between two checks whether the output is still read.
const POLL: Duration = Duration::from_millis(500);
/// In bytes. As JSON, a longer line is printed in pieces.
const LONGEST_LINE: usize = 64 * 1024;

/// Print the output of an instance
///
/// The instance's standard output is printed to the standard output, and its standard
/// error to the standard error; on a terminal, control characters are escaped. The logs
/// of an instance that has ended are kept for as long as its node keeps the instance.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The instance
    instance: String,
    /// Continue with new output until the instance has ended
    #[arg(short, long)]
    follow: bool,
    /// Start with the last lines of each output instead of the whole kept output
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

pub(super) fn run(options: &Options, stop: &Stop, args: &Args) -> Result<(), Failure> {
    let session = Session::open_complete(options, stop)?;
    let instance = find(&session, |view| view.find_instance(&args.instance))?;
    let request = StreamRequest {
        outputs: args.output,
        tail: args.tail,
        follow: args.follow,
    };
    let stream = session.controller.stream(instance, request)?;
    let opening = options.given_limit().unwrap_or(OPENING);
    let mut printer = Printer::new(options.json.then_some(instance));
    let mut patience = opening;
    let mut late = crossbeam_channel::after(opening);
    let look = crossbeam_channel::tick(POLL);
    loop {
        let event = crossbeam_channel::select! {
            recv(stream.events()) -> event => event,
            recv(stop.channel()) -> _ => return Err(stop.interrupted()),
            recv(look) -> _ => match reader_is_gone() {
                true => return Ok(()),
                false => continue,
            },
            recv(late) -> _ => {
                let seconds = patience.as_secs_f64();
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
                // Credit is returned only after printing, so that a slow terminal receives little.
                stream.dealt_with(&bytes);
            }
            Ok(StreamEvent::Ended(how)) => {
                printer.finish()?;
                return Ok(how?);
            }
            Ok(_) => {}
            Err(_) => return Err(Failure::new(StreamError::Overrun)),
        }
        patience = options.limit();
        // With --follow, an instance may be silent for hours.
        late = match args.follow {
            true => crossbeam_channel::never(),
            false => crossbeam_channel::after(patience),
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

/// The form in which one output is printed, with the bytes that wait for the rest of a character or
/// a line.
enum Form {
    Raw,
    /// For a terminal. The bytes are the beginning of a character.
    Escaped(Vec<u8>),
    /// As JSON. The bytes are the beginning of a line. The flag is true if output may be missing
    /// before them.
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
            note(format_args!("ssntp: some of its {name} may be missing here"));
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
                let mut lines = Output::new();
                for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
                    held.extend(piece);
                    if held.pop_if(|last| *last == b'\n').is_some() {
                        lines.json(line_of(self.json, output, held, false, gap))?;
                    }
                }
                if held.len() > LONGEST_LINE {
                    lines.json(line_of(self.json, output, held, true, gap))?;
                }
                lines.flush()
            }
        }
    }

    /// Prints the bytes that still wait for the rest of a character or a line.
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
    let mut stdout = Output::new();
    stdout.bytes(bytes)?;
    stdout.flush()
}

/// Takes the held bytes, and makes their JSON object.
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

/// Text for a terminal: line ends and tabulators stay, and all other characters that do not show are
/// escaped. An incomplete character or line end is held.
fn escaped(held: &mut Vec<u8>, bytes: &[u8]) -> String {
    held.extend(bytes);
    let whole = std::mem::take(held);
    let mut out = String::new();
    let mut chunks = whole.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        let (mut text, mut invalid) = (chunk.valid(), chunk.invalid());
        if chunks.peek().is_none() {
            // An error without a length means that the character is incomplete and not invalid.
            if str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none()) {
                held.extend(invalid);
                invalid = &[];
            } else if invalid.is_empty()
                && let Some(before) = text.strip_suffix('\r')
            {
                // Its line feed may be the first of the next bytes.
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
