//! The controller over HTTP: the API for programs, the stream of events, and the pages.
//!
//! ```text
//!                     ┌─ access: the right of the client
//!  ssntp_http ────────┼─ programs: /api/v1/… ─────┐
//!                     ├─ events: /api/v1/events ──┼─▶ Sight ─▶ Source: pictures, rows, orders
//!                     └─ pages: everything else ──┘
//! ```
//!
//! | limit | value | at the limit |
//! |---|---|---|
//! | connections, heads, times | those of [`ssntp_http`] | |
//! | the body of a request | 1 MiB | 413 |
//! | followers of events | 64, beside the connections | 503 |
//! | answers of more than 256 KiB | four at a time | 503 |
//! | pages that wait for the output of an instance | eight | the page has no output |
//! | answers about the cluster that are being made | one | the others wait |
//! | pictures of the cluster | four a second, for all clients together | clients share a picture |
//! | tokens | 256 | a further token is refused |
//!
//! | file | holds |
//! |---|---|
//! | `access` | the rights of clients |
//! | `sight` | what a client may see |
//! | `tokens` | [`Tokens`] |
//! | `programs` | the routes for programs |
//! | `names` | names in a spec that no node has |
//! | `events` | the stream of rows |
//! | `live` | the daemon as the source of pages and API |

mod access;
mod events;
mod live;
mod names;
mod programs;
mod sight;
mod tokens;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use log::warn;
use ssntp_admin::Sampler;
use ssntp_http::{Answer, Http, HttpConfig, HttpError, Limits, Refused, Reply, Request, Service};

use self::access::{Access, COOKIE, Client, Trusts};
use self::live::Live;
use self::programs::Programs;
use self::sight::Sight;
pub use self::tokens::{Right, Token, TokenError, Tokens};
use crate::daemon::{Handle, UserRequest};
use crate::model::TEMPLATE_LABEL;
use crate::page;
use crate::page::params::Params;
use crate::page::scene::{Missing, Scene};
use crate::source::{Picture, Source};
use ssntp::pki::{Identity, Trust};
use ssntp_transport::tls::TlsError;
use ssntp_transport::{Address, LogLimit, excerpt, locked, now, setters};

const LOG: &str = "ssntp::controller::http";
/// The log target of refused clients.
const AUDIT: &str = "ssntp::audit";
/// The longest body of a request: a workload with its documents.
const BODY: usize = 1 << 20;
const MAX_AGE: Duration = Duration::from_millis(250);
/// The size in bytes above which an answer needs a permit. An answer stays in memory until a slow
/// client has read it, so this and the number of permits bound the memory of answers.
const LARGE: usize = 256 << 10;
const LARGE_ANSWERS: usize = 4;
/// The Content-Security-Policy: a page may load the files of this site only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
    trusted-types 'none'";
const HTML: &str = "text/html; charset=utf-8";
/// The header that the script of a page sends when it reloads the page in the background.
const FOLLOWED: &str = "ssntp-followed";

/// The address of the API, and the clients that may use it.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    admin: HttpConfig,
    tokens: Tokens,
    tls: Option<(Identity, Trusts)>,
    login: bool,
    is_private: bool,
}

impl ApiConfig {
    /// An API at a loopback address or a Unix socket. Other addresses need [`tls`](Self::tls).
    /// `directory` is that of the database; the file with the tokens is there.
    pub fn new(address: Address, directory: &Path) -> Self {
        Self {
            is_private: matches!(address, Address::Unix(_)),
            admin: HttpConfig::new(address),
            tokens: Tokens::new(directory),
            tls: None,
            login: true,
        }
    }

    /// Mutual TLS at addresses that are not loopback. The API proves `identity`, which needs the
    /// roles Server and Controller. Certificates of `cluster` with the role Controller may write, and
    /// all certificates of `look` may read.
    #[must_use]
    pub fn tls(mut self, identity: Identity, cluster: Trust, look: Option<Trust>) -> Self {
        self.tls = Some((identity, Trusts { cluster, look }));
        self
    }

    setters! {
        /// True if a client without a certificate needs a token even to read. Default: true.
        login: bool;
    }

    /// Further names by which clients reach the API, such as that of a proxy in front. Default: none.
    #[must_use]
    pub fn hosts(mut self, hosts: Vec<String>) -> Self {
        self.admin = self.admin.hosts(hosts);
        self
    }
}

/// The API and the pages of a controller.
///
/// # Threads
/// It owns its threads: those of [`ssntp_http`], named `http-shake` and
/// `http-stream`, and `http-picture`, which makes pictures of the cluster on demand. Dropping it
/// ends all of them.
#[derive(Debug)]
pub struct Api {
    // The order of the fields is the order of dropping. The sampler is last, because the other
    // threads wait for its thread.
    http: Http,
    routes: Arc<Routes>,
    sampler: Sampler<Picture>,
}

