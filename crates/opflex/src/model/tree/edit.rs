//! Edits of the tree.
//!
//! Every edit is checked as a whole before it begins. It is carried out completely or not at all.

use std::collections::{HashMap, HashSet};

use super::super::error::ModelError;
use super::super::managed_object::ManagedObject;
use super::super::name::Name;
use super::super::uri::Uri;
use super::changes::{Before, Changes, same};
use super::store::Tree;
use crate::one_or_many::{self, OneOrMany};

/// A change of a tree.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// Add objects, or replace those with the same URIs. Children that they do not list stay.
    /// See [`Tree::merge`].
    Merge(Vec<ManagedObject>),
    /// Add objects, or replace those with the same URIs together with everything
    /// below them. See [`Tree::replace`].
    Replace(Vec<ManagedObject>),
    /// Replace the whole tree by these objects. See [`Tree::replace_all`].
    Reload(Vec<ManagedObject>),
    /// Remove objects with everything below them. See [`Tree::delete`].
    Delete(Vec<Uri>),
    /// Remove objects with everything below them, then merge others. An object that is removed and
    /// merged again unchanged does not count as changed. See [`Tree::update`].
    Update(Vec<Uri>, Vec<ManagedObject>),
}

/// Objects that replace others together with everything below them.
#[derive(Debug)]
pub(crate) struct Replacement {
    objects: Vec<ManagedObject>,
    /// The former children of the objects that no object lists any more.
    unlisted: Vec<Uri>,
    gone: HashSet<Uri>,
}

impl Replacement {
    /// The objects and the announced children that it removes.
    pub(crate) fn gone(&self) -> &HashSet<Uri> {
        &self.gone
    }
}

impl Tree {
    /// Carries out an edit. If it fails, the tree is unchanged.
    pub fn edit(&mut self, edit: Edit) -> Result<Changes, ModelError> {
        match edit {
            Edit::Merge(objects) => self.merge(objects),
            Edit::Replace(objects) => self.replace(objects),
            Edit::Reload(objects) => self.replace_all(objects),
            Edit::Delete(uris) => Ok(self.delete(&uris)),
            Edit::Update(delete, merge) => self.update(&delete, Vec::new(), merge),
        }
    }

    /// Adds objects, or replaces those with the same URIs. Their children are added to the present
    /// children (draft 4.2.6, `merge_children`).
    pub fn merge(&mut self, objects: Vec<ManagedObject>) -> Result<Changes, ModelError> {
        self.update(&[], Vec::new(), objects)
    }

    /// Adds objects, or replaces those with the same URIs together with everything below them (draft
    /// 4.2.6, `replace`). Their former children are deleted with everything below them, unless these
    /// objects contain or list them. An object also lists a child that names it as its parent.
    pub fn replace(&mut self, objects: Vec<ManagedObject>) -> Result<Changes, ModelError> {
        self.update(&[], objects, Vec::new())
    }

    /// As [`replace`](Self::replace), but with objects that are checked already.
    pub(crate) fn replace_checked(&mut self, replacement: Replacement) -> Changes {
        let mut before = Before::default();
        self.put_whole(replacement, &mut before);
        before.compare(self)
    }

    /// Deletes objects and everything below them. URIs without an object are ignored.
    pub fn delete(&mut self, uris: &[Uri]) -> Changes {
        self.delete_sparing(uris, |_, _| false)
    }

    /// Deletes objects and everything below them, except the objects for which `spare` returns
    /// true. `spare` is called with the URI of the list and the URI of the object.
    pub(crate) fn delete_sparing(&mut self, uris: &[Uri], spare: impl Fn(&Uri, &Uri) -> bool) -> Changes {
        let mut before = Before::default();
        for top in uris {
            self.remove_with_all_below(top, |uri| spare(top, uri), &mut before);
        }
        before.compare(self)
    }

    /// Deletes these objects, and nothing below them.
    pub(crate) fn delete_alone(&mut self, uris: &[Uri]) -> Changes {
        let mut before = Before::default();
        for uri in uris {
            self.remove(uri, &mut before);
            self.unannounce(uri, &mut before);
        }
        before.compare(self)
    }

    /// Carries out a whole update as one edit. Deletions come first, so that an
    /// object that the update deletes and sends again is kept.
    pub fn update(
        &mut self,
        delete: &[Uri],
        replace: Vec<ManagedObject>,
        merge: Vec<ManagedObject>,
    ) -> Result<Changes, ModelError> {
        self.update_sparing(delete, replace, merge, |_| false)
    }

