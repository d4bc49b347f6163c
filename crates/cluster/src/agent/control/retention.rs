//! How long ended instances are kept: for a time, and so many of them, by the
//! node's policy. Then they are deleted, the oldest first, and InstanceDeleted
//! says so.
//!
//! Persistent instances are their owner's to delete: they are kept, and count
//! when it comes to how many a node may have.

use std::time::{Duration, Instant};

use log::info;
use uuid::Uuid;

use super::{Control, Instance, Phase};
use crate::agent::store::RecordAfter;

impl Instance {
    /// Whether it has ended, and is only kept for a while.
    pub(super) fn is_retained(&self) -> bool {
        self.phase == Phase::Stopped && self.kept_until.is_some()
    }

    /// Whether its time is up, and it is being deleted.
    pub(super) fn is_retiring(&self) -> bool {
        self.phase == Phase::Removing && self.record.after == RecordAfter::Retire
    }
}

impl Control {
    pub(super) fn retention(&self) -> Duration {
        Duration::from_secs(self.settings.policy.retention_s.into())
    }

    /// An instance has just ended.
    pub(super) fn keep_for_now(&mut self, id: Uuid) {
        self.keep_for(id, self.retention());
    }

    pub(super) fn keep_for(&mut self, id: Uuid, time: Duration) {
        let until = self.now + time;
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.kept_until = (!instance.is_persistent()).then_some(until);
        }
    }

    /// Deletes what was kept long enough, and the oldest where there are too many.
    pub(super) fn retire(&mut self, now: Instant) {
        let most = usize::try_from(self.settings.policy.retention_count).unwrap_or(usize::MAX);
        let kept = |(id, instance): (&Uuid, &Instance)| match instance.is_retained() {
            true => instance.kept_until.map(|until| (until, *id)),
            false => None,
        };
        let mut kept: Vec<_> = self.instances.iter().filter_map(kept).collect();
        let over = kept.len().saturating_sub(most);
        if over == 0 && kept.iter().all(|(until, _)| *until > now) {
            return;
        }
        // Who is kept until the earliest ended first.
        kept.sort_unstable();
        for (n, (until, id)) in kept.into_iter().enumerate() {
            if n >= over && until > now {
                break;
            }
            info!(
                "{}: instance {id} was kept long enough, and is deleted",
                self.settings.node
            );
            if let Some(instance) = self.instances.get_mut(&id) {
                instance.record.after = RecordAfter::Retire;
            }
            self.remove(id);
            self.stats_soon(now);
        }
    }
}
