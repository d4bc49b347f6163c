//! The health checks of a run, which its supervisor makes, one at a time.
//!
//! ```text
//!  supervisor ─── spawns ───▶ supervise-instance --check PID
//!      │                        reads the order, becomes the user of the run,
//!      │                        connects, or requests, or executes the check's program
//!      │ ◀── its exit code, the beginning of its output
//!      ▼
//!  starting ──── passed ────▶ healthy ◀──────────────┐ passed
//!     │                          └─ failed too often ▶ unhealthy
//!     └─ the grace is over, and failed too often after it ─▶ │
//! ```
//!
//! Each check is a process of the run, so a check that hangs holds up nothing: it is killed at its time
//! limit with its descendants, and at the end of the run like all others. It has no input. The first
//! [`MAX_OUTPUT`] bytes of its output are the reason if it fails, and the rest is dropped.
//!
//! | check | passes if | address, namespaces, limits |
//! |---|---|---|
//! | `tcp` | a connection is accepted | the address of the run in the network of its tenant; 127.0.0.1 in that of the host |
//! | `http` | the answer to a GET has the status; redirections are not followed | as for `tcp` |
//! | `command` | it exits with 0 | all namespaces, control groups, environment and directory of the run |
//!
//! A failure does not count until the grace is over or a check has passed. Until then checks follow each
//! other within a second, so that a program that is ready is soon known to be. A run that its node starts
//! again begins anew. The state is a part of the state of the run, so a later agent finds it.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a process of its own; a program is not blamed for the time for which its host is suspended"
)]

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, WaitStatus};
use ssntp_payload::{HealthCheck, HealthState};
use ssntp_transport::excerpt;

use super::enter::{become_program, become_user};
use super::launch_order::LaunchOrder;
use super::{again, procfs};
use crate::driver::Health;

/// In the arguments of the process that makes a check.
pub(super) const CHECK: &str = "--check";
/// The number of bytes of output that are kept.
const MAX_OUTPUT: usize = 1024;
/// The longest pause until the first check has passed.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The health of a run, and the check under way.
#[derive(Debug)]
pub(super) struct Checks {
    check: HealthCheck,
    /// The order, which the process of each check reads: a file in memory, because a long order may not fit into a
    /// pipe.
    order: File,
    health: Health,
    /// The number of failures in a row that count.
    failures: u32,
    /// The end of the grace.
    grace: Instant,
    next: Instant,
    probe: Option<Probe>,
}

/// A check under way.
#[derive(Debug)]
struct Probe {
    pid: Pid,
    /// `None` once the check has closed its output, which would wake the supervisor again and again.
    pipe: Option<PipeReader>,
    output: Vec<u8>,
    /// The time at which the check has failed, and its process is killed.
    until: Instant,
    is_killed: bool,
}

impl Checks {
    /// The checks of a run that begins now. `None` if the order names no check that this version knows.
    pub(super) fn new(order: &LaunchOrder) -> io::Result<Option<Self>> {
        let Some(check) = order.check.clone().filter(is_known) else {
            return Ok(None);
        };
        let mut file = File::from(memfd_create(c"ssntp-check", MemfdFlags::CLOEXEC)?);
        file.write_all(&order.encode()?)?;
        let now = Instant::now();
        Ok(Some(Self {
            grace: now + Duration::from_secs(check.start_s.into()),
            check,
            order: file,
            health: Health {
                state: HealthState::Starting,
                since: SystemTime::now(),
                why: String::new(),
            },
            failures: 0,
            next: now,
            probe: None,
        }))
    }

    pub(super) fn health(&self) -> Health {
        self.health.clone()
    }

