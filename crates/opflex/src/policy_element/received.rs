//! Received objects, and the removal of objects that no resolve covers.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use log::{debug, warn};

use super::held::{Item, Key};
use super::{ElementCore, ElementEvent, ObjectChange, Store};
use crate::message::{ErrorResponse, Update};
use crate::model::{Change, ChangeKind, Changes, ManagedObject, ObjectRef, Reference, Target, Uri};

impl ElementCore {
    /// Handles the answer to a resolve. Returns false if the answer exceeds the limit of objects; it
    /// is dropped then. An empty answer removes nothing: the element keeps its objects until a
    /// server deletes them.
    pub(super) fn resolved(&mut self, key: &Key, objects: Vec<ManagedObject>, now: Instant) -> bool {
        let Key::Resolve(what, subject, target) = key else {
            return true;
        };
        // Computed before unwanted objects are dropped: the server has found the object in any case.
        let found = !objects.is_empty();
        if !self.has_room(*what, objects.iter()) {
            warn!(
                "{}: an answer was dropped: it exceeds the limit of objects",
                key.about()
            );
            self.emit(ElementEvent::NotTaken {
                about: key.about(),
                limit: self.settings.limits.objects,
            });
            return false;
        }
        // After the check of the limit, which counts all objects of the answer.
        let objects = self.wanted(*what, objects);
        // The first answer replaces the start policy, also if it is empty.
        let outdated = self.take_start_policy(key);
        match self.trees[*what].update(&outdated, objects, Vec::new()) {
            Ok(changes) => {
                let first = self
                    .held
                    .get_mut(key)
                    .is_some_and(|item| !std::mem::replace(&mut item.answered, true));
                if first {
                    self.emit(ElementEvent::Resolved {
                        what: *what,
                        subject: subject.clone(),
                        target: target.clone(),
                        found,
                    });
                }
                self.changed(*what, &changes, now);
            }
            Err(error) => warn!("{}: an answer was dropped: {error}", key.about()),
        }
        true
    }

    /// Adds the objects of the start policy for a resolve.
    pub(super) fn bring_start_policy(&mut self, key: &Key) {
        let Key::Resolve(Store::Policy, subject, target) = key else {
            return;
        };
        let start = &self.start_policy;
        let is_of_class = |object: &ObjectRef<'_>| object.subject() == subject;
        let roots: Vec<Uri> = match target {
            Target::Uri(uri) => start
                .get(uri)
                .into_iter()
                .filter(is_of_class)
                .map(|o| o.uri().clone())
                .collect(),
            Target::Ident(ident) => start
                .find(ident)
                .filter(is_of_class)
                .map(|o| o.uri().clone())
                .collect(),
        };
        let objects = roots.iter().flat_map(|root| start.subtree(root));
        let objects: Vec<_> = objects.map(|object| object.to_object()).collect();
        if objects.is_empty() || !self.has_room(Store::Policy, objects.iter()) {
            return;
        }
        for root in &roots {
            // The resolve covers them as if a server had sent them.
            self.held.add_root(key, root);
        }
        match self.trees[Store::Policy].update(&[], objects, Vec::new()) {
            Ok(changes) => self.emit_changes(Store::Policy, &changes),
            Err(error) => warn!("{}: start policy was not used: {error}", key.about()),
        }
        if let Some(item) = self.held.get_mut(key) {
            item.is_start_policy = true;
        }
    }

    /// Removes the start policy from the resolves that an update covers, and returns its topmost
    /// objects. A long answer begins with updates, so an update may be the first part of an answer.
    fn outdated(&mut self, what: Store, update: &Update) -> Vec<Uri> {
        if what != Store::Policy || self.start_policy.is_empty() {
            return Vec::new();
        }
        let objects = update
            .replace
            .iter()
            .chain(update.merge_children.iter().flatten());
        let uris = objects.map(|object| &object.uri);
        let keys: HashSet<Key> = uris
            .flat_map(|uri| self.held.holders(what, uri))
            .cloned()
            .collect();
        keys.iter().flat_map(|key| self.take_start_policy(key)).collect()
    }

