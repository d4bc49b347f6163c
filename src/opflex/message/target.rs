//! The two members that name what a resolve or unresolve is about.

use std::fmt;

use crate::opflex::model::{Ident, Target, Uri};

/// The draft wants exactly one of `…_uri` and `…_ident`.
pub(super) fn one_of(uri: Option<Uri>, ident: Option<Ident>) -> Result<Target, NotOneTarget> {
    match (uri, ident) {
        (Some(uri), None) => Ok(Target::Uri(uri)),
        (None, Some(ident)) => Ok(Target::Ident(ident)),
        _ => Err(NotOneTarget),
    }
}

pub(super) fn split(target: Target) -> (Option<Uri>, Option<Ident>) {
    match target {
        Target::Uri(uri) => (Some(uri), None),
        Target::Ident(ident) => (None, Some(ident)),
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
