//! STATS: the resources that a node and its instances use (COMMAND 0x3).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::HealthState;
use crate::workload::is_default;
use ssntp::names;
use ssntp::payload::Id;
use ssntp::schema;

schema! {
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
    Stats = Command::STATS, up to ssntp::payload::yaml::MAX_DOCUMENT_LEN, requires node_uuid {
        /// The node; required.
        node_uuid: Id,
        /// The state of the node; default: empty.
        status: NodeStatus,
        // Unknown values are -1, because 0 would mean that no capacity is left.
        /// Memory in MB; default: -1, unknown.
        mem_total_mb: i64 = -1,
        /// Memory that is free, in MB; default: -1, unknown.
        mem_available_mb: i64 = -1,
        /// Disk in MB; default: -1, unknown.
        disk_total_mb: i64 = -1,
        /// Disk that is free, in MB; default: -1, unknown.
        disk_available_mb: i64 = -1,
        /// Load average over one minute, rounded; default: -1, unknown.
        load: i64 = -1,
        /// CPUs in use by the operating system; default: -1, unknown.
        cpus_online: i64 = -1,
        /// The node's name; default: empty.
        hostname: String,
        /// The labels that its owner has given it. A key of this project, which others ignore; default: none.
        /// Left out then.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        labels: BTreeMap<String, String>,
        /// The interval at which the node sends STATS, in seconds. A key of this project, which others
        /// ignore; default: 0, unknown. Left out then.
        #[serde(skip_serializing_if = "is_default")]
        interval: i64,
        /// The node's addresses; default: none.
        networks: Vec<NodeNetwork>,
        /// The tunnels of tenants' networks. A key of this project, which others ignore; default:
        /// none. Left out then.
        #[serde(skip_serializing_if = "is_default")]
        tunnels: Vec<TunnelStats>,
        /// The node's instances; default: none.
        instances: Vec<InstanceStats>,
        /// Instances that the node reported although they belong to another node. The scheduler moves
        /// them here from `instances`. Default: none. Left out then.
        #[serde(skip_serializing_if = "is_default")]
        foreign: Vec<Id>,
    }
}

fn is_unknown(number: &i64) -> bool {
    *number == -1
}

