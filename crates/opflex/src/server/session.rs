//! One client: its identity and its keep-alive.

use std::time::Instant;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::resolves::Unsent;
use super::{RequestCounters, Settings, Store};
use crate::deadlines::after;
use crate::message::{ErrorCode, ErrorResponse, Identity, IdentityResult, PROTO_VERSION, Peer, Role};
use crate::model::Name;
use crate::peer::{ConnectionId, Keepalive, bare};
use crate::rpc::Id;

/// The longest name, location and role that a session keeps, in bytes.
const MAX_TEXT: usize = 1024;
/// The most roles that a session keeps.
const MAX_ROLES: usize = 16;

/// The present state of a client.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its connection.
    #[serde(rename = "session")]
    pub connection: ConnectionId,
    /// The address that it connected from.
    pub address: String,
    /// Its name, once it has sent it.
    pub name: Option<Name>,
    /// Its roles.
    #[serde(rename = "role")]
    pub roles: Vec<Role>,
    /// Its location, if the client or the settings say it.
    pub location: Option<String>,
    /// For how many seconds it has been connected.
    pub seconds: u64,
    /// Policy resolves in force.
    pub policies: usize,
    /// Endpoint resolves in force.
    pub endpoint_resolves: usize,
    /// Endpoints that it declared.
    pub endpoints: usize,
    /// Counts of its requests and of the updates to it.
    pub counters: RequestCounters,
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Session {
    /// Where the client connected from.
    pub(super) address: String,
    /// `host:port` as the client dialled it, if it is known.
    pub(super) dialled: Option<String>,
    pub(super) since: Instant,
    pub(super) keepalive: Keepalive,
    /// The common name of its certificate.
    pub(super) certified: Option<String>,
    /// Its identity, once it has sent it.
    pub(super) element: Option<Element>,
    pub(super) counters: RequestCounters,
    /// The unfinished answer. It is finished before the next message is handled.
    pub(super) answer: Option<Answer>,
    /// Whether a piece of that answer has been sent.
    pub(super) begun: bool,
}

/// An answer to a resolve.
#[derive(Debug)]
pub(super) struct Answer {
    /// The id of the request.
    pub(super) id: Id,
    pub(super) of: Store,
    pub(super) unsent: Unsent,
}

/// The identity of a client.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) name: Name,
    pub(super) roles: Vec<Role>,
    pub(super) location: Option<String>,
}

impl Session {
    pub(super) fn new(address: String, dialled: Option<String>, settings: &Settings, now: Instant) -> Self {
        Self {
            address,
            dialled,
            since: now,
            keepalive: Keepalive::new(&settings.keepalive, now),
            certified: None,
            element: None,
            counters: RequestCounters::default(),
            answer: None,
            begun: false,
        }
    }

    /// When the session needs attention although nothing arrives.
    pub(super) fn deadline(&self, settings: &Settings) -> Instant {
        let echo = self.keepalive.next();
        match self.element {
            Some(_) => echo,
            None => echo.min(after(self.since, settings.identity_timeout)),
        }
    }

    pub(super) fn identity_is_late(&self, settings: &Settings, now: Instant) -> bool {
        self.element.is_none() && now >= after(self.since, settings.identity_timeout)
    }

    /// Checks an identity as the draft says, and makes the answer. A second identity
    /// replaces the first.
    pub(super) fn identify(
        &mut self,
        mut identity: Identity,
        settings: &Settings,
    ) -> Result<IdentityResult, Box<ErrorResponse>> {
        let refuse = |code, message: String| Err(ErrorResponse::boxed(code, message));
        if settings.name_from_certificate {
            // A name that the element gives itself would let it take over the endpoints of
            // another element.
            identity.name.clone_from(&self.certified);
            if self.certified.as_deref().is_none_or(str::is_empty) {
                let what = "the certificate has no common name to know the element by";
                return refuse(ErrorCode::ERROR, what.to_owned());
            }
        }
        // These texts are kept as long as the connection, so their length has a bound.
        let texts = [&identity.name, &identity.my_location, &identity.domain]
            .into_iter()
            .flatten();
        let lengths = texts
            .map(String::len)
            .chain(identity.my_role.iter().map(|role| role.name().len()));
        if lengths.max().is_some_and(|length| length > MAX_TEXT) || identity.my_role.len() > MAX_ROLES {
            return refuse(ErrorCode::ERROR, "an identity is too long".to_owned());
        }
        if !settings.lenient {
            let version = identity.proto_version.as_deref();
            if version != Some(PROTO_VERSION) {
                let told = told(version);
                let what = format!("the protocol version is {PROTO_VERSION} here, and {told} there");
                return refuse(ErrorCode::EPROTO, what);
            }
            let domain = identity.domain.as_deref();
            if domain != Some(&settings.domain) && !settings.any_domain {
                let what = format!(
                    "the domain is {:?} here, and {} there",
                    settings.domain,
                    told(domain)
                );
                return refuse(ErrorCode::EDOMAIN, what);
            }
            if identity.name.as_deref().is_none_or(str::is_empty) {
                return refuse(ErrorCode::ERROR, "an identity needs a name".to_owned());
            }
            if identity.my_role.is_empty() {
                return refuse(ErrorCode::ERROR, "an identity needs a role".to_owned());
            }
        }
        // An element compares the domain of the answer with its own.
        let domain = identity.domain.filter(|_| settings.any_domain);
        let name = identity.name.unwrap_or_default();
        // The location that the operator has set wins over the one that the element sends.
        let assigned = settings.locations.get(&name);
        let known = assigned.or(identity.my_location.as_ref());
        let location = known.or(settings.default_location.as_ref()).cloned();
        if settings.require_location && location.is_none() {
            return refuse(
                ErrorCode::ELOCATION,
                format!("the location of {name:?} is not known"),
            );
        }
        // Only now, when nothing can be refused any more, does the identity count.
        self.element = Some(Element {
            name: name.into(),
            roles: identity.my_role,
            location: location.clone(),
        });
        Ok(IdentityResult {
            name: Some(settings.name.clone()),
            domain: domain.or_else(|| Some(settings.domain.clone())),
            my_location: settings.location.clone(),
            your_location: location,
            data: Some(data(settings)),
            my_role: settings.roles.clone(),
            peers: self.peers(settings),
            extra: Map::new(),
        })
    }

    /// The configured list of servers, with the address that this client dialled.
    fn peers(&self, settings: &Settings) -> Vec<Peer> {
        let mut peers = settings.peers.clone();
        for peer in &mut peers {
            peer.connectivity_info = bare(&peer.connectivity_info);
        }
        if let Some(dialled) = self
            .dialled
            .as_deref()
            .map(bare)
            .filter(|_| settings.list_dialled)
            && !settings.roles.is_empty()
            && !peers.iter().any(|peer| peer.connectivity_info == dialled)
        {
            peers.push(Peer {
                role: settings.roles.clone(),
                connectivity_info: dialled,
                extra: Map::new(),
            });
        }
        peers
    }
}

/// A member of an identity, for an error text.
fn told(text: Option<&str>) -> String {
    text.map_or_else(|| "missing".to_owned(), |text| format!("{text:?}"))
}

/// The member `data`, which libopflex adds; it is empty without proxies.
fn data(settings: &Settings) -> Value {
    match &settings.proxies {
        None => json!({}),
        Some(proxies) => json!({
            "proxy_v4": proxies.v4,
            "proxy_v6": proxies.v6,
            "proxy_mac": proxies.mac,
        }),
    }
}
