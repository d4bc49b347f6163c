//! `ssntp server`: filters and forwards the frames of its clients.
//!
//! | file | holds |
//! |---|---|
//! | `forwarding` | the answers to senders that ask for the number of receivers, and the printing of frames |
//! | `dev` | the certificates and the context that `--dev` makes |

mod dev;
mod forwarding;

use std::cell::Cell;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::Sender;
use serde_json::{Value, json};
use ssntp::Role;
use ssntp::proto::{Command, Frame, FrameKind, Operands};
use ssntp::server::{Federation, Filter, FilterAction, RuleError, Rules, Server, ServerConfig, SlowConsumer};
use ssntp::transport::Address;
use ssntp_daemon::{
    Choices, ConfigFile, CredentialFiles, CrlArgs, Daemon, Failure, FilesRead, Given, Next, Presence,
    Problems, Seconds, Settings, Watched, address, input, on, one_of, print_apart, server_stopped, to_dial,
};
use ssntp_engine::{Etcd, EtcdRenewal};

use self::dev::Dev;
use self::forwarding::{Application, SHOWN};
use super::operands::{self, senders};
use crate::admin::{self, AdminArgs};
use crate::application::Applications;
use crate::engine::{self, EngineArgs};
use crate::receipt::{RECEIVERS, with_receipts};
use crate::serving::{Admission, check_configuration, listening, load_configuration, sessions};

/// Run a server that checks roles, filters and routes
///
/// Prints one line with its address once it accepts clients. With --dev it needs no
/// other flags: it makes a throw-away authority and a context for its clients, listens on
/// this host only, forwards and filters as `ssntp operands` shows, and prints the
/// frames that it forwards.
///
/// On SIGHUP, and when these files change, --ca, --cert, --crl, --config, --config-file
/// and the files of --join are read again, except with --dev. Sessions continue, except those whose
/// certificate is no longer valid, and clients receive a CONFIGURE if --config has
/// changed. Of --config-file, the keys allow, ca, cert, config, crl, crl-strict, filter,
/// filter-action, forward and key are applied; all other keys need a restart.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    /// The addresses to listen at: HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH;
    /// with port 0 the system chooses one [with --dev: 127.0.0.1:8888]
    #[arg(long, value_name = "ADDR", value_parser = address, required_unless_present = "dev", num_args = 1..)]
    listen: Vec<Address>,
    /// The authority that must have issued the clients' certificates
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
    /// The key of --cert, if it is not in the same file
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    #[command(flatten)]
    crl: CrlArgs,
    /// Try the protocol: make certificates and a context, for this host and user
    /// only
    #[arg(long)]
    dev: bool,
    /// Forward frames of a kind to every session with a role, as in
    /// STATS=controller; may be given several times [with --dev: as
    /// `ssntp operands` shows]
    #[arg(long = "forward", value_name = "OPERAND=ROLE", num_args = 1..)]
    forwards: Vec<OperandRole>,
    #[command(flatten)]
    applications: Applications,
    /// The file of the cluster's configuration, which clients receive (the server's
    /// own settings are in --config-file)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The frames that each role may send [default: allow-all, with --dev spec]
    #[arg(long, value_parser = one_of(FILTERS))]
    filter: Option<fn() -> Filter>,
    /// Let only these roles send an operand, in place of the rule of --filter, as in
    /// Scaled=agent for an operand of --application; may be given several times
    #[arg(long = "allow", value_name = "OPERAND=ROLE")]
    allows: Vec<OperandRole>,
    /// Print each frame that passes the filter, and the number of sessions that
    /// receive it [default: with --dev]; frames that a slow reader cannot take are
    /// dropped and counted
    #[arg(long)]
    show: bool,
    /// The action on a frame that its sender may not send
    #[arg(long, value_parser = one_of(ACTIONS), default_value = "reject")]
    filter_action: FilterAction,
    /// Admit only clients whose certificate is bound to their UUID
    #[arg(long)]
    require_bound: bool,
    #[command(flatten)]
    admission: Admission,
    /// The longest payload that is accepted
    #[arg(long, value_name = "BYTES", default_value_t = ssntp::proto::DEFAULT_MAX_PAYLOAD)]
    max_payload: u32,
    /// The time limit for TLS and CONNECT together
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    handshake_timeout: Seconds,
    /// The action on a session whose queue is full
    #[arg(long, value_parser = one_of(SLOW_CONSUMERS), default_value = "disconnect")]
    slow_consumer: SlowConsumer,
    #[command(flatten)]
    admin: AdminArgs,
    /// Link with the servers at these addresses, and act as one with them: frames are
    /// forwarded to their sessions as well. This server's own address may be in the list
    #[arg(long, value_name = "ADDR", value_parser = to_dial, value_delimiter = ',', num_args = 1.., group = "several")]
    peers: Vec<Address>,
    #[command(flatten)]
    join: EngineArgs,
    /// The address at which other servers reach this one, and its name in `ctl servers`
    /// [default: with --join the addresses of --listen]
    #[arg(long, value_name = "ADDR", value_parser = to_dial, requires = "several")]
    advertise: Option<Address>,
    /// End when the standard input ends, for a program that starts this one as a child
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The keys of --config-file that a reload applies. `show` is not among them: frames of a new rule are printed
/// if frames were printed from the start.
const RELOADED: &[&str] = &[
    "allow",
    "ca",
    "cert",
    "config",
    "crl",
    "crl-strict",
    "filter",
    "filter-action",
    "forward",
    "key",
];

