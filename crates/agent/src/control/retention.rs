//! The retention of ended instances. The node's policy limits the time for which they are kept, and
//! their number. Beyond that they are deleted, the oldest first, and InstanceDeleted is sent.
//!
//! A persistent instance is kept until its owner deletes it, and counts for the limit of instances.

use std::time::{Duration, Instant};

use log::info;
use uuid::Uuid;

use super::{Control, Instance, Life, Next};
use crate::store::RecordAfter;

impl Instance {
    /// The time at which the retention of the instance is over. `None` if the instance has not
    /// ended, or is not deleted by retention.
    pub(super) fn kept_until(&self) -> Option<Instant> {
        match self.life {
            Life::Stopped(Next::Delete(at)) => Some(at),
            _ => None,
        }
    }

    /// True if the instance is being deleted because its retention is over.
    pub(super) fn is_retiring(&self) -> bool {
        matches!(self.life, Life::Removing(_)) && self.record.after == RecordAfter::Retire
    }
}

impl Control {
    pub(super) fn retention(&self) -> Duration {
        Duration::from_secs(self.settings.policy.retention_s.into())
    }

    /// Begins the retention of an instance that has just ended.
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
        // On most ticks no instance is due, and the list need not be sorted.
        if over == 0 && kept.iter().all(|(until, _)| *until > self.now) {
            return;
        }
        // All instances are kept for the same time, so this is the order in which they ended.
        kept.sort_unstable();
        for (n, (until, id)) in kept.into_iter().enumerate() {
            if n >= over && until > self.now {
                break;
            }
            info!(
                "{}: the retention of instance {id} is over, and it is deleted",
                self.settings.node
            );
            if let Some(instance) = self.instances.get_mut(&id) {
                // `removed` reads this field: it sends InstanceDeleted, or tries again after an
                // error.
                instance.record.after = RecordAfter::Retire;
            }
            self.remove(id);
            self.stats_soon();
        }
    }
}
