//! Links a server with the members of its cluster: dials each for as long as it is a member.

use std::collections::HashSet;
use std::net::IpAddr;

use ssntp::server::{Dialler, Server};
use ssntp::transport::Address;
use ssntp_engine::{Member, View};
use uuid::Uuid;

/// The maximum number of members that a server dials. Each has a thread, and `docs/links.md` plans for a
/// hundred.
const MOST: usize = 256;

/// The members that a server dials.
#[derive(Debug)]
pub struct Peers {
    own: Uuid,
    dialler: Dialler,
    dialled: HashSet<Address>,
}

impl Peers {
    /// The peers of a server, which dials none of them yet. `None` if the server was started
    /// without [`ServerConfig::federate`](ssntp::server::ServerConfig::federate).
    pub fn of(server: &Server) -> Option<Self> {
        Some(Self {
            own: server.uuid(),
            dialler: server.dialler()?,
            dialled: HashSet::new(),
        })
    }

    /// The addresses in `listening` at which other servers may reach a server that listens there.
    /// Wildcard addresses and addresses that are not TCP are left out.
    pub fn reachable(listening: &[Address]) -> Vec<String> {
        let is_everywhere =
            |host: &str| host.is_empty() || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        let is_reachable =
            |address: &&Address| matches!(address, Address::Tcp { host, .. } if !is_everywhere(host));
        let reachable = listening.iter().filter(is_reachable);
        reachable.map(Address::to_string).collect()
    }

    /// Dials new members, and ends the links to servers that are no longer members. Does not block.
    pub fn follow(&mut self, view: &View) {
        let own = self.own;
        let others = view.members.iter().filter(|member| member.uuid != own).take(MOST);
        let address = |member: &Member| member.addresses.first()?.parse::<Address>().ok();
        let mut wanted: HashSet<_> = others.filter_map(address).collect();
        for gone in self.dialled.difference(&wanted) {
            self.dialler.undial(&gone.clone().into());
        }
        // An address that cannot be dialled now is dialled after the next view.
        wanted.retain(|address| {
            let failed = |e| log::warn!("{address} cannot be dialled: no thread: {e}");
            self.dialled.contains(address) || self.dialler.dial(address.clone()).map_err(failed).is_ok()
        });
        self.dialled = wanted;
    }
}
