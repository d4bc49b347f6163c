//! The goal of a command: the state that the command brings about, as predicates on the view. These
//! are pure functions without I/O or a clock.
//!
//! | command | reached when | and its order settles on |
//! |---|---|---|
//! | START, RESTART | the instance is `active` or has ended; InstanceDeleted, which shows for START that the instance existed. An instance that STATS no longer list may never have run | STATS that show another state of the instance; for START also InstanceStopped, unless STATS have shown that the instance ran before; for RESTART not its end after `active`, which happens before the restart |
//! | STOP | the instance is `exited` or missing | STATS, InstanceStopped, InstanceDeleted |
//! | DELETE | the node no longer has the instance | STATS, InstanceDeleted; InstanceStopped if the DELETE has `stop` |
//! | AttachVolume, DetachVolume | the instance has the volume, or no longer has it | STATS |
//! | EVACUATE | the node is in `MAINTENANCE` and all instances that run are `hung` | STATS; the node's disconnection if the node leaves after the evacuation |
//! | Restore | the node is `READY` or `FULL` | STATS |
//! | AssignPublicIP, ReleasePublicIP | the concentrator has assigned the address, or released it | PublicIPAssigned, PublicIPUnassigned |
//! | CONFIGURE | the scheduler distributes the configuration | CONFIGURE from the scheduler, or CONNECTED of a new session |
//!
//! A predicate alone cannot settle an order: when a RESTART is sent, its instance may still be
//! active. So the predicate is evaluated only when a change concerns the subject of the order.
//!
//! Each command has an id, and a failure answers the command whose id it repeats. A failure without
//! an id answers the command that names the same instance, volume and address. InvalidFrameType
//! names no subject: it answers the latest command of its kind, and with the reason `not_connected`
//! the latest one whose node is not connected.

use std::fmt;

use bytes::Bytes;
use thiserror::Error;
use uuid::Uuid;

use crate::change::Change;
use crate::ending::Ending;
use crate::entities::{Instance, Node};
use crate::failure::{self, Failure};
use crate::view::View;
use ssntp::payload::Payload;
use ssntp::proto::{Command, ErrorCode, Frame};
use ssntp_cluster::refusal::same;
use ssntp_payload::{
    AssignPublicIp, AttachVolume, CommandSubject, Delete, DetachVolume, Evacuate, InstanceState, NextState,
    NodeStatus, ReleasePublicIp, Restart, Restore, Start, StartPayload, Stop,
};

/// A command whose effect the view shows: the payloads that
/// [`Controller::order`](crate::Controller::order) accepts. No other type can be one, because no view shows its effect.
///
/// ```compile_fail
/// ssntp::schema! { Own = Command::TENANT { id: String, } }
/// impl ssntp_view::Orderable for Own {}
/// ```
pub trait Orderable: Payload + private::Sealed {}

mod private {
    pub trait Sealed {}
}

macro_rules! orderable {
    ($($payload:ident)*) => {$(
        impl private::Sealed for $payload {}
        impl Orderable for $payload {}
    )*};
}

orderable! {
    Start StartPayload Stop Restart Delete AttachVolume DetachVolume Evacuate Restore
    AssignPublicIp ReleasePublicIp
}

/// The goal of a command: the command, and its subject.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    command: Command,
    about: CommandSubject,
    /// For DELETE: the instance is only removed from its node. For EVACUATE: the node disconnects
    /// afterwards.
    leaves: bool,
    /// The payload of CONFIGURE; empty for other commands.
    configuration: Bytes,
}

/// Evidence that a command was carried out. Displayed as a sentence, by the derive of errors.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shown {
    /// The instance runs.
    #[error("instance {instance} runs on node {node}")]
    Running {
        /// The instance.
        instance: Uuid,
        /// Its node.
        node: Uuid,
    },
    /// The instance was started, and has ended already.
    #[error("instance {instance} was started and has ended{}", Ending::after_colon(ending.as_ref()))]
    Ended {
        /// The instance.
        instance: Uuid,
        /// The end of its run, if that is known.
        ending: Option<Ending>,
    },
    /// The instance is gone.
    #[error("instance {instance} is gone{}", Ending::after_colon(ending.as_ref()))]
    Gone {
        /// The instance.
        instance: Uuid,
        /// The end of its last run, if an event of its node has reported it.
        ending: Option<Ending>,
    },
    /// Any other goal is reached. The text describes it.
    #[error("{0}")]
    Done(String),
}

