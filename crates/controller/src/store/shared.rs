//! What the thread of the database shares with its handles and readers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use crossbeam_channel::{Sender, TrySendError};

use super::error::StoreError;
use crate::model::Write;
use ssntp_transport::locked;

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
    /// A channel to each follower. `None` once the thread has ended.
    pub(super) followers: Mutex<Option<Vec<Sender<()>>>>,
    /// The error of the last commit, if it failed.
    pub(super) failing: Mutex<Option<StoreError>>,
    /// The number of the last row of the history.
    pub(super) last: AtomicI64,
    pub(super) dropped: AtomicU64,
}

impl Shared {
    /// Wakes the followers, which then read the new rows. Forgets those that are gone.
    pub(super) fn wake_followers(&self) {
        if let Some(followers) = &mut *locked(&self.followers) {
            followers
                .retain(|follower| !matches!(follower.try_send(()), Err(TrySendError::Disconnected(()))));
        }
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
