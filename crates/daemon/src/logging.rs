//! The log on the standard error. A thread that logs never blocks.
//!
//! ```text
//!  any thread ─ log! ─▶ env_logger: filter, format ─▶ queue of 1,024 lines ─▶ thread ─▶ stderr
//!                                                      │ full: dropped and counted
//! ```
//!
//! Otherwise a standard error that is a pipe without a reader would block every thread that logs,
//! even a server's dispatcher.
//!
//! | `--log-format` | a line |
//! |---|---|
//! | `text` | `[2026-01-01T00:00:00Z WARN  target] message` |
//! | `text`, into systemd's journal | `<4>target: message`: the journal adds the time |
//! | `json` | `{"time":"2026-01-01T00:00:00.000000Z","level":"warn","target":"…","thread":"…","message":"…"}` |
//!
//! In the last two formats a program reads the standard error, so notes to the user are log lines
//! as well.

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
use log::{Level, LevelFilter, Log, Metadata, Record};
use ssntp::pki::rfc3339;
use ssntp_transport::{cut, printable, printable_json, since_1970, threads, wall_clock};

use crate::failure::Failure;

/// The maximum number of lines in the queue: a burst of some hundred sessions that end at once.
const LINES: usize = 1024;
/// The longest line, in bytes, so that the queue takes 4 MiB at most.
const LINE: usize = 4096;
/// The longest message of a panic in JSON, its backtrace included.
const PANIC_LINE: usize = 32 << 10;
/// The time in which the last lines are written when the program ends.
// Short compared with the 1.8 s in which a program must end after a signal.
const LAST_LINES: Duration = Duration::from_millis(500);
/// The time for which a thread that panics waits for room in the queue, because its message must not
/// be dropped.
const PANIC: Duration = Duration::from_millis(100);

/// The flags of the log.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// The level of the log on the standard error: error, warn, info, debug, trace or off.
    /// A target may have its own level: warn,ssntp::audit=info also logs each client that
    /// connects, disconnects, is refused or is kicked [default: warn for daemons, else error]
    // The display order puts the two flags of the log at the end of the help of every subcommand.
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "RUST_LOG",
        display_order = 899
    )]
    pub log: Option<String>,
    /// The format of the log on the standard error
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "FORMAT",
        env = "SSNTP_LOG_FORMAT",
        display_order = 900,
        default_value_t
    )]
    pub log_format: LogFormat,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people, and for systemd's journal
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// The log of the process. Dropping it writes the last lines, which blocks for at most a second.
#[derive(Debug)]
pub struct Logging(Option<(Lines, JoinHandle<()>)>);

impl Logging {
    /// Starts the log, with the lines that the flags select, or without a filter from `level` on.
    /// Panics are logged as well.
    pub fn start(level: &'static str, flags: &LogArgs) -> Self {
        let (filter, format) = (flags.log.as_deref(), flags.log_format);
        // A separate handle: `io::stderr` has a lock, on which a panic would block.
        let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
        let in_journal = stderr.as_ref().is_ok_and(is_journal);
        let style = match format {
            LogFormat::Json if in_journal => Style::JsonInJournal,
            LogFormat::Json => Style::Json,
            LogFormat::Text if in_journal => Style::Journal,
            LogFormat::Text => Style::Text,
        };
        // Without them the log may block, which is better than no log.
        let started = stderr.and_then(|stderr| Lines::start(stderr, LINES, style)).ok();
        let this = Self(started);
        if let Some(lines) = this.lines() {
            lines.clone().log_panics();
        }
        let current = Current {
            level,
            style,
            lines: this.lines().cloned(),
            logger: Builder::new().build(),
        };
        *LOGGER.0.write().unwrap_or_else(PoisonError::into_inner) = Some(current);
        // This is the first logger of the process, so this does not fail.
        let _ = log::set_logger(&LOGGER);
        select(filter);
        this
    }

