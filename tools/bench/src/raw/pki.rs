//! Throw-away certificates.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::sign::SingleCertAndKey;
use ssntp::Role;
use ssntp::client::ClientConfig;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::transport::{Address, TcpOptions};
use ssntp_transport::tls::Connector;
use ssntp_transport::{BufferPool, Halves};
use uuid::Uuid;

use super::session::{Dialer, Session, Tickets};
use super::{LIMIT, Side, System, now};
use crate::failure::Failure;

/// A throw-away authority with files for the processes of the servers. Dropping it removes the
/// files.
#[derive(Debug)]
pub(crate) struct Pki {
    directory: PathBuf,
    server: Identity,
    agent: Identity,
    controller: Identity,
    scheduler: Identity,
    trust: Trust,
    pool: BufferPool,
}

impl Pki {
    pub(crate) fn new() -> Result<Self, Failure> {
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
            scheduler: issue(Role::SCHEDULER)?.identity(),
            trust: authority.trust(),
            pool: BufferPool::new(),
            directory,
        };
        server.save(pki.server_path())?;
        pki.write("server-cert.pem", server.certificate_pem())?;
        pki.write("server-key.pem", server.key_pem())?;
        pki.write("ca.pem", authority.certificate_pem())?;
        Ok(pki)
    }

    /// Writes a file that only this user may read; returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.path(name);
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
        Ok(path)
    }

    /// The path of the file of this name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn ca_path(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// The server's certificate and key in one file.
    pub(crate) fn server_path(&self) -> PathBuf {
        self.path("server.pem")
    }

    fn identity(&self, side: Side) -> &Identity {
        match side {
            Side::Sender => &self.agent,
            Side::Receiver => &self.controller,
            Side::Bystander => &self.scheduler,
        }
    }

    /// The configuration of a public client.
    pub(crate) fn client(&self, side: Side, address: &Address) -> ClientConfig {
        ClientConfig::new(self.identity(side).clone(), self.trust.clone())
            .address(address.clone())
            .attempts(1)
    }

    /// A dialer that makes a full handshake each time.
    pub(crate) fn dialer(&self, system: System, side: Side) -> Result<Dialer, Failure> {
        let connector = self.trust.connector(self.identity(side))?;
        Ok(Dialer::new(system, side, connector, self.pool.clone()))
    }

    /// A dialer for a returning client, which uses the tickets that the server gave it.
    pub(crate) fn returning(&self, system: System, side: Side) -> Result<(Dialer, Arc<Tickets>), Failure> {
        let identity = self.identity(side);
        let tickets = Arc::new(Tickets::default());
        let mut config = rustls::ClientConfig::builder_with_provider(ssntp::pki::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(self.trust.roots()))
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified_key())));
        config.resumption = Resumption::store(Arc::clone(&tickets) as _);
        let connector = Connector::with_config(Arc::new(config));
        Ok((Dialer::new(system, side, connector, self.pool.clone()), tickets))
    }

    /// The two ends of a TLS connection over loopback, without a server.
    pub(crate) fn tls_pair(&self) -> Result<(Session, Halves), Failure> {
        let acceptor = self.trust.acceptor(&self.server)?;
        let listen = Address::tcp("127.0.0.1", 0);
        let listeners = ssntp_transport::Listener::bind(&listen, TcpOptions::default())?;
        let Some(listener) = listeners.first() else {
            return Err(Failure::new("cannot listen on loopback"));
        };
        let address = listener.local_address().unwrap_or(listen);
        let dialer = self.dialer(System::Ssntp, Side::Sender)?;
        std::thread::scope(|scope| {
            let client = scope.spawn(|| dialer.tls(&address));
            let accepted = listener.accept()?;
            let Some((stream, _)) = accepted else {
                return Err(Failure::new("the listener was closed"));
            };
            let server = acceptor.accept(stream, &self.pool, now() + LIMIT)?.halves;
            let client = client.join().map_err(|_| Failure::new("the client panicked"))??;
            for stream in [&client.stream(), &server.stream] {
                stream.set_read_timeout(None)?;
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
