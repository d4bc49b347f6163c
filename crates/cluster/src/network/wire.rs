//! The network of an instance that is being launched.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::geteuid;
use uuid::Uuid;

use super::attachment::{Attachment, Interface, mac_of};
use super::links::port_name;
use super::made::{End, Namespace};
use super::node::Networks;
use crate::agent::driver::{InstanceDir, LaunchError, LaunchFault, User, give};

/// The name of the instance's own `/etc/resolv.conf`, in its directory.
pub(crate) const RESOLVER: &str = "resolv.conf";

/// Gives an instance that is being launched its network. The driver makes the network
/// namespace.
#[derive(Debug)]
pub struct Wire {
    instance: Uuid,
    network: Arc<Networks>,
    to: Attachment,
}

/// The interface of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// The name of the tap on the host.
    pub interface: String,
    /// The MAC address of the interface in the machine.
    pub mac: String,
    /// The largest packet.
    pub mtu: u16,
}

impl Wire {
    pub(crate) fn new(instance: Uuid, network: Arc<Networks>, to: Attachment) -> Self {
        Self {
            instance,
            network,
            to,
        }
    }

    /// Makes the interface `eth0` in the network namespace of a process. What is made goes when
    /// the instance ends.
    ///
    /// # Errors
    /// The fault is [`LaunchFault::Network`].
    pub fn connect(&self, pid: i32) -> Result<(), LaunchError> {
        let made = Namespace::of(pid).and_then(|namespace| match &self.to {
            Attachment::Tenant(port) => self
                .network
                .attach(self.instance, port, End::Process(namespace)),
            Attachment::Underlay(interface) => {
                self.network
                    .attach_underlay(self.instance, interface, &namespace)
            }
        });
        made.map_err(failed)
    }

    /// Makes a tap that a machine's user can open, in this process's own network namespace. It
    /// stays until the agent hears that the instance has ended.
    ///
    /// # Errors
    /// The fault is [`LaunchFault::Network`].
    pub fn tap(&self, user: Option<User>) -> Result<Tap, LaunchError> {
        let Attachment::Tenant(port) = &self.to else {
            return Err(failed("a concentrator is a process, not a machine".into()));
        };
        let Interface { ip, mac, .. } = &port.interface;
        if *mac != mac_of(*ip) {
            let own = mac_of(*ip);
            return Err(failed(format!(
                "vnic_mac {mac}: the concentrator gives {ip} to the machine with {own} only"
            )));
        }
        let uid = user.map_or_else(|| geteuid().as_raw(), |user| user.uid);
        let made = self.network.attach(self.instance, port, End::Machine(uid));
        made.map_err(failed)?;
        Ok(Tap {
            interface: port_name(self.instance),
            mac: mac.clone(),
            mtu: self.network.config().mtu,
        })
    }

    /// Whether the instance may administer the network of its namespace: a concentrator does.
    pub fn is_concentrator(&self) -> bool {
        matches!(self.to, Attachment::Underlay(_))
    }

    /// Prepares the directory of the instance: the list of its name servers, or the files of a
    /// concentrator, for its user alone. Gives the variables that a concentrator gets from its
    /// node.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn prepare(
        &self,
        place: &InstanceDir,
        user: Option<User>,
    ) -> Result<Vec<(OsString, OsString)>, LaunchError> {
        let config = self.network.config();
        if !self.is_concentrator() {
            let servers = config.name_servers.iter().map(|ip| format!("nameserver {ip}\n"));
            let path = place.dir().join(RESOLVER);
            let written = fs::write(&path, servers.collect::<String>())
                .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o644)));
            written.map_err(|e| LaunchError::io(path.display(), &e))?;
            return Ok(Vec::new());
        }
        let mut env: Vec<_> = config
            .concentrator_env
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let own = |(name, directory): &(String, PathBuf)| {
            let file = directory.join(format!("{}.pem", self.instance));
            (name.clone(), file)
        };
        let files = config.concentrator_files.iter().cloned();
        for (name, from) in files.chain(config.concentrator_certs.as_ref().map(own)) {
            let to = place.dir().join(name.to_ascii_lowercase());
            copy(&from, &to, user).map_err(|e| LaunchError::io(from.display(), &e))?;
            env.push((name.into(), to.into()));
        }
        Ok(env)
    }
}

fn failed(why: String) -> LaunchError {
    LaunchError::new(LaunchFault::Network, why)
}

fn copy(from: &Path, to: &Path, user: Option<User>) -> std::io::Result<()> {
    let content = fs::read(from)?;
    ssntp_transport::replace(to, &content)?;
    match user {
        Some(user) => give(to, user),
        None => Ok(()),
    }
}
