//! Commands whose payload names their receiver. They are forwarded unchanged.

use uuid::Uuid;

use super::out::{Out, limited};
use ssntp::Role;
use ssntp::payload::{Error, Id};
use ssntp::proto::{Command, Frame};
use ssntp::server::SessionInfo;
use ssntp_cluster::refusal::{Reason, Refused};
use ssntp_payload::{
    AssignPublicIp, AttachVolume, Delete, DetachVolume, Evacuate, RefreshCnci, ReleasePublicIp, Restart,
    Restore, Stop,
};
use ssntp_transport::excerpt;

const NODE: Role = Role::from_bits(Role::AGENT.bits() | Role::NETAGENT.bits());

/// The receiver that a command names, the roles that know the command, and the instance that it is
/// for.
#[derive(Debug)]
pub(super) struct Addressed {
    pub(super) to: Id,
    pub(super) role: Role,
    pub(super) instance: Option<Uuid>,
}

impl Addressed {
    /// Reads the receiver of a controller's command; `None` for a command that names none, which the
    /// filter does not admit.
    pub(super) fn read(frame: &Frame) -> Option<Result<Self, Error>> {
        macro_rules! addressed {
            ($payload:ident, $to:ident, $role:expr $(, $instance:ident)?) => {
                frame.payload().map(|p: $payload| Self {
                    to: p.$to,
                    role: $role,
                    instance: None $(.or(p.$instance.uuid()))?,
                })
            };
        }
        Some(match Command(frame.kind().operand) {
            Command::STOP => addressed!(Stop, workload_agent_uuid, NODE, instance_uuid),
            Command::DELETE => addressed!(Delete, workload_agent_uuid, NODE, instance_uuid),
            Command::RESTART => addressed!(Restart, workload_agent_uuid, NODE, instance_uuid),
            Command::ATTACH_VOLUME => addressed!(AttachVolume, workload_agent_uuid, NODE, instance_uuid),
            Command::DETACH_VOLUME => addressed!(DetachVolume, workload_agent_uuid, NODE, instance_uuid),
            Command::EVACUATE => addressed!(Evacuate, workload_agent_uuid, NODE),
            Command::RESTORE => addressed!(Restore, workload_agent_uuid, NODE),
            Command::ASSIGN_PUBLIC_IP => addressed!(AssignPublicIp, concentrator_uuid, Role::CNCIAGENT),
            Command::RELEASE_PUBLIC_IP => addressed!(ReleasePublicIp, concentrator_uuid, Role::CNCIAGENT),
            Command::REFRESH_CNCI => addressed!(RefreshCnci, cnci_uuid, Role::CNCIAGENT),
            _ => return None,
        })
    }
}

/// Forwards a frame to the client that it names, if that has one of these roles.
pub(super) fn forward(
    out: &mut Out<'_, '_>,
    from: &SessionInfo,
    frame: &Frame,
    (id, role): (&Id, Role),
) -> Result<(), Refused> {
    let kind = frame.kind();
    let directory = out.cx.directory();
    // A client of another role does not know the command, so it must not receive it.
    let session = id.uuid().and_then(|uuid| directory.session(uuid));
    let to = session.filter(|session| session.role().intersects(role));
    let Some(to) = to.map(SessionInfo::uuid) else {
        let id = excerpt(id);
        limited!(info, out, from.uuid(), "not connected";
            "{from}: {kind} for {id}, which is not connected");
        return Err(Reason::NotConnected.into());
    };
    out.cx.forward(from, to, frame).map_err(|e| {
        limited!(warn, out, from.uuid(), "not forwarded"; "{from}: {kind}: {e}");
        Reason::NotConnected.into()
    })
}
