//! The commands of operators that list the linked servers and drain one of them.
//!
//! ```text
//!  ListServers ─▶ this server, its links, the peers that it dials ─ Handler::servers ─▶ Servers
//!  DrainServer ─┬─ names this server ─▶ State::drain ────────────────────────────────▶ Servers
//!               └─ names a linked one ─▶ FORWARD to that server, which drains ───────▶ Servers
//! ```

use std::time::Duration;

use log::{info, warn};

use super::audit::{AUDIT, Named};
use super::core::{ServerCore, State};
use super::delivery::Parcel;
use super::federation::{LinkFigures, PeerState};
use super::operators::{PAGE, Refused, named, read};
use super::sessions::SessionInfo;
use crate::payload::{DrainServer, ListServers, OperatorRefusal, Payload, ServerEntry, ServerState, Servers};
use crate::proto::{Frame, Run};

/// The longest time for clients to leave, which is also the longest that clients accept.
const LONGEST: Duration = Duration::from_secs(86_400);

impl ServerCore {
    pub(super) fn list_servers(&mut self, info: &SessionInfo, asked: &ListServers) {
        let mut servers = self.state.servers();
        self.guarded_cluster("servers", |handler, cx| handler.servers(cx, &mut servers));
        // A fixed order, because each page is made from a new list: first by UUID, then peers without a
        // known UUID by address.
        let order = |one: &ServerEntry| (one.uuid.is_empty(), one.uuid.clone(), one.address.clone());
        servers.entries.sort_by_cached_key(order);
        let first = usize::try_from(asked.after).unwrap_or(usize::MAX);
        let rest = servers.entries.len().saturating_sub(first);
        if rest > PAGE {
            servers.next = asked.after + PAGE as u64;
        }
        servers.entries = servers.entries.into_iter().skip(first).take(PAGE).collect();
        servers.id = asked.id.clone();
        self.state
            .answer_operator(info, ListServers::KIND, &Frame::of(&servers));
    }

    /// Drains this server for an operator that is connected to another server. That server's application
    /// has allowed it; here only the operator's role is checked.
    pub(super) fn drain_for_remote(&mut self, by: &SessionInfo, run: &Run) {
        let state = &mut self.state;
        for frame in run.frames() {
            // The operator's own server has decoded the frame before, so this does not fail.
            let Ok(asked) = read(&frame, |asked: &DrainServer| &asked.id) else {
                continue;
            };
            let is_allowed =
                by.role.intersects(state.operators) && state.filter.allows(by.role, DrainServer::KIND);
            let done = match is_allowed {
                true => state.judge_drain(by, &asked, None),
                false => {
                    let text = format!(
                        "server {} does not accept operators with this role",
                        state.environment.uuid
                    );
                    Err((OperatorRefusal::NotAllowed, text))
                }
            };
            state.finish_drain(by, &asked, done);
        }
    }
}

impl State {
    pub(super) fn handle_drain(&mut self, by: &SessionInfo, asked: &DrainServer, frame: &Frame) {
        let done = self.judge_drain(by, asked, Some(frame));
        self.finish_drain(by, asked, done);
    }

    /// Returns true if this server is to be drained. If the command names another server, passes the
    /// `frame` on to it and returns false.
    fn judge_drain(
        &mut self,
        by: &SessionInfo,
        asked: &DrainServer,
        frame: Option<&Frame>,
    ) -> Result<bool, Refused> {
        let within = Duration::from_secs(asked.within_s);
        if within > LONGEST {
            let text = "the time for clients to leave is at most a day";
            return Err((OperatorRefusal::InvalidData, text.into()));
        }
        let uuid = named(&asked.uuid)?;
        if uuid != self.environment.uuid {
            let passed = frame.map(|frame| self.pass_to(uuid, by, &Parcel::run(&Run::of(frame))));
            return match passed {
                Some(Ok(())) => Ok(false),
                _ => {
                    let text = format!("there is no link to a server {uuid}; connect to it to drain it");
                    Err((OperatorRefusal::NotConnected, text))
                }
            };
        }
        let operator = Named(by.certificate());
        if let Some(more) = by.may_log(&mut self.log, "drain", self.now) {
            warn!(target: "ssntp::server", "{by} ({operator}): drains this server{more}");
        }
        info!(target: AUDIT, "drained within {} s: by {by}, {operator}", asked.within_s);
        Ok(true)
    }

    fn finish_drain(&mut self, by: &SessionInfo, asked: &DrainServer, done: Result<bool, Refused>) {
        let answer = match done {
            Ok(false) => return,
            Ok(true) => Servers {
                entries: vec![ServerEntry {
                    state: ServerState::Draining,
                    ..self.own_entry()
                }],
                ..Servers::default()
            },
            Err((reason, detail)) => Servers {
                reason,
                detail,
                ..Servers::default()
            },
        };
        let (id, drains) = (asked.id.clone(), answer.reason.as_str().is_empty());
        self.answer_operator(by, DrainServer::KIND, &Frame::of(&Servers { id, ..answer }));
        // After the answer, because the operator is a client and may leave at once.
        if drains {
            self.drain(Duration::from_secs(asked.within_s));
        }
    }

    fn own_entry(&self) -> ServerEntry {
        let environment = &self.environment;
        ServerEntry {
            uuid: environment.uuid.into(),
            address: environment.link_registry.advertised.clone(),
            roles: environment.role.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            state: match self.draining.is_some() {
                true => ServerState::Draining,
                false => ServerState::Own,
            },
            age_s: self.now.saturating_duration_since(self.started).as_secs(),
            sessions: self.sessions.len() as u64,
            ..ServerEntry::default()
        }
    }

    /// This server, the linked servers, and the peers without a link.
    fn servers(&self) -> Servers {
        let links = self.links.figures(self.now);
        let is_linked = |address: &str| links.iter().any(|link| address_of(link) == address);
        let dialled = self.dialler.as_ref().map(|dialler| dialler.peers());
        let away = dialled
            .into_iter()
            .flatten()
            .filter_map(|(address, state)| match state {
                PeerState::Trying(detail) if !is_linked(&address) => Some(ServerEntry {
                    address,
                    detail,
                    state: ServerState::Away,
                    ..ServerEntry::default()
                }),
                _ => None,
            });
        let linked = links.iter().map(|link| ServerEntry {
            uuid: link.server.uuid.into(),
            address: address_of(link),
            roles: link.server.role.to_string(),
            state: match link.linked {
                true => ServerState::Linked,
                false => ServerState::Linking,
            },
            age_s: link.age.as_secs(),
            sessions: link.sessions as u64,
            ..ServerEntry::default()
        });
        Servers {
            leader: self
                .links
                .leads
                .map_or_else(Default::default, |_| self.environment.uuid.into()),
            token: self.links.token,
            entries: [self.own_entry()].into_iter().chain(linked).chain(away).collect(),
            ..Servers::default()
        }
    }
}

/// The address of a linked server: the advertised one, or the one that was dialled.
fn address_of(link: &LinkFigures) -> String {
    match link.server.advertised.as_str() {
        "" if link.server.dialled => link.server.address.to_string(),
        advertised => advertised.to_owned(),
    }
}
