//! The program starts itself again without signal stacks where memory maps
//! would be too few with them for the sessions that are asked for.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use ssntp::Role;
use ssntp::client::{Client, ClientConfig};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::transport::{default_max_handshakes, more_without_signal_stacks};
use tempfile::TempDir;

/// The bits of SIGBUS and SIGSEGV in a mask of signals.
const BOTH: u64 = 1 << 6 | 1 << 10;

fn place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    let authority = Authority::new(&AuthorityRequest::default()).unwrap();
    authority.save(place.path(), false).unwrap();
    for (name, role) in [
        ("server", Role::SERVER),
        ("scheduler", Role::SCHEDULER),
        ("agent", Role::AGENT),
    ] {
        let issued = authority.issue(&CertificateRequest::new(role)).unwrap();
        issued.save(place.path().join(format!("{name}.pem"))).unwrap();
    }
    place
}

/// A server of some kind that listens. Dropping it kills it.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    fn start(place: &Path, line: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ssntp"))
            .args(line.split(' '))
            .args(["--listen", "127.0.0.1:0"])
            .current_dir(place)
            // The shell is found all the same.
            .env("PATH", "")
            .env("SSNTP_OF_TEST", "left 'as it' is\n")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut first).unwrap();
        let address = first.trim().strip_prefix("listening at ").unwrap().to_owned();
        Self { child, address }
    }

    fn proc(&self, file: &str) -> String {
        let bytes = fs::read(format!("/proc/{}/{file}", self.child.id())).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Whether it ignores both signals, and so has started itself again.
    fn ignores(&self) -> bool {
        mask(&self.proc("status"), "SigIgn:") & BOTH == BOTH
    }

    /// Ends it in order.
    fn end(mut self) -> ExitStatus {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mask(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// A number of sessions that memory maps are enough for without signal
/// stacks only; none where another limit is as tight.
fn number_that_needs_it() -> Option<usize> {
    let maps = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    // Between a fourth of them and an eighth.
    let sessions = maps.trim().parse::<usize>().unwrap() / 6;
    let needs = more_without_signal_stacks(sessions, default_max_handshakes());
    if !needs {
        println!("not on this system: vm.max_map_count is not its tightest limit");
    }
    needs.then_some(sessions)
}

const SERVER: &str = "server --ca ca.pem --cert server.pem";
const SCHEDULER: &str = "scheduler --ca ca.pem --cert scheduler.pem";

#[test]
fn few_sessions_leave_the_process_as_it_is() {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let place = place();
    for line in [SERVER, SCHEDULER] {
        let server = Running::start(place.path(), &format!("{line} --max-sessions 10"));
        // Ignored from the start they are where this test runs like that.
        assert_eq!(server.ignores(), mask(&own, "SigIgn:") & BOTH == BOTH, "{line}");
        assert!(!server.proc("environ").contains("SSNTP_STARTED_AGAIN"));
        assert!(server.end().success());
    }
}

#[test]
fn many_sessions_start_it_again_once_and_otherwise_the_same() {
    let Some(sessions) = number_that_needs_it() else {
        return;
    };
    let place = place();
    for line in [SERVER, SCHEDULER] {
        let line = format!("{line} --max-sessions {sessions}");
        let server = Running::start(place.path(), &line);
        // Of the process that the test has started, so it is still that one.
        assert!(server.ignores(), "{line}");
        assert_eq!(mask(&server.proc("status"), "SigCgt:") & BOTH, 0);
        let shown = server.proc("cmdline");
        let words: Vec<_> = shown.split_terminator('\0').collect();
        let given: Vec<_> = line.split(' ').chain(["--listen", "127.0.0.1:0"]).collect();
        assert_eq!(words[1..], given);
        let environment = server.proc("environ");
        let variables: Vec<_> = environment.split('\0').collect();
        assert!(variables.contains(&"SSNTP_OF_TEST=left 'as it' is\n"));
        let mark = format!("SSNTP_STARTED_AGAIN={}", server.child.id());
        assert!(variables.contains(&mark.as_str()));

        let load = |name| place.path().join(name);
        let identity = Identity::load(load("agent.pem")).unwrap();
        let trust = Trust::load(load("ca.pem")).unwrap();
        let config = ClientConfig::new(identity, trust).address(server.address.parse().unwrap());
        drop(Client::connect(config).unwrap());
        // Sent by somebody, they are ignored; a fault is another matter.
        let pid = Pid::from_raw(i32::try_from(server.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::SEGV).unwrap();
        kill_process(pid, Signal::BUS).unwrap();
        assert!(server.end().success());
    }
}

#[test]
fn without_a_number_the_process_stays_as_it_is() {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = mask(&own, "SigIgn:") & BOTH == BOTH;
    let place = place();
    for line in [SERVER, SCHEDULER, "opflex serve"] {
        let server = Running::start(place.path(), line);
        assert_eq!(server.ignores(), ignored, "{line}");
        assert!(!server.proc("environ").contains("SSNTP_STARTED_AGAIN"));
        assert!(server.end().success());
    }
}

#[test]
fn asking_whether_it_is_needed_raises_no_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Below the hard limit, which a server would raise it to.
    let lower = Rlimit {
        current: Some(maximum.unwrap_or(1 << 20) - 1),
        maximum,
    };
    setrlimit(Resource::Nofile, lower).unwrap();
    let _ = more_without_signal_stacks(usize::MAX, 1);
    assert_eq!(getrlimit(Resource::Nofile), lower);
}

#[test]
fn its_standard_input_is_left_alone() {
    let Some(sessions) = number_that_needs_it() else {
        return;
    };
    let place = place();
    let line = format!("{SERVER} --until-stdin-ends --max-sessions {sessions}");
    let mut server = Running::start(place.path(), &line);
    assert!(server.ignores());
    let mut input = server.child.stdin.take().unwrap();
    input.write_all(b"not read by the shell\n").unwrap();
    drop(input);
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn an_agent_never_ignores_what_its_instances_would_inherit() {
    let place = place();
    let child = Command::new(env!("CARGO_BIN_EXE_ssntp"))
        .args(["agent", "--connect", "127.0.0.1:1", "--ca", "ca.pem"])
        .args(["--cert", "agent.pem", "--state", "state"])
        .current_dir(place.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut agent = Running {
        child,
        address: String::new(),
    };
    // It logs that it finds nobody: by then it is what it will be.
    let mut line = String::new();
    let stderr = agent.child.stderr.as_mut().unwrap();
    BufReader::new(stderr).read_line(&mut line).unwrap();
    assert!(!line.is_empty());
    let own = fs::read_to_string("/proc/self/status").unwrap();
    assert_eq!(agent.ignores(), mask(&own, "SigIgn:") & BOTH == BOTH);
}

/// Uses up the stack.
fn deeper(level: u64) -> u64 {
    let here = std::hint::black_box([level; 64]);
    if level == u64::MAX {
        return 0;
    }
    deeper(level + 1).wrapping_add(here[1])
}

#[test]
fn a_fault_of_its_own_kills_a_process_that_ignores_them() {
    const CHILD: &str = "SSNTP_TEST_OVERFLOWS";
    if std::env::var_os(CHILD).is_some() {
        println!("{}", deeper(0));
        return;
    }
    // This test as a program of its own, started as the server is.
    let output = Command::new("/bin/sh")
        .args(["-c", r#"ulimit -c 0; trap '' SEGV BUS; exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "signal_stacks::a_fault_of_its_own_kills_a_process_that_ignores_them",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(Signal::SEGV.as_raw()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("overflowed its stack"), "{said}");
}
