//! The database: one thread writes, and each reader has a connection of its own.
//!
//! ```text
//!  commit() ── blocks ─▶┌──────────────┐  one transaction for all waiting jobs
//!  note() ─ no waiting ▶│ ssntp-store  │────────────────────────────▶ DIR/controller.db
//!                       └──────┬───────┘                                     │ WAL
//!                              │ after each commit                           ▼
//!                              └────────▶ Follow ◀────────── rows ─────── History
//! ```
//!
//! When [`Store::commit`] returns, its changes are on the disk, and survive a loss of power: the
//! journal is a WAL that is synced at each commit. Changes of [`Store::note`] share the next
//! transaction; their caller does not wait, and if the queue is full they are dropped and counted.
//!
//! The history is bounded by its age and by the size of the database. A database that is full,
//! that cannot be written, or that is damaged causes a [`StoreError`], which names the file. The
//! thread continues, because the next commit may succeed.
//!
//! | file | holds |
//! |---|---|
//! | `schema` | the tables, and how each kind of row is written and read |
//! | `owner` | the thread |
//! | `history` | [`History`]: reading |
//! | `follow` | [`Follow`]: reading, and waiting for new rows |
//! | `shared` | what the thread shares with handles and readers, and [`Limits`] |
//! | `error` | [`StoreError`] |

mod error;
mod follow;
mod history;
mod owner;
mod schema;
mod shared;
#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rusqlite::Connection;

pub use self::error::{Fault, StoreError};
pub use self::follow::Follow;
pub use self::history::{History, Query, UuidPrefix};
pub(crate) use self::schema::MAX_TEXT;
pub use self::shared::Limits;
pub(crate) use self::shared::Progress;
use self::shared::{Job, LOCK, Shared};
use crate::model::{State, Write};
use ssntp_transport::locked;
use ssntp_transport::threads::{self, Joined};

const FILE: &str = "controller.db";
/// The maximum number of jobs that wait for the thread. The reconciler has one job at a time, and each call
/// of the API one; the rest are notes.
const MOST_WAITING: usize = 4096;

/// The database of a controller. Dropping it waits until all queued changes are on the disk.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    /// When this is dropped, the thread writes the queued jobs and ends.
    jobs: Sender<Job>,
    _thread: Joined,
    /// Closing this file releases the lock. It is the last field, so the thread has ended by then.
    _lock: File,
}

impl Store {
    /// Opens the database in a directory, creates what is missing, and starts the thread. Returns
    /// the stored state as well. Blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError`]: another process uses the database, it is damaged, it is of a later version,
    /// or it cannot be written.
    pub fn open(directory: &Path, limits: Limits) -> Result<(Self, State), StoreError> {
        let file = directory.join(FILE);
        let failed = |e: std::io::Error| StoreError::io(&file, &e);
        // The database holds the environment of instances, which may have secrets. So the
        // directory and the file, if they are made here, are for the own user only.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed)?;
        // A file of its own is locked, because SQLite uses locks of the database itself.
        let lock = File::create(directory.join(LOCK)).map_err(failed)?;
        ssntp_transport::lock(&lock, "another controller").map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => StoreError::InUse(file.clone()),
            _ => failed(e),
        })?;
        // A new database has a schema at once. SQLite would take a file that was emptied for a new one, and with it
        // no workload would be left.
        if std::fs::metadata(&file).is_ok_and(|found| found.len() == 0) {
            return Err(StoreError::failed(
                &file,
                Fault::Damaged,
                "it is empty; delete it to begin without workloads, or restore a backup".to_owned(),
            ));
        }
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&file)
            .map_err(failed)?;

        let opened = schema::open(&file, limits)?;
        let loaded = schema::load(&opened).and_then(|state| Ok((state, schema::last_id(&opened)?)));
        let (state, last) = loaded.map_err(|e| StoreError::of(&file, e))?;
        let shared = Arc::new(Shared::new(file.clone(), last));
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

    /// Writes all of these changes or none, and waits until they are on the disk. Returns the
    /// number of the last row of the history.
    ///
    /// # Errors
    /// [`StoreError`]: none of the changes is written.
    pub fn commit(&self, writes: Vec<Write>) -> Result<i64, StoreError> {
        let (reply, outcome) = bounded(1);
        let reply = Some(reply);
        let job = Job { writes, reply };
        self.jobs.send(job).map_err(|_| StoreError::Closed)?;
        // There is no time limit: with an unknown outcome, memory and database could differ. If the
        // thread ends, the channel is closed and this returns.
        outcome.recv().map_err(|_| StoreError::Closed)?
    }

    /// Queues these changes for the next transaction and returns at once. If the queue is full, or that
    /// transaction fails, they are dropped and counted.
    pub fn note(&self, writes: Vec<Write>) {
        let count = writes.len() as u64;
        let job = Job { writes, reply: None };
        if let Err(TrySendError::Full(_)) = self.jobs.try_send(job) {
            locked(&self.shared.progress).dropped += count;
        }
    }

    /// What the thread has done.
    pub(crate) fn progress(&self) -> Progress {
        locked(&self.shared.progress).clone()
    }

    /// A handle for reading the database, from any thread.
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
        shared.update(|progress| progress.is_ended = true);
    })
}

/// A handle for reading a database, from any thread. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Reading(Arc<Shared>);

impl Reading {
    /// Opens a connection that reads the history.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn history(&self) -> Result<History, StoreError> {
        History::open(&self.0.file)
    }

    /// Follows the history after the row of this number, or from now on.
    ///
    /// # Errors
    /// [`StoreError`]; [`Closed`](StoreError::Closed) once the controller has ended.
    pub fn follow(&self, after: Option<i64>) -> Result<Follow, StoreError> {
        Follow::new(&self.0, after)
    }
}
