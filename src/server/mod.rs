//! An SSNTP server: accepts clients, verifies their roles, filters and routes their frames, and calls
//! an application.
//!
//! ```text
//!                ┌ accept threads ─▶ handshake workers (bounded) ┐
//!  clients ──────┤                                               ▼
//!    ▲           └ reader of each session ─────────▶ dispatcher thread ◀── ServerHandle
//!    │                                               │ filter ─▶ rules ─▶ Handler
//!    └──────────── writer of each session ◀──────────┘ outbox of each session
//! ```
//!
//! The dispatcher never waits for a peer. It handles a received frame in this order:
//!
//! 1. An unsupported type or operand is answered with InvalidFrameType.
//! 2. A request of the application goes to its addressee, and the answer to the client that asked:
//!    see [`Handler::request`].
//! 3. The commands of operators are carried out: see [`ServerConfig::operators`].
//! 4. The [`Filter`] discards frames that the sender's roles may not send.
//! 5. A controller's CONFIGURE is checked and becomes the configuration that CONNECTED carries.
//! 6. The [`Rules`] forward the frame, never back to its sender.
//! 7. The [`Handler`] gets it.
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
//! | `admission` | the rules for newcomers: [`AdmissionPolicy`] |
//! | `credentials` | identity and trust, and their renewal: [`Credentials`] |
//! | `certificates` | the certificates of all connections, each kept once |
//! | `operators`, `watching`, `bans`, `servers` | the commands of operators |
//! | `sessions` | the connected sessions: [`SessionInfo`], [`Directory`], [`SessionCounters`] |
//! | `accept`, `entry` | newcomers up to CONNECTED |
//! | `core` | all state of a server, without threads, sockets or clock |
//! | `life` | admission and end of a session in the core |
//! | `received` | the path of a received frame: filter, rules, application |
//! | `delivery` | sending frames to sessions, and the policy for slow consumers |
//! | `federation` | links to other servers, and the sessions there: [`Federation`] |
//! | `exchange` | requests and their answers |
//! | `channel` | [`channel`]: a handler that sends events to a channel |
//! | `disconnect` | the reasons for the end of a session |
//! | `audit` | the audit log |
//! | `figures`, `tally` | [`Figures`]: sessions and counters |

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
mod life;
mod operators;
mod received;
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
use std::time::Duration;

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
pub use self::handler::{ClusterHandler, Context, Handler, Newcomer, SendError};
pub use self::routing::{Decision, ParseRuleError, RouteFn, RuleError, Rules};
pub use self::sessions::{Directory, SessionCounters, SessionId, SessionInfo, SessionKey};
use crate::clock::{now, wall_clock};
use crate::payload::Content;
use crate::proto::Frame;
pub use crate::proto::Refusal;
pub use crate::request::{Request, RequestError};
use ssntp_pki::{Identity, Role, Trust};
pub use ssntp_transport::default_max_handshakes;
use ssntp_transport::dispatch::{self, DispatchEvent, EVENTS, Events, Runner};
use ssntp_transport::{Acceptance, Address, Listener, Occupancy, Room, threads};

/// A running server.
///
/// # Threads
/// Owns every thread of the server. [`stop`](Self::stop), or dropping the server, ends all of them: it
/// blocks for at most the configured grace period and a moment. Other threads use a [`ServerHandle`].
#[derive(Debug)]
pub struct Server {
    handle: ServerHandle,
    addresses: Vec<Address>,
    max_sessions: usize,
    acceptance: Option<Acceptance>,
    dispatcher: Option<JoinHandle<()>>,
    /// Disconnected when the server begins to stop.
    stopping: Receiver<Infallible>,
}

impl Server {
    /// Binds every address and starts the threads. Clients are accepted when this returns. Raises the
    /// process's soft limits of open files and processes to the hard ones, because each session needs
    /// both. If `max_sessions` is not configured and the system allows only few sessions, logs their
    /// number at warn.
    ///
    /// # Errors
    /// [`ServerError`]; no thread of the server runs then.
    pub fn start(mut config: ServerConfig, handler: impl Handler) -> Result<Self, ServerError> {
        config.check()?;
        // First: a server that the system does not allow its sessions must not start.
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
        // After the addresses are collected, because these have none.
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
        // No message is ever sent. The receiver is disconnected when the core drops the sender.
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
        // From here on, an early return drops `server`, which ends the threads that run.
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
            // Set afterwards, because the dialler needs the channel to the core.
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

    /// The addresses that the server listens at, with the ports that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The server's UUID.
    pub fn uuid(&self) -> Uuid {
        self.handle.uuid()
    }

    /// The maximum number of sessions that the server admits.
    pub fn max_sessions(&self) -> usize {
        self.max_sessions
    }

    /// The dialler of the servers that this one links with; `None` without
    /// [`ServerConfig::federate`].
    pub fn dialler(&self) -> Option<Dialler> {
        self.handle.dialler.clone()
    }

    /// A handle for other threads.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Replaces the server's certificate, its authorities and their revocation lists. Later handshakes
    /// use the new ones. TLS sessions that began under the old ones are not resumed.
    ///
    /// Existing sessions are checked as well, before this returns. A session whose certificate is
    /// revoked, has expired, or comes from an authority that is no longer trusted ends with
    /// [`DisconnectReason::Certificate`]: its queue is sent, then ConnectionFailure. Other sessions are
    /// not affected. The certificates are verified on this thread, some thousands a second, and the
    /// dispatcher continues meanwhile.
    ///
    /// # Errors
    /// [`ServerError::Role`], [`ServerError::BorrowedUuid`], [`ServerError::Tls`],
    /// [`ServerError::OnDispatcher`]. The old credentials and all sessions stay then.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<Renewed, ServerError> {
        if dispatch::is_dispatcher() {
            return Err(ServerError::OnDispatcher);
        }
        self.handle.environment.renew(identity, trust)?;
        Ok(credentials::verify_sessions(&self.handle, wall_clock()))
    }

