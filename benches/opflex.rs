//! OpFlex on this machine: `cargo bench -p ssntp-benches --bench opflex` prints the whole table
//! in about a minute. The server and the elements are processes of their own. The client speaks
//! JSON over TCP on loopback without the library, and its answers have 454 bytes.
//!
//! | line | measures |
//! |---|---|
//! | server | resident size with 6,000 policies |
//! | echo | round trips of the same size with a process that only reads and writes: the ideal for `resolve` with one request under way |
//! | resolve | round trips of `policy_resolve` with several requests under way: the median of 5 runs, and the best |
//! | connect | TCP connect, identity and close, one connection after the other |
//! | push | the time from a change until the last connection has the update, 10 times |
//! | memory | resident size of the server for each of these connections |
//! | element | 5,000 policies with a child each: time and resident size, in clear and over TLS |
//! | single | one policy after the other, each after the one before it has arrived |
//! | crowd | 1,000 elements with 100 policies each: the time until all have them, and until all have a change of each |
//! | siblings | resolving one name among 20 and among 20,000 |
//! | edit | putting one object into a policy of 100 and of 100,000 objects: in memory, kept on the disk, and until its resolver has the update |
//! | statistics | resident size of a server while 20 agents report 20 counters each every 200 ms, each time in a new generation |
//!
//! The name of a line as argument measures only that line. `statistics` takes ten minutes, or
//! the number of minutes in a further argument, and is measured only if it is named.
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
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, ServerCheck, Trust};
use ssntp::transport::Address;
use ssntp_opflex::model::{ManagedObject, Uri};
use ssntp_opflex::policy_element::{self, ElementEvent};
use ssntp_opflex::run::{Control, ElementConfig, ServerConfig};
use ssntp_opflex::{PolicyElement, Server, server};

