//! What a client is built from.

use std::path::PathBuf;
use std::time::Duration;

use uuid::Uuid;

use super::ClientError;
use super::uuid_file::{self, Claimed};
use crate::proto::{DEFAULT_MAX_PAYLOAD, Operands};
use ssntp_transport::Role;
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::pki::{Host, Identity, Trust};
use ssntp_transport::setters;
use ssntp_transport::{Address, DEFAULT_PORT, Limits, Target, TcpOptions};

/// Where a client's UUID comes from. A certificate that is bound to a UUID
/// decides it, whatever this says, except that another given one is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UuidSource {
    /// A new one for each client.
    #[default]
    Random,
    /// This one.
    Given(Uuid),
    /// One that survives, from this directory, which is made if need be.
    /// There is a file for each set of roles, and a further, numbered one for
    /// each client of that role that runs at the same time: a lock that the
    /// running client holds keeps any two, of any process of the host, from
    /// sharing one.
    Persistent(PathBuf),
}

impl From<Uuid> for UuidSource {
    fn from(uuid: Uuid) -> Self {
        Self::Given(uuid)
    }
}

/// What becomes of frames that are sent while no session stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offline {
    /// They are refused with
    /// [`SendFault::NotConnected`](super::SendFault::NotConnected).
    #[default]
    Fail,
    /// They wait for the next session, which sends them first, in order.
    /// When this much waits, `send` waits too, for at most its time limit.
    Queue(Limits),
}

/// The pauses between rounds of attempts: exponential, capped, and fully
/// jittered. The n-th pause is random between nothing and
/// `initial * factor^n`, at most `cap`, so that clients that lost their
/// server together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The longest first pause. Default: 100 ms.
    pub initial: Duration,
    /// How much longer each further pause may be. Default: 2.
    pub factor: f64,
    /// The longest pause. Default: 30 s.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(100),
            factor: 2.0,
            cap: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    /// The longest pause after `failures` failed rounds.
    pub(super) fn ceiling(&self, failures: u32) -> Duration {
        // A factor below 1 would make the pauses shorter with each failure.
        let growth = self
            .factor
            .max(1.0)
            .powi(i32::try_from(failures).unwrap_or(i32::MAX));
        let seconds = self.initial.as_secs_f64() * growth;
        Duration::try_from_secs_f64(seconds).map_or(self.cap, |time| time.min(self.cap))
    }
}

/// A random number from 0 to 1.
pub(crate) fn random_share() -> f64 {
    // The random bits of a new UUID serve as a source of randomness.
    let random = Uuid::new_v4().as_u128() >> 80;
    #[expect(clippy::cast_precision_loss, reason = "48 bits fit a double")]
    let share = random as f64 / (1u64 << 48) as f64;
    share
}

/// What a [`Client`](super::Client) is built from.
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
    pub(super) grace: Duration,
    pub(super) renewal_spread: Duration,
}

