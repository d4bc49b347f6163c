//! What START and RESTART say alike: how an instance boots, what it needs and
//! how it is wired; and the older lists of resources, which are read in place
//! of [`Requirements`].

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::Id;
use super::names::names;

names! {
    /// How a virtual machine boots. The default is `Unset`.
    FwType {
        /// With an EFI firmware.
        Efi = "efi";
        /// With a BIOS.
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

/// How an instance is wired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Networking {
    /// The MAC address of its interface; default: empty.
    pub vnic_mac: String,
    /// Its interface; default: empty.
    pub vnic_uuid: Id,
    /// The concentrator of its tenant; default: empty.
    pub concentrator_uuid: Id,
    /// The concentrator's address; default: empty.
    pub concentrator_ip: String,
    /// Its subnet in CIDR form; default: empty.
    pub subnet: String,
    /// The key of the subnet's tunnel; default: empty. Text here, a number in
    /// TenantAdded.
    pub subnet_key: String,
    /// Its subnet; default: empty.
    pub subnet_uuid: Id,
    /// Its address inside the subnet; default: empty.
    pub private_ip: String,
    /// Whether it has a public IP address; default: false.
    pub public_ip: bool,
}

/// What an instance needs of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requirements {
    /// Memory in MB; default: 0.
    pub mem_mb: i64,
    /// CPUs; default: 0.
    pub vcpus: i64,
    /// The only node that will do; default: empty, any. Left out when empty.
    #[serde(skip_serializing_if = "Id::is_empty")]
    pub node_id: Id,
    /// The name of the only node that will do; default: empty, any. Left out
    /// when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// Whether it needs a network node, as concentrators do; default: false.
    /// Left out when false.
    #[serde(skip_serializing_if = "is_default")]
    pub network_node: bool,
    /// Whether a container has all rights on its node; default: false. Left
    /// out when false.
    #[serde(skip_serializing_if = "is_default")]
    pub privileged: bool,
}

/// The keys of older forms of START and RESTART, and those that decide whether they count.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Older {
    pub(super) instance_uuid: Id,
    pub(super) image_uuid: Id,
    requirements: Option<IgnoredAny>,
    requested_resources: Vec<Resource>,
    estimated_resources: Vec<Resource>,
}

impl Older {
    /// Sets requirements that only the older lists have: what was requested, and for the
    /// rest what was estimated. `disk_mb` and `physical_network` have no place in the
    /// current form.
    pub(super) fn complete(&self, requirements: &mut Requirements) {
        // A sender of both forms means the newer one.
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

/// For fields that are left out when they have their default.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
