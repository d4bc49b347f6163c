mod attacks;
mod tenant;

use crate::source::Written;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::Query;
use crate::made_up::{self, MadeUp};
use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest};
use ssntp_test_support::{identity, trust};

const LIMIT: Duration = Duration::from_secs(60);

struct Rig {
    made_up: Arc<MadeUp>,
    api: Api,
    tokens: Tokens,
    _directory: TempDir,
}

impl Rig {
    fn start(login: bool) -> Self {
        Self::of(|config| config.login(login))
    }

    fn of(configure: impl FnOnce(ApiConfig) -> ApiConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let made_up = made_up::cluster(30, 4);
        let config = ApiConfig::new("127.0.0.1:0".parse().unwrap(), directory.path());
        let config = configure(config);
        Self {
            api: Api::serve(config, made_up.clone()).unwrap(),
            made_up,
            tokens: Tokens::new(directory.path()),
            _directory: directory,
        }
    }

    /// A header that lets its client read everything.
    fn reader(&self) -> String {
        let token = self.tokens.add("eyes", Right::Read, None, None).unwrap();
        format!("\r\nAuthorization: Bearer {token}")
    }

    fn open(&self, head: &str, body: &str) -> TcpStream {
        let urls = self.api.urls();
        let mut stream = TcpStream::connect(urls[0].strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let host = if head.contains("Host:") {
            ""
        } else {
            "\r\nHost: localhost"
        };
        let length = body.len();
        let request = format!("{head}{host}\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// The code, the head and the body of an answer.
    fn ask(&self, head: &str, body: &str) -> (u16, String, String) {
        let end = ssntp_transport::deadline(LIMIT);
        loop {
            let mut answer = String::new();
            let read = self.open(head, body).read_to_string(&mut answer);
            if let Some((head, body)) = answer.split_once("\r\n\r\n") {
                let code = head.split(' ').nth(1).unwrap().parse().unwrap();
                return (code, head.to_owned(), body.to_owned());
            }
            // The server closes a connection that has sent no request in two seconds, which a thread of a
            // busy machine may need. Nothing was carried out then.
            let is_cut = answer.is_empty() && ssntp_transport::left(end).is_ok();
            assert!(is_cut, "no answer: {read:?} {answer:?}");
        }
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let (code, _, body) = self.ask(&format!("GET {path} HTTP/1.1"), "");
        (code, serde_json::from_str(&body).unwrap())
    }
}

#[test]
fn programs_read_every_resource() {
    let rig = Rig::start(false);
    let (_, status) = rig.get("/api/v1/status");
    assert_eq!((&status["nodes"], &status["workloads"]), (&json!(30), &json!(4)));
    assert_eq!(status["health"]["online"], true);
    let (_, workload) = rig.get("/api/v1/workloads/web");
    assert_eq!(
        (&workload["spec"]["count"], &workload["status"]["wanted"]),
        (&json!(5), &json!(5))
    );
    let (_, nodes) = rig.get("/api/v1/nodes");
    assert_eq!(nodes.as_array().unwrap().len(), 30);
    let node = nodes[0]["uuid"].as_str().unwrap();
    assert_eq!(
        rig.get(&format!("/api/v1/nodes/{node}")).1["instances"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    assert!(rig.get(&format!("/api/v1/nodes/{node}/figures")).1[0]["load"].is_number());
    let (_, instances) = rig.get("/api/v1/instances?workload=web");
    assert!(
        instances
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["workload"] == "web")
    );
    let uuid = instances[0]["uuid"].as_str().unwrap();
    assert_eq!(
        rig.get(&format!("/api/v1/instances/{uuid}")).1["seen"]["current"],
        true
    );
    let (_, rows) = rig.get("/api/v1/history?order=newest&limit=2&workload=web");
    assert_eq!(
        (rows[0]["kind"].as_str(), rows.as_array().unwrap().len()),
        (Some("lost"), 2)
    );
    assert_eq!(rig.get("/api/v1/traces").1[0]["trace"]["operand"], "START");
}

#[test]
fn values_that_may_be_secret_are_for_clients_that_may_write() {
    let rig = Rig::start(false);
    rig.made_up.change(made_up::with_secrets);
    let write = rig.tokens.add("hands", Right::Write, None, None).unwrap();
    for path in ["/api/v1/workloads", "/api/v1/workloads/web"] {
        let (_, read) = rig.get(path);
        let read = read.to_string();
        assert!(read.contains("PASSWORD") && !read.contains("hunter2"), "{read}");
        let head = format!("GET {path} HTTP/1.1\r\nAuthorization: Bearer {write}");
        let (code, _, body) = rig.ask(&head, "");
        assert!(code == 200 && body.contains("hunter2"), "{body}");
    }
}

/// With it, a guess of a hidden value could be tried without the controller.
#[test]
fn no_client_gets_the_digest_of_a_template() {
    let rig = Rig::start(false);
    let (node, instance) = (made_up::node_uuid(0), made_up::instance_uuid(0));
    let labels = [("ssntp.template", "f8e17541"), ("ssntp.slot", "7777")];
    let mut stats = ssntp_payload::Stats {
        node_uuid: node.into(),
        ..ssntp_payload::Stats::default()
    };
    stats.instances.push(ssntp_payload::InstanceStats {
        instance_uuid: instance.into(),
        state: ssntp_payload::InstanceState::Active,
        labels: labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..ssntp_payload::InstanceStats::default()
    });
    rig.made_up.see(&ssntp::proto::Frame::of(&stats));
    let of_one = format!("instances/{instance}");
    for path in [&of_one, "api/v1/instances", &format!("api/v1/{of_one}")] {
        let (code, _, body) = rig.ask(&format!("GET /{path} HTTP/1.1"), "");
        assert!(code == 200 && body.contains("7777"), "{path}: {body}");
        assert!(!body.contains("f8e17541"), "{path}: {body}");
    }
}

/// The program of a health check may write a password of its environment.
#[test]
fn the_output_of_a_health_check_is_for_clients_that_may_write() {
    let rig = Rig::start(false);
    let why = "it is unhealthy: exit code 1: PASSWORD=hunter2";
    let (node, instance) = (made_up::node_uuid(0), made_up::instance_uuid(0));
    rig.made_up.change(|kept| {
        let web = Arc::make_mut(kept.state.workloads.get_mut("web").unwrap());
        web.rollout.why = format!("version 2: {why}");
        kept.status.get_mut("web").unwrap().problem = Some(why.to_owned());
    });
    let mut stats = ssntp_payload::Stats {
        node_uuid: node.into(),
        ..ssntp_payload::Stats::default()
    };
    stats.instances.push(ssntp_payload::InstanceStats {
        instance_uuid: instance.into(),
        state: ssntp_payload::InstanceState::Active,
        health: ssntp_payload::HealthState::Unhealthy,
        health_detail: "signal 9: hunter2: exit code 1: hunter2".into(),
        last_lines: "hunter2".into(),
        ..ssntp_payload::InstanceStats::default()
    });
    rig.made_up.see(&ssntp::proto::Frame::of(&stats));
    let row = rig
        .made_up
        .row(0, "failed", Some("web".into()), Some(instance), Some(node), why);
    let reader = rig.reader();
    let write = rig.tokens.add("hands", Right::Write, None, None).unwrap();
    let writer = format!("\r\nAuthorization: Bearer {write}");
    let cookie = format!("\r\nCookie: {COOKIE}={}", tokens::digest(&write));
    for path in [
        "workloads",
        "workloads/web",
        "instances",
        &format!("instances/{instance}"),
        "history?order=newest",
        "events",
    ] {
        let read = |header: &str| {
            if path == "events" {
                return event(&mut follow(&rig, &format!("?after={}", row - 1), header)).1;
            }
            let (code, _, body) = rig.ask(&format!("GET /api/v1/{path} HTTP/1.1{header}"), "");
            assert_eq!(code, 200, "{path}");
            body
        };
        assert!(read(&writer).contains("hunter2"), "{path}");
        for header in ["", &reader, &cookie] {
            let body = read(header);
            assert!(!body.contains("hunter2"), "{path}: {body}");
            assert!(
                body.contains("exit code 1") || body.contains("signal 9"),
                "{path}"
            );
        }
    }
    // Pages are for readers, and find no row by what they do not show.
    for path in ["", "workloads", "workloads/web", "events"] {
        for header in ["", &cookie, &writer] {
            let (code, _, body) = rig.ask(&format!("GET /{path} HTTP/1.1{header}"), "");
            assert!(code == 200 && !body.contains("hunter2"), "{path}: {body}");
        }
    }
    let (_, _, body) = rig.ask("GET /events?q=hunter2 HTTP/1.1", "");
    assert!(!body.contains("exit code 1"), "{body}");
    let (_, _, body) = rig.ask(&format!("GET /instances/{instance} HTTP/1.1"), "");
    assert!(body.contains("signal 9") && !body.contains("hunter2"), "{body}");
}

#[test]
fn an_error_names_the_field_and_the_place() {
    let rig = Rig::start(false);
    let token = rig.tokens.add("hands", Right::Write, None, None).unwrap();
    for (path, code, at) in [
        ("history?limit=0", 400, json!("limit")),
        ("history?before=x", 400, json!("before")),
        ("history?node=x", 400, json!("node")),
        ("history?lmit=1", 400, json!("lmit")),
        ("events?after=x", 400, json!("after")),
        ("nodes/5", 400, json!("path")),
        ("workloads/none", 404, Value::Null),
        ("nothing", 404, Value::Null),
        ("history?workload=", 400, json!("workload")),
        ("history?kind", 400, json!("kind")),
        ("workloads?workload=web", 400, json!("workload")),
        ("nodes?workload=web", 400, json!("workload")),
        ("status?workload=web", 400, json!("workload")),
    ] {
        let (found, problem) = rig.get(&format!("/api/v1/{path}"));
        assert_eq!((found, &problem["at"]), (code, &at), "{path}: {problem}");
        assert!(problem["error"].as_str().unwrap().len() > 5);
    }
    let put = |path: &str, body: &str| {
        let head =
            format!("PUT {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json");
        let (code, _, body) = rig.ask(&head, body);
        (code, serde_json::from_str::<Value>(&body).unwrap())
    };
    let spec = "{\"name\": \"web\",\n \"cuont\": 3, \"start\": {\"command\": [\"a\"]}}";
    let (code, problem) = put("/api/v1/workloads/web", spec);
    assert_eq!((code, &problem["at"]), (400, &json!("line 2, column 8")));
    assert!(problem["error"].as_str().unwrap().contains("cuont"), "{problem}");
    let spec = r#"{"name": "web", "count": 100000, "start": {"command": ["a"]}}"#;
    assert_eq!(put("/api/v1/workloads/web", spec).1["at"], "count");
    assert_eq!(put("/api/v1/workloads/other", spec).1["at"], "name");
    // A write with an older revision is refused.
    let spec = r#"{"name": "web", "count": 1, "start": {"command": ["a"]}}"#;
    assert_eq!(put("/api/v1/workloads/web?revision=6", spec).0, 409);
    assert_eq!(*rig.made_up.orders.lock().unwrap(), [""; 0]);
    assert_eq!(put("/api/v1/workloads/web?revision=7&dry_run=1", spec).0, 200);
    assert_eq!(
        put("/api/v1/workloads/new?revision=0", &spec.replace("web", "new")).0,
        200
    );
    // A parameter that is misplaced or has no value is refused, and the workload is not written.
    for (method, path, at) in [
        ("DELETE", "web?dry_run=1", "dry_run"),
        ("POST", "web/rollout?dry_run=1", "dry_run"),
        ("PUT", "web?dry_run", "dry_run"),
        ("PUT", "web?dry_run=yes", "dry_run"),
        ("DELETE", "web?revision=", "revision"),
        ("PUT", "web?revision", "revision"),
        ("PUT", "web?dry_run=1&dry_run=0", "dry_run"),
        ("PUT", "web?revision=7&revisio%6e=8", "revision"),
        ("DELETE", "web", "body"),
    ] {
        let head = format!("{method} /api/v1/workloads/{path} HTTP/1.1\r\nAuthorization: Bearer {token}");
        let (code, _, text) = rig.ask(&format!("{head}\r\nContent-Type: application/json"), spec);
        assert!(code == 400 && text.contains(at), "{method} {path}: {text}");
    }
    // Several workloads in one request are one order.
    let both = format!("[{spec}, {}]", spec.replace("web", "other"));
    let (code, problem) = put("/api/v1/workloads?revision=7", &both);
    assert_eq!((code, &problem["at"]), (400, &json!("revision")), "{problem}");
    assert_eq!(put("/api/v1/workloads", spec).0, 400);
    let (code, applied) = put("/api/v1/workloads", &both);
    assert_eq!(
        (code, applied.as_array().map(Vec::len)),
        (200, Some(2)),
        "{applied}"
    );
    assert_eq!(applied[1]["name"], "other");
    assert_eq!(
        *rig.made_up.orders.lock().unwrap(),
        ["apply web true", "apply new false", "apply web other false"]
    );
    let actors = rig.made_up.actors.lock().unwrap();
    assert!(actors.iter().all(|actor| actor == "token hands"), "{actors:?}");
}

#[test]
fn a_spec_that_the_cluster_cannot_satisfy_is_refused_with_its_key() {
    let put = |rig: &Rig, path: &str, body: &Value| {
        let token = rig.tokens.add("hands", Right::Write, None, None).unwrap();
        let head =
            format!("PUT {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json");
        let (code, _, body) = rig.ask(&head, &body.to_string());
        rig.tokens.remove("hands").unwrap();
        (code, serde_json::from_str::<Value>(&body).unwrap())
    };
    let spec = |key: &str, value: Value| {
        let mut spec = json!({"name": "new", "count": 1, "start": {"command": ["a"]}});
        spec["start"][key] = value;
        spec
    };
    let elsewhere = spec("hostname", json!("rack9"));
    let rig = Rig::start(false);
    // Until all nodes have reported, it is not known what they have.
    assert_eq!(put(&rig, "/api/v1/workloads/new", &elsewhere).0, 200);
    let node = made_up::node_uuid(0);
    // What a rig answers with may be some time old, so each scheduler has a rig of its own.
    let complete = |constraints| {
        let rig = Rig::start(false);
        rig.made_up.see(&ssntp::proto::Frame::of(&ssntp_payload::Stats {
            node_uuid: node.into(),
            mem_total_mb: 64_000,
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            ..ssntp_payload::Stats::default()
        }));
        let snapshot = ssntp_payload::SnapshotComplete {
            constraints,
            ..ssntp_payload::SnapshotComplete::default()
        };
        rig.made_up.see(&ssntp::proto::Frame::of(&snapshot));
        rig
    };
    let rig = complete(false);
    let (code, problem) = put(
        &rig,
        "/api/v1/workloads/new",
        &spec("constraint", json!({"zone": "a"})),
    );
    let refused = json!({"error": "the scheduler is older and ignores it", "at": "start.constraint"});
    assert_eq!((code, problem), (400, refused));
    let rig = complete(true);
    for (key, value, why) in [
        ("constraint", json!({"zone": "b"}), "no node has the label zone=b"),
        ("hostname", json!("rack9"), "no node has the host name rack9"),
        ("node", json!("5be1"), "there is no node with the UUID 5be1"),
        (
            "mem_mb",
            json!(64_001),
            "no node has 64001 MB of memory: the largest has 64000 MB",
        ),
        ("tenant", json!("red"), "there is no tenant \"red\""),
    ] {
        let refused = json!({"error": why, "at": format!("start.{key}")});
        let one = spec(key, value);
        assert_eq!(put(&rig, "/api/v1/workloads/new", &one), (400, refused));
        let both = json!([one, spec("dir", json!("/"))]);
        let (code, problem) = put(&rig, "/api/v1/workloads?dry_run=1", &both);
        assert_eq!((code, &problem["at"]), (400, &json!(format!("new.start.{key}"))));
    }
    // A node that is away counts, because it may return.
    for (key, value) in [
        ("constraint", json!({"zone": "a"})),
        ("hostname", json!("RACK1-n02")),
        ("node", json!(made_up::node_uuid(2))),
        ("mem_mb", json!(64_000)),
        ("tenant", json!("blue")),
    ] {
        let (code, answer) = put(&rig, "/api/v1/workloads/new", &spec(key, value));
        assert_eq!(code, 200, "{key}: {answer}");
    }
    // A question that the scheduler does not answer takes seconds.
    rig.made_up.asked.lock().unwrap().clear();
    let of_tenant = |(number, tenant): (usize, &&str)| {
        let mut spec = spec("tenant", json!(tenant));
        spec["name"] = json!(format!("new-{number}"));
        spec
    };
    let tenants = ["blue", "blue", "silent", "red"];
    let specs: Vec<_> = tenants.iter().enumerate().map(of_tenant).collect();
    assert_eq!(put(&rig, "/api/v1/workloads?dry_run=1", &json!(specs)).0, 200);
    assert_eq!(*rig.made_up.asked.lock().unwrap(), ["blue", "silent"]);
    let (_, shown) = rig.get(&format!("/api/v1/nodes/{node}"));
    assert_eq!(shown["labels"], json!({"zone": "a"}));
}

#[test]
fn writes_need_a_token_with_that_right_and_are_refused_to_other_sites() {
    let rig = Rig::start(false);
    let write = rig.tokens.add("hands", Right::Write, None, None).unwrap();
    let read = rig.tokens.add("eyes", Right::Read, None, None).unwrap();
    let cookie = tokens::digest(&write);
    let json = "Content-Type: application/json";
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    for (headers, code) in [
        (vec![json.to_owned()], 403),
        (vec![json.to_owned(), bearer(&read)], 403),
        (vec![json.to_owned(), bearer("nothing")], 401),
        (vec![json.to_owned(), "Authorization: Basic eDp5".into()], 401),
        // A cookie is sent to every port of this host, so it must not be enough.
        (vec![json.to_owned(), bearer(&cookie)], 401),
        (vec![json.to_owned(), format!("Cookie: {COOKIE}={cookie}")], 403),
        (vec!["Content-Type: text/plain".into(), bearer(&write)], 415),
        (
            vec![
                json.to_owned(),
                bearer(&write),
                "Sec-Fetch-Site: cross-site".into(),
            ],
            403,
        ),
        (
            vec![json.to_owned(), bearer(&write), "Host: evil.example".into()],
            403,
        ),
        (
            vec![
                json.to_owned(),
                bearer(&write),
                "Origin: http://evil.example".into(),
            ],
            403,
        ),
        (vec![json.to_owned(), bearer(&write), "Origin: null".into()], 403),
        (
            vec![json.to_owned(), bearer(&write), "Origin: http://localhost".into()],
            200,
        ),
        (vec![json.to_owned(), bearer(&write)], 200),
    ] {
        let head = format!(
            "POST /api/v1/workloads/web/rollout HTTP/1.1\r\n{}",
            headers.join("\r\n")
        );
        let (found, _, body) = rig.ask(&head, r#"{"order": "back"}"#);
        assert_eq!(found, code, "{headers:?}: {body}");
    }
    let spec = r#"{"name": "web", "count": 1, "start": {"command": ["a"]}}"#;
    for (query, code) in [("", 403), ("?dry_run=0", 403), ("?dry_run=1", 200)] {
        let head = format!(
            "PUT /api/v1/workloads/web{query} HTTP/1.1\r\n{json}\r\n{}",
            bearer(&read)
        );
        assert_eq!(rig.ask(&head, spec).0, code, "{query}");
    }
    let refused = rig.made_up.refused.lock().unwrap().clone();
    let first = "POST /api/v1/workloads/web/rollout was refused: a token that may write is needed";
    assert!(refused[0].starts_with(first), "{refused:?}");
    // Those of another client hide none of them.
    let of_eyes = refused.iter().filter(|text| text.ends_with("by token eyes"));
    assert_eq!(of_eyes.count(), 3, "{refused:?}");
    // A comparison confirms no guess of a value to a client that may not read it.
    let guess = r#"{"name": "web", "count": 1, "start": {"command": ["a"], "env": {"PASSWORD": "hunter2"}}}"#;
    for (token, is_hidden) in [(&read, true), (&write, false)] {
        let head = format!(
            "PUT /api/v1/workloads/web?dry_run=1 HTTP/1.1\r\n{json}\r\n{}",
            bearer(token)
        );
        assert_eq!(rig.ask(&head, guess).0, 200);
        let compared = format!("{:?}", rig.made_up.specs.lock().unwrap());
        assert!(
            compared.contains("PASSWORD") && compared.contains("hunter2") != is_hidden,
            "{compared}"
        );
    }
    let head = format!("DELETE /api/v1/workloads/gone HTTP/1.1\r\n{}", bearer(&write));
    assert_eq!(rig.ask(&head, "").0, 404);
    assert_eq!(
        *rig.made_up.orders.lock().unwrap(),
        [
            "Back web",
            "Back web",
            "apply web true",
            "apply web true",
            "apply web true",
            "delete gone"
        ]
    );
    rig.tokens.remove("hands").unwrap();
    assert_eq!(rig.ask(&head, "").0, 401);
    let long = format!(
        "PUT /api/v1/workloads/web HTTP/1.1\r\nContent-Length: {}\r\nX: y",
        BODY + 1
    );
    assert!(matches!(rig.ask(&long, "").0, 400 | 413));
}

#[test]
fn without_a_token_only_the_health_is_told() {
    let rig = Rig::of(|config| config);
    let pages = page::MENU.iter().map(|(path, ..)| *path);
    for path in pages.chain(["/workloads/web", "/healthz/", "/metrics"]) {
        assert_eq!(rig.ask(&format!("GET {path} HTTP/1.1"), "").0, 303, "{path}");
    }
    for name in [
        "status",
        "workloads",
        "instances",
        "nodes",
        "history",
        "traces",
        "events",
        "healthz",
    ] {
        assert_eq!(rig.get(&format!("/api/v1/{name}")).0, 401, "{name}");
    }
    let health = || rig.ask("GET /healthz HTTP/1.1", "");
    assert!(matches!(health(), (200, _, body) if body == "ok\n"));
    rig.made_up
        .change(|kept| kept.health.store = Some("/secret/controller.db: no space".into()));
    let (code, _, body) = health();
    assert!(code == 503 && !body.contains("secret"), "{code} {body}");
    assert_eq!(rig.ask("POST /healthz HTTP/1.1", "").0, 303);
}

#[test]
fn each_link_has_a_token_that_may_read_until_the_next_one_is_made() {
    let rig = Rig::of(|config| config);
    let own = rig.tokens.add("own", Right::Write, None, None).unwrap();
    let token = || {
        let link = rig.api.link().unwrap().unwrap();
        let (page, token) = link.split_once("/login#").unwrap();
        assert_eq!(page, rig.api.urls()[0]);
        token.to_owned()
    };
    let code = |token: &str, line: &str| {
        let head =
            format!("{line} HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json");
        rig.ask(&head, r#"{"order": "back"}"#).0
    };
    let first = token();
    assert_eq!(code(&first, "GET /api/v1/nodes"), 200);
    assert_eq!(code(&first, "POST /api/v1/workloads/web/rollout"), 403);
    let second = token();
    let codes = [&first, &second, &own].map(|token| code(token, "GET /api/v1/nodes"));
    assert_eq!(codes, [401, 200, 200]);
    let listed = rig.tokens.list().unwrap();
    assert!(listed.len() == 2 && listed[1].expires.is_some(), "{listed:?}");
    // It cannot take the name of a user's token.
    assert!(rig.tokens.add(&listed[1].name, Right::Read, None, None).is_err());
    rig.tokens.remove(&listed[1].name).unwrap();
    assert_eq!(code(&second, "GET /api/v1/nodes"), 401);
    assert_eq!(Rig::start(false).api.link().unwrap(), None);
}

#[test]
fn a_browser_logs_in_once_with_its_token() {
    let rig = Rig::start(true);
    let token = rig.tokens.add("eyes", Right::Read, None, None).unwrap();
    let (code, head, _) = rig.ask("GET /nodes HTTP/1.1", "");
    assert!(code == 303 && head.contains("\r\nLocation: /login\r\n"), "{head}");
    assert_eq!(rig.get("/api/v1/nodes").0, 401);
    assert_eq!(rig.ask("POST /login HTTP/1.1", "token=wrong").0, 401);
    let site = "POST /login HTTP/1.1\r\nSec-Fetch-Site: cross-site";
    assert_eq!(rig.ask(site, &format!("token={token}")).0, 403);
    let (code, head, _) = rig.ask("POST /login HTTP/1.1", &format!("token={token}"));
    assert_eq!(code, 303);
    let cookie = head
        .lines()
        .find_map(|line| line.strip_prefix("Set-Cookie: "))
        .unwrap();
    assert!(
        cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/"),
        "{cookie}"
    );
    assert!(!cookie.contains(&token[6..]), "the token is not sent back");
    let cookie = cookie.split(';').next().unwrap();
    let (code, _, page) = rig.ask(&format!("GET /nodes HTTP/1.1\r\nCookie: a=b; {cookie}"), "");
    assert!(code == 200 && page.contains("rack1-n00"), "{code}");
    let bearer = format!("GET /nodes HTTP/1.1\r\nAuthorization: Bearer {token}");
    assert_eq!(rig.ask(&bearer, "").0, 200);
    rig.tokens.remove("eyes").unwrap();
    assert_eq!(
        rig.ask(&format!("GET /nodes HTTP/1.1\r\nCookie: {cookie}"), "").0,
        303
    );
}

/// The next event of a stream: its id, and its other lines.
fn event(stream: &mut BufReader<TcpStream>) -> (Option<i64>, String) {
    let (mut id, mut rest) = (None, String::new());
    loop {
        let mut line = String::new();
        assert!(
            stream.read_line(&mut line).unwrap() > 0,
            "the stream has ended: {rest}"
        );
        let line = line.trim_end();
        match line.strip_prefix("id: ") {
            Some(number) => id = Some(number.parse().unwrap()),
            None if line.is_empty() && !rest.is_empty() => return (id, rest),
            None if line.starts_with("retry:") || line.starts_with(':') => {}
            None => rest += line,
        }
    }
}

fn follow(rig: &Rig, query: &str, header: &str) -> BufReader<TcpStream> {
    let head = format!("GET /api/v1/events{query} HTTP/1.1{header}");
    let mut stream = BufReader::new(rig.open(&head, ""));
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).unwrap();
    }
    stream
}

#[test]
fn after_a_reconnect_no_row_is_missed_and_none_comes_twice() {
    let rig = Rig::start(false);
    let write = |text: &str| rig.made_up.row(0, "node", None, None, None, text);
    let first = write("one");
    let mut stream = follow(&rig, &format!("?after={}", first - 1), "");
    let (id, data) = event(&mut stream);
    assert_eq!(id, Some(first));
    assert!(
        data.starts_with("data: {") && data.contains("\"text\":\"one\""),
        "{data}"
    );
    let second = write("two\nid: 9999\n\nevent: reload");
    // Any text of a peer is one line of JSON.
    assert_eq!(event(&mut stream).0, Some(second));
    drop(stream);
    let missed: Vec<_> = (0..300).map(|n| write(&n.to_string())).collect();
    // The header has a later row than the address, so the header counts.
    let query = format!("?after={}", first - 1);
    let mut stream = follow(&rig, &query, &format!("\r\nLast-Event-ID: {second}"));
    for id in missed {
        assert_eq!(event(&mut stream).0, Some(id));
    }
    let last = write("last");
    assert_eq!(event(&mut stream).0, Some(last));
}

#[test]
fn a_client_that_missed_deleted_rows_gets_reload() {
    let rig = Rig::start(false);
    let newest = rig.made_up.row(0, "node", None, None, None, "x");
    rig.made_up.forget(3);
    for after in ["0", "2", "99999"] {
        let (id, event_name) = event(&mut follow(&rig, &format!("?after={after}"), ""));
        assert_eq!(
            (id, event_name.as_str()),
            (None, "event: reloaddata: {}"),
            "{after}"
        );
    }
    // Row 3 is deleted, and a client that already has it misses no row.
    assert_eq!(event(&mut follow(&rig, "?after=3", "")).0, Some(4));
    let mut stream = follow(&rig, &format!("?after={newest}"), "");
    rig.made_up.forget(
        rig.made_up
            .rows(&Query {
                limit: 99,
                ..Query::default()
            })
            .unwrap()
            .len(),
    );
    // An empty history has no missed rows. Otherwise a page would reload itself again and again.
    let mut other = follow(&rig, &format!("?after={newest}"), "");
    let next = rig.made_up.row(0, "node", None, None, None, "y");
    assert_eq!(event(&mut stream).0, Some(next));
    assert_eq!(event(&mut other).0, Some(next));
}

#[test]
fn the_output_of_an_instance_comes_on_the_same_stream() {
    let rig = Rig::start(false);
    let uuid = made_up::instance_uuid(0);
    // Every user of this host can connect, and output may hold secrets.
    let (code, unknown) = rig.get(&format!("/api/v1/events?output={uuid}"));
    assert_eq!(code, 401, "{unknown}");
    let page = rig.ask(&format!("GET /instances/{uuid} HTTP/1.1"), "").2;
    assert!(page.contains("Log in") && !page.contains("listening"), "{page}");
    let mut stream = follow(&rig, &format!("?output={uuid}"), &rig.reader());
    assert_eq!(event(&mut stream).1, "event: begindata: {}");
    let first = event(&mut stream).1;
    assert!(
        first.starts_with("event: outputdata: {\"out\":\"listening"),
        "{first}"
    );
    rig.made_up.writes(&Written::Err("a\n\nevent: reload\n\n".into()));
    let data = r#"event: outputdata: {"err":"a\n\nevent: reload\n\n"}"#;
    assert_eq!(event(&mut stream).1, data);
    let row = rig.made_up.row(0, "node", None, None, None, "x");
    assert_eq!(event(&mut stream).0, Some(row));
    rig.made_up.writes(&Written::End(Some("its node left".into())));
    assert_eq!(
        event(&mut stream).1,
        r#"event: outputdata: {"end":"its node left"}"#
    );
    // The rows of the history continue.
    let row = rig.made_up.row(0, "node", None, None, None, "y");
    assert_eq!(event(&mut stream).0, Some(row));
    assert_eq!(rig.get("/api/v1/events?output=x").0, 400);
    // Without its token, the stream ends.
    rig.tokens.remove("eyes").unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
}

#[test]
fn followers_have_a_limit_of_their_own_besides_the_pages() {
    let rig = Rig::start(false);
    let streams: Vec<_> = (0..events::FOLLOWERS).map(|_| follow(&rig, "", "")).collect();
    let (code, problem) = rig.get("/api/v1/events");
    assert_eq!(code, 503, "{problem}");
    assert_eq!(rig.ask("GET / HTTP/1.1", "").0, 200);
    drop(streams);
    let deadline = ssntp_transport::deadline(LIMIT);
    loop {
        let mut first = String::new();
        BufReader::new(rig.open("GET /api/v1/events HTTP/1.1", ""))
            .read_line(&mut first)
            .unwrap();
        if first.contains(" 200 ") {
            break;
        }
        assert!(
            ssntp_transport::left(deadline).is_ok(),
            "the limit has no room again"
        );
    }
}

#[test]
fn a_stream_ends_when_its_token_is_removed() {
    let rig = Rig::start(true);
    let [eyes, others] =
        ["eyes", "others"].map(|name| rig.tokens.add(name, Right::Read, None, None).unwrap());
    let bearer = |token: &str| format!("\r\nAuthorization: Bearer {token}");
    let cookie = format!("\r\nCookie: {COOKIE}={}", tokens::digest(&eyes));
    let ending = [bearer(&eyes), cookie].map(|header| follow(&rig, "", &header));
    let mut stays = follow(&rig, "", &bearer(&others));
    rig.tokens.remove("eyes").unwrap();
    for mut stream in ending {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
    }
    let row = rig.made_up.row(0, "node", None, None, None, "x");
    assert_eq!(event(&mut stays).0, Some(row));
}

#[test]
fn a_stream_ends_when_its_certificate_is_no_longer_trusted() {
    let rig = Rig::start(false);
    let routes = &rig.api.routes;
    let (cluster, look) = (trust(), None);
    routes.access.renew(Trusts { cluster, look });
    let client = identity(Role::CONTROLLER);
    let mut request = Request::default();
    request.chain = client.chain().to_vec();
    let access = routes.access.clone();
    let may_read = || matches!(access.client(&request), Ok(Some(_)));
    assert!(may_read());
    let renewed = Authority::new(&AuthorityRequest::default()).unwrap();
    rig.api.renew(&client, renewed.trust(), None).unwrap();
    assert!(!may_read());
}

#[test]
fn an_expired_token_is_refused_with_401_and_its_end() {
    let rig = Rig::start(true);
    let token = rig
        .tokens
        .add("eyes", Right::Write, None, Some(Duration::ZERO))
        .unwrap();
    let bearer = format!("GET /api/v1/status HTTP/1.1\r\nAuthorization: Bearer {token}");
    let (code, _, body) = rig.ask(&bearer, "");
    assert!(
        code == 401 && body.contains("the token eyes expired at 2"),
        "{code} {body}"
    );
    let (code, head, page) = rig.ask("POST /login HTTP/1.1", &format!("token={token}"));
    assert!(
        code == 401 && page.contains("the token eyes expired at 2"),
        "{code} {page}"
    );
    assert!(!head.contains("Set-Cookie"), "{head}");
    // A browser that logged in before has to log in again.
    let cookie = format!("Cookie: {COOKIE}={}", tokens::digest(&token));
    assert_eq!(rig.ask(&format!("GET /nodes HTTP/1.1\r\n{cookie}"), "").0, 303);
    assert_eq!(
        rig.ask(&format!("GET /api/v1/nodes HTTP/1.1\r\n{cookie}"), "").0,
        401
    );
}

#[test]
fn sessions_are_sorted_by_dropped_frames() {
    let rig = Rig::start(false);
    let (code, _, page) = rig.ask("GET /sessions?sort=-dropped HTTP/1.1", "");
    assert_eq!(code, 200);
    let rows: Vec<_> = page.split("<tr").skip(2).collect();
    assert!(rows[0].contains(">4321<"), "{}", rows[0]);
    assert!(rows[1..].iter().all(|row| !row.contains(">4321<")));
}

#[test]
fn pages_have_a_strict_content_security_policy() {
    let rig = Rig::start(false);
    let (_, head, body) = rig.ask("GET / HTTP/1.1", "");
    assert!(
        head.contains("\r\nContent-Security-Policy: default-src 'none'; script-src 'self';"),
        "{head}"
    );
    assert!(head.contains("require-trusted-types-for 'script'"));
    assert!(
        !body.contains("<script>") && !body.contains(" style=") && !body.contains(" onclick"),
        "{body}"
    );
    assert!(!body.contains("http://") && !body.contains("https://"), "{body}");
    let (code, head, page) = rig.ask("GET /%3Cimg%20src=x%3E HTTP/1.1", "");
    assert!(
        code == 404 && head.contains("Content-Security-Policy") && !page.contains("<img"),
        "{page}"
    );
    assert_eq!(rig.ask("PUT /nodes HTTP/1.1", "x").0, 405);
    let (_, head, _) = rig.ask("HEAD /nodes HTTP/1.1", "");
    assert!(head.contains(" 200 OK"), "{head}");
}
