//! The standard output, and notes on the standard error. The reader may close either at any time,
//! as in `ssntp … | head -1`, and `println!` would panic then.

use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::Path;
use std::sync::OnceLock;

use crossbeam_channel::{Receiver, bounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use ssntp_transport::threads;
pub use ssntp_transport::{printable, printable_json};

use crate::failure::Failure;

/// The locked and buffered standard output. Dropping it writes the buffer and ignores errors.
#[derive(Debug)]
pub struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    /// Locks the standard output. Blocks while another thread has it.
    pub fn lock() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    /// Writes one line.
    pub fn line(&mut self, line: impl Display) -> Result<(), Failure> {
        writeln!(self.0, "{line}").map_err(|error| Failure::output(&error))
    }

    /// Writes a JSON value in one line, with characters that do not show escaped.
    pub fn json(&mut self, value: impl Display) -> Result<(), Failure> {
        self.line(printable_json(&value.to_string()))
    }

    /// Writes text or bytes unchanged.
    pub fn text(&mut self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        let written = self.0.write_all(text.as_ref());
        written.map_err(|error| Failure::output(&error))
    }

    /// Writes the buffer. To be called at the end, because dropping ignores errors.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(|error| Failure::output(&error))
    }
}

/// A path as a word of a command line for a shell.
pub fn for_shell(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,@%=:".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Prints one line, and flushes it: the JSON value for a program, or the text for people.
pub fn print_either(json: bool, value: impl Display, text: impl Display) -> Result<(), Failure> {
    if json { print_json(value) } else { print_line(text) }
}

/// The result of printing for a command that goes on if the reader of its output is gone, as after
/// `| head -1`: more of its work is to do, or its exit code is an answer.
pub fn even_unread(printed: Result<(), Failure>) -> Result<(), Failure> {
    match printed {
        Err(Failure::Silent(0)) => Ok(()),
        printed => printed,
    }
}

/// Prints each value as a line of JSON, and flushes them.
pub fn print_json_lines(values: impl IntoIterator<Item = impl Display>) -> Result<(), Failure> {
    let mut output = Output::lock();
    values.into_iter().try_for_each(|value| output.json(value))?;
    output.flush()
}

/// Prints one line, and flushes it.
pub fn print_line(line: impl Display) -> Result<(), Failure> {
    let mut output = Output::lock();
    output.line(line)?;
    output.flush()
}

/// Prints text or bytes unchanged, and flushes them.
pub fn print_text(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut output = Output::lock();
    output.text(text)?;
    output.flush()
}

/// Prints a JSON value in one line, and flushes it.
pub fn print_json(value: impl Display) -> Result<(), Failure> {
    print_line(printable_json(&value.to_string()))
}

/// Prints each message of a channel on a thread of its own, because the reader of the output may pause, and
/// the main thread must not. The channel that it returns has the failure that ended the printing, and is
/// disconnected with `messages`. The thread is never joined.
pub fn print_apart<T: Send + 'static>(
    messages: Receiver<T>,
    mut print: impl FnMut(T) -> Result<(), Failure> + Send + 'static,
) -> Result<Receiver<Failure>, Failure> {
    let (failed, failure) = bounded(1);
    let printing = move || {
        if let Some(why) = messages.iter().find_map(|message| print(message).err()) {
            // If the receiver is gone, the caller goes on without printing.
            let _ = failed.send(why);
        }
    };
    threads::spawn("ssntp-stdout", printing).map_err(Failure::thread)?;
    Ok(failure)
}

/// The number of characters in a line of the terminal, and of its lines; `None` if the
/// standard output is not a terminal.
pub fn terminal_size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    // A pseudo-terminal whose size was never set has width 0.
    Some((size.ws_col.into(), size.ws_row.into())).filter(|(width, _)| *width > 0)
}

/// The length of the lines of help: the width of the terminal, else that in the variable COLUMNS, else 80; at most 100,
/// because longer lines are hard to read.
pub fn help_width() -> usize {
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    let width = terminal_size().map(|(width, _)| width).or_else(columns);
    width.filter(|width| *width > 0).unwrap_or(80).min(100)
}

/// True if the reader of the standard output is gone, as after `| head -1`: for programs that would
/// otherwise notice it only when they print the next line.
pub fn reader_is_gone() -> bool {
    let stdout = io::stdout();
    // ERR and HUP are reported without being requested; OUT would be true all the time.
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec::default();
    poll(&mut polled, Some(&at_once)).is_ok()
        && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

type Sink = Box<dyn Fn(&str) + Send + Sync>;

/// The receiver of notes, if they are not written to the standard error directly.
static NOTES: OnceLock<Sink> = OnceLock::new();

/// Sends all later notes to `sink`. Only the first call has an effect.
pub fn send_notes_to(sink: impl Fn(&str) + Send + Sync + 'static) {
    let _ = NOTES.set(Box::new(sink));
}

/// Writes one line for the user to the standard error, with control characters escaped. If a
/// program reads the standard error, the line becomes a line of the log.
pub fn note(line: impl Display) {
    let line = line.to_string();
    match NOTES.get() {
        Some(sink) => sink(&line),
        None => {
            let _ = writeln!(io::stderr(), "{}", printable(&line));
        }
    }
}
