//! How far an instance has come, as its node tells: the one reading of the protocol's
//! states for the scheduler and for a controller's view.

use ssntp::payload::InstanceState;

/// How far an instance has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is being started.
    Pending,
    /// It runs, or is about to end.
    Running,
    /// It has ended, and its node may keep it.
    Ended,
}

impl Phase {
    /// A state that this version does not know counts as running: an instance must not be
    /// taken for ended before its node says so.
    pub(crate) fn of(state: &InstanceState) -> Self {
        match state {
            InstanceState::Pending => Self::Pending,
            InstanceState::Exited | InstanceState::Missing | InstanceState::Deleted => Self::Ended,
            _ => Self::Running,
        }
    }
}
