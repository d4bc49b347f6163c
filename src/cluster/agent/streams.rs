//! The thread that reads what instances have written, for all streams: a piece of
//! each in turn, as far as each has credit.
//!
//! ```text
//!  agent thread ── Open, Credit, Close, Ended ─▶ table ─▶ ssntp-streams ── frames ─▶ client
//!                                             one entry      │
//!                                             a stream       └ stdout.log.1, stdout.log, …
//! ```
//!
//! The agent's thread changes the table under its lock and never waits: the lock is
//! held for no reading. There is no queue, so nothing but the number of streams
//! ([`MOST`]) has to be bounded.
//!
//! Files are those that the instance's supervisor writes and begins anew
//! (`driver/supervisor/logs.rs`). They are opened in the instance's directory, never
//! through a link, without waiting, and are files or are not read. What was opened
//! is read to its end whatever becomes of its name.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, warn};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use uuid::Uuid;

use super::control::StreamOrder;
use crate::client::{ClientHandle, SendFault};
use crate::proto::{
    Frame, OpenStream, Outputs, StreamData, StreamEndReason, StreamEnded, stream_opened,
};
use crate::transport::threads;

/// The most streams: what a scheduler opens to one node.
const MOST: usize = 64;
/// How often logs that are followed are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How much is looked through for the beginning of the last lines at a time.
const BLOCK: usize = 256 * 1024;
/// How often a log may be begun anew while it is being opened.
const TRIES: usize = 8;
/// How long the thread may take to end: a disk may not answer.
const LAST_READ: Duration = Duration::from_millis(500);

/// The thread, and what it has been asked for.
#[derive(Debug)]
pub(crate) struct Streams {
    shared: Arc<Shared>,
    client: ClientHandle,
    thread: Option<JoinHandle<()>>,
    /// Disconnected once the thread has ended.
    ended: Receiver<()>,
}

#[derive(Debug, Default)]
struct Shared {
    asked: Mutex<Asked>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Asked {
    streams: BTreeMap<Uuid, Wanted>,
    /// Something in here has changed since the thread has looked.
    changed: bool,
    stop: bool,
}

/// A stream as it was asked for.
#[derive(Clone, Debug)]
struct Wanted {
    open: OpenStream,
    dir: PathBuf,
    credit: u32,
    /// Nothing more will be written.
    over: bool,
}

impl Streams {
    /// Starts the thread, which sends with that client.
    pub(crate) fn start(client: ClientHandle) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (alive, ended) = bounded(0);
        let (served, sender) = (Arc::clone(&shared), client.clone());
        let thread = threads::spawn("ssntp-streams", move || {
            let _alive: Sender<()> = alive;
            served.run(&sender);
        })?;
        Ok(Self {
            shared,
            client,
            thread: Some(thread),
            ended,
        })
    }

