//! Keys that are held elsewhere, as in a security module: the server signs through an interface.

use std::sync::atomic::{AtomicUsize, Ordering};

use ssntp::client::{Client, ClientConfig, ClientError};
use ssntp::pki::SigningKey;
use ssntp::rustls::pki_types::SubjectPublicKeyInfoDer;
use ssntp::rustls::sign::Signer;
use ssntp::rustls::{Error as TlsFault, SignatureAlgorithm, SignatureScheme};

use ssntp_test_support::TestServer;

use super::*;

/// Counts its signatures.
#[derive(Debug)]
struct Module {
    key: Arc<dyn SigningKey>,
    tells: bool,
    signatures: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Session {
    signer: Box<dyn Signer>,
    signatures: Arc<AtomicUsize>,
}

impl Module {
    fn of(issued: &Issued, tells: bool) -> Arc<Self> {
        let provider = ssntp::pki::provider();
        let key = provider.key_provider.load_private_key(private_key(issued));
        Arc::new(Self {
            key: key.unwrap(),
            tells,
            signatures: Arc::default(),
        })
    }

    fn signatures(&self) -> usize {
        self.signatures.load(Ordering::SeqCst)
    }
}

impl SigningKey for Module {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        Some(Box::new(Session {
            signer: self.key.choose_scheme(offered)?,
            signatures: Arc::clone(&self.signatures),
        }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.key.public_key().filter(|_| self.tells)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }
}

impl Signer for Session {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, TlsFault> {
        self.signatures.fetch_add(1, Ordering::SeqCst);
        self.signer.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.signer.scheme()
    }
}

fn chain(issued: &Issued) -> Vec<CertificateDer<'static>> {
    issued.identity().chain().to_vec()
}

#[test]
fn a_signer_signs_once_for_each_handshake_of_either_side() {
    let (authority, server) = issue(Role::SERVER);
    let agent = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
    let (of_server, of_agent) = (Module::of(&server, true), Module::of(&agent, false));
    let server = Identity::with_signer(chain(&server), of_server.clone()).unwrap();
    let client = Identity::with_signer(chain(&agent), of_agent.clone()).unwrap();
    for round in 1..=2 {
        let (accepted, connected) = handshake(&authority.trust(), &server, &client);
        assert_eq!(accepted.unwrap().peer, client.chain());
        assert_eq!(connected.unwrap().peer, server.chain());
        assert_eq!((of_server.signatures(), of_agent.signatures()), (round, round));
    }
}

#[test]
fn a_signer_of_another_certificate_is_refused_here_or_by_the_peer() {
    let (authority, server) = issue(Role::SERVER);
    let agent = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
    let other = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
    let error = Identity::with_signer(chain(&agent), Module::of(&other, true));
    assert_eq!(fault(error), Fault::KeyMismatch);
    let untold = Identity::with_signer(chain(&agent), Module::of(&other, false)).unwrap();
    let (accepted, _) = handshake(&authority.trust(), &server.identity(), &untold);
    assert!(matches!(accepted, Err(TlsError::Tls(_))), "{accepted:?}");
}

#[test]
fn an_identity_with_a_signer_needs_a_role_and_a_certificate() {
    let (_, nobody) = issue(Role::NONE);
    let signer = Module::of(&nobody, true);
    let without_role = Identity::with_signer(chain(&nobody), signer.clone());
    assert_eq!(fault(without_role), Fault::NoRole);
    let without_certificate = Identity::with_signer(Vec::new(), signer);
    assert_eq!(fault(without_certificate), Fault::NoCertificate);
}

/// A module whose driver panics.
#[derive(Debug)]
struct BrokenModule(Arc<dyn SigningKey>);

impl SigningKey for BrokenModule {
    fn choose_scheme(&self, _: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        panic!("the module was removed")
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

#[test]
fn a_client_whose_signer_panics_ends_and_nobody_waits_for_it() {
    let server = TestServer::start((), |c| c);
    let agent = ssntp_test_support::identity(Role::AGENT);
    let (_, key) = issue(Role::AGENT);
    let broken = Arc::new(BrokenModule(Module::of(&key, true)));
    let identity = Identity::with_signer(agent.chain().to_vec(), broken).unwrap();
    let config = ClientConfig::new(identity, ssntp_test_support::trust());
    let config = config.connect_in_memory(&server.listener);
    let client = Client::start(config.clone()).unwrap();
    assert!(client.frames().next().is_none());
    assert!(matches!(client.ended(), Some(ClientError::Closed)));
    assert!(matches!(Client::connect(config), Err(ClientError::Closed)));
}