impl Api {
    /// Binds the address, and serves from then on.
    ///
    /// # Errors
    /// [`HttpError`]; then nothing runs.
    pub fn start(config: ApiConfig, handle: Handle) -> Result<Self, HttpError> {
        let live = Live::new(handle).map_err(HttpError::Thread)?;
        Self::serve(config, Arc::new(live))
    }

    pub(crate) fn serve(config: ApiConfig, source: Arc<dyn Source>) -> Result<Self, HttpError> {
        let (mut admin, mut may_serve, mut trusts) = (config.admin, true, None);
        if let Some((identity, of_clients)) = config.tls {
            may_serve = identity.info().server_auth;
            // The handshake admits every role, because `Access` decides for each request.
            admin = admin.tls(identity, of_clients.all()?).roles(ssntp::Role::NONE);
            trusts = Some(of_clients);
        }
        let pictured = Arc::clone(&source);
        let readable = |mut picture: Picture| {
            // With the digest of a template, a guess of a value that is hidden from readers could be tried.
            Arc::make_mut(&mut picture.view).remove_label(TEMPLATE_LABEL);
            picture
        };
        let sampler = Sampler::start("http-picture", MAX_AGE, move || pictured.picture().map(readable));
        let sampler = sampler.map_err(HttpError::Thread)?;
        let access = Access::new(config.tokens, config.login, config.is_private, trusts);
        let routes = Arc::new(Routes {
            programs: Programs::new(access.clone()),
            sight: Sight::whole(source, sampler.sampled()),
            access,
            large: Arc::default(),
            waiting: Arc::default(),
            audit: Mutex::default(),
        });
        let http = Http::start(&admin, "http", LOG, Arc::clone(&routes))?;
        if !may_serve && http.urls().iter().any(|url| url.starts_with("https:")) {
            let why = "the certificate must have the role server as well, or clients refuse it as that of a \
                server: issue it with the roles controller,server and with the name of this host";
            return Err(HttpError::Tls(TlsError::Configuration(why.into())));
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

    /// An address that logs a browser in, with a new token, which may read for a day. The token of the
    /// last call is refused from now on. `None` if reading needs no token, or no browser can connect
    /// without a certificate.
    ///
    /// # Errors
    /// [`TokenError`]; there is no such token.
    pub fn link(&self) -> Result<Option<String>, TokenError> {
        let Some(page) = self.urls().into_iter().find(|url| url.starts_with("http:")) else {
            return Ok(None);
        };
        // A browser sends no server the part of an address that follows the #, so it is in no log of a proxy.
        let link = |token| format!("{page}/login#{token}");
        Ok(self.routes.access.link_token()?.map(link))
    }

    /// Replaces the certificate and the authorities for new connections. Has no effect without TLS.
    ///
    /// # Errors
    /// [`HttpError::Tls`]; the present certificate and authorities stay in use.
    pub fn renew(&self, identity: &Identity, cluster: Trust, look: Option<Trust>) -> Result<(), HttpError> {
        if self.routes.access.trusts().is_none() {
            return Ok(());
        }
        let new = Trusts { cluster, look };
        self.http.renew(identity, &new.all()?)?;
        self.routes.access.renew(new);
        Ok(())
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        // Ends the waits of requests for a picture.
        self.sampler.close();
    }
}

#[derive(Debug)]
struct Routes {
    sight: Sight,
    access: Access,
    programs: Programs,
    /// Each large answer holds a clone, so the count of clones is the number of large answers.
    large: Arc<()>,
    /// Each page that waits for a node holds a clone.
    waiting: Arc<()>,
    /// By the names of clients, so that none hides the refused orders of the others. The name of a client that is not
    /// known is empty.
    audit: Mutex<LogLimit<String>>,
}

impl Service for Routes {
    fn limits(&self) -> Limits {
        Limits {
            methods: "GET, HEAD, PUT, POST, DELETE",
            body: BODY,
            streams: events::FOLLOWERS,
        }
    }

    fn reply(&self, request: &Request) -> Reply {
        let file = |kind, text: &'static str| Answer::new(200, kind, text).into();
        let is_api = request.path.starts_with("/api/");
        match (request.method.as_str(), request.path.as_str()) {
            ("GET" | "HEAD", "/healthz") => return self.health().into(),
            // These files hold nothing about the cluster, and the login page needs them.
            ("GET" | "HEAD", "/page.css") => return file("text/css; charset=utf-8", page::STYLE),
            ("GET" | "HEAD", "/page.js") => return file("text/javascript; charset=utf-8", page::SCRIPT),
            ("GET" | "HEAD", "/icon.svg") => return file("image/svg+xml", page::ICON),
            ("GET" | "HEAD", "/login") => return html(200, page::login("")).into(),
            ("POST", "/login") => return self.log_in(request).unwrap_or_else(Answer::from).into(),
            _ => {}
        }
        let client = match self.access.client(request) {
            Ok(Some(client)) => client,
            Ok(None) if is_api => {
                let why = "a token is needed, in Authorization: Bearer TOKEN";
                return Answer::from(Refused::new(401, why)).into();
            }
            Ok(None) => return Answer::new(303, HTML, "").with("Location", "/login").into(),
            Err(refused) => {
                self.log_refused("client", request, "", &refused);
                let page = || page::failure(&request.path, "No access", &refused.why);
                return if is_api {
                    Answer::from(refused)
                } else {
                    html(refused.code, page())
                }
                .into();
            }
        };
        if !is_api {
            let page = self.page(request, &client, &self.sight.of(&client));
            return self.bounded(page).into();
        }
        match self.ordered(request, &client) {
            Ok(Reply::Whole(answer)) => self.bounded(answer).into(),
            Ok(reply) => reply,
            Err(refused) => Answer::from(refused).into(),
        }
    }
}

impl Routes {
    /// The answer to a program, whose refused orders are in the log and the history.
    fn ordered(&self, request: &Request, client: &Client) -> programs::Found {
        let sight = self.sight.of(client);
        let answer = self.programs.reply(request, client, &sight);
        // A wrong request is the client's own concern; one without the right, or against the present state, is not.
        let is_order = !matches!(request.method.as_str(), "GET" | "HEAD") && !programs::is_dry_run(request);
        if let Err(refused) = &answer
            && is_order
            && matches!(refused.code, 403 | 409)
            && let Some(text) = self.log_refused("order", request, &client.name, refused)
        {
            // By the controller, because a tenant's reader can write no row. The client gets the reason also if the
            // history cannot be written.
            let _ = self.sight.request(&client.name, UserRequest::NoteRefused(text));
        }
        answer
    }

    /// Logs that a client is refused, such as one with a wrong token. Returns the text, unless there were too many.
    fn log_refused(
        &self,
        kind: &'static str,
        request: &Request,
        client: &str,
        refused: &Refused,
    ) -> Option<String> {
        let Request { method, path, .. } = request;
        let by = if client.is_empty() {
            String::new()
        } else {
            format!(" by {client:?}")
        };
        let more = locked(&self.audit).admit(client.to_owned(), kind, now())?;
        let what = format!("{method} {}", excerpt(path));
        let why = format!("was refused: {}{more}", excerpt(&refused.why));
        warn!(target: AUDIT, "{what}{by} {why}");
        Some(format!("{what} {why}"))
    }

    fn page(&self, request: &Request, client: &Client, sight: &Sight) -> Answer {
        let path = request.path.as_str();
        let fail = |code, title, why: &str| html(code, page::failure(path, title, why));
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return fail(405, "Pages are read only", "Programs write at /api/v1.");
        }
        let picture = match sight.picture() {
            Ok(picture) => picture,
            Err(why) => return fail(503, "The controller does not answer", &why),
        };
        let scene = Scene {
            picture: &picture,
            source: sight,
            params: &Params::decode(&request.query),
            is_followed: request.header(FOLLOWED).is_some(),
            shows_output: client.reads_output,
            waiting: &self.waiting,
        };
        match page::page(&scene, path) {
            Ok(page) => html(200, page),
            Err(Missing::Unknown) => {
                let why = "The node, instance or workload of this address may have been deleted.";
                fail(404, "There is no such page", why)
            }
            Err(Missing::Unavailable(why)) => fail(503, "This cannot be read now", &why),
        }
    }

    /// Everybody may ask whether the controller works, so the answer says no more.
    fn health(&self) -> Answer {
        let (code, text) = if self.sight.stores() {
            (200, "ok\n")
        } else {
            (
                503,
                "the database cannot be written; GET /api/v1/status has the reason\n",
            )
        };
        Answer::new(code, "text/plain; charset=utf-8", text)
    }

    /// Checks the token of the login form, and sets a cookie with the digest of the token.
    fn log_in(&self, request: &Request) -> Result<Answer, Refused> {
        access::check_origin(request)?;
        let form = Params::of_form(&request.body);
        let secret = form.get("token").trim();
        let known = match self.access.of_token(secret) {
            Err(expired) if expired.code == 401 => return Ok(html(401, page::login(&expired.why))),
            known => known?,
        };
        if known.is_none() {
            return Ok(html(401, page::login("this token is not known")));
        }
        let digest = tokens::digest(secret);
        // There is no `Secure`, because a login is used in clear at loopback addresses only.
        let cookie = format!("{COOKIE}={digest}; HttpOnly; SameSite=Strict; Path=/");
        Ok(Answer::new(303, HTML, "")
            .with("Set-Cookie", cookie)
            .with("Location", "/"))
    }

    /// The answer, which holds a permit if it is large.
    fn bounded(&self, mut answer: Answer) -> Answer {
        if answer.body.len() > LARGE {
            match Answer::permit(&self.large, LARGE_ANSWERS) {
                Ok(permit) => answer.permit = Some(permit),
                Err(refused) => return refused.into(),
            }
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

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "a client of the API speaks over a socket")]
mod tests;