    /// Carries out an order. Does not wait.
    pub(crate) fn take(&self, order: StreamOrder) {
        let mut asked = self.shared.lock();
        match order {
            StreamOrder::Open { open, place, runs } => {
                let is_known = asked.streams.contains_key(&open.stream);
                if is_known || asked.streams.len() >= MOST {
                    let text = format!("the instance's node has {MOST} streams already");
                    let ended = StreamEnded::new(open.stream, StreamEndReason::TOO_MANY, text);
                    // Where it finds no room, its controller gives up.
                    let _ = self.client.try_send(ended.frame());
                    return;
                }
                let wanted = Wanted {
                    open,
                    dir: place.dir().to_owned(),
                    credit: open.credit,
                    over: !runs,
                };
                asked.streams.insert(open.stream, wanted);
            }
            StreamOrder::Credit(credit) => {
                if let Some(wanted) = asked.streams.get_mut(&credit.stream) {
                    wanted.credit = wanted.credit.saturating_add(credit.bytes);
                }
            }
            StreamOrder::Close(stream) => drop(asked.streams.remove(&stream)),
            StreamOrder::CloseAll => asked.streams.clear(),
            StreamOrder::Ended(instance) => {
                let of_it = |wanted: &&mut Wanted| wanted.open.instance == instance;
                for wanted in asked.streams.values_mut().filter(of_it) {
                    wanted.over = true;
                }
            }
        }
        asked.changed = true;
        drop(asked);
        self.shared.news.notify_one();
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.news.notify_one();
        if self.ended.recv_timeout(LAST_READ) == Err(RecvTimeoutError::Timeout) {
            warn!("the thread that reads logs does not end, and is left behind");
            return;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What came of a look at a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outlook {
    /// Nothing, until it is asked for more.
    Waits,
    /// There may be more in a while.
    LookAgain,
    /// There may be more at once.
    GoesOn,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, client: &ClientHandle) {
        let mut readers: BTreeMap<Uuid, Reader> = BTreeMap::new();
        let mut outlook = Outlook::Waits;
        while let Some(wanted) = self.next(outlook) {
            readers.retain(|stream, _| wanted.contains_key(stream));
            outlook = Outlook::Waits;
            for (stream, wanted) in wanted {
                let reader = readers.entry(stream).or_insert_with(|| Reader::new(&wanted));
                outlook = outlook.max(self.serve(client, stream, &wanted, reader));
            }
        }
    }

    /// What is asked for, once it is time to look; none at the end.
    fn next(&self, outlook: Outlook) -> Option<BTreeMap<Uuid, Wanted>> {
        let mut asked = self.lock();
        while !asked.changed && !asked.stop && outlook != Outlook::GoesOn {
            if outlook == Outlook::Waits {
                asked = self.news.wait(asked).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.news.wait_timeout(asked, LOOK);
            asked = waited.unwrap_or_else(PoisonError::into_inner).0;
            break;
        }
        asked.changed = false;
        (!asked.stop).then(|| asked.streams.clone())
    }

    /// Sends the next piece of a stream, or its end.
    fn serve(&self, client: &ClientHandle, stream: Uuid, wanted: &Wanted, reader: &mut Reader) -> Outlook {
        let outgoing = match reader.unsent.take() {
            Some(outgoing) => outgoing,
            None => match reader.read(wanted) {
                Ok(Piece::Data(data)) => Outgoing {
                    cost: data.cost(),
                    frame: data.frame(),
                    is_last: false,
                },
                Ok(Piece::Sought) => return Outlook::GoesOn,
                Ok(Piece::NotYet) => return Outlook::LookAgain,
                Ok(Piece::NoCredit) => return Outlook::Waits,
                Ok(Piece::End) => Outgoing::last(StreamEnded::new(stream, StreamEndReason::DONE, "")),
                Err(e) => {
                    debug!("instance {}: its log: {e}", wanted.open.instance);
                    let text = format!("its log cannot be read: {e}");
                    Outgoing::last(StreamEnded::new(stream, StreamEndReason::UNREADABLE, text))
                }
            },
        };
        let Outgoing { frame, cost, is_last } = outgoing;
        match client.try_send(frame) {
            Ok(()) => {}
            Err(e) if matches!(e.fault(), SendFault::Full) => {
                let frame = e.into_frame();
                reader.unsent = Some(Outgoing { frame, cost, is_last });
                return Outlook::LookAgain;
            }
            // The session is over, and its streams with it.
            Err(_) => {
                self.lock().streams.remove(&stream);
                return Outlook::Waits;
            }
        }
        let mut asked = self.lock();
        if is_last {
            asked.streams.remove(&stream);
        } else if let Some(wanted) = asked.streams.get_mut(&stream) {
            wanted.credit = wanted.credit.saturating_sub(cost);
        }
        Outlook::GoesOn
    }
}

/// A frame that is to leave.
#[derive(Debug)]
struct Outgoing {
    frame: Frame,
    /// Of the stream's credit.
    cost: u32,
    is_last: bool,
}

impl Outgoing {
    fn last(ended: StreamEnded) -> Self {
        Self {
            frame: ended.frame(),
            cost: 0,
            is_last: true,
        }
    }
}

/// What there is next in a stream.
#[derive(Debug)]
enum Piece {
    Data(StreamData),
    /// Nothing was found yet, and there is more to look through.
    Sought,
    /// The instance has written nothing more so far.
    NotYet,
    NoCredit,
    End,
}

/// How far a stream has come.
#[derive(Debug)]
struct Reader {
    logs: Vec<Log>,
    /// `None` until it is there: an instance may be on its way.
    dir: Option<OwnedFd>,
    unsent: Option<Outgoing>,
}

impl Reader {
    fn new(wanted: &Wanted) -> Self {
        let open = &wanted.open;
        let outputs = [(Outputs::STDOUT, "stdout.log"), (Outputs::STDERR, "stderr.log")];
        let asked = outputs.into_iter().filter(|(output, _)| open.outputs.contains(*output));
        Self {
            logs: asked.map(|(output, name)| Log::new(output, name)).collect(),
            dir: None,
            unsent: Some(Outgoing {
                frame: stream_opened(open.stream),
                cost: 0,
                is_last: false,
            }),
        }
    }

    /// Both outputs get their turns.
    fn read(&mut self, wanted: &Wanted) -> io::Result<Piece> {
        let room = StreamData::room(wanted.credit);
        if self.dir.is_none() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            self.dir = found(openat(CWD, &wanted.dir, flags, Mode::empty()))?;
        }
        let Some(dir) = &self.dir else {
            return Ok(match wanted.over {
                true => Piece::End,
                false => Piece::NotYet,
            });
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

/// One output of an instance, as far as it was read.
#[derive(Debug)]
struct Log {
    output: Outputs,
    name: &'static str,
    /// What is still to be read, the oldest first; the last one may grow.
    parts: VecDeque<Part>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Unopened,
    /// The beginning of the last lines is looked for, backwards: in this part,
    /// before this place, and so many line ends are to be found.
    Seeking { part: usize, before: u64, ends: u32 },
    Reading,
}

#[derive(Debug)]
struct Part {
    file: File,
    at: u64,
    /// How long it was when it was opened.
    length: u64,
    /// Something may be missing before what is read next.
    missing: bool,
}

impl Log {
    fn new(output: Outputs, name: &'static str) -> Self {
        Self {
            output,
            name,
            parts: VecDeque::new(),
            stage: Stage::Unopened,
        }
    }

    fn read(&mut self, dir: &OwnedFd, wanted: &Wanted, room: usize) -> io::Result<Piece> {
        let open = &wanted.open;
        loop {
            match self.stage {
                Stage::Unopened => {
                    self.parts = parts(dir, self.name)?;
                    match self.parts.is_empty() {
                        false => self.stage = self.first_stage(open.tail),
                        true if open.follow && !wanted.over => return Ok(Piece::NotYet),
                        true => return Ok(Piece::End),
                    }
                }
                Stage::Seeking { part, before, ends } => {
                    self.stage = self.seek(part, before, ends)?;
                    return Ok(Piece::Sought);
                }
                Stage::Reading => break,
            }
        }
        if room == 0 {
            return Ok(Piece::NoCredit);
        }
        while let Some(part) = self.parts.front_mut() {
            let bytes = part.read(room, open.follow)?;
            if !bytes.is_empty() {
                return Ok(Piece::Data(StreamData {
                    stream: open.stream,
                    output: self.output,
                    missing: std::mem::take(&mut part.missing),
                    data: bytes,
                }));
            }
            if self.parts.len() == 1 {
                break;
            }
            self.parts.pop_front();
        }
        if !open.follow {
            return Ok(Piece::End);
        }
        self.go_on(dir, wanted.over)
    }

    /// Where the lines begin that are wanted.
    fn first_stage(&mut self, tail: Option<u32>) -> Stage {
        let last = self.parts.len().saturating_sub(1);
        let length = self.parts.back().map_or(0, |part| part.length);
        match tail {
            None => Stage::Reading,
            Some(0) => self.begin_at(last, length),
            Some(ends) => Stage::Seeking {
                part: last,
                before: length,
                ends,
            },
        }
    }

    fn begin_at(&mut self, part: usize, at: u64) -> Stage {
        self.parts.drain(..part);
        if let Some(part) = self.parts.front_mut() {
            part.at = at;
        }
        Stage::Reading
    }

    /// Looks through one block. The line end that is the very last byte ends the
    /// last line, and begins none.
    fn seek(&mut self, number: usize, before: u64, mut ends: u32) -> io::Result<Stage> {
        let Some(part) = self.parts.get(number) else {
            return Ok(Stage::Reading);
        };
        let is_end = number + 1 == self.parts.len() && before == part.length;
        let begin = before.saturating_sub(BLOCK as u64);
        let mut block = vec![0; usize::try_from(before - begin).unwrap_or(BLOCK)];
        let length = read_at(&part.file, &mut block, begin)?;
        block.truncate(length);
        for (at, byte) in block.iter().enumerate().rev() {
            if *byte != b'\n' || (is_end && at + 1 == length) {
                continue;
            }
            ends -= 1;
            if ends == 0 {
                return Ok(self.begin_at(number, begin + at as u64 + 1));
            }
        }
        Ok(match (begin, number.checked_sub(1)) {
            (0, None) => self.begin_at(0, 0),
            (0, Some(number)) => Stage::Seeking {
                part: number,
                before: self.parts.get(number).map_or(0, |part| part.length),
                ends,
            },
            (before, _) => Stage::Seeking {
                part: number,
                before,
                ends,
            },
        })
    }

    /// Finds out whether more will come, once all was read.
    fn go_on(&mut self, dir: &OwnedFd, over: bool) -> io::Result<Piece> {
        let Some(part) = self.parts.front_mut() else {
            return Ok(Piece::End);
        };
        let length = part.file.metadata()?.len();
        if length < part.at {
            // It could not be renamed, and was begun anew as it is.
            (part.at, part.missing) = (0, true);
            return Ok(Piece::Sought);
        }
        match successor(dir, self.name, &part.file)? {
            // Nobody writes to the one before any more; what was written last to it
            // is read first.
            Some(next) => self.parts.push_back(next),
            None if over => return Ok(Piece::End),
            None => return Ok(Piece::NotYet),
        }
        Ok(Piece::Sought)
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

    /// The next bytes: none where there are no more, or all was read that was
    /// there at the beginning.
    fn read(&mut self, room: usize, beyond: bool) -> io::Result<Bytes> {
        let length = match beyond {
            true => self.file.metadata()?.len(),
            false => self.length,
        };
        let left = length.saturating_sub(self.at);
        let mut bytes = vec![0; room.min(usize::try_from(left).unwrap_or(room))];
        let length = read_at(&self.file, &mut bytes, self.at)?;
        bytes.truncate(length);
        self.at += length as u64;
        Ok(bytes.into())
    }
}

/// A log's files, the oldest first, which follow each other.
fn parts(dir: &OwnedFd, name: &'static str) -> io::Result<VecDeque<Part>> {
    let mut files = VecDeque::new();
    for _ in 0..TRIES {
        let latest = open(dir, name)?;
        let before = open(dir, &before(name))?;
        let still = open(dir, name)?;
        let settled = match (&latest, &still) {
            (Some(latest), Some(still)) => is_same(latest, still)?,
            (None, None) => true,
            _ => false,
        };
        files = [before, latest].into_iter().flatten().collect();
        if settled {
            break;
        }
    }
    if let [before, latest] = files.make_contiguous()
        && is_same(before, latest)?
    {
        files.pop_back();
    }
    files.into_iter().map(Part::new).collect()
}

/// What follows a log that is not written any more; none while it is the latest
/// one.
fn successor(dir: &OwnedFd, name: &'static str, ours: &File) -> io::Result<Option<Part>> {
    for _ in 0..TRIES {
        let Some(latest) = open(dir, name)? else {
            // It is just being begun anew.
            return Ok(None);
        };
        if is_same(&latest, ours)? {
            return Ok(None);
        }
        let before = open(dir, &before(name))?;
        match open(dir, name)? {
            Some(still) if is_same(&still, &latest)? => {}
            _ => continue,
        }
        let (next, missing) = match before {
            Some(before) if is_same(&before, ours)? => (latest, false),
            Some(before) => (before, true),
            None => (latest, true),
        };
        return Ok(Some(Part {
            missing,
            ..Part::new(next)?
        }));
    }
    Ok(None)
}

fn before(name: &str) -> String {
    format!("{name}.1")
}

/// Opens a log: never through a link, never waiting for who may write to a FIFO,
/// and nothing but a file.
fn open(dir: &OwnedFd, name: &str) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let Some(file) = found(openat(dir, name, flags, Mode::empty()))?.map(File::from) else {
        return Ok(None);
    };
    match file.metadata()?.is_file() {
        true => Ok(Some(file)),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name} is no file"),
        )),
    }
}

fn found(opened: Result<OwnedFd, Errno>) -> io::Result<Option<OwnedFd>> {
    match opened {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
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
