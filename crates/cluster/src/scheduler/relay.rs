//! Commands whose payload names their receiver. They are forwarded unchanged.

use uuid::Uuid;

use super::placement::Suspension;
use super::{Scheduler, answers, limited};
use crate::refusal::Refused;
use ssntp::Role;
use ssntp::payload::{
    AssignPublicIp, AttachVolume, Delete, DetachVolume, Error, Evacuate, Id, RefreshCnci, ReleasePublicIp,
    Restart, Restore, Stop,
};
use ssntp::proto::{Command, Frame};
use ssntp::server::{Context, SessionInfo};
use ssntp_transport::LogLimit;
use ssntp_transport::excerpt;

/// The reason in the failure of a command whose receiver is not connected.
const NOT_CONNECTED: &str = "not_connected";
const NODE: Role = Role::from_bits(Role::AGENT.bits() | Role::NETAGENT.bits());

/// The receiver of a command with the role that it must have, and the instance of the command.
struct Addressed {
    to: (Id, Role),
    instance: Id,
}

macro_rules! addressed {
    ($frame:ident as $payload:ident) => {
        $frame.payload().map(|p: $payload| Addressed {
            to: (p.workload_agent_uuid, NODE),
            instance: p.instance_uuid,
        })
    };
    ($frame:ident as $payload:ident to $role:expr, $field:ident) => {
        $frame.payload().map(|p: $payload| Addressed {
            to: (p.$field, $role),
            instance: Id::default(),
        })
    };
}

impl Scheduler {
    /// Forwards a controller's command. Refuses it if its receiver is not connected, or if the
    /// instance belongs to another node than the named one.
    pub(super) fn relay(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let addressed = match Command(frame.kind().operand) {
            Command::STOP => addressed!(frame as Stop),
            Command::DELETE => addressed!(frame as Delete),
            Command::RESTART => addressed!(frame as Restart),
            Command::ATTACH_VOLUME => addressed!(frame as AttachVolume),
            Command::DETACH_VOLUME => addressed!(frame as DetachVolume),
            Command::EVACUATE => addressed!(frame as Evacuate to NODE, workload_agent_uuid),
            Command::RESTORE => addressed!(frame as Restore to NODE, workload_agent_uuid),
            Command::ASSIGN_PUBLIC_IP => {
                addressed!(frame as AssignPublicIp to Role::CNCIAGENT, concentrator_uuid)
            }
            Command::RELEASE_PUBLIC_IP => {
                addressed!(frame as ReleasePublicIp to Role::CNCIAGENT, concentrator_uuid)
            }
            Command::REFRESH_CNCI => addressed!(frame as RefreshCnci to Role::CNCIAGENT, cnci_uuid),
            // The filter admits no other command of a controller.
            _ => return,
        };
        let instance = addressed.as_ref().ok().and_then(|a| a.instance.uuid());
        let has = instance.and_then(|instance| self.instances.node_of(instance));
        let node = addressed.as_ref().ok().and_then(|a| a.to.0.uuid());
        // If two nodes have an instance, it can be deleted on the node to which it does not belong.
        let is_second = frame.kind() == Command::DELETE
            && instance
                .zip(node)
                .is_some_and(|(instance, node)| self.instances.lists_foreign(instance, node));
        // The named node would answer that it has no such instance, although another node has it.
        let elsewhere = |a: &Addressed| has.is_some_and(|node| a.to.0 != node);
        if !is_second && addressed.as_ref().is_ok_and(elsewhere) {
            return answers::refuse(cx, from, frame, &NOT_CONNECTED.into());
        }
        // The command is newer than the instance's move or START, so the START must not be placed
        // again.
        if let Some(instance) = instance
            && !is_second
        {
            self.moves.cancel(instance, has);
            if self.instances.is_starting(instance) {
                self.moves.forget(instance);
            }
        }
        let to = addressed.map(|addressed| addressed.to);
        if let Err(refused) = forward(cx, &mut self.log, from, frame, to) {
            return answers::refuse(cx, from, frame, &refused);
        }
        let Some(node) = node else { return };
        if let Some(instance) = instance {
            let known = has.map(|_| self.instances.has_ended(instance));
            self.commands.add(node, instance, known, frame, cx.now());
        }
        match Command(frame.kind().operand) {
            Command::EVACUATE => {
                // A READY that the node sent before it received EVACUATE may still arrive.
                self.placement.suspend(node, Suspension::Evacuating);
                if frame.payload().is_ok_and(|evacuate: Evacuate| evacuate.moves) {
                    self.begin_move(cx, from, node);
                }
                // Held STARTs that waited for this node are placed on other nodes.
                self.node_changed(cx, node);
            }
            Command::RESTORE => {
                self.placement.resume(node, Suspension::Evacuating);
                self.moves.end(node);
            }
            _ => {}
        }
    }
}

/// Forwards a frame to the client that it names, if that has one of these roles.
pub(super) fn forward(
    cx: &mut Context<'_>,
    log: &mut LogLimit<Uuid>,
    from: &SessionInfo,
    frame: &Frame,
    to: Result<(Id, Role), Error>,
) -> Result<(), Refused> {
    let kind = frame.kind();
    let (id, role) = to.map_err(|e| {
        limited!(info, log, cx, from.uuid(), "refused"; "{from}: {kind} refused: {}", excerpt(&e));
        Refused::from(e)
    })?;
    let directory = cx.directory();
    // A client of another role does not know the command, so it must not receive it.
    let session = id.uuid().and_then(|uuid| directory.session(uuid));
    let Some(to) = session.filter(|session| session.role().intersects(role)) else {
        let id = excerpt(&id);
        limited!(info, log, cx, from.uuid(), "not connected";
            "{from}: {kind} for {id}, which is not connected");
        return Err(NOT_CONNECTED.into());
    };
    let to = to.uuid();
    cx.forward(from, to, frame).map_err(|e| {
        limited!(warn, log, cx, from.uuid(), "not forwarded"; "{from}: {kind}: {e}");
        NOT_CONNECTED.into()
    })
}
