//! The agent's connection to a supervisor.

#![expect(
    clippy::disallowed_types,
    reason = "the sockets of supervisors, with time limits of their own"
)]

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::state::{self, State};
use super::{RUN, SOCKET};
use crate::driver::{InstanceDir, Running};
use ssntp_transport::is_timeout;

/// The time limit for an answer of a supervisor.
const ANSWER: Duration = Duration::from_secs(2);

/// Opens the directory of an instance's last run.
pub(super) fn run_of(place: &InstanceDir) -> io::Result<OwnedFd> {
    let place = File::open(place.dir())?;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(place, RUN, flags, Mode::empty())?)
}

/// Connects to the supervisor of this run, and not to that of a later run of the instance.
pub(super) fn reach(running: &Running) -> io::Result<UnixStream> {
    let stream = connect_to(run_of(&running.place)?, SOCKET)?;
    // The path is the same for all runs, so the number of the peer's process identifies the run.
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.pid;
    if peer.as_raw_nonzero().get() == running.handle.pid {
        Ok(stream)
    } else {
        Err(io::Error::other("the supervisor of a later run answers"))
    }
}

/// Sends one line to a run's supervisor, and waits for the answer.
pub(super) fn ask(running: &Running, line: &str) -> io::Result<()> {
    let mut stream = reach(running)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    stream.write_all(line.as_bytes())?;
    answer(&stream).map(drop)
}

/// Reads the next line of a supervisor. Bytes that follow the line may be lost, which does not
/// matter, because a connection sends one command at a time.
pub(super) fn answer(stream: &UnixStream) -> io::Result<State> {
    let mut line = String::new();
    BufReader::new(stream)
        .take(state::LINE as u64)
        .read_line(&mut line)
        .map_err(|e| {
            if is_timeout(&e) {
                io::Error::new(io::ErrorKind::TimedOut, "the supervisor does not answer in time")
            } else {
                e
            }
        })?;
    if line.is_empty() {
        return Err(io::Error::other("the supervisor has closed the connection"));
    }
    State::parse(&line).ok_or_else(|| io::Error::other("the supervisor's answer has an unknown state"))
}

/// Connects to a socket in a directory without waiting. A link is refused, because a user who can
/// write there could have made it.
///
/// # Errors
/// It is not a socket, or no process accepts connections there.
pub fn connect_to(dir: impl AsFd, name: &str) -> io::Result<UnixStream> {
    let found = openat(
        dir,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::Socket {
        return Err(io::Error::other("it is not a socket"));
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // The file was opened before: its descriptor cannot be replaced between the check and the
    // connection.
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    // If the backlog is full, this fails at once and does not wait.
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}
