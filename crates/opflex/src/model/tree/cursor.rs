//! Reading a tree in steps.

use std::ops::Bound;

use super::super::Uri;
use super::{ObjectRef, Tree};

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

    /// True if the URI is behind the position, in the part of the tree that the cursor reads.
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

    /// Passes and returns the next objects, parents before children: at most `most`, and only as
    /// many as fit into the piece.
    pub(crate) fn take<'a>(&mut self, tree: &'a Tree, most: usize, piece: &mut Piece) -> Vec<ObjectRef<'a>> {
        let ahead = self.ahead(tree).take(most);
        let objects: Vec<_> = ahead.take_while(|object| piece.add(object.wire_len())).collect();
        if let Some(last) = objects.last() {
            self.pass(last.uri().clone());
        }
        objects
    }
}

/// The remaining size of a piece of a long answer: one message or one line.
#[derive(Debug)]
pub(crate) struct Piece {
    left: usize,
    is_used: bool,
}

impl Piece {
    /// An empty piece for this many bytes.
    pub(crate) fn new(left: usize) -> Self {
        let is_used = false;
        Self { left, is_used }
    }

    /// Adds bytes. Returns false if they do not fit; then the piece is full.
    pub(crate) fn add(&mut self, bytes: usize) -> bool {
        // An object that is longer than a piece gets a piece of its own.
        let fits = !self.is_used || bytes <= self.left;
        self.left = if fits { self.left.saturating_sub(bytes) } else { 0 };
        self.is_used = true;
        fits
    }

    /// True if no further bytes fit.
    pub(crate) fn is_full(&self) -> bool {
        self.is_used && self.left == 0
    }
}
