//! What a server is built from.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::admission::AdmissionPolicy;
use super::credentials::{Credentials, InForce};
use super::federation::{Federation, Joins, LINK_PROTOCOL, SESSION_PROTOCOL};
use super::filter::Filter;
use super::held::Held;
use super::routing::{RuleError, Rules};
use super::tally::HandshakeTally;
use crate::proto::{DEFAULT_MAX_PAYLOAD, Operands};
use ssntp_transport::LogLimit;
use ssntp_transport::Role;
use ssntp_transport::dispatch::Settings;
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::pki::{Identity, Trust};
use ssntp_transport::setters;
use ssntp_transport::tls::{Acceptor, TlsError};
use ssntp_transport::{
    Address, Budget, Limits, PATIENCE, TcpOptions, default_max_handshakes, memory_for_queues,
};

/// What happens to a session whose queue is full. It concerns that session
/// alone, and is counted and logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowConsumer {
    /// The session ends.
    #[default]
    Disconnect,
    /// The frame that does not fit is dropped.
    DropNewest,
    /// Waiting frames are dropped, oldest first, until it fits.
    DropOldest,
}

/// Checks a CONFIGURE payload; the text says what is wrong with it.
pub type ConfigurationCheck = dyn Fn(&[u8]) -> Result<(), String> + Send;

