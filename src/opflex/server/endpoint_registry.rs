//! The endpoint registry: where every endpoint is, for as long as whoever
//! declared it says so.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::OnLeave;
use super::push::{self, Contents};
use super::refusal::Refusal;
use super::resolves::{Resolvable, Resolve, seconds};
use crate::opflex::deadlines::Deadlines;
use crate::opflex::message::{
    EndpointDeclare, EndpointResolve, EndpointUndeclare, EndpointUnresolve, EndpointUpdate,
};
use crate::opflex::model::{ChangeKind, Changes, ManagedObject, Name, ObjectRef, Tree, Uri};
use crate::opflex::peer::ConnectionId;

/// Endpoints, their declarations, and the resolves in force.
#[derive(Debug, Default)]
pub(super) struct EndpointRegistry {
    pub(super) endpoints: Resolvable,
    declarations: HashMap<Uri, Declaration>,
    by_connection: HashMap<ConnectionId, BTreeSet<Uri>>,
    expiry: Deadlines<Uri>,
}

/// A declaration of an endpoint, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Declared {
    /// The name of the element.
    pub element: Name,
    /// Its connection, which may have ended.
    pub connection: ConnectionId,
    /// When the endpoint is removed, unless it is declared again.
    pub expires: Option<Instant>,
}

/// Who said that an endpoint is there.
#[derive(Debug)]
struct Declaration {
    /// The name of the element, which survives its connection.
    element: Name,
    connection: ConnectionId,
}

impl EndpointRegistry {
    pub(super) fn new(tree: Tree) -> Self {
        Self {
            endpoints: Resolvable {
                tree,
                ..Resolvable::default()
            },
            ..Self::default()
        }
    }

    /// Enters endpoints, in place of those with their URIs: whoever declared
    /// one last has it. All of a request, or nothing of it.
    pub(super) fn declare(
        &mut self,
        element: &Name,
        connection: ConnectionId,
        declares: Vec<EndpointDeclare>,
        default_prr: Duration,
        limit: usize,
        now: Instant,
    ) -> Result<Changes, Refusal> {
        let mut roots: Vec<(Uri, Option<Instant>)> = Vec::new();
        let mut objects = Vec::new();
        for declare in declares {
            // Without a sensible time the connection alone keeps it.
            let life = declare.prr.map_or(default_prr, seconds);
            let expires = now.checked_add(life).filter(|_| !life.is_zero());
            roots.extend(topmost(&declare.endpoint).into_iter().map(|uri| (uri, expires)));
            objects.extend(declare.endpoint);
        }
        let tree = &mut self.endpoints.tree;
        if tree.len() + objects.len() > limit {
            let known = objects
                .iter()
                .filter(|object| tree.get(&object.uri).is_some())
                .count();
            if tree.len() + objects.len() - known > limit {
                return Err(Refusal::error(format_args!(
                    "the registry is full with {limit} objects"
                )));
            }
        }
        let changes = tree.replace(objects).map_err(Refusal::error)?;
        self.forget_deleted(&changes);
        for (uri, expires) in roots {
            match expires {
                Some(at) => self.expiry.set(uri.clone(), at),
                None => self.expiry.clear(&uri),
            }
            let declaration = Declaration {
                element: element.clone(),
                connection,
            };
            if let Some(before) = self.declarations.insert(uri.clone(), declaration) {
                self.forget_at(before.connection, &uri);
            }
            self.by_connection.entry(connection).or_default().insert(uri);
        }
        Ok(changes)
    }

    /// Removes endpoints. One that another element declared since has moved
    /// there, and stays.
    pub(super) fn undeclare(&mut self, element: &Name, undeclares: &[EndpointUndeclare]) -> Changes {
        let gone = undeclares.iter().map(|undeclare| &undeclare.endpoint_uri);
        let is_its_own = |uri: &&Uri| self.declarations.get(*uri).is_none_or(|d| d.element == *element);
        let gone: Vec<Uri> = gone.filter(is_its_own).cloned().collect();
        self.remove(&gone)
    }

    /// What becomes of the endpoints of a connection that ended.
    pub(super) fn left(&mut self, connection: ConnectionId, on_leave: OnLeave, now: Instant) -> Changes {
        self.endpoints.watchers.leave(&connection);
        let uris: Vec<Uri> = self
            .by_connection
            .remove(&connection)
            .into_iter()
            .flatten()
            .collect();
        match on_leave {
            // One without an end would stay for ever.
            OnLeave::Keep => {
                let endless = |uri: &Uri| self.expiry.of(uri).is_none();
                let endless: Vec<Uri> = uris.into_iter().filter(endless).collect();
                self.remove(&endless)
            }
            OnLeave::Remove => self.remove(&uris),
            OnLeave::Grace(grace) => {
                if let Some(end) = now.checked_add(grace) {
                    for uri in uris {
                        let end = self.expiry.of(&uri).map_or(end, |at| at.min(end));
                        self.expiry.set(uri, end);
                    }
                }
                Changes::default()
            }
        }
    }

