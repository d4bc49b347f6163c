//! The command line.

use clap::{Parser, Subcommand};

use crate::cmd;

/// Simple and Secure Node Transfer Protocol: control-plane messaging over
/// mutual TLS, with roles proved by certificates.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage. RUST_LOG sets what is logged
/// to the standard error (default: warn).
#[derive(Debug, Parser)]
#[command(name = "ssntp", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Cert(cmd::cert::Args),
    Decode(cmd::decode::Args),
    Scheduler(cmd::scheduler::Args),
    Server(cmd::server::Args),
}
