//! How busy a dispatcher is.

use std::time::Duration;

use crate::histogram::Histogram;

/// How busy a server's dispatcher is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DispatcherFigures {
    /// Events that wait for it.
    pub events: usize,
    /// The capacity of the channel. When it is full, readers wait.
    pub max_events: usize,
    /// Connections whose input waits for a turn.
    pub with_input: usize,
    /// How long events have waited until the dispatcher took them.
    pub waits: Histogram,
    /// How long the request for these figures waited.
    pub waited: Duration,
    /// The processor time of its turns, without the sending of what they cause. A turn is the
    /// input of one connection that it deals with before the next connection's; it should take
    /// a millisecond at most.
    pub turns: Histogram,
}
