//! READY and MAINTENANCE: the capacity of a node (STATUS 0x1, 0x4).

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::NodeNetwork;
use crate::label::read_labels;
use ssntp::payload::schema::{read, refusal};
use ssntp::payload::yaml::ErrorKind;
use ssntp::payload::{Error, Id, MAX_READ_LEN, Payload};
use ssntp::proto::{FrameKind, Status};
use ssntp::schema;

schema! {
    /// A node accepts commands. The payload is its capacity.
    ///
    /// The payload of READY (STATUS 0x1):
    ///
    /// ```yaml
    /// node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    /// mem_total_mb: 64000
    /// mem_available_mb: 48211
    /// disk_total_mb: 500000
    /// disk_available_mb: 256000
    /// load: 3
    /// cpus_online: 16
    /// networks:
    /// - ip: 10.0.0.7
    ///   mac: "52:54:00:12:34:56"
    /// hostname: rack1-n07
    /// ```
    Ready = Status::READY, requires node_uuid {
        /// The node; required.
        node_uuid: Id,
        // Unknown values are -1, because 0 would mean that no capacity is left.
        /// Memory in MB; default: -1, unknown.
        mem_total_mb: i64 = -1,
        /// Memory that is free, in MB; default: -1, unknown.
        mem_available_mb: i64 = -1,
        /// Disk in MB; default: -1, unknown.
        disk_total_mb: i64 = -1,
        /// Disk that is free, in MB; default: -1, unknown.
        disk_available_mb: i64 = -1,
        /// Load average over one minute, rounded; default: -1, unknown.
        load: i64 = -1,
        /// CPUs in use by the operating system; default: -1, unknown.
        cpus_online: i64 = -1,
        /// The node's addresses; default: none.
        networks: Vec<NodeNetwork>,
        /// The node's name; default: empty.
        hostname: String,
        /// The labels that its owner has given it. A key of this project, which others ignore; default: none.
        /// Left out then.
        #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "read_labels")]
        labels: BTreeMap<String, String>,
    }
}

/// A node is in maintenance.
///
/// The payload of MAINTENANCE (STATUS 0x4): the payload of READY, or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// The capacity; `None` if the frame has no payload. Default: none.
    pub ready: Option<Ready>,
}

impl Payload for Maintenance {
    const KIND: FrameKind = Status::MAINTENANCE.kind();

    fn decode(payload: &[u8]) -> Result<Self, Error> {
        // An empty payload is read as an empty value, which is `None`.
        let (ready, tree): (Option<Ready>, _) = read(payload, None, MAX_READ_LEN)?;
        if ready.as_ref().is_some_and(|ready| ready.node_uuid.is_empty()) {
            let missing = refusal(None, &["node_uuid"], ErrorKind::Missing);
            return Err(tree.locate(missing).into());
        }
        Ok(Self { ready })
    }

    fn encode(&self) -> Bytes {
        self.ready.as_ref().map_or_else(Bytes::new, Ready::encode)
    }
}
