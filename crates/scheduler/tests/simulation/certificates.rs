//! The certificates of all worlds. They are issued once, because that takes time.

use std::sync::{Arc, OnceLock};

use super::application::{operands, uuid};
use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest, CertificateInfo, CertificateRequest, Identity, Trust};
use ssntp::server::ServerConfig;
use ssntp::simulation::Environment;
use uuid::Uuid;

/// The parts that all worlds share, because they take time to make.
pub(super) struct Certificates {
    pub(super) identity: Identity,
    pub(super) trust: Trust,
    pub(super) clients: Vec<CertificateInfo>,
    pub(super) environment: Arc<Environment>,
    /// The environment of a server whose sessions outlive their certificates.
    pub(super) lasting: Arc<Environment>,
}

/// The first certificates are bound to no UUID. Each of the others is bound to an entity, from 0 on.
pub(super) const UNBOUND: usize = 2;
pub(super) const BOUND: usize = 3;
/// As the default of a server is.
pub(super) const MAX_PAYLOAD: u32 = 16 << 20;
pub(super) fn certificates() -> &'static Certificates {
    static MADE: OnceLock<Certificates> = OnceLock::new();
    MADE.get_or_init(|| {
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        let info = |request: &CertificateRequest| {
            let issued = authority.issue(request).unwrap();
            CertificateInfo::from_der(&issued.identity().chain()[0]).unwrap()
        };
        let roles = Role::AGENT | Role::CONTROLLER;
        let mut clients: Vec<_> = (0..UNBOUND)
            .map(|_| info(&CertificateRequest::new(roles)))
            .collect();
        for entity in 0..BOUND {
            let entity = u32::try_from(entity).unwrap();
            clients.push(info(&CertificateRequest::new(roles).uuid(uuid(entity))));
        }
        let server = authority
            .issue(&CertificateRequest::new(Role::SCHEDULER))
            .unwrap();
        let (identity, trust) = (server.identity().clone(), authority.trust().clone());
        let config = || {
            ServerConfig::new(identity.clone(), trust.clone())
                .uuid(Uuid::from_u128(1))
                .max_payload(MAX_PAYLOAD)
                .operands(operands())
        };
        Certificates {
            environment: Environment::new(&config()).unwrap(),
            lasting: Environment::new(&config().outlive_certificates(true)).unwrap(),
            identity,
            trust,
            clients,
        }
    })
}
