//! What shows that a command was carried out. Pure functions over changes
//! and the view.
//!
//! | command | shown done by |
//! |---|---|
//! | START, RESTART | STATS in which the instance is `active`, or has ended already; for RESTART not those in which one that was `active` has; InstanceDeleted, since it was there. Not that STATS no longer list it: then it may never have run |
//! | STOP | STATS in which it is `exited` or missing, InstanceStopped, InstanceDeleted |
//! | DELETE | InstanceDeleted, STATS that no longer list it; InstanceStopped where it was only to leave its node |
//! | AttachVolume, DetachVolume | STATS that list the volume, or no longer do |
//! | EVACUATE | STATS with `MAINTENANCE` and no instance that runs, but for those that are `hung`; that the node disconnects, where it was to |
//! | Restore | STATS with `READY` or `FULL` |
//! | AssignPublicIP, ReleasePublicIP | PublicIPAssigned, PublicIPUnassigned |
//! | CONFIGURE | the scheduler sends it back; a new session, whose CONNECTED carries it |
//!
//! A failure belongs to the command that names the same instance (and volume,
//! and address). InvalidFrameType names nobody: it is taken for the last such
//! command, or for the one whose node is not connected where that is the
//! reason.

use std::fmt;

use bytes::Bytes;
use uuid::Uuid;

use super::{Change, Ending, Failure, Instance, Node, View};
use ssntp::payload::{
    AssignPublicIp, AttachVolume, Delete, DetachVolume, Evacuate, Id, InstanceState, NextState, NodeStatus,
    Payload, ReleasePublicIp, Restart, Restore, Start, StartPayload, Stop,
};
use ssntp::proto::{Command, ErrorCode};

/// A command whose end shows in what the scheduler sends: the payloads that
/// [`Controller::order`](super::Controller::order) takes.
pub trait Orderable: Payload + private::HasGoal {}

pub(super) mod private {
    use super::Goal;

    pub trait HasGoal {
        #[allow(private_interfaces, reason = "the trait is out of reach as well")]
        fn goal(&self) -> Goal;
    }
}

/// What a command is to bring about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    Started { instance: Id },
    Stopped { instance: Id },
    Restarted { instance: Id },
    Deleted { instance: Id, from_node: bool },
    Attached { instance: Id, volume: Id },
    Detached { instance: Id, volume: Id },
    Evacuated { node: Id, leaves: bool },
    Restored { node: Id },
    Configured { configuration: Bytes },
    Assigned { instance: Id, public_ip: String },
    Released { instance: Id, public_ip: String },
}

/// How it shows that a command was carried out. Shown as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shown {
    /// The instance runs.
    Running {
        /// The instance.
        instance: Uuid,
        /// Its node.
        node: Uuid,
    },
    /// The instance was started, and has ended already.
    Ended {
        /// The instance.
        instance: Uuid,
        /// How, where that is known.
        ending: Option<Ending>,
    },
    /// The instance has stopped; its node may keep it.
    Stopped {
        /// The instance.
        instance: Uuid,
    },
    /// The instance is gone.
    Gone {
        /// The instance.
        instance: Uuid,
    },
    /// The instance has the volume.
    Attached {
        /// The instance.
        instance: Uuid,
        /// The volume.
        volume: Id,
    },
    /// The instance no longer has the volume.
    Detached {
        /// The instance.
        instance: Uuid,
        /// The volume.
        volume: Id,
    },
    /// The node is in maintenance, and nothing runs on it but what cannot be
    /// ended.
    Evacuated {
        /// The node.
        node: Uuid,
        /// How many instances do not even end when they are killed.
        hung: usize,
    },
    /// The node has left, as it was to.
    Left {
        /// The node.
        node: Uuid,
    },
    /// The node takes commands again.
    Restored {
        /// The node.
        node: Uuid,
    },
    /// The scheduler gives the configuration to whoever connects.
    Configured,
    /// The instance has the address.
    Assigned {
        /// The instance.
        instance: Id,
        /// The address.
        public_ip: String,
    },
    /// The instance no longer has the address.
    Released {
        /// The instance.
        instance: Id,
        /// The address.
        public_ip: String,
    },
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running { instance, node } => write!(f, "instance {instance} runs on node {node}"),
            Self::Ended { instance, ending } => {
                write!(f, "instance {instance} was started and has ended")?;
                match ending.as_ref().filter(|ending| ending.is_known()) {
                    Some(ending) => write!(f, ": {ending}"),
                    None => Ok(()),
                }
            }
            Self::Stopped { instance } => write!(f, "instance {instance} has stopped"),
            Self::Gone { instance } => write!(f, "instance {instance} is gone"),
            Self::Attached { instance, volume } => {
                write!(f, "volume {volume} is attached to instance {instance}")
            }
            Self::Detached { instance, volume } => {
                write!(f, "volume {volume} is detached from instance {instance}")
            }
            Self::Evacuated { node, hung: 0 } => write!(f, "node {node} is empty, and in maintenance"),
            Self::Evacuated { node, hung } => {
                write!(
                    f,
                    "node {node} is in maintenance, but {hung} instances cannot be ended"
                )
            }
            Self::Left { node } => write!(f, "node {node} is empty, and has left"),
            Self::Restored { node } => write!(f, "node {node} is back in service"),
            Self::Configured => f.write_str("the cluster has the configuration"),
            Self::Assigned { instance, public_ip } => {
                write!(f, "{public_ip} is assigned to instance {instance}")
            }
            Self::Released { instance, public_ip } => {
                write!(f, "{public_ip} is taken from instance {instance}")
            }
        }
    }
}

