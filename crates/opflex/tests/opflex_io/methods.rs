//! Every method over every kind of connection.

use std::time::Duration;

use serde_json::json;
use ssntp_opflex::PolicyElement;
use ssntp_opflex::message::Method;
use ssntp_opflex::model::{ManagedObject, Target};
use ssntp_opflex::policy_element::{ElementEvent, Health, PeerState, Store};
use ssntp_opflex::run::{ElementConfig, ServerConfig};
use ssntp_pki::ServerCheck;
use ssntp_transport::Address;
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::tls::{Acceptor, Connector};

use super::raw::Raw;
use super::*;

const GROUP: &str = "/PolicyUniverse/PolicySpace/shop/GbpEpGroup/web/";
const ENDPOINT: &str = "/EprL3Universe/EprL3Ep/10.0.0.1/";

/// An element with a server that has all roles.
fn tour(server: ServerConfig, mut config: ElementConfig) {
    let server = {
        let mut server = server.policy(vec![object(GROUP, "web")]);
        server.settings.keepalive.interval = Duration::from_millis(20);
        server.settings.keepalive.first = Duration::from_millis(20);
        serve(server)
    };
    let handle = server.handle();
    if let Some(address) = server.addresses().first() {
        config.settings.peers = vec![address.to_string()];
    }
    config.settings.acknowledge_updates = true;
    let element = PolicyElement::start(config).unwrap();
    until_health(&element, Health::Healthy);
    assert_eq!(peers_of(&element)[0].1, PeerState::Ready);

    // policy_resolve, policy_update, policy_unresolve
    let policy = element.resolve(&uri(GROUP)).unwrap();
    let found = event(&element, |event| match event {
        ElementEvent::Resolved { found, .. } => Some(found),
        _ => None,
    });
    assert!(found);
    until_value(&element, Store::Policy, GROUP, Some("web"));
    assert_eq!(handle.edit(Edit::Merge(vec![object(GROUP, "web2")])).unwrap(), 1);
    until_value(&element, Store::Policy, GROUP, Some("web2"));
    assert_eq!(handle.edit(Edit::Delete(vec![uri(GROUP)])).unwrap(), 1);
    until_value(&element, Store::Policy, GROUP, None);
    drop(policy);
    until_server(&handle, |core, now| core.sessions(now)[0].policies == 0);

    // endpoint_declare, endpoint_resolve, endpoint_update, endpoint_undeclare,
    // endpoint_unresolve
    let endpoint = |name: &str| ManagedObject::new("EprL3Ep", uri(ENDPOINT)).with("name", name);
    element.declare(vec![endpoint("one")]).unwrap();
    until_server(&handle, |core, _| core.endpoints().len() == 1);
    let wanted = element
        .resolve_endpoint("EprL3Ep", Target::Uri(uri(ENDPOINT)))
        .unwrap();
    until_value(&element, Store::Endpoints, ENDPOINT, Some("one"));
    element.declare(vec![endpoint("two")]).unwrap();
    until_value(&element, Store::Endpoints, ENDPOINT, Some("two"));
    assert!(element.undeclare(&uri(ENDPOINT)).unwrap());
    until_value(&element, Store::Endpoints, ENDPOINT, None);
    drop(wanted);
    until_server(&handle, |core, now| core.sessions(now)[0].endpoint_resolves == 0);

    // state_report
    let report = ManagedObject::new(
        "GbpeL24ClassifierCounter",
        uri("/ObserverStatUniverse/counter/1/"),
    );
    element.report(report.with("packets", 7)).unwrap();
    until_server(&handle, |core, _| core.observer().len() == 1);

    // echo, in both directions, and everything else once
    until_server(&handle, |core, now| {
        let session = &core.sessions(now)[0];
        let methods = Method::ALL.iter().map(|(method, _)| method).filter(|method| {
            !matches!(
                method,
                Method::PolicyUpdate | Method::EndpointUpdate | Method::Custom
            )
        });
        methods
            .clone()
            .all(|method| session.counters.requests(*method) > 0)
            && session.counters.updates >= 4
    });
    assert_eq!(element.health().unwrap(), Health::Healthy);
    element.stop();
    until_server(&handle, |core, _| core.session_count() == 0);
    server.stop();
}

fn over_tcp(
    server: impl FnOnce(ServerConfig) -> ServerConfig,
    client: impl FnOnce(ElementConfig) -> ElementConfig,
) {
    let config = ServerConfig::new(server_settings("pr1")).listen(Address::tcp("127.0.0.1", 0));
    let element = ElementConfig::new(element_settings("pe1", &[]));
    tour(server(config), client(element));
}

#[test]
fn every_method_works_over_memory() {
    let place = MemoryListener::new();
    let server = ServerConfig::new(server_settings("pr1")).listen_in_memory(&place, "pr1:1");
    let element = ElementConfig::new(element_settings("pe1", &["pr1:1"]));
    tour(server, element.connect_in_memory("pr1:1", &place));
}

#[test]
fn every_method_works_over_tcp() {
    over_tcp(|server| server, |element| element);
}

