//! Figures of a dispatcher's load.

use crate::histogram::Histogram;

/// The load of a server's dispatcher.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DispatcherFigures {
    /// The number of events that wait in its channel.
    pub events: usize,
    /// The capacity of the channel. When it is full, readers wait.
    pub max_events: usize,
    /// The number of connections that wait for a turn.
    pub with_input: usize,
    /// The times that events waited in the channel.
    pub waits: Histogram,
    /// The times that the oldest input of a connection had waited when its turn began.
    pub ages: Histogram,
    /// The processor time of its turns, without the sending that they cause. A turn is the input
    /// of one connection that is handled before another connection's; it should take a millisecond
    /// at most.
    pub turns: Histogram,
}
