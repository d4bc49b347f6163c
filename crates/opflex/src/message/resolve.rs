//! `policy_resolve` and `endpoint_resolve` (draft 4.2.4, 4.2.9), and
//! `policy_unresolve` and `endpoint_unresolve` (4.2.5, 4.2.10).
//!
//! Those for endpoints say the same in other words, and either words are read.

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use super::Store;
use crate::json;
use crate::model::{Ident, Name, Target, Uri};

/// Asks for one policy or endpoint, or takes that back; a request can have
/// several of these.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Wire")]
pub struct Resolve {
    /// The class.
    pub subject: Name,
    /// Which object. An identifier may fit several. What was resolved in one
    /// way is taken back in the same way.
    pub target: Target,
    /// Opaque help for the repository.
    pub data: Option<Value>,
    /// The policy refresh rate in seconds: for how long changes are to be told.
    /// Zero and less: not at all. A resolve of policy without it is refused.
    pub prr: Option<i64>,
}

impl Resolve {
    /// A resolve without help for the repository; without a refresh rate, as it
    /// is taken back.
    pub fn new(subject: Name, target: Target, prr: Option<i64>) -> Self {
        Self {
            subject,
            target,
            data: None,
            prr,
        }
    }
}

/// A resolve as it is read, with the member names for policy or for endpoints.
#[derive(Deserialize)]
struct Wire {
    subject: Name,
    // Either name is read in either method, because the meaning is the same.
    #[serde(default, rename = "policy_uri", alias = "endpoint_uri")]
    uri: Option<Uri>,
    #[serde(
        default,
        rename = "policy_ident",
        alias = "endpoint_ident",
        deserialize_with = "json::object_or_null"
    )]
    ident: Option<WireIdent>,
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

impl TryFrom<Wire> for Resolve {
    type Error = NotOneTarget;

    fn try_from(wire: Wire) -> Result<Self, NotOneTarget> {
        let target = match (wire.uri, wire.ident) {
            (Some(uri), None) => Target::Uri(uri),
            (None, Some(WireIdent { context, name })) => Target::Ident(Ident { context, name }),
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

/// Both targets are there, or none; the draft wants exactly one.
#[derive(Debug, thiserror::Error)]
#[error("exactly one of the URI and the identifier must be set")]
struct NotOneTarget;

/// A resolve that is written with the member names for policy or for endpoints.
pub(super) struct Worded<'a>(pub(super) Store, pub(super) &'a Resolve);

impl Serialize for Worded<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(of, resolve) = self;
        // By hand, because the names of the members depend on what is resolved.
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("subject", &resolve.subject)?;
        match (of, &resolve.target) {
            (Store::Policy, Target::Uri(uri)) => map.serialize_entry("policy_uri", uri)?,
            (Store::Endpoints, Target::Uri(uri)) => map.serialize_entry("endpoint_uri", uri)?,
            (Store::Policy, Target::Ident(Ident { context, name })) => {
                map.serialize_entry("policy_ident", &json!({ "name": name, "context": context }))?;
            }
            (Store::Endpoints, Target::Ident(Ident { context, name })) => {
                let ident = json!({ "context": context, "identifier": name });
                map.serialize_entry("endpoint_ident", &ident)?;
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
