//! The links of a server's core: their beginning and end, heartbeats, and the reports of sessions
//! in both directions.
//!
//! ```text
//!  ArrivalKind::Server ─ admit_link ─▶ LinkState ─ link_admitted ─▶ SNAPSHOT is sent
//!                          │ duplicate               │ the peer's SNAPSHOT is complete: linked
//!                          ▼                         ▼
//!                       refused    fault, silence, END, stop ─▶ end_link: rows are removed
//! ```

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use crossbeam_channel::Sender;
use log::{info, warn};
use uuid::Uuid;

use super::claims::Claims;
use super::facts::{LinkFigures, LinkRequest, ServerLink};
use super::frames::{EndCode, Hello, LinkFault, LinkFrame, ROWS, VERSION};
use super::roster::{Rank, Roster, Row};
use crate::proto::{Item, Refusal};
use crate::server::config::Environment;
use crate::server::core::{Grant, Notice, Peer, ServerCore, State};
use crate::server::sessions::{Session, SessionId, SessionInfo};
use ssntp_pki::KeptCertificate;
use ssntp_transport::dispatch::{Action, Origin, RemotePause};
use ssntp_transport::{ConnectionId, OutboxCounters, Outgoing, Table, excerpt};

/// The interval of ALIVE frames on each link.
const BEAT: Duration = Duration::from_secs(1);
/// A link ends after this time without bytes from the peer, unless this server waits for memory before it
/// reads on. TCP does not detect a stopped process, because its kernel still acknowledges.
const SILENCE: Duration = Duration::from_secs(10);
/// The highest token that is accepted from another server without a comparison. An engine with a
/// thousand changes a second reaches it in 139 years. Without this bound, one server that sends
/// `u64::MAX` would fence off all leaders for ever.
const CREDIBLE: u64 = 1 << 62;
/// Above [`CREDIBLE`], a token is accepted up to this much above the highest known one: 16 million
/// changes of the engine.
const STEP: u64 = 1 << 44;
/// The refusal of a second link to the same server.
pub(super) const DUPLICATE: &str = "there is a link between the two servers already";

/// One link.
#[derive(Debug)]
pub(in crate::server) struct LinkState {
    pub(in crate::server) server: Arc<ServerLink>,
    pub(in crate::server) certificate: KeptCertificate,
    /// The time at which the peer's certificate expires and the link must end.
    ends: Option<SystemTime>,
    /// True once this server's snapshot was sent; from then on the peer gets each change.
    snapshot_sent: bool,
    /// True once the peer's snapshot is complete.
    pub(in crate::server) linked: bool,
    pub(in crate::server) last_received: Instant,
    /// Sessions of this server that are not read because a receiver at the peer has no room.
    pub(in crate::server) held: HashSet<ConnectionId>,
    pub(in crate::server) outbox: OutboxCounters,
    /// Frames that arrived for sessions or for the application.
    pub(super) received: u64,
    /// Those of them without a receiver.
    pub(super) astray: u64,
    /// Those of them that were dropped because of their token.
    pub(super) stale: u64,
    /// Dropped with the link, which wakes the dialler of the peer.
    _standing: Sender<Infallible>,
}

/// The links of a server, and the sessions of the servers at their other ends.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(in crate::server) table: Table<LinkState>,
    /// The number of links whose connection exists, including those that have ended.
    pub(in crate::server) connections: usize,
    by_server: HashMap<Uuid, ConnectionId>,
    pub(crate) roster: Roster,
    /// The number of the last change of this server's own sessions.
    sequence: u64,
    /// The logical clock of [`Rank::stamp`].
    pub(super) clock: u64,
    /// The highest token known, from the application or from other servers.
    pub(in crate::server) token: u64,
    /// The token under which this server leads, if it does.
    pub(in crate::server) leads: Option<u64>,
    /// The token for frames that are sent now: that of `leads` while code of the application runs,
    /// otherwise 0.
    pub(super) acting: u64,
    pub(super) claims: Claims,
    pub(in crate::server) next_beat: Option<Instant>,
}

