//! The application of a server: [`Handler`], and [`ClusterHandler`] for linked servers and operators.

use std::any::Any;
use std::time::Instant;

use bytes::Bytes;
use uuid::Uuid;

use super::admission::Newcomer;
use super::context::Context;
use super::disconnect::DisconnectReason;
use super::links::ServerLink;
use super::sessions::SessionInfo;
use crate::payload::Servers;
use crate::proto::{Frame, Refusal, Run};
use crate::request::Request;

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
    /// of the handler. Count from [`Context::now`].
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
