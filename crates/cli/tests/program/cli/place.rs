//! A directory with certificates, and programs that run in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ssntp_test_support::program::Program;
use tempfile::TempDir;

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
        self.with_input(line, b"")
    }

    pub(super) fn with_input(&self, line: &str, input: &[u8]) -> Program {
        Program::with_input(command(self.0.path(), line), input)
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
        let addresses = server.line("listening at ");
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
        self.with_input(&line, input)
    }
}

/// The flags that connect to an address with the certificate of a role.
pub(super) fn connect(address: &str, role: &str) -> String {
    format!("--connect {address} --ca ca.pem --cert {role}.pem")
}
