//! The tenants whose networks the cluster has: names, keys, concentrators, addresses.
//!
//! ```text
//!  Tenant ─ check ─▶ table ─▶ being written ─ done ─▶ Tenants, to the sender of Tenant
//!  START that names a tenant ─ lease ─▶ being written ─ done ─▶ it has the address, and is placed
//!  its node no longer has the instance, or its START has failed ─▶ its address is free
//! ```
//!
//! The table is kept in a file beside the configuration. A change is answered once it is on
//! the disk. The table keeps a change that could not be written, and the next change is written
//! together with it. Without a configuration file, the table is lost when the scheduler ends.
//!
//! `unwritten` owns what the file does not have yet, and what waits until it is written.

mod unwritten;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::ops::Bound;
use std::path::Path;
use std::time::Instant;

use log::error;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use self::unwritten::{Due, Pending, Unwritten, WaitingStart};
use super::config::SchedulerError;
use super::keeper::Keeper;
use super::out::{Out, limited};
use super::parking::{detached, with_trace_of};
use super::shared::TENANTS;
use ipnet::Ipv4Net;
use ssntp::payload::{Id, yaml};
use ssntp::proto::Frame;
use ssntp::server::SessionInfo;
use ssntp_cluster::subnet::{MAX_KEY, gateway, mac_of, subnet};
use ssntp_cluster::summed::{parse_summed, read_summed};
use ssntp_engine::View;
use ssntp_payload::{
    CommandSubject, PublicIpAssigned, Reason, StartPayload, Tenant, TenantAction as Action, TenantAddress,
    TenantEntry, TenantRefusal as Refusal, TenantRemoved, Tenants as Answer, check_name,
};

/// The maximum number of tenants. Each is a subnet with a concentrator.
const MAX_TENANTS: usize = 4096;
/// The maximum number of tenants in one answer. An entry has some 300 bytes.
const PAGE: usize = 256;
/// The length limit of the file, in bytes. A longer one could not be read again. The engine has the
/// same limit for its documents.
const MAX_LEN: usize = yaml::MAX_DOCUMENT_LEN;
/// An upper bound for the bytes of a tenant in the file, without its name and its addresses.
const TENANT_LEN: usize = 240;
/// An upper bound for the bytes of an address in the file.
const ADDRESS_LEN: usize = 64;

/// Why a Tenant is refused: the reason and its text.
type TenantRefused = (Refusal, String);
/// The outcome for a START that needs an address.
#[derive(Debug)]
pub(super) enum Leased {
    /// The START with the address.
    Start(Frame),
    /// The START of this instance waits for the disk.
    Waits(Uuid),
}

/// What follows from a write that has ended.
#[derive(Debug, Default)]
pub(super) struct Proceeded {
    /// The instances whose addresses are free in the file as well.
    pub(super) freed: BTreeSet<Uuid>,
    /// The STARTs that have waited, or the reason why the address of their instance may be lost.
    pub(super) starts: Vec<(SessionInfo, Frame, Result<(), String>)>,
}

/// The table, and what waits until it is written.
#[derive(Debug, Default)]
pub(super) struct TenantTable {
    table: Table,
    /// The tenant and address of each instance that has one.
    instances: BTreeMap<Uuid, (String, Ipv4Addr)>,
    /// The instances whose address an earlier scheduler has leased, and whose nodes this one has not known. That a START
    /// of one was sent to a node does not show that no other node has it.
    of_unknown_node: BTreeSet<Uuid>,
    /// What the file does not have yet.
    pub(super) unwritten: Unwritten,
    /// The revision of the engine's table, if it cannot be read, and the reason.
    unreadable: Option<(u64, String)>,
    /// The instances that have lost their addresses since the last question.
    released: Vec<Uuid>,
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Table {
    tenants: BTreeMap<String, Record>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    tenant_uuid: Uuid,
    subnet: Ipv4Net,
    key: u32,
    concentrator_uuid: Uuid,
    concentrator_ip: Ipv4Net,
    #[serde(default)]
    addresses: BTreeMap<Ipv4Addr, Uuid>,
}

impl Record {
    fn entry(&self, name: &str, with_addresses: bool) -> TenantEntry {
        let addresses = self.addresses.iter().filter(|_| with_addresses);
        TenantEntry {
            name: name.to_owned(),
            tenant_uuid: self.tenant_uuid.into(),
            subnet: self.subnet.to_string(),
            key: self.key,
            concentrator_uuid: self.concentrator_uuid.into(),
            concentrator_ip: self.concentrator_ip.to_string(),
            addresses: addresses
                .map(|(ip, instance)| TenantAddress {
                    ip: ip.to_string(),
                    instance_uuid: (*instance).into(),
                    ..TenantAddress::default()
                })
                .collect(),
        }
    }
}

impl TenantTable {
    /// Reads the table beside the configuration file, which may not exist yet.
    pub(super) fn load(configuration: &Path) -> Result<Self, SchedulerError> {
        let file = configuration.with_extension("tenants.yaml");
        let table: Option<Table> =
            read_summed(&file).map_err(|why| SchedulerError::Read(file.clone(), io::Error::other(why)))?;
        let mut tenants = Self::default();
        tenants.begin(table.unwrap_or_default());
        tenants.unwritten.keeper = Keeper::of(file);
        Ok(tenants)
    }

