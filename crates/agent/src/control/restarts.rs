//! Restarts of instances by the restart policy of their START.
//!
//! ```text
//!            ended by itself, and its policy says so
//!  Active ───────────────────────────────────────────▶ Stopped, due at some time
//!     ▲                                                  │  │
//!     └──────────────── Launching ◀── that time has come ┘  └─ STOP, EVACUATE: it is kept;
//!                           └── failed: due again, later       DELETE: it is removed
//! ```
//!
//! A command to end an instance takes effect in each of these states. Until the instance is started
//! again, STATS report it as `exited`, so that a controller that waits for its START sees that it
//! has run. No instance is started while the node is OFFLINE or in maintenance. The record says
//! that a restart is due, so the next agent performs it, also after a reboot.

use std::time::Duration;

use ssntp_payload::{RestartPolicy, Start};

use crate::driver::Exit;
use crate::store::Record;

/// The wait before the first restart. Each further wait is twice as long, up to [`MOST`], so a
/// program that fails at once costs a node some 300 runs a day.
const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(300);
/// After a run of this length, the next restart counts as the first again. It is longer than the
/// longest wait.
pub(super) const HEALTHY: Duration = Duration::from_secs(600);

/// True if an instance that has ended by itself is started again.
pub(super) fn is_wanted(start: Option<&Start>, exit: &Exit) -> bool {
    match start.map(|start| &start.restart_policy) {
        Some(RestartPolicy::Always) => true,
        // An unknown exit code counts as a failure: a supervisor that was killed writes no exit code.
        Some(RestartPolicy::OnFailure) => exit.code != Some(0),
        _ => false,
    }
}

/// Counts a further restart in the record, and returns the wait before it. `None` if there were as many
/// as the START allows; the record has the reason then.
pub(super) fn next_wait(record: &mut Record, start: Option<&Start>) -> Option<Duration> {
    let limit = start.map_or(0, |start| start.restart_limit);
    if limit > 0 && record.restarts_in_row >= limit {
        record.detail = format!("it was started again {limit} times in a row, which is its restart_limit");
        return None;
    }
    let wait = wait(record.restarts_in_row);
    record.restarts_in_row = record.restarts_in_row.saturating_add(1);
    Some(wait)
}

/// The wait before a restart that a former agent has counted.
pub(super) fn counted_wait(record: &Record) -> Duration {
    wait(record.restarts_in_row.saturating_sub(1))
}

/// The wait before a restart, after `in_row` restarts without a long run between them.
fn wait(in_row: u32) -> Duration {
    FIRST.saturating_mul(2u32.saturating_pow(in_row)).min(MOST)
}
