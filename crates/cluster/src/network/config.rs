//! The settings of the networks of a node, and those that its concentrators have as well.

use std::net::IpAddr;
use std::path::PathBuf;

use uuid::Uuid;

/// The default of [`TunnelConfig::mtu`]: VXLAN takes 50 bytes of the usual 1500.
pub const DEFAULT_MTU: u16 = 1450;
/// The default of [`TunnelConfig::port`], the registered port of VXLAN.
pub const DEFAULT_PORT: u16 = 4789;

/// What agents and concentrators of one cluster agree on.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// The largest packet of an instance. Default: [`DEFAULT_MTU`].
    pub mtu: u16,
    /// The UDP port of the tunnels, the same in the whole cluster. Default: [`DEFAULT_PORT`].
    pub port: u16,
    /// The name servers of the instances. Default: none.
    pub name_servers: Vec<IpAddr>,
}

impl Default for TunnelConfig {
    fn default() -> Self {
        Self {
            mtu: DEFAULT_MTU,
            port: DEFAULT_PORT,
            name_servers: Vec::new(),
        }
    }
}

/// The settings of the networks of a node.
#[derive(Clone, Debug, Default)]
pub struct NetworkConfig {
    /// Tunnels begin at this address of the node, or at the first IPv4 address of the interface
    /// of this name. Default: empty, which stands for the interface of the default route.
    pub underlay: String,
    /// The settings of tunnels.
    pub tunnels: TunnelConfig,
    /// The environment of concentrators that this node runs. Default: nothing.
    pub concentrator_env: Vec<(String, String)>,
    /// Variables that name files: each concentrator gets a copy of these files in one, which its
    /// user alone can read, and the variable names the copy. A copy is replaced when its files
    /// have changed. Default: none.
    pub concentrator_files: Vec<(String, Vec<PathBuf>)>,
    /// The same with a file for each concentrator: the one in this directory that is called
    /// UUID.pem. Default: none.
    pub concentrator_certs: Option<(String, PathBuf)>,
}

impl NetworkConfig {
    /// The files that a concentrator gets: the variable, and what its copy is made of.
    pub(super) fn files_of(&self, concentrator: Uuid) -> impl Iterator<Item = (String, Vec<PathBuf>)> {
        let own = move |(name, directory): &(String, PathBuf)| {
            let file = directory.join(format!("{concentrator}.pem"));
            (name.clone(), vec![file])
        };
        let certificate = self.concentrator_certs.as_ref().map(own);
        self.concentrator_files.iter().cloned().chain(certificate)
    }
}
