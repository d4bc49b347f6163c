//! Drivers, which run instances.
//!
//! ```text
//!  worker ──▶ launch: calls `commit`, which writes the run's ID to disk, and then runs the program
//!             terminate, kill, attach, detach, measure
//!             find ◀── in the next agent: the instance runs, or has ended
//!  agent  ◀── NewsSink: the instance ended, by itself or by a command; or its health has changed
//! ```
//!
//! An instance outlives its agent. So a driver commits before the first instruction of the instance
//! runs. Whenever the agent dies, either the instance is recorded on disk or it never ran.
//!
//! | file | holds |
//! |---|---|
//! | `process` | the program of an instance that is a process of this machine |
//! | `secrets` | the variables of a process that are in files of the node |
//! | `supervisor` | [`ProcessDriver`]: a supervisor for each run, which outlives the agent |

mod process;
mod secrets;
pub mod supervisor;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use self::process::{DEFAULT_PATH, give};
pub(crate) use self::supervisor::boot_id;
pub use self::supervisor::{Confinement, ProcessDriver, supervise};
pub use super::place::{InstanceDir, User};
use super::policy::Policy;
use crate::network::Wire;
pub use ssntp_cluster::refusal::{Reason, Refused};
use ssntp_payload::{HealthState, Start, StartPayload};
pub use ssntp_transport::Cancel;

/// Runs instances of one or several types.
///
/// The agent's workers call a driver: for one instance one call after the other, for several
/// instances at the same time. Calls may block for a limited time, but they do not wait
/// until an instance ends: `terminate` only asks, and [`watch`](Self::watch) reports the end.
pub trait Driver: Send + Sync + fmt::Debug {
    /// The name of the driver, as on the command line.
    fn name(&self) -> &'static str;

    /// Checks that the driver can run such an instance. The agent's own thread calls this, so the
    /// check uses the command alone and does not block.
    ///
    /// # Errors
    /// The driver can't run it; the error has the reason.
    fn check(&self, start: &Start) -> Result<(), Refused>;

    /// Launches an instance. `commit` writes the ID of the run to disk; if it fails, the instance
    /// must not run.
    ///
    /// # Errors
    /// The instance did not start, and none of its processes is left.
    fn launch(&self, launch: &Launch<'_>, commit: &mut Commit<'_>) -> Result<RunId, Refused>;

    /// Watches a run, and calls `sink` with its health, if it has a check, and once when it has ended, from
    /// any thread.
    fn watch(&self, running: &Running, sink: &NewsSink);

    /// Asks the instance to end.
    ///
    /// # Errors
    /// The instance could not be asked.
    fn terminate(&self, running: &Running) -> io::Result<()>;

    /// Kills the instance.
    ///
    /// # Errors
    /// The instance could not be killed.
    fn kill(&self, running: &Running) -> io::Result<()>;

    /// Finds out the state of an instance that a former agent launched.
    fn find(&self, running: &Running) -> Found;

    /// Finds the run of an instance whose record was lost.
    fn find_unrecorded(&self, place: &InstanceDir) -> Option<RunId>;

    /// Ends runs whose records and directories were removed from the state directory. `instances`
    /// is the directory of all instances, and `own` has the processes of the runs that the agent
    /// has records of. Called once, before the agent takes commands. The default does nothing.
    fn sweep(&self, instances: &Path, own: &HashSet<i32>) {
        let _ = (instances, own);
    }

    /// Measures the resources that each instance uses; the result has the same order. Called at
    /// each interval, for STATS.
    fn measure(&self, instances: &[Measurable]) -> Vec<Usage>;

    /// Drops the driver's data about an instance that was removed.
    fn forget(&self, place: &InstanceDir);

    /// Makes an attached volume usable to the instance. `running` is `None` if the instance does not
    /// run. The default does nothing: the instance finds the volume by the link in its directory.
    ///
    /// # Errors
    /// The volume was not attached; the error has the reason.
    fn attach(&self, _: &InstanceDir, _running: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        Ok(())
    }

    /// Detaches a volume from the instance. The default does nothing.
    ///
    /// # Errors
    /// The volume was not detached; the error has the reason.
    fn detach(&self, _: &InstanceDir, _running: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        Ok(())
    }
}

/// Writes the ID of a run to disk.
pub type Commit<'a> = dyn FnMut(&RunId) -> io::Result<()> + 'a;

