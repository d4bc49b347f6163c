//! The records of an instance and of the node.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::driver::{Exit, RunId, boot_id};
use ssntp_payload::{InstanceEnd, NextState, StartPayload};
use ssntp_transport::since_1970;

/// The record of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The name of the driver.
    pub driver: String,
    pub phase: RecordPhase,
    pub pid: i32,
    pub start_time: u64,
    pub boot_id: String,
    /// True while the instance runs for the first time, after its START.
    pub first_run: bool,
    /// The exit code of the last run; -1 if it is unknown.
    pub exit_code: i32,
    /// The number of the signal that ended the last run; 0 if no signal did.
    pub exit_signal: i32,
    pub out_of_memory: bool,
    /// The times at which the last run began and ended, in milliseconds since 1970; 0 if unknown.
    pub started: u64,
    pub ended: u64,
    /// The reason why the node killed the instance, or could not start it again: a line for people.
    pub detail: String,
    /// The last lines of the standard error of the last run, if it failed.
    pub last_lines: String,
    /// The number of restarts by the restart policy, in all and since the last long run.
    pub restarts: u32,
    pub restarts_in_row: u32,
    /// The instance has ended, and its restart policy is about to start it again.
    pub restart_due: bool,
    /// A RESTART is being carried out, and is not answered yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub restarting: bool,
    /// The step that follows the end of the instance.
    pub after: RecordAfter,
    /// The time of writing: the boot, and the seconds since then. The time of day is not used,
    /// because it may jump.
    pub written_boot: String,
    pub written_uptime: u64,
}

/// The phase of an instance at the time of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordPhase {
    /// The instance was being launched for the first time, and did not run yet.
    #[default]
    Starting,
    /// The instance ran.
    Running,
    /// The instance had stopped.
    Stopped,
}

/// The step that follows the end of an instance, by a command or by retention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordAfter {
    /// No command asked for the end.
    #[default]
    Nothing,
    /// Keep the instance.
    Keep,
    /// Keep the instance, and send InstanceStopped.
    Evacuate,
    /// Remove the instance, and send InstanceDeleted.
    Delete,
    /// Remove the instance, and send InstanceStopped.
    Release,
    /// Remove the instance because its retention is over, and send InstanceDeleted.
    Retire,
}

impl RecordAfter {
    /// True if the instance is removed.
    pub(crate) fn removes(self) -> bool {
        matches!(self, Self::Delete | Self::Release | Self::Retire)
    }
}

impl Record {
    /// The end of the last run, as events report it. Empty if the instance never ran, or its end is unknown.
    pub(crate) fn end(self) -> InstanceEnd {
        if self.phase != RecordPhase::Stopped {
            return InstanceEnd::default();
        }
        InstanceEnd {
            exit_code: self.exit_code.into(),
            exit_signal: self.exit_signal.into(),
            out_of_memory: self.out_of_memory,
            detail: self.detail,
            last_lines: self.last_lines,
        }
    }

    /// True for an instance that runs for the first time, after its START.
    pub(crate) fn is_first_run(&self) -> bool {
        self.first_run && self.phase == RecordPhase::Running
    }

    /// The same record, with the present time as the time of writing.
    pub(super) fn written(&self) -> Self {
        Self {
            written_boot: boot_id(),
            written_uptime: uptime(),
            ..self.clone()
        }
    }

    /// The time since the record was written. After a reboot it is the time since the boot, which is
    /// less than the true age.
    pub(super) fn age(&self) -> Duration {
        let since = if self.written_boot == boot_id() {
            self.written_uptime
        } else {
            0
        };
        Duration::from_secs(uptime().saturating_sub(since))
    }

    /// The run that was under way when the record was written.
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
            // The record is `Starting` only before the first run.
            first_run: self.phase == RecordPhase::Starting,
            exit_code: -1,
            started,
            restarts: self.restarts,
            restarts_in_row: self.restarts_in_row,
            // Written before the program runs, so the RESTART may still fail.
            restarting: self.restarting,
            // The end of the run before, and the command that asked for it, are dropped.
            ..Self::default()
        }
    }

    /// The record of the same instance after the end of its run.
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
            last_lines: exit.last_lines,
            restarts: self.restarts,
            restarts_in_row: self.restarts_in_row,
            after: self.after,
            // The number of the process is dropped, because another process may get it.
            ..Self::default()
        }
    }
}

/// The seconds since the boot, with the time in which the machine slept.
fn uptime() -> u64 {
    // An `Instant` is not comparable with that of a former agent.
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split('.').next().and_then(|seconds| seconds.parse().ok());
    seconds.unwrap_or(0)
}

/// A time in milliseconds since 1970, as in a record.
pub(crate) fn millis(at: SystemTime) -> u64 {
    u64::try_from(since_1970(at).as_millis()).unwrap_or(u64::MAX)
}

/// The record of the whole node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeRecord {
    /// The node is being evacuated, or is in maintenance.
    pub maintenance: bool,
    /// The next state of the machine, once the node is evacuated.
    pub next_state: NextState,
    /// The agent's owner has taken the node out of service.
    pub offline: bool,
    /// A former record could not be read, and nobody has restored the node since.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
}

/// An instance as it was found on disk.
#[derive(Debug)]
pub(crate) struct Stored {
    pub instance: Uuid,
    /// `None` if the record can't be read; a copy was set aside.
    pub record: Option<Record>,
    /// `None` if the START can't be read; a copy was set aside.
    pub start: Option<Box<StartPayload>>,
    /// The attached volumes.
    pub volumes: BTreeSet<Uuid>,
    /// True if the last run began in another boot.
    pub rebooted: bool,
    /// The age of the record.
    pub age: Duration,
}
