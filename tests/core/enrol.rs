//! Nodes that join with a token, renew their certificates over their sessions, and what is refused on which side.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, unbounded};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::sign::CertifiedKey;
use ssntp::client::{Client, ClientConfig, ClientEvent, Join, JoinError, NodeFiles, SessionEnd};
use ssntp::pki::{
    Authority, CertificateRequest, Enrolled, EnrolmentRecords, Identity, Issuer, JoinRefusal, JoinRequest,
    JoinToken, ServerCheck, SigningRequest, StoredToken, Trust, node_key, signing_request,
};
use ssntp::server::{Enrolment, EnrolmentStore, Federation, Server, ServerError};
use ssntp::testkit::{Testkit, Tokens};
use ssntp::transport::memory::{Faults, MemoryListener};
use ssntp::transport::{Address, Target, TcpOptions, TlsError};
use ssntp::{Command, Frame, RequestError, Role, ServerConfig, Uuid};
use ssntp_test_support::wait::wait_for;
use ssntp_transport::tls::{Acceptor, Secured};
use ssntp_transport::{BufferPool, Cancel, Duplex, Outgoing, threads};
use tempfile::TempDir;

const PROTOCOL: &[u8] = b"ssntp-join/1";
const HOUR: Duration = Duration::from_secs(3600);
const LIMIT: Duration = Duration::from_secs(60);

/// A server that lets nodes join, its tokens, and a directory for each node.
struct Cluster {
    kit: Testkit,
    tokens: Tokens,
    server: Server,
    directory: TempDir,
}

impl Cluster {
    fn new() -> Self {
        Self::with(|enrolment| enrolment, |config| config)
    }

