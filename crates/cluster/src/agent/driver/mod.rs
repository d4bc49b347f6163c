//! Drivers, which run instances.
//!
//! ```text
//!             launch ─▶ prepare ─▶ commit (the agent writes the handle down) ─▶ go
//!  worker ──▶ terminate, kill, attach, detach, measure
//!             find ◀── after the agent came back: still running, or how it ended
//!  agent  ◀── EndSink: it ended, by itself or by a command
//! ```
//!
//! An instance outlives its agent. So a driver commits before the instance's
//! first instruction runs: when the agent dies at any moment, either the
//! instance is written down or it never ran.
//!
//! | file | holds |
//! |---|---|
//! | `process` | [`ProcessDriver`]: a process of this machine |
//! | `qemu` | [`QemuDriver`]: a virtual machine |
//! | `supervisor` | a process for each run, which outlives the agent, for drivers that run programs |

mod process;
mod qemu;
mod supervisor;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use self::process::ProcessDriver;
pub(crate) use self::process::give;
pub use self::qemu::QemuDriver;
pub(super) use self::supervisor::boot_id;
pub use self::supervisor::{Confinement, supervise};
use super::policy::Policy;
use crate::network::Wire;
use ssntp::payload::{Start, StartPayload};

/// Runs instances of one kind or several.
///
/// The agent's workers call it: for one instance one call after the other, for several
/// instances at the same time. Calls may block for a limited time, but they do not wait
/// until an instance ends: `terminate` asks it to, and [`watch`](Self::watch) tells when
/// it has ended.
pub trait Driver: Send + Sync + fmt::Debug {
    /// Its name, as on the command line.
    fn name(&self) -> &'static str;

    /// Whether it can run such an instance. Called on the agent's own thread, so it looks at
    /// the command alone.
    ///
    /// # Errors
    /// It can't; the error says why.
    fn check(&self, start: &Start) -> Result<(), LaunchError>;

    /// Launches an instance. `commit` writes the handle to disk; if it
    /// fails, the instance must not run.
    ///
    /// # Errors
    /// It did not start, and nothing of it is left running.
    fn launch(&self, launch: &Launch<'_>, commit: &mut Commit<'_>) -> Result<RunId, LaunchError>;

    /// Tells `sink` once when the instance has ended, from any thread.
    fn watch(&self, running: &Running, sink: &EndSink);

    /// Asks it to end.
    ///
    /// # Errors
    /// It could not be asked.
    fn terminate(&self, running: &Running) -> io::Result<()>;

    /// Kills it.
    ///
    /// # Errors
    /// It could not be killed.
    fn kill(&self, running: &Running) -> io::Result<()>;

    /// Finds out whether an instance that a former agent launched still runs, or how it ended.
    fn find(&self, running: &Running) -> Found;

    /// Finds the run of an instance whose record was lost.
    fn find_unrecorded(&self, place: &InstanceDir) -> Option<RunId>;

    /// Ends the runs in directories of instances that the agent does not know: somebody removed
    /// what it kept. `instances` is the directory of all of them, and `own` has the processes
    /// of the runs that it knows. Called once, before the agent takes commands. The default
    /// does nothing.
    fn sweep(&self, instances: &Path, own: &HashSet<i32>) {
        let _ = (instances, own);
    }

    /// Measures what each instance uses now; the result has the same order. It is called for
    /// STATS, at each interval.
    fn measure(&self, instances: &[Measurable]) -> Vec<Usage>;

    /// Forgets what it keeps of an instance that was removed.
    fn forget(&self, place: &InstanceDir);

    /// Makes a volume that was attached usable to the instance, which runs
    /// when it has a handle.
    ///
    /// # Errors
    /// The volume was not attached; the error says why.
    fn attach(
        &self,
        place: &InstanceDir,
        running: Option<&RunId>,
        volume: &Volume,
    ) -> Result<(), VolumeError>;

    /// Takes a volume from the instance.
    ///
    /// # Errors
    /// The volume was not detached; the error says why.
    fn detach(
        &self,
        place: &InstanceDir,
        running: Option<&RunId>,
        volume: &Volume,
    ) -> Result<(), VolumeError>;
}

/// Writes the handle of an instance down.
pub type Commit<'a> = dyn FnMut(&RunId) -> io::Result<()> + 'a;

/// Is called when an instance has ended.
pub type EndSink = Arc<dyn Fn(Ended) + Send + Sync>;

/// An instance that ended: which one, which of its runs, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The instance.
    pub instance: Uuid,
    /// Its run: a restarted instance has another handle.
    pub handle: RunId,
    /// How it ended.
    pub exit: Exit,
}

/// The directory of an instance.
///
/// ```text
/// DIR/
///   instance.yaml  start.yaml      the agent's
///   stdout.log  stderr.log         its output of all runs, within bounds
///   run/                           of its last run: state and socket
///   disks/                         those of a virtual machine
///   volumes/UUID                   a link to each volume
///   work/                          its own directory
/// ```
///
/// An instance with a user of its own can write in `work` and nowhere else, so the agent
/// can trust the content of all other directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceDir {
    instance: Uuid,
    dir: PathBuf,
}