/// The number of policies with a child each.
const POLICIES: usize = 5000;
/// The number of policies without a child. Their answers have 454 bytes.
const PLAIN: usize = 1000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let argument = |n: usize| arguments.get(n).map(String::as_str);
    match argument(1) {
        Some("serve") => serve(&arguments[2], argument(3)),
        Some("echo-to") => echo_to(),
        Some("element-of") => element(&arguments[2], argument(3)),
        Some("crowd-of") => crowd_of(&arguments[2], &arguments[3]),
        Some("serve-plain") => serve_plain(&arguments[2], &arguments[3], argument(4)),
        Some("statistics") => statistics(argument(2).map_or(10, |minutes| minutes.parse().unwrap())),
        // Cargo's own flag says nothing here.
        only => measure(only.filter(|only| !only.starts_with('-'))),
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

fn plain_at(n: usize) -> Uri {
    format!("/PolicyUniverse/PolicySpace/bench/GbpContract/contract{n:04}/")
        .parse()
        .unwrap()
}

fn plain() -> Vec<ManagedObject> {
    let text = "x".repeat(253);
    let object = |n| ManagedObject::new("GbpContract", plain_at(n)).with("name", text.as_str());
    (0..PLAIN).map(object).collect()
}

fn sibling_at(n: usize) -> Uri {
    format!("/PolicyUniverse/PolicySpace/bench/GbpContract/c{n}/")
        .parse()
        .unwrap()
}

fn sibling(n: usize, name: &str) -> ManagedObject {
    ManagedObject::new("GbpContract", sibling_at(n)).with("name", name)
}

/// A server with this number of objects beside each other, kept in a file if there is one.
fn serve_plain(control: &str, count: &str, keep: Option<&str>) {
    let objects = (0..count.parse().unwrap()).map(|n| sibling(n, "0"));
    let mut config = ServerConfig::new(server::ServerSettings::new("bench", "bench"))
        .policy(objects.collect())
        .control(control)
        .listen(Address::tcp("127.0.0.1", 0));
    config.keep = keep.map(Into::into);
    let server = Server::start(config).unwrap();
    println!("{}", server.addresses()[0]);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    server.stop();
}

/// A server over TLS. The directory `certificates` has `ca.pem` and `server.pem`.
fn serve(control: &str, certificates: Option<&str>) {
    let mut config = ServerConfig::new(server::ServerSettings::new("bench", "bench"))
        .policy(policy().into_iter().chain(plain()).collect())
        .control(control)
        .listen(Address::tcp("127.0.0.1", 0));
    if let Some(certificates) = certificates.map(Path::new) {
        let identity = Identity::load(certificates.join("server.pem")).unwrap();
        let trust = Trust::load(certificates.join("ca.pem")).unwrap();
        config = config.tls(trust.acceptor(&identity).unwrap());
    }
    let server = Server::start(config).unwrap();
    println!("{}", server.addresses()[0]);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    server.stop();
}

/// Prints `idle` before it connects and `ready` afterwards, then times.
fn element(address: &str, certificates: Option<&str>) {
    println!("idle");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let mut config = ElementConfig::new(policy_element::ElementSettings::new("bench", "bench", [address]));
    if let Some(certificates) = certificates.map(Path::new) {
        let identity = Identity::load(certificates.join("server.pem")).unwrap();
        let trust = Trust::load(certificates.join("ca.pem")).unwrap();
        let check = ServerCheck::Authority(&trust);
        config = config.tls(check.connector(Some(&identity)).unwrap());
    }
    let element = PolicyElement::start(config).unwrap();
    while element.events().recv().unwrap()
        != (ElementEvent::Health {
            health: policy_element::Health::Healthy,
        })
    {}
    println!("ready");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let resolved = |wanted: usize| {
        let mut resolved = 0;
        while resolved < wanted {
            if let ElementEvent::Resolved { found, .. } = element.events().recv().unwrap() {
                assert!(found);
                resolved += 1;
            }
        }
    };
    let begin = Instant::now();
    let references: Vec<_> = (0..POLICIES).map(|n| element.resolve(&at(n)).unwrap()).collect();
    resolved(POLICIES);
    println!("{}", begin.elapsed().as_secs_f64());
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let begin = Instant::now();
    for n in 0..PLAIN {
        let _policy = element.resolve(&plain_at(n)).unwrap();
        resolved(1);
    }
    println!("{}", begin.elapsed().as_secs_f64() / PLAIN as f64);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(references);
}

const CROWD: usize = 1000;
const OF_EACH: usize = 100;

/// Many elements in one process. Prints a line when all have their policies, and one when all
/// have a change of each.
fn crowd_of(address: &str, elements: &str) {
    println!("idle");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let begin = Instant::now();
    let crowd: Vec<_> = (0..elements.parse().unwrap())
        .map(|n| {
            let settings = policy_element::ElementSettings::new(format!("pe{n}"), "bench", [address]);
            let element = PolicyElement::start(ElementConfig::new(settings)).unwrap();
            let held: Vec<_> = (0..OF_EACH).map(|n| element.resolve(&at(n)).unwrap()).collect();
            (element, held)
        })
        .collect();
    for (element, _) in &crowd {
        let mut resolved = 0;
        while resolved < OF_EACH {
            resolved += usize::from(matches!(
                element.events().recv().unwrap(),
                ElementEvent::Resolved { .. }
            ));
        }
    }
    println!("{}", begin.elapsed().as_secs_f64());
    // Updates that came with the answers are not the change.
    for (element, _) in &crowd {
        element.events().try_iter().for_each(drop);
    }
    println!("waiting");
    for (element, _) in &crowd {
        let mut changed = 0;
        while changed < OF_EACH {
            if let ElementEvent::Changed { objects, .. } = element.events().recv().unwrap() {
                changed += objects.len();
            }
        }
    }
    println!("changed");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// This program in another role, as a child process with pipes.
struct Other {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Other {
    fn start(role: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(role)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The next line that the child prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn seconds(&mut self) -> f64 {
        self.line().parse().unwrap()
    }

    /// Sends a line, which lets the child go on.
    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn status(&self, name: &str) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn rss_mb(&self) -> f64 {
        self.status("VmRSS") / 1024.0
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
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

    /// Reads messages up to the first that contains this text.
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
}

fn resolve(uri: &Uri) -> String {
    format!(
        "{{\"id\":[\"policy_resolve\",1],\"method\":\"policy_resolve\",\"params\":[{{\"subject\":\"GbpContract\",\"policy_uri\":\"{uri}\",\"prr\":3600}}]}}"
    )
}

fn measure(only: Option<&str>) {
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("control");
    let mut server = Other::start("serve", &[control.to_str().unwrap()]);
    let address = server.line();
    println!(
        "server    {:.1} MB with {} policies",
        server.rss_mb(),
        POLICIES + PLAIN
    );
    if wanted("resolve") {
        resolves(&address);
    }
    if wanted("connect") {
        connects(&address);
    }
    if wanted("push") || wanted("memory") {
        for connections in [100, 500, 1000] {
            push(&address, &control, &server, connections);
        }
    }
    if wanted("element") || wanted("single") {
        elements("in clear", &address, None);
        let certificates = certificates(directory.path());
        let control = directory.path().join("tls");
        let mut secure = Other::start("serve", &[control.to_str().unwrap(), &certificates]);
        elements("over TLS", &secure.line(), Some(&certificates));
        secure.end();
    }
    if wanted("crowd") {
        crowd(&address, &control, &server);
    }
    server.end();
    if wanted("siblings") {
        siblings(directory.path());
    }
    if wanted("edit") {
        edits(directory.path());
    }
}

/// Times something with few and with many in turns, so that other work of the machine slows
/// both alike, and prints the median of each.
fn compare(what: &str, [few, many]: [&str; 2], count: usize, mut once: impl FnMut(usize, usize)) {
    let mut times = [Vec::new(), Vec::new()];
    for n in 0..count {
        for (which, times) in times.iter_mut().enumerate() {
            let begin = Instant::now();
            once(which, n);
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    let [a, b] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[count / 2]
    });
    println!("{what} {few}: {a:.4} ms, {many}: {b:.4} ms, {:.2} times", b / a);
}

/// Two servers with these numbers of objects, kept in files or only in memory.
fn plain_servers(directory: &Path, sizes: [&str; 2], keep: bool) -> [(Other, String, PathBuf); 2] {
    sizes.map(|size| {
        let control = directory.join(format!("control{size}{keep}"));
        let file = directory.join(format!("{size}.json"));
        let mut arguments = vec![control.to_str().unwrap(), size];
        arguments.extend(keep.then(|| file.to_str().unwrap()));
        let mut server = Other::start("serve-plain", &arguments);
        let address = server.line();
        (server, address, control)
    })
}

fn siblings(directory: &Path) {
    let servers = plain_servers(directory, ["20", "20000"], false);
    let mut clients = servers.each_ref().map(|(_, address, _)| Raw::connect(address));
    // The path of object 1 is a prefix of the paths of 10 to 19 and so on.
    let request = resolve(&sibling_at(1));
    compare(
        "siblings  one name among",
        ["20", "20,000"],
        10_000,
        |which, _| {
            clients[which].send(&request);
            clients[which].until("\"policy\"");
        },
    );
    servers.into_iter().for_each(|(server, ..)| server.end());
}

fn edits(directory: &Path) {
    const TIMES: usize = 2000;
    let sizes = ["100", "100000"];
    let into = ["into 100", "into 100,000"];
    let controls = |servers: &[(Other, String, PathBuf); 2]| {
        let connect = |path: &PathBuf| Control::connect(path, Duration::from_secs(120)).unwrap();
        servers.each_ref().map(|(_, _, path)| connect(path))
    };
    let servers = plain_servers(directory, sizes, false);
    let mut control = controls(&servers);
    compare("edit      put one object", into, TIMES, |which, n| {
        control[which].put(&[sibling(7, &n.to_string())], false).unwrap();
    });
    let mut clients = servers.each_ref().map(|(_, address, _)| Raw::connect(address));
    for client in &mut clients {
        client.send(&resolve(&sibling_at(7)));
        client.until("\"policy\"");
    }
    compare("edit      push one object", into, TIMES, |which, n| {
        control[which]
            .put(&[sibling(7, &format!("push {n}"))], false)
            .unwrap();
        clients[which].until("policy_update");
    });
    servers.into_iter().for_each(|(server, ..)| server.end());
    let servers = plain_servers(directory, sizes, true);
    let mut control = controls(&servers);
    // The first edit writes the whole file.
    for control in &mut control {
        control.put(&[sibling(7, "first")], false).unwrap();
    }
    compare("edit      keep one object", into, TIMES, |which, n| {
        control[which].put(&[sibling(7, &n.to_string())], false).unwrap();
    });
    servers.into_iter().for_each(|(server, ..)| server.end());
}

/// The memory of a server that receives statistics, every half minute.
fn statistics(minutes: u64) {
    const AGENTS: usize = 20;
    const COUNTERS: usize = 20;
    const EVERY: Duration = Duration::from_millis(200);
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("control");
    let mut server = Other::start("serve-plain", &[control.to_str().unwrap(), "100"]);
    let address = server.line();
    let mut agents: Vec<Raw> = (0..AGENTS).map(|_| Raw::connect(&address)).collect();
    let report = |agent: usize, counter: usize, generation: u64| {
        let uri = format!(
            "/ObserverStatUniverse/GbpeL24ClassifierCounter/agent{agent}/{generation}/class{counter}/"
        );
        let counter = ManagedObject::new("GbpeL24ClassifierCounter", uri.parse().unwrap())
            .with("genId", generation)
            .with(
                "classifier",
                format!("/PolicyUniverse/PolicySpace/bench/GbpeL24Classifier/class{counter}/"),
            )
            .with("packets", generation * 10)
            .with("bytes", generation * 15_000);
        let object = serde_json::to_string(&counter).unwrap();
        format!(
            "{{\"id\":[\"state_report\",{generation}],\"method\":\"state_report\",\"params\":[{{\"observable\":[{object}]}}]}}"
        )
    };
    println!("statistics  0 s: {:.1} MB", server.rss_mb());
    let begin = Instant::now();
    let (mut generation, mut reports, mut next) = (0, 0, Duration::from_secs(30));
    while begin.elapsed() < Duration::from_secs(60 * minutes) + EVERY {
        let round = Instant::now();
        generation += 1;
        reports += AGENTS * COUNTERS;
        for (n, agent) in agents.iter_mut().enumerate() {
            for counter in 0..COUNTERS {
                agent.send(&report(n, counter, generation));
            }
        }
        for agent in &mut agents {
            (0..COUNTERS).for_each(|_| agent.until("\"result\""));
        }
        if begin.elapsed() >= next {
            let seconds = next.as_secs();
            println!(
                "statistics  {seconds} s: {:.1} MB after {reports} reports",
                server.rss_mb()
            );
            next += Duration::from_secs(30);
        }
        std::thread::sleep(EVERY.saturating_sub(round.elapsed()));
    }
    server.end();
}

fn certificates(directory: &Path) -> String {
    let authority = Authority::new(&AuthorityRequest::default()).unwrap();
    let issued = authority
        .issue(&CertificateRequest::new(ssntp::Role::SERVER))
        .unwrap();
    std::fs::write(directory.join("ca.pem"), authority.certificate_pem()).unwrap();
    std::fs::write(directory.join("server.pem"), issued.to_pem()).unwrap();
    directory.to_str().unwrap().to_owned()
}

fn elements(how: &str, address: &str, certificates: Option<&str>) {
    let mut element = Other::start("element-of", &[&[address], certificates.as_slice()].concat());
    element.line();
    let idle = element.rss_mb();
    element.go_on();
    element.line();
    let (before, threads) = (element.rss_mb(), element.status("Threads"));
    element.go_on();
    let seconds = element.seconds();
    println!(
        "element   {how}: {POLICIES} policies in {:.0} ms, {:.0}/s; {idle:.1} MB idle, {before:.1} MB connected ({threads} threads), {:.1} MB with them",
        seconds * 1e3,
        POLICIES as f64 / seconds,
        element.rss_mb()
    );
    element.go_on();
    println!("single    {how}: {:.3} ms each", element.seconds() * 1e3);
    element.end();
}

fn crowd(address: &str, control: &Path, server: &Other) {
    let mut control = Control::connect(control, Duration::from_secs(120)).unwrap();
    until_alone(&mut control);
    let before = server.rss_mb();
    let mut crowd = Other::start("crowd-of", &[address, &CROWD.to_string()]);
    crowd.line();
    let idle = crowd.rss_mb();
    crowd.go_on();
    let held = crowd.seconds();
    crowd.line();
    let (of_server, of_crowd) = (server.rss_mb() - before, crowd.rss_mb() - idle);
    let changes: Vec<_> = (0..OF_EACH).map(|n| group(n, "crowd")).collect();
    let begin = Instant::now();
    control.put(&changes, false).unwrap();
    crowd.line();
    println!(
        "crowd     {CROWD} elements with {OF_EACH} policies each: in {held:.2} s, {:.0}/s; a change of each at all in {:.2} s",
        (CROWD * OF_EACH) as f64 / held,
        begin.elapsed().as_secs_f64()
    );
    println!(
        "crowd     for each element: server {:.0} kB, element {:.0} kB",
        of_server * 1024.0 / CROWD as f64,
        of_crowd * 1024.0 / CROWD as f64
    );
    crowd.end();
}

/// Waits until all earlier connections have ended.
fn until_alone(control: &mut Control) {
    while !control.sessions().unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Answers each read with 454 bytes.
fn echo_to() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    let mut read = [0; 4096];
    while stream.read(&mut read).unwrap() > 0 {
        stream.write_all(&[b'x'; ECHO]).unwrap();
    }
}

const ECHO: usize = 454;

fn echoes() {
    const COUNT: usize = 30_000;
    let mut other = Other::start("echo-to", &[]);
    let mut stream = TcpStream::connect(other.line()).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut answer = [0; ECHO];
    let mut rates: Vec<f64> = (0..5)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..COUNT {
                stream.write_all(&[b'x'; 120]).unwrap();
                stream.read_exact(&mut answer).unwrap();
            }
            COUNT as f64 / begin.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    println!("echo      window  1: {:.0}/s (best {:.0})", rates[2], rates[4]);
    drop(stream);
    other.end();
}

fn resolves(address: &str) {
    echoes();
    let mut raw = Raw::connect(address);
    // The first ones are not timed, because they find all caches cold.
    window(&mut raw, 64, &mut Vec::new());
    for size in [1usize, 16, 64] {
        let mut times = Vec::new();
        let mut rates: Vec<f64> = (0..5).map(|_| window(&mut raw, size, &mut times)).collect();
        rates.sort_by(f64::total_cmp);
        times.sort_unstable();
        let at = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e3;
        println!(
            "resolve   window {size:2}: {:.0}/s (best {:.0}), p50 {:.3} ms, p99 {:.3} ms, {} bytes each",
            rates[2],
            rates[4],
            at(50),
            at(99),
            raw.text.len()
        );
    }
}

/// Round trips a second with this number of requests under way.
fn window(raw: &mut Raw, window: usize, times: &mut Vec<Duration>) -> f64 {
    const COUNT: usize = 30_000;
    let requests: Vec<String> = (0..PLAIN).map(|n| resolve(&plain_at(n)) + "\0").collect();
    let mut sent_at = std::collections::VecDeque::new();
    let begin = Instant::now();
    let (mut sent, mut answered) = (0, 0);
    let mut batch = String::new();
    while answered < COUNT {
        batch.clear();
        while sent < COUNT && sent_at.len() < window {
            batch.push_str(&requests[sent % PLAIN]);
            sent_at.push_back(Instant::now());
            sent += 1;
        }
        raw.stream.write_all(batch.as_bytes()).unwrap();
        // As many answers as came together.
        loop {
            raw.until("\"policy\"");
            times.push(sent_at.pop_front().unwrap().elapsed());
            answered += 1;
            if sent_at.is_empty() || !raw.reader.buffer().contains(&0) {
                break;
            }
        }
    }
    COUNT as f64 / begin.elapsed().as_secs_f64()
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

fn push(address: &str, control: &Path, server: &Other, connections: usize) {
    let mut control = Control::connect(control, Duration::from_secs(20)).unwrap();
    until_alone(&mut control);
    let before = server.rss_mb();
    let mut clients: Vec<Raw> = (0..connections).map(|_| Raw::connect(address)).collect();
    for client in &mut clients {
        client.send(&resolve(&plain_at(1)));
        client.until("\"policy\"");
    }
    let each = (server.rss_mb() - before) * 1024.0 / connections as f64;
    let mut times: Vec<f64> = (0..10)
        .map(|round| {
            let change = ManagedObject::new("GbpContract", plain_at(1));
            let change = change.with("name", format!("{connections}.{round}"));
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
