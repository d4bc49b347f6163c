//! Pages about a running process, over HTTP: metrics for Prometheus, health, sessions.
//!
//! ```text
//!  curl, Prometheus ─▶ accept thread ─▶ connection's thread ── page ──▶ answer
//!                      (admin-accept)    (admin-shake)  │  ▲
//!                                               is wanted  is there, at most a second old
//!                                                       ▼  │
//!                          ssntp-figures ── calls ──▶ the source: a server's handle
//! ```
//!
//! | page | shows |
//! |---|---|
//! | `/metrics` | counters, gauges and histograms, as text that Prometheus reads |
//! | `/healthz` | 200 while the process does its work, else 503 with the reason |
//! | `/readyz` | 200 while the process can be given work, else 503 with the reason |
//! | `/sessions` | the sessions; `role`, `uuid`, `limit` and `after` select |
//! | `/closed` | the sessions that ended last, each with its reason |
//! | `/info` | version, addresses, limits |
//!
//! Pages show a [`Snapshot`], which a function of the application makes: the *source*.
//! One thread calls it, on demand and at most once a second, however many requests
//! there are, and a request waits for it for at most a second. So requests cost a
//! dispatcher one call a second, and a dispatcher that hangs is seen as a 503.
//!
//! | limit | value | when it is reached |
//! |---|---|---|
//! | connections | 32 | the one that has waited longest for its client, and for 20 ms at least, is cut |
//! | the head of a request | 8 KiB, 64 headers, 2 s with the TLS handshake | 431, 400, or the connection ends |
//! | the body of a request | none is read | – |
//! | requests of a connection | one | it ends with its answer |
//! | an answer | 10 s; 1,000 sessions, a MiB | the connection ends; the rest is on the next page |
//! | answers with more than 100 sessions, or with those that ended | two | 503 |
//!
//! Only GET and HEAD are supported. At loopback addresses and Unix sockets, everybody
//! who can connect sees the pages; other addresses need mutual TLS and a certificate
//! with one of the configured roles. Web pages in a browser on this host see nothing:
//! the `Host` of a request must be an address, `localhost` or the configured name.
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
//! | `config` | [`AdminConfig`], [`AdminError`] |
//! | `snapshot` | what pages show: [`Snapshot`], [`Row`] |
//! | `metrics` | tables of metrics, and their text |
//! | `server`, `client` | tables and rows for a server, for a client and the process |
//! | `sampler` | the thread that calls the source, and its last result |
//! | `pages` | a path to its page |
//! | `http` | a request's head, and an answer |
//! | `connection` | one connection, from its TLS handshake to its end |
//! | `limited` | a stream with a deadline |

mod client;
mod config;
mod connection;
mod http;
mod limited;
mod metrics;
mod pages;
mod sampler;
mod server;
mod snapshot;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

pub use self::config::{AdminConfig, AdminError};
use self::connection::Door;
pub use self::metrics::{Labels, Metric, Metrics, Samples, Value, by, counter, gauge, histogram, one};
use self::pages::Pages;
use self::sampler::Sampler;
pub use self::snapshot::{Row, Snapshot};
use ssntp::pki::{Identity, Trust};
use ssntp_transport::tls::Acceptor;
use ssntp_transport::{Acceptance, Address, Newcomer};

/// The target of the log lines.
const LOG: &str = "ssntp_admin";

/// How many connections are served at a time. Each has a thread, and an answer of at most a
/// hundred KiB but for two of them; a scrape takes one for some milliseconds.
const CONNECTIONS: usize = 32;

/// The pages of a process.
///
/// # Threads
/// It owns its threads: one that accepts at each address, one for each connection,
/// and one that calls the source. [`stop`](Self::stop), or dropping it, ends all of
/// them; it waits for a call of the source that is under way.
#[derive(Debug)]
pub struct Admin {
    addresses: Vec<Address>,
    acceptor: Arc<Mutex<Option<Acceptor>>>,
    pages: Arc<Pages>,
    acceptance: Option<Acceptance>,
    sampler: Option<Sampler>,
}

impl Admin {
    /// Binds the address and serves pages from then on. `source` makes what they show.
    /// If it fails, `/healthz` and all pages that need it answer 503 with its reason.
    ///
    /// # Errors
    /// [`AdminError`]; then nothing runs.
    pub fn start(
        config: AdminConfig,
        source: impl Fn() -> Result<Snapshot, String> + Send + Sync + 'static,
    ) -> Result<Self, AdminError> {
        let (listeners, doors) = config.listen()?;
        let addresses = listeners.iter().filter_map(|l| l.local_address()).collect();
        let acceptor = config.tls.as_ref().map(|(i, t)| acceptor(i, t)).transpose()?;
        let acceptor = Arc::new(Mutex::new(acceptor));
        let sampler = Sampler::start(Box::new(source)).map_err(AdminError::Thread)?;
        let pages = Arc::new(Pages::new(sampler.figures()));
        let mut admin = Self {
            addresses,
            acceptor: Arc::clone(&acceptor),
            pages: Arc::clone(&pages),
            acceptance: None,
            sampler: Some(sampler),
        };
        // From here on, dropping `admin` ends what runs already.
        let door = Door::new(doors, acceptor, config.roles, config.host(), pages);
        let serve = Box::new(move |newcomer: &Arc<Newcomer>| door.serve(newcomer));
        let acceptance = Acceptance::start_brief(listeners, "admin", LOG, CONNECTIONS, serve);
        admin.acceptance = Some(acceptance.map_err(AdminError::Thread)?);
        Ok(admin)
    }

    /// The bound addresses, with the port that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The beginning of each page's address: `http://127.0.0.1:9100`, `unix:/run/s.sock`.
    pub fn urls(&self) -> Vec<String> {
        let url = |address: &Address| match address {
            Address::Unix(_) => address.to_string(),
            _ if config::is_local(address) => format!("http://{address}"),
            _ => format!("https://{address}"),
        };
        self.addresses.iter().map(url).collect()
    }

    /// Takes another certificate and other authorities, for connections from now on.
    /// Has no effect if the pages were started without TLS.
    ///
    /// # Errors
    /// [`AdminError::Tls`]; the old ones stay.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), AdminError> {
        let new = acceptor(identity, trust)?;
        let mut current = self.acceptor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &mut *current {
            *current = new;
        }
        Ok(())
    }

    /// From now on `/readyz` answers that the process is stopping.
    pub fn stopping(&self) {
        self.pages.stopping();
    }

    /// Ends every connection and every thread.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // Connections that wait for figures are told that there will be none.
        if let Some(sampler) = &self.sampler {
            sampler.close();
        }
        if let Some(acceptance) = self.acceptance.take() {
            acceptance.stop();
        }
        if let Some(sampler) = self.sampler.take() {
            sampler.join();
        }
    }
}

fn acceptor(identity: &Identity, trust: &Trust) -> Result<Acceptor, AdminError> {
    Acceptor::mutual(identity, trust).map_err(AdminError::Tls)
}

#[expect(
    clippy::disallowed_methods,
    reason = "figures have an age, and waits have a limit"
)]
fn now() -> Instant {
    Instant::now()
}
