//! YAML: payloads from and for the network, and files that this project writes.
//!
//! ```text
//! network ─▶ documents ─▶ tree (bounded, with line and column) ─▶ serde ─▶ a schema's type
//! network ◀─ quotes for YAML 1.1 ◀─ serde_yaml ◀─ serde ◀─ a schema's type
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `error` | [`Error`]: where, and what was expected |
//! | `tree` | a document as a tree, built under the limits below |
//! | `read` | the tree as a serde `Deserializer`, with the payloads' reading rules |
//! | `split` | [`documents`] |
//! | `write` | [`encode`]: serde_yaml's text, with some more quotes |
//!
//! # One writer, another reader
//! serde_yaml writes. It must not read what a peer sent: 70 KB with many aliases can make
//! it ask for gigabytes of memory, and 100 KB of open brackets keep a processor busy for
//! seconds. [`decode`] therefore builds its tree from the events of `granit-parser`, counts
//! as it goes, and stops at the first limit. It also knows the path and the column of a
//! mistake. No module outside of this folder names a YAML crate.
//!
//! # Reading
//! Unknown keys are ignored, a key that is missing or empty (`key:`) takes its
//! default, keys are case sensitive. Where text is expected, an unquoted
//! number or boolean is that text as it was written. Where a boolean is
//! expected, the forms of YAML 1.1 (`yes`, `off`) are booleans. An empty
//! document has every default.
//!
//! Refused, with path and line: what is not YAML, a wrong type, a key that
//! stands twice in a map, a second document, and a document past a limit:
//!
//! | limit | |
//! |---|---|
//! | [`MAX_DOCUMENT_LEN`] | bytes of one document |
//! | [`MAX_DEPTH`] | maps and lists inside each other |
//! | [`MAX_NODES`] | keys and values, aliases counted as what they stand for |
//! | [`MAX_ALIASES`] | aliases |
//!
//! # Writing
//! Fields in the order of their declaration, two spaces a level, `[]` and
//! `""` where empty. Text that YAML 1.1 reads as something else (`no`,
//! `4096`, `52:54:00:12:34:56`, `2001-01-01`) is quoted. Text of several lines is a block.

mod error;
mod read;
mod split;
mod tree;
mod write;

use serde::de::DeserializeOwned;

pub use self::error::{Error, ErrorKind};
pub(super) use self::error::{Position, Segment};
pub use self::read::one_or_many;
pub(super) use self::split::first_marker;
pub use self::split::{Document, Documents, documents};
pub(super) use self::tree::Tree;
pub use self::write::encode;
pub(super) use self::write::encode_under;

/// The longest document that [`decode`] reads, in bytes (1 MiB). It is far
/// below the limit of a frame, whose further documents aren't read as YAML.
pub const MAX_DOCUMENT_LEN: usize = 1 << 20;
/// How many maps and lists may stand inside each other.
pub const MAX_DEPTH: usize = 64;
/// How many keys and values a document may hold. An alias counts as all that
/// it stands for. Likewise the text of all values, aliases included, may come
/// to no more than twice the longest document.
pub const MAX_NODES: usize = 250_000;
/// How many aliases a document may hold.
pub const MAX_ALIASES: usize = 100;

/// Reads one document of at most [`MAX_DOCUMENT_LEN`] bytes.
///
/// ```
/// use std::collections::BTreeMap;
/// use ssntp::payload::yaml;
///
/// let key: BTreeMap<String, String> = yaml::decode(b"subnet_key: 4096")?;
/// assert_eq!(key["subnet_key"], "4096");
///
/// let error = yaml::decode::<BTreeMap<String, i64>>(b"a: 1\nb: lots").unwrap_err();
/// assert_eq!((error.path().as_str(), error.line()), ("b", Some(2)));
/// # Ok::<(), yaml::Error>(())
/// ```
///
/// # Errors
/// See [`ErrorKind`].
pub fn decode<T: DeserializeOwned>(document: &[u8]) -> Result<T, Error> {
    decode_within(document, MAX_DOCUMENT_LEN)
}

/// Reads one document of at most `limit` bytes.
pub(super) fn decode_within<T: DeserializeOwned>(document: &[u8], limit: usize) -> Result<T, Error> {
    Tree::parse(document, 1, limit)?.decode(None)
}
