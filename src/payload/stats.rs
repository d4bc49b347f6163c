//! STATS: what a node and its instances use (COMMAND 0x3).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::names::names;
use super::workload::is_default;
use super::{Id, payload};

/// The load of a node and of each of its instances, sent periodically.
///
/// The payload of STATS (COMMAND 0x3):
///
/// ```yaml
/// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
/// status: READY
/// mem_total_mb: 64000
/// mem_available_mb: 48211
/// disk_total_mb: 500000
/// disk_available_mb: 256000
/// load: 3
/// cpus_online: 16
/// hostname: rack1-n07
/// interval: 30
/// networks:
/// - ip: 10.0.0.7
///   mac: "52:54:00:12:34:56"
/// instances:
/// - instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
///   state: active
///   ssh_ip: 10.0.0.33
///   ssh_port: 33005
///   memory_usage_mb: 410
///   disk_usage_mb: 900
///   cpu_usage: 12
///   volumes:
///   - 7c9e6679-7425-40de-944b-e07fc1f90ae7
///   name: web-1
///   labels:
///     tier: front
///   started: 2026-01-21T12:53:20.123Z
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// The node; required.
    pub node_uuid: Id,
    /// What the node takes; default: empty.
    pub status: NodeStatus,
    /// Memory in MB; default: -1, unknown.
    pub mem_total_mb: i64,
    /// Memory that is free, in MB; default: -1, unknown.
    pub mem_available_mb: i64,
    /// Disk in MB; default: -1, unknown.
    pub disk_total_mb: i64,
    /// Disk that is free, in MB; default: -1, unknown.
    pub disk_available_mb: i64,
    /// Load average over one minute, rounded; default: -1, unknown.
    pub load: i64,
    /// CPUs in use by the operating system; default: -1, unknown.
    pub cpus_online: i64,
    /// The node's name; default: empty.
    pub hostname: String,
    /// How often the node sends STATS, in seconds. A key of this project, which
    /// others ignore; default: 0, it does not say, and nothing is written.
    #[serde(skip_serializing_if = "is_default")]
    pub interval: i64,
    /// The node's addresses; default: none.
    pub networks: Vec<NodeNetwork>,
    /// The tunnels of tenants' networks. A key of this project, which others ignore; default:
    /// none, and then left out.
    #[serde(skip_serializing_if = "is_default")]
    pub tunnels: Vec<TunnelStats>,
    /// The node's instances; default: none.
    pub instances: Vec<InstanceStats>,
    /// Instances that the node lists although they belong to another node. Written by the
    /// scheduler, which takes them out of `instances`; default: none, and then left out.
    #[serde(skip_serializing_if = "is_default")]
    pub foreign: Vec<Id>,
}

payload!(Stats = Command::STATS, up to super::yaml::MAX_DOCUMENT_LEN, requires node_uuid);

impl Default for Stats {
    fn default() -> Self {
        Self {
            node_uuid: Id::default(),
            status: NodeStatus::default(),
            // 0 would be an answer: that nothing is left.
            mem_total_mb: -1,
            mem_available_mb: -1,
            disk_total_mb: -1,
            disk_available_mb: -1,
            load: -1,
            cpus_online: -1,
            hostname: String::new(),
            interval: 0,
            networks: Vec::new(),
            tunnels: Vec::new(),
            instances: Vec::new(),
            foreign: Vec::new(),
        }
    }
}

fn is_unknown(number: &i64) -> bool {
    *number == -1
}

/// One address of a node, in STATS and READY.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeNetwork {
    /// The IP address; default: empty.
    pub ip: String,
    /// The MAC address of its interface; default: empty.
    pub mac: String,
}

/// One tunnel of a tenant's network, in STATS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TunnelStats {
    /// Its key; default: 0.
    pub key: u32,
    /// Whether it can carry packets, as far as the node can tell; default: no.
    pub up: bool,
    /// Bytes that came from the concentrator; default: 0.
    pub rx_bytes: u64,
    /// Bytes that went to it; default: 0.
    pub tx_bytes: u64,
    /// Packets of instances that the filters of their ports dropped; default: 0.
    pub drops: u64,
}

