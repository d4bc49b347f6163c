//! The flags of agents and concentrators for tenants' networks.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, value_parser};
use ssntp_daemon::{Choices, Connection, Failure, Stop, absolute, one_of};
use ssntp_network::{DEFAULT_MTU, DEFAULT_PORT, NetworkConfig, TunnelConfig};

/// The flags that agents and concentrators share.
#[derive(Clone, Debug, clap::Args)]
pub struct TunnelArgs {
    /// The networks that instances use
    #[arg(long, value_name = "WHICH", value_parser = one_of(WHICH), default_value = "none", action = ArgAction::Set)]
    network: bool,
    /// The largest packet of an instance, in bytes: 50 less than the underlay's
    // RFC 791: every host must take packets of 576 bytes.
    #[arg(long, value_name = "BYTES", env = "SSNTP_MTU",
        default_value_t = DEFAULT_MTU, value_parser = value_parser!(u16).range(576..))]
    mtu: u16,
    /// The UDP port of tunnels, which must be the same in the whole cluster
    #[arg(long, value_name = "PORT", env = "SSNTP_VXLAN_PORT",
        default_value_t = DEFAULT_PORT, value_parser = value_parser!(u16).range(1..))]
    vxlan_port: u16,
    /// A name server for the instances; may be given several times, or as SSNTP_NAME_SERVER,
    /// joined with commas. Processes use the name server of their node, virtual machines that
    /// of the concentrator [default: none]
    #[arg(long, value_name = "IP", env = "SSNTP_NAME_SERVER", value_delimiter = ',')]
    name_server: Vec<IpAddr>,
}

/// The flags of an agent.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tenants' networks")]
pub struct NetworkArgs {
    #[command(flatten)]
    tunnels: TunnelArgs,
    /// The interface or the address of this node at which tunnels end
    /// [default: the interface of the default route]
    #[arg(long, value_name = "ADDR|IFACE")]
    underlay: Option<String>,
    /// The directory with the certificates and keys of the concentrators that this node
    /// runs: UUID.pem for the concentrator with that UUID, which receives a copy
    #[arg(long, value_name = "DIR")]
    concentrator_certs: Option<PathBuf>,
}

#[rustfmt::skip] // A table: one row a word.
const WHICH: Choices<bool> = &[
    ("none", "Instances use the network of the host; a concentrator only keeps tables", false),
    ("tenants", "Each tenant has its own network, carried by tunnels; see docs/networks.md", true),
];

impl TunnelArgs {
    /// The settings of tunnels; `None` without tenants' networks.
    pub fn config(&self) -> Option<TunnelConfig> {
        self.network.then(|| TunnelConfig {
            mtu: self.mtu,
            port: self.vxlan_port,
            name_servers: self.name_server.clone(),
        })
    }
}

impl NetworkArgs {
    /// The settings of tunnels; `None` without tenants' networks, which the other flags then need.
    pub fn tunnels(&self) -> Result<Option<TunnelConfig>, Failure> {
        let tunnels = self.tunnels.config();
        // The values of the flags that are not listed may come from the environment of the host.
        let flags = [
            ("underlay", self.underlay.is_some()),
            ("concentrator-certs", self.concentrator_certs.is_some()),
        ];
        match flags.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) if tunnels.is_none() => {
                Err(Failure::usage(format!("--{flag} needs --network tenants")))
            }
            _ => Ok(tunnels),
        }
    }

    /// The networks of an agent; `None` without tenants' networks.
    pub fn config(&self, connection: &Connection, stop: &Stop) -> Result<Option<NetworkConfig>, Failure> {
        let Some(tunnels) = self.tunnels()? else {
            return Ok(None);
        };
        // A concentrator runs as an instance and does not have the flags of this agent. It gets copies
        // of the files, and all other values through its environment.
        let name_servers: Vec<_> = tunnels.name_servers.iter().map(IpAddr::to_string).collect();
        let mut env = vec![
            ("SSNTP_MTU".into(), tunnels.mtu.to_string()),
            ("SSNTP_VXLAN_PORT".into(), tunnels.port.to_string()),
            ("SSNTP_NAME_SERVER".into(), name_servers.join(",")),
        ];
        let mut config = NetworkConfig {
            underlay: self.underlay.clone().unwrap_or_default(),
            tunnels,
            ..NetworkConfig::default()
        };
        if let Some(certs) = &self.concentrator_certs {
            let reached = connection.server.reach(stop)?;
            let crl = reached.files.crl;
            config.concentrator_certs = Some(("SSNTP_CERT".into(), certs.clone()));
            config.concentrator_files = [("SSNTP_CA", vec![reached.files.ca]), ("SSNTP_CRL", crl.crl)]
                .map(|(name, files)| (name.into(), files))
                .into();
            config.concentrator_files.retain(|(_, files)| !files.is_empty());
            env.push(("SSNTP_CRL_STRICT".into(), crl.crl_strict.to_string()));
            // The concentrator has another working directory than the agent.
            let connect: Vec<_> = reached.connect.iter().map(absolute).collect();
            env.push(("SSNTP_CONNECT".into(), connect.join(",")));
        }
        config.concentrator_env = env;
        Ok(Some(config))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        connection: Connection,
        #[command(flatten)]
        network: NetworkArgs,
    }

    #[test]
    fn flags_of_tenants_networks_are_refused_without_them() {
        for flag in ["--underlay", "--concentrator-certs"] {
            let words = [
                "agent",
                "--connect",
                "a:1",
                "--ca",
                "ca",
                "--cert",
                "cert",
                flag,
                "x",
            ];
            let line = Line::try_parse_from(words).unwrap();
            let stop = Stop::install().unwrap();
            let refused = line.network.config(&line.connection, &stop).unwrap_err();
            let expected = format!("{flag} needs --network tenants");
            assert!(
                matches!(&refused, Failure::Usage(why) if *why == expected),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn a_concentrator_gets_the_whole_name_of_a_socket_that_is_relative_to_its_agent() {
        let words = "agent --connect unix:a.sock,b:1 --ca ca --cert cert --network tenants --concentrator-certs certs";
        let line = Line::try_parse_from(words.split(' ')).unwrap();
        let stop = Stop::install().unwrap();
        let config = line.network.config(&line.connection, &stop).unwrap().unwrap();
        let env = config.concentrator_env.iter();
        let connect = env.clone().find(|(name, _)| name == "SSNTP_CONNECT");
        let here = std::env::current_dir().unwrap();
        let expected = format!("unix:{}/a.sock,b:1", here.display());
        assert_eq!(connect.unwrap().1, expected.as_str());
    }
}