    fn lines(&self) -> Option<&Lines> {
        self.0.as_ref().map(|(lines, _)| lines)
    }

    /// A function that logs notes to the user. `None` if people read the standard error; notes are
    /// then written to it directly.
    pub fn notes(&self) -> Option<impl Fn(&str) + Send + Sync + use<>> {
        let lines = self.lines().filter(|lines| lines.style != Style::Text)?.clone();
        // The target is already the name of the program.
        Some(move |line: &str| lines.log(Level::Info, "ssntp", line.trim_start_matches("ssntp: ")))
    }

    /// Ends the log, and prints the failure of the program as the last line: in JSON if a program reads it.
    pub fn end_with(self, failure: Failure, json: bool) -> ExitCode {
        let lines = self.lines().filter(|lines| lines.style != Style::Text && !json);
        match lines.zip(failure.plain()) {
            Some((lines, message)) => {
                lines.log(Level::Error, "ssntp", message);
                failure.code().into()
            }
            None => {
                drop(self);
                failure.report(json)
            }
        }
    }
}

/// Applies another filter from now on; without one, the default level of the program.
pub fn select(filter: Option<&str>) {
    let filter = filter.unwrap_or_default();
    apply(filter);
    if let Err(why) = check(filter) {
        log::error!("{why}");
    }
}

/// Checks a filter.
///
/// # Errors
/// Parts of it are ignored.
pub fn check(filter: &str) -> Result<(), Failure> {
    match parts(filter, "").1.join(", ") {
        wrong if wrong.is_empty() => Ok(()),
        wrong => Err(Failure::usage(format_args!(
            "a part of the filter of the log is ignored, because it is neither LEVEL nor TARGET=LEVEL: {wrong}"
        ))),
    }
}

/// The valid part of a filter, in which all targets that it does not name have `level`, and the other
/// parts. env_logger would print those itself, which fails or blocks with the standard error, and is no
/// line of the log. A misspelt level would be a target for it, and it would log nothing else.
fn parts<'a>(filter: &'a str, level: &'a str) -> (String, Vec<&'a str>) {
    let (directives, pattern) = filter.split_once('/').unwrap_or((filter, ""));
    let is_level = |text: &str| text.trim().parse::<LevelFilter>().is_ok();
    let is_valid = |directive: &&str| match directive.split_once('=') {
        Some((_, level)) => level.trim().is_empty() || is_level(level),
        None => is_level(directive),
    };
    let directives = directives
        .split(',')
        .filter(|directive| !directive.trim().is_empty());
    let (mut valid, mut wrong): (Vec<_>, Vec<_>) = directives.partition(is_valid);
    if !valid.iter().any(|directive| is_level(directive)) {
        valid.insert(0, level);
    }
    let mut valid = valid.join(",");
    match pattern {
        "" => {}
        several if several.contains('/') => wrong.push(several),
        pattern => valid.extend(["/", pattern]),
    }
    (valid, wrong)
}

fn apply(filter: &str) {
    let mut held = LOGGER.0.write().unwrap_or_else(PoisonError::into_inner);
    let Some(current) = held.as_mut() else { return };
    let style = current.style;
    let mut builder = Builder::new();
    builder.parse_filters(&parts(filter, current.level).0);
    builder.format(move |out, record| {
        let message = record.args().to_string();
        let line = style.line(record.level(), record.target(), &message, LINE);
        out.write_all(line.as_bytes())
    });
    if let Some(lines) = &current.lines {
        builder.target(Target::Pipe(Box::new(lines.clone())));
    }
    current.logger = builder.build();
    log::set_max_level(current.logger.filter());
}

/// The logger of the process. A reload replaces the env_logger inside.
static LOGGER: Replaceable = Replaceable(RwLock::new(None));

struct Replaceable(RwLock<Option<Current>>);

