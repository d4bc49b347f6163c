//! The owner of each endpoint: the element that may replace or remove it.
//!
//! ```text
//!  /ep/1/          declared by A        belongs to A
//!  /ep/1/ip/       part of it           belongs to A
//!  /ep/1/vm/       declared by B        belongs to B: A can neither replace nor remove it
//!  /ep/1/vm/nic/   part of it           belongs to B
//! ```
//!
//! An object belongs to the element of the nearest declaration at or above it. An element
//! may replace and remove only its own objects, with one exception: endpoints move. A
//! declare that has the topmost object of an endpoint takes over the whole endpoint.
//! Elements are distinguished by their names.

//! An element may have several connections to this server, such as one to each of its addresses,
//! and declares the same endpoints on each. An endpoint stays as long as a connection on which its
//! element has declared it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::resolves::seconds;
use super::settings::{OnLeave, ServerSettings};
use crate::json;
use crate::message::{EndpointDeclare, EndpointUndeclare, ErrorResponse};
use crate::model::{ChangeKind, Changes, ManagedObject, Name, Tree, Uri};
use crate::peer::ConnectionId;
use crate::shares::Shares;
use ssntp_transport::Deadlines;

/// The most connections that count for an endpoint: the latest ones on which it was declared.
const MAX_CONNECTIONS: usize = 4;

/// A declaration of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Declared {
    /// The name of the element.
    pub element: Name,
    /// The connection of the latest declaration, which may have ended.
    pub connection: ConnectionId,
    /// The time at which the endpoint is removed unless it is declared again.
    pub expires: Option<Instant>,
}

/// One endpoint of a request to declare.
#[derive(Debug)]
struct Claim {
    root: Uri,
    expires: Option<Instant>,
    /// The memory of its objects, and of the name of the element.
    bytes: usize,
}

/// All declarations in force.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    owners: HashMap<Uri, Owner>,
    by_connection: HashMap<ConnectionId, BTreeSet<Uri>>,
    expiry: Deadlines<Uri>,
    memory: Shares<Name>,
}

#[derive(Debug)]
struct Owner {
    /// The name of the element, which stays the owner after its connections have ended.
    element: Name,
    /// The connections on which the element has declared the endpoint and that have not ended, the
    /// latest last. At most [`MAX_CONNECTIONS`].
    connections: Vec<ConnectionId>,
    latest: ConnectionId,
    bytes: usize,
}

impl Claim {
    /// The endpoints of a list of objects: the objects that are not below another object of the
    /// list, each with everything below it.
    fn of(element: &Name, objects: &[ManagedObject], expires: Option<Instant>) -> Vec<Self> {
        // The name counts for each declaration, because an element may change its name before each.
        let name = json::allocated(16 + element.len());
        let mut sorted: Vec<&ManagedObject> = objects.iter().collect();
        // In the order of the URIs, an object follows the one that contains it. The draft does not
        // require that parents are sent first.
        sorted.sort_unstable_by(|a, b| a.uri.cmp(&b.uri));
        let mut claims: Vec<Self> = Vec::new();
        for object in sorted {
            match claims.last_mut() {
                Some(last) if last.root.covers(&object.uri) => last.bytes += object.memory(),
                _ => claims.push(Self {
                    root: object.uri.clone(),
                    expires,
                    bytes: name + object.memory(),
                }),
            }
        }
        claims
    }
}

