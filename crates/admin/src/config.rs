//! Where the pages are, and who may see them.

use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;

use super::ROLES;
use ssntp::Role;
use ssntp::pki::{Identity, Trust};
use ssntp_transport::setters;
use ssntp_transport::tls::TlsError;
use ssntp_transport::{Address, Listener, TcpOptions};

/// Where the pages are, and who may see them.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    address: Address,
    pub(super) roles: Role,
    for_group: bool,
    pub(super) tls: Option<(Identity, Trust)>,
}

impl AdminConfig {
    /// Pages at `address`: loopback addresses, or a Unix socket, whose file the own
    /// user alone may use (0600). One that a killed process left is replaced.
    /// Other addresses need [`tls`](Self::tls).
    pub fn new(address: Address) -> Self {
        Self {
            address,
            roles: ROLES,
            for_group: false,
            tls: None,
        }
    }

    /// Mutual TLS at addresses that are not loopback: proves `identity`, and takes
    /// clients with a certificate of `trust` that holds one of the
    /// [`roles`](Self::roles).
    #[must_use]
    pub fn tls(mut self, identity: Identity, trust: Trust) -> Self {
        self.tls = Some((identity, trust));
        self
    }

    setters! {
        /// The roles whose holders may look over TLS; one of them is enough.
        /// Default: controller.
        roles: Role;
        /// Whether the group of a Unix socket's file may use it, too (0660).
        /// Default: false.
        for_group: bool;
    }

    /// Binds the address. For each listener, whether it is local.
    pub(super) fn listen(&self) -> Result<(Vec<Listener>, Vec<bool>), AdminError> {
        let failed = |e| AdminError::Listen(self.address.clone(), e);
        let listeners = Listener::bind(&self.address, TcpOptions::default()).map_err(failed)?;
        if let Address::Unix(path) = &self.address {
            let mode = if self.for_group { 0o660 } else { 0o600 };
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        }
        let local = |listener: &Listener| listener.local_address().is_none_or(|at| is_local(&at));
        let doors: Vec<_> = listeners.iter().map(local).collect();
        if doors.contains(&false) && self.tls.is_none() {
            return Err(AdminError::Open(self.address.clone()));
        }
        Ok((listeners, doors))
    }

    /// The name that was listened at, which requests may ask for.
    pub(super) fn host(&self) -> Option<String> {
        match &self.address {
            Address::Tcp { host, .. } if !host.is_empty() => Some(host.to_ascii_lowercase()),
            _ => None,
        }
    }
}

/// Whether only this host can connect there; of an address that is bound.
pub(super) fn is_local(bound: &Address) -> bool {
    match bound {
        Address::Tcp { host, .. } => host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()),
        // A Unix socket.
        _ => true,
    }
}

/// Why pages can't be served.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdminError {
    /// The address can't be listened at.
    Listen(Address, io::Error),
    /// Others than this host could look, and there is no TLS: name a loopback
    /// address or a Unix socket, or give a certificate and authorities.
    Open(Address),
    /// The certificate can't be used for TLS.
    Tls(TlsError),
    /// A thread can't be started.
    Thread(io::Error),
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, e) => write!(f, "cannot listen at {address}: {e}"),
            Self::Open(address) => write!(
                f,
                "{address} is not an address of this host alone: there the pages need mutual TLS, \
                 by a certificate and an authority"
            ),
            Self::Tls(e) => e.fmt(f),
            Self::Thread(e) => write!(f, "cannot start a thread: {e}"),
        }
    }
}

impl std::error::Error for AdminError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen(_, e) | Self::Thread(e) => Some(e),
            Self::Tls(e) => Some(e),
            Self::Open(_) => None,
        }
    }
}
