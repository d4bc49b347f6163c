//! An SSNTP server: accepts clients, proves their roles, filters and routes
//! what they send, and tells an application of it.
//!
//! ```text
//!                ┌ accept threads ─▶ handshake workers (bounded) ┐
//!  clients ──────┤                                               ▼
//!    ▲           └ reader of each session ─────────▶ dispatcher thread ◀── ServerHandle
//!    │                                               │ filter ─▶ rules ─▶ Handler
//!    └──────────── writer of each session ◀──────────┘ outbox of each session
//! ```
//!
//! The dispatcher never waits for a peer. What happens to a frame that
//! arrives, in this order:
//!
//! 1. An unsupported type or operand is answered with InvalidFrameType.
//! 2. A request of the application goes to its addressee, and the answer to the
//!    asker: see [`Handler::request`].
//! 3. The [`Filter`] decides whether the sender's role may send it.
//! 4. What operators ask, the server answers: see [`ServerConfig::operators`].
//! 5. A controller's CONFIGURE is checked and becomes the configuration that
//!    CONNECTED carries.
//! 6. The [`Rules`] forward it, never back to its sender.
//! 7. The [`Handler`] sees it.
//!
//! ```no_run
//! use ssntp::pki::{Identity, Trust};
//! use ssntp::proto::{Command, Frame};
//! use ssntp::server::{Context, Handler, Rules, Server, ServerConfig, SessionInfo};
//! use ssntp::Role;
//!
//! struct Print;
//!
//! impl Handler for Print {
//!     fn frame(&mut self, _cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
//!         println!("{} from {from}", frame.kind());
//!     }
//! }
//!
//! let config = ServerConfig::new(Identity::load("server.pem")?, Trust::load("ca.pem")?)
//!     .listen("localhost:8888".parse()?)
//!     .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER));
//! let server = Server::start(config, Print)?;
//! println!("listening at {}", server.addresses()[0]);
//! server.wait();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `config` | [`ServerConfig`], [`ServerError`] |
//! | `handler` | [`Handler`], [`Context`] |
//! | `filter`, `routing` | the tables: [`Filter`], [`Rules`] |
//! | `admission` | who is let in: [`AdmissionPolicy`] |
//! | `credentials` | what it proves and whom it trusts, while that changes: [`Credentials`] |
//! | `operators`, `bans`, `servers` | who sees and ends sessions, keeps clients out, drains servers |
//! | `sessions` | who is connected: [`SessionInfo`], [`Directory`], [`SessionCounters`] |
//! | `held` | frames queued for later |
//! | `accept` | newcomers up to CONNECTED |
//! | `core` | all state of a server, without threads, sockets or clock |
//! | `delivery` | who is sent what, and what happens where there is no room |
//! | `federation` | links to other servers, and the sessions there: [`Federation`] |
//! | `exchange` | requests: who answers, and to whom the answer goes |
//! | `channel` | [`channel`]: a handler that feeds a receiver |
//! | `figures` | [`Figures`]: what it knows about itself |

mod accept;
mod admission;
mod audit;
mod bans;
mod certificates;
mod channel;
mod config;
pub mod core;
mod credentials;
mod delivery;
mod disconnect;
mod entry;
mod exchange;
mod federation;
mod figures;
mod filter;
mod handler;
mod held;
mod life;
mod operators;
mod routing;
mod servers;
mod sessions;
mod tally;
#[cfg(test)]
#[cfg(feature = "issue")]
mod tests;
mod watching;

use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, TrySendError};
use log::{info, warn};
use uuid::Uuid;

