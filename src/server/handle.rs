//! A handle to a server for other threads: [`ServerHandle`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::TrySendError;
use uuid::Uuid;

use super::context::Context;
use super::core::{CoreEvents, ServerCore};
use super::credentials::Credentials;
use super::environment::Environment;
use super::error::{CallError, SendError};
use super::figures::Figures;
use super::handler::Handler;
use super::sessions::{SessionCounters, SessionInfo};
use crate::payload::Content;
use crate::proto::Frame;
use crate::request::{Request, RequestError};
use ssntp_pki::Role;
use ssntp_transport::deadline;
use ssntp_transport::dispatch::{self, DispatchEvent};

/// The event that runs a closure on the dispatcher.
fn call(call: impl FnOnce(&mut dyn Handler, &mut Context<'_>) + Send + 'static) -> DispatchEvent<ServerCore> {
    DispatchEvent::Call(Box::new(|core, now, actions| {
        core.call_handler(now, actions, call)
    }))
}

/// A handle to a server for other threads.
///
/// # Threads
/// Cheap to clone, and `Send`. Every call except for [`post`](Self::post) and [`stop`](Self::stop) waits
/// until the dispatcher has done it, usually for some microseconds. A [`Handler`] runs on a dispatcher
/// and must use its [`Context`] or `post`: calls that wait return [`CallError::OnDispatcher`] there. The
/// same holds on the dispatcher of another server, because two dispatchers could wait for each other.
#[derive(Clone)]
pub struct ServerHandle {
    pub(super) events: CoreEvents,
    pub(super) environment: Arc<Environment>,
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerHandle({} ({}))", self.uuid(), self.environment.own.role)
    }
}

impl ServerHandle {
    pub(super) fn new(events: CoreEvents, environment: Arc<Environment>) -> Self {
        Self { events, environment }
    }

