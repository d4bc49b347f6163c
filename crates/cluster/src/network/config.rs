//! The settings of the networks of a node.

use std::net::IpAddr;
use std::path::PathBuf;

use uuid::Uuid;

/// The default of [`NetworkConfig::mtu`]: VXLAN takes 50 bytes of the usual 1500.
pub const DEFAULT_MTU: u16 = 1450;
/// The default of [`NetworkConfig::port`], the registered port of VXLAN.
pub const DEFAULT_PORT: u16 = 4789;

/// The settings of the networks of a node.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    pub(super) underlay: String,
    pub(super) mtu: u16,
    pub(super) port: u16,
    pub(super) name_servers: Vec<IpAddr>,
    pub(super) concentrator_env: Vec<(String, String)>,
    concentrator_files: Vec<(String, Vec<PathBuf>)>,
    concentrator_certs: Option<(String, PathBuf)>,
}

impl NetworkConfig {
    /// Networks whose tunnels begin at this address of the node, or at the first IPv4 address
    /// of this interface.
    pub fn new(underlay: impl Into<String>) -> Self {
        Self {
            underlay: underlay.into(),
            mtu: DEFAULT_MTU,
            port: DEFAULT_PORT,
            name_servers: Vec::new(),
            concentrator_env: Vec::new(),
            concentrator_files: Vec::new(),
            concentrator_certs: None,
        }
    }

    /// The largest packet of an instance. Default: [`DEFAULT_MTU`].
    #[must_use]
    pub fn mtu(mut self, mtu: u16) -> Self {
        self.mtu = mtu;
        self
    }

    /// The UDP port of the tunnels, the same in the whole cluster. Default: [`DEFAULT_PORT`].
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Adds a name server for the instances. Default: none.
    #[must_use]
    pub fn name_server(mut self, ip: IpAddr) -> Self {
        self.name_servers.push(ip);
        self
    }

    /// Adds a variable to the environment of concentrators that this node runs.
    #[must_use]
    pub fn concentrator_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.concentrator_env.push((name.into(), value.into()));
        self
    }

    /// Adds a variable that names a file: each concentrator gets a copy of these files in one,
    /// which its user alone can read, and the variable names the copy. A copy is replaced when
    /// its files have changed.
    #[must_use]
    pub fn concentrator_file(
        mut self,
        name: impl Into<String>,
        files: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        self.concentrator_files
            .push((name.into(), files.into_iter().collect()));
        self
    }

    /// As [`concentrator_file`](Self::concentrator_file), with a file for each concentrator:
    /// the one in this directory that is called UUID.pem.
    #[must_use]
    pub fn concentrator_certs(mut self, name: impl Into<String>, directory: impl Into<PathBuf>) -> Self {
        self.concentrator_certs = Some((name.into(), directory.into()));
        self
    }

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
