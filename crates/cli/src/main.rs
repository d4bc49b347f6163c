//! The `ssntp` program: makes certificates, runs the daemons of a cluster, and sends and shows
//! frames.
//!
//! | file | holds |
//! |---|---|
//! | `allocator` | settings of the C library's allocator |
//! | `admin` | pages about a daemon, over HTTP |
//! | `application` | the flag for frames of an application |
//! | `args` | the command line |
//! | `cmd` | the subcommands, one file each |
//! | `engine` | the flags of a daemon that joins others through an etcd |
//! | `screens` | the first screens of help |
//! | `serving` | flags and texts of the daemons that are servers |
//! | `receipt` | the answer to a sender: how many sessions received a frame |
//! | `watching` | for tests: which files of credentials are watched |

mod admin;
mod allocator;
mod application;
mod args;
mod cmd;
mod engine;
mod receipt;
mod screens;
mod serving;
#[cfg(test)]
mod watching;

use std::process::ExitCode;

use ssntp_daemon::{Logging, send_notes_to};

fn main() -> ExitCode {
    // This comes first: one supervisor runs for each instance, so it must stay small.
    if let Some(code) = ssntp_agent::driver::supervise() {
        return code;
    }
    let words: Vec<_> = std::env::args_os().collect();
    // A failure is one line of JSON then, as the last one of the standard error.
    let json = args::asks_for_json(&words);
    let (args, settings) = args::Args::read(words);
    // This comes before the first thread starts and the first file is opened, because it may replace
    // the whole process.
    if args.command.serves_many() {
        allocator::give_back(matches!(args.command, cmd::Command::Opflex(_)));
    }
    let logging = Logging::start(args.command.log_level(), &args.log);
    if let Some(sink) = logging.notes() {
        send_notes_to(sink);
    }
    match args.command.run(settings, args::command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => logging.end_with(failure, json),
    }
}
