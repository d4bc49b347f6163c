//! `endpoint_resolve` (draft 4.2.9).

use serde::{Deserialize, Serialize};

use super::target::{NotOneTarget, one_of, split};
use crate::opflex::json;
use crate::opflex::model::{Ident, ManagedObject, Name, Target, Uri};

/// Asks for one endpoint; a request can have several of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct EndpointResolve {
    /// The class of the endpoint.
    pub subject: Name,
    /// Which endpoint. An identifier may fit several.
    pub target: Target,
    /// For how many seconds changes are to be told. libopflex takes a request
    /// without.
    pub prr: Option<i64>,
}

/// The endpoints that were asked for, parents before children; empty as long as
/// there are none. `O` is how the objects are held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "O: for<'a> Deserialize<'a>"))]
pub struct EndpointResolveResult<O = Vec<ManagedObject>> {
    /// The objects.
    pub endpoint: O,
}

/// `endpoint_ident` on the wire.
#[derive(Serialize, Deserialize)]
pub(super) struct EndpointIdent {
    context: Uri,
    identifier: Name,
}

impl From<EndpointIdent> for Ident {
    fn from(EndpointIdent { context, identifier }: EndpointIdent) -> Self {
        Self {
            context,
            name: identifier,
        }
    }
}

impl From<Ident> for EndpointIdent {
    fn from(Ident { context, name }: Ident) -> Self {
        Self {
            context,
            identifier: name,
        }
    }
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prr: Option<i64>,
}

impl TryFrom<Wire> for EndpointResolve {
    type Error = NotOneTarget;

    fn try_from(wire: Wire) -> Result<Self, NotOneTarget> {
        Ok(Self {
            subject: wire.subject,
            target: one_of(wire.endpoint_uri, wire.endpoint_ident.map(Ident::from))?,
            prr: wire.prr,
        })
    }
}

impl From<EndpointResolve> for Wire {
    fn from(resolve: EndpointResolve) -> Self {
        let (endpoint_uri, ident) = split(resolve.target);
        Self {
            subject: resolve.subject,
            endpoint_uri,
            endpoint_ident: ident.map(EndpointIdent::from),
            prr: resolve.prr,
        }
    }
}
