//! NodeConnected, NodeDisconnected, SnapshotComplete and NewLeader (EVENT 0x6, 0x7, 0x49, 0x4c),
//! made by the scheduler.

use serde::{Deserialize, Serialize};

use super::names::names;
use super::{Id, alike, payload};

alike! {
    {
        /// The node; default: empty.
        pub node_uuid: Id,
        /// What the node is for; default: empty.
        pub node_type: NodeType,
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

/// A controller that has connected was told all that the scheduler knew.
///
/// The payload of SnapshotComplete (EVENT 0x49):
///
/// ```yaml
/// snapshot_complete:
///   nodes: 3
///   reporting: 2
///   instances: 41
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotComplete {
    /// The nodes that are connected, as of the beginning of the session; default: 0.
    pub nodes: u64,
    /// The nodes whose last STATS were sent. The others have just connected; default: 0.
    pub reporting: u64,
    /// The instances that these STATS list; default: 0.
    pub instances: u64,
}

payload!(SnapshotComplete = Event::SNAPSHOT_COMPLETE, under "snapshot_complete");

/// Another scheduler leads: it tells a controller all that it knows, as at the beginning of a
/// session.
///
/// The payload of NewLeader (EVENT 0x4c):
///
/// ```yaml
/// new_leader:
///   server_uuid: 0d1f5c7e-93a2-4f0b-8a6d-51e2c4b7a901
///   token: 7340033
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NewLeader {
    /// The scheduler that leads; default: empty.
    pub server_uuid: Id,
    /// The number of its term, which is higher than those before; default: 0.
    pub token: u64,
}

payload!(NewLeader = Event::NEW_LEADER, under "new_leader");

names! {
    /// What a node is for.
    NodeType {
        /// Tenants' instances.
        ComputeNode = "compute_node";
        /// Concentrators.
        NetworkNode = "network_node";
    }
}
