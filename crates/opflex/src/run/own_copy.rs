//! This server's own copy of the policy, which the core has: reading it and editing it from other
//! threads. A long read is made in pieces, between which the dispatcher handles other events.
//!
//! An edit is one call, so clients never get a part of it. A reload is compared with the policy piece by
//! piece on the thread of the caller, so the dispatcher gets only the objects that differ. If another
//! edit comes between, the dispatcher compares them.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::config::CallError;
use super::machine;
use super::server_side::{ServerEvents, call};
use crate::message::Store;
use crate::model::{Edit, ManagedObject, ObjectRef, Piece, Tree, Uri};

/// The number of attempts to read the policy at one revision.
const ATTEMPTS: u32 = 4;

/// The result of an edit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Edited {
    /// The number of objects that changed.
    pub changed: usize,
    /// The revision of policy that the edit made.
    pub revision: u64,
}

/// The present revision of policy, and the policy.
pub(super) fn copy(events: &ServerEvents) -> Result<(u64, Vec<ManagedObject>), CallError> {
    visit(events, Vec::new, Vec::push)
}

/// The policy as the text of a file, an object in each line.
pub(super) fn text(events: &ServerEvents) -> Result<Vec<u8>, CallError> {
    let add = |text: &mut Result<Vec<u8>, serde_json::Error>, object| {
        if let Ok(before) = text {
            before.extend_from_slice(if before.len() > 1 { b",\n" } else { b"\n" });
            if let Err(error) = serde_json::to_writer(before, &object) {
                *text = Err(error);
            }
        }
    };
    let (_, text) = visit(events, || Ok(b"[".to_vec()), add)?;
    let mut text = text.map_err(|error| CallError::Keep(error.into()))?;
    text.extend_from_slice(if text.len() > 1 { b"\n]\n" } else { b"]\n" });
    Ok(text)
}

/// Passes each object of the policy to `each`, parents first, and returns the revision and what was
/// made of the objects. It reads in steps, and begins again if policy changes between two of them; the
/// last of [`ATTEMPTS`] attempts reads in one step.
fn visit<T>(
    events: &ServerEvents,
    begin: impl Fn() -> T,
    mut each: impl FnMut(&mut T, ManagedObject),
) -> Result<(u64, T), CallError> {
    let (mut attempts, mut revision, mut last, mut made) = (1, None, None, begin());
    loop {
        let (after, is_whole) = (last.clone(), attempts == ATTEMPTS);
        let (is, objects, has_more) = call(events, move |core, _| {
            let mut piece = if is_whole {
                Piece::new(usize::MAX, usize::MAX)
            } else {
                Piece::of_a_call()
            };
            let objects = core.page(Store::Policy, Uri::root(), after, &mut piece);
            let objects: Vec<_> = objects.iter().map(ObjectRef::to_object).collect();
            (core.policy_revision(), objects, piece.is_full())
        })?;
        if revision.is_some_and(|before| before != is) {
            (attempts, revision, last, made) = (attempts + 1, None, None, begin());
            continue;
        }
        revision = Some(is);
        last = objects.last().map(|object| object.uri.clone()).or(last);
        objects.into_iter().for_each(|object| each(&mut made, object));
        if !has_more {
            return Ok((is, made));
        }
    }
}

/// Makes an edit. With `at`, it fails unless policy has this revision.
pub(super) fn edit(events: &ServerEvents, edit: Edit, at: Option<u64>) -> Result<Edited, CallError> {
    match edit {
        Edit::Reload(objects) => reload(events, objects, at, None),
        edit => change(events, at, None, move |_| edit),
    }
}

/// Replaces all policy by these objects. With `at`, it fails unless policy has this revision. With
/// `then`, policy has that revision afterwards.
pub(super) fn reload(
    events: &ServerEvents,
    objects: Vec<ManagedObject>,
    at: Option<u64>,
    then: Option<u64>,
) -> Result<Edited, CallError> {
    let (compared, wanted, delete, merge) = difference(events, objects)?;
    change(events, at, then, move |is| {
        if is == compared {
            Edit::Update(delete, merge)
        } else {
            // Another edit came between.
            Edit::Reload(wanted.to_objects())
        }
    })
}

/// Makes, in one call, the edit that `edit` returns for the present revision.
fn change(
    events: &ServerEvents,
    at: Option<u64>,
    then: Option<u64>,
    edit: impl FnOnce(u64) -> Edit + Send + 'static,
) -> Result<Edited, CallError> {
    machine::call(events, move |machine, now, _| {
        let side = &mut machine.side;
        let is = side.core.policy_revision();
        if let Some(wanted) = at.filter(|wanted| *wanted != is) {
            return Err(CallError::Revision { wanted, is });
        }
        let changed = side.edit(edit(is), now)?.len();
        if let Some(revision) = then {
            side.core.begin_at_revision(revision);
        }
        let revision = side.core.policy_revision();
        Ok(Edited { changed, revision })
    })?
}

