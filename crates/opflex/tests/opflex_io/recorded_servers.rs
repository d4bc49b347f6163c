//! Recorded servers of libopflex, replayed to an element over TCP. The element sends the messages of
//! the recorded element, apart from names, times, numbers and order.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use ssntp_opflex::message::Method;
use ssntp_opflex::model::Name;
use ssntp_opflex::run::Reference;

use super::raw::Raw;
use super::recorded::ordered;
use super::*;

const ANYCAST: &str = include_str!("../fixtures/opflex/02_bootstrap_A.jsonl");
const B: &str = include_str!("../fixtures/opflex/02_bootstrap_B.jsonl");
const B_AGAIN: &str = include_str!("../fixtures/opflex/02_bootstrap_B2.jsonl");
const C: &str = include_str!("../fixtures/opflex/02_bootstrap_C.jsonl");
const AGENT: &str = include_str!("../fixtures/opflex/03_opflex_agent_vs_opflex_server.jsonl");
const TRANSPORT: &str = include_str!("../fixtures/opflex/08_transport_mode_identity.jsonl");

/// The addresses of the servers in the captures.
const B_AT: &str = "127.0.0.1:18402";
const C_AT: &str = "127.0.0.1:18403";

/// A method with its parameters, without the parts that depend on names and times, for comparison.
type Summary = (String, String);

fn summary_of(message: &Value) -> Summary {
    let mut params = message["params"][0].clone();
    match message["method"].as_str().unwrap() {
        "echo" => params = Value::Null,
        "send_identity" => {
            for member in ["name", "domain", "data"] {
                params.as_object_mut().unwrap().remove(member);
            }
        }
        _ => {}
    }
    (
        message["method"].as_str().unwrap().to_owned(),
        ordered(params).to_string(),
    )
}

/// One connection of a capture.
struct Script {
    /// The messages of the element, in order.
    asked: Vec<Summary>,
    /// The answers of the server.
    answers: BTreeMap<Summary, Value>,
    /// The requests of the server.
    asks: Vec<Value>,
}

/// The connections of a capture, with other addresses in place of the recorded
/// ones.
fn scripts(capture: &str, addresses: &[(&str, &str)]) -> Vec<Script> {
    let mut messages: BTreeMap<u64, Vec<(bool, Value)>> = BTreeMap::new();
    for line in capture.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let Some(text) = line["msg"].as_str() else {
            continue;
        };
        let text = addresses
            .iter()
            .fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        let message = serde_json::from_str(&text).unwrap();
        let of_connection = messages.entry(line["conn"].as_u64().unwrap()).or_default();
        of_connection.push((line["dir"] == "srv>pe", message));
    }
    let script = |messages: Vec<(bool, Value)>| {
        let by_id = |id: &Value, of_server: bool, method: bool| {
            let found = messages.iter().find(|(by_server, message)| {
                *by_server == of_server && message.get("method").is_some() == method && message["id"] == *id
            });
            found.map(|(_, message)| message.clone())
        };
        let asked = messages
            .iter()
            .filter(|(by_server, message)| !by_server && message.get("method").is_some());
        let mut answers = BTreeMap::new();
        for (_, request) in asked.clone() {
            if let Some(answer) = by_id(&request["id"], true, false) {
                answers.insert(summary_of(request), answer["result"].clone());
            }
        }
        let asks = messages
            .iter()
            .filter(|(by_server, message)| *by_server && message.get("method").is_some());
        Script {
            asked: asked.map(|(_, message)| summary_of(message)).collect(),
            asks: asks.map(|(_, message)| message.clone()).collect(),
            answers,
        }
    };
    messages.into_values().map(script).collect()
}

/// A server that plays its scripts, one for each connection, and the last one repeatedly.
struct Player {
    address: String,
    /// The messages of the element on each connection.
    received: Arc<Mutex<Vec<Vec<Summary>>>>,
    now: Arc<Mutex<Now>>,
    thread: Option<JoinHandle<()>>,
}

/// The progress of a player.
enum Now {
    Waiting,
    Playing(TcpStream),
    Ended,
}

