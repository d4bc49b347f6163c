//! The role filter: the kinds of frames that each role may send.

use super::routing::KindTable;
use crate::proto::{Command, ErrorCode, Event, FrameKind, Status};
use ssntp_transport::Role;

/// The action for a frame that its sender's roles may not send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilterAction {
    /// Discard and count the frame.
    Drop,
    /// Discard and count the frame, and answer with InvalidFrameType, unless the frame is an ERROR.
    #[default]
    Reject,
}

/// A table of the roles that may send each kind of frame.
///
/// ```
/// use ssntp::proto::Command;
/// use ssntp::server::Filter;
/// use ssntp::Role;
///
/// assert!(Filter::spec().allows(Role::CONTROLLER, Command::START.into()));
/// assert!(!Filter::spec().allows(Role::AGENT, Command::START.into()));
/// assert!(Filter::allow_all().allows(Role::AGENT, Command::START.into()));
/// ```
#[derive(Debug)]
pub struct Filter {
    senders: KindTable<Role>,
    default: Role,
    action: FilterAction,
}

impl Default for Filter {
    /// [`Filter::allow_all`].
    fn default() -> Self {
        Self::allow_all()
    }
}

impl Filter {
    /// Every role may send every kind.
    pub fn allow_all() -> Self {
        Self {
            senders: KindTable::default(),
            default: Role::ALL,
            action: FilterAction::default(),
        }
    }

    /// No role may send a kind that [`allow`](Self::allow) does not permit.
    pub fn deny_all() -> Self {
        Self {
            default: Role::NONE,
            ..Self::allow_all()
        }
    }

    /// The table of a cluster's scheduler, with [`FilterAction::Reject`]. docs/cluster.md, "Who may say
    /// what", has the checks beyond roles. No client may send the frames that the scheduler itself makes,
    /// such as NodeConnected, SnapshotComplete and the answers to operators.
    pub fn spec() -> Self {
        let controller = Role::CONTROLLER;
        let node = Role::AGENT | Role::NETAGENT;
        let cnci = Role::CNCIAGENT;
        let any = Role::ALL;
        let commands = [
            Command::START,
            Command::STOP,
            Command::EVACUATE,
            Command::DELETE,
            Command::RESTART,
            Command::ASSIGN_PUBLIC_IP,
            Command::RELEASE_PUBLIC_IP,
            Command::CONFIGURE,
            Command::ATTACH_VOLUME,
            Command::DETACH_VOLUME,
            Command::RESTORE,
            Command::REFRESH_CNCI,
            Command::OPEN_STREAM,
            Command::STREAM_CREDIT,
            Command::CLOSE_STREAM,
            Command::LIST_SESSIONS,
            Command::KICK,
            Command::LIST_BANS,
            Command::UNBAN,
            Command::TENANT,
            Command::WATCH,
            Command::LIST_SERVERS,
            Command::DRAIN_SERVER,
        ];
        let mut filter = Self::deny_all();
        for command in commands {
            filter = filter.allow(command, controller);
        }
        for status in [Status::READY, Status::FULL, Status::OFFLINE, Status::MAINTENANCE] {
            filter = filter.allow(status, node);
        }
        for failure in [
            ErrorCode::START_FAILURE,
            ErrorCode::STOP_FAILURE,
            ErrorCode::DELETE_FAILURE,
            ErrorCode::RESTART_FAILURE,
            ErrorCode::ATTACH_VOLUME_FAILURE,
            ErrorCode::DETACH_VOLUME_FAILURE,
        ] {
            filter = filter.allow(failure, node);
        }
        filter
            .allow(Command::STATS, node)
            .allow(Event::TENANT_ADDED, Role::AGENT)
            .allow(Event::TENANT_REMOVED, Role::AGENT)
            .allow(Event::INSTANCE_DELETED, node)
            .allow(Event::INSTANCE_STOPPED, node)
            .allow(Event::STREAM_OPENED, node)
            .allow(Event::STREAM_DATA, node)
            .allow(Event::STREAM_ENDED, node)
            .allow(Event::CONCENTRATOR_INSTANCE_ADDED, Role::NETAGENT | cnci)
            .allow(Event::PUBLIC_IP_ASSIGNED, cnci)
            .allow(Event::PUBLIC_IP_UNASSIGNED, cnci)
            .allow(Event::TRACE_REPORT, any)
            .allow(ErrorCode::ASSIGN_PUBLIC_IP_FAILURE, cnci)
            .allow(ErrorCode::UNASSIGN_PUBLIC_IP_FAILURE, cnci)
            .allow(ErrorCode::INVALID_CONFIGURATION, any)
            .allow(ErrorCode::INVALID_FRAME_TYPE, any)
            .allow(ErrorCode::CONNECTION_FAILURE, any)
            .allow(ErrorCode::CONNECTION_ABORTED, any)
    }

