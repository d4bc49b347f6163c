//! `policy_resolve` and `endpoint_resolve` (draft 4.2.4, 4.2.9), and
//! `policy_unresolve` and `endpoint_unresolve` (4.2.5, 4.2.10).
//!
//! The methods for endpoints have the same members with other names. All of them accept the names
//! for policy and the names for endpoints.

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use super::store::Store;
use crate::json::Object;
use crate::model::{Ident, Name, Target, Uri};

/// One policy or endpoint that is resolved or unresolved. A request can have several of these.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "ResolveWire")]
pub struct Resolve {
    /// The class.
    pub subject: Name,
    /// The object, or the objects with an identifier. An unresolve has to use the same form as the
    /// resolve.
    pub target: Target,
    /// A value for the repository. The protocol does not define it.
    pub data: Option<Value>,
    /// The policy refresh rate: the time in seconds for which the server sends updates. If it is zero
    /// or less, the server sends no updates. A resolve of policy without it is refused.
    pub prr: Option<i64>,
}

impl Resolve {
    /// A resolve with no `data`. An unresolve has no refresh rate.
    pub fn new(subject: Name, target: Target, prr: Option<i64>) -> Self {
        Self {
            subject,
            target,
            data: None,
            prr,
        }
    }
}

/// A received resolve, with the member names for policy or for endpoints.
#[derive(Deserialize)]
struct ResolveWire {
    subject: Name,
    #[serde(default, rename = "policy_uri", alias = "endpoint_uri")]
    uri: Option<Uri>,
    #[serde(default, rename = "policy_ident", alias = "endpoint_ident")]
    ident: Option<Object<WireIdent>>,
    #[serde(default)]
    data: Option<Value>,
    #[serde(default)]
    prr: Option<i64>,
}

#[derive(Deserialize)]
struct WireIdent {
    context: Uri,
    #[serde(alias = "identifier")]
    name: Name,
}

impl TryFrom<ResolveWire> for Resolve {
    type Error = NotOneTarget;

    fn try_from(wire: ResolveWire) -> Result<Self, NotOneTarget> {
        let target = match (wire.uri, wire.ident) {
            (Some(uri), None) => Target::Uri(uri),
            (None, Some(Object(WireIdent { context, name }))) => Target::Ident(Ident { context, name }),
            _ => return Err(NotOneTarget),
        };
        Ok(Self {
            subject: wire.subject,
            target,
            data: wire.data,
            prr: wire.prr,
        })
    }
}

/// A resolve has both targets or none; the draft requires exactly one.
#[derive(Debug, thiserror::Error)]
#[error("exactly one of the URI and the identifier must be set")]
struct NotOneTarget;

/// A resolve for sending, with the member names for policy or for endpoints.
pub(super) struct Named<'a>(pub(super) Store, pub(super) &'a Resolve);

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(of, resolve) = self;
        // Not derived, because the names of the members depend on the store.
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("subject", &resolve.subject)?;
        match &resolve.target {
            Target::Uri(uri) => map.serialize_entry(of.pick("policy_uri", "endpoint_uri"), uri)?,
            Target::Ident(Ident { context, name }) => {
                let ident = json!({ "context": context, (of.pick("name", "identifier")): name });
                map.serialize_entry(of.pick("policy_ident", "endpoint_ident"), &ident)?;
            }
        }
        if let Some(data) = &resolve.data {
            map.serialize_entry("data", data)?;
        }
        if let Some(prr) = &resolve.prr {
            map.serialize_entry("prr", prr)?;
        }
        map.end()
    }
}
