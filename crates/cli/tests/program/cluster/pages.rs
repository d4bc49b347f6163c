//! `ssntp controller` with its pages and its API, in a cluster of processes.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use super::processes::{Cluster, Done, LIMIT, Process};

/// Asks for something; gives the head and the body of the answer.
fn ask(address: &str, head: &str, body: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{head}\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Follows what an instance writes until it has said something.
fn until_written(address: &str, instance: &str, said: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(
        stream,
        "GET /api/v1/events?output={instance} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    while !text.contains(said) {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "the stream ended without {said}: {text}");
        text.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
}

/// Asks for a page until it says something.
fn until(address: &str, path: &str, said: &str) -> String {
    let began = std::time::Instant::now();
    loop {
        let (_, page) = ask(address, &format!("GET {path} HTTP/1.1"), "");
        if page.contains(said) {
            return page;
        }
        assert!(began.elapsed() < LIMIT, "{path} does not say {said}: {page}");
        std::thread::yield_now();
    }
}

#[test]
fn pages_show_what_runs_in_a_live_cluster_and_what_is_gone() {
    let mut cluster = Cluster::with_agents(1);
    let line = [
        "--ca",
        "ca.pem",
        "--cert",
        "controller.pem",
        "--store",
        "db",
        "--http",
        "127.0.0.1:0",
    ];
    let words = [&["controller", "--connect", cluster.address()], &line[..]].concat();
    let controller = Process::start(&cluster.path(""), &words);
    assert!(controller.line().starts_with("controller "));
    let page = controller.line();
    let address = page.trim().strip_prefix("page at http://").unwrap().to_owned();

    let words = [
        "controller",
        "token",
        "add",
        "hands",
        "--write",
        "--store",
        "db",
        "--json",
    ];
    let made = Done::of(cluster.command(&words));
    let made: Value = serde_json::from_str(&made.stdout).unwrap_or_else(|e| panic!("{e}: {made:?}"));
    let token = made["token"].as_str().unwrap();
    let spec = r#"{"name": "web", "start": {"command": ["sh", "-c", "echo hello; sleep 1000"]}}"#;
    let put = format!(
        "PUT /api/v1/workloads/web HTTP/1.1\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}"
    );
    let (head, body) = ask(&address, &put, spec);
    assert!(
        head.contains(" 200 ") && body.contains("created"),
        "{head} {body}"
    );
    until(&address, "/workloads/web", "</i>active");
    until(&address, "/sessions", "CN=agent");
    let (_, body) = ask(&address, "GET /api/v1/instances HTTP/1.1", "");
    let instances: Value = serde_json::from_str(&body).unwrap();
    let instance = instances[0]["uuid"].as_str().unwrap();
    until_written(&address, instance, "\"out\":\"hello");
    let (_, rows) = ask(&address, "GET /api/v1/history?kind=applied HTTP/1.1", "");
    assert!(rows.contains("\"workload\":\"web\""), "{rows}");
    cluster.kill_node(0);
    until(&address, "/", "1 node is gone");
    until(&address, &format!("/instances/{instance}"), "</i>was active");
}
