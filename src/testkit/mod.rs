//! For the tests of programs that embed this crate: certificates, servers and
//! clients in one process, networks that fail, and handlers without any of it.
//!
//! | to test | there is |
//! |---|---|
//! | a [`Handler`](crate::server::Handler) alone, in virtual time | [`HandlerTest`] |
//! | a server with its clients | [`Testkit`]: TLS and threads are real, the network is memory |
//! | what becomes of it when the network fails | [`MemoryListener::cut`], [`stall`](MemoryListener::stall), [`set_faults`](MemoryListener::set_faults) |
//!
//! ```
//! # #[cfg(feature = "issue")] {
//! use ssntp::client::{Client, ClientEvent};
//! use ssntp::testkit::Testkit;
//! use ssntp::{Role, Server};
//!
//! let kit = Testkit::new()?;
//! let server = Server::start(kit.server_config()?, ())?;
//! let client = Client::connect(kit.client_config(Role::AGENT)?)?;
//! assert!(matches!(client.recv()?, ClientEvent::Connected(_)));
//! kit.network().cut();
//! assert!(matches!(client.recv()?, ClientEvent::Disconnected { retrying: true, .. }));
//! assert!(matches!(client.recv()?, ClientEvent::Connected(_)));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod handler_test;

use crate::{ClientConfig, Role, ServerConfig};
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::pki::{Authority, AuthorityRequest, CertificateRequest, Error, Identity, Trust};

pub use self::handler_test::HandlerTest;
pub use ssntp_transport::memory::Faults;

/// An authority, and a network in memory. Both are of this process and gone
/// with it.
#[derive(Debug)]
pub struct Testkit {
    authority: Authority,
    network: MemoryListener,
}

impl Testkit {
    /// A new authority, which only this kit's servers and clients trust.
    ///
    /// # Errors
    /// No cryptography was compiled in.
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            authority: Authority::new(&AuthorityRequest::default())?,
            network: MemoryListener::new(),
        })
    }

    /// The authority, for certificates that say more than a role.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Trust in the authority.
    pub fn trust(&self) -> Trust {
        self.authority.trust()
    }

    /// A new identity with these roles.
    ///
    /// # Errors
    /// As of [`Authority::issue`].
    pub fn identity(&self, roles: Role) -> Result<Identity, Error> {
        let issued = self.authority.issue(&CertificateRequest::new(roles))?;
        Ok(issued.identity())
    }

    /// A server that listens in [`network`](Self::network).
    ///
    /// # Errors
    /// As of [`identity`](Self::identity).
    pub fn server_config(&self) -> Result<ServerConfig, Error> {
        let config = ServerConfig::new(self.identity(Role::SERVER)?, self.trust());
        Ok(config.listen_in_memory(&self.network))
    }

    /// A client with these roles that connects there.
    ///
    /// # Errors
    /// As of [`identity`](Self::identity).
    pub fn client_config(&self, roles: Role) -> Result<ClientConfig, Error> {
        let config = ClientConfig::new(self.identity(roles)?, self.trust());
        Ok(config.connect_in_memory(&self.network))
    }

    /// Where they meet, and what can go wrong there. It closes with the first
    /// server that stops.
    pub fn network(&self) -> &MemoryListener {
        &self.network
    }
}
