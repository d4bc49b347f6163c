//! RefreshCNCI: send a concentrator the list of its peers (COMMAND 0xd).

use ssntp::payload::Id;
use ssntp::schema;

schema! {
    /// The list of all concentrators of a tenant, for one of them.
    ///
    /// The payload of RefreshCNCI (COMMAND 0xd):
    ///
    /// ```yaml
    /// cnci_refresh:
    ///   cnci_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
    ///   cncis:
    ///   - physical_ip: 10.0.0.33
    ///     subnet: 172.16.0.0/24
    ///     tunnel_ip: 192.168.0.1
    ///     tunnel_id: 3735928559
    /// ```
    RefreshCnci = Command::REFRESH_CNCI, under "cnci_refresh", requires cnci_uuid {
        /// The concentrator that receives the list; required.
        cnci_uuid: Id,
        /// The concentrators; default: none.
        cncis: Vec<CnciPeer>,
    }

    /// The addresses of a concentrator for another one.
    CnciPeer {
        /// The address in the cluster's network; default: empty.
        physical_ip: String,
        /// The subnet that it serves, in CIDR form; default: empty.
        subnet: String,
        /// The address inside the tunnel; default: empty.
        tunnel_ip: String,
        /// The number of the tunnel; default: 0.
        tunnel_id: u32,
    }
}
