//! The options of a scheduler.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use super::enrolment::Enrolments;
use super::placement::Policy;
use ssntp::payload;
use ssntp_transport::{NEVER, setters};

/// The controllers that may send commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerMode {
    /// All controllers.
    #[default]
    Any,
    /// Only the master: the controller that has been connected longest. The others are backups,
    /// which receive all reports. When the master disconnects, the backup that has been connected
    /// longest becomes the master.
    Master,
}

/// The options of a [`Scheduler`](super::Scheduler).
///
/// ```
/// use ssntp_scheduler::{ControllerMode, SchedulerConfig};
/// use ssntp_scheduler::placement::Policy;
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
    pub(super) starts: StartLimits,
    pub(super) configuration: Bytes,
    pub(super) configuration_file: Option<PathBuf>,
    pub(super) state: Option<PathBuf>,
    pub(super) enrolments: Option<Enrolments>,
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
            starts: StartLimits {
                quiet: Duration::from_secs(60),
                // Longer than the ten minutes that the QEMU driver gives to the copy of an
                // image.
                most: Duration::from_secs(900),
                absence: Duration::from_secs(15),
                // The default interval of the agents.
                interval: Duration::from_secs(30),
            },
            configuration: Bytes::new(),
            configuration_file: None,
            state: None,
            enrolments: None,
        }
    }
}

impl SchedulerConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// The directory in which the scheduler keeps the node of each instance. After a restart, the
        /// scheduler then knows the instances of nodes that are away, and starts none of them a second
        /// time. Default: none.
        state as Some: impl Into<PathBuf>;

        /// The file with the cluster configuration. The scheduler reads it at the start, and writes it
        /// when a controller changes the configuration. If the file does not exist, the cluster begins
        /// without a configuration, and the first CONFIGURE creates the file; its directory must
        /// exist. Only a scheduler that was started by
        /// [`Scheduler::start`](super::Scheduler::start) writes the file; otherwise CONFIGURE is
        /// refused. Default: none; changes of the configuration are lost when the scheduler ends.
        configuration_file as Some: impl Into<PathBuf>;

        /// The number of STARTs that a node receives for one READY. Default: [`Policy::Strict`].
        policy: Policy;

        /// The controllers that may send commands. Default: [`ControllerMode::Any`].
        controllers: ControllerMode;

        /// The maximum number of STARTs in flight: sent to a node, and not answered yet by STATS or a
        /// failure. A further START is answered with `full_cloud`. Default: 1,048,576, of about 200
        /// bytes each.
        in_flight: usize;

        /// The initial cluster configuration, as YAML. A configuration file replaces it. Default:
        /// empty.
        configuration: impl Into<Bytes>;

        /// The tokens and certificates of nodes that join. If the server has an
        /// [`Enrolment`](ssntp::server::Enrolment) with the same store, the scheduler carries out the commands of
        /// operators about them, and refuses these commands otherwise. No node is admitted while the engine's
        /// document with them was not read, so that no revoked certificate is. Default: none.
        enrolments: Enrolments;
    }

    /// The limits of the STARTs that wait for a node's READY: their number, their bytes in all, and their time. A START beyond these limits is answered with `full_cloud`. Default: 1024 STARTs,
    /// 64 MiB, 60 s. All controllers share the room: each may end every instance anyway, so a share
    /// would protect none, and would take room from the only one.
    #[must_use]
    pub fn held(mut self, starts: usize, bytes: usize, time: Duration) -> Self {
        (self.held_starts, self.held_bytes, self.held_time) = (starts, bytes, time.min(NEVER));
        self
    }

    /// The longest time that a node may take for a START: `most` in all, and `quiet` (or three
    /// intervals between STATS, if that is longer) without STATS that list the instance as
    /// `pending`. A START that takes longer is answered with `launch_failure`, and its instance is
    /// deleted. Default: 60 s, 15 minutes.
    #[must_use]
    pub fn start_time(mut self, quiet: Duration, most: Duration) -> Self {
        (self.starts.quiet, self.starts.most) = (quiet.min(NEVER), most.min(NEVER));
        self
    }

    /// The time that a node may be away before its STARTs in flight are answered with
    /// `launch_failure`. In that time an agent can restart or reconnect, and report their outcome.
    /// Default: 15 s.
    #[must_use]
    pub fn absence(mut self, time: Duration) -> Self {
        self.starts.absence = time.min(NEVER);
        self
    }

    /// The interval between STATS of a node whose STATS do not announce it. A node that sends no
    /// STATS for three intervals is stale. Default: 30 s.
    #[must_use]
    pub fn stats_interval(mut self, interval: Duration) -> Self {
        self.starts.interval = interval.min(NEVER);
        self
    }
}

/// The time limits of a START.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StartLimits {
    /// The longest time without a sign of progress from its node.
    pub(crate) quiet: Duration,
    /// The longest time in all.
    pub(crate) most: Duration,
    /// The time from the disconnection of its node to the answer.
    pub(crate) absence: Duration,
    /// The interval between STATS of a node that has not announced its own.
    pub(crate) interval: Duration,
}

/// The reason why a scheduler cannot be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SchedulerError {
    /// The configuration file or the state directory cannot be used.
    #[error("{}: {_1}", _0.display())]
    Read(PathBuf, #[source] io::Error),
    /// The configuration is invalid: the one of this file, or of [`SchedulerConfig`] if `None`.
    #[error("{}: {_1}", _0.as_ref().map_or("the configuration".into(), |path| path.display().to_string()))]
    Configuration(Option<PathBuf>, #[source] payload::Error),
}
