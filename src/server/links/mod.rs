//! Several servers that act as one: links between them, and the sessions of all of them.
//!
//! ```text
//!        server A                                   server B
//!  a ─▶ reader ─▶ dispatcher ─▶ writer ══ link ══▶ reader ─▶ dispatcher ─▶ writer ─▶ b
//!            ▲        │ filter, rules,                            │ b's line is full
//!            │        │ handler                                   │
//!            └─ hold ◀┴───────────── HOLD, GO for a ◀─────────────┘
//! ```
//!
//! A link is a connection of the same dispatcher as the sessions, with a reader, a writer, a
//! queue and a line like any other. It is mutual TLS with the ALPN protocol `ssntp-link/1` on
//! the listening port, between certificates with the role SERVER or SCHEDULER.
//!
//! * Every server reports its sessions over its links: all of them when a link starts, then each
//!   change. So a server has a row for each session of the others (`Roster`), and frames for these
//!   sessions take the link to their server. A multicast crosses each link once.
//! * The server that a client is connected to applies its filter, rules and handler. A frame from a
//!   link goes to sessions or to the application, never to a link, so there are no loops.
//! * If a receiver has no room, its server sends HOLD for the session that the frames come from,
//!   and only that session is not read until GO. Other frames of the link are still handled.
//! * Frames on a link that ends are lost, counted and logged. The next link starts with a snapshot.
//! * A client whose UUID has a session at another server takes that session over if the admission
//!   rules there allow it: see `claims`.
//!
//! [`Links`] owns all facts about links, and knows neither the sessions' connections nor the
//! application. The core asks it what a link frame means (a [`LinkEvent`]), and passes it the owners of
//! other facts as arguments.
//!
//! ```text
//!  RequestKind::Server ─ judge, add ─▶ Link ─ begin ─▶ SNAPSHOT is sent
//!                          │ duplicate          │ the peer's SNAPSHOT is complete: linked
//!                          ▼                    ▼
//!                       refused    fault, silence, END, stop ─▶ end: rows are removed
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `frames` | the encoding of link frames |
//! | `handshake` | HELLO: do the two servers fit? |
//! | `roster` | the rows of other servers' sessions |
//! | `received`, `forward` | the frames that are received from links, and sent over them |
//! | `claims` | a UUID that has a session at two servers |
//! | `facts` | [`ServerLink`], [`LinkFigures`] |
//! | `federation`, `peers` | the servers that are dialled: the configuration, and the state of each |

mod claims;
mod facts;
mod federation;
mod forward;
mod frames;
mod handshake;
mod peers;
mod received;
mod roster;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::{Bytes, BytesMut};
use crossbeam_channel::{Receiver, Sender};
use uuid::Uuid;

pub use self::claims::CLAIM;
use self::claims::Claims;
pub(super) use self::claims::{refusal, verdict};
pub use self::facts::{LinkFigures, LinkRequest, ServerLink};
pub use self::federation::Federation;
pub(super) use self::frames::{EndCode, LinkFault, Receivers, SLACK};
use self::frames::{Hello, LinkFrame, ROWS, Row, VERSION};
pub use self::handshake::LinkFailure;
pub(super) use self::handshake::LinkHandshake;
pub use self::peers::PeerState;
pub(super) use self::peers::{DialledPeer, DialledPeers};
pub(super) use self::received::{Forwarded, LinkEvent};
pub(super) use self::roster::{Remote, Roster, RosterChanges};
use super::own::OwnServer;
use super::sending::Sending;
use super::sessions::{Rank, Session, SessionInfo, Sessions};
use super::time::Moment;
use crate::proto::Refusal;
use ssntp_pki::{CertificateInfo, KeptCertificate};
use ssntp_transport::dispatch::RemotePause;
use ssntp_transport::{ConnectionId, Load, OutboxCounters, Outgoing, PeerAddress, Table};

/// The ALPN protocol of links.
pub(super) const LINK_PROTOCOL: &[u8] = b"ssntp-link/1";
/// The ALPN protocol of sessions. Most clients offer no protocol.
pub(super) const SESSION_PROTOCOL: &[u8] = b"ssntp/1";

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
const DUPLICATE: &str = "there is a link between the two servers already";

/// One link.
#[derive(Debug)]
struct Link {
    server: Arc<ServerLink>,
    certificate: KeptCertificate,
    /// The time at which the peer's certificate expires and the link must end.
    expires: Option<SystemTime>,
    /// True once this server's snapshot was sent; from then on the peer gets each change.
    snapshot_sent: bool,
    /// True once the peer's snapshot is complete.
    linked: bool,
    last_received: Instant,
    /// Sessions of this server that are not read because a receiver at the peer has no room.
    held: HashSet<ConnectionId>,
    outbox: OutboxCounters,
    /// Frames that arrived for sessions or for the application.
    received: u64,
    /// Those of them without a receiver.
    astray: u64,
    /// Those of them that were dropped because of their token.
    stale: u64,
    /// Disconnected when the link ends, because the link has the only sender.
    ended: (Sender<Infallible>, Receiver<Infallible>),
}

