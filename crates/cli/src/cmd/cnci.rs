//! `ssntp cnci`: the agent inside a concentrator instance, and its tables.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use comfy_table::{Table, presets};
use crossbeam_channel::select;
use serde_json::json;
use ssntp::Role;
use ssntp::client::ClientError;
use ssntp_admin::Snapshot;
use ssntp_cluster::cnci::{Cnci, CnciConfig, Tables};
use uuid::Uuid;

use crate::admin::{self, About, AdminArgs, Figures, Pages};
use crate::connection::{self, Connection, Renewal, closed};
use crate::credentials::Lifetime;
use crate::daemon::{Daemon, Service};
use crate::failure::Failure;
use crate::output::{Output, lone_line, printable};
use crate::settings::{ConfigFile, Problems, Settings};

/// Run the agent of a concentrator instance, or print its tables
///
/// It keeps the tunnels, peers and public addresses of a tenant. No packet is
/// moved: the tables are all there is. SIGINT and SIGTERM end it; SIGHUP makes it read
/// --ca, --cert and --crl again, and so does a change of these files. With --state
/// and nothing to run, it prints the tables that are there.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config_file: ConfigFile,
    #[command(flatten)]
    connection: Connection,
    /// The tenant
    #[arg(long, value_name = "UUID")]
    tenant: Option<Uuid>,
    /// Its address in the cluster's network
    #[arg(long, value_name = "IP")]
    ip: Option<IpAddr>,
    /// Where its tables are kept [default: nowhere]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print the tables in --state, of a concentrator that runs or not, and end
    #[arg(long, requires = "state", conflicts_with_all = ["tenant", "ip"])]
    show: bool,
    #[command(flatten)]
    admin: AdminArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    let connection = &args.connection;
    let connects = connection.server.says_something() || connection.has_uuid();
    let runs = connects || args.tenant.is_some() || args.ip.is_some();
    match &args.state {
        Some(state) if args.show || !runs => show(state, args.json),
        _ => serve(args, settings),
    }
}

impl Args {
    /// What can be told to be wrong before it is started, by its key.
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let (cert, ca, crl) = self.connection.files();
        problems.credentials(cert, ca, crl, Role::CNCIAGENT);
        for (key, is_there) in [("tenant", self.tenant.is_some()), ("ip", self.ip.is_some())] {
            problems.of(
                key,
                (!is_there).then(|| Err::<(), _>(Failure::new("it is needed"))),
            );
        }
        problems
    }
}

fn serve(args: Args, settings: Settings) -> Result<(), Failure> {
    let connection = &args.connection;
    let (Some(tenant), Some(ip)) = (args.tenant, args.ip) else {
        return Err(Failure::usage(
            "--uuid, --tenant and --ip are needed to run one, --state to print its tables",
        ));
    };
    let mut daemon = Daemon::install()?;
    if !connection.settles_uuid(daemon.stop())? {
        return Err(Failure::usage("--uuid is needed: the concentrator's instance"));
    }
    let (client, renewal) = connection.config_as(Role::CNCIAGENT, daemon.stop())?;
    let mut config = CnciConfig::new(client.tracing(true), tenant, ip);
    if let Some(state) = args.state {
        config = config.state(state);
    }
    let cnci = Arc::new(Cnci::start(config).map_err(Failure::new)?);
    let pages = args.admin.start(
        About {
            daemon: "cnci",
            listening: Vec::new(),
            notes: daemon.notes(),
        },
        || args.connection.credentials(daemon.stop()).map(Some),
        figures(&cnci),
    )?;
    let uuid = cnci.uuid();
    lone_line(
        format!("cnci {uuid}"),
        args.json.then(|| json!({ "cnci": uuid }).to_string()),
    )?;
    pages.announce(args.json);
    let mut running = Running {
        cnci: &cnci,
        renewal,
        pages: &pages,
        settings,
    };
    let watched = running.renewal.watched().and(running.settings.file());
    daemon.watch(watched, &running);
    let pulse = Arc::downgrade(&cnci);
    daemon.ready(move || Some(connection::shown(&pulse.upgrade()?.figures()?.client)));
    loop {
        select! {
            recv(cnci.ended()) -> why => return Err(closed(why.unwrap_or(ClientError::Closed))),
            recv(daemon.stop().channel()) -> _ => break,
            recv(daemon.hang_ups()) -> came => match came {
                Ok(()) => daemon.reload(&mut running),
                Err(_) => break,
            },
            recv(daemon.looks()) -> _ => daemon.look(&mut running),
        }
    }
    daemon.stopping();
    pages.stopping();
    drop(cnci);
    Ok(())
}

