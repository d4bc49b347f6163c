//! Bad input of servers (docs/opflex.md, "Bad input"), and the reaction of an element.

use std::net::TcpListener;

use serde_json::{Value, json};
use ssntp_opflex::policy_element::ElementEvent;
use ssntp_opflex::run::Reference;

use super::raw::Raw;
use super::*;

const GROUP: &str = "/PolicyUniverse/PolicySpace/shop/GbpEpGroup/web/";

/// The reaction to bad input.
#[derive(Debug)]
enum Then {
    /// An error with this code; the connection stays.
    Error(&'static str),
    /// The request is carried out; the connection stays.
    Result,
    /// No answer; the connection stays.
    Nothing,
    /// The connection ends without an answer, and the element connects again.
    Closed,
}

/// A change of an answer before it is sent.
type Change = Box<dyn FnOnce(&mut Value)>;

/// A server that sends what the test sends, and an element that resolves a policy.
struct Bench {
    listener: TcpListener,
    address: String,
    element: PolicyElement,
    _policy: Reference,
}

impl Bench {
    fn new(change: impl FnOnce(&mut ElementConfig)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut config = ElementConfig::new(element_settings("pe1", &[&address]));
        change(&mut config);
        let element = PolicyElement::start(config).unwrap();
        let policy = element.resolve(&uri(GROUP)).unwrap();
        Self {
            listener,
            address,
            element,
            _policy: policy,
        }
    }

    /// The next connection, on which no message was sent yet.
    fn accept(&self) -> Raw {
        Raw::accept(&self.listener)
    }

    /// The next connection, on which the identity and the resolve are answered.
    fn ready(&self) -> Raw {
        let mut raw = self.accept();
        self.identify(&mut raw, |_| {});
        let resolve = raw.recv_method("policy_resolve");
        raw.send(&json!({"id": resolve["id"], "result": {"policy": [group("1")]}}));
        until_value(&self.element, Store::Policy, GROUP, Some("1"));
        raw
    }

