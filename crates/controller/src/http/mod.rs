//! The controller over HTTP: the API for programs, events as they come, and the pages.
//!
//! ```text
//!                     ┌─ access: who may look, who may write
//!  ssntp_admin::http ─┼─ json: /api/v1/… ─────────┐
//!                     ├─ events: /api/v1/events ──┼─▶ Source: pictures, rows, orders
//!                     └─ pages: everything else ──┘
//! ```
//!
//! | limit | value | when it is reached |
//! |---|---|---|
//! | connections, heads, times | as [`ssntp_admin::http`] says | |
//! | the body of a request | 1 MiB | 413 |
//! | followers of events | 64, beside the connections | 503 |
//! | answers of more than 256 KiB | four at a time | 503 |
//! | pictures of the cluster | four a second, for all clients together | they see the same one |
//! | tokens | 256 | another one is refused |
//!
//! | file | holds |
//! |---|---|
//! | `access` | who may look, and who may write |
//! | `tokens` | [`Tokens`] |
//! | `json` | the routes for programs |
//! | `events` | the stream of rows |
//! | `source` | what all of them are made from |
//! | `daemon` | the daemon as a source |

mod access;
mod daemon;
mod events;
mod json;
#[cfg(test)]
pub(crate) mod made_up;
pub(crate) mod source;
mod tokens;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde_json::json;
use ssntp_admin::http::{
    AdminConfig, AdminError, Answer, Http, JSON, Limits, Refused, Reply, Request, Service,
};
use ssntp_admin::{Sampled, Sampler};

use self::access::{Access, COOKIE};
use self::source::{Picture, Source};
pub use self::tokens::{Right, Token, TokenError, Tokens};
use crate::Handle;
use crate::page::params::Params;
use crate::page::{self, Missing, Scene};
use ssntp::pki::{Error, Identity, Trust};
use ssntp_transport::Address;
use ssntp_transport::tls::TlsError;

/// The target of the log lines.
const LOG: &str = "ssntp::controller::http";
/// The longest body of a request: a workload with its documents.
const BODY: usize = 1 << 20;
/// How old a picture may be.
const MAX_AGE: Duration = Duration::from_millis(250);
/// An answer of more than this needs a permit, of which there are a few. A client that reads slowly
/// keeps its answer, so the memory of the answers is bounded by these two numbers.
const LARGE: usize = 256 << 10;
const LARGE_ANSWERS: usize = 4;
/// What a browser may do with a page: load the files of this site, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types 'none'";
const HTML: &str = "text/html; charset=utf-8";
/// The header by which the script of a page says that it asks for the page again.
const FOLLOWED: &str = "ssntp-followed";

/// Where the API is, and who may use it.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    admin: AdminConfig,
    tokens: Tokens,
    identity: Option<Identity>,
    trusts: Option<Trusts>,
    login: bool,
}

/// Whose certificates count over TLS.
#[derive(Clone, Debug)]
struct Trusts {
    cluster: Trust,
    look: Option<Trust>,
}

impl ApiConfig {
    /// An API at a loopback address or a Unix socket. Tokens are in the directory of the
    /// database. Other addresses need [`tls`](Self::tls).
    pub fn new(address: Address, directory: &Path) -> Self {
        Self {
            admin: AdminConfig::new(address),
            tokens: Tokens::new(directory),
            identity: None,
            trusts: None,
            login: false,
        }
    }

    /// Mutual TLS at addresses that are not loopback: the API proves `identity`, which has to have
    /// the role Server as well as Controller. Certificates of the cluster with the role Controller may write; those of `look` may look.
    #[must_use]
    pub fn tls(mut self, identity: Identity, cluster: Trust, look: Option<Trust>) -> Self {
        self.identity = Some(identity);
        self.trusts = Some(Trusts { cluster, look });
        self
    }

    /// Whether looking needs a token where there is no certificate. Default: false.
    #[must_use]
    pub fn login(mut self, login: bool) -> Self {
        self.login = login;
        self
    }
}

impl Trusts {
    /// All authorities together, for the handshake.
    fn all(&self) -> Result<Trust, Error> {
        match &self.look {
            Some(look) => self.cluster.and(look),
            None => Ok(self.cluster.clone()),
        }
    }
}

/// The API and the pages of a controller.
///
/// # Threads
/// It owns its threads: those of [`ssntp_admin::http`], named `http-accept`, `http-shake` and
/// `http-stream`, and `http-picture`, which makes pictures of the cluster on demand. Dropping it
/// ends all of them.
#[derive(Debug)]
pub struct Api {
    // Dropped in this order: the sampler's thread ends after those that wait for it.
    http: Http,
    routes: Arc<Routes>,
    sampler: Sampler<Picture>,
}