    fn with(
        enrolment: impl FnOnce(Enrolment) -> Enrolment,
        config: impl FnOnce(ServerConfig) -> ServerConfig,
    ) -> Self {
        let (kit, tokens) = (Testkit::new().unwrap(), Tokens::default());
        let enrolment = enrolment(kit.enrolment(&tokens).unwrap());
        let server = config(kit.server_config().unwrap().enrol(enrolment));
        Self {
            server: Server::start(server, ()).unwrap(),
            kit,
            tokens,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn with_links() -> Self {
        Self::with(|enrolment| enrolment, |config| config.federate(Federation::new()))
    }

    fn token(&self, uses: u32) -> JoinToken {
        self.kit.token(&self.tokens, Role::AGENT, uses).unwrap()
    }

    fn join(&self, token: &JoinToken, node: &str) -> Join {
        let join = Join::new(token.clone(), self.directory.path().join(node));
        join.connect_in_memory(self.kit.network())
    }

    /// The number of joins, renewals or refusals with this word.
    fn counted(&self, word: &str) -> u64 {
        let figures = self.server.handle().figures().unwrap();
        figures
            .handshakes
            .enrolments
            .get(word)
            .copied()
            .unwrap_or_default()
    }

    fn connect(&self, files: &NodeFiles) -> Client {
        let config = files.client_config().unwrap().renewal_spread(Duration::ZERO);
        Client::connect(config.connect_in_memory(self.kit.network())).unwrap()
    }
}

fn word(refused: Result<NodeFiles, JoinError>) -> String {
    match refused.unwrap_err() {
        JoinError::Refused { word, .. } => word,
        other => panic!("{other}"),
    }
}

/// Sends bytes over a connection with which a node joins, and returns the answer.
fn raw(network: &MemoryListener, bytes: &[u8]) -> Option<String> {
    let mut secured = secure(network);
    let _ = secured
        .halves
        .transmit
        .transmit(&[Outgoing::whole(bytes.to_vec().into(), 1)]);
    answer(&mut secured)
}

fn secure(network: &MemoryListener) -> Secured {
    let connector = ServerCheck::Nothing.connector(None).unwrap();
    let stream = Arc::new(network.connect(Faults::default(), Faults::default()).unwrap());
    let deadline = Instant::now() + LIMIT;
    connector
        .protocol(PROTOCOL)
        .connect(stream, "localhost", &BufferPool::new(), deadline)
        .unwrap()
}

/// Everything that the server sends until its end.
fn answer(secured: &mut Secured) -> Option<String> {
    let deadline = Instant::now() + LIMIT;
    while secured
        .halves
        .receive_until(deadline)
        .is_ok_and(|received| !received.end)
    {}
    let bytes = secured.halves.inbox.bytes_mut();
    (bytes.len() > 4).then(|| String::from_utf8_lossy(&bytes[4..]).into_owned())
}

fn framed(yaml: &str) -> Vec<u8> {
    let length = u32::try_from(yaml.len()).unwrap();
    [&length.to_be_bytes()[..], yaml.as_bytes()].concat()
}

fn request_of(token: &JoinToken, signing_request: &str) -> Vec<u8> {
    let JoinRequest { id, secret, .. } = token.request(Role::AGENT, String::new());
    let indented = signing_request.replace('\n', "\n  ");
    framed(&format!(
        "id: '{id}'\nsecret: {secret}\nroles: agent\nrequest: |\n  {indented}\n"
    ))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_node_joins_with_a_token_and_then_has_a_session_with_its_uuid() {
    let cluster = Cluster::new();
    let files = cluster.join(&cluster.token(1), "node").run().unwrap();
    let client = cluster.connect(&files);
    let enrolled = cluster.tokens.enrolled();
    assert_eq!(client.uuid(), enrolled[0].uuid);
    assert_eq!((client.role(), cluster.counted("joined")), (Role::AGENT, 1));
    for file in ["node.pem", "ca.pem"] {
        assert_eq!(
            mode(&cluster.directory.path().join("node").join(file)),
            0o600,
            "{file}"
        );
    }
    assert!(!cluster.directory.path().join("node/join.key").exists());
    assert_eq!(cluster.tokens.tokens()[0].uses_left, 0);
}

#[test]
fn a_node_that_has_joined_asks_no_server_again() {
    let cluster = Cluster::new();
    let (token, other) = (cluster.token(1), Cluster::new());
    let files = cluster.join(&token, "node").run().unwrap();
    let before = fs::read(files.certificate()).unwrap();
    cluster.server.stop();
    let again = Join::new(token, cluster.directory.path().join("node"))
        .run()
        .unwrap();
    assert_eq!(fs::read(again.certificate()).unwrap(), before);
    let foreign = Join::new(other.token(1), cluster.directory.path().join("node")).run();
    let foreign = foreign.unwrap_err();
    assert!(matches!(foreign, JoinError::OtherAuthority(_)), "{foreign}");
    // It may be the same cluster, so both remedies are told.
    let text = foreign.to_string();
    assert!(
        text.contains("node.pem") && text.contains("new authority"),
        "{text}"
    );
}

#[test]
fn a_node_joins_once_the_operator_has_replaced_an_issuer_that_cannot_issue() {
    let (kit, tokens) = (Testkit::new().unwrap(), Tokens::default());
    let issuer = |name, roles| kit.authority().issuer(name, roles, 1).unwrap();
    let enrolment = Enrolment::new(issuer("old", Role::NETAGENT), tokens.clone());
    let server = Server::start(kit.server_config().unwrap().enrol(enrolment), ()).unwrap();
    let token = kit.token(&tokens, Role::AGENT, 1).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let join = Join::new(token, directory.path()).connect_in_memory(kit.network());
    let later = join.clone().limit(Duration::from_millis(100)).run().unwrap_err();
    assert!(later.may_retry(), "{later}");
    let text = later.to_string();
    assert!(text.contains("an operator has to replace the issuer"), "{text}");
    server.renew_issuer(issuer("new", Role::AGENT)).unwrap();
    join.run().unwrap();
}

#[test]
fn a_token_that_was_used_or_has_ended_or_is_for_another_role_admits_nobody() {
    let cluster = Cluster::new();
    let token = cluster.token(1);
    cluster.join(&token, "first").run().unwrap();
    assert_eq!(word(cluster.join(&token, "second").run()), "used");

    let late = JoinToken::new(Address::tcp("localhost", 8888), cluster.kit.authority().info()).unwrap();
    let begun = cluster.kit.authority().info().not_before;
    cluster
        .tokens
        .add(StoredToken::new(&late, Role::AGENT, None, 1, begun, "test"));
    assert_eq!(word(cluster.join(&late, "late").run()), "ended");

    let token = cluster.token(1);
    let refused = cluster
        .join(&token, "network")
        .roles(Role::NETAGENT)
        .run()
        .unwrap_err();
    let text = refused.to_string();
    assert!(
        text.ends_with("the token is for the roles agent, not netagent"),
        "{text}"
    );
    for word in ["used", "ended", "roles"] {
        assert_eq!(cluster.counted(word), 1, "{word}");
    }
    assert_eq!(cluster.tokens.enrolled().len(), 1);
}

#[test]
fn a_node_sends_nothing_to_a_server_of_another_authority() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let foreign = other.token(1);
    let refused = cluster.join(&foreign, "node").run().unwrap_err();
    assert!(matches!(refused, JoinError::Server(_)), "{refused}");
    let why = "shows no certificate of the authority that is expected";
    assert!(refused.to_string().contains(why), "{refused}");
    let figures = cluster.server.handle().figures().unwrap();
    assert!(figures.handshakes.enrolments.is_empty());
    assert!(cluster.tokens.enrolled().is_empty());
}

#[test]
fn a_node_sends_nothing_to_a_server_whose_name_would_refuse_its_sessions() {
    let cluster = Cluster::new();
    let token = cluster.token(1);
    let join = cluster.join(&token, "node");
    let refused = join.clone().server_name("other.example").run().unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("the server's certificate is for ") && text.contains("not for other.example"),
        "{text}"
    );
    assert!(cluster.tokens.enrolled().is_empty() && cluster.tokens.tokens()[0].uses_left == 1);
    join.run().unwrap();
}

/// Ends TLS as a relay does, with the certificate of a node and that of the authority.
fn relay(
    shown: Vec<rustls::pki_types::CertificateDer<'static>>,
    identity: &Identity,
) -> (MemoryListener, JoinHandle) {
    let key = Arc::clone(&identity.certified_key().key);
    let identity = Arc::new(CertifiedKey::new(shown, key));
    let acceptor = Acceptor::server_only(identity).unwrap().protocols(&[PROTOCOL]);
    let network = MemoryListener::new();
    let listener = ssntp_transport::Listener::memory(network.clone());
    let thread = threads::spawn("relay", move || {
        let (stream, _) = listener.accept().unwrap().unwrap();
        let secured = acceptor.accept(stream, &BufferPool::new(), Instant::now() + LIMIT);
        // The bytes that it gets.
        secured.map(|mut secured| answer(&mut secured))
    });
    (network, thread.unwrap())
}

type JoinHandle = std::thread::JoinHandle<Result<Option<String>, TlsError>>;

#[test]
fn a_relay_that_ends_tls_gets_no_byte_of_the_request() {
    let cluster = Cluster::new();
    let token = cluster.token(1);
    let agent = cluster.kit.identity(Role::AGENT).unwrap();
    let root = cluster.kit.authority().info().der.clone();
    let of_node = agent.chain()[0].clone();
    let another = Testkit::new().unwrap().identity(Role::SERVER).unwrap();
    // A node of the cluster; a server of another authority, beside the right authority; one without it.
    for (shown, identity, why) in [
        (
            vec![of_node.clone(), root.clone()],
            &agent,
            "has the roles agent, but no server's role",
        ),
        (
            vec![another.chain()[0].clone(), root],
            &another,
            "not its issuer's",
        ),
        (vec![of_node], &agent, "shows no certificate of the authority"),
    ] {
        let (network, relay) = relay(shown, identity);
        let directory = cluster.directory.path().join("node");
        let refused = Join::new(token.clone(), directory)
            .connect_in_memory(&network)
            .run()
            .unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
        assert_eq!(relay.join().unwrap().unwrap(), None);
    }
    assert_eq!(cluster.tokens.tokens()[0].uses_left, 1);
}

#[test]
fn a_request_that_asks_for_more_than_a_certificate_is_refused() {
    let cluster = Cluster::new();
    let token = cluster.token(1);
    let asked = |change: &dyn Fn(&mut CertificateParams)| {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        change(&mut params);
        let pem = params
            .serialize_request(&KeyPair::generate().unwrap())
            .unwrap()
            .pem()
            .unwrap();
        raw(cluster.kit.network(), &request_of(&token, &pem)).unwrap()
    };
    let controller = ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 4, 1, 343, 8, 3]);
    for answer in [
        asked(&|params| params.extended_key_usages = vec![controller.clone()]),
        asked(&|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
        asked(&|params| params.subject_alt_names = vec![rcgen::SanType::DnsName("a.b".try_into().unwrap())]),
    ] {
        assert!(
            answer.contains("refused: request") && answer.contains("only for a certificate"),
            "{answer}"
        );
    }
    assert_eq!(
        (cluster.counted("request"), cluster.tokens.tokens()[0].uses_left),
        (3, 1)
    );
    // The same request without that is answered with a certificate.
    let pem = signing_request(&node_key().unwrap(), "key").unwrap();
    let answer = raw(cluster.kit.network(), &request_of(&token, &pem)).unwrap();
    assert!(answer.contains("BEGIN CERTIFICATE"), "{answer}");
}