    /// Replaces the table with the engine's. If that cannot be read, nothing is written over it, and changes
    /// are refused until it can.
    pub(super) fn take_view(&mut self, view: &View) {
        let document = view.documents.get(TENANTS);
        self.unreadable = document.and_then(|it| Some((it.revision, self.replace(&it.text).err()?)));
        if let Some(why) = self.fault() {
            error!(target: "ssntp::scheduler", "the tenants cannot be changed: {why}");
        }
    }

    /// Takes up the engine's table if it could not be read, and has changed since. True if it can be read now.
    pub(super) fn take_mended(&mut self, view: &View) -> bool {
        let revision = view.documents.get(TENANTS).map(|document| document.revision);
        let has_changed = self.unreadable.take_if(|(at, _)| revision != Some(*at)).is_some();
        if has_changed {
            self.take_view(view);
        }
        has_changed && self.fault().is_none()
    }

    fn replace(&mut self, text: &[u8]) -> Result<(), String> {
        let table = parse_summed(text);
        let table = table.map_err(|why| format!("the engine's document {TENANTS} cannot be read: {why}"));
        self.begin(table?);
        Ok(())
    }

    /// The reason why the engine's table cannot be read.
    pub(super) fn fault(&self) -> Option<&str> {
        self.unreadable.as_ref().map(|(_, why)| &why[..])
    }

    fn begin(&mut self, table: Table) {
        let leases = table.tenants.iter().flat_map(|(name, record)| {
            let addresses = record.addresses.iter();
            addresses.map(move |(ip, instance)| (*instance, (name.clone(), *ip)))
        });
        self.instances = leases.collect();
        self.of_unknown_node = self.instances.keys().copied().collect();
        self.table = table;
    }

    /// The nodes of these instances are known from the former scheduler.
    pub(super) fn handle_adopted(&mut self, is_known: impl Fn(Uuid) -> bool) {
        self.of_unknown_node.retain(|instance| !is_known(*instance));
    }

    /// Carries out a Tenant. Returns the answer, and true if the table has changed.
    fn change(&mut self, asked: &Tenant) -> Result<(Answer, bool), TenantRefused> {
        let mut answer = Answer {
            id: asked.id.clone(),
            ..Answer::default()
        };
        let name = asked.name.as_str();
        let changes = match asked.action {
            Action::List => {
                // The name is that of the last entry of the previous page. An empty name returns the first
                // page.
                let after = (Bound::Excluded(name.to_owned()), Bound::Unbounded);
                let mut page = self.table.tenants.range(after);
                let entries = page
                    .by_ref()
                    .take(PAGE)
                    // Without addresses, because a page of large subnets with them could exceed
                    // the length limit of a frame.
                    .map(|(name, record)| record.entry(name, false));
                answer.entries = entries.collect();
                if page.next().is_some() {
                    answer.next = answer
                        .entries
                        .last()
                        .map(|last| last.name.clone())
                        .unwrap_or_default();
                }
                return Ok((answer, false));
            }
            Action::Show => false,
            Action::Add => self.add(name, &asked.entry)?,
            Action::Lease => self.lease(asked)?,
            Action::Release => self.release_of(asked)?,
            Action::Delete => {
                let record = self.find(name)?;
                // Running instances still use the key and the subnet, so no other tenant may
                // get them.
                if let Some((ip, instance)) = record.addresses.first_key_value() {
                    let count = record.addresses.len();
                    let why = format!("{count} instances have addresses: {instance} has {ip}");
                    return Err((Refusal::InUse, why));
                }
                answer.entries.push(record.entry(name, false));
                self.table.tenants.remove(name);
                return Ok((answer, true));
            }
            ref other => return Err((Refusal::InvalidData, format!("there is no action {other}"))),
        };
        answer.entries.push(self.find(name)?.entry(name, true));
        Ok((answer, changes))
    }

