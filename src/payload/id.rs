//! The text that identifies an entity.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The text that identifies a node, an instance, a tenant, a volume… It is usually a UUID, but some
/// senders write other texts, and many schemas allow it to be empty. So the text is kept unchanged.
///
/// ```
/// use ssntp::payload::Id;
/// use uuid::Uuid;
///
/// let id = Id::from("0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001");
/// assert_eq!(id, Uuid::from_u128(0x0f7a5a1e_3c55_4a0b_9d3c_6f1f2f9a1001));
/// assert_eq!(Id::from("rack1").uuid(), None);
/// assert!(Id::default().is_empty());
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Id(String);

impl Id {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if the text is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The UUID, if the text has the usual form of 8-4-4-4-12 hexadecimal digits, in upper or lower
    /// case.
    pub fn uuid(&self) -> Option<Uuid> {
        Self::uuid_in(&self.0)
    }

    /// The UUID in a text of the usual form.
    pub fn uuid_in(text: &str) -> Option<Uuid> {
        // The crate uuid also reads braces, `urn:uuid:` and digits without hyphens. Other readers of a
        // payload do not, and ids are compared as text in many places.
        match text.len() {
            36 => Uuid::try_parse(text).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A text, or a UUID in its usual form.
impl<T: Into<String>> From<T> for Id {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl PartialEq<Uuid> for Id {
    fn eq(&self, uuid: &Uuid) -> bool {
        self.uuid() == Some(*uuid)
    }
}

impl PartialEq<str> for Id {
    fn eq(&self, text: &str) -> bool {
        self.0 == text
    }
}

impl PartialEq<&str> for Id {
    fn eq(&self, text: &&str) -> bool {
        self.0 == *text
    }
}
