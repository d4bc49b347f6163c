//! The database: one thread writes it, and connections of their own read it.
//!
//! ```text
//!  commit() ── waits ──▶┌──────────────┐  one transaction for all that wait
//!  note() ── waits not ▶│ ssntp-store  │────────────────────────────▶ DIR/controller.db
//!                       └──────┬───────┘                                     │ WAL
//!                              │ rows that were committed                    ▼
//!                     Follow ◀─┴───────── rows that are older ────────── History
//! ```
//!
//! What [`Store::commit`] has returned is on the disk, also after a loss of power: the journal
//! is a WAL that is synced at each commit. Rows of the history that nobody waits for
//! ([`Store::note`]) share the next transaction, and are dropped and counted if too many wait.
//!
//! The history is bounded by its age and by the size of the database. A database that is full,
//! that cannot be written, or that is damaged gives [`StoreError`], which names the file. The
//! thread goes on then: the next commit may succeed.
//!
//! | file | holds |
//! |---|---|
//! | `schema` | the tables, their versions, and how each kind of row is written and read |
//! | `owner` | the thread |
//! | `history` | [`History`]: reading |
//! | `follow` | [`Follow`]: reading on as rows come |
//! | `error` | [`StoreError`] |

mod error;
mod follow;
mod history;
mod owner;
mod schema;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rusqlite::Connection;

pub use self::error::{Fault, StoreError};
pub use self::follow::Follow;
pub use self::history::{History, Query};
pub(crate) use self::owner::unix_ms;
use crate::model::{Row, State, Write};
use ssntp_transport::threads::{self, Joined};

const FILE: &str = "controller.db";
const LOCK: &str = "lock";
/// The most batches that wait for the thread. The reconciler has one at a time, and each call of
/// the API one; the rest are notes.
const MOST_WAITING: usize = 4096;
/// The most rows that wait for one follower. One that is slower reads the database again.
const MOST_ROWS: usize = 1024;

/// Bounds of a database.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a row of the history is kept.
    pub age: Duration,
    /// How large the file may be, in bytes, before the oldest rows are deleted. At twice this
    /// size nothing more is written.
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

/// The database of a controller. Dropping it waits until all that it was given is on the disk.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    /// The thread writes first what it was given when this is dropped, and ends.
    jobs: Sender<Job>,
    _thread: Joined,
    /// The lock ends when this is closed.
    _lock: File,
}

/// Some changes, and who waits for them.
#[derive(Debug)]
struct Job {
    writes: Vec<Write>,
    reply: Option<Sender<Result<i64, StoreError>>>,
}

/// What the thread shares with its users.
#[derive(Debug)]
struct Shared {
    file: PathBuf,
    followers: Mutex<Option<Vec<Sender<Arc<Row>>>>>,
    /// Why the last commit failed.
    failing: Mutex<Option<StoreError>>,
    dropped: AtomicU64,
}

impl Store {
    /// Opens the database in a directory, makes what is missing, and starts the thread. Gives
    /// what the database holds. Blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError`]: another process uses it, it is damaged, of a later version, or cannot be
    /// written.
    pub fn open(directory: &Path, limits: Limits) -> Result<(Self, State), StoreError> {
        let file = directory.join(FILE);
        let failed = |e: std::io::Error| StoreError::io(&file, &e);
        // The database has the environment of instances, and with it secrets.
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed)?;
        let lock = File::create(directory.join(LOCK)).map_err(failed)?;
        ssntp_transport::lock(&lock, "another controller").map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => StoreError::InUse(file.clone()),
            _ => failed(e),
        })?;
        let mut options = OpenOptions::new();
        drop(
            options
                .append(true)
                .create(true)
                .mode(0o600)
                .open(&file)
                .map_err(failed)?,
        );

        let opened = schema::open(&file, limits)?;
        let state = schema::load(&opened).map_err(|e| StoreError::of(&file, e))?;
        let shared = Arc::new(Shared {
            file: file.clone(),
            followers: Mutex::new(Some(Vec::new())),
            failing: Mutex::new(None),
            dropped: AtomicU64::new(0),
        });
        let (jobs, received) = bounded(MOST_WAITING);
        let thread = start(opened, received, Arc::clone(&shared), limits).map_err(failed)?;
        let store = Self {
            shared,
            jobs,
            _thread: thread,
            _lock: lock,
        };
        Ok((store, state))
    }

    /// Writes all of these changes or none, and waits until they are on the disk. Gives the
    /// number of the last row of the history then.
    ///
    /// # Errors
    /// [`StoreError`]: none of them is written.
    pub fn commit(&self, writes: Vec<Write>) -> Result<i64, StoreError> {
        let (reply, outcome) = bounded(1);
        let job = Job {
            writes,
            reply: Some(reply),
        };
        self.jobs.send(job).map_err(|_| StoreError::Closed)?;
        // No time limit: an outcome that is not known would leave memory and database different.
        // The end of the thread wakes this.
        outcome.recv().map_err(|_| StoreError::Closed)?
    }

    /// Writes these changes with the next transaction. Nobody waits for them: if too many wait,
    /// they are dropped and counted.
    pub fn note(&self, writes: Vec<Write>) {
        let count = writes.len() as u64;
        let job = Job { writes, reply: None };
        if let Err(TrySendError::Full(_)) = self.jobs.try_send(job) {
            self.shared.dropped.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Why the last commit failed, if it did.
    pub fn failing(&self) -> Option<StoreError> {
        lock(&self.shared.failing).clone()
    }

    /// How many notes were dropped.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// What reads the database, from any thread.
    pub fn reading(&self) -> Reading {
        Reading(Arc::clone(&self.shared))
    }
}

fn start(
    connection: Connection,
    jobs: Receiver<Job>,
    shared: Arc<Shared>,
    limits: Limits,
) -> std::io::Result<Joined> {
    threads::joined("ssntp-store", move || {
        owner::Owner::new(connection, &shared, limits).run(&jobs);
        // Followers are told that nothing more comes.
        *lock(&shared.followers) = None;
    })
}

/// What reads a database, from any thread. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Reading(Arc<Shared>);

impl Reading {
    /// A connection that reads.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn history(&self) -> Result<History, StoreError> {
        History::open(&self.0.file)
    }

    /// The rows behind the one of this number as they come, or those from now on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn follow(&self, after: Option<i64>) -> Result<Follow, StoreError> {
        Follow::new(self.clone(), after)
    }

    fn subscribe(&self) -> Option<Receiver<Arc<Row>>> {
        let (rows, received) = bounded(MOST_ROWS);
        lock(&self.0.followers).as_mut()?.push(rows);
        Some(received)
    }
}

impl Shared {
    /// Gives rows to the followers, without waiting. One that has no room is left out from now
    /// on, and reads the database again.
    fn publish(&self, rows: &[Arc<Row>]) {
        let Some(followers) = &mut *lock(&self.followers) else {
            return;
        };
        followers.retain(|follower| rows.iter().all(|row| follower.try_send(Arc::clone(row)).is_ok()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of a file; 0 if it is not known.
fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}
