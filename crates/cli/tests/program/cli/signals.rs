//! The end of the program by signals and by closed pipes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use ssntp::proto::{Frame, Status};
use tempfile::TempDir;

use crate::cluster::processes::until;
use crate::processes::wait_for;
use ssntp_test_support::program::Program;

fn ssntp(at: &Path, line: &str) -> Command {
    let mut command = crate::program();
    command.args(line.split_whitespace()).current_dir(at);
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn terminate(child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

/// Sends SIGTERM to a child, and returns its exit code.
fn end(mut child: Child) -> Option<i32> {
    terminate(&child);
    let status = wait_for(|| child.try_wait().unwrap().ok_or("the program still runs"));
    // A shell shows a signal like this.
    status.code().or(status.signal().map(|signal| signal + 128))
}

struct Server {
    directory: TempDir,
    child: Option<Child>,
    address: String,
}

impl Server {
    fn start() -> Self {
        Self::start_with("")
    }

    fn start_with(flags: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        assert!(ssntp(at, "cert ca --dir .").status().unwrap().success());
        for role in ["server", "agent", "controller"] {
            let issue = format!("cert issue --dir . --role {role} --name {role}");
            assert!(ssntp(at, &issue).status().unwrap().success());
        }
        let line = "server --listen 127.0.0.1:0 --ca ca.pem --cert server.pem --filter spec";
        let mut child = ssntp(at, &format!("{line} {flags}")).spawn().unwrap();
        let mut first_line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut first_line)
            .unwrap();
        let address = first_line.trim().rsplit(' ').next().unwrap().to_owned();
        Self {
            directory,
            child: Some(child),
            address,
        }
    }

    fn client(&self, command: &str, cert: &str, more: &str) -> Command {
        let address = &self.address;
        let line = format!("{command} --connect {address} --ca ca.pem --cert {cert}.pem {more}");
        ssntp(self.directory.path(), &line)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_signal_ends_a_program_that_reads_the_standard_input() {
    let server = Server::start();
    let mut decode = ssntp(server.directory.path(), "decode");
    let mut send = server.client("send", "agent", "--type COMMAND --operand STATS --payload -");
    for (command, code) in [(&mut decode, 143), (&mut send, 143)] {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // A pipe does not hold so many bytes, so the write ends once the program reads.
        input.write_all(&[b'\n'; 128 * 1024]).unwrap();
        assert_eq!(end(child), Some(code));
        drop(input);
    }
}

#[test]
fn decode_prints_each_frame_when_it_arrives() {
    let directory = tempfile::tempdir().unwrap();
    let mut decode = ssntp(directory.path(), "decode --json");
    let mut child = decode.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&Frame::new(Status::FULL).encode()).unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert!(line.contains("FULL"), "{line}");
    assert_eq!(end(child), Some(143));
    drop(input);
}

#[test]
fn a_signal_ends_the_wait_for_another_program_that_changes_the_contexts() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("ssntp");
    fs::create_dir(&kept).unwrap();
    let held = fs::File::open(&kept).unwrap();
    held.lock().unwrap();
    let remove = ssntp(directory.path(), "context remove work")
        .env("XDG_CONFIG_HOME", directory.path())
        .spawn()
        .unwrap();
    let inode = format!(":{} ", held.metadata().unwrap().ino());
    let waits = |line: &str| line.contains("-> FLOCK") && line.contains(&inode);
    until("the program waits for the lock", || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(waits).then_some(()).ok_or(locks)
    });
    assert_eq!(end(remove), Some(143));
}

#[test]
fn a_closed_standard_error_is_no_panic() {
    let server = Server::start();
    let at = server.directory.path();
    let line = "server --listen unix:socket --ca ca.pem --cert server.pem";
    let mut other = ssntp(at, line).spawn().unwrap();
    let mut first_line = String::new();
    let mut output = BufReader::new(other.stdout.take().unwrap());
    output.read_line(&mut first_line).unwrap();
    let line = "listen --connect unix:socket --ca ca.pem --cert controller.pem";
    let mut listen = ssntp(at, line).spawn().unwrap();
    let mut errors = BufReader::new(listen.stderr.take().unwrap());
    errors.read_line(&mut first_line).unwrap();
    drop(errors);
    // The program cannot report the closed pipe.
    assert_eq!(end(other), Some(0));
    let _ = fs::remove_file(at.join("socket"));
    let listener = UnixListener::bind(at.join("socket")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut attempts = 0;
    wait_for(|| {
        attempts += u32::from(listener.accept().is_ok());
        assert!(listen.try_wait().unwrap().is_none(), "the client connects again");
        if attempts < 2 { Err(attempts) } else { Ok(()) }
    });
    assert_eq!(end(listen), Some(0));
}

#[test]
fn a_frame_that_the_server_refuses_fails_its_sender() {
    let server = Server::start();
    for _ in 0..3 {
        let send = server
            .client("send", "agent", "--type COMMAND --operand START")
            .output()
            .unwrap();
        assert_eq!(send.status.code(), Some(1));
        let errors = String::from_utf8(send.stderr).unwrap();
        let words = "the server does not let agents send START: START is for controllers";
        assert!(errors.contains(words), "{errors}");
    }
}

/// The system of a stopped process answers TCP's own probes. The shortest limit is 30 s.
#[test]
fn a_client_whose_process_is_stopped_loses_its_session_at_the_idle_limit() {
    let mut server = Server::start_with("--idle-limit 30 --log info");
    let [stopped, other] = ["controller", "agent"].map(|cert| {
        let listen = Program::of(server.client("listen", cert, ""));
        listen.error_with("connected");
        listen
    });
    stopped.signal(Signal::STOP);
    let process = Program::around(server.child.take().unwrap());
    let log = process.error_with("does not answer");
    assert!(log.contains("controller"), "{log}");
    assert!(other.err.try_iter().all(|line| !line.contains("disconnected")));
    let refused = ssntp(server.directory.path(), "server --dev --idle-limit 29").output();
    let errors = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(errors.contains("--idle-limit"), "{errors}");
}

#[test]
fn a_server_ends_with_its_standard_input_if_a_flag_says_so() {
    let server = Server::start();
    let line = "server --listen 127.0.0.1:0 --ca ca.pem --cert server.pem --until-stdin-ends";
    let mut child = ssntp(server.directory.path(), line)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"x").unwrap();
    let mut output = child.stdout.take().unwrap();
    assert!(output.read(&mut [0; 64]).unwrap() > 0);
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
