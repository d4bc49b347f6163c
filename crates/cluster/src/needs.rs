//! The resources that a START requires, read once for placement, admission on a node and the
//! check of a file that describes an instance.

use uuid::Uuid;

use ssntp::Role;
use ssntp::payload::Id;
use ssntp_payload::Start;

/// The maximum number of instances from which a START is kept apart. It bounds the time of a search.
const MAX_APART: usize = 64;

/// The resources and the node that a START requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Memory in MB.
    pub mem_mb: i64,
    /// Disk in MB, for the volumes that are made on the node.
    pub disk_mb: i64,
    /// CPUs.
    pub vcpus: i64,
    /// The only node that may accept the START; empty for any node.
    pub node_id: Id,
    /// The host name of the only nodes that may accept the START, in upper or lower case; empty
    /// for any.
    pub hostname: String,
    /// True if the START needs a network node, false if it needs a compute node.
    pub network_node: bool,
    /// The instances beside which it runs only if no other node has room.
    pub apart_from: Vec<Uuid>,
}

impl Needs {
    /// The needs of a START.
    ///
    /// # Errors
    /// The path of a number below zero.
    pub fn of(start: &Start) -> Result<Self, &'static str> {
        let wanted = &start.requirements;
        let mut disk_mb: i64 = 0;
        for volume in start.storage.iter().filter(|volume| volume.local) {
            if volume.size < 0 {
                return Err("start.storage.size");
            }
            // A controller chooses the size, so it may be any number.
            disk_mb = disk_mb.saturating_add(volume.size.saturating_mul(1024));
        }
        if wanted.mem_mb < 0 {
            return Err("start.requirements.mem_mb");
        }
        if wanted.vcpus < 0 {
            return Err("start.requirements.vcpus");
        }
        Ok(Self {
            mem_mb: wanted.mem_mb,
            disk_mb,
            vcpus: wanted.vcpus,
            node_id: wanted.node_id.clone(),
            hostname: wanted.hostname.clone(),
            network_node: wanted.network_node,
            apart_from: start
                .apart_from
                .iter()
                .filter_map(Id::uuid)
                .take(MAX_APART)
                .collect(),
        })
    }

    /// The role of the nodes that may accept the START.
    pub fn role(&self) -> Role {
        if self.network_node {
            Role::NETAGENT
        } else {
            Role::AGENT
        }
    }
}
