//! Recorded sessions of libopflex, replayed over TCP.

use std::collections::{BTreeMap, HashMap};
use std::net::TcpListener;

use serde_json::{Value, json};
use ssntp_opflex::message::IdentityResult;
use ssntp_opflex::model::Target;

use super::raw::Raw;
use super::servers::free;
use super::*;

const TOUR: &str = include_str!("../fixtures/opflex/01_tour_testmodel.jsonl");
const AGENT: &str = include_str!("../fixtures/opflex/03_opflex_agent_vs_opflex_server.jsonl");
/// The server of both.
const RECORDED_AT: &str = "127.0.0.1:18009";

/// The messages of a capture that one side sent, as if the server had been at
/// `address`.
fn recorded_messages(capture: &str, direction: &str, address: &str) -> Vec<Value> {
    let lines = capture
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .filter(|line| line["dir"] == direction)
        .filter_map(|line| Some(line["msg"].as_str()?.replace(RECORDED_AT, address)))
        .map(|text| serde_json::from_str(&text).unwrap())
        .collect()
}

/// Sorts lists whose order has no meaning.
pub(crate) fn ordered(value: Value) -> Value {
    match value {
        Value::Array(values) => {
            let mut values: Vec<Value> = values.into_iter().map(ordered).collect();
            if values.iter().all(Value::is_object) || values.iter().all(Value::is_string) {
                values.sort_by_key(Value::to_string);
            }
            Value::Array(values)
        }
        Value::Object(members) => members
            .into_iter()
            .map(|(name, value)| (name, ordered(value)))
            .collect(),
        other => other,
    }
}

/// All objects in the results of a capture's resolves.
fn objects(capture: &str, member: &str) -> Vec<ManagedObject> {
    let mut objects = BTreeMap::new();
    for message in recorded_messages(capture, "srv>pe", RECORDED_AT) {
        let list = message["result"].get(member).cloned().unwrap_or(json!([]));
        for object in serde_json::from_value::<Vec<ManagedObject>>(list).unwrap() {
            objects.entry(object.uri.clone()).or_insert(object);
        }
    }
    objects.into_values().collect()
}

/// Sends all messages of the element of a capture, one after the other, and compares the answers.
fn replay_element(capture: &str, domain: &str) {
    let mut settings = server_settings("server");
    settings.domain = domain.to_owned();
    let (server, address) = serve_tcp(ServerConfig::new(settings).policy(objects(capture, "policy")));
    let mut other = Raw::identified(&address, "other", domain);
    let endpoints = json!({"endpoint": objects(capture, "endpoint"), "prr": 7200});
    other.ask(&json!({"id": 2, "method": "endpoint_declare", "params": [endpoints]}));

    let mut element = Raw::connect(&address);
    let mut answers: HashMap<String, Value> = HashMap::new();
    for message in recorded_messages(capture, "pe>srv", &address) {
        if message.get("method").is_some() {
            let answer = element.ask(&message);
            answers.entry(message["id"].to_string()).or_insert(answer);
        } else {
            element.send(&message);
        }
    }
    let mut compared = 0;
    for expected in recorded_messages(capture, "srv>pe", &address) {
        if expected.get("method").is_some() {
            continue;
        }
        let answer = &answers[&expected["id"].to_string()];
        compared += 1;
        if expected["id"][0] == "send_identity" {
            for member in ["my_role", "peers", "data"] {
                assert_eq!(answer["result"][member], expected["result"][member]);
            }
        } else {
            assert_eq!(ordered(answer.clone()), ordered(expected));
        }
    }
    assert!(compared > 10, "{compared}");
    server.stop();
}

#[test]
fn the_recorded_tour_is_answered_as_by_libopflex() {
    replay_element(TOUR, "testdomain");
}

#[test]
fn the_recorded_agent_is_answered_as_by_the_real_server() {
    replay_element(AGENT, "openstack");
}

/// A server like that of a capture, at an address of its own, sends the recorded element exactly the
/// recorded messages. `own` is the recorded address, as in the lists of servers.
fn answers_are_the_same(capture: &str, own: Option<&str>) {
    let mut connections: BTreeMap<u64, Vec<(bool, String)>> = BTreeMap::new();
    for line in capture.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if let Some(text) = line["msg"].as_str() {
            let of_connection = connections.entry(line["conn"].as_u64().unwrap()).or_default();
            of_connection.push((line["dir"] == "srv>pe", text.to_owned()));
        }
    }
    for messages in connections.into_values() {
        let (_port, [address]) = free();
        let messages: Vec<(bool, Value)> = messages
            .iter()
            .map(|(by_server, text)| {
                (
                    *by_server,
                    own.map_or(text.clone(), |own| text.replace(own, &address)),
                )
            })
            .map(|(by_server, text)| (by_server, serde_json::from_str(&text).unwrap()))
            .collect();
        let is_identity =
            |message: &Value| message["id"][0] == "send_identity" && message.get("result").is_some();
        let (_, identity) = messages.iter().find(|(_, message)| is_identity(message)).unwrap();
        let identity: IdentityResult = serde_json::from_value(identity["result"].clone()).unwrap();
        let mut settings = server_settings(identity.name.as_deref().unwrap());
        settings.proxies = identity.proxies();
        settings.domain = identity.domain.unwrap();
        settings.roles = identity.my_role;
        settings.peers = identity.peers;
        settings.default_location = identity.your_location;
        let server = serve(ServerConfig::new(settings).listen(address.parse().unwrap()));
        let mut element = Raw::connect(&address);
        let mut answers = HashMap::new();
        for (_, message) in messages.iter().filter(|(by_server, _)| !by_server) {
            if message.get("method").is_some() {
                answers.insert(message["id"].to_string(), element.ask(message));
            } else {
                element.send(message);
            }
        }
        let of_server = messages.iter().filter(|(by_server, _)| *by_server);
        let expected = of_server.filter(|(_, message)| message.get("method").is_none());
        assert!(expected.clone().count() >= 2);
        for (_, expected) in expected {
            let answer = answers[&expected["id"].to_string()].clone();
            assert_eq!(ordered(answer), ordered(expected.clone()));
        }
        server.stop();
    }
}