    /// The present identity and trust of the server. Does not block.
    pub fn credentials(&self) -> Credentials {
        self.handle.credentials()
    }

    /// A channel for `select!` that is disconnected when the server begins to stop. No message is ever
    /// sent in it.
    pub fn stopping(&self) -> &Receiver<Infallible> {
        &self.stopping
    }

    /// Blocks until the server is stopped by [`ServerHandle::stop`], [`ServerHandle::drain`] or
    /// [`Context::stop`], then ends it as [`stop`](Self::stop) does.
    pub fn wait(self) {
        // The receive fails when the core drops the sender at a stop.
        let _ = self.stopping.recv();
    }

    /// Refuses further clients, sends the queues within the grace period, closes every session, and
    /// joins every thread.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let events = &self.handle.events;
        // Blocks while the channel is full. The dispatcher empties it until it gets Exit.
        let _ = events.send(DispatchEvent::Stop);
        if let Some(acceptance) = self.acceptance.take() {
            // Before Exit, because newcomers that were admitted before the stop still need the
            // dispatcher. After this call there are no newcomers.
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
/// and must use its [`Context`] or `post`: calls that wait return [`SendError::OnDispatcher`] there. The
/// same holds on the dispatcher of another server, because two dispatchers could wait for each other.
#[derive(Clone)]
pub struct ServerHandle {
    events: Events<DispatchEvent<ServerCore>>,
    environment: Arc<config::Environment>,
    /// The number of handshakes under way. `None` only while the server starts.
    occupancy: Option<Arc<Occupancy>>,
    /// `None` if the server takes no links.
    dialler: Option<Dialler>,
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerHandle({} ({}))", self.uuid(), self.environment.role)
    }
}

impl ServerHandle {
    /// Runs `call` on the dispatcher and returns its result. The [`Context`] has all operations.
    ///
    /// # Errors
    /// [`SendError::Stopped`] if the server has stopped or `call` panicked;
    /// [`SendError::OnDispatcher`].
    pub fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Context<'_>) -> T + Send + 'static,
    ) -> Result<T, SendError> {
        self.wait_for(|_, cx| call(cx))
    }

    fn wait_for<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut dyn Handler, &mut Context<'_>) -> T + Send + 'static,
    ) -> Result<T, SendError> {
        if dispatch::is_dispatcher() {
            return Err(SendError::OnDispatcher);
        }
        let (reply, result) = crossbeam_channel::bounded(1);
        let replying = self::call(move |handler, cx| {
            let _ = reply.send(call(handler, cx));
        });
        self.events.send(replying).map_err(|_| SendError::Stopped)?;
        self.events.answer(&result).ok_or(SendError::Stopped)
    }

    /// As [`with`](Self::with), with the application itself, which must be an `H`.
    ///
    /// # Errors
    /// As of [`with`](Self::with), and [`SendError::OtherHandler`].
    pub fn with_handler<H: Handler, T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut H, &mut Context<'_>) -> T + Send + 'static,
    ) -> Result<T, SendError> {
        let result = self.wait_for(|handler, cx| {
            let handler: &mut dyn Any = handler;
            handler.downcast_mut().map(|handler| call(handler, cx))
        });
        result?.ok_or(SendError::OtherHandler)
    }

    /// Sends `call` to the dispatcher, which runs it soon, and returns at once. May be called on any
    /// thread, also in the handler of another server.
    ///
    /// # Errors
    /// [`SendError::Busy`] if the channel to the dispatcher is full;
    /// [`SendError::Stopped`].
    pub fn post(&self, call: impl FnOnce(&mut Context<'_>) + Send + 'static) -> Result<(), SendError> {
        let event = self::call(|_, cx| call(cx));
        self.events.try_send(event).map_err(|e| match e {
            TrySendError::Full(_) => SendError::Busy,
            TrySendError::Disconnected(_) => SendError::Stopped,
        })
    }

    /// Begins to stop the server, as [`Server::stop`] does, and returns at once. [`Server::wait`] returns
    /// when the server has stopped.
    pub fn stop(&self) {
        // If the channel is full, wait for room. A dispatcher must not wait: it may be this server's
        // own, which alone makes room.
        if self.post(|cx| cx.stop()) == Err(SendError::Busy) && !dispatch::is_dispatcher() {
            let _ = self.events.send(DispatchEvent::Stop);
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
    /// [`SendError::Stopped`], [`SendError::OnDispatcher`].
    pub fn drain(&self, within: Duration) -> Result<(), SendError> {
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

    /// A snapshot of the server, see [`Figures`]. The dispatcher takes less than a microsecond for each
    /// session.
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
        figures.handshakes = self.environment.handshakes.figures(occupancy);
        Ok(figures)
    }

    /// Ends the session of `uuid`. False if there is none.
    ///
    /// # Errors
    /// [`SendError::Stopped`], [`SendError::OnDispatcher`].
    pub fn disconnect(&self, uuid: Uuid) -> Result<bool, SendError> {
        self.with(move |cx| cx.disconnect(uuid))
    }

    /// The present identity and trust of the server, also after it has stopped. Does not block.
    pub fn credentials(&self) -> Credentials {
        self.environment.active().credentials.clone()
    }

    /// The server's UUID.
    pub fn uuid(&self) -> Uuid {
        self.environment.uuid
    }
}
