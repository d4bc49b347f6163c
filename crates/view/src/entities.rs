//! The entities of a view.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use uuid::Uuid;

use crate::ending::Ending;
use ssntp::payload::Id;
use ssntp_cluster::phase::Phase;
use ssntp_payload::{
    HealthState, InstanceEnd, InstanceState, InstanceStats, NodeStatus, PublicIpAssigned, Stats,
};

/// A node, as its last frames describe it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Node {
    /// Its UUID.
    pub uuid: Uuid,
    /// True if it is a compute node.
    pub compute: bool,
    /// True if it is a network node.
    pub network: bool,
    /// True if it is connected to the scheduler. If it is not, all other fields have their last
    /// values.
    pub connected: bool,
    /// The time at which `connected` changed last.
    pub since: SystemTime,
    /// Its status in its last STATS; empty before the first.
    pub status: NodeStatus,
    /// The arrival time of its last STATS; `None` before the first.
    pub seen: Option<SystemTime>,
    /// Its last STATS, without the instances.
    pub stats: Stats,
    /// The UUIDs of its instances.
    pub instances: BTreeSet<Uuid>,
    pub(crate) reported: bool,
}

impl Node {
    /// Its kind, in words; empty before NodeConnected.
    pub fn kind(&self) -> &'static str {
        match (self.compute, self.network) {
            (true, true) => "compute, network",
            (true, false) => "compute",
            (false, true) => "network",
            (false, false) => "",
        }
    }

    /// True if the view of it is up to date: it has sent STATS in this session, and still reports.
    pub fn is_current(&self) -> bool {
        self.reported && self.status != NodeStatus::Stale
    }

    /// True if it has sent STATS since it connected and since the session began. If not, its
    /// instances are those of an earlier time.
    pub fn has_reported(&self) -> bool {
        self.reported
    }

    /// Handles the end of its session: its last STATS are not its state in the next session.
    pub(crate) fn left(&mut self, now: SystemTime) {
        (self.connected, self.reported, self.since) = (false, false, now);
    }

    pub(crate) fn new(uuid: Uuid, now: SystemTime) -> Self {
        Self {
            uuid,
            compute: false,
            network: false,
            connected: false,
            since: now,
            status: NodeStatus::default(),
            seen: None,
            stats: Stats::default(),
            instances: BTreeSet::new(),
            reported: false,
        }
    }
}

/// An instance, as its node has reported it last.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Instance {
    /// Its UUID.
    pub uuid: Uuid,
    /// The node that has it.
    pub node: Uuid,
    /// Its state, according to the last STATS or a later InstanceStopped.
    pub state: InstanceState,
    /// The time at which this controller saw the state for the first time.
    pub since: SystemTime,
    /// Its entry in the last STATS.
    pub stats: InstanceStats,
}

impl Instance {
    /// True if it runs, is about to run, or is about to stop.
    pub fn is_alive(&self) -> bool {
        Phase::of(&self.state) != Phase::Ended
    }

    /// The end of its last run; `None` while it runs, and before its first run.
    pub fn ending(&self) -> Option<Ending> {
        let end = || InstanceEnd {
            exit_code: self.stats.exit_code,
            exit_signal: self.stats.exit_signal,
            out_of_memory: self.stats.out_of_memory,
            detail: self.stats.detail.to_string(),
            last_lines: self.stats.last_lines.to_string(),
        };
        (self.state == InstanceState::Exited).then(|| end().into())
    }

    /// Records the end that an event reports.
    pub(crate) fn ended(&mut self, end: &InstanceEnd, now: SystemTime) {
        if self.state != InstanceState::Exited {
            (self.state, self.since) = (InstanceState::Exited, now);
        }
        // The last STATS may be from before the node gave it up.
        self.stats.restart_due = false;
        self.stats.health = HealthState::Unset;
        (self.stats.health_since, self.stats.health_detail) = Default::default();
        if *end != InstanceEnd::default() {
            (self.stats.exit_code, self.stats.exit_signal) = (end.exit_code, end.exit_signal);
            self.stats.out_of_memory = end.out_of_memory;
            self.stats.detail = end.detail.as_str().into();
            self.stats.last_lines = end.last_lines.as_str().into();
        }
    }
}

/// A concentrator.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Cnci {
    /// The UUID of its instance, and of its agent.
    pub uuid: Uuid,
    /// The tenant that it serves; empty until it has announced itself.
    pub tenant: Id,
    /// Its address.
    pub ip: String,
    /// The MAC address of its interface.
    pub mac: String,
    /// The time at which it announced itself last; `None` if only its public addresses are known.
    pub since: Option<SystemTime>,
    /// The public addresses that it has assigned, each with the event that told it.
    pub public_ips: BTreeMap<String, PublicIpAssigned>,
}
