//! The counters of an outbox, for code that does not send.

use super::Outbox;
use crate::stream::Load;

/// A handle that shows the counters of an outbox. A core decides by them, but cannot send with this
/// handle.
#[derive(Clone, Debug)]
pub struct OutboxCounters(pub(super) Outbox);

impl OutboxCounters {
    /// All counters at one moment.
    pub fn figures(&self) -> OutboxFigures {
        let ledger = self.0.ledger();
        OutboxFigures {
            sent: ledger.sent,
            waiting: ledger.waiting,
            dropped: ledger.dropped,
            lost: ledger.lost,
        }
    }
}

/// The counters of an outbox at one moment. Each item ends in one of three counts:
///
/// * `sent`: the system has taken all of it.
/// * `dropped`: there was no room for it.
/// * `lost`: it came after the close, or still waited when the connection ended.
#[derive(Clone, Copy, Debug)]
pub struct OutboxFigures {
    /// The items that were written to the system.
    pub sent: Load,
    /// The items that were accepted and are not completely written yet.
    pub waiting: Load,
    /// The number of frames that were dropped for lack of room.
    pub dropped: u64,
    /// The number of frames that will never be sent because the connection has ended. Final once its
    /// threads are joined.
    pub lost: u64,
}
