//! An SSNTP client. It holds one session, with the first of its servers that answers, and
//! connects again whenever the session is lost.
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
//!  └────────────┘ (after a pause, if there is no other server)
//! ```
//!
//! ```text
//!  application           ClientHandle::send ─▶ uplink ─▶ outbox of the session ─▶ writer ─▶ server
//!                                               │ offline: bounded queue, or refused
//!  application ◀─ bounded channel of events ◀── inbound ◀───────────────────── reader ◀── server
//!                                               ▲
//!  client's thread: dial, handshake, back-off ───┘ Connected, Disconnected, Closed
//! ```
//!
//! The application receives one ordered stream of [`ClientEvent`]s: `Connected`, the frames of
//! that session, `Disconnected`, and so on. `Closed` is the last event.
//!
//! ```no_run
//! use ssntp::client::{Client, ClientConfig, ClientEvent};
//! use ssntp::pki::{Identity, Trust};
//! use ssntp::{Command, Frame, Status};
//!
//! let config = ClientConfig::new(Identity::load("agent.pem")?, Trust::load("ca.pem")?)
//!     .address("scheduler.example:8888".parse()?);
//! let client = Client::connect(config)?;
//! client.send(Frame::with_payload(Status::READY, "load: 1\n"))?;
//! for event in &client {
//!     match event {
//!         ClientEvent::Connected(server) => println!("connected to {server}"),
//!         ClientEvent::Frame(frame) if frame.kind() == Command::START => {
//!             println!("START {:?}", frame.payload_bytes());
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
//! # Delivery
//! A frame is delivered at most once. [`ClientHandle::send`] returns as soon as the frame is in
//! the session's queue. If the session is lost before the operating system has taken the frame,
//! the frame is lost and counted ([`ClientCounters::lost_frames`]). It is not moved to the next
//! session, because the state that it reports may be out of date by then.
//!
//! # Renewing credentials
//! [`ClientHandle::renew`] replaces identity and trust while the client runs. If the session has
//! to be replaced for that, it ends without loss: frames that either side has sent arrive. Frames
//! that are sent during the change wait for the next session, even with [`Offline::Fail`], for at
//! most 10 s and the attempt that is under way then. New requests wait as well; the client waits up
//! to 5 s for the answers to earlier requests. The application receives `Disconnected` with
//! [`SessionEnd::Renewed`], and then `Connected`.
//!
//! # Back-pressure
//! An application that does not receive holds the server back. Once the bounded channel of events
//! is full, the client reads no more from the session until there is room, and the server treats
//! the client as a slow consumer. Sending and closing still work.
//!
//! Log lines have the target `ssntp::client` and begin with the client's UUID
//! and role.
//!
//! | file | holds |
//! |---|---|
//! | `config` | [`ClientConfig`], [`Backoff`], [`Offline`], [`UuidSource`] |
//! | `handle` | [`ClientHandle`]: sending, state, counters |
//! | `event` | [`ClientEvent`], [`ServerInfo`], [`ClientCounters`] |
//! | `error` | [`ClientError`], [`DialError`], [`SessionEnd`], [`UnsentError`], [`RecvError`] |
//! | `uplink` | the destination of frames to be sent: the session's queue or the offline queue |
//! | `inbound` | the bounded channel of events |
//! | `credentials` | identity and trust of handshakes, and when a renewed client reconnects |
//! | `dial` | one attempt at one server: connect, TLS, CONNECT, CONNECTED |
//! | `session` | handles the frames that the reader of a session receives |
//! | `join` | `Join`: joining with a token, and the renewal of the certificate (feature `issue`) |
//! | `node_files` | `NodeFiles`: the files of a node that has joined (feature `issue`) |
//! | `core` | all decisions: rounds of attempts, back-off, the end of a session, the end |
//! | `client_thread` | the thread that carries the decisions out |
//! | `time` | the time of a step of the core, and its random number |
//! | `figures` | [`ClientFigures`]: a snapshot for monitoring |
//! | `uuid_file` | UUIDs that are kept on disk, one for each running client |

mod client_thread;
mod config;
pub(crate) mod core;
mod credentials;
mod dial;
mod error;
mod event;
mod figures;
mod handle;
mod inbound;
#[cfg(feature = "issue")]
mod join;
#[cfg(feature = "issue")]
mod node_files;
mod session;
#[cfg(test)]
#[cfg(feature = "issue")]
mod tests;
mod time;
mod uplink;
mod uuid_file;

use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};

pub use self::config::{Backoff, ClientConfig, Offline, UuidSource};
use self::core::ClientCore;
pub use self::error::{ClientError, DialError, DialFault, RecvError, SendFault, SessionEnd, UnsentError};
pub use self::event::{ClientCounters, ClientEvent, ServerInfo};
pub use self::figures::ClientFigures;
pub use self::handle::ClientHandle;
#[cfg(feature = "issue")]
pub use self::join::{Join, JoinError};
#[cfg(feature = "issue")]
pub use self::node_files::NodeFiles;
use crate::proto::Frame;
use ssntp_transport::{deadline, locked, remaining, threads};

