//! `ssntp scheduler`: the server of a cluster.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ssntp::Role;
use ssntp::server::{Federation, Server, ServerConfig};
use ssntp::transport::Address;
use ssntp_cluster::scheduler::placement::Policy;
use ssntp_cluster::scheduler::{ControllerMode, JoinedScheduler, Scheduler, SchedulerConfig};

use crate::admin::{self, AdminArgs};
use crate::choice::{Choices, Given, one_of};
use crate::credentials::{CredentialFiles, FilesRead};
use crate::daemon::server::{Admission, listening, load_configuration, sessions};
use crate::daemon::{Daemon, Presence, Service, ended};
use crate::failure::Failure;
use crate::join::{self, JoinArgs};
use crate::seconds::Seconds;
use crate::settings::{ConfigFile, Problems, Settings};

/// How long a node may leave out of its STATS a workload that it was given.
// Twice the interval at which agents send STATS by default.
const QUIET: Duration = Duration::from_secs(60);

/// Run the scheduler of a cluster: it takes commands, chooses nodes, and forwards
/// what the nodes report
///
/// Prints one line with its address once it accepts clients. On SIGHUP, and when these
/// files change, --ca, --cert, --crl and --config-file are read again. Sessions stay,
/// except those whose certificate is not valid any more.
///
/// With --join it is one of several schedulers: all take clients and link with each other,
/// and one leads. The others pass on to it what their clients say.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    /// The addresses to listen at: HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH;
    /// with port 0 the system chooses one
    #[arg(long, value_name = "ADDR", required = true, num_args = 1..)]
    listen: Vec<Address>,
    #[command(flatten)]
    files: CredentialFiles,
    /// The file of the cluster's configuration, which clients get (the scheduler's
    /// own settings are in --config-file). The scheduler writes it when a
    /// controller changes the configuration. If the file does not exist, the
    /// cluster begins without a configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory in which the scheduler keeps which node has which instance: one that
    /// has started again then starts no instance of an absent node a second time
    #[arg(long, value_name = "DIR", conflicts_with = "join")]
    state: Option<PathBuf>,
    #[command(flatten)]
    join: JoinArgs,
    /// The address at which the other schedulers reach this one [default: where it listens]
    #[arg(long, value_name = "ADDR", requires = "join")]
    advertise: Option<Address>,
    /// How many workloads a node gets for one READY
    #[arg(long, value_parser = one_of(PLACEMENTS), default_value = "strict")]
    placement: Policy,
    /// The controllers that may command
    #[arg(long, value_parser = one_of(CONTROLLERS), default_value = "any")]
    controllers: ControllerMode,
    /// How long a workload may take to start, for example with a slow image; then
    /// its start has failed, and it is deleted
    #[arg(long, value_name = "SECONDS", default_value = "900")]
    start_limit: Seconds,
    /// Also admit clients whose certificate is not bound to a UUID: such a client may
    /// connect as any node, and speak for it
    #[arg(long)]
    allow_unbound: bool,
    #[command(flatten)]
    admission: Admission,
    #[command(flatten)]
    admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[rustfmt::skip] // A table: one row a word.
const PLACEMENTS: Choices<Policy> = &[
    ("strict", "One; others wait for its next READY", Policy::Strict),
    ("opportunistic", "As many as should fit", Policy::Opportunistic),
];
#[rustfmt::skip] // A table: one row a word.
const CONTROLLERS: Choices<ControllerMode> = &[
    ("any", "All of them", ControllerMode::Any),
    ("master", "The one that is connected longest", ControllerMode::Master),
];

impl Args {
    /// Errors that can be found without starting the scheduler.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let CredentialFiles { cert, key, ca, crl } = &self.files;
        problems.credentials(Some(cert), key.as_ref(), Some(ca), crl, Role::SCHEDULER);
        // The scheduler makes the file if there is none.
        let config = self.config.as_deref().filter(|path| path.exists());
        problems.of("config", config.map(load_configuration));
        self.join.problems(&mut problems);
        problems
    }
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    let mut daemon = Daemon::install(settings)?;
    let config = SchedulerConfig::new()
        .policy(args.placement)
        .controllers(args.controllers)
        .start_time(QUIET, args.start_limit.into())
        .given(args.config.as_ref(), SchedulerConfig::configuration_file)
        .given(args.state.as_ref(), SchedulerConfig::state);
    let (identity, trust, read) = args.files.read_as(Role::SCHEDULER)?;
    let server = ServerConfig::new(identity, trust);
    let server = args.listen.iter().cloned().fold(server, ServerConfig::listen);
    let server = args.admission.apply(server, !args.allow_unbound);
    let scheduler = Scheduler::new(config).map_err(|e| Failure::new(format!("--config or --state: {e}")))?;
    let (server, mut membership) = match args.join.engine()? {
        Some(engine) => {
            // This only checks the flags. A port that the system chooses is known once the server
            // listens, so `start_joined` finds the addresses itself.
            join::addresses(&args.listen, args.advertise.as_ref())?;
            let named: Vec<_> = args.advertise.iter().map(Address::to_string).collect();
            let links = named.iter().fold(Federation::new(), Federation::advertise);
            let joined = scheduler.start_joined(server, links, Box::new(engine), named);
            let JoinedScheduler { server, membership } =
                joined.map_err(|e| Failure::new(format!("--join: {e}")))?;
            (server, Some(Arc::new(membership)))
        }
        None => (scheduler.start(server)?, None),
    };
    let handle = server.handle();
    let presence = Presence {
        name: "scheduler",
        addresses: server.addresses(),
        lines: vec![listening(server.addresses())],
        json: args.json,
        admin: &args.admin,
        figures: admin::of_scheduler(server.handle(), join::weak(membership.as_ref())),
        status: Box::new(move || sessions(&handle)),
    };
    let mut running = Running {
        server: &server,
        files: args.files,
    };
    let mut result = daemon.run(presence, read, &mut running, vec![ended(&server)]);
    // First, so that another one leads while clients leave this one.
    membership.take();
    if result.is_ok() {
        result = daemon.drain(&server, args.admission.drain());
    }
    server.stop();
    result
}

/// The part of a scheduler that a reload changes: its certificates. It writes the
/// cluster's configuration itself, so that file is not read again.
struct Running<'a> {
    server: &'a Server,
    files: CredentialFiles,
}

impl Service for Running<'_> {
    type Args = Args;

    const RELOADED: &'static [&'static str] = &["ca", "cert", "crl", "crl-strict", "key"];

    fn reload(&mut self, args: Option<Args>) -> Result<FilesRead, Failure> {
        let files = args.map_or_else(|| self.files.clone(), |args| args.files);
        let read = files.renew(|identity, trust| self.server.renew(identity, trust).map(drop))?;
        self.files = files;
        Ok(read)
    }
}
