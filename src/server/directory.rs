//! The sessions of this server and of the servers that it is linked to, for applications.

use uuid::Uuid;

use super::links::Roster;
use super::sessions::{SessionInfo, Sessions};
use ssntp_pki::Role;

/// The connected sessions: those of this server and those of the linked servers
/// ([`SessionInfo::server`]).
#[derive(Debug)]
pub struct Directory<'a> {
    sessions: &'a Sessions,
    roster: &'a Roster,
}

impl<'a> Directory<'a> {
    pub(super) fn new(sessions: &'a Sessions, roster: &'a Roster) -> Self {
        Self { sessions, roster }
    }

    /// The session of `uuid`.
    pub fn session(&self, uuid: Uuid) -> Option<&SessionInfo> {
        match self.sessions.of(uuid) {
            Some(session) => Some(&session.info),
            None => self.roster.get(uuid).map(|remote| &remote.info),
        }
    }

    /// True unless this server has a session of the same UUID, which then stands for both.
    fn is_listed(&self, remote: &SessionInfo) -> bool {
        self.sessions.of(remote.uuid).is_none()
    }

    /// Every session with at least one of the roles, each once.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &SessionInfo> {
        let own = self.sessions.with_role(role).map(|session| &*session.info);
        let remote = self.roster.with_role(role).map(|remote| &remote.info);
        own.chain(remote.filter(|info| self.is_listed(info)))
    }

    /// Every session that has begun. Of one that was admitted and never begins, the application is told no end.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionInfo> {
        let own = self.sessions.iter().filter(|session| session.announced);
        let is_begun = |uuid| self.sessions.of(uuid).is_some_and(|session| session.announced);
        let remote = self.roster.iter().map(|remote| &remote.info);
        let remote = remote.filter(move |info| !is_begun(info.uuid));
        own.map(|session| &*session.info).chain(remote)
    }

    /// The number of sessions.
    pub fn len(&self) -> usize {
        let remote = self.roster.iter().filter(|remote| self.is_listed(&remote.info));
        self.sessions.len() + remote.count()
    }

    /// True if there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.sessions().next().is_none()
    }
}