/// An identity that a thief of the issuer's file makes with other tools.
fn stolen(issuer: &Issuer, arc: u64, directory: &Path) -> Identity {
    let file = directory.join("stolen.pem");
    issuer.save(&file).unwrap();
    let pem = fs::read_to_string(&file).unwrap();
    let signer = KeyPair::from_pem(&pem[pem.find("-----BEGIN PRIVATE").unwrap()..]).unwrap();
    let signer = rcgen::Issuer::from_ca_cert_der(&issuer.info().der, signer).unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let role = ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 4, 1, 343, 8, arc]);
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
        role,
    ];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &signer).unwrap();
    let chain = vec![certificate.der().clone(), issuer.info().der.clone()];
    Identity::from_der(
        chain,
        rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into()),
    )
    .unwrap()
}

#[test]
fn a_stolen_issuer_makes_no_controller_and_no_server() {
    let cluster = Cluster::new();
    let issuer = cluster.kit.authority().issuer("issuer", Role::AGENT, 9).unwrap();
    let trust = cluster.kit.trust();
    let connect = |identity, network: &MemoryListener| {
        let config = ClientConfig::new(identity, trust.clone()).connect_in_memory(network);
        Client::connect(config.attempts(1).resumption(false))
    };
    let agent = stolen(&issuer, 1, cluster.directory.path());
    connect(agent.clone(), cluster.kit.network()).unwrap();
    let controller = stolen(&issuer, 3, cluster.directory.path());
    connect(controller, cluster.kit.network()).unwrap_err();
    let refused = wait_for(|| {
        let refused = cluster.server.handle().figures().unwrap().handshakes.refused;
        refused.get("certificate").copied().ok_or(refused)
    });
    assert_eq!(refused, 1);
    // A node does not take it for a server.
    let server = stolen(&issuer, 5, cluster.directory.path());
    let network = MemoryListener::new();
    let config = ServerConfig::new(server, trust.clone()).listen_in_memory(&network);
    let _server = Server::start(config, ()).unwrap();
    let refused = connect(cluster.kit.identity(Role::AGENT).unwrap(), &network)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("certificate"), "{refused}");
}

#[test]
fn a_revoked_right_of_the_issuer_counts_for_sessions_that_run() {
    // The check of a session at a renewal of the server's credentials is that of the handshake.
    let cluster = Cluster::new();
    let files = cluster.join(&cluster.token(1), "node").run().unwrap();
    let client = cluster.connect(&files);
    let other = Testkit::new().unwrap();
    let trust = cluster.kit.trust().and(&other.trust()).unwrap();
    let identity = cluster.kit.identity(Role::SERVER).unwrap();
    assert_eq!(cluster.server.renew(&identity, &trust).unwrap().ended, 0);
    assert!(client.is_connected());
    // The nodes of a server whose certificate was renewed join as before.
    cluster.join(&cluster.token(1), "next").run().unwrap();
}

#[test]
fn nodes_join_with_a_renewed_issuer_without_a_restart() {
    let cluster = Cluster::new();
    let issuer = cluster
        .kit
        .authority()
        .issuer("renewed", Role::AGENT, 10)
        .unwrap();
    cluster.server.renew_issuer(issuer).unwrap();
    let files = cluster.join(&cluster.token(1), "node").run().unwrap();
    let (identity, _) = files.load().unwrap();
    assert!(
        identity.info().issuer.contains("renewed"),
        "{:?}",
        identity.info()
    );
    assert!(cluster.connect(&files).is_connected());
}

#[test]
fn a_process_that_ends_after_any_step_joins_again_with_the_same_certificate() {
    let cluster = Cluster::new();
    let token = cluster.token(1);
    let files = cluster.join(&token, "node").run().unwrap();
    let (certificate, authority) = (files.certificate(), files.authority());
    let whole = fs::read_to_string(&certificate).unwrap();
    let key = &whole[whole.find("-----BEGIN PRIVATE").unwrap()..];
    let pending = cluster.directory.path().join("node/join.key");
    let serial = |files: &NodeFiles| files.load().unwrap().0.info().serial.clone();
    let first = serial(&files);
    // After the key, before the request or after it: the server has counted the use, and the answer is lost.
    fs::remove_file(&certificate).unwrap();
    fs::remove_file(&authority).unwrap();
    fs::write(&pending, key).unwrap();
    assert_eq!(serial(&cluster.join(&token, "node").run().unwrap()), first);
    assert!(!pending.exists());
    // After the authority, before the certificate.
    fs::remove_file(&certificate).unwrap();
    fs::write(&pending, key).unwrap();
    assert_eq!(serial(&cluster.join(&token, "node").run().unwrap()), first);
    // After the certificate, before the end of the key's own file.
    fs::write(&pending, key).unwrap();
    assert_eq!(serial(&cluster.join(&token, "node").run().unwrap()), first);
    assert_eq!(cluster.tokens.enrolled().len(), 1);
    // Without its key the node is another one.
    let other = cluster.join(&token, "other").run();
    assert_eq!(word(other), "used");
}