pub use self::admission::AdmissionPolicy;
pub use self::channel::{ChannelHandler, ServerEvent, channel};
pub use self::config::{ConfigurationCheck, ServerConfig, ServerError, SlowConsumer};
use self::core::ServerCore;
pub use self::credentials::{Credentials, Renewed};
pub use self::disconnect::DisconnectReason;
pub(crate) use self::federation::LINK;
pub use self::federation::{Dialler, Federation, LinkFigures, PeerState, ServerLink};
pub use self::figures::{
    ClosedSession, Figures, HandshakeFigures, HeldBack, KindFigures, Pace, SessionFigures,
};
pub use self::filter::{Filter, FilterAction};
pub use self::handler::{Context, Handler, Newcomer, SendError};
pub use self::held::{HeldFrame, HeldId};
pub use self::routing::{Decision, ParseRuleError, RouteFn, RuleError, Rules};
pub use self::sessions::{Directory, SessionCounters, SessionId, SessionInfo, SessionKey};
use crate::payload::Content;
use crate::proto::Frame;
pub use crate::proto::Refusal;
pub use crate::request::{Request, RequestError};
use ssntp_transport::Role;
pub use ssntp_transport::default_max_handshakes;
use ssntp_transport::dispatch::{self, DispatchEvent, EVENTS, Events, Runner};
use ssntp_transport::pki::{Identity, Trust};
use ssntp_transport::{Acceptance, Address, Listener, Occupancy, Room, threads};

/// A running server.
///
/// # Threads
/// The owner of every thread of the server. [`stop`](Self::stop), or dropping
/// it, ends all of them: it blocks for at most the configured grace and a
/// moment. Other threads use a [`ServerHandle`].
#[derive(Debug)]
pub struct Server {
    handle: ServerHandle,
    addresses: Vec<Address>,
    max_sessions: usize,
    acceptance: Option<Acceptance>,
    dispatcher: Option<JoinHandle<()>>,
    /// Disconnected once the server begins to stop.
    stopping: Receiver<Infallible>,
}

impl Server {
    /// Binds every address and starts the threads; clients are accepted when
    /// this returns. Raises the process's soft limits of open files and
    /// processes to its hard ones, since each session takes of both. Says at
    /// warn, where no number is configured, how many sessions it admits if
    /// these are few.
    ///
    /// # Errors
    /// [`ServerError`]; nothing runs then.
    pub fn start(mut config: ServerConfig, handler: impl Handler) -> Result<Self, ServerError> {
        config.check()?;
        // Before anything is opened: a server that could not keep what it promises is not to
        // start.
        let room = Room::claim(config.max_handshakes, config.max_sessions, "ssntp::server")
            .map_err(ServerError::TooManySessions)?;
        let max_sessions = room.sessions;
        let environment = config::Environment::new(&config)?;
        let mut listeners = Vec::new();
        for address in std::mem::take(&mut config.listen) {
            let bound = Listener::bind(&address, config.tcp).map_err(|e| ServerError::Listen(address, e))?;
            listeners.extend(bound);
        }
        let addresses = listeners.iter().filter_map(Listener::local_address).collect();
        listeners.extend(config.memory.drain(..).map(Listener::memory));

        let (uuid, role) = (config.uuid, config.role);
        let settings = config.runner();
        let (federation, tcp) = (config.federation.take(), config.tcp);
        let (memory, max_payload) = (settings.received.longest(), config.max_payload);
        if memory < u64::from(max_payload) {
            warn!(target: "ssntp::server",
                "frames of more than {memory} bytes are refused, as there is no memory for them: \
                 queue_budget is below max_payload, {max_payload}"
            );
        }
        // Nothing is sent in it. Whoever waits for the server sees that the core has dropped its
        // end.
        let (stopped, stopping) = crossbeam_channel::bounded(0);
        let handler = Box::new(handler);
        let core = ServerCore::new(
            config,
            Arc::clone(&environment),
            max_sessions,
            handler,
            stopped,
            now(),
        )?;
        let (events, queue) = dispatch::events::channel(EVENTS);
        let watch = queue.watch();
        let runner = Runner::new(core, settings, move || watch.is_empty());
        let dispatcher = threads::spawn("ssntp-dispatch", move || dispatch::run(runner, &queue))
            .map_err(ServerError::Thread)?;
        let mut server = Self {
            handle: ServerHandle {
                events: events.clone(),
                uuid,
                role,
                environment: Arc::clone(&environment),
                occupancy: None,
                dialler: None,
            },
            addresses,
            max_sessions,
            acceptance: None,
            dispatcher: Some(dispatcher),
            stopping,
        };
        // From here on, dropping `server` ends what runs already.
        let acceptance = accept::start(
            listeners,
            Arc::clone(&environment),
            room.handshakes,
            events.clone(),
        );
        let acceptance = acceptance.map_err(ServerError::Thread)?;
        server.handle.occupancy = Some(acceptance.occupancy());
        server.acceptance = Some(acceptance);
        if let Some(federation) = federation {
            let dialler = Dialler::new(environment, events, tcp);
            server.handle.dialler = Some(dialler.clone());
            let shown = dialler.clone();
            let _ = server.handle.post(move |cx| cx.state.dialler = Some(shown));
            for peer in federation.peers {
                dialler.dial(peer).map_err(ServerError::Thread)?;
            }
        }
        info!(target: "ssntp::server",
            "{uuid} ({role}): server for at most {max_sessions} sessions ({})",
            room.limit()
        );
        Ok(server)
    }

