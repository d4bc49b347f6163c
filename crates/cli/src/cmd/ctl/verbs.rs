//! The commands of `ssntp ctl` that send orders and wait for their results.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::value_parser;
use ssntp::payload::{Id, yaml};
use ssntp_daemon::{Choices, Failure, input, one_of};
use ssntp_payload::{AssignPublicIp, Configure, Delete, Evacuate, NextState, ReleasePublicIp, StartPayload};
use ssntp_view::{CommandError, Controller, Order, View};
use uuid::Uuid;

use super::moves::{Moves, drain};
use super::session::POLL;
use super::workload::WorkloadArgs;
use super::{Invocation, Session, tenant};

/// The flags that select whether a command ends once it is done, or once it is sent.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Waiting {
    /// Wait until the command is shown to be done [default]
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Do not wait until the command is shown to be done; failures are not reported
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
}

impl Waiting {
    pub(super) fn wait(self) -> bool {
        self.wait || !self.no_wait
    }
}

/// Start a workload, from a file or from the command line
///
/// Prints the UUIDs of the instances and of their nodes.
#[derive(Debug, clap::Args)]
pub(super) struct StartArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    waiting: Waiting,
}

pub(super) fn start(cx: &Invocation, args: StartArgs) -> Result<(), Failure> {
    let mut workload = args.workload.workload()?;
    // The list of nodes is needed for three reasons: --node may be the beginning of a UUID, an older
    // instance must not be mistaken for the new one, and without a suitable node the scheduler would
    // refuse the START at once.
    let session = Session::open_complete(cx)?;
    let start = &mut workload.payload.start;
    if args.waiting.wait() {
        let is_network = start.requirements.network_node;
        session.wait_for_node(|node| if is_network { node.network } else { node.compute })?;
    }
    let node = &mut start.requirements.node_id;
    if !node.is_empty() {
        *node = session
            .controller
            .look(|view| view.find_node(node.as_str()))?
            .into();
    }
    let tenant = &start.tenant_uuid;
    let is_named = !tenant.is_empty() && tenant.uuid().is_none();
    if is_named && start.networking.concentrator_uuid.is_empty() {
        tenant::check(&session, tenant.as_str())?;
    }
    if !start.requirements.labels.is_empty() {
        let heeds = || Ok(session.controller.look(View::heeds_constraints));
        match cx.stop.poll(POLL, session.limit, heeds)? {
            Some(true) => {}
            Some(false) => return Err(Failure::new("the scheduler is older and ignores constraints")),
            None => {
                let why = "the scheduler has not reported all nodes, so it is not known whether it heeds constraints";
                return Err(Failure::new(why).with_advice("try again"));
            }
        }
    }
    let starts: Vec<_> = workload.starts().collect();
    let send = |start: &StartPayload| session.controller.start_workload(start).map(Some);
    session.send_each(&starts, send, args.waiting.wait())
}

#[derive(Debug, clap::Args)]
pub(super) struct InstancesArgs {
    /// The instances
    #[arg(required_unless_present = "all", value_name = "INSTANCE")]
    instances: Vec<String>,
    /// All instances that the scheduler knows, but no concentrators
    #[arg(long, conflicts_with = "instances")]
    all: bool,
    #[command(flatten)]
    waiting: Waiting,
}

/// Delete instances permanently
#[derive(Debug, clap::Args)]
pub(super) struct DeleteArgs {
    #[command(flatten)]
    instances: InstancesArgs,
    /// Delete them only on this node; if two nodes have an instance, the other node keeps it
    #[arg(long, value_name = "NODE", conflicts_with = "all")]
    node: Option<String>,
}

pub(super) fn delete(cx: &Invocation, args: &DeleteArgs) -> Result<(), Failure> {
    each(cx, &args.instances, |controller, instance| {
        let Some(node) = &args.node else {
            return Ok(controller.delete(instance)?);
        };
        let node = controller.look(|view| view.find_node(node))?;
        Ok::<_, Failure>(controller.order(&Delete {
            instance_uuid: instance.into(),
            workload_agent_uuid: node.into(),
            stop: false,
        })?)
    })
}

