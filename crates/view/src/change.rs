//! The changes of a view, in the order in which a controller sees them.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use uuid::Uuid;

use crate::ending::Ending;
use crate::failure::Failure;
use ssntp::payload::{self, FrameTrace, Id};
use ssntp::proto::FrameKind;
use ssntp_payload::{InstanceState, NodeStatus, NodeType};

/// A change of a controller's view. Displayed as a sentence. Serialized for programs: the key
/// `event` is the name of the variant in snake case, and the other keys are the UUIDs, states and
/// addresses of the change.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// A session with the scheduler has begun. The changes of its snapshot follow.
    Online {
        /// The scheduler: `UUID (roles) at ADDRESS`.
        #[serde(skip)]
        scheduler: String,
    },
    /// The session is lost. The present state of all nodes is unknown until the next session.
    Offline {
        /// The reason.
        #[serde(skip)]
        reason: String,
    },
    /// The controller has ended; no change follows. A subscriber whose channel is full does not
    /// receive it.
    Ended {
        /// The reason.
        #[serde(skip)]
        reason: String,
    },
    /// Changes before this one were dropped, because they were not received in time.
    Missed {
        /// The number of dropped changes.
        #[serde(skip)]
        count: u64,
    },
    /// The scheduler has sent the whole snapshot of the cluster.
    SnapshotComplete {
        /// The number of connected nodes.
        nodes: u64,
        /// The number of connected nodes that have sent STATS.
        reporting: u64,
        /// The number of instances in these STATS.
        instances: u64,
    },
    /// A node has connected, or is connected at the beginning of a session.
    NodeConnected {
        /// The node.
        node: Uuid,
        /// Its type. A node with both types causes one change for each.
        node_type: NodeType,
    },
    /// A node has disconnected.
    NodeDisconnected {
        /// The node.
        node: Uuid,
        /// Its type.
        node_type: NodeType,
    },
    /// The status of a node has changed.
    NodeStatus {
        /// The node.
        node: Uuid,
        /// Its new status.
        status: NodeStatus,
    },
    /// A node is offline. Its next STATS show which one.
    NodeOffline,
    /// STATS of a node have arrived. The changes that they caused came before this one.
    NodeStats {
        /// The node.
        node: Uuid,
        /// True for the first STATS since the node connected or the session began.
        #[serde(skip)]
        first: bool,
    },
    /// A node has an instance that it did not have before.
    InstanceAdded {
        /// The instance.
        instance: Uuid,
        /// Its node.
        node: Uuid,
        /// Its state.
        state: InstanceState,
    },
    /// STATS list an instance in another state than before.
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
    InstanceGone {
        /// The instance.
        instance: Uuid,
        /// The node that had it.
        node: Uuid,
    },
    /// InstanceStopped has arrived.
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
    VolumeAttached {
        /// The instance.
        instance: Uuid,
        /// The volume.
        volume: Id,
    },
    /// A volume was detached from an instance.
    VolumeDetached {
        /// The instance.
        instance: Uuid,
        /// The volume.
        volume: Id,
    },
    /// A concentrator has announced itself.
    CnciAdded {
        /// The concentrator.
        cnci: Uuid,
    },
    /// A concentrator's instance is gone.
    CnciGone {
        /// The concentrator.
        cnci: Uuid,
    },
    /// An instance has a public address.
    PublicIpAssigned {
        /// The concentrator that assigned it.
        cnci: Uuid,
        /// The instance.
        instance: Id,
        /// The address.
        public_ip: String,
    },
    /// An instance has lost a public address.
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
    Configured {
        /// The configuration.
        #[serde(skip)]
        configuration: Bytes,
    },
    /// A command of this or another controller failed.
    Failed(#[serde(skip)] Failure),
    /// A traced frame has arrived.
    Traced(#[serde(skip)] FrameTrace),
    /// The payload of a frame cannot be read.
    Unreadable {
        /// The kind of the frame.
        #[serde(skip)]
        kind: FrameKind,
        /// The error.
        #[serde(skip)]
        error: payload::Error,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Online { scheduler } => write!(f, "connected to {scheduler}"),
            Self::Offline { reason } => write!(f, "disconnected: {reason}"),
            Self::Ended { reason } => f.write_str(reason),
            Self::Missed { count } => write!(f, "{count} changes were missed"),
            Self::SnapshotComplete {
                nodes,
                reporting,
                instances,
            } => write!(
                f,
                "snapshot complete: {nodes} nodes, of which {reporting} have sent STATS, with {instances} instances"
            ),
            Self::NodeConnected { node, node_type } => {
                write!(f, "{} {node} is connected", kind(node_type))
            }
            Self::NodeDisconnected { node, node_type } => {
                write!(f, "{} {node} has disconnected", kind(node_type))
            }
            Self::NodeStatus { node, status } => write!(f, "node {node} is {status}"),
            Self::NodeOffline => f.write_str("a node is OFFLINE"),
            Self::NodeStats { node, .. } => write!(f, "STATS of node {node}"),
            Self::InstanceAdded {
                instance,
                node,
                state,
            } => {
                write!(f, "instance {instance} is {state} on node {node}")
            }
            Self::InstanceState {
                instance,
                before,
                state,
                ending,
                ..
            } => {
                let ending = Ending::after_colon(ending.as_ref());
                write!(f, "instance {instance} is {state}, after {before}{ending}")
            }
            Self::InstanceGone { instance, node } => {
                write!(f, "instance {instance} is no longer on node {node}")
            }
            Self::InstanceStopped { instance, ending, .. } => {
                write!(
                    f,
                    "instance {instance} has stopped{}",
                    Ending::after_colon(Some(ending))
                )
            }
            Self::InstanceDeleted { instance, ending, .. } => {
                write!(
                    f,
                    "instance {instance} is deleted{}",
                    Ending::after_colon(Some(ending))
                )
            }
            Self::VolumeAttached { instance, volume } => {
                write!(f, "volume {volume} is attached to instance {instance}")
            }
            Self::VolumeDetached { instance, volume } => {
                write!(f, "volume {volume} is detached from instance {instance}")
            }
            Self::CnciAdded { cnci } => write!(f, "CNCI {cnci} has announced itself"),
            Self::CnciGone { cnci } => write!(f, "CNCI {cnci} is gone"),
            Self::PublicIpAssigned {
                cnci,
                instance,
                public_ip,
            } => {
                write!(f, "{public_ip} is assigned to instance {instance} by CNCI {cnci}")
            }
            Self::PublicIpUnassigned {
                cnci,
                instance,
                public_ip,
            } => {
                write!(f, "{public_ip} is taken from instance {instance} by CNCI {cnci}")
            }
            Self::Configured { .. } => f.write_str("the cluster has a new configuration"),
            Self::Failed(failure) => failure.fmt(f),
            Self::Traced(trace) => {
                let (hops, label) = (trace.nodes.len(), &trace.label);
                write!(f, "trace {label:?} of {} over {hops} hops", trace.operand)
            }
            Self::Unreadable { kind, error } => write!(f, "the payload of {kind} cannot be read: {error}"),
        }
    }
}

/// The type of a node, as the first words of a sentence.
fn kind(node_type: &NodeType) -> &'static str {
    match node_type {
        NodeType::ComputeNode => "compute node",
        NodeType::NetworkNode => "network node",
        _ => "node",
    }
}
