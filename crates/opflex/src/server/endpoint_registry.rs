//! The endpoint registry: endpoints are declared, undeclared, and removed when their time ends.

use std::collections::HashSet;
use std::time::Instant;

use super::ownership::{Claim, Ownership, end_of};
use super::resolves::seconds;
use super::{OnLeave, Settings};
use crate::message::{EndpointDeclare, EndpointUndeclare, ErrorResponse};
use crate::model::{ChangeKind, Changes, Name, Tree, Uri};
use crate::peer::ConnectionId;

/// Each of these changes the tree of endpoints together with their owners.
impl Ownership {
    /// Adds endpoints, or replaces those with the same URIs. An endpoint belongs to the element that
    /// declared it last. If one object is refused, the whole request has no effect.
    pub(super) fn declare(
        &mut self,
        tree: &mut Tree,
        element: &Name,
        connection: ConnectionId,
        declares: Vec<EndpointDeclare>,
        settings: &Settings,
        now: Instant,
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
        coming.iter().for_each(|uri| self.release(uri));
        for object in &mut objects {
            object
                .children
                .retain(|child| !self.is_of_another(element, child));
        }
        // Before the objects are added, because that depends on the new owners.
        for claim in claims {
            self.enter(claim, element, connection);
        }
        let changes = tree
            .replace_sparing(objects, |uri| self.is_of_another(element, uri))
            .map_err(ErrorResponse::error)?;
        self.forget_deleted(&changes);
        Ok(changes)
    }

    /// Removes endpoints, and parts of endpoints, of the element. Objects of other elements stay,
    /// also below a removed endpoint.
    pub(super) fn undeclare(
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
    pub(super) fn element_left(
        &mut self,
        tree: &mut Tree,
        connection: ConnectionId,
        on_leave: OnLeave,
        now: Instant,
    ) -> Changes {
        let mut uris = self.connection_ended(connection);
        match on_leave {
            // An endpoint without a time of expiry would stay for ever.
            OnLeave::Keep => uris.retain(|uri| self.is_endless(uri)),
            OnLeave::Remove => {}
            // A short loss of the connection must not cause updates for all clients.
            OnLeave::Grace(grace) => {
                if let Some(end) = now.checked_add(grace) {
                    uris.into_iter().for_each(|uri| self.end_by(uri, end));
                }
                return Changes::default();
            }
        }
        self.remove(tree, &uris.into_iter().collect::<Vec<_>>())
    }

    /// Removes the endpoints whose time has ended.
    pub(super) fn expire(&mut self, tree: &mut Tree, now: Instant) -> Changes {
        let due: Vec<Uri> = std::iter::from_fn(|| self.expired(now)).collect();
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
            self.release(&change.uri);
        }
    }
}