/// All instances but the concentrators, without which tenants have no network. Those of the scheduler's list of
/// tenants may be away, and others are known to the view only.
fn all(view: &View, concentrators: &BTreeSet<Uuid>) -> Vec<Uuid> {
    let all = view.instances().map(|instance| instance.uuid);
    all.filter(|instance| view.cnci(*instance).is_none() && !concentrators.contains(instance))
        .collect()
}

/// Sends a command for each of the instances.
pub(super) fn each<E>(
    cx: &Invocation,
    args: &InstancesArgs,
    command: impl Fn(&Controller, Uuid) -> Result<Order, E>,
) -> Result<(), Failure>
where
    Failure: From<E>,
{
    let session = Session::open_complete(cx)?;
    let instances = if args.all {
        let concentrators = tenant::concentrators(&session)?;
        session.controller.look(|view| all(view, &concentrators))
    } else {
        session.find_instances(&args.instances)?
    };
    let send = |instance: &Uuid| {
        let sent = command(&session.controller, *instance);
        if args.all {
            session.none_if_gone(*instance, sent)
        } else {
            sent.map(Some)
        }
    };
    session.send_each(&instances, send, args.waiting.wait())
}

#[derive(Debug, clap::Args)]
pub(super) struct VolumeArgs {
    /// The instance
    instance: String,
    /// The volume, by its whole UUID if no instance has it yet
    volume: String,
    #[command(flatten)]
    waiting: Waiting,
}

/// Sends a command for a volume of an instance.
pub(super) fn volume(
    cx: &Invocation,
    args: &VolumeArgs,
    command: impl Fn(&Controller, Uuid, Id) -> Result<Order, CommandError>,
) -> Result<(), Failure> {
    let session = Session::open_complete(cx)?;
    let instance = session
        .controller
        .look(|view| view.find_instance(&args.instance))?;
    let volume = session.controller.look(|view| view.find_volume(&args.volume))?;
    let order = command(&session.controller, instance, volume)?;
    session.finish(vec![order], args.waiting.wait())
}

/// Empty a node of its instances
///
/// The controller of a workload moves its instances to other nodes first, within max_unavailable.
/// With --no-wait they are ended at once, like all others.
#[derive(Debug, clap::Args)]
pub(super) struct EvacuateArgs {
    /// The node
    node: String,
    /// The state of the node once it is empty
    #[arg(long, value_parser = one_of(NEXT_STATES), default_value = "maintenance")]
    next_state: NextState,
    /// Kill instances that have not ended after this time [default: the agent's grace
    /// period]
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u32).range(1..))]
    deadline: Option<u32>,
    /// Start each instance on another node once it has ended, if it can run there;
    /// print the reason for each instance that cannot
    #[arg(long = "move")]
    moves: bool,
    #[command(flatten)]
    waiting: Waiting,
}

#[rustfmt::skip] // A table: one row a word.
const NEXT_STATES: Choices<NextState> = &[
    ("maintenance", "The node waits until it is restored", NextState::Maintenance),
    ("shutdown", "The node shuts down", NextState::Shutdown),
    ("update", "The node updates its software", NextState::Update),
    ("reboot", "The node reboots", NextState::Reboot),
];

