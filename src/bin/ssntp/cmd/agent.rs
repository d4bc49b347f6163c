//! `ssntp agent`, which `ssntp netagent` is as well: the agent of a node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ValueEnum, value_parser};
use crossbeam_channel::select;
use ssntp::Role;
use ssntp::client::{ClientError, UuidSource};
use ssntp::cluster::agent::driver::{Confinement, ProcessDriver, QemuDriver, SimulateDriver};
use ssntp::cluster::agent::{Agent, AgentConfig, DEFAULT_MAX_INSTANCES, Fleet, FleetConfig, FleetCounters};

use crate::connection::{Connection, closed};
use crate::failure::Failure;
use crate::output::lone_line;
use crate::seconds::Seconds;
use crate::signals::Stop;

/// Run the agent of a compute node or a network node
///
/// Which of both it is, its certificate says; it may be both. Without --state
/// it reports what the machine has (READY, STATS), and starts nothing.
///
/// SIGINT and SIGTERM end it; its instances keep running, and the next agent
/// with the same --state finds them. SIGUSR1 takes the node out of service
/// (OFFLINE), and the next one back into it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Where it keeps its instances and, unless the certificate or --uuid
    /// says it, the node's UUID
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The volumes that instances may have: directories in this one, each
    /// named by its UUID
    #[arg(long, value_name = "DIR", requires = "state")]
    volumes: Option<PathBuf>,
    /// The images that virtual machines boot from: files in this directory,
    /// each named by what a START calls it, with or without .qcow2, .img or
    /// .raw
    #[arg(long, value_name = "DIR", requires = "state")]
    images: Option<PathBuf>,
    /// What runs instances; of several, the first that takes one, which its
    /// vm_type decides
    #[arg(
        long,
        value_enum,
        value_name = "DRIVER",
        value_delimiter = ',',
        default_values = ["process", "qemu"]
    )]
    driver: Vec<DriverName>,
    /// Memory for instances [default: what is free]
    #[arg(long, value_name = "MB")]
    mem: Option<u32>,
    /// Disk for instances [default: what is free where --state is]
    #[arg(long, value_name = "MB")]
    disk: Option<u32>,
    /// The most instances, stopped ones included
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_INSTANCES as u32, value_parser = value_parser!(u32))]
    max_instances: u32,
    /// Pretend to be that many agents, over a few threads, to load a cluster;
    /// only with --driver simulate, and one --connect. Says when all of them
    /// are connected, and at its end how much they sent and received
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["state", "uuid", "role", "server_name", "grace", "confinement"],
        value_parser = value_parser!(u32).range(1..=100_000),
    )]
    count: Option<u32>,
    /// How often it reports
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    interval: Seconds,
    /// How long an instance may take to end before it is killed
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    grace: Seconds,
    /// How instances are kept within their memory and CPUs
    #[arg(long, value_enum, default_value_t = ConfinementName::Auto)]
    confinement: ConfinementName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DriverName {
    /// Processes of this machine
    Process,
    /// Virtual machines, where QEMU is installed
    Qemu,
    /// Nothing at all, with plausible figures
    Simulate,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ConfinementName {
    /// By control groups where we may make some, else by resource limits
    Auto,
    /// By resource limits
    Rlimits,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    if let Some(count) = args.count {
        return fleet(&args, count as usize);
    }
    let (stop, toggle) = Stop::install_with(signal_hook::consts::SIGUSR1)?;
    let mut client = args
        .connection
        .config_as(Role::AGENT | Role::NETAGENT)?
        .tracing(true);
    if let Some(state) = &args.state
        && !args.connection.has_uuid()
    {
        client = client.uuid(UuidSource::Persistent(state.clone()));
    }
    let mut config = AgentConfig::new(client)
        .max_instances(args.max_instances as usize)
        .interval(args.interval.into())
        .grace(Duration::from(args.grace));
    if let Some(state) = &args.state {
        config = config.state(state);
        for driver in &args.driver {
            config = match driver {
                DriverName::Process => config.driver(process(args.confinement)?),
                DriverName::Qemu => config.driver(qemu(args.confinement, args.images.as_deref())?),
                DriverName::Simulate => config.driver(SimulateDriver::new()),
            };
        }
    }
    if let Some(volumes) = args.volumes {
        config = config.volumes(volumes);
    }
    if let Some(mb) = args.mem {
        config = config.mem_mb(mb);
    }
    if let Some(mb) = args.disk {
        config = config.disk_mb(mb);
    }
    let agent = Agent::start(config).map_err(Failure::new)?;
    let uuid = agent.uuid();
    lone_line(
        format!("agent {uuid}"),
        args.json.then(|| format!("{{\"agent\":\"{uuid}\"}}")),
    )?;
    loop {
        select! {
            recv(agent.ended()) -> why => {
                return Err(closed(why.unwrap_or(ClientError::Closed)));
            }
            recv(stop.channel()) -> _ => break,
            recv(toggle) -> signal => match signal {
                Ok(()) => agent.toggle_offline(),
                Err(_) => break,
            },
        }
    }
    agent.stop();
    Ok(())
}

fn process(confinement: ConfinementName) -> Result<ProcessDriver, Failure> {
    ProcessDriver::new(confinement.into()).map_err(|e| Failure::new(format!("the process driver: {e}")))
}

fn qemu(confinement: ConfinementName, images: Option<&Path>) -> Result<QemuDriver, Failure> {
    let driver = QemuDriver::new(confinement.into());
    let driver = driver.map_err(|e| Failure::new(format!("the qemu driver: {e}")))?;
    Ok(match images {
        Some(images) => driver.images(images),
        None => driver,
    })
}

/// Agents that are nothing but their messages.
fn fleet(args: &Args, count: usize) -> Result<(), Failure> {
    if args.driver != [DriverName::Simulate] {
        return Err(Failure::usage("--count is for --driver simulate"));
    }
    let stop = Stop::install()?;
    let (identity, trust, address) = args.connection.parts()?;
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

impl From<ConfinementName> for Confinement {
    fn from(name: ConfinementName) -> Self {
        match name {
            ConfinementName::Auto => Self::Auto,
            ConfinementName::Rlimits => Self::ResourceLimits,
        }
    }
}