impl Player {
    fn new(listener: TcpListener, scripts: Vec<Script>) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let received = Arc::new(Mutex::new(Vec::new()));
        let now = Arc::new(Mutex::new(Now::Waiting));
        let (receives, plays) = (Arc::clone(&received), Arc::clone(&now));
        let thread = std::thread::spawn(move || {
            for n in 0.. {
                let (stream, _) = listener.accept().unwrap();
                match &mut *plays.lock().unwrap() {
                    Now::Ended => return,
                    now => *now = Now::Playing(stream.try_clone().unwrap()),
                }
                let script = &scripts[n.min(scripts.len() - 1)];
                receives.lock().unwrap().push(Vec::new());
                play(Raw::over(stream), script, |message| {
                    receives.lock().unwrap().last_mut().unwrap().push(message);
                });
            }
        });
        Self {
            address,
            received,
            now,
            thread: Some(thread),
        }
    }

    /// The messages of the element on a connection, sorted, with only the first echo.
    fn received(&self, connection: usize) -> Vec<Summary> {
        let connections = self.received.lock().unwrap();
        sorted(connections.get(connection).cloned().unwrap_or_default())
    }

    /// Closes all connections like a program that is killed.
    fn end(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let before = std::mem::replace(&mut *self.now.lock().unwrap(), Now::Ended);
            if let Now::Playing(stream) = before {
                let _ = stream.shutdown(Shutdown::Both);
            }
            let _ = TcpStream::connect(&self.address);
            thread.join().unwrap();
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.stop();
    }
}

fn sorted(mut messages: Vec<Summary>) -> Vec<Summary> {
    messages.sort();
    messages.dedup_by(|a, b| a == b && a.0 == "echo");
    messages
}

/// Plays one connection to its end.
fn play(mut raw: Raw, script: &Script, mut hear: impl FnMut(Summary)) {
    for ask in &script.asks {
        raw.send(ask);
    }
    while let Some(message) = raw.recv() {
        if message.get("method").is_none() {
            // The element's answer to a request of the server.
            assert!(message.get("result").is_some(), "{message}");
            continue;
        }
        let summary = summary_of(&message);
        let result = match &script.answers.get(&summary) {
            Some(_) if summary.0 == "echo" => message["params"].clone(),
            Some(result) => (*result).clone(),
            None => json!({}),
        };
        hear(summary);
        if !raw.try_send(&json!({"id": message["id"], "result": result})) {
            return;
        }
    }
}

fn bind() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn asked(scripts: &[Script], connection: usize) -> Vec<Summary> {
    sorted(scripts[connection].asked.clone())
}

fn state(element: &PolicyElement, address: &str) -> Option<PeerState> {
    let peers = peers_of(element);
    peers
        .into_iter()
        .find_map(|(at, state)| (at == address).then_some(state))
}

/// The recorded servers: A lists B and C; B ends, C ends, and A is dialled again; B is back and gets
/// all requests.
#[test]
fn the_recorded_bootstrap_gives_the_same_connections() {
    let [(a, at_a), (b, at_b), (c, at_c)] = [bind(), bind(), bind()];
    let addresses = [(B_AT, &*at_b), (C_AT, &*at_c)];
    let scripts = |capture| scripts(capture, &addresses);
    let (of_a, of_b, of_c) = (scripts(ANYCAST), scripts(B), scripts(C));
    let anycast = Player::new(a, scripts(ANYCAST));
    let servers = [Player::new(b, scripts(B)), Player::new(c, scripts(C))];

    let mut settings = element_settings("testelement", &[&at_a]);
    settings.domain = "testdomain".to_owned();
    let element = PolicyElement::start(ElementConfig::new(settings)).unwrap();
    until_health(&element, Health::Healthy);
    until(|| [&at_b, &at_c].map(|at| state(&element, at)) == [Some(PeerState::Ready); 2]);
    assert_eq!(state(&element, &at_a), Some(PeerState::Parked));
    let location = element
        .with(|core, _| core.location().map(str::to_owned))
        .unwrap();
    assert_eq!(location.as_deref(), Some("location_string"));

    let _policy = element
        .resolve_policy("class4", uri("/class4/test/"), false)
        .unwrap();
    let endpoint = ManagedObject::new("class2", uri("/class2/7/")).with("prop4", 7);
    element.declare(vec![endpoint]).unwrap();
    until(|| servers[0].received(0) == asked(&of_b, 0) && servers[1].received(0) == asked(&of_c, 0));
    assert_eq!(anycast.received(0), asked(&of_a, 0));

    let [b, c] = servers;
    b.end();
    until_health(&element, Health::Degraded);
    c.end();
    until_health(&element, Health::Down);
    // A is dialled repeatedly while no other server is there.
    until(|| anycast.received(2) == asked(&of_a, 2));
    assert_eq!(anycast.received(1), asked(&of_a, 1));

    let again = scripts(B_AGAIN);
    let b = Player::new(TcpListener::bind(&at_b).unwrap(), scripts(B_AGAIN));
    until(|| b.received(0) == asked(&again, 0));
    until(|| state(&element, &at_b) == Some(PeerState::Ready));
    element.stop();
}

