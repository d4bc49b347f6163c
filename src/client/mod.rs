//! An SSNTP client: one session with the first of several servers that
//! answers, stood up again whenever it is lost.
//!
//! ```text
//!            start()
//!               │
//!               ▼      every server failed        ┌─────────────┐
//!        ┌─────────────┐ ────────────────────────▶│ backing off │
//!  ┌────▶│   dialing   │ ◀────────────────────────└─────────────┘
//!  │     └──────┬──────┘        time is over
//!  │            │ CONNECTED                   final refusal, no server left,
//!  │            ▼                             attempts run out, close()
//!  │     ┌─────────────┐                      ┌─────────────┐
//!  │     │  connected  │ ── from each state ─▶│    ended    │
//!  │     └──────┬──────┘                      └─────────────┘
//!  │            │ lost: Disconnected           Closed
//!  └────────────┘ (after a first, short pause)
//! ```
//!
//! ```text
//!  application           ClientHandle::send ─▶ uplink ─▶ outbox of the session ─▶ writer ─▶ server
//!                                               │ offline: bounded queue, or refused
//!  application ◀─ bounded channel of events ◀── inbound ◀───────────────────── reader ◀── server
//!                                               ▲
//!  supervisor thread: dial, handshake, back-off ┘ Connected, Disconnected, Closed
//! ```
//!
//! What comes in is one ordered stream of [`ClientEvent`]s: `Connected`, then that
//! session's frames, then `Disconnected`, and so on; `Closed` is the last.
//!
//! ```no_run
//! use ssntp::client::{Client, ClientConfig, ClientEvent};
//! use ssntp::payload::{Ready, Start};
//! use ssntp::pki::{Identity, Trust};
//! use ssntp::proto::Command;
//!
//! let config = ClientConfig::new(Identity::load("agent.pem")?, Trust::load("ca.pem")?)
//!     .address("scheduler.example".parse()?);
//! let client = Client::connect(config)?;
//! client.send_payload(&Ready { node_uuid: client.uuid().into(), load: 1, ..Ready::default() })?;
//! for event in &client {
//!     match event {
//!         ClientEvent::Connected(server) => println!("connected to {server}"),
//!         ClientEvent::Frame(frame) if frame.kind() == Command::START => {
//!             println!("START {}", frame.payload::<Start>()?.instance_uuid);
//!         }
//!         ClientEvent::Frame(frame) => println!("{}", frame.kind()),
//!         ClientEvent::Disconnected { reason, .. } => println!("{reason}"),
//!         ClientEvent::Closed(why) => println!("{why}"),
//!         _ => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a sent frame is promised
//! It is delivered at most once. [`ClientHandle::send`] is done once the frame
//! waits in the session's queue. If the session is lost before the system has
//! taken it, it is lost as well and counted ([`ClientCounters::lost_frames`]): it is
//! not moved to the next session, where the state that it tells of may be over.
//!
//! # A client whose credentials are renewed
//! [`ClientHandle::renew`] replaces identity and trust while the client runs.
//! Where the session has to go for that, it ends in order: what was sent before
//! arrives, what the server sent before is received, and what is sent meanwhile
//! waits for the next session, also under [`Offline::Fail`], for at most 10 s and
//! the attempt under way then. New requests wait as well, those under way are
//! waited for, for 5 s. The application sees `Disconnected` with
//! [`DisconnectReason::Renewed`], then `Connected`.
//!
//! # An application that does not receive
//! holds the server back: once the bounded channel of events is full, nothing
//! more is read from the session until there is room, and the server will
//! take the client for a slow consumer. Sending and closing go on.
//!
//! Log lines have the target `ssntp::client` and begin with the client's UUID
//! and role.
//!
//! | file | holds |
//! |---|---|
//! | `config` | [`ClientConfig`], [`Backoff`], [`Offline`], [`UuidSource`] |
//! | `handle` | [`ClientHandle`]: sending, state, counters |
//! | `event` | [`ClientEvent`], [`ServerInfo`], [`ClientCounters`] |
//! | `error` | [`ClientError`], [`DialError`], [`DisconnectReason`], [`SendError`], [`RecvError`] |
//! | `uplink` | where a frame to be sent goes now: session, queue, nowhere |
//! | `inbound` | the bounded channel of events |
//! | `credentials` | what handshakes show and trust, and when a renewed client moves over |
//! | `dial` | one attempt at one server: connect, TLS, CONNECT, CONNECTED |
//! | `session` | what the reader of a session does with frames |
//! | [`core`] | what it decides: rounds of attempts, back-off, the end of a session, the end |
//! | `supervisor` | the thread that carries that out |
//! | `figures` | [`ClientFigures`]: what it knows about itself |
//! | `uuid_file` | UUIDs that survive, one client each |

mod config;
pub mod core;
mod credentials;
mod dial;
mod error;
mod event;
mod figures;
mod handle;
mod inbound;
mod session;
mod supervisor;
#[cfg(test)]
#[cfg(feature = "issue")]
mod tests;
mod uplink;
mod uuid_file;

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};

pub(crate) use self::config::random_share;
pub use self::config::{Backoff, ClientConfig, Offline, UuidSource};
use self::core::ClientCore;
pub use self::error::{ClientError, DialError, DialFault, DisconnectReason, RecvError, SendError, SendFault};
pub use self::event::{ClientCounters, ClientEvent, ServerInfo};
pub use self::figures::ClientFigures;
pub use self::handle::ClientHandle;
use self::supervisor::Supervisor;
use crate::proto::Frame;
pub use crate::request::{Request, RequestError};
use ssntp_transport::{deadline, threads};

