//! What a server's core does with its links: begins and ends them, tells them of its own
//! sessions, and keeps what they tell.
//!
//! ```text
//!  Request::Link ─ admit_link ─▶ LinkState ─ told ─▶ SNAPSHOT goes out
//!                    │ duplicate                 │ the peer's SNAPSHOT is complete: linked
//!                    ▼                           ▼
//!                 refused      a fault, silence, the peer's end, stop ─▶ end_link: its rows go
//! ```

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use crossbeam_channel::Sender;
use log::{info, warn};
use uuid::Uuid;

use super::claims::Claims;
use super::facts::{LinkCounters, LinkFigures, LinkRequest, ServerLink};
use super::frames::{End, Hello, LinkFault, LinkFrame, ROWS, VERSION};
use super::roster::{Rank, Remote, Roster, Row};
use crate::proto::{Item, Refusal};
use crate::server::config::Environment;
use crate::server::core::{Grant, ServerCore, State};
use crate::server::sessions::{Session, SessionId, SessionInfo};
use ssntp_transport::dispatch::{Action, DistantChange, Origin};
use ssntp_transport::pki::KeptCertificate;
use ssntp_transport::{ConnectionId, Gauge, Outgoing, Table, excerpt};

/// How often each link is sent something, so that the peer knows of the other's life.
const BEAT: Duration = Duration::from_secs(1);
/// How long nothing may be heard of a peer. A stopped process still has its kernel
/// acknowledge, so TCP does not notice.
const SILENCE: Duration = Duration::from_secs(10);
/// Another server's token is believed up to `CREDIBLE`, which an engine that makes a thousand changes a
/// second reaches in 139 years, and beyond it as far as 16 million changes above the highest known one.
/// A server that says the greatest number must not fence off all leaders for ever.
const CREDIBLE: u64 = 1 << 62;
const STEP: u64 = 1 << 44;
/// Why a link is not admitted that there is already.
pub(super) const DUPLICATE: &str = "there is a link between the two servers already";

/// One link.
#[derive(Debug)]
pub(in crate::server) struct LinkState {
    pub(in crate::server) server: Arc<ServerLink>,
    pub(in crate::server) certificate: KeptCertificate,
    ends: Option<SystemTime>,
    /// The peer gets changes: it was sent the snapshot.
    told: bool,
    /// The peer's snapshot is complete.
    pub(in crate::server) linked: bool,
    heard: Instant,
    /// Sessions of this server that are held for the peer's sake.
    pub(in crate::server) held: HashSet<ConnectionId>,
    pub(in crate::server) gauge: Gauge,
    pub(in crate::server) counters: LinkCounters,
    _standing: Sender<Infallible>,
}

/// What the application is to be told.
#[derive(Debug)]
pub(super) enum News {
    Linked(Arc<ServerLink>),
    Unlinked(Arc<ServerLink>),
    Connected(Arc<Remote>),
    Disconnected(Arc<Remote>),
}

/// The links of a server, and what they have told.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(in crate::server) table: Table<LinkState>,
    by_server: HashMap<Uuid, ConnectionId>,
    /// Links that have ended, and whose threads have not.
    parting: HashMap<ConnectionId, Arc<ServerLink>>,
    pub(crate) roster: Roster,
    /// The number of the last change of this server's own sessions.
    sequence: u64,
    /// See [`Rank::stamp`].
    pub(super) clock: u64,
    /// The highest token seen.
    pub(in crate::server) token: u64,
    /// The token under which this server leads.
    pub(in crate::server) leads: Option<u64>,
    /// The token of what is being sent: that of `leads` while the application acts.
    pub(super) acting: u64,
    pub(super) claims: Claims,
    pub(super) news: Vec<News>,
    pub(in crate::server) next_beat: Option<Instant>,
}

impl Links {
    pub(in crate::server) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(in crate::server) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Has the application act: what it sends carries the token of the leader, if it leads.
    pub(in crate::server) fn act(&mut self, acts: bool) {
        self.acting = if acts { self.leads.unwrap_or_default() } else { 0 };
    }

    /// Notes a token that this server's application knows from the engine.
    pub(super) fn see(&mut self, token: u64) {
        self.token = self.token.max(token);
    }

    /// Notes a token that another server says. False if a higher one was seen, or if no leader can
    /// have it.
    pub(super) fn hear(&mut self, token: u64) -> bool {
        if is_credible(token, self.token) {
            self.see(token);
        }
        token == self.token
    }

