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
//! | `config`, `credentials` | [`ServerConfig`], [`ServerError`]; [`Credentials`] |
//! | `handle`, `channel` | [`ServerHandle`]; [`channel()`]: a handler that sends events to a channel |
//! | `accept`, `dial` | threads of newcomers, and of servers that are dialled: [`Dialler`] |
//! | `enrol`, `joining` | nodes that join, and the renewal of their certificates: `Enrolment`; its threads (feature `issue`) |
//! | `entry` | a newcomer between TLS and CONNECTED, step by step |
//! | `renewals` | the requests for new certificates that wait |
//! | `renewal` | the check of all sessions when the credentials are replaced: [`RenewalReport`] |
//! | `core` | where every event is dispatched: newcomers, frames, ends, timers |
//! | `handler`, `context` | [`Handler`], [`ClusterHandler`], and what they may do: [`Context`] |
//! | `state` | all rooms together: what concerns several of them |
//! | `admission`, `bans` | the rules for newcomers: [`AdmissionPolicy`] |
//! | `sessions`, `directory` | the connected sessions: [`SessionInfo`], [`SessionCounters`]; [`Directory`] |
//! | `connections`, `certificates` | all connections until their threads are joined |
//! | `routing`, `filter`, `kinds` | the tables by kind of frame: [`Rules`], [`Filter`] |
//! | `configuration` | the cluster configuration and CONFIGURE |
//! | `delivery` | whom a frame can reach: sessions, links, and the way out together; the server's own requests |
//! | `sending`, `parcel` | the way out: frames on their way to several receivers |
//! | `operators` | the commands of operators |
//! | `links` | links to other servers, and the sessions there: [`Federation`] |
//! | `figures`, `counters` | [`Figures`]: sessions and counters |
//! | `environment`, `own` | what all threads share; the server's own properties |
//! | `error`, `disconnect` | [`SendError`], [`CallError`]; [`DisconnectReason`] |
//! | `log` | the audit log, and the lines that clients can cause |
//! | `time` | the time of a call |

mod accept;
pub(crate) mod admission;
mod bans;
mod certificates;
mod channel;
mod config;
mod configuration;
mod connections;
mod context;
pub(crate) mod core;
mod counters;
mod credentials;
mod delivery;
pub(crate) mod dial;
mod directory;
#[cfg(not(feature = "issue"))]
mod enrol {
    /// Without the feature `issue` no node can join.
    pub(super) type Enrolment = std::convert::Infallible;
}
mod disconnect;
#[cfg(feature = "issue")]
mod enrol;
pub(crate) mod entry;
pub(crate) mod environment;
mod error;
mod figures;
mod filter;
mod handle;
mod handler;
#[cfg(feature = "issue")]
mod joining;
mod kinds;
pub(crate) mod links;
mod log;
mod operators;
mod own;
mod parcel;
mod renewal;
mod renewals;
mod routing;
mod sending;
mod sessions;
mod state;
#[cfg(test)]
#[cfg(feature = "issue")]
mod tests;
mod time;

use std::convert::Infallible;
use std::sync::Arc;
use std::thread::JoinHandle;

use ::log::{info, warn};
use crossbeam_channel::Receiver;
use uuid::Uuid;

pub use self::admission::{AdmissionPolicy, Newcomer};
pub use self::channel::{ServerEvent, channel};
pub use self::config::{ServerConfig, ServerError, SlowConsumer};
pub use self::context::Context;
use self::core::ServerCore;
pub use self::credentials::Credentials;
pub use self::dial::Dialler;
pub use self::directory::Directory;
pub use self::disconnect::DisconnectReason;
#[cfg(feature = "issue")]
pub use self::enrol::{Enrolment, EnrolmentStore};
use self::environment::Environment;
pub use self::error::{CallError, SendError};
pub use self::figures::{ClosedSession, Figures, HandshakeFigures, HeldBack, Pace, SessionFigures};
pub use self::filter::{Filter, FilterAction};
pub use self::handle::ServerHandle;
pub use self::handler::{ClusterHandler, Handler};
pub use self::kinds::KindFigures;
pub use self::links::{Federation, LinkFigures, PeerState, ServerLink};
pub use self::renewal::RenewalReport;
pub use self::routing::{RuleError, Rules};
pub use self::sessions::{SessionCounters, SessionId, SessionInfo, SessionKey};
use ssntp_pki::{Identity, Trust};
use ssntp_transport::dispatch::{self, DispatchEvent, EVENTS, Runner};
use ssntp_transport::{Acceptance, Address, Listener, Room, now, threads, wall_clock};