impl Goal {
    pub(super) fn command(&self) -> Command {
        match self {
            Self::Started { .. } => Command::START,
            Self::Stopped { .. } => Command::STOP,
            Self::Restarted { .. } => Command::RESTART,
            Self::Deleted { .. } => Command::DELETE,
            Self::Attached { .. } => Command::ATTACH_VOLUME,
            Self::Detached { .. } => Command::DETACH_VOLUME,
            Self::Evacuated { .. } => Command::EVACUATE,
            Self::Restored { .. } => Command::RESTORE,
            Self::Configured { .. } => Command::CONFIGURE,
            Self::Assigned { .. } => Command::ASSIGN_PUBLIC_IP,
            Self::Released { .. } => Command::RELEASE_PUBLIC_IP,
        }
    }

    /// What the command is about.
    pub(super) fn subject(&self) -> &str {
        match self {
            Self::Started { instance }
            | Self::Stopped { instance }
            | Self::Restarted { instance }
            | Self::Deleted { instance, .. }
            | Self::Attached { instance, .. }
            | Self::Detached { instance, .. }
            | Self::Assigned { instance, .. }
            | Self::Released { instance, .. } => instance.as_str(),
            Self::Evacuated { node, .. } | Self::Restored { node } => node.as_str(),
            Self::Configured { .. } => "",
        }
    }

    fn instance(&self) -> Option<&Id> {
        match self {
            Self::Evacuated { .. } | Self::Restored { .. } | Self::Configured { .. } => None,
            Self::Started { instance }
            | Self::Stopped { instance }
            | Self::Restarted { instance }
            | Self::Deleted { instance, .. }
            | Self::Attached { instance, .. }
            | Self::Detached { instance, .. }
            | Self::Assigned { instance, .. }
            | Self::Released { instance, .. } => Some(instance),
        }
    }