    /// The output of the check under way.
    pub(super) fn output(&self) -> Option<BorrowedFd<'_>> {
        let pipe = self.probe.as_ref().and_then(|probe| probe.pipe.as_ref());
        pipe.map(AsFd::as_fd)
    }

    /// The time until the next [`handle_time`](Self::handle_time).
    pub(super) fn pause(&self) -> Duration {
        let due = self.probe.as_ref().map_or(self.next, |probe| probe.until);
        due.saturating_duration_since(Instant::now())
    }

    /// Reads output, ends a check whose time is over, and begins the next one. Returns true if the health
    /// has changed.
    pub(super) fn handle_time(&mut self, leader: Pid) -> bool {
        let now = Instant::now();
        let Some(probe) = &mut self.probe else {
            if now < self.next {
                return false;
            }
            let began = self.begin(leader, now);
            return began.is_err_and(|e| self.judge(now, Err(format!("it cannot be made: {e}"))));
        };
        probe.read();
        if now < probe.until {
            return false;
        }
        let limit = timeout(&self.check);
        // A process that hangs in the kernel is killed again, and each time counts.
        probe.until = now + limit;
        probe.is_killed = true;
        probe.kill();
        self.judge(now, Err(format!("no answer within {} s", limit.as_secs())))
    }

    /// A child of the supervisor has ended. Returns true if the health has changed.
    pub(super) fn handle_end(&mut self, pid: Pid, status: WaitStatus) -> bool {
        let Some(mut probe) = self.probe.take_if(|probe| probe.pid == pid) else {
            return false;
        };
        probe.read();
        // Processes that it has left and that have its output are killed as orphans of the run.
        let outcome = match status.exit_status() {
            _ if probe.is_killed => return false,
            Some(0) => Ok(()),
            code => {
                let said = String::from_utf8_lossy(&probe.output);
                let how = match code {
                    Some(code) => format!("exit code {code}"),
                    None => format!("signal {}", status.terminating_signal().unwrap_or_default()),
                };
                Err(match said.trim() {
                    "" => how,
                    said if self.check.command.is_empty() => said.to_owned(),
                    said => format!("{how}: {said}"),
                })
            }
        };
        self.judge(Instant::now(), outcome)
    }

    fn begin(&mut self, leader: Pid, now: Instant) -> io::Result<()> {
        // Opened anew, because each process reads from the beginning.
        let order = File::open(format!("/proc/self/fd/{}", self.order.as_raw_fd()))?;
        let (pipe, output) = io::pipe()?;
        ioctl_fionbio(&pipe, true)?;
        let mut command = again(CHECK.as_ref());
        command
            .arg(leader.as_raw_nonzero().to_string())
            .stdin(order)
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0);
        let child = command.spawn()?;
        self.probe = Some(Probe {
            pid: Pid::from_child(&child),
            pipe: Some(pipe),
            output: Vec::new(),
            until: now + timeout(&self.check),
            is_killed: false,
        });
        Ok(())
    }

    /// Counts the outcome of a check. Returns true if the health has changed.
    fn judge(&mut self, now: Instant, outcome: Result<(), String>) -> bool {
        let before = self.health.clone();
        match outcome {
            Ok(()) => {
                self.failures = 0;
                (self.health.state, self.health.why) = (HealthState::Healthy, String::new());
            }
            Err(why) => {
                let counts = self.health.state != HealthState::Starting || now >= self.grace;
                self.failures += u32::from(counts);
                if self.failures >= self.check.failures.max(1) {
                    self.health.state = HealthState::Unhealthy;
                }
                self.health.why = excerpt(&why).to_string();
            }
        }
        if self.health.state != before.state {
            self.health.since = SystemTime::now();
        }
        let pause = Duration::from_secs(self.check.interval_s.max(1).into());
        self.next = now
            + if self.health.state == HealthState::Starting {
                pause.min(FIRST_PAUSE)
            } else {
                pause
            };
        self.health != before
    }
}

