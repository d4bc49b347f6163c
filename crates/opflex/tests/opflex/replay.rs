//! Recorded sessions of libopflex are replayed to the cores of this crate: the answers are equal
//! apart from names, times and order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use serde_json::{Value, json};
use ssntp_opflex::message::{Decoder, Incoming};
use ssntp_opflex::model::{Edit, ManagedObject, Uri};
use ssntp_opflex::peer::ConnectionId;
use ssntp_opflex::policy_element::{self, ElementCore};
use ssntp_opflex::server::{Action, Client, ServerCore, ServerSettings};

const TOUR: &str = include_str!("../fixtures/opflex/01_tour_testmodel.jsonl");
const AGENT: &str = include_str!("../fixtures/opflex/03_opflex_agent_vs_opflex_server.jsonl");

/// The messages of a capture that one side sent, with their times.
fn recorded_messages(capture: &str, direction: &str) -> Vec<(f64, Value)> {
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
    Decoder::new(Default::default())
        .decode(&mut buffer, &mut messages)
        .unwrap();
    messages.remove(0)
}

/// Sorts lists whose order has no meaning.
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

/// All objects in the results of a capture's resolves.
fn objects(capture: &str, member: &str) -> Vec<ManagedObject> {
    let mut objects = BTreeMap::new();
    for (_, message) in recorded_messages(capture, "srv>pe") {
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

/// Sends a server all messages of the element of a capture, and compares each answer with the capture.
fn replay(capture: &str, domain: &str) {
    let start = Instant::now();
    let mut server = ServerCore::new(ServerSettings::new("server", domain), start);
    server
        .edit(Edit::Merge(objects(capture, "policy")), start)
        .unwrap();
    // Another element declares the endpoints that the element resolved.
    let other = ConnectionId(0);
    server.handle_connected(start, other, Client::default());
    let identity =
        json!({"proto_version": "1.0", "name": "other", "domain": domain, "my_role": ["policy_element"]});
    let declare = json!({"endpoint": objects(capture, "endpoint"), "prr": 7200});
    for (method, params) in [("send_identity", identity), ("endpoint_declare", declare)] {
        let message = incoming(&json!({"id": [method, 1], "method": method, "params": [params]}));
        server.handle_message(start, other, message);
    }
    server.take_actions();

    let element = ConnectionId(1);
    let client = Client {
        dialled: Some("127.0.0.1:18009".to_owned()),
        ..Client::default()
    };
    server.handle_connected(start, element, client);
    for (t, message) in recorded_messages(capture, "pe>srv") {
        let now = start + Duration::from_secs_f64(t);
        server.handle_deadline(now);
        server.handle_message(now, element, incoming(&message));
    }
    let mut answers = HashMap::new();
    for action in server.take_actions() {
        match action {
            Action::Send { connection, frame } if connection == element => {
                let message: Value = serde_json::from_slice(&frame[..frame.len() - 1]).unwrap();
                answers
                    .entry((message["id"].to_string(), message.get("method").is_some()))
                    .or_insert(message);
            }
            Action::Send { .. } | Action::Identified { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    let mut compared = 0;
    for (_, expected) in recorded_messages(capture, "srv>pe") {
        let method = expected["id"][0].as_str().unwrap().to_owned();
        if method == "policy_update" || method == "endpoint_update" {
            // The test of the capture made the server change these.
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

/// An element with one server that sends the recorded messages.
struct Recorded {
    element: ElementCore,
    now: Instant,
    connection: ConnectionId,
    sent: Vec<Value>,
}

impl Recorded {
    fn new(address: &str) -> Self {
        let now = Instant::now();
        let settings = policy_element::ElementSettings::new("element", "testdomain", [address]);
        let mut recorded = Self {
            element: ElementCore::new(settings, 1, now),
            now,
            connection: ConnectionId(0),
            sent: Vec::new(),
        };
        recorded.act(|element, now| element.handle_deadline(now));
        let connection = recorded.connection;
        recorded.act(|element, now| element.handle_connected(now, connection));
        recorded
    }

    fn act<T>(&mut self, call: impl FnOnce(&mut ElementCore, Instant) -> T) -> T {
        let result = call(&mut self.element, self.now);
        for action in self.element.take_actions() {
            match action {
                policy_element::ElementAction::Dial { connection, .. } => self.connection = connection,
                policy_element::ElementAction::Send { frame, .. } => {
                    self.sent
                        .push(serde_json::from_slice(&frame[..frame.len() - 1]).unwrap());
                }
                policy_element::ElementAction::Close { reason, .. } => panic!("{reason}"),
                _ => {}
            }
        }
        result
    }

    /// The server sends a message. Returns the messages of the element.
    fn send_text(&mut self, message: &Value) -> Vec<Value> {
        let connection = self.connection;
        self.act(|element, now| element.handle_message(now, connection, incoming(message)));
        std::mem::take(&mut self.sent)
    }

    fn property(&self, uri: &str, name: &str) -> Option<Value> {
        let uri: Uri = uri.parse().unwrap();
        let object = self
            .element
            .policy()
            .get(&uri)
            .or_else(|| self.element.endpoints().get(&uri));
        object.and_then(|object| object.property(name).cloned())
    }
}

/// The server of the tour, whose element resolved two policies and an endpoint.
#[test]
fn the_updates_of_libopflex_are_applied_without_an_answer() {
    let messages = recorded_messages(TOUR, "srv>pe");
    let mut recorded = Recorded::new("127.0.0.1:18009");
    let begin: Vec<Value> = messages
        .iter()
        .take(3)
        .flat_map(|(_, message)| recorded.send_text(message))
        .collect();
    assert!(begin.contains(&json!({"id": ["echo", 0], "result": [1383112]})));

    let uri = |text: &str| text.parse::<Uri>().unwrap();
    recorded.act(|element, now| {
        element.resolve_policy("class4", uri("/class4/test/"), false, now);
        element.resolve_policy("class4", uri("/class4/missing/"), false, now);
        element.resolve_endpoint("class8", uri("/class8/test/"), now);
    });
    // The numbers are those of the capture: both count from 2^63.
    let asked: Vec<_> = recorded
        .sent
        .iter()
        .map(|message| message["id"].clone())
        .collect();
    assert_eq!(asked[0], json!(["policy_resolve", 9223372036854775808u64]));
    assert_eq!(asked[2], json!(["endpoint_resolve", 9223372036854775810u64]));
    recorded.sent.clear();

    let expect: [(&str, &str, Option<&str>); 7] = [
        ("/class4/test/class6/test2/", "prop13", Some("hello-child")),
        ("/class4/test/", "prop9", Some("changed")),
        ("/class4/test/class6/test2/", "prop13", None),
        ("/class4/test/", "prop9", None),
        ("/class8/test/class10/test2/", "prop21", Some("hi-child")),
        ("/class8/test/class10/test2/", "prop21", Some("hi2-child")),
        ("/class8/test/", "prop17", None),
    ];
    let moves = |message: &Value| {
        message
            .get("params")
            .is_some_and(|params| params[0].get("delete").is_some())
            || message["result"]["policy"].get(0).is_some()
            || message["result"]["endpoint"].get(0).is_some()
    };
    let mut steps = expect.iter();
    for (_, message) in &messages[3..] {
        let answers = recorded.send_text(message);
        if message["method"] == "echo" {
            assert_eq!(
                answers,
                [json!({"id": message["id"], "result": message["params"]})]
            );
        } else {
            assert!(answers.is_empty(), "{message}: {answers:?}");
        }
        if moves(message) {
            let (uri, name, value) = steps.next().unwrap();
            assert_eq!(recorded.property(uri, name), value.map(Value::from), "{message}");
        }
    }
    assert!(steps.next().is_none());
}

/// The server of the real agent: the policies that the agent found by following the references from
/// its endpoint's group are found here as well.
#[test]
fn the_policy_of_the_real_agent_is_found_by_following_references() {
    let mut results: BTreeMap<String, Value> = BTreeMap::new();
    let answers: HashMap<String, Value> = recorded_messages(AGENT, "srv>pe")
        .into_iter()
        .map(|(_, message)| (message["id"].to_string(), message))
        .collect();
    for (_, message) in recorded_messages(AGENT, "pe>srv") {
        if message["method"] == "policy_resolve" {
            let uri = message["params"][0]["policy_uri"].as_str().unwrap().to_owned();
            results.insert(uri, answers[&message["id"].to_string()]["result"].clone());
        }
    }
    let mut recorded = Recorded::new("127.0.0.1:18009");
    for (_, message) in recorded_messages(AGENT, "srv>pe").iter().take(3) {
        recorded.send_text(message);
    }
    let group: Uri = "/PolicyUniverse/PolicySpace/test/GbpEpGroup/group1/"
        .parse()
        .unwrap();
    recorded.act(|element, now| element.resolve_policy("GbpEpGroup", group.clone(), true, now));
    let mut found: BTreeSet<String> = BTreeSet::new();
    let mut asked = std::mem::take(&mut recorded.sent);
    while let Some(request) = asked.pop() {
        let uri = request["params"][0]["policy_uri"].as_str().unwrap();
        assert!(found.insert(uri.to_owned()), "{uri} was asked for twice");
        let result = results.get(uri).cloned().unwrap_or(json!({"policy": []}));
        asked.extend(recorded.send_text(&json!({"id": request["id"], "result": result})));
    }
    // The agent resolved these for other reasons.
    let not_referred_to = |uri: &&String| {
        !uri.contains("PlatformConfig") && !uri.contains("Span") && !uri.contains("/subnetsbd/GbpSubnet/")
    };
    let missing: Vec<_> = results
        .keys()
        .filter(not_referred_to)
        .filter(|uri| !found.contains(*uri))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
