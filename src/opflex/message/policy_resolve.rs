//! `policy_resolve` (draft 4.2.4).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::target::{NotOneTarget, one_of, split};
use crate::opflex::json;
use crate::opflex::model::{Ident, ManagedObject, Name, Target, Uri};

/// Asks for one policy; a request can have several of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct PolicyResolve {
    /// The class of the policy.
    pub subject: Name,
    /// Which policy.
    pub target: Target,
    /// Opaque help for the repository.
    pub data: Option<Value>,
    /// The policy refresh rate in seconds: for how long changes are to be told.
    /// Zero and less: not at all. libopflex refuses a request without.
    pub prr: i64,
}

/// The policies that were asked for, parents before children; empty as long as
/// there are none. `O` is how the objects are held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "O: for<'a> Deserialize<'a>"))]
pub struct PolicyResolveResult<O = Vec<ManagedObject>> {
    /// The objects.
    pub policy: O,
}

/// `policy_ident` on the wire.
#[derive(Serialize, Deserialize)]
pub(super) struct PolicyIdent {
    name: Name,
    context: Uri,
}

impl From<PolicyIdent> for Ident {
    fn from(PolicyIdent { name, context }: PolicyIdent) -> Self {
        Self { context, name }
    }
}

impl From<Ident> for PolicyIdent {
    fn from(Ident { context, name }: Ident) -> Self {
        Self { name, context }
    }
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
    prr: i64,
}

impl TryFrom<Wire> for PolicyResolve {
    type Error = NotOneTarget;

    fn try_from(wire: Wire) -> Result<Self, NotOneTarget> {
        Ok(Self {
            subject: wire.subject,
            target: one_of(wire.policy_uri, wire.policy_ident.map(Ident::from))?,
            data: wire.data,
            prr: wire.prr,
        })
    }
}

impl From<PolicyResolve> for Wire {
    fn from(resolve: PolicyResolve) -> Self {
        let (policy_uri, ident) = split(resolve.target);
        Self {
            subject: resolve.subject,
            policy_uri,
            policy_ident: ident.map(PolicyIdent::from),
            data: resolve.data,
            prr: resolve.prr,
        }
    }
}
