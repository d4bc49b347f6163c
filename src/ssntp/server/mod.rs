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
//! 2. The [`Filter`] decides whether the sender's role may send it.
//! 3. A controller's CONFIGURE is checked and becomes the configuration that
//!    CONNECTED carries.
//! 4. The [`Rules`] forward it, never back to its sender.
//! 5. The [`Handler`] sees it.
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
//! | `sessions` | who is connected: [`SessionInfo`], [`Directory`], [`Counters`] |
//! | `held` | frames queued for later |
//! | `accept` | newcomers up to CONNECT |
//! | `dispatcher` | the one thread that does all of it: what it is told |
//! | `events` | how it is told, and how it sleeps |
//! | `state` | what it owns, and the life of a session |
//! | `delivery` | how frames get into queues |
//! | `at_once` | when it sends past idle writers |

mod accept;
mod at_once;
mod config;
mod delivery;
mod dispatcher;
mod events;
mod filter;
mod handler;
mod held;
mod routing;
mod sessions;
mod state;

use std::fmt;
use std::thread::{JoinHandle, ThreadId};

use log::info;
use uuid::Uuid;

pub use self::config::{ConfigurationCheck, ServerConfig, ServerError, SlowConsumer};
use self::dispatcher::{Dispatcher, EVENTS, Event};
use self::events::Events;
pub use self::filter::{Filter, FilterAction};
pub use self::handler::{Context, DisconnectReason, Handler, HeldFrame, SendError};
pub use self::held::HeldId;
pub use self::routing::{Decision, RouteFn, RuleError, Rules};
pub use self::sessions::{Counters, Directory, SessionId, SessionInfo};
use crate::Role;
use crate::payload::Payload;
use crate::proto::Frame;
pub use crate::transport::default_max_handshakes;
use crate::transport::{Acceptance, Address, Listener, Room, threads};

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
        let room = Room::claim(config.max_handshakes, config.max_sessions, "ssntp::server")
            .map_err(ServerError::TooManySessions)?;
        let max_sessions = room.sessions;
        let shared = config::Shared::new(&config)?;
        let mut listeners = Vec::new();
        for address in std::mem::take(&mut config.listen) {
            let bound = Listener::bind(&address, config.tcp).map_err(|e| ServerError::Listen(address, e))?;
            listeners.extend(bound);
        }
        let addresses = listeners.iter().filter_map(Listener::local_address).collect();
        listeners.extend(config.memory.drain(..).map(Listener::memory));

        let (uuid, role) = (config.uuid, config.role);
        let (events, queue) = events::channel(EVENTS);
        let dispatcher = Dispatcher::new(
            config,
            std::sync::Arc::clone(&shared),
            max_sessions,
            handler,
            queue,
        )?;
        let dispatcher =
            threads::spawn("ssntp-dispatch", move || dispatcher.run()).map_err(ServerError::Thread)?;
        let handle = ServerHandle {
            events: events.clone(),
            dispatcher: dispatcher.thread().id(),
            uuid,
            role,
        };
        let mut server = Self {
            handle,
            addresses,
            max_sessions,
            acceptance: None,
            dispatcher: Some(dispatcher),
        };
        // From here on, dropping `server` ends what runs already.
        server.acceptance =
            Some(accept::start(listeners, shared, room.handshakes, events).map_err(ServerError::Thread)?);
        info!(target: "ssntp::server",
            "{uuid} ({role}): server for at most {max_sessions} sessions ({})",
            room.limit
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

    /// A handle for other threads.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Blocks until the server ends, which without an outside cause it never
    /// does: for programs that do nothing else.
    pub fn wait(mut self) {
        if let Some(dispatcher) = self.dispatcher.take() {
            let _ = dispatcher.join();
        }
    }

    /// Accepts nobody any more, flushes the queues within the grace period,
    /// closes every session, and joins every thread.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let events = &self.handle.events;
        // The dispatcher takes events until the last one, so nothing here
        // waits for long.
        let _ = events.send(Event::Stop);
        if let Some(acceptance) = self.acceptance.take() {
            acceptance.stop();
        }
        let _ = events.send(Event::Exit);
        if let Some(dispatcher) = self.dispatcher.take() {
            let _ = dispatcher.join();
        }
    }
}

/// What other threads do with a server.
///
/// # Threads
/// Cheap to clone, and `Send`. Every call waits for the dispatcher to do it,
/// usually for some microseconds. From a [`Handler`], which runs on the
/// dispatcher, use its [`Context`]: a handle answers
/// [`SendError::OnDispatcher`] there.
#[derive(Clone)]
pub struct ServerHandle {
    events: Events<Event>,
    dispatcher: ThreadId,
    uuid: Uuid,
    role: Role,
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
        if std::thread::current().id() == self.dispatcher {
            return Err(SendError::OnDispatcher);
        }
        let (reply, result) = crossbeam_channel::bounded(1);
        let call = Event::Call(Box::new(move |cx| {
            let _ = reply.send(call(cx));
        }));
        self.events.send(call).map_err(|_| SendError::Stopped)?;
        result.recv().map_err(|_| SendError::Stopped)
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
    pub fn send_payload<T: Payload>(&self, to: Uuid, payload: &T) -> Result<(), SendError> {
        self.send(to, Frame::of(payload))
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
    pub fn sessions(&self) -> Result<Vec<(SessionInfo, Counters)>, SendError> {
        self.with(|cx| {
            cx.state
                .sessions
                .iter()
                .map(|session| ((*session.info).clone(), session.counters()))
                .collect()
        })
    }

    /// Ends the session of `uuid`; false where there is none.
    ///
    /// # Errors
    /// [`SendError::Stopped`], [`SendError::OnDispatcher`].
    pub fn disconnect(&self, uuid: Uuid) -> Result<bool, SendError> {
        self.with(move |cx| cx.disconnect(uuid))
    }

    /// The server's UUID.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }
}
