//! The log on the standard error. A thread that logs never waits for its reader.
//!
//! ```text
//!  any thread ─ log! ─▶ env_logger: filter, format ─▶ queue of 1,024 lines ─▶ thread ─▶ stderr
//!                                                      │ full: counted, and said later
//! ```
//!
//! Otherwise a standard error that is a pipe without a reader would stop every thread
//! that logs, even a server's dispatcher.
//!
//! | `--log-format` | a line |
//! |---|---|
//! | `text` | `[2026-01-01T00:00:00Z WARN  target] message` |
//! | `text`, into systemd's journal | `<4>target: message`: the journal has times of its own |
//! | `json` | `{"time":"2026-01-01T00:00:00.000000Z","level":"warn","target":"…","thread":"…","message":"…"}` |
//!
//! In the last two formats a program reads the standard error, so notes to the user are
//! log lines, too.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::panic::PanicHookInfo;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::ValueEnum;
use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};
use env_logger::{Builder, Target};
use log::{Level, Log, Metadata, Record};
use ssntp::payload::timestamp;
use ssntp_transport::{cut, printable, printable_json, threads};

use crate::clock::{since_1970, wall_clock};
use crate::failure::Failure;

/// How many lines may wait: a burst of some hundred sessions that end at once.
const LINES: usize = 1024;
/// The longest line in bytes, so that all of them take 4 MiB at most.
const LINE: usize = 4096;
/// The longest message of a panic in JSON, its backtrace included.
const PANIC_LINE: usize = 32 << 10;
/// How long the last lines may take when the program ends.
// Short beside the 1.8 s that a program may take to end after a signal.
const LAST_LINES: Duration = Duration::from_millis(500);
/// How long a thread that panics waits for room: its message must not be dropped.
const PANIC: Duration = Duration::from_millis(100);

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people, and for systemd's journal
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// The log of the process. Dropping it writes the last lines.
#[derive(Debug)]
pub(crate) struct Logging {
    lines: Option<Lines>,
    thread: Option<JoinHandle<()>>,
}

impl Logging {
    /// Begins to log what the filter selects, else from this level on. Panics are logged,
    /// too.
    pub(crate) fn start(level: &'static str, filter: Option<&str>, format: LogFormat) -> Self {
        // A handle of its own: `io::stderr` has a lock, for which a panic waits.
        let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
        let in_journal = stderr.as_ref().is_ok_and(is_journal);
        let style = match format {
            LogFormat::Json if in_journal => Style::JsonInJournal,
            LogFormat::Json => Style::Json,
            LogFormat::Text if in_journal => Style::Journal,
            LogFormat::Text => Style::Text,
        };
        let started = stderr.and_then(|stderr| Lines::start(stderr, LINES, style));
        let this = match started {
            Ok((lines, thread)) => {
                lines.clone().tell_panics();
                Self {
                    lines: Some(lines),
                    thread: Some(thread),
                }
            }
            // A log that may block is better than none.
            Err(_) => Self {
                lines: None,
                thread: None,
            },
        };
        let current = Current {
            level,
            style,
            lines: this.lines.clone(),
            logger: Builder::new().build(),
        };
        *LOGGER.0.write().unwrap_or_else(PoisonError::into_inner) = Some(current);
        // It is the first logger of this process, so this does not fail.
        let _ = log::set_logger(&LOGGER);
        select(filter);
        this
    }

    /// A way for lines to the user into the log; none if people read the standard
    /// error, to which such lines go directly.
    pub(crate) fn notes(&self) -> Option<impl Fn(&str) + Send + Sync + use<>> {
        let lines = self.lines.clone().filter(|lines| lines.style != Style::Text)?;
        // The log has the name of the program as the target already.
        Some(move |line: &str| lines.say(Level::Info, "ssntp", line.trim_start_matches("ssntp: ")))
    }

