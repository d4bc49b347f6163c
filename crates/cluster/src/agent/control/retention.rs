//! How long ended instances are kept: for a time, and so many of them, by the
//! node's policy. Then they are deleted, the oldest first, and InstanceDeleted
//! says so.
//!
//! Persistent instances are deleted by their owner alone: they are kept, and count
//! among the instances that a node may have.

use std::time::{Duration, Instant};

use log::info;
use uuid::Uuid;

use super::{Control, Instance, Life, Next};
use crate::agent::store::RecordAfter;

impl Instance {
    /// When its retention ends; `None` if the instance has not ended, or is not deleted by
    /// retention.
    pub(super) fn kept_until(&self) -> Option<Instant> {
        match self.life {
            Life::Stopped(Next::Delete(at)) => Some(at),
            _ => None,
        }
    }

    /// Whether it is being deleted because its retention is over.
    pub(super) fn is_retiring(&self) -> bool {
        matches!(self.life, Life::Removing(_)) && self.record.after == RecordAfter::Retire
    }
}

impl Control {
    pub(super) fn retention(&self) -> Duration {
        Duration::from_secs(self.settings.policy.retention_s.into())
    }

    /// Keeps an instance that has just ended.
    pub(super) fn keep_for_now(&mut self, id: Uuid) {
        self.keep_for(id, self.retention());
    }

    pub(super) fn keep_for(&mut self, id: Uuid, time: Duration) {
        let until = self.now + time;
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.life = Life::Stopped(match instance.is_persistent() {
                true => Next::Stay,
                false => Next::Delete(until),
            });
        }
    }

    /// Deletes instances whose retention is over, and the oldest if there are too many.
    pub(super) fn retire(&mut self) {
        let most = usize::try_from(self.settings.policy.retention_count).unwrap_or(usize::MAX);
        let kept = |(id, instance): (&Uuid, &Instance)| Some((instance.kept_until()?, *id));
        let mut kept: Vec<_> = self.instances.iter().filter_map(kept).collect();
        let over = kept.len().saturating_sub(most);
        // Sorting is spared on most ticks, on which nothing is due.
        if over == 0 && kept.iter().all(|(until, _)| *until > self.now) {
            return;
        }
        // All are kept for the same time, so this is the order in which they ended.
        kept.sort_unstable();
        for (n, (until, id)) in kept.into_iter().enumerate() {
            if n >= over && until > self.now {
                break;
            }
            info!(
                "{}: instance {id} was kept long enough, and is deleted",
                self.settings.node
            );
            if let Some(instance) = self.instances.get_mut(&id) {
                // `removed` reads this to send InstanceDeleted, and to try again after an
                // error.
                instance.record.after = RecordAfter::Retire;
            }
            self.remove(id);
            self.stats_soon();
        }
    }
}
