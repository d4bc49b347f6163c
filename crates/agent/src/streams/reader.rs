//! The next piece of a stream, from the files of an instance's log.
//!
//! The instance's supervisor writes the files, and begins new ones when they are full
//! (`driver/supervisor/logs.rs`). They are opened in the instance's directory without waiting. Only
//! regular files are read, and links are refused. A file that was opened is read to its end, even if
//! it is renamed meanwhile.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use bytes::Bytes;
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::tree;
use ssntp_payload::{OpenStream, Outputs, StreamData};

/// The number of bytes that are searched at a time for the beginning of the last lines.
const BLOCK: usize = 256 * 1024;
/// The number of tries to open the files of a log between two renames by the supervisor.
const TRIES: usize = 8;

/// A stream as its controller has requested it.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The request. Its credit is the credit that is left.
    pub(super) open: OpenStream,
    pub(super) dir: PathBuf,
    /// True if the instance has ended and writes no more output.
    pub(super) over: bool,
    /// True if nobody reads the stream any more.
    pub(super) closed: bool,
}

/// The next piece of a stream.
#[derive(Debug)]
pub(super) enum Piece {
    Data(StreamData),
    /// All output so far was read, and the instance may write more.
    NotYet,
    NoCredit,
    End,
}

/// The position of a stream in the logs of an instance.
#[derive(Debug)]
pub(super) struct Reader {
    logs: Vec<OutputLog>,
    /// `None` until the directory exists: the directory of an instance is made during the launch.
    dir: Option<OwnedFd>,
}

impl Reader {
    pub(super) fn new(outputs: Outputs) -> Self {
        let all = [(Outputs::STDOUT, "stdout.log"), (Outputs::STDERR, "stderr.log")];
        let wanted = all.into_iter().filter(|(output, _)| outputs.contains(*output));
        Self {
            logs: wanted
                .map(|(output, name)| OutputLog {
                    output,
                    name,
                    parts: VecDeque::new(),
                })
                .collect(),
            dir: None,
        }
    }

    /// The next piece of the stream. The outputs take turns: after a read the output becomes the
    /// last in order.
    pub(super) fn read(&mut self, wanted: &Wanted) -> io::Result<Piece> {
        let room = StreamData::room(wanted.open.credit);
        if self.dir.is_none() {
            // `PATH` suffices to open files below it, and needs no right to list the directory.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            self.dir = found(openat(CWD, &wanted.dir, flags, Mode::empty()).map_err(io::Error::from))?;
        }
        let Some(dir) = &self.dir else {
            return Ok(if wanted.over { Piece::End } else { Piece::NotYet });
        };
        let mut next = Piece::End;
        for at in 0..self.logs.len() {
            let Some(log) = self.logs.get_mut(at) else { break };
            match log.read(dir, wanted, room)? {
                Piece::End => {}
                Piece::NotYet => next = Piece::NotYet,
                found => {
                    self.logs.rotate_left(at + 1);
                    return Ok(found);
                }
            }
        }
        Ok(next)
    }
}

/// The position of a stream in one output of an instance.
#[derive(Debug)]
struct OutputLog {
    output: Outputs,
    name: &'static str,
    /// The files that were not read to their end yet, the oldest first. The last one may grow. Empty as
    /// long as the log does not exist.
    parts: VecDeque<Part>,
}

#[derive(Debug)]
struct Part {
    file: File,
    at: u64,
    /// The length of the file when it was opened.
    length: u64,
    /// True if output before the next byte may have been lost.
    missing: bool,
}

