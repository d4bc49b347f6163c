//! The operations of an application: [`Context`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

use super::directory::Directory;
use super::disconnect::DisconnectReason;
use super::error::SendError;
use super::filter::Filter;
use super::links::ServerLink;
use super::parcel::Parcel;
use super::routing::{Rule, RuleError, Rules};
use super::sessions::{Session, SessionCounters, SessionInfo};
use super::state::State;
use crate::payload::Content;
use crate::proto::{Frame, FrameKind, Run};
use crate::request::Request;
use ssntp_pki::Role;
use ssntp_transport::Load;

/// The operations for a handler, or for a closure in
/// [`ServerHandle::with`](super::ServerHandle::with). It exists only on the dispatcher thread. No method
/// blocks.
#[derive(Debug)]
pub struct Context<'a> {
    pub(super) state: &'a mut State,
}

impl Context<'_> {
    /// The server's UUID.
    pub fn uuid(&self) -> Uuid {
        self.state.environment.own.uuid
    }

    /// The time of the event that is being handled, so that handlers need no clock. It comes from
    /// [`transport::now`](crate::transport::now), which also counts while the host is suspended, so compare no
    /// `Instant::now()` with it.
    pub fn now(&self) -> Instant {
        self.state.delivery.time.now
    }

    /// The roles that the server advertises.
    pub fn role(&self) -> Role {
        self.state.environment.own.role
    }

    /// Sends a frame to one client. All frames to one client leave in the order in which they are sent.
    /// If the receiver has no room for a frame that is sent from [`Handler::frame`](super::Handler::frame) or
    /// [`Handler::run`](super::Handler::run), the session whose frame is being handled is paused: it is not read
    /// until the receiver has room. For other calls there is no session to pause, so the policy for slow
    /// consumers applies when the receiver's queue is full. Dropped frames are counted in
    /// [`SessionCounters::frames_dropped`].
    ///
    /// # Errors
    /// [`SendError`]; the frame was not queued.
    pub fn send(&mut self, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.send_from(None, to, frame)
    }

    /// Queues the frame that carries `payload` for one client.
    ///
    /// # Errors
    /// [`SendError`]; the frame was not queued.
    pub fn send_payload<T: Content>(&mut self, to: Uuid, payload: &T) -> Result<(), SendError> {
        let frame = Frame::try_of(payload).map_err(|_| SendError::Payload(T::FRAME))?;
        self.send(to, &frame)
    }

    /// Sends a frame that came from a session to another client. As [`send`](Self::send), but it is an
    /// error to send the frame back to its sender.
    ///
    /// # Errors
    /// [`SendError`]; the frame was not queued.
    pub fn forward(&mut self, from: &SessionInfo, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.send_from(Some(from.uuid()), to, frame)
    }

    /// Queues a frame that came from a session for every other session with at least one of the roles.
    /// Returns the number of sessions.
    ///
    /// # Errors
    /// [`SendError::Kind`], [`SendError::TooLong`].
    pub fn forward_all(&mut self, from: &SessionInfo, to: Role, frame: &Frame) -> Result<usize, SendError> {
        self.send_all(Some(from.uuid()), to, frame)
    }

    /// Queues a frame for every session with at least one of the roles; with [`Role::ALL`] for every
    /// session. Returns the number of sessions.
    ///
    /// # Errors
    /// [`SendError::Kind`], [`SendError::TooLong`].
    pub fn multicast(&mut self, to: Role, frame: &Frame) -> Result<usize, SendError> {
        self.send_all(None, to, frame)
    }

    /// The connected sessions.
    pub fn directory(&self) -> Directory<'_> {
        self.state.delivery.directory()
    }

    /// The counters of the session of `uuid`, if it is connected to this server.
    pub fn counters(&self, uuid: Uuid) -> Option<SessionCounters> {
        self.state.delivery.sessions.of(uuid).map(Session::counters)
    }

    /// The number of frames that ended connections have lost: frames that waited at the end of a connection,
    /// or were sent to it later. Those of a session are added when its threads have ended, some time after
    /// [`Handler::disconnected`](super::Handler::disconnected).
    pub fn frames_lost(&self) -> u64 {
        self.state.connections.frames_lost()
    }

    /// Ends the session of `uuid` after its queue is sent. False if it is not connected to this server.
    pub fn disconnect(&mut self, uuid: Uuid) -> bool {
        let Some(session) = self.state.delivery.sessions.of(uuid) else {
            return false;
        };
        let id = session.info.id;
        self.state.end(id, DisconnectReason::Application, false);
        true
    }

    /// Begins to stop the server, as [`ServerHandle::stop`](super::ServerHandle::stop)
    /// does. Returns at once.
    pub fn stop(&mut self) {
        self.state.delivery.out.stop();
    }

    /// Asks every client to leave within this time, and then stops the server, as
    /// [`ServerHandle::drain`](super::ServerHandle::drain) does. Returns at once.
    pub fn drain(&mut self, within: Duration) {
        self.state.drain(within);
    }

    /// The cluster configuration that the next CONNECTED carries.
    pub fn configuration(&self) -> &Bytes {
        self.state.configuration.content()
    }

    /// Replaces the cluster configuration. Connected clients do not get it: send CONFIGURE for that.
    pub fn set_configuration(&mut self, yaml: impl Into<Bytes>) {
        self.state.configuration.set(yaml.into());
    }

    /// Replaces the forwarding rules.
    ///
    /// # Errors
    /// [`RuleError`]; the old rules stay.
    pub fn set_rules(&mut self, rules: Rules) -> Result<(), RuleError> {
        let operands = &self.state.environment.own.operands;
        self.state.routing.set_rules(rules, operands)
    }

    /// The roles to which frames of a kind are multicast. Empty if the kind has no rule, or a routing function.
    pub fn receivers(&self, kind: FrameKind) -> Role {
        match self.state.routing.rule(kind) {
            Some(Rule::Multicast(roles)) => *roles,
            _ => Role::NONE,
        }
    }

    /// The role filter.
    pub fn filter(&self) -> &Filter {
        self.state.routing.filter()
    }

    /// Replaces the role filter.
    pub fn set_filter(&mut self, filter: Filter) {
        self.state.routing.set_filter(filter);
    }

    /// Answers a request, in the call that received it or later.
    ///
    /// # Errors
    /// [`SendError`]; the answer was not queued. [`SendError::NotConnected`] if the client that asked
    /// has gone.
    pub fn reply(&mut self, request: &Request, payload: impl Into<Bytes>) -> Result<(), SendError> {
        self.state.delivery.respond(request, None, Ok(payload.into()))
    }

    /// As [`reply`](Self::reply), with a type of the application.
    ///
    /// # Errors
    /// As [`reply`](Self::reply), and [`SendError::Payload`].
    pub fn reply_payload<T: Content>(&mut self, request: &Request, answer: &T) -> Result<(), SendError> {
        let payload = answer.write().map_err(|_| SendError::Payload(T::FRAME))?;
        self.reply(request, payload)
    }

    /// Refuses a request. The reason `why` is cut to 256 bytes.
    ///
    /// # Errors
    /// As [`reply`](Self::reply).
    pub fn refuse(&mut self, request: &Request, why: &str) -> Result<(), SendError> {
        self.state.delivery.respond(request, None, Err(why))
    }
}