    /// As [`update`](Self::update), but objects for which `spare` returns true stay below replaced
    /// objects.
    pub(crate) fn update_sparing(
        &mut self,
        delete: &[Uri],
        replace: Vec<ManagedObject>,
        merge: Vec<ManagedObject>,
        spare: impl Fn(&Uri) -> bool,
    ) -> Result<Changes, ModelError> {
        self.check_all(&replace)?;
        self.check_all(&merge)?;
        let mut before = Before::default();
        for uri in delete {
            self.remove_with_all_below(uri, |_| false, &mut before);
        }
        self.put_whole(self.replacement(replace, spare), &mut before);
        for object in self.with_parents(merge, |_| true) {
            self.put(object, &mut before);
        }
        Ok(before.compare(self))
    }

    /// What a replacement by these objects removes. It keeps the objects for which `spare` returns
    /// true, and they get no children by it. It is of use until the next edit.
    pub(crate) fn replacement(
        &self,
        objects: Vec<ManagedObject>,
        spare: impl Fn(&Uri) -> bool,
    ) -> Replacement {
        self.replacement_among(objects, spare, |uri| self.covered(uri).cloned().collect())
    }

    /// As [`replacement`](Self::replacement). `covered` returns the objects at and below a URI, without some of
    /// those that `spare` keeps.
    pub(crate) fn replacement_among(
        &self,
        objects: Vec<ManagedObject>,
        spare: impl Fn(&Uri) -> bool,
        covered: impl Fn(&Uri) -> Vec<Uri>,
    ) -> Replacement {
        let objects = with_all_children(self.with_parents(objects, |uri| !spare(uri)));
        let mut unlisted: Vec<Uri> = Vec::new();
        for object in &objects {
            if let Some(there) = self.children.get(&object.uri) {
                let listed: HashSet<&Uri> = object.children.iter().collect();
                unlisted.extend(there.iter().filter(|child| !listed.contains(child)).cloned());
            }
        }
        let mut kept: HashSet<Uri> = HashSet::new();
        if !unlisted.is_empty() {
            kept.extend(objects.iter().flat_map(|object| object.children.iter().cloned()));
            kept.extend(objects.iter().map(|object| object.uri.clone()));
        }
        unlisted.retain(|child| !kept.contains(child));
        let mut gone: HashSet<Uri> = HashSet::new();
        for child in &unlisted {
            let is_kept = |uri: &Uri| {
                let mut below = uri.prefixes().filter(|above| above.len() > child.as_str().len());
                kept.contains(uri) || below.any(|above| kept.contains(above))
            };
            let covered = covered(child).into_iter();
            gone.extend(covered.filter(|uri| !spare(uri) && !is_kept(uri)));
        }
        let announced = unlisted
            .iter()
            .filter(|child| self.announced.contains_key(*child));
        gone.extend(announced.cloned());
        Replacement {
            objects,
            unlisted,
            gone,
        }
    }

    /// Replaces objects with everything below them.
    fn put_whole(&mut self, replacement: Replacement, before: &mut Before) {
        for object in replacement.objects {
            self.put(object, before);
        }
        // Deleted after all objects are added, because a child may have moved from one of the objects to
        // another one.
        for uri in &replacement.gone {
            self.remove(uri, before);
        }
        for child in &replacement.unlisted {
            self.unannounce(child, before);
        }
    }

    /// Replaces all objects of the tree.
    pub fn replace_all(&mut self, objects: Vec<ManagedObject>) -> Result<Changes, ModelError> {
        // Built separately, so that a bad object leaves this tree unchanged.
        let mut fresh = Self {
            schema: self.schema.clone(),
            ..Self::default()
        };
        fresh.merge(objects)?;
        let old = std::mem::replace(self, fresh);
        let mut before = Before::default();
        for (uri, object) in old.objects {
            before.record(&uri, Some(object));
        }
        for uri in self.objects.keys() {
            before.record(uri, None);
        }
        for (child, by) in old.announced {
            before.record_announced(&child, Some(by));
        }
        for child in self.announced.keys() {
            before.record_announced(child, None);
        }
        Ok(before.compare(self))
    }

