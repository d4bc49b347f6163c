//! Peers with as little around the wire as possible: they encode once, write
//! 16 KiB batches, and count runs.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::client::ClientConfig;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::proto::{ClientHandshake, Codec, Command, Connect, DEFAULT_MAX_PAYLOAD, Frame, Item};
use ssntp::transport::tls::{Acceptor, Connector};
use ssntp::transport::{
    Address, BufferPool, Duplex, Halves, Outgoing, TcpOptions, connect_tcp, connect_unix,
};
use uuid::Uuid;

use crate::failure::Failure;

const LIMIT: Duration = Duration::from_secs(30);

/// A throw-away authority, with files for the server's process. Dropping it
/// removes them.
#[derive(Debug)]
pub(super) struct Pki {
    directory: PathBuf,
    server: Identity,
    agent: Identity,
    controller: Identity,
    trust: Trust,
    pool: BufferPool,
}

impl Pki {
    pub(super) fn new() -> Result<Self, Failure> {
        let authority = Authority::new(&AuthorityRequest::default())?;
        let issue = |role| authority.issue(&CertificateRequest::new(role));
        let directory = std::env::temp_dir().join(format!("ssntp-bench-{}", Uuid::new_v4()));
        let made = fs::DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|e| Failure::new(format!("{}: {e}", directory.display())))?;
        let server = issue(Role::SERVER)?;
        let pki = Self {
            server: server.identity(),
            agent: issue(Role::AGENT)?.identity(),
            controller: issue(Role::CONTROLLER)?.identity(),
            trust: authority.trust(),
            pool: BufferPool::new(),
            directory,
        };
        server.save(pki.server_path())?;
        fs::write(pki.ca_path(), authority.certificate_pem())
            .map_err(|e| Failure::new(format!("{}: {e}", pki.ca_path().display())))?;
        Ok(pki)
    }

    pub(super) fn ca_path(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    pub(super) fn server_path(&self) -> PathBuf {
        self.directory.join("server.pem")
    }

    fn identity(&self, role: Role) -> &Identity {
        if role == Role::CONTROLLER {
            &self.controller
        } else {
            &self.agent
        }
    }

    /// The configuration of a client of the public kind.
    pub(super) fn client(&self, role: Role, address: &Address) -> ClientConfig {
        ClientConfig::new(self.identity(role).clone(), self.trust.clone())
            .address(address.clone())
            .attempts(1)
    }

    /// What connects with a role's certificate.
    pub(super) fn dialer(&self, role: Role) -> Result<Dialer, Failure> {
        let connector = Connector::mutual(self.identity(role), &self.trust).map_err(Failure::new)?;
        Ok(Dialer {
            connector,
            role,
            pool: self.pool.clone(),
        })
    }

    /// Two ends of one TLS connection over loopback, without a server.
    pub(super) fn tls_pair(&self) -> Result<(Halves, Halves), Failure> {
        let acceptor = Acceptor::mutual(&self.server, &self.trust).map_err(Failure::new)?;
        let listen = Address::tcp("127.0.0.1", 0);
        let listeners =
            ssntp::transport::Listener::bind(&listen, TcpOptions::default()).map_err(Failure::new)?;
        let Some(listener) = listeners.first() else {
            return Err(Failure::new("no loopback"));
        };
        let address = listener.local_address().unwrap_or(listen);
        let dialer = self.dialer(Role::AGENT)?;
        std::thread::scope(|scope| {
            let client = scope.spawn(|| dialer.tls(&address));
            let accepted = listener.accept().map_err(Failure::new)?;
            let Some(stream) = accepted else {
                return Err(Failure::new("the listener was woken"));
            };
            let server = acceptor
                .accept(stream, &self.pool, now() + LIMIT)
                .map_err(Failure::new)?
                .halves;
            let client = client.join().map_err(|_| Failure::new("the client panicked"))??;
            for half in [&client, &server] {
                half.stream.set_read_timeout(None).map_err(Failure::new)?;
            }
            Ok((client, server))
        })
    }
}