    /// Ends the log, and tells the user how the program failed, after everything
    /// else.
    pub(crate) fn last_word(self, failure: Failure) -> ExitCode {
        let lines = self.lines.as_ref().filter(|lines| lines.style != Style::Text);
        match lines.zip(failure.plain()) {
            Some((lines, message)) => {
                lines.say(Level::Error, "ssntp", message);
                failure.code()
            }
            None => {
                drop(self);
                failure.report()
            }
        }
    }
}

/// Logs what this filter selects from now on; without one, what the program logs by default.
pub(crate) fn select(filter: Option<&str>) {
    let mut held = LOGGER.0.write().unwrap_or_else(PoisonError::into_inner);
    let Some(current) = held.as_mut() else { return };
    let style = current.style;
    let mut builder = Builder::new();
    builder.parse_filters(filter.unwrap_or(current.level));
    builder.format(move |out, record| {
        let said = record.args().to_string();
        let line = style.line(record.level(), record.target(), &said, LINE);
        out.write_all(line.as_bytes())
    });
    if let Some(lines) = &current.lines {
        builder.target(Target::Pipe(Box::new(lines.clone())));
    }
    current.logger = builder.build();
    log::set_max_level(current.logger.filter());
}

/// The logger of the process. A reload replaces the one inside.
static LOGGER: Replaceable = Replaceable(RwLock::new(None));

struct Replaceable(RwLock<Option<Current>>);

struct Current {
    /// The level from which on lines are logged if there is no filter.
    level: &'static str,
    style: Style,
    lines: Option<Lines>,
    logger: env_logger::Logger,
}

impl Replaceable {
    fn with<T: Default>(&self, act: impl FnOnce(&env_logger::Logger) -> T) -> T {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        held.as_ref()
            .map(|current| act(&current.logger))
            .unwrap_or_default()
    }
}

impl Log for Replaceable {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.with(|logger| logger.enabled(metadata))
    }

    fn log(&self, record: &Record<'_>) {
        self.with(|logger| logger.log(record));
    }

    fn flush(&self) {}
}

/// Whether a file is the stream that systemd has connected to its journal: JOURNAL_STREAM holds
/// the device and the inode of that stream.
fn is_journal(file: &File) -> bool {
    let (Ok(named), Ok(metadata)) = (std::env::var("JOURNAL_STREAM"), file.metadata()) else {
        return false;
    };
    named == format!("{}:{}", metadata.dev(), metadata.ino())
}

/// The look of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Text,
    Journal,
    Json,
    /// The journal takes the priority from before the object, and keeps the object alone.
    JsonInJournal,
}

impl Style {
    /// A message as a line. The message, or the JSON object, has at most `most` bytes.
    fn line(self, level: Level, target: &str, said: &str, most: usize) -> String {
        let said = cut(said, most);
        match self {
            Self::Json => return json(level, target, said, most),
            Self::JsonInJournal => {
                return format!("<{}>{}", priority(level), json(level, target, said, most));
            }
            Self::Journal | Self::Text => {}
        }
        let shown = printable(said);
        let shown = cut(&shown, most);
        match self {
            Self::Journal => format!("<{}>{target}: {shown}\n", priority(level)),
            _ => {
                let now = Duration::from_secs(since_1970(wall_clock()).as_secs());
                let time = timestamp::format(u64::try_from(now.as_nanos()).unwrap_or(0));
                format!("[{time} {level:<5} {target}] {shown}\n")
            }
        }
    }

    /// A text of one or several lines that is printable already, as lines of the log.
    fn lines(self, text: &str) -> String {
        match self {
            Self::Text => text.to_owned(),
            Self::Journal => text.lines().map(|line| format!("<2>{line}\n")).collect(),
            Self::Json => json(Level::Error, "panic", cut(text, PANIC_LINE), PANIC_LINE),
            Self::JsonInJournal => format!("<2>{}", Self::Json.lines(text)),
        }
    }

    /// The note about lines that were left out; empty if there were none.
    fn told(self, left_out: u64) -> String {
        let told = told(left_out);
        match self {
            _ if told.is_empty() => told,
            Self::Text => format!("ssntp: {told}\n"),
            _ => self.line(Level::Warn, "ssntp", &told, LINE),
        }
    }
}