    fn find(&self, name: &str) -> Result<&Record, TenantRefused> {
        let none = || (Refusal::NoTenant, format!("there is no tenant {name:?}"));
        self.table.tenants.get(name).ok_or_else(none)
    }

    fn add(&mut self, name: &str, entry: &TenantEntry) -> Result<bool, TenantRefused> {
        let invalid = |why: String| (Refusal::InvalidData, why);
        check_name(name).map_err(|why| invalid(format!("{name:?}: {why}")))?;
        let uuid = |what: &str, id: &Id| {
            id.uuid()
                .ok_or_else(|| invalid(format!("{what} {id:?} is no UUID")))
        };
        let ip = &entry.concentrator_ip;
        let concentrator_ip: Ipv4Net = ip
            .parse()
            .map_err(|_| invalid(format!("concentrator_ip {ip:?} is no IPv4 address with a prefix")))?;
        let record = Record {
            tenant_uuid: uuid("tenant_uuid", &entry.tenant_uuid)?,
            subnet: subnet(&entry.subnet).map_err(invalid)?,
            key: match entry.key {
                // A controller that repeats the request does not know the key that was chosen.
                0 => match self.table.tenants.get(name) {
                    Some(there) => there.key,
                    None => self.free_key()?,
                },
                key @ 1..=MAX_KEY => key,
                key => return Err(invalid(format!("the key {key} is larger than {MAX_KEY}"))),
            },
            concentrator_uuid: uuid("concentrator_uuid", &entry.concentrator_uuid)?,
            concentrator_ip,
            addresses: BTreeMap::new(),
        };
        // Nodes reach the subnet through the tunnel, and the tunnel reaches the concentrator
        // through that network. If they overlapped, one route would hide the other.
        if record.subnet.contains(&concentrator_ip.network())
            || concentrator_ip.contains(&record.subnet.network())
        {
            let (subnet, net) = (record.subnet, concentrator_ip.trunc());
            return Err(invalid(format!(
                "subnet {subnet} overlaps the concentrator's network {net}"
            )));
        }
        let tenants = &self.table.tenants;
        if let Some(there) = tenants.get(name) {
            // A controller that has not received the answer repeats the request.
            let is_same = Record {
                addresses: BTreeMap::new(),
                ..there.clone()
            } == record;
            let taken = || (Refusal::Taken, format!("there is a tenant {name} already"));
            return is_same.then_some(false).ok_or_else(taken);
        }
        if tenants.len() >= MAX_TENANTS {
            let why = format!("there are {MAX_TENANTS} tenants, the most that there may be");
            return Err((Refusal::AtLimit, why));
        }
        let taken = tenants.iter().find_map(|(other, there)| {
            let what = match () {
                // Subnets are not compared, because the keys separate tenants with the same one.
                () if there.key == record.key => format!("key {}", record.key),
                () if there.concentrator_ip.addr() == concentrator_ip.addr() => {
                    format!("address {}", concentrator_ip.addr())
                }
                () if there.concentrator_uuid == record.concentrator_uuid => "concentrator".to_owned(),
                () if there.tenant_uuid == record.tenant_uuid => "UUID".to_owned(),
                () => return None,
            };
            Some(format!("tenant {other} has this {what}"))
        });
        match taken {
            Some(why) => Err((Refusal::Taken, why)),
            None => {
                self.check_room(name.len() + TENANT_LEN)?;
                Ok(self.table.tenants.insert(name.to_owned(), record).is_none())
            }
        }
    }

    /// Checks that the file has room for this number of bytes.
    fn check_room(&self, bytes: usize) -> Result<(), TenantRefused> {
        let len = |(name, record): (&String, &Record)| {
            name.len() + TENANT_LEN + ADDRESS_LEN * record.addresses.len()
        };
        let all: usize = self.table.tenants.iter().map(len).sum();
        let why = || "the table of tenants would be longer than 1 MiB".to_owned();
        let has_room = all + bytes <= MAX_LEN;
        has_room.then_some(()).ok_or_else(|| (Refusal::AtLimit, why()))
    }

