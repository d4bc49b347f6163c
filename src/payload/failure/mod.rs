//! The failures: what became of a command that wasn't carried out.
//!
//! | file | frames |
//! |---|---|
//! | `start` | StartFailure |
//! | `stop` | StopFailure |
//! | `restart` | RestartFailure |
//! | `delete` | DeleteFailure |
//! | `volume` | AttachVolumeFailure, DetachVolumeFailure |
//! | `public_ip` | AssignPublicIPFailure, UnassignPublicIPFailure |
//!
//! Each says why with a reason of its own. Every reason can be made `From` the
//! error of a payload that was refused: `invalid_payload` where it is no
//! document at all, `invalid_data` where it isn't what its schema says.
//!
//! Their fields are all optional to read, so that a failure is never lost.

mod delete;
mod public_ip;
mod restart;
mod start;
mod stop;
mod volume;

pub use self::delete::{DeleteFailure, DeleteFailureReason};
pub use self::public_ip::{AssignPublicIpFailure, PublicIpFailureReason, UnassignPublicIpFailure};
pub use self::restart::{RestartFailure, RestartFailureReason};
pub use self::start::{StartFailure, StartFailureReason};
pub use self::stop::{StopFailure, StopFailureReason};
pub use self::volume::{
    AttachVolumeFailure, AttachVolumeFailureReason, DetachVolumeFailure, DetachVolumeFailureReason,
};

/// Makes a reason of the error of a refused payload.
macro_rules! reason_of_error {
    ($reason:ident) => {
        impl From<&$crate::payload::Error> for $reason {
            fn from(error: &$crate::payload::Error) -> Self {
                if error.is_malformed() {
                    Self::InvalidPayload
                } else {
                    Self::InvalidData
                }
            }
        }
    };
}

use reason_of_error;
