//! Frames on their way to sessions of other servers, and from these servers.
//!
//! ```text
//!  a frame for a UUID of another server ─▶ FORWARD to that session ─────────┐
//!  a frame for a role ─▶ one FORWARD for each link with such a session ─────┼─▶ link
//!  a frame for another server's application ─▶ FORWARD to the application ──┘
//!
//!  link ─▶ FORWARD ─▶ sessions of this server, or its application; never a link
//! ```

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use log::debug;
use uuid::Uuid;

use super::facts::ServerLink;
use super::frames::{Forward, LinkFault, LinkFrame, To};
use crate::proto::{Codec, Command, Frame, FrameKind, Item, MAX_WASTE, Run};
use crate::server::core::{ServerCore, State};
use crate::server::delivery::Fan;
use crate::server::handler::{Context, SendError};
use crate::server::sessions::{SessionId, SessionInfo};
use ssntp_transport::dispatch::Origin;
use ssntp_transport::{ConnectionId, Load, Outgoing, Role};

/// Whole frames of one kind, or one with a trace, as they go over a link.
pub(in crate::server) struct Bundle {
    pub(in crate::server) bytes: Bytes,
    pub(in crate::server) frames: u32,
    pub(in crate::server) traced: bool,
}

impl From<&Run> for Bundle {
    fn from(run: &Run) -> Self {
        Self {
            bytes: run.wire().clone(),
            frames: run.len(),
            traced: false,
        }
    }
}

impl State {
    /// The number of the session that causes what is being sent, if it is one of this server.
    fn number(&self) -> u64 {
        match self.origin {
            Origin::Connection(id) if self.sessions.get(SessionId(id)).is_some() => id.0,
            _ => 0,
        }
    }

    fn encoded(&self, from: Option<Uuid>, to: To, bundle: Bundle) -> Bytes {
        let forward = Forward {
            token: self.links.acting,
            number: self.number(),
            from: from.unwrap_or_default(),
            to,
            traced: bundle.traced,
            frames: bundle.bytes,
        };
        LinkFrame::Forward(forward).encode()
    }

    /// Sends frames to a session of another server.
    ///
    /// # Errors
    /// No server has one.
    pub(in crate::server) fn send_to_remote(
        &mut self,
        from: Option<Uuid>,
        to: Uuid,
        bundle: impl FnOnce() -> Bundle,
    ) -> Result<(), SendError> {
        let row = self.links.roster.get(to);
        let link = row.and_then(|row| self.links.to(row.info.server));
        let link = link.ok_or(SendError::NotConnected(to))?;
        let bundle = bundle();
        let frames = bundle.frames;
        let bytes = self.encoded(from, To::Sessions(vec![to]), bundle);
        self.put(link, bytes, frames, self.origin);
        Ok(())
    }

    /// Hands frames of a session of this server to another server.
    ///
    /// # Errors
    /// There is no link to it.
    pub(in crate::server) fn pass_to(
        &mut self,
        server: Uuid,
        from: &SessionInfo,
        bundle: Bundle,
    ) -> Result<(), SendError> {
        // Before the snapshot of a link the other server does not know who sends this.
        let link = self.links.to(server);
        let is_told = |link: &ConnectionId| self.links.table.get(*link).is_some_and(|link| link.linked);
        let link = link.filter(is_told).ok_or(SendError::NotConnected(server))?;
        let frames = bundle.frames;
        let bytes = self.encoded(Some(from.uuid), To::Application, bundle);
        self.put(link, bytes, frames, self.origin);
        Ok(())
    }

    /// Sends frames once over each link whose server has sessions with one of the roles.
    /// Returns how many sessions that are.
    pub(in crate::server) fn send_to_remote_role(
        &mut self,
        from: Option<Uuid>,
        to: Role,
        bundle: impl FnOnce() -> Bundle,
    ) -> usize {
        if self.links.is_empty() {
            return 0;
        }
        let links = self.links.table.iter().map(|(id, link)| {
            let sessions = self.links.roster.count(link.server.uuid, to, from);
            (id, sessions)
        });
        let links: Vec<_> = links.filter(|(_, sessions)| *sessions > 0).collect();
        if links.is_empty() {
            return 0;
        }
        let bundle = bundle();
        let frames = bundle.frames;
        let bytes = self.encoded(from, To::Role(to), bundle);
        let mut count = 0;
        for (id, sessions) in links {
            self.put(id, bytes.clone(), frames, self.origin);
            count += sessions;
        }
        count
    }