/// Compares the present policy with a wanted one, piece by piece: the revision of the present one, the
/// wanted one, the objects to delete, and then the objects to merge, parents first. Policy that does not
/// fit the model is refused.
fn difference(
    events: &ServerEvents,
    objects: Vec<ManagedObject>,
) -> Result<(u64, Tree, Vec<Uri>, Vec<ManagedObject>), CallError> {
    let schema = call(events, |core, _| core.policy().schema().cloned())?;
    let mut wanted = schema.map_or_else(Tree::new, Tree::with_schema);
    wanted.merge(objects)?;
    let (revision, comparison) = visit(
        events,
        || Comparison::new(&wanted),
        |comparison, object| comparison.add(&object),
    )?;
    let (delete, merge) = comparison.finish();
    Ok((revision, wanted, delete, merge))
}

/// The comparison of the present policy, of which each object is added, with a wanted one.
struct Comparison<'a> {
    wanted: &'a Tree,
    delete: Vec<Uri>,
    /// The present objects, each with whether it is as wanted.
    present: HashMap<Uri, bool>,
    /// Children that their parents announce and are not wanted.
    announced: Vec<Uri>,
}

impl<'a> Comparison<'a> {
    fn new(wanted: &'a Tree) -> Self {
        Self {
            wanted,
            delete: Vec::new(),
            present: HashMap::new(),
            announced: Vec::new(),
        }
    }

    /// Adds an object of the present policy.
    fn add(&mut self, object: &ManagedObject) {
        let new = self.wanted.get(&object.uri);
        let is_wanted = new.is_some_and(|new| new.to_object() == *object);
        self.present.insert(object.uri.clone(), is_wanted);
        let Some(new) = new else {
            return self.delete.push(object.uri.clone());
        };
        // A merge without a parent keeps the former parent, so the object is deleted first.
        if object.parent_uri.is_some() && new.parent_uri().is_none() {
            self.delete.push(object.uri.clone());
        }
        if !is_wanted {
            let stay: HashSet<&Uri> = new.children().collect();
            let lost = object.children.iter().filter(|child| !stay.contains(child));
            self.announced.extend(lost.cloned());
        }
    }

    /// The objects to delete and to merge, once every object of the present policy was added.
    fn finish(self) -> (Vec<Uri>, Vec<ManagedObject>) {
        let Self {
            present, mut delete, ..
        } = self;
        // Announced children have no object, so no object was compared with them.
        let announced = self.announced.into_iter();
        delete.extend(announced.filter(|child| !present.contains_key(child)));
        let deleted: HashSet<&str> = delete.iter().map(Uri::as_str).collect();
        // Deleting an object also deletes everything below it, which has to be merged again.
        let is_deleted = |uri: &Uri| {
            !deleted.is_empty()
                && (deleted.contains(uri.as_str()) || uri.prefixes().any(|above| deleted.contains(above)))
        };
        let objects = self.wanted.iter();
        let differing =
            objects.filter(|object| is_deleted(object.uri()) || present.get(object.uri()) != Some(&true));
        let merge = differing.map(|object| object.to_object()).collect();
        (delete, merge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(uri: &str, value: u8) -> ManagedObject {
        ManagedObject::new("a", uri.parse().unwrap()).with("value", value)
    }

    fn tree(objects: &[ManagedObject]) -> Tree {
        let mut tree = Tree::new();
        tree.merge(objects.to_vec()).unwrap();
        tree
    }

    #[test]
    fn the_difference_turns_one_policy_into_the_other() {
        let uri = |text: &str| -> Uri { text.parse().unwrap() };
        let mut announcing = object("/l/", 0);
        announcing.children = vec![uri("/l/later/")];
        let before = [
            object("/a/", 0),
            object("/a/b/", 1),
            object("/c/", 2),
            object("/c/d/", 3),
            object("/e/", 4),
            object("/p/", 0),
            object("/p/q/", 0),
            announcing,
        ];
        for after in [
            before.to_vec(),
            Vec::new(),
            // Parents of objects that stay are removed, and an object is added below a parent
            // that is removed.
            vec![object("/a/b/", 1), object("/c/d/", 3), object("/e/f/", 5)],
            vec![
                object("/a/", 9),
                object("/c/", 2),
                object("/c/d/", 8),
                object("/l/", 0),
            ],
            vec![object("/p/q/", 0).under("a", uri("/p/")), object("/z/", 1)],
        ] {
            let mut edited = tree(&before);
            let wanted = tree(&after);
            let mut comparison = Comparison::new(&wanted);
            edited
                .to_objects()
                .iter()
                .for_each(|object| comparison.add(object));
            let (delete, merge) = comparison.finish();
            if after == before {
                assert!(delete.is_empty() && merge.is_empty(), "{delete:?} {merge:?}");
            }
            edited.update(&delete, Vec::new(), merge).unwrap();
            assert_eq!(edited.to_objects(), wanted.to_objects());
        }
    }
}
