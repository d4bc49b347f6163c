//! A directory with certificates, and programs that run in it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The time limit after which a test fails. It is longer than the limits in the program, which says for what
/// it waited in vain.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// A running `ssntp`. Dropping it kills it.
pub(super) struct Program {
    pub(super) child: Child,
    pub(super) out: Receiver<String>,
    pub(super) err: Receiver<String>,
}

/// The end of a program.
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) out: Vec<String>,
    pub(super) err: Vec<String>,
}

impl Program {
    pub(super) fn start(directory: &Path, line: &str) -> Self {
        Self::with_input(directory, line, b"")
    }

    pub(super) fn with_input(directory: &Path, line: &str, input: &[u8]) -> Self {
        let mut child = command(directory, line).stdin(Stdio::piped()).spawn().unwrap();
        // The program may end before it has read the input.
        let _ = child.stdin.take().unwrap().write_all(input);
        let out = lines(child.stdout.take().unwrap());
        let err = lines(child.stderr.take().unwrap());
        Self { child, out, err }
    }

    /// The next line of its standard output.
    #[track_caller]
    pub(super) fn line(&self) -> String {
        let line = self.out.recv_timeout(LIMIT);
        line.unwrap_or_else(|e| {
            let errors: Vec<_> = self.err.try_iter().collect();
            panic!("the program printed no line: {e}; its errors: {errors:#?}")
        })
    }

    /// Waits for a line on its standard error with this beginning.
    #[track_caller]
    pub(super) fn error_line(&self, begin: &str) -> String {
        let mut others = Vec::new();
        loop {
            match self.err.recv_timeout(LIMIT) {
                Ok(line) if line.starts_with(begin) => return line,
                Ok(line) => others.push(line),
                Err(e) => panic!("no line begins with {begin}: {e}; {others:#?}"),
            }
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Waits for its end.
    pub(super) fn end(mut self) -> Ended {
        let (out, err) = (rest(&self.out), rest(&self.err));
        let code = self.child.wait().unwrap().code();
        Ended { code, out, err }
    }

    /// Waits for its end, which has to be a success.
    pub(super) fn succeed(self) -> Vec<String> {
        let ended = self.end();
        assert_eq!(ended.code, Some(0), "{:?}", ended.err);
        ended.out
    }

    /// Waits for its end with this code, and returns its one line on standard error.
    pub(super) fn fail(self, code: i32) -> String {
        let mut ended = self.end();
        assert_eq!(ended.code, Some(code), "{:?}", ended.err);
        assert_eq!(ended.err.len(), 1, "{:?}", ended.err);
        let line = ended.err.remove(0);
        assert!(line.starts_with("ssntp: "), "{line}");
        line
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn command(directory: &Path, line: &str) -> Command {
    let mut command = crate::program();
    command
        .args(line.split_whitespace())
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(super) fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            if sender.send(line.unwrap()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Every line until the pipe is closed.
pub(super) fn rest(lines: &Receiver<String>) -> Vec<String> {
    let deadline = Instant::now() + LIMIT;
    let mut rest = Vec::new();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => rest.push(line),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return rest,
            Err(_) => panic!("the program did not end after {rest:?}"),
        }
    }
}

/// A directory with an authority and a certificate for each role used here.
pub(super) struct Place(pub(super) TempDir);

impl Place {
    pub(super) fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.succeed("cert ca --dir .");
        for role in ["server", "agent", "controller"] {
            place.succeed(&format!("cert issue --dir . --role {role} --name {role}"));
        }
        place
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn start(&self, line: &str) -> Program {
        Program::start(self.0.path(), line)
    }

    pub(super) fn succeed(&self, line: &str) -> Vec<String> {
        self.start(line).succeed()
    }

    pub(super) fn fail(&self, line: &str, code: i32) -> String {
        self.start(line).fail(code)
    }

    /// A server on loopback that sends STATS to controllers, and its address.
    pub(super) fn server(&self, flags: &str) -> (Program, String) {
        self.server_at("127.0.0.1:0", flags)
    }

    /// The same at an address.
    pub(super) fn server_at(&self, address: &str, flags: &str) -> (Program, String) {
        let server = self.start(&format!(
            "server --listen {address} --ca ca.pem --cert server.pem --forward STATS=controller {flags}"
        ));
        let line = server.line();
        let addresses = line.strip_prefix("listening at ").unwrap();
        let first = addresses.split(", ").next().unwrap().to_owned();
        (server, first)
    }

    /// A controller that listens and is connected.
    pub(super) fn listener(&self, address: &str, flags: &str) -> Program {
        let listener = self.start(&format!("listen {} {flags}", connect(address, "controller")));
        listener.error_line("connected to ");
        listener
    }

    /// An agent that sends STATS.
    pub(super) fn send(&self, address: &str, flags: &str, input: &[u8]) -> Program {
        let line = format!(
            "send {} --type COMMAND --operand STATS {flags}",
            connect(address, "agent")
        );
        Program::with_input(self.0.path(), &line, input)
    }
}

/// The flags that connect to an address with the certificate of a role.
pub(super) fn connect(address: &str, role: &str) -> String {
    format!("--connect {address} --ca ca.pem --cert {role}.pem")
}
