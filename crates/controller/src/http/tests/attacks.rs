//! Attacks of clients. They write their bytes without an HTTP library.

use std::net::Shutdown;

use super::*;
use crate::{Config, Limits, RunningController, UserRequest};
use ssntp::Role;
use ssntp::client::ClientConfig;
use ssntp::transport::memory::MemoryListener;
use ssntp_test_support::{identity, trust};

impl Rig {
    /// A connection on which only these bytes were sent.
    fn raw(&self, bytes: &str) -> TcpStream {
        let urls = self.api.urls();
        let mut stream = TcpStream::connect(urls[0].strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // It may have been cut already, to make room for another one.
        let _ = stream.write_all(bytes.as_bytes());
        stream
    }

    /// The whole answer to these bytes.
    fn answered(&self, bytes: &str) -> String {
        let mut stream = self.raw(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        // After a reset the bytes received so far are the answer.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn code(&self, bytes: &str) -> u16 {
        let answer = self.answered(bytes);
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        code.unwrap_or_else(|| panic!("{bytes:?}: {answer:?}"))
    }
}

#[test]
fn slow_clients_do_not_block_others() {
    let rig = Rig::start(false);
    let token = rig.tokens.add("hands", Right::Write, None, None).unwrap();
    let body = format!(
        "PUT /api/v1/workloads/web HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
    );
    for begun in ["", "G", "GET / HTTP/1.1\r\nHost: loc", &body] {
        // These are more connections than the limit.
        let slow: Vec<_> = (0..40).map(|_| rig.raw(begun)).collect();
        assert_eq!(rig.ask("GET / HTTP/1.1", "").0, 200, "{begun:?}");
        drop(slow);
    }
    // Single bytes do not extend the deadline, and an incomplete request is not carried out.
    let mut dripping = rig.raw("");
    dripping
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let head = "GET / HTTP/1.1\r\nHost: localhost\r\n".to_owned() + &"X: y\r\n".repeat(1000);
    let is_cut = head.bytes().any(|byte| {
        let is_sent = dripping.write_all(&[byte]).is_ok();
        let waited = dripping.read(&mut [0]);
        !is_sent || !waited.is_err_and(|e| ssntp_transport::is_timeout(&e))
    });
    assert!(is_cut);
    assert_eq!(*rig.made_up.orders.lock().unwrap(), [""; 0]);
}

#[test]
fn followers_that_do_not_read_do_not_block_others() {
    let rig = Rig::start(false);
    let (uuid, reader) = (made_up::instance_uuid(0), rig.reader());
    let deaf: Vec<_> = (0..8)
        .map(|_| {
            rig.raw(&format!(
                "GET /api/v1/events?output={uuid} HTTP/1.1\r\nHost: localhost{reader}\r\n\r\n"
            ))
        })
        .collect();
    let mut honest = follow(&rig, &format!("?output={uuid}"), &reader);
    let text = "x".repeat(4000);
    let mut last = 0;
    for _ in 0..1000 {
        last = rig.made_up.row(0, "node", None, None, None, &text);
        rig.made_up.writes(&Written::Out(text.clone()));
    }
    while event(&mut honest).0 != Some(last) {}
    assert_eq!(rig.ask("GET / HTTP/1.1", "").0, 200);
    drop(deaf);
}

#[test]
fn a_connection_has_one_request_with_one_length() {
    let rig = Rig::start(false);
    let token = rig.tokens.add("hands", Right::Write, None, None).unwrap();
    let order = r#"{"order": "back"}"#;
    let post = |headers: &str, body: &str| {
        format!(
            "POST /api/v1/workloads/web/rollout HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\n{headers}\r\n{body}"
        )
    };
    let length = order.len();
    for (headers, code) in [
        (
            format!("Content-Length: {length}\r\nContent-Length: {length}\r\n"),
            400,
        ),
        (format!("Content-Length: 0\r\nContent-Length: {length}\r\n"), 400),
        (format!("Content-Length: {length}, {length}\r\n"), 400),
        (format!("Content-Length: +{length}\r\n"), 400),
        ("Content-Length: 0x11\r\n".to_owned(), 400),
        (format!("Content-Length : {length}\r\n"), 400),
        (format!("Content-Length: {length}\r\n folded: 1\r\n"), 400),
        (
            format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
            411,
        ),
        ("Transfer-Encoding: chunked\r\n".to_owned(), 411),
        ("Transfer-Encoding: identity\r\n".to_owned(), 411),
        (format!("Content-Length: {}\r\n", BODY + 1), 413),
        (format!("Content-Length: {}\r\n", u128::MAX), 413),
        (format!("{}\r\n", "X: y\r\n".repeat(65)), 431),
        (format!("X: {}\r\n", "y".repeat(9000)), 431),
    ] {
        assert_eq!(rig.code(&post(&headers, order)), code, "{headers:?}");
    }
    assert_eq!(*rig.made_up.orders.lock().unwrap(), [""; 0]);
    // Bytes after a request are not read as another request.
    let behind = post(&format!("Content-Length: {length}\r\n"), order);
    for first in [
        "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        post("Content-Length: 0\r\n", ""),
    ] {
        let answer = rig.answered(&format!("{first}{behind}"));
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{first:?}: {answer}");
    }
    assert_eq!(*rig.made_up.orders.lock().unwrap(), [""; 0]);
    assert_eq!(rig.code(&behind), 200);
}

#[test]
fn unknown_paths_and_methods_are_refused() {
    let rig = Rig::start(false);
    let token = rig.tokens.add("hands", Right::Write, None, None).unwrap();
    for path in [
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/page.css/../tokens",
        "/tokens",
        "/controller.db",
        "/api/v1/../../tokens",
        "/api/v1/%2e%2e/tokens",
        "/api/v1//status",
        "/api/v1/status/",
        "/api/v1/%73tatus",
        "/api/v2/status",
        "/api/",
        "//localhost/",
        "/api/v1/workloads/..%2fweb",
        "/api/v1/workloads/web%00",
        "/instances/..%2f..",
        "/nodes/%00",
        "http://localhost/tokens",
        "ftp://localhost/",
        "*",
    ] {
        let code = rig.code(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert!(matches!(code, 400 | 404), "{path}: {code}");
    }
    // The host of a whole address counts.
    for (target, code) in [("http://localhost/", 200), ("http://evil.example/", 403)] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(rig.code(&head), code, "{target}");
    }
    for method in [
        "PATCH", "TRACE", "OPTIONS", "CONNECT", "get", "Get", "PUTT", "HEADX",
    ] {
        let code = rig.code(&format!(
            "{method} /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ));
        assert!(matches!(code, 400 | 405), "{method}: {code}");
    }
    for line in [
        "DELETE /api/v1/status",
        "POST /api/v1/workloads/web",
        "PUT /api/v1/workloads/web/rollout",
        "PUT /api/v1/nodes/web",
        "DELETE /api/v1/workloads",
        "POST /api/v1/events",
    ] {
        let head =
            format!("{line} HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json");
        assert_eq!(rig.ask(&head, "{}").0, 404, "{line}");
    }
    for line in ["POST /", "DELETE /nodes", "PUT /login", "POST /page.css"] {
        assert_eq!(rig.ask(&format!("{line} HTTP/1.1"), "").0, 405, "{line}");
    }
    assert_eq!(*rig.made_up.orders.lock().unwrap(), [""; 0]);
}

#[test]
fn a_token_in_the_query_is_not_accepted() {
    let rig = Rig::start(true);
    let token = rig.tokens.add("hands", Right::Write, None, None).unwrap();
    for name in ["token", "access_token", "authorization"] {
        let query = format!("?{name}={token}");
        assert_eq!(rig.ask(&format!("GET /{query} HTTP/1.1"), "").0, 303);
        assert_eq!(rig.get(&format!("/api/v1/status{query}")).0, 401);
        let write =
            format!("POST /api/v1/workloads/web/rollout{query} HTTP/1.1\r\nContent-Type: application/json");
        assert_eq!(rig.ask(&write, r#"{"order": "back"}"#).0, 401);
        // A client with a right gets an error that names the parameter.
        let head = format!("GET /api/v1/status{query} HTTP/1.1\r\nAuthorization: Bearer {token}");
        let (code, _, body) = rig.ask(&head, "");
        assert!(code == 400 && body.contains(name), "{body}");
        assert!(!body.contains(&token), "{body}");
    }
    let login = format!("GET /login?token={token} HTTP/1.1");
    assert!(!rig.ask(&login, "").1.contains("Set-Cookie"));
    assert_eq!(*rig.made_up.orders.lock().unwrap(), [""; 0]);
}

/// The API of a real database, without a scheduler.
fn with_database() -> (Rig, RunningController) {
    let directory = tempfile::tempdir().unwrap();
    let client = ClientConfig::new(identity(Role::CONTROLLER), trust());
    let daemon = RunningController::start(Config {
        client: client.connect_in_memory(&MemoryListener::new()),
        store: directory.path().to_owned(),
        limits: Limits::default(),
    })
    .unwrap();
    let config = ApiConfig::new("127.0.0.1:0".parse().unwrap(), directory.path()).login(false);
    let rig = Rig {
        api: Api::start(config, daemon.handle().clone()).unwrap(),
        made_up: made_up::cluster(0, 0),
        tokens: Tokens::new(directory.path()),
        _directory: directory,
    };
    (rig, daemon)
}

#[test]
fn one_of_several_writers_with_the_same_revision_succeeds() {
    let (rig, daemon) = with_database();
    let token = rig.tokens.add("hands", Right::Write, None, None).unwrap();
    let head = |revision: i64| {
        format!(
            "PUT /api/v1/workloads/web?revision={revision} HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json"
        )
    };
    for round in 0..3 {
        let revision = daemon.handle().snapshot();
        let revision = revision.state.workloads.get("web").map_or(0, |web| web.revision);
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let command = format!("{round}-{writer}");
                let spec = json!({ "name": "web", "count": 0, "start": { "command": [command] } });
                (rig.open(&head(revision), &spec.to_string()), command)
            })
            .collect();
        let mut written = Vec::new();
        for (mut stream, command) in writers {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            if answer.starts_with("HTTP/1.1 200 ") {
                written.push(command)
            } else {
                assert!(
                    answer.starts_with("HTTP/1.1 409 ") && answer.contains("by now; read it again"),
                    "{answer}"
                )
            }
        }
        let kept = rig.get("/api/v1/workloads/web").1;
        assert_eq!(json!(written), kept["spec"]["start"]["command"]);
    }
}

#[test]
fn no_text_of_an_address_reaches_the_database_as_sql() {
    let (rig, daemon) = with_database();
    let spec = json!({ "name": "web", "count": 0, "start": { "command": ["a"] } });
    let spec = serde_json::from_value(spec).unwrap();
    assert_eq!(rig.get("/api/v1/workloads").1, json!([]));
    let apply = UserRequest::Apply {
        specs: vec![spec],
        dry_run: false,
    };
    daemon.handle().request("", apply).unwrap();
    // A client that reads right after its write reads the new state.
    assert_eq!(rig.get("/api/v1/workloads/web").0, 200);
    let applied = || rig.get("/api/v1/history?workload=web&kind=applied").1;
    assert_eq!(applied().as_array().unwrap().len(), 1);
    for text in [
        "' OR 1=1 --",
        "1; DROP TABLE history; --",
        "web' UNION SELECT 1,2,3,4,5,6,document FROM workloads --",
        "\\\" OR \\\"\\\"=\\\"",
        "%",
        "?1",
        "\0",
        "x'00'",
    ] {
        let text = crate::page::params::encode(text);
        for name in [
            "after", "before", "limit", "workload", "instance", "node", "kind", "order",
        ] {
            for route in ["history", "traces"] {
                let (code, value) = rig.get(&format!("/api/v1/{route}?{name}={text}"));
                let is_none = value.as_array().is_some_and(Vec::is_empty);
                assert!(code == 400 || (code == 200 && is_none), "{name}={text}: {value}");
            }
            let (code, _, page) = rig.ask(&format!("GET /events?{name}={text} HTTP/1.1"), "");
            assert!(code == 200 && !page.contains("CREATE"), "{name}={text}: {page}");
        }
        for route in [
            "workloads/",
            "instances/",
            "nodes/",
            "instances?workload=",
            "events?after=",
        ] {
            let (code, value) = rig.get(&format!("/api/v1/{route}{text}"));
            let is_none = value.as_array().is_some_and(Vec::is_empty);
            assert!(
                matches!(code, 400 | 404) || is_none,
                "{route}{text}: {code} {value}"
            );
        }
    }
    assert_eq!(applied().as_array().unwrap().len(), 1);
}