/// One instance in STATS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceStats {
    /// The instance; default: empty.
    pub instance_uuid: Id,
    /// Its state; default: empty.
    pub state: InstanceState,
    /// How often its node has started it again by itself. A key of this project,
    /// which others ignore; default: 0, and then left out.
    #[serde(skip_serializing_if = "is_default")]
    pub restarts: i64,
    /// The address at which its SSH server is reached; default: empty.
    pub ssh_ip: String,
    /// The port there; default: 0, none.
    pub ssh_port: i64,
    /// Memory it uses, in MB; default: -1, unknown.
    pub memory_usage_mb: i64,
    /// Disk it uses, in MB; default: -1, unknown.
    pub disk_usage_mb: i64,
    /// CPU time it uses, in percent of all its CPUs together (0 to 100);
    /// default: -1, unknown.
    pub cpu_usage: i64,
    /// The volumes attached to it; default: none.
    pub volumes: Vec<Id>,
    /// Its name for people, as its START said. This key and all below are of this
    /// project: other implementations ignore them. Default: empty. Left out when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its labels for people, as its START said; default: none. Left out when
    /// empty.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// When its last run was started, as [`timestamp`](super::timestamp) writes it;
    /// default: empty, unknown. Left out when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub started: String,
    /// When that run ended; default: empty, it has not, or unknown. Left out when
    /// empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ended: String,
    /// Its exit code; if a signal ended it, 128 plus the signal's number;
    /// default: -1, it has not ended, or it is not known. Left out when -1.
    #[serde(skip_serializing_if = "is_unknown")]
    pub exit_code: i64,
    /// The number of the signal that ended it; default: 0, none. Left out when 0.
    #[serde(skip_serializing_if = "is_default")]
    pub exit_signal: i64,
    /// Whether a process of it was killed because its memory was used up; default:
    /// false. Left out when false.
    #[serde(skip_serializing_if = "is_default")]
    pub out_of_memory: bool,
    /// Details beyond the exit code: why its node ended it, or could not start
    /// it again. In one line of at most 200 characters; default: empty. Left out
    /// when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl Default for InstanceStats {
    fn default() -> Self {
        Self {
            instance_uuid: Id::default(),
            state: InstanceState::default(),
            restarts: 0,
            ssh_ip: String::new(),
            ssh_port: 0,
            memory_usage_mb: -1,
            disk_usage_mb: -1,
            cpu_usage: -1,
            volumes: Vec::new(),
            name: String::new(),
            labels: BTreeMap::new(),
            started: String::new(),
            ended: String::new(),
            exit_code: -1,
            exit_signal: 0,
            out_of_memory: false,
            detail: String::new(),
        }
    }
}

names! {
    /// What a node takes, as STATS tells it.
    NodeStatus {
        /// It takes commands.
        Ready = "READY";
        /// It has no capacity left.
        Full = "FULL";
        /// It is connected and takes no command.
        Offline = "OFFLINE";
        /// It is in maintenance, or about to be: it takes no START.
        Maintenance = "MAINTENANCE";
        /// It has sent no STATS for three intervals. The scheduler alone says
        /// that, in the last ones that came.
        Stale = "STALE";
    }
}

names! {
    /// What an instance is doing.
    InstanceState {
        /// It is being started.
        Pending = "pending";
        /// It runs. Older senders say `running`, which is read too.
        Active = "active" | "running";
        /// It has stopped and may be restarted.
        Exited = "exited";
        /// It is being stopped.
        Stopping = "stopping";
        /// It couldn't be stopped.
        ExitFailed = "exit_failed";
        /// It is paused.
        ExitPaused = "exit_paused";
        /// It was deleted.
        Deleted = "deleted";
        /// It doesn't answer any more.
        Hung = "hung";
        /// The node no longer finds it.
        Missing = "missing";
    }
}