impl Links {
    pub(in crate::server) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Notes that code of the application begins or ends. Frames that it sends carry the token of
    /// the leader, if this server leads.
    pub(in crate::server) fn act(&mut self, acts: bool) {
        self.acting = if acts { self.leads.unwrap_or_default() } else { 0 };
    }

    /// Notes a token that another server has sent. False if a higher token is known, or if no leader
    /// can have this token.
    pub(super) fn check_token(&mut self, token: u64) -> bool {
        if is_credible(token, self.token) {
            self.token = self.token.max(token);
        }
        token == self.token
    }

    /// The rank of a session that is admitted now.
    pub(in crate::server) fn next_rank(&mut self) -> Rank {
        // Another server may have sent the greatest stamp.
        self.clock = self.clock.saturating_add(1);
        Rank {
            token: self.token,
            stamp: self.clock,
        }
    }

    /// The link to a server.
    pub(super) fn to(&self, server: Uuid) -> Option<ConnectionId> {
        self.by_server.get(&server).copied()
    }

    /// The figures of all links, sorted by the servers' UUIDs.
    pub(in crate::server) fn figures(&self, now: Instant) -> Vec<LinkFigures> {
        let links = self.table.iter().map(|(_, link)| {
            let books = link.outbox.figures();
            LinkFigures {
                server: (*link.server).clone(),
                age: now.saturating_duration_since(link.server.since),
                linked: link.linked,
                sessions: self.roster.sessions_of(link.server.uuid),
                held: link.held.len(),
                frames_waiting: books.waiting.frames,
                bytes_waiting: books.waiting.bytes,
                frames_sent: books.sent.frames,
                frames_received: link.received,
                frames_astray: link.astray,
                frames_stale: link.stale,
            }
        });
        let mut all: Vec<_> = links.collect();
        all.sort_by_key(|figures| figures.server.uuid);
        all
    }

    /// The HELLO of this server.
    pub(in crate::server) fn hello(&self, environment: &Environment) -> Bytes {
        let hello = Hello {
            version: VERSION,
            uuid: environment.uuid,
            incarnation: environment.incarnation,
            role: environment.role,
            token: self.token,
            max_payload: environment.max_payload,
            advertised: environment.link_registry.advertised.clone(),
        };
        LinkFrame::Hello { hello }.encode()
    }
}

fn is_credible(token: u64, known: u64) -> bool {
    token <= CREDIBLE.max(known.saturating_add(STEP))
}

fn row(session: &Session) -> Row {
    let info = &session.info;
    Row {
        uuid: info.uuid,
        number: info.id.0.0,
        rank: session.rank,
        role: info.role,
        tracing: info.tracing,
        address: info.address,
    }
}

impl State {
    /// Sends a frame of the server itself over a link.
    pub(super) fn send_link_frame(&mut self, link: ConnectionId, frame: &LinkFrame) {
        self.send_over_link(link, frame.encode(), 1, Origin::Application);
    }

    /// Sends an encoded link frame. `frames` is the number of frames that it counts as.
    pub(super) fn send_over_link(&mut self, link: ConnectionId, bytes: Bytes, frames: u32, origin: Origin) {
        self.actions.push(Action::Send {
            origin,
            to: link,
            item: Outgoing::whole(bytes, frames),
        });
    }

    /// Numbers a change of this server's sessions and reports it over all links.
    fn announce(&mut self, change: impl FnOnce(u64) -> LinkFrame) {
        self.links.sequence += 1;
        if self.links.is_empty() {
            return;
        }
        let bytes = change(self.links.sequence).encode();
        // A link without a snapshot gets the change as part of that.
        let links = self.links.table.iter().filter(|(_, link)| link.snapshot_sent);
        for id in links.map(|(id, _)| id).collect::<Vec<_>>() {
            self.send_over_link(id, bytes.clone(), 1, Origin::Application);
        }
    }

