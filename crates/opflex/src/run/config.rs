//! The configuration of servers and elements, and the errors of starting and calling them.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{FileError, ManagedObject, ModelError, Schema};
use crate::{policy_element, rpc, server};
use ssntp_engine::EngineError;
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::tls::{Acceptor, Connector, TlsError};
use ssntp_transport::{Address, Limits, Listener, TcpOptions, default_max_handshakes, setters};

/// The target of the log lines of a server.
pub(super) const SERVER_LOG: &str = "ssntp_opflex::server";
/// The target of the log lines of an element.
pub(super) const ELEMENT_LOG: &str = "ssntp_opflex::policy_element";

/// The configuration of a [`Server`](super::Server).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The name and the behaviour of the server.
    pub settings: server::ServerSettings,
    /// The model: the classes of objects that it accepts. Default any class.
    pub schema: Option<Arc<Schema>>,
    /// The addresses at which it listens. Default none.
    pub listen: Vec<Address>,
    /// The listeners in memory, for elements of this process, each with the address that
    /// elements use for it. Default none.
    pub memory: Vec<(MemoryListener, String)>,
    /// TLS for all of these listeners. Default none.
    pub tls: Option<Acceptor>,
    /// The policy at the start. Default none.
    pub policy: Vec<ManagedObject>,
    /// The file in which policy is kept, as JSON, so that it survives a restart. If the file
    /// exists, the server starts with its policy, and `policy` is ignored. Default none.
    pub keep: Option<PathBuf>,
    /// The Unix socket for [`Control`](super::Control). A program that can open it can change
    /// policy, so only programs of the server's own user can. Default none.
    pub control: Option<PathBuf>,
    /// The Unix socket where agent-ovs's `gbp_inspect` reads the policy, the endpoints and the
    /// reported objects. Default none.
    pub inspector: Option<LocalSocket>,
    /// The limits of a message.
    pub limits: rpc::Limits,
    /// The limits of the queue of one client. A client whose queue is full is disconnected as too
    /// slow.
    pub queue: Limits,
    /// The maximum number of clients at a time, without control connections. Default as many as the system
    /// allows.
    pub max_connections: Option<usize>,
    /// The maximum number of TLS handshakes at a time. If the system's limits are tight, fewer are used.
    /// Default [`default_max_handshakes`].
    pub max_handshakes: usize,
    /// The time limit of a TLS handshake. Default 10 s.
    pub handshake_timeout: Duration,
    /// A client that receives no byte for this time is disconnected. Default 30 s.
    pub write_timeout: Duration,
    /// The time in which a stop sends the queues to clients. Default 1.5 s.
    pub grace: Duration,
}

impl ServerConfig {
    /// The configuration of a server without listeners.
    pub fn new(settings: server::ServerSettings) -> Self {
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
            // The number of handshakes is limited, so a slow one delays newcomers.
            handshake_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            // Shorter than the time after which service managers kill a process.
            grace: Duration::from_millis(1500),
        }
    }

    /// Adds an address to listen at.
    pub fn listen(mut self, address: Address) -> Self {
        self.listen.push(address);
        self
    }

    /// Adds a listener in memory, whose address for elements is `address`.
    pub fn listen_in_memory(mut self, place: &MemoryListener, address: impl Into<String>) -> Self {
        self.memory.push((place.clone(), address.into()));
        self
    }

    setters! {
        /// Accepts only clients that use TLS.
        tls: Acceptor;

        /// Sets the policy at the start.
        policy: Vec<ManagedObject>;

        /// Keeps policy in this file.
        keep as Some: impl Into<PathBuf>;

        /// Opens a control socket at this path.
        control as Some: impl Into<PathBuf>;
    }
}

/// The configuration of a [`PolicyElement`](super::PolicyElement).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ElementConfig {
    /// The name, the servers and the behaviour of the element. A server is `host:port` or
    /// `unix:PATH`.
    pub settings: policy_element::ElementSettings,
    /// Servers of this process that are reached in memory, by their addresses. Default none.
    pub memory: BTreeMap<String, MemoryListener>,
    /// TLS for the connections to all servers. Default none.
    pub tls: Option<Connector>,
    /// The name that must be in the certificates of servers. Default the host that is dialled.
    pub server_name: Option<String>,
    /// The limits of a message.
    pub limits: rpc::Limits,
    /// The limits of the queue of one server.
    pub queue: Limits,
    /// The Unix socket where agent-ovs's `gbp_inspect` reads the objects that the element has
    /// resolved, declares and reports. Default none.
    pub inspector: Option<LocalSocket>,
    /// The Unix socket where programs on this host read the resolved objects and their changes,
    /// as lines of JSON. Default none.
    pub serve: Option<LocalSocket>,
    /// The maximum number of bytes of queued lines for all these programs together. Beyond that the slowest
    /// program is disconnected. Default 32 MiB, because an edit of a whole large policy takes some ten
    /// megabytes.
    pub serve_queue: usize,
    /// The policy that is used for a resolve until a server has answered it. Default none.
    pub start_policy: Vec<ManagedObject>,
    /// The maximum number of queued events for the application. Their objects may take 256 MiB of
    /// memory. Default 16,384.
    pub events: usize,
    /// A server that receives no byte for this time is disconnected. Default 30 s.
    pub write_timeout: Duration,
    /// The time in which a stop sends the queues to servers. Default 1 s.
    pub grace: Duration,
}

