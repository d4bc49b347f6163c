//! The phase of an instance: the interpretation of the protocol's states that the scheduler and
//! a controller's view share.

use ssntp_payload::InstanceState;

/// The phase of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The instance is being started.
    Pending,
    /// The instance runs, or is about to end.
    Running,
    /// The instance has ended, and its node may keep it.
    Ended,
}

impl Phase {
    /// The phase of a state. A state that this version does not know counts as running, because an
    /// instance must not count as ended before its node reports that.
    pub fn of(state: &InstanceState) -> Self {
        match state {
            InstanceState::Pending => Self::Pending,
            InstanceState::Exited | InstanceState::Missing | InstanceState::Deleted => Self::Ended,
            _ => Self::Running,
        }
    }
}
