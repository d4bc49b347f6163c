//! A server with little memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ssntp::Role;
use ssntp::pki::Identity;
use ssntp::proto::{Command as Operand, Connect, Frame};
use ssntp_test_support::{Peer, Received, authority, identity};
use ssntp_transport::connect_unix;
use tempfile::TempDir;
use uuid::Uuid;

use crate::processes::Program;

/// A server whose process first runs the shell's commands `before`.
struct Server {
    directory: TempDir,
    program: Program,
}

impl Server {
    fn start(before: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        authority().save(path, false).unwrap();
        let issued = authority().issue(&ssntp::pki::CertificateRequest::new(Role::SERVER));
        issued.unwrap().save(path.join("server.pem")).unwrap();
        let line = "server --listen unix:socket --ca ca.pem --cert server.pem --forward STATS=controller";
        let mut shell = Command::new("sh");
        shell
            .args([
                "-c",
                &format!("{before} exec {} {line}", env!("CARGO_BIN_EXE_ssntp")),
            ])
            .current_dir(path)
            .stdin(Stdio::null());
        let mut program = Program::start(&mut shell);
        assert!(program.first_line().starts_with("listening at "));
        Self { directory, program }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("socket")
    }

    fn dial(&self, identity: &Identity) -> Peer {
        Peer::over(
            Arc::new(connect_unix(&self.socket(), Duration::from_secs(60)).unwrap()),
            identity,
        )
    }

    fn connect(&self, role: Role) -> Peer {
        let mut peer = self.dial(&identity(role));
        peer.handshake(role, Uuid::new_v4(), false);
        peer
    }
}

fn environment(program: &Program) -> String {
    let environment = std::fs::read(Path::new("/proc").join(program.id()).join("environ")).unwrap();
    String::from_utf8_lossy(&environment).into_owned()
}

#[test]
fn a_server_makes_its_allocator_return_memory() {
    let server = environment(&Server::start("").program);
    let returns = |environment: &str| environment.contains("MALLOC_MMAP_THRESHOLD_=131072\0");
    let has_one_arena = |environment: &str| environment.contains("MALLOC_ARENA_MAX=1\0");
    assert!(returns(&server) && !has_one_arena(&server), "{server}");
    let directory = tempfile::tempdir().unwrap();
    let mut opflex = Command::new(env!("CARGO_BIN_EXE_ssntp"));
    opflex
        .args("opflex serve --listen unix:socket".split(' '))
        .current_dir(directory.path());
    let mut opflex = Program::start(&mut opflex);
    assert!(opflex.first_line().starts_with("listening at "));
    let opflex = environment(&opflex);
    assert!(returns(&opflex) && has_one_arena(&opflex), "{opflex}");
}

fn long(len: usize) -> Frame {
    Frame::with_payload(Operand::STATS, vec![7; len])
}

/// A control group of 64 MiB, until it is dropped.
struct Group(PathBuf);

impl Group {
    /// `None` if this user may not make control groups, or the system has none.
    fn new() -> Option<Self> {
        let roots = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        roots.into_iter().find_map(|(root, limit)| {
            let group = Path::new(root).join(format!("ssntp-memory-{}", std::process::id()));
            std::fs::create_dir(&group).ok()?;
            let group = Self(group);
            std::fs::write(group.0.join(limit), (64 << 20).to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Receives frames until one has this length. False if the session ended before.
fn receives(controller: &mut Peer, len: usize) -> bool {
    loop {
        match controller.next() {
            Received::Frame(frame) if frame == long(len) => return true,
            // It was sent for a session that has ended.
            Received::Frame(frame) => assert!(frame == long(frame.payload_bytes().len())),
            Received::End => return false,
        }
    }
}

/// Sends ten frames of 3 MB, which have this length, at the same time. False if the controller's session
/// ended before it had received them.
fn ten_long_frames_arrive(server: &Server, controller: &mut Peer, len: usize) -> bool {
    let senders: Vec<_> = (0..10)
        .map(|_| {
            let mut sender = server.connect(Role::AGENT);
            std::thread::spawn(move || {
                sender.send(&long(len));
                sender
            })
        })
        .collect();
    let arrived = senders.iter().all(|_| receives(controller, len));
    for sender in senders {
        sender.join().unwrap();
    }
    arrived
}

#[test]
fn a_server_in_64_mib_receives_long_frames_and_survives_hundreds_of_unfinished_frames() {
    let Some(group) = Group::new() else {
        eprintln!("skipped: no control group for memory can be made here");
        return;
    };
    let server = Server::start(&format!("echo $$ >{}/cgroup.procs &&", group.0.display()));
    let mut controller = server.connect(Role::CONTROLLER);
    let mut agent = server.connect(Role::AGENT);
    agent.send(&long(8_000_000));
    assert!(controller.frame() == long(8_000_000));

    // On a busy machine the controller may read more slowly than the server demands of a receiver that ten
    // senders wait for. Then its session ends, and all frames are sent again.
    let mut lengths = 3_000_000..3_000_010;
    while !ten_long_frames_arrive(&server, &mut controller, lengths.next().unwrap()) {
        controller = server.connect(Role::CONTROLLER);
    }

    // Each client sends as much of 16 MiB as the server takes, and stays connected.
    let one = identity(Role::AGENT);
    let mut greedy = Vec::new();
    for _ in 0..500 {
        let mut peer = server.dial(&one);
        peer.send_bytes(&Connect::new(Role::AGENT, Uuid::new_v4(), false).encode());
        // The server refuses further clients once its memory is used.
        if !peer.next_is_connected() {
            break;
        }
        peer.connected();
        peer.stream()
            .set_write_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let _ = peer.try_send_bytes(&[0, 1, 0, 3, 1, 0, 0, 0]);
        let _ = peer.try_send_bytes(&[7; 300_000]);
        greedy.push(peer);
    }
    assert!(greedy.len() > 200, "{} sessions", greedy.len());
    for len in [100, 1_000_000] {
        agent.send(&long(len));
        assert!(receives(&mut controller, len));
    }
}