struct Current {
    /// The lowest level that is logged if there is no filter.
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

/// True if a file is the stream that systemd has connected to its journal: JOURNAL_STREAM holds
/// the device and the inode of that stream.
fn is_journal(file: &File) -> bool {
    let (Ok(named), Ok(metadata)) = (std::env::var("JOURNAL_STREAM"), file.metadata()) else {
        return false;
    };
    named == format!("{}:{}", metadata.dev(), metadata.ino())
}

/// The format of a line, with regard to its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Text,
    Journal,
    Json,
    /// The journal reads the priority in front of the object, and keeps only the object.
    JsonInJournal,
}

impl Style {
    /// A message as a line. The message, or the JSON object, has at most `most` bytes.
    fn line(self, level: Level, target: &str, message: &str, most: usize) -> String {
        let message = cut(message, most);
        let shown = printable(message);
        let shown = cut(&shown, most);
        match self {
            Self::Json => json(level, target, message, most),
            Self::JsonInJournal => format!("<{}>{}", priority(level), json(level, target, message, most)),
            Self::Journal => format!("<{}>{target}: {shown}\n", priority(level)),
            Self::Text => {
                let time = rfc3339(wall_clock());
                format!("[{time} {level:<5} {target}] {shown}\n")
            }
        }
    }

    /// One or several lines of printable text, such as a panic, in the format of the log.
    fn lines(self, text: &str) -> String {
        match self {
            Self::Text => text.to_owned(),
            Self::Journal => text.lines().map(|line| format!("<2>{line}\n")).collect(),
            Self::Json => json(Level::Error, "panic", cut(text, PANIC_LINE), PANIC_LINE),
            Self::JsonInJournal => format!("<2>{}", Self::Json.lines(text)),
        }
    }

