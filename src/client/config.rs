//! The configuration of a client.

use std::path::PathBuf;
use std::time::Duration;

use uuid::Uuid;

use super::error::ClientError;
#[cfg(feature = "issue")]
use super::node_files::NodeFiles;
use super::uuid_file::{self, Claimed};
use crate::proto::{DEFAULT_MAX_PAYLOAD, DEFAULT_PORT, Operands};
use ssntp_pki::{Host, Identity, Role, Trust};
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::{Address, Limits, Target, TcpOptions, setters};

/// The source of a client's UUID. If the certificate is bound to a UUID, the client uses that
/// one, and any other `Given` UUID is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UuidSource {
    /// A new random UUID for each client.
    #[default]
    Random,
    /// This UUID.
    Given(Uuid),
    /// A UUID that is kept in this directory, which is created if it is missing. The directory
    /// has two numbered files, `.uuid` and `.lock`, for each set of roles, and two more for each further client
    /// with these roles that runs at the same time. A running client holds its lock, so that no two clients
    /// of this directory share a UUID.
    Persistent(PathBuf),
}

impl From<Uuid> for UuidSource {
    fn from(uuid: Uuid) -> Self {
        Self::Given(uuid)
    }
}

/// The treatment of frames that are sent while the client has no session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offline {
    /// They are refused with
    /// [`SendFault::NotConnected`](super::SendFault::NotConnected).
    #[default]
    Fail,
    /// They wait for the next session, which sends them first, in order. Once the queue holds this
    /// much, `send` blocks, for at most its time limit.
    Queue(Limits),
}

/// The pauses between rounds of attempts: exponential, capped, and fully jittered. The n-th pause
/// is random between 0 and `initial` doubled n − 1 times, at most `cap`, so that clients that lost the same
/// server do not reconnect all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest first pause. Default: 100 ms.
    pub initial: Duration,
    /// The longest pause. Default: 30 s.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(100),
            cap: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    /// The longest pause after so many earlier pauses.
    pub(super) fn ceiling(&self, pauses_before: u32) -> Duration {
        let growth = 1_u32.checked_shl(pauses_before).unwrap_or(u32::MAX);
        self.initial.saturating_mul(growth).min(self.cap)
    }
}

/// The configuration of a [`Client`](super::Client).
///
/// ```no_run
/// use ssntp::client::{ClientConfig, UuidSource};
/// use ssntp::pki::{Identity, Trust};
///
/// let config = ClientConfig::new(Identity::load("agent.pem")?, Trust::load("ca.pem")?)
///     .address("scheduler-1.example".parse()?)
///     .address("scheduler-2.example".parse()?)
///     .uuid(UuidSource::Persistent("/var/lib/ssntp".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientConfig {
    pub(super) identity: Identity,
    pub(super) trust: Trust,
    pub(super) targets: Vec<Target>,
    pub(super) server_name: Option<String>,
    pub(super) role: Role,
    pub(super) uuid: UuidSource,
    pub(super) tracing: bool,
    pub(super) resumption: bool,
    pub(super) max_payload: u32,
    pub(super) operands: Operands,
    pub(super) max_requests: usize,
    pub(super) connect_timeout: Duration,
    pub(super) handshake_timeout: Duration,
    pub(super) backoff: Backoff,
    pub(super) attempts: Option<u32>,
    pub(super) first_attempts: Option<u32>,
    pub(super) reconnect: bool,
    pub(super) offline: Offline,
    pub(super) queue: Limits,
    pub(super) send_timeout: Option<Duration>,
    pub(super) inbound: Limits,
    pub(super) tcp: TcpOptions,
    pub(super) write_timeout: Duration,
    pub(super) idle_limit: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) renewal_spread: Duration,
    #[cfg(feature = "issue")]
    pub(super) renewed_in: Option<NodeFiles>,
}

