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
use std::iter;
use std::ops::Bound;
use std::time::{Duration, Instant};

use super::resolves::seconds;
use super::settings::{OnLeave, ServerSettings};
use crate::json;
use crate::message::{EndpointDeclare, EndpointUndeclare, ErrorResponse};
use crate::model::{ChangeKind, Changes, Name, Tree, Uri};
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
    /// The time at which the endpoint is removed unless it is declared again.
    pub expires: Option<Instant>,
}

/// All declarations in force.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    owners: HashMap<Uri, Owner>,
    by_connection: HashMap<ConnectionId, BTreeSet<Uri>>,
    expiry: Deadlines<Uri>,
    account: Account,
}

/// The memory of the endpoints. Each object of the tree counts for the element that it belongs to, from the request
/// that brings it until it is removed.
#[derive(Debug, Default)]
struct Account {
    of: HashMap<Uri, (Name, usize)>,
    by_element: HashMap<Name, BTreeSet<Uri>>,
    memory: Shares<Name>,
}

impl Account {
    /// The bytes of an object, and the element for which it counts.
    fn of(&self, uri: &Uri) -> Option<(&Name, usize)> {
        self.of.get(uri).map(|(element, bytes)| (element, *bytes))
    }

    /// The objects of an element at and below a URI.
    fn at_and_below<'a>(&'a self, element: &Name, uri: &'a Uri) -> impl Iterator<Item = &'a Uri> + use<'a> {
        let below = format!("{}/", uri.path());
        let all = self.by_element.get(element);
        let from = (Bound::Included(below.as_str()), Bound::Unbounded);
        let behind = all.map(|all| all.range::<str, _>(from)).into_iter().flatten();
        let behind = behind.take_while(move |other| other.as_str().starts_with(&below));
        let itself = all.and_then(|all| all.get(uri)).into_iter();
        itself.chain(behind.filter(|other| uri.covers(other)))
    }

    /// Counts an object, which may have counted for another element or with other bytes until now.
    fn set(&mut self, uri: Uri, element: &Name, bytes: usize) {
        // The key stays if there is one, which has the text that the tree has as well.
        let known = self.of.get_key_value(&uri).map(|(known, _)| known.clone());
        let uri = known.unwrap_or(uri);
        self.memory.charge(element.clone(), bytes);
        self.remove(&uri);
        let of_element = self.by_element.entry(element.clone()).or_default();
        of_element.insert(uri.clone());
        self.of.insert(uri, (element.clone(), bytes));
    }

    fn remove(&mut self, uri: &Uri) {
        let Some((element, bytes)) = self.of.remove(uri) else {
            return;
        };
        self.memory.refund(&element, bytes);
        if let Some(all) = self.by_element.get_mut(&element) {
            all.remove(uri);
            // Peers choose the names of elements, so empty entries must not pile up.
            if all.is_empty() {
                self.by_element.remove(&element);
            }
        }
    }
}

#[derive(Debug)]
struct Owner {
    /// The name of the element, which stays the owner after its connections have ended.
    element: Name,
    /// The connections on which the element has declared the endpoint and that have not ended, the
    /// latest last. At most [`MAX_CONNECTIONS`].
    connections: Vec<ConnectionId>,
}

/// The declarations as they will be after a request to declare, before the objects of the request remove others.
struct Declarations<'a> {
    owners: &'a HashMap<Uri, Owner>,
    element: &'a Name,
    /// The endpoints of the request, by their topmost objects, each with the time at which it expires.
    roots: &'a HashMap<Uri, Option<Instant>>,
    /// All objects of the request.
    coming: &'a HashSet<Uri>,
}

