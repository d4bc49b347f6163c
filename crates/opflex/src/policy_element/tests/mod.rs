//! Conversations with a policy element in memory. The test sets the time.

mod holding;
mod limits;
mod servers;
mod start_policy;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use serde_json::{Value, json};

use super::{ElementAction, ElementCore, ElementEvent, ElementSettings};
use crate::message::Decoder;
use crate::model::Uri;
use crate::peer::{CloseReason, ConnectionId};

/// No message at all.
const NOTHING: [Value; 0] = [];

/// An element, and servers that send what the test sends.
struct World {
    element: ElementCore,
    start: Instant,
    now: Instant,
    /// Present and former connections, by number, with their addresses.
    dialled: BTreeMap<ConnectionId, String>,
    sent: HashMap<ConnectionId, Vec<Value>>,
    closed: HashMap<ConnectionId, CloseReason>,
    events: Vec<ElementEvent>,
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "some instant to count from")]
    fn new(settings: ElementSettings) -> Self {
        let now = Instant::now();
        let mut world = Self {
            element: ElementCore::new(settings, 1, now),
            start: now,
            now,
            dialled: BTreeMap::new(),
            sent: HashMap::new(),
            closed: HashMap::new(),
            events: Vec::new(),
        };
        world.pass(0.0);
        world
    }

    /// An element with one server, which is ready and has all roles.
    fn ready(settings: ElementSettings) -> (Self, ConnectionId) {
        let mut world = Self::new(ElementSettings {
            peers: vec!["a:1".to_owned()],
            ..settings
        });
        let server = world.accept("a:1", &ALL, &["a:1"]);
        world.take_sent(server);
        world.events.clear();
        (world, server)
    }

    /// The latest attempt to dial an address, if it is under way.
    fn dialling(&self, address: &str) -> Option<ConnectionId> {
        let (connection, _) = self
            .dialled
            .iter()
            .rev()
            .find(|(_, dialled)| *dialled == address)?;
        (self.element.pool.address(*connection)? == address).then_some(*connection)
    }

    /// Makes a server accept the connection and send its identity.
    fn accept(&mut self, address: &str, roles: &[&str], peers: &[&str]) -> ConnectionId {
        let connection = self.dialling(address).unwrap();
        self.act(|element, now| element.handle_connected(now, connection));
        self.identify(connection, roles, peers);
        connection
    }

    fn identify(&mut self, connection: ConnectionId, roles: &[&str], peers: &[&str]) {
        let peers: Vec<_> = peers
            .iter()
            .map(|peer| json!({"role": ALL, "connectivity_info": peer}))
            .collect();
        let result = json!({"name": "server", "domain": "default", "my_role": roles, "peers": peers});
        self.send_text(connection, &json!({"id": ["send_identity", 1], "result": result}));
    }

    /// Refuses the latest attempt to dial an address, or ends the connection.
    fn fail(&mut self, address: &str) {
        let connection = self.dialling(address).unwrap();
        self.act(|element, now| element.handle_disconnected(now, connection, "refused".to_owned()));
    }

    /// A server sends a message.
    fn send_text(&mut self, connection: ConnectionId, text: &Value) {
        let mut messages = Vec::new();
        let mut buffer = BytesMut::from(format!("{text}\0").as_bytes());
        let mut decoder = Decoder::without_identity(Default::default());
        decoder.decode(&mut buffer, &mut messages).unwrap();
        for message in messages {
            self.act(|element, now| element.handle_message(now, connection, message));
        }
    }

    /// A server sends a request. Returns the answers.
    fn ask(&mut self, connection: ConnectionId, method: &str, params: Value) -> Vec<Value> {
        self.send_text(
            connection,
            &json!({"id": [method, 1], "method": method, "params": params}),
        );
        self.take_sent(connection)
            .into_iter()
            .filter(|message| message.get("method").is_none())
            .collect()
    }

    /// The messages on a connection since the last call, without echoes.
    fn take_sent(&mut self, connection: ConnectionId) -> Vec<Value> {
        let all = self.sent.remove(&connection).unwrap_or_default();
        all.into_iter()
            .filter(|message| message["method"] != "echo")
            .collect()
    }

    /// The method and the first parameter of each sent message.
    fn requests(&mut self, connection: ConnectionId) -> Vec<(String, String)> {
        let sent = self.take_sent(connection);
        let name = |message: &Value| message["method"].as_str().unwrap_or("answer").to_owned();
        let about = |message: &Value| {
            let first = &message["params"][0];
            let object = first["endpoint"]
                .get(0)
                .or(first["observable"].get(0))
                .map(|object| &object["uri"]);
            let uri = object.unwrap_or_else(|| first.get("policy_uri").unwrap_or(&first["endpoint_uri"]));
            uri.as_str().unwrap_or_default().to_owned()
        };
        sent.iter()
            .map(|message| (name(message), about(message)))
            .collect()
    }

    /// Answers all resolves that were sent on a connection, each with the
    /// objects that the test has under its URI.
    fn serve(&mut self, connection: ConnectionId, policy: &[Value]) {
        for request in self.take_sent(connection) {
            let method = request["method"].as_str().unwrap();
            let result = match method {
                "policy_resolve" | "endpoint_resolve" => {
                    let first = &request["params"][0];
                    let wanted = first
                        .get("policy_uri")
                        .or(first.get("endpoint_uri"))
                        .unwrap()
                        .as_str()
                        .unwrap();
                    let below = policy
                        .iter()
                        .filter(|object| object["uri"].as_str().unwrap().starts_with(wanted));
                    let list: Vec<_> = below.collect();
                    if method == "policy_resolve" {
                        json!({"policy": list})
                    } else {
                        json!({"endpoint": list})
                    }
                }
                _ => json!({}),
            };
            self.send_text(connection, &json!({"id": request["id"], "result": result}));
        }
    }

    /// Advances the time, and calls `tick` when it is due.
    fn pass(&mut self, seconds: f64) {
        let end = self.now + Duration::from_secs_f64(seconds);
        while let Some(due) = self.element.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.act(|element, now| element.handle_deadline(now));
        }
        self.now = end;
    }

    /// The next deadline, in seconds since the beginning.
    fn due(&self) -> f64 {
        (self.element.next_deadline().unwrap() - self.start).as_secs_f64()
    }

    fn act<T>(&mut self, call: impl FnOnce(&mut ElementCore, Instant) -> T) -> T {
        let result = call(&mut self.element, self.now);
        for action in self.element.take_actions() {
            match action {
                ElementAction::Dial { connection, address } => {
                    assert!(
                        self.dialled.insert(connection, address).is_none(),
                        "a number was used twice"
                    );
                }
                ElementAction::Send { connection, frame } => {
                    assert!(
                        !self.closed.contains_key(&connection),
                        "sent on a closed connection"
                    );
                    let message = serde_json::from_slice(&frame[..frame.len() - 1]).unwrap();
                    self.sent.entry(connection).or_default().push(message);
                }
                ElementAction::Close { connection, reason } => {
                    assert!(self.closed.insert(connection, reason).is_none());
                }
                ElementAction::Identified { .. } => {}
                ElementAction::Event(event) => self.events.push(event),
            }
        }
        result
    }
}

const ALL: [&str; 3] = ["policy_repository", "endpoint_registry", "observer"];

fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

fn object(text: &str, value: impl Into<Value>) -> Value {
    let value: Value = value.into();
    json!({"subject": "class", "uri": text, "properties": [{"name": "p", "data": value}], "children": []})
}

fn reference(text: &str) -> Value {
    json!({"subject": "class", "reference_uri": text})
}