impl Ownership {
    /// Adds endpoints, or replaces those with the same URIs. An endpoint belongs to the element that
    /// declared it last. If one object is refused, the whole request has no effect.
    pub(super) fn handle_declare(
        &mut self,
        now: Instant,
        tree: &mut Tree,
        (element, connection): (&Name, ConnectionId),
        declares: Vec<EndpointDeclare>,
        settings: &ServerSettings,
    ) -> Result<Changes, Box<ErrorResponse>> {
        let mut claims = Vec::new();
        let mut objects = Vec::new();
        for declare in declares {
            // The refresh rate is optional here, as in a resolve of endpoints.
            let life = declare.prr.map_or(settings.default_prr, seconds);
            claims.extend(Claim::of(element, &declare.endpoint, end_of(life, now)));
            objects.extend(declare.endpoint);
        }
        // All checks come before the first change, because a request counts as a whole.
        let coming: HashSet<Uri> = objects.iter().map(|object| object.uri.clone()).collect();
        let mut added = 0;
        for uri in &coming {
            match tree.get(uri) {
                Some(_) => self.check(element, uri, &coming)?,
                None => added += 1,
            }
        }
        let limits = &settings.limits;
        if tree.len() + added > limits.endpoint_objects
            || !self.has_room(element, &claims, limits.endpoint_bytes)
        {
            return Err(ErrorResponse::error(format_args!(
                "the registry has no room for more of {:?}: it has {} objects",
                &**element,
                tree.len()
            )));
        }
        tree.check_all(&objects).map_err(ErrorResponse::error)?;
        // An endpoint that has become part of another one has no declaration of its own any more.
        // And an object must not become the parent of an object of another element.
        let mut connections_of: HashMap<Uri, Vec<ConnectionId>> = HashMap::new();
        for uri in coming {
            if let Some(owner) = self.take(&uri).filter(|owner| owner.element == *element) {
                connections_of.insert(uri, owner.connections);
            }
        }
        for object in &mut objects {
            object
                .children
                .retain(|child| !self.is_of_another(element, child));
        }
        // Before the objects are added, because that depends on the new owners.
        for claim in claims {
            let before = connections_of.remove(&claim.root);
            self.enter(claim, element, before.unwrap_or_default(), connection);
        }
        let changes = tree
            .replace_sparing(objects, |uri| self.is_of_another(element, uri))
            .map_err(ErrorResponse::error)?;
        self.forget_deleted(&changes);
        Ok(changes)
    }

    /// Removes endpoints, and parts of endpoints, of the element. Objects of other elements stay,
    /// also below a removed endpoint.
    pub(super) fn handle_undeclare(
        &mut self,
        tree: &mut Tree,
        element: &Name,
        undeclares: &[EndpointUndeclare],
    ) -> Changes {
        let uris = undeclares.iter().map(|undeclare| &undeclare.endpoint_uri);
        let own = uris.filter(|uri| self.element(uri) == Some(element));
        let own: Vec<Uri> = own.cloned().collect();
        self.remove(tree, &own)
    }

    /// Removes the endpoints of a connection that has ended, or sets the time of their removal.
    pub(super) fn handle_disconnected(
        &mut self,
        now: Instant,
        tree: &mut Tree,
        connection: ConnectionId,
        on_leave: OnLeave,
    ) -> Changes {
        let mut uris = self.connection_ended(connection);
        match on_leave {
            // An endpoint without a time of expiry would stay for ever.
            OnLeave::Keep => uris.retain(|uri| self.expiry.of(uri).is_none()),
            OnLeave::Remove => {}
            // A short loss of the connection must not cause updates for all clients.
            OnLeave::Grace(grace) => {
                if let Some(end) = now.checked_add(grace) {
                    uris.into_iter().for_each(|uri| self.end_by(uri, end));
                }
                return Changes::default();
            }
        }
        self.remove(tree, &uris)
    }

    /// Removes the endpoints whose time has ended.
    pub(super) fn handle_deadline(&mut self, now: Instant, tree: &mut Tree) -> Changes {
        let due: Vec<Uri> = std::iter::from_fn(|| self.expiry.pop(now)).collect();
        self.remove(tree, &due)
    }

    /// Removes the objects at and below these URIs, as far as they belong to the same element as
    /// the object at the URI.
    fn remove(&mut self, tree: &mut Tree, uris: &[Uri]) -> Changes {
        let is_of_another = |top: &Uri, uri: &Uri| self.element(uri) != self.element(top);
        let changes = tree.delete_sparing(uris, is_of_another);
        self.forget_deleted(&changes);
        changes
    }

    /// Removes the declarations of deleted objects. There may be several, because an endpoint may
    /// contain another endpoint of the same element.
    fn forget_deleted(&mut self, changes: &Changes) {
        for change in changes.iter().filter(|change| change.kind == ChangeKind::Deleted) {
            self.take(&change.uri);
        }
    }

    /// The element that an object belongs to.
    fn element(&self, uri: &Uri) -> Option<&Name> {
        self.nearest(uri).map(|(_, owner)| &owner.element)
    }

    /// True if an object belongs to another element.
    fn is_of_another(&self, element: &Name, uri: &Uri) -> bool {
        self.element(uri).is_some_and(|owner| owner != element)
    }

    /// The nearest declaration at or above an object.
    fn nearest(&self, uri: &Uri) -> Option<(&Uri, &Owner)> {
        // Prefixes are sorted by length, so the last match is the nearest.
        let above = uri.prefixes().filter_map(|text| self.owners.get_key_value(text));
        self.owners.get_key_value(uri).or_else(|| above.last())
    }

