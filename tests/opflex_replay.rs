//! Recorded sessions of libopflex, said again to ours: the answers are the same
//! but for names, times and order.

#![cfg(feature = "opflex")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets one has failed"
)]
#![allow(clippy::disallowed_methods, reason = "some instant to count from")]

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use serde_json::{Value, json};
use ssntp::opflex::message::{Decoder, Incoming};
use ssntp::opflex::model::ManagedObject;
use ssntp::opflex::peer::ConnectionId;
use ssntp::opflex::server::{Action, Server, Settings};

const TOUR: &str = include_str!("fixtures/opflex/01_tour_testmodel.jsonl");
const AGENT: &str = include_str!("fixtures/opflex/03_opflex_agent_vs_opflex_server.jsonl");

/// The messages of a capture that one side sent, with their times.
fn said(capture: &str, direction: &str) -> Vec<(f64, Value)> {
    let lines = capture
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_side = lines.filter(|line| line["dir"] == direction && line.get("msg").is_some());
    of_side
        .map(|line| {
            (
                line["t"].as_f64().unwrap(),
                serde_json::from_str(line["msg"].as_str().unwrap()).unwrap(),
            )
        })
        .collect()
}

fn incoming(message: &Value) -> Incoming {
    let mut messages = Vec::new();
    let mut buffer = BytesMut::from(format!("{message}\0").as_bytes());
    Decoder::new(Default::default(), Default::default())
        .decode(&mut buffer, &mut messages)
        .unwrap();
    messages.remove(0)
}

/// Lists whose order says nothing, in one order.
fn ordered(value: Value) -> Value {
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

/// Everything in the results of a capture's resolves.
fn objects(capture: &str, member: &str) -> Vec<ManagedObject> {
    let mut objects = BTreeMap::new();
    for (_, message) in said(capture, "srv>pe") {
        let list = message
            .get("result")
            .and_then(|result| result.get(member))
            .cloned();
        for object in serde_json::from_value::<Vec<ManagedObject>>(list.unwrap_or(json!([]))).unwrap() {
            objects.entry(object.uri.clone()).or_insert(object);
        }
    }
    objects.into_values().collect()
}

/// Says to a server all that the element of a capture said, and compares each
/// answer with the one in the capture.
fn replay(capture: &str, domain: &str) {
    let start = Instant::now();
    let mut server = Server::new(Settings::new("server", domain), start);
    let mut actions = Vec::new();
    server
        .merge_policy(objects(capture, "policy"), start, &mut actions)
        .unwrap();
    // The endpoints that the element resolved are declared by somebody else.
    let other = ConnectionId(0);
    server.connected(other, None, start, &mut actions);
    let identity =
        json!({"proto_version": "1.0", "name": "other", "domain": domain, "my_role": ["policy_element"]});
    let declare = json!({"endpoint": objects(capture, "endpoint"), "prr": 7200});
    for (method, params) in [("send_identity", identity), ("endpoint_declare", declare)] {
        let message = incoming(&json!({"id": [method, 1], "method": method, "params": [params]}));
        server.message(other, message, start, &mut actions);
    }
    actions.clear();

    let element = ConnectionId(1);
    server.connected(element, Some("127.0.0.1:18009".to_owned()), start, &mut actions);
    for (t, message) in said(capture, "pe>srv") {
        let now = start + Duration::from_secs_f64(t);
        server.tick(now, &mut actions);
        server.message(element, incoming(&message), now, &mut actions);
    }
    let mut answers = HashMap::new();
    for action in actions {
        match action {
            Action::Send { connection, frame } if connection == element => {
                let message: Value = serde_json::from_slice(&frame[..frame.len() - 1]).unwrap();
                answers
                    .entry((message["id"].to_string(), message.get("method").is_some()))
                    .or_insert(message);
            }
            Action::Send { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    let mut compared = 0;
    for (_, expected) in said(capture, "srv>pe") {
        let method = expected["id"][0].as_str().unwrap().to_owned();
        if method == "policy_update" || method == "endpoint_update" {
            // The server of the tour was told by the test to change these.
            continue;
        }
        let is_request = expected.get("method").is_some();
        let Some(answer) = answers.get(&(expected["id"].to_string(), is_request)) else {
            panic!("no answer like {expected}");
        };
        compared += 1;
        match method.as_str() {
            "echo" if is_request => {}
            "send_identity" => {
                let result = &answer["result"];
                for member in ["my_role", "peers", "data"] {
                    assert_eq!(result[member], expected["result"][member]);
                }
                assert_eq!(result["domain"], domain);
            }
            _ => assert_eq!(ordered(answer.clone()), ordered(expected)),
        }
    }
    assert!(compared > 15, "{compared}");
}

#[test]
fn the_tour_of_all_methods_is_answered_as_by_libopflex() {
    replay(TOUR, "testdomain");
}

#[test]
fn the_real_agent_is_answered_as_by_the_real_server() {
    replay(AGENT, "openstack");
}
