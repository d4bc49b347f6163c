//! The messages of the captures are read and written back equal, and bad messages are refused.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use serde_json::{Value, json};
use ssntp_opflex::message::{Decoder, ErrorCode, Incoming, Method, Reply, Request, Store};
use ssntp_opflex::model::Target;
use ssntp_opflex::rpc::{self, Error, Limits};

use crate::opflex_json::json_value;

const CAPTURES: [&str; 7] = [
    include_str!("../fixtures/opflex/01_tour_testmodel.jsonl"),
    include_str!("../fixtures/opflex/02_bootstrap_A.jsonl"),
    include_str!("../fixtures/opflex/02_bootstrap_B.jsonl"),
    include_str!("../fixtures/opflex/02_bootstrap_B2.jsonl"),
    include_str!("../fixtures/opflex/02_bootstrap_C.jsonl"),
    include_str!("../fixtures/opflex/03_opflex_agent_vs_opflex_server.jsonl"),
    include_str!("../fixtures/opflex/08_transport_mode_identity.jsonl"),
];

/// The texts of all frames in all captures.
fn captured() -> Vec<String> {
    let lines = CAPTURES.iter().flat_map(|capture| capture.lines());
    let values = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    values
        .filter_map(|value| Some(value.get("msg")?.as_str()?.to_owned()))
        .collect()
}

fn decode(stream: &[u8]) -> (Vec<Incoming>, Result<(), Error>) {
    let mut out = Vec::new();
    let result = Decoder::new(Limits::default()).decode(&mut BytesMut::from(stream), &mut out);
    (out, result)
}

/// The result of reading one well-formed text.
fn read(text: &Value) -> Incoming {
    let (mut messages, result) = decode(format!("{text}\0").as_bytes());
    assert_eq!((messages.len(), result), (1, Ok(())), "{text}");
    messages.remove(0)
}

fn text_of(frame: &Bytes) -> &[u8] {
    let (nul, text) = frame.split_last().unwrap();
    assert_eq!(*nul, 0);
    assert!(!text.contains(&0));
    text
}

#[test]
fn tls_on_one_side_only_is_reported() {
    // The first bytes of a TLS client, and its alert to a server without TLS.
    for first in [0x16, 0x15] {
        let (_, result) = decode(&[first, 3, 1, 0]);
        let error = result.unwrap_err().to_string();
        assert!(
            error.ends_with("instead of a brace: the peer speaks TLS, which is not used here"),
            "{error}"
        );
    }
}

