//! One object, by URI or by identifier.

use std::fmt;

use super::ident::Ident;
use super::uri::Uri;

/// The object of a resolve or of a watch. An unresolve has to use the
/// same form as the resolve.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// The object with this URI.
    Uri(Uri),
    /// The object, or objects, with this identifier.
    Ident(Ident),
}

impl Target {
    /// The length of the text, in bytes.
    pub(crate) fn text_len(&self) -> usize {
        match self {
            Self::Uri(uri) => uri.as_str().len(),
            Self::Ident(ident) => ident.context.as_str().len() + ident.name.len(),
        }
    }
}

impl From<Uri> for Target {
    fn from(uri: Uri) -> Self {
        Self::Uri(uri)
    }
}

impl From<Ident> for Target {
    fn from(ident: Ident) -> Self {
        Self::Ident(ident)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(uri) => write!(f, "{uri}"),
            Self::Ident(ident) => write!(f, "{ident}"),
        }
    }
}