impl InstanceDir {
    /// The instance at a directory.
    pub fn new(instance: Uuid, dir: impl Into<PathBuf>) -> Self {
        Self {
            instance,
            dir: dir.into(),
        }
    }

    /// The instance.
    pub fn instance(&self) -> Uuid {
        self.instance
    }

    /// Its directory, with all that is kept of it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory that it works in.
    pub fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// The directory of links to its volumes.
    pub fn volumes(&self) -> PathBuf {
        self.dir.join("volumes")
    }
}

/// An instance to launch.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Its directory.
    pub place: &'a InstanceDir,
    /// The START that made it.
    pub payload: &'a StartPayload,
    /// The user it runs as; `None` for the agent's own user.
    pub user: Option<User>,
    /// The limits of this node.
    pub policy: &'a Policy,
    /// Its network; `None` for the host's.
    pub network: Option<&'a Wire>,
    /// Is set when the launch is no longer wanted; long work checks it.
    pub cancel: &'a Cancel,
}

/// A user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// Its only group.
    pub gid: u32,
    /// Whether it runs nothing but this instance.
    pub alone: bool,
}

/// A flag that work is no longer wanted. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Sets the flag.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// One run of an instance, in a form that survives the agent: a process, and
/// what tells it from a later process with the same number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RunId {
    /// The process that stands for it; 0 if there is none.
    pub pid: i32,
    /// When that process started, in the kernel's ticks since boot.
    pub start_time: u64,
    /// The boot in which it runs.
    pub boot_id: String,
}

/// An instance that runs, as far as the agent knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its directory.
    pub place: InstanceDir,
    /// Its run.
    pub handle: RunId,
}

/// An instance to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurable {
    /// Its directory.
    pub place: InstanceDir,
    /// Its run; `None` while it is stopped.
    pub handle: Option<RunId>,
    /// The CPUs it may use; 0 for no limit.
    pub vcpus: i64,
    /// The memory it was promised.
    pub mem_mb: i64,
}

/// The state in which an instance of a former agent was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It runs.
    Running,
    /// It ended.
    Ended(Exit),
    /// It ended before its first instruction: the agent died before it let the program run,
    /// or before it heard that the program could not be executed.
    NeverRan,
}

/// How an instance ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    /// The exit code, or 128 plus the number of the signal that ended it; `None` if it is
    /// unknown.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Whether a process of it was killed because its memory was used up; only
    /// control groups tell.
    pub out_of_memory: bool,
    /// When it was started.
    pub started: Option<SystemTime>,
    /// When it ended.
    pub ended: Option<SystemTime>,
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
    /// Disk in MB.
    pub disk_mb: i64,
    /// The part of it in bytes that is in files that it has removed and still uses; `None` if
    /// it uses too many files to look at.
    pub removed: Option<u64>,
    /// CPU time since the last measurement, in percent of all its CPUs.
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

/// A volume: its name and its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub uuid: Uuid,
    /// Its directory.
    pub path: PathBuf,
}

/// An instance did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{why}")]
pub struct LaunchError {
    /// The cause.
    pub fault: LaunchFault,
    /// The explanation, in one line.
    pub why: String,
}

/// The reason why an instance did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LaunchFault {
    /// The command asks for something that makes no sense.
    Data,
    /// Its image or a volume isn't there.
    Image,
    /// The node has no room any more.
    Full,
    /// Its network could not be set up.
    Network,
    /// Anything else.
    Launch,
}

impl LaunchError {
    /// An error with its explanation.
    pub fn new(fault: LaunchFault, why: impl Into<String>) -> Self {
        Self {
            fault,
            why: why.into(),
        }
    }

    /// It couldn't be launched.
    pub fn launch(why: impl Into<String>) -> Self {
        Self::new(LaunchFault::Launch, why)
    }

    /// An error of the system, about `what`: a full disk is a full node.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        let fault = match error.kind() {
            // For `full_cn` the scheduler tries other nodes.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => LaunchFault::Full,
            _ => LaunchFault::Launch,
        };
        Self::new(fault, format!("{what}: {error}"))
    }
}

/// A volume was not attached or detached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct VolumeError {
    /// The cause.
    pub fault: VolumeFault,
    /// The explanation, in one line.
    pub why: String,
}

/// The reason why a volume was not attached or detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VolumeFault {
    /// Such instances, or this node, take no volumes.
    NotSupported,
    /// It couldn't be written down.
    State,
    /// The instance refused.
    Instance,
    /// Anything else: there is no such volume.
    Failed,
}

impl VolumeError {
    /// An error with its explanation.
    pub fn new(fault: VolumeFault, why: impl Into<String>) -> Self {
        Self {
            fault,
            why: why.into(),
        }
    }
}
