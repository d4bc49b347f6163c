//! OpFlex on this machine: `cargo bench --bench opflex`. Server and element are
//! processes of their own; the client is a raw one over TCP on loopback.
//!
//! | line | what is measured |
//! |---|---|
//! | resolve | round trips of `policy_resolve` with so many under way |
//! | connect | TCP connect, identity and close, one after the other |
//! | push | from a change until the last connection has the update |
//! | memory | resident size of the server for each connection |
//! | element | 5,000 policies with a child each: time and resident size |
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a bench with sockets and a clock that fails loudly"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ssntp::opflex::model::{ManagedObject, Uri};
use ssntp::opflex::policy_element::{self, Event};
use ssntp::opflex::run::{Control, ElementConfig, ServerConfig};
use ssntp::opflex::{PolicyElement, Server, server};
use ssntp::transport::Address;

const POLICIES: usize = 5000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("serve") => serve(&arguments[2]),
        Some("element") => element(&arguments[2]),
        _ => measure(),
    }
}

fn at(n: usize) -> Uri {
    format!("/PolicyUniverse/PolicySpace/bench/GbpEpGroup/group{n}/")
        .parse()
        .unwrap()
}

fn group(n: usize, value: &str) -> ManagedObject {
    ManagedObject::new("GbpEpGroup", at(n))
        .with("name", value)
        .with("intraGroupPolicy", "allow")
}

fn policy() -> Vec<ManagedObject> {
    let child = |n: usize| {
        let uri = format!("{}GbpeInstContext/", at(n)).parse().unwrap();
        let child = ManagedObject::new("GbpeInstContext", uri);
        child
            .with("encapId", 1000 + n)
            .with("classid", n)
            .under("GbpEpGroup", at(n))
    };
    (0..POLICIES).flat_map(|n| [group(n, "0"), child(n)]).collect()
}

fn serve(control: &str) {
    let config = ServerConfig::new(server::Settings::new("bench", "bench"))
        .policy(policy())
        .control(control)
        .listen(Address::tcp("127.0.0.1", 0));
    let server = Server::start(config).unwrap();
    println!("{}", server.addresses()[0]);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    server.stop();
}

fn element(address: &str) {
    let settings = policy_element::Settings::new("bench", "bench", [address]);
    let element = PolicyElement::start(ElementConfig::new(settings)).unwrap();
    while element.recv().unwrap() != Event::Health(policy_element::Health::Healthy) {}
    println!("ready");
    let begin = Instant::now();
    let references: Vec<_> = (0..POLICIES).map(|n| element.resolve(&at(n)).unwrap()).collect();
    let mut resolved = 0;
    while resolved < POLICIES {
        if let Event::Resolved { found, .. } = element.recv().unwrap() {
            assert!(found);
            resolved += 1;
        }
    }
    println!("{}", begin.elapsed().as_secs_f64());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(references);
}

/// This program again, in another role, and a line that it prints first.
fn start(role: &str, argument: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([role, argument])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

fn rss_kb(child: &Child) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

struct Raw {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    text: Vec<u8>,
}

impl Raw {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let reader = BufReader::with_capacity(64 * 1024, stream.try_clone().unwrap());
        let mut raw = Self {
            stream,
            reader,
            text: Vec::new(),
        };
        raw.send(r#"{"id":["send_identity",1],"method":"send_identity","params":[{"proto_version":"1.0","name":"raw","domain":"bench","my_role":["policy_element"]}]}"#);
        raw.until("\"result\"");
        raw
    }

    fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
        self.stream.write_all(b"\0").unwrap();
    }

    /// Reads messages up to the first with this text in it.
    fn until(&mut self, part: &str) {
        loop {
            self.text.clear();
            self.reader.read_until(0, &mut self.text).unwrap();
            if self
                .text
                .windows(part.len())
                .any(|window| window == part.as_bytes())
            {
                return;
            }
            assert!(!self.text.is_empty(), "the server closed the connection");
        }
    }

    fn resolve(n: usize) -> String {
        format!(
            "{{\"id\":[\"policy_resolve\",{n}],\"method\":\"policy_resolve\",\"params\":[{{\"subject\":\"GbpEpGroup\",\"policy_uri\":\"{}\",\"prr\":3600}}]}}",
            at(n % 1000)
        )
    }
}

