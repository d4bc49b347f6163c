//! Restore: take an evacuated node back into service (COMMAND 0xc).

use ssntp::payload::Id;
use ssntp::schema;

schema! {
    /// Take an evacuated node back into service.
    ///
    /// The payload of Restore (COMMAND 0xc):
    ///
    /// ```yaml
    /// restore:
    ///   workload_agent_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    /// ```
    Restore = Command::RESTORE, under "restore", requires workload_agent_uuid {
        /// The node; required.
        workload_agent_uuid: Id,
    }
}
