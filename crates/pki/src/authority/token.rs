//! Tokens with which a node joins a cluster, and the proof of one.
//!
//! ```text
//!  operator   JoinToken::new ─▶ ssntp://HOST:PORT/?ca=…&id=…&secret=…  to the node
//!                  └─▶ StoredToken: the digest of the secret, role, uses, end   to the server's store
//!  node       JoinRequest: id, secret, role, signing request ─▶ EnrolmentRecords::join ─▶ Enrolled
//!                                                                              └─▶ JoinRefusal
//! ```
//!
//! `ca` is the digest of the authority's public key, so the node knows its server before it sends the secret. The
//! store has no secret that would admit anybody.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::issue::seconds;
use super::issuer::digest;
use crate::error::{Error, Fault};
use crate::inspect::CertificateInfo;
use crate::role::Role;
use ssntp_transport::{Address, provider};

/// What a node needs to join: a server's address, the authority's key, and a proof.
///
/// Shown and parsed as the URL `ssntp://HOST:PORT/?ca=…&id=…&secret=…`: `ca` and `secret` are 32 bytes in
/// base64url without padding. Whoever knows the URL can use the token; `Debug` leaves the secret out.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    address: Address,
    authority: [u8; 32],
    id: String,
    secret: [u8; 32],
}

impl JoinToken {
    /// A new token with a random id and secret, for servers at `address` of this authority.
    ///
    /// # Errors
    /// [`Error::Content`] if the certificate is broken; [`Error::Crypto`].
    pub fn new(address: Address, authority: &CertificateInfo) -> Result<Self, Error> {
        let mut secret = [0; 32];
        let filled = provider().secure_random.fill(&mut secret);
        filled.map_err(|_| Error::Crypto("no random bytes".to_owned()))?;
        let authority = authority.key_digest().map_err(Error::content("the authority"))?;
        Ok(Self {
            address,
            authority,
            id: Uuid::new_v4().simple().to_string(),
            secret,
        })
    }

    /// The server's address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The SHA-256 digest of the authority's public key (SubjectPublicKeyInfo).
    pub fn authority(&self) -> &[u8; 32] {
        &self.authority
    }

    /// The id, which is not secret: 32 hexadecimal digits if [`new`](Self::new) has made it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The request to join in these roles with a signing request in PEM.
    pub fn request(&self, roles: Role, signing_request: String) -> JoinRequest {
        JoinRequest {
            id: self.id.clone(),
            secret: URL_SAFE_NO_PAD.encode(self.secret),
            roles,
            request: signing_request,
        }
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ca, secret] = [self.authority, self.secret].map(|bytes| URL_SAFE_NO_PAD.encode(bytes));
        write!(
            f,
            "ssntp://{}/?ca={ca}&id={}&secret={secret}",
            self.address, self.id
        )
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({} at {})", self.id, self.address)
    }
}

impl FromStr for JoinToken {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        let bad = ParseTokenError;
        let rest = text.trim().strip_prefix("ssntp://");
        let rest = rest.ok_or(bad("it does not begin with ssntp://"))?;
        let parts = rest.split_once("/?ca=");
        let (address, rest) = parts.ok_or(bad("there is no /?ca= after the address"))?;
        let (ca, rest) = rest.split_once("&id=").ok_or(bad("there is no &id= after ca"))?;
        let parts = rest.split_once("&secret=");
        let (id, secret) = parts.ok_or(bad("there is no &secret= after id"))?;
        let is_server = |address: &Address| matches!(address, Address::Tcp { host, port } if !host.is_empty() && *port != 0);
        let address = address.parse().ok().filter(is_server);
        check_id(id).map_err(bad)?;
        Ok(Self {
            address: address.ok_or(bad("its address is not HOST:PORT"))?,
            authority: bytes(ca).ok_or(bad("its ca is not 32 bytes in base64url"))?,
            id: id.to_owned(),
            secret: bytes(secret).ok_or(bad("its secret is not 32 bytes in base64url"))?,
        })
    }
}

fn check_id(id: &str) -> Result<(), &'static str> {
    let is_of_an_id = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if (1..=64).contains(&id.len()) && id.bytes().all(is_of_an_id) {
        Ok(())
    } else {
        Err("its id is not 1 to 64 letters, digits, - and _")
    }
}

/// 32 bytes in base64url.
fn bytes(text: &str) -> Option<[u8; 32]> {
    URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}

/// The text is not a [`JoinToken`]; this names the part that is wrong, and does not repeat the text, which may hold
/// a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a join token: {0}")]
pub struct ParseTokenError(&'static str);

/// A node's request to join. `Debug` leaves the secret out.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JoinRequest {
    /// The id of its token.
    pub id: String,
    /// The secret of its token: 32 bytes in base64url.
    pub secret: String,
    /// The roles that it wants to have.
    pub roles: Role,
    /// The signing request for its key, as PEM.
    pub request: String,
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinRequest({:?} as {})", self.id, self.roles)
    }
}

