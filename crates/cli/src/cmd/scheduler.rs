//! `ssntp scheduler`: the server of a cluster.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ValueEnum, value_parser};
use crossbeam_channel::select;
use ssntp::Role;
use ssntp::server::{Server, ServerConfig};
use ssntp::transport::Address;
use ssntp_cluster::scheduler::placement::Policy;
use ssntp_cluster::scheduler::{ControllerMode, Scheduler, SchedulerConfig};
use uuid::Uuid;

use super::server::{Admission, announce, load_configuration, sessions};
use crate::admin::{self, About, AdminArgs, Pages};
use crate::credentials::{CredentialFiles, CrlArgs, Lifetime};
use crate::daemon::{Daemon, Service};
use crate::failure::Failure;
use crate::seconds::Seconds;
use crate::settings::{ConfigFile, Problems, Settings};
use crate::watched::Watched;

/// How long a node may say nothing of a workload that it was given.
const QUIET: Duration = Duration::from_secs(60);

/// Run the scheduler of a cluster: takes commands, picks nodes, passes on
/// what they say
///
/// Prints one line with its address once it accepts clients. SIGHUP makes it read
/// --ca, --cert, --crl and --config-file again, and so does a change of these files.
/// Sessions stay, but for those whose certificate does not count any more.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
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
    #[command(flatten)]
    crl: CrlArgs,
    /// The cluster's configuration, which clients get; the scheduler's own settings
    /// are for --config-file. It is rewritten whenever a controller
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
    #[command(flatten)]
    admin: AdminArgs,
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

impl Args {
    fn files(&self) -> CredentialFiles {
        CredentialFiles {
            cert: self.cert.clone(),
            ca: self.ca.clone(),
            crl: self.crl.clone(),
        }
    }

    /// What can be told to be wrong before it is started, by its key.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let (cert, ca) = (Some(self.cert.clone()), Some(self.ca.clone()));
        problems.credentials(&cert, &ca, &self.crl, Role::SCHEDULER);
        // One that is not there yet will be made.
        let config = self.config.as_deref().filter(|path| path.exists());
        problems.of("config", config.map(load_configuration));
        problems
    }
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
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
    let files = args.files();
    let watched = files.paths().into_iter().chain(settings.file());
    let watched = Watched::of(watched.collect());
    let (identity, trust) = files.load()?;
    let lifetimes = files.lifetimes(&identity, &trust);
    let mut server = ServerConfig::new(identity.clone(), trust.clone())
        .resumption(!args.no_resumption)
        .admission(args.admission.policy())
        .outlive_certificates(args.admission.outlive_certificates);
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
    let pages = args.admin.start(
        About {
            daemon: "scheduler",
            listening: admin::shown(server.addresses()),
            notes: daemon.notes(),
        },
        || Ok(Some((identity, trust))),
        admin::of_scheduler(server.handle()),
    )?;
    announce(&server, args.json)?;
    pages.announce(args.json);
    let handle = server.handle();
    daemon.ready(move || sessions(&handle));
    let mut running = Running {
        server: &server,
        pages: &pages,
        files,
        settings,
        watched: None,
        lifetimes,
    };
    daemon.watch(watched, &running);
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
    daemon.stopping();
    pages.stopping();
    server.stop();
    Ok(())
}

/// What is read again: certificates alone. The configuration is the scheduler's own
/// file, which controllers change.
struct Running<'a> {
    server: &'a Server,
    pages: &'a Pages,
    files: CredentialFiles,
    settings: Settings,
    /// Other files than before, as they were before they were read.
    watched: Option<Watched>,
    lifetimes: Vec<Lifetime>,
}

impl Service for Running<'_> {
    fn reload(&mut self) -> Result<(), Failure> {
        let read = self.settings.read_again::<Args>()?;
        let files = match &read {
            Some((args, _)) => args.files(),
            _ => self.files.clone(),
        };
        let watched = files.paths().into_iter().chain(self.settings.file());
        let watched = Watched::of(watched.collect());
        let (identity, trust) = files.load()?;
        self.server.renew(&identity, &trust).map_err(Failure::new)?;
        self.pages.renew(&identity, &trust);
        self.lifetimes = files.lifetimes(&identity, &trust);
        self.files = files;
        self.watched = Some(watched);
        if let Some((_, now)) = read {
            self.settings.take(now, &["ca", "cert", "crl", "crl-strict"]);
        }
        Ok(())
    }

    fn watched(&mut self) -> Option<Watched> {
        self.watched.take()
    }

    fn lifetimes(&self) -> Vec<Lifetime> {
        self.lifetimes.clone()
    }
}
