//! What the thread of the database shares with its handles and readers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::error::StoreError;
use crate::model::Write;
use ssntp_transport::{locked, locked_again, remaining};

/// The file whose lock shows that a controller uses the directory.
pub(super) const LOCK: &str = "lock";

/// Bounds of a database.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The time for which a row of the history is kept.
    pub age: Duration,
    /// The size of the file, in bytes, above which the oldest rows are deleted. At twice this size
    /// every write fails.
    pub bytes: u64,
}

impl Default for Limits {
    /// 30 days, and 256 MiB.
    fn default() -> Self {
        Self {
            age: Duration::from_secs(30 * 86_400),
            bytes: 256 << 20,
        }
    }
}

/// Changes, and the channel to the caller if the caller waits.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) writes: Vec<Write>,
    pub(super) reply: Option<Sender<Result<i64, StoreError>>>,
}

/// The state that the thread shares with handles and readers.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) file: PathBuf,
    /// The identity of the files that were opened.
    pub(super) identity: Option<Identity>,
    pub(super) progress: Mutex<Progress>,
    /// Wakes the followers.
    changed: Condvar,
}

/// What the thread has done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// The highest number that a row of the history ever had; 0 before the first row.
    pub(crate) last: i64,
    /// The error of the last commit, if it failed.
    pub(crate) failing: Option<StoreError>,
    /// The number of changes that were dropped.
    pub(crate) dropped: u64,
    /// True once the thread has ended.
    pub(super) is_ended: bool,
}

impl Shared {
    /// `last` is the number of the last row of the history.
    pub(super) fn new(file: PathBuf, last: i64) -> Self {
        let progress = Progress {
            last,
            ..Progress::default()
        };
        Self {
            identity: identity(&file),
            file,
            progress: Mutex::new(progress),
            changed: Condvar::new(),
        }
    }

    /// Changes the progress, and wakes the followers.
    pub(super) fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut locked(&self.progress));
        self.changed.notify_all();
    }

    /// Waits until there was a row behind this one; false if there was none by `end`.
    pub(super) fn wait_behind(&self, row: i64, end: Instant) -> Result<bool, StoreError> {
        let progress = locked(&self.progress);
        let is_early = |progress: &mut Progress| progress.last <= row && !progress.is_ended;
        let waited = self
            .changed
            .wait_timeout_while(progress, remaining(end), is_early);
        let (progress, _) = locked_again(waited);
        if progress.is_ended && progress.last <= row {
            return Err(StoreError::Closed);
        }
        Ok(progress.last > row)
    }
}

/// The device and the number of each of the files that [`identity`] lists.
pub(super) type Identity = [(u64, u64); 3];

/// The identity of a database, of its journal, which holds the last commits, and of the lock. `None` if
/// one of the files is missing.
pub(super) fn identity(file: &Path) -> Option<Identity> {
    let of = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    Some([
        of(file)?,
        of(&file.with_extension("db-wal"))?,
        of(&file.with_file_name(LOCK))?,
    ])
}

/// The size of a file; 0 if it cannot be read.
pub(super) fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}
