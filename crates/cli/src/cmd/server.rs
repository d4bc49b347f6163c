//! `ssntp server`: accepts clients, filters and routes what they send.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clap::{ValueEnum, value_parser};
use crossbeam_channel::{Receiver, Sender};
use serde_json::json;
use ssntp::Role;
use ssntp::payload::{Configure, Payload};
use ssntp::proto::{Command, Event, Frame, FrameKind, Operands, Run};
use ssntp::server::{
    AdmissionPolicy, Context, Decision, Filter, FilterAction, Handler, RuleError, Rules, Server,
    ServerConfig, ServerHandle, SessionInfo, SlowConsumer,
};
use ssntp::transport::Address;
use uuid::Uuid;

use super::dev::{self, Dev};
use super::{listen, operands};
use crate::admin::{self, About, AdminArgs, Pages};
use crate::application::Applications;
use crate::credentials::{CredentialFiles, CrlArgs, Lifetime};
use crate::daemon::{Daemon, Service};
use crate::failure::Failure;
use crate::output::{Output, lone_line, note};
use crate::receipt::Question;
use crate::seconds::Seconds;
use crate::settings::{ConfigFile, Problems, Settings};
use crate::watched::Watched;

/// Run a server that checks roles, filters and routes
///
/// Prints one line with its address once it accepts clients. With --dev it needs
/// nothing else: it makes an authority to throw away and a context that names it,
/// listens on this host alone, forwards and filters as `ssntp operands` shows, and
/// prints what it routes.
///
/// SIGHUP makes it read --ca, --cert, --crl and --config again, except with --dev, and
/// so does a change of these files. Sessions stay, but for those whose certificate does
/// not count any more, and clients get a CONFIGURE if there is another --config. Of
/// --config-file, which is read with them, forward, filter and filter-action count at
/// once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    /// Where to listen: HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH; port 0
    /// lets the system choose [with --dev: 127.0.0.1:8888]
    #[arg(long, value_name = "ADDR", required_unless_present = "dev", num_args = 1..)]
    listen: Vec<Address>,
    /// The authority that clients' certificates have to come from
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "dev",
        conflicts_with = "dev"
    )]
    ca: Option<PathBuf>,
    /// The server's certificate and key
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "dev",
        conflicts_with = "dev"
    )]
    cert: Option<PathBuf>,
    #[command(flatten)]
    crl: CrlArgs,
    /// Try the protocol: make all that is needed, for this host and user alone
    #[arg(long)]
    dev: bool,
    /// Forward frames of a kind to every session with a role, as in
    /// STATS=controller; may be given several times [with --dev: as
    /// `ssntp operands` shows]
    #[arg(long = "forward", value_name = "OPERAND=ROLE", value_parser = forward, num_args = 1..)]
    forwards: Vec<(FrameKind, Role)>,
    #[command(flatten)]
    applications: Applications,
    /// The cluster's configuration, which clients get; the server's own settings
    /// are for --config-file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Who may send what [default: allow-all, with --dev spec]
    #[arg(long, value_enum)]
    filter: Option<FilterName>,
    /// Print each frame that passes the filter, and to how many sessions it goes
    /// [default: with --dev]; those that the output does not take in time are left
    /// out, with their number
    #[arg(long)]
    show: bool,
    /// What happens to a frame that its sender may not send
    #[arg(long, value_enum, default_value_t = ActionName::Reject)]
    filter_action: ActionName,
    /// The most sessions at a time [default: what the system allows]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max_sessions: Option<u32>,
    #[command(flatten)]
    admission: Admission,
    /// The longest payload to take
    #[arg(long, value_name = "BYTES", default_value_t = ssntp::proto::DEFAULT_MAX_PAYLOAD)]
    max_payload: u32,
    /// How long TLS and CONNECT together may take
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    handshake_timeout: Seconds,
    /// Give clients no tickets to resume their TLS session with: every
    /// handshake is a full one
    #[arg(long)]
    no_resumption: bool,
    /// What happens to a session whose queue is full
    #[arg(long, value_enum, default_value_t = PolicyName::Disconnect)]
    slow_consumer: PolicyName,
    /// The server's UUID [default: its certificate's, else a random one]
    #[arg(long)]
    uuid: Option<Uuid>,
    #[command(flatten)]
    admin: AdminArgs,
    /// End when the standard input does: for whoever starts it as a child
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Whom a server admits.
#[derive(Debug, clap::Args)]
pub(super) struct Admission {
    /// Admit only clients whose certificate is bound to their UUID
    #[arg(long)]
    require_bound: bool,
    /// The most sessions of one certificate [default: three quarters of all,
    /// which is the most it may be]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    sessions_per_certificate: Option<u32>,
    /// Let a session go on beyond the end of its client's certificate [default: it
    /// ends with it]
    #[arg(long)]
    pub(super) outlive_certificates: bool,
}

