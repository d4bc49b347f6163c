//! Simple and Secure Node Transfer Protocol: framed control-plane messaging
//! over mutual TLS, with roles certified by certificates, synchronous and
//! without an async runtime.
//!
//! A server and two clients in one process, over memory and with throw-away
//! certificates. With addresses and files the code is the same:
//!
//! ```
//! # #[cfg(feature = "issue")] {
//! use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
//! use ssntp::server::Rules;
//! use ssntp::transport::memory::MemoryListener;
//! use ssntp::{Client, ClientConfig, Command, Frame, Role, Server, ServerConfig};
//!
//! let authority = Authority::new(&AuthorityRequest::default())?;
//! let identity = |role| authority.issue(&CertificateRequest::new(role)).map(|i| i.identity());
//! let network = MemoryListener::new();
//!
//! // Statistics of agents go to every controller.
//! let config = ServerConfig::new(identity(Role::SERVER)?, authority.trust())
//!     .listen_in_memory(&network)
//!     .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER));
//! let server = Server::start(config, ())?;
//!
//! let connect = |role| -> Result<Client, Box<dyn std::error::Error>> {
//!     let config = ClientConfig::new(identity(role)?, authority.trust());
//!     Ok(Client::connect(config.connect_in_memory(&network))?)
//! };
//! let (controller, agent) = (connect(Role::CONTROLLER)?, connect(Role::AGENT)?);
//! agent.send(Frame::with_payload(Command::STATS, "load: 1\n"))?;
//! assert_eq!(controller.recv_frame()?.payload_bytes()[..], *b"load: 1\n");
//! server.stop();
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layers
//!
//! [`book`] has a short page for each task.
//!
//! | module | what it is |
//! |---|---|
//! | [`pki`], [`transport`] | certificates with roles; addresses, TLS, limits of queues |
//! | [`proto`] | the protocol without I/O: frames, codec, handshake |
//! | [`payload`] | the YAML payloads as types |
//! | [`server`] | accepts clients, verifies roles, filters, routes, and calls an application |
//! | [`client`] | connects, reconnects, sends and receives |
//! | `testkit` | certificates, servers and handlers for tests, with the feature `issue` |
//!
//! The root exports the types that nearly every program needs, and the types of other crates that appear
//! in signatures: [`Uuid`], [`Bytes`], and the channels of [`crossbeam_channel`]. [`Event`] is an operand of
//! the protocol like [`Command`], [`Status`] and [`ErrorCode`]. The events of a client are
//! [`ClientEvent`](client::ClientEvent).
//!
//! # Out of scope
//!
//! Delivery guarantees beyond the connection, storage of frames, discovery other than by the
//! names in a CA certificate, and async. Calls block; their documentation says for how long.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `aws-lc-rs` | yes | cryptography by aws-lc-rs |
//! | `ring` | no | cryptography by ring, if `aws-lc-rs` is off |
//! | `issue` | no | making certificates, `pki::Authority`, and the module `testkit` |
//!
//! Without `aws-lc-rs` and `ring` the crate compiles, and each use of TLS returns the error that no
//! cryptography was compiled in.
//!
//! # Threads
//!
//! A server has one thread for each listening socket, one dispatcher, a bounded number of threads for
//! handshakes, and two for each session. A client has one thread, and two more during a
//! session. Every thread has a name and is joined by its owner. docs/threads.md lists them with their
//! queues.
//!
//! # Log targets
//!
//! `ssntp::server` and `ssntp::client`, through the `log` crate, with UUID and role of the
//! session in each line. The beginning and end of connections is logged at `info`; `warn` is for the
//! operator. Text that a peer has sent is cut and escaped. Each kind of line that a peer can cause is
//! logged five times, then once a minute with the number of lines that were left out.

// On docs.rs each item shows the feature that it needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs)]

// Documentation alone. Its code is compiled and run as tests, which make certificates.
#[cfg(any(all(doc, not(doctest)), all(doctest, feature = "issue")))]
pub mod book;
pub mod client;
mod jitter;
#[cfg(feature = "issue")]
mod join;
pub mod payload;
pub mod proto;
mod request;
pub mod server;
mod silence;
#[doc(hidden)]
pub mod simulation;
#[cfg(feature = "issue")]
pub mod testkit;
mod wire;

pub use client::{Client, ClientConfig, ClientHandle};
pub use proto::{Command, ErrorCode, Event, Frame, Status};
pub use request::{Request, RequestError};
pub use server::{Server, ServerConfig};

/// Any error, for the result of `main`. Rust prints it by [`Debug`](std::fmt::Debug), which is the plain
/// text here.
///
/// ```no_run
/// fn main() -> Result<(), ssntp::MainError> {
///     let trust = ssntp::pki::Trust::load("ca.pem")?; // Error: ca.pem: …
///     Ok(())
/// }
/// ```
pub struct MainError(Box<dyn std::error::Error>);

impl<E: Into<Box<dyn std::error::Error>>> From<E> for MainError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl std::fmt::Debug for MainError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

/// Addresses, TLS, limits of queues, and networks in memory: the part of the crate
/// `ssntp-transport` that an embedder needs.
pub mod transport {
    pub use ssntp_transport::memory;
    pub use ssntp_transport::tls::{CertificateFault, TlsError};
    pub use ssntp_transport::{
        Address, AddressError, BudgetFigures, DispatcherFigures, Limits, PeerAddress, ProcessFigures, Target,
        TcpOptions, now,
    };
}
pub use ssntp_pki as pki;
pub use ssntp_pki::Role;
pub use ssntp_transport::Histogram;

// Exported because their types appear in signatures, so that a program can use the same versions.
pub use bytes::{self, Bytes};
pub use crossbeam_channel;
pub use rustls;
pub use uuid::{self, Uuid};

// The code that README.md shows is compiled and run as tests.
#[cfg(all(doctest, feature = "issue"))]
#[doc = include_str!("../README.md")]
struct Readme;