    /// Removes the endpoints whose time is over.
    pub(super) fn expire(&mut self, now: Instant) -> Changes {
        let due: Vec<Uri> = std::iter::from_fn(|| self.expiry.pop(now)).collect();
        self.remove(&due)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiry.next()
    }

    pub(super) fn resolve(
        &mut self,
        connection: ConnectionId,
        resolves: Vec<EndpointResolve>,
        default_prr: Duration,
        limit: usize,
        now: Instant,
    ) -> Result<Vec<ObjectRef<'_>>, Refusal> {
        let resolve = |resolve: EndpointResolve| Resolve {
            subject: resolve.subject,
            target: resolve.target,
            refresh: resolve.prr.map_or(default_prr, seconds),
        };
        let resolves: Vec<_> = resolves.into_iter().map(resolve).collect();
        self.endpoints.check(connection, &resolves, limit)?;
        self.endpoints.watch(connection, resolves.clone(), now);
        Ok(self.endpoints.find(&resolves))
    }

    pub(super) fn unresolve(&mut self, connection: ConnectionId, unresolves: &[EndpointUnresolve]) {
        for unresolve in unresolves {
            self.endpoints.watchers.unwatch(&connection, &unresolve.target);
        }
    }

    /// The updates that tell of an edit, each with its receivers.
    pub(super) fn updates(
        &self,
        changes: &Changes,
        pieces_of: usize,
        now: Instant,
    ) -> Vec<(Vec<ConnectionId>, Vec<EndpointUpdate>)> {
        let tree = &self.endpoints.tree;
        let pushes = push::pushes(tree, &self.endpoints.watchers, changes, now);
        let update = |push: push::Push<'_>| {
            (
                push.receivers,
                pieces(tree, Contents::of(tree, &push.changes), pieces_of),
            )
        };
        pushes.into_iter().map(update).collect()
    }

    /// Who declared an endpoint.
    pub(super) fn declaration(&self, uri: &Uri) -> Option<Declared> {
        let declaration = self.declarations.get(uri)?;
        Some(Declared {
            element: declaration.element.clone(),
            connection: declaration.connection,
            expires: self.expiry.of(uri),
        })
    }

    /// How many endpoints a connection has declared.
    pub(super) fn count(&self, connection: ConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, BTreeSet::len)
    }

    fn remove(&mut self, uris: &[Uri]) -> Changes {
        let changes = self.endpoints.tree.delete(uris);
        self.forget_deleted(&changes);
        changes
    }

    /// Forgets who declared what is gone; one endpoint may have stood below
    /// another.
    fn forget_deleted(&mut self, changes: &Changes) {
        for change in changes.iter().filter(|change| change.kind == ChangeKind::Deleted) {
            if let Some(declaration) = self.declarations.remove(&change.uri) {
                self.expiry.clear(&change.uri);
                self.forget_at(declaration.connection, &change.uri);
            }
        }
    }

    fn forget_at(&mut self, connection: ConnectionId, uri: &Uri) {
        if let Some(uris) = self.by_connection.get_mut(&connection) {
            uris.remove(uri);
            if uris.is_empty() {
                self.by_connection.remove(&connection);
            }
        }
    }
}

/// The objects of a list that are below no other one of it.
fn topmost(objects: &[ManagedObject]) -> Vec<Uri> {
    let mut uris: Vec<&Uri> = objects.iter().map(|object| &object.uri).collect();
    uris.sort_unstable();
    let mut top: Vec<Uri> = Vec::new();
    for uri in uris {
        if !top.last().is_some_and(|last| last.covers(uri)) {
            top.push(uri.clone());
        }
    }
    top
}

/// Cuts an update so that no message grows without bound. An endpoint update
/// can't merge: what changed is told with everything below it.
fn pieces(tree: &Tree, contents: Contents, size: usize) -> Vec<EndpointUpdate> {
    let size = size.max(1);
    let mut replace = contents.created;
    let mut told: BTreeSet<Uri> = replace.iter().map(|object| object.uri.clone()).collect();
    for object in &contents.modified {
        if !told.contains(&object.uri) {
            let subtree = tree.subtree(&object.uri).map(|object| object.to_object());
            replace.extend(subtree.filter(|object| told.insert(object.uri.clone())));
        }
    }
    if replace.len() + contents.deleted.len() <= size {
        return vec![EndpointUpdate {
            replace,
            delete: contents.deleted,
        }];
    }
    let deletes = contents.deleted.chunks(size).map(|part| EndpointUpdate {
        replace: Vec::new(),
        delete: part.to_vec(),
    });
    let replaces = replace.chunks(size).map(|part| EndpointUpdate {
        replace: part.to_vec(),
        delete: Vec::new(),
    });
    deletes.chain(replaces).collect()
}