impl ClientConfig {
    /// The defaults for a client with this identity that takes servers of
    /// this trust.
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
            grace: Duration::from_secs(1),
            renewal_spread: Duration::from_secs(30),
        }
    }

    /// Adds the address of a server. They are tried in order, and the first
    /// that answers is taken. If its session is lost, the next one is tried at
    /// once, and the pauses begin when all have been tried. Default: the names and addresses in the
    /// certificates of the trusted authorities, else localhost; port 8888.
    #[must_use]
    pub fn address(mut self, address: Address) -> Self {
        self.targets.push(Target::Address(address));
        self
    }

    /// Adds the addresses of several servers, see [`address`](Self::address).
    #[must_use]
    pub fn addresses(mut self, addresses: impl IntoIterator<Item = Address>) -> Self {
        self.targets.extend(addresses.into_iter().map(Target::Address));
        self
    }

    /// Adds a server in this process, as if it were an address. TLS is spoken
    /// there as well. Default: none.
    #[must_use]
    pub fn connect_in_memory(mut self, listener: &MemoryListener) -> Self {
        self.targets.push(Target::Memory(listener.clone()));
        self
    }

    /// The DNS name or IP address that every server has to prove, whatever
    /// it is dialled by. Default: the host of its address; `localhost` for a
    /// Unix socket and in memory.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// How many rounds may fail in a row, at least one, before the client
    /// ends. Default: any number.
    #[must_use]
    pub fn attempts(mut self, rounds: u32) -> Self {
        self.attempts = Some(rounds.max(1));
        self
    }

    /// As [`attempts`](Self::attempts), until the first session stands: for a
    /// program that is soon to say that nobody is there, and yet is to outlast
    /// the restart of a server. Default: as `attempts`.
    #[must_use]
    pub fn first_attempts(mut self, rounds: u32) -> Self {
        self.first_attempts = Some(rounds.max(1));
        self
    }

    setters! {
        /// The roles to advertise. Default: all that the certificate holds.
        role: Role;

        /// Where the client's UUID comes from; a [`Uuid`] is taken as it is.
        /// Default: the one that the certificate is bound to, else
        /// [`UuidSource::Random`].
        uuid: impl Into<UuidSource>;

        /// Whether to ask the server for trace blocks. Without them, or where the
        /// server has none, traces are taken off frames that are sent.
        /// Default: false.
        tracing: bool;

        /// Whether a client that reconnects resumes its TLS session where the
        /// server lets it, which saves both the signatures; certificates are
        /// verified again all the same. Default: true.
        resumption: bool;

        /// The longest payload to receive or send, in bytes. Default: 16 MiB.
        max_payload: u32;

        /// The application's frames that are sent and taken, beside the
        /// protocol's. Default: none.
        operands: Operands;

        /// How many requests may wait for answers at a time, see
        /// [`ClientHandle::request`](super::ClientHandle::request). Default: 1024.
        max_requests: usize;

        /// How long connecting to one server may take, all addresses of its name
        /// together. Looking the name up comes before and has the system's own
        /// limit. Default: 10 s.
        connect_timeout: Duration;

        /// How long TLS and CONNECTED together may take. Default: 10 s.
        handshake_timeout: Duration;

        /// The pauses between rounds of attempts, a round being one attempt at
        /// each server. Also after the loss of a session there is one. It grows
        /// with every round that fails, and with every session that lasts no
        /// longer than the pause could have been. Default: see [`Backoff`].
        backoff: Backoff;

        /// Whether to connect again after a session was lost. Default: true.
        reconnect: bool;

        /// What becomes of frames that are sent while no session stands.
        /// Default: [`Offline::Fail`].
        offline: Offline;

        /// How much may wait to be sent on a session; `send` waits when this much
        /// does. Default: see [`Limits`].
        queue: Limits;

        /// How long `send` waits for room in a full queue; `None` for as long as
        /// it takes. Default: 30 s.
        send_timeout: impl Into<Option<Duration>>;

        /// How much may wait for the application to receive it, in events and
        /// in bytes of frames; one frame may always wait alone. Then the server
        /// is held back. The channel takes memory for all its events at once,
        /// some 64 bytes each, and has room for 1,048,576 at most. Default: 1024
        /// events, 64 MiB.
        inbound: Limits;

        /// Keep-alive and other TCP options. Default: see [`TcpOptions`].
        tcp: TcpOptions;

        /// How long the server may take none of the data that waits for it before
        /// the session counts as lost, and how long the rest of the queue may take
        /// once the server has ended the session. Default: 30 s.
        write_timeout: Duration;

        /// How long closing may take to send what waits and to part from the
        /// server. Default: 1 s.
        grace: Duration;

        /// Within how long a client whose certificate was
        /// [renewed](super::ClientHandle::renew) reconnects with it: at a random
        /// moment, so that clients that are renewed together do not come back
        /// together, and before the old certificate ends. Default: 30 s, which for
        /// 2,000 clients are some 70 handshakes a second, a tenth of what a server
        /// of two cores does.
        renewal_spread: Duration;
    }

    /// The servers to try, the defaults where none was given.
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

    /// Settles the UUID, and checks the role on the way.
    pub(super) fn claim_uuid(&self) -> Result<Claimed, ClientError> {
        let certified = self.identity.roles();
        if !self.role.may_be_advertised_with(certified) {
            return Err(ClientError::Role {
                advertised: self.role,
                certified,
            });
        }
        match (&self.uuid, self.identity.uuid()) {
            (UuidSource::Given(given), Some(bound)) if *given != bound => {
                Err(ClientError::BorrowedUuid { given: *given, bound })
            }
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

    #[test]
    fn odd_factors_do_no_harm() {
        let odd = |factor| Backoff {
            factor,
            ..Backoff::default()
        };
        for factor in [0.0, -3.0, f64::NAN, f64::INFINITY] {
            for failures in [0, 1, 7, u32::MAX] {
                assert!(odd(factor).ceiling(failures) <= Duration::from_secs(30));
            }
        }
    }
}
