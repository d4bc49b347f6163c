//! `endpoint_unresolve` (draft 4.2.10).

use serde::{Deserialize, Serialize};

use super::endpoint_resolve::EndpointIdent;
use super::target::{NotOneTarget, one_of, split};
use crate::opflex::json;
use crate::opflex::model::{Ident, Name, Target, Uri};

/// Takes one resolve back; a request can have several of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct EndpointUnresolve {
    /// The class of the endpoint.
    pub subject: Name,
    /// Which endpoint.
    pub target: Target,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    subject: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    endpoint_uri: Option<Uri>,
    #[serde(
        default,
        deserialize_with = "json::object_or_null",
        skip_serializing_if = "Option::is_none"
    )]
    endpoint_ident: Option<EndpointIdent>,
}

impl TryFrom<Wire> for EndpointUnresolve {
    type Error = NotOneTarget;

    fn try_from(wire: Wire) -> Result<Self, NotOneTarget> {
        Ok(Self {
            subject: wire.subject,
            target: one_of(wire.endpoint_uri, wire.endpoint_ident.map(Ident::from))?,
        })
    }
}

impl From<EndpointUnresolve> for Wire {
    fn from(unresolve: EndpointUnresolve) -> Self {
        let (endpoint_uri, ident) = split(unresolve.target);
        Self {
            subject: unresolve.subject,
            endpoint_uri,
            endpoint_ident: ident.map(EndpointIdent::from),
        }
    }
}