impl OutputLog {
    fn read(&mut self, dir: &OwnedFd, wanted: &Wanted, room: usize) -> io::Result<Piece> {
        let open = &wanted.open;
        let at_end = if wanted.over { Piece::End } else { Piece::NotYet };
        if self.parts.is_empty() {
            self.parts = parts(dir, self.name)?;
            if self.parts.is_empty() {
                return Ok(if open.follow { at_end } else { Piece::End });
            }
            if let Some(lines) = open.tail {
                self.skip_to_last(lines)?;
            }
        }
        if room == 0 {
            return Ok(Piece::NoCredit);
        }
        while let (is_last, Some(part)) = (self.parts.len() == 1, self.parts.front_mut()) {
            let bytes = part.read(room, open.follow)?;
            if !bytes.is_empty() {
                return Ok(Piece::Data(StreamData {
                    stream: open.stream,
                    output: self.output,
                    missing: std::mem::take(&mut part.missing),
                    data: bytes,
                }));
            }
            // A part that was read to its end is followed by the next part. The last part is kept open,
            // because it may grow.
            if !is_last {
                self.parts.pop_front();
                continue;
            }
            if !open.follow {
                break;
            }
            if part.file.metadata()?.len() < part.at {
                // Files only grow, unless the supervisor cannot rename a full one: then it truncates
                // the file and begins anew.
                (part.at, part.missing) = (0, true);
                continue;
            }
            match successor(dir, self.name, &part.file)? {
                // The present file is complete now. Its last bytes are read before the next file.
                Some(next) => self.parts.push_back(next),
                None => return Ok(at_end),
            }
        }
        Ok(Piece::End)
    }

    /// Finds the beginning of the last lines, and skips what is before them. A line end that is the last
    /// byte of the log does not count, because no line begins after it.
    fn skip_to_last(&mut self, mut lines: u32) -> io::Result<()> {
        let (mut number, mut is_last_byte) = (self.parts.len(), true);
        let mut before = 0;
        while lines > 0 {
            // A log may be longer than the memory that a stream may use, so it is searched in blocks.
            if before == 0 {
                let Some(earlier) = number.checked_sub(1) else {
                    // The log has fewer lines than requested, so all of them are sent.
                    return Ok(());
                };
                number = earlier;
                before = self.parts[number].length;
            }
            let begin = before.saturating_sub(BLOCK as u64);
            let mut block = vec![0; usize::try_from(before - begin).unwrap_or(BLOCK)];
            let length = read_at(&self.parts[number].file, &mut block, begin)?;
            before = begin;
            for (at, byte) in block.iter().enumerate().take(length).rev() {
                if *byte != b'\n' || std::mem::take(&mut is_last_byte) {
                    is_last_byte = false;
                    continue;
                }
                lines -= 1;
                if lines == 0 {
                    before = begin + at as u64 + 1;
                    break;
                }
            }
        }
        if number == self.parts.len() {
            number -= 1;
            before = self.parts[number].length;
        }
        self.parts.drain(..number);
        self.parts[0].at = before;
        Ok(())
    }
}

impl Part {
    fn new(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Self {
            file,
            at: 0,
            length,
            missing: false,
        })
    }

    /// The next bytes; none at the end of the file. Unless `beyond` is set, bytes that were written
    /// after the file was opened are not read.
    fn read(&mut self, room: usize, beyond: bool) -> io::Result<Bytes> {
        // A stream that does not follow contains only the output before its beginning. Otherwise an
        // instance that writes fast enough would keep the stream open for ever.
        let length = if beyond {
            self.file.metadata()?.len()
        } else {
            self.length
        };
        let left = length.saturating_sub(self.at);
        let mut bytes = vec![0; room.min(usize::try_from(left).unwrap_or(room))];
        let length = read_at(&self.file, &mut bytes, self.at)?;
        bytes.truncate(length);
        self.at += length as u64;
        Ok(bytes.into())
    }
}

/// The file of a log before the latest one, and the latest file.
fn files(dir: &OwnedFd, name: &str) -> io::Result<[Option<File>; 2]> {
    let mut files = [None, None];
    for _ in 0..TRIES {
        // The supervisor may rename the log in between. The name then refers to another file
        // afterwards, and both files are opened again.
        let latest = open(dir, name)?;
        let before = open(dir, &before(name))?;
        let is_settled = match (&latest, &open(dir, name)?) {
            (Some(latest), Some(still)) => is_same(latest, still)?,
            (None, None) => true,
            _ => false,
        };
        files = [before, latest];
        if is_settled {
            return Ok(files);
        }
    }
    // If the log was renamed during the last try as well, both names may have led to the same file.
    if let [Some(before), Some(latest)] = &files
        && is_same(before, latest)?
    {
        files = [None, files[0].take()];
    }
    Ok(files)
}

