//! Commands and events whose payload names whom they are for. They go there
//! as they came.

use log::{info, warn};
use uuid::Uuid;

use super::answers::{self, Why};
use super::now;
use crate::Role;
use crate::log_limit::LogLimit;
use crate::payload::{
    AssignPublicIp, AttachVolume, Delete, DetachVolume, Error, Evacuate, Id, RefreshCnci, ReleasePublicIp,
    Restart, Restore, Stop, TenantAdded, TenantRemoved,
};
use crate::printable::excerpt;
use crate::proto::{Command, Event, Frame};
use crate::server::{Context, SessionInfo};

const NODE: Role = Role::from_bits(Role::AGENT.bits() | Role::NETAGENT.bits());

/// Forwards a controller's command, or answers it.
pub(super) fn command(cx: &mut Context<'_>, log: &mut LogLimit<Uuid>, from: &SessionInfo, frame: &Frame) {
    let to = match Command(frame.kind().operand) {
        Command::STOP => frame.payload().map(|p: Stop| (p.workload_agent_uuid, NODE)),
        Command::DELETE => frame.payload().map(|p: Delete| (p.workload_agent_uuid, NODE)),
        Command::RESTART => frame.payload().map(|p: Restart| (p.workload_agent_uuid, NODE)),
        Command::EVACUATE => frame.payload().map(|p: Evacuate| (p.workload_agent_uuid, NODE)),
        Command::RESTORE => frame.payload().map(|p: Restore| (p.workload_agent_uuid, NODE)),
        Command::ATTACH_VOLUME => frame
            .payload()
            .map(|p: AttachVolume| (p.workload_agent_uuid, NODE)),
        Command::DETACH_VOLUME => frame
            .payload()
            .map(|p: DetachVolume| (p.workload_agent_uuid, NODE)),
        Command::ASSIGN_PUBLIC_IP => frame.payload().map(|p: AssignPublicIp| cnci(p.concentrator_uuid)),
        Command::RELEASE_PUBLIC_IP => frame
            .payload()
            .map(|p: ReleasePublicIp| cnci(p.concentrator_uuid)),
        Command::REFRESH_CNCI => frame.payload().map(|p: RefreshCnci| cnci(p.cnci_uuid)),
        _ => return,
    };
    if let Err(e) = forward(cx, log, from, frame, to) {
        let why = e.as_ref().map_or(Why::NotConnected, Why::Unreadable);
        answers::refuse(cx, from, frame, why);
    }
}

/// Forwards an agent's event. One for who is not connected is dropped: an
/// event asks for nothing, and a CNCI that connects is told by RefreshCNCI.
pub(super) fn event(cx: &mut Context<'_>, log: &mut LogLimit<Uuid>, from: &SessionInfo, frame: &Frame) {
    let to = match Event(frame.kind().operand) {
        Event::TENANT_ADDED => frame.payload().map(|p: TenantAdded| cnci(p.concentrator_uuid)),
        Event::TENANT_REMOVED => frame.payload().map(|p: TenantRemoved| cnci(p.concentrator_uuid)),
        _ => return,
    };
    if let Err(Some(e)) = forward(cx, log, from, frame, to) {
        answers::refuse(cx, from, frame, Why::Unreadable(&e));
    }
}

fn cnci(id: Id) -> (Id, Role) {
    (id, Role::CNCIAGENT)
}

/// The error is none where nobody of that UUID and role is connected.
fn forward(
    cx: &mut Context<'_>,
    log: &mut LogLimit<Uuid>,
    from: &SessionInfo,
    frame: &Frame,
    to: Result<(Id, Role), Error>,
) -> Result<(), Option<Error>> {
    let kind = frame.kind();
    let (id, role) = to.map_err(|e| {
        if let Some(more) = log.admit(from.uuid(), "refused", now()) {
            info!(target: "ssntp::scheduler", "{from}: {kind} refused: {}{more}", excerpt(&e));
        }
        Some(e)
    })?;
    let directory = cx.directory();
    let session = id.uuid().and_then(|uuid| directory.session(uuid));
    let Some(to) = session.filter(|session| session.role().intersects(role)) else {
        if let Some(more) = log.admit(from.uuid(), "not connected", now()) {
            let id = excerpt(&id);
            info!(target: "ssntp::scheduler", "{from}: {kind} for {id}, who is not connected{more}");
        }
        return Err(None);
    };
    let to = to.uuid();
    cx.forward(from, to, frame).map_err(|e| {
        if let Some(more) = log.admit(from.uuid(), "not forwarded", now()) {
            warn!(target: "ssntp::scheduler", "{from}: {kind}: {e}{more}");
        }
        None
    })
}
