//! `ssntp controller`: keeps the workloads that should run in a database, makes the cluster run
//! them, and shows workloads and cluster over HTTP.
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
use ssntp_controller::{Config, Limits, RunningController};
use ssntp_daemon::{
    ConfigFile, Connection, Daemon, Failure, Presence, Problems, Renewal, Settings, closed, note, on,
};

use self::http::HttpArgs;
use crate::admin::{self, AdminArgs};

/// Keep the workloads that should run, make the cluster run them, and show both on pages
///
/// The database in --store holds the workloads that should run, and the history of the cluster.
/// `ssntp ctl apply` changes the workloads through the API at --http. SIGINT and SIGTERM end the
/// controller; instances keep running. On SIGHUP, and when these files change, --ca, --cert, --crl and
/// --http-ca are read again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    #[command(flatten)]
    connection: Connection,
    /// The directory of the database, which is created if it does not exist
    #[arg(long, value_name = "DIR", global = true)]
    store: Option<PathBuf>,
    /// The days for which a row of the history is kept
    #[arg(long, value_name = "DAYS", default_value_t = 30, value_parser = value_parser!(u32).range(1..=3650))]
    history_days: u32,
    /// The largest size of the database; beyond it, the oldest rows of the history are deleted
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
    verb: Option<OfTokens>,
}

#[derive(Debug, clap::Subcommand)]
enum OfTokens {
    #[command(subcommand)]
    Token(token::Args),
}

impl Args {
    /// True if the command runs until it is stopped.
    pub(crate) fn serves(&self) -> bool {
        self.verb.is_none()
    }

    /// Errors that can be found without starting the controller.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        self.connection.check_files(&mut problems, Role::CONTROLLER);
        problems.of("store", Some(self.store()));
        problems.of("http-ca", Some(self.http.readers()));
        self.admin.problems(&mut problems);
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
        Some(OfTokens::Token(token)) => token::run(token, args.store()?, args.json),
        None => serve(&args, settings),
    }
}

fn serve(args: &Args, settings: Settings) -> Result<(), Failure> {
    let store = args.store()?;
    let mut daemon = Daemon::install(settings)?;
    let (mut client, Renewal { files, read, .. }) =
        args.connection.config_as(Role::CONTROLLER, daemon.stop())?;
    // --uuid overrides the UUID that is kept in --store.
    if !args.connection.has_uuid() {
        client = client.uuid(UuidSource::Persistent(store.to_owned()));
    }
    let limits = Limits {
        age: Duration::from_secs(u64::from(args.history_days) * 86_400),
        bytes: u64::from(args.history_mb) * 1_000_000,
    };
    let controller = RunningController::start(Config {
        client: client.tracing(true),
        store: store.to_owned(),
        limits,
    })
    .map_err(Failure::new)?;
    let handle = controller.handle();
    let client = handle.controller().client();
    let credentials = read.credentials.clone();
    let (_, of_readers) = args.http.readers()?;
    let api = args.http.start(store, credentials, handle.clone())?;
    let figures = admin::of_controller(handle.clone());
    let (uuid, queried) = (client.uuid(), client.clone());
    let status = move || Some(queried.figures());
    let mut presence = Presence::of_client("controller", uuid, args.json, args.admin.pages(figures), status);
    if let Some(api) = &api {
        let urls = api.urls();
        presence
            .lines
            .push((format!("page at {}", urls.join(", ")), json!({ "page": urls })));
        match api.link() {
            Ok(Some(link)) => {
                let text = format!("log in, within a day, at {link}");
                presence.lines.push((text, json!({ "login": link })));
            }
            Ok(None) => {}
            Err(e) => note(format_args!("ssntp: there is no link to log in: {e}")),
        }
    }
    let arms = vec![on(controller.ended().clone(), |_| {
        Err(match client.ended() {
            None => Failure::new("the controller has ended by itself; the log says why"),
            why => closed(why),
        })
    })];
    let reload = |_: Option<Args>| {
        // The authority of --http-ca is read first, so that a fault in it changes nothing.
        let (readers, of_readers) = args.http.readers()?;
        let controller = controller.handle().controller();
        let read = files.renew(|identity, trust| controller.renew(identity, trust))?;
        if let (Some(api), Some((identity, trust))) = (&api, &read.credentials) {
            api.renew(identity, trust.clone(), readers)
                .map_err(Failure::new)?;
        }
        Ok(read.with(of_readers))
    };
    daemon.run(presence, read.with(of_readers), reload, arms)
}