impl Admission {
    pub(super) fn policy(&self) -> AdmissionPolicy {
        let policy = AdmissionPolicy::default().require_bound_uuid(self.require_bound);
        match self.sessions_per_certificate {
            Some(sessions) => policy.sessions_per_certificate(sessions as usize),
            None => policy,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FilterName {
    /// Everybody may send everything
    AllowAll,
    /// The table of the cluster's roles
    Spec,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ActionName {
    /// Drop it and tell its sender
    Reject,
    /// Drop it
    Drop,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PolicyName {
    /// End that session
    Disconnect,
    /// Drop what does not fit
    DropNewest,
    /// Drop what has waited longest
    DropOldest,
}

fn forward(text: &str) -> Result<(FrameKind, Role), String> {
    let (kind, role) = text.split_once('=').ok_or("it is not OPERAND=ROLE")?;
    let kind = operands::kind(kind.trim())?;
    let role = role.parse::<Role>().map_err(|e| e.to_string())?;
    Ok((kind, role))
}

impl Args {
    /// Who gets what is forwarded.
    fn rules(&self) -> Result<Rules, Failure> {
        let rules = match self.dev && self.forwards.is_empty() {
            true => Rules::spec(),
            false => {
                (self.forwards.iter()).fold(Rules::new(), |rules, (kind, role)| rules.multicast(*kind, *role))
            }
        };
        rules
            .check()
            .map_err(|e| Failure::usage(format!("--forward: {e}")))?;
        Ok(rules)
    }

    /// Who may send what.
    fn filter(&self) -> Filter {
        let filter = match self.filter {
            Some(FilterName::AllowAll) => Filter::allow_all(),
            Some(FilterName::Spec) => Filter::spec(),
            None if self.dev => Filter::spec(),
            None => Filter::allow_all(),
        };
        filter.action(match self.filter_action {
            ActionName::Reject => FilterAction::Reject,
            ActionName::Drop => FilterAction::Drop,
        })
    }

    /// What can be told to be wrong before it is started, by its key.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        problems.credentials(&self.cert, &self.ca, &self.crl, Role::SERVER);
        problems.of("config", self.configuration().transpose());
        problems.of("forward", Some(self.rules()));
        problems.of("application", Some(self.applications.operands()));
        problems
    }
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    // The end of its terminal ends a server that somebody only tries.
    let mut daemon = match args.dev {
        true => Daemon::install_for_trying()?,
        false => Daemon::install()?,
    };
    for address in args.listen.iter().filter(|_| args.dev) {
        dev::check_local(address)?;
    }
    let rules = args.rules()?;
    let policy = match args.slow_consumer {
        PolicyName::Disconnect => SlowConsumer::Disconnect,
        PolicyName::DropNewest => SlowConsumer::DropNewest,
        PolicyName::DropOldest => SlowConsumer::DropOldest,
    };
    let dev = args.dev.then(Dev::prepare).transpose()?;
    let files = args.files();
    let watched = args.watched(&settings);
    let (identity, trust) = match (&dev, &files) {
        (Some(dev), _) => (dev.identity.clone(), dev.trust.clone()),
        (None, Some(files)) => files.load()?,
        (None, None) => return Err(Failure::usage("--ca and --cert are needed, or --dev")),
    };
    let lifetimes = files.as_ref().map(|files| files.lifetimes(&identity, &trust));
    let (shown, show) = crossbeam_channel::bounded(SHOWN);
    let is_shown = args.show || args.dev;
    let operands = args.applications.operands()?;
    let receivers = receivers(&rules, &operands);
    let rules = forwarding(&receivers);
    let receivers = Arc::new(Mutex::new(receivers));
    let application = Application {
        receivers: Arc::clone(&receivers),
        show: is_shown.then(|| shown.clone()),
        missed: 0,
    };
    let mut config = ServerConfig::new(identity.clone(), trust.clone())
        .rules(rules)
        .filter(args.filter())
        .max_payload(args.max_payload)
        .operands(operands.clone())
        .handshake_timeout(args.handshake_timeout.into())
        .resumption(!args.no_resumption)
        .slow_consumer(policy)
        .admission(args.admission.policy())
        .operators(Role::CONTROLLER)
        .outlive_certificates(args.admission.outlive_certificates)
        .configuration_check(check_configuration);
    if let Some(yaml) = args.configuration()? {
        config = config.configuration(yaml);
    }
    if let Some(sessions) = args.max_sessions {
        config = config.max_sessions(sessions as usize);
    }
    if let Some(uuid) = args.uuid {
        config = config.uuid(uuid);
    }
    if dev.is_some() && args.listen.is_empty() {
        config = config.listen(dev::LISTEN.parse().map_err(Failure::new)?);
    }
    for address in args.listen.iter().cloned() {
        config = config.listen(address);
    }
    let server = Server::start(config, application).map_err(Failure::new)?;
    let pages = args.admin.start(
        About {
            daemon: "server",
            listening: admin::shown(server.addresses()),
            notes: daemon.notes(),
        },
        || Ok(Some((identity, trust))),
        admin::of_server(server.handle()),
    )?;
    let is_current = dev.as_ref().map(|dev| dev.name(server.addresses())).transpose()?;
    announce(&server, args.json)?;
    if let (Some(dev), Some(is_current)) = (&dev, is_current) {
        introduce(dev, is_current, args.json)?;
    }
    pages.announce(args.json);
    let handle = server.handle();
    daemon.ready(move || sessions(&handle));
    let ended = match args.until_stdin_ends {
        true => stdin_ends()?,
        false => crossbeam_channel::never(),
    };
    let mut running = Running {
        server: &server,
        pages: &pages,
        args: &args,
        settings,
        receivers,
        watched: None,
        lifetimes: lifetimes.unwrap_or_default(),
    };
    daemon.watch(watched, &running);
    let mut is_read = true;
    loop {
        crossbeam_channel::select! {
            recv(daemon.stop().channel()) -> _ => break,
            recv(ended) -> _ => break,
            recv(daemon.hang_ups()) -> came => match came {
                Ok(()) => daemon.reload(&mut running),
                Err(_) => break,
            },
            recv(daemon.looks()) -> _ => daemon.look(&mut running),
            // Whoever has seen enough of it does not end a server.
            recv(show) -> frame => if let Ok(frame) = frame && is_read {
                is_read = frame.print(&operands, args.json).is_ok();
            },
        }
    }
    drop(shown);
    daemon.stopping();
    pages.stopping();
    server.stop();
    Ok(())
}

/// Says what was made, and what to type next.
fn introduce(dev: &Dev, is_current: bool, json: bool) -> Result<(), Failure> {
    let directory = dev.directory.display();
    let is_new = if dev.is_new { "made" } else { "found" };
    let context = match is_current {
        true => "",
        false => " --context dev",
    };
    let as_json = json!({ "dev": {
        "directory": directory.to_string(), "made": dev.is_new,
        "context": dev::CONTEXT, "current": is_current,
    }});
    let text = format!(
        "throw-away certificates {is_new} in {directory}, and context {}; try in another terminal:\n  \
         ssntp listen{context}\n  ssntp send{context} STATS 'load: 1'",
        dev::CONTEXT
    );
    lone_line(text, json.then(|| as_json.to_string()))
}

impl Args {
    fn files(&self) -> Option<CredentialFiles> {
        Some(CredentialFiles {
            cert: self.cert.clone()?,
            ca: self.ca.clone()?,
            crl: self.crl.clone(),
        })
    }

    /// The configuration of the cluster, where it is in a file. It has to fit into a
    /// frame that clients of this server take.
    fn configuration(&self) -> Result<Option<Vec<u8>>, Failure> {
        let Some(path) = &self.config else { return Ok(None) };
        let yaml = load_configuration(path)?;
        match yaml.len() > self.max_payload as usize {
            false => Ok(Some(yaml)),
            true => Err(Failure::new(format!(
                "{}: its {} bytes are more than --max-payload, {}",
                path.display(),
                yaml.len(),
                self.max_payload
            ))),
        }
    }

    /// The files that are read again when they change, before they are read: none with
    /// --dev.
    fn watched(&self, settings: &Settings) -> Watched {
        let files = self.files();
        let files = files.iter().flat_map(CredentialFiles::paths);
        let paths = files.chain(self.config.clone()).chain(settings.file());
        Watched::of(paths.filter(|_| !self.dev).collect())
    }
}

/// What is read again.
struct Running<'a> {
    server: &'a Server,
    pages: &'a Pages,
    args: &'a Args,
    settings: Settings,
    receivers: Arc<Mutex<Receivers>>,
    /// Other files than before, as they were before they were read.
    watched: Option<Watched>,
    lifetimes: Vec<Lifetime>,
}

/// The settings that SIGHUP takes over. Whether frames are shown is not one of them:
/// a rule that is new is shown as it was.
const TAKEN: [&str; 8] = [
    "ca",
    "cert",
    "config",
    "crl",
    "crl-strict",
    "filter",
    "filter-action",
    "forward",
];

impl Service for Running<'_> {
    fn reload(&mut self) -> Result<(), Failure> {
        // Everything is read before anything is changed.
        let read = self.settings.read_again::<Args>()?;
        let args = match &read {
            Some((args, _)) => args,
            _ => self.args,
        };
        let watched = args.watched(&self.settings);
        let configuration = args.configuration()?;
        let operands = self.args.applications.operands()?;
        let rules = read.is_some().then(|| args.rules()).transpose()?;
        let is_unknown = |kind: &FrameKind| kind.is_application() && !operands.contains(*kind);
        if let Some((kind, _)) = args.forwards.iter().find(|(kind, _)| is_unknown(kind)) {
            return Err(Failure::new(format!(
                "forward: {kind} needs a restart with its application"
            )));
        }
        if let Some(files) = args.files() {
            let (identity, trust) = files.load()?;
            self.server.renew(&identity, &trust).map_err(Failure::new)?;
            self.pages.renew(&identity, &trust);
            self.lifetimes = files.lifetimes(&identity, &trust);
        }
        if let Some(rules) = rules {
            let (filter, shared) = (args.filter(), Arc::clone(&self.receivers));
            let receivers = receivers(&rules, &operands);
            let taken = self.server.handle().with(move |cx| {
                cx.set_rules(forwarding(&receivers))?;
                cx.set_filter(filter);
                *lock(&shared) = receivers;
                Ok::<_, RuleError>(())
            });
            taken.map_err(Failure::new)?.map_err(Failure::new)?;
        }
        if let Some(yaml) = configuration {
            let told = self.server.handle().with(move |cx| {
                if *cx.configuration() == yaml {
                    return Ok(0);
                }
                cx.set_configuration(yaml.clone());
                // To those that it configures, as `ssntp operands` shows.
                let to = Rules::spec().receivers(Command::CONFIGURE).unwrap_or(Role::NONE);
                cx.multicast(to, &Frame::with_payload(Command::CONFIGURE, yaml))
            });
            told.and_then(|told| told).map_err(Failure::new)?;
        }
        if let Some((_, now)) = read {
            self.settings.take(now, &TAKEN);
            self.watched = Some(watched);
        }
        Ok(())
    }

    fn lifetimes(&self) -> Vec<Lifetime> {
        self.lifetimes.clone()
    }

    fn watched(&mut self) -> Option<Watched> {
        self.watched.take()
    }
}

/// How many frames may wait to be shown.
const SHOWN: usize = 1024;

/// What the server does beside filtering and routing: it answers who asks how many
/// received a frame, and shows frames. Nothing of it waits.
struct Application {
    /// Changed on the dispatcher alone, so that it never waits for this.
    receivers: Arc<Mutex<Receivers>>,
    show: Option<Sender<Shown>>,
    /// How many frames found no room since the last one that did.
    missed: u64,
}

/// Who gets frames of a kind.
type Receivers = Vec<(FrameKind, Role)>;

fn receivers(rules: &Rules, operands: &Operands) -> Receivers {
    let kinds = FrameKind::all().chain(operands.applications().map(|(kind, _)| kind));
    kinds
        .filter_map(|kind| Some((kind, rules.receivers(kind)?)))
        .collect()
}

/// The rules, but for questions that are for the server alone.
fn forwarding(receivers: &Receivers) -> Rules {
    let mut rules = Rules::new();
    for (kind, to) in receivers.iter().copied() {
        rules = match kind == Event::TRACE_REPORT {
            false => rules.multicast(kind, to),
            true => rules.route(kind, move |frame, from, directory| {
                if matches!(Question::of(frame), Some(Question::Sessions(_))) {
                    return Decision::Discard;
                }
                let others = directory.with_role(to).map(SessionInfo::uuid);
                Decision::Forward(others.filter(|uuid| *uuid != from).collect())
            }),
        };
    }
    rules
}

/// What is in it is replaced as a whole, so that a panic leaves nothing half done.
fn lock(receivers: &Mutex<Receivers>) -> MutexGuard<'_, Receivers> {
    receivers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Application {
    fn to(&self, kind: FrameKind) -> Role {
        let receivers = lock(&self.receivers);
        let rule = receivers.iter().find(|(of, _)| *of == kind);
        rule.map_or(Role::NONE, |(_, to)| *to)
    }
}

impl Handler for Application {
    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        // A frame that asks is traced, and comes alone.
        if self.show.is_some() {
            run.frames().for_each(|frame| self.frame(cx, from, frame));
        }
    }

    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let question = Question::of(&frame);
        let role = match question {
            Some(Question::Sessions(role)) => role,
            _ => self.to(frame.kind()),
        };
        if question.is_none() && self.show.is_none() {
            return;
        }
        let directory = cx.directory();
        let others = directory.with_role(role);
        let others = others.filter(|other| other.uuid() != from.uuid()).count();
        if let Some(answer) = question.and_then(|question| question.answer(frame.kind(), others)) {
            // Who is gone meanwhile does not want it any more.
            let _ = cx.send(from.uuid(), &answer);
        }
        if let Some(show) = &self.show
            && !matches!(question, Some(Question::Sessions(_)))
        {
            let shown = Shown {
                from: from.clone(),
                frame,
                receivers: others,
                missed: self.missed,
            };
            self.missed = match show.try_send(shown) {
                Ok(()) => 0,
                Err(_) => self.missed + 1,
            };
        }
    }
}