    fn free_key(&self) -> Result<u32, TenantRefused> {
        let keys: BTreeSet<_> = self.table.tenants.values().map(|record| record.key).collect();
        let free = (1..=MAX_KEY).find(|key| !keys.contains(key));
        free.ok_or_else(|| (Refusal::AtLimit, "there is no free key".to_owned()))
    }

    fn lease(&mut self, asked: &Tenant) -> Result<bool, TenantRefused> {
        let invalid = |why: String| (Refusal::InvalidData, why);
        let instance = &asked.instance_uuid;
        let instance = instance
            .uuid()
            .ok_or_else(|| invalid(format!("{instance:?} is no instance")))?;
        let (wanted, subnet) = (asked.ip.as_str(), self.find(&asked.name)?.subnet);
        let is_ordinary = |ip: &Ipv4Addr| {
            subnet.contains(ip) && ![subnet.network(), subnet.broadcast(), gateway(subnet)].contains(ip)
        };
        // An instance has one address, so a repeated request must not lease a second one.
        if let Some((tenant, ip)) = self.instances.get(&instance) {
            let is_it = *tenant == asked.name && (wanted.is_empty() || wanted == ip.to_string());
            let why = || format!("instance {instance} has {ip} of tenant {tenant}");
            return is_it.then_some(false).ok_or_else(|| (Refusal::Taken, why()));
        }
        self.check_room(ADDRESS_LEN)?;
        let Some(record) = self.table.tenants.get_mut(&asked.name) else {
            return Ok(false);
        };
        let ip = match wanted.parse::<Ipv4Addr>() {
            // The network, broadcast and gateway addresses are never an instance's.
            Ok(ip) if is_ordinary(&ip) => match record.addresses.get(&ip) {
                Some(other) => return Err((Refusal::Taken, format!("instance {other} has {ip}"))),
                None => ip,
            },
            _ if wanted.is_empty() => {
                let mut free = subnet.hosts().filter(is_ordinary);
                let free = free.find(|ip| !record.addresses.contains_key(ip));
                free.ok_or_else(|| (Refusal::AtLimit, format!("no address of {subnet} is free")))?
            }
            _ => {
                let why = format!("{wanted:?} is no address of an instance in {subnet}");
                return Err(invalid(why));
            }
        };
        record.addresses.insert(ip, instance);
        self.instances.insert(instance, (asked.name.clone(), ip));
        // It is not free any more, whatever becomes of the write.
        self.unwritten.handle_leased(instance);
        Ok(true)
    }

    fn release_of(&mut self, asked: &Tenant) -> Result<bool, TenantRefused> {
        self.find(&asked.name)?;
        let instance = asked.instance_uuid.uuid();
        let instance = instance.filter(|instance| self.is_of(&asked.name, *instance));
        Ok(instance.is_some_and(|instance| self.release(instance)))
    }

    /// True if an instance has an address of this tenant. A Release must not free one of another tenant.
    fn is_of(&self, tenant: &str, instance: Uuid) -> bool {
        let lease = self.instances.get(&instance);
        lease.is_some_and(|(of, _)| of == tenant)
    }

    /// True if a Release frees the address of an instance, unless that is in use.
    pub(super) fn may_release(&self, asked: &Tenant, instance: Uuid) -> bool {
        self.is_of(&asked.name, instance) && self.check(true).is_ok()
    }

    /// Checks that the table can be read, and if `changes` that a change of it can be written.
    fn check(&self, changes: bool) -> Result<(), TenantRefused> {
        match self.fault() {
            Some(why) => Err((Refusal::NotSaved, why.to_owned())),
            // The disk may hang, and a controller may send any number of changes meanwhile.
            None if changes && !self.unwritten.has_room(0) => {
                Err((Refusal::AtLimit, "too many changes wait for the disk".to_owned()))
            }
            None => Ok(()),
        }
    }

    /// Frees the address of an instance; true if it had one.
    fn release(&mut self, instance: Uuid) -> bool {
        let Some((tenant, ip)) = self.instances.remove(&instance) else {
            return false;
        };
        if let Some(record) = self.table.tenants.get_mut(&tenant) {
            record.addresses.remove(&ip);
        }
        self.of_unknown_node.remove(&instance);
        self.released.push(instance);
        true
    }

    /// A node has reported that it has an instance, or that it has ended there.
    pub(super) fn handle_known(&mut self, instance: Uuid) {
        self.of_unknown_node.remove(&instance);
    }

