//! The roles of participants.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

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
