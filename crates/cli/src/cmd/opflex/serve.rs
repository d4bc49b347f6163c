//! `ssntp opflex serve`: policy repository, endpoint registry, observer.

use std::path::PathBuf;

use clap::value_parser;
use crossbeam_channel::TryRecvError;
use ssntp::transport::Address;
use ssntp_opflex::Server;
use ssntp_opflex::model::Edit;
use ssntp_opflex::run::ServerConfig;

use super::identity::IdentityArgs;
use super::load_model;
use super::local::InspectorArgs;
use super::source::{LOOK, Source};
use super::tls::ServerTls;
use crate::admin::{self, AdminArgs};
use crate::credentials::FilesRead;
use crate::daemon::server::listening;
use crate::daemon::{Arms, Daemon, Next, Presence, Service, on};
use crate::failure::Failure;
use crate::settings::{ConfigFile, Problems, Settings};

/// Serve policy, register endpoints and keep state reports
///
/// Prints one line with its addresses once it accepts clients. When a policy file
/// changes, it is read again and replaces all policy. When a file of --tls-cert, --tls-ca
/// or --tls-crl changes, it is read again, and clients whose certificate is not valid any
/// more are disconnected. A file that cannot be read changes nothing. SIGHUP makes the
/// server read all files at once.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    /// Where to listen: HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH; port 0
    /// lets the system choose
    #[arg(long, value_name = "ADDR", required = true, num_args = 1..)]
    listen: Vec<Address>,
    /// The policy: a JSON or YAML array of managed objects, as agent-ovs's
    /// opflex_server reads, or a directory of such files
    #[arg(long, value_name = "FILE|DIR")]
    policy: Option<PathBuf>,
    /// The model: classes with their properties, types and containment (JSON or YAML);
    /// policy that does not fit is refused [default: accept any class]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Identity")]
    identity: IdentityArgs,
    #[command(flatten)]
    tls: ServerTls,
    /// Keep policy in this file; if it exists, start with its policy instead of
    /// --policy
    #[arg(long, value_name = "FILE")]
    persist: Option<PathBuf>,
    /// The Unix socket that `ssntp opflex policy`, `endpoints`, `reports` and
    /// `sessions` talk to
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    #[command(flatten)]
    inspector: InspectorArgs,
    /// The most clients at a time [default: what the system allows]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max_connections: Option<u32>,
    #[command(flatten)]
    admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        problems.of("tls-cert", Some(self.tls.acceptor()));
        let schema = self.model.as_deref().map(load_model).transpose();
        let read = |schema| self.policy.clone().map(|path| Source::new(path, schema).read());
        match schema {
            Ok(schema) => problems.of("policy", read(schema)),
            Err(failure) => problems.of("model", Some(Err::<(), _>(failure))),
        }
        problems
    }
}

pub(super) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    let mut daemon = Daemon::install(settings)?;
    let mut config = ServerConfig::new(args.identity.settings());
    config.schema = args.model.as_deref().map(load_model).transpose()?;
    config.listen = args.listen;
    let (acceptor, read) = args.tls.read()?;
    config.tls = acceptor;
    config.keep = args.persist;
    config.control = args.control;
    config.inspector = args.inspector.socket();
    config.max_connections = args.max_connections.map(|n| n as usize);
    let schema = config.schema.clone();
    let mut source = args.policy.map(|path| Source::new(path, schema));
    if let Some(source) = &mut source {
        config.policy = source.read()?;
    }
    let server = Server::start(config)?;
    let handle = server.handle();
    let presence = Presence {
        name: "opflex",
        addresses: server.addresses(),
        lines: vec![listening(server.addresses())],
        json: args.json,
        admin: &args.admin,
        figures: admin::of_opflex(server.handle()),
        status: Box::new(move || {
            let clients = handle.with(|cx| cx.core().session_count()).ok()?;
            Some(format!("{clients} clients"))
        }),
    };
    let mut arms: Arms<'_, Running<'_>> = vec![on(server.running().clone(), |_, _| {
        Err(Failure::new("the server has panicked; the log says why"))
    })];
    if source.is_some() {
        let look = |running: &mut Running<'_>, _| Ok(running.look().map_or(Next::Continue, Next::Reloaded));
        arms.push(on(crossbeam_channel::tick(LOOK), look));
    }
    let mut running = Running {
        server: &server,
        source,
        tls: args.tls,
    };
    let done = daemon.run(presence, read, &mut running, arms);
    match server.running().try_recv() {
        // After a panic of the dispatcher its state is lost: there is nothing to shut down in order.
        Err(TryRecvError::Disconnected) => std::mem::forget(server),
        _ => server.stop(),
    }
    done
}

/// What a reload reads again.
struct Running<'a> {
    server: &'a Server,
    source: Option<Source>,
    tls: ServerTls,
}

impl Service for Running<'_> {
    type Args = Args;

    fn reload(&mut self, _: Option<Args>) -> Result<FilesRead, Failure> {
        let (acceptor, read) = self.tls.read()?;
        self.read_policy()?;
        if let Some(acceptor) = acceptor {
            self.server.renew(acceptor)?;
        }
        Ok(read)
    }
}

impl Running<'_> {
    /// Reads the policy again if its files have changed. Returns how that went.
    fn look(&mut self) -> Option<Result<(), String>> {
        if !self.source.as_mut()?.has_changed() {
            return None;
        }
        let done = self.read_policy();
        Some(done.map_err(|failure| {
            let why = failure.to_string();
            log::error!("{why}");
            why
        }))
    }

    /// Makes what the source holds all the policy there is; a source that holds no
    /// policy changes nothing.
    fn read_policy(&mut self) -> Result<(), Failure> {
        let Some(source) = &mut self.source else {
            return Ok(());
        };
        let changed = source.read().and_then(|objects| {
            let edited = self.server.handle().edit(Edit::Reload(objects));
            edited.map_err(Failure::new)
        });
        let path = source.path().display();
        let changed = changed.inspect_err(|_| log::error!("{path}: the policy stays as it was"))?;
        log::info!("{path}: read again: {changed} objects changed");
        Ok(())
    }
}