#[test]
fn every_method_works_over_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Unix(directory.path().join("s"));
    let server = ServerConfig::new(server_settings("pr1")).listen(address);
    tour(server, ElementConfig::new(element_settings("pe1", &[])));
}

#[test]
fn every_method_works_over_tls_with_a_checked_name() {
    over_tcp(
        |server| server.tls(Acceptor::server_only(identity().certified_key()).unwrap()),
        |mut element| {
            element.server_name = Some("localhost".to_owned());
            element.tls(ServerCheck::Name(&authority().trust()).connector(None).unwrap())
        },
    );
}

#[test]
fn every_method_works_over_tls_without_any_check() {
    over_tcp(
        |server| server.tls(Acceptor::server_only(identity().certified_key()).unwrap()),
        |element| element.tls(ServerCheck::Nothing.connector(None).unwrap()),
    );
}

#[test]
fn every_method_works_over_mutual_tls_with_any_name() {
    let mutual = authority().trust().acceptor(&identity()).unwrap();
    over_tcp(
        |server| server.tls(mutual),
        |mut element| {
            element.server_name = Some("another.name".to_owned());
            let (trust, identity) = (authority().trust(), identity());
            let check = ServerCheck::Authority(&trust);
            element.tls(check.connector(Some(&identity)).unwrap())
        },
    );
}

/// True if an element with this TLS becomes ready.
pub(super) fn is_let_in(acceptor: Acceptor, connector: Option<Connector>, name: &str) -> bool {
    let (server, address) = serve_tcp(ServerConfig::new(server_settings("pr1")).tls(acceptor));
    let mut config = ElementConfig::new(element_settings("pe1", &[&address]));
    config.settings.identity_timeout = Duration::from_secs(2);
    config.tls = connector;
    config.server_name = Some(name.to_owned());
    let element = PolicyElement::start(config).unwrap();
    let mut attempts = 0;
    let ready = event(&element, |event| match event {
        ElementEvent::Peer {
            state: Some(PeerState::Ready),
            ..
        } => Some(true),
        ElementEvent::Peer {
            state: Some(PeerState::Waiting),
            ..
        } => {
            attempts += 1;
            (attempts == 2).then_some(false)
        }
        _ => None,
    });
    assert_eq!(server.handle().sessions().unwrap().len() == 1 && ready, ready);
    ready
}

#[test]
fn an_element_without_a_certificate_says_that_the_server_requires_one() {
    let trust = authority().trust();
    let acceptor = trust.acceptor(&identity()).unwrap();
    let (_server, address) = serve_tcp(ServerConfig::new(server_settings("pr1")).tls(acceptor));
    let mut config = ElementConfig::new(element_settings("pe1", &[&address]));
    config.tls = Some(ServerCheck::Nothing.connector(None).unwrap());
    let element = PolicyElement::start(config).unwrap();
    let why = event(&element, |event| match event {
        ElementEvent::Peer {
            reason: Some(reason), ..
        } => Some(reason.to_string()),
        _ => None,
    });
    assert!(why.contains("the server requires a certificate"), "{why}");
}

#[test]
fn each_kind_of_tls_accepts_the_right_peers() {
    let trust = authority().trust();
    let stranger = Authority::new(&AuthorityRequest::default()).unwrap();
    let (ours, own) = (stranger.trust(), identity());
    let theirs = stranger
        .issue(&CertificateRequest::new(ssntp_pki::Role::SERVER))
        .unwrap()
        .identity();
    let open = || Acceptor::server_only(own.certified_key()).unwrap();
    let mutual = || trust.acceptor(&own).unwrap();
    let connector = |check: ServerCheck<'_>, who| Some(check.connector(who).unwrap());
    assert!(is_let_in(
        open(),
        connector(ServerCheck::Name(&trust), None),
        "localhost"
    ));
    assert!(!is_let_in(
        open(),
        connector(ServerCheck::Name(&trust), None),
        "other"
    ));
    assert!(is_let_in(
        open(),
        connector(ServerCheck::Authority(&trust), None),
        "other"
    ));
    assert!(!is_let_in(
        open(),
        connector(ServerCheck::Authority(&ours), None),
        "localhost"
    ));
    assert!(is_let_in(open(), connector(ServerCheck::Nothing, None), "other"));
    assert!(!is_let_in(open(), None, "localhost"));
    assert!(is_let_in(
        mutual(),
        connector(ServerCheck::Nothing, Some(&own)),
        "localhost"
    ));
    assert!(!is_let_in(
        mutual(),
        connector(ServerCheck::Nothing, None),
        "localhost"
    ));
    assert!(!is_let_in(
        mutual(),
        connector(ServerCheck::Nothing, Some(&theirs)),
        "localhost"
    ));
}