/// A link that has ended.
pub(super) struct EndedLink {
    pub(super) server: Arc<ServerLink>,
    /// The sessions that are no longer known, if the application was told of them; `None` if it was not.
    pub(super) removed: Option<Vec<Arc<Remote>>>,
}

/// The links of a server, and the sessions of the servers at their other ends.
#[derive(Debug)]
pub(super) struct Links {
    own: Arc<OwnServer>,
    table: Table<Link>,
    by_server: HashMap<Uuid, ConnectionId>,
    roster: Roster,
    /// The number of the last change of this server's own sessions.
    sequence: u64,
    /// The logical clock of [`Rank::stamp`].
    clock: u64,
    /// The highest token known, from the application or from other servers.
    token: u64,
    /// The token under which this server leads, if it does.
    leads: Option<u64>,
    /// The token for frames that are sent now: that of `leads` while code of the application runs,
    /// otherwise 0.
    acting: u64,
    claims: Claims,
    next_beat: Option<Instant>,
}

impl Links {
    pub(super) fn new(own: Arc<OwnServer>) -> Self {
        Self {
            own,
            table: Table::default(),
            by_server: HashMap::new(),
            roster: Roster::default(),
            sequence: 0,
            clock: 0,
            token: 0,
            leads: None,
            acting: 0,
            claims: Claims::default(),
            next_beat: None,
        }
    }

    /// The sessions of the other servers.
    pub(super) fn roster(&self) -> &Roster {
        &self.roster
    }

    pub(super) fn contains(&self, id: ConnectionId) -> bool {
        self.table.contains(id)
    }

    pub(super) fn ids(&self) -> Vec<ConnectionId> {
        self.table.ids()
    }

    /// The certificates of the links.
    pub(super) fn certificates(&self) -> impl Iterator<Item = (&KeptCertificate, ConnectionId)> {
        self.table.iter().map(|(id, link)| (&link.certificate, id))
    }

    /// The linked servers whose sessions are known.
    pub(super) fn servers(&self) -> impl Iterator<Item = &Arc<ServerLink>> {
        let linked = self.table.iter().filter(|(_, link)| link.linked);
        linked.map(|(_, link)| &link.server)
    }

    /// The link to a server.
    fn to(&self, server: Uuid) -> Option<ConnectionId> {
        self.by_server.get(&server).copied()
    }

    /// A channel that is disconnected when the link to a server ends; `None` without a link.
    pub(super) fn end_of(&self, server: Uuid) -> Option<Receiver<Infallible>> {
        Some(self.table.get(self.to(server)?)?.ended.1.clone())
    }

    /// The frames and bytes that wait for the link to the server of a UUID, or to the server that has a
    /// session of that UUID.
    pub(super) fn waiting(&self, uuid: Uuid) -> Option<Load> {
        let row = self.roster.get(uuid);
        let link = self.to(row.map_or(uuid, |row| row.info.server))?;
        Some(self.table.get(link)?.outbox.figures().waiting)
    }

    /// Notes that code of the application begins or ends. Frames that it sends carry the token of
    /// the leader, if this server leads.
    pub(super) fn act(&mut self, acts: bool) {
        self.acting = if acts { self.leads.unwrap_or_default() } else { 0 };
    }

    /// The application leads under this token, or follows.
    pub(super) fn lead(&mut self, token: Option<u64>) {
        self.leads = token;
        self.act(true);
        self.note_token(token.unwrap_or_default());
    }

    pub(super) fn leads(&self) -> bool {
        self.leads.is_some()
    }

    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// Notes a token that the application knows.
    pub(super) fn note_token(&mut self, token: u64) {
        self.token = self.token.max(token);
    }

    /// Notes a token that another server has sent. False if a higher token is known, or if no leader
    /// can have this token.
    fn check_token(&mut self, token: u64) -> bool {
        if is_credible(token, self.token) {
            self.note_token(token);
        }
        token == self.token
    }

    /// The rank of a session that is admitted now.
    pub(super) fn next_rank(&mut self) -> Rank {
        // Another server may have sent the greatest stamp.
        self.clock = self.clock.saturating_add(1);
        Rank {
            token: self.token,
            stamp: self.clock,
        }
    }

