//! `ssntp opflex serve`: policy repository, endpoint registry, observer.

use std::path::{Path, PathBuf};

use clap::value_parser;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use ssntp::transport::Address;
use ssntp_daemon::{
    ConfigFile, Daemon, Failure, Next, Presence, Problems, Settings, Watched, address, on, to_dial,
};
use ssntp_engine::{EngineError, Etcd};
use ssntp_opflex::Server;
use ssntp_opflex::model::Edit;
use ssntp_opflex::run::{CallError, ServerConfig, ServerHandle};
use ssntp_transport::threads;

use super::flags::InspectorArgs;
use super::identity::IdentityArgs;
use super::load_model;
use super::source::{POLL, Source};
use super::tls::ServerTls;
use crate::admin::{self, AdminArgs};
use crate::engine::{self, EngineArgs};
use crate::serving::listening;

/// The number of checks of the policy files after which an engine that was away is asked again.
const CHECKS_TO_RETRY: u32 = 30;

/// Serve policy, register endpoints and keep state reports
///
/// Prints one line with its addresses once it accepts clients. When a policy file
/// changes, it is read again and replaces all policy. When a file of --tls-cert, --tls-ca,
/// --tls-crl or --join changes, it is read again, and clients whose certificate is no longer
/// valid are disconnected. A file that cannot be read changes nothing. SIGHUP makes the
/// server read all files at once; policy files whose contents are unchanged do not undo
/// the changes of `ssntp opflex policy`. With --join, several servers have the same
/// policy, and each sends elements the addresses of all servers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    /// The addresses to listen at: HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH; with
    /// port 0 the system chooses one
    #[arg(long, value_name = "ADDR", value_parser = address, required = true, num_args = 1..)]
    listen: Vec<Address>,
    /// The policy: a JSON or YAML array of managed objects, as agent-ovs's
    /// opflex_server reads, or a directory of such files
    #[arg(long, value_name = "FILE|DIR")]
    policy: Option<PathBuf>,
    /// The model: classes with their properties, types and containment (JSON or YAML);
    /// policy that does not fit it is refused [default: accept any class]
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
    join: EngineArgs,
    /// The address at which elements reach this server; all servers send it to elements [default:
    /// the first of --listen]
    #[arg(long, value_name = "ADDR", value_parser = to_dial, requires = "join")]
    advertise: Option<Address>,
    #[command(flatten)]
    inspector: InspectorArgs,
    /// The maximum number of clients at a time; one host may always have 64 of them, and more only while
    /// as many places stay free as it has clients [default: what the system allows]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max_connections: Option<u32>,
    /// The maximum number of handshakes at a time [default: 64 for each core, at most 512]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max_handshakes: Option<u32>,
    #[command(flatten)]
    admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        problems.of("tls-cert", Some(self.tls.read()));
        self.join
            .problems(&mut problems, &self.listen, self.advertise.as_ref());
        // Without an authority for clients, the pages use no TLS and do not read theirs.
        if self.tls.has_authority() {
            self.admin.problems(&mut problems);
        }
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
    args.identity.warn();
    let mut config = ServerConfig::new(args.identity.settings());
    config.schema = args.model.as_deref().map(load_model).transpose()?;
    let (credentials, of_engine) = args.join.read()?;
    let engine = args.join.engine(credentials);
    let renewal = engine.as_ref().map(Etcd::renewal);
    if engine.is_some() {
        engine::addresses(&args.listen, args.advertise.as_ref())?;
    }
    config.listen = args.listen;
    let (acceptor, read) = args.tls.read()?;
    config.tls = acceptor;
    config.keep = args.persist;
    config.control = args.control;
    config.inspector = args.inspector.socket();
    config.max_connections = args.max_connections.map(|n| n as usize);
    if let Some(most) = args.max_handshakes {
        config.max_handshakes = most as usize;
    }
    // The source checks the files against the server's model as well, because only the source can
    // name the file in an error.
    let schema = config.schema.clone();
    let mut source = args.policy.map(|path| Source::new(path, schema));
    if let Some(source) = &mut source {
        config.policy = source.read()?.unwrap_or_default();
    }
    // Checked before the server starts, because a running server writes this file.
    let kept = config.keep.clone().filter(|path| path.exists());
    let is_joined = engine.is_some();
    let server = match engine {
        Some(engine) => {
            let advertise = args.advertise.map(|address| address.to_string());
            Server::start_joined(config, Box::new(engine), advertise)?
        }
        None => Server::start(config)?,
    };
    let handle = server.handle();
    if !args.tls.is_given() && !server.addresses().iter().all(Address::is_local) {
        log::warn!(
            "there is no TLS: every host that reaches this server gets its policy; give --tls-cert and --tls-ca, or \
             --listen localhost"
        );
    }
    match (kept.as_deref(), &source) {
        (_, Some(source)) if is_joined => log::info!(
            "the policy of the cluster is in force; {} is used once it changes, or if the cluster had no policy",
            source.path().display()
        ),
        (Some(kept), Some(source)) => log_kept(kept, source),
        _ => {}
    }
    let presence = Presence {
        name: "opflex",
        addresses: server.addresses(),
        lines: vec![listening(server.addresses())],
        json: args.json,
        pages: args.admin.pages(admin::of_opflex(
            server.handle(),
            engine::weak(server.membership()),
        )),
        status: Box::new(move || {
            let clients = handle.with(|core, _| core.session_count()).ok()?;
            Some(format!("{clients} clients"))
        }),
        reloaded: &[],
    };
    let mut arms = vec![on(server.running().clone(), |_| {
        Err(Failure::new("the server has panicked; the log says why"))
    })];
    // One slot, because one reading serves all reloads. Dropped to stop the thread.
    let (read_now, due) = bounded(1);
    let mut thread = None;
    if let Some(source) = source {
        // The kept policy, or the cluster's, is not that of the files, so replacing it loses
        // something.
        let is_from_files = kept.is_none() && !is_joined;
        let server = server.handle();
        let policy = PolicyFiles {
            revision: is_from_files.then(|| revision(&server).ok()).flatten(),
            server,
            source,
            checks_to_retry: 0,
        };
        let (read, reads) = bounded(1);
        let started = threads::spawn("opflex-policy", move || policy.run(&due, &read));
        thread = Some(started.map_err(Failure::thread)?);
        arms.push(on(reads, |read| match read {
            Some(read) => Ok(Next::Reloaded(read)),
            None => Err(Failure::new(
                "the thread that reads the policy files has panicked; the log says why",
            )),
        }));
    }
    let reload = |_: Option<Args>| {
        let (acceptor, read) = args.tls.read()?;
        let (credentials, of_engine) = args.join.read()?;
        if let Some(acceptor) = acceptor {
            server.renew(acceptor)?;
        }
        if let Some(renewal) = &renewal {
            renewal.renew(credentials);
        }
        // The policy is read by its thread and not here, because a fault in a policy file must
        // not prevent the renewal of certificates.
        let _ = read_now.try_send(());
        Ok(read.with(of_engine))
    };
    let done = daemon.run(presence, read.with(of_engine), reload, arms);
    drop(read_now);
    match server.running().try_recv() {
        // After a panic of the dispatcher its state is lost, so the server cannot be stopped in order.
        Err(TryRecvError::Disconnected) => std::mem::forget(server),
        _ => {
            server.stop();
            // Joined only now, because the stop of the server ends an edit that waits for the engine.
            if let Some(thread) = thread {
                let _ = thread.join();
            }
        }
    }
    done
}

