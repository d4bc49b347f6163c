//! The retention of ended instances. The node's policy limits the time for which they are kept, and
//! their number. Beyond that they are deleted, the oldest first, and InstanceDeleted is sent.
//!
//! A persistent instance is kept until its owner deletes it, and counts for the limit of instances.

use std::time::Instant;

use uuid::Uuid;

/// The instances whose retention is over, of those that are kept until a time: it has come, or more than
/// `most` are kept.
pub(super) fn over(now: Instant, kept: impl Iterator<Item = (Instant, Uuid)>, most: u32) -> Vec<Uuid> {
    let mut kept: Vec<_> = kept.collect();
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let surplus = kept.len().saturating_sub(most);
    if surplus == 0 {
        // On most ticks no instance is due, and the list need not be sorted.
        kept.retain(|(until, _)| *until <= now);
    }
    // All instances are kept for the same time, so this is the order in which they ended.
    kept.sort_unstable();
    let is_over = |(n, (until, _)): &(usize, (Instant, Uuid))| *n < surplus || *until <= now;
    let over = kept.into_iter().enumerate().take_while(is_over);
    over.map(|(_, (_, id))| id).collect()
}
