//! Bad input of clients (docs/opflex.md, "Bad input"), and clients that receive no data.

use serde_json::{Value, json};
use ssntp_opflex::message::Method;
use ssntp_transport::memory::Faults;
use ssntp_transport::{Duplex, Limits};

use super::raw::Raw;
use super::*;

/// The reaction to bad input.
enum Then {
    /// An error with this code; the connection stays.
    Error(&'static str),
    /// The request is carried out; the connection stays.
    Result,
    /// No answer; the connection stays.
    Nothing,
    /// The connection ends.
    Closed,
}

const IDENTITY: &str = r#"{"id":1,"method":"send_identity","params":[{"proto_version":"1.0","name":"raw","domain":"test","my_role":["policy_element"]}]}"#;

/// Sends a message after the identity, or before it.
fn send_text(address: &str, identified: bool, text: &[u8], then: &Then) {
    let mut raw = if identified {
        Raw::identified(address, "raw", "test")
    } else {
        Raw::connect(address)
    };
    let shown = String::from_utf8_lossy(text).into_owned();
    raw.send_bytes(text);
    raw.send_bytes(b"\0");
    match then {
        Then::Error(code) => assert_eq!(raw.recv_other().expect(&shown)["error"]["code"], *code, "{shown}"),
        Then::Result => assert!(raw.recv_other().expect(&shown).get("result").is_some(), "{shown}"),
        Then::Nothing => {}
        Then::Closed => return assert_eq!(raw.recv_other(), None, "{shown}"),
    }
    let alive = json!({"id": "alive", "method": "echo", "params": [1]});
    raw.send(&alive);
    assert_eq!(
        raw.recv_other().expect(&shown),
        json!({"id": "alive", "result": [1]}),
        "{shown}"
    );
}

#[test]
fn only_an_accepted_identity_raises_the_limits() {
    let (server, address) = serve_tcp(ServerConfig::new(server_settings("pr1")));
    let long = json!({"id": 2, "method": "echo", "params": ["x".repeat(400_000)]});
    let identity = IDENTITY.replace("\"test\"", "\"elsewhere\"");
    let mut refused = Raw::connect(&address);
    let answer = refused.ask(&serde_json::from_str(&identity).unwrap());
    assert_eq!(answer["error"]["code"], "EDOMAIN");
    // The server may close the connection before it has received all.
    refused.try_send(&long);
    assert_eq!(refused.recv_other(), None);
    let mut accepted = Raw::identified(&address, "raw", "test");
    assert!(accepted.ask(&long).get("result").is_some());
    server.stop();
}

#[test]
fn each_kind_of_bad_input_is_answered_or_ends_the_connection() {
    use Then::{Closed, Error, Nothing, Result};
    let (server, address) = serve_tcp(ServerConfig::new(server_settings("pr1")));
    let rows: &[(&str, Then)] = &[
        // Methods of the wrong direction, and methods that no peer sends.
        (
            r#"{"id":1,"method":"policy_update","params":[{}]}"#,
            Error("EUNSUPPORTED"),
        ),
        (
            r#"{"id":1,"method":"endpoint_update","params":[{}]}"#,
            Error("EUNSUPPORTED"),
        ),
        (
            r#"{"id":1,"method":"custom","params":[{"method":"a","params":{}}]}"#,
            Error("EUNSUPPORTED"),
        ),
        (
            r#"{"id":1,"method":"transact","params":[]}"#,
            Error("EUNSUPPORTED"),
        ),
        (
            r#"{"id":1,"method":"monitor","params":[]}"#,
            Error("EUNSUPPORTED"),
        ),
        (r#"{"id":1,"method":"update","params":[]}"#, Error("EUNSUPPORTED")),
        (
            r#"{"id":1,"method":"nobody knows this","params":[]}"#,
            Error("EUNSUPPORTED"),
        ),
        (
            r#"{"id":1,"method":"nobody knows this","params":{}}"#,
            Error("EUNSUPPORTED"),
        ),
        (r#"{"id":1,"method":"","params":[]}"#, Error("EUNSUPPORTED")),
        // Missing parameters, and parameters of the wrong type.
        (r#"{"id":1,"method":"echo"}"#, Result),
        (r#"{"id":1,"method":"echo","params":null}"#, Result),
        (r#"{"id":1,"method":"echo","params":{}}"#, Error("ERROR")),
        (r#"{"id":1,"method":"echo","params":7}"#, Error("ERROR")),
        (
            r#"{"id":1,"method":"policy_resolve","params":{}}"#,
            Error("ERROR"),
        ),
        (r#"{"id":1,"method":"state_report","params":"a"}"#, Error("ERROR")),
        // Ids, which are returned unchanged.
        (r#"{"id":null,"method":"echo","params":[]}"#, Result),
        (r#"{"id":{"a":[1]},"method":"echo"}"#, Result),
        (r#"{"id":"text","method":"echo"}"#, Result),
        (r#"{"id":["echo",18446744073709551616],"method":"echo"}"#, Result),
        // A second identity.
        (IDENTITY, Result),
        // policy_resolve
        (
            r#"{"id":1,"method":"policy_resolve","params":[7]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[[]]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[null]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"policy_uri":"/a/","prr":5}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","prr":5}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","policy_uri":"/a/"}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":7,"policy_uri":"/a/","prr":5}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","policy_uri":7,"prr":5}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","policy_uri":"/a/","prr":"5"}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","policy_uri":"/a/","prr":1.5}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","policy_uri":"/a/","prr":9223372036854775808}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","policy_uri":"/a/","policy_ident":{"name":"a","context":"/"},"prr":5}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","policy_uri":"no uri","prr":5}]}"#,
            Result,
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","policy_uri":"/a/","prr":0}]}"#,
            Result,
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","policy_uri":"/a/","prr":-5}]}"#,
            Result,
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","policy_uri":"/a/","prr":9223372036854775807}]}"#,
            Result,
        ),
        (
            r#"{"id":1,"method":"policy_resolve","params":[{"subject":"a","policy_uri":"/a/","prr":5,"nobody knows":1}]}"#,
            Result,
        ),
        (r#"{"id":1,"method":"policy_resolve","params":[]}"#, Result),
        // policy_unresolve
        (
            r#"{"id":1,"method":"policy_unresolve","params":[{"subject":"a","policy_uri":"/never/"}]}"#,
            Result,
        ),
        (
            r#"{"id":1,"method":"policy_unresolve","params":[{"policy_uri":"/a/"}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"policy_unresolve","params":[{"subject":"a"}]}"#,
            Error("ERROR"),
        ),
        // endpoint_resolve and endpoint_unresolve
        (
            r#"{"id":1,"method":"endpoint_resolve","params":[{"subject":"a","endpoint_uri":"/a/"}]}"#,
            Result,
        ),
        (
            r#"{"id":1,"method":"endpoint_resolve","params":[{"subject":"a","endpoint_uri":"/a/","prr":1.5}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"endpoint_resolve","params":[{"subject":"a","prr":5}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"endpoint_unresolve","params":[{"subject":"a","endpoint_uri":"/never/"}]}"#,
            Result,
        ),
        (
            r#"{"id":1,"method":"endpoint_unresolve","params":[7]}"#,
            Error("ERROR"),
        ),
        // endpoint_declare and endpoint_undeclare
        (
            r#"{"id":1,"method":"endpoint_declare","params":[{"endpoint":{}}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"endpoint_declare","params":[{"prr":5}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"endpoint_declare","params":[{"endpoint":[{"subject":"a"}],"prr":5}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"endpoint_declare","params":[{"endpoint":[{"subject":"a","uri":"/a/","properties":7}],"prr":5}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"endpoint_undeclare","params":[{"subject":"a","endpoint_uri":"/never/"}]}"#,
            Result,
        ),
        (
            r#"{"id":1,"method":"endpoint_undeclare","params":[{"subject":"a"}]}"#,
            Error("ERROR"),
        ),
        // state_report
        (
            r#"{"id":1,"method":"state_report","params":[{"observable":[{"uri":"/a/"}]}]}"#,
            Error("ERROR"),
        ),
        (
            r#"{"id":1,"method":"state_report","params":[{"observable":7}]}"#,
            Error("ERROR"),
        ),
        // Answers without a request.
        (r#"{"id":["policy_update",1],"result":{}}"#, Nothing),
        (r#"{"id":["policy_update",1],"error":{"code":7}}"#, Nothing),
        (r#"{"id":["endpoint_update",1],"result":{}}"#, Nothing),
        (
            r#"{"id":["endpoint_update",1],"result":null,"error":{"code":"ERROR","message":"no"}}"#,
            Nothing,
        ),
        (r#"{"id":["policy_resolve",1],"result":{"policy":7}}"#, Nothing),
        (r#"{"id":["nobody knows this",1],"result":{}}"#, Nothing),
        (r#"{"id":["nobody knows this",1],"error":{}}"#, Nothing),
        // Blanks.
        ("  \r\n ", Nothing),
        ("", Nothing),
        // Messages that can't be answered.
        ("{", Closed),
        ("{]", Closed),
        ("[1]", Closed),
        ("7", Closed),
        ("null", Closed),
        (r#""text""#, Closed),
        ("GET / HTTP/1.1\r\n", Closed),
        (r#"{"method":"echo","params":[]}"#, Closed),
        (r#"{"id":1,"method":7,"params":[]}"#, Closed),
        (r#"{"id":1,"method":null,"params":[]}"#, Closed),
        (r#"{"id":1}"#, Closed),
        (r#"{"id":1,"result":{}}"#, Closed),
        (r#"{"id":"echo","result":{}}"#, Closed),
        (r#"{"id":null,"error":{}}"#, Closed),
        (r#"{"id":["echo",1],"error":7}"#, Closed),
        (r#"{"id":["echo",1],"error":"text"}"#, Closed),
        (r#"{"id":["echo",1],"result":{},"error":{}}"#, Closed),
        (r#"{"id":["echo",1]}"#, Closed),
        (r#"{"id":1,"id":2,"method":"echo"}"#, Closed),
        (
            r#"{"id":1,"method":"echo","params":[]}{"id":2,"method":"echo","params":[]}"#,
            Closed,
        ),
    ];
    for (text, then) in rows {
        send_text(&address, true, text.as_bytes(), then);
    }
    send_text(
        &address,
        true,
        b"{\"id\":1,\"method\":\"echo\",\"params\":[\"\xff\"]}",
        &Result,
    );
    send_text(&address, true, "[".repeat(100_000).as_bytes(), &Closed);
    server.stop();
}

#[test]
fn before_the_identity_only_echo_is_answered() {
    let (_server, address) = serve_tcp(ServerConfig::new(server_settings("pr1")));
    send_text(
        &address,
        false,
        br#"{"id":1,"method":"echo","params":[7]}"#,
        &Then::Result,
    );
    for method in [
        "policy_resolve",
        "policy_unresolve",
        "policy_update",
        "endpoint_declare",
        "endpoint_undeclare",
        "endpoint_resolve",
        "endpoint_unresolve",
        "endpoint_update",
        "state_report",
        "nobody knows this",
    ] {
        for params in [json!([]), json!({}), json!(null)] {
            let mut raw = Raw::connect(&address);
            raw.send(&json!({"id": 1, "method": method, "params": params}));
            assert_eq!(raw.recv_other().unwrap()["error"]["code"], "ESTATE", "{method}");
            assert_eq!(raw.recv_other(), None, "{method}");
        }
        if Method::from_name(method).is_some() {
            for answer in [json!({"result": {}}), json!({"error": {}})] {
                let mut answer = answer;
                answer["id"] = json!([method, 1]);
                let mut raw = Raw::connect(&address);
                raw.send(&answer);
                assert_eq!(raw.recv_other(), None, "{answer}");
            }
        }
    }
    let custom = br#"{"id":1,"method":"custom","params":[{"method":"a","params":{}}]}"#;
    send_text(&address, false, custom, &Then::Error("EUNSUPPORTED"));
    for (member, value, code) in [
        ("proto_version", json!("2.0"), "EPROTO"),
        ("domain", json!("other"), "EDOMAIN"),
    ] {
        let mut identity: Value = serde_json::from_str(IDENTITY).unwrap();
        identity["params"][0][member] = value;
        let mut raw = Raw::connect(&address);
        assert_eq!(raw.ask(&identity)["error"]["code"], code);
    }
}

#[test]
fn messages_arrive_in_any_pieces_and_have_a_limit() {
    let mut config = ServerConfig::new(server_settings("pr1"));
    config.limits.message = 400_000;
    let (server, address) = serve_tcp(config);
    let mut raw = Raw::connect(&address);
    for byte in format!("{IDENTITY}\0").bytes() {
        raw.send_bytes(&[byte]);
    }
    assert!(raw.recv_other().unwrap().get("result").is_some());
    let long = |length| {
        format!(
            "{{\"id\":2,\"method\":\"echo\",\"params\":[\"{}\"]}}",
            "x".repeat(length)
        )
    };
    send_text(&address, true, long(300_000).as_bytes(), &Then::Result);
    // Writing beyond the limit may fail, because the connection is closed.
    let mut raw = Raw::identified(&address, "raw", "test");
    raw.send_bytes(long(400_000).as_bytes());
    assert_eq!(raw.recv_other(), None);
    // No session is left.
    drop(raw);
    until_server(&server.handle(), |core, _| {
        core.session_count() == 0 || core.session_count() == 1
    });
}

#[test]
fn a_client_without_identity_is_disconnected_in_time() {
    let mut settings = server_settings("pr1");
    settings.identity_timeout = Duration::from_millis(50);
    let (_server, address) = serve_tcp(ServerConfig::new(settings));
    let mut raw = Raw::connect(&address);
    assert_eq!(raw.recv_other(), None);
}

#[test]
fn a_peer_that_is_silent_for_too_long_is_disconnected() {
    let mut settings = server_settings("pr1");
    settings.keepalive.first = Duration::from_millis(30);
    settings.keepalive.interval = Duration::from_millis(30);
    settings.keepalive.silence = Duration::from_secs(3);
    let (_server, address) = serve_tcp(ServerConfig::new(settings));
    let mut raw = Raw::identified(&address, "raw", "test");
    assert_eq!(raw.recv_other(), None);
}

/// A client that resolves everything and receives no data is disconnected; others get every update
/// at once.
#[test]
fn a_slow_client_does_not_delay_others() {
    let place = MemoryListener::new();
    let mut config = ServerConfig::new(server_settings("pr1"))
        .policy(vec![object("/a/", "0")])
        .listen_in_memory(&place, "pr1:1");
    config.queue = Limits {
        frames: 10_000,
        bytes: 1 << 20,
    };
    let server = serve(config);
    let handle = server.handle();
    let config = ElementConfig::new(element_settings("pe1", &["pr1:1"])).connect_in_memory("pr1:1", &place);
    let element = PolicyElement::start(config).unwrap();
    let _policy = element.resolve_policy("GbpEpGroup", uri("/a/"), false).unwrap();
    until_value(&element, Store::Policy, "/a/", Some("0"));

    let slow = place.connect(Faults::default(), Faults::default()).unwrap();
    let resolve = r#"{"id":2,"method":"policy_resolve","params":[{"subject":"GbpEpGroup","policy_uri":"/a/","prr":3600}]}"#;
    let text = format!("{IDENTITY}\0{resolve}\0");
    assert_eq!(slow.write(text.as_bytes()).unwrap(), text.len());
    until_server(&handle, |core, now| {
        core.session_count() == 2 && core.sessions(now)[1].policies == 1
    });
    // Each update has 100 kB: the queue is full after some ten.
    let long = "x".repeat(100_000);
    for n in 1..30 {
        let value = format!("{n}{long}");
        handle.edit(Edit::Merge(vec![object("/a/", &value)])).unwrap();
        until_value(&element, Store::Policy, "/a/", Some(&value));
    }
    until_server(&handle, |core, _| core.session_count() == 1);
    let begin = Instant::now();
    server.stop();
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
}

/// Frames that the dispatcher writes itself, frames of the writer, and queued frames arrive in their
/// order.
#[test]
fn answers_to_a_slow_client_are_complete_and_in_order() {
    let at = |n: usize| format!("/a/{n}/");
    let length = |n: usize| [10, 200_000, 3_000, 1_500_000][n % 4] + n;
    let policy = (0..8).map(|n| object(&at(n), &"x".repeat(length(n)))).collect();
    let (_server, address) = serve_tcp(ServerConfig::new(server_settings("pr1")).policy(policy));
    let mut raw = Raw::identified(&address, "raw", "test");
    const COUNT: usize = 60;
    for n in 0..COUNT {
        let params = json!([{"subject": "GbpEpGroup", "policy_uri": at(n % 8), "prr": 3600}]);
        raw.send(&json!({"id": n, "method": "policy_resolve", "params": params}));
    }
    for n in 0..COUNT {
        let answer = raw.recv_other().unwrap();
        assert_eq!(answer["id"], n);
        let value = &answer["result"]["policy"][0]["properties"][0]["data"];
        assert_eq!(value.as_str().unwrap().len(), length(n % 8));
    }
}

/// A client that sends requests without end and receives no answers delays only itself.
#[test]
fn a_client_that_receives_no_answers_is_not_read_from() {
    let place = MemoryListener::new();
    let mut config = ServerConfig::new(server_settings("pr1"))
        .policy(vec![object("/a/", &"x".repeat(10_000))])
        .listen_in_memory(&place, "pr1:1");
    config.queue = Limits {
        frames: 10_000,
        bytes: 1 << 20,
    };
    config.write_timeout = Duration::from_millis(300);
    let server = serve(config);
    let slow = place.connect(Faults::default(), Faults::default()).unwrap();
    slow.set_write_timeout(Some(LIMIT)).unwrap();
    let resolve = r#"{"id":2,"method":"policy_resolve","params":[{"subject":"GbpEpGroup","policy_uri":"/a/","prr":3600}]}"#;
    slow.write(format!("{IDENTITY}\0").as_bytes()).unwrap();
    let text = format!("{resolve}\0").repeat(100);
    // Until the server stops reading. The frames that it has read are complete.
    let mut written = 0;
    while let Ok(more @ 1..) = slow.write(&text.as_bytes()[written % text.len()..]) {
        written += more;
        assert!(written < 1 << 30, "the server reads without a limit");
    }
    until_server(&server.handle(), |core, _| core.session_count() == 0);
}
