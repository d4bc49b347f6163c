//! Thousands of simulated agents in one process, over a few threads: a load
//! generator, not a way to run nodes.
//!
//! ```text
//!  ssntp-fleet-0 ── poll ─▶ agent 0: TLS session ─▶ codec ─▶ Control ─┐
//!                       ─▶ agent 4: …                  ▲              ▼
//!  ssntp-fleet-1 …                                     └─ outcome ─ SimulateDriver
//! ```
//!
//! Each agent has a session of its own, its own state machine, the same that
//! real agents have, and instances that are nothing. What takes a moment in a
//! real agent takes none here, so it is done on the spot. Connecting blocks
//! a thread and all agents on it, and so does a server that takes nothing.
//! Nothing is queued: what an agent says goes to its socket at once.
//!
//! | file | holds |
//! |---|---|
//! | `crew` | the agents of one thread |
//! | `session` | one agent's session: connecting, receiving, sending |

mod crew;
mod session;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use uuid::Uuid;

use self::crew::{Crew, Member};
use self::session::Dialer;
use ssntp::Role;
use ssntp::pki::{Identity, Trust};
use ssntp_transport::tls::{Connector, TlsError};
use ssntp_transport::{Address, BufferPool, Cancel, descriptors, threads};

/// Descriptors for everything that is not a session.
const SPARE_DESCRIPTORS: u64 = 64;

/// What a fleet is made from.
#[derive(Clone, Debug)]
pub struct FleetConfig {
    identity: Identity,
    trust: Trust,
    address: Address,
    agents: usize,
    threads: usize,
    mem_mb: i64,
    disk_mb: i64,
    max_instances: usize,
    interval: Duration,
}

impl FleetConfig {
    /// That many agents, all with the same certificate, at a server's TCP
    /// address.
    pub fn new(identity: Identity, trust: Trust, address: Address, agents: usize) -> Self {
        Self {
            identity,
            trust,
            address,
            agents,
            threads: 4,
            mem_mb: 64_000,
            disk_mb: 500_000,
            max_instances: super::DEFAULT_MAX_INSTANCES,
            interval: Duration::from_secs(30),
        }
    }

    /// Over how many threads they are spread. Default: 4.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// The memory that each of them has, in MB. Default: 64,000.
    #[must_use]
    pub fn mem_mb(mut self, mb: u32) -> Self {
        self.mem_mb = mb.into();
        self
    }

    /// The disk that each of them has, in MB. Default: 500,000.
    #[must_use]
    pub fn disk_mb(mut self, mb: u32) -> Self {
        self.disk_mb = mb.into();
        self
    }

    /// How many instances each of them holds. Default:
    /// [`DEFAULT_MAX_INSTANCES`](super::DEFAULT_MAX_INSTANCES).
    #[must_use]
    pub fn max_instances(mut self, instances: usize) -> Self {
        self.max_instances = instances;
        self
    }

    /// How often each of them sends STATS. Default: 30 s.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }
}

/// Why there is no fleet.
#[derive(Debug)]
#[non_exhaustive]
pub enum FleetError {
    /// The identity and the trust make no TLS.
    Tls(TlsError),
    /// The address is not a TCP address.
    Address(Address),
    /// The certificate does not hold the role of an agent.
    Role(Role),
    /// The certificate is bound to this UUID: it is good for one agent alone.
    Bound(Uuid),
    /// The process may not open as many files as there are agents: this many.
    Descriptors(u64),
    /// A thread can't be started.
    Thread(io::Error),
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(e) => e.fmt(f),
            Self::Address(address) => write!(f, "{address}: a fleet connects over TCP"),
            Self::Role(role) => write!(f, "{role} is not the role of an agent"),
            Self::Bound(uuid) => write!(f, "the certificate is for {uuid} alone, and not for many agents"),
            Self::Descriptors(limit) => {
                write!(
                    f,
                    "the open files limit (ulimit -n) is {limit}, too low for so many agents"
                )
            }
            Self::Thread(e) => write!(f, "cannot start a thread: {e}"),
        }
    }
}

