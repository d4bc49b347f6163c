//! The pages of `--admin`: the answers for curl and Prometheus, and attacks on the pages.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use ssntp::client::{Client, ClientConfig};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, ServerCheck, Trust};
use ssntp::proto::{Command as Operand, Frame};
use ssntp::{Role, transport};
use ssntp_transport::{BufferPool, Outgoing, connect_tcp};
use tempfile::TempDir;

use crate::cluster::processes::until;
use crate::processes::{ended_in_order, wait_for};

use super::metrics::check_text;

const LIMIT: Duration = Duration::from_secs(60);

/// A directory with an authority of the test and its certificates.
pub(super) fn certificates() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(&AuthorityRequest::default()).unwrap();
    authority.save(dir.path(), false).unwrap();
    for (name, roles) in [
        ("server", Role::SERVER),
        ("scheduler", Role::SCHEDULER),
        ("agent", Role::AGENT),
        ("cnci", Role::CNCIAGENT),
        ("controller", Role::CONTROLLER),
    ] {
        let issued = authority.issue(&CertificateRequest::new(roles)).unwrap();
        issued.save(dir.path().join(format!("{name}.pem"))).unwrap();
    }
    dir
}

fn ssntp(dir: &Path, line: &str) -> Command {
    let mut command = crate::program();
    command.current_dir(dir).args(line.split_whitespace());
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A daemon with pages, and its output.
pub(super) struct Daemon {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The first line of the daemon: its addresses, or its UUID.
    first: String,
    /// The address of its pages.
    pages: String,
}

/// Runs `ssntp ctl` as the controller: whether it succeeded, its output and its errors.
pub(super) fn ctl(dir: &Path, address: &str, line: &str) -> (bool, String, String) {
    let line = format!("ctl --connect {address} --ca ca.pem --cert controller.pem {line}");
    let done = ssntp(dir, &line).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.success(), text(done.stdout), text(done.stderr))
}

