//! Received objects, and the removal of objects that no resolve covers.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use log::{debug, warn};
use ssntp_transport::excerpt;

use super::event::{ElementEvent, ObjectChange};
use super::items::{Item, Key};
use super::{ElementCore, Store};
use crate::message::{Deletion, ErrorResponse, Update};
use crate::model::{
    Change, ChangeKind, Changes, ManagedObject, ModelError, ObjectRef, PropertyReference, Target, Tree, Uri,
};

impl ElementCore {
    /// Handles the answer to a resolve. Its objects replace those that the element has, with everything
    /// below them, because the element may have missed deletions. An empty answer removes nothing but
    /// the start policy: the element keeps received objects until a server deletes them.
    ///
    /// # Errors
    /// The reason for which the answer was dropped.
    pub(super) fn resolved(
        &mut self,
        key: &Key,
        objects: Vec<ManagedObject>,
        now: Instant,
    ) -> Result<(), String> {
        let Key::Resolve(what, subject, target) = key else {
            return Ok(());
        };
        // Computed before unwanted objects are dropped: the server has found the object in any case.
        let found = !objects.is_empty();
        if !self.has_room(*what, objects.iter(), objects.iter(), std::iter::empty()) {
            self.emit(ElementEvent::NotTaken {
                about: key.about(),
                limit: self.settings.limits.objects,
            });
            return Err("it exceeds the limit of objects".to_owned());
        }
        let checked = objects.iter().try_for_each(ManagedObject::check);
        let entered = checked.and_then(|()| self.enter(*what, &[], objects, Vec::new()));
        let changes = entered.map_err(|error| error.to_string())?;
        let item = self.items.get_mut(key);
        let is_first = item.is_some_and(|item| !std::mem::replace(&mut item.answered, true));
        if is_first {
            self.emit(ElementEvent::Resolved {
                what: *what,
                subject: subject.clone(),
                target: target.clone(),
                found,
            });
        }
        self.changed(*what, &changes, now);
        // The first answer replaces the start policy, also if it is empty.
        if is_first && !self.items.start_objects.is_empty() {
            let item = self.items.get(key);
            let roots: Vec<Uri> = item
                .into_iter()
                .flat_map(|item| item.roots(key))
                .cloned()
                .collect();
            self.prune(*what, &roots, now);
        }
        Ok(())
    }