impl ClientConfig {
    /// The defaults for a client with this identity that accepts servers of this trust.
    pub fn new(identity: Identity, trust: Trust) -> Self {
        Self {
            role: identity.roles(),
            identity,
            trust,
            targets: Vec::new(),
            server_name: None,
            uuid: UuidSource::default(),
            tracing: false,
            resumption: true,
            max_payload: DEFAULT_MAX_PAYLOAD,
            operands: Operands::new(),
            max_requests: 1024,
            connect_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            backoff: Backoff::default(),
            attempts: None,
            first_attempts: None,
            reconnect: true,
            offline: Offline::default(),
            queue: Limits::default(),
            send_timeout: Some(Duration::from_secs(30)),
            inbound: Limits {
                frames: 1024,
                bytes: 64 << 20,
            },
            tcp: TcpOptions::default(),
            write_timeout: Duration::from_secs(30),
            idle_limit: None,
            grace: Duration::from_secs(1),
            renewal_spread: Duration::from_secs(30),
            #[cfg(feature = "issue")]
            renewed_in: None,
        }
    }

    /// Adds the address of a server. The client tries its servers in order and uses the first that
    /// answers. If that session is lost, it tries the next server at once, and pauses only after it
    /// has tried all of them. Default: the names and addresses in the certificates of the trusted
    /// authorities, else localhost; port 8888.
    #[must_use]
    pub fn address(self, address: Address) -> Self {
        self.addresses([address])
    }

    /// Adds the addresses of several servers, see [`address`](Self::address).
    #[must_use]
    pub fn addresses(mut self, addresses: impl IntoIterator<Item = Address>) -> Self {
        self.targets.extend(addresses.into_iter().map(Target::Address));
        self
    }

    /// Adds a server in this process, as if it were an address. The connection uses TLS as any
    /// other. Default: none.
    #[must_use]
    pub fn connect_in_memory(mut self, listener: &MemoryListener) -> Self {
        self.targets.push(Target::Memory(listener.clone()));
        self
    }

    setters! {
        /// Renews the client's certificate in these files at two thirds of its life: asks the server over the session,
        /// with a new key, replaces `node.pem` in one step, and uses it as [`renew`](super::ClientHandle::renew)
        /// does. Needs a thread more. Default: the application renews it.
        #[cfg(feature = "issue")]
        renewed_in as Some: NodeFiles;

        /// The DNS name or IP address that every server's certificate has to hold, whatever address
        /// is dialled. Default: the host of the address; `localhost` for a Unix socket and in memory.
        server_name as Some: impl Into<String>;

        /// The roles to advertise. Default: all that the certificate holds.
        role: Role;

        /// The source of the client's UUID, or the [`Uuid`] itself. Default: the UUID that the
        /// certificate is bound to, else [`UuidSource::Random`].
        uuid: impl Into<UuidSource>;

        /// True if the client asks the server for trace blocks. Unless both agree on them, the
        /// client removes the traces of frames that it sends. Default: false.
        tracing: bool;

        /// True if a client that reconnects resumes its TLS session, if the server allows it.
        /// That saves both sides the signatures; certificates are still verified. Default: true.
        resumption: bool;

        /// The longest payload to receive or send, in bytes. Default: 16 MiB.
        max_payload: u32;

        /// The application's own frames, which the client sends and accepts beside the
        /// protocol's. Default: none.
        operands: Operands;

        /// The number of requests that may wait for answers at a time, see
        /// [`ClientHandle::request`](super::ClientHandle::request). Default: 1024.
        max_requests: usize;

        /// The time limit for resolving the name of one server and for connecting, for all addresses
        /// of the name together. Default: 10 s.
        connect_timeout: Duration;

        /// The time limit for TLS and the protocol's handshake together. Default: 10 s.
        handshake_timeout: Duration;

        /// The number of rounds that may fail in a row before the client ends, at least 1. Default:
        /// no limit.
        attempts as Some: u32;

        /// As [`attempts`](Self::attempts), but only until the first session is established. A program
        /// with a small value here reports a wrong address soon, and later still waits for a server
        /// that restarts. Default: as `attempts`.
        first_attempts as Some: u32;

        /// The pauses between rounds of attempts; a round is one attempt at each server. If there
        /// is no other server, the client also pauses after the loss of a session. Each round that
        /// fails, and each session that lasts no longer than the next pause may be, makes
        /// the next pause longer. Default: see [`Backoff`].
        backoff: Backoff;

        /// True if the client connects again after it has lost its session. Default: true.
        reconnect: bool;

        /// The treatment of frames that are sent while the client has no session.
        /// Default: [`Offline::Fail`].
        offline: Offline;

        /// The limits of a session's queue of frames to be sent. If the queue is full, `send`
        /// blocks. Default: see [`Limits`].
        queue: Limits;

        /// The time for which `send` waits for room in a full queue; `None`: no limit. Default:
        /// 30 s.
        send_timeout: impl Into<Option<Duration>>;

        /// The limits of the channel of events, in events and in bytes of frames. A single frame
        /// may be longer than the limit of bytes. If the channel is full, the client stops reading
        /// from the server. The channel allocates all of its memory at once, some 64 bytes for
        /// each event, and has room for 1,048,576 events at most. Default: 1024 events, 64 MiB.
        inbound: Limits;

        /// TCP options. Default: see [`TcpOptions`].
        tcp: TcpOptions;

        /// The time after which a session counts as lost if the server takes none of the data
        /// that waits for it. It also limits sending the rest of the queue after the server has
        /// ended the session. Default: 30 s.
        write_timeout: Duration;

        /// The longest silence of a server. One that has sent nothing for half of this time is asked for a sign
        /// of life, and its session ends if it does not answer: its process may be stopped, for which its system
        /// answers TCP's own probes. At least 30 s. Default: none.
        idle_limit: Duration;

        /// The grace period of a close: the time limit for sending the queue and for closing TLS.
        /// Default: 1 s.
        grace: Duration;

        /// The time within which a client reconnects with a certificate that was
        /// [renewed](super::ClientHandle::renew). It does so at a random moment, so that clients
        /// that were renewed together do not reconnect together, and before the old certificate
        /// expires. Default: 30 s: 2,000 clients then make some 70 handshakes a second, a tenth of
        /// what a server with two cores can do.
        renewal_spread: Duration;
    }

