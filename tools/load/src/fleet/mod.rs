//! Thousands of simulated agents in one process, over a few threads: a load
//! generator, not a way to run nodes.
//!
//! ```text
//!  ssntp-fleet-0 ── poll ─▶ agent 0: TLS session ─▶ codec ─▶ SteppedAgent ─┐
//!                       ─▶ agent 4: …                     ▲                 ▼
//!  ssntp-fleet-1 …                                        └─ ends ─ SimulateDriver
//! ```
//!
//! Each agent has a session and the state machine of a real agent. Its instances are only
//! entries in a table, so its jobs take no time and are done at once. Connecting blocks a
//! thread with all its agents, and so does a server that does not read. Frames are not
//! queued: they are written to the socket at once.
//!
//! | file | holds |
//! |---|---|
//! | `crew` | the agents of one thread |
//! | `options` | the command and its flags |
//! | `session` | one agent's session: connecting, receiving, sending |
//! | `simulate` | the driver whose instances are entries in a table |

mod crew;
mod options;
mod session;
mod simulate;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use uuid::Uuid;

use self::crew::{Crew, Member};
pub(crate) use self::options::{Options, run};
use self::session::Dialer;
use ssntp::Role;
use ssntp::pki::{Identity, Trust};
use ssntp_agent::DEFAULT_MAX_INSTANCES;
use ssntp_transport::tls::TlsError;
use ssntp_transport::{Address, BufferPool, Cancel, descriptors, threads};

/// Descriptors for everything except sessions.
const SPARE_DESCRIPTORS: u64 = 64;

/// The settings of a fleet.
#[derive(Clone, Debug)]
pub(crate) struct FleetConfig {
    identity: Identity,
    trust: Trust,
    addresses: Vec<Address>,
    agents: usize,
    /// True if each agent begins with the first address; else they begin with the addresses in turn.
    is_together: bool,
    threads: usize,
    mem_mb: i64,
    disk_mb: i64,
    max_instances: usize,
    interval: Duration,
}

impl FleetConfig {
    /// A fleet of this number of agents, all with the same certificate, at the TCP addresses of servers.
    pub(crate) fn new(identity: Identity, trust: Trust, addresses: Vec<Address>, agents: usize) -> Self {
        Self {
            identity,
            trust,
            addresses,
            agents,
            is_together: false,
            threads: 4,
            mem_mb: 64_000,
            disk_mb: 500_000,
            max_instances: DEFAULT_MAX_INSTANCES,
            interval: Duration::from_secs(30),
        }
    }

    /// True if all agents begin with the first address. Default: they begin with the
    /// addresses in turn.
    #[must_use]
    pub(crate) fn together(mut self, is_together: bool) -> Self {
        self.is_together = is_together;
        self
    }

    /// The number of threads for all agents. Default: 4.
    #[must_use]
    pub(crate) fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// The memory of each agent, in MB. Default: 64,000.
    #[must_use]
    pub(crate) fn mem_mb(mut self, mb: u32) -> Self {
        self.mem_mb = mb.into();
        self
    }

    /// The disk space of each agent, in MB. Default: 500,000.
    #[must_use]
    pub(crate) fn disk_mb(mut self, mb: u32) -> Self {
        self.disk_mb = mb.into();
        self
    }

    /// The maximum number of instances of each agent. Default:
    /// [`DEFAULT_MAX_INSTANCES`].
    #[must_use]
    pub(crate) fn max_instances(mut self, instances: usize) -> Self {
        self.max_instances = instances;
        self
    }

    /// The time between two STATS of an agent. Default: 30 s.
    #[must_use]
    pub(crate) fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }
}

/// A fleet could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FleetError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{0}: a fleet connects over TCP")]
    Address(Address),
    #[error("{0} is not the role of an agent")]
    Role(Role),
    #[error("the certificate is for {0} alone, and not for many agents")]
    Bound(Uuid),
    #[error("the open files limit (ulimit -n) is {0}, too low for so many agents")]
    Descriptors(u64),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// The counters of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FleetCounters {
    /// Agents that are connected now.
    pub(crate) connected: usize,
    /// Attempts to connect that failed, and sessions that were lost.
    pub(crate) lost: u64,
    /// Frames that were sent.
    pub(crate) sent: u64,
    /// Frames that were received.
    pub(crate) received: u64,
    /// Instances that were launched.
    pub(crate) launched: u64,
    /// Launches of an instance that had been launched before, by this agent or another.
    pub(crate) again: u64,
}

/// Simulated agents.
///
/// # Threads
/// It owns its threads. Only dropping it blocks: that ends all sessions and waits for the
/// threads, for a second at most, or as long as the look-up of a name takes.
#[derive(Debug)]
pub(crate) struct Fleet {
    shared: Arc<Counts>,
    stops: Vec<Arc<Stop>>,
    threads: Vec<JoinHandle<()>>,
}

/// Ends the waits of one thread.
#[derive(Debug)]
struct Stop {
    /// Ends connecting, and waits on a socket.
    cancel: Cancel,
    /// Ends the wait for all its sessions.
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
    again: AtomicU64,
    instances: Mutex<HashSet<Uuid>>,
}

impl Counts {
    /// Counts the launch of an instance.
    fn launch(&self, instance: Uuid) {
        self.launched.fetch_add(1, Ordering::Relaxed);
        let mut instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        if !instances.insert(instance) {
            self.again.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Fleet {
    /// Starts the threads; the agents connect one after the other on each.
    /// Raises the soft limit of descriptors to the hard one first.
    ///
    /// # Errors
    /// [`FleetError`].
    pub(crate) fn start(config: FleetConfig) -> Result<Self, FleetError> {
        let role = config.identity.roles() & (Role::AGENT | Role::NETAGENT);
        if role.is_empty() {
            return Err(FleetError::Role(config.identity.roles()));
        }
        if let Some(uuid) = config.identity.uuid() {
            return Err(FleetError::Bound(uuid));
        }
        let place = |address: &Address| match address {
            Address::Tcp { host, port } => Ok((host.clone(), *port)),
            _ => Err(FleetError::Address(address.clone())),
        };
        let servers = config.addresses.iter().map(place).collect::<Result<_, _>>()?;
        if let Some(limit) = descriptors()
            && limit.saturating_sub(SPARE_DESCRIPTORS) < config.agents as u64
        {
            return Err(FleetError::Descriptors(limit));
        }
        let connector = config.trust.connector(&config.identity)?;
        let dialer = Arc::new(Dialer {
            connector,
            servers,
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
                members: members
                    .map(|index| Member::new(&config, role, index, &fleet.shared))
                    .collect(),
                dialer: Arc::clone(&dialer),
                shared: Arc::clone(&fleet.shared),
                stop,
            };
            let thread = threads::spawn(format!("ssntp-fleet-{number}"), move || crew.run());
            fleet.threads.push(thread.map_err(FleetError::Thread)?);
        }
        Ok(fleet)
    }

    /// Its counters.
    pub(crate) fn counters(&self) -> FleetCounters {
        let shared = &self.shared;
        FleetCounters {
            connected: shared.connected.load(Ordering::Relaxed),
            lost: shared.lost.load(Ordering::Relaxed),
            sent: shared.sent.load(Ordering::Relaxed),
            received: shared.received.load(Ordering::Relaxed),
            launched: shared.launched.load(Ordering::Relaxed),
            again: shared.again.load(Ordering::Relaxed),
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