    /// Whether a change shows that it is reached.
    pub(super) fn shown(&self, change: &Change, view: &View) -> Option<Shown> {
        use Change as C;
        match (self, change) {
            (
                Self::Started { instance: own },
                C::InstanceAdded {
                    instance,
                    node,
                    state,
                },
            ) if own == instance => up(*instance, *node, state, view),
            // It had ended before it was started again: that is to come.
            (
                Self::Restarted { instance: own },
                C::InstanceState {
                    instance,
                    before: InstanceState::Active,
                    state: InstanceState::Exited,
                    ..
                },
            ) if own == instance => None,
            (
                Self::Started { instance: own } | Self::Restarted { instance: own },
                C::InstanceState {
                    instance,
                    node,
                    state,
                    ..
                },
            ) if own == instance => up(*instance, *node, state, view),
            (
                Self::Started { instance: own } | Self::Restarted { instance: own },
                C::InstanceDeleted { instance, .. },
            ) if own == instance => Some(Shown::Ended {
                instance: *instance,
                ending: None,
            }),

            (
                Self::Stopped { instance: own },
                C::InstanceState {
                    instance,
                    state: InstanceState::Exited,
                    ..
                }
                | C::InstanceStopped { instance, .. },
            ) if own == instance => Some(Shown::Stopped { instance: *instance }),
            (
                Self::Stopped { instance: own } | Self::Deleted { instance: own, .. },
                C::InstanceGone { instance, .. }
                | C::InstanceDeleted { instance, .. }
                | C::InstanceState {
                    instance,
                    state: InstanceState::Deleted,
                    ..
                },
            ) if own == instance => Some(Shown::Gone { instance: *instance }),
            (
                Self::Deleted {
                    instance: own,
                    from_node: true,
                },
                C::InstanceStopped { instance, .. },
            ) if own == instance => Some(Shown::Stopped { instance: *instance }),

            (
                Self::Attached {
                    instance: own,
                    volume: wanted,
                },
                C::VolumeAttached { instance, volume },
            ) if own == instance && same(wanted, volume) => Some(Shown::Attached {
                instance: *instance,
                volume: volume.clone(),
            }),
            (
                Self::Detached {
                    instance: own,
                    volume: wanted,
                },
                C::VolumeDetached { instance, volume },
            ) if own == instance && same(wanted, volume) => Some(Shown::Detached {
                instance: *instance,
                volume: volume.clone(),
            }),

            (Self::Evacuated { node: own, .. }, C::NodeStats { node, .. }) if own == node => {
                let alive = || view.instances_of(*node).filter(|instance| instance.is_alive());
                let hung = alive().filter(|i| i.state == InstanceState::Hung).count();
                let only_hung = hung == alive().count();
                let status = &view.node(*node)?.status;
                (only_hung && *status == NodeStatus::Maintenance)
                    .then_some(Shown::Evacuated { node: *node, hung })
            }
            (
                Self::Evacuated {
                    node: own,
                    leaves: true,
                },
                C::NodeDisconnected { node, .. },
            ) if own == node => Some(Shown::Left { node: *node }),
            (Self::Restored { node: own }, C::NodeStats { node, .. }) if own == node => {
                let status = &view.node(*node)?.status;
                let in_service = matches!(status, NodeStatus::Ready | NodeStatus::Full);
                in_service.then_some(Shown::Restored { node: *node })
            }

            (Self::Configured { configuration: own }, C::Configured { configuration })
                if own == configuration =>
            {
                Some(Shown::Configured)
            }

            (
                Self::Assigned {
                    instance: own,
                    public_ip: wanted,
                },
                C::PublicIpAssigned {
                    instance, public_ip, ..
                },
            ) if same(own, instance) && wanted == public_ip => Some(Shown::Assigned {
                instance: instance.clone(),
                public_ip: public_ip.clone(),
            }),
            (
                Self::Released {
                    instance: own,
                    public_ip: wanted,
                },
                C::PublicIpUnassigned {
                    instance, public_ip, ..
                },
            ) if same(own, instance) && wanted == public_ip => Some(Shown::Released {
                instance: instance.clone(),
                public_ip: public_ip.clone(),
            }),
            _ => None,
        }
    }

    /// Whether a failure is this command's.
    pub(super) fn failed(&self, failure: &Failure) -> bool {
        if failure.error == ErrorCode::INVALID_FRAME_TYPE || failure.command != self.command() {
            return false;
        }
        let same_volume = match self {
            Self::Attached { volume, .. } | Self::Detached { volume, .. } => same(volume, &failure.volume),
            Self::Assigned { public_ip, .. } | Self::Released { public_ip, .. } => {
                *public_ip == failure.public_ip
            }
            _ => true,
        };
        same_volume && self.instance().is_none_or(|own| same(own, &failure.instance))
    }

    /// What a failure shows that leaves nothing to be done: an instance that was to
    /// be deleted, that its node was seen with, and that the node, which is
    /// connected, no longer has, since its START failed or its time was up.
    pub(super) fn is_met_by(&self, failure: &Failure, view: &View) -> Option<Shown> {
        let Self::Deleted { instance, .. } = self else {
            return None;
        };
        let instance = instance.uuid()?;
        let node = view.node(failure.node.uuid()?)?;
        let was_there = view.instance(instance).is_some_and(|seen| seen.node == node.uuid);
        (failure.reason == "no_instance" && node.is_current() && was_there)
            .then_some(Shown::Gone { instance })
    }

    /// How well InvalidFrameType fits this command; none where it does not.
    pub(super) fn refused(&self, failure: &Failure, view: &View) -> Option<u8> {
        if failure.error != ErrorCode::INVALID_FRAME_TYPE || failure.command != self.command() {
            return None;
        }
        let node = match self {
            Self::Evacuated { node, .. } | Self::Restored { node } => node.uuid(),
            _ => None,
        };
        let connected = node
            .and_then(|node| view.node(node))
            .is_some_and(|node| node.connected);
        Some(u8::from(failure.reason == "not_connected" && !connected))
    }

