//! `ssntp scheduler`: the server of a cluster.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ValueEnum, value_parser};
use crossbeam_channel::select;
use ssntp::cluster::scheduler::placement::Policy;
use ssntp::cluster::scheduler::{ControllerMode, Scheduler, SchedulerConfig};
use ssntp::pki::{Identity, Trust};
use ssntp::server::{Server, ServerConfig};
use ssntp::transport::Address;
use uuid::Uuid;

use super::server::{Admission, announce};
use crate::daemon::{Daemon, Service};
use crate::failure::Failure;
use crate::seconds::Seconds;
use crate::signal_stacks;

/// How long a node may say nothing of a workload that it was given.
const QUIET: Duration = Duration::from_secs(60);

/// Run the scheduler of a cluster: takes commands, picks nodes, passes on
/// what they say
///
/// Prints one line with its address once it accepts clients.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to listen: HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH; port 0
    /// lets the system choose
    #[arg(long, value_name = "ADDR", required = true, num_args = 1..)]
    listen: Vec<Address>,
    /// The authority that clients' certificates have to come from
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// The scheduler's certificate and key
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// The cluster configuration. It is rewritten whenever a controller
    /// changes it, so that the next start has it; where there is no such file
    /// yet, the cluster begins without a configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How many workloads a node is given for one READY
    #[arg(long, value_enum, default_value_t = PlacementName::Strict)]
    placement: PlacementName,
    /// Which controllers may command
    #[arg(long, value_enum, default_value_t = ControllersName::Any)]
    controllers: ControllersName,
    /// How long a workload may take to start, as with a slow image; then it has
    /// failed, and is deleted
    #[arg(long, value_name = "SECONDS", default_value = "900")]
    start_limit: Seconds,
    /// The most sessions at a time [default: what the system allows]
    ///
    /// Where vm.max_map_count allows fewer than N, the program starts itself
    /// again without signal stacks, which takes half of the memory maps; a stack
    /// overflow then ends it without a message.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max_sessions: Option<u32>,
    #[command(flatten)]
    admission: Admission,
    /// Give clients no tickets to resume their TLS session with: every
    /// handshake is a full one
    #[arg(long)]
    no_resumption: bool,
    /// The scheduler's UUID [default: its certificate's, else a random one]
    #[arg(long)]
    uuid: Option<Uuid>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PlacementName {
    /// One; others wait for its next READY
    Strict,
    /// As many as should fit
    Opportunistic,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ControllersName {
    /// All of them
    Any,
    /// The one that is connected longest
    Master,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    signal_stacks::drop_where_needed(args.max_sessions);
    let mut daemon = Daemon::install()?;
    let mut config = SchedulerConfig::new()
        .policy(match args.placement {
            PlacementName::Strict => Policy::Strict,
            PlacementName::Opportunistic => Policy::Opportunistic,
        })
        .controllers(match args.controllers {
            ControllersName::Any => ControllerMode::Any,
            ControllersName::Master => ControllerMode::Master,
        });
    config = config.start_time(QUIET, args.start_limit.into());
    if let Some(path) = &args.config {
        config = config.configuration_file(path.clone());
    }
    let (identity, trust) = (Identity::load(&args.cert)?, Trust::load(&args.ca)?);
    let mut server = ServerConfig::new(identity, trust)
        .resumption(!args.no_resumption)
        .admission(args.admission.policy());
    if let Some(sessions) = args.max_sessions {
        server = server.max_sessions(sessions as usize);
    }
    if let Some(uuid) = args.uuid {
        server = server.uuid(uuid);
    }
    for address in &args.listen {
        server = server.listen(address.clone());
    }
    let scheduler = Scheduler::new(config).map_err(|e| Failure::new(format!("--config: {e}")))?;
    let server = scheduler.start(server).map_err(Failure::new)?;
    announce(&server, args.json)?;
    let mut running = Running {
        server: &server,
        args: &args,
    };
    loop {
        select! {
            recv(daemon.stop().channel()) -> _ => break,
            recv(daemon.hang_ups()) -> came => match came {
                Ok(()) => daemon.reload(&mut running),
                Err(_) => break,
            },
            recv(daemon.looks()) -> _ => daemon.look(&mut running),
        }
    }
    server.stop();
    Ok(())
}

/// What SIGHUP is about: certificates alone. The configuration is the scheduler's
/// own file, which controllers change.
struct Running<'a> {
    server: &'a Server,
    args: &'a Args,
}

impl Service for Running<'_> {
    fn reload(&mut self) -> Result<(), Failure> {
        let (identity, trust) = (Identity::load(&self.args.cert)?, Trust::load(&self.args.ca)?);
        self.server
            .renew(&identity, &trust)
            .map(drop)
            .map_err(Failure::new)
    }
}