schema! {
    /// One address of a node, in STATS and READY.
    NodeNetwork {
        /// The IP address; default: empty.
        ip: String,
        /// The MAC address of its interface; default: empty.
        mac: String,
    }

    /// One tunnel of a tenant's network, in STATS.
    TunnelStats {
        /// The key of the tunnel; default: 0.
        key: u32,
        /// True if the tunnel can carry packets, as far as the node can determine; default: false.
        up: bool,
        /// Bytes received from the concentrator; default: 0.
        rx_bytes: u64,
        /// Bytes sent to the concentrator; default: 0.
        tx_bytes: u64,
        /// Packets of instances that the filters of their ports have dropped; default: 0.
        drops: u64,
    }

    /// One instance in STATS.
    // Its texts are smaller than a `String`, because a document may have a hundred thousand instances.
    InstanceStats {
        /// The instance; default: empty.
        instance_uuid: Id,
        /// Its state; default: empty.
        state: InstanceState,
        /// The number of times that its node has started it again by itself. A key of this project, which
        /// others ignore; default: 0. Left out then.
        #[serde(skip_serializing_if = "is_default")]
        restarts: i64,
        /// True if it has ended and its node will start it again by itself. A key of this project,
        /// which others ignore; default: false. Left out then.
        #[serde(skip_serializing_if = "is_default")]
        restart_due: bool,
        /// The address of its SSH server; default: empty.
        ssh_ip: Box<str>,
        /// The port of its SSH server; default: 0, none.
        ssh_port: i64,
        /// Its address in the network of its tenant. A key of this project, which others ignore; default: none.
        /// Left out then.
        #[serde(skip_serializing_if = "Option::is_none")]
        private_ip: Option<Ipv4Addr>,
        /// Memory that it uses, in MB; default: -1, unknown.
        memory_usage_mb: i64 = -1,
        /// Disk that it uses, in MB; default: -1, unknown.
        disk_usage_mb: i64 = -1,
        /// CPU time that it uses, in percent of all its CPUs together (0 to 100); default: -1, unknown.
        cpu_usage: i64 = -1,
        /// The volumes attached to it; default: none.
        volumes: Vec<Id>,
        /// The name from its START. This key and all that follow are additions of this project, which
        /// other implementations ignore. Default: empty. Left out when empty.
        #[serde(skip_serializing_if = "str::is_empty")]
        name: Box<str>,
        /// The labels from its START; default: none. Left out when empty.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        labels: BTreeMap<String, String>,
        /// The start of its last run, in the form of [`timestamp`](crate::timestamp); default: empty,
        /// unknown. Left out when empty.
        #[serde(skip_serializing_if = "str::is_empty")]
        started: Box<str>,
        /// The end of that run; default: empty, it has not ended, or its end is unknown. Left out when
        /// empty.
        #[serde(skip_serializing_if = "str::is_empty")]
        ended: Box<str>,
        /// The exit code, or 128 plus the number of the signal that ended it; default: -1, it has not
        /// ended, or its exit code is unknown. Left out when -1.
        #[serde(skip_serializing_if = "is_unknown")]
        exit_code: i64 = -1,
        /// The number of the signal that ended it; default: 0, none. Left out when 0.
        #[serde(skip_serializing_if = "is_default")]
        exit_signal: i64,
        /// True if one of its processes was killed because its memory was used up; default: false. Left
        /// out when false.
        #[serde(skip_serializing_if = "is_default")]
        out_of_memory: bool,
        /// Details beyond the exit code: the reason for which its node ended it, or could not start it
        /// again. In one line of at most 200 characters; default: empty. Left out when empty.
        #[serde(skip_serializing_if = "str::is_empty")]
        detail: Box<str>,
        /// The last lines that it wrote to its standard error, unless its exit code is 0: in one line of at
        /// most 200 characters, with ` / ` between them. Default: empty. Left out when empty.
        #[serde(skip_serializing_if = "str::is_empty")]
        last_lines: Box<str>,
        /// Its health, by the check of its START; default: empty, unknown. Left out when empty.
        #[serde(skip_serializing_if = "is_default")]
        health: HealthState,
        /// The time since which it has that health, in the form of `started`; default: empty. Left out when
        /// empty.
        #[serde(skip_serializing_if = "str::is_empty")]
        health_since: Box<str>,
        /// The reason why the last check failed, in one line of at most 200 characters; default: empty, it
        /// has passed. Left out when empty.
        #[serde(skip_serializing_if = "str::is_empty")]
        health_detail: Box<str>,
    }
}

impl InstanceStats {
    /// The health and the reason of the last failure.
    pub fn health_text(&self) -> String {
        let space = if self.health_detail.is_empty() { "" } else { " " };
        format!("{}{space}{}", self.health, self.health_detail)
    }
}

names! {
    /// The state of a node in STATS.
    NodeStatus {
        /// The node accepts commands.
        Ready = "READY";
        /// The node has no capacity left.
        Full = "FULL";
        /// The node is connected and accepts no command.
        Offline = "OFFLINE";
        /// The node is in maintenance, or about to be: it accepts no START.
        Maintenance = "MAINTENANCE";
        /// The node has sent no STATS for three intervals. Only the scheduler sets this state, in a
        /// copy of the node's last STATS.
        Stale = "STALE";
    }
}

names! {
    /// The state of an instance.
    InstanceState {
        /// The instance is being started.
        Pending = "pending";
        /// The instance runs. Older senders write `running`, which is read as well.
        Active = "active" | "running";
        /// The instance has stopped and may be restarted.
        Exited = "exited";
        /// The instance is being stopped.
        Stopping = "stopping";
        /// The instance could not be stopped.
        ExitFailed = "exit_failed";
        /// The instance is paused.
        ExitPaused = "exit_paused";
        /// The instance was deleted.
        Deleted = "deleted";
        /// The instance no longer answers.
        Hung = "hung";
        /// The node no longer finds the instance.
        Missing = "missing";
    }
}
