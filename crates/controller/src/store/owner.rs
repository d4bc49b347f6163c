//! The thread that writes the database.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use log::{info, warn};
use rusqlite::{Connection, params};

use super::error::{Fault, StoreError};
use super::schema;
use super::shared::{Job, Limits, Shared, identity};
use crate::clock::unix_ms;
use ssntp_transport::{elapsed, locked, now};

const LOG: &str = "ssntp::controller";

/// The number of changes from which on a group takes no further job.
const MOST_GROUPED: usize = 1_000;
/// The least time between two prunings.
const PRUNE: Duration = Duration::from_secs(10);
/// The maximum number of rows that one step of a pruning deletes. This takes some milliseconds, and
/// commits wait for it.
const MOST_PRUNED: i64 = 1_000;
/// The maximum number of such steps after a group of jobs. They delete more rows than the changes of the
/// cluster add to a group, so these never use up the room of what should run.
const MOST_STEPS: usize = 10;
/// The age above which only the figures of every tenth minute are kept.
const THINNED_MS: i64 = 3 * 3_600_000;
/// The age above which figures are deleted.
const FIGURES_MS: i64 = 7 * 86_400_000;
const TEN_MINUTES_MS: i64 = 600_000;

pub(super) struct Owner<'a> {
    connection: Connection,
    shared: &'a Shared,
    limits: Limits,
    pruned: Instant,
    /// The time at which the thread began, by the monotonic clock and by the time of day.
    began: (Instant, i64),
}

impl<'a> Owner<'a> {
    pub(super) fn new(connection: Connection, shared: &'a Shared, limits: Limits) -> Self {
        Self {
            connection,
            shared,
            limits,
            pruned: now(),
            began: (now(), unix_ms()),
        }
    }

    #[cfg(test)]
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Writes until the store is dropped.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            // A sync takes milliseconds, so all jobs that wait share one.
            let mut changes = first.writes.len();
            let mut group = vec![first];
            while changes < MOST_GROUPED
                && let Ok(job) = jobs.try_recv()
            {
                changes += job.writes.len();
                group.push(job);
            }
            self.commit(&group);
            let mut pruned = Ok(());
            if elapsed(self.pruned) >= PRUNE {
                self.pruned = now();
                pruned = self.prune(self.without_jump(unix_ms()));
            }
            if let Err(e) = pruned.and_then(|()| self.shrink()) {
                warn!(target: LOG, "history: {}", StoreError::of(&self.shared.file, e));
            }
        }
    }

    /// The time of day for computing the age of rows, without forward jumps of the clock since the
    /// thread began. A clock that jumps forwards may be set back, but deleted rows are lost.
    pub(super) fn without_jump(&self, unix_ms: i64) -> i64 {
        let (began, at) = self.began;
        let elapsed = i64::try_from(elapsed(began).as_millis()).unwrap_or(i64::MAX);
        unix_ms.min(at.saturating_add(elapsed))
    }

    /// Writes a group of jobs in one transaction, and replies to the callers that wait.
    fn commit(&mut self, group: &[Job]) {
        // SQLite goes on with files that have lost their names, and the next start would not find the
        // changes.
        let file = &self.shared.file;
        let is_same = identity(file).is_some_and(|is| Some(is) == self.shared.identity);
        let outcome = if is_same {
            self.write(group)
                .map_err(|e| StoreError::of(&self.shared.file, e))
        } else {
            let why = "it, its -wal file or the lock was removed or replaced since the controller has \
                       opened it; restart the controller";
            Err(StoreError::failed(file, Fault::Other, why.into()))
        };
        self.shared.update(|progress| {
            match (&outcome, &progress.failing) {
                (Err(e), before) if before.as_ref() != Some(e) => warn!(target: LOG, "not written: {e}"),
                (Ok(_), Some(_)) => info!(target: LOG, "the database takes writes again"),
                _ => {}
            }
            progress.failing = outcome.as_ref().err().cloned();
            // This precedes the replies, so that a caller finds the number of its own row.
            if let Ok([.., last]) = outcome.as_deref() {
                progress.last = *last;
            }
        });
        for (at, job) in group.iter().enumerate() {
            let revision = outcome
                .as_ref()
                .map(|revisions| revisions.get(at).copied().unwrap_or(0));
            match &job.reply {
                // The channel has room for the only reply.
                Some(reply) => drop(reply.try_send(revision.map_err(StoreError::clone))),
                None if outcome.is_err() => {
                    let lost = job.writes.len() as u64;
                    locked(&self.shared.progress).dropped += lost;
                }
                None => {}
            }
        }
    }

    fn write(&mut self, group: &[Job]) -> rusqlite::Result<Vec<i64>> {
        let at = unix_ms();
        let transaction = self.connection.transaction()?;
        let mut revisions = Vec::with_capacity(group.len());
        for job in group {
            revisions.push(schema::write(&transaction, &job.writes, at)?);
        }
        transaction.commit()?;
        Ok(revisions)
    }

    /// Deletes rows that are too old.
    pub(super) fn prune(&self, now: i64) -> rusqlite::Result<()> {
        let age = i64::try_from(self.limits.age.as_millis()).unwrap_or(i64::MAX);
        let run =
            |statement: &str, values: &[&dyn rusqlite::ToSql]| self.connection.execute(statement, values);
        // Rows are in the order of their times, and only numbers are indexed. So the number bounds
        // the search, and the time is compared for at most MOST_PRUNED rows.
        run(
            "DELETE FROM history WHERE id < (SELECT min(id) FROM history) + ?1 AND at < ?2",
            params![MOST_PRUNED, now.saturating_sub(age)],
        )?;
        run("DELETE FROM figures WHERE at < ?1", params![now - FIGURES_MS])?;
        run(
            "DELETE FROM figures WHERE at < ?1 AND at % ?2 != 0",
            params![now - THINNED_MS, TEN_MINUTES_MS],
        )?;
        Ok(())
    }

    /// Deletes the oldest rows while the database is too large.
    pub(super) fn shrink(&self) -> rusqlite::Result<()> {
        if !self.is_too_large()? {
            return Ok(());
        }
        let steps = self.connection.unchecked_transaction()?;
        for _ in 0..MOST_STEPS {
            steps.execute(
                "DELETE FROM history WHERE id < (SELECT min(id) FROM history) + ?1",
                params![MOST_PRUNED],
            )?;
            steps.execute(
                "DELETE FROM figures WHERE at < (SELECT min(at) FROM figures) + ?1",
                params![TEN_MINUTES_MS],
            )?;
            if !self.is_too_large()? {
                break;
            }
        }
        steps.commit()
    }

    fn is_too_large(&self) -> rusqlite::Result<bool> {
        let pragma = |name| {
            self.connection
                .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
        };
        let used = pragma("page_count")?.saturating_sub(pragma("freelist_count")?);
        let bytes = used.saturating_mul(pragma("page_size")?);
        Ok(u64::try_from(bytes).unwrap_or(0) > self.limits.bytes)
    }
}