    /// Reports a new session over all links.
    pub(in crate::server) fn announce_session(&mut self, id: SessionId) {
        if let Some(row) = self.sessions.get(id).map(row) {
            self.announce(|sequence| LinkFrame::Connected { sequence, row });
        }
    }

    /// Reports the end of a session over all links.
    pub(in crate::server) fn announce_end(&mut self, info: &SessionInfo) {
        let (number, uuid) = (info.id.0.0, info.uuid);
        self.announce(|sequence| LinkFrame::Gone {
            sequence,
            number,
            uuid,
        });
    }

    /// Admits a link. If both servers have dialled, the link stays that the server with the smaller
    /// UUID has dialled. If the same server dials again, it has lost the older link or was
    /// restarted, so the newer link replaces the older one.
    pub(in crate::server) fn admit_link(
        &mut self,
        id: ConnectionId,
        peer: Peer,
        request: LinkRequest,
        outbox: OutboxCounters,
    ) -> Result<Grant, Refusal> {
        if self.open.is_none() {
            return Err(Refusal::Busy("the server is shutting down"));
        }
        let LinkRequest {
            hello,
            dialled,
            standing,
        } = request;
        if !is_credible(hello.token, self.links.token) {
            return Err(Refusal::Busy("it sent a token that no leader can have"));
        }
        let uuid = hello.uuid;
        if let Some(old) = self.links.to(uuid)
            && let Some(link) = self.links.table.get(old)
        {
            let before = &link.server;
            // An unbound certificate does not prove the UUID, so it cannot take the UUID from a link
            // that exists.
            if peer.certificate.uuid.is_none() && !link.certificate.is(&peer.certificate) {
                return Err(Refusal::Busy("another certificate has a link with that UUID"));
            }
            // Both servers compare the same two UUIDs, so they keep the same link.
            let own_stays = self.environment.uuid < uuid;
            let old_stays = before.dialled != dialled && before.dialled == own_stays;
            // A link to an earlier start of the server is dead, even if its end is not noticed yet.
            if old_stays && before.incarnation == hello.incarnation {
                return Err(Refusal::Busy(DUPLICATE));
            }
            self.end_link(old, EndCode::Duplicate, "a newer link takes its place");
        }
        self.links.check_token(hello.token);
        let certificate = self.certificates.add(&peer.certificate, peer.intermediates);
        let (role, address) = (hello.role, peer.address);
        let server = Arc::new(ServerLink {
            uuid,
            incarnation: hello.incarnation,
            role,
            address,
            advertised: hello.advertised,
            dialled,
            since: self.now,
        });
        let connection = (certificate.clone(), outbox.clone(), Some(Arc::clone(&server)));
        self.connections.insert(id, connection);
        self.links.connections += 1;
        let link = LinkState {
            server,
            certificate: certificate.clone(),
            ends: peer.ends,
            snapshot_sent: false,
            linked: false,
            last_received: self.now,
            held: HashSet::new(),
            outbox,
            received: 0,
            astray: 0,
            stale: 0,
            _standing: standing,
        };
        self.links.table.insert(id, link);
        self.links.by_server.insert(uuid, id);
        self.links.next_beat.get_or_insert(self.now + BEAT);
        Ok(Grant {
            info: Arc::new(SessionInfo {
                id: SessionId(id),
                server: uuid,
                uuid,
                role,
                address,
                certificate,
                tracing: false,
            }),
            answer: self.links.hello(&self.environment),
        })
    }

