//! The reports of the node on itself: status, capacity, STATS, tenants.
//!
//! Capacity comes from the machine, or from the agent's settings:
//!
//! | | by the machine | by `--mem`, `--disk` |
//! |---|---|---|
//! | total | the system's figure | the amount of the flag |
//! | available | the free amount, less the promised amount that instances do not use yet | the amount of the flag, less the promised amount |
//!
//! The memory of an instance is promised while it runs. Its disk (the volumes that are `local`) is
//! promised until it is deleted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{
    Action, Control, Ending, Instance, Job, Life, Measurable, Mode, Next, PATIENCE, SETTLE, SETTLE_EACH,
    Usage,
};
use ssntp::Role;
use ssntp::payload::yaml::MAX_DOCUMENT_LEN;
use ssntp::payload::{Id, timestamp};
use ssntp::proto::{Frame, Status};
use ssntp_cluster::Needs;
use ssntp_cluster::machine::{self, Facts};
use ssntp_cluster::subnet::{self, removed};
use ssntp_payload::{
    InstanceState, InstanceStats, Maintenance, NodeStatus, Ready, Stats, TenantAdded, subnet_key,
};

/// The number of instances being deleted after their retention that do not count for the limit of
/// instances.
const RETIRING: usize = 256;
/// A machine with less free memory or disk than this, in MB, is full.
const RESERVE_MB: i64 = 64;
/// READY is sent again if the available memory or disk has changed by more than this part of
/// the total.
const NOTABLE: i64 = 20;
/// The maximum number of tenants whose removal is reported twice.
const MAX_LEFT: usize = 4096;

impl Control {
    /// The facts of the node, with the memory and disk that it has for instances, in MB. -1 stands
    /// for an unknown value.
    pub(super) fn ready(&self) -> Ready {
        let (mut mem, mut mem_unused, mut disk, mut disk_unused) = (0i64, 0i64, 0i64, 0i64);
        for instance in self.instances.values() {
            let needs = needs(instance);
            // An unknown usage is -1, and counts as 0.
            let unused = |promised: i64, used: i64| promised.saturating_sub(used.max(0)).max(0);
            if instance.is_running() {
                mem = mem.saturating_add(needs.mem_mb);
                mem_unused = mem_unused.saturating_add(unused(needs.mem_mb, instance.usage.memory_mb));
            }
            // An ended instance keeps its disk until it is deleted.
            disk = disk.saturating_add(needs.disk_mb);
            disk_unused = disk_unused.saturating_add(unused(needs.disk_mb, instance.usage.disk_mb));
        }
        let facts = &self.facts;
        let (mem_total_mb, mem_available_mb) = match self.settings.mem_mb {
            Some(total) => (total, (total.saturating_sub(mem)).max(0)),
            None => (facts.mem_total_mb, less(facts.mem_available_mb, mem_unused)),
        };
        let (disk_total_mb, disk_available_mb) = match self.settings.disk_mb {
            Some(total) => (total, (total.saturating_sub(disk)).max(0)),
            None => (facts.disk_total_mb, less(facts.disk_available_mb, disk_unused)),
        };
        Ready {
            node_uuid: self.settings.node.into(),
            mem_total_mb,
            mem_available_mb,
            disk_total_mb,
            disk_available_mb,
            ..facts.clone()
        }
    }

    /// True if the node has room for an instance.
    pub(super) fn has_room(&self, needs: &Needs, for_restart: bool) -> bool {
        let ready = self.ready();
        // An unknown value is -1, and is no reason to refuse an instance.
        let fits = |needed: i64, available: i64| needed <= 0 || available < 0 || needed <= available;
        let mem = !self.launcher.mem_limit || fits(needs.mem_mb, ready.mem_available_mb);
        // A stopped instance has its disk already, and counts for the limit of instances already.
        let disk = for_restart || !self.launcher.disk_limit || fits(needs.disk_mb, ready.disk_available_mb);
        let place = for_restart || self.places_taken() < self.settings.max_instances;
        mem && disk && place && (for_restart || !self.is_full())
    }

    /// The number of instances that count for the limit. Retained instances do not count, because
    /// they have a limit of their own. Instances that are being deleted after their retention count
    /// only beyond [`RETIRING`], which a slow disk can cause.
    fn places_taken(&self) -> usize {
        let (mut counted, mut retiring) = (0, 0);
        for instance in self.instances.values().filter(|i| i.kept_until().is_none()) {
            match instance.is_retiring() {
                true => retiring += 1,
                false => counted += 1,
            }
        }
        counted + usize::saturating_sub(retiring, RETIRING)
    }

