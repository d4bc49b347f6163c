//! A tree with its resolves: the part that policy and endpoints share.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::Settings;
use crate::message::{ErrorResponse, Resolve};
use crate::model::{Cursor, ObjectRef, Piece, Target, Tree, Uri, Watch, Watchers, watch_memory};
use crate::peer::ConnectionId;

/// A time in seconds from the wire. A negative one counts as zero.
pub(super) fn seconds(prr: i64) -> Duration {
    Duration::from_secs(u64::try_from(prr).unwrap_or(0))
}

/// For how long changes are told; not at all if that is zero.
fn refresh(resolve: &Resolve, settings: &Settings) -> Duration {
    resolve.prr.map_or(settings.default_prr, seconds)
}

/// The part of an answer to a resolve that has not been sent.
///
/// Each object is sent as it is at that time. Changes between two pieces are sent as
/// updates like any other change, so that the client has the right state in the end.
#[derive(Debug, Default)]
pub(super) struct Unsent(VecDeque<Cursor>);

impl Unsent {
    /// The next objects, parents before children, of about `bytes` bytes, but at least one
    /// if there is any.
    pub(super) fn next<'a>(&mut self, tree: &'a Tree, bytes: usize) -> Vec<ObjectRef<'a>> {
        let (mut objects, mut piece) = (Vec::new(), Piece::new(bytes));
        while let Some(cursor) = self.0.front_mut() {
            // Checked first, so that the last piece knows that it is the last.
            if cursor.ahead(tree).next().is_none() {
                self.0.pop_front();
            } else if piece.is_full() {
                break;
            } else {
                objects.extend(cursor.take(tree, usize::MAX, &mut piece));
            }
        }
        objects
    }

    /// Whether everything has been sent.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
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
            watchers: Watchers::default(),
        }
    }

    /// Checks all parts of a resolve before any of them has an effect.
    fn check(
        &self,
        connection: ConnectionId,
        resolves: &[Resolve],
        settings: &Settings,
    ) -> Result<(), Box<ErrorResponse>> {
        // An empty answer would hide a typing error for ever.
        for Resolve { subject, .. } in resolves {
            if self.tree.schema().is_some_and(|schema| !schema.knows(subject)) {
                return Err(ErrorResponse::error(format_args!(
                    "unknown subject {:?}",
                    &**subject
                )));
            }
        }
        let there = self.watchers.count(&connection);
        // A resolve that is repeated takes no more memory.
        let adds = |resolve: &&Resolve| {
            !refresh(resolve, settings).is_zero() && !self.watchers.watches(&connection, &resolve.target)
        };
        let limit = settings.limits.resolves;
        // The first comparison is cheap and settles nearly every request.
        if there + resolves.len() > limit && there + resolves.iter().filter(adds).count() > limit {
            let what = format!("a connection can't resolve more than {limit} objects");
            return Err(ErrorResponse::error(what));
        }
        let adds = resolves.iter().filter(adds);
        let adds: usize = adds
            .map(|resolve| watch_memory(&resolve.subject, &resolve.target))
            .sum();
        if adds > 0
            && !self
                .watchers
                .memory()
                .fits(&connection, adds, settings.limits.resolve_bytes)
        {
            return Err(ErrorResponse::error("no memory for more resolves"));
        }
        Ok(())
    }

    /// Enters the resolves and returns the answer. An unknown object is no error: it is
    /// sent when it appears.
    pub(super) fn resolve(
        &mut self,
        connection: ConnectionId,
        resolves: Vec<Resolve>,
        settings: &Settings,
        now: Instant,
    ) -> Result<Unsent, Box<ErrorResponse>> {
        // All of the request is checked first: it is carried out as a whole or not at all.
        self.check(connection, &resolves, settings)?;
        // Found before the interests are entered, which takes the resolves apart.
        let found = self.find(&resolves);
        for resolve in resolves {
            let refresh = refresh(&resolve, settings);
            // A refresh rate of zero asks for the answer alone; it ends an earlier interest.
            if refresh.is_zero() {
                self.watchers.unwatch(&connection, &resolve.target);
            } else {
                self.watchers.watch(Watch {
                    watcher: connection,
                    subject: resolve.subject,
                    target: resolve.target,
                    // A time that the clock cannot count never comes.
                    expires: now.checked_add(refresh),
                });
            }
        }
        Ok(found)
    }

    /// The objects that a resolve asks for, each once. Objects that are not there, or are
    /// of another class, are left out.
    fn find<'a>(&'a self, resolves: &[Resolve]) -> Unsent {
        // A request may name an object twice, by URI and by identifier.
        let mut found: HashSet<&str> = HashSet::new();
        let mut order = Vec::new();
        for resolve in resolves {
            let mut take = |root: ObjectRef<'a>| {
                if *root.subject() == resolve.subject && found.insert(root.uri().as_str()) {
                    order.push(root.uri());
                }
            };
            match &resolve.target {
                Target::Uri(uri) => self.tree.get(uri).into_iter().for_each(&mut take),
                Target::Ident(ident) => self.tree.find(ident).for_each(&mut take),
            }
        }
        // An object below another one is sent with that.
        let is_below = |uri: &Uri| uri.prefixes().any(|above| found.contains(above));
        let roots = order.into_iter().filter(|uri| !is_below(uri)).cloned();
        Unsent(roots.map(Cursor::below).collect())
    }
}