#[test]
fn a_join_that_is_repeated_after_the_issuer_was_replaced_is_signed_by_the_new_one() {
    let cluster = Cluster::new();
    let token = cluster.token(1);
    let files = cluster.join(&token, "node").run().unwrap();
    let (first, _) = files.load().unwrap();
    let whole = fs::read_to_string(files.certificate()).unwrap();
    let key = &whole[whole.find("-----BEGIN PRIVATE").unwrap()..];
    // The node lost the answer.
    fs::remove_file(files.certificate()).unwrap();
    fs::write(cluster.directory.path().join("node/join.key"), key).unwrap();
    let next = cluster.kit.authority().issuer("next", Role::AGENT, 99).unwrap();
    cluster.server.renew_issuer(next).unwrap();
    let (again, _) = cluster.join(&token, "node").run().unwrap().load().unwrap();
    assert_eq!(again.info().issuer, "CN=next");
    let named = |identity: &Identity| {
        (
            identity.uuid(),
            identity.roles(),
            identity.info().serial.clone(),
            identity.info().not_after,
        )
    };
    assert_eq!(named(&again), named(&first));
    assert_eq!(cluster.tokens.enrolled().len(), 1);
    assert_eq!(cluster.tokens.tokens()[0].uses_left, 0);
}

/// A store that loses its first answers to joins after it has stored, and before, and its first answer to a renewal.
#[derive(Clone)]
struct Forgetful(Tokens, Arc<std::sync::Mutex<u32>>);

impl EnrolmentStore for Forgetful {
    fn update(
        &self,
        token: Option<&str>,
        change: &mut dyn FnMut(&mut EnrolmentRecords) -> Result<Enrolled, JoinRefusal>,
    ) -> Result<Enrolled, JoinRefusal> {
        let mut left = self.1.lock().unwrap();
        let left = if token.is_some() {
            *left = left.saturating_sub(1);
            *left
        } else {
            u32::from(self.0.enrolled().len() == 1)
        };
        match left {
            2 => Err(JoinRefusal::Unavailable),
            1 => self.0.update(token, change).and(Err(JoinRefusal::Unavailable)),
            _ => self.0.update(token, change),
        }
    }
}

#[test]
fn a_node_asks_again_while_the_store_does_not_answer() {
    let (kit, tokens) = (Testkit::new().unwrap(), Tokens::default());
    let issuer = kit.authority().issuer("i", Role::AGENT, 1).unwrap();
    let store = Forgetful(tokens.clone(), Arc::new(std::sync::Mutex::new(3)));
    let config = kit.server_config().unwrap().enrol(Enrolment::new(issuer, store));
    let server = Server::start(config, ()).unwrap();
    let token = kit.token(&tokens, Role::AGENT, 1).unwrap();
    let directory = tempfile::tempdir().unwrap();
    Join::new(token, directory.path())
        .connect_in_memory(kit.network())
        .run()
        .unwrap();
    assert_eq!(tokens.enrolled().len(), 1);
    let counted = server.handle().figures().unwrap().handshakes.enrolments;
    assert_eq!((counted["unavailable"], counted["joined"]), (2, 1));
}

#[test]
fn a_node_that_lost_the_answer_to_its_renewal_gets_the_same_certificate_again() {
    let (kit, tokens) = (Testkit::new().unwrap(), Tokens::default());
    let issuer = kit.authority().issuer("i", Role::AGENT, 1).unwrap();
    let store = Forgetful(tokens.clone(), Arc::default());
    let enrolment = Enrolment::new(issuer, store).lifetime(Duration::from_secs(200));
    let _server = Server::start(kit.server_config().unwrap().enrol(enrolment), ()).unwrap();
    let token = kit.token(&tokens, Role::AGENT, 1).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let join = Join::new(token, directory.path()).connect_in_memory(kit.network());
    let files = join.run().unwrap();
    let renew = || files.renew(|config| config.connect_in_memory(kit.network()));
    let pending = directory.path().join("renew.key");
    assert!(matches!(renew().unwrap_err(), JoinError::NotRenewed(_)));
    let key = fs::read_to_string(&pending).unwrap();
    assert_eq!(mode(&pending), 0o600);
    assert!(renew().unwrap());
    assert!(fs::read_to_string(files.certificate()).unwrap().ends_with(&key));
    assert!(!pending.exists());
    let serials: Vec<_> = tokens.enrolled().into_iter().map(|one| one.serial).collect();
    assert_eq!(serials.len(), 2);
    assert_eq!(files.load().unwrap().0.info().serial, serials[1]);
}

/// A store whose calls for renewals are told and answered by a test; it panics without an answer.
struct Asking(Tokens, Sender<()>, Receiver<()>);

impl EnrolmentStore for Asking {
    fn update(
        &self,
        token: Option<&str>,
        change: &mut dyn FnMut(&mut EnrolmentRecords) -> Result<Enrolled, JoinRefusal>,
    ) -> Result<Enrolled, JoinRefusal> {
        if token.is_none() {
            self.1.send(()).unwrap();
            self.2.recv().expect("the test answers");
        }
        self.0.update(token, change)
    }
}

/// A server whose store asks the test, and clients that renew their certificates there.
struct Asked {
    kit: Testkit,
    server: Server,
    calls: Receiver<()>,
    answers: Sender<()>,
}

impl Asked {
    fn new() -> Self {
        let kit = Testkit::new().unwrap();
        let issuer = kit.authority().issuer("i", Role::AGENT, 1).unwrap();
        let ((called, calls), (answers, answer)) = (unbounded(), unbounded());
        let store = Asking(Tokens::default(), called, answer);
        let config = kit.server_config().unwrap().enrol(Enrolment::new(issuer, store));
        Self {
            server: Server::start(config, ()).unwrap(),
            kit,
            calls,
            answers,
        }
    }

    fn client(&self) -> Client {
        let authority = self.kit.authority();
        let begun = authority.info().not_before - HOUR * 22;
        let request = CertificateRequest::new(Role::AGENT).uuid(Uuid::new_v4()).days(1);
        let identity = authority.issue(&request.valid_from(begun)).unwrap().identity();
        Client::connect(ClientConfig::new(identity, self.kit.trust()).connect_in_memory(self.kit.network()))
            .unwrap()
    }
}

fn ask_for_renewal(client: &Client) -> Result<(), String> {
    let pem = signing_request(&node_key().unwrap(), "key").unwrap();
    let frame = Frame::with_payload(Command::RENEW_CERTIFICATE, pem);
    client
        .request(frame, LIMIT)
        .map(drop)
        .map_err(|why| why.to_string())
}

#[test]
fn one_renewal_of_a_client_waits_at_a_time() {
    let asked = Asked::new();
    let client = asked.client();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| ask_for_renewal(&client));
        asked.calls.recv_timeout(LIMIT).unwrap();
        let why = ask_for_renewal(&client).unwrap_err();
        assert!(why.contains("not answered yet"), "{why}");
        asked.answers.send(()).unwrap();
        assert_eq!(first.join().unwrap(), Ok(()));
    });
    asked.answers.send(()).unwrap();
    assert_eq!(ask_for_renewal(&client), Ok(()));
}

