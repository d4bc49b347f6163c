//! The rights of clients.
//!
//! | client | may |
//! |---|---|
//! | without any of these | only ask for `/healthz`; without `login`, read: all at a Unix socket, which only the daemon's own user can open, and all but the output of instances at a loopback address |
//! | with the cookie of a token | read |
//! | with `Authorization: Bearer` and a token | read, and write if the token has that right |
//! | with a token, or its cookie, that is limited to a tenant | read what the tenant has |
//! | over TLS, with a certificate of the cluster and the role Controller | read and write |
//! | over TLS, with a certificate of the authority for readers | read |

use std::sync::{Arc, PoisonError, RwLock};

use ssntp_http::{HttpError, Refused, Request};

use super::tokens::{Right, Token, TokenError, Tokens};
use ssntp::Role;
use ssntp::pki::{CertificateInfo, Fault, Trust};
use ssntp_transport::rustls::pki_types::CertificateDer;
use ssntp_transport::tls::TlsError;

/// The name of the cookie. Because of `SameSite=Strict`, a browser sends the cookie only with
/// requests that this site's own pages make.
pub(super) const COOKIE: &str = "ssntp-look";

/// The authorities of client certificates.
#[derive(Clone, Debug)]
pub(super) struct Trusts {
    /// The cluster's own. Its certificates with the role Controller may write.
    pub(super) cluster: Trust,
    /// The authority for readers. Each of its certificates may read.
    pub(super) look: Option<Trust>,
}

/// A client that may read or write.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) right: Right,
    /// Its name in the history: that of its token, or subject and serial number of its certificate;
    /// empty if it showed neither.
    pub(super) name: String,
    /// True if it may read the output of instances.
    pub(super) reads_output: bool,
    /// The tenant to which it is limited; `None` if it may see everything.
    pub(super) tenant: Option<String>,
}

impl Client {
    fn of_token(token: Token) -> Self {
        Self {
            // A token for a tenant cannot be made with the right to write.
            right: if token.tenant.is_some() {
                Right::Read
            } else {
                token.right
            },
            reads_output: true,
            name: format!("token {}", token.name),
            tenant: token.tenant,
        }
    }
}

/// Decides what a client may do. Clones share the authorities, so a stream ends when its
/// certificate is no longer trusted.
#[derive(Clone, Debug)]
pub(super) struct Access {
    tokens: Tokens,
    /// True if a client without a certificate needs a token even to read.
    login: bool,
    /// True if only the daemon's own user can connect.
    is_private: bool,
    trusts: Arc<RwLock<Option<Trusts>>>,
}

impl Access {
    pub(super) fn new(tokens: Tokens, login: bool, is_private: bool, trusts: Option<Trusts>) -> Self {
        let trusts = Arc::new(RwLock::new(trusts));
        Self {
            tokens,
            login,
            is_private,
            trusts,
        }
    }