    /// The addresses it listens at, with the ports that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The server's UUID.
    pub fn uuid(&self) -> Uuid {
        self.handle.uuid
    }

    /// How many sessions it admits.
    pub fn max_sessions(&self) -> usize {
        self.max_sessions
    }

    /// What dials the servers that this one links with; `None` without
    /// [`ServerConfig::federate`].
    pub fn dialler(&self) -> Option<Dialler> {
        self.handle.dialler.clone()
    }

    /// A handle for other threads.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Takes another certificate, as before the old one expires, and other
    /// authorities and revocation lists. Clients that connect from now on see the new
    /// certificate, and are checked by the new authorities; a session that was begun
    /// under the old ones is not resumed.
    ///
    /// Sessions that stand are looked at as well, before this returns. Those whose
    /// certificates are revoked, have expired, or come from an authority that is not trusted now
    /// end with [`DisconnectReason::Certificate`]: their clients get
    /// ConnectionFailure, after what waits for them. The others do not notice. The
    /// certificates are verified on this thread, some thousands a second; everybody
    /// else goes on meanwhile.
    ///
    /// # Errors
    /// [`ServerError::Role`], [`ServerError::BorrowedUuid`], [`ServerError::Tls`],
    /// [`ServerError::OnDispatcher`]; the old ones stay, and so do all sessions.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<Renewed, ServerError> {
        if dispatch::is_dispatcher() {
            return Err(ServerError::OnDispatcher);
        }
        let environment = &self.handle.environment;
        environment.renew(identity, trust)?;
        Ok(credentials::look(&self.handle, wall_clock()))
    }

    /// What it proves and whom it trusts at present. Takes no time.
    pub fn credentials(&self) -> Credentials {
        self.handle.credentials()
    }

    /// A channel that is disconnected once the server begins to stop, for `select!`. It never
    /// has a message.
    pub fn stopping(&self) -> &Receiver<Infallible> {
        &self.stopping
    }

    /// Blocks until somebody stops the server ([`ServerHandle::stop`],
    /// [`ServerHandle::drain`], [`Context::stop`]), then ends it as [`stop`](Self::stop) does: for
    /// programs that do nothing else.
    pub fn wait(self) {
        // Nothing is ever sent in this channel. The receive fails, and so ends
        // the wait, when the dispatcher drops the sending end at a stop.
        let _ = self.stopping.recv();
    }

    /// Accepts no more clients, flushes the queues within the grace period,
    /// closes every session, and joins every thread.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let events = &self.handle.events;
        // Sending waits while the queue is full, but not for long: the
        // dispatcher takes events until it finds the last one.
        let _ = events.send(DispatchEvent::Stop);
        if let Some(acceptance) = self.acceptance.take() {
            // Between the two events: newcomers that were admitted before the stop still need the
            // dispatcher, and after this there are no more of them.
            acceptance.stop();
        }
        if let Some(dialler) = &self.handle.dialler {
            dialler.close();
        }
        let _ = events.send(DispatchEvent::Exit);
        if let Some(dispatcher) = self.dispatcher.take() {
            let _ = dispatcher.join();
        }
    }
}

