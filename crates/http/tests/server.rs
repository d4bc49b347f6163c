//! Services other than the pages: bodies, and answers that are streams.

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
use std::sync::Arc;
use std::time::{Duration, Instant};

use ssntp_http::HttpConfig;
use ssntp_http::{Answer, Http, Limits, Reply, Request, Service};

const LIMIT: Duration = Duration::from_secs(60);

/// Answers a body with itself, and counts in a stream.
struct Echo;

impl Service for Echo {
    fn limits(&self) -> Limits {
        Limits {
            methods: "GET, PUT",
            body: 1 << 16,
            streams: 1,
        }
    }

    fn reply(&self, request: &Request) -> Reply {
        let text = "text/plain";
        if request.path != "/count" {
            return Answer::new(200, text, request.body.clone()).into();
        }
        let body = |stream: &mut ssntp_http::Stream| {
            let mut next = 0..;
            while !stream.is_over() && stream.send(format!("{:?}\n", next.next())).is_ok() {}
        };
        Reply::Parts(Answer::new(200, text, ""), Box::new(body))
    }
}

fn start() -> (Http, String) {
    let config = HttpConfig::new("127.0.0.1:0".parse().unwrap());
    let http = Http::start(&config, "echo", "echo", Arc::new(Echo)).unwrap();
    let address = http.addresses()[0].to_string();
    (http, address)
}

fn connect(address: &str, head: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "{head}\r\nHost: localhost\r\n").unwrap();
    stream
}

#[test]
fn a_body_that_comes_in_pieces_is_given_whole() {
    let (http, address) = start();
    let body = "x".repeat(1 << 16);
    let mut stream = connect(&address, "PUT / HTTP/1.1");
    write!(stream, "Content-Length: {}\r\n\r\n", body.len()).unwrap();
    for piece in body.as_bytes().chunks(9973) {
        stream.write_all(piece).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with(&format!("\r\n\r\n{body}")));
    // The service does not receive a body that is cut.
    let mut stream = connect(&address, "PUT / HTTP/1.1");
    write!(stream, "Content-Length: 9\r\n\r\nhalf").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    answer.clear();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "");
    drop(http);
}

#[test]
fn streams_have_a_limit_of_their_own_and_end_with_their_client_or_the_service() {
    let (http, address) = start();
    let open = || {
        let mut stream = connect(&address, "GET /count HTTP/1.1");
        stream.write_all(b"\r\n").unwrap();
        let mut stream = BufReader::new(stream);
        let mut first = String::new();
        stream.read_line(&mut first).unwrap();
        (first.contains(" 200 "), stream)
    };
    let (is_open, mut first) = open();
    assert!(is_open);
    let mut line = String::new();
    while !line.contains("Some(5)") {
        line.clear();
        first.read_line(&mut line).unwrap();
    }
    assert!(!open().0, "the limit is one stream");
    // Other answers do not count towards the limit of streams.
    let mut whole = connect(&address, "GET / HTTP/1.1");
    whole.write_all(b"\r\n").unwrap();
    whole.read_to_string(&mut line).unwrap();
    assert!(line.contains(" 200 OK"));
    drop(first);
    let deadline = Instant::now() + LIMIT;
    let mut second = loop {
        match open() {
            (true, stream) => break stream,
            _ => assert!(Instant::now() < deadline, "the limit has no room again"),
        }
    };
    drop(http);
    // The parts that were sent before are still readable; then the stream ends.
    let _ = second.read_to_string(&mut line);
}

#[test]
fn a_proxy_in_front_has_a_name_and_is_asked_to_pass_streams_on_at_once() {
    let config = HttpConfig::new("127.0.0.1:0".parse().unwrap()).hosts(vec!["Outer.example".to_owned()]);
    let http = Http::start(&config, "echo", "echo", Arc::new(Echo)).unwrap();
    let address = http.addresses()[0].to_string();
    let head = |path: &str, host: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>()
    };
    for (host, code) in [
        ("outer.example", 200),
        ("OUTER.example:8443", 200),
        ("inner.example", 403),
    ] {
        let status = &head("/", host)[0];
        assert!(
            status.starts_with(&format!("HTTP/1.1 {code} ")),
            "{host}: {status}"
        );
    }
    let unbuffered = |path| {
        let head = head(path, "outer.example");
        head.iter().any(|line| line == "X-Accel-Buffering: no")
    };
    assert!(unbuffered("/count") && !unbuffered("/"));
}
