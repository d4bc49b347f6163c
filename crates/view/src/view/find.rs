//! Finds entities by the beginning of their UUID, and instances also by their name.

use std::collections::BTreeSet;

use thiserror::Error;
use uuid::Uuid;

use super::{Instance, View};
use ssntp::payload::Id;

/// The maximum number of matches in the text of an error.
const MAX_NAMED: usize = 8;

impl View {
    /// The node whose UUID begins with `text`. A whole UUID is also accepted if it is unknown.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_node(&self, text: &str) -> Result<Uuid, FindError> {
        let found = find("node", text, self.nodes.keys().copied())?;
        self.of_kind("node", found, self.nodes.contains_key(&found))
    }

    /// The instance with the name `text`, or else the one whose UUID begins with it. A whole UUID
    /// is also accepted if it is unknown.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_instance(&self, text: &str) -> Result<Uuid, FindError> {
        // Names have priority, because a name may look like the beginning of a UUID.
        let called = |instance: &&Instance| !text.is_empty() && instance.stats.name == text;
        let matches: Vec<_> = self.instances.values().filter(called).map(|i| i.uuid).collect();
        let text = text.to_owned();
        match *matches.as_slice() {
            [] => {}
            [one] => return Ok(one),
            _ => return Err(FindError::SameName { text, matches }),
        }
        let found = find("instance", &text, self.instances.keys().copied())?;
        self.of_kind("instance", found, self.instances.contains_key(&found))
    }

    /// The concentrator whose UUID begins with `text`. A whole UUID is also accepted if it is
    /// unknown.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_cnci(&self, text: &str) -> Result<Uuid, FindError> {
        let found = find("CNCI", text, self.cncis.keys().copied())?;
        // A concentrator runs in an instance of the same UUID.
        let known = self.cncis.contains_key(&found) || self.instances.contains_key(&found);
        self.of_kind("CNCI", found, known)
    }

    /// The attached volume whose name begins with `text`. A whole UUID is also accepted if it is
    /// unknown.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_volume(&self, text: &str) -> Result<Id, FindError> {
        let attached = self.instances.values().flat_map(|i| &i.stats.volumes);
        let attached: BTreeSet<&Id> = attached.collect();
        // The name of a volume may be no UUID. Such a volume is found only by its whole name.
        if let Some(whole) = attached.iter().find(|volume| **volume == text) {
            return Ok((*whole).clone());
        }
        let found = find("volume", text, attached.iter().filter_map(|volume| volume.uuid()))?;
        self.of_kind("volume", found, false).map(Id::from)
    }

    /// A whole UUID, unless it is known to belong to another kind of entity only.
    fn of_kind(&self, what: &'static str, uuid: Uuid, known: bool) -> Result<Uuid, FindError> {
        let is = match known {
            true => return Ok(uuid),
            false if self.instances.contains_key(&uuid) => "an instance",
            false if self.nodes.contains_key(&uuid) => "a node",
            false => return Ok(uuid),
        };
        Err(FindError::Other { what, uuid, is })
    }
}

fn find(what: &'static str, text: &str, known: impl Iterator<Item = Uuid>) -> Result<Uuid, FindError> {
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
