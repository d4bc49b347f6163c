//! YAML as the payloads use it: reading what a stranger sent, writing what an
//! old parser reads back the same, cutting a payload into its documents.
//!
//! ```text
//! bytes -> documents -> tree (bounded, with line and column) -> serde -> a schema's type
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `error` | [`Error`]: where, and what was expected |
//! | `tree` | a document as a tree, built under the limits below |
//! | `read` | the tree as a serde `Deserializer`, with the payloads' reading rules |
//! | `split` | [`documents`] |
//!
//! No other module names the YAML crate, and none reads YAML from the network
//! in another way: a document of 70 KB can make a parser without limits ask
//! for gigabytes.
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
//! `4096`, `52:54:00:12:34:56`, `2001-01-01`) is quoted.

mod error;
mod read;
mod split;
mod tree;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::error::{Error, ErrorKind};
pub(super) use self::error::{Position, Segment};
pub(super) use self::read::one_or_many;
pub(super) use self::split::first_marker;
pub use self::split::{Document, Documents, documents};
pub(super) use self::tree::Tree;

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

/// Reads one document of at most `max_len` bytes; the other limits stay.
///
/// # Errors
/// See [`ErrorKind`].
pub fn decode_within<T: DeserializeOwned>(document: &[u8], max_len: usize) -> Result<T, Error> {
    Tree::parse(document, 1, max_len)?.decode(None)
}

/// Writes one document, ending with a line break.
///
/// # Errors
/// [`ErrorKind::Invalid`] when the value's own `Serialize` fails; the payload
/// types never do.
pub fn encode<T: Serialize>(value: &T) -> Result<Bytes, Error> {
    // Long or multi-line text stays quoted on one line: the block styles lose
    // blanks and carriage returns in some readers.
    let options = serde_saphyr::ser_options! {
        indent_step: 2,
        prefer_block_scalars: false,
    };
    serde_saphyr::to_string_with_options(value, options)
        .map(Bytes::from)
        .map_err(|error| Error::new(ErrorKind::Invalid(error.to_string())))
}

/// Writes one document whose only key is `root`.
pub(super) fn encode_under<T: Serialize>(root: &'static str, value: &T) -> Result<Bytes, Error> {
    struct Rooted<'a, T>(&'static str, &'a T);

    impl<T: Serialize> Serialize for Rooted<'_, T> {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map([(self.0, self.1)])
        }
    }

    encode(&Rooted(root, value))
}