/// A running client. It receives events, and derefs to its [`ClientHandle`].
///
/// # Threads
/// A client owns the client's thread, one that renews its certificate if that is configured, and during a
/// session its reader and writer. The client is `Send` and `Sync`: any thread may receive, but each event
/// goes to one receiver only.
/// [`close`](Self::close), or dropping the client, ends all threads and every wait. It blocks for
/// little more than the configured grace period, unless the system is resolving a host name, which
/// cannot be interrupted. Other threads send through a cheap [`ClientHandle`].
#[derive(Debug)]
pub struct Client {
    handle: ClientHandle,
    events: Receiver<ClientEvent>,
    /// The client's thread, and the thread that renews the certificate.
    // A mutex, because `close` has `&self` and may be called by several threads.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Client {
    /// Starts a client and blocks until its first session is established.
    ///
    /// # Errors
    /// As [`start`](Self::start), and the reason if the client ended instead: it was refused for
    /// good, no server was left to try, or the attempts ran out. No thread is left running.
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let client = Self::start(config)?;
        client.handle.wait_connected(None)?;
        Ok(client)
    }

    /// Starts a client, which connects in the background.
    ///
    /// # Errors
    /// A mistake in the configuration: a role that the certificate does not hold, a UUID that is
    /// not the certificate's, a UUID directory that cannot be used, or an identity that TLS does
    /// not accept. Or the system cannot start a thread. No thread is left running.
    pub fn start(config: ClientConfig) -> Result<Self, ClientError> {
        let (core, events) = ClientCore::new(config)?;
        let client = Self {
            handle: core.handle(),
            events,
            threads: Mutex::default(),
        };
        #[cfg(feature = "issue")]
        if let Some(files) = core.state().config.renewed_in.clone() {
            let handle = client.handle();
            client.spawn("ssntp-renew", move || join::renew_until_closed(&handle, &files))?;
        }
        client.spawn("ssntp-client", move || client_thread::run(core))?;
        Ok(client)
    }

    /// Starts a thread that ends with the client.
    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), ClientError> {
        let thread = threads::spawn(name, run).map_err(|e| ClientError::Thread(Arc::new(e)))?;
        locked(&self.threads).push(thread);
        Ok(())
    }

    /// A handle for other threads.
    pub fn handle(&self) -> ClientHandle {
        self.handle.clone()
    }

    /// Waits for the next event. Does not wait after [`ClientEvent::Closed`].
    ///
    /// # Errors
    /// The reason why the client ended, once every event has been received.
    pub fn recv(&self) -> Result<ClientEvent, ClientError> {
        self.events.recv().map_err(|_| self.reason())
    }

    /// Waits for the next event for at most `limit`.
    ///
    /// # Errors
    /// [`RecvError::Empty`] if none arrived in time; [`RecvError::Ended`] as
    /// [`recv`](Self::recv).
    pub fn recv_timeout(&self, limit: Duration) -> Result<ClientEvent, RecvError> {
        self.events.recv_timeout(limit).map_err(|e| match e {
            RecvTimeoutError::Timeout => RecvError::Empty,
            RecvTimeoutError::Disconnected => RecvError::Ended(self.reason()),
        })
    }

    /// Returns the next event if one is waiting. Does not block.
    ///
    /// # Errors
    /// As [`recv_timeout`](Self::recv_timeout).
    pub fn try_recv(&self) -> Result<ClientEvent, RecvError> {
        // A wait of no time would give up the processor before it ends.
        self.events.try_recv().map_err(|e| match e {
            TryRecvError::Empty => RecvError::Empty,
            TryRecvError::Disconnected => RecvError::Ended(self.reason()),
        })
    }

    /// Iterates over the events until the client ends. Each step waits for the next event.
    pub fn iter(&self) -> impl Iterator<Item = ClientEvent> + '_ {
        self.events.iter()
    }

    /// The channel itself, for `crossbeam_channel::select!`. It is disconnected once the client
    /// has ended. A clone does not keep the client alive, and competes with the other receivers for
    /// events.
    pub fn events(&self) -> &Receiver<ClientEvent> {
        &self.events
    }

    /// Waits for the next frame and discards other events.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_frame(&self) -> Result<Frame, ClientError> {
        self.frames().next().ok_or_else(|| self.reason())
    }

    /// Waits for the next frame for at most `limit` and discards other events.
    ///
    /// # Errors
    /// As [`recv_timeout`](Self::recv_timeout).
    pub fn recv_frame_timeout(&self, limit: Duration) -> Result<Frame, RecvError> {
        let deadline = deadline(limit);
        loop {
            if let ClientEvent::Frame(frame) = self.recv_timeout(remaining(deadline))? {
                return Ok(frame);
            }
        }
    }

    /// Iterates over the frames until the client ends, and discards other events.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        self.events.iter().filter_map(ClientEvent::into_frame)
    }

    /// Ends the client and waits for its threads. Threads that wait for an event, for room or for an answer
    /// return at once. Frames in the session's queue are still sent, within the configured grace period, and
    /// the server receives close_notify. Frames that the server sends from now on are not received; events
    /// that already wait are. A second call does nothing.
    pub fn close(&self) {
        self.handle.close();
        // A second caller waits here until the threads have ended.
        for thread in locked(&self.threads).drain(..) {
            // A panic has been logged by the panic hook.
            let _ = thread.join();
        }
    }

    /// The reason why the client ended. It is set before the channel is disconnected.
    fn reason(&self) -> ClientError {
        self.handle.ended().unwrap_or(ClientError::Closed)
    }
}

/// Provides sending, requests, renewing, and the client's state.
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