    /// Checks that an element may replace an object with a request that has the objects `coming`.
    fn check(&self, element: &Name, uri: &Uri, coming: &HashSet<Uri>) -> Result<(), Box<ErrorResponse>> {
        match self.nearest(uri) {
            // The topmost object moves the whole endpoint.
            Some((top, owner)) if owner.element != *element && !coming.contains(top) => Err(
                ErrorResponse::error(format_args!("{uri:?} is part of an endpoint of another element")),
            ),
            _ => Ok(()),
        }
    }

    /// True if the memory limit of all endpoints allows the element to declare these endpoints.
    fn has_room(&self, element: &Name, claims: &[Claim], limit: usize) -> bool {
        let before = claims.iter().filter_map(|claim| self.owners.get(&claim.root));
        let own = before.filter(|owner| owner.element == *element);
        let before: usize = own.map(|owner| owner.bytes).sum();
        let after: usize = claims.iter().map(|claim| claim.bytes).sum();
        // An element at its limit may still repeat its declarations.
        after <= before || self.memory.fits(element, after - before, limit)
    }

    /// Adds an endpoint. It belongs to this element from now on. `before` has the connections on which
    /// the element has declared it earlier.
    fn enter(&mut self, claim: Claim, element: &Name, before: Vec<ConnectionId>, latest: ConnectionId) {
        // A request may declare an endpoint twice.
        let twice = self.take(&claim.root);
        let mut connections = twice.map_or(before, |owner| owner.connections);
        connections.retain(|other| *other != latest);
        connections.push(latest);
        if connections.len() > MAX_CONNECTIONS {
            connections.remove(0);
        }
        for connection in &connections {
            let uris = self.by_connection.entry(*connection).or_default();
            uris.insert(claim.root.clone());
        }
        if let Some(at) = claim.expires {
            self.expiry.set(claim.root.clone(), at);
        }
        self.memory.charge(element.clone(), claim.bytes);
        let owner = Owner {
            element: element.clone(),
            connections,
            latest,
            bytes: claim.bytes,
        };
        self.owners.insert(claim.root, owner);
    }

    /// Removes a declaration: its endpoint was removed, or has become part of another endpoint.
    fn take(&mut self, uri: &Uri) -> Option<Owner> {
        let owner = self.owners.remove(uri)?;
        self.memory.refund(&owner.element, owner.bytes);
        self.expiry.clear(uri);
        for connection in &owner.connections {
            if let Some(uris) = self.by_connection.get_mut(connection) {
                uris.remove(uri);
                if uris.is_empty() {
                    self.by_connection.remove(connection);
                }
            }
        }
        Some(owner)
    }

    /// A connection has ended. Returns the endpoints that no other connection has declared. Their
    /// declarations stay: the caller removes them or sets their end, according to the settings.
    fn connection_ended(&mut self, connection: ConnectionId) -> Vec<Uri> {
        let mut uris = self.by_connection.remove(&connection).unwrap_or_default();
        uris.retain(|uri| {
            self.owners.get_mut(uri).is_some_and(|owner| {
                owner.connections.retain(|other| *other != connection);
                owner.connections.is_empty()
            })
        });
        uris.into_iter().collect()
    }

    /// Ends an endpoint at this time, unless it ends earlier.
    fn end_by(&mut self, uri: Uri, at: Instant) {
        let at = self.expiry.of(&uri).map_or(at, |before| before.min(at));
        self.expiry.set(uri, at);
    }

    /// The time at which the next endpoint expires.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.expiry.next()
    }

    /// The declaration of an endpoint, by its topmost object.
    pub(super) fn declaration(&self, uri: &Uri) -> Option<Declared> {
        let owner = self.owners.get(uri)?;
        Some(Declared {
            element: owner.element.clone(),
            connection: owner.latest,
            expires: self.expiry.of(uri),
        })
    }

    /// The number of endpoints that a connection has declared.
    pub(super) fn count(&self, connection: ConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, BTreeSet::len)
    }
}

/// The time at which a declaration expires. `None` for zero, or for a time that the clock cannot
/// represent: then it ends with its connection.
fn end_of(life: Duration, now: Instant) -> Option<Instant> {
    now.checked_add(life).filter(|_| !life.is_zero())
}
