//! Following the history: each row exactly once, in the order of the numbers.
//!
//! ```text
//!  subscribed ─▶ rows behind the last one? ── some ──▶ returned one by one ─┐
//!                      ▲         └── none ──▶ wait for a commit             │
//!                      └───────────────────────────┴────────────────────────┘
//! ```
//!
//! The follower subscribes before it reads for the first time, so a commit that comes after a
//! reading always wakes it.

use std::collections::VecDeque;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::error::StoreError;
use super::history::{History, MAX_ROWS, Query};
use crate::model::Row;
use ssntp_transport::{deadline, remaining};

/// A reader of the history that waits for new rows.
#[derive(Debug)]
pub struct Follow {
    history: History,
    last: i64,
    /// Rows that were read and not returned yet, at most 1,000.
    backlog: VecDeque<Row>,
    /// Holds a message if there was a commit since the last one was received.
    commits: Receiver<()>,
}

impl Follow {
    /// `commits` has a message after each commit since before this call.
    pub(super) fn new(
        history: History,
        commits: Receiver<()>,
        after: Option<i64>,
    ) -> Result<Self, StoreError> {
        let last = after.map_or_else(|| history.last_id(), Ok)?;
        let backlog = VecDeque::new();
        Ok(Self {
            history,
            last,
            backlog,
            commits,
        })
    }

    /// The next row. Waits for at most `timeout`, and returns `None` if there is no row by then.
    ///
    /// # Errors
    /// [`StoreError`]; [`Closed`](StoreError::Closed) once the controller has ended.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Row>, StoreError> {
        // A commit without a row of the history wakes the wait as well, and must not extend it.
        let end = deadline(timeout);
        loop {
            if self.backlog.is_empty() {
                let rows = self.history.rows(&Query {
                    after: Some(self.last),
                    limit: MAX_ROWS,
                    ..Query::default()
                })?;
                self.backlog = rows.into();
            }
            if let Some(row) = self.backlog.pop_front() {
                self.last = row.id;
                return Ok(Some(row));
            }
            match self.commits.recv_timeout(remaining(end)) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(StoreError::Closed),
            }
        }
    }
}