    /// True if an earlier scheduler has leased the address of an instance, and this one has not known its node
    /// since.
    pub(super) fn is_of_unknown_node(&self, instance: Uuid) -> bool {
        self.of_unknown_node.contains(&instance)
    }

    /// True if an instance has an address in a tenant's network.
    pub(super) fn has_address(&self, instance: Uuid) -> bool {
        self.instances.contains_key(&instance)
    }

    /// The number of addresses whose instances are not claimed.
    pub(super) fn unclaimed(&self, is_claimed: impl Fn(Uuid) -> bool) -> usize {
        self.instances
            .keys()
            .filter(|instance| !is_claimed(**instance))
            .count()
    }

    /// The tunnel of a node in the network in which an instance has an address.
    pub(super) fn tunnel_of(&self, instance: Uuid, node: Uuid) -> Option<TenantRemoved> {
        let (tenant, _) = self.instances.get(&instance)?;
        let record = self.table.tenants.get(tenant)?;
        Some(TenantRemoved {
            agent_uuid: node.into(),
            tenant_uuid: record.tenant_uuid.into(),
            tenant_subnet: record.subnet.to_string(),
            concentrator_uuid: record.concentrator_uuid.into(),
            concentrator_ip: record.concentrator_ip.addr().to_string(),
            subnet_key: record.key,
            ..TenantRemoved::default()
        })
    }

    /// The subnet of a concentrator, and the addresses there, each with its instance; `None` if no tenant has this
    /// concentrator.
    pub(super) fn addresses_of(&self, cnci: Uuid) -> Option<(Ipv4Net, &BTreeMap<Ipv4Addr, Uuid>)> {
        let mut tenants = self.table.tenants.values();
        let of = tenants.find(|record| record.concentrator_uuid == cnci);
        of.map(|record| (record.subnet, &record.addresses))
    }

    /// Takes the instances that have lost their addresses since the last call.
    pub(super) fn take_released(&mut self) -> Vec<Uuid> {
        std::mem::take(&mut self.released)
    }

    /// True if a public address leads to an address of a tenant that its instance does not have. False if the
    /// engine's table, which cannot be read, may have that.
    pub(super) fn is_outdated(&self, public: &PublicIpAssigned) -> bool {
        let mut tenants = self.table.tenants.iter();
        let cnci = public.concentrator_uuid.uuid();
        let of = tenants.find(|(_, record)| cnci == Some(record.concentrator_uuid));
        let instance = public.instance_uuid.uuid();
        let lease = instance.and_then(|instance| self.instances.get(&instance));
        let is_its = |name: &String| {
            lease.is_some_and(|(tenant, ip)| tenant == name && public.private_ip.parse() == Ok(*ip))
        };
        self.fault().is_none() && of.is_some_and(|(name, _)| !is_its(name))
    }

    /// Lets something wait until the table is written.
    fn wait(&mut self, from: &SessionInfo, due: Due, now: Instant) {
        self.unwritten.wait(from, due, now);
        self.write();
    }

    /// Hands the table over to the thread if it has changed and no write is in progress.
    fn write(&mut self) {
        if self.fault().is_none() {
            self.unwritten.write(&self.table);
        }
    }

