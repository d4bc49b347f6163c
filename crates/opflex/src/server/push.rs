//! The updates for an edit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use super::resolves::Resolvable;
use super::settings::ServerLimits;
use crate::message::{self, Deletion, Store};
use crate::model::{
    Change, ChangeKind, Changes, Ident, ManagedObject, Name, ObjectRef, Piece, Target, Tree, Uri, Watchers,
};
use crate::peer::ConnectionId;

/// An update of objects in a tree. Created objects are in `replace`, each with everything below it.
/// Modified objects are in `merge_children`. Deleted objects are in `delete`, children before their
/// parents, because libopflex deletes only the objects that the update names.
pub(super) type TreeUpdate<'a> = message::Update<ObjectRef<'a>>;

/// The updates for an edit, each with its receivers.
pub(super) fn updates<'a>(
    of: Store,
    resolvable: &'a Resolvable,
    changes: &Changes,
    limits: &ServerLimits,
    now: Instant,
) -> Vec<(Vec<ConnectionId>, Vec<TreeUpdate<'a>>)> {
    let Resolvable { tree, watchers } = resolvable;
    let groups = groups(tree, watchers, changes, now).into_iter();
    let updates = groups.map(|(receivers, changes)| {
        let whole = TreeUpdate::whole(of, tree, &changes);
        (receivers, whole.pieces(of, limits))
    });
    updates.collect()
}

/// Finds the receivers of each change: the clients that watch the object, or an object
/// that contains it or contained it before the edit.
///
/// Clients that get the same changes form one group, so that their update is built once.
fn groups<'a>(
    tree: &Tree,
    watchers: &Watchers<ConnectionId>,
    changes: &'a Changes,
    now: Instant,
) -> Vec<(Vec<ConnectionId>, Vec<&'a Change>)> {
    // Sorted, so that the same edit always sends updates in the same order.
    let mut of_each: BTreeMap<ConnectionId, Vec<usize>> = BTreeMap::new();
    // An interest is in a class, and the edit may have changed the class of an object.
    let roots = Roots::new(tree, changes);
    for (n, change) in changes.iter().enumerate() {
        let mut add = |connection: ConnectionId| {
            let indexes = of_each.entry(connection).or_default();
            // A client may watch the object and several objects above it.
            if indexes.last() != Some(&n) {
                indexes.push(n);
            }
        };
        for watch in watchers.of_uri(&change.uri, now) {
            if let Target::Uri(root) = &watch.target
                && roots.is_or_was(root, &watch.subject)
            {
                add(watch.watcher);
            }
        }
        if watchers.watches_idents() {
            for (ident, subject) in roots.idents_above(&change.uri) {
                let watches = watchers.of_ident(&ident, now);
                watches
                    .filter(|watch| watch.subject == subject)
                    .for_each(|watch| add(watch.watcher));
            }
        }
    }
    // Clients that get the same changes share one frame, and so its memory.
    let mut groups: BTreeMap<Vec<usize>, Vec<ConnectionId>> = BTreeMap::new();
    for (connection, indexes) in of_each {
        groups.entry(indexes).or_default().push(connection);
    }
    let changes_at = |indexes: Vec<usize>| indexes.into_iter().map(|n| &changes[n]).collect();
    let groups = groups.into_iter();
    groups
        .map(|(indexes, receivers)| (receivers, changes_at(indexes)))
        .collect()
}

impl<'a> TreeUpdate<'a> {
    /// An update that only creates objects.
    pub(super) fn created(of: Store, replace: Vec<ObjectRef<'a>>) -> Self {
        Self {
            replace,
            ..Self::empty(of)
        }
    }

    /// The update for these changes, which are in the order of their URIs.
    fn whole(of: Store, tree: &'a Tree, changes: &[&Change]) -> Self {
        let mut update = Self::empty(of);
        let mut added: HashSet<&Uri> = HashSet::new();
        for change in changes {
            match change.kind {
                ChangeKind::Deleted => {
                    update.delete.push(Deletion {
                        subject: change.subject.clone(),
                        uri: change.uri.clone(),
                    });
                    // Children that survive their parent's deletion are sent again, because
                    // some receivers delete whole subtrees.
                    for child in tree.children_of(&change.uri) {
                        update.add_subtree(tree, child.uri(), &mut added);
                    }
                }
                ChangeKind::Created => update.add_subtree(tree, &change.uri, &mut added),
                // An object of another class takes the place of the former one: a receiver that merges
                // it would keep both.
                ChangeKind::Modified if change.has_other_class() => {
                    update
                        .delete
                        .extend(change.before.as_ref().map(|before| Deletion {
                            subject: before.subject.clone(),
                            uri: change.uri.clone(),
                        }));
                    update.add_subtree(tree, &change.uri, &mut added);
                }
                ChangeKind::Modified => match &mut update.merge_children {
                    // An endpoint update cannot merge, so the object is replaced with everything
                    // below it.
                    None => update.add_subtree(tree, &change.uri, &mut added),
                    Some(_) if added.contains(&change.uri) => {}
                    Some(merge) => merge.extend(tree.get(&change.uri)),
                },
            }
        }
        // Changes are sorted parents first; deletions are sent children first.
        update.delete.reverse();
        update
    }

