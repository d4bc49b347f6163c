//! Bearer tokens: secrets that grant browsers and programs the right to read or to write.
//!
//! | holder | holds | rights |
//! |---|---|---|
//! | a program, in `Authorization: Bearer` | the token | those of the token |
//! | a browser, in a cookie | the digest of the token | reading only |
//! | the file `DIR/tokens` | the digest of that digest | none |
//!
//! A browser sends a cookie to every port of a host, so a cookie must not be enough to write. The
//! file is read again for each request with a token, so a change takes effect at once.

use std::fs::{self, File};
use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use ssntp::pki::rfc3339;
use ssntp_payload::check_name;
use ssntp_payload::timestamp;
use ssntp_transport::{replace, sha256};
use thiserror::Error;
use uuid::Uuid;

use crate::clock::{time, unix_ms};

/// The maximum number of tokens. Each request with a token compares it with all of them.
const MOST: usize = 256;
/// The name of the token in the link that the controller prints. Users cannot give a token this name.
const LINK: &str = "printed link";
const LINK_LIFETIME: Duration = Duration::from_secs(86_400);

/// The right of a client.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// The client may read everything.
    Read,
    /// The client may also change workloads.
    Write,
}

/// A token, without its secret.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// The name, which is unique.
    pub name: String,
    /// The right of a client that presents the token.
    pub right: Right,
    /// The tenant to which the token is limited. `None` if it may see everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The time at which the token was made, in RFC 3339.
    pub made: String,
    /// The time from which the token is refused, in RFC 3339. `None` if the token has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// The digest of the digest of the secret, in hexadecimal.
    hash: String,
}

/// The tokens of a controller: the file `tokens` in the directory of its database.
///
/// # Threads
/// `Send` and `Sync`. All calls block on the disk.
#[derive(Clone, Debug)]
pub struct Tokens {
    file: PathBuf,
}