impl ElementConfig {
    /// The configuration of an element with the servers of its settings.
    pub fn new(settings: policy_element::ElementSettings) -> Self {
        Self {
            settings,
            memory: BTreeMap::new(),
            tls: None,
            server_name: None,
            // Servers are trusted, and may have a large policy.
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
        }
    }

    /// Sets the listener in memory of the server with this address.
    pub fn connect_in_memory(mut self, address: impl Into<String>, place: &MemoryListener) -> Self {
        self.memory.insert(address.into(), place.clone());
        self
    }

    setters! {
        /// Uses TLS with all servers.
        tls: Connector;
    }
}

/// A Unix socket for programs on the same host. The file of a process that was killed is replaced.
/// The file is removed when the server or element stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSocket {
    /// The file of the socket.
    pub path: PathBuf,
    /// Lets the group of the file open it as well as the process's own user. Default false.
    pub for_group: bool,
}

impl LocalSocket {
    /// A socket that only the process's own user can open.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let for_group = false;
        Self { path, for_group }
    }

    pub(super) fn listen(&self) -> Result<Vec<Listener>, StartError> {
        let address = Address::Unix(self.path.clone());
        let mode = if self.for_group { 0o660 } else { 0o600 };
        let bound = Listener::bind_with_mode(&address, TcpOptions::default(), Some(mode));
        bound.map_err(|e| StartError::Listen(address, e))
    }
}

/// The reason for which a server or an element was not started. No thread is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Listening failed: the address is in use or not permitted, or the host is unknown.
    #[error("cannot listen at {0}: {1}")]
    Listen(Address, #[source] io::Error),
    /// The system could not start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The system allows fewer clients than the configuration requires. The text has the limit.
    #[error("{0}")]
    TooManyConnections(String),
    /// The address of a server is not `host:port` or `unix:PATH`.
    #[error("{0:?} is not HOST:PORT or unix:PATH")]
    Address(String),
    /// The file in which policy is kept, or its journal, can't be read.
    #[error("cannot read the kept policy {path}: {1}", path = .0.display())]
    Keep(PathBuf, #[source] io::Error),
    /// The file in which policy is kept does not contain a policy.
    #[error("the kept policy {path} is malformed: {1}", path = .0.display())]
    Kept(PathBuf, #[source] FileError),
    /// The kept policy contradicts itself, or the model does not allow it.
    #[error("the kept policy {path} is refused: {1}", path = .0.display())]
    KeptPolicy(PathBuf, #[source] ModelError),
    /// The policy of the configuration is malformed, or the model does not allow it.
    #[error("policy: {0}")]
    Policy(#[source] ModelError),
    /// The engine refused the server, or the policy of the cluster cannot be used here.
    #[error("cannot join: {0}")]
    Join(#[source] CallError),
}

/// The reason for which a call on a handle failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server or element has stopped, or the call panicked.
    #[error("the server or element has stopped")]
    Stopped,
    /// TLS was not replaced: a revocation list is older than the one in force.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The call was made on the dispatcher, inside another call, and would wait for itself.
    #[error("the call was made inside another call")]
    OnDispatcher,
    /// The objects do not fit the model. The policy is unchanged, except by the first objects of an edit that is so
    /// long that it is made in pieces.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The policy was changed, but it could not be written to its file.
    #[error("policy is changed, but not kept: {0}")]
    Keep(#[source] io::Error),
    /// The edit was made for another revision of the policy. The policy is unchanged.
    #[error("policy has changed: its revision is {is}, not {wanted}")]
    Revision {
        /// The revision that the edit was made for.
        wanted: u64,
        /// The revision that the policy has.
        is: u64,
    },
    /// The engine that keeps the policy of several servers did not accept the change. After an
    /// [unknown](EngineError::is_unknown) outcome the change may have been made.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine's document with the policy of the cluster is malformed. A reload replaces it.
    #[error("the policy of the cluster: {0}")]
    Document(#[source] FileError),
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn only_the_own_user_can_open_a_local_socket_unless_the_group_is_let() {
        let dir = tempfile::tempdir().unwrap();
        let own = LocalSocket::new(dir.path().join("socket"));
        let for_group = LocalSocket {
            for_group: true,
            ..own.clone()
        };
        for (socket, mode) in [(own, 0o600), (for_group, 0o660)] {
            let _listeners = socket.listen().unwrap();
            assert_eq!(std::fs::metadata(&socket.path).unwrap().mode() & 0o777, mode);
        }
    }
}