#[test]
fn a_store_that_panics_at_a_renewal_is_asked_again_at_the_next() {
    let mut asked = Asked::new();
    let client = asked.client();
    asked.answers = unbounded().0;
    for _ in 0..2 {
        let why = ask_for_renewal(&client).unwrap_err();
        assert!(why.contains("try again"), "{why}");
    }
    assert_eq!(asked.calls.try_iter().count(), 2);
}

#[test]
fn a_server_that_stops_answers_one_renewal_and_not_those_that_wait() {
    let asked = Asked::new();
    let clients: Vec<_> = (0..4).map(|_| asked.client()).collect();
    let handle = asked.server.handle();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| ask_for_renewal(client));
        }
        asked.calls.recv_timeout(LIMIT).unwrap();
        wait_for(|| {
            let frames = handle.figures().unwrap().frames;
            let received: u64 = frames.iter().map(|kind| kind.frames_received).sum();
            (received >= 4).then_some(()).ok_or(received)
        });
        let server = asked.server;
        let stopped = scope.spawn(move || server.stop());
        wait_for(|| handle.figures().map_or(Ok(()), |_| Err("it still runs")));
        asked.answers.send(()).unwrap();
        // Another call would panic.
        drop(asked.answers);
        stopped.join().unwrap();
    });
    assert_eq!(asked.calls.try_iter().count(), 0);
}

