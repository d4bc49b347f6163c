//! The logs of an instance, kept within bounds.
//!
//! ```text
//!  stdout.log    the latest output; before it grows past half of the limit, it is renamed to
//!  stdout.log.1  the output before, and a new stdout.log is begun
//! ```
//!
//! If the disk has no room, output is lost, so an instance never waits for the disk. An instance
//! waits if it writes faster than its output is read ([`RATE`]).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, renameat};

use crate::tree;

/// The maximum that is read at a time.
const PIECE: usize = 16 * 1024;
/// The maximum number of pieces that are read after the end of a run: as much as a pipe can hold, which is
/// 64 KiB by default and 1 MiB at most.
const LAST_PIECES: usize = 64;

/// How much of an output is told with the end of a run.
const LAST_LINES: usize = 3;
const MOST_CHARACTERS: usize = 200;
const LAST_BYTES: usize = 1024;

/// The maximum number of bytes of an output that are read in a second, once the output has filled its log.
/// The CPU time for reading is charged to the supervisor and not to the instance, so it is limited to some
/// percent of a CPU. A log of 16 MB, the default, contains four seconds of such output.
const RATE: u64 = 4 << 20;
/// The pause before an output that was too fast is read again.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// One of an instance's outputs: a pipe, and the log for its content.
#[derive(Debug)]
pub(super) struct Output {
    /// The pipe, which is read without blocking. `None` once every writer has closed it.
    pipe: Option<io::PipeReader>,
    log: Log,
    /// The number of bytes that may be read, as of `since`.
    allowance: u64,
    since: Instant,
    /// The last bytes that were read.
    last: Vec<u8>,
}

impl Output {
    pub(super) fn new(pipe: io::PipeReader, log: Log, now: Instant) -> Self {
        Self {
            pipe: Some(pipe),
            allowance: log.most * 2,
            since: now,
            log,
            last: Vec::new(),
        }
    }

    /// The last lines that were read, as one line.
    pub(super) fn last_lines(&self) -> String {
        let text = String::from_utf8_lossy(&self.last);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut last: Vec<_> = lines.rev().take(LAST_LINES).collect();
        last.reverse();
        let line = last.join(" / ");
        let too_many = line.chars().count().saturating_sub(MOST_CHARACTERS);
        line.chars().skip(too_many).collect()
    }

    /// The pipe, unless its writers have closed it.
    pub(super) fn pipe(&self) -> Option<&io::PipeReader> {
        self.pipe.as_ref()
    }

    /// True if the output was so fast that it is not read again before [`PAUSE`].
    pub(super) fn is_held(&self) -> bool {
        self.allowance < PIECE as u64
    }

    /// Reads a piece of the output, unless the output was too fast. Returns true if there may be
    /// more.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.since);
        // The allowance grows after a whole pause only, because shorter times would be rounded to 0.
        if since >= PAUSE {
            let more = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            let more = more.saturating_mul(RATE / 1000);
            self.allowance = self.allowance.saturating_add(more).min(self.log.most * 2);
            self.since = now;
        }
        !self.is_held() && self.read()
    }

    fn read(&mut self) -> bool {
        let Some(pipe) = &mut self.pipe else { return false };
        let mut piece = [0; PIECE];
        match pipe.read(&mut piece) {
            Ok(0) => self.pipe = None,
            Ok(length) => {
                let piece = piece.get(..length).unwrap_or_default();
                self.log.add(piece);
                self.last.extend_from_slice(piece);
                let before = self.last.len().saturating_sub(LAST_BYTES);
                self.last.drain(..before);
                self.allowance = self.allowance.saturating_sub(length as u64);
                return true;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.pipe = None,
        }
        false
    }

    /// Reads the remaining output, without waiting for processes that still hold the pipe.
    pub(super) fn drain(&mut self) {
        for _ in 0..LAST_PIECES {
            if !self.read() {
                break;
            }
        }
    }
}

/// A log.
#[derive(Debug)]
pub(super) struct Log {
    dir: Arc<OwnedFd>,
    name: &'static str,
    /// `None` if the file can't be opened.
    file: Option<File>,
    length: u64,
    /// The maximum number of bytes of this file: half of the log's limit.
    most: u64,
}

impl Log {
    /// Continues a log.
    pub(super) fn open(dir: Arc<OwnedFd>, name: &'static str, limit: u64) -> io::Result<Self> {
        let mut log = Self {
            dir,
            name,
            file: None,
            length: 0,
            // Half of the limit, because this file and the one before it are kept.
            most: (limit / 2).max(PIECE as u64),
        };
        log.open_file(OFlags::empty())?;
        Ok(log)
    }