    /// Adds a lease to a START that names a tenant by its name or UUID, and no network. If it waits for the
    /// disk, [`proceed`](Self::proceed) returns it then. `is_announced` is true
    /// for the concentrators that run. A UUID of no tenant only marks the instance.
    ///
    /// # Errors
    /// The reason why its instance gets no address.
    pub(super) fn lease_for(
        &mut self,
        from: &SessionInfo,
        frame: &Frame,
        now: Instant,
        is_announced: impl Fn(Uuid) -> bool,
    ) -> Result<Leased, (Reason, String)> {
        use Reason::{FullCloud, InvalidData, NoNetCn};

        let refused = |(refusal, why)| match refusal {
            Refusal::AtLimit => (FullCloud, why),
            _ => (InvalidData, why),
        };
        if let Some(why) = self.fault() {
            return Err((FullCloud, why.to_owned()));
        }
        let mut payload: StartPayload = frame.payload().map_err(|e| (InvalidData, e.to_string()))?;
        let start = &mut payload.start;
        let id = &start.tenant_uuid;
        let mut tenants = self.table.tenants.iter();
        let is_it = |(name, record): &(&String, &Record)| *id == name.as_str() || *id == record.tenant_uuid;
        let Some((name, record)) = tenants.find(is_it) else {
            let marked = id.uuid().map(|_| Leased::Start(frame.clone()));
            return marked.ok_or_else(|| (InvalidData, format!("there is no tenant {id:?}")));
        };
        let (ip, mac) = (start.networking.private_ip.parse(), &start.networking.vnic_mac);
        // Concentrators learn no MAC addresses.
        if !mac.is_empty() && !ip.is_ok_and(|ip| mac.eq_ignore_ascii_case(&mac_of(ip))) {
            let why = format!("vnic_mac {mac:?}: in a tenant's network it follows from the address");
            return Err((InvalidData, why));
        }
        if !is_announced(record.concentrator_uuid) {
            let why = format!("the concentrator of tenant {name} does not run");
            return Err((NoNetCn, why));
        }
        if !self.unwritten.has_room(2 * frame.encoded_len()) {
            return Err((FullCloud, "too many changes wait for the disk".to_owned()));
        }
        let asked = Tenant {
            name: name.clone(),
            instance_uuid: start.instance_uuid.into(),
            ip: start.networking.private_ip.clone(),
            ..Tenant::default()
        };
        let has_changed = self.lease(&asked).map_err(refused)?;
        self.unwritten.handle_change(has_changed);
        let instance = start.instance_uuid;
        if let Some((record, (_, ip))) = self
            .table
            .tenants
            .get(&asked.name)
            .zip(self.instances.get(&instance))
        {
            start.tenant_uuid = record.tenant_uuid.into();
            start.networking.concentrator_uuid = record.concentrator_uuid.into();
            start.networking.concentrator_ip = record.concentrator_ip.addr().to_string();
            start.networking.subnet = record.subnet.to_string();
            start.networking.subnet_key = record.key.to_string();
            start.networking.private_ip = ip.to_string();
        }
        let leased = with_trace_of(frame, identified(&payload, &CommandSubject::of(frame).command_id));
        if self.unwritten.is_behind() {
            let waiting = WaitingStart {
                arrived: with_trace_of(frame, detached(frame)),
                leased,
                instance,
                lease: self.instances.get(&instance).cloned(),
                is_new: has_changed,
            };
            self.wait(from, Due::Start(waiting), now);
            return Ok(Leased::Waits(instance));
        }
        Ok(Leased::Start(leased))
    }

    /// Handles a Tenant of a controller, unless `in_use` says why the address of its instance is in
    /// use. `place` adds the node of an instance to its address. Returns an instance whose freed address it
    /// has again.
    pub(super) fn handle_command(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        asked: &Tenant,
        in_use: Option<String>,
        place: impl Fn(&mut TenantAddress),
    ) -> Option<Uuid> {
        let instance = asked.instance_uuid.uuid();
        let freeing = instance.filter(|instance| self.unwritten.is_freeing(*instance));
        let changes = !matches!(asked.action, Action::List | Action::Show);
        // If it is in use, the instance would keep using the address, and another one could get it as well.
        let not_in_use = in_use.map_or(Ok(()), |why| Err((Refusal::InUse, why)));
        let handled = self
            .check(changes)
            .and(not_in_use)
            .and_then(|()| self.change(asked));
        let (mut answer, has_changed) = match handled {
            Ok(handled) => handled,
            Err(why) => {
                send(out, from, &refused(asked, why));
                return None;
            }
        };
        let addresses = answer.entries.iter_mut().flat_map(|entry| &mut entry.addresses);
        addresses.for_each(place);
        if has_changed {
            limited!(info, out, from.uuid(), "tenant";
                "{from}: tenant {}: {}", ssntp_transport::excerpt(&asked.name), asked.action);
        }
        self.unwritten.handle_change(has_changed);
        // A repeated request changes nothing, but its first change may not be on the disk yet.
        if changes && self.unwritten.is_behind() {
            self.wait(from, Due::Answer(answer), out.now());
        } else {
            send(out, from, &answer);
        }
        freeing.filter(|instance| !self.unwritten.is_freeing(*instance))
    }

    /// Frees the address of an instance that no node has. `is_shared` is true if other schedulers may
    /// free it, too. One that the engine's unreadable table may have is freed once that can be read.
    pub(super) fn free(&mut self, instance: Uuid, is_shared: bool) {
        let is_later = self.fault().is_some() && self.unwritten.freed() < MAX_LEN / ADDRESS_LEN;
        if self.release(instance) || is_later {
            self.unwritten.handle_freed(instance, is_shared);
            self.write();
        }
    }

