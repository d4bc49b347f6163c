//! Which element each endpoint belongs to, and so which element may replace or remove it.
//!
//! ```text
//!  /ep/1/          declared by A        belongs to A
//!  /ep/1/ip/       part of it           belongs to A
//!  /ep/1/vm/       declared by B        belongs to B: A can neither replace nor remove it
//!  /ep/1/vm/nic/   part of it           belongs to B
//! ```
//!
//! An object belongs to the nearest declaration at or above it. An element may replace
//! and remove only its own objects, with one exception: endpoints move. A request that
//! has the topmost object of an endpoint takes the endpoint over, with all its parts.
//! Elements are distinguished by their names.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::deadlines::Deadlines;
use crate::message::ErrorResponse;
use crate::model::{ManagedObject, Name, Uri};
use crate::peer::ConnectionId;

/// A declaration of an endpoint, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Declared {
    /// The name of the element.
    pub element: Name,
    /// The connection that declared it, which may have ended.
    pub connection: ConnectionId,
    /// When the endpoint is removed if it is not declared again.
    pub expires: Option<Instant>,
}

/// One endpoint of a declaration.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) root: Uri,
    pub(super) expires: Option<Instant>,
    /// The memory of its objects.
    bytes: usize,
}

/// All declarations in force.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    owners: HashMap<Uri, Owner>,
    by_connection: HashMap<ConnectionId, BTreeSet<Uri>>,
    expiry: Deadlines<Uri>,
    memory: Budget<Name>,
}

#[derive(Debug)]
struct Owner {
    /// The name of the element. It stays the owner after its connection has ended.
    element: Name,
    connection: ConnectionId,
    bytes: usize,
}

impl Claim {
    /// The endpoints of a list of objects: the objects that are below no other one of the
    /// list, each with everything below it.
    pub(super) fn of(objects: &[ManagedObject], expires: Option<Instant>) -> Vec<Self> {
        let mut sorted: Vec<&ManagedObject> = objects.iter().collect();
        // In the order of the URIs an object stands behind the one that contains it.
        // Agents send parents first, but the draft does not ask for it.
        sorted.sort_unstable_by(|a, b| a.uri.cmp(&b.uri));
        let mut claims: Vec<Self> = Vec::new();
        for object in sorted {
            match claims.last_mut() {
                Some(last) if last.root.covers(&object.uri) => last.bytes += object.memory(),
                _ => claims.push(Self {
                    root: object.uri.clone(),
                    expires,
                    bytes: object.memory(),
                }),
            }
        }
        claims
    }
}

impl Ownership {
    /// Whether an object belongs to another element.
    pub(super) fn is_of_another(&self, element: &Name, uri: &Uri) -> bool {
        self.owner(uri).is_some_and(|owner| owner.element != *element)
    }

    /// Whether an object belongs to this element.
    pub(super) fn is_of(&self, element: &Name, uri: &Uri) -> bool {
        self.owner(uri).is_some_and(|owner| owner.element == *element)
    }

    /// The nearest declaration at or above an object.
    fn nearest(&self, uri: &Uri) -> Option<(&Uri, &Owner)> {
        // Prefixes come shortest first, so the last one found is the nearest.
        let above = uri.prefixes().filter_map(|text| self.owners.get_key_value(text));
        self.owners.get_key_value(uri).or_else(|| above.last())
    }

    fn owner(&self, uri: &Uri) -> Option<&Owner> {
        self.nearest(uri).map(|(_, owner)| owner)
    }

    /// Checks that an element may replace an object with a request that has the `coming`
    /// objects.
    pub(super) fn check(
        &self,
        element: &Name,
        uri: &Uri,
        coming: &HashSet<Uri>,
    ) -> Result<(), Box<ErrorResponse>> {
        match self.nearest(uri) {
            // With its topmost object the whole endpoint moves: agents declare it together
            // with its attributes.
            Some((top, owner)) if owner.element != *element && !coming.contains(top) => Err(
                ErrorResponse::error(format_args!("{uri:?} is part of an endpoint of another element")),
            ),
            _ => Ok(()),
        }
    }