/// The function that receives the news of runs.
pub type NewsSink = Arc<dyn Fn(News) + Send + Sync>;

/// What a driver tells about a run that it watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It has ended.
    Ended(Ended),
    /// It has this health now.
    Health {
        /// The instance.
        instance: Uuid,
        /// The run.
        handle: RunId,
        /// Its health.
        health: Health,
    },
}

impl From<Ended> for News {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

/// The health of a run, by the check of its START.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The health.
    pub state: HealthState,
    /// The time since which it has that health.
    pub since: SystemTime,
    /// The reason why the last check failed, in one line; empty if it has passed.
    pub why: String,
}

/// The end of a run of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The instance.
    pub instance: Uuid,
    /// The run that ended: a restarted instance has another one.
    pub handle: RunId,
    /// The exit code and further facts about the end.
    pub exit: Exit,
}

/// An instance to launch.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The directory of the instance.
    pub place: &'a InstanceDir,
    /// The START of the instance.
    pub payload: &'a StartPayload,
    /// The user that runs the instance; `None` for the agent's own user.
    pub user: Option<User>,
    /// The limits of this node.
    pub policy: &'a Policy,
    /// The network of the instance; `None` for the host's network.
    pub network: Option<&'a dyn Wire>,
    /// Cancels the launch. A driver checks it during long work.
    pub cancel: &'a Cancel,
}

/// The ID of one run of an instance, in a form that survives the agent: a process, with the facts
/// that tell it from a later process of the same number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RunId {
    /// The number of the process that stands for the run; 0 if there is none.
    pub pid: i32,
    /// The time at which that process started, in the kernel's ticks since boot.
    pub start_time: u64,
    /// The kernel's ID of the boot in which the process runs.
    pub boot_id: String,
}

/// A run of an instance that has not ended, or whose end the agent has not noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The directory of the instance.
    pub place: InstanceDir,
    /// The run.
    pub handle: RunId,
}

/// An instance to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurable {
    /// The directory of the instance.
    pub place: InstanceDir,
    /// The run; `None` while the instance is stopped.
    pub handle: Option<RunId>,
    /// The number of CPUs that the instance may use; 0 for no limit.
    pub vcpus: i64,
    /// The memory that the instance was promised, in MB.
    pub mem_mb: i64,
}

/// The state in which an instance of a former agent was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The instance runs.
    Running,
    /// The instance has ended.
    Ended(Exit),
    /// The instance never ran. Either the former agent died before it told the supervisor to run the
    /// program, or the program could not be executed.
    NeverRan,
}

/// The end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    /// The exit code, or 128 plus the number of the signal that ended it; `None` if it is
    /// unknown.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// True if the kernel killed a process of the run because the memory was used up. Only control
    /// groups report this.
    pub out_of_memory: bool,
    /// The time at which the run began.
    pub started: Option<SystemTime>,
    /// The time at which the run ended.
    pub ended: Option<SystemTime>,
    /// The last lines of its standard error, if it failed: a line for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_lines: String,
}

impl Exit {
    /// An end with that code.
    pub const fn code(code: i32) -> Self {
        Self {
            code: Some(code),
            signal: None,
            out_of_memory: false,
            started: None,
            ended: None,
            last_lines: String::new(),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), Some(signal)) => write!(f, "exit code {code} (signal {signal})")?,
            (Some(code), None) => write!(f, "exit code {code}")?,
            (None, _) => f.write_str("unknown exit code")?,
        }
        if self.out_of_memory {
            f.write_str(", out of memory")?;
        }
        Ok(())
    }
}

/// The resources that an instance uses; -1 if unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Memory in MB.
    pub memory_mb: i64,
    /// Disk in MB, with the removed files.
    pub disk_mb: i64,
    /// The bytes in files that the instance has removed and still uses; `None` if it uses too many
    /// files to count.
    pub removed: Option<u64>,
    /// CPU time since the last measurement, in percent of all CPUs of the instance.
    pub cpu_percent: i64,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            memory_mb: -1,
            disk_mb: -1,
            removed: Some(0),
            cpu_percent: -1,
        }
    }
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The UUID, which is the name of the volume.
    pub uuid: Uuid,
    /// The directory of the volume.
    pub path: PathBuf,
}
