//! What an application implements, and what it may do from there.

use std::any::Any;
use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

use super::core::State;
use super::disconnect::DisconnectReason;
use super::federation::ServerLink;
use super::filter::Filter;
use super::held::{HeldFrame, HeldId};
use super::routing::{RuleError, RuleTable, Rules};
use super::sessions::{Directory, SessionCounters, SessionInfo};
use crate::payload::{Content, Servers};
use crate::proto::{Frame, FrameKind, Refusal, Run};
use crate::request::Request;
use ssntp_transport::PeerAddress;
use ssntp_transport::Role;
use ssntp_transport::dispatch::Action;
use ssntp_transport::pki::CertificateInfo;

/// An application on top of a server. Every method has a default that does
/// nothing.
///
/// # Threads
/// All calls come from the dispatcher thread, one at a time, so an
/// application needs no locks; while one runs, nothing is routed, so none
/// should block. A panic is caught and logged, and the server goes on.
pub trait Handler: Any + Send {
    /// A client asks to be admitted: TLS and CONNECT have proved who it is, and
    /// the server's own rules ([`AdmissionPolicy`](super::AdmissionPolicy)) let
    /// it in. It has been told nothing, and has no session yet; one that it
    /// takes over still stands. The default admits.
    ///
    /// It runs on the dispatcher thread like everything here, and so must not
    /// block either: what it decides by has to be at hand. The newcomer waits
    /// on a thread of its own, so no other client is delayed. A panic refuses the client
    /// for now. Whoever has a session at another server that this one is linked with is asked for
    /// twice: before that session is to end, and when the newcomer is admitted.
    ///
    /// # Errors
    /// Why not: [`Refusal::forbid`] sends ConnectionAborted, after which the
    /// client stays away, [`Refusal::postpone`] ConnectionFailure, after which
    /// it comes again. Both frames are a header alone: the reason goes to the
    /// server's log.
    fn admit(&mut self, cx: &mut Context<'_>, newcomer: &Newcomer<'_>) -> Result<(), Refusal> {
        let _ = (cx, newcomer);
        Ok(())
    }