    /// Allows the roles in `senders`, and no others, to send frames of `kind`.
    #[must_use]
    pub fn allow(mut self, kind: impl Into<FrameKind>, senders: Role) -> Self {
        self.senders.set(kind.into(), senders);
        self
    }

    /// Sets the action for frames that are not allowed. Default: [`FilterAction::Reject`].
    #[must_use]
    pub fn action(mut self, action: FilterAction) -> Self {
        self.action = action;
        self
    }

    /// True if a client with the roles `role` may send frames of `kind`. One of its roles suffices.
    pub fn allows(&self, role: Role, kind: FrameKind) -> bool {
        self.senders.get(kind).unwrap_or(&self.default).intersects(role)
    }

    pub(super) fn rejects(&self) -> bool {
        self.action == FilterAction::Reject
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spec_filter_allows_each_kind_to_its_roles() {
        let rows: &[(&str, &str)] = &[
            (
                "START STOP DELETE RESTART EVACUATE Restore AttachVolume DetachVolume",
                "controller",
            ),
            (
                "AssignPublicIP ReleasePublicIP RefreshCNCI CONFIGURE",
                "controller",
            ),
            ("OpenStream StreamCredit CloseStream", "controller"),
            (
                "ListSessions Kick ListBans Unban Tenant Watch ListServers DrainServer",
                "controller",
            ),
            ("StreamOpened StreamData StreamEnded", "agent,netagent"),
            ("STATS READY FULL MAINTENANCE OFFLINE", "agent,netagent"),
            ("TenantAdded TenantRemoved", "agent"),
            ("InstanceDeleted InstanceStopped", "agent,netagent"),
            ("ConcentratorInstanceAdded", "netagent,cnciagent"),
            ("PublicIPAssigned PublicIPUnassigned", "cnciagent"),
            (
                "TraceReport",
                "server,controller,agent,scheduler,netagent,cnciagent",
            ),
            (
                "StartFailure StopFailure DeleteFailure RestartFailure",
                "agent,netagent",
            ),
            ("AttachVolumeFailure DetachVolumeFailure", "agent,netagent"),
            ("AssignPublicIPFailure UnassignPublicIPFailure", "cnciagent"),
            (
                "InvalidConfiguration InvalidFrameType",
                "server,controller,agent,scheduler,netagent,cnciagent",
            ),
        ];
        let filter = Filter::spec();
        let mut allowed = 0;
        for (kinds, roles) in rows {
            let senders: Role = roles.parse().unwrap();
            for name in kinds.split(' ') {
                let kind: FrameKind = name.parse().unwrap();
                for role in Role::ALL.iter() {
                    assert_eq!(
                        filter.allows(role, kind),
                        senders.contains(role),
                        "{role} sends {kind}"
                    );
                }
                allowed += 1;
            }
        }
        // The table lacks the four frames of the handshake, and the twelve events that only the
        // scheduler makes.
        assert_eq!(FrameKind::all().count(), allowed + 16);
        assert!(!filter.allows(Role::ALL, Event::SNAPSHOT_COMPLETE.into()));
        assert!(!filter.allows(Role::ALL, Event::NODE_CONNECTED.into()));
        assert!(!filter.allows(Role::ALL, Event::NODE_DISCONNECTED.into()));
    }

    #[test]
    fn one_of_several_roles_suffices() {
        let filter = Filter::spec();
        assert!(filter.allows(Role::AGENT | Role::CONTROLLER, Command::START.into()));
    }
}
