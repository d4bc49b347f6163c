//! The settings of the networks of a node, and the settings that concentrators share.

use std::net::IpAddr;
use std::path::PathBuf;

use uuid::Uuid;

/// The default of [`TunnelConfig::mtu`]: VXLAN needs 50 bytes of the usual 1500.
pub const DEFAULT_MTU: u16 = 1450;
/// The default of [`TunnelConfig::port`], the registered port of VXLAN.
pub const DEFAULT_PORT: u16 = 4789;

/// The settings that are the same for all agents and concentrators of a cluster.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// The largest packet of an instance, in bytes. Default: [`DEFAULT_MTU`].
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
    /// The address at which tunnels begin, or the name of the interface at whose first IPv4 address
    /// they begin. Default: empty, which stands for the interface of the default route.
    pub underlay: String,
    /// The settings of tunnels.
    pub tunnels: TunnelConfig,
    /// The environment of the concentrators on this node. Default: empty.
    pub concentrator_env: Vec<(String, String)>,
    /// Environment variables for files. For each variable, a concentrator gets one file with the
    /// content of all files of the list, and the variable has the path of this copy. Only the user of
    /// the concentrator can read the copy. It is replaced when one of the files has changed.
    /// Default: none.
    pub concentrator_files: Vec<(String, Vec<PathBuf>)>,
    /// An environment variable for the certificate of a concentrator, which is the file UUID.pem in
    /// this directory. Default: none.
    pub concentrator_certs: Option<(String, PathBuf)>,
}

impl NetworkConfig {
    /// The files that a concentrator gets: the variable, and the files whose content is copied.
    pub(super) fn files_of(&self, concentrator: Uuid) -> impl Iterator<Item = (String, Vec<PathBuf>)> {
        let own = move |(name, directory): &(String, PathBuf)| {
            let file = directory.join(format!("{concentrator}.pem"));
            (name.clone(), vec![file])
        };
        let certificate = self.concentrator_certs.as_ref().map(own);
        self.concentrator_files.iter().cloned().chain(certificate)
    }
}
