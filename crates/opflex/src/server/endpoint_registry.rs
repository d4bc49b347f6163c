//! The endpoint registry: all declared endpoints, until their declarations end.

use std::collections::HashSet;
use std::time::Instant;

use super::ownership::{Claim, Declared, Ownership, end_of};
use super::resolves::{Resolvable, seconds};
use super::{OnLeave, Settings};
use crate::message::{EndpointDeclare, EndpointUndeclare, ErrorResponse};
use crate::model::{ChangeKind, Changes, Name, Tree, Uri};
use crate::peer::ConnectionId;

/// The endpoints, the element that each belongs to, and the resolves in force.
#[derive(Debug)]
pub(super) struct EndpointRegistry {
    pub(super) endpoints: Resolvable,
    ownership: Ownership,
}

impl EndpointRegistry {
    pub(super) fn new(tree: Tree) -> Self {
        Self {
            endpoints: Resolvable::new(tree),
            ownership: Ownership::default(),
        }
    }

    /// Enters endpoints, or replaces those with the same URIs. An endpoint belongs to the
    /// element that declared it last. If one object is refused, nothing of the request is
    /// entered.
    pub(super) fn declare(
        &mut self,
        element: &Name,
        connection: ConnectionId,
        declares: Vec<EndpointDeclare>,
        settings: &Settings,
        now: Instant,
    ) -> Result<Changes, Box<ErrorResponse>> {
        let mut claims = Vec::new();
        let mut objects = Vec::new();
        for declare in declares {
            // The refresh rate may be missing, as it may in a resolve of endpoints.
            let life = declare.prr.map_or(settings.default_prr, seconds);
            claims.extend(Claim::of(&declare.endpoint, end_of(life, now)));
            objects.extend(declare.endpoint);
        }
        let Self { endpoints, ownership } = self;
        let tree = &mut endpoints.tree;
        // Everything is checked before anything changes: a request counts as a whole.
        let coming: HashSet<Uri> = objects.iter().map(|object| object.uri.clone()).collect();
        let mut added = 0;
        for uri in &coming {
            match tree.get(uri) {
                Some(_) => ownership.check(element, uri, &coming)?,
                None => added += 1,
            }
        }
        let limits = &settings.limits;
        if tree.len() + added > limits.endpoint_objects
            || !ownership.has_room(element, &claims, limits.endpoint_bytes)
        {
            return Err(ErrorResponse::error(format_args!(
                "the registry has no room for more of {:?}: it has {} objects",
                &**element,
                tree.len()
            )));
        }
        tree.check_all(&objects).map_err(ErrorResponse::error)?;
        // An object that is now a part of an endpoint is no endpoint by itself any more, and an
        // element's object does not become the parent of an object of another element.
        coming.iter().for_each(|uri| ownership.release(uri));
        for object in &mut objects {
            object
                .children
                .retain(|child| !ownership.is_of_another(element, child));
        }
        // Entered before the objects, because the objects are judged by the new owners.
        for claim in claims {
            ownership.enter(claim, element, connection);
        }
        let changes = tree
            .replace_sparing(objects, |uri| ownership.is_of_another(element, uri))
            .map_err(ErrorResponse::error)?;
        self.forget_deleted(&changes);
        Ok(changes)
    }

    /// Removes endpoints, and parts of endpoints, of the element. Objects of other
    /// elements stay, also below a removed endpoint.
    pub(super) fn undeclare(&mut self, element: &Name, undeclares: &[EndpointUndeclare]) -> Changes {
        let gone = undeclares.iter().map(|undeclare| &undeclare.endpoint_uri);
        let gone = gone.filter(|uri| self.ownership.is_of(element, uri));
        let gone: Vec<(Uri, Name)> = gone.map(|uri| (uri.clone(), element.clone())).collect();
        self.remove(gone)
    }

    /// A connection has ended: removes its endpoints, or sets their end.
    pub(super) fn left(&mut self, connection: ConnectionId, on_leave: OnLeave, now: Instant) -> Changes {
        self.endpoints.watchers.leave(&connection);
        let mut uris = self.ownership.left(connection);
        match on_leave {
            // Only the connection would have ended an endpoint without a time of its own.
            OnLeave::Keep => uris.retain(|uri| self.ownership.is_endless(uri)),
            OnLeave::Remove => {}
            // A short loss of the connection must not remove endpoints and tell everybody of it.
            OnLeave::Grace(grace) => {
                if let Some(end) = now.checked_add(grace) {
                    uris.into_iter().for_each(|uri| self.ownership.end_by(uri, end));
                }
                return Changes::default();
            }
        }
        let gone = uris.into_iter().filter_map(|uri| self.with_owner(uri)).collect();
        self.remove(gone)
    }

    /// Removes the endpoints whose time has ended.
    pub(super) fn expire(&mut self, now: Instant) -> Changes {
        let due: Vec<Uri> = std::iter::from_fn(|| self.ownership.expired(now)).collect();
        let gone = due.into_iter().filter_map(|uri| self.with_owner(uri)).collect();
        self.remove(gone)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.ownership.next_expiry()
    }

    /// The declaration of an endpoint.
    pub(super) fn declaration(&self, uri: &Uri) -> Option<Declared> {
        self.ownership.declaration(uri)
    }

    /// How many endpoints a connection has declared.
    pub(super) fn count(&self, connection: ConnectionId) -> usize {
        self.ownership.count(connection)
    }

    fn with_owner(&self, uri: Uri) -> Option<(Uri, Name)> {
        let element = self.ownership.element(&uri)?.clone();
        Some((uri, element))
    }

    /// Removes the objects at and below URIs that belong to the element beside each URI.
    fn remove(&mut self, gone: Vec<(Uri, Name)>) -> Changes {
        let ownership = &self.ownership;
        let changes = self
            .endpoints
            .tree
            .delete_sparing(&gone, |element, uri| ownership.is_of_another(element, uri));
        self.forget_deleted(&changes);
        changes
    }

    /// Forgets the declarations of deleted objects: an endpoint may contain another one of
    /// the same element.
    fn forget_deleted(&mut self, changes: &Changes) {
        for change in changes.iter().filter(|change| change.kind == ChangeKind::Deleted) {
            self.ownership.release(&change.uri);
        }
    }
}