impl Api {
    /// Binds the address, and serves from then on.
    ///
    /// # Errors
    /// [`AdminError`]; then nothing runs.
    pub fn start(config: ApiConfig, handle: Handle) -> Result<Self, AdminError> {
        let daemon = daemon::Daemon::new(handle).map_err(AdminError::Thread)?;
        Self::serve(config, Arc::new(daemon))
    }

    pub(crate) fn serve(config: ApiConfig, source: Arc<dyn Source>) -> Result<Self, AdminError> {
        let ApiConfig {
            mut admin,
            tokens,
            identity,
            trusts,
            login,
        } = config;
        let may_serve = identity
            .as_ref()
            .is_none_or(|identity| identity.info().server_auth);
        if let (Some(identity), Some(trusts)) = (identity, &trusts) {
            let all = trusts
                .all()
                .map_err(|e| AdminError::Tls(TlsError::Configuration(e.to_string())))?;
            // Who may do what is decided request by request.
            admin = admin.tls(identity, all).roles(ssntp::Role::NONE);
        }
        let pictured = Arc::clone(&source);
        let sampler = Sampler::start("http-picture", MAX_AGE, move || pictured.picture());
        let sampler = sampler.map_err(AdminError::Thread)?;
        let routes = Arc::new(Routes {
            source,
            pictures: sampler.sampled(),
            access: Access { tokens, login },
            trusts: RwLock::new(trusts),
            large: Arc::default(),
            writing: Mutex::default(),
        });
        let http = Http::start(&admin, "http", LOG, Arc::clone(&routes))?;
        if !may_serve && http.urls().iter().any(|url| url.starts_with("https:")) {
            let why = "the certificate must have the role server as well, or no client takes it for that of a \
                server: issue it with the roles controller,server and with the name of this host";
            return Err(AdminError::Tls(TlsError::Configuration(why.into())));
        }
        Ok(Self {
            http,
            routes,
            sampler,
        })
    }

    /// The addresses of the first page: `http://127.0.0.1:9300`, `unix:/run/s.sock`.
    pub fn urls(&self) -> Vec<String> {
        self.http.urls()
    }

    /// Takes another certificate and other authorities, for connections from now on. Has no
    /// effect without TLS.
    ///
    /// # Errors
    /// [`AdminError::Tls`]; the old ones stay.
    pub fn renew(&self, identity: &Identity, cluster: Trust, look: Option<Trust>) -> Result<(), AdminError> {
        let mut trusts = self.routes.trusts.write().unwrap_or_else(PoisonError::into_inner);
        if trusts.is_none() {
            return Ok(());
        }
        let new = Trusts { cluster, look };
        let all = new
            .all()
            .map_err(|e| AdminError::Tls(TlsError::Configuration(e.to_string())))?;
        self.http.renew(identity, &all)?;
        *trusts = Some(new);
        Ok(())
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        // Requests that wait for a picture are told that there will be none.
        self.sampler.close();
    }
}

