//! What the two kinds of resolve have in common.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::ServerLimits;
use crate::message::{ErrorResponse, Resolve};
use crate::model::{Name, ObjectRef, Target, Tree, Uri, Watch, Watchers};
use crate::peer::ConnectionId;

/// What one element of a resolve asks for.
#[derive(Clone, Debug)]
pub(super) struct Interest {
    subject: Name,
    target: Target,
    /// For how long changes are to be told; zero for not at all.
    refresh: Duration,
}

/// A time in seconds as the wire has it. Less than nothing is nothing.
pub(super) fn seconds(prr: i64) -> Duration {
    Duration::from_secs(u64::try_from(prr).unwrap_or(0))
}

/// What a resolve asks for and has not been told yet.
///
/// It is told as it is when its turn comes. What changes meanwhile is told like
/// any other change, so that the receiver has it right in the end.
#[derive(Debug, Default)]
pub(super) struct Untold {
    roots: VecDeque<Uri>,
    /// How far the first of them has been told.
    last: Option<Uri>,
}

impl Interest {
    pub(super) fn of(resolve: Resolve, default_prr: Duration) -> Self {
        Self {
            subject: resolve.subject,
            target: resolve.target,
            refresh: resolve.prr.map_or(default_prr, seconds),
        }
    }
}

impl Untold {
    /// The next objects, parents before children, of about so many bytes, and
    /// one at least where there is any.
    pub(super) fn next<'a>(&mut self, tree: &'a Tree, bytes: usize) -> Vec<ObjectRef<'a>> {
        let (mut objects, mut taken) = (Vec::new(), 0);
        while let Some(root) = self.roots.front() {
            for object in tree.subtree_after(root, self.last.as_ref()) {
                let len = object.wire_len();
                if taken > 0 && taken + len > bytes {
                    return objects;
                }
                taken += len;
                self.last = Some(object.uri().clone());
                objects.push(object);
            }
            self.roots.pop_front();
            self.last = None;
        }
        objects
    }

    /// Whether everything has been told.
    pub(super) fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }
}

/// A tree that clients resolve objects of.
#[derive(Debug, Default)]
pub(super) struct Resolvable {
    pub(super) tree: Tree,
    pub(super) watchers: Watchers<ConnectionId>,
}

impl Resolvable {
    pub(super) fn new(tree: Tree) -> Self {
        Self {
            tree,
            watchers: Watchers::new(),
        }
    }

    pub(super) fn unresolve<'a>(
        &mut self,
        connection: ConnectionId,
        targets: impl Iterator<Item = &'a Target>,
    ) {
        for target in targets {
            self.watchers.unwatch(&connection, target);
        }
    }

    /// Checks the elements of a resolve before any of them has an effect.
    fn check(
        &self,
        connection: ConnectionId,
        interests: &[Interest],
        limits: &ServerLimits,
    ) -> Result<(), Box<ErrorResponse>> {
        // An empty answer would hide a typing error for ever.
        for Interest { subject, target, .. } in interests {
            if self.tree.schema().is_some_and(|schema| !schema.knows(subject)) {
                return Err(ErrorResponse::error(format_args!(
                    "unknown subject {:?}",
                    &**subject
                )));
            }
            if let Target::Uri(uri) = target
                && let Some(there) = self.tree.get(uri).filter(|there| *there.subject() != *subject)
            {
                let (is, asked) = (&**there.subject(), &**subject);
                return Err(ErrorResponse::error(format_args!(
                    "{uri} is of the class {is:?}, not {asked:?}"
                )));
            }
        }
        let there = self.watchers.count(&connection);
        // What is resolved again is there already.
        let adds = |interest: &&Interest| {
            !interest.refresh.is_zero() && !self.watchers.watches(&connection, &interest.target)
        };
        let limit = limits.resolves;
        // The first comparison is cheap and settles nearly every request.
        if there + interests.len() > limit && there + interests.iter().filter(adds).count() > limit {
            let what = format!("a connection can't resolve more than {limit} objects");
            return Err(ErrorResponse::error(what));
        }
        let adds = interests
            .iter()
            .filter(adds)
            .map(|interest| interest.target.text_len() + interest.subject.len());
        if self.watchers.bytes(&connection) + adds.sum::<usize>() > limits.resolve_bytes {
            return Err(ErrorResponse::error(
                "a connection can't resolve names that are so long",
            ));
        }
        Ok(())
    }

    /// Enters the resolves and returns what there is to be told. An unknown
    /// object is no error: it is told when it appears.
    pub(super) fn resolve(
        &mut self,
        connection: ConnectionId,
        interests: Vec<Interest>,
        limits: &ServerLimits,
        now: Instant,
    ) -> Result<Untold, Box<ErrorResponse>> {
        self.check(connection, &interests, limits)?;
        let found = self.find(&interests);
        self.watch(connection, interests, now);
        Ok(found)
    }

    /// Enters the interest of each element until its refresh time is over.
    fn watch(&mut self, connection: ConnectionId, interests: Vec<Interest>, now: Instant) {
        for interest in interests {
            if interest.refresh.is_zero() {
                self.watchers.unwatch(&connection, &interest.target);
            } else {
                self.watchers.watch(Watch {
                    watcher: connection,
                    subject: interest.subject,
                    target: interest.target,
                    // A time too far away to be named does not come.
                    expires: now.checked_add(interest.refresh),
                });
            }
        }
    }

    /// What a resolve asks for, each object once. Those that are not there, or
    /// of another class, are left out.
    fn find<'a>(&'a self, interests: &[Interest]) -> Untold {
        // A request may name an object twice, by URI and by identifier.
        let mut found: HashSet<&str> = HashSet::new();
        let mut order = Vec::new();
        for interest in interests {
            let mut take = |root: ObjectRef<'a>| {
                if *root.subject() == interest.subject && found.insert(root.uri().as_str()) {
                    order.push(root.uri());
                }
            };
            match &interest.target {
                Target::Uri(uri) => self.tree.get(uri).into_iter().for_each(&mut take),
                Target::Ident(ident) => self.tree.find(ident).for_each(&mut take),
            }
        }
        // What is below another one is told with that.
        let is_below = |uri: &Uri| uri.prefixes().any(|above| found.contains(above));
        let roots = order.into_iter().filter(|uri| !is_below(uri)).cloned();
        Untold {
            roots: roots.collect(),
            last: None,
        }
    }
}
