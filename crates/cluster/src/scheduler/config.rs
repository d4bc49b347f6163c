//! What a scheduler is built from.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use super::placement::Policy;
use ssntp::payload;

/// Which controllers may command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerMode {
    /// All of them.
    #[default]
    Any,
    /// The one that has been connected longest; the others are told what
    /// happens, and take its place when it leaves, the longest-waiting first.
    Master,
}

/// What a [`Scheduler`](super::Scheduler) is built from.
///
/// ```
/// use ssntp_cluster::scheduler::{ControllerMode, SchedulerConfig};
/// use ssntp_cluster::scheduler::placement::Policy;
///
/// let config = SchedulerConfig::new()
///     .policy(Policy::Opportunistic)
///     .controllers(ControllerMode::Master);
/// ```
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    pub(super) policy: Policy,
    pub(super) controllers: ControllerMode,
    pub(super) held_starts: usize,
    pub(super) held_bytes: usize,
    pub(super) held_time: Duration,
    pub(super) in_flight: usize,
    pub(super) start_quiet: Duration,
    pub(super) start_most: Duration,
    pub(super) absence: Duration,
    pub(super) stats_interval: Duration,
    pub(super) configuration: Bytes,
    pub(super) configuration_file: Option<PathBuf>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            controllers: ControllerMode::default(),
            held_starts: 1024,
            held_bytes: 64 << 20,
            held_time: Duration::from_secs(60),
            in_flight: 1 << 20,
            start_quiet: Duration::from_secs(60),
            start_most: Duration::from_secs(900),
            absence: Duration::from_secs(15),
            stats_interval: Duration::from_secs(30),
            configuration: Bytes::new(),
            configuration_file: None,
        }
    }
}

impl SchedulerConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many STARTs a node gets for one READY.
    /// Default: [`Policy::Strict`].
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Which controllers may command. Default: [`ControllerMode::Any`].
    #[must_use]
    pub fn controllers(mut self, mode: ControllerMode) -> Self {
        self.controllers = mode;
        self
    }

    /// How many STARTs, and bytes of them, may wait for a node's READY, and
    /// for how long. One that does not fit, or waits longer, is answered with
    /// `full_cloud`. Default: 1024 STARTs, 64 MiB, 60 s.
    #[must_use]
    pub fn held(mut self, starts: usize, bytes: usize, time: Duration) -> Self {
        (self.held_starts, self.held_bytes, self.held_time) = (starts, bytes, time);
        self
    }

    /// How many STARTs may be with their nodes and not be answered yet, by
    /// STATS or a failure. One more is answered with `full_cloud`.
    /// Default: 1,048,576, of about 200 bytes each.
    #[must_use]
    pub fn in_flight(mut self, starts: usize) -> Self {
        self.in_flight = starts;
        self
    }

    /// How long a node may take for a START: `quiet` without a sign, or three of
    /// its intervals between STATS where that is longer, and `most` in all. The
    /// sign is that STATS list the instance as `pending`. One that takes longer is
    /// answered with `launch_failure`, and deleted. Default: 60 s, 15 minutes.
    #[must_use]
    pub fn start_time(mut self, quiet: Duration, most: Duration) -> Self {
        (self.start_quiet, self.start_most) = (quiet, most);
        self
    }

    /// How long a node may be away before the STARTs that it was given are
    /// answered with `launch_failure`: in that time an agent is started again, or
    /// connects again, and tells what became of them. Default: 15 s.
    #[must_use]
    pub fn absence(mut self, time: Duration) -> Self {
        self.absence = time;
        self
    }

    /// How often a node sends STATS that does not say so in them. Without any for
    /// three times as long a node is stale. Default: 30 s.
    #[must_use]
    pub fn stats_interval(mut self, interval: Duration) -> Self {
        self.stats_interval = interval;
        self
    }

    /// The cluster configuration to begin with, as YAML. A configuration file
    /// takes its place. Default: empty.
    #[must_use]
    pub fn configuration(mut self, yaml: impl Into<Bytes>) -> Self {
        self.configuration = yaml.into();
        self
    }

    /// The file that the cluster configuration is read from at the beginning,
    /// and written to whenever a controller changes it. It may be missing:
    /// then the cluster begins without a configuration, and the first
    /// CONFIGURE makes the file. Its directory has to be there. Only a
    /// scheduler that [`Scheduler::start`](super::Scheduler::start) started
    /// writes it; another one refuses CONFIGURE.
    /// Default: none; what controllers configure is lost with the scheduler.
    #[must_use]
    pub fn configuration_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.configuration_file = Some(path.into());
        self
    }
}

/// Why there is no scheduler.
#[derive(Debug)]
#[non_exhaustive]
pub enum SchedulerError {
    /// The configuration file cannot be read, or its directory is not there.
    Read(PathBuf, io::Error),
    /// The configuration is refused: of this file, or the one that was given.
    Configuration(Option<PathBuf>, payload::Error),
}

impl fmt::Display for SchedulerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, e) => write!(f, "{}: {e}", path.display()),
            Self::Configuration(Some(path), e) => write!(f, "{}: {e}", path.display()),
            Self::Configuration(None, e) => write!(f, "the configuration: {e}"),
        }
    }
}

impl std::error::Error for SchedulerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read(_, e) => Some(e),
            Self::Configuration(_, e) => Some(e),
        }
    }
}
