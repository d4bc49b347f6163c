//! The `ssntp` program: makes certificates, runs the entities of a cluster,
//! and looks into what they say.
//!
//! | file | holds |
//! |---|---|
//! | `allocator` | the C library's allocator, told to give memory back |
//! | `admin` | pages about a daemon, over HTTP |
//! | `args` | the command line, one variant a subcommand |
//! | `choice` | flags whose value is one word of a short list |
//! | `clock` | the clocks |
//! | `cmd` | the subcommands, one file each |
//! | `connection` | the flags of subcommands that connect to a server |
//! | `context` | the user's contexts, which give values for flags that are left out |
//! | `credentials` | the files of certificates, and how long they count |
//! | `daemon` | signals, reloads and notices, which every daemon has |
//! | `failure` | how a subcommand fails: message and exit code |
//! | `input` | files and the standard input |
//! | `logging` | the log on the standard error, which never blocks a thread that logs |
//! | `output` | the standard output, which may be closed at any time |
//! | `receipt` | how a server tells a sender how many sessions received a frame |
//! | `seconds` | times on the command line |
//! | `service_manager` | notices to systemd about a daemon |
//! | `settings/` | the settings of daemons: flags, environment and file |
//! | `signals` | SIGINT and SIGTERM |
//! | `watched` | files that are read again when they change |

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "full"),
    allow(dead_code, reason = "the agent alone needs a part of what is here")
)]

#[cfg(feature = "full")]
mod admin;
mod agent;
mod allocator;
mod application;
mod args;
mod choice;
mod clock;
#[cfg(feature = "full")]
mod cmd;
mod connection;
mod context;
mod credentials;
mod daemon;
mod failure;
mod input;
#[cfg(feature = "full")]
mod join;
mod logging;
mod networks;
#[cfg(not(feature = "full"))]
mod no_admin;
mod output;
mod receipt;
mod seconds;
mod service_manager;
mod settings;
mod signals;
mod watched;

#[cfg(not(feature = "full"))]
use self::no_admin as admin;

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else: one supervisor runs for each instance, so it must stay small.
    if let Some(code) = ssntp_cluster::agent::driver::supervise() {
        return code;
    }
    let (args, settings) = args::Args::of_this_process();
    // Before the first thread starts and the first file is opened, because this may replace the
    // whole process.
    if args.command.serves_many() {
        allocator::give_back();
    }
    let logging = logging::Logging::start(args.command.log_level(), args.log.as_deref(), args.log_format);
    if let Some(sink) = logging.notes() {
        output::send_notes_to(sink);
    }
    match args.command.run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => logging.last_word(failure),
    }
}
