//! `ssntp cnci`: the agent inside a concentrator instance, and its tables.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ssntp::Role;
use ssntp::client::ClientConfig;
use ssntp_agent_cli::TunnelArgs;
use ssntp_daemon::{
    ConfigFile, Connection, Daemon, Failure, Given, Output, Presence, Problems, Renewal, Settings, TokenArgs,
    closed, on, print_json, printable,
};
use ssntp_network::cnci::{Cnci, CnciConfig, PublicIp, Routing, Tables, Tunnel};
use ssntp_payload::CnciPeer;
use uuid::Uuid;

use super::table::{self, Columns};
use crate::admin::{self, AdminArgs};

/// Run the agent of a concentrator instance
///
/// The agent keeps tables of the tunnels, peers and public addresses of a tenant. With
/// --network tenants it makes tunnels and forwards packets by these tables, in its own
/// network namespace; otherwise it forwards none. SIGINT and SIGTERM end it. On SIGHUP, and
/// when these files change, --ca, --cert and --crl are read again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    join: TokenArgs,
    /// The UUID of the tenant
    #[arg(long, value_name = "UUID")]
    tenant: Option<Uuid>,
    /// The concentrator's address in the cluster's network
    #[arg(long, value_name = "IP")]
    ip: Option<IpAddr>,
    /// The directory for the tables, and for the certificate of --join [default: they are
    /// not kept]
    #[arg(long, value_name = "DIR", global = true)]
    state: Option<PathBuf>,
    #[command(flatten)]
    admin: AdminArgs,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    tunnels: TunnelArgs,
    #[command(subcommand)]
    verb: Option<OfTables>,
}

#[derive(Debug, clap::Subcommand)]
enum OfTables {
    /// Print the tables in --state, whether the concentrator runs or not
    Show,
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    match (&args.verb, &args.state) {
        (None, _) => serve(args, settings),
        (Some(OfTables::Show), Some(state)) => show(state, args.json),
        (Some(OfTables::Show), None) => Err(Failure::usage("--state is needed: the directory of the tables")),
    }
}

impl Args {
    /// True if the command runs until it is stopped.
    pub(crate) fn serves(&self) -> bool {
        self.verb.is_none()
    }

    /// Errors that can be found without starting the concentrator.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if !self.join.is_given() {
            self.connection.check_files(&mut problems, Role::CNCIAGENT);
        }
        let is_there = [
            ("tenant", self.tenant.is_some()),
            ("ip", self.ip.is_some()),
            ("uuid", self.connection.may_have_fixed_uuid()),
        ];
        for (key, _) in is_there.iter().filter(|(_, is_there)| !is_there) {
            problems.of(key, Some(Err::<(), _>(Failure::new("it is needed"))));
        }
        problems.of("join", Some(self.join.check(self.state.as_deref())));
        self.admin.problems(&mut problems);
        problems
    }
}

fn serve(mut args: Args, settings: Settings) -> Result<(), Failure> {
    let (Some(tenant), Some(ip)) = (args.tenant, args.ip) else {
        return Err(Failure::usage(
            "--uuid, --tenant and --ip are needed to run a concentrator; `ssntp cnci show` prints its tables",
        ));
    };
    let mut daemon = Daemon::install(settings)?;
    let joined = args
        .connection
        .join(&args.join, args.state.as_deref(), Role::CNCIAGENT);
    let joined = daemon.unless_refused(joined, args.state.iter().cloned().collect())?;
    let connection = &args.connection;
    let (client, Renewal { files, read, .. }) = connection.config_as(Role::CNCIAGENT, daemon.stop())?;
    // The cluster knows a concentrator by the UUID of its instance, so a random UUID would be
    // unknown to the cluster.
    let is_bound = read
        .credentials
        .as_ref()
        .is_some_and(|(identity, _)| identity.uuid().is_some());
    if !is_bound && !connection.has_uuid() {
        return Err(Failure::usage(
            "--uuid is needed: the UUID of the concentrator's instance",
        ));
    }
    let client = client.tracing(true).given(joined, ClientConfig::renewed_in);
    let mut config = CnciConfig::new(client, tenant, ip).given(args.state, CnciConfig::state);
    if let Some(tunnels) = args.tunnels.config() {
        let plane = Routing::open(ip, tunnels);
        config = config.data_plane(plane.map_err(|why| Failure::new(format!("--network tenants: {why}")))?);
    }
    let cnci = Arc::new(Cnci::start(config)?);
    let client = Arc::downgrade(&cnci);
    let figures = admin::of_cnci(&cnci);
    let status = move || Some(client.upgrade()?.figures()?.client);
    let presence = Presence::of_client("cnci", cnci.uuid(), args.json, args.admin.pages(figures), status);
    let arms = vec![on(cnci.ended().clone(), |why| Err(closed(why)))];
    let reload = |_: Option<Args>| files.renew(|identity, trust| cnci.renew(identity, trust));
    daemon.run(presence, read, reload, arms)
}

fn show(state: &Path, json: bool) -> Result<(), Failure> {
    let found = Tables::load(state).map_err(Failure::new)?;
    let found = found.ok_or_else(|| Failure::at(state, "it holds no tables of a concentrator"))?;
    if json {
        return print_json(serde_json::to_string(&found)?);
    }
    let mut output = Output::lock();
    let heads = [
        ("concentrator", found.concentrator_uuid.as_str()),
        ("tenant", found.tenant_uuid.as_str()),
        ("address", &found.ip),
        ("data plane", &found.data_plane),
    ];
    for (name, value) in heads {
        output.line(format_args!("{name:<13} {}", printable(value)))?;
    }
    table(&mut output, "tunnels", TUNNELS, &found.tunnels)?;
    table(&mut output, "peers", PEERS, &found.peers)?;
    table(&mut output, "public addresses", PUBLIC_IPS, &found.public_ips)?;
    output.flush()
}

#[rustfmt::skip] // Tables: one row a column.
const TUNNELS: Columns<(), Tunnel> = &[
    ("node", |(), tunnel| tunnel.agent_uuid.to_string()),
    ("address", |(), tunnel| tunnel.agent_ip.clone()),
    ("subnet", |(), tunnel| tunnel.subnet.clone()),
    ("key", |(), tunnel| tunnel.key.to_string()),
];

#[rustfmt::skip]
const PEERS: Columns<(), CnciPeer> = &[
    ("address", |(), peer| peer.physical_ip.clone()),
    ("subnet", |(), peer| peer.subnet.clone()),
    ("tunnel address", |(), peer| peer.tunnel_ip.clone()),
    ("tunnel", |(), peer| peer.tunnel_id.to_string()),
];

#[rustfmt::skip]
const PUBLIC_IPS: Columns<(), PublicIp> = &[
    ("address", |(), ip| ip.public_ip.clone()),
    ("instance", |(), ip| ip.instance_uuid.to_string()),
    ("private address", |(), ip| ip.private_ip.clone()),
    ("mac", |(), ip| ip.vnic_mac.clone()),
];

fn table<T>(output: &mut Output, name: &str, columns: Columns<(), T>, rows: &[T]) -> Result<(), Failure> {
    match rows {
        [] => output.line(format_args!("no {name}")),
        rows => output.line(format_args!(
            "{name}\n{}",
            table::table(true, columns, &(), rows.iter())
        )),
    }
}
