//! The configuration of a server, and the errors of its start.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::Sender;
use uuid::Uuid;

use super::admission::AdmissionPolicy;
use super::configuration::ConfigurationCheck;
use super::enrol::Enrolment;
use super::filter::Filter;
use super::links::Federation;
use super::routing::{RuleError, Rules};
use super::sessions::SessionInfo;
use crate::proto::{DEFAULT_MAX_PAYLOAD, Operands};
use crate::request::Request;
#[cfg(feature = "issue")]
use ssntp_pki::CertificateInfo;
use ssntp_pki::{Identity, Role, Trust};
use ssntp_transport::dispatch::Settings;
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::tls::TlsError;
use ssntp_transport::{
    Address, Budget, Limits, PATIENCE, TcpOptions, default_max_handshakes, memory_for_queues, setters,
};

/// The policy for a session whose queue is full. It affects only that session, and is counted and
/// logged.
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

/// A request of a session for a new certificate.
pub(super) type Renewal = (SessionInfo, Request);

/// The configuration of a [`Server`](super::Server).
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
    pub(super) idle_limit: Option<Duration>,
    pub(super) tcp: TcpOptions,
    pub(super) grace: Duration,
    pub(super) queue_budget: Option<u64>,
    pub(super) patience: Duration,
    pub(super) federate: Option<Federation>,
    pub(super) enrol: Option<Arc<Enrolment>>,
    /// The way to the thread that renews certificates, once the server starts.
    pub(super) renewals: Option<Sender<Renewal>>,
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
    /// The default configuration with this identity, for clients that this trust accepts. It has no
    /// address to listen at yet.
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
            idle_limit: None,
            tcp: TcpOptions::default(),
            grace: Duration::from_secs(1),
            queue_budget: None,
            patience: PATIENCE,
            federate: None,
            enrol: None,
            renewals: None,
        }
    }

    /// Adds an address to listen at. Default: none.
    #[must_use]
    pub fn listen(mut self, address: Address) -> Self {
        self.listen.push(address);
        self
    }

    /// Adds a listener for clients in the same process. They use TLS as well.
    #[must_use]
    pub fn listen_in_memory(mut self, listener: &MemoryListener) -> Self {
        self.memory.push(listener.clone());
        self
    }

    /// Sets the check of a controller's CONFIGURE before it replaces the configuration. A payload that
    /// fails is returned as InvalidConfiguration and not forwarded. Runs on the dispatcher. Default: the
    /// payload must be UTF-8 and not empty.
    #[must_use]
    pub fn configuration_check(
        mut self,
        check: impl Fn(&[u8]) -> Result<(), String> + Send + 'static,
    ) -> Self {
        self.configuration_check = Box::new(check);
        self
    }

    setters! {
        /// Lets nodes join with tokens, over connections with the application protocol `ssntp-join/1`, and renews
        /// certificates over sessions. The trust of the server has to hold the authority that issued its own
        /// certificate. Default: no node can join.
        #[cfg(feature = "issue")]
        enrol as Some: Enrolment;

        /// Links the server with others, so that they act as one. Default: the server accepts no links and
        /// dials no server.
        federate as Some: Federation;

        /// The server's UUID. Default: the UUID that the certificate is bound to, or a random one.
        uuid: Uuid;

        /// The roles to advertise. Default: all roles of the certificate.
        role: Role;

        /// The forwarding rules. Default: none.
        rules: Rules;

        /// The role filter: the kinds of frames that each role may send. Default:
        /// [`Filter::allow_all`].
        filter: Filter;

        /// The cluster configuration that CONNECTED carries, as YAML. A CONFIGURE
        /// from a controller replaces it. Default: empty.
        configuration: impl Into<Bytes>;

        /// True if the server itself checks a controller's CONFIGURE and replaces the configuration. If
        /// false, CONFIGURE is a frame like any other, and a handler can check it and call
        /// [`Context::set_configuration`](super::Context::set_configuration). Default: true.
        takes_configure: bool;

        /// True if clients that ask for trace blocks get them. Default: true.
        tracing: bool;

        /// True if clients that return may resume their TLS session, for at most twelve hours after it
        /// began. Their certificates are verified again. The client keeps a ticket for it, and the
        /// server keeps nothing. Default: true.
        resumption: bool;

        /// True if a session continues after its client's certificate has expired. If false, the client
        /// gets ConnectionFailure and may connect again with a new certificate. Sessions whose
        /// certificate is revoked, or whose authority is no longer trusted, always end at
        /// [`Server::renew`](super::Server::renew). Default: false.
        outlive_certificates: bool;

        /// The longest payload to receive or send, in bytes. Default: 16 MiB.
        max_payload: u32;

        /// The kinds of frames of the application, in addition to those of the protocol. Default: none.
        operands: Operands;

        /// The maximum number of sessions at a time; further clients get ConnectionFailure. Default: as
        /// many as the system has threads, memory maps and descriptors for.
        max_sessions: usize;

        /// The rules for the admission of clients. Default: see [`AdmissionPolicy`].
        admission: AdmissionPolicy;

        /// The roles of operators. The server carries out their
        /// ListSessions, Kick, ListBans, Unban, Watch, ListServers and DrainServer, if the filter
        /// allows them as well. Sessions without these roles may not send such frames, even if the
        /// filter allows them. `ssntp server` and `ssntp scheduler` use [`Role::CONTROLLER`]. Default:
        /// [`Role::NONE`].
        operators: Role;

        /// The maximum number of handshakes at a time. Each has its own thread. If all are under way, the
        /// handshake that has waited longest for its peer is cut to make room for a newcomer. The server
        /// uses fewer if the system's limits are tight. Default: 64 for each core, and 512 at most.
        max_handshakes: usize;

        /// The longest time for TLS and CONNECT together. Default: 10 s.
        handshake_timeout: Duration;

        /// The limit of the queue of one session. Default: see [`Limits`].
        queue: Limits;

        /// The memory, in bytes, for all queues of the server together, including received frames that
        /// are not handled yet. A queue does not grow beyond the free memory, but each may have 64 KiB
        /// or one frame. Default: a quarter of the memory that the process may use.
        queue_budget: u64;

        /// The time for which senders are paused for a slow session: one whose queue is half full and
        /// that reads less than 4 MiB and 20,000 frames a second, or its part of that if senders are
        /// paused for several sessions at once. After that its queue fills up and senders are no longer
        /// paused. Default: 1 s.
        patience: Duration;

        /// The policy for a session whose queue is full. Default: [`SlowConsumer::Disconnect`].
        slow_consumer: SlowConsumer;

        /// The time after which a connection ends if the peer accepts no data, and the longest time for
        /// a session that ends to send its queue. Default: 30 s.
        write_timeout: Duration;

        /// The longest silence of a client. One that has sent nothing for half of this time is asked for a sign
        /// of life, and its session ends if it does not answer: its process may be stopped, for which its system
        /// answers TCP's own probes. At least 30 s. Default: none.
        idle_limit: Duration;

        /// TCP options. Default: see [`TcpOptions`].
        tcp: TcpOptions;

        /// The grace period: the longest time for sending the queues at a stop. Default: 1 s.
        grace: Duration;
    }
}

