//! From what an edit changed to who is told what.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use crate::opflex::message::Deletion;
use crate::opflex::model::{
    Change, ChangeKind, Changes, Ident, ManagedObject, Name, Target, Tree, Uri, Watchers,
};
use crate::opflex::peer::ConnectionId;

/// Receivers that are told the same.
#[derive(Debug)]
pub(super) struct Push<'a> {
    pub(super) receivers: Vec<ConnectionId>,
    /// In the order of their URIs.
    pub(super) changes: Vec<&'a Change>,
}

/// The contents of an update, for both kinds of it.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Objects that came, each with everything below it.
    pub(super) created: Vec<ManagedObject>,
    /// Objects that changed, alone.
    pub(super) modified: Vec<ManagedObject>,
    /// Objects that went, the topmost of each branch.
    pub(super) deleted: Vec<Deletion>,
}

/// Sorts out who is told of which changes: who watches the object, or one that
/// it is below, or did so before the object went.
///
/// Receivers that are told the same come together, so that an update is built
/// once however many get it.
pub(super) fn pushes<'a>(
    tree: &Tree,
    watchers: &Watchers<ConnectionId>,
    changes: &'a Changes,
    now: Instant,
) -> Vec<Push<'a>> {
    let mut of_each: BTreeMap<ConnectionId, Vec<usize>> = BTreeMap::new();
    let roots = Roots::new(tree, changes);
    for (n, change) in changes.iter().enumerate() {
        let mut tell = |connection: ConnectionId| {
            let told = of_each.entry(connection).or_default();
            if told.last() != Some(&n) {
                told.push(n);
            }
        };
        for watch in watchers.of_uri(&change.uri, now) {
            if let Target::Uri(root) = &watch.target
                && roots.is_or_was(root, &watch.subject)
            {
                tell(watch.watcher);
            }
        }
        if watchers.watches_idents() {
            for (ident, subject) in roots.idents_above(&change.uri) {
                let watches = watchers.of_ident(&ident, now);
                watches
                    .filter(|watch| watch.subject == subject)
                    .for_each(|watch| tell(watch.watcher));
            }
        }
    }
    let mut groups: HashMap<Vec<usize>, Vec<ConnectionId>> = HashMap::new();
    let mut order = Vec::new();
    for (connection, told) in of_each {
        let receivers = groups.entry(told.clone()).or_insert_with(|| {
            order.push(told);
            Vec::new()
        });
        receivers.push(connection);
    }
    let all: Vec<&Change> = changes.iter().collect();
    let push = |told: Vec<usize>| Push {
        receivers: groups.remove(&told).unwrap_or_default(),
        changes: told.iter().filter_map(|n| all.get(*n).copied()).collect(),
    };
    order.into_iter().map(push).collect()
}

impl Contents {
    /// What an update says of these changes, which are in the order of their
    /// URIs.
    pub(super) fn of(tree: &Tree, changes: &[&Change]) -> Self {
        let mut contents = Self::default();
        let mut told: HashSet<&Uri> = HashSet::new();
        let mut gone: Option<&Uri> = None;
        for change in changes {
            match change.kind {
                ChangeKind::Deleted => {
                    if !gone.is_some_and(|gone| gone.is_ancestor_of(&change.uri)) {
                        gone = Some(&change.uri);
                        contents.deleted.push(Deletion {
                            subject: change.subject.clone(),
                            uri: change.uri.clone(),
                        });
                    }
                    // What stays below something that goes is told anew: the
                    // receiver may take it away with what is above.
                    for child in tree.children_of(&change.uri) {
                        contents.come(tree, child.uri(), &mut told);
                    }
                }
                ChangeKind::Created => contents.come(tree, &change.uri, &mut told),
                ChangeKind::Modified if told.contains(&change.uri) => {}
                ChangeKind::Modified => {
                    contents
                        .modified
                        .extend(tree.get(&change.uri).map(|object| object.to_object()));
                }
            }
        }
        contents
    }

    /// An object came, with everything below it that has not been told.
    fn come<'a>(&mut self, tree: &'a Tree, uri: &Uri, told: &mut HashSet<&'a Uri>) {
        if !told.contains(uri) {
            let subtree = tree.subtree(uri).filter(|object| told.insert(object.uri()));
            self.created.extend(subtree.map(|object| object.to_object()));
        }
    }
}

/// The objects that changes are below, before the edit and after it.
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

    /// Whether a watched URI has, or had, an object of the class that the
    /// watcher asked for. One that has no object is watched for any class.
    fn is_or_was(&self, uri: &Uri, subject: &str) -> bool {
        let now = self.tree.get(uri).map(|object| object.subject());
        let before = self.before.get(uri).map(|object| &object.subject);
        (now.is_none() && before.is_none()) || now.into_iter().chain(before).any(|class| **class == *subject)
    }

    /// The identifiers that an object, and those that it is below, have or had,
    /// with the class of whom they are.
    fn idents_above(&self, uri: &Uri) -> Vec<(Ident, Name)> {
        let above = uri.prefixes().filter_map(|text| text.parse().ok());
        let mut found = Vec::new();
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
