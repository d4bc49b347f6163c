//! OpFlex over real connections: element and server, recorded sessions with both, bad input, slow
//! clients. Every wait has a time limit.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests with sockets and a clock"
)]

mod bad_answers;
mod bad_input;
mod certificates;
mod cluster;
mod control;
mod feed;
mod inspector;
mod many;
mod methods;
mod raw;
mod recorded;
mod recorded_servers;
mod servers;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ssntp_opflex::model::{Edit, ManagedObject, Uri};
use ssntp_opflex::policy_element::{self, ElementEvent, Health, PeerState, Store};
use ssntp_opflex::run::{ElementConfig, ServerConfig, ServerHandle};
use ssntp_opflex::server::ServerCore;
use ssntp_opflex::{PolicyElement, Server, server};
use ssntp_pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Role};
use ssntp_test_support::wait::{until, wait_for};
use ssntp_transport::Address;
use ssntp_transport::memory::MemoryListener;

/// The time limit of every wait.
const LIMIT: Duration = Duration::from_secs(60);

fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| Authority::new(&AuthorityRequest::default()).unwrap())
}

/// A certificate for `localhost`.
fn identity() -> Identity {
    authority()
        .issue(&CertificateRequest::new(Role::SERVER))
        .unwrap()
        .identity()
}

fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

/// The servers of an element, by address.
fn peers_of(element: &PolicyElement) -> Vec<(String, PeerState)> {
    let peers = element.with(|core, _| {
        let peers = core.peers();
        peers
            .map(|(address, state)| (address.to_owned(), state))
            .collect()
    });
    peers.unwrap()
}

/// A policy with one property.
fn object(at: &str, value: &str) -> ManagedObject {
    ManagedObject::new("GbpEpGroup", uri(at)).with("name", value)
}

fn server_settings(name: &str) -> server::ServerSettings {
    server::ServerSettings::new(name, "test")
}

fn serve(config: ServerConfig) -> Server {
    Server::start(config).unwrap()
}

/// A server in memory with the address `NAME:1`.
fn serve_in_memory(name: &str, policy: Vec<ManagedObject>) -> (Server, MemoryListener) {
    let place = MemoryListener::new();
    let config = ServerConfig::new(server_settings(name))
        .policy(policy)
        .listen_in_memory(&place, format!("{name}:1"));
    (serve(config), place)
}

/// A server at a port of its own, and its address.
fn serve_tcp(config: ServerConfig) -> (Server, String) {
    let server = serve(config.listen(Address::tcp("127.0.0.1", 0)));
    let address = server.addresses()[0].to_string();
    (server, address)
}

/// Settings of an element that reconnects soon.
fn element_settings(name: &str, peers: &[&str]) -> policy_element::ElementSettings {
    let mut settings = policy_element::ElementSettings::new(name, "test", peers.iter().copied());
    settings.reconnect = Duration::from_millis(20);
    settings.reconnect_max = Duration::from_millis(100);
    settings.linger = Duration::from_millis(10);
    settings
}

fn element(name: &str, address: &str) -> PolicyElement {
    PolicyElement::start(ElementConfig::new(element_settings(name, &[address]))).unwrap()
}

/// The first event that the test waits for.
#[track_caller]
fn event<T>(element: &PolicyElement, mut find: impl FnMut(ElementEvent) -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    let mut others = Vec::new();
    loop {
        let event = element
            .events()
            .recv_timeout(end.saturating_duration_since(Instant::now()));
        let event = event.unwrap_or_else(|e| panic!("no such event in time: {e}; {others:#?}"));
        others.push(format!("{event:?}"));
        if let Some(found) = find(event) {
            return found;
        }
    }
}

#[track_caller]
fn until_health(element: &PolicyElement, wanted: Health) {
    event(element, |event| {
        (event == ElementEvent::Health { health: wanted }).then_some(())
    });
}

/// Waits until a received object has a value, or is removed.
#[track_caller]
fn until_value(element: &PolicyElement, store: Store, at: &str, value: Option<&str>) {
    let at = uri(at);
    wait_for(|| {
        let objects = element.objects(store, &at).unwrap();
        let object = objects.first();
        let found = object.and_then(|object| object.property("name").cloned());
        let is_so = found == value.map(serde_json::Value::from);
        if is_so {
            Ok(())
        } else {
            Err(format!("{at} has {found:?}, not {value:?}"))
        }
    });
}

/// Waits until the server has the expected state.
#[track_caller]
fn until_server(
    handle: &ServerHandle,
    is: impl Fn(&ServerCore, Instant) -> bool + Send + Sync + Copy + 'static,
) {
    until(|| handle.with(is).unwrap());
}
