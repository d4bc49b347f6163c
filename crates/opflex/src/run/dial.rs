//! An attempt to connect to a server, on a thread of its own.

use std::error::Error;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::config::{ElementConfig, StartError};
use super::connection::Shown;
use crate::peer::{ConnectionId, bracketed};
use crate::rpc::Random;
use ssntp_transport::tls::Connector;
use ssntp_transport::{Address, BufferPool, Cancel, Duplex, Halves, Target, TcpOptions, after, now, plain};

/// The settings that all attempts share.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) config: Arc<ElementConfig>,
    /// TLS of new attempts. It differs from that of the configuration after a renewal.
    pub(super) connector: Option<Connector>,
    pool: BufferPool,
}

/// An attempt under way.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) cancel: Cancel,
    pub(super) thread: JoinHandle<()>,
}

impl Dialer {
    pub(super) fn new(config: &Arc<ElementConfig>) -> Result<Self, StartError> {
        let dialer = Self {
            config: Arc::clone(config),
            connector: config.tls.clone(),
            pool: BufferPool::new(),
        };
        for address in &config.settings.peers {
            if dialer.target(&bracketed(address)).is_none() {
                return Err(StartError::Address(address.clone()));
            }
        }
        Ok(dialer)
    }

    fn target(&self, address: &str) -> Option<Target> {
        if let Some(place) = self.config.memory.get(address) {
            return Some(Target::Memory(place.clone()));
        }
        address.parse::<Address>().ok().map(Target::Address)
    }

    /// The reason for which the present TLS refuses these certificates of the server at an address.
    /// `None` if it accepts them.
    pub(super) fn objection(&self, address: &str, shown: &Shown) -> Option<String> {
        let (connector, target) = (self.connector.as_ref()?, self.target(address)?);
        let (why, _) = connector.objection(shown, self.name(&target))?;
        Some(why)
    }

    /// The name that the server's certificate must have.
    fn name<'a>(&'a self, target: &'a Target) -> &'a str {
        let name = self.config.server_name.as_deref();
        name.unwrap_or_else(|| target.server_name())
    }

    /// Connects to a server. Blocks until it is connected, the time is over or the attempt is cancelled.
    pub(super) fn attempt(
        &self,
        id: ConnectionId,
        address: &str,
        cancel: &Cancel,
    ) -> Result<(Halves, Shown), Box<dyn Error>> {
        let target = self.target(address).ok_or("it is not HOST:PORT or unix:PATH")?;
        let mut result = Err("it has no address".into());
        // A name with several addresses is tried address by address. The server at one may accept connections and
        // send no identity, so attempts begin with different ones.
        let mut addresses = target.addresses(self.config.settings.dial_timeout, cancel)?;
        let first = Random::new(id.0).bits().checked_rem(addresses.len() as u64);
        addresses.rotate_left(first.and_then(|first| usize::try_from(first).ok()).unwrap_or(0));
        for (at, limit) in addresses {
            let stream = at.connect(&TcpOptions::default(), limit, cancel);
            let met = stream.map_err(Into::into);
            result = met.and_then(|stream| self.meet(&target, stream, cancel));
            if result.is_ok() || cancel.is_cancelled() {
                break;
            }
        }
        result
    }

    fn meet(
        &self,
        target: &Target,
        stream: Arc<dyn Duplex>,
        cancel: &Cancel,
    ) -> Result<(Halves, Shown), Box<dyn Error>> {
        let Some(connector) = &self.connector else {
            return Ok((plain(stream, self.pool.clone()), Shown::default()));
        };
        // Cancelling shuts the stream down, which ends every read and write.
        let _watch = cancel.watch(&stream);
        // libopflex has one time limit for TLS and the identity together.
        let deadline = after(now(), self.config.settings.identity_timeout);
        let secured = connector.connect(stream, self.name(target), &self.pool, deadline)?;
        Ok((secured.halves, secured.peer.into()))
    }
}