#[test]
fn a_server_without_an_issuer_lets_no_node_join() {
    let kit = Testkit::new().unwrap();
    let _server = Server::start(kit.server_config().unwrap(), ()).unwrap();
    let token = JoinToken::new(Address::tcp("localhost", 8888), kit.authority().info()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let refused = Join::new(token, directory.path())
        .connect_in_memory(kit.network())
        .run()
        .unwrap_err();
    // It shows no certificate of its authority, and knows no such protocol.
    assert!(
        matches!(refused, JoinError::Server(_) | JoinError::NotOffered),
        "{refused}"
    );
}

#[test]
fn a_client_of_another_protocol_still_needs_a_certificate() {
    let cluster = Cluster::new();
    for protocol in [None, Some(&b"ssntp/1"[..]), Some(b"ssntp-join/2")] {
        let mut connector = ServerCheck::Name(&cluster.kit.trust()).connector(None).unwrap();
        if let Some(protocol) = protocol {
            connector = connector.protocol(protocol);
        }
        let stream = Arc::new(
            cluster
                .kit
                .network()
                .connect(Faults::default(), Faults::default())
                .unwrap(),
        );
        let deadline = Instant::now() + LIMIT;
        let secured = connector.connect(stream, "localhost", &BufferPool::new(), deadline);
        // In TLS 1.3 the client learns of the refusal when it reads.
        let refused = secured.map(|mut secured| answer(&mut secured));
        assert!(matches!(refused, Err(_) | Ok(None)), "{refused:?}");
    }
    let refused = wait_for(|| {
        let refused = cluster.server.handle().figures().unwrap().handshakes.refused;
        refused
            .get("certificate")
            .copied()
            .filter(|refused| *refused == 3)
            .ok_or(refused)
    });
    assert_eq!(refused, 3);
}

#[test]
fn a_request_that_is_too_long_or_no_yaml_is_refused() {
    let cluster = Cluster::new();
    let network = cluster.kit.network();
    let long = (16 * 1024 + 1_u32).to_be_bytes();
    let answer = raw(network, &long).unwrap();
    assert!(
        answer.contains("refused: request") && answer.contains("16385"),
        "{answer}"
    );
    for yaml in ["", "{", "roles: operator", "a: &a [*a]", "request: no PEM"] {
        let answer = raw(network, &framed(yaml)).unwrap();
        assert!(answer.contains("refused: request"), "{yaml}: {answer}");
    }
    assert_eq!(cluster.counted("request"), 6);
}

#[test]
fn a_node_that_sends_slowly_is_ended_at_the_deadline_and_hinders_no_other() {
    let cluster = Cluster::with(
        |enrolment| enrolment,
        |config| config.handshake_timeout(Duration::from_millis(500)),
    );
    let token = cluster.token(1);
    // Two that send a byte and then nothing.
    let mut slow: Vec<_> = (0..2)
        .map(|_| {
            let mut secured = secure(cluster.kit.network());
            secured
                .halves
                .transmit
                .transmit(&[Outgoing::whole(vec![0].into(), 1)])
                .unwrap();
            secured
        })
        .collect();
    cluster.join(&token, "node").run().unwrap();
    for secured in &mut slow {
        assert_eq!(answer(secured), None);
    }
    let refused = cluster.server.handle().figures().unwrap().handshakes.refused;
    assert_eq!(refused["timeout"], 2);
}

#[test]
fn many_wrong_proofs_from_one_address_do_not_hinder_another() {
    let cluster = Cluster::with(
        |enrolment| enrolment,
        |config| config.listen("127.0.0.1:0".parse().unwrap()),
    );
    // The guesses come over TCP, and the honest node from memory, so their addresses differ.
    let address = cluster.server.addresses()[0].clone();
    let unknown = JoinToken::new(address.clone(), cluster.kit.authority().info()).unwrap();
    let pem = signing_request(&node_key().unwrap(), "key").unwrap();
    let guess = |secured: &mut Secured| {
        let request = Outgoing::whole(request_of(&unknown, &pem).into(), 1);
        secured.halves.transmit.transmit(&[request]).unwrap();
    };
    let connector = ServerCheck::Nothing.connector(None).unwrap().protocol(PROTOCOL);
    let mut guesses: Vec<_> = (0..20)
        .map(|_| {
            let tcp = Target::Address(address.clone());
            let stream = tcp
                .connect(&TcpOptions::default(), LIMIT, &Cancel::new())
                .unwrap();
            let deadline = Instant::now() + LIMIT;
            let mut secured = connector
                .connect(stream, "localhost", &BufferPool::new(), deadline)
                .unwrap();
            guess(&mut secured);
            secured
        })
        .collect();
    cluster.join(&cluster.token(1), "node").run().unwrap();
    let answers: Vec<_> = guesses.iter_mut().filter_map(answer).collect();
    assert!(
        answers
            .iter()
            .all(|answer| answer.contains("refused: proof") || answer.contains("refused: busy"))
    );
    assert!(cluster.counted("proof") >= 1 && cluster.counted("joined") == 1);
}

#[test]
fn a_wrong_proof_is_answered_after_a_second_also_if_the_node_has_ended_its_side() {
    let cluster = Cluster::new();
    let unknown = JoinToken::new(Address::tcp("localhost", 1), cluster.kit.authority().info()).unwrap();
    let pem = signing_request(&node_key().unwrap(), "key").unwrap();
    let begun = Instant::now();
    let mut secured = secure(cluster.kit.network());
    let request = Outgoing::whole(request_of(&unknown, &pem).into(), 1);
    secured.halves.transmit.transmit(&[request]).unwrap();
    secured.halves.transmit.finish().unwrap();
    let answer = answer(&mut secured).unwrap();
    assert!(answer.contains("refused: proof"), "{answer}");
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn wrong_proofs_that_wait_hold_no_handshake_slot() {
    let cluster = Cluster::with(|enrolment| enrolment, |config| config.max_handshakes(1));
    let unknown = JoinToken::new(Address::tcp("localhost", 1), cluster.kit.authority().info()).unwrap();
    let pem = signing_request(&node_key().unwrap(), "key").unwrap();
    let begun = Instant::now();
    let mut guesses: Vec<_> = (0..8)
        .map(|_| {
            let mut secured = secure(cluster.kit.network());
            let request = Outgoing::whole(request_of(&unknown, &pem).into(), 1);
            secured.halves.transmit.transmit(&[request]).unwrap();
            secured
        })
        .collect();
    let config = ClientConfig::new(cluster.kit.identity(Role::AGENT).unwrap(), cluster.kit.trust());
    let client = Client::connect(config.connect_in_memory(cluster.kit.network())).unwrap();
    assert!(client.is_connected());
    // One after the other in the only slot, they would have taken a second each.
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    for secured in &mut guesses {
        assert!(answer(secured).unwrap().contains("refused: proof"));
    }
}

#[test]
fn a_new_issuer_is_used_at_once_and_one_of_another_authority_is_refused() {
    let cluster = Cluster::new();
    let issuer_of = |node: &str| {
        let files = cluster.join(&cluster.token(1), node).run().unwrap();
        files.load().unwrap().0.info().issuer.clone()
    };
    assert_eq!(issuer_of("first"), "CN=testkit issuer");
    let another = |kit: &Testkit| kit.authority().issuer("another", Role::AGENT, 9).unwrap();
    let stranger = another(&Testkit::new().unwrap());
    let refused = cluster.server.renew_issuer(stranger).unwrap_err();
    assert!(matches!(refused, ServerError::Issuer(_)), "{refused}");
    assert_eq!(issuer_of("second"), "CN=testkit issuer");
    cluster.server.renew_issuer(another(&cluster.kit)).unwrap();
    assert_eq!(issuer_of("third"), "CN=another");
    // The nodes of a server that starts with a stranger's issuer could not use their certificates.
    let kit = Testkit::new().unwrap();
    let enrolment = Enrolment::new(another(&cluster.kit), Tokens::default());
    let started = Server::start(kit.server_config().unwrap().enrol(enrolment), ());
    assert!(matches!(started, Err(ServerError::Issuer(_))));
}

/// The certificate that another server of the cluster, with an issuer of its own, issues to a node.
fn renewed_elsewhere(kit: &Testkit, uuid: Uuid) -> Identity {
    let issuer = kit.authority().issuer("issuer-2", Role::AGENT, 9).unwrap();
    let key = node_key().unwrap();
    let request = SigningRequest::from_pem(&signing_request(&key, "key").unwrap()).unwrap();
    let enrolled = issuer.issue(&request, Role::AGENT, uuid, HOUR).unwrap();
    Identity::from_pem((enrolled.chain + &key).as_bytes(), "node").unwrap()
}

#[test]
fn a_node_whose_certificate_another_server_has_renewed_takes_its_session_over() {
    let cluster = Cluster::new();
    let files = cluster.join(&cluster.token(1), "node").run().unwrap();
    let client = cluster.connect(&files);
    let next = renewed_elsewhere(&cluster.kit, client.uuid());
    let config = ClientConfig::new(next, cluster.kit.trust()).attempts(1);
    let _again = Client::connect(config.connect_in_memory(cluster.kit.network())).unwrap();
    let ended = cluster.server.handle().figures().unwrap().ended;
    assert_eq!(ended.get("replaced"), Some(&1), "{ended:?}");
}

#[test]
fn it_takes_its_session_over_from_a_linked_server_too() {
    let (cluster, links) = (Cluster::with_links(), MemoryListener::new());
    let files = cluster.join(&cluster.token(1), "node").run().unwrap();
    let client = cluster.connect(&files);
    let config = ServerConfig::new(cluster.kit.identity(Role::SERVER).unwrap(), cluster.kit.trust());
    let federation = Federation::new().peers([cluster.kit.network()]);
    let second = Server::start(config.listen_in_memory(&links).federate(federation), ()).unwrap();
    wait_for(|| {
        let seen: usize = second
            .handle()
            .figures()
            .unwrap()
            .links
            .iter()
            .map(|link| link.sessions)
            .sum();
        (seen == 1).then_some(()).ok_or(seen)
    });
    let next = renewed_elsewhere(&cluster.kit, client.uuid());
    let config = ClientConfig::new(next, cluster.kit.trust()).attempts(1);
    let _again = Client::connect(config.connect_in_memory(&links)).unwrap();
    let ended = cluster.server.handle().figures().unwrap().ended;
    assert_eq!(ended.get("replaced"), Some(&1), "{ended:?}");
}

#[test]
fn a_node_whose_disk_takes_no_file_joins_later_with_the_same_certificate() {
    let cluster = Cluster::new();
    let (token, node) = (cluster.token(1), cluster.directory.path().join("node"));
    // A directory that is not empty stands where the authority's file has to be put.
    fs::create_dir_all(node.join("ca.pem/full")).unwrap();
    let refused = cluster.join(&token, "node").run().unwrap_err();
    assert!(matches!(refused, JoinError::Files(_)), "{refused}");
    assert!(!node.join("node.pem").exists());
    fs::remove_dir_all(node.join("ca.pem")).unwrap();
    let files = cluster.join(&token, "node").run().unwrap();
    let enrolled = cluster.tokens.enrolled();
    assert_eq!(enrolled.len(), 1);
    assert_eq!(files.load().unwrap().0.info().serial, enrolled[0].serial);
}

#[test]
fn a_node_joins_at_an_ipv6_address() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return eprintln!("skipped: there is no IPv6");
    }
    let listen = |config: ServerConfig| config.listen("[::1]:0".parse().unwrap());
    let cluster = Cluster::with(|enrolment| enrolment, listen);
    let address = cluster.server.addresses()[0].clone();
    let token = JoinToken::new(address, cluster.kit.authority().info()).unwrap();
    let ends = SystemTime::now() + HOUR;
    cluster
        .tokens
        .add(StoredToken::new(&token, Role::AGENT, None, 1, ends, "test"));
    let token = token.to_string();
    assert!(token.starts_with("ssntp://[::1]:"), "{token}");
    Join::new(token.parse().unwrap(), cluster.directory.path().join("node"))
        .run()
        .unwrap();
    assert_eq!(cluster.counted("joined"), 1);
}

