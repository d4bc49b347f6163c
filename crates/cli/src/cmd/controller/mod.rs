//! `ssntp controller`: keeps what should run in a database, makes the cluster run it, and shows both
//! over HTTP.
//!
//! | file | holds |
//! |---|---|
//! | `http` | `--http`: the pages and the API |
//! | `token` | `ssntp controller token` |

mod http;
mod token;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::value_parser;
use serde_json::json;
use ssntp::Role;
use ssntp::client::UuidSource;
use ssntp_controller::http::Api;
use ssntp_controller::{Config, Daemon as Controller, Limits};

use self::http::HttpArgs;
use crate::admin::{self, AdminArgs};
use crate::connection::Connection;
use crate::credentials::{CredentialFiles, FilesRead};
use crate::daemon::{Daemon, Presence, Service, on};
use crate::failure::Failure;
use crate::settings::{ConfigFile, Problems, Settings};

/// Keep what should run, make the cluster run it, and show both on pages
///
/// The database in --store holds the workloads that should run, and the history of the cluster.
/// `ssntp ctl apply` changes the workloads through the API at --http. SIGINT and SIGTERM end the
/// controller; instances go on. On SIGHUP, and when these files change, --ca, --cert, --crl and
/// --http-ca are read again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    #[command(flatten)]
    connection: Connection,
    /// The directory of the database, which is made if there is none
    #[arg(long, value_name = "DIR", global = true)]
    store: Option<PathBuf>,
    /// How long a row of the history is kept
    #[arg(long, value_name = "DAYS", default_value_t = 30, value_parser = value_parser!(u32).range(1..=3650))]
    history_days: u32,
    /// How large the database may be before the oldest rows of the history are deleted
    #[arg(long, value_name = "MB", default_value_t = 256, value_parser = value_parser!(u32).range(16..=1_000_000))]
    history_mb: u32,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    admin: AdminArgs,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    #[command(subcommand)]
    Token(token::Args),
}

impl Args {
    /// Whether it runs until it is stopped.
    pub(crate) fn serves(&self) -> bool {
        self.verb.is_none()
    }

    /// Errors that can be found without starting the controller.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        self.connection.check_files(&mut problems, Role::CONTROLLER);
        problems.of("store", self.store().err().map(Err::<(), _>));
        problems
    }

    fn store(&self) -> Result<&Path, Failure> {
        self.store
            .as_deref()
            .ok_or_else(|| Failure::usage("--store is needed: the directory of the database"))
    }
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    match &args.verb {
        Some(Verb::Token(token)) => token::run(token, args.store()?, args.json),
        None => serve(&args, settings),
    }
}

fn serve(args: &Args, settings: Settings) -> Result<(), Failure> {
    let store = args.store()?;
    let mut daemon = Daemon::install(settings)?;
    let (mut client, renewal) = args.connection.config_as(Role::CONTROLLER, daemon.stop())?;
    // --uuid wins over the UUID that is kept in --store.
    if !args.connection.has_uuid() {
        client = client.uuid(UuidSource::Persistent(store.to_owned()));
    }
    let limits = Limits {
        age: Duration::from_secs(u64::from(args.history_days) * 86_400),
        bytes: u64::from(args.history_mb) * 1_000_000,
    };
    let controller = Controller::start(Config {
        client: client.tracing(true),
        store: store.to_owned(),
        limits,
    })
    .map_err(Failure::new)?;
    let handle = controller.handle();
    let client = handle.controller().client();
    let credentials = renewal.read.credentials.clone();
    let api = args.http.start(store, credentials, handle.clone())?;
    let figures = admin::of_client(client.clone());
    let (uuid, status) = (client.uuid(), move || Some(client.figures()));
    let mut presence = Presence::of_client("controller", uuid, args.json, &args.admin, figures, status);
    if let Some(api) = &api {
        let urls = api.urls();
        presence
            .lines
            .push((format!("page at {}", urls.join(", ")), json!({ "page": urls })));
    }
    let mut running = Running {
        controller: &controller,
        api,
        http: &args.http,
        files: renewal.files,
    };
    let arms = vec![on(controller.ended().clone(), |_, _| {
        Err(Failure::new(
            "the controller has ended by itself; the log says why",
        ))
    })];
    daemon.run(presence, args.http.watched(renewal.read), &mut running, arms)
}

/// The part of a controller that a reload changes.
struct Running<'a> {
    controller: &'a Controller,
    api: Option<Api>,
    http: &'a HttpArgs,
    files: CredentialFiles,
}

impl Service for Running<'_> {
    type Args = Args;

    fn reload(&mut self, _: Option<Args>) -> Result<FilesRead, Failure> {
        // The authority of those who may look comes first, so that a failure leaves all as it was.
        let look = self.http.look()?;
        let (controller, api) = (self.controller.handle().controller(), &self.api);
        let read = self
            .files
            .renew(|identity, trust| controller.renew(identity, trust))?;
        if let (Some(api), Some((identity, trust))) = (api, &read.credentials) {
            api.renew(identity, trust.clone(), look).map_err(Failure::new)?;
        }
        Ok(self.http.watched(read))
    }
}
