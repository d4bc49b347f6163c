//! `ssntp ctl tenant`, and the network of an instance that `start --tenant` starts.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::value_parser;
use serde_json::{Value, json};
use ssntp::payload::Id;
use ssntp_cluster::subnet::MAX_KEY;
use ssntp_daemon::{Failure, note, print_either, print_json, print_line};
use ssntp_payload::{
    Networking, Persistence, Requirements, RestartPolicy, Start, Tenant, TenantAction, TenantEntry,
    TenantRefusal, Tenants, TunnelStats, VmType,
};
use ssntp_view::{View, all_pages};
use uuid::Uuid;

use super::json::known;
use super::session::{self, POLL};
use super::sessions::new_id;
use super::{Invocation, Session, tables};
use crate::cmd::table;

/// The time limit for a running concentrator to announce itself, unless --timeout is given.
const ANNOUNCEMENT: Duration = Duration::from_secs(30);

/// Make, show and remove the networks of tenants
///
/// A tenant's network is one subnet with a concentrator, which runs on a network node.
/// Nodes need `ssntp agent --network tenants`; see docs/networks.md.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    Add(Box<AddArgs>),
    /// Show all tenants
    List,
    /// Show a tenant: its concentrator, its instances and their addresses
    Show(NamedTenant),
    /// Remove a tenant, and its concentrator; no instance may have an address
    Delete(NamedTenant),
    Release(ReleaseArgs),
}

/// Make a tenant's network, and start its concentrator
///
/// For a tenant that exists already, with the same values, this starts the concentrator again if it
/// was deleted or its node is lost.
#[derive(Debug, clap::Args)]
pub(super) struct AddArgs {
    #[command(flatten)]
    named: NamedTenant,
    /// The tenant's subnet, of 20 to 29 bits; the first address is the gateway. Several tenants
    /// may have the same subnet
    #[arg(long, value_name = "CIDR")]
    subnet: String,
    /// The address of the tenant's concentrator in the cluster's network, with the length of the
    /// prefix, as 10.0.0.33/24
    #[arg(long, value_name = "IP/BITS")]
    concentrator: String,
    /// The key of the tenant's tunnels, unique among the tenants [default: a free key]
    #[arg(long, value_name = "K", value_parser = value_parser!(u32).range(1..=i64::from(MAX_KEY)))]
    network_key: Option<u32>,
    /// The UUID in the certificate of the tenant's concentrator [default: a new UUID]
    #[arg(long, value_name = "UUID")]
    uuid: Option<Uuid>,
    /// The memory of the concentrator
    #[arg(long, value_name = "MB", default_value_t = 256, value_parser = value_parser!(i64).range(0..))]
    mem: i64,
}

