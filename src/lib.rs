//! Simple and Secure Node Transfer Protocol: framed control-plane messaging
//! over mutual TLS, with roles proved by certificates, synchronous and
//! without an async runtime.
//!
//! A server and two clients in one process, over memory and with throw-away
//! certificates; with addresses and files it is the same code:
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
//! let place = MemoryListener::new();
//!
//! // Statistics of agents go to every controller.
//! let config = ServerConfig::new(identity(Role::SERVER)?, authority.trust())
//!     .listen_in_memory(&place)
//!     .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER));
//! let server = Server::start(config, ())?;
//!
//! let connect = |role| -> Result<Client, Box<dyn std::error::Error>> {
//!     let config = ClientConfig::new(identity(role)?, authority.trust());
//!     Ok(Client::connect(config.connect_in_memory(&place))?)
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
//! | module | what it is |
//! |---|---|
//! | [`proto`] | the protocol without I/O: frames, codec, handshake |
//! | [`payload`] | the YAML payloads as types |
//! | [`pki`] | certificates with roles: read, check, issue |
//! | [`transport`] | byte streams, TLS split by direction, two threads a connection |
//! | [`server`] | accepts, proves roles, filters, routes, tells an application |
//! | [`client`] | connects, reconnects, sends and receives |
#![cfg_attr(
    feature = "cluster",
    doc = "| [`cluster`] | the entities of a small cloud on top |"
)]
#![cfg_attr(
    feature = "opflex",
    doc = "| [`opflex`] | the OpFlex control protocol, beside SSNTP on the same transport |"
)]
#![cfg_attr(
    feature = "admin",
    doc = "| [`admin`] | pages about a running process over HTTP, metrics among them |"
)]
#![cfg_attr(
    feature = "testkit",
    doc = "| [`testkit`] | for tests of programs that embed this crate |"
)]
//!
//! Who may use whom goes one way only; see `docs/architecture.md`.
//!
//! What nearly every program names is at the root, with the foreign types that
//! appear in signatures: [`Uuid`], [`Bytes`], [`Receiver`], and their crates with
//! [`rustls`] for the rest. [`Event`] is the protocol's EVENT, beside
//! [`Command`], [`Status`] and [`ErrorCode`]; what a client tells its program is
//! a [`ClientEvent`](client::ClientEvent).
//!
//! # Out of scope
//!
//! Delivery guarantees beyond the connection, storage of frames, discovery
//! other than by the names in a CA certificate, and anything async: calls
//! block, and each says for how long.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `aws-lc-rs` | yes | cryptography by aws-lc-rs |
//! | `ring` | no | cryptography by ring; used where `aws-lc-rs` is off |
//! | `admin` | with `cli` | the module `admin`: metrics, health and sessions over HTTP |
//! | `cluster` | with `cli`, `cli-agent` | the module `cluster`: scheduler, agent, controller |
//! | `issue` | with `cli` | making certificates: `pki::Authority` |
//! | `opflex` | yes | the module `opflex` |
//! | `testkit` | yes | the module `testkit`, for tests of programs that embed this crate |
//! | `json` | with `opflex`, `cli` | JSON as payloads of an application's own frames |
//! | `cli` | yes | the `ssntp` program |
//! | `cli-agent` | with `cli` | the `ssntp` program; alone, with nothing but its agent |
//!
//! `--no-default-features --features ring` (or `aws-lc-rs`) is the small
//! library for embedding. With neither, everything compiles, and whatever
//! needs TLS answers that no cryptography was compiled in.
//!
//! # Threads
//!
//! A server has one thread for each listening socket, one dispatcher, a
//! bounded number for handshakes, and two for each session. A client has a
//! supervisor, and two while a session stands. Every thread has a name and is
//! joined by its owner.
//!
//! # Log targets
//!
//! `ssntp::server`, `ssntp::client` and `ssntp::scheduler`, through the `log`
//! crate, with UUID and role of the session in each line. Connections come and go at `info`,
//! what an operator should see is `warn`. Of each kind of line that a peer can
//! cause in the roles of a cluster and in OpFlex's core it gets five, then one
//! a minute with the count of those left out; its texts are cut and escaped.

// On docs.rs each item says which feature it needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod client;
pub mod payload;
pub mod proto;
mod request;
pub mod server;
#[cfg(feature = "issue")]
pub mod testkit;
mod wire;

pub use client::{Client, ClientConfig, ClientHandle};
pub use proto::{Command, ErrorCode, Event, Frame, Status};
pub use server::{Server, ServerConfig};

/// Where to listen and connect, TLS, limits of queues, and networks in memory: what an
/// embedder needs of the crate `ssntp-transport`.
pub mod transport {
    pub use ssntp_transport::memory;
    pub use ssntp_transport::tls;
    pub use ssntp_transport::{
        Address, AddressError, BudgetFigures, DEFAULT_PORT, DispatcherFigures, KeepAlive, Limits,
        PeerAddress, ProcessFigures, TcpOptions, default_max_handshakes,
    };
}
pub use ssntp_transport::pki;
pub use ssntp_transport::{Histogram, ParseRoleError, Role};

// Types of other crates that appear in signatures here, so that whoever uses
// them need not find out the version.
pub use bytes::{self, Bytes};
pub use crossbeam_channel::{self, Receiver};
pub use rustls;
pub use serde_json;
pub use uuid::{self, Uuid};

/// Compiles what README.md shows.
#[cfg(all(doctest, feature = "issue"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles and runs what the pages of docs/book show.
#[cfg(all(doctest, feature = "issue"))]
mod book {
    macro_rules! pages {
        ($($name:ident = $page:literal,)*) => {$(
            #[doc = include_str!($page)]
            struct $name;
        )*};
    }

    pages! {
        AClient = "../docs/book/client.md",
        AServer = "../docs/book/server.md",
        OwnFrames = "../docs/book/own-frames.md",
        Testing = "../docs/book/testing.md",
        Errors = "../docs/book/errors.md",
        Limits = "../docs/book/limits.md",
        UnderSystemd = "../docs/book/systemd.md",
        Security = "../docs/book/security.md",
    }
}
