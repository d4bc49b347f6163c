//! A small HTTP/1.1: a server, in clear for clients on this host and over mutual TLS for others, and a
//! [`client`] for JSON.
//!
//! ```text
//!  client ─▶ NAME-shake ── Request ──▶ Service ── Reply ──▶ an answer
//!            32 at most                             │
//!                                                   └─▶ NAME-stream ─▶ parts
//!                                                       as many as the service says
//! ```
//!
//! A [`Service`] makes the answers. The server takes one request a connection, and enforces these limits:
//!
//! | limit | value | at the limit |
//! |---|---|---|
//! | connections | 32 | the one that has waited longest for its client, and for at least 20 ms, is closed |
//! | the head of a request | 8 KiB, 64 headers, 2 s with the TLS handshake | 431, 400, or the connection ends |
//! | the body of a request | [`Limits::body`], 10 s | 413, or the connection ends |
//! | requests of a connection | one | it ends with its answer |
//! | an answer | 10 s | the connection ends |
//! | streams | [`Limits::streams`] | 503 |
//! | a part of a stream | 10 s | the stream ends |
//!
//! The client has the same limits for the head of an answer, and takes a limit for its body.
//!
//! | file | holds |
//! |---|---|
//! | `client` | [`client::Connection`] and its answers |
//! | `config` | [`HttpConfig`], [`HttpError`] |
//! | `message` | [`Request`], [`Answer`], [`Refused`] |
//! | `connection` | one connection, from its TLS handshake to its end |
//! | `streams` | [`Stream`], and the answers that are streams |
//! | `limited` | a byte stream with a deadline |

pub mod client;
mod config;
mod connection;
mod limited;
mod message;
mod streams;

use std::sync::{Arc, Mutex};

pub use self::config::{HttpConfig, HttpError};
use self::connection::Door;
pub use self::message::{Answer, JSON, Limits, Refused, Request};
use self::streams::Streams;
pub use self::streams::{Body, Stream};
use ssntp_pki::{Identity, Trust};
use ssntp_transport::slots::BRIEF;
use ssntp_transport::tls::Acceptor;
use ssntp_transport::{Acceptance, Address, BufferPool, Newcomer, locked};

/// The maximum number of connections at a time. Each has a thread, and an answer that is mostly below a
/// hundred KiB; a scrape takes some milliseconds.
const CONNECTIONS: usize = 32;

/// Makes the answers. It is called on the threads of the connections, at most 32.
pub trait Service: Send + Sync + 'static {
    /// The supported methods, and the limits of bodies and streams.
    fn limits(&self) -> Limits;

    /// Answers a request. It may block, but for a few seconds at most.
    fn reply(&self, request: &Request) -> Reply;
}

/// The reply to a request.
pub enum Reply {
    /// An answer.
    Whole(Answer),
    /// A stream: the head of this answer, followed by the parts that a function sends.
    Parts(Answer, Body),
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Whole(answer) | Self::Parts(answer, _)) = self;
        answer.fmt(f)
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self::Whole(answer)
    }
}

/// A service at its addresses.
///
/// # Threads
/// It owns its threads: one that accepts at each address, one for each connection, and one for
/// each stream. Dropping it ends all of them, and waits for calls of the service that are under way.
#[derive(Debug)]
pub struct Http {
    addresses: Vec<Address>,
    acceptor: Arc<Mutex<Option<Acceptor>>>,
    acceptance: Option<Acceptance>,
    streams: Arc<Streams>,
}

impl Http {
    /// Binds the address and serves from then on. `name` is the prefix of the names of the threads,
    /// and `log` the target of the log lines.
    ///
    /// # Errors
    /// [`HttpError`]; no thread is left running.
    pub fn start(
        config: &HttpConfig,
        name: &'static str,
        log: &'static str,
        service: Arc<impl Service>,
    ) -> Result<Self, HttpError> {
        // The addresses are bound first, so that an error leaves no thread behind.
        let (listeners, doors) = config.listen()?;
        let addresses = listeners.iter().filter_map(|l| l.local_address()).collect();
        let acceptor = config.tls.as_ref().map(|(i, t)| acceptor(i, t)).transpose()?;
        let acceptor = Arc::new(Mutex::new(acceptor));
        let limits = service.limits();
        let streams = Arc::new(Streams::new(name, limits.streams));
        let door = Door {
            local: doors,
            acceptor: Arc::clone(&acceptor),
            roles: config.roles,
            hosts: config.allowed_hosts(),
            limits,
            service,
            streams: Arc::clone(&streams),
            pool: BufferPool::new(),
            target: log,
            lines: Mutex::default(),
        };
        let serve = Box::new(move |newcomer: &Arc<Newcomer>| door.serve(newcomer));
        let acceptance = Acceptance::start(listeners, name, log, CONNECTIONS, BRIEF, serve);
        Ok(Self {
            addresses,
            acceptor,
            acceptance: Some(acceptance.map_err(HttpError::Thread)?),
            streams,
        })
    }

    /// The bound addresses, with the port that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The beginning of each page's address: `http://127.0.0.1:9100`, `unix:/run/s.sock`.
    pub fn urls(&self) -> Vec<String> {
        let url = |address: &Address| match address {
            Address::Unix(_) => address.to_string(),
            _ if address.is_local() => format!("http://{address}"),
            _ => format!("https://{address}"),
        };
        self.addresses.iter().map(url).collect()
    }

    /// Replaces the certificate and the authorities for new connections.
    /// Has no effect if it was started without TLS.
    ///
    /// # Errors
    /// [`HttpError::Tls`]; the present ones stay in use.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), HttpError> {
        let new = acceptor(identity, trust)?;
        let mut current = locked(&self.acceptor);
        if let Some(current) = &mut *current {
            *current = new;
        }
        Ok(())
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        // The connections are ended first, because each of them may still begin a stream.
        if let Some(acceptance) = self.acceptance.take() {
            acceptance.stop();
        }
        self.streams.stop();
    }
}

fn acceptor(identity: &Identity, trust: &Trust) -> Result<Acceptor, HttpError> {
    trust.acceptor(identity).map_err(HttpError::Tls)
}