#[test]
fn the_recorded_bootstrap_is_answered_as_by_libopflex() {
    answers_are_the_same(include_str!("../fixtures/opflex/02_bootstrap_A.jsonl"), None);
    for (capture, own) in [
        (
            include_str!("../fixtures/opflex/02_bootstrap_B.jsonl"),
            "127.0.0.1:18402",
        ),
        (
            include_str!("../fixtures/opflex/02_bootstrap_B2.jsonl"),
            "127.0.0.1:18402",
        ),
        (
            include_str!("../fixtures/opflex/02_bootstrap_C.jsonl"),
            "127.0.0.1:18403",
        ),
    ] {
        answers_are_the_same(capture, Some(own));
    }
}

#[test]
fn the_recorded_proxies_are_answered_as_by_libopflex() {
    answers_are_the_same(
        include_str!("../fixtures/opflex/08_transport_mode_identity.jsonl"),
        None,
    );
}

/// The server of the tour, whose element resolved two policies and an endpoint.
#[test]
fn the_recorded_server_is_understood() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let messages = recorded_messages(TOUR, "srv>pe", &address);
    let mut settings = element_settings("testelement", &[&address]);
    settings.domain = "testdomain".to_owned();
    let element = PolicyElement::start(ElementConfig::new(settings)).unwrap();
    let mut server = Raw::accept(&listener);
    for message in &messages[..3] {
        server.send(message);
    }
    until_health(&element, Health::Healthy);
    // The first messages in any order: echo, identity, answer.
    let first: Vec<Value> = (0..3).map(|_| server.recv().unwrap()).collect();
    assert!(
        first.contains(&json!({"id": ["echo", 0], "result": [1383112]})),
        "{first:?}"
    );
    let _policy = element
        .resolve_policy("class4", uri("/class4/test/"), false)
        .unwrap();
    let _missing = element
        .resolve_policy("class4", uri("/class4/missing/"), false)
        .unwrap();
    let _endpoint = element
        .resolve_endpoint("class8", Target::Uri(uri("/class8/test/")))
        .unwrap();
    // The numbers are those of the capture: both count from 2^63.
    let asked: Vec<Value> = (0..3).map(|_| server.recv().unwrap()["id"].clone()).collect();
    assert_eq!(asked[0], json!(["policy_resolve", 9223372036854775808u64]));
    assert_eq!(asked[2], json!(["endpoint_resolve", 9223372036854775810u64]));

    let steps: [(&str, &str, Option<&str>); 7] = [
        ("/class4/test/class6/test2/", "prop13", Some("hello-child")),
        ("/class4/test/", "prop9", Some("changed")),
        ("/class4/test/class6/test2/", "prop13", None),
        ("/class4/test/", "prop9", None),
        ("/class8/test/class10/test2/", "prop21", Some("hi-child")),
        ("/class8/test/class10/test2/", "prop21", Some("hi2-child")),
        ("/class8/test/", "prop17", None),
    ];
    let mut steps = steps.into_iter();
    for message in &messages[3..] {
        server.send(message);
        if message["method"] == "echo" {
            assert_eq!(
                server.recv().unwrap(),
                json!({"id": message["id"], "result": message["params"]})
            );
        }
        let moves = message
            .get("params")
            .is_some_and(|params| params[0].get("delete").is_some())
            || message["result"]["policy"].get(0).is_some()
            || message["result"]["endpoint"].get(0).is_some();
        if moves {
            let (at, name, value) = steps.next().unwrap();
            let store = if at.starts_with("/class4") {
                Store::Policy
            } else {
                Store::Endpoints
            };
            until(|| {
                let objects = element.objects(store, &uri(at)).unwrap();
                objects.first().and_then(|object| object.property(name).cloned()) == value.map(Value::from)
            });
        }
    }
    assert!(steps.next().is_none());
    assert_eq!(element.health().unwrap(), Health::Healthy);
}