/// The reason for which a server does not start or does not renew its credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration has no address to listen at.
    #[error("no address to listen at")]
    NoAddress,
    /// The system does not allow to listen at an address.
    #[error("cannot listen at {0}: {1}")]
    Listen(Address, #[source] io::Error),
    /// The certificate does not hold the roles to advertise, or they are not roles of a server.
    #[error("{}", role_fault(*.advertised, *.certified))]
    Role {
        /// The roles to advertise.
        advertised: Role,
        /// The roles of the certificate.
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
    /// The limits of the system are too low for the sessions. The text names the limit, its value, and
    /// the value that is needed.
    #[error("{0}")]
    TooManySessions(String),
    /// The server's trust has no authority that has signed the certificate of this issuer of nodes, so no node could
    /// use what it issues.
    #[error("the issuer {0} is none of a trusted authority")]
    Issuer(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// [`Server::renew`](super::Server::renew) was called on a dispatcher thread, such as in a handler,
    /// and would wait for that thread. Nothing was changed. Call it on another thread.
    #[error("certificates cannot be renewed on a dispatcher")]
    OnDispatcher,
}

impl ServerConfig {
    /// The settings for the runner of the core.
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
        #[cfg(feature = "issue")]
        if let Some(enrolment) = &self.enrol {
            check_issuer(enrolment.issuer().info(), &self.trust)?;
        }
        self.rules.check_for(&self.operands)?;
        Ok(())
    }
}

/// Checks that the certificates of an issuer of nodes will be accepted.
#[cfg(feature = "issue")]
pub(super) fn check_issuer(issuer: &CertificateInfo, trust: &Trust) -> Result<(), ServerError> {
    match trust.authority_of(issuer) {
        Some(_) => Ok(()),
        None => Err(ServerError::Issuer(issuer.subject.clone())),
    }
}

fn role_fault(advertised: Role, certified: Role) -> String {
    if advertised.intersects(Role::SERVER | Role::SCHEDULER) {
        format!("the certificate holds the roles {certified}, not {advertised}")
    } else {
        format!("a server's role is server or scheduler, this one's is {advertised}")
    }
}

/// Checks that the certificate allows these roles and this UUID.
pub(super) fn check_identity(identity: &Identity, role: Role, uuid: Uuid) -> Result<(), ServerError> {
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

/// The default check of a CONFIGURE payload.
fn is_text(payload: &[u8]) -> Result<(), String> {
    match std::str::from_utf8(payload) {
        Ok("") => Err("it is empty".into()),
        Ok(_) => Ok(()),
        Err(e) => Err(format!("it is not UTF-8: {e}")),
    }
}
