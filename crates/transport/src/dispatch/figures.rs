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
    /// How long events wait until the dispatcher takes them. The sample is the first
    /// event that is sent after the dispatcher has begun to take some, and at most one a
    /// millisecond.
    ///
    /// Of the events that come while the dispatcher is busy, that one waits longest. So
    /// the figures are rather too high than too low, and they show every time in which
    /// no event was taken. But a whole second without progress counts as one wait.
    pub waits: Histogram,
    /// How long the request for these figures waited.
    pub waited: Duration,
    /// The processor time of its turns. A turn is the input of one connection that it
    /// deals with before the next connection's; it should take a millisecond at most.
    pub turns: Histogram,
}