    /// Sends something to the sessions that a FORWARD names. Returns how many they are.
    fn deliver(&mut self, from: Uuid, to: &To, kind: FrameKind, item: &Item) -> usize {
        let ids: Vec<SessionId> = match to {
            To::Sessions(uuids) => uuids
                .iter()
                .filter_map(|uuid| self.sessions.id_of(*uuid))
                .collect(),
            To::Role(role) => {
                let sessions = self.sessions.with_role(*role).map(|session| &session.info);
                sessions
                    .filter(|info| info.uuid != from)
                    .map(|info| info.id)
                    .collect()
            }
            To::Application => return 0,
        };
        let sent = ids.len();
        match item {
            Item::Run(run) => {
                let item = Outgoing::whole(run.wire().clone(), run.len());
                for id in ids {
                    self.push(id, kind, item.clone());
                }
            }
            Item::Traced(frame) => {
                let mut fan = Fan::new(frame, self);
                for id in ids {
                    let item = self.sessions.get(id).map(|session| fan.for_session(session));
                    if let Some(item) = item {
                        self.push(id, kind, item);
                    }
                }
            }
            Item::Unsupported(_) => {}
        }
        sent
    }

    /// Reads the frames of a FORWARD. What would keep much more memory alive is copied.
    fn read(&self, traced: bool, frames: Bytes, memory: usize) -> Option<Item> {
        let environment = &self.environment;
        if !traced {
            let frames = match frames.len() < memory / MAX_WASTE {
                true => Bytes::copy_from_slice(&frames),
                false => frames,
            };
            return Run::read(frames, environment.max_payload).map(Item::Run);
        }
        let mut codec = Codec::new(environment.max_payload, true).operands(environment.operands.clone());
        let (mut bytes, mut items) = (BytesMut::from(frames), Vec::new());
        codec.decode(&mut bytes, &mut items).ok()?;
        let mut item = items.pop().filter(|_| items.is_empty() && bytes.is_empty())?;
        if let Item::Traced(frame) = &mut item
            && let Some(trace) = frame.trace_mut()
        {
            let now = crate::wire::unix_nanos_at(self.wall);
            trace.stamp_received(environment.uuid, environment.role, now);
        }
        Some(item)
    }

    /// Notes the token of a frame. False if it is not that of the newest leader.
    fn is_current(&mut self, link: ConnectionId, token: u64) -> bool {
        let current = token == 0 || self.links.hear(token);
        if !current && let Some(link) = self.links.table.get_mut(link) {
            link.counters.stale += 1;
            debug!(target: "ssntp::server", "{}: a frame under the wrong token {token} is dropped", link.server);
        }
        current
    }
}

impl ServerCore {
    /// Deals with frames that came over a link.
    ///
    /// # Errors
    /// They are not whole frames of one kind.
    pub(super) fn forwarded(
        &mut self,
        link: ConnectionId,
        server: Uuid,
        forward: Forward,
        memory: usize,
    ) -> Result<(), LinkFault> {
        if !self.state.is_current(link, forward.token) {
            return Ok(());
        }
        let item = self.state.read(forward.traced, forward.frames, memory);
        let item = item.ok_or(LinkFault::Value("FORWARD", "frames"))?;
        let (kind, frames) = (item.kind(), item.frames());
        let operands = &self.state.environment.operands;
        let is_known = operands.may_be_sent(kind) || operands.is_request(kind);
        self.state.origin = match forward.number {
            0 => Origin::Application,
            number => Origin::Distant { link, number },
        };
        let sent = match &forward.to {
            _ if !is_known => 0,
            To::Application => {
                let row = self.state.links.roster.of(server, forward.from).cloned();
                row.map_or(0, |row| {
                    if let Item::Run(run) = &item
                        && run.kind() == Command::DRAIN_SERVER
                    {
                        self.drain_for_remote(&row.info, run);
                        return 1;
                    }
                    self.guarded("frame", |handler, cx| match item {
                        Item::Run(run) => handler.run(cx, &row.info, &run),
                        Item::Traced(frame) => handler.frame(cx, &row.info, frame),
                        Item::Unsupported(_) => {}
                    });
                    1
                })
            }
            to => self.state.deliver(forward.from, to, kind, &item),
        };
        if let Some(link) = self.state.links.table.get_mut(link) {
            link.counters.received += u64::from(frames);
            if sent == 0 {
                link.counters.astray += u64::from(frames);
                debug!(target: "ssntp::server", "{}: {kind} finds no receiver", link.server);
            }
        }
        Ok(())
    }