    /// Begins a link whose threads run, and sends the snapshot. Ends it if they could not be
    /// `started`. False if the connection is not a link.
    pub(in crate::server) fn link_admitted(&mut self, id: ConnectionId, started: bool) -> bool {
        let Some(link) = self.links.table.get_mut(id) else {
            return false;
        };
        link.snapshot_sent = true;
        let server = Arc::clone(&link.server);
        if !started {
            self.end_link(id, EndCode::Closing, "its handshake was given up");
            return true;
        }
        info!(target: "ssntp::server", "{server}: link begins");
        let mut rows: Vec<Row> = self
            .sessions
            .iter()
            .filter(|session| session.announced)
            .map(row)
            .collect();
        // In the order of admission, so that the application of the peer sees the sessions in that order.
        rows.sort_unstable_by_key(|row| row.number);
        let sequence = self.links.sequence;
        // A server without sessions sends one empty part, because the last part completes the snapshot.
        let mut parts = rows.chunks(ROWS).peekable();
        loop {
            let rows = parts.next().unwrap_or_default().to_vec();
            let is_last = parts.peek().is_none();
            let snapshot = LinkFrame::Snapshot {
                sequence,
                is_last,
                rows,
            };
            self.send_link_frame(id, &snapshot);
            if is_last {
                return true;
            }
        }
    }

    /// Ends a link: sends its queue and END with the reason. A peer that is gone or does not read,
    /// which is `Closing` while this server runs, gets neither. False if the connection is not a
    /// link.
    pub(in crate::server) fn end_link(&mut self, id: ConnectionId, code: EndCode, why: &str) -> bool {
        let Some(link) = self.links.table.remove(id) else {
            return false;
        };
        let abort = code == EndCode::Closing && self.open.is_some();
        if !abort {
            let (server, reason) = (self.environment.uuid, why.to_owned());
            self.send_link_frame(id, &LinkFrame::End { code, server, reason });
        }
        self.actions.push(Action::End { id, abort });
        // The peer can send no GO any more.
        for held in link.held {
            self.actions.push(Action::Pause {
                id: held,
                paused: false,
            });
        }
        self.links.claims.drop_link(id);
        let server = link.server;
        if code == EndCode::Duplicate || self.open.is_none() {
            info!(target: "ssntp::server", "{server}: link ends: {}", excerpt(&why));
        } else if let Some(more) = self.log.admit(server.uuid, "link ends", self.now) {
            warn!(target: "ssntp::server", "{server}: link ends: {}{more}", excerpt(&why));
        }
        // A newer link to the server may have taken the entry; then the rows are of that link.
        if self.links.to(server.uuid) == Some(id) {
            self.links.by_server.remove(&server.uuid);
            let gone = self.links.roster.end(server.uuid);
            // The application was told of these sessions when the snapshot was complete.
            if link.linked {
                self.notices
                    .extend(gone.into_iter().map(Notice::RemoteDisconnected));
                self.notices.push(Notice::Unlinked(server));
            }
        }
        true
    }

    /// Sends ALIVE over each link when a heartbeat is due. Ends links that are silent or whose
    /// certificate has expired.
    pub(in crate::server) fn beat(&mut self) {
        let Some(due) = self.links.next_beat.filter(|at| *at <= self.now) else {
            return;
        };
        // This process was stopped, or its machine slept. The peers have ended these links, so frames
        // that are sent over them would be lost.
        // The last ALIVE was sent one BEAT before `due`. The second BEAT is a margin, so that this server
        // ends its links no later than the peers do.
        let has_slept = self.now.saturating_duration_since(due) > SILENCE - 2 * BEAT;
        for id in self.links.table.ids() {
            let Some(link) = self.links.table.get(id) else {
                continue;
            };
            if has_slept {
                self.end_link(id, EndCode::Closing, "this server did not run for 8 s");
            } else if self.now.saturating_duration_since(link.last_received) > SILENCE {
                self.end_link(id, EndCode::Closing, "nothing was received from it for 10 s");
            } else if link.ends.is_some_and(|ends| ends <= self.wall) {
                self.end_link(id, EndCode::Refused, "its certificate has expired");
            } else {
                self.send_link_frame(id, &LinkFrame::Alive {});
            }
        }
        self.links.next_beat = (!self.links.is_empty()).then(|| self.now + BEAT);
    }

    /// Asks another server to pause one of its sessions, or to read it again.
    pub(in crate::server) fn pause_remote(&mut self, change: RemotePause) {
        let number = change.number;
        if self.links.table.contains(change.link) {
            let frame = match change.paused {
                true => LinkFrame::Hold { number },
                false => LinkFrame::Go { number },
            };
            self.send_link_frame(change.link, &frame);
        }
    }

