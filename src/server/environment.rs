//! The part of a server that all its threads share: who it is, its credentials, and what handshakes need.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uuid::Uuid;

use super::config::{ServerConfig, ServerError, check_identity};
use super::counters::HandshakeCounters;
use super::credentials::{ActiveCredentials, TlsSettings};
#[cfg(feature = "issue")]
use super::enrol::Enrolment;
use super::links::DialledPeers;
use super::own::OwnServer;
use crate::proto::Operands;
use ssntp_pki::{Identity, Trust};
use ssntp_transport::{BufferPool, LogLimit, locked};

/// The part of a server that all its threads share.
#[derive(Debug)]
pub struct Environment {
    pub(super) own: Arc<OwnServer>,
    /// The servers that are dialled.
    pub(super) peers: DialledPeers,
    pub(super) tracing: bool,
    pub(super) handshake_timeout: Duration,
    pub(super) write_timeout: Duration,
    pub(super) pool: BufferPool,
    /// The present credentials. A renewal replaces the pointer.
    // Handshakes hold the lock only to clone the pointer, so that they do not wait for each other.
    active: Mutex<Arc<ActiveCredentials>>,
    pub(super) tls: TlsSettings,
    /// Limits the log lines that newcomers can cause, by host.
    pub(super) newcomers: Mutex<LogLimit<Option<IpAddr>>>,
    pub(super) handshakes: HandshakeCounters,
    /// Lets nodes join.
    #[cfg(feature = "issue")]
    pub(super) enrolment: Option<Arc<Enrolment>>,
}

impl Environment {
    /// The environment of a server with this configuration.
    ///
    /// # Errors
    /// [`ServerError::Tls`] if the certificates cannot be used for TLS.
    pub fn new(config: &ServerConfig) -> Result<Arc<Self>, ServerError> {
        let federation = config.federate.as_ref();
        let advertised = federation.map(|federation| federation.advertised.clone());
        let tls = TlsSettings {
            links: federation.is_some(),
            joins: config.enrol.is_some(),
            resumption: config.resumption,
            outlive: config.outlive_certificates,
        };
        let active = ActiveCredentials::new(&config.identity, &config.trust, tls)?;
        Ok(Arc::new(Self {
            own: Arc::new(OwnServer {
                uuid: config.uuid,
                role: config.role,
                incarnation: Uuid::new_v4().as_u64_pair().1,
                max_payload: config.max_payload,
                operands: config.operands.clone(),
                advertised: advertised.unwrap_or_default(),
            }),
            tracing: config.tracing,
            handshake_timeout: config.handshake_timeout,
            write_timeout: config.write_timeout,
            pool: BufferPool::new(),
            active: Mutex::new(Arc::new(active)),
            tls,
            newcomers: Mutex::default(),
            handshakes: HandshakeCounters::default(),
            peers: DialledPeers::default(),
            #[cfg(feature = "issue")]
            enrolment: config.enrol.clone(),
        }))
    }

    /// The kinds of frames of the application.
    pub(crate) fn operands(&self) -> &Operands {
        &self.own.operands
    }

    /// The credentials for the next handshake.
    pub(super) fn active(&self) -> Arc<ActiveCredentials> {
        Arc::clone(&locked(&self.active))
    }

    /// Replaces the credentials for later handshakes.
    pub(super) fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), ServerError> {
        check_identity(identity, self.own.role, self.own.uuid)?;
        // It makes tickets with a new key, so it accepts no ticket that was made before.
        let mut renewed = ActiveCredentials::new(identity, trust, self.tls)?;
        let mut active = locked(&self.active);
        // Compared under the lock, so that two renewals at the same time follow each other.
        renewed.acceptor.check_follows(&active.acceptor)?;
        renewed.credentials.renewals = active.generation() + 1;
        *active = Arc::new(renewed);
        Ok(())
    }
}
