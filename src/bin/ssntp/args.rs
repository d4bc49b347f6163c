//! The command line.

use clap::{Parser, Subcommand};

use crate::cmd;

/// Simple and Secure Node Transfer Protocol: control-plane messaging over
/// mutual TLS, with roles proved by certificates.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage. RUST_LOG sets what is logged
/// to the standard error (default: warn for servers, else error).
#[derive(Debug, Parser)]
#[command(name = "ssntp", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(visible_alias = "netagent")]
    Agent(cmd::agent::Args),
    Bench(cmd::bench::Args),
    Cert(cmd::cert::Args),
    Ctl(cmd::ctl::Args),
    Decode(cmd::decode::Args),
    Demo(cmd::demo::Args),
    Listen(cmd::listen::Args),
    #[cfg(feature = "opflex")]
    Opflex(cmd::opflex::Args),
    Scheduler(cmd::scheduler::Args),
    Send(cmd::send::Args),
    Server(cmd::server::Args),
}

impl Command {
    /// What is logged where RUST_LOG does not say: a server's operator wants
    /// its warnings, whoever runs another subcommand gets its one error line.
    pub(crate) fn log_level(&self) -> &'static str {
        match self {
            Self::Agent(_) | Self::Scheduler(_) | Self::Server(_) => "warn",
            #[cfg(feature = "opflex")]
            Self::Opflex(args) if args.serves() => "warn",
            _ => "error",
        }
    }
}