/// The priority of a level, as sd-daemon(3) numbers them.
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// An object in one line of about `most` bytes: a message that does not fit is cut,
/// between characters, and ends with `…`.
fn json(level: Level, target: &str, said: &str, most: usize) -> String {
    let now = since_1970(wall_clock());
    let seconds = timestamp::format(now.as_secs().saturating_mul(1_000_000_000));
    let (seconds, micros) = (seconds.trim_end_matches('Z'), now.subsec_micros());
    let level = level.as_str().to_ascii_lowercase();
    let thread = std::thread::current();
    let thread = thread.name().map_or(String::new(), |name| {
        format!(r#","thread":{}"#, quoted(cut(name, NAME)))
    });
    let target = quoted(cut(target, NAME));
    let begin = format!(
        r#"{{"time":"{seconds}.{micros:06}Z","level":"{level}","target":{target}{thread},"message":"#
    );
    let room = most.saturating_sub(begin.len() + "…}\n".len());
    let whole = quoted(said);
    if whole.len() <= room {
        return format!("{begin}{whole}}}\n");
    }
    let mut message = String::from('"');
    for c in said.chars() {
        let c = quoted(c.encode_utf8(&mut [0; 4]));
        let c = c.trim_start_matches('"');
        let c = &c[..c.len().saturating_sub(1)];
        if message.len() + c.len() >= room {
            break;
        }
        message.push_str(c);
    }
    format!("{begin}{message}…\"}}\n")
}

/// The most of a target's or a thread's name.
const NAME: usize = 64;

fn quoted(text: &str) -> String {
    printable_json(&serde_json::Value::from(text).to_string()).replace('\n', "\\n")
}

impl Drop for Logging {
    fn drop(&mut self) {
        // A thread that still waits for a reader ends with the process.
        if self.lines.take().is_some_and(|lines| lines.end(LAST_LINES))
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

enum Message {
    Line(Vec<u8>),
    /// The last one; dropped once everything before it is written.
    End(#[expect(dead_code, reason = "its end is the signal")] Sender<()>),
}

/// The queue of log lines. A clone shares it.
#[derive(Clone, Debug)]
struct Lines {
    queue: Sender<Message>,
    left_out: Arc<AtomicU64>,
    style: Style,
}

impl Lines {
    fn start(
        to: impl Write + Send + 'static,
        room: usize,
        style: Style,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let (queue, lines) = bounded(room);
        let left_out = Arc::new(AtomicU64::new(0));
        let this = Self {
            queue,
            left_out: Arc::clone(&left_out),
            style,
        };
        let thread = threads::spawn("ssntp-log", move || write_lines(&lines, &left_out, style, to))?;
        Ok((this, thread))
    }

    /// Queues a message whatever is logged.
    fn say(&self, level: Level, target: &str, said: &str) {
        self.put(self.style.line(level, target, said, LINE).as_bytes());
    }

    /// Queues a line, or counts it if there is no room.
    fn put(&self, line: &[u8]) {
        let mut before = 0;
        if !self.queue.is_full() {
            // The note about lines that were left out stands where those lines would have stood.
            before = self.left_out.swap(0, Ordering::Relaxed);
            let mut text = self.style.told(before).into_bytes();
            text.extend_from_slice(line);
            if self.queue.try_send(Message::Line(text)).is_ok() {
                return;
            }
        }
        // The note found no room either, so the lines that it counts are counted again.
        self.left_out.fetch_add(before + 1, Ordering::Relaxed);
    }

    /// Writes what is queued, if that takes no longer than this. Nothing is
    /// written afterwards.
    fn end(&self, limit: Duration) -> bool {
        let (end, ended) = bounded(0);
        match self.queue.send_timeout(Message::End(end), limit) {
            Ok(()) => ended.recv_timeout(limit).is_err_and(|e| e.is_disconnected()),
            Err(SendTimeoutError::Timeout(_)) => false,
            Err(SendTimeoutError::Disconnected(_)) => true,
        }
    }

    /// From here on, panics are told as lines are: the usual way waits until
    /// the standard error takes them.
    fn tell_panics(self) {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let text = Message::Line(self.style.lines(&panic_text(panic)).into_bytes());
            if let Err(SendTimeoutError::Disconnected(_)) = self.queue.send_timeout(text, PANIC) {
                usual(panic);
            }
            // The process ends when this hook returns, and the thread that writes the line ends
            // with it.
            if cfg!(panic = "abort") {
                self.end(LAST_LINES);
            }
        }));
    }
}

impl Write for Lines {
    /// A line each time: that is how env_logger writes.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_lines(lines: &Receiver<Message>, left_out: &AtomicU64, style: Style, mut to: impl Write) {
    for message in lines {
        // There is no other way to report that the log cannot be written.
        if let Message::Line(line) = &message {
            let _ = to.write_all(line);
        }
        // The next line may come much later, so the lines that were left out are told now.
        if lines.is_empty() {
            let told = style.told(left_out.swap(0, Ordering::Relaxed));
            let _ = to.write_all(told.as_bytes());
        }
        if let Message::End(_) = message {
            return;
        }
    }
}

fn told(left_out: u64) -> String {
    match left_out {
        0 => String::new(),
        1 => "1 log line was left out: standard error is not read fast enough".to_owned(),
        _ => format!(
            "{} log lines were left out: standard error is not read fast enough",
            grouped(left_out)
        ),
    }
}

/// A number with a comma between each three digits.
fn grouped(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1000), number % 1000),
    }
}