    pub(super) fn is_full(&self) -> bool {
        let ready = self.ready();
        // With --mem or --disk, the owner has chosen the amount for instances, so all of it may be
        // used.
        let reserve = |flag: Option<i64>| if flag.is_some() { 1 } else { RESERVE_MB };
        // The range excludes -1, so an unknown value does not make a node full.
        let low = |available: i64, flag| (0..reserve(flag)).contains(&available);
        self.places_taken() >= self.settings.max_instances
            || (self.launcher.mem_limit && low(ready.mem_available_mb, self.settings.mem_mb))
            || (self.launcher.disk_limit && low(ready.disk_available_mb, self.settings.disk_mb))
    }

    pub(super) fn status(&self) -> NodeStatus {
        if self.offline {
            NodeStatus::Offline
        } else if self.mode != Mode::Normal {
            // A node that is being evacuated takes no START either.
            NodeStatus::Maintenance
        } else if self.is_full() {
            NodeStatus::Full
        } else {
            NodeStatus::Ready
        }
    }

    /// False during an evacuation, in which the node sends no status: MAINTENANCE follows at the
    /// end.
    pub(super) fn has_status(&self) -> bool {
        self.mode != Mode::Evacuating || self.offline
    }

    fn status_frame(&self) -> Frame {
        match self.status() {
            NodeStatus::Offline => Frame::new(Status::OFFLINE),
            NodeStatus::Full => Frame::new(Status::FULL),
            NodeStatus::Maintenance => Frame::of(&Maintenance {
                ready: Some(self.ready()),
            }),
            _ => Frame::of(&self.ready()),
        }
    }

    /// Sends the status of the node if it differs from the last status, or `in_any_case`.
    pub(super) fn announce(&mut self, in_any_case: bool) {
        if !self.connected || !self.has_status() {
            return;
        }
        let frame = self.status_frame();
        if in_any_case || self.announced.as_ref() != Some(&frame) {
            self.announced = Some(frame.clone());
            self.actions.push(Action::Send(frame));
        }
    }

    /// Completes an evacuation and sends MAINTENANCE once the last instance has stopped. Hung
    /// instances do not count, because they may never end.
    pub(super) fn check_evacuated(&mut self) {
        let busy = |instance: &Instance| match instance.life {
            Life::Terminating(ending) => ending != Ending::Hung,
            _ => instance.is_running() || matches!(instance.life, Life::Removing(_)),
        };
        if self.mode == Mode::Evacuating && !self.instances.values().any(busy) {
            self.mode = Mode::Maintenance;
            self.announce(true);
            self.reach_next_state();
            self.stats_soon();
        }
    }

    /// Schedules STATS that report a change. They have the figures of the last measurement, because
    /// the report must not wait for slow disks.
    pub(super) fn stats_soon(&mut self) {
        let instances = u32::try_from(self.instances.len()).unwrap_or(u32::MAX);
        let due = self.now + SETTLE_EACH.saturating_mul(instances).min(SETTLE);
        self.report_due = Some(self.report_due.map_or(due, |before| before.min(due)));
    }

    pub(super) fn stats_tick(&mut self) {
        if self.report_due.is_some_and(|due| self.now >= due) {
            self.send_stats();
        }
        match self.measuring_since {
            Some(since) if self.now >= since + self.patience() => {
                // A file system may not answer, so STATS are sent with the last figures.
                self.measuring_since = Some(self.now);
                self.send_stats();
            }
            Some(_) => {}
            None if self.now >= self.stats_due => {
                // Counted from now, so that a long pause of the machine causes one measurement only.
                self.stats_due = self.now + self.settings.interval;
                self.measuring_since = Some(self.now);
                let mut by_driver = BTreeMap::new();
                for instance in self.instances.values_mut() {
                    let Some(driver) = &instance.driver else { continue };
                    let is_running = instance.is_running();
                    // The figures of an ended instance do not change any more.
                    if std::mem::replace(&mut instance.is_measured, !is_running) && !is_running {
                        continue;
                    }
                    let needs = needs(instance);
                    let subject = Measurable {
                        place: instance.place.clone(),
                        handle: instance.record.handle(),
                        vcpus: needs.vcpus,
                        mem_mb: needs.mem_mb,
                    };
                    let of_driver = by_driver.entry(driver.name());
                    let (_, subjects) = of_driver.or_insert_with(|| (Arc::clone(driver), Vec::new()));
                    subjects.push(subject);
                }
                let network = self.settings.network.clone();
                self.job(Job::Measure(network, by_driver.into_values().collect()));
            }
            None => {}
        }
    }

