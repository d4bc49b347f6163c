//! Arbitrary messages in any order: the cores do not panic, and every request gets one answer or
//! ends the connection.

use std::time::{Duration, Instant};

use crate::opflex_json::json_value;
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use serde_json::{Value, json};
use ssntp_opflex::message::{Decoder, Incoming, Method};
use ssntp_opflex::model::{ManagedObject, Target};
use ssntp_opflex::peer::ConnectionId;
use ssntp_opflex::policy_element::{self as element, ElementCore};
use ssntp_opflex::server::{self, ServerCore};

fn incoming(message: &Value) -> Incoming {
    let mut messages = Vec::new();
    let mut buffer = BytesMut::from(format!("{message}\0").as_bytes());
    Decoder::new(Default::default())
        .decode(&mut buffer, &mut messages)
        .unwrap();
    messages.remove(0)
}

/// A message of any method, with valid or invalid contents.
fn message() -> impl Strategy<Value = Value> {
    let method = prop::sample::select(
        Method::ALL
            .map(|(_, name)| name)
            .into_iter()
            .chain(["transact", "", "policy_trigger"])
            .collect::<Vec<_>>(),
    );
    let object = json!({"subject": "class", "uri": "/a/", "properties": [], "children": []});
    let known = prop::sample::select(vec![
        json!({"subject": "class", "policy_uri": "/a/", "prr": 5}),
        json!({"subject": "class", "policy_ident": {"name": "a", "context": "/"}, "prr": -1}),
        json!({"subject": "class", "endpoint_uri": "/a/", "prr": 5}),
        json!({"subject": "class", "endpoint_ident": {"identifier": "a", "context": "/"}}),
        json!({"replace": [object], "merge_children": [object], "delete": [{"subject": "class", "uri": "/a/"}]}),
        json!({"endpoint": [object], "prr": 3}),
        json!({"observable": [object]}),
        json!({"proto_version": "1.0", "name": "n", "domain": "default", "my_role": ["policy_element"]}),
        json!({"my_role": ["policy_repository"], "peers": [{"connectivity_info": "a:1"}, {"connectivity_info": "b:2"}]}),
        json!({"policy": [object], "endpoint": [object]}),
    ]);
    let contents = prop_oneof![known, json_value()];
    (method, contents, 0..4u8, any::<u64>()).prop_map(|(method, contents, shape, xid)| {
        let id = json!([method, (1u64 << 63) + xid % 8]);
        match shape {
            0 => json!({"id": id, "result": contents}),
            1 => json!({"id": id, "error": {"code": contents}}),
            _ => json!({"id": contents, "method": method, "params": [contents]}),
        }
    })
}

/// Checks that a frame is a request or has one of result and error.
fn check(frame: &Bytes) -> Value {
    let (nul, text) = frame.split_last().unwrap();
    assert!(*nul == 0 && !text.contains(&0));
    let value: Value = serde_json::from_slice(text).unwrap();
    let has = |name: &str| usize::from(value.get(name).is_some());
    assert!(
        has("id") == 1 && has("method") + has("result") + has("error") == 1,
        "{value}"
    );
    value
}

proptest! {
    #[test]
    fn a_server_answers_each_request_once(messages in prop::collection::vec((0..3u64, message(), 0..3000u64), 1..40)) {
        let mut now = Instant::now();
        let mut server = ServerCore::new(server::ServerSettings::default(), now);
        for connection in 0..3 {
            server.handle_connected(now, ConnectionId(connection), server::Client::default());
            if connection < 2 {
                let identity = json!({"proto_version": "1.0", "name": "n", "domain": "default", "my_role": ["x"]});
                let message = json!({"id": 1, "method": "send_identity", "params": [identity]});
                server.handle_message(now, ConnectionId(connection), incoming(&message));
            }
        }
        let mut closed = std::collections::HashSet::new();
        for (connection, message, wait) in messages {
            now += Duration::from_millis(wait);
            server.take_actions();
            server.handle_deadline(now);
            // A client whose identity is late is disconnected here without an answer.
            closed.extend(server.take_actions().into_iter().filter_map(|action| match action {
                server::Action::Close { connection, .. } => Some(connection.0),
                _ => None,
            }));
            server.handle_message(now, ConnectionId(connection), incoming(&message));
            let mut answers = 0;
            for action in server.take_actions() {
                match action {
                    server::Action::Send { connection: to, frame } => {
                        let sent = check(&frame);
                        answers += usize::from(to.0 == connection && sent.get("method").is_none());
                    }
                    server::Action::Close { connection, .. } => drop(closed.insert(connection.0)),
                    server::Action::Identified { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            let expects = usize::from(message.get("method").is_some());
            if !closed.contains(&connection) {
                prop_assert_eq!(answers, expects, "{}", message);
            }
        }
    }

    #[test]
    fn an_element_survives_any_server(messages in prop::collection::vec((message(), 0..3000u64), 1..40), early: bool) {
        let mut now = Instant::now();
        let mut element = ElementCore::new(element::ElementSettings::new("n", "default", ["a:1"]), 1, now);
        let target = |text: &str| Target::Uri(text.parse().unwrap());
        element.resolve_policy("class", target("/a/"), true, now);
        element.resolve_endpoint("class", target("/a/"), now);
        element.declare(vec![ManagedObject::new("class", "/ep/".parse().unwrap())], now).unwrap();
        element.handle_deadline(now);
        let mut connections = Vec::new();
        let mut do_all = |element: &mut ElementCore, now: Instant| {
            loop {
                let actions = element.take_actions();
                if actions.is_empty() {
                    break;
                }
                for action in actions {
                    match action {
                        element::ElementAction::Dial { connection, .. } => {
                            connections.push(connection);
                            element.handle_connected(now, connection);
                        }
                        element::ElementAction::Send { frame, .. } => {
                            check(&frame);
                        }
                        element::ElementAction::Close { connection, .. } => connections.retain(|known| *known != connection),
                        _ => {}
                    }
                }
            }
            connections.clone()
        };
        let mut connected = do_all(&mut element, now);
        if !early {
            let identity = json!({"my_role": ["policy_repository", "endpoint_registry"], "peers": []});
            let message = json!({"id": ["send_identity", 1], "result": identity});
            element.handle_message(now, connected[0], incoming(&message));
        }
        for (message, wait) in messages {
            now += Duration::from_millis(wait);
            element.handle_deadline(now);
            connected = do_all(&mut element, now);
            if let Some(connection) = connected.first() {
                element.handle_message(now, *connection, incoming(&message));
            }
            do_all(&mut element, now);
        }
    }
}
