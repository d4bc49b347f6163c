//! The `ssntp` program: makes certificates, runs the entities of a cluster,
//! and looks into what they say.
//!
//! | file | holds |
//! |---|---|
//! | `args` | the command line, one variant a subcommand |
//! | `cmd` | the subcommands, one file each |
//! | `failure` | how a subcommand fails: message and exit code |
//! | `output` | the standard output, which may be closed at any time |

#![forbid(unsafe_code)]

#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
compile_error!("the ssntp program needs cryptography: enable the feature aws-lc-rs or ring");

mod args;
mod cmd;
mod failure;
mod output;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let level = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(level).init();
    match cmd::run(args::Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
