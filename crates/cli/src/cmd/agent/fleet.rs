//! `ssntp agent --count`: simulated agents by the thousand, in one process.

use std::time::Duration;

use crossbeam_channel::select;
use ssntp_cluster::agent::{Fleet, FleetConfig, FleetCounters};

use super::{Args, DriverName};
use crate::failure::Failure;
use crate::output::lone_line;
use crate::signals::Stop;

/// Agents that are nothing but their messages.
pub(super) fn run(args: &Args, count: usize) -> Result<(), Failure> {
    if args.driver != [DriverName::Simulate] {
        return Err(Failure::usage("--count is for --driver simulate"));
    }
    let stop = Stop::install()?;
    let (identity, trust, address) = args.connection.parts(&stop)?;
    let mut config = FleetConfig::new(identity, trust, address, count)
        .max_instances(args.max_instances as usize)
        .interval(args.interval.into());
    if let Some(mb) = args.mem {
        config = config.mem_mb(mb);
    }
    if let Some(mb) = args.disk {
        config = config.disk_mb(mb);
    }
    let fleet = Fleet::start(config).map_err(Failure::new)?;
    let mut told = false;
    while !stop.requested() {
        let connected = fleet.counters().connected;
        if connected == count && !told {
            told = true;
            lone_line(
                format!("agents {connected}"),
                args.json.then(|| format!("{{\"agents\":{connected}}}")),
            )?;
        }
        select! {
            recv(stop.channel()) -> _ => break,
            default(LOOK) => {}
        }
    }
    let counters = fleet.counters();
    drop(fleet);
    let FleetCounters {
        sent,
        received,
        launched,
        lost,
        ..
    } = counters;
    lone_line(
        format!("sent {sent}, received {received}, launched {launched}, lost {lost}"),
        args.json.then(|| {
            format!("{{\"sent\":{sent},\"received\":{received},\"launched\":{launched},\"lost\":{lost}}}")
        }),
    )
}

/// How often a fleet is looked at until all of it is connected.
const LOOK: Duration = Duration::from_millis(100);
