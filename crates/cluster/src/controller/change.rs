//! What changes in a view, in the order in which a controller learns of it.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use uuid::Uuid;

use super::{Ending, Failure};
use ssntp::payload::{self, FrameTrace, Id, InstanceState, NodeStatus, NodeType};
use ssntp::proto::FrameKind;

/// One thing that a controller has learnt. Shown as a sentence. Serialized as the
/// UUIDs, states and addresses that it is about.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Change {
    /// A session with the scheduler stands; what it knows follows.
    Online {
        /// The scheduler: `UUID (roles) at ADDRESS`.
        #[serde(skip)]
        scheduler: String,
    },
    /// The session is lost. Nothing is known of any node until the next.
    Offline {
        /// Why.
        #[serde(skip)]
        reason: String,
    },
    /// The controller has ended; no change follows.
    Ended {
        /// Why.
        #[serde(skip)]
        reason: String,
    },
    /// So many changes were left out before this one: they were not received
    /// in time.
    Missed {
        /// How many.
        #[serde(skip)]
        count: u64,
    },
    /// A node has connected, or is there at the beginning of a session.
    NodeConnected {
        /// The node.
        node: Uuid,
        /// What it is for; a node that is for both connects as each.
        node_type: NodeType,
    },
    /// A node has disconnected.
    NodeDisconnected {
        /// The node.
        node: Uuid,
        /// What it was for.
        node_type: NodeType,
    },
    /// A node takes more, or less, than before.
    NodeStatus {
        /// The node.
        node: Uuid,
        /// What it takes now.
        status: NodeStatus,
    },
    /// Some node is offline. Its STATS tell which.
    NodeOffline,
    /// STATS of a node have been taken in. What they changed came before.
    NodeStats {
        /// The node.
        node: Uuid,
        /// Whether they are the first since it connected, or since the
        /// session began.
        #[serde(skip)]
        first: bool,
    },
    /// A node has an instance that it did not have before.
    InstanceAdded {
        /// The instance.
        instance: Uuid,
        /// Its node.
        node: Uuid,
        /// What it is doing.
        state: InstanceState,
    },
    /// STATS tell of another state of an instance than what was known.
    InstanceState {
        /// The instance.
        instance: Uuid,
        /// Its node.
        node: Uuid,
        /// What it was doing.
        before: InstanceState,
        /// What it is doing now.
        state: InstanceState,
        /// How it ended, where it has.
        #[serde(skip)]
        ending: Option<Ending>,
    },
    /// A node no longer has an instance.
    InstanceGone {
        /// The instance.
        instance: Uuid,
        /// The node that had it.
        node: Uuid,
    },
    /// InstanceStopped came.
    InstanceStopped {
        /// The instance.
        instance: Uuid,
        /// Its node, where the instance is known.
        node: Option<Uuid>,
    },
    /// InstanceDeleted came.
    InstanceDeleted {
        /// The instance.
        instance: Uuid,
        /// The node that had it, where it was known.
        node: Option<Uuid>,
    },
    /// An instance has a volume more.
    VolumeAttached {
        /// The instance.
        instance: Uuid,
        /// The volume.
        volume: Id,
    },
    /// An instance has a volume less.
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
    /// The scheduler has taken up a configuration that this controller sent.
    Configured {
        /// What it was sent.
        #[serde(skip)]
        configuration: Bytes,
    },
    /// A command failed, be it this controller's or another's.
    #[serde(skip)]
    Failed(Failure),
    /// A traced frame has arrived.
    #[serde(skip)]
    Traced(FrameTrace),
    /// A frame came whose payload cannot be read.
    #[serde(skip)]
    Unreadable {
        /// The frame.
        kind: FrameKind,
        /// What is wrong with it.
        error: payload::Error,
    },
}

impl Change {
    /// A word for programs: the variant's name in small letters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Online { .. } => "online",
            Self::Offline { .. } => "offline",
            Self::Ended { .. } => "ended",
            Self::Missed { .. } => "missed",
            Self::NodeConnected { .. } => "node_connected",
            Self::NodeDisconnected { .. } => "node_disconnected",
            Self::NodeStatus { .. } => "node_status",
            Self::NodeOffline => "node_offline",
            Self::NodeStats { .. } => "node_stats",
            Self::InstanceAdded { .. } => "instance_added",
            Self::InstanceState { .. } => "instance_state",
            Self::InstanceGone { .. } => "instance_gone",
            Self::InstanceStopped { .. } => "instance_stopped",
            Self::InstanceDeleted { .. } => "instance_deleted",
            Self::VolumeAttached { .. } => "volume_attached",
            Self::VolumeDetached { .. } => "volume_detached",
            Self::CnciAdded { .. } => "cnci_added",
            Self::CnciGone { .. } => "cnci_gone",
            Self::PublicIpAssigned { .. } => "public_ip_assigned",
            Self::PublicIpUnassigned { .. } => "public_ip_unassigned",
            Self::Configured { .. } => "configured",
            Self::Failed(_) => "failed",
            Self::Traced(_) => "traced",
            Self::Unreadable { .. } => "unreadable",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Online { scheduler } => write!(f, "connected to {scheduler}"),
            Self::Offline { reason } => write!(f, "disconnected: {reason}"),
            Self::Ended { reason } => f.write_str(reason),
            Self::Missed { count } => write!(f, "{count} changes were missed"),
            Self::NodeConnected { node, node_type } => {
                write!(f, "{} {node} is connected", Kind(node_type))
            }
            Self::NodeDisconnected { node, node_type } => {
                write!(f, "{} {node} has disconnected", Kind(node_type))
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
                write!(f, "instance {instance} is {state}, after {before}")?;
                match ending.as_ref().filter(|ending| ending.is_known()) {
                    Some(ending) => write!(f, ": {ending}"),
                    None => Ok(()),
                }
            }
            Self::InstanceGone { instance, node } => {
                write!(f, "instance {instance} is no longer on node {node}")
            }
            Self::InstanceStopped { instance, .. } => write!(f, "instance {instance} has stopped"),
            Self::InstanceDeleted { instance, .. } => write!(f, "instance {instance} is deleted"),
            Self::VolumeAttached { instance, volume } => {
                write!(f, "volume {volume} is attached to instance {instance}")
            }
            Self::VolumeDetached { instance, volume } => {
                write!(f, "volume {volume} is detached from instance {instance}")
            }
            Self::CnciAdded { cnci } => write!(f, "CNCI {cnci} is there"),
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
            Self::Unreadable { kind, error } => write!(f, "{kind} that cannot be read: {error}"),
        }
    }
}

/// A kind of node, as a sentence begins with it.
struct Kind<'a>(&'a NodeType);

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            NodeType::ComputeNode => "compute node",
            NodeType::NetworkNode => "network node",
            _ => "node",
        })
    }
}
