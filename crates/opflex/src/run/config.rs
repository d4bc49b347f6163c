//! What a server and an element are told before they begin.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{FileError, ManagedObject, ModelError, Schema};
use crate::rpc;
use crate::{policy_element, server};
use ssntp_engine::EngineError;
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::tls::{Acceptor, Connector, TlsError};
use ssntp_transport::{Address, Limits, Listener, TcpOptions, default_max_handshakes};

/// How a [`Server`](super::Server) runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// What it is and how it behaves.
    pub settings: server::Settings,
    /// The classes that it takes. Default any.
    pub schema: Option<Arc<Schema>>,
    /// Where it listens. Default nowhere.
    pub listen: Vec<Address>,
    /// Where it listens in this process, each with the address that elements
    /// know it by. Default nowhere.
    pub memory: Vec<(MemoryListener, String)>,
    /// TLS, on all of these. Default none.
    pub tls: Option<Acceptor>,
    /// The policy to begin with. Default none.
    pub policy: Vec<ManagedObject>,
    /// The file that policy is kept in, as JSON, so that a restart loses
    /// nothing. Where it is there, it is what the server begins with, in place
    /// of `policy`. Default none.
    pub keep: Option<PathBuf>,
    /// The Unix socket for [`Control`](super::Control). Whoever may open it may
    /// change policy: only the user of the server can. Default none.
    pub control: Option<PathBuf>,
    /// The Unix socket that agent-ovs's `gbp_inspect` sees the server through:
    /// its policy, its endpoints and what was reported. Default none.
    pub inspector: Option<LocalSocket>,
    /// How long and deep a message may be.
    pub limits: rpc::Limits,
    /// How much may wait for one client before it counts as too slow.
    pub queue: Limits,
    /// The most clients at a time; some control connections may come on top.
    /// Default what the system allows.
    pub max_connections: Option<usize>,
    /// TLS handshakes at a time. A system with tight limits gets fewer.
    /// Default [`default_max_handshakes`].
    pub max_handshakes: usize,
    /// How long a TLS handshake may take. Default 10 s.
    pub handshake_timeout: Duration,
    /// How long a client may take no byte of what is sent. Default 30 s.
    pub write_timeout: Duration,
    /// How long stopping waits for clients to take what is queued. Default
    /// 1.5 s.
    pub grace: Duration,
    /// Options of TCP connections.
    pub tcp: TcpOptions,
}

impl ServerConfig {
    /// A server that listens nowhere yet.
    pub fn new(settings: server::Settings) -> Self {
        Self {
            settings,
            schema: None,
            listen: Vec::new(),
            memory: Vec::new(),
            tls: None,
            policy: Vec::new(),
            keep: None,
            control: None,
            inspector: None,
            limits: rpc::Limits::default(),
            queue: Limits::default(),
            max_connections: None,
            max_handshakes: default_max_handshakes(),
            // A handshake holds one of few places, which newcomers wait for.
            handshake_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            // Service managers wait longer before they kill.
            grace: Duration::from_millis(1500),
            tcp: TcpOptions::default(),
        }
    }

    /// Listens at an address too.
    pub fn listen(mut self, address: Address) -> Self {
        self.listen.push(address);
        self
    }

    /// Listens in this process too; elements know the place as `address`.
    pub fn listen_in_memory(mut self, place: &MemoryListener, address: impl Into<String>) -> Self {
        self.memory.push((place.clone(), address.into()));
        self
    }

    /// Takes TLS only.
    pub fn tls(mut self, acceptor: Acceptor) -> Self {
        self.tls = Some(acceptor);
        self
    }

    /// Begins with this policy.
    pub fn policy(mut self, objects: Vec<ManagedObject>) -> Self {
        self.policy = objects;
        self
    }

    /// Keeps policy in this file.
    pub fn keep(mut self, path: impl Into<PathBuf>) -> Self {
        self.keep = Some(path.into());
        self
    }

    /// Takes changes of policy at this Unix socket.
    pub fn control(mut self, path: impl Into<PathBuf>) -> Self {
        self.control = Some(path.into());
        self
    }
}

