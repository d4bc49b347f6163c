//! Programs of the system that are run to their end, each within a time limit.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use log::warn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use ssntp_transport::{Cancel, deadline, left};

/// The pause between two checks of the bounds.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// The time for which a program that was killed is waited for.
const KILLED: Duration = Duration::from_secs(2);

/// How long something may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// The time limit.
    pub until: Instant,
    /// Ends it early.
    pub cancel: &'a Cancel,
}

impl Bounds<'_> {
    /// Checks that it may go on.
    ///
    /// # Errors
    /// It was cancelled, or the time limit has passed.
    pub fn check(&self) -> io::Result<()> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("the launch was cancelled"));
        }
        left(self.until).map(drop)
    }
}

/// Runs a program with this input until it ends, or kills it with its children at the bounds. Returns its exit
/// status, and the first `most` bytes of its output and of its errors.
///
/// # Errors
/// It cannot be started, or has not ended within the bounds.
pub fn run(
    command: &mut Command,
    input: &str,
    most: u64,
    bounds: Bounds<'_>,
) -> io::Result<(ExitStatus, [Vec<u8>; 2])> {
    // Files in memory accept all output at once, while a pipe could fill up and block the program.
    let file = || memfd_create("tool", MemfdFlags::CLOEXEC).map(File::from);
    let (mut stdin, stdout, stderr) = (file()?, file()?, file()?);
    stdin.write_all(input.as_bytes())?;
    stdin.rewind()?;
    command.stdin(stdin).process_group(0);
    let child = command
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .spawn()?;
    let status = await_end(child, bounds)?;
    let read = |mut file: File| -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    Ok((status, [read(stdout)?, read(stderr)?]))
}

fn await_end(mut child: Child, bounds: Bounds<'_>) -> io::Result<ExitStatus> {
    let pid = Pid::from_child(&child);
    // Its end wakes this thread. Without a free descriptor it is only looked for.
    let process = pidfd_open(pid, PidfdFlags::empty()).ok();
    let why = loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(e) => break e,
        }
        if let Err(e) = bounds.check() {
            break e;
        }
        let fd = process
            .as_ref()
            .map(|process| PollFd::new(process, PollFlags::IN));
        let _ = poll(&mut fd.into_iter().collect::<Vec<_>>(), Some(&LOOK));
    };
    // The group has the number of the child. No other group can have this number before the child was
    // waited for.
    let _ = kill_process_group(pid, Signal::KILL);
    let limit = deadline(KILLED);
    while matches!(child.try_wait(), Ok(None)) {
        if left(limit).is_err() {
            warn!(
                "process {} was killed and has not ended in {KILLED:?}",
                child.id()
            );
            break;
        }
        let _ = poll(&mut [], Some(&LOOK));
    }
    Err(why)
}