/// Logs that the kept policy is in force and not that of --policy. If the files of --policy are
/// newer, the line is a warning, because their author probably expects their policy in force.
fn log_kept(kept: &Path, source: &Source) {
    // The latest changes may be only in the file of edits beside the kept file.
    let mut edits = kept.as_os_str().to_owned();
    edits.push(".edits");
    let last = Watched::of(vec![kept.to_owned(), edits.into()]).modified();
    let (kept, given) = (kept.display(), source.path().display());
    if last.is_some() && source.modified() > last {
        log::warn!(
            "{given} is newer than the policy kept in {kept}, which is in force: `ssntp opflex policy reload` replaces it"
        );
    } else {
        log::info!("the policy kept in {kept} is in force, not {given}");
    }
}

fn revision(server: &ServerHandle) -> Result<u64, Failure> {
    let revision = server.with(|core, _| core.policy_revision());
    revision.map_err(Failure::new)
}

/// The policy files of a server, and the revision that the server's policy got from them.
struct PolicyFiles {
    server: ServerHandle,
    source: Source,
    /// `None` if the policy in force is not that of the files.
    revision: Option<u64>,
    /// The number of checks until the engine of the cluster is asked again, if it was away; else 0.
    checks_to_retry: u32,
}

impl PolicyFiles {
    /// Checks the files, and sends the result of each read, until `due` is disconnected. A message of
    /// `due` means that the files are read, changed or not. This needs a thread of its own, because an
    /// edit may wait for the engine for more than half a minute, and the main loop must handle signals
    /// meanwhile.
    fn run(mut self, due: &Receiver<()>, to: &Sender<Result<(), String>>) {
        loop {
            let is_due = match due.recv_timeout(POLL) {
                Err(RecvTimeoutError::Disconnected) => return,
                received => received.is_ok(),
            };
            if self.check(is_due).is_some_and(|read| to.send(read).is_err()) {
                return;
            }
        }
    }

    /// Reads the policy again if its files have changed, or if that is due. Returns the result, or
    /// `None` if there was nothing to read.
    fn check(&mut self, is_due: bool) -> Option<Result<(), String>> {
        let is_again = self.checks_to_retry == 1;
        self.checks_to_retry = self.checks_to_retry.saturating_sub(1);
        if !self.source.has_changed() && !is_due && !is_again {
            return None;
        }
        Some(self.read().map_err(|failure| {
            let why = failure.to_string();
            log::error!("{why}");
            why
        }))
    }

    /// Replaces all policy by that of the files, if their contents have changed. Files that
    /// cannot be used change nothing.
    fn read(&mut self) -> Result<(), Failure> {
        let read = self.source.read();
        let path = self.source.path().display().to_string();
        let Some(objects) = read.inspect_err(|_| log::error!("{path}: the policy stays as it was"))? else {
            log::info!("{path}: read again: its contents are the same");
            return Ok(());
        };
        // Each change makes a new revision, so another one means that the policy was changed through
        // the control socket since the files were read. Those changes are lost now.
        let is_other = self.revision != Some(revision(&self.server)?);
        let changed = match self.server.edit(Edit::Reload(objects)) {
            Ok(changed) => changed,
            Err(why) => {
                // Otherwise the contents would count as those that are in force.
                self.source.forget();
                // Only an operator can correct the other errors of the engine.
                if let CallError::Engine(EngineError::Away(_) | EngineError::Changed) = why {
                    self.checks_to_retry = CHECKS_TO_RETRY;
                }
                return Err(Failure::at(self.source.path(), why));
            }
        };
        if is_other {
            log::warn!(
                "{path}: has changed and replaces all policy, including changes made through the control socket"
            );
        }
        self.revision = Some(revision(&self.server)?);
        log::info!("{path}: read again: {changed} objects changed");
        Ok(())
    }
}
