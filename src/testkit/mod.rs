//! Tools to test programs that use this library: certificates, servers and clients in one process,
//! networks that fail, and handlers without a server.
//!
//! | to test | use |
//! |---|---|
//! | a [`Handler`](crate::server::Handler) alone, in virtual time | [`HandlerTest`] |
//! | a server with its clients | [`Testkit`]: TLS and threads are real, the network is memory |
//! | nodes that join with a token | [`Testkit::enrolment`], and [`Tokens`], which keeps tokens in memory |
//! | a network that fails | [`MemoryListener::cut`], [`stall`](MemoryListener::stall), [`set_faults`](MemoryListener::set_faults) |
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
mod tokens;

use std::time::Duration;

use crate::proto::DEFAULT_PORT;
use crate::server::Enrolment;
use crate::{ClientConfig, Role, ServerConfig};
use ssntp_pki::{
    Authority, AuthorityRequest, CertificateRequest, Error, Identity, JoinToken, StoredToken, Trust,
};
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::{Address, wall_clock};

pub use self::handler_test::HandlerTest;
pub use self::tokens::Tokens;

/// An authority, and a network in memory. Both exist only in this process.
#[derive(Debug)]
pub struct Testkit {
    authority: Authority,
    network: MemoryListener,
}

impl Testkit {
    /// A new authority, which only the servers and clients of this kit trust.
    ///
    /// # Errors
    /// The library was built without cryptography.
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            authority: Authority::new(&AuthorityRequest::default())?,
            network: MemoryListener::new(),
        })
    }

    /// The authority, for certificates with more than a role.
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
    /// As [`Authority::issue`].
    pub fn identity(&self, roles: Role) -> Result<Identity, Error> {
        let issued = self.authority.issue(&CertificateRequest::new(roles))?;
        Ok(issued.identity())
    }

    /// The configuration of a server that listens in [`network`](Self::network).
    ///
    /// # Errors
    /// As [`identity`](Self::identity).
    pub fn server_config(&self) -> Result<ServerConfig, Error> {
        let config = ServerConfig::new(self.identity(Role::SERVER)?, self.trust());
        Ok(config.listen_in_memory(&self.network))
    }

    /// The configuration of a client with these roles that connects to that server.
    ///
    /// # Errors
    /// As [`identity`](Self::identity).
    pub fn client_config(&self, roles: Role) -> Result<ClientConfig, Error> {
        let config = ClientConfig::new(self.identity(roles)?, self.trust());
        Ok(config.connect_in_memory(&self.network))
    }

    /// Lets nodes join, with an issuer for all roles of nodes, and these tokens.
    ///
    /// # Errors
    /// As [`Authority::issuer`].
    pub fn enrolment(&self, tokens: &Tokens) -> Result<Enrolment, Error> {
        let roles = Role::AGENT | Role::NETAGENT | Role::CNCIAGENT;
        let issuer = self.authority.issuer("testkit issuer", roles, 365)?;
        Ok(Enrolment::new(issuer, tokens.clone()))
    }

    /// A new token for `uses` nodes with these roles, which ends in an hour and is in `tokens`.
    ///
    /// # Errors
    /// The library was built without cryptography.
    pub fn token(&self, tokens: &Tokens, roles: Role, uses: u32) -> Result<JoinToken, Error> {
        let token = JoinToken::new(Address::tcp("localhost", DEFAULT_PORT), self.authority.info())?;
        let ends = wall_clock() + Duration::from_secs(3600);
        tokens.add(StoredToken::new(&token, roles, None, uses, ends, "testkit"));
        Ok(token)
    }

    /// The network, with functions that make it fail. It closes with the first server that stops.
    pub fn network(&self) -> &MemoryListener {
        &self.network
    }
}
