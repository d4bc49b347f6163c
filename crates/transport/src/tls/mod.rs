//! TLS split by direction.
//!
//! ```text
//!            reader thread                        writer thread
//!  socket ─▶ pooled buffer ─▶ Opener ┐          ┌ Sealer ◀─ staging ◀─ batch
//!                  inbox ◀──────┘    ├─ session ┤    └──▶ pooled buffer ─▶ socket
//!                                    └ (a lock) ┘
//! ```
//!
//! The lock is held for one record at a time, or for the two or three records of an item that
//! bypasses the writer, and never during I/O. So each direction makes progress while the other
//! waits for its peer. Bytes that the receiving direction has for the socket (alerts, key updates)
//! go into `pending`, and the holder of the sending direction sends them before its own next
//! record, so one thread at a time decides the order of records. A poisoned lock ends the session.
//!
//! A direction borrows buffers from a [`BufferPool`] while it is busy; an idle one has none.
//!
//! | file | holds |
//! |---|---|
//! | `split` | the two halves of a TLS connection, the only user of rustls's connection API |
//! | `handshake` | the handshake |
//! | `receive`, `transmit` | the two directions |
//! | `check` | [`CheckClients`], [`CheckServers`]: the checks of a peer's certificate, which the caller brings |
//! | `resumption` | tickets of returning clients |
//! | `error` | [`TlsError`] |

mod check;
mod error;
mod handshake;
mod receive;
mod resumption;
mod split;
#[cfg(test)]
mod testing;
mod transmit;

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DEFAULT_VERSIONS, ServerConfig, SupportedProtocolVersion};

pub use self::check::{CheckClients, CheckServers, Successor};
pub use self::error::{CertificateFault, TlsError, certificate_fault};
use self::handshake::{handshake, offers};
use self::receive::Ciphertext;
use self::resumption::TicketCache;
use crate::crypto;
use crate::socket::Duplex;
use crate::stream::{BufferPool, Halves};

/// Accepts TLS connections with a server's identity and a check of clients. A clone shares both.
#[derive(Clone, Debug)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    /// The check of clients. `None` if they need no certificate, or if the caller made the configuration.
    clients: Option<Arc<dyn CheckClients>>,
    /// A protocol whose clients need no certificate, and its configuration.
    unproven: Option<(Vec<u8>, Arc<ServerConfig>)>,
}

impl Acceptor {
    /// Mutual TLS: shows the chain of `identity`, and every client has to prove a certificate that
    /// `clients` accepts. TLS 1.3, and 1.2 for older peers. Without [`resumption`](Self::resumption)
    /// every handshake is a full one.
    ///
    /// # Errors
    /// [`TlsError::Configuration`] if the certificates cannot be used.
    pub fn new(identity: Arc<CertifiedKey>, clients: Arc<dyn CheckClients>) -> Result<Self, TlsError> {
        let config = server_config(
            Arc::<dyn CheckClients>::clone(&clients),
            identity,
            DEFAULT_VERSIONS,
        )?;
        Ok(Self {
            clients: Some(clients),
            ..Self::with_config(Arc::new(config))
        })
    }