impl Daemon {
    fn start(dir: &Path, line: &str) -> Self {
        Self::try_start(dir, line).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Fails with what the daemon has printed instead of its first lines.
    fn try_start(dir: &Path, line: &str) -> Result<Self, String> {
        let mut child = ssntp(dir, line).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut lines = [String::new(), String::new()];
        for line in &mut lines {
            output.read_line(line).unwrap();
        }
        let [first, pages] = lines.map(|line| line.trim_end().to_owned());
        let Some(pages) = pages.strip_prefix("pages at ").map(str::to_owned) else {
            let _ = child.kill();
            let _ = child.wait();
            let mut error = String::new();
            let _ = child.stderr.take().unwrap().read_to_string(&mut error);
            return Err(first + &error);
        };
        Ok(Self {
            child,
            output,
            first,
            pages,
        })
    }

    /// A server, and its address.
    pub(super) fn server(dir: &Path, more: &str) -> (Self, String) {
        let line = format!("server --ca ca.pem --cert server.pem --listen 127.0.0.1:0 {more}");
        let mut started = None;
        until("a server starts", || match Self::try_start(dir, &line) {
            // A busy etcd may not answer in the time limit of a call.
            Err(error) if error.contains("the engine is away") => Err(error),
            server => {
                started = Some(server.unwrap_or_else(|error| panic!("{error}")));
                Ok(())
            }
        });
        let server = started.unwrap();
        let address = server.first.strip_prefix("listening at ").unwrap().to_owned();
        (server, address)
    }

    fn connect(&self) -> Box<dyn Connection> {
        self.try_connect().unwrap()
    }

    fn try_connect(&self) -> std::io::Result<Box<dyn Connection>> {
        Ok(match self.pages.strip_prefix("unix:") {
            Some(path) => Box::new(UnixStream::connect(path)?),
            None => Box::new(TcpStream::connect(self.pages.strip_prefix("http://").unwrap())?),
        })
    }

    /// The page's code and body.
    #[track_caller]
    fn get(&self, target: &str) -> (u16, String) {
        self.ask(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    #[track_caller]
    fn ask(&self, request: &str) -> (u16, String) {
        // The server closes a connection that has sent no request in two seconds, which a thread of a busy
        // machine may need, and the slowest one if there are too many.
        let mut answer = String::new();
        until("a request is answered", || {
            answer = self.try_ask(request).map_err(|e| e.to_string())?;
            answer.contains("\r\n\r\n").then_some(()).ok_or(answer.clone())
        });
        parts(&answer)
    }

    fn try_ask(&self, request: &str) -> std::io::Result<String> {
        let mut stream = self.try_connect()?;
        stream.limit(Some(LIMIT));
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    #[track_caller]
    fn json(&self, target: &str) -> Value {
        // A page says 503 if the daemon's dispatcher gets no processor for a second.
        let (_, body) = self.wait(target, |code, _| code == 200);
        serde_json::from_str(&body).unwrap()
    }

    /// Requests a page until its code and body satisfy the condition.
    #[track_caller]
    pub(super) fn wait(&self, target: &str, mut will_do: impl FnMut(u16, &str) -> bool) -> (u16, String) {
        wait_for(|| {
            let (code, body) = self.get(target);
            if will_do(code, &body) {
                Ok((code, body))
            } else {
                Err((code, body))
            }
        })
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Ends it in order.
    #[track_caller]
    pub(super) fn end(self) {
        self.signal(Signal::TERM);
        self.ended();
    }

    /// As [`end`](Self::end); see [`ended_in_order`].
    fn ends_in_order(self) -> bool {
        let signalled_at = Instant::now();
        self.end();
        ended_in_order(signalled_at)
    }

    /// Waits until it has ended in order.
    pub(super) fn ended(mut self) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

trait Connection: Read + Write + Send {
    fn limit(&self, limit: Option<Duration>);
}

impl Connection for TcpStream {
    fn limit(&self, limit: Option<Duration>) {
        self.set_read_timeout(limit).unwrap();
    }
}

impl Connection for UnixStream {
    fn limit(&self, limit: Option<Duration>) {
        self.set_read_timeout(limit).unwrap();
    }
}

/// The code and the body of an answer. The body must have the announced length.
#[track_caller]
fn parts(answer: &str) -> (u16, String) {
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{answer:?}"));
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.unwrap().parse().unwrap();
    assert!(body.is_empty() || body.len() == length, "{head}");
    (code, body.to_owned())
}

pub(super) fn client(dir: &Path, address: &str, name: &str) -> Client {
    let identity = Identity::load(dir.join(format!("{name}.pem"))).unwrap();
    let trust = Trust::load(dir.join("ca.pem")).unwrap();
    Client::connect(ClientConfig::new(identity, trust).address(address.parse().unwrap())).unwrap()
}

/// A server that forwards STATS, and its clients: an agent and a controller.
fn forwarding(dir: &Path) -> (Daemon, Client, Client) {
    let (server, address) = Daemon::server(dir, "--forward STATS=controller --admin 127.0.0.1:0");
    let [agent, controller] = ["agent", "controller"].map(|name| client(dir, &address, name));
    (server, agent, controller)
}

#[test]
fn the_pages_show_the_state_of_a_server_and_its_sessions() {
    let dir = certificates();
    let (server, agent, controller) = forwarding(dir.path());
    for _ in 0..5 {
        agent
            .send(Frame::with_payload(Operand::STATS, "load: 1\n"))
            .unwrap();
        controller.recv_frame_timeout(LIMIT).unwrap();
    }
    assert_eq!(server.json("/healthz")["status"], "ok");
    assert_eq!(server.json("/readyz")["ready"], true);
    let info = server.json("/info");
    assert_eq!(info["daemon"], "server");
    assert_eq!(
        info["listening"][0],
        server.first.trim_start_matches("listening at ")
    );
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert!(info["limits"]["sessions"].as_u64().unwrap() >= 2);
    assert!(server.get("/").1.contains("/metrics"));
    let certificates = info["certificates"].as_array().unwrap();
    let kinds: BTreeSet<_> = certificates
        .iter()
        .map(|one| one["what"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, BTreeSet::from(["authority", "certificate"]), "{info}");
    assert!(
        certificates
            .iter()
            .all(|one| one["days_left"].as_i64().unwrap() > 300),
        "{info}"
    );

    server.wait("/sessions", |_, body| body.contains("\"frames_received\":5"));
    let all = server.json("/sessions");
    assert_eq!(all["connected"], 2);
    assert_eq!(all["next"], Value::Null);
    let agents = server.json("/sessions?role=agent,netagent");
    let [one] = &agents["sessions"].as_array().unwrap()[..] else {
        panic!("{agents}");
    };
    assert_eq!(one["uuid"], agent.uuid().to_string());
    assert_eq!(one["counters"]["frames_received"], 5);
    assert_eq!(one["queue"]["bytes"], 0);
    let certificate = &one["certificate"];
    assert!(certificate["days_left"].as_i64().unwrap() > 300, "{certificate}");
    assert!(certificate["serial"].as_str().unwrap().contains(':'));
    let by_uuid = server.json(&format!("/sessions?uuid={}", controller.uuid()));
    assert_eq!(by_uuid["sessions"][0]["roles"], serde_json::json!(["controller"]));
    // Over several pages each session is listed once, in the order of connecting.
    let first = server.json("/sessions?limit=1");
    let next = first["next"].as_u64().unwrap();
    let second = server.json(&format!("/sessions?limit=1&after={next}"));
    assert_eq!(first["sessions"][0], all["sessions"][0]);
    assert_eq!(second["sessions"][0]["session"], all["sessions"][1]["session"]);
    assert_eq!(second["next"], Value::Null);

    let uuid = agent.uuid();
    drop(agent);
    server.wait("/closed", |_, body| body.contains(&uuid.to_string()));
    let closed = &server.json("/closed")["closed"][0];
    assert_eq!(closed["counters"]["frames_received"], 5, "{closed}");
    assert!(
        closed["reason"].is_string() && closed["why"].is_string(),
        "{closed}"
    );
    let text = server.get("/metrics").1;
    assert!(
        text.contains("ssntp_certificate_expiry_timestamp_seconds{what=\"certificate\""),
        "{text}"
    );
    assert!(text.contains("ssntp_sessions{role=\"controller\"} 1\n"), "{text}");
    assert!(
        text.contains("ssntp_received_frames_total{type=\"COMMAND\",operand=\"STATS\"} 5\n"),
        "{text}"
    );
    server.end();
}

#[test]
fn each_bad_request_for_a_page_is_refused_with_its_status_code() {
    let dir = certificates();
    let (server, _) = Daemon::server(dir.path(), "--admin 127.0.0.1:0");
    let host = "Host: localhost\r\n\r\n";
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n{host}", "y".repeat(100_000));
    let posted = format!(
        "POST /healthz HTTP/1.1\r\nContent-Length: 1000000\r\n{host}{}",
        "z".repeat(1_000_000)
    );
    for (request, code) in [
        (format!("HEAD /healthz HTTP/1.1\r\n{host}"), 200),
        (format!("GET /nothing HTTP/1.1\r\n{host}"), 404),
        (format!("GET /healthz?x=1 HTTP/1.1\r\n{host}"), 400),
        (format!("GET /sessions?limit=100000 HTTP/1.1\r\n{host}"), 400),
        (format!("GET /sessions?role=king HTTP/1.1\r\n{host}"), 400),
        (format!("DELETE /sessions HTTP/1.1\r\n{host}"), 405),
        (
            "GET /healthz HTTP/1.1\r\nHost: pages.example:80\r\n\r\n".into(),
            403,
        ),
        ("GET /healthz HTTP/1.0\r\n\r\n".into(), 200),
        ("\u{16}\u{3}\u{1}\r\n\r\n".into(), 400),
        (long, 431),
        (posted, 405),
        // The bytes after a request are not another request.
        (
            format!("GET /healthz HTTP/1.1\r\n{host}GET /info HTTP/1.1\r\n{host}"),
            200,
        ),
    ] {
        let (found_code, body) = server.ask(&request);
        assert_eq!(found_code, code, "{request:.80}: {body}");
        assert_eq!(body.is_empty(), request.starts_with("HEAD"), "{request:.80}");
        assert!(!body.contains("daemon"), "{body}");
    }
    server.end();
}

/// All attacks at once: connections that send nothing, bytes one at a time, heads without an
/// end, and answers that the client does not read.
#[test]
fn an_attack_on_the_pages_stops_neither_frames_nor_an_honest_client() {
    let dir = certificates();
    let (server, agent, controller) = forwarding(dir.path());
    let mut silent: Vec<_> = (0..200).map(|_| server.connect()).collect();
    for (at, stream) in silent.iter_mut().enumerate() {
        let request: &[u8] = match at % 4 {
            0 => b"",
            1 => b"GET /metr",
            // The answer is not read.
            2 => b"GET /metrics HTTP/1.1\r\n\r\n",
            _ => b"GET /sessions HTTP/1.1\r\nX: y\r\n",
        };
        let _ = stream.write_all(request);
    }
    let place = server.pages.strip_prefix("http://").unwrap().to_owned();
    let (stop, stopped) = crossbeam_channel::bounded::<()>(0);
    let dripping: Vec<_> = (0..8)
        .map(|_| {
            let (place, stopped) = (place.clone(), stopped.clone());
            thread::spawn(move || {
                while stopped.try_recv() == Err(crossbeam_channel::TryRecvError::Empty) {
                    let Ok(mut stream) = TcpStream::connect(&place) else {
                        continue;
                    };
                    let head = b"GET / HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'y'));
                    for byte in head.take(20_000) {
                        if stopped.try_recv() != Err(crossbeam_channel::TryRecvError::Empty)
                            || stream.write_all(&[*byte]).is_err()
                        {
                            break;
                        }
                    }
                }
            })
        })
        .collect();
    for round in 0..20 {
        agent
            .send(Frame::with_payload(Operand::STATS, format!("load: {round}\n")))
            .unwrap();
        controller.recv_frame_timeout(LIMIT).unwrap();
        assert_eq!(server.json("/healthz")["status"], "ok");
    }
    let text = server.get("/metrics").1;
    let threads = text
        .lines()
        .find_map(|line| line.strip_prefix("process_threads "));
    // The 32 connections of the pages, and the threads of a server with two sessions.
    assert!(
        threads.is_none_or(|threads| threads.parse::<u32>().unwrap() < 64),
        "{threads:?}"
    );
    drop(stop);
    dripping.into_iter().for_each(|thread| thread.join().unwrap());
    // The server ends in order although some clients still do not read.
    server.end();
    drop(silent);
}

#[test]
fn a_process_ends_although_its_clients_do_not_read_their_answers() {
    let dir = certificates();
    let (server, address) = Daemon::server(dir.path(), "--admin unix:pages");
    let path = dir.path().join("pages");
    let _clients: Vec<_> = (0..8).map(|_| client(dir.path(), &address, "agent")).collect();
    let mut readers: Vec<_> = (0..8).map(|_| UnixStream::connect(&path).unwrap()).collect();
    for reader in &mut readers {
        reader
            .write_all(b"GET /sessions?limit=1000 HTTP/1.1\r\n\r\n")
            .unwrap();
    }
    let in_order = server.ends_in_order();
    assert!(!path.exists() || !in_order);
}

#[test]
fn pages_without_tls_are_served_to_this_host_only() {
    let dir = certificates();
    let line = "opflex serve --listen 127.0.0.1:0 --admin 0.0.0.0:0";
    let refused = ssntp(dir.path(), line).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(
        error.contains("--admin") && error.contains("need mutual TLS"),
        "{error}"
    );

    let (server, _) = Daemon::server(dir.path(), "--admin 0.0.0.0:0");
    let port = server
        .pages
        .strip_prefix("https://0.0.0.0:")
        .unwrap()
        .parse()
        .unwrap();
    let ask = |name: &str| secure_page(dir.path(), port, name, "/healthz");
    // The request may come with the end of the handshake or after it.
    for _ in 0..20 {
        assert_eq!(ask("controller").0, 200);
    }
    let (code, body) = ask("agent");
    assert_eq!(code, 403);
    assert!(body.contains("agent"), "{body}");
    assert!(secure_get(dir.path(), port, None, "/healthz").is_err());
    let mut plain = TcpStream::connect(("127.0.0.1", port)).unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
    plain.set_read_timeout(Some(LIMIT)).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    server.end();

    let (server, _) = Daemon::server(dir.path(), "--admin 0.0.0.0:0 --admin-role agent");
    let port = server
        .pages
        .strip_prefix("https://0.0.0.0:")
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(secure_page(dir.path(), port, "agent", "/metrics").0, 200);
    server.end();
}

/// Monitoring has an authority of its own. Its certificates give no right to commands, and
/// certificates of the cluster give no access to the pages.
#[test]
fn pages_with_an_authority_of_their_own_admit_only_its_certificates() {
    let dir = certificates();
    let own = Authority::new(&AuthorityRequest::default()).unwrap();
    fs::create_dir(dir.path().join("own")).unwrap();
    own.save(dir.path().join("own"), false).unwrap();
    // Any role is admitted. With the authority of the cluster an agent would be refused.
    let issued = own.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
    issued.save(dir.path().join("monitor.pem")).unwrap();
    let (server, _) = Daemon::server(dir.path(), "--admin 0.0.0.0:0 --admin-ca own/ca.pem");
    let port = server.pages.strip_prefix("https://0.0.0.0:").unwrap();
    let port = port.parse().unwrap();
    let (code, text) = secure_page(dir.path(), port, "monitor", "/metrics");
    assert_eq!(code, 200);
    // Series exist before their first event.
    assert!(
        text.contains("\nssntp_handshakes_refused_total{reason=\"revoked\"} 0\n"),
        "{text}"
    );
    assert!(
        text.contains("\nssntp_sessions_ended_total{reason=\"kicked\"} 0\n"),
        "{text}"
    );
    assert!(secure_get(dir.path(), port, Some("controller"), "/metrics").is_err());
    server.end();
}

/// A page that the client gets. As in [`Daemon::ask`], the request is repeated.
#[track_caller]
fn secure_page(dir: &Path, port: u16, name: &str, target: &str) -> (u16, String) {
    let mut page = (0, String::new());
    until("a request is answered", || {
        page = secure_get(dir, port, Some(name), target).map_err(|e| e.to_string())?;
        Ok(())
    });
    page
}

/// A request as `curl --cert` makes it.
fn secure_get(dir: &Path, port: u16, name: Option<&str>, target: &str) -> std::io::Result<(u16, String)> {
    let identity = name.map(|name| Identity::load(dir.join(format!("{name}.pem"))).unwrap());
    let trust = Trust::load(dir.join("ca.pem")).unwrap();
    let connector = ServerCheck::Authority(&trust)
        .connector(identity.as_ref())
        .unwrap();
    let stream = connect_tcp("127.0.0.1", port, &transport::TcpOptions::default(), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let secured = connector.connect(
        Arc::new(stream),
        "localhost",
        &BufferPool::new(),
        Instant::now() + LIMIT,
    );
    let mut halves = secured.map_err(std::io::Error::other)?.halves;
    let request = format!("GET {target} HTTP/1.1\r\nHost: pages.example\r\n\r\n");
    halves
        .transmit
        .transmit(&[Outgoing::whole(Bytes::from(request), 1)])?;
    while !halves.receive.receive(&mut halves.inbox)?.end {}
    let answer = String::from_utf8_lossy(halves.inbox.bytes_mut()).into_owned();
    if answer.is_empty() {
        Err(std::io::ErrorKind::UnexpectedEof.into())
    } else {
        Ok(parts(&answer))
    }
}

#[test]
fn the_socket_of_a_killed_process_is_replaced_and_a_socket_in_use_is_not() {
    let dir = certificates();
    let path = dir.path().join("pages");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    let admin = format!("--admin unix:{}", path.display());
    let (server, _) = Daemon::server(dir.path(), &admin);
    assert_eq!(mode(), 0o600);
    let line = format!("server --ca ca.pem --cert server.pem --listen 127.0.0.1:0 {admin}");
    let refused = ssntp(dir.path(), &line).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(error.contains("--admin: cannot listen at unix:"), "{error}");
    assert_eq!(server.json("/readyz")["ready"], true);

    // The server is killed, so its socket file remains.
    drop(server);
    assert!(path.exists());
    let (server, _) = Daemon::server(dir.path(), &format!("{admin} --admin-group"));
    assert_eq!(mode(), 0o660);
    let in_order = server.ends_in_order();
    assert!(!path.exists() || !in_order);
}

#[test]
fn a_failed_reload_is_reported_until_a_reload_succeeds() {
    let dir = certificates();
    let (server, _) = Daemon::server(dir.path(), "--admin 127.0.0.1:0");
    let cert = dir.path().join("server.pem");
    let good = fs::read(&cert).unwrap();
    fs::write(&cert, "nothing of use").unwrap();
    server.signal(Signal::HUP);
    let (_, body) = server.wait("/healthz", |_, body| body.contains("degraded"));
    assert!(body.contains("server.pem"), "{body}");
    let (_, text) = server.get("/metrics");
    assert!(text.contains("ssntp_last_reload_success 0\n"), "{text}");
    assert!(!server.json("/info")["last_reload"]["failure"].is_null());
    fs::write(&cert, good).unwrap();
    server.signal(Signal::HUP);
    server.wait("/healthz", |_, body| body.contains("ok"));
    server.end();
}

#[test]
fn a_client_is_ready_while_it_is_connected() {
    let dir = certificates();
    let line =
        "scheduler --ca ca.pem --cert scheduler.pem --admin 127.0.0.1:0 --listen 127.0.0.1:0 --allow-unbound";
    let scheduler = Daemon::start(dir.path(), line);
    let address = scheduler.first.strip_prefix("listening at ").unwrap().to_owned();
    let line = format!("agent --ca ca.pem --cert agent.pem --connect {address} --admin 127.0.0.1:0");
    let agent = Daemon::start(dir.path(), &line);
    let line = format!(
        "cnci --ca ca.pem --cert cnci.pem --connect {address} --admin 127.0.0.1:0 --uuid {} --tenant {} \
         --ip 10.0.0.9",
        uuid::Uuid::new_v4(),
        uuid::Uuid::new_v4()
    );
    let cnci = Daemon::start(dir.path(), &line);
    for daemon in [&agent, &cnci] {
        daemon.wait("/readyz", |code, _| code == 200);
        let info = daemon.json("/info");
        assert_eq!(
            info["server"]["roles"],
            serde_json::json!(["scheduler"]),
            "{info}"
        );
        assert!(daemon.first.ends_with(info["uuid"].as_str().unwrap()), "{info}");
        check_text(&daemon.get("/metrics").1);
    }
    scheduler.wait("/metrics", |_, text| {
        text.contains("ssntp_scheduler_nodes{status=\"ready\"} 1\n")
            // No start has failed yet. The series exists, so that the first failure is an increase.
            && text.contains("ssntp_scheduler_starts_total{outcome=\"failed\",reason=\"full_cloud\"} 0\n")
    });
    check_text(&scheduler.get("/metrics").1);
    assert_eq!(scheduler.json("/sessions")["connected"], 2);
    scheduler.end();
    for daemon in [agent, cnci] {
        let (_, body) = daemon.wait("/readyz", |code, _| code == 503);
        assert!(body.contains("not connected"), "{body}");
        // The daemon works although it is not ready.
        assert_eq!(daemon.get("/healthz").0, 200);
        daemon.end();
    }
}

#[test]
fn an_opflex_server_has_pages_of_its_own() {
    let dir = certificates();
    let line = "opflex serve --listen 127.0.0.1:0 --admin 127.0.0.1:0";
    let server = Daemon::start(dir.path(), line);
    assert_eq!(server.json("/readyz")["ready"], true);
    assert_eq!(server.json("/sessions")["connected"], 0);
    assert_eq!(server.json("/info")["daemon"], "opflex");
    check_text(&server.get("/metrics").1);
    server.end();
}
