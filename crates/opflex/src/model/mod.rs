//! Managed objects: what policy, endpoints and state reports consist of
//! (draft section 3.1.1).
//!
//! ```text
//!   file ─── ManagedObject::read_all ──┐                      ┌── subtree ──> resolve results
//!   messages ── replace, merge_children ┼──> Tree ── Changes ──┤
//!   API ────── Edit ────────────────────┘     │                └── Watchers ──> who is to be told
//!                                          Schema (optional)
//! ```
//!
//! A [`ManagedObject`] is one object in the form of messages and files: flat, with
//! its children named by URI. A [`Tree`] stores objects, finds them by URI and
//! identifier, and returns what each edit changed. [`Watchers`] is the table of
//! who is told of changes of which part of a tree, and until when.
//!
//! | file | what |
//! |---|---|
//! | `uri` | the place of an object, and escaping |
//! | `name` | names of classes and properties |
//! | `managed_object` | one object in the form of the wire |
//! | `ident` | identifiers: a name within a context |
//! | `target` | one object, by URI or by identifier |
//! | `tree` | the store |
//! | `watchers` | the table of interests in objects |
//! | `schema` | the model file |
//! | `file` | JSON and YAML files |
//! | `error` | why objects and files are refused |

mod error;
mod file;
mod ident;
mod managed_object;
mod name;
mod schema;
mod target;
mod tree;
mod uri;
mod watchers;

pub use self::error::{FileError, ModelError};
pub use self::file::Format;
pub use self::ident::Ident;
pub use self::managed_object::{ManagedObject, Property, Reference};
pub use self::name::Name;
pub use self::schema::Schema;
pub use self::target::Target;
pub use self::tree::{Change, ChangeKind, Changes, Edit, ObjectRef, Tree};
pub(crate) use self::tree::{Cursor, Piece};
pub use self::uri::{Uri, UriBuilder, UriError};
pub(crate) use self::watchers::memory as watch_memory;
pub use self::watchers::{Watch, Watchers};
