//! Copying a large tree in steps while it changes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use super::super::{ManagedObject, Uri};
use super::{Changes, Cursor, ObjectRef, Tree};

/// A copy of a tree as it was when the walk began, made some objects at a time
/// while the tree changes in between.
///
/// Each edit of the tree must be passed to [`changed`](Self::changed). The walk then
/// keeps the earlier state of the objects that it has not copied yet.
///
/// ```
/// use ssntp_opflex::model::{ManagedObject, Tree, Walk};
///
/// let object = |uri: &str| Ok::<_, Box<dyn std::error::Error>>(ManagedObject::new("a", uri.parse()?));
/// let mut tree = Tree::new();
/// tree.merge(vec![object("/a/1/")?, object("/a/2/")?])?;
/// let mut walk = Walk::everything();
/// assert_eq!(walk.step(&tree, 1).map(|objects| objects.len()), Some(1));
/// let changes = tree.merge(vec![object("/a/3/")?])?;
/// walk.changed(&tree, &changes);
/// let changes = tree.delete(&["/a/2/".parse()?]);
/// walk.changed(&tree, &changes);
/// assert_eq!(walk.step(&tree, 9), Some(vec![object("/a/2/")?]));
/// assert_eq!(walk.step(&tree, 9), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Walk {
    cursor: Cursor,
    /// The state at the beginning of objects that have changed since then and are not
    /// copied yet; `None` for an object that was not there.
    before: BTreeMap<Uri, Option<ManagedObject>>,
}

impl Walk {
    /// Begins a walk over a whole tree.
    pub fn everything() -> Self {
        Self::below(Uri::root())
    }

    /// Begins a walk over the objects at and below a URI, also if there is none at the
    /// URI itself. The root stands for the whole tree.
    pub fn below(uri: Uri) -> Self {
        Self {
            cursor: Cursor::below(uri),
            before: BTreeMap::new(),
        }
    }

    /// Takes note of an edit. Call it after each edit of the tree.
    pub fn changed(&mut self, tree: &Tree, changes: &Changes) {
        let before: HashMap<&Uri, &ManagedObject> = changes
            .iter()
            .filter_map(|change| Some((&change.uri, change.before.as_deref()?)))
            .collect();
        // The tree adds these members when it copies an object; a changed object has lost
        // its parent's class from there.
        let whole = |object: &ManagedObject| {
            let mut object = object.clone();
            if let Some(parent) = &object.parent_uri {
                let class = before.get(parent).map(|parent| &parent.subject);
                let class = class.or_else(|| tree.objects.get(parent).map(|parent| &parent.subject));
                object.parent_subject = object.parent_subject.or_else(|| class.cloned());
                object
                    .parent_relation
                    .get_or_insert_with(|| object.subject.clone());
            }
            object
        };
        for change in changes {
            // What the walk has passed was copied before the change.
            if self.cursor.is_ahead(&change.uri) {
                self.before
                    .entry(change.uri.clone())
                    .or_insert_with(|| change.before.as_deref().map(whole));
            }
        }
    }

    /// The next objects, parents before children, at most `most`. The list may be empty
    /// although more are to come, because objects that are new are skipped. `None` at
    /// the end.
    pub fn step(&mut self, tree: &Tree, most: usize) -> Option<Vec<ManagedObject>> {
        // A step of nothing would never come to the end.
        let most = most.max(1);
        let ahead = self.cursor.ahead(tree).take(most);
        let mut there = ahead.map(|object| object.uri().clone()).peekable();
        let mut objects = Vec::new();
        let mut seen = 0;
        while seen < most {
            let was = self.before.first_key_value().map(|(uri, _)| uri.clone());
            let uri = match (there.peek(), was) {
                (Some(here), Some(was)) => here.clone().min(was),
                (Some(here), None) => here.clone(),
                (None, Some(was)) => was,
                (None, None) => break,
            };
            seen += 1;
            there.next_if_eq(&uri);
            let object = match self.before.remove(&uri) {
                Some(before) => before,
                None => tree.get(&uri).map(|object| object.to_object()),
            };
            if let Some(mut object) = object {
                object.children = self.children(tree, &uri);
                objects.push(object);
            }
            self.cursor.pass(uri);
        }
        (seen > 0).then_some(objects)
    }

    /// The children that an object had at the beginning. Children come after their parent
    /// in the order, so the walk has noted each one that was added or removed.
    fn children(&self, tree: &Tree, uri: &Uri) -> Vec<Uri> {
        let now = tree
            .get(uri)
            .into_iter()
            .flat_map(|object: ObjectRef<'_>| object.children());
        if self.before.is_empty() {
            return now.cloned().collect();
        }
        let was_child = |object: &ManagedObject| object.parent_uri.as_ref() == Some(uri);
        let still = now.filter(|child| match self.before.get(*child) {
            Some(before) => before.as_ref().is_some_and(was_child),
            None => true,
        });
        let mut children: Vec<Uri> = still.cloned().collect();
        let below = self
            .before
            .range::<str, _>((Bound::Excluded(uri.as_str()), Bound::Unbounded));
        let below = below.take_while(|(child, _)| child.as_str().starts_with(uri.path()));
        let gone = below.filter(|(_, before)| before.as_ref().is_some_and(was_child));
        children.extend(gone.map(|(child, _)| child.clone()));
        children.sort_unstable();
        children.dedup();
        children
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One of a few objects, below one of a few others.
    fn object(number: u8, value: u8) -> ManagedObject {
        let uri = |number: u8| -> Uri {
            let segments = [number / 16 % 4, number / 4 % 4, number % 4].map(|n| format!("{n}/"));
            let depth = usize::from(number % 3) + 1;
            format!("/{}", segments[..depth].concat()).parse().unwrap()
        };
        ManagedObject::new("a", uri(number)).with("value", value)
    }

    proptest! {
        #[test]
        fn a_walk_finds_the_tree_as_it_was_when_it_began(
            begin in prop::collection::vec((any::<u8>(), any::<u8>()), 0..40),
            edits in prop::collection::vec((0u8..3, any::<u8>(), any::<u8>()), 0..40),
            most in 1usize..8,
            root in prop::option::of(any::<u8>()),
        ) {
            let mut tree = Tree::new();
            tree.merge(begin.into_iter().map(|(number, value)| object(number, value)).collect()).unwrap();
            let mut walk = match &root {
                Some(number) => Walk::below(object(*number, 0).uri),
                None => Walk::everything(),
            };
            let covers = |object: &ManagedObject| {
                root.is_none_or(|number| self::object(number, 0).uri.covers(&object.uri))
            };
            let expected: Vec<_> = tree.to_objects().into_iter().filter(covers).collect();
            let mut found = Vec::new();
            let mut edits = edits.into_iter();
            while let Some(objects) = walk.step(&tree, most) {
                prop_assert!(objects.len() <= most);
                found.extend(objects);
                for (kind, number, value) in edits.by_ref().take(3) {
                    let object = object(number, value);
                    let changes = match kind {
                        0 => tree.delete(&[object.uri]),
                        1 => tree.merge(vec![object]).unwrap(),
                        _ => tree.replace(vec![object]).unwrap(),
                    };
                    walk.changed(&tree, &changes);
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}
