//! NodeConnected, NodeDisconnected, SnapshotComplete and NewLeader (EVENT 0x6, 0x7, 0x49, 0x4c),
//! made by the scheduler.

use ssntp::names;
use ssntp::payload::Id;
use ssntp::schema;

alike! {
    {
        /// The node; default: empty.
        node_uuid: Id,
        /// The type of the node; default: empty.
        node_type: NodeType,
    }

    /// A node connected.
    ///
    /// The payload of NodeConnected (EVENT 0x6):
    ///
    /// ```yaml
    /// node_connected:
    ///   node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   node_type: compute_node
    /// ```
    NodeConnected = Event::NODE_CONNECTED,
    under "node_connected";

    /// A node disconnected.
    ///
    /// The payload of NodeDisconnected (EVENT 0x7):
    ///
    /// ```yaml
    /// node_disconnected:
    ///   node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   node_type: network_node
    /// ```
    NodeDisconnected = Event::NODE_DISCONNECTED,
    under "node_disconnected";
}

schema! {
    /// The scheduler has sent a newly connected controller all nodes and instances.
    ///
    /// The payload of SnapshotComplete (EVENT 0x49):
    ///
    /// ```yaml
    /// snapshot_complete:
    ///   nodes: 3
    ///   reporting: 2
    ///   instances: 41
    ///   constraints: true
    /// ```
    SnapshotComplete = Event::SNAPSHOT_COMPLETE, under "snapshot_complete" {
        /// The number of connected nodes at the beginning of the session; default: 0.
        nodes: u64,
        /// The number of nodes whose last STATS were sent. The others have just connected. Default: 0.
        reporting: u64,
        /// The number of instances in these STATS; default: 0.
        instances: u64,
        /// True if the scheduler heeds `requirements.labels`, which older ones ignore. Default: false.
        constraints: bool,
    }

    /// The scheduler that leads, if there are several. A controller gets it at the beginning of its
    /// session, and when another scheduler becomes the leader. The leader then sends it all nodes and
    /// instances.
    ///
    /// The payload of NewLeader (EVENT 0x4c):
    ///
    /// ```yaml
    /// new_leader:
    ///   server_uuid: 0d1f5c7e-93a2-4f0b-8a6d-51e2c4b7a901
    ///   token: 7340033
    /// ```
    NewLeader = Event::NEW_LEADER, under "new_leader" {
        /// The scheduler that leads; empty if none leads; default: empty.
        server_uuid: Id,
        /// The fencing token of its term, which is higher than all earlier ones; default: 0.
        token: u64,
    }
}

names! {
    /// The type of a node.
    NodeType {
        /// Runs the instances of tenants.
        ComputeNode = "compute_node";
        /// Runs concentrators.
        NetworkNode = "network_node";
    }
}