/// The recorded server of transport mode sends the proxies and lists another server.
#[test]
fn the_recorded_proxies_are_an_event() {
    let [(a, at_a), (next, at_next)] = [bind(), bind()];
    let addresses = [("127.0.0.1:28012", &*at_next)];
    let script = scripts(TRANSPORT, &addresses);
    let first = Player::new(a, scripts(TRANSPORT, &addresses));
    let mut settings = element_settings("testelement", &[&at_a]);
    settings.require_proxies = true;
    let element = PolicyElement::start(ElementConfig::new(settings)).unwrap();
    let proxies = event(&element, |event| match event {
        policy_element::ElementEvent::Proxies(proxies) => Some(proxies),
        _ => None,
    });
    assert_eq!(
        [&*proxies.v4, &proxies.v6, &proxies.mac],
        ["1.1.1.1", "2.2.2.2", "3.3.3.3"]
    );
    assert_eq!(first.received(0), asked(&script, 0));
    // The listed server is dialled.
    let mut next = Raw::accept(&next);
    let identity = next.recv_method("send_identity");
    assert_eq!(identity["params"][0]["my_location"], "location_string");
    until(|| state(&element, &at_a) == Some(PeerState::Parked));
    element.stop();
}

/// The recorded server of the real agent: the element resolves, declares and releases the same
/// objects as the agent.
#[test]
fn the_recorded_server_of_the_agent_gets_the_requests_of_the_agent() {
    let (listener, address) = bind();
    let addresses = [("127.0.0.1:18009", &*address)];
    let script = scripts(AGENT, &addresses).remove(0);
    let player = Player::new(listener, scripts(AGENT, &addresses));
    let mut settings = element_settings("example-agent", &[&address]);
    settings.domain = "openstack".to_owned();
    let element = PolicyElement::start(ElementConfig::new(settings)).unwrap();
    until_health(&element, Health::Healthy);

    let mut held: BTreeMap<String, Reference> = BTreeMap::new();
    let mut objects = 0;
    let mut expected = asked(std::slice::from_ref(&script), 0);
    for request in &script.asked {
        let params: Value = serde_json::from_str(&request.1).unwrap();
        let member = |name: &str| params[name].as_str().unwrap_or_default().to_owned();
        match Method::from_name(&request.0).unwrap() {
            Method::PolicyResolve => {
                let at = member("policy_uri");
                let reference = element.resolve_policy(Name::from(&*member("subject")), uri(&at), false);
                held.insert(at.clone(), reference.unwrap());
                let expected = script.answers[request]["policy"].as_array().unwrap();
                until(|| {
                    let came = element.objects(Store::Policy, &uri(&at)).unwrap();
                    let came: Vec<Value> = came
                        .iter()
                        .map(|object| serde_json::to_value(object).unwrap())
                        .collect();
                    ordered(json!(came)) == ordered(json!(expected))
                });
                objects += expected.len();
            }
            Method::PolicyUnresolve => drop(held.remove(&member("policy_uri")).unwrap()),
            Method::EndpointDeclare => {
                let endpoint = serde_json::from_value(params["endpoint"].clone()).unwrap();
                element.declare(endpoint).unwrap();
            }
            Method::EndpointUndeclare => {
                if !element.undeclare(&uri(&member("endpoint_uri"))).unwrap() {
                    // The agent undeclared endpoints that it had not declared.
                    expected.retain(|other| other != request);
                }
            }
            Method::Echo | Method::SendIdentity => {}
            other => panic!("{other}"),
        }
    }
    assert!(objects > 50, "{objects}");
    until(|| player.received(0) == expected);
    assert_eq!(element.health().unwrap(), Health::Healthy);
    element.stop();
}