    /// Adds the objects of the start policy for a resolve, except for objects about which a server has
    /// answered already.
    pub(super) fn bring_start_policy(&mut self, key: &Key) {
        let Key::Resolve(Store::Policy, subject, target) = key else {
            return;
        };
        let start = &self.start_policy;
        let of_target = start.find_all(target).into_iter();
        let roots = of_target.filter(|object| object.subject() == subject);
        let roots: Vec<Uri> = roots.map(|object| object.uri().clone()).collect();
        let is_unknown = |object: &ObjectRef<'_>| {
            let mut resolves = self.items.resolves_of(Store::Policy, object.uri());
            self.policy().get(object.uri()).is_none() && !resolves.any(|key| self.items.is_answered(key))
        };
        let objects = roots.iter().flat_map(|root| start.subtree(root));
        let objects = objects.filter(is_unknown).map(|object| ManagedObject {
            // Each object names its parent. A list could name objects that are left out.
            children: Vec::new(),
            ..object.to_object()
        });
        let objects: Vec<_> = objects.collect();
        if !self.has_room(
            Store::Policy,
            objects.iter(),
            std::iter::empty(),
            std::iter::empty(),
        ) {
            return warn!(
                "{}: the start policy was not used: it exceeds the limit of objects",
                key.about()
            );
        }
        let uris: Vec<Uri> = objects.iter().map(|object| object.uri.clone()).collect();
        match self.trees[Store::Policy].merge(objects) {
            Ok(changes) => {
                self.items.start_objects.extend(uris);
                self.emit_changes(Store::Policy, &changes);
            }
            Err(error) => warn!("{}: the start policy was not used: {error}", key.about()),
        }
        for root in &roots {
            // A resolve by identifier covers them as if a server had sent them.
            if self.items.start_objects.contains(root) {
                self.items.add_root(key, root);
            }
        }
    }

    /// Carries out all updates of a request, or none.
    pub(super) fn updated(
        &mut self,
        what: Store,
        updates: Vec<Update>,
        now: Instant,
    ) -> Result<(), Box<ErrorResponse>> {
        let replace = || updates.iter().flat_map(|update| &update.replace);
        let merge = || {
            updates
                .iter()
                .flat_map(|update| update.merge_children.iter().flatten())
        };
        let objects = || replace().chain(merge());
        let deleted = updates.iter().flat_map(|update| &update.delete);
        let deleted = deleted.filter(|deletion| is_meant(self.tree(what), deletion));
        if !self.has_room(what, objects(), replace(), deleted.map(|deletion| &deletion.uri)) {
            return Err(ErrorResponse::error("too many objects"));
        }
        // All objects are checked before the first is entered: a request counts as a whole.
        objects().try_for_each(|object| object.check().map_err(ErrorResponse::error))?;
        for update in updates {
            let meant = update.delete.into_iter();
            let meant = meant.filter(|deletion| is_meant(self.tree(what), deletion));
            let delete: Vec<Uri> = meant.map(|deletion| deletion.uri).collect();
            let merge = update.merge_children.unwrap_or_default();
            let changes = self.enter(what, &delete, update.replace, merge);
            let changes = changes.map_err(ErrorResponse::error)?;
            self.changed(what, &changes, now);
        }
        Ok(())
    }

    /// Deletes objects, and adds those of a server's objects that a resolve covers.
    fn enter(
        &mut self,
        what: Store,
        delete: &[Uri],
        replace: Vec<ManagedObject>,
        merge: Vec<ManagedObject>,
    ) -> Result<Changes, ModelError> {
        let replace = self.wanted(what, replace);
        let merge = self.wanted(what, merge);
        if what == Store::Policy && !self.items.start_objects.is_empty() {
            for object in replace.iter().chain(&merge) {
                self.items.start_objects.remove(&object.uri);
            }
        }
        let items = &self.items;
        self.trees[what].update_sparing(delete, replace, merge, |uri| items.is_start(what, uri))
    }

    /// Resolves the policies to which the objects of a policy refer.
    pub(super) fn follow(&mut self, key: &Key, now: Instant) {
        let keys = self.references_of(key);
        self.follow_all(keys, now);
    }

    /// Removes the resolves that have no reference and to which no followed policy refers, and the
    /// objects that only these resolves cover.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.sweep = None;
        let mut reached: HashSet<Key> = HashSet::new();
        let following = self.items.iter().filter(|(_, item)| item.following > 0);
        // Searched from the followed policies on, like a tracing garbage collector: with counters,
        // policies that refer to each other in a circle would never be removed.
        let mut stack: Vec<Key> = following.map(|(key, _)| key.clone()).collect();
        while let Some(key) = stack.pop() {
            for key in self.references_of(&key) {
                if self.items.get(&key).is_some() && reached.insert(key.clone()) {
                    stack.push(key);
                }
            }
        }
        let mut unwanted = Vec::new();
        let keys: Vec<Key> = self.items.iter().map(|(key, _)| key.clone()).collect();
        self.followed = 0;
        for key in keys.into_iter().filter(|key| matches!(key, Key::Resolve(..))) {
            let Some(item) = self.items.get_mut(&key) else {
                continue;
            };
            item.followed = reached.contains(&key);
            match (item.references, item.followed) {
                (0, false) => unwanted.push(key),
                (0, true) => self.followed += 1,
                _ => {}
            }
        }
        for key in unwanted {
            self.unresolve(&key, now);
        }
        if self.follow_limited && self.followed < self.settings.limits.followed {
            // Policies that the limit has refused may be resolved now.
            self.follow_limited = false;
            let follows = self.items.iter().filter(|(_, item)| item.follows());
            let keys: Vec<Key> = follows.map(|(key, _)| key.clone()).collect();
            for key in keys {
                self.follow(&key, now);
            }
        }
    }

    /// Removes a resolve, and the objects that no other resolve covers.
    fn unresolve(&mut self, key: &Key, now: Instant) {
        let Key::Resolve(what, ..) = key else {
            return;
        };
        let to = self.pool.ready(&key.role());
        self.items.take_back(key, to, &mut self.actions);
        let Some(item) = self.items.drop(key) else {
            return;
        };
        let roots: Vec<Uri> = item.roots(key).cloned().collect();
        self.prune(*what, &roots, now);
    }

    /// Removes the objects at and below these URIs that no resolve needs.
    fn prune(&mut self, what: Store, roots: &[Uri], now: Instant) {
        let items = &self.items;
        let changes = self.trees[what].delete_sparing(roots, |_, uri| items.needs(what, uri));
        self.changed(what, &changes, now);
    }

    /// Drops the objects that no resolve covers. A resolve by identifier covers the objects with the
    /// identifier and everything below them.
    fn wanted(&mut self, what: Store, objects: Vec<ManagedObject>) -> Vec<ManagedObject> {
        if self.items.has_idents(what) {
            for object in &objects {
                for ident in self.tree(what).idents_of(object) {
                    for key in self.items.by_ident(what, &ident, &object.subject) {
                        self.items.add_root(&key, &object.uri);
                    }
                }
            }
        }
        // Keeping all objects would let a server fill the memory.
        let all = objects.len();
        let items = &self.items;
        let is_covered = |object: &ManagedObject| items.resolves_of(what, &object.uri).next().is_some();
        let wanted: Vec<_> = objects.into_iter().filter(is_covered).collect();
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
        if self.items.has_idents(what) {
            self.remove_lost_roots(what, changes, now);
        }
    }

    /// Removes changed objects from the resolves by identifier whose identifier they had and have no
    /// more. Without this, a server could add objects to a resolve without end.
    fn remove_lost_roots(&mut self, what: Store, changes: &Changes, now: Instant) {
        let tree = self.tree(what);
        let mut lost: Vec<(Key, Uri)> = Vec::new();
        for change in changes {
            let Some(before) = &change.before else {
                continue;
            };
            // Compared with the object before, because a peer may omit the parent, which is the context.
            let has_lost =
                |ident| tree.idents_of(before).contains(ident) && !tree.idents(&change.uri).contains(ident);
            let keys = self.items.with_root(what, &change.uri).filter(|key| match key {
                Key::Resolve(_, subject, Target::Ident(ident)) => {
                    change.kind == ChangeKind::Deleted || change.subject != *subject || has_lost(ident)
                }
                _ => false,
            });
            lost.extend(keys.map(|key| (key.clone(), change.uri.clone())));
        }
        if lost.is_empty() {
            return;
        }
        for (key, root) in &lost {
            self.items.remove_root(key, root);
        }
        let roots: Vec<Uri> = lost.into_iter().map(|(_, root)| root).collect();
        self.prune(what, &roots, now);
    }

    fn emit_changes(&mut self, what: Store, changes: &Changes) {
        if changes.is_empty() {
            return;
        }
        if what == Store::Policy {
            let deleted = changes.iter().filter(|change| change.kind == ChangeKind::Deleted);
            for change in deleted {
                self.items.start_objects.remove(&change.uri);
            }
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
        let mut keys = Vec::new();
        for change in changes {
            let mut resolves = self.items.resolves_of(Store::Policy, &change.uri);
            let is_followed = resolves.any(|key| self.items.get(key).is_some_and(Item::follows));
            drop(resolves);
            if !is_followed {
                continue;
            }
            if change.kind != ChangeKind::Created {
                self.sweep_soon(now);
            }
            if let Some(object) = self.policy().get(&change.uri) {
                keys.extend(references(object));
            }
        }
        self.follow_all(keys, now);
    }

    fn follow_all(&mut self, keys: Vec<Key>, now: Instant) {
        // A breadth-first search through the policies that are known already.
        let mut queue = VecDeque::from(keys);
        while let Some(key) = queue.pop_front() {
            let known = self.items.get(&key).is_some();
            // The server sends the references, so their number needs a limit.
            if !known && self.followed >= self.settings.limits.followed {
                self.follow_limited = true;
                // The reference is not of one server, so there is no address.
                if let Some(more) = self.log.admit(String::new(), "followed", now) {
                    warn!(
                        "{}: not resolved: it exceeds the limit of followed policies{more}",
                        excerpt(key.about())
                    );
                }
                continue;
            }
            self.items.add(&key, now);
            let Some(item) = self.items.get_mut(&key) else {
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
                queue.extend(self.references_of(&key));
            }
        }
    }

    /// The resolves of the policies to which the objects of a resolve refer.
    fn references_of(&self, key: &Key) -> Vec<Key> {
        let (Key::Resolve(Store::Policy, ..), Some(item)) = (key, self.items.get(key)) else {
            return Vec::new();
        };
        let objects = item.roots(key).flat_map(|root| self.policy().subtree(root));
        objects.flat_map(references).collect()
    }

    /// True if the tree may take the objects within its limit, when those at `deleted` are gone, and those below the
    /// objects of `replace`, which are some of `objects`, that these do not list.
    fn has_room<'a>(
        &self,
        what: Store,
        objects: impl Iterator<Item = &'a ManagedObject> + Clone,
        replace: impl Iterator<Item = &'a ManagedObject>,
        deleted: impl Iterator<Item = &'a Uri>,
    ) -> bool {
        let (tree, most) = (self.tree(what), self.settings.limits.objects);
        let listed: usize = objects.clone().map(|object| 1 + object.children.len()).sum();
        // True for nearly every message, and needs no tables.
        if tree.entries() + listed <= most {
            return true;
        }
        let uris = objects.flat_map(|object| std::iter::once(&object.uri).chain(&object.children));
        let coming: HashSet<&Uri> = uris.collect();
        // An object that no resolve covers is dropped, and replaces nothing.
        let items = &self.items;
        let replace = replace.filter(|object| items.resolves_of(what, &object.uri).next().is_some());
        let replacement = tree.replacement(replace.cloned().collect(), |uri| items.is_start(what, uri));
        let mut gone: HashSet<&Uri> = replacement.gone().iter().collect();
        for uri in deleted {
            gone.insert(uri);
        }
        gone.retain(|uri| tree.has_entry(uri) && !coming.contains(uri));
        // Objects that replace others take no more room.
        let new = coming.iter().filter(|uri| !tree.has_entry(uri)).count();
        tree.entries() + new - gone.len() <= most
    }
}

/// False if an object of another class has taken the place of the deleted one: another server has
/// sent the new object before this one deletes the former.
fn is_meant(tree: &Tree, deletion: &Deletion) -> bool {
    let object = tree.get(&deletion.uri);
    object.is_none_or(|object| *object.subject() == deletion.subject)
}

/// The resolves of the policies to which an object refers.
fn references(object: ObjectRef<'_>) -> impl Iterator<Item = Key> {
    let data = object.properties().iter().map(|property| &property.data);
    data.flat_map(PropertyReference::all)
        .map(|to| Key::Resolve(Store::Policy, to.subject, Target::Uri(to.uri)))
}
