//! This host: what it allows, what this process uses of it, its threads and its clock.
//!
//! | file | holds |
//! |---|---|
//! | `capacity` | [`Room`](capacity::Room): how many sessions the system's limits allow |
//! | `available_memory` | how much memory the process may have |
//! | `procfs` | reading `/proc`, `/sys` and control groups |
//! | `process` | [`ProcessFigures`](process::ProcessFigures): what the process uses |
//! | `threads` | named threads with the right stack |
//! | `deadline` | when a time limit ends |

pub(crate) mod available_memory;
pub(crate) mod capacity;
pub(crate) mod deadline;
pub(crate) mod process;
mod procfs;
pub mod threads;
