//! Going through a tree in steps.

use std::ops::Bound;

use super::super::Uri;
use super::{ObjectRef, Tree};

/// A place in the order of a tree's URIs, or of those at and below one of them.
///
/// It holds URIs and no reference to the tree, so the tree may change between two
/// steps: an object that comes behind the place is found, one that comes before
/// it is not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    /// Only what is at and below this URI; everything without it.
    root: Option<Uri>,
    /// The last object that was passed.
    last: Option<Uri>,
}

impl Cursor {
    /// The beginning of a whole tree.
    pub(crate) fn everywhere() -> Self {
        Self::default()
    }

    /// The beginning of what is at and below a URI. The root stands for the whole
    /// tree.
    pub(crate) fn below(uri: Uri) -> Self {
        Self {
            // Peers' URIs need not begin with a slash, so that not all are below `/`.
            root: Some(uri).filter(|uri| !uri.is_root()),
            last: None,
        }
    }

    /// Whether a URI is among those that the cursor goes through, and is not passed.
    pub(crate) fn is_ahead(&self, uri: &Uri) -> bool {
        self.last.as_ref().is_none_or(|last| uri > last)
            && self.root.as_ref().is_none_or(|root| root.covers(uri))
    }

    /// Goes on to behind a URI.
    pub(crate) fn pass(&mut self, uri: Uri) {
        self.last = Some(uri);
    }

    /// The objects ahead.
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

    /// Passes the next objects, parents before children: at most `most`, and as long as they fit
    /// into the piece.
    pub(crate) fn take<'a>(&mut self, tree: &'a Tree, most: usize, piece: &mut Piece) -> Vec<ObjectRef<'a>> {
        let ahead = self.ahead(tree).take(most);
        let objects: Vec<_> = ahead
            .take_while(|object| piece.takes(object.wire_len()))
            .collect();
        if let Some(last) = objects.last() {
            self.pass(last.uri().clone());
        }
        objects
    }
}

/// How full a piece of a long answer is: one message or one line.
#[derive(Debug)]
pub(crate) struct Piece {
    left: usize,
    is_used: bool,
}

impl Piece {
    /// A piece of so many bytes, in which nothing stands yet.
    pub(crate) fn new(left: usize) -> Self {
        let is_used = false;
        Self { left, is_used }
    }

    /// Adds so many bytes. Returns false if they do not fit; then the piece is full.
    pub(crate) fn takes(&mut self, bytes: usize) -> bool {
        // An object that is longer than a whole piece has a piece to itself.
        let fits = !self.is_used || bytes <= self.left;
        self.left = if fits { self.left.saturating_sub(bytes) } else { 0 };
        self.is_used = true;
        fits
    }

    /// Whether nothing more fits.
    pub(crate) fn is_full(&self) -> bool {
        self.is_used && self.left == 0
    }
}
