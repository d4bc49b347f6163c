//! Tokens: secrets by which browsers and programs show what they may do.
//!
//! | who has | knows | may |
//! |---|---|---|
//! | a program, in `Authorization: Bearer` | the token | look; write if the token may |
//! | a browser, in a cookie | the digest of the token | look |
//! | the file `DIR/tokens` | the digest of that digest | nothing |
//!
//! A browser sends a cookie to every port of a host, so the cookie must not be enough to write. The
//! file is read again each time that a token is shown, so a change counts at once.

use std::fs::{self, File};
use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use ssntp::payload::check_name;
use ssntp_transport::pki::sha256;
use ssntp_transport::replace;
use thiserror::Error;
use uuid::Uuid;

/// The most tokens, because each is compared when one is shown.
const MOST: usize = 256;

/// What a client may do.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// See everything.
    Read,
    /// Change workloads, too.
    Write,
}

/// A token, without its secret.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// What people call it.
    pub name: String,
    /// What it allows.
    pub right: Right,
    /// When it was made, as RFC 3339 writes it.
    pub made: String,
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
    /// The name is not allowed.
    #[error("{0:?}: {1}")]
    Name(String, &'static str),
    /// There is a token of this name.
    #[error("there is a token {0} already")]
    Known(String),
    /// There is none.
    #[error("there is no token {0}")]
    Unknown(String),
    /// There are as many tokens as there may be.
    #[error("there are {MOST} tokens, and there may be no more; remove one first")]
    TooMany,
    /// The program was built without cryptography.
    #[error("no cryptography was compiled in")]
    NoDigest,
}

impl Tokens {
    /// The tokens in the directory of a database. Nothing is read yet.
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

    /// Makes a token, and gives its secret, which is not kept. `made` is the present time.
    ///
    /// # Errors
    /// [`TokenError`]; then there is no token.
    pub fn add(&self, name: &str, right: Right, made: &str) -> Result<String, TokenError> {
        check_name(name).map_err(|why| TokenError::Name(name.to_owned(), why))?;
        let secret = format!("ssntp-{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let token = Token {
            name: name.to_owned(),
            right,
            made: made.to_owned(),
            hash: digest(&digest(&secret).ok_or(TokenError::NoDigest)?).ok_or(TokenError::NoDigest)?,
        };
        self.change(|tokens| match tokens.iter().any(|known| known.name == name) {
            true => Err(TokenError::Known(name.to_owned())),
            false if tokens.len() >= MOST => Err(TokenError::TooMany),
            false => {
                tokens.push(token);
                Ok(())
            }
        })?;
        Ok(secret)
    }

    /// Removes a token. It does not count from then on.
    ///
    /// # Errors
    /// [`TokenError`]; then it still counts.
    pub fn remove(&self, name: &str) -> Result<(), TokenError> {
        self.change(|tokens| {
            let before = tokens.len();
            tokens.retain(|token| token.name != name);
            match tokens.len() < before {
                true => Ok(()),
                false => Err(TokenError::Unknown(name.to_owned())),
            }
        })
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Vec<Token>) -> Result<(), TokenError>,
    ) -> Result<(), TokenError> {
        let failed = |e| TokenError::File(self.file.clone(), e);
        // Of two processes that change the file, the second one waits. The directory is locked,
        // because the file is replaced.
        let directory = File::open(self.file.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        flock(&directory, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        let mut tokens = self.list()?;
        change(&mut tokens)?;
        let text =
            serde_json::to_string_pretty(&tokens).map_err(|e| TokenError::Content(self.file.clone(), e))?;
        replace(&self.file, format!("{text}\n").as_bytes()).map_err(failed)
    }

    /// What a program may do that shows this secret; none if it is not known.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn right(&self, secret: &str) -> Result<Option<Right>, TokenError> {
        match digest(secret) {
            Some(cookie) => self.right_of_cookie(&cookie),
            None => Err(TokenError::NoDigest),
        }
    }

    /// The right of the token of which a cookie has the digest. With a cookie alone a client may
    /// look, whatever the right is.
    pub(super) fn right_of_cookie(&self, cookie: &str) -> Result<Option<Right>, TokenError> {
        let hash = digest(cookie).ok_or(TokenError::NoDigest)?;
        // Every token is compared, whether or not one was found.
        let found = self.list()?.iter().fold(None, |found, token| {
            let right = is_equal(&token.hash, &hash).then_some(token.right);
            right.or(found)
        });
        Ok(found)
    }
}

/// The SHA-256 digest in hexadecimal: what a browser keeps of a token.
pub(super) fn digest(secret: &str) -> Option<String> {
    let digest = sha256(secret.as_bytes());
    Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares in a time that depends on the lengths alone.
fn is_equal(a: &str, b: &str) -> bool {
    let pairs = a.bytes().zip(b.bytes());
    let differs = pairs.fold(0, |differs, (a, b)| black_box(differs | (a ^ b)));
    a.len() == b.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_counts_until_it_is_removed_and_its_secret_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::new(directory.path());
        assert_eq!(tokens.right("").unwrap(), None);
        let read = tokens.add("eyes", Right::Read, "2026-01-01T00:00:00Z").unwrap();
        let write = tokens.add("hands", Right::Write, "2026-01-01T00:00:00Z").unwrap();
        assert_ne!(read, write);
        assert_eq!(tokens.right(&read).unwrap(), Some(Right::Read));
        assert_eq!(tokens.right(&write).unwrap(), Some(Right::Write));
        let text = fs::read_to_string(directory.path().join("tokens")).unwrap();
        let cookie = digest(&write).unwrap();
        assert!(!text.contains(&write[6..]) && !text.contains(&cookie), "{text}");
        // A cookie is no token, and what the file has is neither.
        assert_eq!(tokens.right_of_cookie(&cookie).unwrap(), Some(Right::Write));
        assert_eq!(tokens.right(&cookie).unwrap(), None);
        for token in tokens.list().unwrap() {
            assert_eq!(tokens.right(&token.hash).unwrap(), None);
            assert_eq!(tokens.right_of_cookie(&token.hash).unwrap(), None);
        }
        assert!(matches!(
            tokens.add("eyes", Right::Read, ""),
            Err(TokenError::Known(_))
        ));
        assert!(matches!(
            tokens.add("a b", Right::Read, ""),
            Err(TokenError::Name(..))
        ));
        tokens.remove("hands").unwrap();
        assert_eq!(tokens.right(&write).unwrap(), None);
        assert!(matches!(tokens.remove("hands"), Err(TokenError::Unknown(_))));
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