    /// Checks objects that one edit will add. With a model file, each is checked
    /// against the parent that it will have after the edit, if the edit deletes no object.
    pub fn check_all<'a>(&'a self, objects: &'a [ManagedObject]) -> Result<(), ModelError> {
        objects.iter().try_for_each(ManagedObject::check)?;
        let Some(schema) = &self.schema else {
            return Ok(());
        };
        let coming: HashMap<&str, &Name> = objects
            .iter()
            .map(|object| (object.uri.as_str(), &object.subject))
            .collect();
        let class = |uri: &str| {
            let known = || self.objects.get(uri).map(|known| &known.subject);
            coming.get(uri).copied().or_else(known)
        };
        // If several parents are given for an object, the last one counts.
        let mut parents: HashMap<&Uri, &Uri> = HashMap::new();
        for object in objects {
            parents.extend(object.parent_uri.as_ref().map(|parent| (&object.uri, parent)));
            parents.extend(object.children.iter().map(|child| (child, &object.uri)));
        }
        for object in objects {
            let known = || self.objects.get(&object.uri)?.parent_uri.as_ref();
            let given = parents.get(&object.uri).copied();
            let parent = given.or_else(known).or_else(|| self.announced.get(&object.uri));
            let parent_class = match parent {
                Some(parent) => class(parent.as_str()).or(object.parent_subject.as_ref()),
                None => {
                    let above: Vec<&str> = object.uri.prefixes().collect();
                    above.into_iter().rev().find_map(class)
                }
            };
            schema.check_below(object, parent_class)?;
        }
        for (child, parent) in parents {
            if !coming.contains_key(child.as_str())
                && let Some(known) = self.objects.get(child)
            {
                schema.check_place(child, &known.subject, class(parent.as_str()))?;
            }
        }
        Ok(())
    }

    /// Sets the parent of objects that name no parent and that no object lists: the nearest object
    /// above them, by URI, in the tree or in the list, if it may be one.
    fn with_parents(
        &self,
        mut objects: Vec<ManagedObject>,
        may_be_parent: impl Fn(&Uri) -> bool,
    ) -> Vec<ManagedObject> {
        let has_no_parent = |object: &ManagedObject| {
            let known = self
                .objects
                .get(&object.uri)
                .is_some_and(|known| known.parent_uri.is_some());
            object.parent_uri.is_none() && !known && !self.announced.contains_key(&object.uri)
        };
        if !objects.iter().any(has_no_parent) {
            return objects;
        }
        let listed: HashSet<Uri> = objects
            .iter()
            .flat_map(|object| object.children.iter().cloned())
            .collect();
        let coming: HashSet<Uri> = objects.iter().map(|object| object.uri.clone()).collect();
        for object in &mut objects {
            if has_no_parent(object) && !listed.contains(&object.uri) {
                let above: Vec<&str> = object.uri.prefixes().collect();
                let there = |text: &&str| coming.contains(*text) || self.objects.contains_key(*text);
                let nearest = above.into_iter().rev().find(there);
                let nearest = nearest.and_then(|text| text.parse().ok());
                object.parent_uri = nearest.filter(&may_be_parent);
            }
        }
        objects
    }

    /// Adds or replaces one object. Children that it does not list stay.
    fn put(&mut self, mut object: ManagedObject, before: &mut Before) {
        share_names(&mut self.names, &mut object);
        let uri = self.share_uri(&mut object);
        let children = std::mem::take(&mut object.children);
        // A parsed list has spare capacity, which an object in the tree never uses.
        object.properties.shrink_to_fit();

        // An object that names no parent keeps its former parent, because libopflex omits the members
        // when it sends an object again.
        let known = self.objects.get(&uri);
        if object.parent_uri.is_none()
            && let Some(known) = known.filter(|known| known.parent_uri.is_some())
        {
            object.parent_uri.clone_from(&known.parent_uri);
            object.parent_subject.clone_from(&known.parent_subject);
            object.parent_relation.clone_from(&known.parent_relation);
        }
        if object.parent_uri.is_none() {
            object.parent_uri = self.announced.get(&uri).cloned();
        }
        let parent = object.parent_uri.clone();
        // An equal object does not count as changed, so a repeated edit sends no updates.
        if known.is_none_or(|known| !same(known, &object)) {
            self.set_content(object, before);
        }
        if let Some(parent) = &parent {
            one_or_many::add(&mut self.children, parent.clone(), uri.clone());
        }

        for child in children {
            self.adopt(child, &uri, before);
        }
    }

    /// Stores an object and updates the tables. If its parent has changed, the former parent does
    /// not list it any more.
    fn set_content(&mut self, object: ManagedObject, before: &mut Before) {
        let (uri, parent) = (object.uri.clone(), object.parent_uri.clone());
        let old = self.objects.remove(&uri);
        old.iter().for_each(|old| self.unindex(old));
        for ident in self.idents_of(&object) {
            one_or_many::add(&mut self.index, ident, uri.clone());
        }
        self.order.insert(uri.clone());
        self.objects.insert(uri.clone(), object);
        let announced_by = self.announce(&uri, None, before);
        let old_parent = announced_by.or_else(|| old.as_ref()?.parent_uri.clone());
        if old_parent != parent
            && let Some(old_parent) = old_parent
        {
            self.unlist(&uri, &old_parent);
        }
        before.record(&uri, old);
    }

    /// Links a child to the parent that lists it. A child that is not in the tree is announced, and
    /// linked when it arrives.
    fn adopt(&mut self, child: Uri, parent: &Uri, before: &mut Before) {
        one_or_many::add(&mut self.children, parent.clone(), child.clone());
        match self.objects.get(&child) {
            Some(known) if known.parent_uri.as_ref() == Some(parent) => {}
            Some(known) => {
                let mut object = known.clone();
                object.parent_uri = Some(parent.clone());
                // These members describe the former parent.
                object.parent_subject = None;
                object.parent_relation = None;
                self.set_content(object, before);
            }
            None => {
                if let Some(other) = self.announce(&child, Some(parent), before)
                    && other != *parent
                {
                    self.unlist(&child, &other);
                }
            }
        }
    }

    /// Removes an object and everything below it, except the objects for which `spare` returns true.
    fn remove_with_all_below(&mut self, uri: &Uri, spare: impl Fn(&Uri) -> bool, before: &mut Before) {
        // Collected first, because removing changes the set that is iterated.
        let gone: Vec<Uri> = self.covered(uri).filter(|uri| !spare(uri)).cloned().collect();
        for uri in gone {
            self.remove(&uri, before);
        }
        self.unannounce(uri, before);
    }

    /// Removes a URI that its parent announces, without being in the tree, from the list of its parent.
    fn unannounce(&mut self, uri: &Uri, before: &mut Before) {
        if let Some(parent) = self.announce(uri, None, before) {
            self.unlist(uri, &parent);
        }
    }

    /// Removes one object, its entry in the list of its parent, and the children that it has
    /// announced. Objects below it stay.
    fn remove(&mut self, uri: &Uri, before: &mut Before) {
        let Some(old) = self.objects.remove(uri) else {
            return;
        };
        self.order.remove(uri);
        if let Some(parent) = &old.parent_uri {
            self.unlist(uri, parent);
        }
        let children = self.children.get(uri).into_iter().flat_map(OneOrMany::iter);
        let announced: Vec<Uri> = children
            .filter(|child| self.announced.contains_key(*child))
            .cloned()
            .collect();
        for child in announced {
            self.announce(&child, None, before);
            self.unlist(&child, uri);
        }
        self.unindex(&old);
        before.record(uri, Some(old));
    }

    /// Sets the object that announces a child, and returns the former one.
    fn announce(&mut self, child: &Uri, by: Option<&Uri>, before: &mut Before) -> Option<Uri> {
        let former = match by {
            Some(by) => self.announced.insert(child.clone(), by.clone()),
            None => self.announced.remove(child),
        };
        if former.as_ref() != by {
            before.record_announced(child, former.clone());
        }
        former
    }

    /// Removes an object from the index of identifiers.
    fn unindex(&mut self, object: &ManagedObject) {
        for ident in self.idents_of(object) {
            one_or_many::remove(&mut self.index, &ident, &object.uri);
        }
    }

    fn unlist(&mut self, child: &Uri, parent: &Uri) {
        one_or_many::remove(&mut self.children, parent, child);
    }

    /// Replaces the object's URIs by the copies in the tree, which saves memory. Returns the URI of
    /// the object.
    fn share_uri(&self, object: &mut ManagedObject) -> Uri {
        if let Some((known, _)) = self.announced.get_key_value(&object.uri) {
            object.uri = known.clone();
        } else if let Some((known, _)) = self.objects.get_key_value(&object.uri) {
            object.uri = known.clone();
        }
        if let Some(parent) = &mut object.parent_uri
            && let Some((known, _)) = self.children.get_key_value(parent)
        {
            *parent = known.clone();
        }
        object.uri.clone()
    }
}

/// Replaces the names of an object by the copies that all objects share.
fn share_names(names: &mut HashSet<Name>, object: &mut ManagedObject) {
    // A model has some thousand. If a peer sends more, its objects have copies of their own.
    const MAX: usize = 16 * 1024;
    let of_properties = object.properties.iter_mut().map(|property| &mut property.name);
    let of_parent = [&mut object.parent_subject, &mut object.parent_relation];
    let all = std::iter::once(&mut object.subject).chain(of_properties);
    for name in all.chain(of_parent.into_iter().flatten()) {
        match names.get(&*name) {
            Some(known) => *name = known.clone(),
            None if names.len() < MAX => drop(names.insert(name.clone())),
            None => {}
        }
    }
}

/// Adds to each object's children the objects of the list that name it as their parent.
fn with_all_children(mut objects: Vec<ManagedObject>) -> Vec<ManagedObject> {
    let mut named: HashMap<Uri, Vec<Uri>> = HashMap::new();
    for object in &objects {
        if let Some(parent) = &object.parent_uri {
            named.entry(parent.clone()).or_default().push(object.uri.clone());
        }
    }
    for object in &mut objects {
        object
            .children
            .extend(named.get(&object.uri).into_iter().flatten().cloned());
    }
    objects
}
