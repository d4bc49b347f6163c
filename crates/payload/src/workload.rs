//! The keys that START and RESTART share: firmware, persistence, networking and requirements of an
//! instance; and the older lists of resources, which are read if there are no [`Requirements`].

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::label::read_labels;
use ssntp::names;
use ssntp::payload::Id;
use ssntp::schema;

names! {
    /// The firmware of a virtual machine. The default is `Unset`.
    FwType {
        /// EFI.
        Efi = "efi";
        /// BIOS.
        Legacy = "legacy";
        /// Not specified, or the instance is not a virtual machine.
        Unset = "";
    }
    default Unset
}

names! {
    /// The parts of an instance that are kept after its end. The default is `Unset`.
    Persistence {
        /// Everything.
        All = "all";
        /// The virtual machine.
        Vm = "vm";
        /// Its files on the host.
        Host = "host";
        /// Not specified: nothing is kept.
        Unset = "";
    }
    default Unset
}

schema! {
    /// The addresses and networks of an instance.
    Networking {
        /// The MAC address of the instance's interface; default: empty.
        vnic_mac: String,
        /// The UUID of the interface; default: empty.
        vnic_uuid: Id,
        /// The concentrator of its tenant; default: empty.
        concentrator_uuid: Id,
        /// The concentrator's address; default: empty.
        concentrator_ip: String,
        /// The subnet in CIDR form; default: empty.
        subnet: String,
        /// The key of the subnet's tunnel, as text (TenantAdded has it as a number); default: empty.
        subnet_key: String,
        /// The UUID of the subnet; default: empty.
        subnet_uuid: Id,
        /// The address inside the subnet; default: empty.
        private_ip: String,
        /// True if the instance has a public IP address; default: false.
        public_ip: bool,
    }

    /// The resources that an instance needs on its node.
    Requirements {
        /// Memory in MB; default: 0.
        mem_mb: i64,
        /// CPUs; default: 0.
        vcpus: i64,
        /// The node that the instance must run on; default: empty, any node. Left out when empty.
        #[serde(skip_serializing_if = "Id::is_empty")]
        node_id: Id,
        /// The host name of the node that the instance must run on; default: empty, any node. Left out
        /// when empty.
        #[serde(skip_serializing_if = "String::is_empty")]
        hostname: String,
        /// The labels of the nodes that it may run on. A key of this project; default: none, any node. Left out
        /// then.
        #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "read_labels")]
        labels: BTreeMap<String, String>,
        /// True if it needs a network node, as concentrators do; default: false. Left out when false.
        #[serde(skip_serializing_if = "is_default")]
        network_node: bool,
        /// True if a container runs with all privileges on its node; default: false. Left out when false.
        #[serde(skip_serializing_if = "is_default")]
        privileged: bool,
    }
}

/// The keys of older forms of START and RESTART, and the newer keys that take precedence.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Older {
    pub(crate) instance_uuid: Id,
    pub(crate) image_uuid: Id,
    requirements: Option<IgnoredAny>,
    requested_resources: Vec<Resource>,
    estimated_resources: Vec<Resource>,
}

impl Older {
    /// Sets requirements from the older lists: the requested resources, and the estimated ones that
    /// were not requested. The current form has no `disk_mb` and no `physical_network`.
    pub(crate) fn complete(&self, requirements: &mut Requirements) {
        // If a sender writes both forms, the newer one counts.
        if self.requirements.is_some() {
            return;
        }
        let value = |name| {
            let mut resources = self.requested_resources.iter().chain(&self.estimated_resources);
            resources.find(|r| r.name == name).map_or(0, |r| r.value)
        };
        requirements.mem_mb = value("mem_mb");
        requirements.vcpus = value("vcpus");
        requirements.network_node = value("network_node") != 0;
    }
}

/// An entry of `requested_resources` or `estimated_resources`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Resource {
    #[serde(rename = "type")]
    name: String,
    value: i64,
}

/// True for the default value, with which a field is left out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