pub(super) fn evacuate(cx: &Invocation, args: &EvacuateArgs) -> Result<(), Failure> {
    let deadline = args.deadline.unwrap_or(0);
    let mut session = Session::open_complete(cx)?;
    // The node may use all of this time before it reports that it is empty.
    session.extend_limit(Duration::from_secs(deadline.into()));
    let node = session.controller.look(|view| view.find_node(&args.node))?;
    if args.waiting.wait() {
        drain(&session, node)?;
    }
    let moved = args.moves.then(|| Moves::begin(&session, node));
    let order = session.controller.order(&Evacuate {
        workload_agent_uuid: node.into(),
        next_state: args.next_state.clone(),
        deadline,
        moves: args.moves,
        drain: false,
    });
    session.finish(vec![order?], args.waiting.wait())?;
    match moved {
        Some(moved) if args.waiting.wait() => moved.finish(&session),
        _ => Ok(()),
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct NodeArgs {
    /// The node
    node: String,
    #[command(flatten)]
    waiting: Waiting,
}

pub(super) fn restore(cx: &Invocation, args: &NodeArgs) -> Result<(), Failure> {
    let session = Session::open_complete(cx)?;
    let node = session.controller.look(|view| view.find_node(&args.node))?;
    session.finish(vec![session.controller.restore(node)?], args.waiting.wait())
}

/// Replace the configuration of the cluster
///
/// Waits until the scheduler confirms the new configuration.
#[derive(Debug, clap::Args)]
pub(super) struct ConfigureArgs {
    /// A CONFIGURE document; - is the standard input
    file: PathBuf,
    #[command(flatten)]
    waiting: Waiting,
}

pub(super) fn configure(cx: &Invocation, args: &ConfigureArgs) -> Result<(), Failure> {
    let configuration = yaml::without_mark(&input::named(&args.file)?).to_vec();
    // The scheduler checks it as well, but cannot report what is wrong.
    let checked = Configure::decode_valid(&configuration);
    checked.map_err(|e| Failure::at(&args.file, e))?;
    // Unknown keys are ignored, so a document of another kind, and the empty one of a program that has
    // failed, would reset the whole configuration to its defaults.
    if !is_configuration(&configuration) {
        let why = "the key configure is missing at the top level";
        return Err(Failure::at(&args.file, why));
    }
    let session = Session::open(cx)?;
    let order = session.controller.configure(configuration)?;
    session.finish(vec![order], args.waiting.wait())
}

/// True if the document has the key of a configuration.
fn is_configuration(document: &[u8]) -> bool {
    let keys = yaml::Node::parse(document, 1, yaml::MAX_DOCUMENT_LEN);
    keys.is_ok_and(|keys| keys.get("configure").is_some())
}

#[derive(Debug, clap::Args)]
pub(super) struct PublicIpArgs {
    /// The instance
    instance: String,
    /// The public address
    #[arg(value_name = "IP")]
    public_ip: IpAddr,
    /// The concentrator that handles the address [default: the tenant's, or the only
    /// concentrator]
    #[arg(long)]
    cnci: Option<String>,
    /// The instance's tenant: a name of `ctl tenant list`, or a UUID
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// The instance's address inside its subnet [default: its address in the network of a
    /// tenant with a name]
    #[arg(long, value_name = "IP")]
    private_ip: Option<IpAddr>,
    /// The MAC address of the instance's interface
    #[arg(long)]
    mac: Option<String>,
    #[command(flatten)]
    waiting: Waiting,
}

impl PublicIpArgs {
    /// The tenant, unless it is given as a UUID.
    fn named_tenant(&self) -> Option<&str> {
        let tenant = self.tenant.as_deref();
        tenant.filter(|tenant| Uuid::try_parse(tenant).is_err())
    }
}

pub(super) fn assign_ip(cx: &Invocation, args: &PublicIpArgs) -> Result<(), Failure> {
    let (session, command) = public_ip(cx, args)?;
    if command.private_ip.is_empty()
        && let Some(tenant) = args.named_tenant()
    {
        let instance = &command.instance_uuid;
        return Err(Failure::new(format!(
            "instance {instance} has no address of tenant {tenant}"
        )));
    }
    session.finish(vec![session.controller.order(&command)?], args.waiting.wait())
}

pub(super) fn release_ip(cx: &Invocation, args: &PublicIpArgs) -> Result<(), Failure> {
    let (session, command) = public_ip(cx, args)?;
    let order = session.controller.order(&ReleasePublicIp {
        concentrator_uuid: command.concentrator_uuid,
        tenant_uuid: command.tenant_uuid,
        instance_uuid: command.instance_uuid,
        public_ip: command.public_ip,
        private_ip: command.private_ip,
        vnic_mac: command.vnic_mac,
    })?;
    session.finish(vec![order], args.waiting.wait())
}

fn public_ip<'a>(cx: &'a Invocation, args: &PublicIpArgs) -> Result<(Session<'a>, AssignPublicIp), Failure> {
    let session = Session::open_complete(cx)?;
    let named = args.named_tenant().map(|name| tenant::find(&session, name));
    let named = named.transpose()?;
    let instance = session
        .controller
        .look(|view| view.find_instance(&args.instance))?;
    let given = args.private_ip.map(|ip| ip.to_string());
    let (cnci, tenant, private_ip) = match named {
        Some(entry) => {
            let mut addresses = entry.addresses.into_iter();
            let leased = addresses.find(|address| address.instance_uuid == instance);
            let private_ip = given.or(leased.map(|address| address.ip));
            (entry.concentrator_uuid, entry.tenant_uuid, private_ip)
        }
        None => {
            let (cnci, tenant) = session.controller.look(|view| concentrator(view, args))?;
            (cnci.into(), tenant, given)
        }
    };
    let command = AssignPublicIp {
        concentrator_uuid: cnci,
        tenant_uuid: tenant,
        instance_uuid: instance.into(),
        public_ip: args.public_ip.to_string(),
        private_ip: private_ip.unwrap_or_default(),
        vnic_mac: args.mac.clone().unwrap_or_default(),
    };
    Ok((session, command))
}

/// The concentrator that handles a public address, and its tenant.
fn concentrator(view: &View, args: &PublicIpArgs) -> Result<(Uuid, Id), Failure> {
    let tenant = args.tenant.as_deref().map(Id::from);
    if let Some(text) = &args.cnci {
        let cnci = view.find_cnci(text)?;
        let known = view.cnci(cnci).map(|cnci| cnci.tenant.clone());
        return Ok((cnci, tenant.or(known).unwrap_or_default()));
    }
    let serves = |id: &Id| tenant.as_ref().is_none_or(|tenant| id == tenant);
    let found: Vec<_> = view.cncis().filter(|cnci| serves(&cnci.tenant)).collect();
    match found.as_slice() {
        [one] => Ok((one.uuid, one.tenant.clone())),
        [] => {
            let whose = args.tenant.as_ref().map_or("", |_| " of that tenant");
            let text = format!("no CNCI{whose} is known; give --cnci");
            Err(Failure::new(text))
        }
        several => {
            let list: Vec<_> = several.iter().map(|cnci| cnci.uuid.to_string()).collect();
            let (count, list) = (list.len(), list.join(", "));
            let text = format!("there are {count} CNCIs; choose one with --cnci or --tenant: {list}");
            Err(Failure::new(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use ssntp::Frame;
    use ssntp_payload::{ConcentratorInstanceAdded, InstanceState, InstanceStats, Stats};

    use super::*;

    #[test]
    fn all_instances_are_all_but_the_concentrators() {
        let (instance, concentrator) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let of = |uuid: Uuid| InstanceStats {
            instance_uuid: uuid.into(),
            state: InstanceState::Active,
            ..InstanceStats::default()
        };
        let stats = Stats {
            node_uuid: Uuid::from_u128(3).into(),
            instances: vec![of(instance), of(concentrator)],
            ..Stats::default()
        };
        let announced = ConcentratorInstanceAdded {
            instance_uuid: concentrator.into(),
            ..ConcentratorInstanceAdded::default()
        };
        let (mut view, at) = (View::default(), ssntp_transport::wall_clock());
        view.connected(None);
        view.apply(&Frame::of(&stats), at);
        view.apply(&Frame::of(&announced), at);
        assert_eq!(all(&view, &BTreeSet::new()), [instance]);
        // It has announced nothing since the scheduler was started.
        let mut view = View::default();
        view.connected(None);
        view.apply(&Frame::of(&stats), at);
        assert_eq!(all(&view, &BTreeSet::from([concentrator])), [instance]);
        assert!(view.has_concentrator(concentrator));
    }
}
