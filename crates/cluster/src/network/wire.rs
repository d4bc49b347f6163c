//! The network of an instance that is being launched.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use log::debug;
use rustix::process::geteuid;
use ssntp_transport::replace;
use uuid::Uuid;

use super::attachment::{Attachment, Interface, mac_of};
use super::config::NetworkConfig;
use super::links::port_name;
use super::made::{End, Namespace};
use super::node::Networks;
use crate::agent::driver::{InstanceDir, LaunchError, LaunchFault, User, give};

/// The name of the file in the instance's directory that the instance sees as `/etc/resolv.conf`.
pub(crate) const RESOLVER: &str = "resolv.conf";

/// Connects an instance that is being launched to its network. The driver makes the network
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
    /// The largest packet, in bytes.
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

    /// Makes the interface `eth0` in the network namespace of a process. It is removed when the
    /// instance ends.
    ///
    /// # Errors
    /// The fault is [`LaunchFault::Network`].
    pub fn connect(&self, pid: i32) -> Result<(), LaunchError> {
        let made = Namespace::of(pid).and_then(|namespace| match &self.to {
            Attachment::Tenant(port) => self.network.attach(self.instance, port, End::Process(namespace)),
            Attachment::Underlay(interface) => {
                self.network.attach_underlay(self.instance, interface, &namespace)
            }
        });
        made.map_err(failed)
    }

    /// Makes a tap in the agent's own network namespace, which the machine's user can open. It is
    /// removed when the agent has noticed the end of the instance.
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
            mtu: self.network.config().tunnels.mtu,
        })
    }

    /// True for a concentrator, which may administer the network of its namespace.
    pub fn is_concentrator(&self) -> bool {
        matches!(self.to, Attachment::Underlay(_))
    }

    /// Writes files into the directory of the instance: the list of name servers, or the files of a
    /// concentrator, which only its user can read. Returns the environment variables that a
    /// concentrator gets from its node.
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
            let servers = config
                .tunnels
                .name_servers
                .iter()
                .map(|ip| format!("nameserver {ip}\n"));
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
        for (name, from) in config.files_of(self.instance) {
            let copied = copy(&name, &from, place.dir());
            let to = copied.map_err(|e| LaunchError::io(&name, &e))?;
            let given = user.map_or(Ok(()), |user| give(&to, user));
            given.map_err(|e| LaunchError::io(to.display(), &e))?;
            env.push((name.into(), to.into()));
        }
        Ok(env)
    }
}

fn failed(why: String) -> LaunchError {
    LaunchError::new(LaunchFault::Network, why)
}

/// Replaces the files of a concentrator that runs, if the originals have changed. The concentrator
/// notices the change and reads them again.
pub(super) fn renew(config: &NetworkConfig, concentrator: Uuid, directory: &Path) {
    for (name, from) in config.files_of(concentrator) {
        if let Err(e) = copy(&name, &from, directory) {
            // This is logged at debug only, because the certificate may be missing for a long time.
            debug!("concentrator {concentrator}: {name}: {e}");
        }
    }
}

/// Makes a file with the content of these files, unless it exists, and returns its path. A new copy
/// has the owner of the former one.
fn copy(name: &str, from: &[PathBuf], directory: &Path) -> io::Result<PathBuf> {
    let to = directory.join(name.to_ascii_lowercase());
    let content = joined(from)?;
    // The user of the concentrator owns the copy, and may have made it longer than the memory.
    let mut present = Vec::new();
    let read = File::open(&to).and_then(|file| file.take(content.len() as u64 + 1).read_to_end(&mut present));
    match read {
        Ok(_) if present == content => Ok(to),
        _ => replace(&to, &content).map(|()| to),
    }
}

/// The content of all these files, each with a line break at its end.
fn joined(files: &[PathBuf]) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    for file in files {
        let content =
            fs::read(file).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", file.display())))?;
        all.extend(content);
        all.push(b'\n');
    }
    Ok(all)
}