fn measure() {
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("control");
    let (mut server, mut output) = start("serve", control.to_str().unwrap());
    let address = line(&mut output);
    let idle = rss_kb(&server);
    println!("server    {:.1} MB with {POLICIES} policies", idle / 1024.0);
    resolves(&address);
    connects(&address);
    for connections in [100, 500, 1000] {
        push(&address, &control, &server, connections);
    }
    let (mut child, mut output) = start("element", &address);
    line(&mut output);
    let before = rss_kb(&child);
    let seconds: f64 = line(&mut output).parse().unwrap();
    println!(
        "element   {POLICIES} policies in {:.0} ms, {:.0}/s; {:.1} MB before, {:.1} MB with them",
        seconds * 1e3,
        POLICIES as f64 / seconds,
        before / 1024.0,
        rss_kb(&child) / 1024.0
    );
    drop(child.stdin.take());
    child.wait().unwrap();
    drop(server.stdin.take());
    server.wait().unwrap();
}

fn resolves(address: &str) {
    let mut raw = Raw::connect(address);
    for window in [1usize, 16, 64] {
        const COUNT: usize = 60_000;
        let mut sent_at = std::collections::VecDeque::new();
        let mut times = Vec::with_capacity(COUNT);
        let begin = Instant::now();
        let mut sent = 0;
        while times.len() < COUNT {
            let mut batch = String::new();
            while sent < COUNT && sent_at.len() < window {
                batch.push_str(&Raw::resolve(sent));
                batch.push('\0');
                sent_at.push_back(Instant::now());
                sent += 1;
            }
            raw.stream.write_all(batch.as_bytes()).unwrap();
            // As many answers as came together.
            loop {
                raw.until("\"policy\"");
                times.push(sent_at.pop_front().unwrap().elapsed());
                if sent_at.is_empty() || !raw.reader.buffer().contains(&0) {
                    break;
                }
            }
        }
        let rate = COUNT as f64 / begin.elapsed().as_secs_f64();
        times.sort_unstable();
        let at = |percent: usize| times[COUNT * percent / 100].as_secs_f64() * 1e3;
        println!(
            "resolve   window {window:2}: {rate:.0}/s, p50 {:.3} ms, p99 {:.3} ms, {} bytes each",
            at(50),
            at(99),
            raw.text.len()
        );
    }
}

fn connects(address: &str) {
    const COUNT: usize = 4000;
    let begin = Instant::now();
    for _ in 0..COUNT {
        drop(Raw::connect(address));
    }
    let each = begin.elapsed().as_secs_f64() / COUNT as f64;
    println!("connect   {:.0}/s, {:.2} ms each", 1.0 / each, each * 1e3);
}

fn push(address: &str, control: &Path, server: &Child, connections: usize) {
    let mut control = Control::connect(control, Duration::from_secs(20)).unwrap();
    // Those of the last time are gone.
    while !control.sessions().unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = rss_kb(server);
    let mut clients: Vec<Raw> = (0..connections).map(|_| Raw::connect(address)).collect();
    for client in &mut clients {
        client.send(&Raw::resolve(1));
        client.until("\"policy\"");
    }
    let each = (rss_kb(server) - before) / connections as f64;
    let mut times: Vec<f64> = (0..10)
        .map(|round| {
            let change = group(1, &format!("{connections}.{round}"));
            let begin = Instant::now();
            control.put(&[change], false).unwrap();
            for client in &mut clients {
                client.until("policy_update");
            }
            begin.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "push      {connections:4} connections: {:.1} to {:.1} ms, median {:.1}; memory {each:.1} kB each",
        times[0], times[9], times[5]
    );
}
