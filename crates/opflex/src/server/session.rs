//! The session of one client: its identity and its keep-alive.

use std::time::Instant;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::counters::RequestCounters;
use super::resolves::Unsent;
use super::settings::ServerSettings;
use crate::message::{ErrorCode, ErrorResponse, Identity, IdentityResult, PROTO_VERSION, Peer, Role, Store};
use crate::model::Name;
use crate::peer::{ConnectionId, Keepalive, bare};
use crate::rpc::Id;

/// The longest name, location and role that a session keeps, in bytes.
const MAX_TEXT: usize = 1024;
/// The maximum number of roles that a session keeps.
const MAX_ROLES: usize = 16;

/// A snapshot of the session of a client.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The number of the connection.
    pub connection: ConnectionId,
    /// The address of the client.
    pub address: String,
    /// The name. `None` until the identity of the client was accepted.
    pub name: Option<Name>,
    /// Its roles.
    pub roles: Vec<Role>,
    /// The location, from the settings or from the client.
    pub location: Option<String>,
    /// The age of the connection in seconds.
    pub seconds: u64,
    /// The number of policy resolves in force.
    pub policies: usize,
    /// The number of endpoint resolves in force.
    pub endpoint_resolves: usize,
    /// The number of endpoints that the client declared.
    pub endpoints: usize,
    /// Counters of its requests and of the updates to it.
    #[serde(flatten)]
    pub counters: RequestCounters,
}

/// A client that has connected.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// Its address, for the log and for [`ServerCore::sessions`](super::ServerCore::sessions).
    pub address: String,
    /// The server's address that it dialled, `host:port`, if it is known.
    pub dialled: Option<String>,
    /// The common name of its verified certificate, which is used only with
    /// [`ServerSettings::name_from_certificate`].
    pub certified: Option<String>,
    /// The end of its certificate.
    pub expires: Option<Instant>,
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) since: Instant,
    pub(super) keepalive: Keepalive,
    /// The identity. `None` until the server has accepted it.
    pub(super) element: Option<Element>,
    pub(super) counters: RequestCounters,
    /// The unfinished answer. It is finished before the next message is handled.
    pub(super) answer: Option<Answer>,
}

/// An unfinished answer to a resolve.
#[derive(Debug)]
pub(super) struct Answer {
    /// The id of the request.
    pub(super) id: Id,
    pub(super) of: Store,
    pub(super) unsent: Unsent,
    /// True if a piece of the answer has been sent.
    pub(super) is_begun: bool,
}

/// The identity of a client.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) name: Name,
    pub(super) roles: Vec<Role>,
    pub(super) location: Option<String>,
}

impl Session {
    pub(super) fn new(client: Client, settings: &ServerSettings, now: Instant) -> Self {
        let identity = settings.identity_timeout;
        Self {
            since: now,
            keepalive: Keepalive::new(&settings.keepalive, identity, client.expires, now),
            client,
            element: None,
            counters: RequestCounters::default(),
            answer: None,
        }
    }

    /// Checks an identity as the draft requires. Returns the name of the element and the answer. A second
    /// identity replaces the first.
    pub(super) fn identify(
        &mut self,
        mut identity: Identity,
        settings: &ServerSettings,
    ) -> Result<(Name, IdentityResult), Box<ErrorResponse>> {
        let refuse = |code, message: String| Err(ErrorResponse::boxed(code, message));
        if settings.name_from_certificate {
            // Endpoints belong to names, so an element could take over those of another element with
            // a name of its choice.
            identity.name.clone_from(&self.client.certified);
            if identity.name.as_deref().is_none_or(str::is_empty) {
                let what = "the certificate has no common name to know the element by";
                return refuse(ErrorCode::ERROR, what.to_owned());
            }
        }
        // The session keeps these texts, so their length needs a limit.
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
                let sent = shown(version);
                let what = format!("the protocol version is {PROTO_VERSION} here, and {sent} there");
                return refuse(ErrorCode::EPROTO, what);
            }
            let domain = identity.domain.as_deref();
            if domain != Some(&settings.domain) && !settings.any_domain {
                let what = format!(
                    "the domain is {:?} here, and {} there",
                    settings.domain,
                    shown(domain)
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
        // An element may compare the domain of the answer with its own.
        let domain = identity.domain.filter(|_| settings.any_domain);
        let name = identity.name.unwrap_or_default();
        // The configured location takes precedence over the location that the element sends.
        let assigned = settings.locations.get(&name);
        let known = assigned.or(identity.my_location.as_ref());
        let location = known.or(settings.default_location.as_ref()).cloned();
        if settings.require_location && location.is_none() {
            return refuse(
                ErrorCode::ELOCATION,
                format!("the location of {name:?} is not known"),
            );
        }
        // After the last check, so that a refused identity has no effect.
        self.keepalive.identified();
        let name = Name::from(name);
        self.element = Some(Element {
            name: name.clone(),
            roles: identity.my_role,
            location: location.clone(),
        });
        let result = IdentityResult {
            name: Some(settings.name.clone()),
            domain: domain.or_else(|| Some(settings.domain.clone())),
            my_location: settings.location.clone(),
            your_location: location,
            data: Some(data(settings)),
            my_role: settings.roles.clone(),
            peers: self.peers(settings),
            extra: Map::new(),
        };
        Ok((name, result))
    }

    /// The configured list of servers, with the address that this client dialled.
    fn peers(&self, settings: &ServerSettings) -> Vec<Peer> {
        let mut peers = settings.peers.clone();
        for peer in &mut peers {
            peer.connectivity_info = bare(&peer.connectivity_info);
        }
        let dialled = self.client.dialled.as_deref().map(bare);
        if let Some(dialled) = dialled.filter(|_| settings.list_dialled)
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
fn shown(text: Option<&str>) -> String {
    text.map_or_else(|| "missing".to_owned(), |text| format!("{text:?}"))
}

/// The member `data`, an addition of libopflex. It is empty without proxies.
fn data(settings: &ServerSettings) -> Value {
    match &settings.proxies {
        None => json!({}),
        Some(proxies) => json!({
            "proxy_v4": proxies.v4,
            "proxy_v6": proxies.v6,
            "proxy_mac": proxies.mac,
        }),
    }
}
