//! The log on the standard error, for which nobody who logs ever waits.
//!
//! ```text
//!  any thread ─ log! ─▶ env_logger: filter, format ─▶ queue of 1,024 lines ─▶ thread ─▶ stderr
//!                                                      │ full: counted, and said later
//! ```
//!
//! A standard error that is a pipe nobody reads would otherwise stop whoever
//! logs next, a server's dispatcher among them.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};
use env_logger::{Builder, Env, Target};
use ssntp::printable::printable;

/// How many lines may wait: a burst of some hundred sessions that end at once.
const LINES: usize = 1024;
/// The longest line in bytes, so that all of them take 4 MiB at most.
const LINE: usize = 4096;
/// How long the last lines may take when the program ends.
const LAST_LINES: Duration = Duration::from_millis(500);
/// How long who panics waits for room: its message is the one line that is
/// worth it.
const PANIC: Duration = Duration::from_millis(100);

/// The log of the process. Dropping it writes the last lines.
#[derive(Debug)]
pub(crate) struct Logging {
    lines: Option<Lines>,
    thread: Option<JoinHandle<()>>,
}

impl Logging {
    /// Begins to log what RUST_LOG says, else from this level on. Panics are
    /// told there, too.
    pub(crate) fn start(level: &str) -> Self {
        let mut builder = Builder::from_env(Env::default().default_filter_or(level));
        builder.format(|out, record| {
            let said = record.args().to_string();
            let said = printable(cut(&said));
            let (time, level, target) = (out.timestamp(), record.level(), record.target());
            writeln!(out, "[{time} {level:<5} {target}] {}", cut(&said))
        });
        // A handle of its own: `io::stderr` has a lock, for which a panic waits.
        let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
        let started = stderr.and_then(|stderr| Lines::start(stderr, LINES));
        let this = match started {
            Ok((lines, thread)) => {
                builder.target(Target::Pipe(Box::new(lines.clone())));
                lines.clone().tell_panics();
                Self {
                    lines: Some(lines),
                    thread: Some(thread),
                }
            }
            // Better a log that may be waited for than none.
            Err(_) => Self {
                lines: None,
                thread: None,
            },
        };
        builder.init();
        this
    }
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

/// Where lines are put.
#[derive(Clone, Debug)]
struct Lines {
    queue: Sender<Message>,
    left_out: Arc<AtomicU64>,
}

impl Lines {
    fn start(to: impl Write + Send + 'static, room: usize) -> io::Result<(Self, JoinHandle<()>)> {
        let (queue, lines) = bounded(room);
        let left_out = Arc::new(AtomicU64::new(0));
        let this = Self {
            queue,
            left_out: Arc::clone(&left_out),
        };
        let thread = std::thread::Builder::new()
            .name("ssntp-log".into())
            .spawn(move || write_lines(&lines, &left_out, to))?;
        Ok((this, thread))
    }

    /// Queues a line, or counts it where there is no room.
    fn put(&self, line: &[u8]) {
        let mut before = 0;
        if !self.queue.is_full() {
            // What was left out stands where it would have.
            before = self.left_out.swap(0, Ordering::Relaxed);
            let mut text = told(before).into_bytes();
            text.extend_from_slice(line);
            if self.queue.try_send(Message::Line(text)).is_ok() {
                return;
            }
        }
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
            let text = Message::Line(panic_text(panic).into_bytes());
            if let Err(SendTimeoutError::Disconnected(_)) = self.queue.send_timeout(text, PANIC) {
                usual(panic);
            }
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

fn write_lines(lines: &Receiver<Message>, left_out: &AtomicU64, mut to: impl Write) {
    for message in lines {
        // What cannot be written can be told nobody.
        if let Message::Line(line) = &message {
            let _ = to.write_all(line);
        }
        if lines.is_empty() {
            let _ = to.write_all(told(left_out.swap(0, Ordering::Relaxed)).as_bytes());
        }
        if let Message::End(_) = message {
            return;
        }
    }
}

fn told(left_out: u64) -> String {
    match left_out {
        0 => String::new(),
        1 => "ssntp: 1 log line was left out: standard error is not read fast enough\n".to_owned(),
        _ => format!(
            "ssntp: {} log lines were left out: standard error is not read fast enough\n",
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

/// The beginning of a text that fits a line.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(LINE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn panic_text(panic: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let mut text = format!("thread '{}' ", thread.name().unwrap_or("<unnamed>"));
    for line in cut(&panic.to_string()).lines() {
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

    fn slow(room: usize) -> (Lines, JoinHandle<()>, Sender<()>, Receiver<String>) {
        let (let_it, let_through) = bounded(0);
        let (written, lines) = crossbeam_channel::unbounded();
        let slow = Slow { let_through, written };
        let (queue, thread) = Lines::start(slow, room).unwrap();
        (queue, thread, let_it, lines)
    }

    #[test]
    fn nobody_waits_for_a_reader_and_what_is_left_out_is_said_in_its_place() {
        let (queue, thread, let_it, written) = slow(4);
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
        let (queue, thread, let_it, written) = slow(8);
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
        let (queue, thread, let_it, written) = slow(8);
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
        assert!(told.starts_with("thread 'worker' panicked at src/"), "{told}");
        assert!(told.contains("\ntwo\nlines\\u{202e}\n"), "{told}");
    }

    #[test]
    fn a_line_is_cut_between_characters() {
        let long = "ü".repeat(LINE);
        assert_eq!(cut(&long).len(), LINE);
        assert_eq!(cut(&format!("x{long}")).len(), LINE - 1);
        assert_eq!(cut("short"), "short");
    }
}
