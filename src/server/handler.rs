//! The application of a server: [`Handler`], and the operations that it may use: [`Context`].

use std::any::Any;
use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

use super::core::State;
use super::disconnect::DisconnectReason;
use super::federation::ServerLink;
use super::filter::Filter;
use super::routing::{RuleError, RuleTable, Rules};
use super::sessions::{Directory, Session, SessionCounters, SessionInfo};
use crate::payload::{Content, Servers};
use crate::proto::{Frame, FrameKind, Refusal, Run};
use crate::request::Request;
use ssntp_pki::{CertificateInfo, Role};
use ssntp_transport::PeerAddress;
use ssntp_transport::dispatch::Action;

/// An application on top of a server. Every method has a default.
///
/// # Threads
/// All calls come from the dispatcher thread, one at a time, so an application needs no locks. No
/// method may block, because the server routes no frames while it runs. A panic is caught and logged,
/// and the server continues.
pub trait Handler: Any + Send {
    /// Decides about a client that asks to be admitted. TLS and CONNECT have verified it, and the
    /// server's own rules ([`AdmissionPolicy`](super::AdmissionPolicy)) admit it. It has no session yet,
    /// and a session that it takes over has not ended. The default admits every client.
    ///
    /// This runs on the dispatcher thread and must decide without waiting. If it panics, the client is
    /// refused and may try again. For a client whose UUID has a session at another, linked server, it is
    /// called twice: before that session ends, and when the client is admitted.
    ///
    /// # Errors
    /// [`Refusal::forbid`] sends ConnectionAborted, after which the client stays away.
    /// [`Refusal::postpone`] sends ConnectionFailure, after which the client tries again. The reason is
    /// not sent; it goes to the server's log.
    fn admit(&mut self, _cx: &mut Context<'_>, _newcomer: &Newcomer<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    /// A session has begun. Frames that are sent to it from now on arrive after CONNECTED.
    fn connected(&mut self, _cx: &mut Context<'_>, _session: &SessionInfo) {}

    /// A session has ended. Frames can no longer be sent to it.
    fn disconnected(&mut self, _cx: &mut Context<'_>, _session: &SessionInfo, _reason: &DisconnectReason) {}

    /// A frame has passed the role filter, and the forwarding rules have been applied to it.
    fn frame(&mut self, _cx: &mut Context<'_>, _from: &SessionInfo, _frame: Frame) {}

    /// Consecutive frames of one kind have arrived. The default calls [`frame`](Self::frame) for each
    /// one. An application that does not need every frame saves time with its own version.
    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        for frame in run.frames() {
            self.frame(cx, from, frame);
        }
    }

    /// A client has sent a request to this server: a frame whose kind is registered as a request
    /// ([`ServerConfig::operands`](super::ServerConfig::operands)), which passed the role filter and has
    /// no forwarding rule. Answer with [`Context::reply`], now or later. The default refuses. If this
    /// panics, the server refuses with `not_answered`.
    fn request(&mut self, cx: &mut Context<'_>, _from: &SessionInfo, request: Request) {
        // A client that has gone meanwhile needs no answer.
        let _ = cx.refuse(&request, "not_answered");
    }

    /// The server has begun to drain: its clients were asked to leave, and it stops when they have. The
    /// default does nothing.
    fn draining(&mut self, _cx: &mut Context<'_>) {}

    /// The server is about to stop. Frames that are sent now are still delivered, within the grace
    /// period. All sessions end after this call.
    fn stopping(&mut self, _cx: &mut Context<'_>) {}

    /// The time of the next call of [`timer`](Self::timer). The server calls this after every other call
    /// of the handler.
    fn next_timer(&self) -> Option<Instant> {
        None
    }

    /// The time that [`next_timer`](Self::next_timer) returned has come.
    fn timer(&mut self, _cx: &mut Context<'_>) {}

    /// The part of the application for linked servers and for operators. The default has none.
    fn cluster(&mut self) -> Option<&mut dyn ClusterHandler> {
        None
    }
}

/// The part of an application for servers that are linked ([`Federation`](super::Federation)), and for
/// operators ([`ServerConfig::operators`](super::ServerConfig::operators)). [`Handler::cluster`] returns
/// it. Every method has a default, and is called as those of [`Handler`] are.
pub trait ClusterHandler {
    /// A link to another server has begun, and that server's sessions are known.
    fn server_linked(&mut self, _cx: &mut Context<'_>, _server: &ServerLink) {}

    /// The link to another server has ended. Its sessions were reported by
    /// [`remote_disconnected`](Self::remote_disconnected) before.
    fn server_unlinked(&mut self, _cx: &mut Context<'_>, _server: &ServerLink) {}

    /// A session of another server has begun. Frames can be sent to it.
    fn remote_connected(&mut self, _cx: &mut Context<'_>, _session: &SessionInfo) {}

    /// A session of another server has ended, or the link to that server has.
    fn remote_disconnected(&mut self, _cx: &mut Context<'_>, _session: &SessionInfo) {}

    /// The application of another server has sent a message by [`Context::send_to_server`].
    fn server_message(&mut self, _cx: &mut Context<'_>, _server: Uuid, _message: Bytes) {}

    /// An operator lists the servers. The application can add entries and fields, such as the engine,
    /// the leader and members without a link. The default adds none.
    fn servers(&mut self, _cx: &mut Context<'_>, _servers: &mut Servers) {}

    /// Decides whether an operator may now end sessions, lift bans and drain servers. The default
    /// returns true.
    fn may_kick(&mut self, _cx: &mut Context<'_>, _from: &SessionInfo) -> bool {
        true
    }
}

/// An application that does nothing: the server only filters and routes.
impl Handler for () {
    fn run(&mut self, _: &mut Context<'_>, _: &SessionInfo, _: &Run) {}
}

/// A client that asks to be admitted, see [`Handler::admit`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Newcomer<'a> {
    /// The UUID of the client. If its certificate is bound to a UUID, it is that one.
    pub uuid: Uuid,
    /// The roles that the client advertises. Its certificate holds all of them.
    pub role: Role,
    /// The address that the client connects from.
    pub address: PeerAddress,
    /// The content of the client's certificate.
    pub certificate: &'a CertificateInfo,
}

/// The reason for which a frame was not queued for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No session has that UUID.
    #[error("{0} is not connected")]
    NotConnected(Uuid),
    /// The frame would be forwarded to the session that it came from.
    #[error("the frame came from {0} and is not sent back to it")]
    ToSender(Uuid),
    /// The kind cannot be sent: CONNECT, CONNECTED, a kind that is neither defined by the protocol nor
    /// registered, or a request. Requests are sent by
    /// [`ServerHandle::request`](super::ServerHandle::request).
    #[error("{0} cannot be sent on an established session")]
    Kind(FrameKind),
    /// A payload of an application's own type cannot be encoded. [`Frame::try_of`] returns the reason.
    #[error("the payload of {0} cannot be written")]
    Payload(FrameKind),
    /// The payload is longer than the server's `max_payload`. Peers are expected to have the same limit.
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
    /// A call that waits for a dispatcher was made on a dispatcher thread, of this or another server. Two
    /// dispatchers could wait for each other. Use the [`Context`], or
    /// [`ServerHandle::post`](super::ServerHandle::post).
    #[error("a handler has to use its context, or to post, and not to wait for a dispatcher")]
    OnDispatcher,
    /// The channel to the dispatcher is full. Try again.
    #[error("the dispatcher is busy")]
    Busy,
    /// The server's handler is not of the type that was named in
    /// [`ServerHandle::with_handler`](super::ServerHandle::with_handler).
    #[error("the server's handler is of another type")]
    OtherHandler,
}

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
        self.state.environment.uuid
    }

    /// The time of the event that is being handled, so that handlers need no clock.
    pub fn now(&self) -> Instant {
        self.state.now
    }

    /// The roles that the server advertises.
    pub fn role(&self) -> Role {
        self.state.environment.role
    }

    /// Sends a frame to one client. All frames to one client leave in the order in which they are sent.
    /// If the receiver has no room for a frame that is sent from [`Handler::frame`] or
    /// [`Handler::run`], the session whose frame is being handled is held: it is not read until the
    /// receiver has room. For other calls there is no session to hold, so the policy for slow consumers
    /// applies when the receiver's queue is full. Dropped frames are counted in
    /// [`SessionCounters::frames_dropped`].
    ///
    /// # Errors
    /// [`SendError`]; the frame was not queued.
    pub fn send(&mut self, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.state.send(None, to, frame)
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
        self.state.send(Some(from.uuid()), to, frame)
    }

    /// Queues a frame that came from a session for every other session with at least one of the roles.
    /// Returns the number of sessions.
    ///
    /// # Errors
    /// [`SendError::Kind`], [`SendError::TooLong`].
    pub fn forward_all(&mut self, from: &SessionInfo, to: Role, frame: &Frame) -> Result<usize, SendError> {
        self.state.send_all(Some(from.uuid()), to, frame)
    }

    /// Queues a frame for every session with at least one of the roles; with [`Role::ALL`] for every
    /// session. Returns the number of sessions.
    ///
    /// # Errors
    /// [`SendError::Kind`], [`SendError::TooLong`].
    pub fn multicast(&mut self, to: Role, frame: &Frame) -> Result<usize, SendError> {
        self.state.send_all(None, to, frame)
    }

    /// The connected sessions.
    pub fn directory(&self) -> Directory<'_> {
        self.state.directory()
    }

    /// The counters of the session of `uuid`, if it is connected to this server.
    pub fn counters(&self, uuid: Uuid) -> Option<SessionCounters> {
        self.state.sessions.of(uuid).map(Session::counters)
    }

    /// The number of frames that connections which are gone have lost: frames that were in the queue at
    /// the end of a connection, or were sent to it later. Those of a session are added when its threads
    /// have ended, some time after [`Handler::disconnected`].
    pub fn frames_lost(&self) -> u64 {
        self.state.frames_lost
    }

    /// Ends the session of `uuid` after its queue is sent. False if there is none.
    pub fn disconnect(&mut self, uuid: Uuid) -> bool {
        let id = self.state.sessions.of(uuid).map(|session| session.info.id);
        id.map(|id| self.state.end(id, DisconnectReason::Application, false))
            .is_some()
    }

    /// Begins to stop the server, as [`ServerHandle::stop`](super::ServerHandle::stop)
    /// does. Returns at once.
    pub fn stop(&mut self) {
        self.state.actions.push(Action::Stop);
    }

    /// Asks every client to leave within this time, and then stops the server, as
    /// [`ServerHandle::drain`](super::ServerHandle::drain) does. Returns at once.
    pub fn drain(&mut self, within: Duration) {
        self.state.drain(within);
    }

    /// The cluster configuration that the next CONNECTED carries.
    pub fn configuration(&self) -> &Bytes {
        &self.state.configuration
    }

    /// Replaces the cluster configuration. Connected clients do not get it: send CONFIGURE for that.
    pub fn set_configuration(&mut self, yaml: impl Into<Bytes>) {
        self.state.configuration = yaml.into();
    }

    /// Replaces the forwarding rules.
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
}
