//! Conversations with a server in memory. The test sets the time.

mod endpoints;
mod observing;
mod policy;
mod sessions;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use super::{Action, Client, ServerCore, ServerSettings};
use crate::message::Decoder;
use crate::model::{Edit, ManagedObject, Uri};
use crate::peer::{CloseReason, ConnectionId};

/// No message at all.
pub(super) const NOTHING: [Value; 0] = [];

/// A server and its clients.
pub(super) struct World {
    pub(super) server: ServerCore,
    pub(super) now: Instant,
    clients: u64,
    sent: HashMap<ConnectionId, Vec<Bytes>>,
    closed: HashMap<ConnectionId, CloseReason>,
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "some instant to count from")]
    pub(super) fn new(settings: ServerSettings) -> Self {
        let now = Instant::now();
        Self {
            server: ServerCore::new(settings, now),
            now,
            clients: 0,
            sent: HashMap::new(),
            closed: HashMap::new(),
        }
    }

    /// A connection, without the server's first echo.
    pub(super) fn connect(&mut self) -> ConnectionId {
        self.connect_certified(None)
    }

    /// A connection whose certificate has a common name.
    pub(super) fn connect_certified(&mut self, name: Option<&str>) -> ConnectionId {
        self.clients += 1;
        let certified = name.map(str::to_owned);
        let connection = ConnectionId(self.clients);
        self.act(|server, now| {
            let client = Client {
                address: "10.0.0.1:40000".into(),
                dialled: Some("10.0.0.9:8009".into()),
                certified,
                expires: None,
            };
            server.handle_connected(now, connection, client)
        });
        self.take_sent(connection);
        connection
    }

    /// A connection whose identity is accepted.
    pub(super) fn element(&mut self, name: &str) -> ConnectionId {
        let connection = self.connect();
        let answer = self.ask(connection, "send_identity", json!([identity(name)]));
        assert!(answer.get("result").is_some(), "{answer}");
        connection
    }

    pub(super) fn leave(&mut self, connection: ConnectionId) {
        self.act(|server, now| server.handle_disconnected(now, connection, log::Level::Info, "ended"));
    }

    /// Sends a text and returns all messages that the server sends on this connection.
    pub(super) fn send_text(&mut self, connection: ConnectionId, text: &Value) -> Vec<Value> {
        let mut messages = Vec::new();
        let mut buffer = BytesMut::from(format!("{text}\0").as_bytes());
        let mut decoder = Decoder::without_identity(Default::default());
        decoder.decode(&mut buffer, &mut messages).unwrap();
        for message in messages {
            self.act(|server, now| server.handle_message(now, connection, message));
        }
        while self.server.is_answering(connection) {
            self.act(|server, _| assert!(server.continue_answer(connection)));
        }
        self.take_sent(connection)
    }

    /// Sends a request and returns the one answer.
    pub(super) fn ask(&mut self, connection: ConnectionId, method: &str, params: Value) -> Value {
        let text = json!({"id": [method, 1u64 << 63], "method": method, "params": params});
        let mut answers = self.send_text(connection, &text);
        answers.retain(|message| message["method"] != "echo");
        assert_eq!(answers.len(), 1, "{method}: {answers:?}");
        assert_eq!(answers[0]["id"], text["id"]);
        answers.remove(0)
    }

    /// Advances the time, and calls `tick` when it is due.
    pub(super) fn pass(&mut self, seconds: f64) {
        let end = self.now + Duration::from_secs_f64(seconds);
        while let Some(due) = self.server.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.act(|server, now| server.handle_deadline(now));
        }
        self.now = end;
    }

    /// The messages on a connection since the last call.
    pub(super) fn take_sent(&mut self, connection: ConnectionId) -> Vec<Value> {
        let frames = self.sent.remove(&connection).unwrap_or_default();
        frames
            .iter()
            .map(|frame| serde_json::from_slice(&frame[..frame.len() - 1]).unwrap())
            .collect()
    }

    /// The messages on a connection since the last call, without echoes.
    pub(super) fn messages_to(&mut self, connection: ConnectionId) -> Vec<Value> {
        self.take_sent(connection)
            .into_iter()
            .filter(|message| message["method"] != "echo")
            .collect()
    }

    pub(super) fn frames(&mut self, connection: ConnectionId) -> Vec<Bytes> {
        self.sent.remove(&connection).unwrap_or_default()
    }

    pub(super) fn closed(&self, connection: ConnectionId) -> Option<&CloseReason> {
        self.closed.get(&connection)
    }

    pub(super) fn put(&mut self, objects: Vec<ManagedObject>) {
        self.act(|server, now| drop(server.edit(Edit::Merge(objects), now).unwrap()));
    }

    pub(super) fn replace(&mut self, objects: Vec<ManagedObject>) {
        self.act(|server, now| drop(server.edit(Edit::Replace(objects), now).unwrap()));
    }

    pub(super) fn delete(&mut self, text: &str) {
        self.act(|server, now| drop(server.edit(Edit::Delete(vec![uri(text)]), now).unwrap()));
    }

    pub(super) fn act(&mut self, call: impl FnOnce(&mut ServerCore, Instant)) {
        call(&mut self.server, self.now);
        for action in self.server.take_actions() {
            match action {
                Action::Send { connection, frame } => {
                    assert!(
                        !self.closed.contains_key(&connection),
                        "sent on a closed connection"
                    );
                    self.sent.entry(connection).or_default().push(frame);
                }
                Action::Identified { .. } | Action::Dial { .. } => {}
                Action::Close { connection, reason } => {
                    assert!(self.closed.insert(connection, reason).is_none());
                }
            }
        }
    }
}

pub(super) fn identity(name: &str) -> Value {
    json!({"proto_version": "1.0", "name": name, "domain": "default", "my_role": ["policy_element"]})
}

pub(super) fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

/// An object with the property `p`, below the parent in its URI.
pub(super) fn object(subject: &str, text: &str, value: impl Into<Value>) -> ManagedObject {
    let object = ManagedObject::new(subject, uri(text)).with("p", value);
    // The last two segments are the class and the name.
    let segments: Vec<&str> = text.trim_matches('/').split('/').collect();
    match segments.as_slice() {
        [before @ .., parent, name, _, _] => {
            let before: String = before.iter().map(|segment| format!("{segment}/")).collect();
            object.under(*parent, uri(&format!("/{before}{parent}/{name}/")))
        }
        _ => object,
    }
}

/// The URIs of the objects in a list.
pub(super) fn uris(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|object| object["uri"].as_str().unwrap())
        .collect()
}

pub(super) fn code(answer: &Value) -> &str {
    assert!(answer.get("result").is_none(), "{answer}");
    answer["error"]["code"].as_str().unwrap()
}