/// What a [`Server`](super::Server) is built from.
///
/// ```no_run
/// use ssntp::pki::{Identity, Trust};
/// use ssntp::proto::Command;
/// use ssntp::server::{Filter, Rules, ServerConfig};
/// use ssntp::Role;
///
/// let config = ServerConfig::new(Identity::load("server.pem")?, Trust::load("ca.pem")?)
///     .listen("0.0.0.0:8888".parse()?)
///     .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
///     .filter(Filter::spec());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ServerConfig {
    pub(super) identity: Identity,
    pub(super) trust: Trust,
    pub(super) uuid: Uuid,
    pub(super) role: Role,
    pub(super) listen: Vec<Address>,
    pub(super) memory: Vec<MemoryListener>,
    pub(super) rules: Rules,
    pub(super) filter: Filter,
    pub(super) configuration: Bytes,
    pub(super) configuration_check: Box<ConfigurationCheck>,
    pub(super) takes_configure: bool,
    pub(super) tracing: bool,
    pub(super) resumption: bool,
    pub(super) outlive_certificates: bool,
    pub(super) max_payload: u32,
    pub(super) operands: Operands,
    pub(crate) max_sessions: Option<usize>,
    pub(super) admission: AdmissionPolicy,
    pub(super) operators: Role,
    pub(super) max_handshakes: usize,
    pub(super) handshake_timeout: Duration,
    pub(super) queue: Limits,
    pub(super) slow_consumer: SlowConsumer,
    pub(super) write_timeout: Duration,
    pub(super) tcp: TcpOptions,
    pub(super) held: Held,
    pub(super) grace: Duration,
    pub(super) queue_budget: Option<u64>,
    pub(super) patience: Duration,
    pub(super) federation: Option<Federation>,
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig")
            .field("uuid", &self.uuid)
            .field("role", &self.role)
            .field("listen", &self.listen)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl ServerConfig {
    /// The defaults for a server with this identity that accepts clients of
    /// this trust. It listens nowhere yet.
    pub fn new(identity: Identity, trust: Trust) -> Self {
        Self {
            uuid: identity.uuid().unwrap_or_else(Uuid::new_v4),
            role: identity.roles(),
            identity,
            trust,
            listen: Vec::new(),
            memory: Vec::new(),
            rules: Rules::new(),
            filter: Filter::allow_all(),
            configuration: Bytes::new(),
            configuration_check: Box::new(is_text),
            takes_configure: true,
            tracing: true,
            resumption: true,
            outlive_certificates: false,
            max_payload: DEFAULT_MAX_PAYLOAD,
            operands: Operands::new(),
            max_sessions: None,
            admission: AdmissionPolicy::default(),
            operators: Role::NONE,
            max_handshakes: default_max_handshakes(),
            handshake_timeout: Duration::from_secs(10),
            queue: Limits::default(),
            slow_consumer: SlowConsumer::default(),
            write_timeout: Duration::from_secs(30),
            tcp: TcpOptions::default(),
            held: Held::new(1024, 16 << 20, Duration::from_secs(60)),
            grace: Duration::from_secs(1),
            queue_budget: None,
            patience: PATIENCE,
            federation: None,
        }
    }

    /// Adds an address to listen at. Default: none.
    #[must_use]
    pub fn listen(mut self, address: Address) -> Self {
        self.listen.push(address);
        self
    }

    /// Adds a place where in-memory clients connect; they speak TLS as well.
    #[must_use]
    pub fn listen_in_memory(mut self, listener: &MemoryListener) -> Self {
        self.memory.push(listener.clone());
        self
    }

    /// Checks a controller's CONFIGURE before it replaces the configuration;
    /// one that fails goes back as InvalidConfiguration and is not forwarded.
    /// Runs on the dispatcher. Default: it has to be UTF-8 and not empty.
    #[must_use]
    pub fn configuration_check(
        mut self,
        check: impl Fn(&[u8]) -> Result<(), String> + Send + 'static,
    ) -> Self {
        self.configuration_check = Box::new(check);
        self
    }

    /// Links the server with others, so that they act as one. Default: it takes no links and
    /// dials nobody.
    #[must_use]
    pub fn federate(mut self, federation: Federation) -> Self {
        self.federation = Some(federation);
        self
    }

    /// How many frames, and bytes of them, routing functions may queue for
    /// later, and for how long. When full, the frame that does not fit is
    /// handed to [`Handler::expired`](super::Handler::expired) at once, as
    /// one whose time is over is. Default: 1024 frames, 16 MiB, 60 s.
    #[must_use]
    pub fn held(mut self, frames: usize, bytes: usize, time: Duration) -> Self {
        self.held = Held::new(frames, bytes, time);
        self
    }

    setters! {
        /// The server's UUID. Default: the one that the certificate is bound to,
        /// else a random one.
        uuid: Uuid;

        /// The roles to advertise. Default: all that the certificate holds.
        role: Role;

        /// The forwarding rules. Default: none.
        rules: Rules;

        /// Who may send what. Default: [`Filter::allow_all`].
        filter: Filter;

        /// The cluster configuration that CONNECTED carries, as YAML. A CONFIGURE
        /// from a controller replaces it. Default: empty.
        configuration: impl Into<Bytes>;

        /// Whether the server itself takes a controller's CONFIGURE: checks it,
        /// refuses it, or lets it replace the configuration. Without that it is a
        /// frame like any other, for a handler that does all of this with
        /// [`Context::set_configuration`](super::Context::set_configuration).
        /// Default: true.
        takes_configure: bool;

        /// Whether clients that ask for trace blocks get them. Default: true.
        tracing: bool;

        /// Whether returning clients may resume their TLS session, for at most
        /// twelve hours after it began; their certificates are verified again. The
        /// server keeps nothing for it: the client holds a ticket. Default: true.
        resumption: bool;

        /// Whether a session may go on once its client's certificate has expired. The
        /// client is told ConnectionFailure otherwise, and may come again with a new
        /// one. A certificate that is revoked, or whose authority is trusted no longer,
        /// ends its sessions in any case ([`Server::renew`](super::Server::renew)).
        /// Default: false.
        outlive_certificates: bool;

        /// The longest payload to receive or send, in bytes. Default: 16 MiB.
        max_payload: u32;

        /// The application's frames that are taken, routed and sent, beside the
        /// protocol's. Default: none.
        operands: Operands;

        /// The most sessions at a time; further clients get ConnectionFailure.
        /// Default: what the system has threads, memory maps and descriptors for.
        max_sessions: usize;

        /// Which clients to admit. Default: see [`AdmissionPolicy`].
        admission: AdmissionPolicy;

        /// The roles of operators (docs/admission.md, "Operators"): the server carries out
        /// their ListSessions, Kick, ListBans, Unban, ListServers and DrainServer, if the filter allows them as
        /// well. A session without these roles may not send such frames, whatever the
        /// filter says. `ssntp server` and `ssntp scheduler` have [`Role::CONTROLLER`].
        /// Default: [`Role::NONE`].
        operators: Role;

        /// The most handshakes at a time, each on a thread of its own. When so
        /// many are under way, the one that has waited longest for its peer makes
        /// room for a newcomer. A system with tight limits gets fewer. Default:
        /// [`default_max_handshakes`].
        max_handshakes: usize;

        /// How long TLS and CONNECT together may take. Default: 10 s.
        handshake_timeout: Duration;

        /// How much may wait for one session. Default: see [`Limits`].
        queue: Limits;

        /// How much memory all queues of the server may take together, in bytes,
        /// with what has been received and is not dealt with. No queue grows beyond
        /// what is still free, but each may have 64 KiB, or one frame. Default: a
        /// quarter of the memory that the process may have.
        queue_budget: u64;

        /// How long others are held back for a session that takes less than 4 MiB
        /// and 20,000 frames a second while its queue is half full. After that
        /// its queue fills without holding others back. Default: 1 s.
        patience: Duration;

        /// What happens when that much waits. Default:
        /// [`SlowConsumer::Disconnect`].
        slow_consumer: SlowConsumer;

        /// How long a peer with waiting data may take none of it, and how long a
        /// session that ends may take to send what waits. Default: 30 s.
        write_timeout: Duration;

        /// Keep-alive and other TCP options. Default: see [`TcpOptions`].
        tcp: TcpOptions;

        /// How long a stop may take to flush the queues. Default: 1 s.
        grace: Duration;
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// No address to listen at was given.
    #[error("no address to listen at")]
    NoAddress,
    /// An address cannot be listened at.
    #[error("cannot listen at {0}: {1}")]
    Listen(Address, #[source] io::Error),
    /// The roles to advertise are not the certificate's, or none of a server.
    #[error("{}", role_fault(*.advertised, *.certified))]
    Role {
        /// What is to be advertised.
        advertised: Role,
        /// What the certificate holds.
        certified: Role,
    },
    /// The certificate is bound to another UUID.
    #[error("the certificate is bound to the UUID {0}")]
    BorrowedUuid(Uuid),
    /// The forwarding rules cannot be used.
    #[error(transparent)]
    Rules(#[from] RuleError),
    /// Identity and trust do not make a TLS configuration.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The system does not allow so many sessions, or none at all; the text
    /// names the setting, its value, and what it needs.
    #[error("{0}")]
    TooManySessions(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// [`Server::renew`](super::Server::renew) was called on a dispatcher, as a
    /// handler is, and would wait for it. Nothing was changed: call it elsewhere.
    #[error("certificates cannot be renewed on a dispatcher")]
    OnDispatcher,
}

impl ServerConfig {
    /// How its connections are treated.
    pub(super) fn runner(&self) -> Settings {
        let memory = self.queue_budget.unwrap_or_else(memory_for_queues);
        let (budget, received) = Budget::for_queues_and_received(memory);
        Settings {
            queue: self.queue,
            budget,
            received,
            patience: self.patience,
            parting: self.write_timeout,
            grace: self.grace,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ServerError> {
        check_identity(&self.identity, self.role, self.uuid)?;
        if self.listen.is_empty() && self.memory.is_empty() {
            return Err(ServerError::NoAddress);
        }
        self.rules.check_for(&self.operands)?;
        Ok(())
    }
}

fn role_fault(advertised: Role, certified: Role) -> String {
    match advertised.intersects(Role::SERVER | Role::SCHEDULER) {
        true => format!("the certificate holds the roles {certified}, not {advertised}"),
        false => format!("a server's role is server or scheduler, this one's is {advertised}"),
    }
}

/// Checks that the certificate allows these roles and this UUID.
fn check_identity(identity: &Identity, role: Role, uuid: Uuid) -> Result<(), ServerError> {
    let certified = identity.roles();
    let is_server = role.intersects(Role::SERVER | Role::SCHEDULER);
    if !is_server || !role.may_be_advertised_with(certified) {
        return Err(ServerError::Role {
            advertised: role,
            certified,
        });
    }
    match identity.uuid() {
        Some(bound) if bound != uuid => Err(ServerError::BorrowedUuid(bound)),
        _ => Ok(()),
    }
}

/// What a CONFIGURE payload has to pass by default.
fn is_text(payload: &[u8]) -> Result<(), String> {
    match std::str::from_utf8(payload) {
        Ok("") => Err("it is empty".into()),
        Ok(_) => Ok(()),
        Err(e) => Err(format!("it is not UTF-8: {e}")),
    }
}

/// What every thread of a server reads.
#[derive(Debug)]
pub struct Environment {
    pub(super) uuid: Uuid,
    pub(super) role: Role,
    /// A random number of this start.
    pub(super) incarnation: u64,
    /// There if the server links with others.
    pub(super) joins: Option<Joins>,
    pub(super) tracing: bool,
    pub(super) max_payload: u32,
    pub(crate) operands: Operands,
    pub(super) handshake_timeout: Duration,
    pub(super) write_timeout: Duration,
    pub(super) pool: ssntp_transport::BufferPool,
    /// Replaced as a whole when the certificates are renewed.
    // Locked for a clone of the pointer only, so handshakes do not wait for each other.
    in_force: Mutex<Arc<InForce>>,
    resumption: bool,
    /// What newcomers may cause in the log, by host.
    pub(super) newcomers: Mutex<LogLimit<Option<IpAddr>>>,
    /// What newcomers have come to.
    pub(super) handshakes: HandshakeTally,
}

/// What handshakes are made with. Without links no client notices anything of ALPN.
fn acceptor(identity: &Identity, trust: &Trust, resumes: bool, links: bool) -> Result<Acceptor, TlsError> {
    let acceptor = Acceptor::mutual(identity, trust)?.resumption(resumes)?;
    Ok(match links {
        true => acceptor.protocols(&[LINK_PROTOCOL, SESSION_PROTOCOL]),
        false => acceptor,
    })
}

impl Environment {
    /// # Errors
    /// The certificates cannot be used for TLS.
    pub fn new(config: &ServerConfig) -> Result<Arc<Self>, ServerError> {
        let joins = config.federation.as_ref();
        let joins = joins.map(|federation| Joins::new(federation.advertised.clone()));
        Ok(Arc::new(Self {
            uuid: config.uuid,
            role: config.role,
            incarnation: Uuid::new_v4().as_u64_pair().1,
            tracing: config.tracing,
            max_payload: config.max_payload,
            operands: config.operands.clone(),
            handshake_timeout: config.handshake_timeout,
            write_timeout: config.write_timeout,
            pool: ssntp_transport::BufferPool::new(),
            in_force: Mutex::new(Arc::new(InForce {
                acceptor: acceptor(
                    &config.identity,
                    &config.trust,
                    config.resumption,
                    joins.is_some(),
                )?,
                credentials: Credentials {
                    identity: config.identity.clone(),
                    trust: config.trust.clone(),
                    renewals: 0,
                },
                outlive: config.outlive_certificates,
            })),
            resumption: config.resumption,
            newcomers: Mutex::default(),
            handshakes: HandshakeTally::default(),
            joins,
        }))
    }

    /// What the next handshake is made with.
    pub(super) fn in_force(&self) -> Arc<InForce> {
        Arc::clone(&self.in_force.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has later handshakes made with these.
    pub(super) fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), ServerError> {
        check_identity(identity, self.role, self.uuid)?;
        // A ticketer of its own: it takes no ticket that was made before.
        let acceptor = acceptor(identity, trust, self.resumption, self.joins.is_some())?;
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that two renewals at the same time are compared with each other.
        acceptor.check_follows(&in_force.acceptor)?;
        *in_force = Arc::new(InForce {
            acceptor,
            credentials: Credentials {
                identity: identity.clone(),
                trust: trust.clone(),
                renewals: in_force.generation() + 1,
            },
            outlive: in_force.outlive,
        });
        Ok(())
    }
}
