//! `send_identity` (draft 4.2.2), and the roles of participants.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json;

/// The role of an OpFlex component. Names that are not in the draft are kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Role(Cow<'static, str>);

impl Role {
    /// The component enforces policy.
    pub const POLICY_ELEMENT: Self = Self(Cow::Borrowed("policy_element"));
    /// The component has all policy.
    pub const POLICY_REPOSITORY: Self = Self(Cow::Borrowed("policy_repository"));
    /// The component has the endpoints that elements declare.
    pub const ENDPOINT_REGISTRY: Self = Self(Cow::Borrowed("endpoint_registry"));
    /// The component receives statistics, faults, events and health.
    pub const OBSERVER: Self = Self(Cow::Borrowed("observer"));

    /// The name on the wire.
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// The protocol version of the draft.
pub const PROTO_VERSION: &str = "1.0";

/// The identity of the sender.
///
/// Any member may be missing in a received identity. The receiver then decides if it accepts the
/// identity; a wrong version and a wrong domain have error codes of their own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// The version of the protocol, [`PROTO_VERSION`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proto_version: Option<String>,
    /// The name of the sender, unique within the domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The policy domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The location of the sender. `None` if it is not known to the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub my_location: Option<String>,
    /// The roles of the sender.
    #[serde(default, deserialize_with = "json::list")]
    pub my_role: Vec<Role>,
    /// An addition of libopflex: `mac` and `features`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// Members of later versions, which are kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The identity of the answering side, and the addresses of the other servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IdentityResult {
    /// The name of the answering side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The policy domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The location of the answering side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub my_location: Option<String>,
    /// The location of the sender of the request, which sends it as its `my_location` from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub your_location: Option<String>,
    /// An addition of libopflex: `proxy_v4`, `proxy_v6` and `proxy_mac` in transport mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// The roles of the answering side. Empty for a server that only lists other servers.
    #[serde(default, deserialize_with = "json::list")]
    pub my_role: Vec<Role>,
    /// The components of the domain, with their addresses.
    #[serde(default, deserialize_with = "json::objects")]
    pub peers: Vec<Peer>,
    /// Members of later versions, which are kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The address of a component.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// The roles of the component.
    #[serde(default, deserialize_with = "json::list")]
    pub role: Vec<Role>,
    /// The address, `host:port`. libopflex compares its characters with the address that it
    /// dialled.
    pub connectivity_info: String,
    /// Members of later versions, which are kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The addresses of the forwarding proxies, which a server sends in transport mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Proxies {
    /// For IPv4 traffic.
    pub v4: String,
    /// For IPv6 traffic. It is an IPv4 address, too.
    pub v6: String,
    /// For bridged traffic.
    pub mac: String,
}

impl IdentityResult {
    /// The proxies. `None` unless `data` has all three.
    pub fn proxies(&self) -> Option<Proxies> {
        // Transport mode cannot forward without all three.
        let text = |name| Some(self.data.as_ref()?.get(name)?.as_str()?.to_owned());
        Some(Proxies {
            v4: text("proxy_v4")?,
            v6: text("proxy_v6")?,
            mac: text("proxy_mac")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_form_of_the_draft_prints_back() {
        let request = json!({
            "proto_version": "1.0", "name": "pe1", "domain": "d", "my_location": "here",
            "my_role": ["policy_element", "something_new"], "status": 7,
        });
        let identity: Identity = serde_json::from_value(request.clone()).unwrap();
        assert_eq!(identity.my_role[0], Role::POLICY_ELEMENT);
        assert_eq!(serde_json::to_value(identity).unwrap(), request);

        let result = json!({
            "name": "pr1", "my_role": ["policy_repository"], "domain": "d", "my_location": "there",
            "your_location": "here", "peers": [{"role": ["observer"], "connectivity_info": "10.0.0.1:8009"}],
        });
        let identity: IdentityResult = serde_json::from_value(result.clone()).unwrap();
        assert_eq!(identity.proxies(), None);
        assert_eq!(serde_json::to_value(identity).unwrap(), result);
    }

    #[test]
    fn proxies_are_used_only_if_all_three_are_sent() {
        let mut result = IdentityResult {
            data: Some(json!({"proxy_v4": "1.1.1.1", "proxy_v6": "2.2.2.2"})),
            ..IdentityResult::default()
        };
        assert_eq!(result.proxies(), None);
        result.data = Some(json!({"proxy_v4": "1.1.1.1", "proxy_v6": "2.2.2.2", "proxy_mac": "3.3.3.3"}));
        assert_eq!(result.proxies().unwrap().mac, "3.3.3.3");
    }
}