#[test]
fn many_nodes_join_at_once_with_one_token_and_no_more_than_it_is_for() {
    const NODES: u32 = 100;
    const USES: u32 = 70;
    let cluster = Cluster::new();
    let token = cluster.token(USES);
    let refused = std::thread::scope(|scope| {
        let joins = (0..NODES).map(|node| {
            let join = cluster.join(&token, &node.to_string());
            scope.spawn(move || join.run().map(drop))
        });
        let joins: Vec<_> = joins.collect();
        let results = joins.into_iter().map(|thread| thread.join().unwrap());
        let refused = results.filter_map(Result::err).map(|why| why.to_string());
        refused.collect::<Vec<_>>()
    });
    assert_eq!(refused.len() as u32, NODES - USES);
    assert!(
        refused.iter().all(|why| why.contains("the token has been used")),
        "{refused:?}"
    );
    let mut uuids: Vec<Uuid> = cluster
        .tokens
        .enrolled()
        .iter()
        .map(|enrolled| enrolled.uuid)
        .collect();
    uuids.sort();
    uuids.dedup();
    assert_eq!(
        (uuids.len(), cluster.tokens.tokens()[0].uses_left),
        (USES as usize, 0)
    );
}

#[test]
fn a_client_renews_its_certificate_over_its_session() {
    // It begins ten minutes before it is issued, so two thirds of its life are over.
    let short = Duration::from_secs(200);
    let cluster = Cluster::with(|enrolment| enrolment.lifetime(short), |config| config);
    let files = cluster.join(&cluster.token(1), "node").run().unwrap();
    let (before, _) = files.load().unwrap();
    let client = cluster.connect(&files);
    let renewed = |event: &ClientEvent| {
        matches!(
            event,
            ClientEvent::Disconnected {
                reason: SessionEnd::Renewed,
                ..
            }
        )
    };
    assert!(client.iter().any(|event| renewed(&event)));
    assert!(matches!(client.recv(), Ok(ClientEvent::Connected(_))));
    let (after, trust) = files.load().unwrap();
    assert_eq!(client.identity().info(), after.info());
    assert_eq!((before.uuid(), before.roles()), (after.uuid(), after.roles()));
    assert_ne!(
        before.certified_key().key.public_key(),
        after.certified_key().key.public_key()
    );
    assert_eq!(
        trust.verify(after.chain()).unwrap().serial,
        cluster.tokens.enrolled()[1].serial
    );
    assert_eq!(
        (cluster.counted("renewed"), mode(&files.certificate())),
        (1, 0o600)
    );
}

#[test]
fn the_files_of_a_program_that_renews_nothing_are_renewed_beside_it() {
    let short = Duration::from_secs(200);
    let cluster = Cluster::with(|enrolment| enrolment.lifetime(short), |config| config);
    let files = cluster.join(&cluster.token(1), "node").run().unwrap();
    let (before, trust) = files.load().unwrap();
    let config = || {
        let config = ClientConfig::new(before.clone(), trust.clone());
        config.connect_in_memory(cluster.kit.network())
    };
    let program = Client::connect(config()).unwrap();
    assert!(
        files
            .renew(|config| config.connect_in_memory(cluster.kit.network()))
            .unwrap()
    );
    let (after, _) = files.load().unwrap();
    assert_eq!((before.uuid(), before.roles()), (after.uuid(), after.roles()));
    assert_ne!(before.info().serial, after.info().serial);
    // The program has its session back, with the old certificate or, once it has read the files, the new one.
    program.renew(&after, &trust).unwrap();
    wait_for(|| {
        let has_session = program.is_connected() && program.identity().info() == after.info();
        has_session.then_some(()).ok_or(program.failures())
    });
    let month = Cluster::new();
    let files = month.join(&month.token(1), "node").run().unwrap();
    let set = |config: ClientConfig| config.connect_in_memory(month.kit.network());
    assert!(!files.renew(set).unwrap());
    assert_eq!((month.counted("renewed"), month.tokens.enrolled().len()), (0, 1));
}