#[rustfmt::skip] // A table: one row a word.
const FILTERS: Choices<fn() -> Filter> = &[
    ("allow-all", "Every role may send all frames", Filter::allow_all),
    ("spec", "The table of the cluster's roles", Filter::spec),
];
#[rustfmt::skip] // A table: one row a word.
const ACTIONS: Choices<FilterAction> = &[
    ("reject", "Drop it, and send its sender an error", FilterAction::Reject),
    ("drop", "Drop it", FilterAction::Drop),
];
#[rustfmt::skip] // A table: one row a word.
const SLOW_CONSUMERS: Choices<SlowConsumer> = &[
    ("disconnect", "End the session", SlowConsumer::Disconnect),
    ("drop-newest", "Drop frames that do not fit", SlowConsumer::DropNewest),
    ("drop-oldest", "Drop the frames that have waited longest", SlowConsumer::DropOldest),
];

/// The roles of which the server's certificate must have one.
const ROLES: Role = Role::from_bits(Role::SERVER.bits() | Role::SCHEDULER.bits());

/// The name of an operand, of the protocol or of --application, and roles.
#[derive(Clone, Debug)]
struct OperandRole(String, Role);

impl FromStr for OperandRole {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (operand, role) = text.split_once('=').ok_or("expected OPERAND=ROLE")?;
        let role = role.parse::<Role>().map_err(|e| e.to_string())?;
        Ok(Self(operand.trim().to_owned(), role))
    }
}

impl OperandRole {
    fn kinds(given: &[Self], operands: &Operands) -> Result<Vec<(FrameKind, Role)>, Failure> {
        let kind = |Self(operand, role): &Self| Ok((operands::kind(operands, operand)?, *role));
        given.iter().map(kind).collect()
    }
}

impl Args {
    /// The rules by which frames are forwarded.
    fn rules(&self) -> Result<Rules, Failure> {
        let forwards = OperandRole::kinds(&self.forwards, &self.applications.operands()?)?;
        let multicast = |rules: Rules, (kind, role)| rules.multicast(kind, role);
        let rules = if self.dev && forwards.is_empty() {
            Rules::spec()
        } else {
            forwards.into_iter().fold(Rules::new(), multicast)
        };
        rules
            .check()
            .map_err(|e| Failure::usage(format!("--forward: {e}")))?;
        Ok(rules)
    }

