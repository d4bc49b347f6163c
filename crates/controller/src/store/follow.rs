//! Following the history: each row exactly once, in the order of the numbers.
//!
//! ```text
//!  rows behind the last one? ── some ──▶ returned one by one ─┐
//!        ▲         └── none ──▶ wait for a commit             │
//!        └───────────────────────────┴────────────────────────┘
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::error::StoreError;
use super::history::{History, MAX_ROWS, Query};
use super::shared::Shared;
use crate::model::Row;
use ssntp_transport::{deadline, locked};

/// A reader of the history that waits for new rows.
#[derive(Debug)]
pub struct Follow {
    history: History,
    last: i64,
    /// Rows that were read and not returned yet, at most 1,000.
    backlog: VecDeque<Row>,
    shared: Arc<Shared>,
}

impl Follow {
    pub(super) fn new(shared: &Arc<Shared>, after: Option<i64>) -> Result<Self, StoreError> {
        let history = History::open(&shared.file)?;
        let progress = locked(&shared.progress);
        if progress.is_ended {
            return Err(StoreError::Closed);
        }
        Ok(Self {
            history,
            last: after.unwrap_or(progress.last),
            backlog: VecDeque::new(),
            shared: Arc::clone(shared),
        })
    }

    /// The next row. Waits for at most `timeout`, and returns `None` if there is no row by then.
    ///
    /// # Errors
    /// [`StoreError`]; [`Closed`](StoreError::Closed) once the controller has ended.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Row>, StoreError> {
        let end = deadline(timeout);
        loop {
            // Asked before the rows, so that a row which is written meanwhile ends the wait at once.
            let newest = locked(&self.shared.progress).last;
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
            // Rows that are not there any more were deleted, and are not waited for.
            self.last = self.last.max(newest);
            if !self.shared.wait_behind(self.last, end)? {
                return Ok(None);
            }
        }
    }
}