/// What all requests share.
struct Routes {
    source: Arc<dyn Source>,
    pictures: Arc<Sampled<Picture>>,
    access: Access,
    trusts: RwLock<Option<Trusts>>,
    /// Each large answer has a clone.
    large: Arc<()>,
    /// Held while a workload is compared with the revision that its writer knows, and written.
    writing: Mutex<()>,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes")
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl Service for Routes {
    fn limits(&self) -> Limits {
        Limits {
            methods: "GET, HEAD, PUT, POST, DELETE",
            body: BODY,
        }
    }

    fn streams(&self) -> usize {
        events::FOLLOWERS
    }

    fn reply(&self, request: &Request) -> Reply {
        let file = |kind, text: &'static str| Answer::new(200, kind, text).into();
        let is_api = request.path.starts_with("/api/");
        match (request.method.as_str(), request.path.as_str()) {
            // They are the same for everybody, and the page for logging in needs them.
            ("GET" | "HEAD", "/page.css") => return file("text/css; charset=utf-8", page::STYLE),
            ("GET" | "HEAD", "/page.js") => return file("text/javascript; charset=utf-8", page::SCRIPT),
            ("GET" | "HEAD", "/icon.svg") => return file("image/svg+xml", page::ICON),
            ("GET" | "HEAD", "/login") => return html(200, page::login(false)).into(),
            ("POST", "/login") => return self.log_in(request).unwrap_or_else(Answer::from).into(),
            _ => {}
        }
        let trusts = self.trusts.read().unwrap_or_else(PoisonError::into_inner).clone();
        let right = self.access.right(request, trusts.as_ref());
        match (right, is_api) {
            (Err(refused), true) => Answer::from(refused).into(),
            (Err(refused), false) => html(
                refused.code,
                page::failure(&request.path, "Not for you", &refused.why),
            )
            .into(),
            (Ok(None), true) => Answer::from(Refused::new(
                401,
                "a token is needed: Authorization: Bearer TOKEN",
            ))
            .into(),
            (Ok(None), false) => Answer::new(303, HTML, "").with("Location", "/login").into(),
            (Ok(Some(right)), true) => match self.api(request, right) {
                Ok(Reply::Whole(answer)) => self.bounded(answer).into(),
                Ok(reply) => reply,
                Err(problem) => Answer::from(problem).into(),
            },
            (Ok(Some(_)), false) => self.bounded(self.page(request)).into(),
        }
    }
}

impl Routes {
    fn page(&self, request: &Request) -> Answer {
        let path = request.path.as_str();
        let fail = |code, title, why: &str| html(code, page::failure(path, title, why));
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return fail(405, "Pages are only read", "Programs write at /api/v1.");
        }
        let picture = match self.pictures.sample() {
            Ok(picture) => picture,
            Err(why) => return fail(503, "There is nothing to show", &why),
        };
        let scene = Scene {
            picture: &picture,
            source: &*self.source,
            params: &Params::decode(&request.query),
            is_followed: request.header(FOLLOWED).is_some(),
        };
        match page::page(&scene, path) {
            Ok(page) => html(200, page),
            Err(Missing::Unknown) => fail(
                404,
                "There is no such page",
                "What it was about may be gone for long.",
            ),
            Err(Missing::Unavailable(why)) => fail(503, "This cannot be read now", &why),
        }
    }

    /// Whether the client of a stream may still look: its token may have been removed meanwhile.
    fn may_still_look(&self, request: &Request) -> impl Fn() -> bool + Send + use<> {
        let trusts = self.trusts.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (access, request) = (self.access.clone(), request.clone());
        move || matches!(access.right(&request, trusts.as_ref()), Ok(Some(_)))
    }

    /// Takes the token of a form, and gives its digest as a cookie.
    fn log_in(&self, request: &Request) -> Result<Answer, Refused> {
        access::check_origin(request)?;
        let form = Params::of_form(&request.body);
        let secret = form.get("token").trim();
        let known = self.access.tokens.right(secret);
        let known = known.map_err(|e| Refused::new(503, format!("tokens cannot be read: {e}")))?;
        let (Some(_), Some(digest)) = (known, tokens::digest(secret)) else {
            return Ok(html(401, page::login(true)));
        };
        let cookie = format!("{COOKIE}={digest}; HttpOnly; SameSite=Strict; Path=/");
        Ok(Answer::new(303, HTML, "")
            .with("Set-Cookie", cookie)
            .with("Location", "/"))
    }

    /// An answer with a permit, if it is a large one.
    fn bounded(&self, mut answer: Answer) -> Answer {
        if answer.body.len() > LARGE {
            let permit = Arc::clone(&self.large);
            // One count is that of the routes. Of two threads that are here at the same time both
            // may see the other's clone, so there may be fewer large answers, but never more.
            if Arc::strong_count(&permit) - 1 > LARGE_ANSWERS {
                return Refused::new(
                    503,
                    "as many large answers as there may be are under way; ask again",
                )
                .into();
            }
            answer.permit = Some(permit);
        }
        answer
    }
}

fn html(code: u16, page: String) -> Answer {
    Answer::new(code, HTML, page)
        .with("Content-Security-Policy", POLICY)
        .with("Referrer-Policy", "no-referrer")
        .with("Cross-Origin-Opener-Policy", "same-origin")
        .with("Cross-Origin-Resource-Policy", "same-origin")
}

/// An error for programs: what is wrong, and at which field.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    code: u16,
    why: String,
    at: Option<String>,
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let Refused { code, why } = refused;
        Self { code, why, at: None }
    }
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Self {
        let body = json!({ "error": problem.why, "at": problem.at });
        Self::new(problem.code, JSON, format!("{body:#}\n"))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "a client of the API speaks over a socket")]
mod tests;