    /// A failure that names nobody, as this command's.
    pub(super) fn named(&self, mut failure: Failure) -> Failure {
        if let Self::Evacuated { node, .. } | Self::Restored { node } = self {
            failure.node = node.clone();
        }
        failure
    }

    /// Whether it is a START of which nothing is known.
    pub(super) fn is_lost(&self, view: &View) -> bool {
        let Self::Started { instance } = self else {
            return false;
        };
        instance.uuid().and_then(|uuid| view.instance(uuid)).is_none()
    }

    /// Whether its instance is being started, by a node that still reports.
    pub(super) fn is_progressing(&self, view: &View) -> bool {
        let instance = self.instance().and_then(Id::uuid);
        let instance = instance.and_then(|uuid| view.instance(uuid));
        instance.is_some_and(|instance| {
            let node = view.node(instance.node);
            instance.state == InstanceState::Pending && node.is_some_and(Node::is_current)
        })
    }

    /// How far it has come, as far as the view tells.
    pub(super) fn progress(&self, view: &View) -> String {
        match view.is_online() {
            true => self.progress_seen(view),
            false => format!("{}; the scheduler is not connected", self.progress_seen(view)),
        }
    }

    fn progress_seen(&self, view: &View) -> String {
        let gone = |node: Uuid| match view.node(node) {
            Some(node) if node.connected => "",
            _ => ", which is not connected",
        };
        if let Self::Evacuated { node, .. } | Self::Restored { node } = self {
            return match node.uuid().and_then(|node| view.node(node)) {
                None => "the node is not known".into(),
                Some(node) if view.is_online() && !node.connected => "the node is not connected".into(),
                Some(node) => {
                    let alive = view.instances_of(node.uuid).filter(|i| i.is_alive()).count();
                    format!("the node is {}, and {alive} instances run", node.status)
                }
            };
        }
        match self
            .instance()
            .and_then(Id::uuid)
            .and_then(|uuid| view.instance(uuid))
        {
            Some(instance) => {
                let (state, node) = (&instance.state, instance.node);
                let gone = if view.is_online() { gone(node) } else { "" };
                format!("the instance is {state} on node {node}{gone}")
            }
            None if matches!(self, Self::Configured { .. }) => "neither refused nor taken up".into(),
            None => "no node has the instance".into(),
        }
    }
}

/// The instance runs, or has run.
fn up(instance: Uuid, node: Uuid, state: &InstanceState, view: &View) -> Option<Shown> {
    match state {
        InstanceState::Active => Some(Shown::Running { instance, node }),
        InstanceState::Exited => Some(Shown::Ended {
            instance,
            ending: view.instance(instance).and_then(Instance::ending),
        }),
        _ => None,
    }
}

/// Whether two texts name the same: UUIDs in either case.
fn same(one: &Id, other: &Id) -> bool {
    one == other || one.uuid().is_some_and(|uuid| *other == uuid)
}

macro_rules! orderable {
    ($($payload:ident: |$command:ident| $goal:expr;)*) => {
        $(
            impl private::HasGoal for $payload {
                #[allow(private_interfaces, reason = "the trait is out of reach as well")]
                fn goal(&self) -> Goal {
                    let $command = self;
                    $goal
                }
            }

            impl Orderable for $payload {}
        )*
    };
}

orderable! {
    Start: |c| Goal::Started { instance: c.instance_uuid.into() };
    StartPayload: |c| Goal::Started { instance: c.start.instance_uuid.into() };
    Stop: |c| Goal::Stopped { instance: c.instance_uuid.clone() };
    Restart: |c| Goal::Restarted { instance: c.instance_uuid.clone() };
    Delete: |c| Goal::Deleted { instance: c.instance_uuid.clone(), from_node: c.stop };
    AttachVolume: |c| Goal::Attached { instance: c.instance_uuid.clone(), volume: c.volume_uuid.clone() };
    DetachVolume: |c| Goal::Detached { instance: c.instance_uuid.clone(), volume: c.volume_uuid.clone() };
    Evacuate: |c| Goal::Evacuated {
        node: c.workload_agent_uuid.clone(),
        leaves: c.next_state != NextState::Maintenance,
    };
    Restore: |c| Goal::Restored { node: c.workload_agent_uuid.clone() };
    AssignPublicIp: |c| Goal::Assigned {
        instance: c.instance_uuid.clone(),
        public_ip: c.public_ip.clone(),
    };
    ReleasePublicIp: |c| Goal::Released {
        instance: c.instance_uuid.clone(),
        public_ip: c.public_ip.clone(),
    };
}
