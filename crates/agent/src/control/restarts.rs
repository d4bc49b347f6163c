//! Restarts of instances by the restart policy of their START.
//!
//! ```text
//!            ended by itself, and its policy says so
//!  Active ───────────────────────────────────────────▶ Stopped, due at some time
//!     ▲                                                  │  │
//!     └──────────────── Launching ◀── that time has come ┘  └─ STOP, EVACUATE: it is kept;
//!                           └── failed: due again, later       DELETE: it is removed
//! ```
//!
//! A command to end an instance takes effect in each of these states. Until the instance is started
//! again, STATS report it as `exited`, so that a controller that waits for its START sees that it
//! has run. No instance is started while the node is OFFLINE or in maintenance. The record says
//! that a restart is due, so the next agent performs it, also after a reboot.

use std::time::Duration;

use log::info;
use uuid::Uuid;

use super::{Cause, Control, Life, Mode, Next};
use crate::driver::Exit;
use ssntp_cluster::Needs;
use ssntp_payload::RestartPolicy;
use ssntp_transport::excerpt;

/// The wait before the first restart. Each further wait is twice as long, up to [`MOST`], so a
/// program that fails at once costs a node some 300 runs a day.
const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(300);
/// After a run of this length, the next restart counts as the first again. It is longer than the
/// longest wait.
const HEALTHY: Duration = Duration::from_secs(600);

impl Control {
    /// True if a restart that is due may be performed now.
    pub(super) fn may_restart(&self) -> bool {
        !self.offline && self.mode == Mode::Normal
    }

    /// Decides between a restart and retention for an instance that has ended by itself.
    pub(super) fn restart_or_keep(&mut self, id: Uuid, exit: Exit) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        if self.now.saturating_duration_since(instance.since) >= HEALTHY {
            instance.record.restarts_in_row = 0;
        }
        let policy = instance.start.as_ref().map(|start| &start.start.restart_policy);
        let again = match policy {
            Some(RestartPolicy::Always) => true,
            // An unknown exit code counts as a failure: a supervisor that was killed writes no exit
            // code.
            Some(RestartPolicy::OnFailure) => exit.code != Some(0),
            _ => false,
        };
        match again {
            true => self.schedule_restart(id),
            false => self.keep_for_now(id),
        }
    }

    /// Schedules another try for an instance that could not be started again.
    pub(super) fn restart_later(&mut self, id: Uuid, why: &str) {
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.record.detail = excerpt(format_args!("it was not started again: {why}")).to_string();
            self.schedule_restart(id);
            self.save(id);
        }
    }

    fn schedule_restart(&mut self, id: Uuid) {
        let (now, node) = (self.now, self.settings.node);
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        let start = instance.start.as_ref();
        let limit = start.map_or(0, |start| start.start.restart_limit);
        let record = &mut instance.record;
        if limit > 0 && record.restarts_in_row >= limit {
            record.detail =
                format!("it was started again {limit} times in a row, which is its restart_limit");
            info!("{node}: instance {id}: {}", record.detail);
            return self.keep_for_now(id);
        }
        let wait = wait(record.restarts_in_row);
        record.restarts_in_row = record.restarts_in_row.saturating_add(1);
        instance.life = Life::Stopped(Next::StartAgain(now + wait));
        info!("{node}: instance {id} is started again in {} s", wait.as_secs());
    }

    /// Continues the restart or the retention of an instance that ended `age` ago, under a former
    /// agent.
    pub(super) fn take_up(&mut self, id: Uuid, age: Duration) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        if instance.record.restart_due {
            // The former agent has counted this restart already.
            let wait = wait(instance.record.restarts_in_row.saturating_sub(1));
            instance.life = Life::Stopped(Next::StartAgain(self.now + wait));
        } else {
            self.keep_for(id, self.retention().saturating_sub(age));
        }
    }

    /// Starts the instances whose restart is due.
    pub(super) fn restart_due(&mut self) {
        if !self.may_restart() {
            return;
        }
        let due = self.instances.iter().filter(
            |(_, instance)| matches!(instance.life, Life::Stopped(Next::StartAgain(at)) if self.now >= at),
        );
        // Collected first, because a start changes the instances.
        let due: Vec<_> = due.map(|(id, _)| *id).collect();
        for id in due {
            self.start_again(id);
            self.stats_soon();
        }
    }

    fn start_again(&mut self, id: Uuid) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        let (Some(start), Some(driver)) = (instance.start.clone(), instance.driver.clone()) else {
            // Without its START or its driver it can't be started again, so no restart is tried.
            instance.life = Life::Stopped(Next::Stay);
            return self.save(id);
        };
        // The policy may have changed since the START, because each agent reads it when it starts.
        if let Err(e) = self.settings.policy.check(driver.name(), &start.start) {
            return self.restart_later(id, &e.why);
        }
        let needs = Needs::of(&start.start).unwrap_or_default();
        // Another instance may have been given the memory while this one was stopped.
        if !self.has_room(&needs, true) {
            return self.restart_later(id, "the node has no room for it");
        }
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.record.restarts = instance.record.restarts.saturating_add(1);
        }
        // Counted before the launch, because a launch that fails costs the node as much.
        self.tally.restarts += 1;
        self.launch_again(id, Cause::Policy, start, None);
    }
}

/// The wait before a restart, after `in_row` restarts without a long run between them.
fn wait(in_row: u32) -> Duration {
    FIRST.saturating_mul(2u32.saturating_pow(in_row)).min(MOST)
}