    /// Runs `call` on the dispatcher and returns its result. The [`Context`] has all operations.
    ///
    /// # Errors
    /// [`CallError::Stopped`] if the server has stopped or `call` panicked;
    /// [`CallError::OnDispatcher`].
    pub fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Context<'_>) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        self.wait_for(|_, cx| call(cx))
    }

    fn wait_for<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut dyn Handler, &mut Context<'_>) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        if dispatch::is_dispatcher() {
            return Err(CallError::OnDispatcher);
        }
        let (reply, result) = crossbeam_channel::bounded(1);
        let replying = self::call(move |handler, cx| {
            let _ = reply.send(call(handler, cx));
        });
        self.events.send(replying).map_err(|_| CallError::Stopped)?;
        self.events.answer(&result).ok_or(CallError::Stopped)
    }

    /// As [`with`](Self::with), with the application itself, which must be an `H`.
    ///
    /// # Errors
    /// As of [`with`](Self::with), and [`CallError::OtherHandler`].
    pub fn with_handler<H: Handler, T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut H, &mut Context<'_>) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let result = self.wait_for(|handler, cx| {
            let handler: &mut dyn Any = handler;
            handler.downcast_mut().map(|handler| call(handler, cx))
        });
        result?.ok_or(CallError::OtherHandler)
    }

    /// Sends `call` to the dispatcher, which runs it soon, and returns at once. May be called on any
    /// thread, also in the handler of another server.
    ///
    /// # Errors
    /// [`CallError::Busy`] if the channel to the dispatcher is full;
    /// [`CallError::Stopped`].
    pub fn post(&self, call: impl FnOnce(&mut Context<'_>) + Send + 'static) -> Result<(), CallError> {
        let event = self::call(|_, cx| call(cx));
        self.events.try_send(event).map_err(|e| match e {
            TrySendError::Full(_) => CallError::Busy,
            TrySendError::Disconnected(_) => CallError::Stopped,
        })
    }

    /// Begins to stop the server, as [`Server::stop`](super::Server::stop) does, and returns at once. [`Server::wait`](super::Server::wait) returns
    /// when the server has stopped.
    pub fn stop(&self) {
        // First, so that the server stops after what was sent to the dispatcher before.
        if self.post(|cx| cx.stop()) == Err(CallError::Busy) {
            self.events.stop();
        }
    }

    /// Asks every client to leave within this time, in whole seconds. The server stops when all have
    /// left, at the latest 6 s after this time. Returns at once. Newcomers are refused meanwhile, so
    /// that clients connect to another server, or come back after a restart.
    ///
    /// A client that knows the event Draining leaves at a random moment: it awaits the answers to its
    /// requests, sends its queue, and ends its session in order, so that no frame is lost. Other
    /// clients are served until the server stops.
    ///
    /// # Errors
    /// [`CallError::Stopped`], [`CallError::OnDispatcher`].
    pub fn drain(&self, within: Duration) -> Result<(), CallError> {
        self.with(move |cx| cx.drain(within))
    }

    /// Queues a frame for one client.
    ///
    /// # Errors
    /// [`SendError`]; the frame was not queued.
    pub fn send(&self, to: Uuid, frame: Frame) -> Result<(), SendError> {
        self.with(move |cx| cx.send(to, &frame))?
    }

    /// Queues the frame that carries `payload` for one client.
    ///
    /// # Errors
    /// [`SendError`]; the frame was not queued.
    pub fn send_payload<T: Content>(&self, to: Uuid, payload: &T) -> Result<(), SendError> {
        let frame = Frame::try_of(payload).map_err(|_| SendError::Payload(T::FRAME))?;
        self.send(to, frame)
    }

    /// Queues a frame for every session with at least one of the roles. Returns the number of sessions.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn multicast(&self, to: Role, frame: Frame) -> Result<usize, SendError> {
        self.with(move |cx| cx.multicast(to, &frame))?
    }

    /// Every session with its counters, in no order.
    ///
    /// # Errors
    /// [`CallError::Stopped`], [`CallError::OnDispatcher`].
    pub fn sessions(&self) -> Result<Vec<(SessionInfo, SessionCounters)>, CallError> {
        self.with(|cx| {
            cx.state
                .delivery
                .sessions
                .iter()
                .map(|session| ((*session.info).clone(), session.counters()))
                .collect()
        })
    }

    /// A snapshot of the server, see [`Figures`]. The dispatcher takes less than a microsecond for each
    /// session.
    ///
    /// # Errors
    /// [`CallError::Stopped`], [`CallError::OnDispatcher`].
    pub fn figures(&self) -> Result<Figures, CallError> {
        if dispatch::is_dispatcher() {
            return Err(CallError::OnDispatcher);
        }
        let taken = self.events.look(|core, view| core.state.figures(view));
        let (mut figures, dispatcher) = taken.ok_or(CallError::Stopped)?;
        figures.dispatcher = dispatcher;
        figures.name_kinds(self.environment.operands());
        figures.peers = self.environment.peers.list();
        figures.handshakes = self.environment.handshakes.figures();
        Ok(figures)
    }

    /// Ends the session of `uuid` after its queue is sent. False if it is not connected to this server.
    ///
    /// # Errors
    /// [`CallError::Stopped`], [`CallError::OnDispatcher`].
    pub fn disconnect(&self, uuid: Uuid) -> Result<bool, CallError> {
        self.with(move |cx| cx.disconnect(uuid))
    }

    /// The present identity and trust of the server, also after it has stopped. Does not block.
    pub fn credentials(&self) -> Credentials {
        self.environment.active().credentials.clone()
    }

    /// The roles with which nodes can join at present, those of the issuer of
    /// [`ServerConfig::enrol`](super::ServerConfig::enrol); none without one. Does not block.
    #[cfg(feature = "issue")]
    pub fn joins(&self) -> Role {
        let enrolment = self.environment.enrolment.as_ref();
        enrolment.map_or(Role::default(), |enrolment| enrolment.issuer().info().roles)
    }

    /// The server's UUID.
    pub fn uuid(&self) -> Uuid {
        self.environment.own.uuid
    }

    /// Answers a request, see [`Context::reply`].
    ///
    /// # Errors
    /// [`SendError`]; the answer was not queued.
    pub fn reply(&self, request: &Request, payload: impl Into<Bytes>) -> Result<(), SendError> {
        let (request, payload) = (request.clone(), payload.into());
        self.with(move |cx| cx.reply(&request, payload))?
    }

    /// As [`reply`](Self::reply), with a type of the application.
    ///
    /// # Errors
    /// [`SendError`]; the answer was not queued.
    pub fn reply_payload<T: Content>(&self, request: &Request, answer: &T) -> Result<(), SendError> {
        let payload = answer.write().map_err(|_| SendError::Payload(T::FRAME))?;
        self.reply(request, payload)
    }

    /// Sends a request to a client of this server and blocks until the answer has come, for at most `limit`.
    /// The kind must be registered as a request
    /// ([`ServerConfig::operands`](super::ServerConfig::operands)). At most 1024 requests wait for
    /// answers at a time.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn request(&self, addressee: Uuid, frame: Frame, limit: Duration) -> Result<Frame, RequestError> {
        if dispatch::is_dispatcher() {
            return Err(RequestError::OnDispatcher);
        }
        let deadline = deadline(limit);
        let asked = self.with(move |cx| cx.state.delivery.ask(addressee, &frame));
        asked.map_err(|_| RequestError::Ended)??.wait(deadline, limit)
    }

    /// As [`request`](Self::request), with types of the application: sends `question`, and reads the answer
    /// as an `A`. Both types have the kind of the request.
    ///
    /// # Errors
    /// As [`request`](Self::request), and [`RequestError::Payload`].
    pub fn request_payload<A: Content>(
        &self,
        addressee: Uuid,
        question: &impl Content,
        limit: Duration,
    ) -> Result<A, RequestError> {
        let answer = self.request(addressee, Frame::try_of(question)?, limit)?;
        Ok(answer.payload()?)
    }
}