impl Goal {
    /// The goal of a command that is about to be sent.
    pub(crate) fn of(frame: &Frame) -> Self {
        let command = Command(frame.kind().operand);
        let leaves = match command {
            Command::DELETE => frame.payload().is_ok_and(|delete: Delete| delete.stop),
            Command::EVACUATE => frame
                .payload()
                .is_ok_and(|evacuate: Evacuate| evacuate.next_state != NextState::Maintenance),
            _ => false,
        };
        let configuration = match command {
            Command::CONFIGURE => frame.payload_bytes().clone(),
            _ => Bytes::new(),
        };
        Self {
            command,
            about: CommandSubject::of(frame),
            leaves,
            configuration,
        }
    }

    /// The command.
    pub(crate) fn command(&self) -> Command {
        self.command
    }

    /// The UUID of the instance or node of the command; empty for CONFIGURE.
    pub(crate) fn subject(&self) -> &str {
        if self.is_for_a_node() {
            self.about.node_uuid.as_str()
        } else {
            self.about.instance_uuid.as_str()
        }
    }

    fn is_for_a_node(&self) -> bool {
        matches!(self.command, Command::EVACUATE | Command::RESTORE)
    }

    fn instance<'a>(&self, view: &'a View) -> Option<&'a Instance> {
        view.instance(self.about.instance_uuid.uuid()?)
    }

    fn node<'a>(&self, view: &'a View) -> Option<&'a Node> {
        view.node(self.about.node_uuid.uuid()?)
    }

    /// The evidence in the view that the goal is reached; `None` if it is not.
    pub(crate) fn reached(&self, view: &View) -> Option<Shown> {
        let CommandSubject {
            instance_uuid: instance,
            volume_uuid: volume,
            public_ip,
            ..
        } = &self.about;
        let seen = self.instance(view);
        // The present state of a disconnected node is unknown.
        let node = self.node(view).filter(|node| node.connected);
        let has_volume = |seen: &Instance| seen.stats.volumes.iter().any(|listed| same(volume, listed));
        let cnci = self.about.concentrator_uuid.uuid();
        let owner = cnci.and_then(|cnci| view.cnci(cnci)?.public_ips.get(public_ip));
        let has_address = owner.is_some_and(|owner| same(instance, &owner.instance_uuid));
        let (is_reached, text) = match self.command {
            Command::START | Command::RESTART => return seen.and_then(started),
            Command::STOP if seen.is_some_and(|seen| seen.state == InstanceState::Exited) => {
                (true, stopped(instance, seen.and_then(Instance::ending).as_ref()))
            }
            // STOP deletes an instance that is not persistent, so a missing instance has stopped.
            Command::STOP | Command::DELETE => {
                let is_gone = match seen {
                    Some(seen) if self.is_elsewhere(seen) => !node?.stats.foreign.contains(instance),
                    seen => seen.is_none_or(|seen| seen.state == InstanceState::Deleted),
                };
                let (instance, ending) = (instance.uuid()?, None);
                return is_gone.then_some(Shown::Gone { instance, ending });
            }
            Command::ATTACH_VOLUME => (
                has_volume(seen?),
                format!("volume {volume} is attached to instance {instance}"),
            ),
            Command::DETACH_VOLUME => (
                !has_volume(seen?),
                format!("volume {volume} is detached from instance {instance}"),
            ),
            Command::EVACUATE => {
                let Node { uuid, status, .. } = node?;
                let alive = || view.instances_of(*uuid).filter(|instance| instance.is_alive());
                // An evacuation does not wait for instances that do not end when they are killed.
                let hung = alive().filter(|i| i.state == InstanceState::Hung).count();
                // Both are needed: STATS have the status MAINTENANCE as soon as the node has
                // received EVACUATE, while its instances still run.
                let is_empty = hung == alive().count() && *status == NodeStatus::Maintenance;
                let text = match hung {
                    0 => format!("node {uuid} is empty, and in maintenance"),
                    _ => format!("node {uuid} is in maintenance, but {hung} instances cannot be ended"),
                };
                (is_empty, text)
            }
            Command::RESTORE => (
                // A full node is also in service.
                matches!(node?.status, NodeStatus::Ready | NodeStatus::Full),
                format!("node {} is back in service", node?.uuid),
            ),
            Command::ASSIGN_PUBLIC_IP => (
                has_address,
                format!("{public_ip} is assigned to instance {instance}"),
            ),
            Command::RELEASE_PUBLIC_IP => (
                !has_address,
                format!("{public_ip} is taken from instance {instance}"),
            ),
            Command::CONFIGURE => (
                view.configuration() == Some(&self.configuration),
                "the cluster has the configuration".into(),
            ),
            _ => return None,
        };
        is_reached.then_some(Shown::Done(text))
    }

    /// The evidence that the goal is reached, if this change shows it.
    pub(crate) fn shown(&self, change: &Change, view: &View) -> Option<Shown> {
        use Change as C;
        if !self.concerns(change) {
            return None;
        }
        let done = |is_done: bool, text: String| is_done.then_some(Shown::Done(text));
        match (self.command, change) {
            // The instance ends before it is started again.
            (
                Command::RESTART,
                C::InstanceState {
                    before: InstanceState::Active,
                    state: InstanceState::Exited,
                    ..
                },
            ) => None,
            // An instance that STATS have shown to run may have been stopped before this START was sent.
            (Command::START, C::InstanceStopped { instance, ending, .. }) => self
                .instance(view)
                .is_none_or(|seen| {
                    matches!(seen.stats.state, InstanceState::Pending | InstanceState::Stopping)
                })
                .then(|| Shown::Ended {
                    instance: *instance,
                    ending: Some(ending.clone()),
                }),
            (Command::RESTART, C::InstanceStopped { .. }) => None,
            (Command::START, C::InstanceDeleted { instance, ending, .. }) => Some(Shown::Ended {
                instance: *instance,
                ending: Some(ending.clone()),
            }),
            // For RESTART this does not show a start, because the instance existed before.
            (_, C::InstanceDeleted { instance, ending, .. }) => Some(Shown::Gone {
                instance: *instance,
                ending: Some(ending.clone()),
            }),
            // The node answers a DELETE with `stop` with this event instead of InstanceDeleted.
            (_, C::InstanceStopped { instance, ending, .. }) => done(
                self.leaves || self.command == Command::STOP,
                stopped(instance, Some(ending)),
            ),
            (_, C::NodeDisconnected { node, .. }) => {
                done(self.leaves, format!("node {node} is empty, and has left"))
            }
            (Command::DELETE, C::NodeStats { .. }) => {
                let seen = self.instance(view).filter(|seen| self.is_elsewhere(seen));
                seen.and_then(|_| self.reached(view))
            }
            _ => self.reached(view),
        }
    }

    /// True for a DELETE on another node than the one to which the instance belongs.
    fn is_elsewhere(&self, seen: &Instance) -> bool {
        self.command == Command::DELETE && self.about.node_uuid != seen.node
    }

    /// True if a change concerns the subject of the command. Other changes of the same instance do
    /// not show the outcome of this command.
    fn concerns(&self, change: &Change) -> bool {
        use Change as C;
        let about = &self.about;
        match (self.command, change) {
            (Command::START, C::InstanceAdded { instance, .. })
            | (
                Command::START | Command::RESTART | Command::STOP | Command::DELETE,
                C::InstanceState { instance, .. }
                | C::InstanceGone { instance, .. }
                | C::InstanceStopped { instance, .. }
                | C::InstanceDeleted { instance, .. },
            ) => about.instance_uuid == *instance,
            (Command::ATTACH_VOLUME, C::VolumeAttached { instance, volume })
            | (Command::DETACH_VOLUME, C::VolumeDetached { instance, volume }) => {
                about.instance_uuid == *instance && same(&about.volume_uuid, volume)
            }
            (Command::EVACUATE | Command::RESTORE | Command::DELETE, C::NodeStats { node, .. })
            | (Command::EVACUATE, C::NodeDisconnected { node, .. }) => about.node_uuid == *node,
            (
                Command::ASSIGN_PUBLIC_IP,
                C::PublicIpAssigned {
                    instance, public_ip, ..
                },
            )
            | (
                Command::RELEASE_PUBLIC_IP,
                C::PublicIpUnassigned {
                    instance, public_ip, ..
                },
            ) => same(&about.instance_uuid, instance) && about.public_ip == *public_ip,
            (Command::CONFIGURE, C::Configured { .. }) => true,
            _ => false,
        }
    }

    /// True if a failure answers this command.
    pub(crate) fn failed(&self, failure: &Failure) -> bool {
        let subject = &failure.subject;
        failure.error != ErrorCode::INVALID_FRAME_TYPE
            && failure.command == self.command
            && (subject.command_id.is_empty() || subject.command_id == self.about.command_id)
            && same(&self.about.instance_uuid, &subject.instance_uuid)
            && same(&self.about.volume_uuid, &subject.volume_uuid)
            && self.about.public_ip == subject.public_ip
            && failure::digest(&self.configuration) == failure.configuration
    }

    /// The evidence that the goal is reached although the command failed: a connected node reports
    /// that it does not have the instance of a DELETE, for example because the instance's START failed or
    /// its retention has ended; or that it has the instance of a START, for example because the answer to
    /// an earlier START was lost.
    pub(crate) fn is_met_by(&self, failure: &Failure, view: &View) -> Option<Shown> {
        let node = view
            .node(failure.subject.node_uuid.uuid()?)
            .filter(|node| node.is_current())?;
        let seen = self.instance(view).filter(|seen| seen.node == node.uuid)?;
        match (self.command, &*failure.reason) {
            (Command::DELETE, "no_instance") => Some(Shown::Gone {
                instance: seen.uuid,
                ending: None,
            }),
            (Command::START, "already_running") => started(seen),
            _ => None,
        }
    }

    /// A number that is larger the better InvalidFrameType fits this command; `None` if it refuses
    /// another kind of frame.
    pub(crate) fn refused(&self, failure: &Failure, view: &View) -> Option<u8> {
        let fits = failure.error == ErrorCode::INVALID_FRAME_TYPE && failure.command == self.command;
        let is_away = !self.is_for_a_node() || self.node(view).is_none_or(|node| !node.connected);
        // `not_connected` fits best if the command's node is not connected.
        fits.then(|| u8::from(failure.reason == "not_connected" && is_away))
    }

    /// InvalidFrameType as the failure of this command, with the command's node.
    pub(crate) fn named(&self, mut failure: Failure) -> Failure {
        if self.is_for_a_node() {
            failure.subject.node_uuid = self.about.node_uuid.clone();
        }
        failure
    }

    /// True for a START whose instance is not in the view.
    pub(crate) fn is_lost(&self, view: &View) -> bool {
        self.command == Command::START && self.instance(view).is_none()
    }

    /// True if a node that still reports is starting the instance.
    pub(crate) fn is_progressing(&self, view: &View) -> bool {
        self.instance(view).is_some_and(|instance| {
            instance.state == InstanceState::Pending && view.node(instance.node).is_some_and(Node::is_current)
        })
    }

    /// The progress of the command, in words.
    pub(crate) fn progress(&self, view: &View) -> String {
        let seen = self.progress_seen(view);
        if view.is_online() {
            seen
        } else {
            format!("{seen}; the scheduler is not connected")
        }
    }

    fn progress_seen(&self, view: &View) -> String {
        let is_away = |node: Option<&Node>| view.is_online() && node.is_none_or(|node| !node.connected);
        if self.is_for_a_node() {
            return match self.node(view) {
                None => "the node is not known".into(),
                node if is_away(node) => "the node is not connected".into(),
                Some(node) => {
                    let alive = view.instances_of(node.uuid).filter(|i| i.is_alive()).count();
                    format!("the node is {}, and {alive} instances run", node.status)
                }
            };
        }
        match self.instance(view) {
            Some(Instance { state, node, .. }) => {
                let is_away = is_away(view.node(*node));
                let away = if is_away { ", which is not connected" } else { "" };
                format!("the instance is {state} on node {node}{away}")
            }
            None if self.command == Command::CONFIGURE => {
                "the configuration was neither refused nor adopted".into()
            }
            None => "no node has the instance".into(),
        }
    }
}

/// The frame of a command, with a new id that its failure repeats.
pub(crate) fn identified(command: &impl Orderable) -> Frame {
    let frame = Frame::of(command);
    let payload = frame.payload_bytes();
    // The encoder writes only the root key in the first line, or the whole command as JSON. In the
    // latter case the command has no id, and its failure is found by its subject.
    let root = payload
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    let (root, keys) = payload.split_at(root);
    if !root.ends_with(b":\n") {
        return frame;
    }
    // With letters at the beginning, the id cannot be read as a number.
    let id = format!("  command_id: id-{}\n", Uuid::new_v4().simple());
    Frame::with_payload(frame.kind(), [root, id.as_bytes(), keys].concat())
}

fn stopped(instance: &impl fmt::Display, ending: Option<&Ending>) -> String {
    format!("instance {instance} has stopped{}", Ending::after_colon(ending))
}

/// The evidence that an instance runs, or has run.
fn started(seen: &Instance) -> Option<Shown> {
    let (instance, node) = (seen.uuid, seen.node);
    match seen.state {
        InstanceState::Active => Some(Shown::Running { instance, node }),
        InstanceState::Exited => Some(Shown::Ended {
            instance,
            ending: seen.ending(),
        }),
        _ => None,
    }
}