/// The log target of this module and all below it.
const LOG: &str = "ssntp::client";

/// A running client: receives, and does all that its [`ClientHandle`] does.
///
/// # Threads
/// It owns a supervisor thread, and while a session stands, that session's
/// reader and writer. `Send` and `Sync`: any thread may receive, but each
/// event goes to one of them. [`close`](Self::close), or dropping it, ends
/// all threads and every wait; it blocks for at most the configured grace
/// and a moment (longer only while the system looks a host name up, which
/// cannot be woken). Other threads send through a cheap [`ClientHandle`].
#[derive(Debug)]
pub struct Client {
    handle: ClientHandle,
    events: Receiver<ClientEvent>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl Client {
    /// Starts a client and blocks until its first session stands.
    ///
    /// # Errors
    /// As [`start`](Self::start), and why the client ended instead: refused
    /// for good, no server left, or attempts ran out. Nothing runs then.
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let client = Self::start(config)?;
        match client.handle.wait_connected(None) {
            Ok(_) => Ok(client),
            Err(reason) => Err(reason),
        }
    }

    /// Starts a client, which connects in the background.
    ///
    /// # Errors
    /// What is wrong with the configuration: a role that the certificate does
    /// not hold, a UUID that is not the certificate's, a UUID directory that
    /// cannot be used, an identity that makes no TLS configuration. Nothing
    /// runs then.
    pub fn start(config: ClientConfig) -> Result<Self, ClientError> {
        let (core, events) = ClientCore::new(config)?;
        let handle = core.handle();
        let supervisor = Supervisor::new(core);
        let thread = threads::spawn("ssntp-client", move || supervisor.run());
        Ok(Self {
            handle,
            events,
            supervisor: Mutex::new(Some(thread.map_err(|e| ClientError::Thread(Arc::new(e)))?)),
        })
    }

    /// A handle for other threads.
    pub fn handle(&self) -> ClientHandle {
        self.handle.clone()
    }

    /// Waits for the next event. After [`ClientEvent::Closed`] it does not wait.
    ///
    /// # Errors
    /// Why the client ended, once every event has been received.
    pub fn recv(&self) -> Result<ClientEvent, ClientError> {
        self.events.recv().map_err(|_| self.reason())
    }

    /// Waits for the next event for at most `limit`.
    ///
    /// # Errors
    /// [`RecvError::Empty`] when none came; [`RecvError::Ended`] as
    /// [`recv`](Self::recv).
    pub fn recv_timeout(&self, limit: Duration) -> Result<ClientEvent, RecvError> {
        self.events.recv_timeout(limit).map_err(|e| match e {
            RecvTimeoutError::Timeout => RecvError::Empty,
            RecvTimeoutError::Disconnected => RecvError::Ended(self.reason()),
        })
    }

    /// The next event if there is one. Does not wait.
    ///
    /// # Errors
    /// As [`recv_timeout`](Self::recv_timeout).
    pub fn try_recv(&self) -> Result<ClientEvent, RecvError> {
        self.events.try_recv().map_err(|e| match e {
            TryRecvError::Empty => RecvError::Empty,
            TryRecvError::Disconnected => RecvError::Ended(self.reason()),
        })
    }

    /// Every event until the client ends; each step waits for the next.
    pub fn iter(&self) -> impl Iterator<Item = ClientEvent> + '_ {
        self.events.iter()
    }

    /// The channel itself, for `crossbeam_channel::select!`. It is
    /// disconnected once the client has ended. A clone of it keeps nothing
    /// alive and takes events away from the client's other receivers.
    pub fn events(&self) -> &Receiver<ClientEvent> {
        &self.events
    }

    /// Waits for the next frame; other events are passed over.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_frame(&self) -> Result<Frame, ClientError> {
        self.frames().next().ok_or_else(|| self.reason())
    }

    /// Waits for the next frame for at most `limit`; other events are passed
    /// over.
    ///
    /// # Errors
    /// As [`recv_timeout`](Self::recv_timeout).
    pub fn recv_frame_timeout(&self, limit: Duration) -> Result<Frame, RecvError> {
        let deadline = deadline(limit);
        loop {
            match self.events.recv_deadline(deadline) {
                Ok(ClientEvent::Frame(frame)) => return Ok(frame),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err(RecvError::Empty),
                Err(RecvTimeoutError::Disconnected) => return Err(RecvError::Ended(self.reason())),
            }
        }
    }

    /// Every frame until the client ends; other events are passed over.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        self.events.iter().filter_map(ClientEvent::into_frame)
    }

    /// Ends the client and waits for its threads. Every wait of every thread
    /// ends at once; frames that wait in the session's queue still go out
    /// within the configured grace, and the server gets close_notify.
    /// What the server sends from now on is not received; events that wait
    /// already still are. A second call does nothing.
    pub fn close(&self) {
        self.handle.close();
        // A second caller waits here until the threads have ended.
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = supervisor.take() {
            // A panic has been logged by the panic hook.
            let _ = thread.join();
        }
    }

    /// Why the client ended. The channel is disconnected after the reason is
    /// set, so there is one.
    fn reason(&self) -> ClientError {
        self.handle.ended().unwrap_or(ClientError::Closed)
    }
}

/// Everything that a handle can do: sending, requests, renewing, and how things stand.
impl Deref for Client {
    type Target = ClientHandle;

    fn deref(&self) -> &ClientHandle {
        &self.handle
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

impl<'a> IntoIterator for &'a Client {
    type Item = ClientEvent;
    type IntoIter = crossbeam_channel::Iter<'a, ClientEvent>;

    fn into_iter(self) -> Self::IntoIter {
        self.events.iter()
    }
}
