//! The time of a step of a client, as the owner of its core passes it in.

use std::time::{Instant, SystemTime};

/// The time of a step, and a random number for its random choices.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The time.
    pub now: Instant,
    /// The time of day, for checking whether certificates are valid.
    pub wall: SystemTime,
    /// A random number from 0 to 1, a new one for each step.
    pub share: f64,
}
