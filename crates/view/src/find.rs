//! Finds entities by the beginning of their UUID, and instances also by their name.

use thiserror::Error;
use uuid::Uuid;

/// The maximum number of matches in the text of an error.
const MAX_NAMED: usize = 8;

/// The entity of a kind whose UUID begins with `text`. A whole UUID is accepted as it is.
pub(crate) fn find(
    what: &'static str,
    text: &str,
    known: impl Iterator<Item = Uuid>,
) -> Result<Uuid, FindError> {
    // The parser also accepts other forms, such as one without hyphens. They are not accepted here.
    if text.len() == 36
        && let Ok(whole) = Uuid::try_parse(text)
    {
        return Ok(whole);
    }
    let begin = text.to_ascii_lowercase();
    let text = text.to_owned();
    let digits = begin.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if begin.is_empty() || begin.len() > 36 || !digits {
        return Err(FindError::NoUuid { what, text });
    }
    let matches: Vec<_> = known
        .filter(|uuid| uuid.to_string().starts_with(&begin))
        .collect();
    match *matches.as_slice() {
        [one] => Ok(one),
        [] => Err(FindError::None { what, text }),
        _ => Err(FindError::Several { what, text, matches }),
    }
}

/// The reason why a text does not name one entity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FindError {
    /// It is not the beginning of a UUID.
    #[error("{}", match *what {
        "instance" => format!("no instance is called {text:?}"),
        _ => format!("{text:?} names no {what}: it is not the beginning of a UUID"),
    })]
    NoUuid {
        /// The kind of entity: `node`, `instance`, `CNCI`, `volume`.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// No known UUID begins with it. The whole UUID can name an entity that is not known
    /// yet.
    #[error("{}", match *what {
        "instance" => format!("no instance has the name {text}, or a UUID that begins with it"),
        _ => format!("no {what} is known whose UUID begins with {text}"),
    })]
    None {
        /// The kind of entity.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// It is the UUID of another kind of entity.
    #[error("{uuid} is the UUID of {is} (expected: {what})")]
    Other {
        /// The kind of entity that was expected.
        what: &'static str,
        /// The UUID.
        uuid: Uuid,
        /// The actual kind: `a node`, `an instance`.
        is: &'static str,
    },
    /// More than one UUID begins with it: give more of it.
    #[error("{text} is the beginning of {} {what}s: {}", matches.len(), list(matches))]
    Several {
        /// The kind of entity.
        what: &'static str,
        /// The text.
        text: String,
        /// The UUIDs.
        matches: Vec<Uuid>,
    },
    /// More than one instance has this name: give the beginning of a UUID.
    #[error("{} instances are called {text}: {}", matches.len(), list(matches))]
    SameName {
        /// The text.
        text: String,
        /// The instances.
        matches: Vec<Uuid>,
    },
}

fn list(matches: &[Uuid]) -> String {
    let named: Vec<_> = matches.iter().take(MAX_NAMED).map(Uuid::to_string).collect();
    let more = if matches.len() > MAX_NAMED { ", …" } else { "" };
    named.join(", ") + more
}