    /// The rank of a session that is admitted now.
    pub(in crate::server) fn next_rank(&mut self) -> Rank {
        // Another server may have said the greatest stamp that there is.
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

    /// Notes that bytes have come. False if the connection is no link.
    pub(in crate::server) fn heard(&mut self, id: ConnectionId, now: Instant) -> bool {
        let link = self.table.get_mut(id);
        link.map(|link| link.heard = now).is_some()
    }

    /// Notes that the threads of a link have ended. Returns what to call it in the log.
    pub(in crate::server) fn parted(&mut self, id: ConnectionId) -> Option<Arc<ServerLink>> {
        self.parting.remove(&id)
    }

    /// What it knows about each link, by the servers' UUIDs.
    pub(in crate::server) fn figures(&self, now: Instant) -> Vec<LinkFigures> {
        let links = self.table.iter().map(|(_, link)| {
            let books = link.gauge.books();
            LinkFigures {
                server: (*link.server).clone(),
                age: now.saturating_duration_since(link.server.since),
                linked: link.linked,
                sessions: self.roster.sessions_of(link.server.uuid),
                held: link.held.len(),
                frames_waiting: books.waiting.frames,
                bytes_waiting: books.waiting.bytes,
                frames_sent: books.sent.frames,
                frames_received: link.counters.received,
                frames_astray: link.counters.astray,
                frames_stale: link.counters.stale,
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
            advertised: environment.advertised().to_owned(),
        };
        LinkFrame::Hello(hello).encode()
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
    pub(super) fn say(&mut self, link: ConnectionId, frame: &LinkFrame) {
        self.put(link, frame.encode(), 1, Origin::Application);
    }

    pub(super) fn put(&mut self, link: ConnectionId, bytes: Bytes, frames: u32, origin: Origin) {
        self.actions.push(Action::Send {
            origin,
            to: link,
            item: Outgoing::whole(bytes, frames),
        });
    }

    /// Tells all links of a change of this server's sessions.
    fn announce(&mut self, change: impl FnOnce(u64) -> LinkFrame) {
        self.links.sequence += 1;
        if self.links.is_empty() {
            return;
        }
        let bytes = change(self.links.sequence).encode();
        let told = self.links.table.iter().filter(|(_, link)| link.told);
        for id in told.map(|(id, _)| id).collect::<Vec<_>>() {
            self.put(id, bytes.clone(), 1, Origin::Application);
        }
    }

    /// Tells all links of a new session.
    pub(in crate::server) fn announce_session(&mut self, id: SessionId) {
        if let Some(row) = self.sessions.get(id).map(row) {
            self.announce(|sequence| LinkFrame::Connected { sequence, row });
        }
    }

    /// Tells all links that a session is over.
    pub(in crate::server) fn announce_end(&mut self, info: &SessionInfo) {
        let (number, uuid) = (info.id.0.0, info.uuid);
        self.announce(|sequence| LinkFrame::Gone {
            sequence,
            number,
            uuid,
        });
    }

    /// Admits a link. Of two links to one start of a server, the one stays that the server with
    /// the smaller UUID has dialled. A newer one of the same direction means that the dialler has
    /// lost the older one.
    pub(in crate::server) fn admit_link(
        &mut self,
        id: ConnectionId,
        request: LinkRequest,
        gauge: Gauge,
    ) -> Result<Grant, Refusal> {
        if self.open.is_none() {
            return Err(Refusal::Busy("the server is shutting down"));
        }
        let LinkRequest { hello, dialled, .. } = request;
        if !is_credible(hello.token, self.links.token) {
            return Err(Refusal::Busy("it says a token that no leader can have"));
        }
        let peer = hello.uuid;
        if let Some(old) = self.links.to(peer)
            && let Some(link) = self.links.table.get(old)
        {
            let before = &link.server;
            // A UUID that no certificate proves belongs to who has it, until its link ends.
            if request.certificate.uuid.is_none() && !link.certificate.is(&request.certificate) {
                return Err(Refusal::Busy("another certificate has a link with that UUID"));
            }
            let own_stays = self.environment.uuid < peer;
            let old_stays = before.dialled != dialled && before.dialled == own_stays;
            if old_stays && before.incarnation == hello.incarnation {
                return Err(Refusal::Busy(DUPLICATE));
            }
            self.end_link(old, End::Duplicate, "a newer link takes its place");
        }
        self.links.hear(hello.token);
        let certificate = self
            .certificates
            .take(&request.certificate, request.intermediates);
        self.connections.insert(id, (certificate.clone(), gauge.clone()));
        let (role, address) = (hello.role, request.address);
        let link = LinkState {
            server: Arc::new(ServerLink {
                uuid: peer,
                incarnation: hello.incarnation,
                role,
                address,
                advertised: hello.advertised,
                dialled,
                since: self.now,
            }),
            certificate: certificate.clone(),
            ends: request.ends,
            told: false,
            linked: false,
            heard: self.now,
            held: HashSet::new(),
            gauge,
            counters: LinkCounters::default(),
            _standing: request.standing,
        };
        self.links.table.insert(id, link);
        self.links.by_server.insert(peer, id);
        self.links.next_beat.get_or_insert(self.now + BEAT);
        Ok(Grant {
            info: Arc::new(SessionInfo {
                id: SessionId(id),
                server: peer,
                uuid: peer,
                role,
                address,
                certificate,
                tracing: false,
            }),
            answer: self.links.hello(&self.environment),
        })
    }

    /// Begins a link whose peer was told of its admission. False if there is none.
    pub(in crate::server) fn link_admitted(&mut self, id: ConnectionId, told: bool) -> bool {
        let Some(link) = self.links.table.get_mut(id) else {
            return false;
        };
        link.told = true;
        let server = Arc::clone(&link.server);
        if !told {
            self.end_link(id, End::Closing, "its handshake was given up");
            return true;
        }
        info!(target: "ssntp::server", "{server}: link begins");
        let mut rows: Vec<Row> = self
            .sessions
            .iter()
            .filter(|session| session.told)
            .map(row)
            .collect();
        rows.sort_unstable_by_key(|row| row.number);
        let sequence = self.links.sequence;
        let mut parts = rows.chunks(ROWS).peekable();
        loop {
            let rows = parts.next().unwrap_or_default().to_vec();
            let is_last = parts.peek().is_none();
            self.say(
                id,
                &LinkFrame::Snapshot {
                    sequence,
                    is_last,
                    rows,
                },
            );
            if is_last {
                return true;
            }
        }
    }

    /// Ends a link: its peer is told why, and what waits is sent first, except for a peer that
    /// does not take it.
    pub(in crate::server) fn end_link(&mut self, id: ConnectionId, end: End, why: &str) -> bool {
        let Some(link) = self.links.table.remove(id) else {
            return false;
        };
        let abort = end == End::Closing && self.open.is_some();
        if !abort {
            let (server, reason) = (self.environment.uuid, why.to_owned());
            self.say(id, &LinkFrame::End { end, server, reason });
        }
        self.actions.push(Action::End { id, abort });
        for held in link.held {
            self.actions.push(Action::Hold {
                id: held,
                held: false,
            });
        }
        self.links.claims.give_up(id);
        let server = link.server;
        let was_quiet = end == End::Duplicate || self.open.is_none();
        if was_quiet {
            info!(target: "ssntp::server", "{server}: link ends: {}", excerpt(&why));
        } else if let Some(more) = self.log.admit(server.uuid, "link ends", self.now) {
            warn!(target: "ssntp::server", "{server}: link ends: {}{more}", excerpt(&why));
        }
        self.links.parting.insert(id, Arc::clone(&server));
        if self.links.to(server.uuid) == Some(id) {
            self.links.by_server.remove(&server.uuid);
            let gone = self.links.roster.end(server.uuid);
            self.links.news.extend(gone.into_iter().map(News::Disconnected));
            if link.linked {
                self.links.news.push(News::Unlinked(server));
            }
        }
        true
    }

    /// Sends something over each link, and ends those that are silent or whose certificate has
    /// ended.
    pub(in crate::server) fn beat(&mut self) {
        let Some(due) = self.links.next_beat.filter(|at| *at <= self.now) else {
            return;
        };
        // It was stopped, or its machine slept. Its peers have given it up, so what it would pass
        // on over these links is lost.
        let has_slept = self.now.saturating_duration_since(due) > SILENCE - 2 * BEAT;
        for id in self.links.table.ids() {
            let Some(link) = self.links.table.get(id) else {
                continue;
            };
            if has_slept {
                self.end_link(id, End::Closing, "this server did not run for 8 s");
            } else if self.now.saturating_duration_since(link.heard) > SILENCE {
                self.end_link(id, End::Closing, "nothing was heard of it for 10 s");
            } else if link.ends.is_some_and(|ends| ends <= self.wall) {
                self.end_link(id, End::Refused, "its certificate has expired");
            } else {
                self.say(id, &LinkFrame::Alive);
            }
        }
        self.links.next_beat = (!self.links.is_empty()).then(|| self.now + BEAT);
    }

    /// Has a session of another server held, or go on.
    pub(in crate::server) fn tell_origin(&mut self, change: DistantChange) {
        if self.links.table.contains(change.link) {
            let frame = match change.waits {
                true => LinkFrame::Hold(change.number),
                false => LinkFrame::Go(change.number),
            };
            self.say(change.link, &frame);
        }
    }

    /// Holds a session of this server for the peer of a link, or lets it go on.
    fn hold(&mut self, link: ConnectionId, number: u64, held: bool) {
        let id = ConnectionId(number);
        let stands = self.sessions.get(SessionId(id)).is_some();
        let Some(link) = self.links.table.get_mut(link) else {
            return;
        };
        let changes = match held {
            true => stands && link.held.insert(id),
            false => link.held.remove(&id),
        };
        if changes {
            self.actions.push(Action::Hold { id, held });
        }
    }
}

impl ServerCore {
    /// Deals with what came over a link. False if the connection is no link.
    pub(in crate::server) fn link_item(&mut self, id: ConnectionId, item: Item) -> bool {
        if !self.state.links.table.contains(id) {
            return false;
        }
        let dealt = match item {
            Item::Run(run) => {
                let memory = run.wire().len();
                run.frames().try_for_each(|frame| {
                    let frame = LinkFrame::decode(frame.kind(), frame.payload_bytes().clone())?;
                    self.link_frame(id, frame, memory)
                })
            }
            other => Err(LinkFault::Kind(other.kind())),
        };
        if let Err(fault) = dealt {
            self.state.end_link(id, End::Fault, &fault.to_string());
        }
        true
    }

    /// Deals with one frame, which keeps so much memory alive.
    fn link_frame(&mut self, id: ConnectionId, frame: LinkFrame, memory: usize) -> Result<(), LinkFault> {
        // An earlier frame of the same batch may have ended the link.
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
                    let linked = News::Linked(Arc::clone(&link.server));
                    self.state.links.news.push(linked);
                    self.state.take_changes(changes);
                }
            }
            LinkFrame::Connected { sequence, row } => {
                let changes = roster.connected(server, sequence, row)?;
                self.state.take_changes(changes);
            }
            LinkFrame::Gone {
                sequence,
                number,
                uuid,
            } => {
                let changes = roster.gone(server, sequence, number, uuid)?;
                self.state.take_changes(changes);
            }
            LinkFrame::Forward(forward) => self.forwarded(id, server, forward, memory)?,
            LinkFrame::Hold(number) => self.state.hold(id, number, true),
            LinkFrame::Go(number) => self.state.hold(id, number, false),
            LinkFrame::Tell { token, message } => self.told(id, server, token, message),
            LinkFrame::Claim {
                id: claim,
                uuid,
                certificate,
            } => {
                let verdict = self.state.claimed(uuid, &certificate);
                let answer = LinkFrame::Claimed { id: claim, verdict };
                self.state.say(id, &answer);
            }
            LinkFrame::Claimed { id: claim, verdict } => {
                self.state.links.claims.answer(id, claim, verdict);
            }
            LinkFrame::Alive => {}
            LinkFrame::End { end, reason, .. } => {
                let why = format!("the other server has ended it: {reason}");
                let end = if end == End::Duplicate { end } else { End::Closing };
                self.state.end_link(id, end, &why);
            }
            LinkFrame::Hello(_) => return Err(LinkFault::Turn(name)),
        }
        self.pass_on_news();
        Ok(())
    }

    /// Tells the application of links and of other servers' sessions.
    pub(in crate::server) fn pass_on_news(&mut self) {
        for news in std::mem::take(&mut self.state.links.news) {
            self.guarded("news of other servers", |handler, cx| match news {
                News::Linked(server) => handler.server_linked(cx, &server),
                News::Unlinked(server) => handler.server_unlinked(cx, &server),
                News::Connected(row) => handler.remote_connected(cx, &row.info),
                News::Disconnected(row) => handler.remote_disconnected(cx, &row.info),
            });
        }
    }
}
