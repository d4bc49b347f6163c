//! InstanceDeleted, InstanceStopped and ConcentratorInstanceAdded (EVENT 0x2, 0x9, 0x3).

use crate::workload::is_default;
use ssntp::payload::Id;
use ssntp::schema;

alike! {
    {
        /// The instance; default: empty.
        instance_uuid: Id,
        /// The end of its last run. A key of this project, which others ignore; default: unknown.
        /// Left out then.
        #[serde(skip_serializing_if = "is_default")]
        end: InstanceEnd,
    }

    /// An instance was deleted.
    ///
    /// The payload of InstanceDeleted (EVENT 0x2):
    ///
    /// ```yaml
    /// instance_deleted:
    ///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    /// ```
    InstanceDeleted = Event::INSTANCE_DELETED, under "instance_deleted";

    /// An instance stopped, and its node no longer counts it.
    ///
    /// The payload of InstanceStopped (EVENT 0x9):
    ///
    /// ```yaml
    /// instance_stopped:
    ///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    /// ```
    InstanceStopped = Event::INSTANCE_STOPPED, under "instance_stopped";
}

schema! {
    /// The end of the last run of an instance, with the same keys as in STATS.
    InstanceEnd {
        /// The exit code, or 128 plus the number of the signal that ended it; default: -1, unknown.
        exit_code: i64 = -1,
        /// The number of the signal that ended it; default: 0, no signal.
        exit_signal: i64,
        /// True if one of its processes was killed because its memory was used up; default: false.
        out_of_memory: bool,
        /// The reason for which its node ended it, in one line of at most 200 characters; default:
        /// empty.
        detail: String,
        /// The last lines of its standard error, if it failed, as in STATS; default: empty.
        #[serde(skip_serializing_if = "String::is_empty")]
        last_lines: String,
    }

    /// A concentrator instance runs.
    ///
    /// The payload of ConcentratorInstanceAdded (EVENT 0x3):
    ///
    /// ```yaml
    /// concentrator_instance_added:
    ///   instance_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
    ///   tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
    ///   concentrator_ip: 10.0.0.33
    ///   concentrator_mac: 02:42:0a:00:00:21
    /// ```
    ConcentratorInstanceAdded = Event::CONCENTRATOR_INSTANCE_ADDED, under "concentrator_instance_added" {
        /// The instance; default: empty.
        instance_uuid: Id,
        /// The tenant it serves; default: empty.
        tenant_uuid: Id,
        /// Its address; default: empty.
        concentrator_ip: String,
        /// The MAC address of its interface; default: empty.
        concentrator_mac: String,
    }
}
