//! YAML from peers and from files, read within limits; errors name path, line and column.
//!
//! ```text
//! network ─▶ documents ─▶ tree (bounded, with line and column) ─▶ serde ─▶ a schema's type
//! network ◀─ quotes for YAML 1.1 ◀─ serde_yaml ◀─ serde ◀─ a schema's type
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `error` | [`Error`]: the fault, its path and its line |
//! | `tree` | a document as a tree, built under the limits below |
//! | `read` | the tree as a serde `Deserializer`, with the payloads' reading rules |
//! | `split` | [`documents`] |
//! | `write` | [`encode`]: serde_yaml's text, with some more quotes |
//!
//! # Different crates for writing and reading
//! serde_yaml writes. It is not used to read payloads of peers: 70 KB with many aliases can make it
//! allocate gigabytes of memory, and 100 KB of open brackets keep a processor busy for seconds. So
//! [`decode`] builds its tree from the events of `granit-parser`, counts nodes and bytes, and stops
//! at the first limit. Its errors have a path and a column. No other package uses a YAML crate.
//!
//! # Reading
//! Unknown keys are ignored. A missing key, or a key with an empty value (`key:`), has its default.
//! Keys are case sensitive. If a schema requires text, an unquoted number or boolean is read as text,
//! as it was written. If it requires a boolean, the forms of YAML 1.1 (`yes`, `off`) are accepted. In
//! an empty document all keys have their defaults.
//!
//! These are refused, with path and line: a syntax error, a wrong type, a duplicate key, a second
//! document, and a document that exceeds a limit:
//!
//! | limit | |
//! |---|---|
//! | [`MAX_DOCUMENT_LEN`] | bytes of one document |
//! | [`MAX_DEPTH`] | maps and lists inside each other |
//! | [`MAX_NODES`] | keys and values; an alias counts as much as its value |
//! | [`MAX_ALIASES`] | aliases |
//!
//! So the tree of a document takes at most 40 times its length of memory, and building it takes the same
//! stack for every document.
//!
//! # Writing
//! Fields are written in the order of their declaration, with two spaces for each level. Empty lists
//! and texts are `[]` and `""`. Text that YAML 1.1 does not read as text (`no`, `4096`,
//! `52:54:00:12:34:56`, `2001-01-01`) is quoted. Text of several lines is a block.

#![deny(missing_docs)]

mod error;
mod read;
mod split;
mod tree;
mod write;

use serde::de::DeserializeOwned;

pub use self::error::{Error, ErrorKind, Position, Segment};
pub use self::read::one_or_many;
pub use self::split::{Document, Documents, documents, first_marker};
pub use self::tree::Node;
pub use self::write::encode;

/// The longest document that [`decode`] reads, in bytes (1 MiB). The limit of a frame is far higher,
/// because the further documents of a START are not read as YAML.
pub const MAX_DOCUMENT_LEN: usize = 1 << 20;
/// The limit of maps and lists inside each other.
pub const MAX_DEPTH: usize = 64;
/// The limit of keys and values in a document of [`MAX_DOCUMENT_LEN`]; a shorter limit of the length
/// allows fewer. An alias counts as much as its value. The text of all keys and values, with
/// aliases, is limited to twice the longest document.
pub const MAX_NODES: usize = 250_000;
/// The limit of aliases in a document.
pub const MAX_ALIASES: usize = 100;

/// Reads one document of at most [`MAX_DOCUMENT_LEN`] bytes.
///
/// ```
/// use std::collections::BTreeMap;
///
/// let key: BTreeMap<String, String> = ssntp_yaml::decode(b"subnet_key: 4096")?;
/// assert_eq!(key["subnet_key"], "4096");
///
/// let error = ssntp_yaml::decode::<BTreeMap<String, i64>>(b"a: 1\nb: lots").unwrap_err();
/// assert_eq!((error.path().as_str(), error.line()), ("b", Some(2)));
/// # Ok::<(), ssntp_yaml::Error>(())
/// ```
///
/// # Errors
/// See [`ErrorKind`].
pub fn decode<T: DeserializeOwned>(document: &[u8]) -> Result<T, Error> {
    decode_within(document, MAX_DOCUMENT_LEN)
}

/// The text of a file without the byte order mark with which some editors begin it.
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// Reads one document of at most `limit` bytes.
///
/// # Errors
/// See [`ErrorKind`].
pub fn decode_within<T: DeserializeOwned>(document: &[u8], limit: usize) -> Result<T, Error> {
    Node::parse(document, 1, limit)?.decode(None)
}