#[test]
fn a_certificate_is_renewed_over_a_session_only_if_it_is_bound_and_half_over_and_of_a_node() {
    let cluster = Cluster::new();
    let pem = signing_request(&node_key().unwrap(), "key").unwrap();
    let renew = |identity: Identity, server: &MemoryListener, trust: Trust| {
        let client = Client::connect(ClientConfig::new(identity, trust).connect_in_memory(server)).unwrap();
        let frame = Frame::with_payload(Command::RENEW_CERTIFICATE, pem.clone());
        match client.request(frame, LIMIT) {
            Err(RequestError::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let authority = cluster.kit.authority();
    let bound = |roles| CertificateRequest::new(roles).uuid(Uuid::new_v4()).days(1);
    let old = |request: CertificateRequest| {
        let begun = authority.info().not_before - HOUR * 22;
        authority.issue(&request.valid_from(begun)).unwrap().identity()
    };
    let network = cluster.kit.network();
    let refused = |identity| renew(identity, network, cluster.kit.trust());
    let why = refused(cluster.kit.identity(Role::AGENT).unwrap());
    assert!(why.contains("bound to no UUID"), "{why}");
    let why = refused(authority.issue(&bound(Role::AGENT)).unwrap().identity());
    assert!(why.contains("more than half"), "{why}");
    let why = refused(old(bound(Role::CONTROLLER)));
    assert!(why.contains("not controller"), "{why}");
    assert!(cluster.tokens.enrolled().is_empty());
    // In the last minute of its life.
    let begun = authority.info().not_before + HOUR / 6 - HOUR * 24 + HOUR / 60;
    let last = authority
        .issue(&bound(Role::AGENT).valid_from(begun))
        .unwrap()
        .identity();
    let left = last.info().not_after.duration_since(SystemTime::now()).unwrap();
    assert!(left <= HOUR / 60, "{left:?}");
    let config = ClientConfig::new(last, cluster.kit.trust()).connect_in_memory(network);
    let client = Client::connect(config).unwrap();
    let frame = Frame::with_payload(Command::RENEW_CERTIFICATE, pem.clone());
    client.request(frame, LIMIT).unwrap();
    assert_eq!(cluster.tokens.enrolled()[0].uuid, client.uuid());
    // A server without an issuer.
    let kit = Testkit::new().unwrap();
    let _server = Server::start(kit.server_config().unwrap(), ()).unwrap();
    let why = renew(kit.identity(Role::AGENT).unwrap(), kit.network(), kit.trust());
    assert_eq!(why, "this server renews no certificates");
}

#[test]
fn a_certificate_that_no_store_has_is_renewed_only_if_the_authority_of_the_issuer_has_signed_it() {
    let (kit, other, tokens) = (
        Testkit::new().unwrap(),
        Testkit::new().unwrap(),
        Tokens::default(),
    );
    let trust = kit.trust().and(&other.trust()).unwrap();
    let config = ServerConfig::new(kit.identity(Role::SERVER).unwrap(), trust);
    let config = config.enrol(kit.enrolment(&tokens).unwrap());
    let _server = Server::start(config.listen_in_memory(kit.network()), ()).unwrap();
    let pem = signing_request(&node_key().unwrap(), "key").unwrap();
    let renew = |identity: Identity| {
        let config = ClientConfig::new(identity, kit.trust()).connect_in_memory(kit.network());
        let client = Client::connect(config).unwrap();
        let frame = Frame::with_payload(Command::RENEW_CERTIFICATE, pem.clone());
        client.request(frame, LIMIT).map_err(|why| why.to_string())
    };
    // Whoever stole an issuer of the cluster, or has one of another authority, makes nodes of its choice.
    for authority in [kit.authority(), other.authority()] {
        let stolen = authority.issuer("stolen", Role::AGENT, 9).unwrap();
        let key = node_key().unwrap();
        let request = SigningRequest::from_pem(&signing_request(&key, "key").unwrap()).unwrap();
        let short = Duration::from_secs(200);
        let forged = stolen
            .issue(&request, Role::AGENT, Uuid::new_v4(), short)
            .unwrap();
        let identity = Identity::from_pem((forged.chain + &key).as_bytes(), "node").unwrap();
        let why = renew(identity).unwrap_err();
        assert!(why.contains("the records lack the certificate"), "{why}");
    }
    let by_hand = |authority: &Authority| {
        let begun = authority.info().not_before - HOUR * 22;
        let request = CertificateRequest::new(Role::AGENT).uuid(Uuid::new_v4()).days(1);
        renew(authority.issue(&request.valid_from(begun)).unwrap().identity())
    };
    let why = by_hand(other.authority()).unwrap_err();
    assert!(why.contains("another authority"), "{why}");
    assert!(tokens.enrolled().is_empty());
    by_hand(kit.authority()).unwrap();
    assert_eq!(tokens.enrolled().len(), 1);
}

#[test]
fn an_expired_node_says_that_it_needs_a_new_token() {
    let cluster = Cluster::new();
    let (first, second) = (cluster.token(1), cluster.token(1));
    let files = cluster.join(&first, "node").run().unwrap();
    let authority = cluster.kit.authority();
    let begun = authority.info().not_before - HOUR * 48;
    let expired = CertificateRequest::new(Role::AGENT).valid_from(begun).days(1);
    authority
        .issue(&expired)
        .unwrap()
        .save(files.certificate())
        .unwrap();
    let refused = cluster.join(&first, "node").run().unwrap_err().to_string();
    assert!(refused.ends_with("a new one is needed"), "{refused}");
    cluster.join(&second, "node").run().unwrap();
    files.load().unwrap();
}

#[test]
fn a_node_joins_and_connects_although_each_read_brings_few_bytes() {
    let cluster = Cluster::new();
    let few = Faults {
        short_reads: Some(3),
        ..Faults::default()
    };
    cluster.kit.network().set_faults(few, few);
    let files = cluster.join(&cluster.token(1), "node").run().unwrap();
    assert!(cluster.connect(&files).is_connected());
}

#[test]
fn a_connection_that_is_cut_at_any_byte_leaves_a_node_that_joins_later() {
    let cluster = Cluster::new();
    let token = cluster.token(1);
    // Shorter than the first pause, so each has one attempt.
    let join = cluster.join(&token, "node").limit(Duration::from_millis(150));
    let mut failed = 0;
    for after in [1, 100, 700, 1500, 2500] {
        let cut = Faults {
            cut_after: Some(after),
            ..Faults::default()
        };
        for (first, second) in [(cut, Faults::default()), (Faults::default(), cut)] {
            cluster.kit.network().set_faults(first, second);
            failed += usize::from(join.run().is_err());
        }
    }
    assert!(failed >= 3, "{failed}");
    cluster
        .kit
        .network()
        .set_faults(Faults::default(), Faults::default());
    let files = cluster.join(&token, "node").run().unwrap();
    let serial = files.load().unwrap().0.info().serial.clone();
    assert_eq!(cluster.tokens.enrolled()[0].serial, serial);
    assert_eq!(cluster.tokens.enrolled().len(), 1);
}

#[test]
fn bytes_that_are_no_tls_are_refused_as_without_joining() {
    let cluster = Cluster::new();
    let stream = cluster
        .kit
        .network()
        .connect(Faults::default(), Faults::default())
        .unwrap();
    let stream: Arc<dyn Duplex> = Arc::new(stream);
    stream.write(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    wait_for(|| {
        let refused = cluster.server.handle().figures().unwrap().handshakes.refused;
        refused.get("tls").copied().ok_or(refused)
    });
}