    fn open_file(&mut self, more: OFlags) -> io::Result<()> {
        self.file = None;
        let how = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | more;
        let file = tree::open_file(&*self.dir, self.name, how)?;
        self.length = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.file.is_none() {
            // The file could not be made before, but the disk may have room by now.
            let _ = self.open_file(OFlags::empty());
        } else if self.length + bytes.len() as u64 > self.most {
            // This precedes the write, so that neither file is ever longer than half of the limit.
            self.begin_anew();
        }
        if let Some(file) = &mut self.file {
            // A full disk writes only a part of the piece, or fails. The rest is lost.
            self.length += file.write(bytes).unwrap_or(0) as u64;
        }
    }

    fn begin_anew(&mut self) {
        let before = format!("{}.1", self.name);
        // If the file can't be renamed, it is truncated, because the limit has to be kept.
        let more = match renameat(&*self.dir, self.name, &*self.dir, before) {
            Ok(()) => OFlags::empty(),
            Err(_) => OFlags::TRUNC,
        };
        let _ = self.open_file(more);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const LIMIT: u64 = 4 * PIECE as u64;

    fn log(dir: &Path) -> io::Result<Log> {
        Log::open(Arc::new(File::open(dir)?.into()), "stdout.log", LIMIT)
    }

    #[test]
    fn a_full_log_is_renamed_and_the_latest_output_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let sizes = || {
            ["stdout.log", "stdout.log.1"]
                .map(|name| fs::metadata(dir.path().join(name)).map_or(0, |m| m.len()))
        };
        let piece = PIECE as u64;
        let mut log = log(dir.path()).unwrap();
        for expected in [[1, 0], [2, 0], [1, 2], [2, 2], [1, 2]] {
            log.add(&[b'x'; PIECE]);
            assert_eq!(sizes(), expected.map(|pieces| pieces * piece));
        }
        // The next run appends to the log.
        let mut log = super::tests::log(dir.path()).unwrap();
        log.add(b"end");
        assert_eq!(sizes(), [piece + 3, 2 * piece]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do to begin with")]
    fn output_that_is_written_too_fast_waits() {
        let dir = tempfile::tempdir().unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let start = Instant::now();
        let log = Log::open(
            Arc::new(File::open(dir.path()).unwrap().into()),
            "stdout.log",
            1 << 20,
        );
        let mut output = Output::new(reader, log.unwrap(), start);
        let mut taken = |now: Instant| {
            let mut pieces = 0u64;
            loop {
                writer.write_all(&[b'x'; PIECE]).unwrap();
                if !output.take(now) {
                    io::Read::read_exact(&mut output.pipe.as_ref().unwrap(), &mut [0; PIECE]).unwrap();
                    assert!(output.is_held());
                    return pieces * PIECE as u64;
                }
                pieces += 1;
            }
        };
        // The size of a log is written at once, and then a limited number of bytes in each period.
        assert_eq!(taken(start), 1 << 20);
        assert_eq!(taken(start + PAUSE / 2), 0);
        let second: u64 = (1..=20).map(|pauses| taken(start + PAUSE * pauses)).sum();
        assert!((RATE * 9 / 10..=RATE).contains(&second), "{second}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do to begin with")]
    fn the_last_lines_of_an_output_are_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let mut output = Output::new(reader, log(dir.path()).unwrap(), Instant::now());
        assert_eq!(output.last_lines(), "");
        writer.write_all(b"1\n2\n\n  3\r\n").unwrap();
        output.drain();
        assert_eq!(output.last_lines(), "1 / 2 / 3");
        writer.write_all(b"4").unwrap();
        output.drain();
        assert_eq!(output.last_lines(), "2 / 3 / 4");
        writer.write_all("ä".repeat(LAST_BYTES).as_bytes()).unwrap();
        output.drain();
        assert_eq!(output.last_lines(), "ä".repeat(MOST_CHARACTERS));
        assert!(output.last.len() <= LAST_BYTES);
    }

    #[test]
    fn output_that_cannot_be_kept_is_dropped_and_links_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("stdout.log.1/x")).unwrap();
        let mut log = log(dir.path()).unwrap();
        for _ in 0..3 {
            log.add(&[b'x'; PIECE]);
        }
        let path = dir.path().join("stdout.log");
        assert_eq!(fs::metadata(&path).unwrap().len(), PIECE as u64);

        fs::remove_file(&path).unwrap();
        fs::write(dir.path().join("other"), "").unwrap();
        std::os::unix::fs::symlink("other", &path).unwrap();
        assert!(super::tests::log(dir.path()).is_err());
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        assert!(super::tests::log(dir.path()).is_err());
    }
}
