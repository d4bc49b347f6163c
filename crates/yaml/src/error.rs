//! The error of a refused document, with its position.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

/// The maximum number of characters of a peer's text that an error repeats: errors are logged and sent to
/// other peers.
const SHOWN: usize = 64;

/// A document was refused. The error has the path, the line and the column.
///
/// ```
/// use std::collections::BTreeMap;
///
/// let text = b"ports:\n- 22\n- lots\n";
/// let error = ssntp_yaml::decode::<BTreeMap<String, Vec<u16>>>(text).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "ports[1]: expected an integer, found text \"lots\" (line 3, column 3)",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
// Boxed, because results with it are returned for every value of a document.
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    // Innermost first, because segments are added on the way out of the recursion.
    path: Vec<Segment>,
    position: Option<Position>,
}

/// The fault of a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The document is not YAML, or not UTF-8. The sender has to be corrected.
    #[error("not YAML: {0}")]
    Syntax(String),
    /// The document is longer than the limit, in bytes. It was not read.
    #[error("the document has {len} bytes, more than {limit}")]
    TooLong {
        /// The length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The document has more nodes, aliases, levels or bytes of text than the limit allows.
    #[error("more than {limit} {what}")]
    TooMany {
        /// The things that are too many, in the plural.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// A map has the same key twice. The path ends with the key.
    #[error("duplicate key")]
    DuplicateKey,
    /// A value has another type than the schema requires, or is out of range.
    #[error("expected {expected}, found {found}")]
    Type {
        /// The type or range that the schema requires.
        expected: String,
        /// The value that the document has.
        found: String,
    },
    /// A value that the schema requires is missing or empty.
    #[error("required, and missing or empty")]
    Missing,
    /// A value has the right type but breaks another rule of the schema.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// An error without path and position.
    pub fn new(kind: ErrorKind) -> Self {
        Self(Box::new(Inner {
            kind,
            path: Vec::new(),
            position: None,
        }))
    }

    pub(crate) fn type_error(expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(ErrorKind::Type {
            expected: expected.into(),
            found: found.into(),
        })
    }

    /// The fault.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The path, as `start.storage[0].size`; empty for the whole document.
    pub fn path(&self) -> String {
        let mut text = String::new();
        for segment in self.segments() {
            match segment {
                Segment::Key(key) if text.is_empty() => text.push_str(key),
                Segment::Key(key) => {
                    text.push('.');
                    text.push_str(key);
                }
                Segment::Index(index) => text.push_str(&format!("[{index}]")),
            }
        }
        text
    }

    /// The line in the payload, counted from 1. For a missing key, the line of the map that should
    /// have it. `None` if the error has no position.
    pub fn line(&self) -> Option<usize> {
        self.position().map(|position| position.line)
    }

    /// The position in the payload; `None` if the error has none.
    pub fn position(&self) -> Option<Position> {
        self.0.position
    }

    /// True if the payload is not a readable document (it is not YAML, exceeds a limit, or has a
    /// duplicate key). False if the document can be read but does not match the schema. A failure
    /// reports the first as `invalid_payload`, the second as `invalid_data`.
    pub fn is_malformed(&self) -> bool {
        match self.kind() {
            ErrorKind::Syntax(_)
            | ErrorKind::TooLong { .. }
            | ErrorKind::TooMany { .. }
            | ErrorKind::DuplicateKey => true,
            ErrorKind::Type { .. } | ErrorKind::Missing | ErrorKind::Invalid(_) => false,
        }
    }

    /// The segments of the path, outermost first.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.0.path.iter().rev()
    }

    /// The same error with a position. An error that already has one keeps it, because that is the
    /// innermost.
    pub fn at(mut self, position: Position) -> Self {
        self.0.position.get_or_insert(position);
        self
    }

    /// The same error with `segment` as the outermost part of its path.
    pub fn under(mut self, segment: Segment) -> Self {
        self.0.path.push(segment);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path();
        if !path.is_empty() {
            write!(f, "{path}: ")?;
        }
        self.kind().fmt(f)?;
        match self.0.position {
            Some(Position { line, column }) => write!(f, " (line {line}, column {column})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(ErrorKind::Invalid(message.to_string()))
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::type_error(expected.to_string(), describe(unexpected))
    }

    // For the sender there is no difference to a wrong type: the value does not fit.
    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::type_error(expected.to_string(), describe(unexpected))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(ErrorKind::Missing).under(Segment::key(field))
    }
}

fn describe(unexpected: Unexpected<'_>) -> String {
    match unexpected {
        Unexpected::Str("") => "empty text".to_owned(),
        Unexpected::Str(text) => format!("text {:?}", shortened(text)),
        other => other.to_string(),
    }
}

/// The first [`SHOWN`] characters of a text, with `…` if the text is longer.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A position in the payload; line and column count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// `LINE:COLUMN`.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// One segment of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A key of a map, ready to be printed.
    Key(String),
    /// The index of an element of a list.
    Index(usize),
}

impl Segment {
    /// A key. If it has unusual characters, it is quoted and escaped, so that it can be printed.
    pub fn key(key: &str) -> Self {
        let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        Self::Key(if plain {
            shortened(key)
        } else {
            format!("{:?}", shortened(key))
        })
    }
}
