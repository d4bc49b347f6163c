//! The tables of a concentrator.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use ssntp::payload::Id;
use ssntp_cluster::summed::{read_summed, write_summed};
use ssntp_payload::CnciPeer;

const FILE: &str = "cnci.yaml";

/// The tables of a concentrator, as in its state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tables {
    /// The concentrator.
    pub concentrator_uuid: Id,
    /// The tenant of the concentrator.
    pub tenant_uuid: Id,
    /// The concentrator's address in the cluster's network.
    pub ip: String,
    /// The name of the data plane.
    pub data_plane: String,
    /// The tunnels to the nodes of the tenant, by node and subnet.
    pub tunnels: Vec<Tunnel>,
    /// The tenant's other concentrators.
    pub peers: Vec<CnciPeer>,
    /// The public addresses, by address.
    pub public_ips: Vec<PublicIp>,
}

/// A tunnel to a node that runs instances of the tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tunnel {
    /// The node.
    pub agent_uuid: Id,
    /// The address of the node's end of the tunnel.
    pub agent_ip: String,
    /// The subnet whose packets use the tunnel.
    pub subnet: String,
    /// The key of the tunnel.
    pub key: u32,
    /// The addresses that lead to the node: those that the scheduler has leased to instances there.
    pub addresses: Vec<Ipv4Addr>,
}

/// A public address, and the instance that has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PublicIp {
    /// The address.
    pub public_ip: String,
    /// The instance that has it.
    pub instance_uuid: Id,
    /// The instance's address inside its subnet; may be empty.
    pub private_ip: String,
    /// The MAC address of the instance's interface; may be empty.
    pub vnic_mac: String,
}

impl Tables {
    /// Reads the tables of a concentrator in a state directory; `None` if there are none yet. The
    /// concentrator may run.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn load(state: &Path) -> Result<Option<Self>, TablesError> {
        let path = state.join(FILE);
        read_summed(&path).map_err(|why| TablesError { path, why })
    }

    /// Replaces the tables in a state directory.
    pub(super) fn save(&self, state: &Path) -> std::io::Result<()> {
        write_summed(&state.join(FILE), self)
    }

    pub(super) fn insert_tunnel(&mut self, tunnel: Tunnel) {
        // An instance that has moved was at another node before.
        for other in self.tunnels.iter_mut().filter(|it| it.subnet == tunnel.subnet) {
            other.addresses.retain(|ip| !tunnel.addresses.contains(ip));
        }
        let key = |t: &Tunnel| (t.agent_uuid.clone(), t.subnet.clone());
        // The list is sorted by this key, also in the file.
        match self.tunnels.binary_search_by_key(&key(&tunnel), key) {
            Ok(at) => self.tunnels[at] = tunnel,
            Err(at) => self.tunnels.insert(at, tunnel),
        }
    }

    /// Removes a tunnel. Returns true if it was in the tables.
    pub(super) fn remove_tunnel(&mut self, agent: &Id, subnet: &str) -> bool {
        let before = self.tunnels.len();
        self.tunnels
            .retain(|t| t.agent_uuid != *agent || t.subnet != subnet);
        self.tunnels.len() < before
    }

    pub(super) fn public_ip(&self, address: IpAddr) -> Option<&PublicIp> {
        let is_it = |ip: &&PublicIp| ip.public_ip.parse() == Ok(address);
        self.public_ips.iter().find(is_it)
    }

    pub(super) fn insert_public_ip(&mut self, ip: PublicIp) {
        let key = |ip: &PublicIp| ip.public_ip.parse::<IpAddr>().ok();
        match self.public_ips.binary_search_by_key(&key(&ip), key) {
            Ok(at) => self.public_ips[at] = ip,
            Err(at) => self.public_ips.insert(at, ip),
        }
    }

    pub(super) fn remove_public_ip(&mut self, address: IpAddr) {
        self.public_ips.retain(|ip| ip.public_ip.parse() != Ok(address));
    }
}

/// The tables cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {why}", path.display())]
pub struct TablesError {
    /// The file of the tables.
    pub path: PathBuf,
    /// The reason.
    pub why: String,
}
