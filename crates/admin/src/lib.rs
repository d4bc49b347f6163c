//! Pages about a running process, over HTTP: metrics for Prometheus, health,
//! who is connected, who is gone.
//!
//! ```text
//!  curl, Prometheus ─▶ accept thread ─▶ connection's thread ── page ──▶ answer
//!                      (admin-accept)    (admin-shake)  │  ▲
//!                                               is wanted  is there, at most a second old
//!                                                       ▼  │
//!                              ssntp-figures ── asks ──▶ the source: a server's handle
//! ```
//!
//! | page | what it shows |
//! |---|---|
//! | `/metrics` | counters, gauges and histograms, as text that Prometheus reads |
//! | `/healthz` | 200 while the process does its work, else 503, and why |
//! | `/readyz` | 200 while it can be given work, else 503, and why |
//! | `/sessions` | who is connected; `role`, `uuid`, `limit` and `after` choose |
//! | `/closed` | the sessions that ended last, each with its reason |
//! | `/info` | version, addresses, limits |
//!
//! What pages show is a [`Snapshot`], which a function of the application makes: for
//! a server it is made of its figures. One thread calls it, on demand and at most
//! once a second, whatever is asked of the pages; they wait for it for a second. So
//! nobody who asks costs a dispatcher more than that, and a dispatcher that does not
//! answer costs nobody more than a second, and shows as 503.
//!
//! | what | bound | when it is reached |
//! |---|---|---|
//! | connections | 32 | the one that has waited longest for its client is cut, or the newcomer waits |
//! | the head of a request | 8 KiB, 64 headers, 5 s with the TLS handshake | 431, 400, or the connection ends |
//! | the body of a request | none is read | – |
//! | requests of a connection | one | it ends with its answer |
//! | an answer | 10 s, 1,000 sessions | the connection ends; the rest is another page |
//!
//! Only GET and HEAD are known. At loopback addresses and Unix sockets everybody
//! who can connect may look; anywhere else there is mutual TLS, and a certificate
//! with one of the roles that are let in. A web page that a browser on this host
//! shows cannot: the `Host` that is asked for has to be an address or `localhost`.
//!
//! ```no_run
//! use ssntp_admin::{Admin, AdminConfig, Snapshot};
//! # fn pages(server: ssntp::Server) -> Result<(), Box<dyn std::error::Error>> {
//! let handle = server.handle();
//! let shown = move || {
//!     let figures = handle.figures().map_err(|e| e.to_string())?;
//!     let mut shown = Snapshot::of_server(&figures);
//!     let orders = "Orders that were taken.";
//!     shown.metrics.counter("shop_orders_total", orders).sample(&[("kind", "book")], 7u64);
//!     Ok(shown)
//! };
//! let admin = Admin::start(AdminConfig::new("localhost:9100".parse()?), shown)?;
//! println!("see {}/metrics", admin.urls()[0]);
//! # Ok(())
//! # }
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `config` | [`AdminConfig`], [`AdminError`] |
//! | `snapshot` | what pages show: [`Snapshot`], [`Row`] |
//! | `metrics` | [`Metrics`], and their text |
//! | `server`, `cluster`, `opflex` | what pages show of what this library runs |
//! | `sampler` | the thread that asks for it, and what it was told last |
//! | `pages` | a path to its page |
//! | `http` | a request's head, and an answer |
//! | `connection` | one connection, from its TLS handshake to its end |
//! | `limited` | a stream with a deadline |

mod cluster;
mod config;
mod connection;
mod http;
mod limited;
mod metrics;
mod opflex;
mod pages;
mod sampler;
mod server;
mod snapshot;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

pub use self::config::{AdminConfig, AdminError};
use self::connection::Door;
pub use self::metrics::{Family, Histogram, Metrics, Value};
use self::pages::Pages;
use self::sampler::Sampler;
pub use self::snapshot::{Row, Snapshot};
use ssntp::Role;
use ssntp::pki::{Identity, Trust};
use ssntp_transport::tls::Acceptor;
use ssntp_transport::{Acceptance, Address, Newcomer};

/// Where log lines go.
const LOG: &str = "ssntp_admin";

/// How many connections are served at a time. Each has a thread and an answer of
/// at most a megabyte; a scrape takes one for some milliseconds.
const CONNECTIONS: usize = 32;

/// The pages of a process.
///
/// # Threads
/// It owns its threads: one that accepts at each address, one for each connection,
/// and one that asks the source. [`stop`](Self::stop), or dropping it, ends all of
/// them: it waits for a call of the source that is under way.
#[derive(Debug)]
pub struct Admin {
    addresses: Vec<Address>,
    acceptor: Arc<Mutex<Option<Acceptor>>>,
    pages: Arc<Pages>,
    acceptance: Option<Acceptance>,
    sampler: Option<Sampler>,
}

impl Admin {
    /// Binds the address and serves pages from then on. What they show `source`
    /// says, or why it cannot be said: then `/healthz`, and what needs it, answer
    /// 503 with this.
    ///
    /// # Errors
    /// [`AdminError`]; nothing runs then.
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
        let acceptance = Acceptance::start(listeners, "admin", LOG, CONNECTIONS, serve);
        admin.acceptance = Some(acceptance.map_err(AdminError::Thread)?);
        Ok(admin)
    }

    /// The addresses it listens at, with the port that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Where each page begins, as in `http://127.0.0.1:9100` or `unix:/run/s.sock`.
    pub fn urls(&self) -> Vec<String> {
        let url = |address: &Address| match address {
            Address::Unix(_) => address.to_string(),
            _ if config::is_local(address) => format!("http://{address}"),
            _ => format!("https://{address}"),
        };
        self.addresses.iter().map(url).collect()
    }

    /// Takes another certificate and other authorities, for connections from now
    /// on. Without effect where the pages were started without TLS.
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

    /// From now on `/readyz` says that the process ends, whatever the source says.
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

#[expect(clippy::disallowed_methods, reason = "figures have an age, and waits a limit")]
fn now() -> Instant {
    Instant::now()
}

/// The roles that are let in where nobody says: who may command a cluster may
/// look at it.
const ROLES: Role = Role::CONTROLLER;
