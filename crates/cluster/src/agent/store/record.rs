//! The records of an instance and of the node.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::agent::driver::{Exit, RunId, boot_id};
use ssntp::payload::{NextState, StartPayload};

/// The record of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// The driver that runs it.
    pub(crate) driver: String,
    pub(crate) phase: RecordPhase,
    pub(crate) pid: i32,
    pub(crate) start_time: u64,
    pub(crate) boot_id: String,
    /// Whether its run is, or was, the first.
    pub(crate) first_run: bool,
    /// The exit code of its last run; -1 unknown.
    pub(crate) exit_code: i32,
    /// The signal that ended it; 0 none.
    pub(crate) exit_signal: i32,
    pub(crate) out_of_memory: bool,
    /// When that run began and ended, in milliseconds since 1970; 0 unknown.
    pub(crate) started: u64,
    pub(crate) ended: u64,
    /// Why its node ended it, or could not start it again: a line for people.
    pub(crate) detail: String,
    /// How often its node has started it again by itself, in all and since it last
    /// ran for long.
    pub(crate) restarts: u32,
    pub(crate) restarts_in_row: u32,
    /// It has ended, and its restart policy is to start it again.
    pub(crate) restart_due: bool,
    /// The step that a command asked for after the end of the instance.
    pub(crate) after: RecordAfter,
    /// When it was written: the boot, and the seconds since then. The time of day may jump.
    pub(crate) written_boot: String,
    pub(crate) written_uptime: u64,
}

/// How far an instance had come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordPhase {
    /// It was being launched, and did not run yet.
    #[default]
    Starting,
    /// It ran.
    Running,
    /// It had stopped.
    Stopped,
}

/// The step that follows the end of an instance, as a command asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordAfter {
    /// Nothing was asked.
    #[default]
    Nothing,
    /// Stop and keep.
    Keep,
    /// Stop, keep, and say InstanceStopped.
    Evacuate,
    /// Remove, and say InstanceDeleted.
    Delete,
    /// Remove, and say InstanceStopped.
    Release,
    /// Remove, since it was kept long enough, and say InstanceDeleted.
    Retire,
}

impl Record {
    /// Whether it is the record of the run that a START made, while that runs.
    pub(crate) fn is_first_run(&self) -> bool {
        self.first_run && self.phase == RecordPhase::Running
    }

    /// The same record, as it is written down now.
    pub(super) fn written(&self) -> Self {
        Self {
            written_boot: boot_id(),
            written_uptime: uptime(),
            ..self.clone()
        }
    }

    /// How long ago it was written. If the machine was booted since, this is the time since
    /// then, and the true age is longer.
    pub(super) fn age(&self) -> Duration {
        let since = match self.written_boot == boot_id() {
            true => self.written_uptime,
            false => 0,
        };
        Duration::from_secs(uptime().saturating_sub(since))
    }

    /// The run that was under way when it was written.
    pub(crate) fn handle(&self) -> Option<RunId> {
        (self.phase == RecordPhase::Running).then(|| RunId {
            pid: self.pid,
            start_time: self.start_time,
            boot_id: self.boot_id.clone(),
        })
    }

    /// The record of the same instance after a new run began at `started`, in milliseconds since
    /// 1970; 0 if the time is unknown.
    pub(crate) fn running(&self, handle: &RunId, started: u64) -> Self {
        Self {
            driver: self.driver.clone(),
            phase: RecordPhase::Running,
            pid: handle.pid,
            start_time: handle.start_time,
            boot_id: handle.boot_id.clone(),
            // Only a record that has never seen a run is `Starting`.
            first_run: self.phase == RecordPhase::Starting,
            exit_code: -1,
            started,
            restarts: self.restarts,
            restarts_in_row: self.restarts_in_row,
            // The end of the run before, and the command that asked for it, count no more.
            ..Self::default()
        }
    }

    /// The same instance, stopped.
    pub(crate) fn stopped(&self, exit: Exit) -> Self {
        Self {
            driver: self.driver.clone(),
            phase: RecordPhase::Stopped,
            exit_code: exit.code.unwrap_or(-1),
            exit_signal: exit.signal.unwrap_or(0),
            out_of_memory: exit.out_of_memory,
            started: exit.started.map_or(self.started, millis),
            ended: exit.ended.map_or(0, millis),
            detail: self.detail.clone(),
            restarts: self.restarts,
            restarts_in_row: self.restarts_in_row,
            after: self.after,
            // The process has ended, so its number is not kept: it may become that of another
            // one.
            ..Self::default()
        }
    }
}

/// The seconds since the machine was booted, with those that it slept.
fn uptime() -> u64 {
    // An `Instant` could not be compared with that of a former agent.
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split('.').next().and_then(|seconds| seconds.parse().ok());
    seconds.unwrap_or(0)
}

/// A time as a record has it.
pub(crate) fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The record of the whole node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeRecord {
    /// It is being evacuated, or was.
    pub(crate) maintenance: bool,
    /// The next state of the machine, once the node is evacuated.
    pub(crate) next_state: NextState,
    /// It was taken out of service on the node itself.
    pub(crate) offline: bool,
}

/// An instance as it was found on disk.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) instance: Uuid,
    /// `None` if it can't be read; a copy was set aside.
    pub(crate) record: Option<Record>,
    /// `None` if it can't be read; a copy was set aside.
    pub(crate) start: Option<Box<StartPayload>>,
    pub(crate) volumes: BTreeSet<Uuid>,
    /// Its last run was in another boot.
    pub(crate) rebooted: bool,
    /// How old its record is.
    pub(crate) age: Duration,
}