/// The files of a log, the oldest first. No output is missing between them.
fn parts(dir: &OwnedFd, name: &str) -> io::Result<VecDeque<Part>> {
    files(dir, name)?.into_iter().flatten().map(Part::new).collect()
}

/// The file that follows `ours`; `None` if `ours` is the latest file.
fn successor(dir: &OwnedFd, name: &str, ours: &File) -> io::Result<Option<Part>> {
    let (next, missing) = match files(dir, name)? {
        // The supervisor has renamed the log and has not made the new file yet.
        [_, None] => return Ok(None),
        [_, Some(latest)] if is_same(&latest, ours)? => return Ok(None),
        // Ours is the file before the latest, so no output is missing.
        [Some(before), Some(latest)] if is_same(&before, ours)? => (latest, false),
        // The log was renamed more than once, so files after ours are gone.
        [Some(before), _] => (before, true),
        [None, Some(latest)] => (latest, true),
    };
    let next = Part::new(next)?;
    Ok(Some(Part { missing, ..next }))
}

fn before(name: &str) -> String {
    format!("{name}.1")
}

/// Opens a log.
fn open(dir: &OwnedFd, name: &str) -> io::Result<Option<File>> {
    found(tree::open_file(dir, name, OFlags::RDONLY))
}

fn found<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, at) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    use uuid::Uuid;

    use super::*;
    use ssntp_payload::MAX_STREAM_CREDIT;

    const LOG: &str = "stdout.log";
    const BEFORE: &str = "stdout.log.1";

    struct Stage {
        dir: tempfile::TempDir,
        wanted: Wanted,
        reader: Reader,
    }

    impl Stage {
        fn new(follow: bool, tail: Option<u32>) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let open = OpenStream {
                stream: Uuid::from_u128(1),
                instance: Uuid::from_u128(2),
                outputs: Outputs::STDOUT,
                follow,
                tail,
                credit: MAX_STREAM_CREDIT,
            };
            let wanted = Wanted {
                open,
                dir: dir.path().to_owned(),
                over: false,
                closed: false,
            };
            let reader = Reader::new(Outputs::STDOUT);
            Self { dir, wanted, reader }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn append(&self, text: &str) {
            let path = self.path(LOG);
            let log = File::options().append(true).create(true).open(path);
            log.unwrap().write_all(text.as_bytes()).unwrap();
        }

        fn begin_anew(&self, text: &str) {
            fs::rename(self.path(LOG), self.path(BEFORE)).unwrap();
            self.append(text);
        }

        /// All output so far, with `?` where output may be missing, and true at the end of the stream.
        fn read(&mut self) -> (String, bool) {
            let mut found = String::new();
            loop {
                match self.reader.read(&self.wanted).unwrap() {
                    Piece::Data(data) => {
                        found.push_str(if data.missing { "?" } else { "" });
                        found.push_str(str::from_utf8(&data.data).unwrap());
                    }
                    Piece::NotYet => return (found, false),
                    Piece::NoCredit => panic!("there is credit"),
                    Piece::End => return (found, true),
                }
            }
        }
    }

    #[test]
    fn the_last_lines_are_found_in_both_files() {
        let long = "x".repeat(BLOCK);
        let long_line = format!("{long}\n");
        for (before, latest, tail, expected) in [
            ("", "a\nb\nc\n", Some(2), "b\nc\n"),
            ("", "a\nb\nc", Some(2), "b\nc"),
            ("", "a\nb\n", Some(9), "a\nb\n"),
            ("", "a\nb\n", Some(0), ""),
            ("", "a\n\n\n", Some(2), "\n\n"),
            ("a\nb\n", "c\n", Some(2), "b\nc\n"),
            ("a\nb", "c\n", Some(1), "bc\n"),
            ("a\n", "b\n", None, "a\nb\n"),
            ("a\n", "b\n", Some(u32::MAX - 1), "a\nb\n"),
            ("a\nb\n", "", Some(1), "b\n"),
            ("", &long_line, Some(1), &long_line),
        ] {
            for follow in [false, true] {
                let mut stage = Stage::new(follow, tail);
                stage.append(before);
                stage.begin_anew(latest);
                assert_eq!(
                    stage.read(),
                    (expected.to_owned(), !follow),
                    "{before:?} {latest:?} {tail:?}"
                );
            }
        }
    }

    #[test]
    fn a_renamed_log_is_followed_without_loss() {
        let mut stage = Stage::new(true, None);
        assert_eq!(stage.read(), (String::new(), false), "the instance has no output");
        stage.append("a");
        assert_eq!(stage.read().0, "a");
        stage.append("b");
        stage.begin_anew("c");
        assert_eq!(stage.read().0, "bc");
        // An open file is read to its end, although its name is gone.
        stage.append("d");
        stage.begin_anew("e");
        stage.begin_anew("f");
        assert_eq!(stage.read().0, "d?ef");
        // At this moment no file has that name.
        fs::rename(stage.path(LOG), stage.path(BEFORE)).unwrap();
        assert_eq!(stage.read(), (String::new(), false));
        stage.append("g");
        assert_eq!(stage.read().0, "g");
        // The log could not be renamed.
        fs::write(stage.path(LOG), "").unwrap();
        assert_eq!(stage.read(), (String::new(), false));
        stage.append("h");
        assert_eq!(stage.read().0, "?h");
        stage.append("i");
        stage.wanted.over = true;
        assert_eq!(stage.read(), ("i".to_owned(), true));
    }

    #[test]
    fn a_stream_that_does_not_follow_ends_with_the_present_output() {
        let mut stage = Stage::new(false, None);
        stage.append("a");
        stage.wanted.open.credit = StreamData::cost_of(1) - 1;
        assert!(matches!(stage.reader.read(&stage.wanted), Ok(Piece::NoCredit)));
        stage.append("b");
        stage.begin_anew("c");
        stage.wanted.open.credit = MAX_STREAM_CREDIT;
        assert_eq!(stage.read(), ("a".to_owned(), true));
        // The instance has no directory.
        let mut stage = Stage::new(false, None);
        assert_eq!(stage.read(), (String::new(), true));
        let mut stage = Stage::new(true, None);
        stage.wanted.dir.push("missing");
        assert_eq!(stage.read(), (String::new(), false));
        stage.wanted.over = true;
        assert_eq!(stage.read(), (String::new(), true));
    }

    #[test]
    fn credit_limits_the_length_of_a_piece_and_outputs_take_turns() {
        let mut stage = Stage::new(false, None);
        stage.wanted.open.outputs = Outputs::BOTH;
        stage.reader = Reader::new(Outputs::BOTH);
        stage.append("aaaa");
        fs::write(stage.path("stderr.log"), "bbbb").unwrap();
        stage.wanted.open.credit = StreamData::cost_of(3);
        let mut pieces = Vec::new();
        while let Piece::Data(data) = stage.reader.read(&stage.wanted).unwrap() {
            pieces.push(data.data);
        }
        assert_eq!(pieces, ["aaa", "bbb", "a", "b"]);
    }

    #[test]
    fn links_and_fifos_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        let link = |to: &Path| std::os::unix::fs::symlink(dir.path().join("secret"), to).unwrap();
        let pipe = |to: &Path| rustix::fs::mkfifoat(CWD, to, Mode::RWXU).unwrap();
        let directory = |to: &Path| fs::create_dir(to).unwrap();
        let made: [&dyn Fn(&Path); 3] = [&link, &pipe, &directory];
        for make in made {
            for name in [LOG, BEFORE] {
                let mut stage = Stage::new(true, None);
                make(&stage.path(name));
                assert!(stage.reader.read(&stage.wanted).is_err());
            }
        }
        // A link in place of the instance's directory is not followed either.
        let mut stage = Stage::new(true, None);
        stage.append("a");
        let elsewhere = dir.path().join("instance");
        std::os::unix::fs::symlink(stage.dir.path(), &elsewhere).unwrap();
        stage.wanted.dir = elsewhere;
        assert!(stage.reader.read(&stage.wanted).is_err());
    }
}