    /// The servers to try: those that were configured, else the defaults.
    pub(super) fn servers(&self) -> Vec<Target> {
        if !self.targets.is_empty() {
            return self.targets.clone();
        }
        let named = self.trust.names().iter().filter_map(|host| match host {
            // A wildcard names no host that could be dialled.
            Host::Name(name) if name.starts_with('*') => None,
            host => Some(host.to_string()),
        });
        let mut hosts: Vec<String> = named.collect();
        if hosts.is_empty() {
            hosts.push("localhost".into());
        }
        let target = |host| Target::Address(Address::tcp(host, DEFAULT_PORT));
        hosts.into_iter().map(target).collect()
    }

    /// Checks that the certificate of `identity` holds the advertised roles.
    pub(super) fn check_role(&self, identity: &Identity) -> Result<(), ClientError> {
        let (advertised, certified) = (self.role, identity.roles());
        if advertised.may_be_advertised_with(certified) {
            return Ok(());
        }
        Err(ClientError::Role {
            advertised,
            certified,
        })
    }

    /// Checks the role, and determines the UUID.
    pub(super) fn claim_uuid(&self) -> Result<Claimed, ClientError> {
        self.check_role(&self.identity)?;
        match (&self.uuid, self.identity.uuid()) {
            (UuidSource::Given(given), Some(bound)) if *given != bound => {
                Err(ClientError::BorrowedUuid { given: *given, bound })
            }
            // Before `Persistent`, so that no file is created for a UUID that is not used.
            (_, Some(bound)) => Ok(Claimed::unlocked(bound)),
            (UuidSource::Random, None) => Ok(Claimed::unlocked(Uuid::new_v4())),
            (UuidSource::Given(given), None) if given.is_nil() => Err(ClientError::NilUuid),
            (UuidSource::Given(given), None) => Ok(Claimed::unlocked(*given)),
            (UuidSource::Persistent(directory), None) => uuid_file::claim(directory, self.role),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jitter::random_share;

    #[test]
    fn pauses_grow_to_the_cap_and_are_jittered() {
        let backoff = Backoff::default();
        let ceilings: Vec<_> = (0..4).map(|n| backoff.ceiling(n).as_millis()).collect();
        assert_eq!(ceilings, [100, 200, 400, 800]);
        assert_eq!(backoff.ceiling(9), Duration::from_secs(30));
        assert_eq!(backoff.ceiling(u32::MAX), Duration::from_secs(30));
        let shares: Vec<_> = (0..100).map(|_| random_share()).collect();
        assert!(shares.iter().all(|share| (0.0..1.0).contains(share)));
        let halves = shares.iter().filter(|share| **share < 0.5).count();
        assert!((10..=90).contains(&halves), "{halves} of 100 in the lower half");
    }
}
