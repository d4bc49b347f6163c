//! The program as a user meets it: processes of its own, their output, their
//! exit codes, and signals.
//!
//! One binary for all of it: each test binary more costs a second to link and
//! fifty megabytes.

#![cfg(feature = "cli")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test may fail, and has time limits"
)]

mod admin;
mod agent;
mod bench;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod bridge;
mod cert;
mod cnci;
mod credentials;
mod decode;
mod logs;
mod machine;
mod opflex;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
#[path = "../support/processes.rs"]
mod processes;
mod readme;
mod scheduler;
mod session;
mod settings;
mod shell;
mod signal_stacks;
mod signals;
