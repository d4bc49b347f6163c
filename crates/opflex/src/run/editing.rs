//! Edits of policy. A large edit is made in pieces, between which the dispatcher handles other
//! events.
//!
//! ```text
//!  control connection ── put, delete, reload ──┐
//!  ServerHandle ───────────────────────────────┤ on the thread of the caller
//!                                              ▼
//!       Editing ── a Call for each piece ───────▶ dispatcher
//! ```
//!
//! An edit of up to [`PIECE`] objects is one call, so clients never get a part of it. A larger edit
//! is checked as a whole and then made in pieces, parents first. A reload is compared with a copy of
//! the policy on the thread of the caller, so the dispatcher gets only the objects that differ. If
//! another edit comes between, the reload is made in one call.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::server_side::{ServerEvents, call, copy_policy};
use super::{CallError, cluster, keeper};
use crate::model::{Edit, ManagedObject, Tree, Uri};
use ssntp_transport::dispatch;

/// The maximum number of objects in one piece of an edit.
const PIECE: usize = 1000;

/// The result of an edit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Edited {
    /// The number of objects that changed.
    pub(super) changed: usize,
    /// The revision of policy that the edit made.
    pub(super) revision: u64,
}

/// A handle by which threads edit policy.
#[derive(Clone, Debug)]
pub(super) struct Editing {
    pub(super) events: ServerEvents,
    pub(super) keeper: Option<keeper::KeeperSender>,
    /// The cluster, if several servers share the policy.
    pub(super) cluster: Option<Arc<cluster::Shared>>,
}

impl Editing {
    /// Makes an edit. Blocks until the edit is in the engine of the cluster, or else in the file that
    /// policy is kept in, if there is one. With `at`, the edit fails unless policy has this revision.
    pub(super) fn edit(&self, edit: Edit, at: Option<u64>) -> Result<Edited, CallError> {
        if dispatch::is_dispatcher() {
            return Err(CallError::OnDispatcher);
        }
        // The engine keeps the policy of a cluster. The file is only a copy.
        if let Some(cluster) = &self.cluster {
            return cluster.edit(&edit, at);
        }
        let edited = match edit {
            Edit::Merge(objects) if objects.len() > PIECE => merge_in_pieces(&self.events, objects, at),
            Edit::Reload(objects) => reload(&self.events, objects, at),
            edit => change(&self.events, at, edit),
        }?;
        // Also if nothing changed: an edit that is repeated after a failed write has to be kept, too.
        if let Some(keeper) = &self.keeper {
            keeper.wait()?;
        }
        Ok(edited)
    }
}

/// Changes this server's copy of the policy to that of the cluster, which has this revision. Returns the
/// number of changed objects. Only one thread may call it, and nothing else may edit the copy.
pub(super) fn replace_copy(
    events: &ServerEvents,
    objects: Vec<ManagedObject>,
    revision: u64,
) -> Result<usize, CallError> {
    let wanted = checked(events, objects)?;
    let (delete, merge) = difference(&copy_policy(events)?.1, &wanted);
    // One call, because each piece would have a revision of its own, which a document may have, too. The
    // length of a document has a limit, so the call is short.
    call(events, move |cx| {
        let changed = cx.edit(Edit::Update(delete, merge))?.len();
        cx.core.begin_at_revision(revision);
        Ok(changed)
    })?
}

/// The policy of a reload. A policy that does not fit the model is refused before the first change.
fn checked(events: &ServerEvents, objects: Vec<ManagedObject>) -> Result<Tree, CallError> {
    let schema = call(events, |cx| cx.core().policy().schema().cloned())?;
    let mut wanted = schema.map_or_else(Tree::new, Tree::with_schema);
    wanted.merge(objects)?;
    Ok(wanted)
}

/// Makes an edit in one call. With `at`, it fails unless policy has this revision.
fn change(events: &ServerEvents, at: Option<u64>, edit: Edit) -> Result<Edited, CallError> {
    call(events, move |cx| {
        let is = cx.core().policy_revision();
        if let Some(wanted) = at.filter(|wanted| *wanted != is) {
            return Err(CallError::Revision { wanted, is });
        }
        let changed = cx.edit(edit)?.len();
        let revision = cx.core().policy_revision();
        Ok(Edited { changed, revision })
    })?
}

