//! `ssntp server`: accepts clients, filters and routes what they send.

use std::path::{Path, PathBuf};

use clap::{ValueEnum, value_parser};
use crossbeam_channel::{Receiver, Sender};
use serde_json::json;
use ssntp::Role;
use ssntp::payload::{Configure, Payload};
use ssntp::pki::{Identity, Trust};
use ssntp::proto::FrameKind;
use ssntp::server::{AdmissionPolicy, Filter, FilterAction, Rules, Server, ServerConfig, SlowConsumer};
use ssntp::transport::Address;
use uuid::Uuid;

use crate::application::Applications;
use crate::failure::Failure;
use crate::output::lone_line;
use crate::seconds::Seconds;
use crate::signal_stacks;
use crate::signals::Stop;

/// Run a server that checks roles, filters and routes
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
    /// The server's certificate and key
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// Forward frames of a kind to every session with a role, as in
    /// STATS=controller; may be given several times
    #[arg(long = "forward", value_name = "OPERAND=ROLE", value_parser = forward, num_args = 1..)]
    forwards: Vec<(FrameKind, Role)>,
    #[command(flatten)]
    applications: Applications,
    /// The cluster configuration that clients get
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Who may send what
    #[arg(long, value_enum, default_value_t = FilterName::AllowAll)]
    filter: FilterName,
    /// What happens to a frame that its sender may not send
    #[arg(long, value_enum, default_value_t = ActionName::Reject)]
    filter_action: ActionName,
    /// The most sessions at a time [default: what the system allows]
    ///
    /// Where vm.max_map_count allows fewer than N, the program starts itself
    /// again without signal stacks, which takes half of the memory maps; a stack
    /// overflow then ends it without a message.
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
    let kind = kind.trim().parse::<FrameKind>().map_err(|e| e.to_string())?;
    let role = role.parse::<Role>().map_err(|e| e.to_string())?;
    Ok((kind, role))
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    signal_stacks::drop_where_needed(args.max_sessions);
    let stop = Stop::install()?;
    let rules = args
        .forwards
        .iter()
        .fold(Rules::new(), |rules, (kind, role)| rules.multicast(*kind, *role));
    rules
        .check()
        .map_err(|e| Failure::usage(format!("--forward: {e}")))?;
    let filter = match args.filter {
        FilterName::AllowAll => Filter::allow_all(),
        FilterName::Spec => Filter::spec(),
    };
    let filter = filter.action(match args.filter_action {
        ActionName::Reject => FilterAction::Reject,
        ActionName::Drop => FilterAction::Drop,
    });
    let policy = match args.slow_consumer {
        PolicyName::Disconnect => SlowConsumer::Disconnect,
        PolicyName::DropNewest => SlowConsumer::DropNewest,
        PolicyName::DropOldest => SlowConsumer::DropOldest,
    };
    let mut config = ServerConfig::new(Identity::load(&args.cert)?, Trust::load(&args.ca)?)
        .rules(rules)
        .filter(filter)
        .max_payload(args.max_payload)
        .operands(args.applications.operands()?)
        .handshake_timeout(args.handshake_timeout.into())
        .resumption(!args.no_resumption)
        .slow_consumer(policy)
        .admission(args.admission.policy())
        .configuration_check(check_configuration);
    if let Some(path) = &args.config {
        config = config.configuration(load_configuration(path)?);
    }
    if let Some(sessions) = args.max_sessions {
        config = config.max_sessions(sessions as usize);
    }
    if let Some(uuid) = args.uuid {
        config = config.uuid(uuid);
    }
    for address in args.listen {
        config = config.listen(address);
    }
    let server = Server::start(config, ()).map_err(Failure::new)?;
    announce(&server, args.json)?;
    let ended = match args.until_stdin_ends {
        true => stdin_ends()?,
        false => crossbeam_channel::never(),
    };
    crossbeam_channel::select! {
        recv(stop.channel()) -> _ => {}
        recv(ended) -> _ => {}
    }
    server.stop();
    Ok(())
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