    /// The figures of all links, sorted by the servers' UUIDs.
    pub(super) fn figures(&self, now: Instant) -> Vec<LinkFigures> {
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
    pub(super) fn hello(&self) -> Bytes {
        let hello = Hello {
            version: VERSION,
            uuid: self.own.uuid,
            incarnation: self.own.incarnation,
            role: self.own.role,
            token: self.token,
            max_payload: self.own.max_payload,
            advertised: self.own.advertised.clone(),
        };
        LinkFrame::Hello { hello }.encode()
    }

    /// Judges a server that asks for a link. Returns the older link that the new one replaces, if any. If
    /// both servers have dialled, the link stays that the server with the smaller UUID has dialled. If the
    /// same server dials again, it has lost the older link or was restarted, so the newer link replaces the
    /// older one.
    pub(super) fn judge(
        &self,
        request: &LinkRequest,
        certificate: &CertificateInfo,
    ) -> Result<Option<ConnectionId>, Refusal> {
        let (hello, dialled) = (&request.hello, request.dialled);
        if !is_credible(hello.token, self.token) {
            return Err(Refusal::Busy("it sent a token that no leader can have"));
        }
        let Some((old, link)) = self.to(hello.uuid).and_then(|id| Some((id, self.table.get(id)?))) else {
            return Ok(None);
        };
        // An unbound certificate does not prove the UUID, so it cannot take the UUID from a link
        // that exists.
        if certificate.uuid.is_none() && !link.certificate.is(certificate) {
            return Err(Refusal::Busy("another certificate has a link with that UUID"));
        }
        // Both servers compare the same two UUIDs, so they keep the same link.
        let (before, own_stays) = (&link.server, self.own.uuid < hello.uuid);
        let old_stays = before.dialled != dialled && before.dialled == own_stays;
        // A link to an earlier start of the server is dead, even if its end is not noticed yet.
        if old_stays && before.incarnation == hello.incarnation {
            return Err(Refusal::Busy(DUPLICATE));
        }
        Ok(Some(old))
    }

    /// Adds a link that was judged. Returns the server at its other end, also described as a session.
    pub(super) fn add(
        &mut self,
        id: ConnectionId,
        LinkRequest { hello, dialled }: LinkRequest,
        (certificate, expires): (KeptCertificate, Option<SystemTime>),
        (address, outbox): (PeerAddress, OutboxCounters),
        now: Instant,
    ) -> Arc<ServerLink> {
        self.check_token(hello.token);
        let server = Arc::new(ServerLink {
            uuid: hello.uuid,
            incarnation: hello.incarnation,
            role: hello.role,
            address,
            advertised: hello.advertised,
            dialled,
            since: now,
        });
        let link = Link {
            server: Arc::clone(&server),
            certificate,
            expires,
            snapshot_sent: false,
            linked: false,
            last_received: now,
            held: HashSet::new(),
            outbox,
            received: 0,
            astray: 0,
            stale: 0,
            ended: crossbeam_channel::bounded(0),
        };
        self.table.insert(id, link);
        self.by_server.insert(server.uuid, id);
        self.next_beat.get_or_insert(now + BEAT);
        server
    }

    /// Begins a link whose threads run: sends the snapshot of this server's sessions. Returns the other
    /// server; `None` if the connection is not a link.
    pub(super) fn begin(
        &mut self,
        id: ConnectionId,
        sessions: &Sessions,
        out: &mut Sending,
    ) -> Option<&Arc<ServerLink>> {
        let link = self.table.get_mut(id)?;
        link.snapshot_sent = true;
        let mut rows: Vec<Row> = sessions
            .iter()
            .filter(|session| session.announced)
            .map(row)
            .collect();
        // In the order of admission, so that the application of the peer sees the sessions in that order.
        rows.sort_unstable_by_key(|row| row.number);
        let sequence = self.sequence;
        // A server without sessions sends one empty part, because the last part completes the snapshot.
        let (mut parts, mut all, mut frames, mut is_last) = (rows.chunks(ROWS), BytesMut::new(), 0, false);
        while !is_last {
            let rows = parts.next().unwrap_or_default().to_vec();
            is_last = parts.len() == 0;
            let part = LinkFrame::Snapshot {
                sequence,
                is_last,
                rows,
            };
            all.extend_from_slice(&part.encode());
            frames += 1;
        }
        // One item, because one may always wait: several would end the link while memory is short.
        out.send_own(id, Outgoing::whole(all.freeze(), frames));
        Some(&link.server)
    }

    /// Ends a link: after its queue and an END with the reason, or at once with `abort`, for a peer that is
    /// gone or does not read. `None` if the connection is not a link.
    pub(super) fn end(
        &mut self,
        id: ConnectionId,
        code: EndCode,
        why: &str,
        abort: bool,
        out: &mut Sending,
    ) -> Option<EndedLink> {
        let link = self.table.remove(id)?;
        if !abort {
            let (server, reason) = (self.own.uuid, why.to_owned());
            send(id, &LinkFrame::End { code, server, reason }, out);
        }
        out.end(id, abort);
        // The peer can send no GO any more.
        for held in link.held {
            out.pause(held, false);
        }
        self.claims.drop_link(id);
        let server = link.server;
        // A newer link to the server is added only after the older one has ended.
        self.by_server.remove(&server.uuid);
        let rows = self.roster.end(server.uuid);
        // The application was told of these sessions when the snapshot was complete.
        let removed = link.linked.then_some(rows);
        Some(EndedLink { server, removed })
    }

    /// The time of the next heartbeat.
    pub(super) fn next_beat(&self) -> Option<Instant> {
        self.next_beat
    }

    /// Sends ALIVE over each link when a heartbeat is due. Returns the links that must end, because they are
    /// silent or their certificate has expired.
    pub(super) fn beat(
        &mut self,
        time: Moment,
        out: &mut Sending,
    ) -> Vec<(ConnectionId, EndCode, &'static str)> {
        let Some(due) = self.next_beat.filter(|at| *at <= time.now) else {
            return Vec::new();
        };
        // This process was stopped, or its machine slept. The peers have ended these links, so frames
        // that are sent over them would be lost.
        // The last ALIVE was sent one BEAT before `due`. The second BEAT is a margin, so that this server
        // ends its links no later than the peers do.
        let has_slept = time.now.saturating_duration_since(due) > SILENCE - 2 * BEAT;
        let mut ended = Vec::new();
        for (id, link) in self.table.iter() {
            if has_slept {
                ended.push((id, EndCode::Closing, "this server did not run for 8 s"));
            } else if time.now.saturating_duration_since(link.last_received) > SILENCE {
                ended.push((id, EndCode::Closing, "nothing was received from it for 10 s"));
            } else if link.expires.is_some_and(|expires| expires <= time.wall) {
                ended.push((id, EndCode::Refused, "its certificate has expired"));
            } else {
                send(id, &LinkFrame::Alive {}, out);
            }
        }
        self.next_beat = (ended.len() < self.table.len()).then(|| time.now + BEAT);
        ended
    }

    /// Notes that bytes have arrived over a link.
    pub(super) fn received(&mut self, id: ConnectionId, now: Instant) {
        if let Some(link) = self.table.get_mut(id) {
            link.last_received = now;
        }
    }

    /// Numbers a change of this server's sessions and reports it over all links.
    fn announce(&mut self, out: &mut Sending, change: impl FnOnce(u64) -> LinkFrame) {
        self.sequence += 1;
        if self.table.is_empty() {
            return;
        }
        let bytes = change(self.sequence).encode();
        // A link without a snapshot gets the change as part of that.
        for (id, _) in self.table.iter().filter(|(_, link)| link.snapshot_sent) {
            out.send_own(id, Outgoing::whole(bytes.clone(), 1));
        }
    }

    /// Reports a new session over all links.
    pub(super) fn announce_session(&mut self, session: &Session, out: &mut Sending) {
        self.announce(out, |sequence| LinkFrame::Connected {
            sequence,
            row: row(session),
        });
    }

    /// Reports the end of a session over all links.
    pub(super) fn announce_end(&mut self, info: &SessionInfo, out: &mut Sending) {
        let (number, uuid) = (info.id.0.0, info.uuid);
        self.announce(out, |sequence| LinkFrame::Gone {
            sequence,
            number,
            uuid,
        });
    }

    /// Asks another server to pause one of its sessions, or to read it again.
    pub(super) fn pause_remote(&self, change: RemotePause, out: &mut Sending) {
        let number = change.number;
        if self.table.contains(change.link) {
            let frame = if change.paused {
                LinkFrame::Hold { number }
            } else {
                LinkFrame::Go { number }
            };
            send(change.link, &frame, out);
        }
    }

    /// Sends CLAIM to the server that has a session of the newcomer's UUID. `certificates` are all that the newcomer
    /// has shown, in DER. `verdict` is dropped if no answer will come.
    pub(super) fn claim(
        &mut self,
        uuid: Uuid,
        certificates: Bytes,
        verdict: Sender<u8>,
        now: Instant,
        out: &mut Sending,
    ) {
        let row = self.roster.get(uuid);
        let Some(link) = row.and_then(|row| self.to(row.info.server)) else {
            return;
        };
        if let Some(id) = self.claims.begin(link, now, verdict) {
            let claim = LinkFrame::Claim {
                id,
                uuid,
                certificates,
            };
            send(link, &claim, out);
        }
    }

    /// Answers a CLAIM.
    pub(super) fn answer_claim(&self, link: ConnectionId, id: u64, verdict: u8, out: &mut Sending) {
        send(link, &LinkFrame::Claimed { id, verdict }, out);
    }
}

/// Sends a frame of the server itself over a link.
fn send(link: ConnectionId, frame: &LinkFrame, out: &mut Sending) {
    out.send_own(link, Outgoing::whole(frame.encode(), 1));
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
