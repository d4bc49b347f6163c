//! An element with several servers, which are found, lost and connected again.

use ssntp_opflex::message::{Method, Peer, Role};
use ssntp_test_support::port::HeldPort;

use super::*;

const GROUP: &str = "/PolicyUniverse/PolicySpace/shop/GbpEpGroup/web/";
const ENDPOINT: &str = "/EprL3Universe/EprL3Ep/10.0.0.1/";

fn peer(address: &str) -> Peer {
    Peer {
        role: vec![Role::POLICY_REPOSITORY, Role::ENDPOINT_REGISTRY, Role::OBSERVER],
        connectivity_info: address.to_owned(),
        extra: serde_json::Map::new(),
    }
}

/// A server at this address, which lists itself and the others.
fn serve_at(address: &str, roles: bool, others: &[&str]) -> Server {
    let mut settings = server_settings(address);
    settings.peers = others.iter().copied().map(peer).collect();
    if !roles {
        settings.roles.clear();
    }
    let config = ServerConfig::new(settings)
        .policy(vec![object(GROUP, "web")])
        .listen(address.parse().unwrap());
    serve(config)
}

/// Ports without a listener, and their addresses.
pub(crate) fn free<const N: usize>() -> ([HeldPort; N], [String; N]) {
    let ports = std::array::from_fn(|_| HeldPort::new());
    let addresses = ports.each_ref().map(HeldPort::address);
    (ports, addresses)
}

fn states(element: &PolicyElement) -> Vec<(String, PeerState)> {
    let mut peers = peers_of(element);
    peers.sort_by(|a, b| a.0.cmp(&b.0));
    peers
}

#[test]
fn a_server_that_lists_only_others_is_left_for_them() {
    let (_ports, [anycast, b, c]) = free();
    let _a = serve_at(&anycast, false, &[&b, &c]);
    let servers = [serve_at(&b, true, &[&b, &c]), serve_at(&c, true, &[&b, &c])];
    let element = element("pe1", &anycast);
    until_health(&element, Health::Healthy);
    let mut expected = vec![
        (anycast.clone(), PeerState::Parked),
        (b, PeerState::Ready),
        (c, PeerState::Ready),
    ];
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    until(|| states(&element) == expected);
    let _policy = element.resolve(&uri(GROUP)).unwrap();
    until_value(&element, Store::Policy, GROUP, Some("web"));
    for server in servers {
        until_server(&server.handle(), |core, now| core.sessions(now)[0].policies == 1);
    }
}

#[test]
fn the_control_socket_shows_sessions_counters_and_objects() {
    let (_ports, [address]) = free();
    let server = serve_at(&address, true, &[&address]);
    let element = element("pe1", &address);
    until_health(&element, Health::Healthy);
    let _policy = element.resolve(&uri(GROUP)).unwrap();
    until_value(&element, Store::Policy, GROUP, Some("web"));
    until(|| server.handle().figures().unwrap().handshakes == 0);
    let figures = server.handle().figures().unwrap();
    assert_eq!((figures.sessions.len(), figures.sessions[0].policies), (1, 1));
    let agent = &figures.agents[0];
    assert_eq!((figures.agents.len(), agent.connected), (1, 1));
    assert_eq!(agent.counters.requests(Method::PolicyResolve), 1);
    assert!(figures.policy_objects > 0 && figures.max_sessions > 0 && figures.max_handshakes > 0);
    assert_eq!(
        (figures.endpoint_objects, figures.reports, figures.series),
        (0, 0, 0)
    );
    assert!(figures.dispatcher.turns.count() > 0 && figures.queues.limit > 0);
}

