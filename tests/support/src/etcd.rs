//! An etcd cluster for one test, if the program etcd is on the PATH.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The members of an etcd cluster. Dropping it ends them.
#[derive(Debug)]
pub struct EtcdProcess {
    members: Vec<Member>,
    _dir: tempfile::TempDir,
}

#[derive(Debug)]
struct Member {
    dir: PathBuf,
    client: u16,
    arguments: Vec<String>,
    child: Option<Child>,
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
        // Another process may bind a port before etcd does.
        let started = (0..10).find_map(|_| Self::try_start(members, scheme, further));
        Some(started.expect("an etcd that answers"))
    }

    fn try_start(count: usize, scheme: &str, further: &[String]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let held: Vec<_> = (0..2 * count)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let ports: Vec<_> = held
            .iter()
            .map(|held| held.local_addr().unwrap().port())
            .collect();
        drop(held);
        let (clients, peers) = ports.split_at(count);
        let named = |(at, port): (usize, &u16)| format!("m{at}=http://127.0.0.1:{port}");
        let cluster = peers.iter().enumerate().map(named).collect::<Vec<_>>().join(",");
        let member = |at: usize| {
            let path = dir.path().join(format!("m{at}"));
            let (client, peer) = (
                format!("{scheme}://127.0.0.1:{}", clients[at]),
                format!("http://127.0.0.1:{}", peers[at]),
            );
            let data = path.to_str().unwrap().to_owned();
            let pairs = [
                ("name", format!("m{at}")),
                ("data-dir", data),
                ("listen-client-urls", client.clone()),
                ("advertise-client-urls", client),
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
                client: clients[at],
                arguments: arguments.chain(further.iter().cloned()).collect(),
                child: None,
            }
        };
        let mut etcd = Self {
            members: (0..count).map(member).collect(),
            _dir: dir,
        };
        (0..count).for_each(|at| etcd.spawn(at));
        (0..count)
            .all(|at| etcd.wait(at, scheme == "http"))
            .then_some(etcd)
    }

    /// Starts a member, and does not wait until it answers.
    pub fn spawn(&mut self, at: usize) {
        let member = &mut self.members[at];
        let mut command = Command::new("etcd");
        command
            .args(&member.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        member.child = Some(command.spawn().unwrap());
    }

    /// Waits until the member answers; false if it has ended.
    fn wait(&mut self, at: usize, is_clear: bool) -> bool {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let member = &mut self.members[at];
            if !matches!(member.child.as_mut().map(Child::try_wait), Some(Ok(None))) {
                return false;
            }
            let answers = match is_clear {
                true => self
                    .post(at, "/v3/kv/range", r#"{"key":"eA=="}"#)
                    .contains("header"),
                false => TcpStream::connect(("127.0.0.1", self.members[at].client)).is_ok(),
            };
            if answers {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// The value for `--join`.
    pub fn join(&self) -> String {
        let endpoints = self
            .members
            .iter()
            .map(|member| format!("127.0.0.1:{}", member.client));
        format!("etcd://{}", endpoints.collect::<Vec<_>>().join(","))
    }

    /// Sends a request to a member's gateway, without a password. Empty if it does not answer.
    pub fn post(&self, at: usize, path: &str, body: &str) -> String {
        self.post_as(at, path, body, "")
    }

    /// As above, with the token that etcd has issued to a user.
    pub fn post_as(&self, at: usize, path: &str, body: &str, token: &str) -> String {
        let mut answer = String::new();
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.members[at].client)) else {
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
        assert!(self.wait(at, true), "etcd has ended");
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|at| self.kill(at));
    }
}
