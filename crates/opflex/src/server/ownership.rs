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
use crate::model::{ChangeKind, Changes, Name, Replacement, Tree, Uri};
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
    /// The memory of the objects that belong to this declaration, and of the name of the element.
    bytes: usize,
}

/// The declarations as they will be after a request to declare.
struct Outcome<'a> {
    owners: &'a HashMap<Uri, Owner>,
    element: &'a Name,
    /// The endpoints of the request, by their topmost objects, each with the time at which it expires.
    roots: &'a HashMap<Uri, Option<Instant>>,
    /// All objects of the request.
    coming: &'a HashSet<Uri>,
}

impl Outcome<'_> {
    /// The nearest declaration at or above an object, and its element. An endpoint that has become
    /// part of another one has no declaration of its own any more.
    fn nearest(&self, uri: &Uri) -> Option<(&Uri, &Name)> {
        let at = |text: &str| match self.roots.get_key_value(text) {
            Some((root, _)) => Some((root, self.element)),
            None => {
                let (root, owner) = self.owners.get_key_value(text)?;
                (!self.coming.contains(root)).then_some((root, &owner.element))
            }
        };
        at(uri.as_str()).or_else(|| uri.prefixes().filter_map(at).last())
    }

    fn is_of_another(&self, uri: &Uri) -> bool {
        self.nearest(uri).is_some_and(|(_, owner)| owner != self.element)
    }

    /// Adds the memory of the objects that stay in the tree to that of their declarations, for all
    /// declarations in `bytes`.
    fn add_staying(&self, tree: &Tree, replacement: &Replacement, bytes: &mut HashMap<Uri, usize>) {
        let is_top = |root: &&Uri| !root.prefixes().any(|above| bytes.contains_key(above));
        let there = bytes.keys().filter(is_top).flat_map(|root| tree.covered(root));
        let staying = there.filter(|uri| !self.coming.contains(*uri) && !replacement.removes(uri));
        // Each once: a URI with its last slash and the same one without it cover the same objects.
        let staying: HashSet<&Uri> = staying.collect();
        for object in staying.into_iter().filter_map(|uri| tree.get(uri)) {
            let nearest = self.nearest(object.uri());
            if let Some(bytes) = nearest.and_then(|(root, _)| bytes.get_mut(root)) {
                *bytes += object.memory();
            }
        }
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
        let mut roots: HashMap<Uri, Option<Instant>> = HashMap::new();
        let mut objects = Vec::new();
        for declare in declares {
            // The refresh rate is optional here, as in a resolve of endpoints.
            let life = declare.prr.map_or(settings.default_prr, seconds);
            // Each object is part of the endpoint above it. The draft does not require that parents are
            // sent first.
            let of_declare = declare.endpoint.iter().map(|object| object.uri.as_str());
            let of_declare: HashSet<&str> = of_declare.collect();
            let uris = declare.endpoint.iter().map(|object| &object.uri);
            let tops = uris.filter(|uri| !uri.prefixes().any(|above| of_declare.contains(above)));
            roots.extend(tops.map(|uri| (uri.clone(), end_of(life, now))));
            objects.extend(declare.endpoint);
        }
        // All checks come before the first change, because a request counts as a whole.
        let coming: HashSet<Uri> = objects.iter().map(|object| object.uri.clone()).collect();
        let after = Outcome {
            owners: &self.owners,
            element,
            roots: &roots,
            coming: &coming,
        };
        let mut added = 0;
        for uri in &coming {
            if tree.get(uri).is_none() {
                added += 1;
            } else if !self.may_replace(element, uri, &coming) {
                return Err(not_own(uri));
            }
            // An object would count for the other element.
            if after.is_of_another(uri) {
                return Err(not_own(uri));
            }
        }
        let no_room = |tree: &Tree| {
            ErrorResponse::error(format_args!(
                "the registry has no room for more of {:?}: it has {} objects",
                &**element,
                tree.len()
            ))
        };
        let limits = &settings.limits;
        if tree.len() + added > limits.endpoint_objects {
            return Err(no_room(tree));
        }
        tree.check_all(&objects).map_err(ErrorResponse::error)?;
        // The name counts for each declaration, because an element may change its name before each.
        let name = json::allocated(16 + element.len());
        let mut bytes: HashMap<Uri, usize> = HashMap::new();
        for object in &mut objects {
            // An object must not become the parent of an object of another element.
            object.children.retain(|child| !after.is_of_another(child));
            if let Some((root, _)) = after.nearest(&object.uri) {
                *bytes.entry(root.clone()).or_insert(name) += object.memory();
            }
        }
        let replacement = tree.replacement(objects, |uri| after.is_of_another(uri));
        after.add_staying(tree, &replacement, &mut bytes);
        if !self.has_room(element, &coming, &bytes, limits.endpoint_bytes) {
            return Err(no_room(tree));
        }
        // An endpoint that has become part of another one has no declaration of its own any more.
        let mut connections_of: HashMap<Uri, Vec<ConnectionId>> = HashMap::new();
        for uri in coming {
            if let Some(owner) = self.take(&uri).filter(|owner| owner.element == *element) {
                connections_of.insert(uri, owner.connections);
            }
        }
        for (root, expires) in roots {
            let before = connections_of.remove(&root).unwrap_or_default();
            self.enter(root, expires, element, before, connection);
        }
        for (root, bytes) in bytes {
            if let Some(owner) = self.owners.get_mut(&root) {
                self.memory.refund(&owner.element, owner.bytes);
                self.memory.charge(owner.element.clone(), bytes);
                owner.bytes = bytes;
            }
        }
        let changes = tree.carry_out(replacement);
        self.forget_deleted(&changes);
        Ok(changes)
    }

    /// Removes endpoints, and parts of endpoints, of the element. Objects of other elements stay,
    /// also below a removed endpoint. So does an object of another class than the request names: it
    /// has taken the place of the one that the element has meant.
    pub(super) fn handle_undeclare(
        &mut self,
        tree: &mut Tree,
        element: &Name,
        undeclares: &[EndpointUndeclare],
    ) -> Changes {
        let meant = undeclares.iter().filter(|undeclare| {
            let object = tree.get(&undeclare.endpoint_uri);
            object.is_none_or(|object| *object.subject() == undeclare.subject)
        });
        let uris = meant.map(|undeclare| &undeclare.endpoint_uri);
        let own = uris.filter(|uri| self.element(uri) == Some(element));
        let own: Vec<Uri> = own.cloned().collect();
        let is_of_another = |top: &Uri, uri: &Uri| self.element(uri) != self.element(top);
        let changes = tree.delete_sparing(&own, is_of_another);
        self.forget_deleted(&changes);
        changes
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
        self.end(tree, &uris)
    }

    /// Removes the endpoints whose time has ended.
    pub(super) fn handle_deadline(&mut self, now: Instant, tree: &mut Tree) -> Changes {
        let due: Vec<Uri> = std::iter::from_fn(|| self.expiry.pop(now)).collect();
        self.end(tree, &due)
    }

    /// Removes the objects of declarations that have ended. An endpoint inside of one stays if its own
    /// declaration is in force.
    fn end(&mut self, tree: &mut Tree, roots: &[Uri]) -> Changes {
        let ended: HashSet<&Uri> = roots.iter().collect();
        let is_in_force = |uri: &Uri| self.nearest(uri).is_none_or(|(root, _)| !ended.contains(root));
        let changes = tree.delete_sparing(roots, |_, uri| is_in_force(uri));
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

    /// The nearest declaration at or above an object.
    fn nearest(&self, uri: &Uri) -> Option<(&Uri, &Owner)> {
        // Prefixes are sorted by length, so the last match is the nearest.
        let above = uri.prefixes().filter_map(|text| self.owners.get_key_value(text));
        self.owners.get_key_value(uri).or_else(|| above.last())
    }

    /// True if an element may replace an object with a request that has the objects `coming`.
    fn may_replace(&self, element: &Name, uri: &Uri, coming: &HashSet<Uri>) -> bool {
        self.nearest(uri).is_none_or(|(top, owner)| {
            // The topmost object moves the whole endpoint. With its last slash it does so too:
            // otherwise an element that omits the slash could lock the others out.
            let moves = || coming.contains(top) || coming.contains(format!("{}/", top.path()).as_str());
            owner.element == *element || moves()
        })
    }

    /// True if the memory limit of all endpoints allows the element a request that has the objects
    /// `coming`, after which declarations have these bytes.
    fn has_room(
        &self,
        element: &Name,
        coming: &HashSet<Uri>,
        bytes: &HashMap<Uri, usize>,
        limit: usize,
    ) -> bool {
        let touched: HashSet<&Uri> = coming.iter().chain(bytes.keys()).collect();
        let before = touched.into_iter().filter_map(|uri| self.owners.get(uri));
        let own = before.filter(|owner| owner.element == *element);
        let before: usize = own.map(|owner| owner.bytes).sum();
        let after: usize = bytes.values().sum();
        // An element at its limit may still repeat its declarations.
        after <= before || self.memory.fits(element, after - before, limit)
    }

    /// Adds an endpoint, without its memory. It belongs to this element from now on. `connections` are
    /// those on which the element has declared it earlier.
    fn enter(
        &mut self,
        root: Uri,
        expires: Option<Instant>,
        element: &Name,
        mut connections: Vec<ConnectionId>,
        latest: ConnectionId,
    ) {
        connections.retain(|other| *other != latest);
        connections.push(latest);
        if connections.len() > MAX_CONNECTIONS {
            connections.remove(0);
        }
        for connection in &connections {
            let uris = self.by_connection.entry(*connection).or_default();
            uris.insert(root.clone());
        }
        if let Some(at) = expires {
            self.expiry.set(root.clone(), at);
        }
        let owner = Owner {
            element: element.clone(),
            connections,
            latest,
            bytes: 0,
        };
        self.owners.insert(root, owner);
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

fn not_own(uri: &Uri) -> Box<ErrorResponse> {
    ErrorResponse::error(format_args!("{uri:?} is part of an endpoint of another element"))
}

/// The time at which a declaration expires. `None` for zero, or for a time that the clock cannot
/// represent: then it ends with its connection.
fn end_of(life: Duration, now: Instant) -> Option<Instant> {
    now.checked_add(life).filter(|_| !life.is_zero())
}
