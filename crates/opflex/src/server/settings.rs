//! The settings of a server.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::message::{Peer, Proxies, Role};
use crate::peer::KeepaliveSettings;

/// The settings of a server. With a name and a domain, the defaults are a server with all three roles
/// that an unchanged libopflex element can use.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The server's name, unique within the domain.
    /// Default `ssntp`.
    pub name: String,
    /// The policy domain. Default `default`.
    pub domain: String,
    /// Accepts elements of any domain, and answers each with its own domain. Default false.
    pub any_domain: bool,
    /// The roles of the server. A server without roles only lists other servers.
    /// Default policy repository, endpoint registry and observer.
    pub roles: Vec<Role>,
    /// The components of the domain with their addresses. IPv6 addresses are sent in the form of
    /// libopflex, `::1:8009`, also if they have brackets here. Default empty.
    pub peers: Vec<Peer>,
    /// Adds the address that the client dialled to the list, if the list lacks it and the server has
    /// roles. libopflex uses a server only if its list has the address exactly as it was dialled.
    /// Turn it off if elements dial host names, which only `peers` can contain. Default true.
    pub list_dialled: bool,
    /// The location of the server. Default none.
    pub location: Option<String>,
    /// The locations of elements, by name. Default empty.
    pub locations: BTreeMap<String, String>,
    /// The location of an element that is not in the list and sends none. Default none.
    pub default_location: Option<String>,
    /// Refuses elements without a known location, with ELOCATION. Default false.
    pub require_location: bool,
    /// Accepts elements with another protocol version, another domain, no name or no role, as
    /// libopflex does. Default false.
    pub lenient: bool,
    /// Uses the common name of an element's certificate as its name, and ignores the name that it
    /// sends. An element without a common name is refused. Endpoints belong to names, so without this an element can take
    /// over the endpoints of another one. Default false.
    pub name_from_certificate: bool,
    /// Closes the connection of an element when another connection uses its name.
    /// Default false, because the elements of many test set-ups share a name.
    pub unique_names: bool,
    /// The proxies that elements in transport mode need. Default none.
    pub proxies: Option<Proxies>,
    /// The time limit of a client's identity, from the connection on. Default 45 s.
    pub identity_timeout: Duration,
    /// Echoes. Default as libopflex.
    pub keepalive: KeepaliveSettings,
    /// The refresh rate of requests that have none. A state report that is not repeated is kept for
    /// this time, too. Default 7200 s.
    pub default_prr: Duration,
    /// The treatment of the endpoints of an element whose connection ends. Default
    /// [`OnLeave::Grace`] of 30 s.
    pub on_leave: OnLeave,
    /// The intervals over which the observer sums up numbers. Default an hour in
    /// intervals of five minutes, and a day in hours.
    pub roll_up: Vec<RollUp>,
    /// The limits of the data that the server keeps for clients.
    pub limits: ServerLimits,
}

/// The treatment of the endpoints of an element whose connection ends. A declaration never lasts
/// longer than its refresh rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLeave {
    /// They stay until their refresh rate ends, as in the draft. Endpoints without a time of expiry
    /// are removed.
    Keep,
    /// They are removed at once.
    Remove,
    /// They are removed after this time, unless the element declares them again.
    Grace(Duration),
}

/// A row of intervals, over which numbers in state reports are summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollUp {
    /// The length of an interval.
    pub interval: Duration,
    /// The number of intervals that are kept.
    pub keep: usize,
}

/// The limits of the data that the server keeps for clients. Unless stated otherwise, a request that
/// would exceed a limit is answered with ERROR and has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// The maximum number of resolves in force, for each connection and each of the two stores.
    /// Default 100,000.
    pub resolves: usize,
    /// The memory of the resolves of all connections, in bytes, for each of the two stores. A
    /// connection gets at most as much as stays free. Default 256 MiB.
    pub resolve_bytes: usize,
    /// The maximum number of endpoint objects. Default 1,000,000.
    pub endpoint_objects: usize,
    /// The memory of all endpoints, in allocated bytes. An element gets at most as much as stays
    /// free. Default 512 MiB, for some 250,000 objects.
    pub endpoint_bytes: usize,
    /// The maximum number of state reports; the oldest is dropped for a new one. Default 200,000.
    pub reports: usize,
    /// The memory of all reports, in allocated bytes. The oldest report is dropped for a new one; the
    /// oldest report of the same element, if the element has used its share. Default 128 MiB.
    pub report_bytes: usize,
    /// The maximum number of numbers that are kept over time, two kibibytes each with the default
    /// intervals. The numbers of the oldest report are dropped for new ones. Default 20,000.
    pub series: usize,
    /// The maximum number of agents that have left and whose counters are kept, in about half a kibibyte
    /// each. The agent that left first is removed for a new one. Default 10,000.
    pub agents: usize,
    /// The maximum number of objects in one update; a larger update is sent in pieces. Default 1000.
    pub update_objects: usize,
    /// The approximate length of an answer or update, in bytes, unless a single object is longer. A
    /// longer update is sent in pieces. A longer answer is sent as updates, and its result has the
    /// last piece. Default 1 MiB, which takes some milliseconds to encode.
    pub message_bytes: usize,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            name: "ssntp".to_owned(),
            domain: "default".to_owned(),
            any_domain: false,
            roles: vec![Role::POLICY_REPOSITORY, Role::ENDPOINT_REGISTRY, Role::OBSERVER],
            peers: Vec::new(),
            // libopflex closes the connection to a server that is not in its own list.
            list_dialled: true,
            location: None,
            locations: BTreeMap::new(),
            default_location: None,
            require_location: false,
            lenient: false,
            name_from_certificate: false,
            unique_names: false,
            proxies: None,
            // The handshake timeout of libopflex, which covers TLS as well.
            identity_timeout: Duration::from_secs(45),
            keepalive: KeepaliveSettings::default(),
            // The default of libopflex, which it sends in every request.
            default_prr: Duration::from_secs(7200),
            on_leave: OnLeave::Grace(Duration::from_secs(30)),
            roll_up: vec![
                RollUp {
                    interval: Duration::from_secs(300),
                    keep: 12,
                },
                RollUp {
                    interval: Duration::from_secs(3600),
                    keep: 24,
                },
            ],
            limits: ServerLimits::default(),
        }
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            // Far above what an agent needs: the sample policy of agent-ovs has some 300 objects.
            resolves: 100_000,
            resolve_bytes: 256 << 20,
            endpoint_objects: 1_000_000,
            // An object with four properties takes some two kibibytes.
            endpoint_bytes: 512 << 20,
            reports: 200_000,
            report_bytes: 128 << 20,
            series: 20_000,
            agents: 10_000,
            update_objects: 1000,
            // Encoding a longer answer would block the dispatcher for too long.
            message_bytes: 1 << 20,
        }
    }
}

impl ServerSettings {
    /// ServerSettings of a server with this name in this domain.
    pub fn new(name: impl Into<String>, domain: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            domain: domain.into(),
            ..Self::default()
        }
    }
}