/// A frame that is to be shown.
struct Shown {
    from: SessionInfo,
    frame: Frame,
    receivers: usize,
    /// How many before it were left out.
    missed: u64,
}

impl Shown {
    fn print(&self, operands: &Operands, as_json: bool) -> Result<(), Failure> {
        if self.missed > 0 {
            note(format_args!("ssntp: {} frames are not shown", self.missed));
        }
        let from = Some((self.from.uuid(), self.from.role()));
        let mut output = Output::new();
        if as_json {
            let mut value = listen::to_json(operands, &self.frame, from);
            value["receivers"] = self.receivers.into();
            output.json(value)?;
        } else {
            let to = match self.receivers {
                0 => " to nobody".into(),
                1 => " to 1 session".into(),
                n => format!(" to {n} sessions"),
            };
            output.line(format_args!("{}{to}", listen::head(operands, &self.frame, from)))?;
            listen::payload(&mut output, &self.frame)?;
        }
        output.flush()
    }
}

/// Disconnected when the standard input ends. Its thread is never joined: it
/// may wait for ever.
fn stdin_ends() -> Result<Receiver<()>, Failure> {
    let (end, ended) = crossbeam_channel::bounded(0);
    let thread = std::thread::Builder::new().name("ssntp-stdin".into());
    let read = move || {
        let _end: Sender<()> = end;
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    };
    thread
        .spawn(read)
        .map_err(|e| Failure::new(format!("cannot start a thread: {e}")))?;
    Ok(ended)
}

/// Prints where a server listens.
pub(crate) fn announce(server: &Server, json: bool) -> Result<(), Failure> {
    let addresses: Vec<_> = server.addresses().iter().map(Address::to_string).collect();
    let text = format!("listening at {}", addresses.join(", "));
    lone_line(text, json.then(|| json!({ "listening": addresses }).to_string()))
}

/// What a server's dispatcher does, as soon as it comes to say so.
pub(crate) fn sessions(server: &ServerHandle) -> Option<String> {
    let sessions = server.with(|cx| cx.directory().len()).ok()?;
    Some(format!("{sessions} sessions"))
}

/// Reads a cluster configuration and checks it; its bytes go out unchanged.
pub(crate) fn load_configuration(path: &Path) -> Result<Vec<u8>, Failure> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|e| Failure::new(format!("{shown}: {e}")))?;
    check_configuration(&bytes).map_err(|why| Failure::new(format!("{shown}: {why}")))?;
    Ok(bytes)
}

fn check_configuration(payload: &[u8]) -> Result<(), String> {
    let configure = Configure::decode(payload).map_err(|e| e.to_string())?;
    configure.validate().map_err(|e| e.to_string())
}
