//! The tree store.
//!
//! ```text
//!   objects    URI ──> object                  order      URIs, sorted
//!   children   URI ──> URIs, sorted
//!   announced  URI of a child that is not here yet ──> URI of its parent
//!   index      (context, name) ──> URIs
//! ```
//!
//! Objects are found through hash tables, so that a look-up costs the same in a
//! small tree and in a large one. A child has one parent: the one that the child
//! names or the one that lists the child, whichever arrived last. If there is neither,
//! it is the nearest object above the child at the time when the child is added.
//!
//! The parent may be missing, because peers often omit the upper levels of a policy
//! tree. A child may be announced, that is, listed before it arrives. The path of a
//! parent is always a prefix of the path of its child. So there are no cycles, and the
//! objects below an object follow it in the order of the URIs.
//!
//! | file | contents |
//! |---|---|
//! | `store` | the tree and its look-ups |
//! | `edit` | edits of the tree |
//! | `changes` | the result of an edit |
//! | `cursor` | reading the tree in steps |

mod changes;
mod cursor;
mod edit;
mod store;
#[cfg(test)]
mod tests;

pub use self::changes::{Change, ChangeKind, Changes};
pub(crate) use self::cursor::{Cursor, Piece};
pub use self::edit::Edit;
pub use self::store::{ObjectRef, Tree};
#[cfg(test)]
pub(crate) use self::tests::LOOKED_AT;