    /// TLS without certificates of clients. Otherwise as [`new`](Self::new).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn server_only(identity: Arc<CertifiedKey>) -> Result<Self, TlsError> {
        let config = server_config(WebPkiClientVerifier::no_client_auth(), identity, DEFAULT_VERSIONS)?;
        Ok(Self::with_config(Arc::new(config)))
    }

    /// Clients that offer this application protocol (ALPN) are not asked for a certificate. They need TLS
    /// 1.3, and see the chain of this `identity`. For other clients nothing changes. Default: no such protocol.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn unproven(mut self, protocol: &[u8], identity: Arc<CertifiedKey>) -> Result<Self, TlsError> {
        let mut config = server_config(WebPkiClientVerifier::no_client_auth(), identity, &[&TLS13])?;
        config.alpn_protocols = vec![protocol.to_vec()];
        self.unproven = Some((protocol.to_vec(), Arc::new(config)));
        Ok(self)
    }

    /// Checks that this acceptor may replace `former`, see [`Successor`].
    ///
    /// # Errors
    /// [`TlsError::Configuration`].
    pub fn check_follows(&self, former: &Self) -> Result<(), TlsError> {
        match (&self.clients, &former.clients) {
            (Some(own), Some(former)) => own.check_follows(&**former).map_err(TlsError::Configuration),
            _ => Ok(()),
        }
    }

    /// TLS with a configuration of the caller.
    pub fn with_config(config: Arc<ServerConfig>) -> Self {
        Self {
            config,
            clients: None,
            unproven: None,
        }
    }

    /// True to give clients tickets, with which they resume a session without signatures, for at
    /// most twelve hours. That takes about half the work. Certificates are verified again each
    /// time. Default: false, which leaves the configuration as it was made.
    ///
    /// # Errors
    /// The key for the tickets cannot be made.
    pub fn resumption(mut self, allowed: bool) -> Result<Self, TlsError> {
        if allowed {
            let config = Arc::make_mut(&mut self.config);
            // One is enough: a client gets a new one in each session.
            config.send_tls13_tickets = 1;
            config.ticketer = crypto::ticketer().map_err(|e| TlsError::Configuration(e.to_string()))?;
        }
        Ok(self)
    }

    /// The application protocols of the server (ALPN). A client that offers none is accepted; a
    /// client that offers others only is refused. Default: none, and offers of clients are ignored.
    #[must_use]
    pub fn protocols(mut self, protocols: &[&[u8]]) -> Self {
        let named = protocols.iter().map(|name| name.to_vec());
        Arc::make_mut(&mut self.config).alpn_protocols = named.collect();
        self
    }

    /// The reason for which a handshake at that time would refuse a client with these certificates,
    /// its own first. `None` if it would accept them, if clients need no certificate, or if this
    /// acceptor was made by [`with_config`](Self::with_config).
    pub fn objection(&self, chain: &[CertificateDer<'_>], at: SystemTime) -> Option<String> {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let checked = self.check_again(chain, UnixTime::since_unix_epoch(since));
        error::objection(&checked.err()?)
    }

    fn check_again(&self, chain: &[CertificateDer<'_>], at: UnixTime) -> Result<(), rustls::Error> {
        let Some(clients) = &self.clients else {
            return Ok(());
        };
        let (first, rest) = chain
            .split_first()
            .ok_or(rustls::Error::NoCertificatesPresented)?;
        clients.verify_client_cert(first, rest, at).map(drop)
    }

    /// Runs the server's side of a TLS handshake. Blocks until it is complete or `deadline` has
    /// passed.
    ///
    /// # Errors
    /// [`TlsError`]. An alert with the reason has been sent, if that was possible.
    pub fn accept(
        &self,
        stream: Arc<dyn Duplex>,
        pool: &BufferPool,
        deadline: Instant,
    ) -> Result<Secured, TlsError> {
        let mut config = &self.config;
        let mut incoming = Ciphertext::new(pool.clone());
        let (protocol, unproven) = match &self.unproven {
            Some((protocol, unproven)) => (&protocol[..], Some(unproven)),
            None => (&[][..], None),
        };
        if offers(&*stream, &mut incoming, protocol, deadline)? {
            config = unproven.unwrap_or(config);
        }
        // A client that has waited too long may have hung up. An answer to it would cost a signature, and a server
        // that has no time for its newcomers would spend all of it on those that are gone.
        incoming.read(&*stream, usize::MAX)?;
        let connection = split::server(Arc::clone(config))?;
        handshake(stream, connection, incoming, pool, deadline, |peer| {
            // A client that was not asked for a certificate resumes no session.
            self.check_again(peer, UnixTime::now())
        })
    }
}

/// A server that gives no tickets.
fn server_config(
    verifier: Arc<dyn ClientCertVerifier>,
    identity: Arc<CertifiedKey>,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
    // Without tickets, until `resumption` allows them. Sessions are never stored at the server.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

/// Connects with TLS, with a client's identity and a check of servers. A clone shares both.
#[derive(Clone, Debug)]
pub struct Connector {
    config: Arc<ClientConfig>,
    /// The check of servers. `None` if the caller made the configuration.
    servers: Option<Arc<dyn CheckServers>>,
    tickets: Option<TicketCache>,
}

impl Connector {
    /// Accepts the servers that `servers` accepts, and proves `identity` to servers that ask for a
    /// certificate.
    ///
    /// # Errors
    /// As [`Acceptor::new`].
    pub fn new(
        servers: Arc<dyn CheckServers>,
        identity: Option<Arc<CertifiedKey>>,
    ) -> Result<Self, TlsError> {
        let config = ClientConfig::builder_with_provider(crypto::provider())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::<dyn CheckServers>::clone(&servers));
        let mut config = match identity {
            Some(identity) => config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
            None => config.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        Ok(Self {
            config: Arc::new(config),
            servers: Some(servers),
            tickets: None,
        })
    }

    /// Checks that this connector may replace `former`, see [`Successor`].
    ///
    /// # Errors
    /// [`TlsError::Configuration`].
    pub fn check_follows(&self, former: &Self) -> Result<(), TlsError> {
        match (&self.servers, &former.servers) {
            (Some(own), Some(former)) => own.check_follows(&**former).map_err(TlsError::Configuration),
            _ => Ok(()),
        }
    }

    /// TLS with a configuration of the caller.
    pub fn with_config(config: Arc<ClientConfig>) -> Self {
        Self {
            config,
            servers: None,
            tickets: None,
        }
    }

    /// True to keep tickets of servers in memory and to resume sessions with them; clones share
    /// them. A server's certificate is verified again each time. Default: false.
    #[must_use]
    pub fn resumption(mut self, wanted: bool) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        self.tickets = wanted.then(TicketCache::new);
        config.resumption = match &self.tickets {
            Some(tickets) => tickets.resumption(),
            None => Resumption::disabled(),
        };
        self.config = Arc::new(config);
        self
    }

    /// The application protocol to request from the server (ALPN). Default: none.
    #[must_use]
    pub fn protocol(mut self, protocol: &[u8]) -> Self {
        Arc::make_mut(&mut self.config).alpn_protocols = vec![protocol.to_vec()];
        self
    }

    /// Makes the next handshake with `name` a full one, for servers that accepted a ticket and then
    /// refused the client.
    pub fn forget(&self, name: &str) {
        if let (Some(tickets), Ok(name)) = (&self.tickets, ServerName::try_from(name)) {
            tickets.forget(&name);
        }
    }

    /// Checks a server again that proved `name` with these certificates, its own first, when the session began
    /// under another trust. Returns the reason why a handshake would refuse it now, and true if that is a
    /// revocation. `None` if a handshake would accept it, or if this connector was made by
    /// [`with_config`](Self::with_config).
    pub fn objection(&self, chain: &[CertificateDer<'_>], name: &str) -> Option<(String, bool)> {
        let name = ServerName::try_from(name).ok()?;
        let fault = self.check_again(chain, &name).err()?;
        let revoked = fault == rustls::Error::InvalidCertificate(CertificateError::Revoked);
        Some((error::objection(&fault)?, revoked))
    }

    fn check_again(&self, chain: &[CertificateDer<'_>], name: &ServerName<'_>) -> Result<(), rustls::Error> {
        let Some(servers) = &self.servers else {
            return Ok(());
        };
        let (first, rest) = chain
            .split_first()
            .ok_or(rustls::Error::NoCertificatesPresented)?;
        let verified = servers.verify_server_cert(first, rest, name, &[], UnixTime::now());
        verified.map(drop)
    }

    /// Runs the client's side of a TLS handshake with a server that has to prove `name`, a DNS name
    /// or IP address. Blocks until it is complete or `deadline` has passed.
    ///
    /// In TLS 1.3 a server may refuse the client's certificate only after this: then the first read
    /// fails with its alert.
    ///
    /// # Errors
    /// [`TlsError`]. An alert with the reason has been sent, if that was possible.
    pub fn connect(
        &self,
        stream: Arc<dyn Duplex>,
        name: &str,
        pool: &BufferPool,
        deadline: Instant,
    ) -> Result<Secured, TlsError> {
        let name = ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))?;
        let connection = split::client(Arc::clone(&self.config), name.clone())?;
        let incoming = Ciphertext::new(pool.clone());
        handshake(stream, connection, incoming, pool, deadline, |peer| {
            self.check_again(peer, &name)
        })
    }
}

/// A stream whose TLS handshake is complete.
#[derive(Debug)]
pub struct Secured {
    /// Both directions, for a link or for a handshake on this thread.
    pub halves: Halves,
    /// The peer's certificates, its own first. Empty if the peer needed none.
    pub peer: Vec<CertificateDer<'static>>,
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// The application protocol that both sides agreed on, if there is one.
    pub alpn: Option<Vec<u8>>,
    /// True if an earlier session was resumed.
    pub resumed: bool,
}