#[test]
fn all_requests_are_sent_again_when_a_server_is_back() {
    let (_ports, [b, c]) = free();
    let mut servers = [&b, &c].map(|address| Some(serve_at(address, true, &[&b, &c])));
    let element = PolicyElement::start(ElementConfig::new(element_settings("pe1", &[&b, &c]))).unwrap();
    let _policy = element.resolve(&uri(GROUP)).unwrap();
    element
        .declare(vec![ManagedObject::new("EprL3Ep", uri(ENDPOINT))])
        .unwrap();
    until_health(&element, Health::Healthy);
    for (index, address) in [&b, &c].into_iter().enumerate() {
        servers[index].take().unwrap().stop();
        until_health(&element, Health::Degraded);
        // The received policy stays.
        until_value(&element, Store::Policy, GROUP, Some("web"));
        let server = serve_at(address, true, &[&b, &c]);
        until_health(&element, Health::Healthy);
        let handle = server.handle();
        until_server(&handle, |core, now| {
            core.sessions(now)
                .first()
                .is_some_and(|session| session.policies == 1)
                && core.endpoints().len() == 1
        });
        handle.edit(Edit::Merge(vec![object(GROUP, address)])).unwrap();
        until_value(&element, Store::Policy, GROUP, Some(address));
        handle.edit(Edit::Merge(vec![object(GROUP, "web")])).unwrap();
        until_value(&element, Store::Policy, GROUP, Some("web"));
        servers[index] = Some(server);
    }
    drop(servers);
    until_health(&element, Health::Down);
    until_value(&element, Store::Policy, GROUP, Some("web"));
    let _b = serve_at(&b, true, &[&b]);
    until_health(&element, Health::Degraded);
}

#[test]
fn a_parked_server_is_dialled_again_when_the_others_are_gone() {
    let (_ports, [anycast, b, c]) = free();
    let a = serve_at(&anycast, false, &[&b]);
    let first = serve_at(&b, true, &[&b]);
    let element = element("pe1", &anycast);
    until_health(&element, Health::Healthy);
    drop(a);
    drop(first);
    until_health(&element, Health::Down);
    let _a = serve_at(&anycast, false, &[&c]);
    let _second = serve_at(&c, true, &[&c]);
    until(|| states(&element).contains(&(c.clone(), PeerState::Ready)));
}

#[test]
fn an_element_that_dials_can_be_stopped() {
    // No host answers at this address. The attempt ends with the element.
    let element = element("pe1", "192.0.2.1:8009");
    let begin = Instant::now();
    element.stop();
    assert!(begin.elapsed() < LIMIT);
}

#[test]
fn calls_after_the_stop_fail() {
    let (server, place) = serve_in_memory("pr1", Vec::new());
    let config = ElementConfig::new(element_settings("pe1", &["pr1:1"])).connect_in_memory("pr1:1", &place);
    let element = PolicyElement::start(config).unwrap();
    let (server_handle, element_handle) = (server.handle(), element.handle());
    let reference = element.resolve(&uri(GROUP)).unwrap();
    element.stop();
    server.stop();
    drop(reference);
    assert!(server_handle.policy().is_err());
    assert!(element_handle.health().is_err());
}

#[test]
fn a_call_from_within_a_call_is_refused() {
    let (server, _place) = serve_in_memory("pr1", Vec::new());
    let (handle, inner) = (server.handle(), server.handle());
    let result = handle.with(move |_, _| inner.policy().map(|_| ())).unwrap();
    assert!(matches!(result, Err(ssntp_opflex::run::CallError::OnDispatcher)));
    // A call that panics does not affect others.
    assert!(handle.with(|_, _| panic!("on purpose")).is_err());
    assert!(handle.policy().is_ok());
}

#[test]
fn an_application_that_receives_no_events_gets_the_number_of_lost_ones() {
    let (server, place) = serve_in_memory("pr1", vec![object(GROUP, "0")]);
    let mut config =
        ElementConfig::new(element_settings("pe1", &["pr1:1"])).connect_in_memory("pr1:1", &place);
    config.events = 1;
    let element = PolicyElement::start(config).unwrap();
    let _policy = element.resolve(&uri(GROUP)).unwrap();
    until_server(&server.handle(), |core, now| {
        core.sessions(now)
            .first()
            .is_some_and(|session| session.policies == 1)
    });
    for n in 1..=5 {
        server
            .handle()
            .edit(Edit::Merge(vec![object(GROUP, &n.to_string())]))
            .unwrap();
    }
    // The policy itself is complete.
    until_value(&element, Store::Policy, GROUP, Some("5"));
    let first = element.events().recv_timeout(LIMIT).unwrap();
    assert!(matches!(first, ElementEvent::Peer { .. }), "{first:?}");
    let mut lost = 0;
    let mut number = 5;
    while lost == 0 {
        number += 1;
        server
            .handle()
            .edit(Edit::Merge(vec![object(GROUP, &number.to_string())]))
            .unwrap();
        until_value(&element, Store::Policy, GROUP, Some(&number.to_string()));
        while let Ok(event) = element.events().try_recv() {
            if let ElementEvent::Missed { count } = event {
                lost += count;
            }
        }
    }
    // At least the five changes and the earlier events.
    assert!(lost >= 5, "{lost}");
}