/// A token as a store keeps it. It admits nobody, because it lacks the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredToken {
    /// The id.
    pub id: String,
    /// The SHA-256 digest of the secret in base64url.
    pub secret_sha256: String,
    /// The roles that a node gets with it, or some of them.
    pub roles: Role,
    /// The UUID that the node gets; `None`: a random one at each use.
    pub uuid: Option<Uuid>,
    /// The number of nodes that may still join with it.
    pub uses_left: u32,
    /// The end of the token, in seconds since 1970.
    pub ends: u64,
    /// The operator who made it, for lists.
    pub made_by: String,
}

impl StoredToken {
    /// The record of a token for `uses` nodes with these roles. A token for a `uuid` is for one node.
    pub fn new(
        token: &JoinToken,
        roles: Role,
        uuid: Option<Uuid>,
        uses: u32,
        ends: SystemTime,
        made_by: &str,
    ) -> Self {
        Self {
            id: token.id.clone(),
            secret_sha256: digest(&token.secret),
            roles,
            uuid,
            uses_left: if uuid.is_some() { uses.min(1) } else { uses },
            ends: seconds(ends),
            made_by: made_by.to_owned(),
        }
    }

    /// Checks what a JSON or YAML text may hold that no [`JoinToken`] has.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        check_id(&self.id)?;
        let digest = bytes(&self.secret_sha256);
        digest
            .map(drop)
            .ok_or("its secret_sha256 is not 32 bytes in base64url")
    }

    /// Decides whether a node may join now. `is_again`: a node with the same key has a certificate for this token. It
    /// lost the answer, and gets the certificate again. The comparison of the secret takes as long for a wrong one as
    /// for the right one.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn decide(&self, request: &JoinRequest, is_again: bool, now: SystemTime) -> Result<(), JoinRefusal> {
        let secret = URL_SAFE_NO_PAD.decode(&request.secret).unwrap_or_default();
        let shown = digest(&secret);
        let differs = shown.bytes().zip(self.secret_sha256.bytes());
        let differs = differs.fold(0, |differs, (one, other)| black_box(differs | (one ^ other)));
        if differs != 0 || shown.len() != self.secret_sha256.len() || request.id != self.id {
            return Err(JoinRefusal::Proof);
        }
        if seconds(now) >= self.ends {
            return Err(JoinRefusal::Ended);
        }
        let (token, asked) = (self.roles, request.roles);
        if asked.is_empty() || !token.contains(asked) {
            return Err(JoinRefusal::Roles { token, asked });
        }
        if !is_again && self.uses_left == 0 {
            return Err(JoinRefusal::Used);
        }
        Ok(())
    }
}

/// The reason why a node gets no certificate. The text is sent to the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinRefusal {
    /// There is no such token, or the secret is wrong; which of the two is not told.
    #[error(
        "there is no token with this id and this secret; it may have been removed, or have ended long ago"
    )]
    Proof,
    /// The token has ended.
    #[error("the token has ended; a new one is needed")]
    Ended,
    /// The token is used up: it was for so many nodes, and all have joined.
    #[error("the token has been used; a new one is needed")]
    Used,
    /// The token is for other roles.
    #[error("the token is for the roles {token}, not {asked}")]
    Roles {
        /// The roles of the token.
        token: Role,
        /// The roles that the node wants to have.
        asked: Role,
    },
    /// The request cannot be read, or it asks for more than a certificate.
    #[error("{0}")]
    Request(String),
    /// The certificate of the node cannot be renewed over its session.
    #[error("{0}")]
    NotRenewable(String),
    /// The issuer of the server cannot issue this certificate, for example because it has expired. The same key may try
    /// again once an operator has replaced it.
    #[error("the issuer cannot issue the certificate: {0}; an operator has to replace the issuer")]
    Issuer(String),
    /// Too many nodes join at present, all together or from this address.
    #[error("too many nodes join at a time; try again")]
    Busy,
    /// The store cannot take the certificate now, or does not answer, so that it is not known whether the token was
    /// used. The same key may try again.
    #[error("the server cannot write its records, or does not know whether it has; try again")]
    Unavailable,
}

impl JoinRefusal {
    /// The words for refusals of the server's, after which the same key may try again.
    pub const LATER: [&str; 3] = ["issuer", "busy", "unavailable"];

    /// The word for it on the wire and in metrics, from a fixed list.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Proof => "proof",
            Self::Ended => "ended",
            Self::Used => "used",
            Self::Roles { .. } => "roles",
            Self::Request(_) => "request",
            Self::NotRenewable(_) => "not_renewable",
            Self::Issuer(_) => "issuer",
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
        }
    }
}

