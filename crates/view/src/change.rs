//! The changes of a view, in the order in which a controller sees them.

use bytes::Bytes;
use serde::Serialize;
use thiserror::Error;
use uuid::Uuid;

use crate::ending::Ending;
use crate::failure::Failure;
use ssntp::payload::{self, Id};
use ssntp::proto::FrameKind;
use ssntp_payload::{FrameTrace, InstanceState, NodeStatus, NodeType};

/// A change of a controller's view. Displayed as a sentence, by a derive that makes it an error type as well.
/// Serialized for programs: the key `event` is the name of the variant in snake case, and the other keys are the
/// UUIDs, states and addresses of the change.
#[derive(Clone, Debug, Error, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// A session with the scheduler has begun. The changes of its snapshot follow.
    #[error("connected to {scheduler}")]
    Online {
        /// The scheduler: `UUID (roles) at ADDRESS`.
        #[serde(skip)]
        scheduler: String,
    },
    /// The session is lost. The present state of all nodes is unknown until the next session.
    #[error("disconnected: {reason}")]
    Offline {
        /// The reason.
        #[serde(skip)]
        reason: String,
    },
    /// The controller has ended; no change follows. A subscriber whose channel is full does not
    /// receive it.
    #[error("{reason}")]
    Ended {
        /// The reason.
        #[serde(skip)]
        reason: String,
    },
    /// Changes before this one were dropped, because they were not received in time.
    #[error("{count} changes were missed")]
    Missed {
        /// The number of dropped changes.
        #[serde(skip)]
        count: u64,
    },
    /// The scheduler has sent the whole snapshot of the cluster.
    #[error(
        "snapshot complete: {nodes} nodes, of which {reporting} have sent STATS, with {instances} instances"
    )]
    SnapshotComplete {
        /// The number of connected nodes.
        nodes: u64,
        /// The number of connected nodes that have sent STATS.
        reporting: u64,
        /// The number of instances in these STATS.
        instances: u64,
    },
    /// A node has connected, or is connected at the beginning of a session.
    #[error("{} {node} is connected", kind(node_type))]
    NodeConnected {
        /// The node.
        node: Uuid,
        /// Its type. A node with both types causes one change for each.
        node_type: NodeType,
    },
    /// A node has disconnected.
    #[error("{} {node} has disconnected", kind(node_type))]
    NodeDisconnected {
        /// The node.
        node: Uuid,
        /// Its type.
        node_type: NodeType,
    },
    /// The status of a node has changed.
    #[error("node {node} is {status}")]
    NodeStatus {
        /// The node.
        node: Uuid,
        /// Its new status.
        status: NodeStatus,
    },
    /// A node is offline. Its next STATS show which one.
    #[error("a node is OFFLINE")]
    NodeOffline,
    /// STATS of a node have arrived. The changes that they caused came before this one.
    #[error("STATS of node {node}")]
    NodeStats {
        /// The node.
        node: Uuid,
        /// True for the first STATS since the node connected or the session began.
        #[serde(skip)]
        first: bool,
    },
    /// A node has an instance that it did not have before.
    #[error("instance {instance} is {state} on node {node}")]
    InstanceAdded {
        /// The instance.
        instance: Uuid,
        /// Its node.
        node: Uuid,
        /// Its state.
        state: InstanceState,
    },
    /// STATS list an instance in another state than before.
    #[error("instance {instance} is {state}, after {before}{}", Ending::after_colon(ending.as_ref()))]
    InstanceState {
        /// The instance.
        instance: Uuid,
        /// Its node.
        node: Uuid,
        /// Its former state.
        before: InstanceState,
        /// Its new state.
        state: InstanceState,
        /// The end of its last run, if it has ended.
        #[serde(skip)]
        ending: Option<Ending>,
    },
    /// A node no longer has an instance, or the view has forgotten the disconnected node to make
    /// room in its history.
    #[error("instance {instance} is no longer on node {node}")]
    InstanceGone {
        /// The instance.
        instance: Uuid,
        /// The node that had it.
        node: Uuid,
    },
    /// InstanceStopped has arrived.
    #[error("instance {instance} has stopped{}", Ending::after_colon(Some(ending)))]
    InstanceStopped {
        /// The instance.
        instance: Uuid,
        /// Its node, if the instance is known.
        node: Option<Uuid>,
        /// The end of its run, as far as its node reports it.
        #[serde(skip)]
        ending: Ending,
    },
    /// InstanceDeleted has arrived.
    #[error("instance {instance} is deleted{}", Ending::after_colon(Some(ending)))]
    InstanceDeleted {
        /// The instance.
        instance: Uuid,
        /// The node that had it, if the instance was known.
        node: Option<Uuid>,
        /// The end of its last run, as far as its node reports it.
        #[serde(skip)]
        ending: Ending,
    },
    /// A volume was attached to an instance.
    #[error("volume {volume} is attached to instance {instance}")]
    VolumeAttached {
        /// The instance.
        instance: Uuid,
        /// The volume.
        volume: Id,
    },
    /// A volume was detached from an instance.
    #[error("volume {volume} is detached from instance {instance}")]
    VolumeDetached {
        /// The instance.
        instance: Uuid,
        /// The volume.
        volume: Id,
    },
    /// A concentrator has announced itself.
    #[error("CNCI {cnci} has announced itself")]
    CnciAdded {
        /// The concentrator.
        cnci: Uuid,
    },
    /// A concentrator's instance is gone.
    #[error("CNCI {cnci} is gone")]
    CnciGone {
        /// The concentrator.
        cnci: Uuid,
    },
    /// An instance has a public address.
    #[error("{public_ip} is assigned to instance {instance} by CNCI {cnci}")]
    PublicIpAssigned {
        /// The concentrator that assigned it.
        cnci: Uuid,
        /// The instance.
        instance: Id,
        /// The address.
        public_ip: String,
    },
    /// An instance has lost a public address.
    #[error("{public_ip} is taken from instance {instance} by CNCI {cnci}")]
    PublicIpUnassigned {
        /// The concentrator that released it.
        cnci: Uuid,
        /// The instance.
        instance: Id,
        /// The address.
        public_ip: String,
    },
    /// The scheduler has adopted a configuration of this controller, or a new leader has sent the
    /// current one.
    #[error("the cluster has a new configuration")]
    Configured {
        /// The configuration.
        #[serde(skip)]
        configuration: Bytes,
    },
    /// A command of this or another controller failed.
    #[error("{0}")]
    Failed(#[serde(skip)] Failure),
    /// A traced frame has arrived.
    #[error("trace {:?} of {} over {} hops", .0.label, .0.operand, .0.nodes.len())]
    Traced(#[serde(skip)] FrameTrace),
    /// The payload of a frame cannot be read.
    #[error("the payload of {kind} cannot be read: {error}")]
    Unreadable {
        /// The kind of the frame.
        #[serde(skip)]
        kind: FrameKind,
        /// The error.
        #[serde(skip)]
        error: payload::Error,
    },
}

/// The type of a node, as the first words of a sentence.
fn kind(node_type: &NodeType) -> &'static str {
    match node_type {
        NodeType::ComputeNode => "compute node",
        NodeType::NetworkNode => "network node",
        _ => "node",
    }
}
