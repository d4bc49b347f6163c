//! A START in flight, and its time limits.

use std::time::{Duration, Instant};

use crate::config::StartLimits;
use crate::placement::Allocation;

impl StartLimits {
    /// The deadline of a START that was sent to its node at `sent`, after a sign of progress at
    /// `now`. The node sends STATS every `interval`; two of them may be missed.
    pub(super) fn deadline(&self, sent: Instant, interval: Duration, now: Instant) -> Instant {
        (now + self.quiet.max(interval * 3)).min(sent + self.most)
    }
}

/// A START in flight: it was sent to a node, and is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingStart {
    pub(crate) allocation: Allocation,
    pub(crate) restart: bool,
    /// The time at which the START arrived from its controller.
    pub(crate) received: Instant,
    /// The number of nodes to which it was sent, including this one.
    pub(crate) nodes: u8,
    /// The time at which it was sent to this node.
    pub(super) sent: Instant,
    /// True if the node has listed the instance before, or has been away since. Then STATS
    /// without the instance mean that the START failed. Otherwise they may have crossed the START.
    pub(super) expected: bool,
}