impl Drop for Pki {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

fn remove(directory: &Path) {
    let _ = fs::remove_dir_all(directory);
}

/// Connects with one certificate.
#[derive(Debug)]
pub(super) struct Dialer {
    connector: Connector,
    role: Role,
    pool: BufferPool,
}

impl Dialer {
    fn tls(&self, address: &Address) -> Result<Halves, Failure> {
        let stream: Arc<dyn Duplex> = match address {
            Address::Tcp { host, port } => {
                Arc::new(connect_tcp(host, *port, &TcpOptions::default(), LIMIT).map_err(Failure::new)?)
            }
            Address::Unix(path) => Arc::new(connect_unix(path).map_err(Failure::new)?),
            other => return Err(Failure::new(format!("{other} is not supported here"))),
        };
        let secured = self
            .connector
            .connect(stream, address.server_name(), &self.pool, now() + LIMIT);
        Ok(secured.map_err(Failure::new)?.halves)
    }

    /// TLS, CONNECT, CONNECTED.
    pub(super) fn connect(&self, address: &Address) -> Result<Peer, Failure> {
        let mut halves = self.tls(address)?;
        halves
            .stream
            .set_read_timeout(Some(LIMIT))
            .map_err(Failure::new)?;
        let connect = Connect::new(self.role, Uuid::new_v4(), false);
        // What the server's certificate says was checked by TLS already.
        let handshake = ClientHandshake::new(connect, Role::ALL, None, DEFAULT_MAX_PAYLOAD);
        let hello = Outgoing::whole(handshake.connect().to_vec().into(), 1);
        halves.transmit.transmit(&[hello]).map_err(Failure::new)?;
        halves.transmit.idle();
        loop {
            match handshake.receive(halves.inbox.bytes_mut()) {
                Ok(Some(_)) => break,
                Ok(None) => {}
                Err(refusal) => return Err(Failure::new(refusal)),
            }
            let received = halves.receive.receive(&mut halves.inbox).map_err(Failure::new)?;
            if received.end {
                return Err(Failure::new("the server closed the connection"));
            }
        }
        Ok(Peer {
            halves,
            codec: Codec::new(DEFAULT_MAX_PAYLOAD, false),
            items: Vec::new(),
        })
    }
}

/// One session by hand.
#[derive(Debug)]
pub(super) struct Peer {
    halves: Halves,
    codec: Codec,
    items: Vec<Item>,
}

impl Peer {
    /// The raw stream, to end it from another thread.
    pub(super) fn stream(&self) -> Arc<dyn Duplex> {
        Arc::clone(&self.halves.stream)
    }

    /// Sends encoded frames; false once the connection is gone.
    pub(super) fn send(&mut self, batch: &Outgoing) -> bool {
        self.halves.transmit.transmit(std::slice::from_ref(batch)).is_ok()
    }

    /// Waits for frames and hands them over run by run; false at the end.
    pub(super) fn receive(&mut self, mut each: impl FnMut(&Item)) -> bool {
        match self.halves.receive.receive(&mut self.halves.inbox) {
            Ok(received) if !received.end => {}
            _ => return false,
        }
        if self
            .codec
            .decode(self.halves.inbox.bytes_mut(), &mut self.items)
            .is_err()
        {
            return false;
        }
        self.items.drain(..).for_each(|item| each(&item));
        true
    }

    /// Ends the session in order.
    pub(super) fn finish(&mut self) {
        let _ = self.halves.transmit.finish();
    }
}

/// STATS frames with a payload of so many bytes, as many as a 16 KiB record
/// holds, at least one.
pub(super) fn batch(payload: usize) -> Outgoing {
    let frame = Frame::with_payload(Command::STATS, vec![b'x'; payload]).encode();
    let count = (16 * 1024 / frame.len()).max(1);
    Outgoing::whole(
        frame.repeat(count).into(),
        u32::try_from(count).unwrap_or(u32::MAX),
    )
}

#[expect(clippy::disallowed_methods, reason = "measuring is what the clock is for")]
pub(super) fn now() -> Instant {
    Instant::now()
}
