//! The flags for what a server tells elements of itself and of other servers.

use std::net::Ipv6Addr;
use std::time::Duration;

use ssntp::transport::Address;
use ssntp_daemon::Seconds;
use ssntp_opflex::message::{Peer, Proxies, Role};
use ssntp_opflex::server::{OnLeave, RollUp, ServerSettings};

use super::flags::TimerArgs;

/// The server, as its identity answer has it.
#[derive(Debug, clap::Args)]
pub(super) struct IdentityArgs {
    /// The roles of the server; `none` for a server that only lists others
    #[arg(
        long,
        value_name = "ROLE",
        value_delimiter = ',',
        value_parser = role,
        default_value = "repository,registry,observer"
    )]
    roles: Vec<Option<Role>>,
    /// The server's name
    #[arg(long, value_name = "NAME", default_value = "ssntp")]
    name: String,
    /// The policy domain; `any` admits elements of every domain
    #[arg(long, value_name = "NAME", default_value = "default")]
    domain: String,
    /// The location of the server
    #[arg(long, value_name = "TEXT")]
    location: Option<String>,
    /// A server to list in identity answers; join several roles with +
    #[arg(long = "peer", value_name = "ROLE=HOST:PORT", value_parser = peer)]
    peers: Vec<Peer>,
    /// List only the servers of --peer, and not the address that the element dialled. If
    /// elements dial a host name, one of --peer must have that name
    #[arg(long, requires = "peers")]
    only_peers: bool,
    /// The location of an element
    #[arg(long, value_name = "NAME=TEXT", value_parser = named)]
    element_location: Vec<(String, String)>,
    /// The location of elements that send none and have no --element-location
    #[arg(long, value_name = "TEXT")]
    default_location: Option<String>,
    /// Refuse elements without a known location
    #[arg(long)]
    require_location: bool,
    /// The proxies for elements in transport mode: for IPv4, IPv6 and bridged
    /// traffic
    #[arg(long, value_name = "IP,IP,IP", value_parser = proxies)]
    proxies: Option<Proxies>,
    /// Take elements with another protocol version, another domain or no name
    #[arg(long)]
    lenient: bool,
    /// Know elements by the common name of their certificate and not by the name that they
    /// send, so that no element can use the name of another one
    #[arg(long, requires = "tls_ca")]
    identity_from_certificate: bool,
    /// Close the connection of an element when another connection has its name, such as a second
    /// one of the same element: each element must have only one
    #[arg(long)]
    unique_names: bool,
    /// For how long updates are sent and endpoints are kept if a request does not say it
    #[arg(long, value_name = "SECONDS", default_value = "7200")]
    prr: Seconds,
    #[command(flatten)]
    timers: TimerArgs,
    /// How the server treats the endpoints of an element that disconnects: `remove` them,
    /// `keep` them until their time is over, or remove them after grace=SECONDS
    #[arg(long, value_name = "WHAT", value_parser = on_leave, default_value = "grace=30")]
    on_leave: OnLeave,
    /// Sum up the numbers in state reports: the length of an interval, and how many
    /// intervals are kept
    #[arg(long, value_name = "SECONDSxCOUNT", value_delimiter = ',', value_parser = roll_up, default_value = "300x12,3600x24")]
    roll_up: Vec<RollUp>,
}

impl IdentityArgs {
    /// Logs a warning if any element can close the connection of another one.
    pub(super) fn warn(&self) {
        if self.unique_names && !self.identity_from_certificate {
            log::warn!(
                "--unique-names without --identity-from-certificate: an element that sends the name of another one \
                 closes its connection"
            );
        }
    }

    pub(super) fn settings(self) -> ServerSettings {
        let mut settings = ServerSettings::new(self.name, self.domain);
        settings.any_domain = settings.domain == "any";
        settings.roles = self.roles.into_iter().flatten().collect();
        settings.location = self.location;
        settings.peers = self.peers;
        settings.list_dialled = !self.only_peers;
        settings.locations = self.element_location.into_iter().collect();
        settings.default_location = self.default_location;
        settings.require_location = self.require_location;
        settings.proxies = self.proxies;
        settings.lenient = self.lenient;
        settings.name_from_certificate = self.identity_from_certificate;
        settings.unique_names = self.unique_names;
        settings.default_prr = self.prr.into();
        settings.keepalive = self.timers.keepalive();
        settings.identity_timeout = self.timers.identity();
        settings.on_leave = self.on_leave;
        settings.roll_up = self.roll_up;
        settings
    }
}

fn role(text: &str) -> Result<Option<Role>, String> {
    match text {
        "none" => Ok(None),
        "repository" | "policy_repository" => Ok(Some(Role::POLICY_REPOSITORY)),
        "registry" | "endpoint_registry" => Ok(Some(Role::ENDPOINT_REGISTRY)),
        "observer" => Ok(Some(Role::OBSERVER)),
        _ => Err("expected repository, registry, observer or none".to_owned()),
    }
}

fn peer(text: &str) -> Result<Peer, String> {
    let (roles, address) = text.split_once('=').ok_or("expected ROLE=HOST:PORT")?;
    // libopflex writes IPv6 addresses without brackets.
    let is_ipv6 =
        |(host, port): (&str, &str)| host.parse::<Ipv6Addr>().is_ok() && port.parse::<u16>().is_ok();
    if !address.rsplit_once(':').is_some_and(is_ipv6) {
        address.parse::<Address>().map_err(|e| e.to_string())?;
    }
    let roles: Vec<_> = roles.split('+').map(role).collect::<Result<_, _>>()?;
    Ok(Peer {
        role: roles.into_iter().flatten().collect(),
        connectivity_info: address.to_owned(),
        extra: serde_json::Map::new(),
    })
}

fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, text)) if !name.is_empty() && !text.is_empty() => Ok((name.to_owned(), text.to_owned())),
        _ => Err("expected NAME=TEXT".to_owned()),
    }
}

fn proxies(text: &str) -> Result<Proxies, String> {
    let all: Vec<&str> = text.split(',').collect();
    match all[..] {
        [v4, v6, mac] if !all.contains(&"") => Ok(Proxies {
            v4: v4.to_owned(),
            v6: v6.to_owned(),
            mac: mac.to_owned(),
        }),
        _ => Err("expected three addresses".to_owned()),
    }
}

fn on_leave(text: &str) -> Result<OnLeave, String> {
    match text {
        "keep" => Ok(OnLeave::Keep),
        "remove" => Ok(OnLeave::Remove),
        _ => {
            let seconds = text
                .strip_prefix("grace=")
                .ok_or("expected remove, keep or grace=SECONDS")?;
            Ok(OnLeave::Grace(seconds.parse::<Seconds>()?.into()))
        }
    }
}

fn roll_up(text: &str) -> Result<RollUp, String> {
    const MOST: usize = 10_000;
    let wrong = || format!("expected SECONDSxCOUNT, with a count from 1 to {MOST}");
    let (seconds, count) = text.split_once('x').ok_or_else(wrong)?;
    let seconds: u64 = seconds.parse().map_err(|_| wrong())?;
    let keep: usize = count.parse().map_err(|_| wrong())?;
    if seconds == 0 || !(1..=MOST).contains(&keep) {
        return Err(wrong());
    }
    Ok(RollUp {
        interval: Duration::from_secs(seconds),
        keep,
    })
}
