//! The notices of each daemon to a service manager, and the completion of its command line.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use ssntp_test_support::program::Program;
use tempfile::TempDir;

/// The time limit after which a test fails.
const LIMIT: Duration = Duration::from_secs(60);

/// A service manager that receives the notices of daemons. The kernel queues few datagrams
/// (net.unix.max_dgram_qlen), and a daemon waits at most a second for a manager that does not read.
struct Manager {
    directory: TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let manager = Self { directory, socket };
        manager.done("cert ca --dir .");
        for (name, roles) in [
            ("server", "server"),
            ("scheduler", "scheduler"),
            ("agent", "agent"),
            ("cnci", "cnciagent"),
            ("controller", "controller"),
        ] {
            manager.done(&format!("cert issue --dir . --role {roles} --name {name}"));
        }
        manager
    }

    fn done(&self, line: &str) {
        let status = ssntp(self.directory.path(), line).status().unwrap();
        assert!(status.success(), "{line}");
    }

    /// Starts a daemon with a watchdog that wants ten notices a second. A shell sets WATCHDOG_PID to its
    /// own process number, which `exec` keeps for the daemon.
    fn start(&self, line: &str) -> Program {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", r#"WATCHDOG_PID=$$ exec "$0" "$@""#]);
        command.arg(env!("CARGO_BIN_EXE_ssntp"));
        command.args(line.split_whitespace());
        command.current_dir(self.directory.path());
        command.env("NOTIFY_SOCKET", self.directory.path().join("notify"));
        command.env("WATCHDOG_USEC", "200000");
        command.env_remove("RUST_LOG").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Program::of(command)
    }

    /// Waits for a notice that satisfies the condition, and returns it.
    #[track_caller]
    fn notice(&self, mut is_it: impl FnMut(&str) -> bool) -> String {
        let since = Instant::now();
        let mut buffer = [0; 1024];
        let mut notices = Vec::new();
        while since.elapsed() < LIMIT {
            let Ok(length) = self.socket.recv(&mut buffer) else {
                break;
            };
            let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
            if is_it(&message) {
                return message;
            }
            notices.push(message);
        }
        panic!("no such notice among {notices:?}");
    }
}

fn ssntp(at: &Path, line: &str) -> Command {
    let mut command = crate::program();
    command.args(line.split_whitespace()).current_dir(at);
    command.stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn every_daemon_sends_notices_that_it_is_ready_alive_and_stopping() {
    let manager = Manager::new();
    let client = "--connect 127.0.0.1:1 --ca ca.pem";
    for (line, work) in [
        (
            "server --listen 127.0.0.1:0 --ca ca.pem --cert server.pem".to_owned(),
            "0 sessions",
        ),
        (
            "scheduler --listen 127.0.0.1:0 --ca ca.pem --cert scheduler.pem".to_owned(),
            "0 sessions",
        ),
        // These daemons are ready although their scheduler does not run.
        (
            format!("agent {client} --cert agent.pem --state agent --users agent"),
            "not connected",
        ),
        (
            format!(
                "cnci {client} --cert cnci.pem --ip 127.0.0.1 --uuid {} --tenant {}",
                "30000000-0000-4000-8000-000000000001", "30000000-0000-4000-8000-000000000002"
            ),
            "not connected",
        ),
        (
            format!("controller {client} --cert controller.pem --store store"),
            "not connected",
        ),
        ("opflex serve --listen 127.0.0.1:0".to_owned(), "0 clients"),
    ] {
        let daemon = manager.start(&line);
        manager.notice(|message| message == "READY=1");
        let lives = manager.notice(|message| message.starts_with("WATCHDOG=1\n"));
        assert_eq!(lives, format!("WATCHDOG=1\nSTATUS={work}\n"), "{line}");
        manager.notice(|message| message == "WATCHDOG=1\n");
        daemon.signal(Signal::TERM);
        manager.notice(|message| message == "STOPPING=1");
        daemon.end_by(Signal::TERM);
    }
}

/// If the client ended at once, the service manager would start it again every two seconds, and fill
/// the journal.
#[test]
fn a_refused_client_waits_for_another_certificate_before_it_ends() {
    let manager = Manager::new();
    let at = manager.directory.path();
    let server = ssntp(
        at,
        "server --listen unix:socket --ca ca.pem --cert server.pem --crl crl.pem",
    );
    manager.done("cert revoke --dir . agent controller");
    let server = Program::of(server);
    for (role, more) in [("agent", ""), ("controller", "--store store")] {
        let line = format!("{role} --connect unix:socket --ca ca.pem --cert {role}.pem {more}");
        let mut client = manager.start(&line);
        let line = manager.notice(|message| message.contains("STATUS=") && message.contains("revoked"));
        assert!(line.starts_with("WATCHDOG=1\nEXTEND_TIMEOUT_USEC="), "{line}");
        manager.notice(|message| message == "WATCHDOG=1\nEXTEND_TIMEOUT_USEC=10000000\n");
        assert_eq!(client.child.try_wait().unwrap(), None);
        manager.done(&format!("cert issue --dir . --role {role} --name {role} --force"));
        assert_eq!(client.code(), Some(1));
    }
    drop(server);
}

/// A node joins before it is ready, in two minutes at most.
#[test]
fn a_service_manager_waits_longer_than_a_node_for_its_certificate() {
    for unit in ["agent", "cnci"] {
        let path = format!(
            "{}/../../packaging/systemd/ssntp-{unit}.service",
            env!("CARGO_MANIFEST_DIR")
        );
        let text = fs::read_to_string(path).unwrap();
        let mut lines = text.lines();
        let seconds = lines
            .find_map(|line| line.strip_prefix("TimeoutStartSec="))
            .unwrap();
        assert!(seconds.parse::<u32>().unwrap() > 120, "{unit}: {seconds}");
    }
}

#[test]
fn a_failed_reload_is_notified_with_its_reason() {
    let manager = Manager::new();
    let server = manager.start("server --listen 127.0.0.1:0 --ca ca.pem --cert server.pem");
    manager.notice(|message| message == "READY=1");
    server.signal(Signal::HUP);
    let begin = manager.notice(|message| message.starts_with("RELOADING=1\n"));
    let clock = begin.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
    assert!(clock.parse::<u64>().unwrap() > 0);
    manager.notice(|message| message.starts_with("READY=1\n"));
    fs::write(manager.directory.path().join("ca.pem"), "nothing").unwrap();
    server.signal(Signal::HUP);
    manager.notice(|message| message.starts_with("RELOADING=1\n"));
    let ready = manager.notice(|message| message.starts_with("READY=1\n"));
    assert!(
        ready.contains("not reloaded: ") && ready.contains("ca.pem"),
        "{ready}"
    );
    server.end_by(Signal::TERM);
}

#[test]
fn completions_and_manual_pages_cover_the_command_line() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for shell in ["bash", "zsh", "fish"] {
        let output = ssntp(at, &format!("completions {shell}"))
            .stdout(Stdio::piped())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("scheduler"), "{shell}");
        assert!(text.contains("max-sessions"), "{shell}");
    }
    assert!(ssntp(at, "manual pages").status().unwrap().success());
    for (page, flag) in [
        ("ssntp", "scheduler"),
        ("ssntp-server", "max\\-sessions"),
        ("ssntp-opflex-serve", "max\\-connections"),
    ] {
        let text = fs::read_to_string(at.join(format!("pages/{page}.1"))).unwrap();
        assert!(text.contains(flag), "{page}");
    }
    // Hidden commands have no manual page.
    assert!(!at.join("pages/ssntp-manual.1").exists());
}
