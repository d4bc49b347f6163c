//! Commands whose payload names their receiver. They are forwarded unchanged.

use uuid::Uuid;

use super::placement::Suspension;
use super::{Scheduler, answers, limited};
use ssntp::Role;
use ssntp::payload::Id;
use ssntp::proto::{Command, Frame};
use ssntp::server::{Context, SessionInfo};
use ssntp_cluster::refusal::Refused;
use ssntp_payload::{
    AssignPublicIp, AttachVolume, Delete, DetachVolume, Evacuate, RefreshCnci, ReleasePublicIp, Restart,
    Restore, Stop,
};
use ssntp_transport::LogLimit;
use ssntp_transport::excerpt;

/// The reason in the failure of a command whose receiver is not connected.
const NOT_CONNECTED: &str = "not_connected";
const NODE: Role = Role::from_bits(Role::AGENT.bits() | Role::NETAGENT.bits());

impl Scheduler {
    /// Forwards a controller's command. Refuses it if its receiver is not connected, or if the
    /// instance belongs to another node than the named one.
    pub(super) fn relay(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        macro_rules! of_instance {
            ($payload:ident) => {
                frame
                    .payload()
                    .map(|p: $payload| (p.workload_agent_uuid, p.instance_uuid))
            };
        }

        let (command, none) = (Command(frame.kind().operand), Id::default);
        let addressed = match command {
            Command::STOP => of_instance!(Stop),
            Command::DELETE => of_instance!(Delete),
            Command::RESTART => of_instance!(Restart),
            Command::ATTACH_VOLUME => of_instance!(AttachVolume),
            Command::DETACH_VOLUME => of_instance!(DetachVolume),
            Command::EVACUATE => frame.payload().map(|p: Evacuate| (p.workload_agent_uuid, none())),
            Command::RESTORE => frame.payload().map(|p: Restore| (p.workload_agent_uuid, none())),
            Command::ASSIGN_PUBLIC_IP => frame
                .payload()
                .map(|p: AssignPublicIp| (p.concentrator_uuid, none())),
            Command::RELEASE_PUBLIC_IP => frame
                .payload()
                .map(|p: ReleasePublicIp| (p.concentrator_uuid, none())),
            Command::REFRESH_CNCI => frame.payload().map(|p: RefreshCnci| (p.cnci_uuid, none())),
            // The filter admits no other command of a controller.
            _ => return,
        };
        let (to, instance) = match addressed {
            Ok((to, instance)) => (to, instance.uuid()),
            Err(e) => {
                limited!(info, self.log, cx, from.uuid(), "refused"; "{from}: {command} refused: {}", excerpt(&e));
                return answers::refuse(cx, from, frame, &e.into());
            }
        };
        if command == Command::ASSIGN_PUBLIC_IP
            && let Ok(AssignPublicIp { public_ip, .. }) = frame.payload()
            && let Some(holder) = self.cncis.other_holder(&to, &public_ip)
        {
            // Packets of the underlay would reach either of them.
            let why = format!("{public_ip}: concentrator {holder} has it");
            return answers::refuse(cx, from, frame, &Refused::new("assign_failure", why));
        }
        let role = match command {
            Command::ASSIGN_PUBLIC_IP | Command::RELEASE_PUBLIC_IP | Command::REFRESH_CNCI => Role::CNCIAGENT,
            _ => NODE,
        };
        let has = instance.and_then(|instance| self.instances.node_of(instance));
        // If two nodes have an instance, it can be deleted on the node to which it does not belong.
        let is_second = command == Command::DELETE
            && instance
                .zip(to.uuid())
                .is_some_and(|(instance, node)| self.instances.lists_foreign(instance, node));
        // The named node would answer that it has no such instance, although another node has it.
        if !is_second && has.is_some_and(|node| to != node) {
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
        if let Err(refused) = forward(cx, &mut self.log, from, frame, (&to, role)) {
            return answers::refuse(cx, from, frame, &refused);
        }
        let Some(node) = to.uuid() else { return };
        if let Some(instance) = instance {
            let known = has.map(|_| self.instances.has_ended(instance));
            self.commands.add(node, instance, known, frame, cx.now());
        }
        match command {
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
    (id, role): (&Id, Role),
) -> Result<(), Refused> {
    let kind = frame.kind();
    let directory = cx.directory();
    // A client of another role does not know the command, so it must not receive it.
    let session = id.uuid().and_then(|uuid| directory.session(uuid));
    let Some(to) = session.filter(|session| session.role().intersects(role)) else {
        let id = excerpt(id);
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
