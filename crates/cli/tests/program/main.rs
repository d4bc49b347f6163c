//! The program, and what needs it: processes of its own, their output, their exit codes.
//!
//! | folder | rules |
//! |---|---|
//! | `cli` | each command as a user meets it |
//! | `cluster` | a whole cluster in separate processes |
//! | `networks` | networks of tenants, with packets, in network namespaces |
//! | `agent` | agents whose instances are real processes, over memory and TLS |
//! | `processes` | a scheduler, agents and a controller as processes, for all of these |
//!
//! They are one test program, because each one more costs a second to link and fifty
//! megabytes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test may fail, has time limits, and listens where nobody answers"
)]
#![allow(
    missing_debug_implementations,
    unreachable_pub,
    reason = "nothing here is public"
)]

mod agent;
mod cli;
mod cluster;
mod networks;
mod processes;
mod resumption;