#[test]
fn updates_are_sent_for_the_refresh_rate_and_no_longer() {
    let (server, address) =
        serve_tcp(ServerConfig::new(server_settings("pr1")).policy(vec![object(GROUP, "web")]));
    let handle = server.handle();
    let mut raw = Raw::identified(&address, "pe1", "test");
    let resolve = |prr| {
        json!({"id": ["policy_resolve", 1], "method": "policy_resolve",
        "params": [{"subject": "GbpEpGroup", "policy_uri": GROUP, "prr": prr}]})
    };
    let answer = raw.ask(&resolve(4));
    assert_eq!(answer["result"]["policy"][0]["uri"], GROUP);
    handle.edit(Edit::Merge(vec![object(GROUP, "a")])).unwrap();
    assert_eq!(raw.recv_other().unwrap()["method"], "policy_update");
    until_server(&handle, |core, now| core.sessions(now)[0].policies == 0);
    handle.edit(Edit::Merge(vec![object(GROUP, "b")])).unwrap();
    // No message comes between the change and the answer to the next request.
    raw.send(&json!({"id": 7, "method": "echo", "params": [1]}));
    assert_eq!(raw.recv_other().unwrap(), json!({"id": 7, "result": [1]}));

    let declare = json!({"id": 8, "method": "endpoint_declare",
        "params": [{"endpoint": [{"subject": "EprL3Ep", "uri": ENDPOINT}], "prr": 4}]});
    raw.ask(&declare);
    assert_eq!(handle.with(|core, _| core.endpoints().len()).unwrap(), 1);
    until_server(&handle, |core, _| core.endpoints().is_empty());
}

#[test]
fn an_element_repeats_its_requests_before_the_refresh_rate_ends() {
    let (server, address) =
        serve_tcp(ServerConfig::new(server_settings("pr1")).policy(vec![object(GROUP, "web")]));
    let handle = server.handle();
    let mut config = ElementConfig::new(element_settings("pe1", &[&address]));
    config.settings.prr = Duration::from_secs(3);
    let element = PolicyElement::start(config).unwrap();
    let _policy = element.resolve(&uri(GROUP)).unwrap();
    element
        .declare(vec![ManagedObject::new("EprL3Ep", uri(ENDPOINT))])
        .unwrap();
    until_server(&handle, |core, now| {
        let sessions = core.sessions(now);
        sessions.first().is_some_and(|session| {
            let count = |method| session.counters.requests(method);
            count(Method::PolicyResolve) > 3 && count(Method::EndpointDeclare) > 3
        })
    });
    // Until then it got updates, and its endpoint existed.
    assert_eq!(handle.sessions().unwrap()[0].policies, 1);
    assert_eq!(handle.with(|core, _| core.endpoints().len()).unwrap(), 1);
    assert_eq!(element.health().unwrap(), Health::Healthy);
}

#[test]
fn events_that_are_not_received_are_dropped_and_counted() {
    let (server, place) = serve_in_memory("pr1", vec![object(GROUP, "0")]);
    let mut config = ElementConfig::new(element_settings("pe1", &["pr1:1"]));
    config.events = 3;
    let element = PolicyElement::start(config.connect_in_memory("pr1:1", &place)).unwrap();
    let _policy = element.resolve(&uri(GROUP)).unwrap();
    for n in 1..20 {
        until_value(&element, Store::Policy, GROUP, Some(&(n - 1).to_string()));
        let change = object(GROUP, &n.to_string());
        assert_eq!(server.handle().edit(Edit::Merge(vec![change])).unwrap(), 1);
    }
    until_value(&element, Store::Policy, GROUP, Some("19"));
    assert_eq!(element.events().try_iter().count(), 3);
    server
        .handle()
        .edit(Edit::Merge(vec![object(GROUP, "last")]))
        .unwrap();
    let missed = element.events().recv_timeout(LIMIT).unwrap();
    assert!(
        matches!(missed, ElementEvent::Missed { count } if count >= 18),
        "{missed:?}"
    );
    assert!(matches!(
        element.events().recv_timeout(LIMIT).unwrap(),
        ElementEvent::Changed { .. }
    ));
}

/// An endpoint expires without any echo or request.
#[test]
fn expiry_happens_in_time_without_other_events() {
    let mut settings = server_settings("pr1");
    settings.keepalive.first = Duration::from_secs(3600);
    let (_server, address) = serve_tcp(ServerConfig::new(settings));
    let mut resolver = Raw::identified(&address, "pe1", "test");
    let resolve = json!({"id": 2, "method": "endpoint_resolve",
        "params": [{"subject": "EprL3Ep", "endpoint_uri": ENDPOINT, "prr": 3600}]});
    assert_eq!(resolver.ask(&resolve)["result"]["endpoint"], json!([]));
    let mut owner = Raw::identified(&address, "pe2", "test");
    owner.ask(&json!({"id": 3, "method": "endpoint_declare",
        "params": [{"endpoint": [{"subject": "EprL3Ep", "uri": ENDPOINT}], "prr": 1}]}));
    let came = resolver.recv_method("endpoint_update");
    assert_eq!(came["params"][0]["replace"][0]["uri"], ENDPOINT);
    let went = resolver.recv_method("endpoint_update");
    assert_eq!(went["params"][0]["delete"][0]["uri"], ENDPOINT);
}