    /// Pauses a session of this server for the peer of a link, or ends that pause.
    fn pause(&mut self, link: ConnectionId, number: u64, paused: bool) {
        let id = ConnectionId(number);
        let is_connected = self.sessions.get(SessionId(id)).is_some();
        let Some(link) = self.links.table.get_mut(link) else {
            return;
        };
        // A session that has ended meanwhile would stay in the set until the link ends.
        let changes = match paused {
            true => is_connected && link.held.insert(id),
            false => link.held.remove(&id),
        };
        if changes {
            self.actions.push(Action::Pause { id, paused });
        }
    }
}

impl ServerCore {
    /// Handles link frames. A fault in one of them ends the link.
    pub(in crate::server) fn link_item(&mut self, id: ConnectionId, item: Item) {
        let handled = match item {
            Item::Run(run) => {
                let memory = run.wire().len();
                run.frames().try_for_each(|frame| {
                    // A slice of the read, so that a FORWARD is not copied.
                    let frame = LinkFrame::decode(frame.kind(), frame.payload_bytes().clone())?;
                    // What the application sends now must not hold the link, which carries the frames of
                    // all sessions. `handle_forward` names their sender.
                    self.state.origin = Origin::Application;
                    self.link_frame(id, frame, memory)
                })
            }
            other => Err(LinkFault::Kind(other.kind())),
        };
        if let Err(fault) = handled {
            self.state.end_link(id, EndCode::Fault, &fault.to_string());
        }
    }

    /// Handles one link frame. `memory` is the number of bytes that its payload keeps alive.
    fn link_frame(&mut self, id: ConnectionId, frame: LinkFrame, memory: usize) -> Result<(), LinkFault> {
        // The connection may be over: an earlier frame of the same batch may have ended it.
        let Some(link) = self.state.links.table.get_mut(id) else {
            return Ok(());
        };
        let server = link.server.uuid;
        let name = frame.name();
        let roster = &mut self.state.links.roster;
        match frame {
            LinkFrame::Snapshot {
                sequence,
                is_last,
                rows,
            } => {
                if let Some(changes) = roster.snapshot(server, sequence, rows, is_last)? {
                    link.linked = true;
                    let linked = Notice::Linked(Arc::clone(&link.server));
                    self.state.notices.push(linked);
                    self.state.apply_changes(changes);
                }
            }
            LinkFrame::Connected { sequence, row } => {
                let changes = roster.connected(server, sequence, row)?;
                self.state.apply_changes(changes);
            }
            LinkFrame::Gone {
                sequence,
                number,
                uuid,
            } => {
                let changes = roster.gone(server, sequence, number, uuid)?;
                self.state.apply_changes(changes);
            }
            LinkFrame::Forward { forward } => self.handle_forward(id, server, forward, memory)?,
            LinkFrame::Hold { number } => self.state.pause(id, number, true),
            LinkFrame::Go { number } => self.state.pause(id, number, false),
            LinkFrame::Tell { token, message } => self.handle_tell(id, server, token, message),
            LinkFrame::Claim {
                id: claim,
                uuid,
                certificate,
            } => {
                let verdict = self.state.judge_claim(uuid, &certificate);
                let answer = LinkFrame::Claimed { id: claim, verdict };
                self.state.send_link_frame(id, &answer);
            }
            LinkFrame::Claimed { id: claim, verdict } => {
                self.state.links.claims.answer(id, claim, verdict);
            }
            LinkFrame::Alive {} => {}
            LinkFrame::End { code, reason, .. } => {
                let why = format!("the other server has ended it: {reason}");
                let code = match code {
                    EndCode::Duplicate => code,
                    _ => EndCode::Closing,
                };
                self.state.end_link(id, code, &why);
            }
            LinkFrame::Hello { .. } => return Err(LinkFault::Turn(name)),
        }
        // Before the next frame, which may come from a session that was just reported.
        self.deliver_notices();
        Ok(())
    }
}
