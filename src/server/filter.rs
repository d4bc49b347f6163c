//! The role filter: the kinds of frames that each role may send.

use super::kinds::KindTable;
use crate::proto::FrameKind;
use ssntp_pki::Role;

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
#[derive(Clone, Debug)]
pub struct Filter {
    senders: KindTable<Role>,
    /// The roles that may send a kind that `senders` lacks.
    default: Role,
    action: FilterAction,
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
        FrameKind::all().fold(Self::deny_all(), |filter, kind| {
            let (senders, _) = kind.cluster_roles();
            filter.allow(kind, senders)
        })
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

    /// True if a client with these roles may send frames of `kind`. One of the roles suffices.
    pub fn allows(&self, role: Role, kind: FrameKind) -> bool {
        self.senders.get(kind).unwrap_or(&self.default).intersects(role)
    }

    /// True if the sender of a frame that is not allowed gets an answer.
    pub(super) fn rejects(&self) -> bool {
        self.action == FilterAction::Reject
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Command, Event};

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
                "ListSessions Kick ListBans Unban Tenant Watch ListServers DrainServer ManageEnrolment",
                "controller",
            ),
            ("RenewCertificate", "agent,netagent,cnciagent"),
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
        // The table lacks the four frames of the handshake, and the thirteen events that only the
        // scheduler makes.
        assert_eq!(FrameKind::all().count(), allowed + 17);
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
