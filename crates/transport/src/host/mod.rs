//! This host: what it allows, what this process uses of it, its threads and its clock.
//!
//! | file | holds |
//! |---|---|
//! | `capacity` | [`Room`]: how many sessions the system's limits allow |
//! | `available_memory` | how much memory the process may have |
//! | `procfs` | reading `/proc`, `/sys` and control groups |
//! | `process` | [`ProcessFigures`]: what the process uses |
//! | `threads` | named threads with the right stack |
//! | `deadline` | when a time limit ends |

mod available_memory;
mod capacity;
mod deadline;
mod process;
mod procfs;
pub mod threads;

pub use self::available_memory::memory_for_queues;
pub use self::capacity::{Room, descriptors};
pub(crate) use self::deadline::now;
pub use self::deadline::{after, deadline, left};
pub use self::process::ProcessFigures;