/// How a [`PolicyElement`](super::PolicyElement) runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ElementConfig {
    /// What it is and how it behaves, its servers included. A server is
    /// `host:port` or `unix:PATH`.
    pub settings: policy_element::Settings,
    /// Servers in this process, by the address that others know them by.
    /// Default none.
    pub memory: BTreeMap<String, MemoryListener>,
    /// TLS with all servers. Default none.
    pub tls: Option<Connector>,
    /// The name that servers' certificates have to hold. Default the host that
    /// is dialled.
    pub server_name: Option<String>,
    /// How long and deep a message may be.
    pub limits: rpc::Limits,
    /// How much may wait for one server.
    pub queue: Limits,
    /// The Unix socket that agent-ovs's `gbp_inspect` sees the element through:
    /// what it has resolved, declares and reports. Default none.
    pub inspector: Option<LocalSocket>,
    /// The Unix socket where programs on this host get what is resolved and
    /// its changes, as lines of JSON. Default none.
    pub serve: Option<LocalSocket>,
    /// Bytes of lines that may wait there for all programs together; beyond, the slowest is let
    /// go. Default 32 MiB: an edit of all that a large policy has is some ten megabytes.
    pub serve_queue: usize,
    /// The policy that a resolve brings as long as no server has answered it.
    /// Default none.
    pub start_policy: Vec<ManagedObject>,
    /// Events that may wait to be taken. Default 16,384.
    pub events: usize,
    /// How long a server may take no byte of what is sent. Default 30 s.
    pub write_timeout: Duration,
    /// How long stopping waits for servers to take what is queued. Default 1 s.
    pub grace: Duration,
    /// Options of TCP connections.
    pub tcp: TcpOptions,
}

impl ElementConfig {
    /// An element with the servers that its settings name.
    pub fn new(settings: policy_element::Settings) -> Self {
        Self {
            settings,
            memory: BTreeMap::new(),
            tls: None,
            server_name: None,
            // Its servers are few and chosen, and may have a large policy.
            limits: rpc::Limits {
                memory: usize::MAX,
                ..rpc::Limits::default()
            },
            queue: Limits::default(),
            inspector: None,
            serve: None,
            serve_queue: 32 << 20,
            start_policy: Vec::new(),
            events: 16_384,
            write_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(1),
            tcp: TcpOptions::default(),
        }
    }

    /// Finds the server with this address in this process.
    pub fn connect_in_memory(mut self, address: impl Into<String>, place: &MemoryListener) -> Self {
        self.memory.insert(address.into(), place.clone());
        self
    }

    /// Speaks TLS only.
    pub fn tls(mut self, connector: Connector) -> Self {
        self.tls = Some(connector);
        self
    }
}

/// A Unix socket to listen at. A file that a killed process left there is
/// replaced, and the file goes when whoever listens stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSocket {
    /// Its file.
    pub path: PathBuf,
    /// The permissions of the file. Default 0600: the own user alone.
    pub mode: u32,
}

impl LocalSocket {
    /// A socket for the own user.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { path, mode: 0o600 }
    }

    /// For the group of the file as well.
    pub fn for_group(mut self) -> Self {
        self.mode = 0o660;
        self
    }

    pub(super) fn listen(&self) -> Result<Vec<Listener>, StartError> {
        let address = Address::Unix(self.path.clone());
        let failed = |e| StartError::Listen(address.clone(), e);
        let bound = Listener::bind(&address, TcpOptions::default()).map_err(failed)?;
        // A program can connect only after the file has these permissions, since nothing accepts yet.
        fs::set_permissions(&self.path, fs::Permissions::from_mode(self.mode)).map_err(failed)?;
        Ok(bound)
    }
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address can't be listened at: in use, not permitted, no such host.
    #[error("cannot listen at {0}: {1}")]
    Listen(Address, #[source] io::Error),
    /// The system gives no more threads.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// More clients were asked for than the system allows, or it allows none,
    /// and why.
    #[error("{0}")]
    TooManyConnections(String),
    /// A server to connect to is not `host:port`, or `unix:PATH`.
    #[error("{0:?} is not HOST:PORT or unix:PATH")]
    Address(String),
    /// The file that policy is kept in can't be read or written.
    #[error("{path}: {1}", path = .0.display())]
    Keep(PathBuf, #[source] io::Error),
    /// The file that policy is kept in holds something else.
    #[error("{path}: {1}", path = .0.display())]
    Kept(PathBuf, #[source] FileError),
    /// The policy to begin with is no policy.
    #[error("policy: {0}")]
    Policy(#[source] ModelError),
    /// The engine did not take the server in, or the policy of the cluster cannot be used here.
    #[error("cannot join: {0}")]
    Join(#[source] CallError),
}

/// Why a call on a handle was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server or element has stopped, or the call panicked.
    #[error("it has stopped")]
    Stopped,
    /// What is to replace TLS may not: a revocation list is older than the one in force.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The call was made from inside another one, whose end it would wait for.
    #[error("a call inside a call")]
    OnDispatcher,
    /// The objects are not what the model allows. Nothing was changed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The policy is changed, but could not be written to its file.
    #[error("policy is changed, but not kept: {0}")]
    Keep(#[source] io::Error),
    /// The policy is not the one that was to be changed. Nothing was changed.
    #[error("policy has changed: its revision is {is}, not {wanted}")]
    Revision {
        /// The revision that it was to have.
        wanted: u64,
        /// The one that it has.
        is: u64,
    },
    /// The engine that keeps the policy of several servers did not take the change. After
    /// [`EngineError::Away`] it is open whether it was made.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine's document with the policy of the cluster cannot be read. A reload replaces it.
    #[error("the policy of the cluster: {0}")]
    Document(#[source] FileError),
}