    /// The line about dropped lines; empty if there were none.
    fn about_dropped(self, count: u64) -> String {
        let lines = match count {
            0 => return String::new(),
            1 => "1 log line was dropped".to_owned(),
            _ => format!("{count} log lines were dropped"),
        };
        let text = format!("{lines}: standard error is not read fast enough");
        match self {
            Self::Text => format!("ssntp: {text}\n"),
            _ => self.line(Level::Warn, "ssntp", &text, LINE),
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

/// An object in one line of at most `most` bytes. A message that does not fit is cut between
/// characters, and then ends with `…`.
fn json(level: Level, target: &str, message: &str, most: usize) -> String {
    let now = wall_clock();
    let seconds = rfc3339(now);
    let (seconds, micros) = (seconds.trim_end_matches('Z'), since_1970(now).subsec_micros());
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
    let whole = quoted(message);
    if whole.len() <= room {
        return format!("{begin}{whole}}}\n");
    }
    // Escaping makes a character up to twelve bytes long, so the lengths of the escaped characters
    // are summed up.
    let mut length = 2;
    let fits = |c: &char| {
        length += quoted(c.encode_utf8(&mut [0; 4])).len() - 2;
        length < room
    };
    let begun: String = message.chars().take_while(fits).collect();
    format!("{begin}{}}}\n", quoted(&(begun + "…")))
}

/// The longest name of a target or a thread, in bytes.
const NAME: usize = 64;

fn quoted(text: &str) -> String {
    printable_json(&serde_json::Value::from(text).to_string()).replace('\n', "\\n")
}

impl Drop for Logging {
    fn drop(&mut self) {
        // A thread that is still blocked by the reader ends with the process.
        if let Some((lines, thread)) = self.0.take()
            && lines.end(LAST_LINES)
        {
            let _ = thread.join();
        }
    }
}

enum Message {
    Line(Vec<u8>),
    /// The last message; dropped once everything before it is written.
    End(#[expect(dead_code, reason = "dropping it is the signal")] Sender<()>),
}

/// The queue of log lines. A clone shares it.
#[derive(Clone, Debug)]
struct Lines {
    messages: Sender<Message>,
    dropped: Arc<AtomicU64>,
    style: Style,
}

impl Lines {
    fn start(
        to: impl Write + Send + 'static,
        room: usize,
        style: Style,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let (messages, lines) = bounded(room);
        let dropped = Arc::new(AtomicU64::new(0));
        let this = Self {
            messages,
            dropped: Arc::clone(&dropped),
            style,
        };
        let thread = threads::spawn("ssntp-log", move || write_lines(&lines, &dropped, style, to))?;
        Ok((this, thread))
    }

    /// Queues a message, regardless of the filter.
    fn log(&self, level: Level, target: &str, message: &str) {
        self.queue(self.style.line(level, target, message, LINE).as_bytes());
    }

    /// Queues a line, or drops and counts it if the queue is full.
    fn queue(&self, line: &[u8]) {
        let mut before = 0;
        if !self.messages.is_full() {
            // The line about dropped lines comes at the place of those lines.
            before = self.dropped.swap(0, Ordering::Relaxed);
            let mut text = self.style.about_dropped(before).into_bytes();
            text.extend_from_slice(line);
            if self.messages.try_send(Message::Line(text)).is_ok() {
                return;
            }
        }
        // The line about them was not queued either, so these lines are counted again.
        self.dropped.fetch_add(before + 1, Ordering::Relaxed);
    }

    /// Blocks until all queued lines are written, or until the limit; returns true if they are
    /// written. Later lines are dropped.
    fn end(&self, limit: Duration) -> bool {
        let (end, ended) = bounded(0);
        match self.messages.send_timeout(Message::End(end), limit) {
            Ok(()) => ended.recv_timeout(limit).is_err_and(|e| e.is_disconnected()),
            Err(SendTimeoutError::Timeout(_)) => false,
            Err(SendTimeoutError::Disconnected(_)) => true,
        }
    }

    /// From here on, panics are logged. The usual hook would block while the standard error is not
    /// read.
    fn log_panics(self) {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let text = Message::Line(self.style.lines(&panic_text(panic)).into_bytes());
            if let Err(SendTimeoutError::Disconnected(_)) = self.messages.send_timeout(text, PANIC) {
                usual(panic);
            }
            // The process ends when this hook returns, and so does the thread that writes the line.
            if cfg!(panic = "abort") {
                self.end(LAST_LINES);
            }
        }));
    }
}

impl Write for Lines {
    /// env_logger calls this once for each line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.queue(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_lines(lines: &Receiver<Message>, dropped: &AtomicU64, style: Style, mut to: impl Write) {
    for message in lines {
        // An error of the log cannot be reported anywhere else, so it is ignored.
        if let Message::Line(line) = &message {
            let _ = to.write_all(line);
        }
        // The next line may come much later, so the dropped lines are reported now.
        if lines.is_empty() {
            let line = style.about_dropped(dropped.swap(0, Ordering::Relaxed));
            let _ = to.write_all(line.as_bytes());
        }
        if let Message::End(_) = message {
            return;
        }
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

    /// Sends each line to the test, and then blocks until the test lets it continue.
    struct Slow {
        released: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            if !line.is_empty() {
                let _ = self.written.send(String::from_utf8_lossy(line).into_owned());
                let _ = self.released.recv();
            }
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow(room: usize, style: Style) -> (Lines, JoinHandle<()>, Sender<()>, Receiver<String>) {
        let (go_on, released) = bounded(0);
        let (written, lines) = crossbeam_channel::unbounded();
        let slow = Slow { released, written };
        let (queue, thread) = Lines::start(slow, room, style).unwrap();
        (queue, thread, go_on, lines)
    }

    #[test]
    fn a_slow_reader_blocks_no_thread_and_dropped_lines_are_reported_in_their_place() {
        let (queue, thread, go_on, written) = slow(4, Style::Text);
        queue.queue(b"0\n");
        assert_eq!(written.recv().unwrap(), "0\n");
        // The thread holds one line now, and the queue has room for four.
        for n in 1..5000 {
            queue.queue(format!("{n}\n").as_bytes());
        }
        for n in 1..=4 {
            go_on.send(()).unwrap();
            assert_eq!(written.recv().unwrap(), format!("{n}\n"));
        }
        queue.queue(b"later\n");
        drop(go_on);
        assert!(queue.end(Duration::from_secs(60)));
        thread.join().unwrap();
        let rest: String = written.try_iter().collect();
        let notice = "log lines were dropped: standard error is not read fast enough";
        assert_eq!(rest, format!("ssntp: 4995 {notice}\nlater\n"));
    }

    #[test]
    fn a_part_of_a_filter_that_is_no_directive_does_not_reach_env_logger() {
        for (filter, valid, wrong) in [
            ("warn, ssntp::audit=info", "warn, ssntp::audit=info", &[][..]),
            ("a=b=c,debug", "debug", &["a=b=c"]),
            ("a=wrn,b=", "error,b=", &["a=wrn"]),
            ("info/text", "info/text", &[]),
            ("info/x/y", "info", &["x/y"]),
            (" , ", "error", &[]),
            ("warning", "error", &["warning"]),
            ("wrn,ssntp", "error", &["wrn", "ssntp"]),
            ("ssntp::audit=info", "error,ssntp::audit=info", &[]),
            ("ssntp::audit=info, OFF", "ssntp::audit=info, OFF", &[]),
        ] {
            assert_eq!(
                parts(filter, "error"),
                (valid.to_owned(), wrong.to_vec()),
                "{filter}"
            );
            assert_eq!(check(filter).is_err(), !wrong.is_empty(), "{filter}");
        }
    }

    #[test]
    fn the_end_waits_for_the_last_lines_up_to_its_limit() {
        let (queue, thread, go_on, written) = slow(8, Style::Text);
        queue.queue(b"last\n");
        assert!(!queue.end(Duration::from_millis(1)), "the lines have no reader");
        drop(go_on);
        thread.join().unwrap();
        assert_eq!(written.try_iter().collect::<Vec<_>>(), ["last\n"]);
        assert!(
            queue.end(Duration::from_secs(60)),
            "the thread of the log has ended"
        );
        queue.queue(b"too late\n");
        assert_eq!(written.try_iter().count(), 0);
    }

    #[test]
    fn a_panic_is_logged_as_a_line() {
        let (queue, thread, go_on, written) = slow(8, Style::Text);
        drop(go_on);
        let usual = std::panic::take_hook();
        queue.clone().log_panics();
        let body = || panic!("two\nlines\u{202e}");
        let panicking = std::thread::Builder::new().name("worker".into()).spawn(body);
        assert!(panicking.unwrap().join().is_err());
        std::panic::set_hook(usual);
        assert!(queue.end(Duration::from_secs(60)));
        thread.join().unwrap();
        let log: String = written.try_iter().collect();
        let at = format!("thread 'worker' panicked at {}:", file!());
        assert!(log.starts_with(&at), "{log}");
        assert!(log.contains("\ntwo\nlines\\u{202e}\n"), "{log}");
    }

    #[test]
    fn a_line_is_cut_between_characters() {
        let long = "ü".repeat(LINE);
        assert_eq!(cut(&long, LINE).len(), LINE);
        assert_eq!(cut(&format!("x{long}"), LINE).len(), LINE - 1);
        assert_eq!(cut("short", LINE), "short");
    }

    #[test]
    fn json_is_one_valid_object_a_line_even_when_cut() {
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
            let form = time.replace(|c: char| c.is_ascii_digit(), "0");
            assert_eq!(form, "0000-00-00T00:00:00.000000Z", "{time}");
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
        let notice = Style::Journal.about_dropped(2);
        assert_eq!(
            notice,
            "<4>ssntp: 2 log lines were dropped: standard error is not read fast enough\n"
        );
    }

    #[test]
    fn a_panic_is_one_object_in_json() {
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
