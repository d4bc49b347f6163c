//! The standard output, and notes on the standard error. A reader may go away at
//! any time, as in `ssntp … | head -1`, and `println!` would panic then.

use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) use ssntp_transport::{printable, printable_json};

use crate::failure::Failure;

/// The standard output, held for the time of a subcommand. What is buffered
/// is written when it is dropped.
#[derive(Debug)]
pub(crate) struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    /// Writes one line.
    pub(crate) fn line(&mut self, line: impl Display) -> Result<(), Failure> {
        writeln!(self.0, "{line}").map_err(|error| Failure::output(&error))
    }

    /// Writes a JSON value in one line, with what does not show escaped.
    pub(crate) fn json(&mut self, value: impl Display) -> Result<(), Failure> {
        self.line(printable_json(&value.to_string()))
    }

    /// Writes text as it is.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.write_all(bytes).map_err(|error| Failure::output(&error))
    }

    /// Writes out what is buffered; call it at the end to hear of errors.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(|error| Failure::output(&error))
    }
}

/// Prints the answer of a command, and flushes it: the value for a program, the text for people.
pub(crate) fn say_either(json: bool, value: impl Display, text: impl Display) -> Result<(), Failure> {
    if json { say_json(value) } else { say(text) }
}

/// Prints each value as a line of JSON, and flushes them.
pub(crate) fn say_lines(values: impl IntoIterator<Item = impl Display>) -> Result<(), Failure> {
    let mut output = Output::new();
    values.into_iter().try_for_each(|value| output.json(value))?;
    output.flush()
}

/// Prints one line, and flushes it.
pub(crate) fn say(line: impl Display) -> Result<(), Failure> {
    let mut output = Output::new();
    output.line(line)?;
    output.flush()
}

/// Prints text as it is, and flushes it.
pub(crate) fn say_text(text: &str) -> Result<(), Failure> {
    let mut output = Output::new();
    output.text(text)?;
    output.flush()
}

/// Prints a JSON value in one line, and flushes it.
pub(crate) fn say_json(value: impl Display) -> Result<(), Failure> {
    say(printable_json(&value.to_string()))
}

/// Whether the reader of the standard output is gone, as after `| head -1`: for
/// programs that would otherwise not notice before their next line.
pub(crate) fn reader_is_gone() -> bool {
    let stdout = io::stdout();
    // ERR and HUP are reported although they are not asked for; OUT would be true all the time.
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec::default();
    poll(&mut polled, Some(&at_once)).is_ok()
        && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

type Sink = Box<dyn Fn(&str) + Send + Sync>;

/// The receiver of notes, if they do not go to the standard error directly.
static NOTES: OnceLock<Sink> = OnceLock::new();

/// Sends all later notes to `sink`. Only the first call has an effect.
pub(crate) fn send_notes_to(sink: impl Fn(&str) + Send + Sync + 'static) {
    let _ = NOTES.set(Box::new(sink));
}

/// Writes one line to the standard error, which may be closed as well:
/// `eprintln!` would panic then. Control characters are escaped. If a program reads
/// the standard error, the line becomes one of the log.
pub(crate) fn note(line: impl Display) {
    let line = line.to_string();
    match NOTES.get() {
        Some(sink) => sink(&line),
        None => {
            let _ = writeln!(io::stderr(), "{}", printable(&line));
        }
    }
}
