//! Managed objects, of which policy, endpoints and state reports consist (draft section 3.1.1).
//!
//! ```text
//!   file ─── ManagedObject::read_all ──┐                      ┌── subtree ──> resolve results
//!   messages ── replace, merge_children ┼──> Tree ── Changes ──┤
//!   API ────── Edit ────────────────────┘     │                └── Watchers ──> receivers of updates
//!                                          Schema (optional)
//! ```
//!
//! A [`ManagedObject`] is one object in the form of messages and files: flat, with
//! the URIs of its children. A [`Tree`] stores objects, finds them by URI and
//! identifier, and returns the changes of each edit. [`Watchers`] is the table of the
//! watchers of each part of a tree, with the time at which each interest ends.
//!
//! | file | contents |
//! |---|---|
//! | `uri` | the place of an object, and escaping |
//! | `name` | names of classes and properties |
//! | `managed_object` | one object in the form of messages |
//! | `ident` | identifiers: a name within a context; one object by URI or by identifier |
//! | `tree` | the store |
//! | `watchers` | the table of interests in objects |
//! | `schema` | the model file |
//! | `file` | JSON and YAML files |
//! | `error` | the faults for which objects and files are refused |

mod error;
mod file;
mod ident;
mod managed_object;
mod name;
mod schema;
mod tree;
mod uri;
mod watchers;

pub use self::error::{FileError, ModelError};
pub use self::file::Format;
pub use self::ident::{Ident, Target};
pub use self::managed_object::{ManagedObject, Property, PropertyReference};
pub use self::name::Name;
pub use self::schema::{Schema, is_mac};
#[cfg(test)]
pub(crate) use self::tree::LOOKED_AT;
pub use self::tree::{Change, ChangeKind, Changes, Edit, ObjectRef, Tree};
pub(crate) use self::tree::{Cursor, Piece};
pub use self::uri::{Uri, UriError};
pub(crate) use self::watchers::memory as watch_memory;
pub use self::watchers::{Watch, Watchers};