    /// With a short interval the node would be stale before [`PATIENCE`] is over.
    pub(super) fn patience(&self) -> Duration {
        PATIENCE.min(self.settings.interval)
    }

    pub(super) fn measured(&mut self, facts: Facts, usages: Vec<(Uuid, Usage)>) {
        self.measuring_since = None;
        self.facts = facts;
        self.save_again();
        for (id, usage) in usages {
            if let Some(instance) = self.instances.get_mut(&id) {
                instance.usage = usage;
            }
        }
        // The status comes before the STATS, as at the beginning of a session.
        if self.status_changed() {
            self.announce(true);
        }
        self.send_stats();
    }

    /// True if the status has changed, or a figure of it by more than [`NOTABLE`].
    fn status_changed(&self) -> bool {
        let Some(before) = &self.announced else {
            return true;
        };
        if before.kind() != self.status_frame().kind() {
            return true;
        }
        let (Ok(before), now) = (before.payload::<Ready>(), self.ready()) else {
            // FULL and OFFLINE have no figures to compare.
            return false;
        };
        let moved = |a: i64, b: i64, total: i64| (a - b).abs() > (total / NOTABLE).max(1);
        moved(before.mem_available_mb, now.mem_available_mb, now.mem_total_mb)
            || moved(before.disk_available_mb, now.disk_available_mb, now.disk_total_mb)
    }

    pub(super) fn send_stats(&mut self) {
        if self.connected {
            self.report_due = None;
            let frame = readable(self.stats());
            self.actions.push(Action::Send(frame));
            for instance in self.instances.values_mut() {
                instance.restart_unreported = false;
            }
        }
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            instances: self
                .instances
                .iter()
                .map(|(id, i)| instance_stats(*id, i))
                .collect(),
            interval: self.interval(),
            tunnels: self.tunnels.clone(),
            ..machine::stats(&self.ready(), self.settings.node, self.status())
        }
    }

    /// The interval in whole seconds, at least one. It is rounded up, because the scheduler marks a
    /// node as stale that reports less often than announced.
    fn interval(&self) -> i64 {
        let interval = self.settings.interval;
        let seconds = interval.as_secs() + u64::from(interval.subsec_nanos() > 0);
        i64::try_from(seconds.max(1)).unwrap_or(i64::MAX)
    }

    /// Reports tenants that were added or removed to their concentrators. Only compute nodes have
    /// tunnels to concentrators.
    pub(super) fn sync_tenants(&mut self) {
        if !self.connected || !self.settings.role.contains(Role::AGENT) {
            return;
        }
        let mut present = BTreeMap::new();
        for instance in self.instances.values().filter(|i| is_up(i)) {
            if let Some(tenant) = self.tenant_of(instance) {
                present.insert(key(&tenant), tenant);
            }
        }
        let repeats = std::mem::take(&mut self.repeats_tenants);
        // This includes tenants that were reported in an earlier session, so that their removal is
        // reported, too.
        let mut before = std::mem::take(&mut self.tenants);
        let mut again = BTreeMap::new();
        if repeats {
            // The removal of the last instance may not have been reported: its report was lost with the
            // session, or no agent ran when it ended.
            again.append(&mut self.left_tenants);
            let ended = self.instances.values().filter(|i| !is_up(i));
            again.extend(ended.filter_map(|i| self.tenant_of(i)).map(|it| (key(&it), it)));
        }
        for (key, tenant) in &present {
            if repeats || !before.contains_key(key) {
                self.report(Frame::of(tenant));
            }
        }
        before.retain(|key, _| !present.contains_key(key));
        again.retain(|key, _| !present.contains_key(key) && !before.contains_key(key));
        for tenant in before.values().chain(again.values()) {
            self.report(Frame::of(&removed(tenant)));
        }
        self.left_tenants.extend(before);
        while self.left_tenants.len() > MAX_LEFT {
            self.left_tenants.pop_first();
        }
        self.tenants = present;
    }

    fn tenant_of(&self, instance: &Instance) -> Option<TenantAdded> {
        let start = &instance.start.as_ref()?.start;
        let networking = &start.networking;
        if networking.concentrator_uuid.is_empty() {
            return None;
        }
        // Without a subnet the instance has no tunnel.
        let subnet = subnet::network(&networking.subnet).ok()?;
        let own_key = match subnet.network() {
            IpAddr::V4(network) => subnet_key(network),
            IpAddr::V6(_) => 0,
        };
        Some(TenantAdded {
            agent_uuid: self.settings.node.into(),
            agent_ip: self.tunnel_ip(),
            tenant_uuid: start.tenant_uuid.clone(),
            tenant_subnet: subnet.to_string(),
            concentrator_uuid: networking.concentrator_uuid.clone(),
            concentrator_ip: networking.concentrator_ip.clone(),
            subnet_key: networking.subnet_key.parse().unwrap_or(own_key),
        })
    }

    /// The address at which the tunnels of this node end. Without tenants' networks: the first
    /// address in the configured compute networks, otherwise the first address of the node.
    fn tunnel_ip(&self) -> String {
        if let Some(network) = &self.settings.network {
            return network.address().to_string();
        }
        let nets = self.launcher.compute_net.iter();
        let nets: Vec<_> = nets.filter_map(|net| subnet::network(net).ok()).collect();
        let ips = || self.facts.networks.iter().map(|network| &network.ip);
        let configured = |ip: &&String| {
            let ip = ip.parse::<IpAddr>();
            ip.is_ok_and(|ip| nets.iter().any(|net| net.contains(&ip)))
        };
        ips()
            .find(configured)
            .or_else(|| ips().next())
            .cloned()
            .unwrap_or_default()
    }
}

