//! Frames that are sent over links to other servers, and those that are received from them.
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
use super::frames::{Forward, LinkFault, LinkFrame, Receivers};
use crate::proto::{Codec, Command, Frame, Item, Run, apart};
use crate::server::core::{ServerCore, State};
use crate::server::delivery::Parcel;
use crate::server::handler::{Context, SendError};
use crate::server::sessions::{SessionId, SessionInfo};
use ssntp_pki::Role;
use ssntp_transport::dispatch::Origin;
use ssntp_transport::{ConnectionId, Load};

impl State {
    /// The number of this server's session whose frames are being handled, or 0.
    fn origin_number(&self) -> u64 {
        match self.origin {
            Origin::Connection(id) if self.sessions.get(SessionId(id)).is_some() => id.0,
            _ => 0,
        }
    }

    /// Sends frames over a link.
    fn forward(&mut self, link: ConnectionId, from: Option<Uuid>, to: Receivers, parcel: &Parcel) {
        let bytes = self.encode_forward(from, to, parcel);
        self.send_over_link(link, bytes, parcel.frames(), self.origin);
    }

    fn encode_forward(&self, from: Option<Uuid>, to: Receivers, parcel: &Parcel) -> Bytes {
        let (traced, frames) = parcel.for_link();
        let forward = Forward {
            token: self.links.acting,
            number: self.origin_number(),
            from: from.unwrap_or_default(),
            to,
            traced,
            frames,
        };
        LinkFrame::Forward { forward }.encode()
    }

    /// Sends frames to a session of another server.
    ///
    /// # Errors
    /// [`SendError::NotConnected`] if no other server has a session of that UUID.
    pub(in crate::server) fn send_to_remote(
        &mut self,
        from: Option<Uuid>,
        to: Uuid,
        parcel: &Parcel,
    ) -> Result<(), SendError> {
        let row = self.links.roster.get(to);
        let link = row.and_then(|row| self.links.to(row.info.server));
        let link = link.ok_or(SendError::NotConnected(to))?;
        self.forward(link, from, Receivers::Sessions(vec![to]), parcel);
        Ok(())
    }

    /// Sends frames of a session of this server to the application of another server.
    ///
    /// # Errors
    /// [`SendError::NotConnected`] if there is no link to that server.
    pub(in crate::server) fn pass_to(
        &mut self,
        server: Uuid,
        from: &SessionInfo,
        parcel: &Parcel,
    ) -> Result<(), SendError> {
        // Before the snapshots are exchanged, the other server does not know the session.
        let link = self.links.to(server);
        let is_linked = |link: &ConnectionId| self.links.table.get(*link).is_some_and(|link| link.linked);
        let link = link.filter(is_linked).ok_or(SendError::NotConnected(server))?;
        self.forward(link, Some(from.uuid), Receivers::Application, parcel);
        Ok(())
    }

    /// Sends frames once over each link whose server has sessions with one of the roles. Returns the
    /// number of these sessions.
    pub(in crate::server) fn send_to_remote_role(
        &mut self,
        from: Option<Uuid>,
        to: Role,
        parcel: &Parcel,
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
        // Encoded once, and only if a link needs it.
        let bytes = self.encode_forward(from, Receivers::Role(to), parcel);
        let mut count = 0;
        for (id, sessions) in links {
            self.send_over_link(id, bytes.clone(), parcel.frames(), self.origin);
            count += sessions;
        }
        count
    }

    /// Sends the frames of a FORWARD to its receivers among this server's sessions. Returns their
    /// number.
    fn deliver_forward(&mut self, from: Uuid, to: &Receivers, item: &Item) -> usize {
        let Some(mut parcel) = Parcel::of(item, self) else {
            return 0;
        };
        match to {
            Receivers::Sessions(uuids) => {
                let sent = uuids.iter().filter(|uuid| self.send_here(**uuid, &mut parcel));
                sent.count()
            }
            Receivers::Role(role) => self.fan_out(Some(from), *role, &mut parcel),
            Receivers::Application => 0,
        }
    }