/// A running server.
///
/// # Threads
/// Owns every thread of the server. [`stop`](Self::stop), or dropping the server, ends all of them: it
/// blocks for at most the configured grace period and a moment. Other threads use a [`ServerHandle`].
#[derive(Debug)]
pub struct Server {
    handle: ServerHandle,
    dialler: Option<Dialler>,
    addresses: Vec<Address>,
    max_sessions: usize,
    acceptance: Option<Acceptance>,
    /// The dispatcher, and the thread that renews certificates, which ends with the core.
    threads: Vec<JoinHandle<()>>,
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
        let environment = Environment::new(&config)?;
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
        #[cfg(feature = "issue")]
        let enrolment = config.enrol.take().map(|enrolment| {
            let (renewals, asked) = crossbeam_channel::bounded(joining::RENEWALS);
            config.renewals = Some(renewals);
            (enrolment, asked)
        });
        let (federation, tcp) = (config.federate.take(), config.tcp);
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
            handle: ServerHandle::new(events.clone(), Arc::clone(&environment)),
            dialler: None,
            addresses,
            max_sessions,
            acceptance: None,
            threads: vec![dispatcher],
            stopping,
        };
        // From here on, an early return drops `server`, which ends the threads that run.
        let acceptance = accept::start(listeners, environment, room.handshakes, events);
        let acceptance = acceptance.map_err(ServerError::Thread)?;
        let handshakes = &server.handle.environment.handshakes;
        let _ = handshakes.occupancy.set(acceptance.occupancy());
        server.acceptance = Some(acceptance);
        #[cfg(feature = "issue")]
        if let Some((enrolment, asked)) = enrolment {
            let thread = joining::start(enrolment, asked, server.handle());
            server.threads.push(thread.map_err(ServerError::Thread)?);
        }
        if let Some(federation) = federation {
            let handle = server.handle();
            let dialler = Dialler { handle, tcp };
            server.dialler = Some(dialler.clone());
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
        self.dialler.clone()
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
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<RenewalReport, ServerError> {
        if dispatch::is_dispatcher() {
            return Err(ServerError::OnDispatcher);
        }
        self.handle.environment.renew(identity, trust)?;
        Ok(renewal::verify_sessions(&self.handle, wall_clock()))
    }

    /// Replaces the issuer of [`ServerConfig::enrol`], for example before the old one ends. The certificates that the
    /// old one has issued stay valid. Does not block. Without [`ServerConfig::enrol`] it has no effect.
    ///
    /// # Errors
    /// [`ServerError::Issuer`]; the old issuer stays then.
    #[cfg(feature = "issue")]
    pub fn renew_issuer(&self, issuer: ssntp_pki::Issuer) -> Result<(), ServerError> {
        let environment = &self.handle.environment;
        config::check_issuer(issuer.info(), &environment.active().credentials.trust)?;
        if let Some(enrolment) = &environment.enrolment {
            enrolment.set_issuer(issuer);
        }
        Ok(())
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
    /// [`Context::stop`], then ends it as [`stop`](Self::stop) does. Returns also if the dispatcher has
    /// panicked, which the log says.
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
        if let Some(dialler) = &self.dialler {
            dialler.close();
        }
        let _ = events.send(DispatchEvent::Exit);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
