//! QMP, the protocol to control a running machine.
//!
//! ```text
//!  agent ── connect ──▶ DIR/qmp.sock           one client at a time
//!        ◀── {"QMP": …}                        greeting
//!        ── {"execute": "qmp_capabilities"} ─▶
//!        ◀── {"return": {}}
//!        ── {"execute": …} ──▶ ◀── events …, {"return": …} or {"error": …}
//! ```
//!
//! A connection serves a few commands and is closed. Each command has a time limit, so that a machine
//! that hangs does not block a worker.

#![expect(
    clippy::disallowed_types,
    reason = "the socket of a machine of ours, with time limits of its own"
)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use ssntp_agent::driver::supervisor::connect_to;
use ssntp_transport::{deadline, left};

/// The socket's name in the machine's directory.
pub(super) const SOCKET: &str = "qmp.sock";
/// The time limit for one command, or for the greeting.
const ANSWER: Duration = Duration::from_secs(2);
/// The longest line that is read, in bytes. QEMU's answers to these commands have a few hundred
/// bytes, but a guest that took over its QEMU must not fill the agent's memory.
const MAX_LINE: usize = 1 << 20;

/// A connection to a machine.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: UnixStream,
    /// Bytes that were read and not handled yet.
    read: Vec<u8>,
    /// The device that is being removed; empty once the machine has reported that it is deleted. Only
    /// one name is kept, because a guest that took over its QEMU can report any number.
    leaving: String,
}

impl Qmp {
    /// Connects to the machine that runs in a directory, and completes the greeting.
    pub(super) fn connect(dir: &Path) -> io::Result<Self> {
        let stream = connect_to(File::open(dir)?, SOCKET)?;
        stream.set_write_timeout(Some(ANSWER))?;
        let mut qmp = Self {
            stream,
            read: Vec::new(),
            leaving: String::new(),
        };
        let limit = deadline(ANSWER);
        while qmp.line(limit)?.get("QMP").is_none() {}
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Removes a disk, and waits until the system in the machine has released it.
    pub(super) fn unplug(&mut self, device: &str, node: &str, within: Duration) -> io::Result<()> {
        // The event may arrive before the answer.
        device.clone_into(&mut self.leaving);
        match self.execute("device_del", &json!({ "id": device })) {
            // `device_del` only asks the system in the machine. The disk is in use until the event.
            Ok(_) => {
                let limit = deadline(within);
                while !self.leaving.is_empty() {
                    self.line(limit)?;
                }
            }
            // The system has released the device after the time limit of an earlier call.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        self.execute("blockdev-del", &json!({ "node-name": node }))
            .map(drop)
    }

    /// Sends a command and waits for its result, for at most [`ANSWER`]. The error for a device that
    /// does not exist has the kind `NotFound`.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        let limit = deadline(ANSWER);
        let line = format!("{}\r\n", json!({ "execute": command, "arguments": arguments }));
        self.stream.write_all(line.as_bytes())?;
        loop {
            let mut line = self.line(limit)?;
            if let Some(answer) = line.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = line.get("error") {
                let why = error["desc"].as_str().unwrap_or_default();
                let kind = if error["class"] == "DeviceNotFound" {
                    io::ErrorKind::NotFound
                } else {
                    io::ErrorKind::Other
                };
                return Err(io::Error::new(kind, format!("{command}: {why}")));
            }
        }
    }

    /// Reads the next line, until the time `limit`.
    fn line(&mut self, limit: Instant) -> io::Result<Value> {
        let end = loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            if self.read.len() > MAX_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "too long a line"));
            }
            let left = left(limit).map_err(|e| io::Error::new(e.kind(), "the machine does not answer"))?;
            // The timeout is set for each read, so that a machine that sends single bytes cannot
            // exceed the limit.
            self.stream.set_read_timeout(Some(left))?;
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.read.extend(buffer.iter().take(len)),
                // The limit is checked above.
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        };
        let bytes: Vec<u8> = self.read.drain(..=end).collect();
        let line: Value =
            serde_json::from_slice(&bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        if line["event"] == "DEVICE_DELETED" && line["data"]["device"] == *self.leaving {
            self.leaving.clear();
        }
        Ok(line)
    }
}

#[cfg(test)]
mod tests;
