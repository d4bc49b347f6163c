//! `ssntp controller` with its pages and its API, in a cluster of processes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use serde_json::Value;
use uuid::Uuid;

use super::logs::script;
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

/// A browser that follows what an instance writes.
struct Follower {
    stream: TcpStream,
    /// Received text that was not checked yet.
    text: Vec<u8>,
}

impl Follower {
    fn new(address: &str, instance: Uuid) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let head = format!("GET /api/v1/events?output={instance} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let text = Vec::new();
        Self { stream, text }
    }

    /// The next line of the answer.
    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<_> = self.text.drain(..=end).collect();
                return String::from_utf8(line).unwrap().trim_end().to_owned();
            }
            let mut piece = [0; 65_536];
            let read = self.stream.read(&mut piece).unwrap();
            assert!(read > 0, "the stream has ended");
            self.text.extend(&piece[..read]);
        }
    }

    /// The next piece of output: where it is from, and its text. Rows of the history are passed over.
    fn piece(&mut self) -> (String, Option<String>) {
        loop {
            if self.line() == "event: output" {
                let line = self.line();
                let piece: Value = serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap();
                let (name, text) = piece.as_object().unwrap().iter().next().unwrap();
                return (name.clone(), text.as_str().map(str::to_owned));
            }
        }
    }

    /// The output of the instance, up to this text.
    fn until(&mut self, said: &str) -> String {
        let mut text = String::new();
        while !text.contains(said) {
            let (name, more) = self.piece();
            assert_ne!(name, "end", "it has ended: {more:?} behind {text}");
            text += &more.unwrap();
        }
        text
    }

    /// Why it ended, if it did early; what comes before is passed over.
    fn end(&mut self) -> Option<String> {
        loop {
            if let (name, why) = self.piece()
                && name == "end"
            {
                return why;
            }
        }
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

/// A controller of a cluster, and the address of its pages.
fn controller(cluster: &Cluster) -> (Process, String) {
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
    (controller, address)
}

#[test]
fn pages_show_what_runs_in_a_live_cluster_and_what_is_gone() {
    let mut cluster = Cluster::with_agents(1);
    let (_controller, address) = controller(&cluster);
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
    Follower::new(&address, instance.parse().unwrap()).until("hello");
    let (_, rows) = ask(&address, "GET /api/v1/history?kind=applied HTTP/1.1", "");
    assert!(rows.contains("\"workload\":\"web\""), "{rows}");
    cluster.kill_node(0);
    until(&address, "/", "1 node is gone");
    until(&address, &format!("/instances/{instance}"), "</i>was active");
}

/// The number of outputs that are followed at the scheduler.
fn followed(cluster: &Cluster) -> String {
    let mut stream = UnixStream::connect(cluster.path("admin")).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("ssntp_scheduler_streams "));
    line.unwrap_or_else(|| panic!("no number of streams: {page}"))
        .to_owned()
}

/// Waits until so many outputs are followed.
fn until_followed(cluster: &Cluster, number: &str) {
    let began = std::time::Instant::now();
    while followed(cluster) != number {
        assert!(
            began.elapsed() < LIMIT,
            "{} are followed, not {number}",
            followed(cluster)
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn an_output_is_followed_to_its_end_and_no_longer_than_somebody_reads() {
    let mut cluster = Cluster::new("--admin unix:admin");
    cluster.agent("");
    cluster.controller_sees(1);
    let (_controller, address) = controller(&cluster);
    until(&address, "/api/v1/status", "\"told\":true");

    let why = Follower::new(&address, Uuid::from_u128(7)).end().unwrap();
    assert!(why.contains("(no_instance)"), "{why}");

    // Two of the three bytes of a character, and the third one when somebody has seen what is
    // before it. A byte that belongs to no character is shown as such.
    let split = script(
        &cluster,
        "printf 'a\\342\\202'; while [ ! -e go ]; do sleep 0.02; done; printf '\\254z\\377\\n'",
    );
    let go = |instance: Uuid| {
        let instances = cluster.path("state-0/instances");
        std::fs::write(instances.join(instance.to_string()).join("work/go"), "").unwrap();
    };
    let mut follower = Follower::new(&address, split);
    assert_eq!(follower.piece(), ("out".into(), Some("a".into())));
    go(split);
    assert_eq!(follower.until("\n"), "\u{20ac}z\u{fffd}\n");
    assert_eq!(follower.end(), None, "the instance has ended");
    until_followed(&cluster, "0");

    // The output for a browser has a limited rate, so the rest of this waits on its node. Lines arrive
    // in order and once, unless the page reports that some are missing.
    let loud = script(
        &cluster,
        "echo begin; while [ ! -e go ]; do sleep 0.02; done; seq 1 100000; echo the end; sleep 1000",
    );
    let mut slow = Follower::new(&address, loud);
    slow.until("begin\n");
    go(loud);
    Follower::new(&address, loud).until("the end\n");
    let text = slow.until("the end\n");
    if !text.contains("missing") {
        let numbers: Vec<_> = text.lines().map_while(|line| line.parse::<u32>().ok()).collect();
        assert!(numbers.iter().copied().eq(1..=100_000), "{} lines", numbers.len());
    }
    drop(slow);
    until_followed(&cluster, "0");

    // The maximum that a session may follow; one more is refused, and the rows of all continue.
    let mut followers: Vec<_> = (0..32).map(|_| Follower::new(&address, loud)).collect();
    for follower in &mut followers {
        follower.until("the end");
    }
    let why = Follower::new(&address, loud).end().unwrap();
    assert!(why.contains("(too_many)"), "{why}");
    until_followed(&cluster, "32");
    // They leave, and nothing is followed for them any more.
    followers.truncate(1);
    until_followed(&cluster, "1");

    // Its node goes in the middle.
    cluster.kill_node(0);
    let why = followers[0].end().unwrap();
    assert!(why.contains("(not_connected)"), "{why}");
    // The rows go on.
    cluster.start_node(0, "agent", "");
    while !followers[0].line().starts_with("id: ") {}
}
