//! Who may look, and who may write.
//!
//! | client | may |
//! |---|---|
//! | at a loopback address or a Unix socket | look, unless a login is asked for |
//! | with the cookie of a token | look |
//! | with `Authorization: Bearer` and a token | what the token allows |
//! | over TLS, with a certificate of the cluster and the role Controller | look and write |
//! | over TLS, with a certificate of the authority for those who look | look |

use ssntp_admin::http::{Refused, Request};

use super::Trusts;
use super::tokens::{Right, Tokens};
use ssntp::Role;
use ssntp::pki::Fault;

/// The cookie. A browser sends it with requests of this site's own pages alone.
pub(super) const COOKIE: &str = "ssntp-look";

#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) tokens: Tokens,
    /// Whether looking needs a token where there is no certificate.
    pub(super) login: bool,
}

impl Access {
    /// What a client may do; none if it has to log in first.
    pub(super) fn right(&self, request: &Request, trusts: Option<&Trusts>) -> Result<Option<Right>, Refused> {
        let unreadable =
            |e: super::tokens::TokenError| Refused::new(503, format!("tokens cannot be read: {e}"));
        let by_certificate = match (&request.chain[..], trusts) {
            ([], _) | (_, None) => None,
            (chain, Some(trusts)) => Some(trusts.right(chain)?),
        };
        if let Some(shown) = request.header("authorization") {
            let secret = shown
                .split_once(' ')
                .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            let secret = secret
                .ok_or(Refused::new(401, "Authorization must be: Bearer TOKEN"))?
                .1;
            let right = self.tokens.right(secret.trim()).map_err(unreadable)?;
            // Whoever shows a token asks for its right, so one that is not known is an error even
            // where looking needs none.
            let right = right.ok_or(Refused::new(401, "this token is not known"))?;
            return Ok(by_certificate.max(Some(right)));
        }
        if by_certificate.is_some() || !self.login {
            return Ok(by_certificate.or(Some(Right::Read)));
        }
        let cookie = request.header("cookie").and_then(|cookies| {
            let mut cookies = cookies
                .split(';')
                .filter_map(|cookie| cookie.trim().split_once('='));
            cookies.find(|(name, _)| *name == COOKIE)
        });
        match cookie {
            Some((_, cookie)) => {
                let right = self.tokens.right_of_cookie(cookie).map_err(unreadable)?;
                Ok(right.map(|_| Right::Read))
            }
            None => Ok(None),
        }
    }
}

/// Refuses what a page of another site makes a browser send. An older browser says only from which
/// origin that is.
pub(super) fn check_origin(request: &Request) -> Result<(), Refused> {
    let origin = || request.header("origin").map(|origin| origin.split_once("://"));
    let is_own = match (request.header("sec-fetch-site"), origin()) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => origin.is_some_and(|(_, host)| Some(host) == request.header("host")),
        (None, None) => true,
    };
    match is_own {
        true => Ok(()),
        false => Err(Refused::new(403, "a page of another site may not write")),
    }
}

impl Trusts {
    fn right(
        &self,
        chain: &[ssntp_transport::rustls::pki_types::CertificateDer<'static>],
    ) -> Result<Right, Refused> {
        let of_cluster = self.cluster.verify(chain);
        if of_cluster
            .as_ref()
            .is_ok_and(|certificate| certificate.roles.intersects(Role::CONTROLLER))
        {
            return Ok(Right::Write);
        }
        match self.look.as_ref().map(|look| look.verify(chain)) {
            // One for looking needs no role of a cluster.
            Some(Ok(_) | Err(Fault::NoRole)) => Ok(Right::Read),
            _ => Err(Refused::new(403, "the certificate's role must be controller")),
        }
    }
}