    /// The present authorities; `None` without TLS. The lock is not held while a certificate is
    /// verified.
    pub(super) fn trusts(&self) -> Option<Trusts> {
        self.trusts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the authorities.
    pub(super) fn renew(&self, trusts: Trusts) {
        *self.trusts.write().unwrap_or_else(PoisonError::into_inner) = Some(trusts);
    }

    /// A new token for the link that is printed; the former one is no longer known. `None` if reading needs no
    /// token.
    pub(super) fn link_token(&self) -> Result<Option<String>, TokenError> {
        self.login.then(|| self.tokens.renew_link()).transpose()
    }

    /// The client that has a token; `None` if the token is not known.
    pub(super) fn of_token(&self, secret: &str) -> Result<Option<Client>, Refused> {
        let token = self.tokens.token(secret).map_err(refused)?;
        Ok(token.map(Client::of_token))
    }

    /// The client that sent a request; `None` if it has to log in first.
    pub(super) fn client(&self, request: &Request) -> Result<Option<Client>, Refused> {
        let by_certificate = match (&request.chain[..], self.trusts()) {
            ([], _) | (_, None) => None,
            (chain, Some(trusts)) => Some(trusts.client(chain)),
        };
        if let Some(shown) = request.header("authorization") {
            let secret = shown.split_once(' ');
            let secret = secret.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            let wrong = || Refused::new(401, "Authorization must be: Bearer TOKEN");
            let (_, secret) = secret.ok_or_else(wrong)?;
            let client = self.of_token(secret.trim())?;
            // A client that sends a token relies on the right of the token. So an unknown token is an
            // error even if reading needs no token.
            let client = client.ok_or(Refused::new(401, "this token is not known"))?;
            // A client with both a certificate and a token has the higher right of the two.
            let certified = by_certificate.and_then(Result::ok);
            let higher = certified.filter(|one| one.right > client.right);
            return Ok(Some(higher.unwrap_or(client)));
        }
        // A cookie can only grant the right to read, which these clients have anyway.
        if let Some(certified) = by_certificate {
            return certified.map(Some);
        }
        let unknown = (!self.login).then(|| Client {
            right: Right::Read,
            name: String::new(),
            reads_output: self.is_private,
            tenant: None,
        });
        let cookies = request.header("cookie").unwrap_or_default().split(';');
        let mut cookies = cookies.filter_map(|cookie| cookie.trim().split_once('='));
        let cookie = cookies.find(|(name, _)| *name == COOKIE);
        let Some((_, cookie)) = cookie else {
            return Ok(unknown);
        };
        match self.tokens.of_cookie(cookie) {
            // The browser has to log in again, as it does if the token was removed.
            Err(TokenError::Expired(..)) => Ok(unknown),
            token => {
                let of_token = token.map_err(refused)?.map(|token| Client {
                    right: Right::Read,
                    ..Client::of_token(token)
                });
                Ok(of_token.or(unknown))
            }
        }
    }
}

/// The answer to a client whose token cannot be checked or has expired.
fn refused(e: TokenError) -> Refused {
    match e {
        TokenError::Expired(..) => Refused::new(401, e.to_string()),
        e => Refused::new(503, format!("tokens cannot be read: {e}")),
    }
}

/// Refuses a request that a page of another site made a browser send. Older browsers send `Origin`
/// but not `Sec-Fetch-Site`; programs send neither.
pub(super) fn check_origin(request: &Request) -> Result<(), Refused> {
    let origin = || request.header("origin").map(|origin| origin.split_once("://"));
    let is_own = match (request.header("sec-fetch-site"), origin()) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => origin.is_some_and(|(_, host)| Some(host) == request.header("host")),
        (None, None) => true,
    };
    if is_own {
        Ok(())
    } else {
        Err(Refused::new(403, "a page of another site may not write"))
    }
}

impl Trusts {
    /// All authorities together, for the handshake.
    pub(super) fn all(&self) -> Result<Trust, HttpError> {
        let look = self.look.as_ref();
        let all = look.map_or_else(|| Ok(self.cluster.clone()), |look| self.cluster.and(look));
        all.map_err(|e| HttpError::Tls(TlsError::Configuration(e.to_string())))
    }

    /// The client with this certificate chain, which TLS has verified.
    fn client(&self, chain: &[CertificateDer<'static>]) -> Result<Client, Refused> {
        let info = chain.first().and_then(|own| CertificateInfo::from_der(own).ok());
        let name = info.map(|info| format!("{}, serial number {}", info.subject, info.serial));
        let named = |right| Client {
            right,
            name: name.unwrap_or_default(),
            reads_output: true,
            tenant: None,
        };
        let of_cluster = self.cluster.verify(chain);
        if of_cluster.is_ok_and(|certificate| certificate.roles.intersects(Role::CONTROLLER)) {
            return Ok(named(Right::Write));
        }
        match self.look.as_ref().map(|look| look.verify(chain)) {
            // A certificate of the authority for readers needs no role of a cluster.
            Some(Ok(_) | Err(Fault::NoRole)) => Ok(named(Right::Read)),
            _ => Err(Refused::new(403, "the certificate's role must be controller")),
        }
    }
}
