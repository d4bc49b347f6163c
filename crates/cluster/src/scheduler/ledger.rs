//! The file in which a scheduler keeps which node has which instance, so that the next one
//! does not start an instance a second time while its node is away.
//!
//! ```text
//!  dispatcher ── instance, node ──▶ ssntp-ledger: appends a line, waits for the disk
//! ```
//!
//! Each line is an instance and its node, or an instance alone once it is gone; the last line
//! of an instance counts. The file is written anew when most of its lines count no more. The
//! dispatcher never waits for the disk, so a scheduler that is killed may lose the lines of
//! its last moment.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use log::warn;
use uuid::Uuid;

use ssntp_transport::replace;
use ssntp_transport::threads::{self, Joined};

const FILE: &str = "instances";
const LOCK: &str = "lock";
/// The most changes that wait for the disk: the STARTs of some seconds.
const MOST_WAITING: usize = 65_536;
/// The most changes that are written at once.
const BATCH: usize = 4096;
/// How many outdated lines the file may have, besides as many as there are instances, before it
/// is written anew.
const SLACK: usize = 10_000;

/// An instance, and the node that has it; none once it is gone.
type Change = (Uuid, Option<Uuid>);

/// The writing thread. Dropping it waits until all that it was given is on the disk.
#[derive(Debug)]
pub(super) struct Ledger {
    changes: Sender<Change>,
    _thread: Joined,
    is_behind: bool,
    /// The lock ends when this is closed.
    _lock: File,
}

impl Ledger {
    /// Opens the ledger in a directory, which is made if there is none, and starts the thread.
    /// Gives the node of each instance that a former scheduler knew.
    pub(super) fn open(directory: &Path) -> io::Result<(Self, HashMap<Uuid, Uuid>)> {
        fs::create_dir_all(directory).map_err(|e| match directory.is_file() {
            true => io::Error::other("it is a file and no directory"),
            false => e,
        })?;
        // A file of its own, because the other one is replaced.
        let lock = File::create(directory.join(LOCK))?;
        ssntp_transport::lock(&lock, "another scheduler")?;
        let path = directory.join(FILE);
        let owners = read(&path)?;
        let mut book = Book {
            path,
            owners: owners.clone(),
            // The first write replaces the file, so that a torn last line does not spoil the
            // next one.
            lines: usize::MAX,
        };
        // Tells now whether it can be written.
        book.write("")?;
        let (changes, given) = bounded(MOST_WAITING);
        let ledger = Self {
            changes,
            _thread: threads::joined("ssntp-ledger", move || book.serve(&given))?,
            is_behind: false,
            _lock: lock,
        };
        Ok((ledger, owners))
    }

    /// Keeps the node of an instance. Does not wait.
    pub(super) fn keep(&mut self, instance: Uuid, node: Option<Uuid>) {
        let sent = self.changes.try_send((instance, node));
        let is_full = matches!(sent, Err(TrySendError::Full(_)));
        if is_full && !self.is_behind {
            warn!(target: "ssntp::scheduler", "the disk of --state is too slow: a restart may forget instances");
        }
        // The log says it once, until half of the queue is free: a disk that always keeps it
        // nearly full would fill the log.
        self.is_behind = is_full || (self.is_behind && self.changes.len() > MOST_WAITING / 2);
    }
}

fn read(path: &Path) -> io::Result<HashMap<Uuid, Uuid>> {
    let text = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(e),
    };
    let mut owners = HashMap::new();
    for line in String::from_utf8_lossy(&text).lines() {
        let mut words = line.split(' ').map(Uuid::try_parse);
        // A line that is torn, or was changed by hand, says nothing.
        match (words.next(), words.next()) {
            (Some(Ok(instance)), Some(Ok(node))) => drop(owners.insert(instance, node)),
            (Some(Ok(instance)), None) => drop(owners.remove(&instance)),
            _ => {}
        }
    }
    Ok(owners)
}

#[derive(Debug)]
struct Book {
    path: PathBuf,
    owners: HashMap<Uuid, Uuid>,
    /// How many lines the file has; more than it can have if it has to be written anew.
    lines: usize,
}

impl Book {
    fn serve(&mut self, changes: &Receiver<Change>) {
        while let Ok(first) = changes.recv() {
            let mut text = String::new();
            // Many changes are written at once, because each write waits for the disk.
            for (instance, node) in std::iter::once(first).chain(changes.try_iter().take(BATCH)) {
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
            if let Err(e) = self.write(&text) {
                let path = self.path.display();
                // One line in the log for a disk that keeps failing.
                if self.lines != usize::MAX {
                    warn!(target: "ssntp::scheduler", "{path}: {e}: a restart may forget instances");
                }
                // A part of the text may be in the file, so the next write replaces all of it.
                self.lines = usize::MAX;
            }
        }
    }

    /// Appends the text, or writes the whole file.
    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.lines <= self.owners.len().saturating_mul(2) + SLACK {
            let mut file = OpenOptions::new().append(true).open(&self.path)?;
            file.write_all(text.as_bytes())?;
            return file.sync_data();
        }
        let mut whole = String::new();
        for (instance, node) in &self.owners {
            let _ = writeln!(whole, "{instance} {node}");
        }
        replace(&self.path, whole.as_bytes())?;
        self.lines = self.owners.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_nearly_full_is_told_of_once() {
        let dir = tempfile::tempdir().unwrap();
        let (changes, given) = bounded(MOST_WAITING);
        let mut ledger = Ledger {
            changes,
            _thread: Joined::default(),
            is_behind: false,
            _lock: File::create(dir.path().join(LOCK)).unwrap(),
        };
        let mut keep = |count: usize| {
            (0..count).for_each(|_| ledger.keep(Uuid::nil(), None));
            ledger.is_behind
        };
        assert!(!keep(MOST_WAITING));
        assert!(keep(1));
        given.recv().unwrap();
        assert!(keep(1), "it is full again, which was said");
        given.try_iter().take(MOST_WAITING / 2 + 1).for_each(drop);
        assert!(!keep(1));
    }

    #[test]
    fn what_was_kept_is_there_after_a_restart_and_a_torn_line_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/state");
        let uuid = Uuid::from_u128;
        {
            let (mut ledger, owners) = Ledger::open(&path).unwrap();
            assert_eq!(owners.len(), 0);
            assert!(Ledger::open(&path).is_err(), "it is in use");
            let said = Ledger::open(&path.join(LOCK)).unwrap_err().to_string();
            assert_eq!(said, "it is a file and no directory");
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
}
