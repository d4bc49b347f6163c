//! `ssntp-load fleet`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::value_parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use ssntp::pki::{Identity, Trust};
use ssntp_agent::DEFAULT_MAX_INSTANCES;
use ssntp_transport::Address;

use super::{Fleet, FleetConfig};
use crate::Result;

/// The time between two checks of the fleet and the signals.
const LOOK: Duration = Duration::from_millis(100);

/// The flags of `ssntp-load fleet`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The scheduler's address; the agents are spread over several, and one that has lost its
    /// session tries the next
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    connect: Vec<Address>,
    /// The certificates of the authorities that are trusted
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// The certificate of all agents, with its key; it must not be bound to a UUID
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// The number of agents
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// The number of threads for all agents
    #[arg(long, value_name = "N", default_value_t = 4)]
    threads: usize,
    /// The memory of each agent's node
    #[arg(long, value_name = "MB", default_value_t = 64_000)]
    mem: u32,
    /// The disk of each agent's node
    #[arg(long, value_name = "MB", default_value_t = 500_000)]
    disk: u32,
    /// The maximum number of instances of each agent
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_INSTANCES)]
    max_instances: usize,
    /// The time between two STATS of an agent
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u64).range(1..))]
    interval: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs a fleet until SIGINT or SIGTERM.
pub(crate) fn run(options: &Options) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let count = options.count as usize;
    let (identity, trust) = (Identity::load(&options.cert)?, Trust::load(&options.ca)?);
    let config = FleetConfig::new(identity, trust, options.connect.clone(), count)
        .threads(options.threads)
        .mem_mb(options.mem)
        .disk_mb(options.disk)
        .max_instances(options.max_instances)
        .interval(Duration::from_secs(options.interval));
    let fleet = Fleet::start(config)?;
    let mut told = false;
    while !stop.load(Ordering::Relaxed) {
        // Prints the line again when agents that lost their session are back.
        let all = fleet.counters().connected == count;
        if all && !std::mem::replace(&mut told, all) {
            if options.json {
                println!("{{\"agents\":{count}}}")
            } else {
                println!("agents {count}")
            }
        }
        told &= all;
        std::thread::park_timeout(LOOK);
    }
    let counters = fleet.counters();
    drop(fleet);
    let (sent, received) = (counters.sent, counters.received);
    let (launched, lost) = (counters.launched, counters.lost);
    if options.json {
        println!("{{\"sent\":{sent},\"received\":{received},\"launched\":{launched},\"lost\":{lost}}}")
    } else {
        println!("sent {sent}, received {received}, launched {launched}, lost {lost}")
    }
    Ok(())
}