#[test]
fn every_captured_message_prints_back_to_the_same_value() {
    let texts = captured();
    assert!(texts.len() > 200, "{}", texts.len());
    for text in texts {
        let value: Value = serde_json::from_str(&text).unwrap();
        let frame = match read(&value) {
            Incoming::Request { id, request } => request.to_frame(&id),
            Incoming::Result { id, reply } => reply.to_frame(&id),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(serde_json::from_slice::<Value>(text_of(&frame)).unwrap(), value);
    }
}

#[test]
fn every_captured_message_passes_the_envelope_character_by_character() {
    let odd = [
        r#"{"id":1e400,"method":"a\"b","params":[1.50,"A"]}"#,
        r#"{"id":["echo",18446744073709551615],"result":[ 1 ]}"#,
    ];
    for text in captured().into_iter().chain(odd.map(str::to_owned)) {
        let mut out = Vec::new();
        let mut buffer = BytesMut::from(format!("{text}\0").as_bytes());
        rpc::Deframer::new(Limits::default())
            .decode(&mut buffer, &mut out)
            .unwrap();
        assert_eq!(again(&out[0]), text);
    }
}

/// The envelope as libopflex writes it, with each part as it was read.
fn again(message: &rpc::Message) -> String {
    let part = |payload: &rpc::Payload| String::from_utf8(payload.as_json().to_vec()).unwrap();
    match message {
        rpc::Message::Request { id, method, params } => {
            let params = params
                .as_ref()
                .map_or(String::new(), |params| format!(",\"params\":{}", part(params)));
            format!(
                "{{\"id\":{id},\"method\":{}{params}}}",
                Value::from(method.as_str())
            )
        }
        rpc::Message::Response { id, outcome } => match outcome {
            Ok(result) => format!("{{\"id\":{id},\"result\":{}}}", part(result)),
            Err(error) => format!("{{\"id\":{id},\"error\":{}}}", part(error)),
        },
    }
}

#[test]
fn the_first_segment_of_an_element_is_an_echo_and_an_identity() {
    let dump = include_str!("../fixtures/opflex/10_first_segment_pe.hex");
    let bytes: Vec<u8> = dump
        .lines()
        .flat_map(|line| line[10..50].split_whitespace())
        .flat_map(|pair| {
            let number = u16::from_str_radix(pair, 16).unwrap();
            number.to_be_bytes()
        })
        .collect();
    assert_eq!(bytes.len(), 278);
    let (messages, result) = decode(&bytes);
    assert_eq!(result, Ok(()));
    let methods: Vec<_> = messages
        .iter()
        .map(|message| match message {
            Incoming::Request { request, .. } => request.method(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(methods, [Method::Echo, Method::SendIdentity]);
}

#[test]
fn both_targets_of_the_draft_print_back() {
    for (method, target) in [
        (
            "policy_resolve",
            json!({"policy_ident": {"name": "web", "context": "/t/"}, "data": "hint", "prr": 60}),
        ),
        (
            "policy_unresolve",
            json!({"policy_ident": {"name": "web", "context": "/t/"}}),
        ),
        (
            "endpoint_resolve",
            json!({"endpoint_ident": {"identifier": "10.0.0.1", "context": "/t/"}, "prr": 60}),
        ),
        (
            "endpoint_unresolve",
            json!({"endpoint_ident": {"identifier": "10.0.0.1", "context": "/t/"}}),
        ),
        ("endpoint_resolve", json!({"endpoint_uri": "/e/1/"})),
    ] {
        let mut params = target.clone();
        params["subject"] = json!("class");
        let text = json!({"id": 1, "method": method, "params": [params, params]});
        let Incoming::Request { id, request } = read(&text) else {
            panic!("{text}");
        };
        let frame = request.to_frame(&id);
        assert_eq!(serde_json::from_slice::<Value>(text_of(&frame)).unwrap(), text);
    }
    let text = json!({"id": 1, "method": "policy_resolve", "params": [
        {"subject": "c", "policy_uri": "/c/", "prr": -5, "status": "new", "policy_ident": null}]});
    match read(&text) {
        Incoming::Request {
            request: Request::Resolve(_, resolves),
            ..
        } => {
            assert_eq!(resolves[0].target, Target::Uri("/c/".parse().unwrap()));
            assert_eq!(resolves[0].prr, Some(-5));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_parameters_are_answered_with_error() {
    let resolve = |change: &dyn Fn(&mut Value)| {
        let mut params = json!({"subject": "c", "policy_uri": "/c/", "prr": 60});
        change(&mut params);
        ("policy_resolve", json!([params]))
    };
    let cases = [
        resolve(&|p| *p = json!("x")),
        resolve(&|p| *p = json!(["c", "/c/", null, null, 60])),
        resolve(&|p| drop(p.as_object_mut().unwrap().remove("subject"))),
        resolve(&|p| drop(p.as_object_mut().unwrap().remove("policy_uri"))),
        resolve(&|p| drop(p.as_object_mut().unwrap().remove("prr"))),
        resolve(&|p| p["subject"] = json!(7)),
        resolve(&|p| p["policy_uri"] = json!({})),
        resolve(&|p| p["policy_uri"] = json!("")),
        resolve(&|p| p["prr"] = json!(1.5)),
        resolve(&|p| p["prr"] = json!("60")),
        resolve(&|p| p["prr"] = json!(u64::MAX)),
        resolve(&|p| p["policy_ident"] = json!({"name": "n", "context": "/t/"})),
        resolve(&|p| p["policy_ident"] = json!(["n", "/t/"])),
        ("policy_resolve", json!({})),
        ("echo", json!({"a": 1})),
        ("policy_update", json!(["x"])),
        ("policy_update", json!([{"replace": {}}])),
        ("policy_update", json!([{"merge_children": 7}])),
        ("policy_update", json!([{"delete": "x"}])),
        ("policy_update", json!([{"delete": [{"subject": "c"}]}])),
        ("policy_update", json!([{"delete": [{"uri": "/c/"}]}])),
        ("policy_update", json!([{"replace": [{"subject": "c"}]}])),
        ("endpoint_declare", json!([{"prr": 7}])),
        (
            "endpoint_declare",
            json!([{"endpoint": [{"subject": "c", "uri": 7}], "prr": 7}]),
        ),
        ("endpoint_undeclare", json!([{"subject": "c"}])),
        ("endpoint_resolve", json!([{"subject": "c"}])),
        ("endpoint_unresolve", json!([{"endpoint_uri": "/c/"}])),
        ("endpoint_update", json!([{"replace": [7]}])),
        ("state_report", json!([{}])),
        ("send_identity", json!([{"my_role": "policy_element"}])),
        ("send_identity", json!([["1.0"]])),
        ("custom", json!([{}])),
    ];
    for (method, params) in cases {
        match read(&json!({"id": 7, "method": method, "params": params})) {
            Incoming::Refused {
                id,
                method: Some(known),
                error,
            } => {
                assert_eq!((id.to_string().as_str(), known.name()), ("7", method));
                assert_eq!(error.code, ErrorCode::ERROR);
                assert!(error.message.unwrap().starts_with(method));
            }
            other => panic!("{method} {params}: {other:?}"),
        }
    }
}

#[test]
fn an_unknown_method_is_answered_with_eunsupported() {
    for method in [
        "transact",
        "monitor",
        "update",
        "",
        "Policy_resolve",
        "x".repeat(1000).as_str(),
    ] {
        for params in [json!([]), json!({}), json!(null), json!(7)] {
            match read(&json!({"id": null, "method": method, "params": params})) {
                Incoming::Refused {
                    method: None, error, ..
                } => {
                    assert_eq!(error.code, ErrorCode::EUNSUPPORTED);
                    assert!(error.message.unwrap().len() < 300);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn missing_params_are_an_empty_list() {
    for (method, expected) in [
        ("echo", Request::Echo(Default::default())),
        ("send_identity", Request::SendIdentity(Default::default())),
        ("policy_resolve", Request::Resolve(Store::Policy, vec![])),
        ("state_report", Request::StateReport(vec![])),
    ] {
        for text in [
            json!({"id": 1, "method": method}),
            json!({"id": 1, "method": method, "params": []}),
        ] {
            match read(&text) {
                Incoming::Request { request, .. } => assert_eq!(request, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn responses_are_read_by_the_method_in_their_id() {
    let done = json!({"id": ["endpoint_declare", 1], "result": {"anything": 1}});
    assert!(matches!(
        read(&done),
        Incoming::Result {
            reply: Reply::Done(Method::EndpointDeclare, _),
            ..
        }
    ));
    let stray = json!({"id": ["transact", 1], "result": {}});
    assert!(matches!(read(&stray), Incoming::Stray { .. }));
    let stray = json!({"id": [7], "error": {}});
    assert!(matches!(read(&stray), Incoming::Stray { .. }));
    for (method, result) in [
        ("policy_resolve", json!({})),
        ("policy_resolve", json!({"policy": {}})),
        ("policy_resolve", json!({"policy": null})),
        ("policy_resolve", json!({"policy": [{"uri": "/c/"}]})),
        ("policy_resolve", json!(null)),
        ("policy_resolve", json!([[]])),
        ("endpoint_resolve", json!({"objects": []})),
        ("send_identity", json!([])),
        ("send_identity", json!({"peers": "localhost:8009"})),
        ("send_identity", json!({"peers": [{"role": []}]})),
    ] {
        match read(&json!({"id": [method, 1], "result": result})) {
            Incoming::BadResult { method: known, .. } => assert_eq!(known.name(), method),
            other => panic!("{method} {result}: {other:?}"),
        }
    }
}

#[test]
fn a_malformed_object_in_an_answer_is_left_out() {
    let objects = json!([{"uri": "/no-class/"}, {"subject": "c", "uri": "/c/"}, 7]);
    for (method, member) in [("policy_resolve", "policy"), ("endpoint_resolve", "endpoint")] {
        let result = json!({member: objects});
        match read(&json!({"id": [method, 1], "result": result})) {
            Incoming::Result {
                reply: Reply::Resolve(_, objects),
                ..
            } => assert_eq!(objects.len(), 1),
            other => panic!("{method}: {other:?}"),
        }
    }
}

#[test]
fn failures_keep_their_code() {
    for (error, code) in [
        (json!({"code": "ESTATE", "message": "no"}), ErrorCode::ESTATE),
        (json!({"code": "ETEAPOT"}), ErrorCode::from("ETEAPOT")),
        (json!({}), ErrorCode::ERROR),
        (json!({"code": {"a": 1}}), ErrorCode::from("{\"a\":1}")),
    ] {
        match read(&json!({"id": ["policy_resolve", 3], "result": null, "error": error})) {
            Incoming::Failure { method, error, .. } => {
                assert_eq!((method, error.code), (Method::PolicyResolve, code));
            }
            other => panic!("{other:?}"),
        }
    }
    // The code is a number out of range.
    let (messages, _) = decode(b"{\"id\":[\"echo\",1],\"error\":{\"code\":1e400}}\0");
    let [Incoming::Failure { error, .. }] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert!(error.to_string().contains("can't be read"), "{error}");
}

#[test]
fn an_invalid_message_ends_the_connection() {
    for text in [
        "x",
        "[]",
        "\"text\"",
        "7",
        "null",
        "{",
        "{}",
        "{]",
        "{\"id\":1}",
        "{\"id\":1,\"method\":7}",
        "{\"method\":\"echo\",\"params\":[]}",
        "{\"id\":1,\"method\":\"echo\"}{\"id\":2,\"method\":\"echo\"}",
        "{\"id\":7,\"result\":{}}",
        "{\"id\":null,\"result\":{}}",
        "{\"id\":{\"echo\":1},\"result\":{}}",
        "{\"id\":[\"echo\",1],\"error\":7}",
        "{\"id\":[\"echo\",1],\"error\":[]}",
        "{\"id\":[\"echo\",1]}",
        "{\"id\":01,\"method\":\"echo\"}",
        "{\"id\":1,\"method\":\"echo\" \"params\":[]}",
        "{\"id\":1,\"method\":\"ec\nho\"}",
        "{\"id\":1,\"method\":\"\\ud800\"}",
    ] {
        let (messages, result) = decode(format!("{text}\0").as_bytes());
        assert!(messages.is_empty() && result.is_err(), "{text}: {messages:?}");
    }
}

#[test]
fn unknown_members_are_never_fatal() {
    let text = json!({"id": 1, "jsonrpc": "2.0", "method": "endpoint_declare", "extra": [{}], "params": [
        {"prr": 5, "status": "created", "endpoint": [
            {"subject": "c", "uri": "/c/", "status": "created", "properties": [{"name": "p", "data": 1, "type": "u64"}]}]}]});
    match read(&text) {
        Incoming::Request {
            request: Request::EndpointDeclare(declares),
            ..
        } => {
            assert_eq!(declares[0].endpoint[0].extra["status"], "created");
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    /// A capture cut anywhere gives the same messages as the capture whole.
    #[test]
    fn any_split_of_a_capture_gives_the_same_messages(sizes in prop::collection::vec(1usize..4000, 1..20)) {
        let stream: Vec<u8> = captured().iter().take(60).flat_map(|text| [text.as_bytes(), b"\0"].concat()).collect();
        let (expected, _) = decode(&stream);
        let mut decoder = Decoder::new(Limits::default());
        let (mut buffer, mut out) = (BytesMut::new(), Vec::new());
        let mut rest = stream.as_slice();
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            buffer.extend_from_slice(piece);
            decoder.decode(&mut buffer, &mut out).unwrap();
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(out, expected);
    }

    /// A captured message with changed bytes is accepted or refused.
    #[test]
    fn damaged_messages_never_panic(
        which in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let texts = captured();
        let mut bytes = which.get(&texts).clone().into_bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.push(0);
        let _ = decode(&bytes);
    }

    /// Any JSON as parameters or result is accepted or refused.
    #[test]
    fn any_json_in_a_message_is_accepted_or_refused(method in 0usize..Method::ALL.len(), contents in json_value(), result: bool) {
        let (_, name) = Method::ALL[method];
        let text = if result {
            json!({"id": [name, 1], "result": contents})
        } else {
            json!({"id": [name, 1], "method": name, "params": [contents]})
        };
        if let Incoming::Request { id, request } = read(&text) {
            prop_assert!(!request.to_frame(&id).is_empty());
        }
    }
}

#[test]
fn each_line_of_the_page_is_a_valid_message() {
    let page = include_str!("../../../../docs/opflex.md");
    let blocks = page
        .split("```json\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap());
    let lines: Vec<&str> = blocks.flat_map(str::lines).collect();
    assert!(lines.len() > 10);
    for line in lines {
        let taken = read(&serde_json::from_str(line).unwrap());
        assert!(
            matches!(taken, Incoming::Request { .. } | Incoming::Result { .. }),
            "{line}: {taken:?}"
        );
    }
}
