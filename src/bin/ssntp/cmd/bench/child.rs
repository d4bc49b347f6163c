//! The server's process.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ssntp::transport::Address;

use super::raw::Pki;
use crate::failure::Failure;

/// A running `ssntp server` that forwards STATS to controllers. Dropping it
/// ends it and waits for it.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    pub(super) address: Address,
}

impl Server {
    pub(super) fn start(pki: &Pki, more: &[&str]) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(|e| Failure::new(format!("this program: {e}")))?;
        let mut child = Command::new(program)
            .args([
                "server",
                "--listen",
                "127.0.0.1:0",
                "--forward",
                "STATS=controller",
                // However this process ends, the pipe does with it.
                "--until-stdin-ends",
            ])
            .arg("--ca")
            .arg(pki.ca_path())
            .arg("--cert")
            .arg(pki.server_path())
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|e| Failure::new(format!("cannot start the server: {e}")))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let address = line.trim().rsplit(' ').next().and_then(|text| text.parse().ok());
        match address {
            Some(address) => Ok(Self { child, address }),
            None => {
                let mut why = String::new();
                if let Some(mut stderr) = child.stderr.take() {
                    let _ = stderr.read_to_string(&mut why);
                }
                let _ = child.kill();
                let _ = child.wait();
                Err(Failure::new(format!("the server does not start: {}", why.trim())))
            }
        }
    }

    /// User and system time so far.
    pub(super) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The command's name, in parentheses, may hold anything.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
        let hertz = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_secs_f64((ticks(11) + ticks(12)) as f64 / hertz as f64)
    }

    /// Resident memory in KiB.
    pub(super) fn rss(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