impl From<Error> for JoinRefusal {
    fn from(error: Error) -> Self {
        Self::Issuer(error.to_string())
    }
}

impl From<Fault> for JoinRefusal {
    fn from(fault: Fault) -> Self {
        Self::Request(fault.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::{Authority, AuthorityRequest};

    const NOW: SystemTime = UNIX_EPOCH;
    const HOUR: Duration = Duration::from_secs(3600);

    fn authority() -> Authority {
        Authority::new(&AuthorityRequest::default()).unwrap()
    }

    fn token(authority: &Authority) -> JoinToken {
        JoinToken::new(Address::tcp("::1", 8888), authority.info()).unwrap()
    }

    #[test]
    fn a_token_is_printed_and_read_back_and_its_secret_is_not_in_the_log() {
        let authority = authority();
        let token = token(&authority);
        let url = token.to_string();
        assert!(url.starts_with("ssntp://[::1]:8888/?ca="), "{url}");
        assert_eq!(url.parse(), Ok(token.clone()));
        assert_eq!(*token.authority(), authority.info().key_digest().unwrap());
        let secret = URL_SAFE_NO_PAD.encode(token.secret);
        let request = token.request(Role::AGENT, String::new());
        assert!(url.ends_with(&secret) && request.secret == secret);
        assert!(!format!("{token:?}{request:?}").contains(&secret));
        assert_ne!(token, self::token(&authority));
    }

    #[test]
    fn a_text_that_is_no_token_is_refused_with_its_wrong_part() {
        let url = token(&authority()).to_string();
        let (front, secret) = url.split_at(url.len() - 5);
        let ca = url.split(['=', '&']).nth(1).unwrap();
        for (text, part) in [
            (url.replace("ssntp:", "https:"), "ssntp://"),
            (url.replace("[::1]:8888", "[::1]"), "address"),
            (url.replace("[::1]", ""), "address"),
            (url.replace("8888", "0"), "address"),
            (url.replace("/?", "/"), "/?ca="),
            (url.replace(ca, ""), "its ca"),
            (url.replace("&id=", "&x="), "&id="),
            (url.replace("&id=", "&id=%20"), "its id"),
            (url.replace("&secret", ""), "&secret="),
            (front.to_owned(), "its secret"),
            (format!("{url}&x=1"), "its secret"),
            (format!("{front}{secret}A"), "its secret"),
        ] {
            let refused = text.parse::<JoinToken>().unwrap_err().to_string();
            assert!(refused.contains(part), "{text}: {refused}");
            assert!(!refused.contains(&front[front.len() - 20..]));
        }
    }

    #[test]
    fn a_join_is_decided_by_proof_end_roles_and_uses() {
        let token = token(&authority());
        let both = Role::AGENT | Role::NETAGENT;
        let stored = StoredToken::new(&token, both, None, 1, NOW + HOUR, "ops");
        let good = token.request(Role::AGENT, String::new());
        let at = |stored: &StoredToken, request: &JoinRequest, now| stored.decide(request, false, now);
        assert_eq!(at(&stored, &good, NOW), Ok(()));
        assert_eq!(at(&stored, &good, NOW + HOUR), Err(JoinRefusal::Ended));
        let used = StoredToken {
            uses_left: 0,
            ..stored.clone()
        };
        assert_eq!(at(&used, &good, NOW), Err(JoinRefusal::Used));
        for secret in ["", "AAAA", &stored.secret_sha256, &good.secret[1..]] {
            let wrong = JoinRequest {
                secret: secret.to_owned(),
                ..good.clone()
            };
            // Whether a token has ended is told only to a holder of its secret.
            assert_eq!(at(&used, &wrong, NOW + HOUR), Err(JoinRefusal::Proof));
        }
        let of_other = JoinRequest {
            id: "other".to_owned(),
            ..good.clone()
        };
        assert_eq!(at(&stored, &of_other, NOW), Err(JoinRefusal::Proof));
        for asked in [Role::CONTROLLER, both | Role::CNCIAGENT, Role::NONE] {
            let other = JoinRequest {
                roles: asked,
                ..good.clone()
            };
            assert_eq!(
                at(&stored, &other, NOW),
                Err(JoinRefusal::Roles { token: both, asked })
            );
        }
    }

    #[test]
    fn records_are_stored_as_json_like_text() {
        let stored = StoredToken::new(&token(&authority()), Role::AGENT, None, 1, NOW + HOUR, "ops");
        let text = serde_json::to_string(&stored).unwrap();
        assert!(
            text.contains("\"roles\":\"agent\"") && text.contains("\"ends\":3600"),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<StoredToken>(&text).unwrap(), stored);
    }
}
