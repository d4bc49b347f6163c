//! The network of an instance that is being launched, which the agent connects.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use rustix::process::geteuid;
use ssntp_agent::driver::{InstanceDir, Reason, Refused, User, give};
use ssntp_agent::network::{Attachment, Interface, RESOLVER, Tap, Wire};
use ssntp_cluster::subnet::mac_of;
use uuid::Uuid;

use super::files::copy;
use super::links::port_name;
use super::made::{End, Namespace};
use super::node::Networks;

/// The network of an instance that is being launched.
#[derive(Debug)]
pub(super) struct Cable<'a> {
    pub(super) instance: Uuid,
    pub(super) network: &'a Networks,
    pub(super) to: Attachment,
}

impl Wire for Cable<'_> {
    fn connect(&self, pid: i32) -> Result<(), Refused> {
        let made = Namespace::of(pid).and_then(|namespace| match &self.to {
            Attachment::Tenant(port) => self.network.attach(self.instance, port, End::Process(namespace)),
            Attachment::Underlay(interface) => {
                self.network.attach_underlay(self.instance, interface, &namespace)
            }
        });
        made.map_err(failed)
    }

    fn tap(&self, user: Option<User>) -> Result<Tap, Refused> {
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

    fn is_concentrator(&self) -> bool {
        matches!(self.to, Attachment::Underlay(_))
    }

    fn prepare(&self, place: &InstanceDir, user: Option<User>) -> Result<Vec<(OsString, OsString)>, Refused> {
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
            written.map_err(|e| Refused::io(path.display(), &e))?;
            return Ok(Vec::new());
        }
        let mut env: Vec<_> = config
            .concentrator_env
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        for (name, from) in config.files_of(self.instance) {
            let copied = copy(&name, &from, place.dir());
            let to = copied.map_err(|e| Refused::io(&name, &e))?;
            let given = user.map_or(Ok(()), |user| give(&to, user));
            given.map_err(|e| Refused::io(to.display(), &e))?;
            env.push((name.into(), to.into()));
        }
        Ok(env)
    }
}

fn failed(why: String) -> Refused {
    Refused::new(Reason::NetworkFailure, why)
}
