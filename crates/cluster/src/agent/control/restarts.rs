//! Instances that are started again by their node, as their START says.
//!
//! ```text
//!            ended by itself, and its policy says so
//!  Active ───────────────────────────────────────────▶ Stopped, due at some time
//!     ▲                                                  │  │
//!     └──────────────── Launching ◀── that time has come ┘  └─ STOP, EVACUATE: it stays;
//!                           └── failed: due again, later       DELETE: it goes
//! ```
//!
//! A command to end an instance counts at each of these points. Until it is started
//! again, STATS say `exited`, so that a controller that waits for its START sees that it
//! has run. It is not started while the node is OFFLINE. The record says that a restart
//! is due, so the next agent goes on, also after the machine was booted.

use std::time::Duration;

use log::info;
use uuid::Uuid;

use super::{Cause, Control, Life, Mode, Next};
use crate::agent::driver::Exit;
use crate::scheduler::placement::Needs;
use ssntp::payload::RestartPolicy;
use ssntp_transport::excerpt;

/// How long the node waits before the first restart. Each further wait is twice as long, up to
/// [`MOST`]: a program that fails at once costs a node some 300 runs a day.
const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(300);
/// How long an instance has to run for its next restart to be the first again:
/// longer than the longest wait.
const HEALTHY: Duration = Duration::from_secs(600);

impl Control {
    /// Whether instances are started again now, and not later.
    pub(super) fn may_restart(&self) -> bool {
        !self.offline && self.mode == Mode::Normal
    }

    /// An instance has ended by itself.
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
            // An unknown exit code counts as a failure: a supervisor that was killed leaves
            // none.
            Some(RestartPolicy::OnFailure) => exit.code != Some(0),
            _ => false,
        };
        match again {
            true => self.schedule_restart(id),
            false => self.keep_for_now(id),
        }
    }

    /// An instance could not be started again: that is tried later.
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
            record.detail = format!(
                "it was started again {limit} times in a row, and its node does not start it any more"
            );
            info!("{node}: instance {id}: {}", record.detail);
            return self.keep_for_now(id);
        }
        let wait = wait(record.restarts_in_row);
        record.restarts_in_row = record.restarts_in_row.saturating_add(1);
        instance.life = Life::Stopped(Next::StartAgain(now + wait));
        info!("{node}: instance {id} is started again in {} s", wait.as_secs());
    }

    /// Goes on with an instance that ended `age` ago, under a former agent.
    pub(super) fn take_up(&mut self, id: Uuid, age: Duration) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        if instance.record.restart_due {
            // The former agent counted the restart that it waited for.
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
            // Without its START or its driver it can never be started again, so it is not
            // tried.
            instance.life = Life::Stopped(Next::Stay);
            return self.save(id);
        };
        // The policy may have changed since the START: the agent reads it when it starts.
        if let Err(e) = self.settings.policy.check(driver.name(), &start.start) {
            return self.restart_later(id, &e.why);
        }
        let needs = Needs::of(&start.start).unwrap_or_default();
        // While it was stopped, others may have got its memory.
        if !self.has_room(&needs, true) {
            return self.restart_later(id, "there is no room");
        }
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.record.restarts = instance.record.restarts.saturating_add(1);
        }
        // Counted when it is tried: a launch that fails costs the node as much.
        self.tally.restarts += 1;
        self.launch_again(id, Cause::Policy, start, None);
    }
}

/// The wait before a restart, after `in_row` restarts without a long run between them.
fn wait(in_row: u32) -> Duration {
    FIRST.saturating_mul(2u32.saturating_pow(in_row)).min(MOST)
}