    /// Hands a message of another server's application to this one's.
    pub(super) fn told(&mut self, link: ConnectionId, server: Uuid, token: u64, message: Bytes) {
        if self.state.is_current(link, token) {
            // The message waits with the application, and must not keep a whole read alive.
            let message = Bytes::copy_from_slice(&message);
            self.state.origin = Origin::Application;
            self.guarded("told", |handler, cx| handler.told(cx, server, message));
        }
    }
}

/// What an application does with other servers. See [`Federation`](super::Federation).
impl Context<'_> {
    /// The servers that there are links to, and whose sessions are known.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<ServerLink>> {
        let links = self.state.links.table.iter();
        links
            .filter(|(_, link)| link.linked)
            .map(|(_, link)| &link.server)
    }

    /// What waits for a session of this server, or for the link to a server of that UUID, or to
    /// the one that has a session of it.
    pub fn waiting(&self, uuid: Uuid) -> Option<Load> {
        if let Some(id) = self.state.sessions.id_of(uuid) {
            return Some(self.state.sessions.get(id)?.gauge.books().waiting);
        }
        let links = &self.state.links;
        let row = links.roster.get(uuid);
        let link = links.to(row.map_or(uuid, |row| row.info.server))?;
        Some(links.table.get(link)?.gauge.books().waiting)
    }

    /// The random number of this start of the server.
    pub fn incarnation(&self) -> u64 {
        self.state.environment.incarnation
    }

    /// Sends a message to the application of another server, see
    /// [`Handler::told`](super::super::Handler::told). It arrives in order with everything else
    /// that this server sends there, or not at all if the link ends.
    ///
    /// # Errors
    /// [`SendError::NotConnected`] if there is no link to that server;
    /// [`SendError::TooLong`] if the message is longer than a payload may be.
    pub fn tell(&mut self, server: Uuid, message: Bytes) -> Result<(), SendError> {
        let limit = self.state.environment.max_payload;
        let len = message.len();
        if u32::try_from(len).is_ok_and(|len| len > limit) {
            return Err(SendError::TooLong { len, limit });
        }
        let links = &self.state.links;
        let (link, token) = (links.to(server), links.acting);
        let link = link.ok_or(SendError::NotConnected(server))?;
        self.state.say(link, &LinkFrame::Tell { token, message });
        Ok(())
    }

    /// Sends a message to the application of every server that there is a link to. Returns how
    /// many they are.
    pub fn tell_all(&mut self, message: &Bytes) -> usize {
        let mut servers: Vec<_> = self.servers().map(|server| server.uuid).collect();
        servers.retain(|server| self.tell(*server, message.clone()).is_ok());
        servers.len()
    }

    /// Hands frames of a session of this server to the application of another server, whose
    /// [`Handler::run`](super::super::Handler::run) sees them as if they had come to it. While a
    /// receiver there has no room for what they cause, the session is held here.
    ///
    /// # Errors
    /// [`SendError::NotConnected`] if there is no link to that server.
    pub fn pass(&mut self, server: Uuid, from: &SessionInfo, run: &Run) -> Result<(), SendError> {
        self.state.pass_to(server, from, Bundle::from(run))
    }

    /// As [`pass`](Self::pass), for one frame, with its trace.
    ///
    /// # Errors
    /// As there.
    pub fn pass_frame(&mut self, server: Uuid, from: &SessionInfo, frame: &Frame) -> Result<(), SendError> {
        let bundle = Fan::new(frame, self.state).for_link();
        self.state.pass_to(server, from, bundle)
    }

    /// Leads, or leads no more: what the application sends to other servers carries this token,
    /// and none without. Servers take what carries a token only while they have seen no higher
    /// one.
    pub fn lead(&mut self, token: Option<u64>) {
        self.state.links.leads = token;
        self.state.links.act(true);
        self.see_token(token.unwrap_or_default());
    }

    /// Notes a token that the engine of the cluster has given.
    pub fn see_token(&mut self, token: u64) {
        self.state.links.see(token);
    }

    /// The highest token seen: here, by [`see_token`](Self::see_token), or over a link.
    pub fn token(&self) -> u64 {
        self.state.links.token
    }
}