    /// The frames that each role may send.
    fn filter(&self) -> Result<Filter, Failure> {
        let filter = match self.filter {
            Some(filter) => filter(),
            None if self.dev => Filter::spec(),
            None => Filter::allow_all(),
        };
        let operands = self.applications.operands()?;
        let allows = OperandRole::kinds(&self.allows, &operands)?;
        let filter = allows
            .into_iter()
            .fold(filter, |filter, (kind, role)| filter.allow(kind, role));
        // The user registered the operand so that it can be sent, so a filter that allows no role
        // to send it is a mistake.
        let mut own = operands.applications();
        if let Some((_, name)) = own.find(|(kind, _)| senders(&filter, *kind).is_empty()) {
            return Err(Failure::usage(format!(
                "--filter allows no role to send {name}, which --application registers; give --allow {name}=ROLE"
            )));
        }
        // Every client may ask how many sessions receive its frames.
        let filter = filter.allow(RECEIVERS, Role::ALL);
        Ok(filter.action(self.filter_action))
    }

    /// Checks that only this host reaches a server with --dev.
    fn check_listen(&self) -> Result<(), Failure> {
        let mut listen = self.listen.iter().filter(|_| self.dev);
        listen.try_for_each(dev::check_local)
    }

    /// Errors that can be found without starting the server.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let (cert, key, ca) = (self.cert.as_ref(), self.key.as_ref(), self.ca.as_ref());
        problems.credentials(cert, key, ca, &self.crl, ROLES);
        problems.of("listen", Some(self.check_listen()));
        problems.of("config", self.configuration(self.max_payload).transpose());
        // Both flags below name frames of --application, so its fault would be reported three times.
        match self.applications.operands() {
            Ok(_) => {
                problems.of("forward", Some(self.rules()));
                problems.of("allow", Some(self.filter()));
            }
            wrong => problems.of("application", Some(wrong)),
        }
        self.join
            .problems(&mut problems, &self.listen, self.advertise.as_ref());
        self.admin.problems(&mut problems);
        problems
    }

    fn files(&self) -> Option<CredentialFiles> {
        Some(CredentialFiles {
            cert: self.cert.clone()?,
            key: self.key.clone(),
            ca: self.ca.clone()?,
            crl: self.crl.clone(),
        })
    }

    /// The content of --config, if it is given. It must fit into a frame, whose payload has at
    /// most `most` bytes.
    fn configuration(&self, most: u32) -> Result<Option<Vec<u8>>, Failure> {
        let Some(path) = &self.config else { return Ok(None) };
        let yaml = load_configuration(path)?;
        if yaml.trim_ascii().is_empty() {
            // Clients would drop what they were told, because of a full disk.
            return Err(Failure::at(path, "it is empty"));
        }
        if yaml.len() > most as usize {
            let length = yaml.len();
            let why = format!("its {length} bytes are more than --max-payload, {most}");
            Err(Failure::at(path, why))
        } else {
            Ok(Some(yaml))
        }
    }

    /// The servers to link with.
    fn federation(&self) -> Option<Federation> {
        let federation = Federation::new().peers(self.peers.iter().cloned());
        let advertise = self.advertise.as_ref().map(Address::to_string);
        (!self.peers.is_empty() || self.join.is_given())
            .then(|| federation.given(advertise, Federation::advertise))
    }

    /// The file of --config, to be read again when it changes; none with --dev.
    fn watched(&self) -> Watched {
        Watched::default().and(self.config.clone().filter(|_| !self.dev))
    }
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    let mut daemon = if args.dev {
        Daemon::install_for_trying()?
    } else {
        Daemon::install(settings)?
    };
    // Checked before the server listens and before any file is made.
    args.check_listen()?;
    let rules = args.rules()?;
    let dev = args.dev.then(Dev::prepare).transpose()?;
    // The state of the file is noted before the configuration is read, so that a change that
    // happens meanwhile is noticed.
    let configuration_file = args.watched();
    let (identity, trust, mut read) = match (&dev, args.files()) {
        (Some(dev), _) => dev.read(),
        (None, Some(files)) => files.read_as(ROLES)?,
        (None, None) => return Err(Failure::usage("--ca and --cert are needed, or --dev")),
    };
    read.watched = read.watched.with(configuration_file);
    let (shown, show) = crossbeam_channel::bounded(SHOWN);
    let operands = args.applications.operands()?;
    let filter = args.filter()?;
    let cluster = Arc::new(OnceLock::new());
    let application = Application {
        show: (args.show || args.dev).then_some(shown),
        missed: 0,
        cluster: Arc::clone(&cluster),
    };
    let mut config = ServerConfig::new(identity, trust)
        .rules(rules)
        .filter(filter)
        .max_payload(args.max_payload)
        .operands(with_receipts(operands.clone()))
        .handshake_timeout(args.handshake_timeout.into())
        .slow_consumer(args.slow_consumer)
        .operators(Role::CONTROLLER)
        .configuration_check(check_configuration);
    config = args.admission.apply(config, args.require_bound, Role::NONE);
    if dev.is_some() && args.listen.is_empty() {
        config = config.listen(dev::LISTEN.parse()?);
    }
    let listen = args.listen.iter().cloned();
    let config = listen
        .fold(config, ServerConfig::listen)
        .given(args.configuration(args.max_payload)?, ServerConfig::configuration)
        .given(args.federation(), ServerConfig::federate);
    let (credentials, of_engine) = args.join.read()?;
    let engine = args.join.engine(credentials);
    let renewal = engine.as_ref().map(Etcd::renewal);
    let server = Server::start(config, application)?;
    let membership = engine.map(|engine| engine::link(&server, engine, args.advertise.as_ref()));
    let membership = membership.transpose()?.map(Arc::new);
    let _ = cluster.set(engine::weak(membership.as_ref()));
    let mut lines = vec![listening(server.addresses())];
    if let Some(dev) = &dev {
        let is_current = dev.name(server.addresses())?;
        lines.push(introduction(dev, is_current));
    }
    let handle = server.handle();
    let presence = Presence {
        name: "server",
        addresses: server.addresses(),
        lines,
        json: args.json,
        pages: args.admin.pages(admin::of_server(
            server.handle(),
            engine::weak(membership.as_ref()),
        )),
        status: Box::new(move || sessions(&handle)),
        reloaded: RELOADED,
    };
    let running = Running {
        server: &server,
        args: &args,
        operands,
        is_configured: Cell::new(args.config.is_some()),
        renewal,
    };
    let mut arms = vec![server_stopped(&server)];
    let (mut show, operands) = (
        Some(show).filter(|_| args.show || args.dev),
        running.operands.clone(),
    );
    let as_json = args.json;
    // This comes at once, when the loop begins: the first lines are printed then.
    arms.push(on(crossbeam_channel::after(Duration::ZERO), move |_| {
        if let Some(show) = show.take() {
            let operands = operands.clone();
            // If the reader of the output is gone, the server continues without printing.
            print_apart(show, move |frame: forwarding::Shown| {
                frame.print(&operands, as_json)
            })?;
        }
        Ok(Next::Continue)
    }));
    if args.until_stdin_ends {
        let ended = input::on_a_thread(|_: &Sender<()>| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        })?;
        arms.push(on(ended, |_| Ok(Next::End)));
    }
    let read = read.with(of_engine);
    daemon.run(presence, read, |new| running.reload(new), arms)?;
    // The other members know at once that this server leaves.
    daemon.drain(&server, args.admission.drain(), || drop(membership))?;
    server.stop();
    Ok(())
}

