//! The `ssntp` program: makes certificates, runs the daemons of a cluster, and sends and shows
//! frames.
//!
//! | file | holds |
//! |---|---|
//! | `allocator` | settings of the C library's allocator |
//! | `admin` | pages about a daemon, over HTTP |
//! | `agent` | `ssntp agent` and `ssntp netagent` |
//! | `application` | the flag for frames of an application |
//! | `args` | the command line, one variant a subcommand |
//! | `choice` | flags with a value from a short list of words |
//! | `clock` | the clocks |
//! | `cmd` | the subcommands, one file each |
//! | `connection` | the flags of subcommands that connect to a server |
//! | `context` | the user's contexts, with values for flags that are not given |
//! | `credentials` | the files of certificates, and their lifetimes |
//! | `daemon` | the main loop of daemons: signals, reloads, notices |
//! | `failure` | the failure of a subcommand: message and exit code |
//! | `input` | files and the standard input |
//! | `join` | the flags of a daemon that joins others through an etcd |
//! | `logging` | the log on the standard error, which never blocks a thread that logs |
//! | `networks` | the flags of tenants' networks |
//! | `no_admin` | takes the place of `admin` in a program without pages |
//! | `output` | the standard output, which may be closed at any time |
//! | `receipt` | the answer to a sender: how many sessions received a frame |
//! | `seconds` | times on the command line |
//! | `service_manager` | notices to systemd about a daemon |
//! | `settings/` | the settings of daemons: flags, environment and file |
//! | `signals` | SIGINT and SIGTERM |
//! | `watched` | files that are read again when they change |

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "full"),
    allow(
        dead_code,
        reason = "a build of the agent alone needs only a part of these files"
    )
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
    // This comes first: one supervisor runs for each instance, so it must stay small.
    if let Some(code) = ssntp_agent::driver::supervise() {
        return code;
    }
    let (args, settings) = args::Args::of_this_process();
    // This comes before the first thread starts and the first file is opened, because it may replace
    // the whole process.
    if args.command.serves_many() {
        allocator::give_back();
    }
    let logging = logging::Logging::start(args.command.log_level(), args.log.as_deref(), args.log_format);
    if let Some(sink) = logging.notes() {
        output::send_notes_to(sink);
    }
    match args.command.run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => logging.end_with(failure),
    }
}
