//! One attempt at one server, on a thread of its own.

use std::collections::BTreeMap;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use super::connection::Shown;
use super::{ElementConfig, StartError, now};
use crate::message::Decoder;
use crate::peer::{ConnectionId, bracketed};
use crate::rpc::{self, Framing};
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::tls::{Connector, TlsError};
use ssntp_transport::{Address, BufferPool, Cancel, Halves, Target, TcpOptions, after, plain, threads};

/// What every attempt needs, the address excepted.
#[derive(Clone)]
pub(super) struct Dialer {
    memory: BTreeMap<String, MemoryListener>,
    /// TLS of the attempts that begin from now on.
    pub(super) connector: Option<Connector>,
    server_name: Option<String>,
    dial_timeout: Duration,
    tls_timeout: Duration,
    framing: Framing,
    limits: rpc::Limits,
    tcp: TcpOptions,
    pool: BufferPool,
}

/// An attempt under way.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) cancel: Cancel,
    pub(super) thread: JoinHandle<()>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error(transparent)]
    Connect(#[from] io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("it is not HOST:PORT or unix:PATH")]
    Address,
}

impl Dialer {
    pub(super) fn new(config: &ElementConfig) -> Result<Self, StartError> {
        let dialer = Self {
            memory: config.memory.clone(),
            connector: config.tls.clone(),
            server_name: config.server_name.clone(),
            dial_timeout: config.settings.dial_timeout,
            tls_timeout: config.settings.identity_timeout,
            framing: config.framing,
            limits: config.limits,
            tcp: config.tcp,
            pool: BufferPool::new(),
        };
        for address in &config.settings.peers {
            if dialer.target(&bracketed(address)).is_none() {
                return Err(StartError::Address(address.clone()));
            }
        }
        Ok(dialer)
    }

    /// Starts an attempt. Its thread ends with `done`, which is told how it went.
    pub(super) fn start(
        &self,
        id: ConnectionId,
        address: String,
        done: impl FnOnce(Result<(Halves, Shown, Decoder), DialError>) + Send + 'static,
    ) -> io::Result<Dial> {
        // The core may give the server up while the attempt is under way.
        let cancel = Cancel::new();
        let (dialer, cancelled) = (self.clone(), cancel.clone());
        let thread = threads::spawn(format!("opflex-dial{id}"), move || {
            let reached = dialer.attempt(&address, &cancelled);
            done(reached.map(|(halves, shown)| {
                let decoder = Decoder::new(dialer.framing, dialer.limits);
                (halves, shown, decoder)
            }));
        })?;
        Ok(Dial { cancel, thread })
    }

    fn target(&self, address: &str) -> Option<Target> {
        if let Some(place) = self.memory.get(address) {
            return Some(Target::Memory(place.clone()));
        }
        address.parse::<Address>().ok().map(Target::Address)
    }

    /// What a handshake now would have against the server at an address that has shown
    /// these certificates.
    pub(super) fn objection(&self, address: &str, shown: &Shown) -> Option<String> {
        let (connector, target) = (self.connector.as_ref()?, self.target(address)?);
        let (why, _) = connector.objection(shown, self.name(&target))?;
        Some(why)
    }

    /// The name that the server's certificate has to hold.
    fn name<'a>(&'a self, target: &'a Target) -> &'a str {
        self.server_name
            .as_deref()
            .unwrap_or_else(|| target.server_name())
    }

    fn attempt(&self, address: &str, cancel: &Cancel) -> Result<(Halves, Shown), DialError> {
        let target = self.target(address).ok_or(DialError::Address)?;
        let stream = target.connect(&self.tcp, self.dial_timeout, cancel)?;
        let Some(connector) = &self.connector else {
            return Ok((plain(stream, self.pool.clone()), Shown::default()));
        };
        // Cancelling shuts the stream down, which ends every read and write.
        let _watch = cancel.watch(&stream);
        // libopflex has one time limit for TLS and the identity together.
        let deadline = after(now(), self.tls_timeout);
        let secured = connector.connect(stream, self.name(&target), &self.pool, deadline)?;
        Ok((secured.halves, secured.peer.into()))
    }
}
