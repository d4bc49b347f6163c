//! A tree with its resolves, for policy and for endpoints.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::settings::ServerSettings;
use crate::message::{ErrorResponse, Resolve};
use crate::model::{Cursor, ObjectRef, Piece, Tree, Uri, Watch, Watchers, watch_memory};
use crate::peer::ConnectionId;

/// A refresh rate of a message, in seconds. A negative one counts as zero.
pub(super) fn seconds(prr: i64) -> Duration {
    Duration::from_secs(u64::try_from(prr).unwrap_or(0))
}

/// The time for which updates are sent. If it is zero, none are sent.
fn refresh(resolve: &Resolve, settings: &ServerSettings) -> Duration {
    resolve.prr.map_or(settings.default_prr, seconds)
}

/// The part of an answer to a resolve that has not been sent.
///
/// Each object is sent in its state at that time. Later changes are sent as updates, so the client
/// has the present state when the answer is complete.
#[derive(Debug, Default)]
pub(super) struct Unsent(VecDeque<Cursor>);

impl Unsent {
    /// The next objects, parents before children: about `bytes` bytes, but at least one object unless
    /// none is left.
    pub(super) fn next<'a>(&mut self, tree: &'a Tree, bytes: usize) -> Vec<ObjectRef<'a>> {
        let (mut objects, mut piece) = (Vec::new(), Piece::new(usize::MAX, bytes));
        while let Some(cursor) = self.0.front_mut() {
            // Checked first, so that `is_empty` is true after the last piece.
            if cursor.ahead(tree).next().is_none() {
                self.0.pop_front();
            } else if piece.is_full() {
                break;
            } else {
                objects.extend(cursor.take(tree, &mut piece));
            }
        }
        objects
    }

    /// True if the whole answer has been sent.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A tree whose objects clients resolve.
#[derive(Debug, Default)]
pub(super) struct Resolvable {
    pub(super) tree: Tree,
    pub(super) watchers: Watchers<ConnectionId>,
}

impl Resolvable {
    /// Checks all resolves of a request before the first has an effect.
    fn check(
        &self,
        connection: ConnectionId,
        resolves: &[Resolve],
        settings: &ServerSettings,
    ) -> Result<(), Box<ErrorResponse>> {
        // Refused, because an empty answer would hide a typing error.
        for Resolve { subject, .. } in resolves {
            if self.tree.schema().is_some_and(|schema| !schema.knows(subject)) {
                return Err(ErrorResponse::error(format_args!(
                    "unknown subject {:?}",
                    &**subject
                )));
            }
        }
        let there = self.watchers.count(&connection);
        // A repeated resolve takes no more memory.
        let adds = |resolve: &&Resolve| {
            !refresh(resolve, settings).is_zero()
                && !self
                    .watchers
                    .watches(&connection, &resolve.subject, &resolve.target)
        };
        let (mut added, mut bytes) = (0, 0);
        for resolve in resolves.iter().filter(adds) {
            added += 1;
            bytes += watch_memory(&resolve.subject, &resolve.target);
        }
        let (memory, limits) = (self.watchers.memory(), &settings.limits);
        if added > 0 && there + added > limits.resolves {
            let what = format!("a connection can't resolve more than {} objects", limits.resolves);
            return Err(ErrorResponse::error(what));
        }
        if added > 0 && !memory.fits(&connection, bytes, limits.resolve_bytes) {
            return Err(ErrorResponse::error("no memory for more resolves"));
        }
        Ok(())
    }

    /// Adds the resolves and returns the answer. An unknown object is not an error: it is sent when it
    /// is created.
    pub(super) fn resolve(
        &mut self,
        connection: ConnectionId,
        resolves: Vec<Resolve>,
        settings: &ServerSettings,
        now: Instant,
    ) -> Result<Unsent, Box<ErrorResponse>> {
        self.check(connection, &resolves, settings)?;
        let found = self.find(&resolves);
        for resolve in resolves {
            let refresh = refresh(&resolve, settings);
            // With a refresh rate of zero there are no updates, and an earlier interest ends.
            if refresh.is_zero() {
                self.watchers
                    .unwatch(&connection, &resolve.subject, &resolve.target);
            } else {
                self.watchers.watch(Watch {
                    watcher: connection,
                    subject: resolve.subject,
                    target: resolve.target,
                    // A time that the clock cannot represent means no end.
                    expires: now.checked_add(refresh),
                });
            }
        }
        Ok(found)
    }

    /// The objects of the resolves, each once, without objects of another class.
    fn find(&self, resolves: &[Resolve]) -> Unsent {
        // A request may name an object twice, by URI and by identifier.
        let mut found: HashSet<&str> = HashSet::new();
        let mut order = Vec::new();
        for resolve in resolves {
            for root in self.tree.find_all(&resolve.target) {
                if *root.subject() == resolve.subject && found.insert(root.uri().as_str()) {
                    order.push(root.uri());
                }
            }
        }
        // An object below another one is sent together with it.
        let is_below = |uri: &Uri| uri.prefixes().any(|above| found.contains(above));
        let roots = order.into_iter().filter(|uri| !is_below(uri)).cloned();
        Unsent(roots.map(Cursor::below).collect())
    }
}