    /// Removes the start policy from a resolve, and returns its topmost objects.
    fn take_start_policy(&mut self, key: &Key) -> Vec<Uri> {
        let item = match self.held.get_mut(key) {
            Some(item) if item.is_start_policy => item,
            _ => return Vec::new(),
        };
        item.is_start_policy = false;
        item.roots(key).cloned().collect()
    }

    /// Carries out all updates of a request, or none.
    pub(super) fn updated(
        &mut self,
        what: Store,
        updates: Vec<Update>,
        now: Instant,
    ) -> Result<(), Box<ErrorResponse>> {
        let objects = || {
            updates.iter().flat_map(|update| {
                update
                    .replace
                    .iter()
                    .chain(update.merge_children.iter().flatten())
            })
        };
        if !self.has_room(what, objects()) {
            return Err(ErrorResponse::error("too many objects"));
        }
        // All objects are checked before the first is entered: a request counts as a whole.
        objects().try_for_each(|object| object.check().map_err(ErrorResponse::error))?;
        for update in updates {
            // The start policy is removed by the same edit, so that objects in both count as kept.
            let mut delete = self.outdated(what, &update);
            let replace = self.wanted(what, update.replace);
            let merge = self.wanted(what, update.merge_children.unwrap_or_default());
            delete.extend(update.delete.into_iter().map(|deletion| deletion.uri));
            let changes = self.trees[what].update(&delete, replace, merge);
            let changes = changes.map_err(ErrorResponse::error)?;
            self.changed(what, &changes, now);
        }
        Ok(())
    }

    /// Resolves the policies to which the objects of a policy refer.
    pub(super) fn follow(&mut self, key: &Key, now: Instant) {
        let references = self.references_of(key);
        self.follow_all(references, now);
    }

    /// Removes the resolves that have no reference and to which no followed policy refers, and the
    /// objects that only these resolves cover.
    pub(super) fn sweep(&mut self) {
        self.sweep = None;
        let mut reached: HashSet<Key> = HashSet::new();
        let following = self.held.iter().filter(|(_, item)| item.following > 0);
        // Searched from the followed policies on, like a tracing garbage collector: with counters,
        // policies that refer to each other in a circle would never be removed.
        let mut stack: Vec<Key> = following.map(|(key, _)| key.clone()).collect();
        while let Some(key) = stack.pop() {
            for reference in self.references_of(&key) {
                let key = key_of(reference);
                if self.held.get(&key).is_some() && reached.insert(key.clone()) {
                    stack.push(key);
                }
            }
        }
        let mut unwanted = Vec::new();
        let keys: Vec<Key> = self.held.iter().map(|(key, _)| key.clone()).collect();
        self.followed = 0;
        for key in keys.into_iter().filter(|key| matches!(key, Key::Resolve(..))) {
            let Some(item) = self.held.get_mut(&key) else {
                continue;
            };
            item.followed = reached.contains(&key);
            match (item.references, item.followed) {
                (0, false) => unwanted.push(key),
                (0, true) => self.followed += 1,
                _ => {}
            }
        }
        // Sorted, because the order of a hash map differs in each run.
        unwanted.sort_unstable();
        for key in unwanted {
            self.unresolve(&key);
        }
    }

    /// Removes a resolve, and the objects that no other resolve covers.
    fn unresolve(&mut self, key: &Key) {
        let Key::Resolve(what, ..) = key else {
            return;
        };
        let to = self.pool.ready(&key.role());
        self.held.take_back(key, to, &mut self.actions);
        let Some(item) = self.held.drop(key) else {
            return;
        };
        let held = &self.held;
        let roots: Vec<Uri> = item.roots(key).cloned().collect();
        let is_held = |_: &Uri, uri: &Uri| held.holders(*what, uri).next().is_some();
        let changes = self.trees[*what].delete_sparing(&roots, is_held);
        self.emit_changes(*what, &changes);
    }

