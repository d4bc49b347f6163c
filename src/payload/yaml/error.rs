//! Why a document was refused, and where.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

/// How much of a peer's text an error repeats, in characters: errors are
/// logged and sent on.
const SHOWN: usize = 64;

/// A document that was refused: what is wrong, at which path, in which line.
///
/// ```
/// use ssntp::payload::{Payload, Stats};
///
/// let error = Stats::decode(b"node_uuid: n\ninstances:\n- ssh_port: lots\n").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "instances[0].ssh_port: expected an integer, found text \"lots\" (line 3, column 13)",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
// Boxed, because results with it are returned for every value of a document.
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    // Innermost first: segments are added on the way out.
    path: Vec<Segment>,
    position: Option<Position>,
}

/// What is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// It is not YAML, or not UTF-8. The sender has to be mended.
    #[error("not YAML: {0}")]
    Syntax(String),
    /// It is longer than the limit, in bytes. Nothing of it was read.
    #[error("the document has {len} bytes, more than {limit}")]
    TooLong {
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// It holds more of something than the limit allows.
    #[error("more than {limit} {what}")]
    TooMany {
        /// The things that are too many, in the plural.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A key stands twice in one map; the path ends with it.
    #[error("the key stands twice")]
    DuplicateKey,
    /// A value is of another type than the schema says, or out of range.
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
    /// A value has the right type and breaks another rule of the schema.
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

    pub(super) fn type_error(expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(ErrorKind::Type {
            expected: expected.into(),
            found: found.into(),
        })
    }

    /// What is wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Where, as `start.storage[0].size`; empty for the whole document.
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

    /// The line in the payload, from 1; for what is missing, the line of the
    /// map that should hold it. `None` where no line is to blame.
    pub fn line(&self) -> Option<usize> {
        self.0.position.map(|position| position.line)
    }

    /// The column in characters, from 1.
    pub fn column(&self) -> Option<usize> {
        self.0.position.map(|position| position.column)
    }

    /// Whether the payload isn't a document at all (not YAML, past a limit,
    /// a key twice), rather than a document that the schema refuses. A
    /// failure reports the first as `invalid_payload`, the second as
    /// `invalid_data`.
    pub fn is_malformed(&self) -> bool {
        match self.kind() {
            ErrorKind::Syntax(_)
            | ErrorKind::TooLong { .. }
            | ErrorKind::TooMany { .. }
            | ErrorKind::DuplicateKey => true,
            ErrorKind::Type { .. } | ErrorKind::Missing | ErrorKind::Invalid(_) => false,
        }
    }

    /// The steps to the value, outermost first.
    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.0.path.iter().rev()
    }

    /// The same error with a position, unless it has one: the innermost wins.
    pub(crate) fn at(mut self, position: Position) -> Self {
        self.0.position.get_or_insert(position);
        self
    }

    /// The same error, inside the map or list that `segment` steps into.
    pub(crate) fn under(mut self, segment: Segment) -> Self {
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

    // To the sender both are the same: a value that does not fit.
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

/// At most [`SHOWN`] characters of a text, and a mark where some are left out.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A position in the payload; line and column count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Key(String),
    Index(usize),
}

impl Segment {
    /// A key, printable whatever a peer put into it.
    pub(crate) fn key(key: &str) -> Self {
        let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        Self::Key(match plain {
            true => shortened(key),
            false => format!("{:?}", shortened(key)),
        })
    }
}
