//! URIs of managed objects.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

/// The URI of a managed object: its path from the root of the tree.
///
/// ```text
/// /PolicyUniverse/PolicySpace/test/GbpEpGroup/group1/
/// /EprL3Universe/EprL3Ep/%2fPolicyUniverse%2f…%2frd%2f/10.0.0.1/
/// ```
///
/// It begins and ends with a slash, as the URIs of libopflex do; the root is `/`. In a
/// segment, all characters but letters, digits and `-._~` are escaped as lower-case `%xx`.
/// So a whole URI can be a segment of another URI; its escapes are then escaped again.
///
/// A received URI is not normalized: two URIs are equal if their characters are, and the
/// first or the last slash may be missing. A URI is refused if it is empty, has control
/// characters, or exceeds the limits below. Cloning copies a pointer.
///
/// ```
/// use ssntp_opflex::model::Uri;
///
/// let endpoint: Uri = "/EprL3Ep/%2fPolicyUniverse%2fGbpRoutingDomain%2frd%2f/10.0.0.1/".parse()?;
/// assert_eq!(endpoint.elements().nth(1).unwrap(), "/PolicyUniverse/GbpRoutingDomain/rd/");
/// assert!("/EprL3Ep/".parse::<Uri>()?.is_ancestor_of(&endpoint));
/// # Ok::<(), ssntp_opflex::model::UriError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uri(Arc<str>);

impl Uri {
    /// The longest URI, in bytes. Those of agent-ovs have some hundred. Together with the depth, it
    /// limits the work of a look-up of all ancestors.
    pub const MAX_LEN: usize = 8 * 1024;
    /// The maximum number of segments. URIs of agent-ovs have about ten.
    pub const MAX_DEPTH: usize = 128;

    /// The root of the tree, `/`.
    pub fn root() -> Self {
        Self(Arc::from("/"))
    }

    /// The text, as it was received or built.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if this is the root.
    pub fn is_root(&self) -> bool {
        self.path().is_empty()
    }

    /// The segments, unescaped. Empty segments are skipped, invalid escapes are kept, and bytes that are
    /// not UTF-8 are replaced.
    pub fn elements(&self) -> impl DoubleEndedIterator<Item = Cow<'_, str>> {
        let segments = self.0.split('/').filter(|segment| !segment.is_empty());
        segments.map(unescape)
    }

    /// True if `other` is below this URI, at any depth.
    pub fn is_ancestor_of(&self, other: &Self) -> bool {
        // Compared without the last slash, which some peers omit.
        let (path, below) = (self.path(), other.path());
        below.len() > path.len() && below.starts_with(path) && below.as_bytes()[path.len()] == b'/'
    }

    /// True if `other` is this URI or is below it.
    pub fn covers(&self, other: &Self) -> bool {
        self == other || self.is_ancestor_of(other)
    }

    /// The texts of all ancestors of this URI, shortest first, each without and with its last slash.
    /// So the last one that is in a table is the nearest, and the form with the slash comes before
    /// the other one, which any peer can add beside it.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = &str> {
        let path = self.path();
        // Both forms, because some peers omit the last slash. Between two slashes they are the same text.
        path.match_indices('/').flat_map(move |(at, _)| {
            let bare = Some(&path[..at]).filter(|text| !text.is_empty() && !text.ends_with('/'));
            bare.into_iter().chain(std::iter::once(&path[..=at]))
        })
    }

    /// The text without its last slash.
    pub(crate) fn path(&self) -> &str {
        self.0.strip_suffix('/').unwrap_or(&self.0)
    }

    fn check(text: &str) -> Result<(), UriError> {
        if text.is_empty() {
            Err(UriError::Empty)
        } else if text.len() > Self::MAX_LEN {
            Err(UriError::TooLong)
        } else if text.bytes().filter(|byte| *byte == b'/').count() > Self::MAX_DEPTH + 1 {
            Err(UriError::TooDeep)
        // Control characters would break lines of the log and of the feed.
        } else if text.bytes().any(|byte| byte.is_ascii_control()) {
            Err(UriError::ControlCharacter)
        } else {
            Ok(())
        }
    }
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        Self::check(text).map(|()| Self(Arc::from(text)))
    }
}

super::name::shared_text!(Uri, "a URI");

/// The reason for which a text is not a URI of a managed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// The text has no characters.
    #[error("a URI is empty")]
    Empty,
    /// The text is longer than [`Uri::MAX_LEN`].
    #[error("a URI is longer than {} bytes", Uri::MAX_LEN)]
    TooLong,
    /// The text has more segments than [`Uri::MAX_DEPTH`].
    #[error("a URI has more than {} segments", Uri::MAX_DEPTH)]
    TooDeep,
    /// The text has a NUL, a line end or another control character.
    #[error("a URI has a control character")]
    ControlCharacter,
}

