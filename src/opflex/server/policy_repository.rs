//! The policy repository: all policy, and who is to be told of its changes.

use std::time::Instant;

use super::push::{self, Contents};
use super::refusal::Refusal;
use super::resolves::{Resolvable, Resolve, seconds};
use crate::opflex::message::{PolicyResolve, PolicyUnresolve, PolicyUpdate};
use crate::opflex::model::{Changes, ObjectRef, Tree};
use crate::opflex::peer::ConnectionId;

/// Policy, and the resolves in force.
#[derive(Debug, Default)]
pub(super) struct PolicyRepository {
    pub(super) policy: Resolvable,
}

impl PolicyRepository {
    pub(super) fn new(tree: Tree) -> Self {
        Self {
            policy: Resolvable {
                tree,
                ..Resolvable::default()
            },
        }
    }

    /// Enters the resolves and returns what there is. An unknown policy is no
    /// error: it is told when it appears.
    pub(super) fn resolve(
        &mut self,
        connection: ConnectionId,
        resolves: Vec<PolicyResolve>,
        limit: usize,
        now: Instant,
    ) -> Result<Vec<ObjectRef<'_>>, Refusal> {
        let resolves: Vec<_> = resolves.into_iter().map(Resolve::from).collect();
        self.policy.check(connection, &resolves, limit)?;
        self.policy.watch(connection, resolves.clone(), now);
        Ok(self.policy.find(&resolves))
    }

    pub(super) fn unresolve(&mut self, connection: ConnectionId, unresolves: &[PolicyUnresolve]) {
        for unresolve in unresolves {
            self.policy.watchers.unwatch(&connection, &unresolve.target);
        }
    }

    /// The updates that tell of an edit, each with its receivers.
    pub(super) fn updates(
        &self,
        changes: &Changes,
        pieces_of: usize,
        now: Instant,
    ) -> Vec<(Vec<ConnectionId>, Vec<PolicyUpdate>)> {
        let tree = &self.policy.tree;
        let pushes = push::pushes(tree, &self.policy.watchers, changes, now);
        let update = |push: push::Push<'_>| {
            (
                push.receivers,
                pieces(Contents::of(tree, &push.changes), pieces_of),
            )
        };
        pushes.into_iter().map(update).collect()
    }
}

impl From<PolicyResolve> for Resolve {
    fn from(resolve: PolicyResolve) -> Self {
        Self {
            subject: resolve.subject,
            target: resolve.target,
            refresh: seconds(resolve.prr),
        }
    }
}

/// Cuts an update so that no message grows without bound. Deletions go first:
/// an object that comes may need the place.
fn pieces(contents: Contents, size: usize) -> Vec<PolicyUpdate> {
    let size = size.max(1);
    if contents.created.len() + contents.modified.len() + contents.deleted.len() <= size {
        return vec![PolicyUpdate {
            replace: contents.created,
            merge_children: contents.modified,
            delete: contents.deleted,
        }];
    }
    let none = PolicyUpdate::default;
    let deletes = contents.deleted.chunks(size).map(|part| PolicyUpdate {
        delete: part.to_vec(),
        ..none()
    });
    let replaces = contents.created.chunks(size).map(|part| PolicyUpdate {
        replace: part.to_vec(),
        ..none()
    });
    let merges = contents.modified.chunks(size).map(|part| PolicyUpdate {
        merge_children: part.to_vec(),
        ..none()
    });
    deletes.chain(replaces).chain(merges).collect()
}
