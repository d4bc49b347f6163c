//! Load for a cluster: agents without instances by the thousand, and a soak.
//!
//! | module | holds |
//! |---|---|
//! | `fleet` | simulated agents that connect to a scheduler |
//! | `several` | schedulers that share an etcd, and a fault in the middle |
//! | `soak` | a cluster of processes, under load while they are killed in turn |

mod fleet;
mod several;
mod soak;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Load a cluster, to find the limits of its scheduler
#[derive(Debug, Parser)]
#[command(name = "ssntp-load", version)]
enum Args {
    /// Connect many simulated agents to a scheduler, over a few threads
    ///
    /// Each agent has a session of its own, sends READY and STATS and answers commands. Its
    /// instances are only entries in a table. Prints a line when all agents are connected,
    /// and at the end how many frames they have sent and received.
    Fleet(fleet::Options),
    /// Run several schedulers that share an etcd, with agents and STARTs, while a fault happens
    ///
    /// Prints how many requests etcd gets, when the next START runs, when all agents are back, and
    /// how each START was answered. Fails unless each was answered once and nothing was started
    /// twice.
    Several(several::Options),
    /// Run a cluster of processes under load, and kill every process in turn
    ///
    /// Fails unless every START was answered once, and memory, descriptors, threads, files
    /// and processes are back where they began.
    Soak(soak::Options),
}

fn main() -> ExitCode {
    env_logger::init_from_env(env_logger::Env::default().default_filter_or("warn"));
    let faults = match Args::parse() {
        Args::Fleet(options) => fleet::run(&options).map(|()| Vec::new()),
        Args::Several(options) => several::run(&options),
        Args::Soak(options) => soak::run(&options),
    };
    match faults {
        Ok(faults) if faults.is_empty() => ExitCode::SUCCESS,
        Ok(faults) => {
            println!("did not return, or went wrong:");
            for fault in &faults {
                println!("- {fault}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("ssntp-load: {error}");
            ExitCode::FAILURE
        }
    }
}