    /// Whether an element may enter these endpoints, within a limit for the memory of all.
    pub(super) fn has_room(&self, element: &Name, claims: &[Claim], limit: usize) -> bool {
        let before = claims.iter().filter_map(|claim| self.owners.get(&claim.root));
        let own = before.filter(|owner| owner.element == *element);
        let before: usize = own.map(|owner| owner.bytes).sum();
        let after: usize = claims.iter().map(|claim| claim.bytes).sum();
        // An element that is at its limit may still repeat what it has declared.
        after <= before || self.memory.fits(element, after - before, limit)
    }

    /// Enters an endpoint. It belongs to this element from now on.
    pub(super) fn enter(&mut self, claim: Claim, element: &Name, connection: ConnectionId) {
        // Its former owner may have been another connection, whose list has it.
        self.release(&claim.root);
        if let Some(at) = claim.expires {
            self.expiry.set(claim.root.clone(), at);
        }
        let uris = self.by_connection.entry(connection).or_default();
        uris.insert(claim.root.clone());
        self.memory.charge(element.clone(), claim.bytes);
        let owner = Owner {
            element: element.clone(),
            connection,
            bytes: claim.bytes,
        };
        self.owners.insert(claim.root, owner);
    }

    /// Forgets a declaration, because the endpoint is gone or has become part of another
    /// one.
    pub(super) fn release(&mut self, uri: &Uri) {
        let Some(owner) = self.owners.remove(uri) else {
            return;
        };
        self.memory.refund(&owner.element, owner.bytes);
        self.expiry.clear(uri);
        if let Some(uris) = self.by_connection.get_mut(&owner.connection) {
            uris.remove(uri);
            if uris.is_empty() {
                self.by_connection.remove(&owner.connection);
            }
        }
    }

    /// A connection has ended. Returns the endpoints that it was the last one to declare.
    pub(super) fn left(&mut self, connection: ConnectionId) -> BTreeSet<Uri> {
        // The declarations stay: the caller removes them or sets their end, as the settings say.
        self.by_connection.remove(&connection).unwrap_or_default()
    }

    /// Ends an endpoint at this time, if it does not end earlier.
    pub(super) fn end_by(&mut self, uri: Uri, at: Instant) {
        // The grace never makes a declaration live longer than its own time.
        let at = self.expiry.of(&uri).map_or(at, |before| before.min(at));
        self.expiry.set(uri, at);
    }

    /// Whether only the end of its connection ends an endpoint.
    pub(super) fn is_endless(&self, uri: &Uri) -> bool {
        self.expiry.of(uri).is_none()
    }

    /// Removes and returns the end of an endpoint whose time has ended. Call it until it
    /// returns `None`.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Uri> {
        self.expiry.pop(now)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiry.next()
    }

    /// The declaration of an endpoint, by its topmost object.
    pub(super) fn declaration(&self, uri: &Uri) -> Option<Declared> {
        let owner = self.owners.get(uri)?;
        Some(Declared {
            element: owner.element.clone(),
            connection: owner.connection,
            expires: self.expiry.of(uri),
        })
    }

    /// The element that declared an endpoint.
    pub(super) fn element(&self, uri: &Uri) -> Option<&Name> {
        self.owners.get(uri).map(|owner| &owner.element)
    }

    /// How many endpoints a connection has declared.
    pub(super) fn count(&self, connection: ConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, BTreeSet::len)
    }
}

/// When a declaration ends by itself. `None` for zero or a time that the clock cannot
/// count: then it ends with its connection.
pub(super) fn end_of(life: Duration, now: Instant) -> Option<Instant> {
    now.checked_add(life).filter(|_| !life.is_zero())
}
