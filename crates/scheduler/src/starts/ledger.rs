//! The file in which a scheduler keeps the node of each instance, so that the next scheduler does
//! not start an instance a second time while its node is away.
//!
//! ```text
//!  dispatcher ── instance, node ──▶ ssntp-ledger: appends a line, waits for the disk
//! ```
//!
//! Each line is an instance and its node, or only an instance once that is gone. The last line of
//! an instance counts. The file is rewritten when most of its lines are outdated. The dispatcher
//! never waits for the disk, so a scheduler that is killed may lose its most recent lines. If the disk is too
//! slow, changes are dropped, and once half of the queue is free the nodes of all instances are handed over. So they
//! are when the scheduler ends, which waits for the disk.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use log::warn;
use uuid::Uuid;

use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{elapsed, locked, now, replace};

const FILE: &str = "instances";
const LOCK: &str = "lock";
/// The maximum number of changes that wait for the disk: the STARTs of some seconds.
const MAX_WAITING: usize = 65_536;
/// The maximum number of changes in one write.
const BATCH: usize = 4096;
/// What the log and the health page say while changes are not written in time.
const SLOW: &str = "the disk of --state is too slow: a crash may forget instances";
/// The time after which a write that has not ended is told as a fault.
const MAX_WRITE: Duration = Duration::from_secs(30);
/// The file is rewritten if it has more outdated lines than this number plus the number of
/// instances.
const SLACK: usize = 10_000;

/// What is handed over to the thread.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// An instance and its node; `None` once the instance is gone.
    One(Uuid, Option<Uuid>),
    /// The node of each instance.
    All(HashMap<Uuid, Uuid>),
}

/// The write in progress, and the result of the last one.
#[derive(Debug, Default)]
struct Writing {
    since: Option<Instant>,
    /// The reason why the last write failed.
    failed: Option<String>,
}

/// The thread that writes the file. Dropping it waits until all changes are on the disk.
#[derive(Debug)]
pub(super) struct Ledger {
    changes: Sender<Change>,
    _thread: Joined,
    /// True if the queue was full, so that the file lacks changes.
    is_behind: bool,
    writing: Arc<Mutex<Writing>>,
    /// Closing this file releases the lock.
    _lock: File,
}

impl Ledger {
    /// Opens the ledger in a directory, which is created if it does not exist, and starts the
    /// thread. Returns the node of each instance that a former scheduler has kept.
    pub(super) fn open(directory: &Path) -> io::Result<(Self, HashMap<Uuid, Uuid>)> {
        fs::create_dir_all(directory).map_err(|e| {
            if directory.is_file() {
                io::Error::other("it is a file and no directory")
            } else {
                e
            }
        })?;
        // The lock has its own file, because the ledger's file is replaced.
        let lock = File::create(directory.join(LOCK))?;
        ssntp_transport::lock(&lock, "another scheduler")?;
        let path = directory.join(FILE);
        let owners = read(&path)?;
        let mut book = Book {
            path,
            owners: owners.clone(),
            // The first write replaces the file, because a line after a torn last line would be
            // unreadable.
            lines: usize::MAX,
            writing: Arc::default(),
        };
        // A file that cannot be written is reported now.
        book.write("")?;
        let (changes, given) = bounded(MAX_WAITING);
        let ledger = Self {
            changes,
            writing: Arc::clone(&book.writing),
            _thread: threads::joined("ssntp-ledger", move || book.serve(&given))?,
            is_behind: false,
            _lock: lock,
        };
        Ok((ledger, owners))
    }

    /// The reason why changes are not on the disk: the last write failed, or the disk is too slow.
    pub(super) fn fault(&self) -> Option<String> {
        let writing = locked(&self.writing);
        let hangs = writing.since.is_some_and(|since| elapsed(since) > MAX_WRITE);
        let slow = (hangs || self.is_behind).then(|| SLOW.to_owned());
        writing.failed.clone().or(slow)
    }

    /// Keeps the node of an instance. Does not block: if the disk is too slow, a warning is logged, and
    /// this change and further ones are dropped until [`catch_up`](Self::catch_up).
    pub(super) fn keep(&mut self, instance: Uuid, node: Option<Uuid>) {
        if self.is_behind {
            return;
        }
        let sent = self.changes.try_send(Change::One(instance, node));
        self.is_behind = matches!(sent, Err(TrySendError::Full(_)));
        if self.is_behind {
            warn!(target: "ssntp::scheduler", "{SLOW}");
        }
    }

    /// True if changes were dropped, and there is room again or the scheduler ends. Room is half of the queue,
    /// because a queue that remains nearly full would fill the log, and copy the table each time.
    pub(super) fn can_catch_up(&self, ends: bool) -> bool {
        self.is_behind && (ends || self.changes.len() <= MAX_WAITING / 2)
    }