/// The line that names the files that `--dev` has made, and commands to try.
fn introduction(dev: &Dev, is_current: bool) -> (String, Value) {
    let directory = dev.directory.display();
    let made = if dev.is_new { "made" } else { "found" };
    let context = if is_current { "" } else { " --context dev" };
    let text = format!(
        "throw-away certificates {made} in {directory}, and context {}; try in another terminal:\n  \
         ssntp listen{context}\n  ssntp send{context} STATS 'load: 1'",
        dev::CONTEXT
    );
    let as_json = json!({ "dev": {
        "directory": directory.to_string(), "made": dev.is_new,
        "context": dev::CONTEXT, "current": is_current,
    }});
    (text, as_json)
}

/// The parts of a running server that a reload needs.
struct Running<'a> {
    server: &'a Server,
    args: &'a Args,
    operands: Operands,
    /// True if the server has had a file of --config, which only a restart removes.
    is_configured: Cell<bool>,
    /// Renews the credentials for the etcd of `--join`.
    renewal: Option<EtcdRenewal>,
}

impl Running<'_> {
    fn reload(&self, new: Option<Args>) -> Result<FilesRead, Failure> {
        // All files are read before the server is changed.
        let args = new.as_ref().unwrap_or(self.args);
        let mut waiting = Vec::new();
        let configuration_file = args.watched();
        // A reload does not change --max-payload.
        let configuration = args.configuration(self.args.max_payload)?;
        if configuration.is_none() && self.is_configured.get() {
            waiting.push("config");
        }
        let mut rules = new.as_ref().map(Args::rules).transpose()?;
        let filter = args.filter()?;
        let is_unknown = |kind: &FrameKind| kind.is_application() && !self.operands.contains(*kind);
        let forwards = OperandRole::kinds(&args.forwards, &args.applications.operands()?)?;
        // A reload does not change --application.
        if forwards.iter().any(|(kind, _)| is_unknown(kind)) {
            rules = None;
            waiting.push("forward");
        }
        let (credentials, of_engine) = self.args.join.read()?;
        let renew = |files: CredentialFiles| {
            files.renew(|identity, trust| self.server.renew(identity, trust).map(drop))
        };
        let mut read = args.files().map(renew).transpose()?.unwrap_or_default();
        read.watched = read.watched.with(configuration_file);
        read.waiting = waiting;
        if let Some(renewal) = &self.renewal {
            renewal.renew(credentials);
        }
        if new.is_some() {
            self.server.handle().with(move |cx| {
                rules.map_or(Ok(()), |rules| cx.set_rules(rules))?;
                cx.set_filter(filter);
                Ok::<_, RuleError>(())
            })??;
        }
        if let Some(yaml) = configuration {
            self.take_configuration(yaml)?;
            self.is_configured.set(true);
        }
        Ok(read.with(of_engine))
    }

    /// Sends a configuration that differs from the one before to the clients that the
    /// protocol configures.
    fn take_configuration(&self, yaml: Vec<u8>) -> Result<(), Failure> {
        self.server.handle().with(move |cx| {
            // A file that was touched without a change must not make every client configure itself
            // again.
            if *cx.configuration() == yaml {
                return Ok(0);
            }
            cx.set_configuration(yaml.clone());
            let to = Rules::spec().receivers(Command::CONFIGURE).unwrap_or(Role::NONE);
            cx.multicast(to, &Frame::with_payload(Command::CONFIGURE, yaml))
        })??;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    #[test]
    fn the_help_names_the_keys_that_a_reload_applies() {
        let help = Args::augment_args(clap::Command::new("server"))
            .get_long_about()
            .unwrap()
            .to_string();
        let help = help.replace('\n', " ");
        let keys = help
            .split("the keys ")
            .nth(1)
            .unwrap()
            .split(" are applied")
            .next()
            .unwrap();
        let keys: Vec<_> = keys.split(", ").flat_map(|key| key.split(" and ")).collect();
        assert_eq!(keys, RELOADED);
    }
}
