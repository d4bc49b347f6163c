//! Reading on as rows come: without a gap, and no row twice.
//!
//! ```text
//!  subscribed ─▶ rows of the database behind the last one ─▶ rows that were published
//!      ▲                                                        │ too slow: left out
//!      └────────────────────────────────────────────────────────┘
//! ```
//!
//! A row is published after its commit. So a row that is not in the database when it is read
//! comes to a subscription that was made before; one that is in both is known by its number.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::history::MAX_ROWS;
use super::{History, Query, Reading, StoreError};
use crate::model::Row;

/// The rows of the history in their order, each once, as they come.
#[derive(Debug)]
pub struct Follow {
    reading: Reading,
    history: History,
    last: i64,
    /// None while rows of the database are still to be read.
    live: Option<Receiver<Arc<Row>>>,
    backlog: VecDeque<Arc<Row>>,
    /// Whether all rows of the database were read since the subscription.
    is_caught_up: bool,
}

impl Follow {
    pub(super) fn new(reading: Reading, after: Option<i64>) -> Result<Self, StoreError> {
        let history = reading.history()?;
        let last = after.map_or_else(|| history.last_id(), Ok)?;
        Ok(Self {
            reading,
            history,
            last,
            live: None,
            backlog: VecDeque::new(),
            is_caught_up: false,
        })
    }

    /// The next row. Waits for it for at most `timeout`, and gives none if there is none by then.
    ///
    /// # Errors
    /// [`StoreError`]; [`Closed`](StoreError::Closed) once the controller has ended.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Arc<Row>>, StoreError> {
        loop {
            if let Some(row) = self.backlog.pop_front() {
                self.last = row.id;
                return Ok(Some(row));
            }
            let live = match self.live.take() {
                Some(live) => live,
                None => {
                    self.is_caught_up = false;
                    self.reading.subscribe().ok_or(StoreError::Closed)?
                }
            };
            let live = self.live.insert(live);
            if !self.is_caught_up {
                let rows = self.history.rows(&Query {
                    after: Some(self.last),
                    limit: MAX_ROWS,
                    ..Query::default()
                })?;
                self.is_caught_up = rows.len() < MAX_ROWS;
                self.backlog.extend(rows.into_iter().map(Arc::new));
                continue;
            }
            match live.recv_timeout(timeout) {
                Ok(row) if row.id <= self.last => {}
                Ok(row) => self.backlog.push_back(row),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                // Left out because it was slow, or the controller has ended.
                Err(RecvTimeoutError::Disconnected) => self.live = None,
            }
        }
    }
}