impl Declarations<'_> {
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
        let after = Declarations {
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
        // The entries of an object in the account, which may be half empty. The name counts for each object, because
        // an element may send its name again before each.
        let entry = 2 * size_of::<(Uri, (Name, usize), Uri)>() + json::allocated(16 + element.len());
        let mut bytes: HashMap<Uri, usize> = HashMap::new();
        for object in &mut objects {
            // An object must not become the parent of an object of another element.
            object.children.retain(|child| !after.is_of_another(child));
            *bytes.entry(object.uri.clone()).or_insert(entry) += object.memory();
        }
        let taken = self.taken(element, &coming);
        // Only objects of these elements can go or move, so the endpoints of others cost nothing.
        let elements: HashSet<&Name> = taken.values().copied().chain([element]).collect();
        let covered = |uri: &Uri| {
            let of = |name: &&Name| self.account.at_and_below(name, uri).cloned().collect::<Vec<_>>();
            elements.iter().flat_map(of).collect()
        };
        let replacement = tree.replacement_among(objects, |uri| after.is_of_another(uri), covered);
        for uri in self.moved_with(&taken, &coming) {
            if let Some((_, of_uri)) = self.account.of(uri)
                && !replacement.gone().contains(uri)
                && !after.is_of_another(uri)
            {
                bytes.entry(uri.clone()).or_insert(of_uri);
            }
        }
        let of_element = |uri: &Uri| self.account.of(uri).filter(|(owner, _)| *owner == element);
        let touched = bytes.keys().chain(replacement.gone());
        let before: usize = touched.filter_map(of_element).map(|(_, bytes)| bytes).sum();
        let now_used: usize = bytes.values().sum();
        let memory = &self.account.memory;
        // An element at its limit may still repeat its declarations.
        if now_used > before && !memory.fits(element, now_used - before, limits.endpoint_bytes) {
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
        for (uri, bytes) in bytes {
            self.account.set(uri, element, bytes);
        }
        let changes = tree.replace_checked(replacement);
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
        let gone = own.flat_map(|top| iter::once(top).chain(self.account.at_and_below(element, top)));
        let gone: Vec<Uri> = gone.cloned().collect();
        let changes = tree.delete_alone(&gone);
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
        let due: Vec<Uri> = iter::from_fn(|| self.expiry.pop(now)).collect();
        self.end(tree, &due)
    }

    /// Removes the objects of declarations that have ended. An endpoint inside of one stays if its own
    /// declaration is in force.
    fn end(&mut self, tree: &mut Tree, roots: &[Uri]) -> Changes {
        let ended: HashSet<&Uri> = roots.iter().collect();
        let is_over = |uri: &&Uri| self.nearest(uri).is_some_and(|(root, _)| ended.contains(root));
        let owned = roots
            .iter()
            .filter_map(|root| Some((root, self.owners.get(root)?)));
        let gone = owned.flat_map(|(root, owner)| {
            iter::once(root).chain(self.account.at_and_below(&owner.element, root))
        });
        let gone: Vec<Uri> = gone.filter(is_over).cloned().collect();
        let changes = tree.delete_alone(&gone);
        self.forget_deleted(&changes);
        changes
    }

    /// Deleted objects do not count any more. Removes their declarations: there may be several, because an endpoint
    /// may contain another endpoint of the same element.
    fn forget_deleted(&mut self, changes: &Changes) {
        for change in changes.iter().filter(|change| change.kind == ChangeKind::Deleted) {
            self.take(&change.uri);
            self.account.remove(&change.uri);
        }
    }

    /// The objects of a request that another element loses by it, also those that are new below an endpoint of it,
    /// each with that element.
    fn taken<'a>(&'a self, element: &Name, coming: &'a HashSet<Uri>) -> HashMap<&'a str, &'a Name> {
        let former = |uri: &Uri| {
            // A new declaration with the last slash takes what is below the one without it.
            let at = self.owners.get(uri).or_else(|| self.owners.get(uri.path()));
            at.or_else(|| self.nearest(uri).map(|(_, owner)| owner))
        };
        let all = coming
            .iter()
            .filter_map(|uri| Some((uri.as_str(), &former(uri)?.element)));
        all.filter(|(_, former)| *former != element).collect()
    }

    /// The objects of other elements at and below those that are taken from them. Only these may move with them.
    fn moved_with<'a>(&'a self, taken: &HashMap<&str, &'a Name>, coming: &'a HashSet<Uri>) -> Vec<&'a Uri> {
        let mut moved = Vec::new();
        for uri in coming {
            // What is below another object that is taken from the same element is found there.
            if let Some(former) = taken.get(uri.as_str())
                && !uri.prefixes().any(|above| taken.get(above) == Some(former))
            {
                moved.extend(self.account.at_and_below(former, uri));
            }
        }
        moved
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

    /// Adds an endpoint. It belongs to this element from now on. `connections` are those on which the
    /// element has declared it earlier.
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
        };
        self.owners.insert(root, owner);
    }

    /// Removes a declaration: its endpoint was removed, or has become part of another endpoint.
    fn take(&mut self, uri: &Uri) -> Option<Owner> {
        let owner = self.owners.remove(uri)?;
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
