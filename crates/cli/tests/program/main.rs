//! Tests that start the program: processes, their output, their exit codes.
//!
//! | folder | rules |
//! |---|---|
//! | `cli` | the output, exit code and files of each command |
//! | `cluster` | a whole cluster in separate processes |
//! | `networks` | networks of tenants, with packets, in network namespaces |
//! | `agent` | agents whose instances are real processes, over memory and TLS |
//! | `processes` | a scheduler, agents and a controller as processes, for all of these |
//!
//! They are one test program, because linking another one takes a second and fifty megabytes.

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

/// The program without the contexts and the environment variables of the user who runs the tests.
fn program() -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ssntp"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SSNTP_") {
            command.env_remove(name);
        }
    }
    let directory = env!("CARGO_TARGET_TMPDIR");
    command
        .env("XDG_CONFIG_HOME", directory)
        .env("XDG_DATA_HOME", directory)
        .env_remove("RUST_LOG");
    command
}