    /// Decodes the frames of a FORWARD; `None` if they are malformed. Frames that are a small part
    /// of the `memory` that they keep alive are copied.
    fn decode_forwarded(&self, traced: bool, frames: Bytes, memory: usize) -> Option<Item> {
        let environment = &self.environment;
        if !traced {
            return Run::read(apart(frames, memory), environment.max_payload).map(Item::Run);
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

    /// Checks the token of a frame. False, and counted, if it is not that of the newest leader. A
    /// frame without a token (0) passes.
    fn is_current(&mut self, link: ConnectionId, token: u64) -> bool {
        let current = token == 0 || self.links.check_token(token);
        if !current && let Some(link) = self.links.table.get_mut(link) {
            link.stale += 1;
            debug!(target: "ssntp::server", "{}: a frame under the wrong token {token} is dropped", link.server);
        }
        current
    }
}

impl ServerCore {
    /// Delivers the frames of a FORWARD.
    ///
    /// # Errors
    /// [`LinkFault::Value`] if they are not whole frames of one kind.
    pub(super) fn handle_forward(
        &mut self,
        link: ConnectionId,
        server: Uuid,
        forward: Forward,
        memory: usize,
    ) -> Result<(), LinkFault> {
        if !self.state.is_current(link, forward.token) {
            return Ok(());
        }
        let item = self
            .state
            .decode_forwarded(forward.traced, forward.frames, memory);
        let item = item.ok_or(LinkFault::Value("FORWARD", "its frames"))?;
        let (kind, frames) = (item.kind(), item.frames());
        let operands = &self.state.environment.operands;
        // The other server may have registered kinds that this one has not.
        let is_known = operands.may_be_sent(kind) || operands.is_request(kind);
        // If a receiver has no room, the flow control pauses this origin: HOLD goes to its server.
        self.state.origin = match forward.number {
            0 => Origin::Application,
            number => Origin::Remote { link, number },
        };
        let sent = match &forward.to {
            _ if !is_known => 0,
            Receivers::Application => {
                let row = self.state.links.roster.of(server, forward.from).cloned();
                row.map_or(0, |row| {
                    if let Item::Run(run) = &item
                        && run.kind() == Command::DRAIN_SERVER
                    {
                        self.drain_for_remote(&row.info, run);
                        return 1;
                    }
                    self.hand_over(&row.info, item);
                    1
                })
            }
            to => self.state.deliver_forward(forward.from, to, &item),
        };
        if let Some(link) = self.state.links.table.get_mut(link) {
            link.received += u64::from(frames);
            if sent == 0 {
                link.astray += u64::from(frames);
                debug!(target: "ssntp::server", "{}: {kind} finds no receiver", link.server);
            }
        }
        Ok(())
    }

    /// Passes the message of a TELL to the application.
    pub(super) fn handle_tell(&mut self, link: ConnectionId, server: Uuid, token: u64, message: Bytes) {
        if self.state.is_current(link, token) {
            // The application may keep the message, which must not keep a whole read alive.
            let message = Bytes::copy_from_slice(&message);
            self.state.origin = Origin::Application;
            self.guarded_cluster("server_message", |handler, cx| {
                handler.server_message(cx, server, message);
            });
        }
    }
}

/// Other servers and their sessions. See [`Federation`](super::Federation).
impl Context<'_> {
    /// The linked servers whose sessions are known.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<ServerLink>> {
        let links = self.state.links.table.iter();
        links
            .filter(|(_, link)| link.linked)
            .map(|(_, link)| &link.server)
    }

    /// The frames and bytes that wait for a session of this server; or for the link to the server of
    /// that UUID; or for the link to the server that has a session of that UUID.
    pub fn waiting(&self, uuid: Uuid) -> Option<Load> {
        if let Some(session) = self.state.sessions.of(uuid) {
            return Some(session.outbox.figures().waiting);
        }
        let links = &self.state.links;
        let row = links.roster.get(uuid);
        let link = links.to(row.map_or(uuid, |row| row.info.server))?;
        Some(links.table.get(link)?.outbox.figures().waiting)
    }

    /// The random number that this server chose when it started.
    pub fn incarnation(&self) -> u64 {
        self.state.environment.incarnation
    }

    /// Sends a message to the application of another server
    /// ([`ClusterHandler::server_message`](super::super::ClusterHandler::server_message)). It arrives in order with
    /// all other frames that this server sends there. It is lost if the link ends.
    ///
    /// # Errors
    /// [`SendError::NotConnected`] if there is no link to that server;
    /// [`SendError::TooLong`] if the message is longer than a payload may be.
    pub fn send_to_server(&mut self, server: Uuid, message: Bytes) -> Result<(), SendError> {
        let limit = self.state.environment.max_payload;
        let len = message.len();
        if !u32::try_from(len).is_ok_and(|len| len <= limit) {
            return Err(SendError::TooLong { len, limit });
        }
        let links = &self.state.links;
        let (link, token) = (links.to(server), links.acting);
        let link = link.ok_or(SendError::NotConnected(server))?;
        self.state
            .send_link_frame(link, &LinkFrame::Tell { token, message });
        Ok(())
    }

    /// Sends a message to the application of every linked server. Returns the number of servers.
    pub fn send_to_servers(&mut self, message: &Bytes) -> usize {
        let mut servers: Vec<_> = self.servers().map(|server| server.uuid).collect();
        servers.retain(|server| self.send_to_server(*server, message.clone()).is_ok());
        servers.len()
    }

    /// Passes frames of a session of this server to the application of another server, as if the
    /// session were connected there: its [`Handler::run`](super::super::Handler::run) is called. While
    /// a receiver there has no room for frames that these cause, the session is not read here.
    ///
    /// # Errors
    /// [`SendError::NotConnected`] if there is no link to that server.
    pub fn pass_to_server(&mut self, server: Uuid, from: &SessionInfo, run: &Run) -> Result<(), SendError> {
        self.state.pass_to(server, from, &Parcel::run(run))
    }

    /// As [`pass_to_server`](Self::pass_to_server), for one frame with its trace.
    ///
    /// # Errors
    /// As of [`pass_to_server`](Self::pass_to_server).
    pub fn pass_frame_to_server(
        &mut self,
        server: Uuid,
        from: &SessionInfo,
        frame: &Frame,
    ) -> Result<(), SendError> {
        self.state
            .pass_to(server, from, &Parcel::frame(frame, self.state))
    }

    /// Becomes the leader with this token, or a follower with `None`. Frames that a leader's
    /// application sends to other servers carry the token. A server drops frames whose token is lower
    /// than the highest one that it knows.
    pub fn set_leader_token(&mut self, token: Option<u64>) {
        self.state.links.leads = token;
        self.state.links.act(true);
        self.note_token(token.unwrap_or_default());
    }

    /// Notes a token that the engine of the cluster has issued.
    pub fn note_token(&mut self, token: u64) {
        let links = &mut self.state.links;
        links.token = links.token.max(token);
    }

    /// The highest token known, from [`note_token`](Self::note_token) or from other servers.
    pub fn token(&self) -> u64 {
        self.state.links.token
    }
}
