//! What the two kinds of resolve have in common.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::refusal::Refusal;
use crate::opflex::model::{Name, ObjectRef, Target, Tree, Uri, Watch, Watchers};
use crate::opflex::peer::ConnectionId;

/// One element of a resolve, of either kind.
#[derive(Clone, Debug)]
pub(super) struct Resolve {
    pub(super) subject: Name,
    pub(super) target: Target,
    /// For how long changes are to be told; zero for not at all.
    pub(super) refresh: Duration,
}

/// A time in seconds as the wire has it. Less than nothing is nothing.
pub(super) fn seconds(prr: i64) -> Duration {
    Duration::from_secs(u64::try_from(prr).unwrap_or(0))
}

/// A tree that clients resolve objects of.
#[derive(Debug, Default)]
pub(super) struct Resolvable {
    pub(super) tree: Tree,
    pub(super) watchers: Watchers<ConnectionId>,
}

impl Resolvable {
    /// Checks the elements of a resolve before any of them has an effect.
    pub(super) fn check(
        &self,
        connection: ConnectionId,
        resolves: &[Resolve],
        limit: usize,
    ) -> Result<(), Refusal> {
        let unknown = |resolve: &&Resolve| self.tree.schema().is_some_and(|s| !s.knows(&resolve.subject));
        if let Some(resolve) = resolves.iter().find(unknown) {
            return Err(Refusal::error(format_args!(
                "unknown subject {:?}",
                &*resolve.subject
            )));
        }
        let there = self.watchers.count(&connection);
        // What is resolved again is there already.
        let adds = |resolve: &&Resolve| {
            !resolve.refresh.is_zero() && !self.watchers.watches(&connection, &resolve.target)
        };
        if there + resolves.len() > limit && there + resolves.iter().filter(adds).count() > limit {
            let what = format!("a connection can't resolve more than {limit} objects");
            return Err(Refusal::error(what));
        }
        Ok(())
    }

    /// Enters the interest of each element until its refresh time is over.
    pub(super) fn watch(&mut self, connection: ConnectionId, resolves: Vec<Resolve>, now: Instant) {
        for resolve in resolves {
            if resolve.refresh.is_zero() {
                self.watchers.unwatch(&connection, &resolve.target);
            } else {
                self.watchers.watch(Watch {
                    watcher: connection,
                    subject: resolve.subject,
                    target: resolve.target,
                    // A time too far away to be named does not come.
                    expires: now.checked_add(resolve.refresh),
                });
            }
        }
    }

    /// The objects that a resolve asks for, each once, with everything below
    /// them. Those that are not there, or of another class, are left out.
    pub(super) fn find(&self, resolves: &[Resolve]) -> Vec<ObjectRef<'_>> {
        let mut objects = Vec::new();
        let mut told: HashSet<&Uri> = HashSet::new();
        for resolve in resolves {
            let roots: Vec<ObjectRef<'_>> = match &resolve.target {
                Target::Uri(uri) => self.tree.get(uri).into_iter().collect(),
                Target::Ident(ident) => self.tree.find(ident).collect(),
            };
            for root in roots.iter().filter(|root| *root.subject() == resolve.subject) {
                // What has been told has been told with all that is below it.
                if !told.contains(root.uri()) {
                    let subtree = self.tree.subtree(root.uri());
                    objects.extend(subtree.filter(|object| told.insert(object.uri())));
                }
            }
        }
        objects
    }
}