    /// A session stands. Frames sent to it from here follow its CONNECTED.
    fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let _ = (cx, session);
    }

    /// A session is over; frames can no longer be sent to it.
    fn disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        let _ = (cx, session, reason);
    }

    /// There is a link to another server, and its sessions are known: see
    /// [`Federation`](super::Federation).
    fn server_linked(&mut self, cx: &mut Context<'_>, server: &ServerLink) {
        let _ = (cx, server);
    }

    /// The link to another server has ended. Its sessions were reported before as gone.
    fn server_unlinked(&mut self, cx: &mut Context<'_>, server: &ServerLink) {
        let _ = (cx, server);
    }

    /// A session of another server stands: frames reach it from here.
    fn remote_connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let _ = (cx, session);
    }

    /// A session of another server is over, or the link to that server is.
    fn remote_disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let _ = (cx, session);
    }

    /// Another server's application has sent a message, see [`Context::tell`].
    fn told(&mut self, cx: &mut Context<'_>, server: Uuid, message: Bytes) {
        let _ = (cx, server, message);
    }

    /// A frame that passed the role filter, after the forwarding rules have
    /// been applied to it.
    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let _ = (cx, from, frame);
    }

    /// Consecutive frames of one kind. The default hands them to
    /// [`frame`](Self::frame) one by one; an application that does not look
    /// at every frame saves that by its own version.
    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        for frame in run.frames() {
            self.frame(cx, from, frame);
        }
    }

    /// A client asks, by a frame that is registered as a request
    /// ([`ServerConfig::operands`](super::ServerConfig::operands)), is allowed
    /// to by the role filter, and names nobody else; and no rule says who is to
    /// answer. Answer with [`Context::reply`], here or later. The default
    /// refuses.
    fn request(&mut self, cx: &mut Context<'_>, from: &SessionInfo, request: Request) {
        let _ = from;
        // Who has gone meanwhile needs no answer.
        let _ = cx.refuse(&request, "not_answered");
    }

    /// An operator asks for the servers: adds what the application knows of them, such as the
    /// engine, the leader and members without a link. The default adds nothing.
    fn servers(&mut self, cx: &mut Context<'_>, servers: &mut Servers) {
        let _ = (cx, servers);
    }

    /// The server begins to drain: its clients are asked to leave, and then it stops. The default
    /// does nothing.
    fn draining(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// An operator ([`ServerConfig::operators`](super::ServerConfig::operators))
    /// wants to end sessions, to lift a ban, or to drain a server: whether it may at present. The
    /// default lets it.
    fn may_kick(&mut self, cx: &mut Context<'_>, from: &SessionInfo) -> bool {
        let _ = (cx, from);
        true
    }

    /// A frame that a routing function queued was not released in time, or
    /// found the queue full.
    fn expired(&mut self, cx: &mut Context<'_>, held: HeldFrame) {
        let _ = (cx, held);
    }

    /// The server is about to stop: what is sent now still goes out, within the
    /// grace period. Every session is ended after this.
    fn stopping(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// When [`timer`](Self::timer) is to be called next; asked after every
    /// call of the handler.
    fn next_timer(&self) -> Option<Instant> {
        None
    }

    /// The time of [`next_timer`](Self::next_timer) has come.
    fn timer(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }
}

/// An application that does nothing: the server only filters and routes.
impl Handler for () {
    fn run(&mut self, _: &mut Context<'_>, _: &SessionInfo, _: &Run) {}
}

/// Who asks to be admitted, see [`Handler::admit`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Newcomer<'a> {
    /// The UUID that it will have; the certificate's, where that is bound to
    /// one.
    pub uuid: Uuid,
    /// The roles that it advertises, all of them certified.
    pub role: Role,
    /// Where it connects from.
    pub address: PeerAddress,
    /// What its certificate says.
    pub certificate: &'a CertificateInfo,
}

/// Why a frame was not queued for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No session of that UUID.
    #[error("{0} is not connected")]
    NotConnected(Uuid),
    /// The frame came from the session it would be forwarded to.
    #[error("it came from {0} itself")]
    ToSender(Uuid),
    /// CONNECT, CONNECTED, a kind that neither the protocol defines nor the
    /// application has registered, or a request, which is asked or answered.
    #[error("{0} cannot be sent on an established session")]
    Kind(FrameKind),
    /// A payload of an application's own type cannot be written:
    /// [`Frame::try_of`] says why.
    #[error("the payload of {0} cannot be written")]
    Payload(FrameKind),
    /// The payload is longer than the configured maximum, which peers are
    /// taken to share.
    #[error("the payload has {len} bytes, the maximum is {limit}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The maximum in bytes.
        limit: u32,
    },
    /// The server has stopped.
    #[error("the server has stopped")]
    Stopped,
    /// A call that waits for a dispatcher, from the dispatcher of this server
    /// or another one: two of them could wait for each other. Use the
    /// [`Context`], or [`ServerHandle::post`](super::ServerHandle::post).
    #[error("a handler has to use its context, or to post, and not to wait for a dispatcher")]
    OnDispatcher,
    /// The dispatcher has more to do than fits into its queue; try again.
    #[error("the dispatcher is busy")]
    Busy,
    /// The server's handler is of another type than the one that was asked for,
    /// see [`ServerHandle::with_handler`](super::ServerHandle::with_handler).
    #[error("the server's handler is of another type")]
    OtherHandler,
}

/// What a handler, or a closure given to
/// [`ServerHandle::with`](super::ServerHandle::with), may do. It exists on
/// the dispatcher thread alone, and nothing in it blocks.
#[derive(Debug)]
pub struct Context<'a> {
    pub(super) state: &'a mut State,
}

