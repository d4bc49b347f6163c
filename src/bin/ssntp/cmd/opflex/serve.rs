//! `ssntp opflex serve`: policy repository, endpoint registry, observer.

use std::path::PathBuf;

use clap::value_parser;
use crossbeam_channel::select;
use serde_json::json;
use ssntp::opflex::Server;
use ssntp::opflex::message::{Peer, Role};
use ssntp::opflex::run::ServerConfig;
use ssntp::opflex::server::Settings;
use ssntp::transport::Address;

use super::load_objects;
use super::tls::ServerTls;
use crate::failure::Failure;
use crate::output::Output;
use crate::seconds::Seconds;
use crate::signals::Stop;

/// Serve policy, register endpoints and keep state reports
///
/// Prints one line with its address once it accepts clients. SIGHUP reads the
/// policy file again: what it holds is all the policy there is then.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where to listen: HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH; port 0
    /// lets the system choose
    #[arg(long, value_name = "ADDR", required = true, num_args = 1..)]
    listen: Vec<Address>,
    /// The policy to begin with: a JSON or YAML array of managed objects, as
    /// agent-ovs's opflex_server reads
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// What it is: repository, registry and observer, or none of them, for a
    /// server that only tells where the others are
    #[arg(
        long,
        value_name = "ROLE",
        value_delimiter = ',',
        value_parser = role,
        default_value = "repository,registry,observer"
    )]
    roles: Vec<Option<Role>>,
    /// The server's name
    #[arg(long, value_name = "NAME", default_value = "ssntp")]
    name: String,
    /// The policy domain
    #[arg(long, value_name = "NAME", default_value = "default")]
    domain: String,
    /// Another server to tell elements of; several roles are joined with +
    #[arg(long = "peer", value_name = "ROLE=HOST:PORT", value_parser = peer)]
    peers: Vec<Peer>,
    #[command(flatten)]
    tls: ServerTls,
    /// Take elements with another protocol version, another domain or no name
    #[arg(long, conflicts_with = "strict")]
    lenient: bool,
    /// Refuse these, as the draft says (the default)
    #[arg(long)]
    strict: bool,
    /// Keep policy in this file, and begin with what it holds in place of
    /// --policy
    #[arg(long, value_name = "FILE")]
    persist: Option<PathBuf>,
    /// The Unix socket that `ssntp opflex policy` talks to
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// How long changes are told where a client does not say
    #[arg(long, value_name = "SECONDS", default_value = "7200")]
    prr: Seconds,
    /// The most clients at a time [default: what the system allows]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max_connections: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn role(text: &str) -> Result<Option<Role>, String> {
    match text {
        "none" => Ok(None),
        "repository" | "policy_repository" => Ok(Some(Role::POLICY_REPOSITORY)),
        "registry" | "endpoint_registry" => Ok(Some(Role::ENDPOINT_REGISTRY)),
        "observer" => Ok(Some(Role::OBSERVER)),
        _ => Err("it is none of repository, registry, observer, none".to_owned()),
    }
}

fn peer(text: &str) -> Result<Peer, String> {
    let (roles, address) = text.split_once('=').ok_or("it is not ROLE=HOST:PORT")?;
    address.parse::<Address>().map_err(|e| e.to_string())?;
    let roles: Vec<_> = roles.split('+').map(role).collect::<Result<_, _>>()?;
    Ok(Peer {
        role: roles.into_iter().flatten().collect(),
        connectivity_info: address.to_owned(),
        extra: serde_json::Map::new(),
    })
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let (stop, reload) = Stop::install_with(signal_hook::consts::SIGHUP)?;
    let mut settings = Settings::new(args.name, args.domain);
    settings.roles = args.roles.into_iter().flatten().collect();
    settings.peers = args.peers;
    settings.lenient = args.lenient && !args.strict;
    settings.default_prr = args.prr.into();
    let mut config = ServerConfig::new(settings);
    config.listen = args.listen;
    config.tls = args.tls.acceptor()?;
    config.keep = args.persist;
    config.control = args.control;
    config.max_connections = args.max_connections.map(|n| n as usize);
    if let Some(path) = &args.policy {
        config.policy = load_objects(path)?;
    }
    let server = Server::start(config).map_err(Failure::new)?;
    announce(&server, args.json)?;
    loop {
        select! {
            recv(stop.channel()) -> _ => break,
            recv(reload) -> signal => {
                if signal.is_err() {
                    break;
                }
                if let Some(path) = &args.policy {
                    // A file that is no policy changes nothing.
                    if let Err(failure) = reread(&server, path) {
                        failure.report();
                    }
                }
            }
        }
    }
    server.stop();
    Ok(())
}

fn reread(server: &Server, path: &std::path::Path) -> Result<(), Failure> {
    let objects = load_objects(path)?;
    let changed = server.handle().reload_policy(objects).map_err(Failure::new)?;
    log::info!("{}: {changed} objects changed", path.display());
    Ok(())
}

/// Prints where a server listens. Flushed and let go of: somebody waits for
/// this line.
fn announce(server: &Server, as_json: bool) -> Result<(), Failure> {
    let addresses: Vec<_> = server.addresses().iter().map(Address::to_string).collect();
    let mut output = Output::new();
    if as_json {
        output.line(json!({ "listening": addresses }))?;
    } else {
        output.line(format!("listening at {}", addresses.join(", ")))?;
    }
    output.flush()
}