    fn identify(&self, raw: &mut Raw, change: impl FnOnce(&mut Value)) {
        let request = raw.recv_method("send_identity");
        let roles = ["policy_repository", "endpoint_registry", "observer"];
        let peers = json!([{"role": roles, "connectivity_info": self.address}]);
        let result = json!({"name": "raw", "domain": "test", "my_role": roles, "peers": peers});
        let mut answer = json!({"id": request["id"], "result": result});
        change(&mut answer);
        raw.send(&answer);
    }
}

fn group(value: &str) -> Value {
    json!({"subject": "GbpEpGroup", "uri": GROUP, "properties": [{"name": "name", "data": value}], "children": []})
}

/// Checks that the connection is open and all earlier messages were handled.
fn alive(raw: &mut Raw, shown: &str) {
    let alive = json!({"id": "alive", "method": "echo", "params": [1]});
    raw.send(&alive);
    let answer = raw.recv_other().expect(shown);
    assert_eq!(answer, json!({"id": "alive", "result": [1]}), "{shown}");
}

/// Sends a message to an element that is ready.
fn send_text(bench: &Bench, raw: &mut Raw, text: &[u8], then: &Then) {
    let shown = String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
    raw.send_bytes(text);
    raw.send_bytes(b"\0");
    match then {
        Then::Error(code) => {
            let answer = raw.recv_other().expect(&shown);
            assert_eq!(answer["error"]["code"], *code, "{shown}: {answer}");
            assert!(answer.get("result").is_none(), "{shown}");
        }
        Then::Result => assert!(raw.recv_other().expect(&shown).get("result").is_some(), "{shown}"),
        Then::Nothing => {}
        Then::Closed => {
            assert_eq!(raw.recv_other(), None, "{shown}");
            *raw = bench.ready();
            return;
        }
    }
    alive(raw, &shown);
    until_value(&bench.element, Store::Policy, GROUP, Some("1"));
}

#[test]
fn each_kind_of_bad_input_to_an_element_is_answered_or_ends_the_connection() {
    use Then::{Closed, Error, Nothing, Result};
    let rows: &[(&str, Then)] = &[
        // Methods that no peer sends.
        (
            r#"{"id":1,"method":"transact","params":[]}"#,
            Error("EUNSUPPORTED"),
        ),
        (
            r#"{"id":1,"method":"nobody knows this","params":[]}"#,
            Error("EUNSUPPORTED"),
        ),
        (
            r#"{"id":1,"method":"nobody knows this","params":{}}"#,
            Error("EUNSUPPORTED"),
        ),
        // Missing parameters, and parameters of the wrong type.
        (r#"{"id":1,"method":"echo"}"#, Result),
        (r#"{"id":1,"method":"echo","params":null}"#, Result),
        (r#"{"id":1,"method":"echo","params":{}}"#, Error("ERROR")),
        (r#"{"id":1,"method":"policy_update"}"#, Nothing),
        (r#"{"id":1,"method":"policy_update","params":{}}"#, Error("ERROR")),
        (r#"{"id":1,"method":"policy_update","params":7}"#, Error("ERROR")),
        // Ids, which are returned unchanged.
        (r#"{"id":null,"method":"echo","params":[]}"#, Result),
        (r#"{"id":{"a":[1]},"method":"echo"}"#, Result),
        // Updates.
        (
            r#"{"id":1,"method":"policy_update","params":[7]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_update","params":[[]]}"#,
            Error("ERROR"),
        ),
        (r#"{"id":1,"method":"policy_update","params":[{}]}"#, Nothing),
        (
            r#"{"id":1,"method":"policy_update","params":[{"replace":{}}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_update","params":[{"merge_children":7}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_update","params":[{"delete":"/a/"}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_update","params":[{"delete":[{"uri":"/a/"}]}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_update","params":[{"delete":[{"subject":"a"}]}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_update","params":[{"delete":[{"subject":"nobody knows this","uri":"/a/"}]}]}"#,
            Nothing,
        ),
        (
            r#"{"id":1,"method":"policy_update","params":[{"replace":[{"subject":"a"}]}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_update","params":[{"replace":[7]}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_update","params":[{"merge_children":[{"uri":"/a/"}]}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"endpoint_update","params":[{"replace":7}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"endpoint_update","params":[{"delete":[7]}]}"#,
            Error("ERROR"),
        ),
        // Answers without a request.
        (r#"{"id":["policy_resolve",1],"result":{"policy":[]}}"#, Nothing),
        (r#"{"id":["policy_resolve",1],"result":{"policy":7}}"#, Nothing),
        (r#"{"id":["policy_resolve",1],"result":null}"#, Nothing),
        (r#"{"id":["policy_resolve","a"],"result":{"policy":[]}}"#, Nothing),
        (r#"{"id":["policy_resolve"],"error":{"code":"ERROR"}}"#, Nothing),
        (r#"{"id":["endpoint_declare",1],"result":{}}"#, Nothing),
        (r#"{"id":["policy_update",1],"result":{}}"#, Nothing),
        (r#"{"id":["echo",77],"error":{"code":7}}"#, Nothing),
        (r#"{"id":["send_identity",1],"result":{}}"#, Nothing),
        (r#"{"id":["nobody knows this",1],"result":{}}"#, Nothing),
        (r#"{"id":["nobody knows this",1],"error":{}}"#, Nothing),
        (r#"{"id":[],"result":{}}"#, Nothing),
        // Blanks.
        ("  \r\n ", Nothing),
        ("", Nothing),
        // Messages that can't be answered.
        ("{", Closed),
        ("[1]", Closed),
        ("7", Closed),
        (r#"{"method":"echo","params":[]}"#, Closed),
        (r#"{"id":1,"method":7,"params":[]}"#, Closed),
        (r#"{"id":1}"#, Closed),
        (r#"{"id":1,"result":{}}"#, Closed),
        (r#"{"id":"echo","error":{}}"#, Closed),
        (r#"{"id":["policy_resolve",1],"error":7}"#, Closed),
        (
            r#"{"id":["policy_resolve",1],"result":{"policy":[]},"error":{}}"#,
            Closed,
        ),
        (r#"{"id":["policy_resolve",1]}"#, Closed),
        (
            r#"{"id":1,"method":"echo","params":[]}{"id":2,"method":"echo","params":[]}"#,
            Closed,
        ),
    ];
    let bench = Bench::new(|_| {});
    let mut raw = bench.ready();
    for (text, then) in rows {
        send_text(&bench, &mut raw, text.as_bytes(), then);
    }
    for method in [
        "policy_resolve",
        "policy_unresolve",
        "endpoint_declare",
        "endpoint_undeclare",
        "endpoint_resolve",
        "endpoint_unresolve",
        "state_report",
        "send_identity",
        "custom",
    ] {
        let text = format!("{{\"id\":1,\"method\":\"{method}\",\"params\":[]}}");
        send_text(&bench, &mut raw, text.as_bytes(), &Error("EUNSUPPORTED"));
    }
    send_text(
        &bench,
        &mut raw,
        b"{\"id\":1,\"method\":\"echo\",\"params\":[\"\xff\"]}",
        &Result,
    );
    let deep = format!("{{\"id\":1,\"method\":\"echo\",\"params\":{}", "[".repeat(1000));
    send_text(&bench, &mut raw, deep.as_bytes(), &Closed);
}

/// A malformed update has no effect, also if its first part is valid.
#[test]
fn an_update_is_carried_out_as_a_whole_or_not_at_all() {
    let bench = Bench::new(|_| {});
    let mut raw = bench.ready();
    for fault in [
        json!({"replace": [group("2")], "delete": [{"subject": "a"}]}),
        json!({"merge_children": [group("2"), 7]}),
        json!({"replace": [group("2"), {"subject": "GbpEpGroup", "uri": ""}]}),
    ] {
        let update =
            json!({"id": 1, "method": "policy_update", "params": [{"replace": [group("2")]}, fault]});
        send_text(
            &bench,
            &mut raw,
            update.to_string().as_bytes(),
            &Then::Error("ERROR"),
        );
    }
    let update = json!({"id": 1, "method": "policy_update", "params": [{"replace": [group("2")]}]});
    raw.send(&update);
    until_value(&bench.element, Store::Policy, GROUP, Some("2"));
}

#[test]
fn before_the_identity_an_element_answers_only_echoes() {
    let bench = Bench::new(|_| {});
    for (text, answer) in [
        (r#"{"id":1,"method":"policy_update","params":[{}]}"#, true),
        (r#"{"id":1,"method":"endpoint_update","params":[{}]}"#, true),
        (r#"{"id":1,"method":"policy_resolve","params":[{}]}"#, true),
        (r#"{"id":1,"method":"nobody knows this"}"#, true),
        (r#"{"id":["policy_resolve",1],"result":{"policy":[]}}"#, false),
        (r#"{"id":["policy_resolve",1],"result":7}"#, false),
        (r#"{"id":["endpoint_declare",1],"error":{"code":"ERROR"}}"#, false),
    ] {
        let mut raw = bench.accept();
        let identity = raw.recv_method("send_identity");
        assert_eq!(identity["params"][0]["my_role"], json!(["policy_element"]));
        raw.send_bytes(text.as_bytes());
        raw.send_bytes(b"\0");
        if answer {
            assert_eq!(raw.recv_other().expect(text)["error"]["code"], "ESTATE", "{text}");
        }
        assert_eq!(raw.recv_other(), None, "{text}");
    }
    let mut raw = bench.accept();
    raw.recv_method("send_identity");
    alive(&mut raw, "echo");
}

/// An unusable identity ends the connection; the element connects again until it gets a usable one.
#[test]
fn an_unusable_identity_is_requested_again() {
    let bench = Bench::new(|_| {});
    let peers = |peers: Value| move |answer: &mut Value| answer["result"]["peers"] = peers;
    let faults: [Change; 13] = [
        Box::new(peers(json!({}))),
        Box::new(peers(json!("127.0.0.1:8009"))),
        Box::new(peers(json!([7]))),
        Box::new(peers(json!([{"role": []}]))),
        Box::new(peers(json!([{"connectivity_info": 7}]))),
        Box::new(peers(json!([{"connectivity_info": "no colon"}]))),
        Box::new(peers(json!([{"connectivity_info": "127.0.0.1:"}]))),
        Box::new(peers(json!([{"connectivity_info": "127.0.0.1:65536"}]))),
        Box::new(peers(json!([{"connectivity_info": ":8009"}]))),
        Box::new(|answer| answer["result"] = json!([])),
        Box::new(|answer| answer["result"] = json!(null)),
        Box::new(|answer| answer["result"]["my_role"] = json!("policy_repository")),
        Box::new(|answer| {
            let id = answer["id"].take();
            *answer =
                json!({"id": id, "error": {"code": "EDOMAIN", "message": "another domain"}, "result": null});
        }),
    ];
    for change in faults {
        let mut raw = bench.accept();
        bench.identify(&mut raw, change);
        assert_eq!(raw.recv_other(), None);
    }
    // Names, the domain and the number do not matter.
    let mut raw = bench.accept();
    bench.identify(&mut raw, |answer| {
        answer["id"] = json!(["send_identity", 77]);
        answer["result"]["domain"] = json!("another");
        answer["result"]["nobody knows"] = json!([1]);
        answer["result"]["my_role"]
            .as_array_mut()
            .unwrap()
            .push(json!("gardener"));
    });
    raw.recv_method("policy_resolve");
    until_health(&bench.element, Health::Healthy);
}

/// An unusable answer counts as no answer: the request is repeated, and the first usable answer is
/// accepted.
#[test]
fn a_request_is_sent_again_until_its_answer_can_be_used() {
    let bench = Bench::new(|config| config.settings.retry = Duration::from_millis(1));
    let mut raw = bench.accept();
    bench.identify(&mut raw, |_| {});
    let first = raw.recv_method("policy_resolve");
    let answers = [
        json!({"result": null}),
        json!({"result": {}}),
        json!({"result": {"policy": null, "nobody knows": 1}}),
        json!({"result": {"policy": {}}}),
        json!({"result": {"policy": [7]}}),
        json!({"result": {"policy": [{"subject": "GbpEpGroup"}]}}),
        json!({"result": []}),
        json!({"result": null, "error": {"code": "ERROR", "message": "no"}}),
        json!({"error": {"code": 7}}),
        json!({"error": {}}),
    ];
    let (mut refused, mut asked) = (0, first.clone());
    for mut answer in answers {
        refused += usize::from(answer.get("error").is_some());
        answer["id"] = asked["id"].clone();
        raw.send(&answer);
        asked = raw.recv_method("policy_resolve");
        assert_eq!(asked["params"], first["params"], "{answer}");
    }
    raw.send(&json!({"id": asked["id"], "result": {"policy": [group("1")]}, "error": null}));
    until_value(&bench.element, Store::Policy, GROUP, Some("1"));
    for _ in 0..refused {
        event(&bench.element, |event| {
            matches!(event, ElementEvent::Refused { .. }).then_some(())
        });
    }
}

/// A server that sends no answers does not delay other servers.
#[test]
fn a_dead_server_does_not_delay_other_servers() {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead_address = dead.local_addr().unwrap().to_string();
    let bench = Bench::new(|config| {
        config.settings.peers.insert(0, dead_address);
        config.settings.identity_timeout = Duration::from_secs(20);
    });
    let mut raw = bench.ready();
    let mut silent = Raw::accept(&dead);
    silent.recv_method("send_identity");
    for n in 2..20 {
        let value = n.to_string();
        let update = json!({"replace": [group(&value)], "merge_children": [], "delete": []});
        raw.send(&json!({"id": ["policy_update", n], "method": "policy_update", "params": [update]}));
        until_value(&bench.element, Store::Policy, GROUP, Some(&value));
    }
    assert_eq!(bench.element.health().unwrap(), Health::Degraded);
    let begin = Instant::now();
    bench.element.stop();
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
}

/// A server that receives no data is disconnected; meanwhile the other server receives everything.
#[test]
fn a_server_that_receives_no_data_does_not_delay_others() {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead_address = dead.local_addr().unwrap().to_string();
    let bench = Bench::new(|config| {
        config.settings.peers.push(dead_address.clone());
        config.queue.bytes = 1 << 20;
        config.grace = Duration::from_millis(100);
    });
    let mut live = bench.ready();
    let mut stuck = Raw::accept(&dead);
    bench.identify(&mut stuck, |answer| {
        answer["result"]["peers"] = json!([{"role": [], "connectivity_info": dead_address}]);
    });
    stuck.recv_method("policy_resolve");
    // More than the buffers of the system and the queue hold.
    for n in 0..100 {
        let text = format!("{n}{}", "x".repeat(200_000));
        let endpoint = ManagedObject::new("EprL3Ep", uri("/EprL3Ep/1/")).with("name", text.as_str());
        bench.element.declare(vec![endpoint]).unwrap();
        let declared = live.recv_method("endpoint_declare");
        assert_eq!(
            declared["params"][0]["endpoint"][0]["properties"][0]["data"],
            text.as_str()
        );
        live.send(&json!({"id": declared["id"], "result": {}}));
    }
    // It is disconnected and dialled again, while the other stays connected.
    Raw::accept(&dead).recv_method("send_identity");
    alive(&mut live, "the live one");
    bench.element.stop();
}

#[test]
fn a_silent_server_is_disconnected_and_dialled_again() {
    let bench = Bench::new(|config| {
        config.settings.keepalive.first = Duration::from_millis(30);
        config.settings.keepalive.interval = Duration::from_millis(30);
        config.settings.keepalive.silence = Duration::from_secs(5);
    });
    let mut silent = bench.ready();
    while silent.recv().is_some() {}
    until_health(&bench.element, Health::Down);
    // Its policy stays, and is resolved again.
    let mut back = bench.accept();
    until_value(&bench.element, Store::Policy, GROUP, Some("1"));
    bench.identify(&mut back, |_| {});
    assert_eq!(
        back.recv_method("policy_resolve")["params"][0]["policy_uri"],
        GROUP
    );
}

/// The length of a message is limited in this direction as well: a low limit before the identity,
/// and the configured limit after it.
#[test]
fn an_element_refuses_a_message_beyond_its_limit() {
    let bench = Bench::new(|config| config.limits.message = 400_000);
    let long = |length| {
        let text = "x".repeat(length);
        format!("{{\"id\":7,\"method\":\"echo\",\"params\":[\"{text}\"]}}")
    };
    let mut raw = bench.accept();
    raw.recv_method("send_identity");
    raw.send_bytes(long(300_000).as_bytes());
    assert_eq!(raw.recv_other(), None);
    let mut raw = bench.ready();
    send_text(&bench, &mut raw, long(300_000).as_bytes(), &Then::Result);
    raw.send_bytes(long(400_000).as_bytes());
    assert_eq!(raw.recv_other(), None);
    bench.ready();
}
