//! `ssntp controller` with its pages and its API, in a cluster of processes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use serde_json::Value;
use uuid::Uuid;

use super::logs::script;
use super::processes::{self, Cluster, Done, LIMIT, Process};

/// Sends a request, and returns the head and the body of the answer.
fn ask(address: &str, head: &str, body: &str) -> (String, String) {
    let length = body.len();
    let request = format!("{head}\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
    let try_once = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    // The server closes a connection that has sent no request in two seconds, which a thread of a busy
    // machine may need.
    let mut parts = (String::new(), String::new());
    processes::until("a request is answered", || {
        let answer = try_once().map_err(|e| e.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(&answer)?;
        parts = (head.to_owned(), body.to_owned());
        Ok(())
    });
    parts
}

/// A browser that follows the output of an instance.
struct Follower {
    stream: TcpStream,
    /// Received bytes that are not a complete line yet.
    text: Vec<u8>,
}

impl Follower {
    fn new((address, token): &(String, String), instance: Uuid) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let head = format!(
            "GET /api/v1/events?output={instance} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
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
            let read = self.stream.read(&mut piece);
            let last = || String::from_utf8_lossy(&self.text).into_owned();
            let read =
                read.unwrap_or_else(|e| panic!("no line in {LIMIT:?}: {e}; its beginning: {:?}", last()));
            assert!(read > 0, "the stream has ended; its last text: {:?}", last());
            self.text.extend(&piece[..read]);
        }
    }

    /// The next piece of output: its source and its text. Rows of the history are skipped.
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
    fn until(&mut self, part: &str) -> String {
        let mut text = String::new();
        while !text.contains(part) {
            let (name, more) = self.piece();
            assert_ne!(name, "end", "the stream has ended: {more:?} after {text}");
            text += &more.unwrap();
        }
        text
    }

    /// The reason of an early end, if there is one. Earlier pieces are skipped.
    fn end(&mut self) -> Option<String> {
        loop {
            if let (name, reason) = self.piece()
                && name == "end"
            {
                return reason;
            }
        }
    }
}

/// Requests a page until it contains a text.
fn until(address: &str, path: &str, part: &str) -> String {
    let mut page = String::new();
    processes::until(&format!("{path} says {part}"), || {
        page = ask(address, &format!("GET {path} HTTP/1.1"), "").1;
        if page.contains(part) {
            Ok(())
        } else {
            Err(page.clone())
        }
    });
    page
}

/// A controller of a cluster, and the address of its pages with a token that may write.
fn controller(cluster: &Cluster) -> (Process, (String, String)) {
    let line = [
        "--ca",
        "ca.pem",
        "--cert",
        "controller.pem",
        "--store",
        "db",
        "--http",
        "127.0.0.1:0",
        "--http-login=false",
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
    let token = made["token"].as_str().unwrap().to_owned();
    (controller, (address, token))
}

#[test]
fn a_started_controller_prints_once_a_link_that_reads_until_its_next_start() {
    let cluster = Cluster::with_agents(0);
    let start = || {
        let words = ["controller", "--store", "db", "--http", "127.0.0.1:0"];
        let controller = Process::of(cluster.command(&words), &cluster.path(""), "controller");
        let page = controller.line_with("page at http://");
        let link = controller.line_with("log in, within a day, at ");
        let address = page.trim().rsplit('/').next().unwrap().to_owned();
        let token = link.trim().rsplit('#').next().unwrap().to_owned();
        assert!(link.contains(&format!(" http://{address}/login#")), "{link}");
        (controller, address, token)
    };
    let code = |address: &str, token: &str| {
        let head = match token {
            "" => "GET /api/v1/nodes HTTP/1.1".to_owned(),
            token => format!("GET /api/v1/nodes HTTP/1.1\r\nAuthorization: Bearer {token}"),
        };
        ask(address, &head, "").0.split(' ').nth(1).unwrap().to_owned()
    };
    let (first, address, token) = start();
    assert_eq!(
        (code(&address, "").as_str(), code(&address, &token).as_str()),
        ("401", "200")
    );
    assert!(ask(&address, "GET /healthz HTTP/1.1", "").0.contains(" 200 "));
    let get = Done::of(cluster.command(&["ctl", "get", "--http", &address]));
    assert!(
        get.code == Some(1) && get.stderr.contains("--token-file"),
        "{get:?}"
    );
    first.kill();
    let (_second, address, next) = start();
    assert_eq!(
        (code(&address, &token).as_str(), code(&address, &next).as_str()),
        ("401", "200")
    );
}

#[test]
fn pages_show_the_running_and_the_gone_instances_of_a_live_cluster() {
    let mut cluster = Cluster::with_agents(1);
    let (_controller, page) = controller(&cluster);
    let (address, token) = &page;
    let spec = r#"{"name": "web", "start": {"command": ["sh", "-c", "echo hello; sleep 1000"]}}"#;
    let put = format!(
        "PUT /api/v1/workloads/web HTTP/1.1\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}"
    );
    let (head, body) = ask(address, &put, spec);
    assert!(
        head.contains(" 200 ") && body.contains("created"),
        "{head} {body}"
    );
    until(address, "/workloads/web", "</i>running");
    until(address, "/sessions", "CN=agent");
    let (_, body) = ask(address, "GET /api/v1/instances HTTP/1.1", "");
    let instances: Value = serde_json::from_str(&body).unwrap();
    let instance = instances[0]["uuid"].as_str().unwrap();
    Follower::new(&page, instance.parse().unwrap()).until("hello");
    let (_, rows) = ask(address, "GET /api/v1/history?kind=applied HTTP/1.1", "");
    assert!(rows.contains("\"workload\":\"web\""), "{rows}");
    cluster.kill_node(0);
    until(address, "/", "1 node is gone");
    until(address, &format!("/instances/{instance}"), "</i>was running");
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

/// Waits until this number of outputs is followed.
fn until_followed(cluster: &Cluster, number: &str) {
    processes::until(&format!("{number} are followed"), || match followed(cluster) {
        followed if followed == number => Ok(()),
        followed => Err(format!("{followed} are followed")),
    });
}

#[test]
fn an_output_is_followed_to_its_end_or_until_its_last_reader_leaves() {
    let mut cluster = Cluster::new("--admin unix:admin");
    cluster.agent("");
    cluster.controller_sees(1);
    let (_controller, page) = controller(&cluster);
    until(&page.0, "/api/v1/status", "\"told\":true");

    let reason = Follower::new(&page, Uuid::from_u128(7)).end().unwrap();
    assert!(reason.contains("(no_instance)"), "{reason}");

    // The instance writes two of the three bytes of a character, and the third one after the text
    // before it has arrived. A byte that belongs to no character is shown as U+FFFD.
    let split = script(
        &cluster,
        "printf 'a\\342\\202'; while [ ! -e go ]; do sleep 0.02; done; printf '\\254z\\377\\n'",
    );
    let go = |instance: Uuid| {
        let instances = cluster.path("state-0/instances");
        std::fs::write(instances.join(instance.to_string()).join("work/go"), "").unwrap();
    };
    let mut follower = Follower::new(&page, split);
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
    let mut slow = Follower::new(&page, loud);
    slow.until("begin\n");
    go(loud);
    Follower::new(&page, loud).until("the end\n");
    let text = slow.until("the end\n");
    if !text.contains("missing") {
        let numbers: Vec<_> = text.lines().map_while(|line| line.parse::<u32>().ok()).collect();
        assert!(numbers.iter().copied().eq(1..=100_000), "{} lines", numbers.len());
    }
    drop(slow);
    until_followed(&cluster, "0");

    // This is the maximum for a session. One more follower is refused, and all of them get rows.
    let mut followers: Vec<_> = (0..32).map(|_| Follower::new(&page, loud)).collect();
    for follower in &mut followers {
        follower.until("the end");
    }
    let reason = Follower::new(&page, loud).end().unwrap();
    assert!(reason.contains("(too_many)"), "{reason}");
    until_followed(&cluster, "32");
    // The followers leave, and their outputs are no longer followed at the scheduler.
    followers.truncate(1);
    until_followed(&cluster, "1");

    // The node is killed while its output is followed.
    cluster.kill_node(0);
    let reason = followers[0].end().unwrap();
    assert!(reason.contains("(not_connected)"), "{reason}");
    // The rows of the history continue.
    cluster.start_node(0, "agent", "");
    while !followers[0].line().starts_with("id: ") {}
}