/// What its pages show. They do not keep it alive.
fn figures(cnci: &Arc<Cnci>) -> Figures {
    let cnci = Arc::downgrade(cnci);
    Box::new(move || {
        let cnci = cnci.upgrade().ok_or("it is stopping")?;
        let figures = cnci.figures().ok_or("it does not answer")?;
        Ok(admin::of_client(&cnci.client(), Snapshot::of_cnci(&figures)))
    })
}

/// What is read again.
struct Running<'a> {
    cnci: &'a Cnci,
    renewal: Renewal,
    pages: &'a Pages,
    settings: Settings,
}

impl Service for Running<'_> {
    fn reload(&mut self) -> Result<(), Failure> {
        let read = self.settings.read_again::<Args>()?;
        let (cnci, pages) = (self.cnci, self.pages);
        self.renewal.reload(|identity, trust| {
            cnci.renew(identity, trust)?;
            pages.renew(identity, trust);
            Ok(())
        })?;
        if let Some((_, now)) = read {
            self.settings.take(now, &[]);
        }
        Ok(())
    }

    fn lifetimes(&self) -> Vec<Lifetime> {
        self.renewal.lifetimes()
    }
}

fn show(state: &Path, json: bool) -> Result<(), Failure> {
    let tables = Tables::load(state).map_err(Failure::new)?;
    let tables =
        tables.ok_or_else(|| Failure::new(format!("{}: no tables are kept there", state.display())))?;
    let mut output = Output::new();
    if json {
        let text = serde_json::to_string(&tables).map_err(Failure::new)?;
        output.json(text)?;
        return output.flush();
    }
    output.line(format!(
        "concentrator  {}",
        printable(tables.concentrator_uuid.as_str())
    ))?;
    output.line(format!(
        "tenant        {}",
        printable(tables.tenant_uuid.as_str())
    ))?;
    output.line(format!("address       {}", printable(&tables.ip)))?;
    output.line(format!("data plane    {}", printable(&tables.data_plane)))?;
    let tunnels = tables.tunnels.iter().map(|t| {
        let key = t.key.to_string();
        [
            t.agent_uuid.to_string(),
            t.agent_ip.clone(),
            t.subnet.clone(),
            key,
        ]
    });
    table(
        &mut output,
        "tunnels",
        ["node", "address", "subnet", "key"],
        tunnels,
    )?;
    let peers = tables.peers.iter().map(|p| {
        let id = p.tunnel_id.to_string();
        [p.physical_ip.clone(), p.subnet.clone(), p.tunnel_ip.clone(), id]
    });
    table(
        &mut output,
        "peers",
        ["address", "subnet", "tunnel address", "tunnel"],
        peers,
    )?;
    let ips = tables.public_ips.iter().map(|ip| {
        [
            ip.public_ip.clone(),
            ip.instance_uuid.to_string(),
            ip.private_ip.clone(),
            ip.vnic_mac.clone(),
        ]
    });
    table(
        &mut output,
        "public addresses",
        ["address", "instance", "private address", "mac"],
        ips,
    )?;
    output.flush()
}

fn table(
    output: &mut Output,
    name: &str,
    header: [&str; 4],
    rows: impl ExactSizeIterator<Item = [String; 4]>,
) -> Result<(), Failure> {
    if rows.len() == 0 {
        return output.line(format!("no {name}"));
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    for row in rows {
        table.add_row(row.map(|cell| printable(&cell)));
    }
    output.line(format!("{name}\n{table}"))
}
