//! The configuration of links.

use ssntp_transport::Target;

/// The servers that a server links with.
///
/// ```no_run
/// use ssntp::server::Federation;
/// use ssntp::transport::Address;
///
/// let peers = ["one.example:8888", "two.example:8888"];
/// let peers: Result<Vec<Address>, _> = peers.iter().map(|peer| peer.parse()).collect();
/// let federation = Federation::new().peers(peers?).advertise("three.example:8888");
/// # Ok::<(), ssntp::transport::AddressError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Federation {
    pub(crate) peers: Vec<Target>,
    pub(crate) advertised: String,
}

impl Federation {
    /// A federation without peers: the server accepts links, and
    /// [`Dialler::dial`](crate::server::Dialler::dial) can add peers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds addresses of servers to link with. The server recognises and skips its own address, so
    /// that all servers can have the same list.
    #[must_use]
    pub fn peers(mut self, peers: impl IntoIterator<Item = impl Into<Target>>) -> Self {
        self.peers.extend(peers.into_iter().map(Into::into));
        self
    }

    /// Sets the address at which others reach this server, at most 256 bytes. They show it to
    /// operators. Default: none.
    #[must_use]
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertised = address.into();
        self
    }
}
