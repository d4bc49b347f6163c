//! The entities of a view.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use uuid::Uuid;

use crate::phase::Phase;
use ssntp::payload::{Id, InstanceState, InstanceStats, NodeStatus, Stats};

/// A node, as it was last seen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Node {
    /// Its UUID.
    pub uuid: Uuid,
    /// Whether it is a compute node.
    pub compute: bool,
    /// Whether it is a network node.
    pub network: bool,
    /// Whether it is connected to the scheduler. If it is not, all other fields are as they
    /// were.
    pub connected: bool,
    /// Since when it is connected, or is not.
    pub since: SystemTime,
    /// Its status in its last STATS; empty before the first.
    pub status: NodeStatus,
    /// When its last STATS came; none before the first.
    pub seen: Option<SystemTime>,
    /// Its last STATS, without the instances.
    pub stats: Stats,
    /// The UUIDs of its instances.
    pub instances: BTreeSet<Uuid>,
    /// Whether it has sent STATS since it connected, or the session began.
    pub(super) heard: bool,
}

impl Node {
    /// Whether the view of it is up to date: it is connected, and reports.
    pub fn is_current(&self) -> bool {
        self.connected && self.status != NodeStatus::Stale
    }

    /// Whether it has sent STATS since it connected, or the session began: if not, its instances
    /// are those of an earlier time.
    pub fn has_reported(&self) -> bool {
        self.heard
    }

    pub(super) fn new(uuid: Uuid, now: SystemTime) -> Self {
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
            heard: false,
        }
    }
}

/// An instance, as its node has last reported it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Instance {
    /// Its UUID.
    pub uuid: Uuid,
    /// The node that has it.
    pub node: Uuid,
    /// Its state, by the last STATS or by InstanceStopped since.
    pub state: InstanceState,
    /// Since when this controller has seen this state.
    pub since: SystemTime,
    /// Its entry in the last STATS.
    pub stats: InstanceStats,
}

impl Instance {
    /// Whether it runs, is about to run, or is about to stop.
    pub fn is_alive(&self) -> bool {
        Phase::of(&self.state) != Phase::Ended
    }
}

/// A concentrator.
#[derive(Clone, Debug)]
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
    /// When it announced itself last; none if only its public addresses are known.
    pub since: Option<SystemTime>,
    /// The public addresses that it has assigned.
    pub public_ips: BTreeMap<String, PublicIp>,
}

impl Cnci {
    pub(super) fn new(uuid: Uuid) -> Self {
        Self {
            uuid,
            tenant: Id::default(),
            ip: String::new(),
            mac: String::new(),
            since: None,
            public_ips: BTreeMap::new(),
        }
    }
}

/// The instance that a public address is assigned to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublicIp {
    /// The instance.
    pub instance: Id,
    /// Its address inside its subnet.
    pub private_ip: String,
}