fn unescape(segment: &str) -> Cow<'_, str> {
    if !segment.contains('%') {
        return Cow::Borrowed(segment);
    }
    let mut out = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|d| char::from(*d).to_digit(16));
        // An invalid escape stays as it is, as in libopflex.
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                // Two hexadecimal digits fit a byte.
                out.extend(u8::try_from(high * 16 + low));
                rest = &after[2..];
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    Cow::Owned(String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn each_character_is_escaped_as_in_the_table() {
        for (segment, escaped) in [
            ("group1", "/group1/"),
            ("nat-epg", "/nat-epg/"),
            ("fd_ext", "/fd_ext/"),
            ("10.0.0.1", "/10.0.0.1/"),
            ("~", "/~/"),
            ("00:00:01", "/00%3a00%3a01/"),
            ("/a/b/", "/%2fa%2fb%2f/"),
            ("%2f", "/%252f/"),
            ("a b+c", "/a%20b%2bc/"),
            ("é", "/%c3%a9/"),
            ("fe80::1", "/fe80%3a%3a1/"),
            ("", "//"),
        ] {
            let read = uri(escaped);
            let elements: Vec<_> = read.elements().collect();
            assert_eq!(elements, if segment.is_empty() { vec![] } else { vec![segment] });
        }
    }

    #[test]
    fn a_uri_inside_a_uri_is_escaped_once_more_each_time() {
        let (inner, outer) = (
            uri("/EprL2Ep/%2fbd%2f/"),
            uri("/Ref/%2fEprL2Ep%2f%252fbd%252f%2f/7/"),
        );
        assert_eq!(outer.elements().nth(1).unwrap(), inner.as_str());
        assert_eq!(inner.elements().nth(1).unwrap(), "/bd/");
    }

    #[test]
    fn bad_escapes_and_double_slashes_are_tolerated() {
        let elements = |text: &str| uri(text).elements().map(Cow::into_owned).collect::<Vec<_>>();
        assert_eq!(elements("//a//b///"), ["a", "b"]);
        assert_eq!(elements("/%/%z/%2/%2F/%ff/"), ["%", "%z", "%2", "/", "\u{fffd}"]);
        assert_eq!(elements("/"), [""; 0]);
        assert_eq!(elements("a/b"), ["a", "b"]);
    }

    #[test]
    fn a_parent_is_a_prefix_that_ends_at_a_slash() {
        for (parent, child, is) in [
            ("/", "/a/", true),
            ("/a/", "/a/b/c/", true),
            ("/a", "/a/b", true),
            ("/a/", "/ab/", false),
            ("/a/", "/a/", false),
            ("/a", "/a/", false),
            ("/a/b/", "/a/", false),
            ("/", "/", false),
            ("/", "urn:x", false),
            ("/a/", "/a//b/", true),
        ] {
            assert_eq!(uri(parent).is_ancestor_of(&uri(child)), is, "{parent} {child}");
        }
        assert!(uri("/a/").covers(&uri("/a/")));
    }

    #[test]
    fn empty_long_deep_and_control_characters_are_refused() {
        assert_eq!("".parse::<Uri>(), Err(UriError::Empty));
        assert_eq!("/a\0b/".parse::<Uri>(), Err(UriError::ControlCharacter));
        assert_eq!(
            "x".repeat(Uri::MAX_LEN + 1).parse::<Uri>(),
            Err(UriError::TooLong)
        );
        assert!("x".repeat(Uri::MAX_LEN).parse::<Uri>().is_ok());
        let deep = |segments| format!("/{}", "x/".repeat(segments)).parse::<Uri>();
        assert_eq!(deep(Uri::MAX_DEPTH + 1), Err(UriError::TooDeep));
        assert!(deep(Uri::MAX_DEPTH).is_ok());
    }

    #[test]
    fn prefixes_are_the_possible_ancestors() {
        let prefixes = |text: &str| uri(text).prefixes().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(prefixes("/a/b/c/"), ["/", "/a", "/a/", "/a/b", "/a/b/"]);
        assert_eq!(prefixes("/a"), ["/"]);
        assert_eq!(prefixes("/"), [""; 0]);
        for prefix in prefixes("/a//b/c") {
            assert!(uri(&prefix).is_ancestor_of(&uri("/a//b/c")), "{prefix}");
        }
    }
}
