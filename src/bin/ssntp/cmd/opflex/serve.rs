//! `ssntp opflex serve`: policy repository, endpoint registry, observer.

use std::path::PathBuf;

use clap::value_parser;
use crossbeam_channel::select;
use serde_json::json;
use ssntp::opflex::Server;
use ssntp::opflex::run::ServerConfig;
use ssntp::transport::Address;

use super::identity::IdentityArgs;
use super::local::InspectorArgs;
use super::tls::ServerTls;
use super::{load_model, load_objects};
use crate::failure::Failure;
use crate::output::Output;
use crate::signal_stacks;
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
    /// The classes that it takes, with their properties, types and containment
    /// (JSON or YAML); objects that do not fit are refused [default: any]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Identity")]
    identity: IdentityArgs,
    #[command(flatten)]
    tls: ServerTls,
    /// Keep policy in this file, and begin with what it holds in place of
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
    ///
    /// Where vm.max_map_count allows fewer than N, the program starts itself
    /// again without signal stacks, which takes half of the memory maps; a stack
    /// overflow then ends it without a message.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max_connections: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    signal_stacks::drop_where_needed(args.max_connections);
    let (stop, reload) = Stop::install_with(signal_hook::consts::SIGHUP)?;
    let mut config = ServerConfig::new(args.identity.settings());
    config.schema = args.model.as_deref().map(load_model).transpose()?;
    config.listen = args.listen;
    config.tls = args.tls.acceptor()?;
    config.keep = args.persist;
    config.control = args.control;
    config.inspector = args.inspector.socket();
    config.max_connections = args.max_connections.map(|n| n as usize);
    if let Some(path) = &args.policy {
        config.policy = load_objects(path)?;
    }
    let server = Server::start(config).map_err(Failure::new)?;
    announce(&server, args.json)?;
    loop {
        select! {
            recv(stop.channel()) -> _ => break,
            // Nothing can be put in order any more.
            recv(server.running()) -> _ => {
                std::mem::forget(server);
                return Err(Failure::new("the server has panicked, as the log tells, and ends"));
            }
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
        output.json(json!({ "listening": addresses }))?;
    } else {
        output.line(format!("listening at {}", addresses.join(", ")))?;
    }
    output.flush()
}
