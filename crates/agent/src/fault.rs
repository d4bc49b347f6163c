//! The reasons why an instance did not start, or a volume was not attached.

use std::{fmt, io};

use serde::{Deserialize, Serialize};

/// An error of a driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{why}")]
pub struct DriverError<F> {
    /// The cause.
    pub fault: F,
    /// The explanation, in one line.
    pub why: String,
}

impl<F> DriverError<F> {
    /// An error with its explanation.
    pub fn new(fault: F, why: impl Into<String>) -> Self {
        Self {
            fault,
            why: why.into(),
        }
    }
}

/// An instance did not start.
pub type LaunchError = DriverError<LaunchFault>;

/// A volume was not attached or detached.
pub type VolumeError = DriverError<VolumeFault>;

/// The reason why an instance did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LaunchFault {
    /// The command is invalid on any node.
    Data,
    /// The image or a volume does not exist.
    Image,
    /// The node has no room for the instance.
    Full,
    /// The network could not be set up.
    Network,
    /// Any other reason.
    Launch,
}

impl LaunchError {
    /// An error with the fault [`LaunchFault::Launch`].
    pub fn launch(why: impl Into<String>) -> Self {
        Self::new(LaunchFault::Launch, why)
    }

    /// An error of the system, about `what`. A full disk has the fault [`LaunchFault::Full`].
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        let fault = match error.kind() {
            // For `full_cn` the scheduler tries other nodes.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => LaunchFault::Full,
            _ => LaunchFault::Launch,
        };
        Self::new(fault, format!("{what}: {error}"))
    }
}

/// The reason why a volume was not attached or detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VolumeFault {
    /// The driver or the node supports no volumes.
    NotSupported,
    /// The change could not be written to disk.
    State,
    /// The instance refused the volume.
    Instance,
    /// Any other reason, such as a volume that does not exist.
    Failed,
}
