//! Pages about a running process, over HTTP: metrics for Prometheus, health, sessions.
//!
//! ```text
//!  curl, Prometheus ─────────────────▶ connection's thread ── page ──▶ answer
//!                                        (admin-shake)  │  ▲
//!                                                wanted │  │ a snapshot, at most a second old
//!                                                       ▼  │
//!                          ssntp-figures ── calls ──▶ the source: a server's handle
//! ```
//!
//! | page | shows |
//! |---|---|
//! | `/metrics` | counters, gauges and histograms, as text that Prometheus reads |
//! | `/healthz` | 200 while the process works, else 503 with the reason |
//! | `/readyz` | 200 while the process accepts work, else 503 with the reason |
//! | `/sessions` | the sessions; `role`, `uuid`, `limit` and `after` select |
//! | `/closed` | the sessions that ended last, each with its reason |
//! | `/info` | version, addresses, limits |
//!
//! Pages show a [`Snapshot`], which a function of the application makes: the *source*.
//! One thread calls the source, on demand and at most once a second, however many requests
//! there are. A request waits for the source for at most a second. So requests cost a
//! dispatcher one call a second, and if a dispatcher hangs, the pages answer 503.
//!
//! [`ssntp_http`] has the limits of connections, heads and times. In addition an answer
//! has at most 1,000 sessions and a MiB, and the rest is on the next page. There are at most two
//! answers at a time with more than 100 sessions or with ended sessions; further ones get 503.
//!
//! Only GET and HEAD are supported. At loopback addresses and Unix sockets, every client
//! that can connect may read the pages; other addresses need mutual TLS and a certificate
//! with one of the configured roles. Web pages in a browser on this host cannot read them,
//! because the `Host` of a request must be an address, `localhost` or the configured name.
//!
//! ```no_run
//! use ssntp_admin::{Admin, AdminConfig, Metric, Snapshot, counter, one};
//!
//! const SHOP: &[Metric<u64>] =
//!     &[counter("shop_orders_total", "Orders that were taken.", |orders| one(*orders))];
//!
//! # fn pages(server: ssntp::Server) -> Result<(), Box<dyn std::error::Error>> {
//! let handle = server.handle();
//! let source = move || {
//!     let figures = handle.figures().map_err(|e| e.to_string())?;
//!     let mut snapshot = Snapshot::of_server(&figures);
//!     snapshot.metrics.add(SHOP, &7);
//!     Ok(snapshot)
//! };
//! let admin = Admin::start(AdminConfig::new("localhost:9100".parse()?), source)?;
//! println!("see {}/metrics", admin.urls()[0]);
//! # Ok(())
//! # }
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `snapshot` | the content of the pages: [`Snapshot`], [`Row`] |
//! | `metrics` | tables of metrics, and their text |
//! | `server`, `client` | tables and rows for a server, for a client and the process |
//! | `sampler` | [`Sampler`]: the thread that calls a source, and its last result |
//! | `pages` | a path to its page |

mod client;
mod metrics;
mod pages;
mod sampler;
mod server;
mod snapshot;

use std::sync::Arc;

pub use self::metrics::{Labels, Metric, Metrics, Samples, Value, by, counter, gauge, histogram, one};
use self::pages::Pages;
pub use self::sampler::{Sample, Sampled, Sampler};
pub use self::snapshot::{Row, Snapshot};
use ssntp::pki::{Identity, Trust};
use ssntp_http::Http;
pub use ssntp_http::{HttpConfig as AdminConfig, HttpError as AdminError};

/// The target of the log lines.
const LOG: &str = "ssntp_admin";

/// The pages of a process.
///
/// # Threads
/// It owns its threads: one that accepts at each address, one for each connection,
/// and one that calls the source. [`stop`](Self::stop), or dropping it, ends all of
/// them; it waits for a call of the source that is under way.
#[derive(Debug)]
pub struct Admin {
    // The order of the fields is the order of dropping. The sampler is first: connections that wait for figures get an
    // error then, and end.
    _sampler: Sampler<Snapshot>,
    pages: Arc<Pages>,
    http: Http,
}

impl Admin {
    /// Binds the address and serves pages from then on. `source` makes their content.
    /// If it fails, `/healthz` and the pages that need it answer 503 with its error.
    ///
    /// # Errors
    /// [`AdminError`]; no thread is left running.
    pub fn start(
        config: AdminConfig,
        source: impl Fn() -> Result<Snapshot, String> + Send + Sync + 'static,
    ) -> Result<Self, AdminError> {
        let sampler = Sampler::start("ssntp-figures", pages::MAX_AGE, source).map_err(AdminError::Thread)?;
        let pages = Arc::new(Pages::new(sampler.sampled()));
        Ok(Self {
            pages: Arc::clone(&pages),
            http: Http::start(&config, "admin", LOG, pages)?,
            _sampler: sampler,
        })
    }

    /// The beginning of each page's address: `http://127.0.0.1:9100`, `unix:/run/s.sock`.
    pub fn urls(&self) -> Vec<String> {
        self.http.urls()
    }

    /// Replaces the certificate and the authorities for new connections.
    /// Has no effect if the pages were started without TLS.
    ///
    /// # Errors
    /// [`AdminError::Tls`]; the present ones stay in use.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), AdminError> {
        self.http.renew(identity, trust)
    }

    /// Makes `/readyz` answer that the process is stopping.
    pub fn stopping(&self) {
        self.pages.stopping();
    }

    /// Ends every connection and every thread.
    pub fn stop(self) {
        drop(self);
    }
}
