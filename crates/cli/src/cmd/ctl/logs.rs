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

/// How long the instance's node may take to answer, unless --timeout is given.
const OPENING: Duration = Duration::from_secs(10);
/// The time between two looks at whether the output is still read.
const LOOK: Duration = Duration::from_millis(500);
/// A longer line is printed in pieces as JSON, in bytes.
const LONGEST_LINE: usize = 64 * 1024;

/// Print what an instance has written
///
/// Its standard output goes to the standard output, its standard error to the
/// standard error; on a terminal, control characters are escaped. An instance that
/// has ended keeps its logs for as long as its node keeps the instance.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The instance
    instance: String,
    /// Go on with new output until the instance has ended
    #[arg(short, long)]
    follow: bool,
    /// Begin with the last lines of each output instead of all that is kept
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// Which output
    #[arg(long, value_parser = one_of(OUTPUTS), default_value = "both")]
    output: Outputs,
}

#[rustfmt::skip] // A table: one row a word.
const OUTPUTS: Choices<Outputs> = &[
    ("stdout", "What it writes to its standard output, or a machine to its serial port", Outputs::STDOUT),
    ("stderr", "What it writes to its standard error, or QEMU complains of", Outputs::STDERR),
    ("both", "Both", Outputs::BOTH),
];

pub(super) fn run(options: &Options, stop: &Stop, args: &Args) -> Result<(), Failure> {
    let session = Session::open_told(options, stop)?;
    let instance = find(&session, |view| view.find_instance(&args.instance))?;
    let request = StreamRequest {
        outputs: args.output,
        tail: args.tail,
        follow: args.follow,
    };
    let stream = session.controller.stream(instance, request)?;
    let opening = options.asked_limit().unwrap_or(OPENING);
    let mut printer = Printer::new(options.json.then_some(instance));
    let mut patience = opening;
    let mut late = crossbeam_channel::after(opening);
    let look = crossbeam_channel::tick(LOOK);
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
                // Credit is given back only now, so that a slow terminal is sent little.
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
        // An instance that is followed may write nothing for hours.
        late = match args.follow {
            true => crossbeam_channel::never(),
            false => crossbeam_channel::after(patience),
        };
    }
}

/// Both outputs of an instance, as they are printed.
struct Printer {
    stdout: Form,
    stderr: Form,
    /// The instance, if the output is JSON.
    json: Option<Uuid>,
}

/// How one output is printed, with the bytes that wait for the rest of a character or a line.
enum Form {
    AsItIs,
    /// For a terminal. The bytes begin a character whose rest has not come yet.
    Escaped(Vec<u8>),
    /// As JSON. The bytes begin a line whose end has not come yet. The flag says whether output
    /// may be missing before it.
    Lines(Vec<u8>, bool),
}

impl Printer {
    fn new(json: Option<Uuid>) -> Self {
        let form = |is_terminal: bool| match (json, is_terminal) {
            (Some(_), _) => Form::Lines(Vec::new(), false),
            (None, true) => Form::Escaped(Vec::new()),
            (None, false) => Form::AsItIs,
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
            Form::AsItIs => write(output, bytes),
            Form::Escaped(held) => write(output, escaped(held, bytes).as_bytes()),
            Form::Lines(held, gap) => {
                *gap |= missing;
                let mut lines = Output::new();
                let mut rest = bytes;
                while let Some((line, more)) = first_line(rest) {
                    held.extend(line);
                    rest = more;
                    lines.json(line_of(self.json, output, held, false, gap))?;
                }
                held.extend(rest);
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

/// A line without its end, and the bytes behind it; none if no line ends here.
fn first_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = bytes.split_at(end);
    Some((line, rest.get(1..).unwrap_or_default()))
}

/// The object of the held bytes. None are held afterwards.
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

/// Text for a terminal: line ends and tabulators stay, all else that does not show
/// is escaped. A character or line end that is not whole is held.
fn escaped(held: &mut Vec<u8>, bytes: &[u8]) -> String {
    held.extend(bytes);
    let whole = std::mem::take(held);
    let mut out = String::new();
    let mut chunks = whole.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        let (mut text, mut invalid) = (chunk.valid(), chunk.invalid());
        if chunks.peek().is_none() {
            // Without a length, the error says that the character is cut short and not that it is
            // wrong.
            if str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none()) {
                held.extend(invalid);
                invalid = &[];
            } else if invalid.is_empty()
                && let Some(before) = text.strip_suffix('\r')
            {
                // The line feed that belongs to it may come with the next bytes.
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
    fn a_terminal_gets_lines_and_nothing_that_moves_the_cursor() {
        let mut held = Vec::new();
        assert_eq!(
            escaped(&mut held, b"a\tb\r\n\x1b[2Jc\rd\n"),
            "a\tb\n\\u{1b}[2Jc\\rd\n"
        );
        // A character and a line end in two pieces.
        assert_eq!(escaped(&mut held, b"\xc3"), "");
        assert_eq!(escaped(&mut held, b"\xa4\r"), "\u{e4}");
        assert_eq!(escaped(&mut held, b"\n\xff!"), "\n\u{fffd}!");
        assert!(held.is_empty());
    }

    #[test]
    fn a_line_of_json_says_what_it_is() {
        let (mut held, mut gap) = (b"\xffx".to_vec(), true);
        let line = line_of(Some(Uuid::nil()), Outputs::STDERR, &mut held, true, &mut gap);
        let expected = json!({
            "instance": Uuid::nil(), "output": "stderr", "text": "\u{fffd}x",
            "lossy": true, "partial": true, "missing": true,
        });
        assert_eq!((line, held.len(), gap), (expected, 0, false));
    }
}
