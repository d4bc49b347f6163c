//! The connected clients: their sessions, the times at which something is due for one of them, the
//! counters of agents by name, and the log lines that clients cause.
//!
//! A session is in the table until [`Clients::remove`], which the core also calls when it closes a
//! connection. So no name belongs to a session that is about to end.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::Instant;

use log::Level;

use super::agents::{AgentInfo, Agents};
use super::counters::RequestCounters;
use super::session::{Element, Session};
use super::settings::ServerSettings;
use crate::message::{ErrorCode, ErrorResponse, Identity, IdentityResult};
use crate::model::Name;
use crate::peer::{ConnectionId, Due, host};
use ssntp_transport::{Deadlines, LogLimit, excerpt};

/// All clients. A connection that is not in the table has ended, and nothing is changed for it.
#[derive(Debug, Default)]
pub(super) struct Clients {
    sessions: HashMap<ConnectionId, Session>,
    timers: Deadlines<ConnectionId>,
    agents: Agents,
    /// Limits the log lines that clients cause, by host.
    log: LogLimit<String>,
}

impl Clients {
    /// Adds a client. Its deadline is set at once, so that a client that sends nothing is disconnected.
    pub(super) fn add(&mut self, connection: ConnectionId, session: Session) {
        self.timers.set(connection, session.keepalive.next_deadline());
        self.sessions.insert(connection, session);
    }

    /// Removes a client. Returns false if it was not in the table.
    pub(super) fn remove(&mut self, connection: ConnectionId, settings: &ServerSettings) -> bool {
        let Some(session) = self.sessions.remove(&connection) else {
            return false;
        };
        self.timers.clear(&connection);
        if let Some(Element { name, .. }) = session.element {
            self.agents
                .session_ended(&name, &session.counters, settings.limits.agents);
        }
        true
    }

    pub(super) fn get(&self, connection: ConnectionId) -> Option<&Session> {
        self.sessions.get(&connection)
    }

    pub(super) fn get_mut(&mut self, connection: ConnectionId) -> Option<&mut Session> {
        self.sessions.get_mut(&connection)
    }

    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// All clients, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ConnectionId, &Session)> {
        self.sessions.iter()
    }

    /// Changes the counters of a client.
    pub(super) fn count(&mut self, connection: ConnectionId, change: impl FnOnce(&mut RequestCounters)) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            change(&mut session.counters);
        }
    }

    /// Accepts the identity of a client or refuses it. With `unique_names`, also returns the other
    /// client of this name, which the caller has to close.
    pub(super) fn handle_identity(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        identity: Identity,
        settings: &ServerSettings,
    ) -> Result<(IdentityResult, Option<ConnectionId>), Box<ErrorResponse>> {
        let Some(session) = self.sessions.get_mut(&connection) else {
            let why = "the connection has ended";
            return Err(ErrorResponse::boxed(ErrorCode::ESTATE, why));
        };
        // An element may send its identity again, with another name.
        let before = session.element.as_ref().map(|element| element.name.clone());
        let domain = identity.domain.clone();
        let (name, result) = session.identify(identity, settings)?;
        self.timers.set(connection, session.keepalive.next_deadline());
        if before.as_ref() != Some(&name) {
            if let Some(before) = &before {
                // The counters of an agent never fall, so they stay with the former name.
                let counters = std::mem::take(&mut session.counters);
                self.agents
                    .session_ended(before, &counters, settings.limits.agents);
            }
            self.agents.session_began(&name, now);
        }
        // If any domain is allowed, the log shows the domains of elements.
        let domain = domain.filter(|domain| *domain != settings.domain);
        let domain = domain.map_or_else(String::new, |domain| format!(" of the domain {domain:?}"));
        let text = format_args!("its name is {}{}", excerpt(&name), excerpt(&domain));
        self.log(now, connection, Level::Info, "identity", text);
        // A search, and no table by name: sessions send their identity once.
        let is_same = |(other, session): &(&ConnectionId, &Session)| {
            let element = session.element.as_ref();
            **other != connection && element.is_some_and(|element| element.name == name)
        };
        let sessions = self.sessions.iter();
        let other = sessions.filter(|_| settings.unique_names).find(is_same);
        Ok((result, other.map(|(other, _)| *other)))
    }

    /// The next thing that is due at `now`. Call it until it returns `None`.
    pub(super) fn due(&mut self, now: Instant) -> Option<(ConnectionId, Due)> {
        while let Some(connection) = self.timers.pop(now) {
            let Some(session) = self.sessions.get_mut(&connection) else {
                continue;
            };
            let due = session.keepalive.due(now);
            self.timers.set(connection, session.keepalive.next_deadline());
            if let Some(due) = due {
                return Some((connection, due));
            }
        }
        None
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Logs a line that a client has caused, unless its host has caused too many lines.
    pub(super) fn log(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        level: Level,
        kind: &'static str,
        text: impl Display,
    ) {
        let address = self.sessions.get(&connection);
        let address = address.map_or("", |session| session.client.address.as_str());
        if let Some(more) = self.log.admit(host(address).to_owned(), kind, now) {
            log::log!(target: "ssntp_opflex::server", level, "{address} ({connection}): {text}{more}");
        }
    }

    /// Agents that have sent their name, including those that have left, in the order of their
    /// names: at most `most`, and only those after `name`.
    pub(super) fn agents_after(&self, now: Instant, name: Option<&Name>, most: usize) -> Vec<AgentInfo> {
        let live = self.sessions.values().filter_map(|session| {
            let element = session.element.as_ref()?;
            Some((element.name.clone(), session.counters))
        });
        self.agents.after(name, most, live, now)
    }

    /// The sum of the counters of all agents. It includes removed agents and never falls.
    pub(super) fn counters(&self) -> RequestCounters {
        let mut all = self.agents.ended();
        let live = self.sessions.values().filter(|session| session.element.is_some());
        live.for_each(|session| all.add(&session.counters));
        all
    }
}
