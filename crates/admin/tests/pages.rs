//! Pages about a process that embeds this crate.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test may fail, and has time limits"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use serde_json::json;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
use ssntp::server::{Context, Handler, SessionInfo};
use ssntp::transport::memory::MemoryListener;
use ssntp::{Client, ClientConfig, Command, Frame, Role, Server, ServerConfig};
use ssntp_admin::{Admin, AdminConfig, AdminError, Metric, Row, Snapshot, counter, one};

const LIMIT: Duration = Duration::from_secs(60);
const SHOP: &[Metric<u64>] = &[counter("shop_orders_total", "Orders.", |orders| one(*orders))];

/// The status code and the body of a page.
fn get(admin: &Admin, page: &str) -> (u16, String) {
    let urls = admin.urls();
    let mut stream = TcpStream::connect(urls[0].strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let request = format!("GET {page} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Asks for a page until it has this code. On a busy machine the dispatcher may need longer for an answer
/// than the pages wait for it.
#[track_caller]
fn until(admin: &Admin, page: &str, code: u16) -> String {
    let deadline = Instant::now() + LIMIT;
    loop {
        match get(admin, page) {
            (found, body) if found == code => return body,
            other => assert!(Instant::now() < deadline, "{page} is not {code}: {other:?}"),
        }
    }
}

/// An application that blocks its dispatcher at the first frame.
struct Stuck(Receiver<()>);

impl Handler for Stuck {
    fn frame(&mut self, _: &mut Context<'_>, _: &SessionInfo, _: Frame) {
        let _ = self.0.recv();
    }
}

#[test]
fn a_dispatcher_that_does_not_answer_is_reported_and_blocks_no_page() {
    let authority = Authority::new(&AuthorityRequest::default()).unwrap();
    let identity = |role| {
        authority
            .issue(&CertificateRequest::new(role))
            .unwrap()
            .identity()
    };
    let place = MemoryListener::new();
    let config = ServerConfig::new(identity(Role::SERVER), authority.trust()).listen_in_memory(&place);
    let (release, stuck) = bounded::<()>(0);
    let server = Server::start(config, Stuck(stuck)).unwrap();
    let handle = server.handle();
    let shown = move || {
        let figures = handle.figures().map_err(|e| e.to_string())?;
        let mut shown = Snapshot::of_server(&figures);
        shown.metrics.add(SHOP, &7);
        shown.show("shop", "open");
        Ok(shown)
    };
    let admin = Admin::start(AdminConfig::new("127.0.0.1:0".parse().unwrap()), shown).unwrap();
    let config = ClientConfig::new(identity(Role::AGENT), authority.trust()).connect_in_memory(&place);
    let client = Client::connect(config).unwrap();
    until(&admin, "/healthz", 200);
    assert!(get(&admin, "/metrics").1.contains("\nshop_orders_total 7\n"));
    assert!(get(&admin, "/info").1.contains("\"shop\": \"open\""));

    client
        .send(Frame::with_payload(Command::STATS, "load: 1\n"))
        .unwrap();
    // The former figures may be shown for a second.
    let body = until(&admin, "/healthz", 503);
    assert!(body.contains("the application has not answered for"), "{body}");
    assert_eq!(get(&admin, "/readyz").0, 503);
    assert_eq!(get(&admin, "/sessions").0, 503);
    let (code, text) = get(&admin, "/metrics");
    assert_eq!(code, 200);
    assert!(
        text.contains("\nssntp_answering 0\n") && !text.contains("shop_orders"),
        "{text}"
    );
    drop(release);
    until(&admin, "/healthz", 200);
    admin.stopping();
    assert!(get(&admin, "/readyz").1.contains("it is stopping"));
    until(&admin, "/healthz", 200);
    server.stop();
    admin.stop();
}

#[test]
fn pages_that_other_hosts_can_reach_do_not_start_without_tls() {
    let config = AdminConfig::new("0.0.0.0:0".parse().unwrap());
    let refused = Admin::start(config, || Ok(Snapshot::default())).unwrap_err();
    assert!(matches!(refused, AdminError::Open(_)), "{refused}");
}

/// Pages at a Unix socket, whose buffers hold less than a large answer, with a thousand sessions.
fn pages_of_a_thousand(place: &Path) -> Admin {
    let address = format!("unix:{}", place.display()).parse().unwrap();
    let source = || {
        let mut snapshot = Snapshot::default();
        let row = |key| {
            Row::new(
                key,
                None,
                Role::NONE,
                move || json!({ "session": key, "x": "x".repeat(2000) }),
            )
        };
        snapshot.sessions = (1..=1000).map(row).collect();
        snapshot.closed = (1..=1000).map(row).collect();
        Ok(snapshot)
    };
    Admin::start(AdminConfig::new(address), source).unwrap()
}

/// Asks for a page, and reads the first line of the answer.
fn ask(place: &Path, page: &str) -> (String, BufReader<UnixStream>) {
    let mut stream = UnixStream::connect(place).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {page} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = BufReader::new(stream);
    let mut first = String::new();
    answer.read_line(&mut first).unwrap();
    (first, answer)
}

/// For any number of clients that do not read, at most two large answers are in memory.
#[test]
fn clients_that_do_not_read_hold_at_most_two_large_answers() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("pages");
    let admin = pages_of_a_thousand(&place);
    let (one, mut kept) = ask(&place, "/sessions?limit=1000");
    let (two, other) = ask(&place, "/closed");
    assert!(one.contains(" 200 ") && two.contains(" 200 "), "{one}{two}");
    for page in ["/sessions?limit=101", "/closed"] {
        let (refused, mut rest) = ask(&place, page);
        assert!(refused.contains(" 503 "), "{refused}");
        let mut body = String::new();
        rest.read_to_string(&mut body).unwrap();
        assert!(body.contains("large answers are under way"), "{body}");
    }
    // Small pages are still served.
    for page in ["/sessions", "/healthz", "/metrics"] {
        assert!(ask(&place, page).0.contains(" 200 "), "{page}");
    }
    drop(other);
    let mut body = String::new();
    kept.read_to_string(&mut body).unwrap();
    let deadline = Instant::now() + LIMIT;
    while !ask(&place, "/closed").0.contains(" 200 ") {
        assert!(Instant::now() < deadline, "no large answer is possible again");
    }
    // An answer ends at a MiB, and says where the next one begins.
    let (_, body) = body.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let shown = body["sessions"].as_array().unwrap().len();
    assert!((500..600).contains(&shown), "{shown}");
    assert_eq!((&body["next"], &body["connected"]), (&json!(shown), &json!(1000)));
    admin.stop();
}

/// An empty Host header is not a name of this host.
#[test]
fn an_empty_host_is_refused() {
    let admin = Admin::start(AdminConfig::new("127.0.0.1:0".parse().unwrap()), || {
        Ok(Snapshot::default())
    });
    let admin = admin.unwrap();
    let mut stream = TcpStream::connect(admin.urls()[0].strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"GET /info HTTP/1.1\r\nHost:\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}