impl Probe {
    /// Keeps the beginning of the output, and drops the rest.
    fn read(&mut self) {
        let mut piece = [0; MAX_OUTPUT];
        // Bounded, because a program that never stops writing must not hold up the supervisor.
        for _ in 0..64 {
            let Some(pipe) = &mut self.pipe else { return };
            match pipe.read(&mut piece) {
                Ok(length @ 1..) => {
                    let room = MAX_OUTPUT - self.output.len();
                    self.output.extend(piece.iter().take(length.min(room)));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Ok(0) | Err(_) => self.pipe = None,
            }
        }
    }

    fn kill(&self) {
        let pid = self.pid.as_raw_nonzero().get();
        let own = procfs::stat(pid).into_iter();
        for stat in own.chain(procfs::descendants(pid)) {
            procfs::signal(&stat, Signal::KILL);
        }
    }
}

fn is_known(check: &HealthCheck) -> bool {
    check.tcp > 0 || check.http.port > 0 || !check.command.is_empty()
}

fn timeout(check: &HealthCheck) -> Duration {
    Duration::from_secs(check.timeout_s.max(1).into())
}

/// Makes one check of the run whose first process is `leader`. Its outcome is the exit code, and the
/// reason is the output. It may wait for ever, because its supervisor kills it.
pub(super) fn check(leader: &str) -> ExitCode {
    match made(leader) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn made(leader: &str) -> Result<(), String> {
    let mut order = LaunchOrder::read(io::stdin()).map_err(|e| e.to_string())?;
    let check = order.check.take().unwrap_or_default();
    if let [program, arguments @ ..] = &check.command[..] {
        order.exec.program = program.into();
        order.exec.arguments = arguments.iter().map(Into::into).collect();
        return Err(become_program(&order, Some(leader), || {}).why);
    }
    // Bytes of the instance are not read with the rights of the agent.
    become_user(&order).map_err(|e| e.why)?;
    if check.tcp > 0 {
        return connect(&order, check.tcp).map(drop);
    }
    let (port, path) = (check.http.port, &check.http.path);
    let mut stream = connect(&order, port)?;
    let host = SocketAddr::from((address(&order), port));
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut line = Vec::new();
    stream
        .write_all(request.as_bytes())
        .and_then(|()| BufReader::new(stream.take(MAX_OUTPUT as u64)).read_until(b'\n', &mut line))
        .map_err(|e| format!("port {port}: {e}"))?;
    let line = String::from_utf8_lossy(&line);
    let status = line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split_ascii_whitespace().nth(1)?.parse::<u16>().ok());
    match (status, check.http.status) {
        (Some(200..400), 0) => Ok(()),
        (Some(status), wanted) if status == wanted => Ok(()),
        (Some(status), _) => Err(format!("{path} at port {port} answers with status {status}")),
        (None, _) => Err(format!("port {port} does not answer as HTTP/1")),
    }
}

fn connect(order: &LaunchOrder, port: u16) -> Result<TcpStream, String> {
    TcpStream::connect((address(order), port)).map_err(|e| format!("port {port}: {e}"))
}

fn address(order: &LaunchOrder) -> IpAddr {
    order.address.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_has_closed_its_output_wakes_nobody() {
        let (pipe, mut output) = io::pipe().unwrap();
        ioctl_fionbio(&pipe, true).unwrap();
        let mut probe = Probe {
            pid: rustix::process::getpid(),
            pipe: Some(pipe),
            output: Vec::new(),
            until: Instant::now(),
            is_killed: false,
        };
        output.write_all(b"bad").unwrap();
        probe.read();
        assert!(probe.pipe.is_some() && probe.output == b"bad");
        drop(output);
        probe.read();
        assert!(probe.pipe.is_none() && probe.output == b"bad");
    }

    #[test]
    fn failures_count_in_a_row_and_from_the_first_success_or_the_end_of_the_grace() {
        let begin = Instant::now();
        let checks = || Checks {
            check: HealthCheck {
                interval_s: 10,
                ..HealthCheck::default()
            },
            order: File::open("/dev/null").unwrap(),
            health: Health {
                state: HealthState::Starting,
                since: SystemTime::UNIX_EPOCH,
                why: String::new(),
            },
            failures: 0,
            grace: begin + Duration::from_secs(60),
            next: begin,
            probe: None,
        };
        let bad = || Err("line 1\n2".to_owned());
        // The times in seconds, the outcomes, and the states after them.
        let rows = |rows: &[(u64, Result<(), String>, HealthState)]| {
            let mut checks = checks();
            for (at, outcome, state) in rows {
                let now = begin + Duration::from_secs(*at);
                checks.judge(now, outcome.clone());
                assert_eq!(checks.health.state, *state, "at {at}");
                let pause = if *state == HealthState::Starting { 1 } else { 10 };
                assert_eq!(checks.next - now, Duration::from_secs(pause));
            }
            checks
        };
        use HealthState::{Healthy, Starting, Unhealthy};
        let checks = rows(&[
            (1, bad(), Starting),
            (59, bad(), Starting),
            (60, bad(), Starting),
            (61, bad(), Starting),
            (62, bad(), Unhealthy),
        ]);
        assert_eq!(checks.health.why, "line 1\\n2");
        assert!(checks.health.since > SystemTime::UNIX_EPOCH);
        rows(&[
            (1, Ok(()), Healthy),
            (2, bad(), Healthy),
            (3, bad(), Healthy),
            (4, Ok(()), Healthy),
            (5, bad(), Healthy),
            (6, bad(), Healthy),
            (7, bad(), Unhealthy),
            (8, Ok(()), Healthy),
        ]);
    }
}
