//! The properties of a server that do not change between its start and its end.

use uuid::Uuid;

use super::error::SendError;
use crate::proto::Operands;
use ssntp_pki::Role;

/// A server, as it shows itself to clients and to other servers.
#[derive(Debug)]
pub(super) struct OwnServer {
    pub(super) uuid: Uuid,
    pub(super) role: Role,
    /// A random number of this start of the server.
    pub(super) incarnation: u64,
    /// The longest payload to receive or send, in bytes.
    pub(super) max_payload: u32,
    /// The kinds of frames of the application.
    pub(super) operands: Operands,
    /// The address at which other servers reach this one; empty if none is configured.
    pub(super) advertised: String,
}

impl OwnServer {
    /// Checks the length of a payload.
    pub(super) fn check_length(&self, len: usize) -> Result<(), SendError> {
        let limit = self.max_payload;
        if u32::try_from(len).is_ok_and(|len| len <= limit) {
            Ok(())
        } else {
            Err(SendError::TooLong { len, limit })
        }
    }
}