fn call(call: impl FnOnce(&mut Context<'_>) + Send + 'static) -> DispatchEvent<ServerCore> {
    DispatchEvent::Call(Box::new(|core, now, actions| core.call(now, actions, call)))
}

/// What other threads do with a server.
///
/// # Threads
/// Cheap to clone, and `Send`. Every call but [`post`](Self::post) and
/// [`stop`](Self::stop) waits for the dispatcher to do it, usually for some
/// microseconds. From a [`Handler`], which runs on a dispatcher, use its
/// [`Context`], or post: a call that waits answers [`SendError::OnDispatcher`]
/// there, on the dispatcher of another server, too, since two dispatchers
/// could wait for each other.
#[derive(Clone)]
pub struct ServerHandle {
    events: Events<DispatchEvent<ServerCore>>,
    uuid: Uuid,
    role: Role,
    environment: Arc<config::Environment>,
    /// Of its handshakes; there when the server is.
    occupancy: Option<Arc<Occupancy>>,
    /// There if it links with other servers.
    dialler: Option<Dialler>,
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerHandle({} ({}))", self.uuid, self.role)
    }
}

impl ServerHandle {
    /// Runs `call` on the dispatcher, and gives back what it returns: the
    /// way to everything that [`Context`] offers.
    ///
    /// # Errors
    /// [`SendError::Stopped`] once the server has stopped, or where `call`
    /// panicked; [`SendError::OnDispatcher`].
    pub fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Context<'_>) -> T + Send + 'static,
    ) -> Result<T, SendError> {
        if dispatch::is_dispatcher() {
            return Err(SendError::OnDispatcher);
        }
        let (reply, result) = crossbeam_channel::bounded(1);
        let replying = self::call(move |cx| {
            let _ = reply.send(call(cx));
        });
        self.events.send(replying).map_err(|_| SendError::Stopped)?;
        self.events.answer(&result).ok_or(SendError::Stopped)
    }

    /// As [`with`](Self::with), with the application itself, where that is an `H`.
    ///
    /// # Errors
    /// As there, and [`SendError::OtherHandler`].
    pub fn with_handler<H: Handler, T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut H, &mut Context<'_>) -> T + Send + 'static,
    ) -> Result<T, SendError> {
        if dispatch::is_dispatcher() {
            return Err(SendError::OnDispatcher);
        }
        let (reply, result) = crossbeam_channel::bounded(1);
        let replying = DispatchEvent::Call(Box::new(move |core: &mut ServerCore, now, actions| {
            core.call_handler(now, actions, |handler, cx| {
                let handler: &mut dyn Any = handler;
                let done = handler.downcast_mut().map(|handler| call(handler, cx));
                let _ = reply.send(done);
            });
        }));
        self.events.send(replying).map_err(|_| SendError::Stopped)?;
        let done = self.events.answer(&result).ok_or(SendError::Stopped)?;
        done.ok_or(SendError::OtherHandler)
    }

    /// What the server knows about its links to other servers.
    ///
    /// # Errors
    /// As of [`with`](Self::with).
    pub fn links(&self) -> Result<Vec<LinkFigures>, SendError> {
        self.with(|cx| cx.state.links.figures(cx.state.now))
    }

    /// Has the dispatcher run `call` as soon as it can, and waits for nothing:
    /// from any thread, and from the handler of another server.
    ///
    /// # Errors
    /// [`SendError::Busy`] where the dispatcher's queue is full;
    /// [`SendError::Stopped`].
    pub fn post(&self, call: impl FnOnce(&mut Context<'_>) + Send + 'static) -> Result<(), SendError> {
        self.events.try_send(self::call(call)).map_err(|e| match e {
            TrySendError::Full(_) => SendError::Busy,
            TrySendError::Disconnected(_) => SendError::Stopped,
        })
    }

    /// Begins to stop the server, as [`Server::stop`] does, and returns at
    /// once. [`Server::wait`] returns when it has stopped.
    pub fn stop(&self) {
        // Where the queue is full this waits for room in it, except on a
        // dispatcher: that one is busy, and its queue moves on.
        if self.post(|cx| cx.stop()) == Err(SendError::Busy) && !dispatch::is_dispatcher() {
            let _ = self.events.send(DispatchEvent::Stop);
        }
    }

    /// Asks every client to leave within that time, and stops the server when all have left, at
    /// the latest 6 s after that time. Returns at once. Newcomers are refused meanwhile, so that
    /// clients go to another server, or come back after a restart.
    ///
    /// A client that knows the event Draining leaves at a random moment: it awaits the answers to
    /// its requests, sends what waits, and ends its session in order, so that no frame is lost.
    /// Any other client is served until the server stops. Whole seconds count.
    ///
    /// # Errors
    /// [`SendError::Stopped`], [`SendError::OnDispatcher`].
    pub fn drain(&self, within: Duration) -> Result<(), SendError> {
        self.with(move |cx| cx.drain(within))
    }

    /// Queues a frame for one entity.
    ///
    /// # Errors
    /// [`SendError`]; the frame was not queued.
    pub fn send(&self, to: Uuid, frame: Frame) -> Result<(), SendError> {
        self.with(move |cx| cx.send(to, &frame))?
    }

    /// Queues the frame that carries `payload` for one entity.
    ///
    /// # Errors
    /// [`SendError`]; the frame was not queued.
    pub fn send_payload<T: Content>(&self, to: Uuid, payload: &T) -> Result<(), SendError> {
        let frame = Frame::try_of(payload).map_err(|_| SendError::Payload(T::FRAME))?;
        self.send(to, frame)
    }

    /// Queues a frame for every session with at least one of the roles, and
    /// says for how many.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn multicast(&self, to: Role, frame: Frame) -> Result<usize, SendError> {
        self.with(move |cx| cx.multicast(to, &frame))?
    }

    /// Queues a frame for every session, and says for how many.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn broadcast(&self, frame: Frame) -> Result<usize, SendError> {
        self.with(move |cx| cx.broadcast(&frame))?
    }

    /// Every session with its counters, in no order.
    ///
    /// # Errors
    /// [`SendError::Stopped`], [`SendError::OnDispatcher`].
    pub fn sessions(&self) -> Result<Vec<(SessionInfo, SessionCounters)>, SendError> {
        self.with(|cx| {
            cx.state
                .sessions
                .iter()
                .map(|session| ((*session.info).clone(), session.counters()))
                .collect()
        })
    }

    /// What the server knows about itself, at one moment: see [`Figures`]. The
    /// dispatcher takes less than a microsecond for each session.
    ///
    /// # Errors
    /// [`SendError::Stopped`], [`SendError::OnDispatcher`].
    pub fn figures(&self) -> Result<Figures, SendError> {
        if dispatch::is_dispatcher() {
            return Err(SendError::OnDispatcher);
        }
        let taken = self.events.look(|core, view| core.state.figures(view));
        let (mut figures, dispatcher) = taken.ok_or(SendError::Stopped)?;
        figures.dispatcher = dispatcher;
        figures.name_kinds(&self.environment.operands);
        let occupancy = self.occupancy.as_deref();
        figures.peers = self.dialler.as_ref().map(Dialler::peers).unwrap_or_default();
        figures.handshakes = HandshakeFigures::of(&self.environment.handshakes, occupancy);
        Ok(figures)
    }

    /// How many frames the sessions that are gone have lost, see
    /// [`Context::frames_lost`].
    ///
    /// # Errors
    /// [`SendError::Stopped`], [`SendError::OnDispatcher`].
    pub fn frames_lost(&self) -> Result<u64, SendError> {
        self.with(|cx| cx.frames_lost())
    }

    /// Ends the session of `uuid`; false where there is none.
    ///
    /// # Errors
    /// [`SendError::Stopped`], [`SendError::OnDispatcher`].
    pub fn disconnect(&self, uuid: Uuid) -> Result<bool, SendError> {
        self.with(move |cx| cx.disconnect(uuid))
    }

    /// What the server proves and whom it trusts at present, also once it has
    /// stopped. Does not wait.
    pub fn credentials(&self) -> Credentials {
        self.environment.in_force().credentials.clone()
    }

    /// The server's UUID.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }
}

#[expect(clippy::disallowed_methods, reason = "the core is told the time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "for people, and for ends of certificates"
)]
pub(crate) fn wall_clock() -> SystemTime {
    SystemTime::now()
}
