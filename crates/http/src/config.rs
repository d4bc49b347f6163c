//! The address of the pages, and the clients that may read them.

use std::io;

use ssntp_pki::{Identity, Role, Trust};
use ssntp_transport::tls::TlsError;
use ssntp_transport::{Address, Listener, TcpOptions, setters};

/// The address of the pages, and the clients that may read them.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    address: Address,
    pub(super) roles: Role,
    for_group: bool,
    hosts: Vec<String>,
    pub(super) tls: Option<(Identity, Trust)>,
}

impl HttpConfig {
    /// Pages at `address`: a loopback address, or a Unix socket that only the own user may
    /// use (0600). The socket file of a process that was killed is replaced. Other
    /// addresses need [`tls`](Self::tls).
    pub fn new(address: Address) -> Self {
        Self {
            address,
            // A controller may command the cluster, so it may also read what the pages show.
            roles: Role::CONTROLLER,
            for_group: false,
            hosts: Vec::new(),
            tls: None,
        }
    }

    /// Mutual TLS at addresses that are not loopback: the pages prove `identity`, and
    /// clients need a certificate of `trust` with one of the [`roles`](Self::roles).
    #[must_use]
    pub fn tls(mut self, identity: Identity, trust: Trust) -> Self {
        self.tls = Some((identity, trust));
        self
    }

    setters! {
        /// The roles of which a client over TLS needs one; without roles, every certificate of
        /// the trusted authorities is accepted. Default: controller.
        roles: Role;
        /// True if the group of a Unix socket's file may use it as well (0660).
        /// Default: false.
        for_group: bool;
        /// Further names that the `Host` of a request may have, such as that of a proxy in front. Default: none.
        hosts: Vec<String>;
    }

    /// Binds the address. Returns for each listener true if only this host can connect to it.
    pub(super) fn listen(&self) -> Result<(Vec<Listener>, Vec<bool>), HttpError> {
        let failed = |e| HttpError::Listen(self.address.clone(), e);
        let mode = if self.for_group { 0o660 } else { 0o600 };
        let listeners = Listener::bind_with_mode(&self.address, TcpOptions::default(), Some(mode));
        let listeners = listeners.map_err(failed)?;
        let local = |listener: &Listener| listener.local_address().is_none_or(|at| at.is_local());
        let doors: Vec<_> = listeners.iter().map(local).collect();
        // The bound addresses are checked, because a host name may resolve to any address.
        if doors.contains(&false) && self.tls.is_none() {
            return Err(HttpError::Open(self.address.clone()));
        }
        Ok((listeners, doors))
    }

    /// The names that are allowed as the `Host` of a request: that of the address, and [`hosts`](Self::hosts).
    pub(super) fn allowed_hosts(&self) -> Vec<String> {
        let own = match &self.address {
            Address::Tcp { host, .. } if !host.is_empty() => Some(host),
            _ => None,
        };
        let all = own.into_iter().chain(&self.hosts);
        all.map(|host| host.to_ascii_lowercase()).collect()
    }
}

/// The reason why pages cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The address cannot be bound. Choose another one, or end the process that uses it.
    #[error("cannot listen at {0}: {1}")]
    Listen(Address, #[source] io::Error),
    /// Other hosts could read the pages, and there is no TLS. Choose a loopback address
    /// or a Unix socket, or configure a certificate and authorities.
    #[error(
        "{0} is not an address of this host alone: there the pages need mutual TLS, by a certificate \
         and an authority"
    )]
    Open(Address),
    /// The certificate cannot be used for TLS.
    #[error(transparent)]
    Tls(TlsError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}