    /// Keeps the nodes of all instances in place of what was kept before. Blocks only if there is no room.
    pub(super) fn catch_up(&mut self, owners: HashMap<Uuid, Uuid>) {
        self.is_behind = self.changes.send(Change::All(owners)).is_err();
    }
}

fn read(path: &Path) -> io::Result<HashMap<Uuid, Uuid>> {
    let text = match fs::read(path) {
        // A scheduler writes at least one byte, so something else has emptied the file.
        Ok(bytes) if bytes.is_empty() => {
            let why =
                "it is empty, so the nodes of its instances are lost; delete it to begin without instances";
            let why = format!("{}: {why}", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(e),
    };
    let mut owners = HashMap::new();
    let text = String::from_utf8_lossy(&text);
    let lines = text.trim_start_matches('\u{feff}').split_inclusive('\n');
    for (at, line) in lines.enumerate() {
        let is_torn = !line.ends_with('\n');
        let words: Result<Vec<_>, _> = line.split_ascii_whitespace().map(Uuid::try_parse).collect();
        match words.as_deref() {
            Ok([instance, node]) => drop(owners.insert(*instance, *node)),
            Ok([]) => {}
            // The last line after a crash; its instance may be all that is left of it.
            _ if is_torn => {}
            Ok([instance]) => drop(owners.remove(instance)),
            _ => {
                let why = format!("{}: line {}: expected INSTANCE NODE", path.display(), at + 1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
    }
    Ok(owners)
}

#[derive(Debug)]
struct Book {
    path: PathBuf,
    owners: HashMap<Uuid, Uuid>,
    /// The number of lines in the file; `usize::MAX` if it must be rewritten.
    lines: usize,
    writing: Arc<Mutex<Writing>>,
}

impl Book {
    fn serve(&mut self, changes: &Receiver<Change>) {
        while let Ok(first) = changes.recv() {
            let mut text = String::new();
            // Many changes are written at once, because each write waits for the disk.
            for change in std::iter::once(first).chain(changes.try_iter().take(BATCH)) {
                let (instance, node) = match change {
                    Change::One(instance, node) => (instance, node),
                    Change::All(owners) => {
                        // The file is rewritten.
                        (self.owners, self.lines) = (owners, usize::MAX);
                        continue;
                    }
                };
                let _ = match node {
                    Some(node) => writeln!(text, "{instance} {node}"),
                    None => writeln!(text, "{instance}"),
                };
                match node {
                    Some(node) => self.owners.insert(instance, node),
                    None => self.owners.remove(&instance),
                };
                self.lines = self.lines.saturating_add(1);
            }
            locked(&self.writing).since = Some(now());
            let failed = self.write(&text).err();
            let path = self.path.display();
            let failed = failed.map(|e| format!("{path}: {e}: a restart may forget instances"));
            let mut writing = locked(&self.writing);
            if let Some(why) = &failed {
                // Only the first of several failures in a row is logged.
                if writing.failed.is_none() {
                    warn!(target: "ssntp::scheduler", "{why}");
                }
                // The file may have a part of the text, so the next write replaces the file.
                self.lines = usize::MAX;
            }
            *writing = Writing { since: None, failed };
        }
    }

    /// Appends the text, or rewrites the file.
    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.lines <= self.owners.len().saturating_mul(2) + SLACK {
            let mut file = OpenOptions::new().append(true).open(&self.path)?;
            file.write_all(text.as_bytes())?;
            return file.sync_data();
        }
        // The empty line tells a file without instances from one that was emptied.
        let mut whole = "\n".to_owned();
        for (instance, node) in &self.owners {
            let _ = writeln!(whole, "{instance} {node}");
        }
        replace(&self.path, whole.as_bytes())?;
        self.lines = self.owners.len();
        Ok(())
    }
}

#[cfg(test)]
impl Ledger {
    /// A ledger whose thread is the test, which receives the changes.
    pub(super) fn unwritten() -> (Self, Receiver<Change>) {
        let (changes, given) = bounded(MAX_WAITING);
        let ledger = Self {
            changes,
            _thread: Joined::default(),
            is_behind: false,
            writing: Arc::default(),
            _lock: tempfile::tempfile().unwrap(),
        };
        (ledger, given)
    }

    /// Drops a change, because the disk is too slow.
    pub(super) fn fall_behind(&mut self) {
        (0..=MAX_WAITING).for_each(|_| self.keep(Uuid::nil(), None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp_transport::deadline;

    #[test]
    fn a_file_that_was_emptied_is_refused_and_one_without_instances_is_not() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            assert!(Ledger::open(dir.path()).unwrap().1.is_empty());
        }
        fs::write(dir.path().join(FILE), "").unwrap();
        let refused = Ledger::open(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("it is empty"), "{refused}");
        fs::remove_file(dir.path().join(FILE)).unwrap();
        assert!(Ledger::open(dir.path()).is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_a_fault_until_it_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let (mut ledger, _) = Ledger::open(&state).unwrap();
        fs::rename(&state, dir.path().join("gone")).unwrap();
        // The fault is known once the thread has taken a change and written it.
        let mut until = |is_faulty: bool| {
            let end = deadline(Duration::from_secs(60));
            while ledger.fault().is_some() != is_faulty {
                assert!(now() < end, "{:?}", ledger.fault());
                ledger.keep(Uuid::nil(), None);
                std::thread::yield_now();
            }
        };
        until(true);
        fs::rename(dir.path().join("gone"), &state).unwrap();
        until(false);
    }

    #[test]
    fn slow_disk_is_logged_once_and_all_is_handed_over_when_half_of_the_queue_is_free() {
        let (mut ledger, given) = Ledger::unwritten();
        (0..MAX_WAITING).for_each(|_| ledger.keep(Uuid::nil(), None));
        assert!(!ledger.is_behind);
        assert_eq!(ledger.fault(), None);
        ledger.keep(Uuid::nil(), None);
        assert!(ledger.is_behind && ledger.fault().is_some());
        given.recv().unwrap();
        assert!(!ledger.can_catch_up(false), "the queue is nearly full");
        given.try_iter().take(MAX_WAITING / 2 + 1).for_each(drop);
        assert!(ledger.can_catch_up(false));
        ledger.catch_up(HashMap::new());
        assert!(!ledger.is_behind && ledger.fault().is_none());
        // The disk hangs.
        let since = |ago| now().checked_sub(Duration::from_secs(ago));
        for (ago, hangs) in [(29, false), (31, true)] {
            locked(&ledger.writing).since = since(ago);
            assert_eq!(ledger.fault().is_some(), hangs, "{ago}");
        }
        assert_eq!(given.try_iter().last(), Some(Change::All(HashMap::new())));
    }

    #[test]
    fn all_that_is_handed_over_replaces_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let uuid = Uuid::from_u128;
        let mut book = Book {
            path: path.clone(),
            owners: HashMap::from([(uuid(1), uuid(7))]),
            lines: 1,
            writing: Arc::default(),
        };
        let (changes, given) = bounded(3);
        changes.send(Change::One(uuid(4), Some(uuid(7)))).unwrap();
        let all = HashMap::from([(uuid(2), uuid(8)), (uuid(3), uuid(8))]);
        changes.send(Change::All(all)).unwrap();
        changes.send(Change::One(uuid(3), None)).unwrap();
        drop(changes);
        book.serve(&given);
        assert_eq!(read(&path).unwrap(), HashMap::from([(uuid(2), uuid(8))]));
    }

    #[test]
    fn owners_survive_a_restart_and_a_torn_line_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/state");
        let uuid = Uuid::from_u128;
        {
            let (mut ledger, owners) = Ledger::open(&path).unwrap();
            assert_eq!(owners.len(), 0);
            assert!(Ledger::open(&path).is_err(), "the ledger is in use");
            let error = Ledger::open(&path.join(LOCK)).unwrap_err().to_string();
            assert_eq!(error, "it is a file and no directory");
            for n in 1..=30_000 {
                ledger.keep(uuid(n), Some(uuid(7)));
            }
            (3..=30_000).for_each(|n| ledger.keep(uuid(n), None));
            ledger.keep(uuid(2), Some(uuid(8)));
        }
        let file = path.join(FILE);
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines < 3 * SLACK, "{lines}");
        let mut torn = OpenOptions::new().append(true).open(&file).unwrap();
        write!(torn, "{} 0000", uuid(9)).unwrap();
        let (_, owners) = Ledger::open(&path).unwrap();
        assert_eq!(owners, HashMap::from([(uuid(1), uuid(7)), (uuid(2), uuid(8))]));
    }

    #[test]
    fn a_line_that_is_not_understood_is_refused_unless_a_crash_has_torn_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let [one, two] = [1, 2].map(Uuid::from_u128);
        for (text, expected) in [
            (format!("\u{feff}{one} {two}\r\n\r\n{two} {one}"), Some(2)),
            (format!("{one} {two}\n{one}"), Some(1)),
            (format!("{one} {two}\n\0\0\0"), Some(1)),
            (String::new(), None),
            ("\n".to_owned(), Some(0)),
            (format!("{one} {two}\n{two} 0000\n{two} {one}\n"), None),
            (format!("{one} {two} {two}\n"), None),
            (format!("x\n{one} {two}\n"), None),
        ] {
            fs::write(&path, &text).unwrap();
            let read = read(&path);
            assert_eq!(
                read.as_ref().ok().map(HashMap::len),
                expected,
                "{text:?}: {read:?}"
            );
        }
        assert!(read(&path).unwrap_err().to_string().contains("line 1"));
    }
}
