//! What a resolve or unresolve is about.

use std::fmt;

use crate::opflex::model::{Ident, Uri};

/// The object of a resolve or unresolve. The draft wants exactly one of the
/// two; what was resolved in one way is unresolved in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// `policy_uri` or `endpoint_uri`.
    Uri(Uri),
    /// `policy_ident` or `endpoint_ident`.
    Ident(Ident),
}

impl Target {
    pub(super) fn of(uri: Option<Uri>, ident: Option<Ident>) -> Result<Self, NotOneTarget> {
        match (uri, ident) {
            (Some(uri), None) => Ok(Self::Uri(uri)),
            (None, Some(ident)) => Ok(Self::Ident(ident)),
            _ => Err(NotOneTarget),
        }
    }

    pub(super) fn split(self) -> (Option<Uri>, Option<Ident>) {
        match self {
            Self::Uri(uri) => (Some(uri), None),
            Self::Ident(ident) => (None, Some(ident)),
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

/// Both targets are there, or none.
#[derive(Debug)]
pub(super) struct NotOneTarget;

impl fmt::Display for NotOneTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("exactly one of the URI and the identifier must be set")
    }
}