impl Context<'_> {
    /// The server's UUID.
    pub fn uuid(&self) -> Uuid {
        self.state.environment.uuid
    }

    /// The time of what is being dealt with: the dispatcher's, so that handlers
    /// need no clock.
    pub fn now(&self) -> Instant {
        self.state.now
    }

    /// The roles that the server advertises.
    pub fn role(&self) -> Role {
        self.state.environment.role
    }

    /// Sends a frame to one entity. Frames to one entity leave in the order in which
    /// they are sent, from wherever. If the receiver has no room, a frame that is sent
    /// from [`Handler::frame`] or [`Handler::run`] holds the session back whose frames
    /// are being dealt with: it is not read from until the receiver has room. Elsewhere
    /// there is no sender to hold back, so the policy for slow consumers applies if more
    /// than the receiver's queue may hold waits for it. What it drops is counted in
    /// [`SessionCounters::frames_dropped`].
    ///
    /// # Errors
    /// [`SendError`]; the frame was not queued.
    pub fn send(&mut self, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.state.send(to, frame)
    }

    /// Queues the frame that carries `payload` for one entity.
    ///
    /// # Errors
    /// [`SendError`]; the frame was not queued.
    pub fn send_payload<T: Content>(&mut self, to: Uuid, payload: &T) -> Result<(), SendError> {
        let frame = Frame::try_of(payload).map_err(|_| SendError::Payload(T::FRAME))?;
        self.send(to, &frame)
    }

    /// Sends a frame that came from a session to another entity, as a rule
    /// does it: never back. Otherwise as [`send`](Self::send).
    ///
    /// # Errors
    /// [`SendError`]; the frame was not queued.
    pub fn forward(&mut self, from: &SessionInfo, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.state.forward(from.uuid(), to, frame)
    }

    /// Queues a frame that came from a session for every other session with
    /// at least one of the roles, and says for how many.
    ///
    /// # Errors
    /// [`SendError::Kind`].
    pub fn forward_all(&mut self, from: &SessionInfo, to: Role, frame: &Frame) -> Result<usize, SendError> {
        self.state.send_all(Some(from.uuid()), to, frame)
    }

    /// Queues a frame for every session with at least one of the roles, and
    /// says for how many.
    ///
    /// # Errors
    /// [`SendError::Kind`], [`SendError::TooLong`].
    pub fn multicast(&mut self, to: Role, frame: &Frame) -> Result<usize, SendError> {
        self.state.send_all(None, to, frame)
    }

    /// Queues a frame for every session, and says for how many.
    ///
    /// # Errors
    /// [`SendError::Kind`], [`SendError::TooLong`].
    pub fn broadcast(&mut self, frame: &Frame) -> Result<usize, SendError> {
        // Everybody has a role.
        self.state.send_all(None, Role::ALL, frame)
    }

    /// Who is connected.
    pub fn directory(&self) -> Directory<'_> {
        Directory {
            sessions: &self.state.sessions,
            roster: &self.state.links.roster,
        }
    }

    /// What the session of `uuid` has carried so far.
    pub fn counters(&self, uuid: Uuid) -> Option<SessionCounters> {
        let id = self.state.sessions.id_of(uuid)?;
        self.state.sessions.get(id).map(|session| session.counters())
    }

    /// How many frames the sessions that are gone have lost: frames that waited
    /// when a connection ended, or were meant for it and came too late.
    /// Counted for a session when its threads have ended, some time after
    /// [`Handler::disconnected`].
    pub fn frames_lost(&self) -> u64 {
        self.state.frames_lost
    }

    /// Ends the session of `uuid` once its queue is flushed; false where
    /// there is none.
    pub fn disconnect(&mut self, uuid: Uuid) -> bool {
        self.state.disconnect(uuid)
    }

    /// Begins to stop the server, as [`ServerHandle::stop`](super::ServerHandle::stop)
    /// does. Returns at once.
    pub fn stop(&mut self) {
        self.state.actions.push(Action::Stop);
    }

    /// Asks every client to leave within that time, and then stops the server, as
    /// [`ServerHandle::drain`](super::ServerHandle::drain) does. Returns at once.
    pub fn drain(&mut self, within: Duration) {
        self.state.drain(within);
    }

    /// The cluster configuration that the next CONNECTED carries.
    pub fn configuration(&self) -> &Bytes {
        &self.state.configuration
    }

    /// Replaces the cluster configuration. Who is connected already is not
    /// told: send CONFIGURE for that.
    pub fn set_configuration(&mut self, yaml: impl Into<Bytes>) {
        self.state.configuration = yaml.into();
    }

    /// Replaces the forwarding rules; frames queued by the old ones stay.
    ///
    /// # Errors
    /// [`RuleError`]; the old rules stay.
    pub fn set_rules(&mut self, rules: Rules) -> Result<(), RuleError> {
        self.state.rules = RuleTable::of(rules, &self.state.environment.operands)?;
        Ok(())
    }

    /// Replaces the role filter.
    pub fn set_filter(&mut self, filter: Filter) {
        self.state.filter = filter;
    }

    /// The frames that routing functions queued, oldest first.
    pub fn held(&self) -> impl Iterator<Item = &HeldFrame> {
        self.state.held.iter()
    }

    /// Sends a queued frame to these entities and forgets it; says to how
    /// many it went, `None` where there is no such frame any more.
    pub fn release(&mut self, id: HeldId, to: &[Uuid]) -> Option<usize> {
        let held = self.state.held.take(id)?;
        Some(
            to.iter()
                .filter(|uuid| self.state.send(**uuid, &held.frame).is_ok())
                .count(),
        )
    }

    /// Forgets a queued frame.
    pub fn discard(&mut self, id: HeldId) -> Option<HeldFrame> {
        self.state.held.take(id)
    }
}
