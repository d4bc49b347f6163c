//! `ssntp scheduler`: the server of a cluster.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use ssntp::Role;
use ssntp::server::{Server, ServerConfig};
use ssntp::transport::Address;
use ssntp_cluster::scheduler::placement::Policy;
use ssntp_cluster::scheduler::{ControllerMode, Scheduler, SchedulerConfig};

use crate::admin::{self, AdminArgs};
use crate::credentials::{CredentialFiles, CrlArgs, FilesRead};
use crate::daemon::server::{Admission, listening, load_configuration, sessions};
use crate::daemon::{Daemon, Presence, Service};
use crate::failure::Failure;
use crate::seconds::Seconds;
use crate::settings::{ConfigFile, Problems, Settings};

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
    #[command(flatten)]
    admission: Admission,
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
        problems.credentials(Some(&self.cert), Some(&self.ca), &self.crl, Role::SCHEDULER);
        // The scheduler makes the file if there is none.
        let config = self.config.as_deref().filter(|path| path.exists());
        problems.of("config", config.map(load_configuration));
        problems
    }
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    let mut daemon = Daemon::install(settings)?;
    let mut config = SchedulerConfig::new()
        .policy(match args.placement {
            PlacementName::Strict => Policy::Strict,
            PlacementName::Opportunistic => Policy::Opportunistic,
        })
        .controllers(match args.controllers {
            ControllersName::Any => ControllerMode::Any,
            ControllersName::Master => ControllerMode::Master,
        })
        .start_time(QUIET, args.start_limit.into());
    if let Some(path) = &args.config {
        config = config.configuration_file(path.clone());
    }
    let files = args.files();
    let (identity, trust, read) = files.read()?;
    let mut server = args.admission.apply(ServerConfig::new(identity, trust));
    for address in &args.listen {
        server = server.listen(address.clone());
    }
    let scheduler = Scheduler::new(config).map_err(|e| Failure::new(format!("--config: {e}")))?;
    let server = scheduler.start(server)?;
    let handle = server.handle();
    let presence = Presence {
        name: "scheduler",
        addresses: server.addresses(),
        lines: vec![listening(server.addresses())],
        json: args.json,
        admin: &args.admin,
        figures: admin::of_scheduler(server.handle()),
        status: Box::new(move || sessions(&handle)),
    };
    let mut running = Running {
        server: &server,
        files,
    };
    daemon.run(presence, read, &mut running, Vec::new())?;
    server.stop();
    Ok(())
}

/// The part of a scheduler that a reload changes: its certificates. It writes the
/// cluster's configuration itself, so that file is not read again.
struct Running<'a> {
    server: &'a Server,
    files: CredentialFiles,
}

impl Service for Running<'_> {
    type Args = Args;

    const RELOADED: &'static [&'static str] = &["ca", "cert", "crl", "crl-strict"];

    fn reload(&mut self, args: Option<Args>) -> Result<FilesRead, Failure> {
        let files = args.map_or_else(|| self.files.clone(), |args| args.files());
        let read = files.renew(|identity, trust| self.server.renew(identity, trust).map(drop))?;
        self.files = files;
        Ok(read)
    }
}
