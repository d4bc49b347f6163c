//! How busy a dispatcher is.

use std::time::Duration;

use crate::histogram::Histogram;

/// How busy a server's dispatcher is: the thread that does everything.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DispatcherFigures {
    /// Events that wait for it.
    pub events: usize,
    /// The most of them: then readers wait.
    pub max_events: usize,
    /// Connections whose input waits for a turn.
    pub with_input: usize,
    /// How long events wait until it takes them. Measured is the first one that
    /// is sent after the dispatcher has begun to take some, and one a millisecond
    /// at most.
    ///
    /// That one waits longest of those that come while the dispatcher is busy, so
    /// the figures are rather too long than too short, and no time in which
    /// nothing was taken goes unseen; but a second in which nothing is taken
    /// counts as one.
    pub waits: Histogram,
    /// How long the call waited that asked for these figures.
    pub waited: Duration,
    /// The processor time of its turns. A turn is what it deals with of one
    /// connection before the next one has its turn, and meant to take a
    /// millisecond at most.
    pub turns: Histogram,
}