    /// Drops the objects that no resolve covers. A resolve by identifier covers the objects with the
    /// identifier and everything below them.
    fn wanted(&mut self, what: Store, objects: Vec<ManagedObject>) -> Vec<ManagedObject> {
        if self.held.has_idents(what) {
            for object in &objects {
                for ident in self.tree(what).idents_of(object) {
                    for key in self.held.by_ident(what, &ident, &object.subject) {
                        self.held.add_root(&key, &object.uri);
                    }
                }
            }
        }
        // Keeping all objects would let a server fill the memory.
        let all = objects.len();
        let held = &self.held;
        let is_held = |object: &ManagedObject| held.holders(what, &object.uri).next().is_some();
        let wanted: Vec<_> = objects.into_iter().filter(is_held).collect();
        if wanted.len() < all {
            debug!(
                "{} received objects were dropped: no resolve covers them",
                all - wanted.len()
            );
        }
        wanted
    }

    fn changed(&mut self, what: Store, changes: &Changes, now: Instant) {
        self.emit_changes(what, changes);
        if what == Store::Policy {
            self.follow_changes(changes, now);
        }
    }

    fn emit_changes(&mut self, what: Store, changes: &Changes) {
        if changes.is_empty() {
            return;
        }
        let tree = self.tree(what);
        let change = |change: &Change| ObjectChange {
            kind: change.kind,
            subject: change.subject.clone(),
            uri: change.uri.clone(),
            object: tree.get(&change.uri).map(|object| object.to_object()),
        };
        let objects = changes.iter().map(change).collect();
        self.emit(ElementEvent::Changed { what, objects });
    }

    /// Resolves the policies to which changed objects refer, if the changed policy is followed.
    /// Policies that have lost a reference are removed by the next sweep.
    fn follow_changes(&mut self, changes: &Changes, now: Instant) {
        let mut references = Vec::new();
        for change in changes {
            let mut holders = self.held.holders(Store::Policy, &change.uri);
            let is_followed = holders.any(|key| self.held.get(key).is_some_and(Item::follows));
            drop(holders);
            if !is_followed {
                continue;
            }
            if change.kind != ChangeKind::Created {
                self.sweep_soon(now);
            }
            if let Some(object) = self.policy().get(&change.uri) {
                let data = object.properties().iter().map(|property| &property.data);
                references.extend(data.flat_map(Reference::all));
            }
        }
        self.follow_all(references, now);
    }

    fn follow_all(&mut self, references: Vec<Reference>, now: Instant) {
        // A breadth-first search through the policies that are known already.
        let mut queue: VecDeque<Key> = references.into_iter().map(key_of).collect();
        while let Some(key) = queue.pop_front() {
            let known = self.held.get(&key).is_some();
            // The server sends the references, so their number needs a limit.
            if !known && self.followed >= self.settings.limits.followed {
                warn!(
                    "{}: not resolved: it exceeds the limit of followed policies",
                    key.about()
                );
                continue;
            }
            self.held.hold(&key, now);
            let Some(item) = self.held.get_mut(&key) else {
                continue;
            };
            let was_followed = item.follows();
            if !item.followed {
                item.followed = true;
                self.followed += usize::from(item.references == 0);
            }
            if !known {
                self.bring_start_policy(&key);
                self.request_from_all(&key, now);
            }
            if !was_followed {
                queue.extend(self.references_of(&key).into_iter().map(key_of));
            }
        }
    }

    /// The references in the objects of a resolve.
    fn references_of(&self, key: &Key) -> Vec<Reference> {
        let (Key::Resolve(Store::Policy, ..), Some(item)) = (key, self.held.get(key)) else {
            return Vec::new();
        };
        let objects = item.roots(key).flat_map(|root| self.policy().subtree(root));
        let data = objects
            .flat_map(|object| object.properties())
            .map(|property| &property.data);
        data.flat_map(Reference::all).collect()
    }

    /// True if the tree may take the objects within its limit.
    fn has_room<'a>(&self, what: Store, objects: impl Iterator<Item = &'a ManagedObject>) -> bool {
        let (tree, most) = (self.tree(what), self.settings.limits.objects);
        // Objects that replace others take no more room.
        let coming = objects.filter(|object| tree.get(&object.uri).is_none()).count();
        tree.len() + coming <= most
    }
}

/// The resolve for a reference.
fn key_of(reference: Reference) -> Key {
    Key::Resolve(Store::Policy, reference.subject, Target::Uri(reference.uri))
}
