//! The checks of a peer's certificates, which the caller brings: rustls's traits, and what a renewal
//! of credentials asks.

use std::any::Any;

use rustls::client::danger::ServerCertVerifier;
use rustls::server::danger::ClientCertVerifier;

/// A check that may replace an earlier one while sessions run.
pub trait Successor: Any + Send + Sync {
    /// Checks that this may replace `former`, for example that no revocation list goes back to an
    /// older one. A former check of another type may always be replaced.
    ///
    /// # Errors
    /// The reason, as a sentence.
    fn check_follows(&self, former: &dyn Any) -> Result<(), String>;
}

/// The check that a server makes of clients.
pub trait CheckClients: ClientCertVerifier + Successor {}

impl<T: ClientCertVerifier + Successor> CheckClients for T {}

/// The check that a client makes of servers.
pub trait CheckServers: ServerCertVerifier + Successor {}

impl<T: ServerCertVerifier + Successor> CheckServers for T {}
