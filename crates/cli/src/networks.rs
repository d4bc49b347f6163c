//! The flags of tenants' networks, of agents and concentrators.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::value_parser;
use ssntp_cluster::network::{DEFAULT_MTU, DEFAULT_PORT, NetworkConfig};

use crate::choice::{Choices, one_of};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::signals::Stop;

/// The flags that agents and concentrators share.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TunnelArgs {
    /// Which networks there are
    #[arg(long, value_name = "WHICH", value_parser = one_of(WHICH), default_value = "none")]
    pub(crate) network: NetworkName,
    /// The largest packet of an instance, in bytes: 50 less than the underlay's
    // RFC 791: every host must take packets of 576 bytes.
    #[arg(long, value_name = "BYTES", env = "SSNTP_MTU",
        default_value_t = DEFAULT_MTU, value_parser = value_parser!(u16).range(576..))]
    pub(crate) mtu: u16,
    /// The UDP port of tunnels, the same in the whole cluster
    #[arg(long, value_name = "PORT", env = "SSNTP_VXLAN_PORT",
        default_value_t = DEFAULT_PORT, value_parser = value_parser!(u16).range(1..))]
    pub(crate) vxlan_port: u16,
    /// A name server for the instances; may be given several times, or as SSNTP_NAME_SERVER,
    /// joined with commas. Processes get that of their node, machines that of the concentrator
    /// [default: none]
    #[arg(long, value_name = "IP", env = "SSNTP_NAME_SERVER", value_delimiter = ',')]
    pub(crate) name_server: Vec<IpAddr>,
}

/// The flags of an agent.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tenants' networks")]
pub(crate) struct NetworkArgs {
    #[command(flatten)]
    tunnels: TunnelArgs,
    /// The interface or the address of this node at which tunnels begin
    /// [default: the interface of the default route]
    #[arg(long, value_name = "ADDR|IFACE")]
    underlay: Option<String>,
    /// The directory with the certificates and keys of the concentrators that this node
    /// runs: UUID.pem for the concentrator with that UUID, which gets a copy
    #[arg(long, value_name = "DIR")]
    concentrator_certs: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkName {
    None,
    Tenants,
}

#[rustfmt::skip] // A table: one row a word.
const WHICH: Choices<NetworkName> = &[
    ("none", "Instances use the network of the host; a concentrator keeps tables only", NetworkName::None),
    ("tenants", "Those of the tenants, with tunnels, see docs/networks.md", NetworkName::Tenants),
];

impl NetworkArgs {
    /// The networks of an agent, if it has any.
    pub(crate) fn config(
        &self,
        connection: &Connection,
        stop: &Stop,
    ) -> Result<Option<NetworkConfig>, Failure> {
        let TunnelArgs {
            network,
            mtu,
            vxlan_port,
            name_server,
        } = &self.tunnels;
        let (mtu, vxlan_port) = (*mtu, *vxlan_port);
        if *network == NetworkName::None {
            return Ok(None);
        }
        let mut config = NetworkConfig::new(self.underlay.as_deref().unwrap_or_default())
            .mtu(mtu)
            .port(vxlan_port)
            .concentrator_env("SSNTP_MTU", mtu.to_string())
            .concentrator_env("SSNTP_VXLAN_PORT", vxlan_port.to_string());
        for ip in name_server {
            config = config.name_server(*ip);
        }
        if !name_server.is_empty() {
            let servers: Vec<_> = name_server.iter().map(ToString::to_string).collect();
            config = config.concentrator_env("SSNTP_NAME_SERVER", servers.join(","));
        }
        // A concentrator runs as an instance and has no flags of this agent. It gets copies of the
        // files and finds the server through its environment.
        if let Some(certs) = &self.concentrator_certs {
            let reached = connection.server.reach(stop)?;
            let addresses: Vec<_> = reached.connect.iter().map(ToString::to_string).collect();
            config = config
                .concentrator_certs("SSNTP_CERT", certs)
                .concentrator_file("SSNTP_CA", [reached.files.ca]);
            if !reached.files.crl.crl.is_empty() {
                config = config.concentrator_file("SSNTP_CRL", reached.files.crl.crl);
            }
            if reached.files.crl.crl_strict {
                config = config.concentrator_env("SSNTP_CRL_STRICT", "true");
            }
            if !addresses.is_empty() {
                config = config.concentrator_env("SSNTP_CONNECT", addresses.join(","));
            }
        }
        Ok(Some(config))
    }
}