/// Free the address of an instance that will not come back
///
/// The address of an instance is freed when its node no longer has the instance, and when `ssntp ctl
/// revoke` has revoked the certificates of its node. This command is for other nodes that are lost for
/// good. It is refused while the node of the instance is connected.
#[derive(Debug, clap::Args)]
pub(super) struct ReleaseArgs {
    #[command(flatten)]
    named: NamedTenant,
    /// The instance
    instance: Uuid,
    /// Its node is lost for good: its instances will not run again
    #[arg(long)]
    lost: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct NamedTenant {
    /// The tenant
    #[arg(value_name = "NAME")]
    name: String,
}

pub(super) fn run(cx: &Invocation, args: &Args) -> Result<(), Failure> {
    let session = Session::open_complete(cx)?;
    match args {
        Args::Add(args) => add(&session, args),
        Args::List => list(&session),
        Args::Show(named) => show(&session, &named.name),
        Args::Delete(named) => delete(&session, &named.name),
        Args::Release(args) => {
            let mut request = request(TenantAction::Release, &args.named.name);
            request.instance_uuid = args.instance.into();
            request.lost = args.lost;
            accepted_answer(&session, &request).map(drop)
        }
    }
}

fn add(session: &Session<'_>, args: &AddArgs) -> Result<(), Failure> {
    let name = &args.named.name;
    let mut request = request(TenantAction::Add, name);
    request.entry = TenantEntry {
        tenant_uuid: new_id(),
        subnet: args.subnet.clone(),
        // 0 makes the scheduler choose a free key.
        key: args.network_key.unwrap_or_default(),
        concentrator_uuid: args.uuid.map_or_else(new_id, Id::from),
        concentrator_ip: args.concentrator.clone(),
        ..TenantEntry::default()
    };
    let mut answer = answer_to(session, &request)?;
    // The tenant may have lost its concentrator. A request with all values of the tenant is accepted.
    if answer.reason == TenantRefusal::Taken
        && let Ok(there) = find(session, name)
    {
        request.entry.tenant_uuid = there.tenant_uuid;
        if args.uuid.is_none() {
            request.entry.concentrator_uuid = there.concentrator_uuid;
        }
        let repeated = answer_to(session, &request)?;
        if !repeated.entries.is_empty() {
            answer = repeated;
        }
    }
    let entry = first_entry(unless_refused(answer)?)?;
    start_concentrator(session, &entry, args.mem).map_err(|why| {
        why.with_advice(format_args!(
            "the same command tries again, `ssntp ctl tenant delete {name}` removes the tenant"
        ))
    })?;
    let (key, uuid, ip) = (entry.key, &entry.concentrator_uuid, &entry.concentrator_ip);
    let text = format_args!("tenant {name}: key {key}, concentrator {uuid} at {ip}");
    print_either(session.json, tenant_json(&entry), text)
}

/// Starts the concentrator of a tenant if it does not exist or was stopped, and blocks until it has announced itself.
fn start_concentrator(session: &Session<'_>, entry: &TenantEntry, mem: i64) -> Result<(), Failure> {
    let uuid = uuid_of(&entry.concentrator_uuid)?;
    let (ip, _) = entry.concentrator_ip.split_once('/').unwrap_or_default();
    // The agent passes the server and the certificate files in the environment, so the command does not
    // name them. The path of the state is below the directory of the instance.
    let mut command: Vec<_> = "ssntp cnci --network tenants --state state".split(' ').collect();
    let own = uuid.to_string();
    command.extend(["--uuid", &own, "--tenant", entry.tenant_uuid.as_str(), "--ip", ip]);
    let start = Start {
        tenant_uuid: entry.tenant_uuid.clone(),
        instance_uuid: uuid,
        persistence: Persistence::All,
        vm_type: VmType::Process,
        // The concentrator is in the network of the cluster, so this is its own address and that network.
        networking: Networking {
            subnet: entry.concentrator_ip.clone(),
            private_ip: ip.to_owned(),
            ..Networking::default()
        },
        requirements: Requirements {
            mem_mb: mem,
            vcpus: 1,
            network_node: true,
            ..Requirements::default()
        },
        restart_policy: RestartPolicy::Always,
        command: command.into_iter().map(str::to_owned).collect(),
        name: format!("cnci-{}", entry.name),
        ..Start::default()
    };
    let is_alive = |view: &View| Some(view.instance(uuid)?.is_alive());
    match session.controller.look(is_alive) {
        Some(true) => {}
        // It was stopped, or its node was evacuated.
        Some(false) => session.await_done(session.controller.restart(uuid)?)?,
        None => {
            session.wait_for_node(|node| node.network)?;
            session.await_done(session.controller.start_workload(&start.into())?)?;
        }
    }
    let announced = || Ok(session.controller.look(|view| view.cnci(uuid)?.since));
    let (cx, limit) = (session.cx, session.cx.options.limit_or(ANNOUNCEMENT));
    let announced = cx.stop.poll(POLL, limit, announced)?;
    announced.map(drop).ok_or_else(|| {
        Failure::new(format!(
            "the concentrator {uuid} has not announced itself in time: `ssntp ctl logs {uuid}` may show why"
        ))
    })
}

fn delete(session: &Session<'_>, name: &str) -> Result<(), Failure> {
    // First, because the scheduler refuses this while an instance has an address, and needs the
    // concentrator. From then on no instance can get one.
    let entry = first_entry(accepted_answer(session, &request(TenantAction::Delete, name))?)?;
    let uuid = uuid_of(&entry.concentrator_uuid)?;
    delete_concentrator(session, uuid).map_err(|why| {
        why.with_advice(format_args!(
            "the tenant is removed, `ssntp ctl delete {uuid}` deletes its concentrator"
        ))
    })
}

fn delete_concentrator(session: &Session<'_>, uuid: Uuid) -> Result<(), Failure> {
    if session.controller.look(|view| view.instance(uuid).is_some()) {
        session.await_done(session.controller.delete(uuid)?)?;
    } else {
        note(format_args!(
            "ssntp: no connected node has the concentrator: if a node that is away has it, `ssntp ctl delete {uuid}` \
             deletes it once the node is back"
        ));
    }
    Ok(())
}

/// The concentrators of all tenants, as the scheduler has recorded them.
pub(super) fn concentrators(session: &Session<'_>) -> Result<BTreeSet<Uuid>, Failure> {
    let entries = entries(session)?.into_iter();
    Ok(entries
        .filter_map(|entry| entry.concentrator_uuid.uuid())
        .collect())
}

fn entries(session: &Session<'_>) -> Result<Vec<TenantEntry>, Failure> {
    all_pages(|after: &String| {
        // The name in a List is the last one of the page before.
        let page = accepted_answer(session, &request(TenantAction::List, after))?;
        Ok::<_, Failure>((page.entries, page.next))
    })
}

fn list(session: &Session<'_>) -> Result<(), Failure> {
    table::print(
        session.json,
        tables::TENANTS,
        &(),
        &entries(session)?,
        tenant_json,
    )
}

fn show(session: &Session<'_>, name: &str) -> Result<(), Failure> {
    let entry = find(session, name)?;
    if !session.json {
        return print_line(session.controller.look(|view| tables::tenant(view, &entry)));
    }
    let tunnel = |(node, tunnel): &(Uuid, TunnelStats)| {
        json!({
            "node": node, "up": tunnel.up, "rx_bytes": tunnel.rx_bytes, "tx_bytes": tunnel.tx_bytes,
            "drops": tunnel.drops,
        })
    };
    let tunnels = session.controller.look(|view| tables::tunnels(view, &entry));
    let mut value = tenant_json(&entry);
    value["tunnels"] = tunnels.iter().map(tunnel).collect();
    print_json(value)
}

/// Fails if there is no tenant of this name, or its concentrator does not run. The scheduler refuses a START
/// for it, too, but nothing reports that with --no-wait.
pub(super) fn check(session: &Session<'_>, name: &str) -> Result<(), Failure> {
    let cnci = uuid_of(&find(session, name)?.concentrator_uuid)?;
    if session.controller.look(|view| view.has_concentrator(cnci)) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the concentrator of tenant {name} does not run: `ssntp ctl tenant add` with the tenant's values starts it again"
    )))
}

