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

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::json;
use crate::message::ErrorResponse;
use crate::model::{ManagedObject, Name, Uri};
use crate::peer::ConnectionId;
use ssntp_transport::Deadlines;

/// A declaration of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Declared {
    /// The name of the element.
    pub element: Name,
    /// The connection of the declaration, which may have ended.
    pub connection: ConnectionId,
    /// The time at which the endpoint is removed unless it is declared again.
    pub expires: Option<Instant>,
}

/// One endpoint of a request to declare.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) root: Uri,
    pub(super) expires: Option<Instant>,
    /// The memory of its objects, and of the name of the element.
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
    /// The name of the element, which stays the owner after its connection has ended.
    element: Name,
    connection: ConnectionId,
    bytes: usize,
}

impl Claim {
    /// The endpoints of a list of objects: the objects that are not below another object of the
    /// list, each with everything below it.
    pub(super) fn of(element: &Name, objects: &[ManagedObject], expires: Option<Instant>) -> Vec<Self> {
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
    /// The element that an object belongs to.
    pub(super) fn element(&self, uri: &Uri) -> Option<&Name> {
        self.nearest(uri).map(|(_, owner)| &owner.element)
    }

    /// True if an object belongs to another element.
    pub(super) fn is_of_another(&self, element: &Name, uri: &Uri) -> bool {
        self.element(uri).is_some_and(|owner| owner != element)
    }

    /// The nearest declaration at or above an object.
    fn nearest(&self, uri: &Uri) -> Option<(&Uri, &Owner)> {
        // Prefixes are sorted by length, so the last match is the nearest.
        let above = uri.prefixes().filter_map(|text| self.owners.get_key_value(text));
        self.owners.get_key_value(uri).or_else(|| above.last())
    }

    /// Checks that an element may replace an object with a request that has the objects `coming`.
    pub(super) fn check(
        &self,
        element: &Name,
        uri: &Uri,
        coming: &HashSet<Uri>,
    ) -> Result<(), Box<ErrorResponse>> {
        match self.nearest(uri) {
            // The topmost object moves the whole endpoint.
            Some((top, owner)) if owner.element != *element && !coming.contains(top) => Err(
                ErrorResponse::error(format_args!("{uri:?} is part of an endpoint of another element")),
            ),
            _ => Ok(()),
        }
    }

    /// True if the memory limit of all endpoints allows the element to declare these endpoints.
    pub(super) fn has_room(&self, element: &Name, claims: &[Claim], limit: usize) -> bool {
        let before = claims.iter().filter_map(|claim| self.owners.get(&claim.root));
        let own = before.filter(|owner| owner.element == *element);
        let before: usize = own.map(|owner| owner.bytes).sum();
        let after: usize = claims.iter().map(|claim| claim.bytes).sum();
        // An element at its limit may still repeat its declarations.
        after <= before || self.memory.fits(element, after - before, limit)
    }

    /// Adds an endpoint. It belongs to this element from now on.
    pub(super) fn enter(&mut self, claim: Claim, element: &Name, connection: ConnectionId) {
        // The endpoint may be in the list of another connection.
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

    /// Removes a declaration: its endpoint was removed, or has become part of another endpoint.
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

    /// A connection has ended. Returns the endpoints whose latest declaration it sent.
    pub(super) fn connection_ended(&mut self, connection: ConnectionId) -> BTreeSet<Uri> {
        // The declarations stay. The caller removes them or sets their end, according to the settings.
        self.by_connection.remove(&connection).unwrap_or_default()
    }

    /// Ends an endpoint at this time, unless it ends earlier.
    pub(super) fn end_by(&mut self, uri: Uri, at: Instant) {
        let at = self.expiry.of(&uri).map_or(at, |before| before.min(at));
        self.expiry.set(uri, at);
    }

    /// True if an endpoint has no time of expiry.
    pub(super) fn is_endless(&self, uri: &Uri) -> bool {
        self.expiry.of(uri).is_none()
    }

    /// Returns an endpoint that expires at `now`, and removes its time of expiry. Call it until it
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

    /// The number of endpoints that a connection has declared.
    pub(super) fn count(&self, connection: ConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, BTreeSet::len)
    }
}

/// The time at which a declaration expires. `None` for zero, or for a time that the clock cannot
/// represent: then it ends with its connection.
pub(super) fn end_of(life: Duration, now: Instant) -> Option<Instant> {
    now.checked_add(life).filter(|_| !life.is_zero())
}
