//! Reading a tree in steps.

use std::ops::Bound;

use super::super::uri::Uri;
use super::store::{ObjectRef, Tree};

/// A position in the order of a tree's URIs, or of the URIs at and below one of them.
///
/// It does not refer to the tree, so the tree may change between two steps. An object that is
/// added behind the position is found, an object that is added before it is not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    /// Only objects at and below this URI. `None` for the whole tree.
    root: Option<Uri>,
    /// The last object that was passed.
    last: Option<Uri>,
}

impl Cursor {
    /// The beginning of a whole tree.
    pub(crate) fn everywhere() -> Self {
        Self::default()
    }

    /// The beginning of the objects at and below a URI. The root means the whole tree.
    pub(crate) fn below(uri: Uri) -> Self {
        Self {
            // No root instead of `/`: a URI of a peer may begin without a slash, and `/` does not cover it.
            root: Some(uri).filter(|uri| !uri.is_root()),
            last: None,
        }
    }

    /// True if the position has not reached the URI, which is in the part of the tree that the cursor reads.
    pub(crate) fn is_ahead(&self, uri: &Uri) -> bool {
        self.last.as_ref().is_none_or(|last| uri > last)
            && self.root.as_ref().is_none_or(|root| root.covers(uri))
    }

    /// Moves behind a URI.
    pub(crate) fn pass(&mut self, uri: Uri) {
        self.last = Some(uri);
    }

    /// The objects behind the position.
    pub(crate) fn ahead<'a>(&self, tree: &'a Tree) -> impl Iterator<Item = ObjectRef<'a>> + use<'a> {
        let (root, all) = match &self.root {
            Some(root) => (Some(tree.covered_after(root, self.last.as_ref())), None),
            None => {
                let from = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                (None, Some(tree.order.range::<Uri, _>((from, Bound::Unbounded))))
            }
        };
        let uris = root.into_iter().flatten().chain(all.into_iter().flatten());
        uris.filter_map(|uri| tree.get(uri))
    }

    /// Passes and returns the next objects, parents before children, as many as fit into the piece.
    pub(crate) fn take<'a>(&mut self, tree: &'a Tree, piece: &mut Piece) -> Vec<ObjectRef<'a>> {
        let ahead = self.ahead(tree);
        let objects: Vec<_> = ahead.take_while(|object| piece.add(object.wire_len())).collect();
        if let Some(last) = objects.last() {
            self.pass(last.uri().clone());
        }
        objects
    }
}

/// The remaining size of a piece of a long list: one message, one line, or one call on a dispatcher.
#[derive(Debug)]
pub(crate) struct Piece {
    entries: usize,
    bytes: usize,
    is_used: bool,
}

impl Piece {
    /// The maximum number of entries of a list that one call on a dispatcher handles.
    pub(crate) const ENTRIES: usize = 500;

    /// An empty piece for this many entries and bytes.
    pub(crate) fn new(entries: usize, bytes: usize) -> Self {
        Self {
            entries,
            bytes,
            is_used: false,
        }
    }

    /// An empty piece for one call on a dispatcher. It takes some hundred microseconds, in which
    /// other peers wait; a mebibyte of long entries takes no more than some milliseconds.
    pub(crate) fn of_a_call() -> Self {
        Self::new(Self::ENTRIES, 1 << 20)
    }

    /// Adds an entry with this length. Returns false if it does not fit; then the piece is full.
    pub(crate) fn add(&mut self, bytes: usize) -> bool {
        // An entry that is longer than a piece gets a piece of its own.
        let fits = !self.is_used || (self.entries > 0 && bytes <= self.bytes);
        self.bytes = if fits { self.bytes.saturating_sub(bytes) } else { 0 };
        self.entries = self.entries.saturating_sub(1);
        self.is_used = true;
        fits
    }

    /// True if no further entry fits.
    pub(crate) fn is_full(&self) -> bool {
        self.is_used && (self.bytes == 0 || self.entries == 0)
    }
}
