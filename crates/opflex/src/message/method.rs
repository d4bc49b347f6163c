//! The names of the methods.

use std::fmt;

use serde::Serialize;

/// A method that this crate knows: the eleven of the draft, and one of
/// libopflex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Method {
    /// Is the other side alive? Any side, at any time.
    Echo,
    /// Who am I, and who are you? Element to server, before everything else.
    SendIdentity,
    /// Give me this policy and tell me its changes. Element to repository.
    PolicyResolve,
    /// I don't need this policy any more. Element to repository.
    PolicyUnresolve,
    /// Policy that you resolved changed. Repository to element.
    PolicyUpdate,
    /// This endpoint is attached here. Element to registry.
    EndpointDeclare,
    /// This endpoint is gone. Element to registry.
    EndpointUndeclare,
    /// Give me this endpoint and tell me its changes. Element to registry.
    EndpointResolve,
    /// I don't need this endpoint any more. Element to registry.
    EndpointUnresolve,
    /// An endpoint that you resolved changed. Registry to element.
    EndpointUpdate,
    /// Statistics, faults, events and health. Element to observer.
    StateReport,
    /// A method inside a method, on the inspection socket of libopflex only.
    Custom,
}

impl Method {
    /// Every method.
    pub const ALL: [Self; 12] = [
        Self::Echo,
        Self::SendIdentity,
        Self::PolicyResolve,
        Self::PolicyUnresolve,
        Self::PolicyUpdate,
        Self::EndpointDeclare,
        Self::EndpointUndeclare,
        Self::EndpointResolve,
        Self::EndpointUnresolve,
        Self::EndpointUpdate,
        Self::StateReport,
        Self::Custom,
    ];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::SendIdentity => "send_identity",
            Self::PolicyResolve => "policy_resolve",
            Self::PolicyUnresolve => "policy_unresolve",
            Self::PolicyUpdate => "policy_update",
            Self::EndpointDeclare => "endpoint_declare",
            Self::EndpointUndeclare => "endpoint_undeclare",
            Self::EndpointResolve => "endpoint_resolve",
            Self::EndpointUnresolve => "endpoint_unresolve",
            Self::EndpointUpdate => "endpoint_update",
            Self::StateReport => "state_report",
            Self::Custom => "custom",
        }
    }

    /// The method of that name. Names are compared letter by letter.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Whether the method is allowed before identities are exchanged.
    pub const fn needs_no_identity(self) -> bool {
        matches!(self, Self::Echo | Self::SendIdentity | Self::Custom)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for method in Method::ALL {
            assert_eq!(Method::from_name(method.name()), Some(method));
        }
        for name in ["", "Echo", "transact", "monitor", "update", "policy_trigger"] {
            assert_eq!(Method::from_name(name), None);
        }
    }
}