fn merge_in_pieces(
    events: &ServerEvents,
    mut objects: Vec<ManagedObject>,
    at: Option<u64>,
) -> Result<Edited, CallError> {
    objects.iter().try_for_each(ManagedObject::check)?;
    if call(events, |cx| cx.core().policy().schema().is_some())? {
        objects = call(events, move |cx| {
            cx.core().policy().check_all(&objects).map(|()| objects)
        })??;
    }
    // Parents first, so that the parent of each object is in the same or in an earlier piece.
    objects.sort_by(|a, b| a.uri.cmp(&b.uri));
    in_pieces(events, at, Vec::new(), objects)
}

/// Deletes objects, and then merges checked and sorted objects in pieces. With `at`, it fails unless
/// policy has this revision.
fn in_pieces(
    events: &ServerEvents,
    at: Option<u64>,
    delete: Vec<Uri>,
    objects: Vec<ManagedObject>,
) -> Result<Edited, CallError> {
    let mut objects = objects.into_iter();
    let first = objects.by_ref().take(PIECE).collect();
    // Only the first piece is bound to the revision, because each piece makes a new one.
    let mut edited = change(events, at, Edit::Update(delete, first))?;
    loop {
        let piece: Vec<_> = objects.by_ref().take(PIECE).collect();
        if piece.is_empty() {
            return Ok(edited);
        }
        let next = change(events, None, Edit::Merge(piece))?;
        edited.changed += next.changed;
        edited.revision = next.revision;
    }
}

fn reload(events: &ServerEvents, objects: Vec<ManagedObject>, at: Option<u64>) -> Result<Edited, CallError> {
    let wanted = checked(events, objects)?;
    let (revision, present) = copy_policy(events)?;
    let (delete, merge) = difference(&present, &wanted);
    // Only at the revision of the copy, because the comparison is wrong for any other one.
    match in_pieces(events, Some(at.unwrap_or(revision)), delete, merge) {
        // Another edit came between. No edit can come between in one call.
        Err(CallError::Revision { .. }) if at.is_none() => {
            change(events, None, Edit::Reload(wanted.to_objects()))
        }
        result => result,
    }
}

/// The objects to delete, and then the objects to merge, parents first, which turn the policy
/// `present` into `wanted`.
fn difference(present: &[ManagedObject], wanted: &Tree) -> (Vec<Uri>, Vec<ManagedObject>) {
    let known: HashMap<&Uri, &ManagedObject> = present.iter().map(|object| (&object.uri, object)).collect();
    let mut delete = Vec::new();
    for object in present {
        match wanted.get(&object.uri) {
            None => delete.push(object.uri.clone()),
            Some(new) => {
                // A merge without a parent keeps the former parent, so the object is deleted first.
                if object.parent_uri.is_some() && new.parent_uri().is_none() {
                    delete.push(object.uri.clone());
                }
                // Announced children have no object, so they are compared here.
                let announced = object.children.iter().filter(|child| !known.contains_key(child));
                let stay: Vec<&Uri> = new.children().collect();
                delete.extend(announced.filter(|child| !stay.contains(child)).cloned());
            }
        }
    }
    let gone: HashSet<&str> = delete.iter().map(Uri::as_str).collect();
    // Deleting an object also deletes everything below it, which has to be merged again.
    let is_deleted = |uri: &Uri| {
        !gone.is_empty() && (gone.contains(uri.as_str()) || uri.prefixes().any(|above| gone.contains(above)))
    };
    let objects = wanted.iter().map(|object| object.to_object());
    let differs = |object: &ManagedObject| {
        is_deleted(&object.uri) || known.get(&object.uri).is_none_or(|known| **known != *object)
    };
    let merge = objects.filter(differs).collect();
    (delete, merge)
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
            let (delete, merge) = difference(&edited.to_objects(), &wanted);
            if after == before {
                assert!(delete.is_empty() && merge.is_empty(), "{delete:?} {merge:?}");
            }
            edited.update(&delete, Vec::new(), merge).unwrap();
            assert_eq!(edited.to_objects(), wanted.to_objects());
        }
    }
}
