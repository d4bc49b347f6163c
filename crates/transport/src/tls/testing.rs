//! Both ends of a connection after its handshake, for tests.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use super::handshake::agree;
use super::receive::Ciphertext;
use super::split::{self, Opener, Sealer};
use super::{Acceptor, Connector, Successor};
use crate::crypto::provider;
use crate::host::threads;
use crate::socket::{Duplex, memory};
use crate::stream::{BufferPool, Halves, Inbox};

/// A server's end in its parts, and its peer.
pub(super) struct Ends {
    pub(super) here: Arc<dyn Duplex>,
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    pub(super) incoming: Ciphertext,
    pub(super) inbox: Inbox,
    /// The peer's raw stream.
    pub(super) there: Arc<dyn Duplex>,
    pub(super) peer: Halves,
}

/// An authority whose certificates hold the name `localhost`.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    roots: Arc<RootCertStore>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let mut roots = RootCertStore::empty();
        roots
            .add(params.self_signed(&key).unwrap().der().clone())
            .unwrap();
        Self {
            issuer: Issuer::new(params, key),
            roots: Arc::new(roots),
        }
    }

    pub(super) fn identity(&self) -> Arc<CertifiedKey> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let chain = vec![params.signed_by(&key, &self.issuer).unwrap().der().clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let key = provider().key_provider.load_private_key(key).unwrap();
        Arc::new(CertifiedKey::new(chain, key))
    }

    pub(super) fn acceptor(&self) -> Acceptor {
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), provider());
        Acceptor::new(self.identity(), Arc::new(Clients(clients.build().unwrap()))).unwrap()
    }

    pub(super) fn connector(&self, identity: &Arc<CertifiedKey>) -> Connector {
        let servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&self.roots), provider());
        Connector::new(servers.build().unwrap(), Some(Arc::clone(identity))).unwrap()
    }
}

/// The check of rustls.
#[derive(Debug)]
struct Clients(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        first: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.0.verify_client_cert(first, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

impl Successor for Clients {
    fn check_follows(&self, _: &dyn Any) -> Result<(), String> {
        Ok(())
    }
}

impl Successor for WebPkiServerVerifier {
    fn check_follows(&self, _: &dyn Any) -> Result<(), String> {
        Ok(())
    }
}

/// A server's end whose handshake has not begun.
pub(super) fn server() -> (Sealer, Opener) {
    split::server(Authority::new().acceptor().config).unwrap()
}

pub(super) fn ends() -> Ends {
    let authority = Authority::new();
    let (acceptor, connector) = (authority.acceptor(), authority.connector(&authority.identity()));
    #[expect(clippy::disallowed_methods, reason = "a deadline")]
    let deadline = Instant::now() + Duration::from_secs(20);
    let (local, remote) = memory::pair();
    let there: Arc<dyn Duplex> = Arc::new(remote);
    let far = Arc::clone(&there);
    let peer = threads::spawn("peer", move || {
        connector.connect(far, "localhost", &BufferPool::new(), deadline)
    });
    let (mut sealer, mut opener) = split::server(acceptor.config).unwrap();
    let mut incoming = Ciphertext::new(BufferPool::new());
    let mut inbox = Inbox::new(BufferPool::new());
    agree(
        &local,
        &mut sealer,
        &mut opener,
        &mut incoming,
        &mut inbox,
        deadline,
    )
    .unwrap();
    Ends {
        here: Arc::new(local),
        sealer,
        opener,
        incoming,
        inbox,
        there,
        peer: peer.unwrap().join().unwrap().unwrap().halves,
    }
}