    /// Ends a term: answers the changes that wait for the next write, because the table of the next term may not have
    /// them. Returns the STARTs, as [`take_starts`](Self::take_starts) does.
    pub(super) fn end_term(&mut self, out: &mut Out<'_, '_>) -> Vec<(SessionInfo, Frame)> {
        let starts = self.take_starts();
        for Pending { from, due, .. } in self.unwritten.take_unbegun() {
            if let Due::Answer(answer) = due {
                let why = "it may be lost, this scheduler no longer leads";
                send(out, &from, &not_saved(answer, why));
            }
        }
        starts
    }

    /// Takes the STARTs that wait for the disk, as they arrived, and frees the addresses that were leased for
    /// them: the write may fail, and the table of the next leader may not have them.
    pub(super) fn take_starts(&mut self) -> Vec<(SessionInfo, Frame)> {
        let mut starts = Vec::new();
        for Pending { from, due, .. } in self.unwritten.take_starts() {
            if let Due::Start(start) = due {
                self.give_back(&start);
                starts.push((from, start.arrived));
            }
        }
        starts
    }

    /// Frees the address that was leased for a START, if it was. The next write frees it in the file.
    fn give_back(&mut self, start: &WaitingStart) {
        if start.is_new && self.release(start.instance) {
            self.unwritten.handle_freed(start.instance, true);
        }
    }

    /// Answers the changes that have been written or have waited too long, and returns what else follows.
    pub(super) fn proceed(&mut self, out: &mut Out<'_, '_>) -> Proceeded {
        let Some((done, result)) = self.unwritten.take_finished(out.now()) else {
            return Proceeded::default();
        };
        if result.is_ok() {
            self.write();
        }
        let mut proceeded = Proceeded::default();
        for Pending { from: of, due, .. } in done {
            match (due, &result) {
                // Its instance may have been on a node, and have left it, in the meantime.
                (Due::Start(start), Ok(_)) if self.instances.get(&start.instance) != start.lease.as_ref() => {
                    let why = "the address of the instance was freed meanwhile".to_owned();
                    proceeded.starts.push((of, start.leased, Err(why)));
                }
                (Due::Start(start), Ok(_)) => proceeded.starts.push((of, start.leased, Ok(()))),
                (Due::Start(start), Err(why)) => {
                    self.give_back(&start);
                    proceeded.starts.push((of, start.leased, Err(why.clone())));
                }
                (Due::Answer(answer), Ok(_)) => send(out, &of, &answer),
                (Due::Answer(answer), Err(why)) => send(out, &of, &not_saved(answer, why)),
            }
        }
        match result {
            Ok(freed) => proceeded.freed = freed,
            Err(e) => limited!(warn, out, out.cx.uuid(), "tenants"; "a change of the tenants: {e}"),
        }
        proceeded
    }
}

impl Drop for TenantTable {
    /// Hands over the changes that have not been written yet, before the thread ends.
    fn drop(&mut self) {
        if self.fault().is_none() {
            self.unwritten.write_last(&self.table);
        }
    }
}

/// The frame of a START with its `command_id`, which failures repeat.
fn identified(payload: &StartPayload, command_id: &str) -> Frame {
    let frame = Frame::of(payload);
    let bytes = frame.payload_bytes();
    match bytes.strip_prefix(b"start:\n") {
        Some(keys) if !command_id.is_empty() => {
            // Every JSON string is also a YAML string.
            let id = format!("start:\n  command_id: {}\n", serde_json::Value::from(command_id));
            Frame::with_payload(frame.kind(), [id.as_bytes(), keys].concat())
        }
        _ => frame,
    }
}

fn refused(asked: &Tenant, (reason, detail): TenantRefused) -> Answer {
    Answer {
        id: asked.id.clone(),
        reason,
        detail,
        ..Answer::default()
    }
}

fn not_saved(answer: Answer, why: &str) -> Answer {
    Answer {
        reason: Refusal::NotSaved,
        detail: why.to_owned(),
        ..answer
    }
}

fn send(out: &mut Out<'_, '_>, to: &SessionInfo, answer: &Answer) {
    out.send(to.uuid(), &Frame::of(answer));
}

#[cfg(test)]
mod tests;
