//! The settings of a server.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::message::{Peer, Proxies, Role};
use crate::peer::KeepaliveSettings;

/// How a server behaves. The defaults are a server with all three roles that
/// an unchanged libopflex element can use, once it has its name and domain.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server's name, unique within the domain.
    /// Default `ssntp`.
    pub name: String,
    /// The policy domain. Default `default`.
    pub domain: String,
    /// Takes elements of any domain, and answers each with its own. Default
    /// false.
    pub any_domain: bool,
    /// The roles of the server. A server without roles only names the other servers.
    /// Default policy repository, endpoint registry and observer.
    pub roles: Vec<Role>,
    /// Where the components of the domain are. IPv6 addresses are told as
    /// libopflex reads them, `::1:8009`, however they are written here. Default
    /// empty.
    pub peers: Vec<Peer>,
    /// Adds the address that the client dialled to the list, if it is missing there
    /// and the server has roles. libopflex stays only with a server whose list has the
    /// address exactly as it was dialled. Turn it off if elements dial host names,
    /// which only `peers` can contain. Default true.
    pub list_dialled: bool,
    /// The location of the server. Default none.
    pub location: Option<String>,
    /// The locations of elements, by name. Default empty.
    pub locations: BTreeMap<String, String>,
    /// The location of an element that is not in the list and sends none. Default none.
    pub default_location: Option<String>,
    /// Refuses elements without a known location, with ELOCATION. Default false.
    pub require_location: bool,
    /// Accepts elements with another protocol version, another domain or no name, as
    /// libopflex does. Default false.
    pub lenient: bool,
    /// Takes the name of an element from its certificate, whatever name it sends: the common
    /// name that [`ServerCore::certify`](super::ServerCore::certify) is told. An element
    /// without one is refused. Endpoints belong to names, so without this any element may
    /// take over those of another. Default false.
    pub name_from_certificate: bool,
    /// Closes the connection of an element when another connection uses its name.
    /// Default false, because the elements of many test set-ups share a name.
    pub unique_names: bool,
    /// The proxies that elements in transport mode ask for. Default none.
    pub proxies: Option<Proxies>,
    /// How long a client may take from connecting to its identity. Default
    /// 45 s.
    pub identity_timeout: Duration,
    /// Echoes. Default as libopflex.
    pub keepalive: KeepaliveSettings,
    /// How long updates are sent and declarations are kept if a request has no refresh
    /// rate, and how long a state report is kept that is not repeated. Default 7200 s.
    pub default_prr: Duration,
    /// What happens to the endpoints of an element whose connection ends. Default
    /// [`OnLeave::Grace`] of 30 s.
    pub on_leave: OnLeave,
    /// The intervals over which the observer sums up numbers. Default an hour in
    /// intervals of five minutes, and a day in hours.
    pub roll_up: Vec<RollUp>,
    /// Bounds of what the server keeps for clients.
    pub limits: ServerLimits,
}

/// What happens to the endpoints of an element whose connection ends. No declaration
/// lives longer than the element asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLeave {
    /// They stay until their refresh time ends, as in the draft. Endpoints that were
    /// declared without such a time are removed.
    Keep,
    /// They are removed at once.
    Remove,
    /// They are removed after this time, unless the element declares them again.
    Grace(Duration),
}

/// A row of intervals, over which numbers in state reports are summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollUp {
    /// How long an interval is.
    pub interval: Duration,
    /// How many intervals are kept.
    pub keep: usize,
}

/// Bounds of what the server keeps for clients. A request that would exceed one is
/// answered with ERROR and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Resolves in force, for each connection and each of the two kinds.
    /// Default 100,000.
    pub resolves: usize,
    /// The memory of the resolves of all connections, in bytes, for each of the two kinds.
    /// No connection gets more than what it leaves free. Default 256 MiB.
    pub resolve_bytes: usize,
    /// Objects of all endpoints. Default 1,000,000.
    pub endpoint_objects: usize,
    /// The memory of all endpoints, in bytes as they are allocated. No element gets more
    /// than what it leaves free. Default 512 MiB, for some 250,000 objects.
    pub endpoint_bytes: usize,
    /// State reports; the oldest is dropped for a new one. Default 200,000.
    pub reports: usize,
    /// The memory of all reports, in bytes as they are allocated. The oldest report is
    /// dropped for a new one; the oldest of the same element, if that has more than what is
    /// free. Default 128 MiB.
    pub report_bytes: usize,
    /// Numbers that are kept over time, two kibibytes each with the default intervals.
    /// Those with the oldest report are dropped for new ones. Default 20,000.
    pub series: usize,
    /// Agents that have left and whose counters are kept, in about half a kibibyte each.
    /// The one that left first is dropped for a new one. Default 10,000.
    pub agents: usize,
    /// Objects in one update; a larger update is sent in pieces. Default 1000.
    pub update_objects: usize,
    /// About how many bytes of objects an answer or update has, unless a single object is
    /// longer. A longer update is sent in pieces. A longer answer is sent as updates, and
    /// its result has the last piece. Default 1 MiB, which takes some milliseconds to
    /// write.
    pub message_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: "ssntp".to_owned(),
            domain: "default".to_owned(),
            any_domain: false,
            roles: vec![Role::POLICY_REPOSITORY, Role::ENDPOINT_REGISTRY, Role::OBSERVER],
            peers: Vec::new(),
            // Without it, an unchanged libopflex leaves a server that is not in its own list.
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
            // Longer answers would hold up the dispatcher: a mebibyte takes milliseconds to write.
            message_bytes: 1 << 20,
        }
    }
}

impl Settings {
    /// Settings of a server with this name in this domain.
    pub fn new(name: impl Into<String>, domain: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            domain: domain.into(),
            ..Self::default()
        }
    }

    /// Whether the server has a role.
    pub fn has(&self, role: &Role) -> bool {
        self.roles.contains(role)
    }
}
