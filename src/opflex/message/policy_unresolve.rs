//! `policy_unresolve` (draft 4.2.5).

use serde::{Deserialize, Serialize};

use super::policy_resolve::PolicyIdent;
use super::target::{NotOneTarget, one_of, split};
use crate::opflex::json;
use crate::opflex::model::{Ident, Name, Target, Uri};

/// Takes one resolve back; a request can have several of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct PolicyUnresolve {
    /// The class of the policy.
    pub subject: Name,
    /// Which policy.
    pub target: Target,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    subject: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy_uri: Option<Uri>,
    #[serde(
        default,
        deserialize_with = "json::object_or_null",
        skip_serializing_if = "Option::is_none"
    )]
    policy_ident: Option<PolicyIdent>,
}

impl TryFrom<Wire> for PolicyUnresolve {
    type Error = NotOneTarget;

    fn try_from(wire: Wire) -> Result<Self, NotOneTarget> {
        Ok(Self {
            subject: wire.subject,
            target: one_of(wire.policy_uri, wire.policy_ident.map(Ident::from))?,
        })
    }
}

impl From<PolicyUnresolve> for Wire {
    fn from(unresolve: PolicyUnresolve) -> Self {
        let (policy_uri, ident) = split(unresolve.target);
        Self {
            subject: unresolve.subject,
            policy_uri,
            policy_ident: ident.map(PolicyIdent::from),
        }
    }
}