    /// Adds an object with everything below it, except for objects that the update has already.
    fn add_subtree(&mut self, tree: &'a Tree, uri: &Uri, added: &mut HashSet<&'a Uri>) {
        if !added.contains(uri) {
            let subtree = tree.subtree(uri).filter(|object| added.insert(object.uri()));
            self.replace.extend(subtree);
        }
    }

    /// Splits the update so that the length of a message has a limit. Deletions are sent first,
    /// because a created object may have the URI of a deleted one, and each class in messages of its
    /// own: libopflex refuses the rest of a message at the first class that it does not know.
    fn pieces(mut self, of: Store, limits: &ServerLimits) -> Vec<Self> {
        let merge = self.merge_children.unwrap_or_default();
        // Children have longer paths than their parents. Within a depth the classes are together, so
        // that they need few messages.
        let depth = |deletion: &Deletion| deletion.uri.as_str().matches('/').count();
        self.delete
            .sort_by_cached_key(|deletion| Reverse((depth(deletion), deletion.subject.clone())));
        let len = |deletion: &Deletion| deletion.uri.as_str().len() + deletion.subject.len();
        let classes = self.delete.chunk_by(|one, next| one.subject == next.subject);
        let deletes = classes.flat_map(|class| cut(class.to_vec(), limits, len));
        let mut pieces: Vec<Self> = deletes
            .map(|delete| Self {
                delete,
                ..Self::empty(of)
            })
            .collect();
        // Nearly every update is short, and is sent in one message as in libopflex.
        let is_short = self.replace.len() + merge.len() <= limits.update_objects;
        let objects = self.replace.iter().chain(&merge).map(ObjectRef::wire_len);
        if is_short && objects.sum::<usize>() <= limits.message_bytes {
            if !self.replace.is_empty() || !merge.is_empty() {
                pieces.push(Self {
                    replace: self.replace,
                    merge_children: (of == Store::Policy).then_some(merge),
                    delete: Vec::new(),
                });
            }
            return pieces;
        }
        let long = |objects| cut(objects, limits, ObjectRef::wire_len);
        let replaces = long(self.replace).into_iter().map(|part| Self::created(of, part));
        let merges = long(merge).into_iter().map(|part| Self {
            merge_children: Some(part),
            ..Self::empty(of)
        });
        pieces.extend(replaces.chain(merges));
        pieces
    }
}

/// Splits a list into the pieces of single messages.
fn cut<T>(list: Vec<T>, limits: &ServerLimits, len: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut pieces: Vec<Vec<T>> = Vec::new();
    let mut room = Piece::new(0, 0);
    for element in list {
        let len = len(&element);
        match pieces.last_mut() {
            Some(piece) if room.add(len) => piece.push(element),
            _ => {
                room = Piece::new(limits.update_objects, limits.message_bytes);
                room.add(len);
                pieces.push(vec![element]);
            }
        }
    }
    pieces
}

/// The objects that contain a change, before the edit and after it.
struct Roots<'a> {
    tree: &'a Tree,
    before: HashMap<&'a Uri, &'a ManagedObject>,
}

impl<'a> Roots<'a> {
    fn new(tree: &'a Tree, changes: &'a Changes) -> Self {
        let before = changes
            .iter()
            .filter_map(|change| Some((&change.uri, change.before.as_deref()?)));
        Self {
            tree,
            before: before.collect(),
        }
    }

    /// True if a watched URI has, or had before the edit, an object of the watched class. If there is
    /// and was no object, the class does not matter.
    fn is_or_was(&self, uri: &Uri, subject: &str) -> bool {
        let now = self.tree.get(uri).map(|object| object.subject());
        let before = self.before.get(uri).map(|object| &object.subject);
        (now.is_none() && before.is_none()) || now.into_iter().chain(before).any(|class| **class == *subject)
    }

    /// The identifiers, before and after the edit, of an object and of the objects that
    /// contain it, each with the class of its object.
    fn idents_above(&self, uri: &Uri) -> Vec<(Ident, Name)> {
        let above = uri.prefixes().filter_map(|text| text.parse().ok());
        let mut found = Vec::new();
        // Including the objects above, because a watch of an object covers its subtree.
        for uri in above.chain(std::iter::once(uri.clone())) {
            if let Some(object) = self.tree.get(&uri) {
                found.extend(
                    self.tree
                        .idents(&uri)
                        .into_iter()
                        .map(|ident| (ident, object.subject().clone())),
                );
            }
            if let Some(object) = self.before.get(&uri) {
                let idents = self.tree.idents_of(object).into_iter();
                found.extend(idents.map(|ident| (ident, object.subject.clone())));
            }
        }
        found
    }
}
