//! An etcd cluster for one test, if the program etcd is on the PATH.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::port::HeldPort;

/// The time limit for a member to answer. Longer than [`LIMIT`](crate::LIMIT), because each of several
/// members writes to the disk before it answers.
const LIMIT: Duration = Duration::from_secs(120);

/// The members of an etcd cluster. Dropping it ends them.
#[derive(Debug)]
pub struct EtcdProcess {
    members: Vec<Member>,
    _dir: tempfile::TempDir,
}

#[derive(Debug)]
struct Member {
    dir: PathBuf,
    client: HeldPort,
    _peers: HeldPort,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Member {
    fn log(&self) -> PathBuf {
        self.dir.with_extension("log")
    }
}

impl EtcdProcess {
    /// Starts `members` members, and waits until each of them answers. If there is no etcd, prints
    /// that the test is skipped and returns `None`.
    pub fn start(members: usize) -> Option<Self> {
        Self::with(members, "http", &[])
    }

    /// As `start`, with further arguments, for clients that use `scheme`.
    pub fn with(members: usize, scheme: &str, further: &[String]) -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            println!("skipped: there is no etcd on the PATH");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let ports: Vec<_> = (0..members).map(|_| [HeldPort::new(), HeldPort::new()]).collect();
        let named = |(at, [_, peers]): (usize, &[HeldPort; 2])| format!("m{at}=http://{}", peers.address());
        let cluster = ports.iter().enumerate().map(named).collect::<Vec<_>>().join(",");
        let member = |(at, [client, peers]): (usize, [HeldPort; 2])| {
            let path = dir.path().join(format!("m{at}"));
            let url = format!("{scheme}://{}", client.address());
            let peer = format!("http://{}", peers.address());
            let data = path.to_str().unwrap().to_owned();
            let pairs = [
                ("name", format!("m{at}")),
                ("data-dir", data),
                ("listen-client-urls", url.clone()),
                ("advertise-client-urls", url),
                ("listen-peer-urls", peer.clone()),
                ("initial-advertise-peer-urls", peer),
                ("initial-cluster", cluster.clone()),
                ("log-level", "error".to_owned()),
                // Cheap password hashes, so that a busy machine answers within the limit of a call.
                ("bcrypt-cost", "4".to_owned()),
            ];
            let arguments = pairs.into_iter().map(|(name, value)| format!("--{name}={value}"));
            Member {
                dir: path,
                client,
                _peers: peers,
                arguments: arguments.chain(further.iter().cloned()).collect(),
                child: None,
            }
        };
        let mut etcd = Self {
            members: ports.into_iter().enumerate().map(member).collect(),
            _dir: dir,
        };
        (0..members).for_each(|at| etcd.spawn(at));
        (0..members).for_each(|at| etcd.wait(at, scheme == "http"));
        Some(etcd)
    }

    /// Starts a member, and does not wait until it answers.
    pub fn spawn(&mut self, at: usize) {
        let member = &mut self.members[at];
        let log = std::fs::File::create(member.log()).unwrap();
        let mut command = Command::new("etcd");
        command.args(&member.arguments).stdout(Stdio::null()).stderr(log);
        member.child = Some(command.spawn().unwrap());
    }

    /// Waits until the member answers.
    fn wait(&mut self, at: usize, is_clear: bool) {
        let end = Instant::now() + LIMIT;
        loop {
            let answer = if is_clear {
                self.post(at, "/v3/kv/range", r#"{"key":"eA=="}"#)
            } else {
                TcpStream::connect(self.members[at].client.address())
                    .map_or_else(|e| e.to_string(), |_| "header".to_owned())
            };
            if answer.contains("header") {
                return;
            }
            let member = &mut self.members[at];
            let ended = member.child.as_mut().unwrap().try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < end,
                "etcd {at} does not answer; its end: {ended:?}; its last answer: {answer:?}; its log: {}",
                std::fs::read_to_string(member.log()).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The value for `--join`.
    pub fn join(&self) -> String {
        let endpoints = self.members.iter().map(|member| member.client.address());
        format!("etcd://{}", endpoints.collect::<Vec<_>>().join(","))
    }

    /// Sends a request to a member's gateway, without a password. Empty if it does not answer.
    pub fn post(&self, at: usize, path: &str, body: &str) -> String {
        self.post_as(at, path, body, "")
    }

    /// As above, with the token that etcd has issued to a user.
    pub fn post_as(&self, at: usize, path: &str, body: &str, token: &str) -> String {
        let mut answer = String::new();
        let Ok(mut stream) = TcpStream::connect(self.members[at].client.address()) else {
            return answer;
        };
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let token = match token {
            "" => String::new(),
            token => format!("Authorization: {token}\r\n"),
        };
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\n{token}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(request.as_bytes()).is_ok() {
            let _ = stream.read_to_string(&mut answer);
        }
        answer
    }

    /// Stops a member, which then accepts connections and does not answer.
    pub fn pause(&self, at: usize) {
        let child = self.members[at].child.as_ref().unwrap();
        kill_process(Pid::from_child(child), Signal::STOP).unwrap();
    }

    /// Kills a member at once.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.members[at].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts a killed member again. With `is_empty` it loses its data first.
    pub fn restart(&mut self, at: usize, is_empty: bool) {
        if is_empty {
            std::fs::remove_dir_all(&self.members[at].dir).unwrap();
        }
        self.spawn(at);
        self.wait(at, true);
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|at| self.kill(at));
    }
}