/// A tenant with its addresses.
pub(super) fn find(session: &Session<'_>, name: &str) -> Result<TenantEntry, Failure> {
    first_entry(accepted_answer(session, &request(TenantAction::Show, name))?)
}

fn request(action: TenantAction, name: &str) -> Tenant {
    Tenant {
        id: new_id(),
        action,
        name: name.to_owned(),
        ..Tenant::default()
    }
}

/// The answer to a request, which must not be a refusal.
fn accepted_answer(session: &Session<'_>, request: &Tenant) -> Result<Tenants, Failure> {
    unless_refused(answer_to(session, request)?)
}

fn answer_to(session: &Session<'_>, request: &Tenant) -> Result<Tenants, Failure> {
    let is_answer = |answer: &Tenants| answer.id == request.id;
    let changes = !matches!(request.action, TenantAction::List | TenantAction::Show);
    session.ask(request, is_answer, changes)
}

fn unless_refused(answer: Tenants) -> Result<Tenants, Failure> {
    session::check(&answer.reason, &answer.detail)?;
    Ok(answer)
}

fn first_entry(answer: Tenants) -> Result<TenantEntry, Failure> {
    let mut entries = answer.entries.into_iter();
    entries
        .next()
        .ok_or_else(|| Failure::new("the scheduler's answer contains no tenant"))
}

fn uuid_of(id: &Id) -> Result<Uuid, Failure> {
    id.uuid()
        .ok_or_else(|| Failure::new(format!("{id:?} is not a UUID")))
}

fn tenant_json(entry: &TenantEntry) -> Value {
    let addresses = entry.addresses.iter();
    let addresses: Vec<_> = addresses
        .map(|address| {
            json!({
                "ip": address.ip, "instance": address.instance_uuid.as_str(),
                "node": known(address.node_uuid.as_str()), "state": known(&address.state),
            })
        })
        .collect();
    json!({
        "name": entry.name, "tenant": entry.tenant_uuid.as_str(), "subnet": entry.subnet, "key": entry.key,
        "concentrator": entry.concentrator_uuid.as_str(), "concentrator_ip": entry.concentrator_ip,
        "addresses": addresses,
    })
}