impl std::error::Error for FleetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Tls(e) => Some(e),
            Self::Thread(e) => Some(e),
            Self::Address(_) | Self::Role(_) | Self::Bound(_) | Self::Descriptors(_) => None,
        }
    }
}

/// What a fleet has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetCounters {
    /// Agents that are connected now.
    pub connected: usize,
    /// Attempts to connect that failed, and sessions that were lost.
    pub lost: u64,
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that were received.
    pub received: u64,
    /// Instances that were launched.
    pub launched: u64,
}

/// Simulated agents.
///
/// # Threads
/// It owns its threads. Nothing but dropping it blocks: that ends their
/// sessions and waits for them, for a second at most, or as long as the look-up
/// of a name takes.
#[derive(Debug)]
pub struct Fleet {
    shared: Arc<Counts>,
    stops: Vec<Arc<Stop>>,
    threads: Vec<JoinHandle<()>>,
}

/// What ends the waits of one thread.
#[derive(Debug)]
struct Stop {
    /// Connecting, and everything on a socket.
    cancel: Cancel,
    /// Waiting for all of them.
    wake: OwnedFd,
}

impl Stop {
    fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let cancel = Cancel::new();
        Ok(Self { cancel, wake })
    }

    fn stop(&self) {
        self.cancel.cancel();
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

#[derive(Debug, Default)]
struct Counts {
    connected: AtomicUsize,
    lost: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    launched: AtomicU64,
}

impl Fleet {
    /// Starts the threads; the agents connect one after the other on each.
    /// Raises the soft limit of descriptors to the hard one first.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn start(config: FleetConfig) -> Result<Self, FleetError> {
        let role = config.identity.roles() & (Role::AGENT | Role::NETAGENT);
        if role.is_empty() {
            return Err(FleetError::Role(config.identity.roles()));
        }
        if let Some(uuid) = config.identity.uuid() {
            return Err(FleetError::Bound(uuid));
        }
        let Address::Tcp { host, port } = config.address.clone() else {
            return Err(FleetError::Address(config.address));
        };
        if let Some(limit) = descriptors()
            && limit.saturating_sub(SPARE_DESCRIPTORS) < config.agents as u64
        {
            return Err(FleetError::Descriptors(limit));
        }
        let connector = Connector::mutual(&config.identity, &config.trust).map_err(FleetError::Tls)?;
        let dialer = Arc::new(Dialer {
            connector,
            host,
            port,
            role,
            pool: BufferPool::new(),
        });
        let mut fleet = Self {
            shared: Arc::default(),
            stops: Vec::new(),
            threads: Vec::new(),
        };
        let threads = config.threads.min(config.agents);
        for number in 0..threads {
            let members = (number..config.agents).step_by(threads);
            let stop = Arc::new(Stop::new().map_err(FleetError::Thread)?);
            fleet.stops.push(Arc::clone(&stop));
            let crew = Crew {
                members: members.map(|index| Member::new(&config, role, index)).collect(),
                dialer: Arc::clone(&dialer),
                shared: Arc::clone(&fleet.shared),
                stop,
            };
            let thread = threads::spawn(format!("ssntp-fleet-{number}"), move || crew.run());
            fleet.threads.push(thread.map_err(FleetError::Thread)?);
        }
        Ok(fleet)
    }

    /// What has been done so far.
    pub fn counters(&self) -> FleetCounters {
        let shared = &self.shared;
        FleetCounters {
            connected: shared.connected.load(Ordering::Relaxed),
            lost: shared.lost.load(Ordering::Relaxed),
            sent: shared.sent.load(Ordering::Relaxed),
            received: shared.received.load(Ordering::Relaxed),
            launched: shared.launched.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for stop in &self.stops {
            stop.stop();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "here the state machines get their clock"
)]
fn now() -> Instant {
    Instant::now()
}
