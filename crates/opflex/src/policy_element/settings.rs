//! The settings of a policy element.

use std::time::Duration;

use serde_json::{Value, json};

use crate::message::{Identity, PROTO_VERSION, Role};
use crate::peer::KeepaliveSettings;

/// The settings of a policy element. With a name, a domain and one server, the defaults work with an
/// unchanged libopflex server.
#[derive(Clone, Debug)]
pub struct ElementSettings {
    /// The name of the element, unique within the domain. Default `ssntp`.
    pub name: String,
    /// The policy domain. Default `default`.
    pub domain: String,
    /// The servers to begin with, each `host:port`. Default none.
    pub peers: Vec<String>,
    /// The location of the element; a server may send another one. Default none.
    pub location: Option<String>,
    /// The member that libopflex adds to the identity: the MAC address of the tunnel end
    /// point, and features. Default an address of zeros, `anycastFallback`.
    pub data: Option<Value>,
    /// The policy refresh rate: servers send updates for this long after a request, and
    /// requests are repeated before it ends. Default 7200 s.
    pub prr: Duration,
    /// The delay after which a request without answer is repeated. It doubles with each repetition.
    /// Default 10 s, as libopflex.
    pub retry: Duration,
    /// The pause before a server is dialled again. From the fourth failure in a row on, it doubles
    /// with each failure. Default 1.25 s.
    pub reconnect: Duration,
    /// The longest pause before a server is dialled again. Default 20 s.
    pub reconnect_max: Duration,
    /// The time limit of connecting. Default 30 s.
    pub dial_timeout: Duration,
    /// The time limit of a server's identity, from the connection on. Default 45 s.
    pub identity_timeout: Duration,
    /// Echoes. Default as libopflex.
    pub keepalive: KeepaliveSettings,
    /// Answers updates, as the draft requires. Default false: the server of libopflex closes the
    /// connection if its `policy_update` is answered.
    pub acknowledge_updates: bool,
    /// The time for which policy is kept after its last reference is released, because it may be
    /// resolved again. Default 250 ms.
    pub linger: Duration,
    /// Refuses a server that sends no proxies if none are known, as libopflex does in
    /// transport mode. Default false.
    pub require_proxies: bool,
    /// The limits of the data that the element keeps for servers.
    pub limits: ElementLimits,
}

/// The limits of the data that the element keeps for servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementLimits {
    /// The maximum number of objects of policy, and of endpoints. A child that is listed and has not
    /// arrived counts as an object. Default 1,000,000.
    pub objects: usize,
    /// The maximum number of policies that are resolved only because others refer to them. Default 100,000.
    pub followed: usize,
}

impl Default for ElementLimits {
    fn default() -> Self {
        Self {
            objects: 1_000_000,
            followed: 100_000,
        }
    }
}

impl Default for ElementSettings {
    fn default() -> Self {
        Self {
            name: "ssntp".to_owned(),
            domain: "default".to_owned(),
            peers: Vec::new(),
            location: None,
            data: Some(json!({"mac": "00:00:00:00:00:00", "features": ["anycastFallback"]})),
            prr: Duration::from_secs(7200),
            retry: Duration::from_secs(10),
            // As libopflex.
            reconnect: Duration::from_millis(1250),
            // libopflex never lengthens the pause. With a thousand elements, a server that restarts
            // would be busy with handshakes.
            reconnect_max: Duration::from_secs(20),
            dial_timeout: Duration::from_secs(30),
            identity_timeout: Duration::from_secs(45),
            keepalive: KeepaliveSettings::default(),
            acknowledge_updates: false,
            // As libopflex.
            linger: Duration::from_millis(250),
            require_proxies: false,
            limits: ElementLimits::default(),
        }
    }
}

impl ElementSettings {
    /// ElementSettings of an element with this name in this domain, with its first
    /// servers.
    pub fn new(
        name: impl Into<String>,
        domain: impl Into<String>,
        peers: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            name: name.into(),
            domain: domain.into(),
            peers: peers.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// The identity, with the location that a server has sent or that was set here.
    pub(super) fn identity(&self, location: Option<&String>) -> Identity {
        Identity {
            proto_version: Some(PROTO_VERSION.to_owned()),
            name: Some(self.name.clone()),
            domain: Some(self.domain.clone()),
            my_location: location.or(self.location.as_ref()).cloned(),
            my_role: vec![Role::POLICY_ELEMENT],
            data: self.data.clone(),
            extra: serde_json::Map::new(),
        }
    }
}
