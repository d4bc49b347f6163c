//! This host: its limits, the resources of this process, threads and the clock.
//!
//! | file | holds |
//! |---|---|
//! | `capacity` | [`Room`]: the number of sessions that the system's limits allow |
//! | `available_memory` | the memory that the process may have |
//! | `procfs` | reading `/proc`, `/sys` and control groups |
//! | `process` | [`ProcessFigures`]: the resources of the process |
//! | `threads` | named threads with the right stack |
//! | `deadline` | the clock, and the end of a time limit |

mod available_memory;
mod capacity;
mod deadline;
mod process;
mod procfs;
pub mod threads;

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

pub use self::available_memory::memory_for_queues;
pub use self::capacity::{Room, descriptors};
pub use self::deadline::{
    NEVER, after, deadline, elapsed, left, nanoseconds, nap, now, remaining, since_1970, wall_clock,
};
pub use self::process::ProcessFigures;

/// Locks a mutex, also after a panic, for state that is usable then.
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    locked_again(mutex.lock())
}

/// As [`locked`], for the result of a wait that locks again.
pub fn locked_again<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}