/// The concentrator, the tenant and the subnet of a tunnel.
pub(super) type TenantKey = (Id, Id, String);

fn key(tenant: &TenantAdded) -> TenantKey {
    (
        tenant.concentrator_uuid.clone(),
        tenant.tenant_uuid.clone(),
        tenant.tenant_subnet.clone(),
    )
}

fn is_up(instance: &Instance) -> bool {
    matches!(instance.life, Life::Active | Life::Terminating(_))
}

fn needs(instance: &Instance) -> Needs {
    let start = instance.start.as_ref();
    // The requirements were checked when the START arrived, so the default never occurs.
    start
        .and_then(|start| Needs::of(&start.start).ok())
        .unwrap_or_default()
}

/// The available amount less the promised amount; an unknown value stays unknown.
fn less(available: i64, promised: i64) -> i64 {
    match available {
        ..0 => -1,
        _ => available.saturating_sub(promised).max(0),
    }
}

/// STATS in a frame that receivers can decode. If many instances make it too long, labels and
/// details are left out first, and then names and times.
fn readable(mut stats: Stats) -> Frame {
    let shortened: [fn(&mut InstanceStats); 2] = [
        |instance| {
            instance.labels.clear();
            instance.detail.clear();
        },
        |instance| {
            instance.name.clear();
            instance.started.clear();
            instance.ended.clear();
        },
    ];
    for shorten in shortened {
        let frame = Frame::of(&stats);
        if frame.payload_bytes().len() <= MAX_DOCUMENT_LEN {
            return frame;
        }
        stats.instances.iter_mut().for_each(shorten);
    }
    Frame::of(&stats)
}

fn instance_stats(id: Uuid, instance: &Instance) -> InstanceStats {
    let record = &instance.record;
    let start = instance.start.as_ref().map(|start| &start.start);
    // During a launch the record still describes the run before.
    let run = !matches!(instance.life, Life::Launching(_));
    let time = |millis: u64| timestamp::format(if run { millis.saturating_mul(1_000_000) } else { 0 });
    let is_over = !instance.is_running();
    let state = match instance.life {
        Life::Launching(_) => InstanceState::Pending,
        Life::Active => InstanceState::Active,
        Life::Terminating(Ending::Hung) => InstanceState::Hung,
        Life::Terminating(_) | Life::Removing(_) => InstanceState::Stopping,
        Life::Stopped(_) if instance.start.is_none() || instance.driver.is_none() => InstanceState::Missing,
        Life::Stopped(_) => InstanceState::Exited,
    };
    InstanceStats {
        instance_uuid: id.into(),
        state,
        restarts: instance.record.restarts.into(),
        restart_due: matches!(instance.life, Life::Stopped(Next::StartAgain(_))),
        memory_usage_mb: instance.usage.memory_mb,
        disk_usage_mb: instance.usage.disk_mb,
        cpu_usage: instance.usage.cpu_percent,
        volumes: instance.volumes.iter().map(|volume| Id::from(*volume)).collect(),
        name: start.map(|start| start.name.clone()).unwrap_or_default(),
        labels: start.map(|start| start.labels.clone()).unwrap_or_default(),
        started: time(record.started),
        ended: time(record.ended),
        exit_code: if is_over { record.exit_code.into() } else { -1 },
        exit_signal: if is_over { record.exit_signal.into() } else { 0 },
        out_of_memory: is_over && record.out_of_memory,
        detail: if run { record.detail.clone() } else { String::new() },
        ..InstanceStats::default()
    }
}
