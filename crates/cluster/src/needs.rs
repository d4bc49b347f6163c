//! The resources that a START requires, read once for placement, admission on a node and the
//! check of a file that describes an instance.

use std::collections::BTreeMap;

use thiserror::Error;
use uuid::Uuid;

use ssntp::Role;
use ssntp::payload::Id;
use ssntp_payload::Start;
use ssntp_transport::excerpt;

/// The maximum number of instances from which a START is kept apart. It bounds the time of a search.
const MAX_APART: usize = 64;

/// The labels of a node, by key.
pub type Labels = BTreeMap<String, String>;

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
    /// The labels of the nodes that may accept the START.
    pub labels: Labels,
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
            labels: wanted.labels.clone(),
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

    /// True if a node with this host name and these labels may accept the START.
    pub fn admit(&self, hostname: &str, labels: &Labels) -> bool {
        self.marks().all(|mark| mark.is_of(hostname, labels))
    }

    /// What the START requires and none of these nodes has, each with its host name and its labels.
    pub fn lacking<'a>(&self, nodes: impl Iterator<Item = (&'a str, &'a Labels)> + Clone) -> Option<Lacking> {
        let is_lacking = |marks: &Vec<Mark<'_>>| {
            let has_all = |(name, labels)| marks.iter().all(|mark| mark.is_of(name, labels));
            !marks.is_empty() && !nodes.clone().any(has_all)
        };
        // Each of them may be at some node, and never all at one.
        let all = std::iter::once(self.marks().collect());
        let lacking = self.marks().map(|mark| vec![mark]).chain(all).find(is_lacking)?;
        let what: Vec<_> = lacking.iter().map(Mark::to_string).collect();
        Some(Lacking {
            is_label: !matches!(lacking[..], [Mark::Hostname(_)]),
            what: what.join(" and "),
        })
    }

    fn marks(&self) -> impl Iterator<Item = Mark<'_>> {
        let name = Some(self.hostname.as_str()).filter(|name| !name.is_empty());
        let labels = self.labels.iter().map(|(key, value)| Mark::Label(key, value));
        name.map(Mark::Hostname).into_iter().chain(labels)
    }
}

/// What a START requires of its node, and no node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// True if it is a label, false if it is the host name.
    pub is_label: bool,
    /// The host name or the labels, for people.
    pub what: String,
}

/// The host name of a node, or one of its labels.
#[derive(Clone, Copy, Debug, Error)]
enum Mark<'a> {
    #[error("the host name {}", excerpt(.0))]
    Hostname(&'a str),
    #[error("the label {0}={1}")]
    Label(&'a str, &'a String),
}

impl Mark<'_> {
    fn is_of(self, hostname: &str, labels: &Labels) -> bool {
        match self {
            Self::Hostname(wanted) => wanted.eq_ignore_ascii_case(hostname),
            Self::Label(key, value) => labels.get(key) == Some(value),
        }
    }
}