/// Checks what the application sends, and sends it.
impl Context<'_> {
    fn send_from(&mut self, from: Option<Uuid>, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        let mut parcel = self.state.delivery.checked(frame)?;
        self.state.delivery.send(from, to, &mut parcel)
    }

    fn send_all(&mut self, from: Option<Uuid>, to: Role, frame: &Frame) -> Result<usize, SendError> {
        let mut parcel = self.state.delivery.checked(frame)?;
        Ok(self.state.delivery.send_to_role(from, to, &mut parcel))
    }
}

/// Other servers and their sessions. See [`Federation`](super::Federation).
impl Context<'_> {
    /// The linked servers whose sessions are known.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<ServerLink>> {
        self.state.delivery.links.servers()
    }

    /// The frames and bytes that wait for a session of this server. For another server, or a session of
    /// one, those that wait for the link to that server. `None` if the UUID is unknown.
    pub fn waiting(&self, uuid: Uuid) -> Option<Load> {
        match self.state.delivery.sessions.of(uuid) {
            Some(session) => Some(session.outbox.figures().waiting),
            None => self.state.delivery.links.waiting(uuid),
        }
    }

    /// The random number that this server chose when it started.
    pub fn incarnation(&self) -> u64 {
        self.state.environment.own.incarnation
    }

    /// Sends a message to the application of another server
    /// ([`ClusterHandler::server_message`](super::ClusterHandler::server_message)). It arrives in order
    /// with all other frames that this server sends there. It is lost if the link ends.
    ///
    /// # Errors
    /// [`SendError::NotConnected`] if there is no link to that server;
    /// [`SendError::TooLong`] if the message is longer than a payload may be.
    pub fn send_to_server(&mut self, server: Uuid, message: Bytes) -> Result<(), SendError> {
        let delivery = &mut self.state.delivery;
        delivery.links.tell(server, message, &mut delivery.out)
    }

    /// Sends a message to the application of every linked server. Returns the number of servers.
    pub fn send_to_servers(&mut self, message: &Bytes) -> usize {
        let mut servers: Vec<_> = self.servers().map(|server| server.uuid).collect();
        servers.retain(|server| self.send_to_server(*server, message.clone()).is_ok());
        servers.len()
    }

    /// Passes frames of a session of this server to the application of another server, whose
    /// [`Handler::run`](super::Handler::run) is called as if the session were connected there. While a
    /// receiver there has no room for frames that these cause, the session is not read here.
    ///
    /// # Errors
    /// [`SendError::NotConnected`] if there is no link to that server.
    pub fn pass_to_server(&mut self, server: Uuid, from: &SessionInfo, run: &Run) -> Result<(), SendError> {
        self.state.delivery.pass_to(server, from, &Parcel::run(run))
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
        let parcel = self.state.delivery.parcel(frame);
        self.state.delivery.pass_to(server, from, &parcel)
    }

    /// Becomes the leader with this token, or a follower with `None`. Frames that a leader's
    /// application sends to other servers carry the token. A server drops frames whose token is lower
    /// than the highest one that it knows.
    pub fn set_leader_token(&mut self, token: Option<u64>) {
        self.state.delivery.links.lead(token);
    }

    /// Notes a token that the engine of the cluster has issued.
    pub fn note_token(&mut self, token: u64) {
        self.state.delivery.links.note_token(token);
    }

    /// The highest token known, from [`note_token`](Self::note_token) or from other servers.
    pub fn token(&self) -> u64 {
        self.state.delivery.links.token()
    }
}
