//! This server's own copy of the policy, which the core has: reading it and editing it from other
//! threads. A long read or edit is made in pieces, between which the dispatcher handles other events.
//!
//! An edit of up to [`PIECE`] objects is one call, so clients never get a part of it. A larger edit is
//! checked as a whole and then made in pieces, parents first: a call with 100,000 objects would let every
//! client wait for a second. A reload is compared with the policy piece by piece on the thread of the
//! caller, so the dispatcher gets only the objects that differ. If another edit comes between, the rest is
//! one call, in which the dispatcher compares.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::config::CallError;
use super::machine;
use super::server_side::{ServerEvents, call};
use crate::message::Store;
use crate::model::{Edit, ManagedObject, ObjectRef, Piece, Tree, Uri};

/// The maximum number of objects in one piece of an edit.
const PIECE: usize = 1000;
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
        Edit::Merge(objects) if objects.len() > PIECE => merge_in_pieces(events, objects, at),
        Edit::Reload(objects) => reload(events, objects, at),
        edit => change(events, at, None, move |_| edit),
    }
}

/// Replaces all policy by that of the cluster, which has this revision.
pub(super) fn replace(
    events: &ServerEvents,
    objects: Vec<ManagedObject>,
    revision: u64,
) -> Result<Edited, CallError> {
    let (compared, wanted, Difference { delete, merge, .. }) = difference(events, objects)?;
    // One call, because each piece would have a revision of its own, which a document may have, too.
    change(events, None, Some(revision), move |is| {
        if is == compared {
            Edit::Update(delete, merge)
        } else {
            // Another edit came between.
            Edit::Reload(wanted.to_objects())
        }
    })
}

fn merge_in_pieces(
    events: &ServerEvents,
    mut objects: Vec<ManagedObject>,
    at: Option<u64>,
) -> Result<Edited, CallError> {
    objects.iter().try_for_each(ManagedObject::check)?;
    if call(events, |core, _| core.policy().schema().is_some())? {
        objects = call(events, move |core, _| {
            core.policy().check_all(&objects).map(|()| objects)
        })??;
    }
    // So that the parent of each object is in the same or in an earlier piece.
    objects.sort_by(|a, b| a.uri.cmp(&b.uri));
    in_pieces(events, at, Vec::new(), objects, Edit::Merge)
}

/// Deletes objects, and then merges checked and sorted objects in pieces. With `at`, it fails unless
/// policy has this revision. If a later piece is refused, because another edit came between or because
/// the model allows only the whole, `whole` makes one edit of the objects that are left.
fn in_pieces(
    events: &ServerEvents,
    at: Option<u64>,
    delete: Vec<Uri>,
    objects: Vec<ManagedObject>,
    whole: impl FnOnce(Vec<ManagedObject>) -> Edit + Send + 'static,
) -> Result<Edited, CallError> {
    let mut objects = objects.into_iter();
    let first = objects.by_ref().take(PIECE).collect();
    let mut edited = change(events, at, None, |_| Edit::Update(delete, first))?;
    let add = |edited: &mut Edited, next: Edited| {
        edited.changed += next.changed;
        edited.revision = next.revision;
    };
    while objects.len() > 0 {
        let piece: Vec<_> = objects.by_ref().take(PIECE).collect();
        let merge = Edit::Merge(piece.clone());
        match change(events, Some(edited.revision), None, |_| merge) {
            Err(CallError::Revision { .. } | CallError::Model(_)) => {
                let left = piece.into_iter().chain(objects).collect();
                add(&mut edited, change(events, None, None, move |_| whole(left))?);
                break;
            }
            next => add(&mut edited, next?),
        }
    }
    Ok(edited)
}

fn reload(events: &ServerEvents, objects: Vec<ManagedObject>, at: Option<u64>) -> Result<Edited, CallError> {
    let (compared, wanted, difference) = difference(events, objects)?;
    let wanted = Arc::new(wanted);
    let whole = {
        let wanted = Arc::clone(&wanted);
        move |_| Edit::Reload(wanted.to_objects())
    };
    // Only at the revision of the comparison, which is wrong for any other one.
    let revision = Some(at.unwrap_or(compared));
    let Difference { delete, merge, .. } = difference;
    let edited = if difference.deletes_what_stays {
        // Between two pieces, clients would lose objects that stay.
        change(events, revision, None, |_| Edit::Update(delete, merge))
    } else {
        in_pieces(events, revision, delete, merge, whole)
    };
    match edited {
        // Another edit came between. No edit can come between in one call.
        Err(CallError::Revision { .. }) if at.is_none() => {
            change(events, None, None, move |_| Edit::Reload(wanted.to_objects()))
        }
        result => result,
    }
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
/// wanted one, and the difference. Policy that does not fit the model is refused.
fn difference(
    events: &ServerEvents,
    objects: Vec<ManagedObject>,
) -> Result<(u64, Tree, Difference), CallError> {
    let schema = call(events, |core, _| core.policy().schema().cloned())?;
    let mut wanted = schema.map_or_else(Tree::new, Tree::with_schema);
    wanted.merge(objects)?;
    let (revision, comparison) = visit(
        events,
        || Comparison::new(&wanted),
        |comparison, object| comparison.add(&object),
    )?;
    let difference = comparison.finish();
    Ok((revision, wanted, difference))
}

/// What turns the present policy into another one: the objects to delete, and then the objects to merge,
/// parents first.
struct Difference {
    delete: Vec<Uri>,
    merge: Vec<ManagedObject>,
    /// True if the deletion removes objects that are merged again.
    deletes_what_stays: bool,
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

    /// The difference, once every object of the present policy was added.
    fn finish(self) -> Difference {
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
        let merge: Vec<_> = differing.map(|object| object.to_object()).collect();
        let is_restored =
            |object: &ManagedObject| is_deleted(&object.uri) && present.contains_key(&object.uri);
        let deletes_what_stays = merge.iter().any(is_restored);
        Difference {
            delete,
            merge,
            deletes_what_stays,
        }
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
            let Difference {
                delete,
                merge,
                deletes_what_stays,
            } = comparison.finish();
            let stays = |uri: &Uri| wanted.get(uri).is_some();
            let removed = delete.iter().flat_map(|uri| edited.subtree(uri));
            assert_eq!(
                deletes_what_stays,
                removed.into_iter().any(|object| stays(object.uri()))
            );
            if after == before {
                assert!(delete.is_empty() && merge.is_empty(), "{delete:?} {merge:?}");
            }
            edited.update(&delete, Vec::new(), merge).unwrap();
            assert_eq!(edited.to_objects(), wanted.to_objects());
        }
    }
}