fn panic_text(panic: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let mut text = format!("thread '{}' ", thread.name().unwrap_or("<unnamed>"));
    for line in cut(&panic.to_string(), LINE).lines() {
        text.push_str(&printable(line));
        text.push('\n');
    }
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        text.push_str(&backtrace.to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows each line, and then keeps the thread until it is let on.
    struct Slow {
        let_through: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            if !line.is_empty() {
                let _ = self.written.send(String::from_utf8_lossy(line).into_owned());
                let _ = self.let_through.recv();
            }
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow(room: usize, style: Style) -> (Lines, JoinHandle<()>, Sender<()>, Receiver<String>) {
        let (let_it, let_through) = bounded(0);
        let (written, lines) = crossbeam_channel::unbounded();
        let slow = Slow { let_through, written };
        let (queue, thread) = Lines::start(slow, room, style).unwrap();
        (queue, thread, let_it, lines)
    }

    #[test]
    fn nobody_waits_for_a_reader_and_what_is_left_out_is_said_in_its_place() {
        let (queue, thread, let_it, written) = slow(4, Style::Text);
        queue.put(b"0\n");
        assert_eq!(written.recv().unwrap(), "0\n");
        // The thread has one in its hands now, and four find room.
        for n in 1..5000 {
            queue.put(format!("{n}\n").as_bytes());
        }
        for n in 1..=4 {
            let_it.send(()).unwrap();
            assert_eq!(written.recv().unwrap(), format!("{n}\n"));
        }
        queue.put(b"later\n");
        drop(let_it);
        assert!(queue.end(Duration::from_secs(60)));
        thread.join().unwrap();
        let rest: String = written.try_iter().collect();
        let told = "log lines were left out: standard error is not read fast enough";
        assert_eq!(rest, format!("ssntp: 4,995 {told}\nlater\n"));
    }

    #[test]
    fn the_end_waits_for_the_last_lines_but_not_for_ever() {
        let (queue, thread, let_it, written) = slow(8, Style::Text);
        queue.put(b"last\n");
        assert!(!queue.end(Duration::from_millis(1)), "nobody reads");
        drop(let_it);
        thread.join().unwrap();
        assert_eq!(written.try_iter().collect::<Vec<_>>(), ["last\n"]);
        assert!(queue.end(Duration::from_secs(60)), "it has ended");
        queue.put(b"too late\n");
        assert_eq!(written.try_iter().count(), 0);
    }

    #[test]
    fn a_panic_is_told_as_a_line_is() {
        let (queue, thread, let_it, written) = slow(8, Style::Text);
        drop(let_it);
        let usual = std::panic::take_hook();
        queue.clone().tell_panics();
        let body = || panic!("two\nlines\u{202e}");
        let panicking = std::thread::Builder::new().name("worker".into()).spawn(body);
        assert!(panicking.unwrap().join().is_err());
        std::panic::set_hook(usual);
        assert!(queue.end(Duration::from_secs(60)));
        thread.join().unwrap();
        let told: String = written.try_iter().collect();
        let at = format!("thread 'worker' panicked at {}:", file!());
        assert!(told.starts_with(&at), "{told}");
        assert!(told.contains("\ntwo\nlines\\u{202e}\n"), "{told}");
    }

    #[test]
    fn a_line_is_cut_between_characters() {
        let long = "ü".repeat(LINE);
        assert_eq!(cut(&long, LINE).len(), LINE);
        assert_eq!(cut(&format!("x{long}"), LINE).len(), LINE - 1);
        assert_eq!(cut("short", LINE), "short");
    }

    #[test]
    fn json_is_one_object_a_line_that_hides_nothing_and_stays_valid_when_cut() {
        let texts = ["plain", "two\nlines \u{202e}\u{1b}[31m \"quoted\" \\ ü", ""].map(str::to_owned);
        let long = ["ü", "\u{e0001}", "\"", "\n", "x"].map(|c| c.repeat(2 * LINE));
        for text in texts.iter().chain(&long) {
            let line = Style::Json.line(Level::Warn, "ssntp::server", text, LINE);
            assert!(line.len() <= LINE, "{}", line.len());
            assert_eq!(line.lines().count(), 1);
            assert_eq!(printable(line.trim_end()), line.trim_end());
            let object: serde_json::Value = serde_json::from_str(&line).unwrap();
            let message = object["message"].as_str().unwrap();
            match message.strip_suffix('…') {
                Some(begin) => assert!(text.starts_with(begin) && begin.len() > LINE / 16, "{line}"),
                None => assert_eq!(message, text),
            }
            assert_eq!(
                (&object["level"], &object["target"]),
                (&"warn".into(), &"ssntp::server".into())
            );
            let time = object["time"].as_str().unwrap();
            assert!(time.len() == 27 && timestamp::parse(time).is_some(), "{time}");
            assert!(object["thread"].is_string(), "{line}");
        }
    }

    #[test]
    fn the_journal_gets_a_priority_and_no_time_on_each_line() {
        let line = |level| Style::Journal.line(level, "t", "a\nb", LINE);
        assert_eq!(line(Level::Error), "<3>t: a\\nb\n");
        assert_eq!(line(Level::Warn), "<4>t: a\\nb\n");
        assert_eq!(line(Level::Info), "<6>t: a\\nb\n");
        assert_eq!(line(Level::Trace), "<7>t: a\\nb\n");
        assert_eq!(Style::Journal.lines("one\ntwo\n"), "<2>one\n<2>two\n");
        let object = Style::JsonInJournal.line(Level::Warn, "t", "a\nb", LINE);
        assert!(
            object.starts_with("<4>{\"time\":") && object.ends_with("\"a\\nb\"}\n"),
            "{object}"
        );
        assert!(Style::JsonInJournal.lines("one\n").starts_with("<2>{"));
        let told = Style::Journal.told(2);
        assert_eq!(
            told,
            "<4>ssntp: 2 log lines were left out: standard error is not read fast enough\n"
        );
    }

    #[test]
    fn a_panic_is_one_object_where_lines_are() {
        let text = Style::Json.lines("thread 'a' panicked\nwhy\n");
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(object["message"], "thread 'a' panicked\nwhy\n");
        assert_eq!(
            (&object["level"], &object["target"]),
            (&"error".into(), &"panic".into())
        );
        assert_eq!(text.lines().count(), 1);
    }
}