/// Why tokens cannot be read or changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file cannot be read or written.
    #[error("{0}: {1}")]
    File(PathBuf, #[source] io::Error),
    /// The file is not a list of tokens.
    #[error("{0}: {1}")]
    Content(PathBuf, #[source] serde_json::Error),
    /// The name has characters that are not allowed, or is too long.
    #[error("{0:?}: {1}")]
    Name(String, &'static str),
    /// A token of this name exists.
    #[error("there is a token {0} already")]
    Known(String),
    /// No token has this name.
    #[error("there is no token {0}")]
    Unknown(String),
    /// The lifetime of the token (its name, its end) is over. Make a new token.
    #[error("the token {0} expired at {1}; make a new one")]
    Expired(String, String),
    /// The file holds the most tokens that are allowed.
    #[error("there are {MOST} tokens, and there may be no more; remove one first")]
    TooMany,
}

impl Tokens {
    /// The tokens in the directory of a database. Does not read the file yet.
    pub fn new(directory: &Path) -> Self {
        let file = directory.join("tokens");
        Self { file }
    }

    /// All tokens in the order in which they were made.
    ///
    /// # Errors
    /// [`TokenError::File`], [`TokenError::Content`].
    pub fn list(&self) -> Result<Vec<Token>, TokenError> {
        match fs::read(&self.file) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| TokenError::Content(self.file.clone(), e)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(TokenError::File(self.file.clone(), e)),
        }
    }

    /// Makes a token and returns its secret, which is not stored. A token with a tenant may read what the tenant
    /// has, and nothing else. Without a lifetime the token has no end. A lifetime that ends after the year 2500 is
    /// not supported.
    ///
    /// # Errors
    /// [`TokenError`]; no token was made.
    pub fn add(
        &self,
        name: &str,
        right: Right,
        tenant: Option<&str>,
        lifetime: Option<Duration>,
    ) -> Result<String, TokenError> {
        for name in [name].into_iter().chain(tenant) {
            check_name(name).map_err(|why| TokenError::Name(name.to_owned(), why))?;
        }
        self.insert(name, right, tenant, lifetime)
    }

    /// Makes the token of the link that the controller prints, in place of the one before.
    pub(super) fn renew_link(&self) -> Result<String, TokenError> {
        self.insert(LINK, Right::Read, None, Some(LINK_LIFETIME))
    }

    fn insert(
        &self,
        name: &str,
        right: Right,
        tenant: Option<&str>,
        lifetime: Option<Duration>,
    ) -> Result<String, TokenError> {
        // Two random UUIDs have 244 random bits. The prefix lets scanners find a leaked token.
        let secret = format!("ssntp-{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let now = time(unix_ms());
        let token = Token {
            name: name.to_owned(),
            right,
            tenant: tenant.map(str::to_owned),
            made: rfc3339(now),
            expires: lifetime
                .and_then(|lifetime| now.checked_add(lifetime))
                .map(rfc3339),
            hash: digest(&digest(&secret)),
        };
        self.change(|tokens| {
            if name == LINK {
                tokens.retain(|known| known.name != LINK);
            }
            if tokens.iter().any(|known| known.name == name) {
                return Err(TokenError::Known(name.to_owned()));
            } else if tokens.len() >= MOST {
                return Err(TokenError::TooMany);
            }
            tokens.push(token);
            Ok(())
        })?;
        Ok(secret)
    }

    /// Removes a token, which is refused from then on.
    ///
    /// # Errors
    /// [`TokenError`]; the token still grants its right.
    pub fn remove(&self, name: &str) -> Result<(), TokenError> {
        self.change(|tokens| {
            let before = tokens.len();
            tokens.retain(|token| token.name != name);
            if tokens.len() == before {
                return Err(TokenError::Unknown(name.to_owned()));
            }
            Ok(())
        })
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Vec<Token>) -> Result<(), TokenError>,
    ) -> Result<(), TokenError> {
        let failed = |e| TokenError::File(self.file.clone(), e);
        // The lock makes the second of two processes that change the file wait. It is on the
        // directory, because the file itself is replaced by a rename.
        let directory = File::open(self.file.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        flock(&directory, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        let mut tokens = self.list()?;
        change(&mut tokens)?;
        let text =
            serde_json::to_string_pretty(&tokens).map_err(|e| TokenError::Content(self.file.clone(), e))?;
        replace(&self.file, format!("{text}\n").as_bytes()).map_err(failed)
    }

    /// The token with this secret, unless its lifetime is over.
    pub(super) fn token(&self, secret: &str) -> Result<Option<Token>, TokenError> {
        self.of_cookie(&digest(secret))
    }

    /// The token whose digest is in a cookie. A client that sends a cookie alone may only read,
    /// whatever the token's right is.
    pub(super) fn of_cookie(&self, cookie: &str) -> Result<Option<Token>, TokenError> {
        let hash = digest(cookie);
        // Every token is compared, so the duration does not reveal which one matched.
        let found = self.list()?.into_iter().fold(None, |found, token| {
            is_equal(&token.hash, &hash).then_some(token).or(found)
        });
        match found {
            Some(token) if token.has_expired() => {
                Err(TokenError::Expired(token.name, token.expires.unwrap_or_default()))
            }
            found => Ok(found),
        }
    }
}

impl Token {
    /// True from the end of the lifetime on. An end that cannot be read, because the file was
    /// edited by hand, counts as past: no token may outlive the intention of its maker.
    fn has_expired(&self) -> bool {
        let now = u64::try_from(unix_ms()).unwrap_or(0).saturating_mul(1_000_000);
        let end = self.expires.as_deref().map(timestamp::parse);
        end.is_some_and(|end| end.is_none_or(|end| end <= now))
    }
}

/// The SHA-256 digest in hexadecimal, which a browser holds in its cookie.
pub(super) fn digest(secret: &str) -> String {
    let digest = sha256(secret.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares two texts in a time that depends on their lengths alone.
fn is_equal(a: &str, b: &str) -> bool {
    let pairs = a.bytes().zip(b.bytes());
    let differs = pairs.fold(0, |differs, (a, b)| black_box(differs | (a ^ b)));
    a.len() == b.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(tokens: &Tokens, secret: &str) -> Option<Right> {
        tokens.token(secret).unwrap().map(|token| token.right)
    }

    #[test]
    fn token_is_valid_until_it_is_removed_and_its_secret_is_not_stored() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::new(directory.path());
        assert_eq!(right(&tokens, ""), None);
        let read = tokens.add("eyes", Right::Read, None, None).unwrap();
        let write = tokens.add("hands", Right::Write, None, None).unwrap();
        assert_ne!(read, write);
        assert_eq!(right(&tokens, &read), Some(Right::Read));
        assert_eq!(right(&tokens, &write), Some(Right::Write));
        let text = fs::read_to_string(directory.path().join("tokens")).unwrap();
        let cookie = digest(&write);
        assert!(!text.contains(&write[6..]) && !text.contains(&cookie), "{text}");
        // The digest in a cookie is not accepted as a token, and the digest in the file neither as a
        // token nor as a cookie.
        assert_eq!(tokens.of_cookie(&cookie).unwrap().unwrap().right, Right::Write);
        assert_eq!(right(&tokens, &cookie), None);
        for token in tokens.list().unwrap() {
            assert_eq!(right(&tokens, &token.hash), None);
            assert_eq!(tokens.of_cookie(&token.hash).unwrap(), None);
        }
        assert!(matches!(
            tokens.add("eyes", Right::Read, None, None),
            Err(TokenError::Known(_))
        ));
        assert!(matches!(
            tokens.add("a b", Right::Read, None, None),
            Err(TokenError::Name(..))
        ));
        tokens.remove("hands").unwrap();
        assert_eq!(right(&tokens, &write), None);
        assert!(matches!(tokens.remove("hands"), Err(TokenError::Unknown(_))));
    }

    #[test]
    fn token_is_refused_from_the_end_of_its_lifetime_on() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::new(directory.path());
        let lives = tokens
            .add("lives", Right::Write, None, Some(Duration::from_secs(86_400)))
            .unwrap();
        let over = tokens
            .add("over", Right::Write, None, Some(Duration::ZERO))
            .unwrap();
        assert_eq!(right(&tokens, &lives), Some(Right::Write));
        for error in [
            tokens.token(&over).unwrap_err(),
            tokens.of_cookie(&digest(&over)).unwrap_err(),
        ] {
            assert!(
                error.to_string().starts_with("the token over expired at 2"),
                "{error}"
            );
        }
        let ends: Vec<_> = tokens
            .list()
            .unwrap()
            .into_iter()
            .map(|one| one.expires)
            .collect();
        assert!(
            matches!(&ends[..], [Some(later), Some(end)] if later > end),
            "{ends:?}"
        );
        // A file of an earlier version has tokens without an expiry, and a file that was edited by hand may
        // have an expiry that cannot be read.
        let file = directory.path().join("tokens");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace(ends[1].as_deref().unwrap(), "tomorrow")).unwrap();
        assert!(matches!(tokens.token(&over), Err(TokenError::Expired(..))));
        let none = tokens.add("none", Right::Read, None, None).unwrap();
        assert!(
            !fs::read_to_string(&file)
                .unwrap()
                .split("\"none\"")
                .nth(1)
                .unwrap()
                .contains("expires")
        );
        assert_eq!(right(&tokens, &none), Some(Right::Read));
    }

    #[test]
    fn only_equal_texts_are_equal() {
        for (a, b, equal) in [
            ("", "", true),
            ("ab", "ab", true),
            ("ab", "aa", false),
            ("ab", "a", false),
        ] {
            assert_eq!(is_equal(a, b), equal, "{a} {b}");
        }
    }
}
