//! NodeConnected and NodeDisconnected (EVENT 0x6, 0x7), made by the scheduler.

use super::names::names;
use super::{Id, alike};

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

names! {
    /// What a node is for.
    NodeType {
        /// Tenants' instances.
        ComputeNode = "compute_node";
        /// Concentrators.
        NetworkNode = "network_node";
    }
}
