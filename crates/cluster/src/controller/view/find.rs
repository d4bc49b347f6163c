//! Entities by the beginning of their UUID, and instances by their name.

use std::collections::BTreeSet;
use std::fmt;

use uuid::Uuid;

use super::{Instance, View};
use ssntp::payload::Id;

/// How many of the matches an error names.
const NAMED: usize = 8;

impl View {
    /// The node whose UUID begins with `text`. A whole UUID need not be known.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_node(&self, text: &str) -> Result<Uuid, FindError> {
        let found = find("node", text, self.nodes.keys().copied())?;
        match self.instances.contains_key(&found) && !self.nodes.contains_key(&found) {
            true => Err(FindError::Other {
                what: "node",
                uuid: found,
                is: "an instance",
            }),
            false => Ok(found),
        }
    }

    /// The instance that is called `text`, or else the one whose UUID begins so. A
    /// whole UUID need not be known.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_instance(&self, text: &str) -> Result<Uuid, FindError> {
        let called = |instance: &&Instance| !text.is_empty() && instance.stats.name == text;
        let named: Vec<_> = self.instances.values().filter(called).map(|i| i.uuid).collect();
        match *named.as_slice() {
            [] => {}
            [one] => return Ok(one),
            _ => {
                return Err(FindError::SameName {
                    text: text.to_owned(),
                    matches: named,
                });
            }
        }
        let found = find("instance", text, self.instances.keys().copied())?;
        self.no_node("instance", found, self.instances.contains_key(&found))
    }

    /// The concentrator whose UUID begins with `text`. A whole UUID need not
    /// be known.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_cnci(&self, text: &str) -> Result<Uuid, FindError> {
        let found = find("CNCI", text, self.cncis.keys().copied())?;
        self.no_node("CNCI", found, self.cncis.contains_key(&found))
    }

    /// The volume that some instance has and whose name begins with `text`.
    /// A whole UUID need not be known.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_volume(&self, text: &str) -> Result<Id, FindError> {
        let attached = self.instances.values().flat_map(|i| &i.stats.volumes);
        let attached: BTreeSet<&Id> = attached.collect();
        if let Some(whole) = attached.iter().find(|volume| **volume == text) {
            return Ok((*whole).clone());
        }
        let found = find("volume", text, attached.iter().filter_map(|volume| volume.uuid()))?;
        if self.instances.contains_key(&found) {
            return Err(FindError::Other {
                what: "volume",
                uuid: found,
                is: "an instance",
            });
        }
        self.no_node("volume", found, false).map(Id::from)
    }

    /// A whole UUID, unless it is known to be a node's and nothing else.
    fn no_node(&self, what: &'static str, found: Uuid, known: bool) -> Result<Uuid, FindError> {
        match !known && self.nodes.contains_key(&found) {
            true => Err(FindError::Other {
                what,
                uuid: found,
                is: "a node",
            }),
            false => Ok(found),
        }
    }
}

fn find(what: &'static str, text: &str, known: impl Iterator<Item = Uuid>) -> Result<Uuid, FindError> {
    if text.len() == 36
        && let Ok(whole) = Uuid::try_parse(text)
    {
        return Ok(whole);
    }
    let begin = text.to_ascii_lowercase();
    let digits = begin.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if begin.is_empty() || begin.len() > 36 || !digits {
        let text = text.to_owned();
        return Err(FindError::NoUuid { what, text });
    }
    let matches: Vec<_> = known
        .filter(|uuid| uuid.to_string().starts_with(&begin))
        .collect();
    match *matches.as_slice() {
        [one] => Ok(one),
        [] => Err(FindError::None {
            what,
            text: text.to_owned(),
        }),
        _ => Err(FindError::Several {
            what,
            text: text.to_owned(),
            matches,
        }),
    }
}

/// Why the beginning of a UUID names nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindError {
    /// It is not the beginning of a UUID.
    NoUuid {
        /// What was looked for: `node`, `instance`, `CNCI`, `volume`.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// None that is known begins so. Give the whole UUID where it is one that
    /// is not known yet.
    None {
        /// What was looked for.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// It is known, and something else.
    Other {
        /// What was looked for.
        what: &'static str,
        /// Whose UUID it is.
        uuid: Uuid,
        /// What it is: `a node`, `an instance`.
        is: &'static str,
    },
    /// More than one begins so: give more of it.
    Several {
        /// What was looked for.
        what: &'static str,
        /// The text.
        text: String,
        /// Those that do.
        matches: Vec<Uuid>,
    },
    /// More than one instance is called so: give the beginning of its UUID.
    SameName {
        /// The text.
        text: String,
        /// Those that are.
        matches: Vec<Uuid>,
    },
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUuid {
                what: "instance",
                text,
            } => write!(f, "no instance is called {text:?}"),
            Self::NoUuid { what, text } => {
                write!(f, "{text:?} names no {what}: it is not the beginning of a UUID")
            }
            Self::None {
                what: "instance",
                text,
            } => {
                write!(f, "no instance is called {text}, or has a UUID that begins so")
            }
            Self::None { what, text } => write!(f, "no {what} is known whose UUID begins with {text}"),
            Self::Other { what, uuid, is } => write!(f, "{uuid} is no {what}: it is {is}"),
            Self::Several { what, text, matches } => {
                write!(f, "{text} is the beginning of {} {what}s: ", matches.len())?;
                list(f, matches)
            }
            Self::SameName { text, matches } => {
                write!(f, "{} instances are called {text}: ", matches.len())?;
                list(f, matches)
            }
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, matches: &[Uuid]) -> fmt::Result {
    for (at, uuid) in matches.iter().take(NAMED).enumerate() {
        let separator = if at == 0 { "" } else { ", " };
        write!(f, "{separator}{uuid}")?;
    }
    match matches.len() > NAMED {
        true => f.write_str(", …"),
        false => Ok(()),
    }
}

impl std::error::Error for FindError {}
