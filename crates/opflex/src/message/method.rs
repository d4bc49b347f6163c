//! The names of the methods.

use std::fmt;

use serde::Serialize;

use super::identity::Role;

/// A method of the draft, or `custom` of libopflex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Method {
    /// Checks that the other side is alive. Sent by either side at any time.
    Echo,
    /// Sends the identity of the element; the result is the identity of the server. Element to
    /// server, before all other requests but echoes.
    SendIdentity,
    /// Gets policy; the server sends updates of it from then on. Element to repository.
    PolicyResolve,
    /// Ends a resolve of policy. Element to repository.
    PolicyUnresolve,
    /// Sends changes of resolved policy. Repository to element.
    PolicyUpdate,
    /// Declares that an endpoint is attached to the element. Element to registry.
    EndpointDeclare,
    /// Ends a declaration. Element to registry.
    EndpointUndeclare,
    /// Gets an endpoint; the server sends updates of it from then on. Element to registry.
    EndpointResolve,
    /// Ends a resolve of an endpoint. Element to registry.
    EndpointUnresolve,
    /// Sends changes of a resolved endpoint. Registry to element.
    EndpointUpdate,
    /// Reports statistics, faults, events and health. Element to observer.
    StateReport,
    /// Calls an inner method, on the inspector and the control socket only.
    Custom,
}

impl Method {
    /// Every method in the order of the variants, with its name on the wire.
    pub const ALL: [(Self, &'static str); 12] = [
        (Self::Echo, "echo"),
        (Self::SendIdentity, "send_identity"),
        (Self::PolicyResolve, "policy_resolve"),
        (Self::PolicyUnresolve, "policy_unresolve"),
        (Self::PolicyUpdate, "policy_update"),
        (Self::EndpointDeclare, "endpoint_declare"),
        (Self::EndpointUndeclare, "endpoint_undeclare"),
        (Self::EndpointResolve, "endpoint_resolve"),
        (Self::EndpointUnresolve, "endpoint_unresolve"),
        (Self::EndpointUpdate, "endpoint_update"),
        (Self::StateReport, "state_report"),
        (Self::Custom, "custom"),
    ];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The method with this name. Names are case-sensitive.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find_map(|(method, of)| (of == name).then_some(method))
    }

    /// The role of the servers that the method is for.
    pub(crate) fn role(self) -> Role {
        match self {
            Self::EndpointDeclare
            | Self::EndpointUndeclare
            | Self::EndpointResolve
            | Self::EndpointUnresolve
            | Self::EndpointUpdate => Role::ENDPOINT_REGISTRY,
            Self::StateReport => Role::OBSERVER,
            _ => Role::POLICY_REPOSITORY,
        }
    }

    /// True if the method is allowed before identities are exchanged.
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
        for (method, _) in Method::ALL {
            assert_eq!(Method::from_name(method.name()), Some(method));
        }
        for name in ["", "Echo", "transact", "monitor", "update", "policy_trigger"] {
            assert_eq!(Method::from_name(name), None);
        }
    }
}
