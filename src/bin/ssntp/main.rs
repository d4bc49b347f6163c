//! The `ssntp` program: makes certificates, runs the entities of a cluster,
//! and looks into what they say.
//!
//! | file | holds |
//! |---|---|
//! | `admin` | pages about a daemon, over HTTP |
//! | `args` | the command line, one variant a subcommand |
//! | `cmd` | the subcommands, one file each |
//! | `connection` | the flags of whoever connects to a server |
//! | `context` | what these flags need not say: the user's contexts |
//! | `credentials` | the files of certificates, and how long they count |
//! | `daemon` | what every daemon does beside its work |
//! | `failure` | how a subcommand fails: message and exit code |
//! | `logging` | the log on the standard error, which nobody waits for |
//! | `output` | the standard output, which may be closed at any time |
//! | `receipt` | how a server tells a sender who received a frame |
//! | `seconds` | times on the command line |
//! | `settings/` | what daemons are told by flags, environment and file |
//! | `signal_stacks` | memory maps for twice as many sessions |
//! | `signals` | SIGINT and SIGTERM |
//! | `watched` | files that are read again when they change |

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "the agent alone needs a part of what is here")
)]

#[cfg(all(feature = "admin", any(feature = "aws-lc-rs", feature = "ring")))]
mod admin;
#[cfg(all(feature = "cli", any(feature = "aws-lc-rs", feature = "ring")))]
mod application;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod args;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod cmd;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod connection;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod context;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod credentials;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod daemon;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod failure;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod logging;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod output;
#[cfg(all(feature = "cli", any(feature = "aws-lc-rs", feature = "ring")))]
mod receipt;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod seconds;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod settings;
#[cfg(all(feature = "cli", any(feature = "aws-lc-rs", feature = "ring")))]
mod signal_stacks;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod signals;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod watched;

use std::process::ExitCode;

#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
fn main() -> ExitCode {
    // Before anything else: a supervisor of an instance is to stay small.
    if let Some(code) = ssntp::cluster::agent::driver::supervise() {
        return code;
    }
    let (args, settings) = args::Args::of_this_process();
    let logging = logging::Logging::start(args.command.log_level(), args.log_format);
    match cmd::run(args.command, settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => logging.last_word(failure),
    }
}

/// A build that is good for checking the sources only.
#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
fn main() -> ExitCode {
    eprintln!("ssntp: built without cryptography: enable the feature aws-lc-rs or ring");
    ExitCode::FAILURE
}
