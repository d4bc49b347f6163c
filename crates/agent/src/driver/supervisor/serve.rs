//! The supervisor: one thread that waits for all events with one `poll`.
//!
//! The supervisor never waits for the instance or for an agent alone: their pipes and sockets are
//! read and written without blocking, in bounded pieces.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a process of its own, with the socket that it serves and the times it notes"
)]

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, mkdirat, openat, unlinkat};
use rustix::io::ioctl_fionbio;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, set_child_subreaper, setsid, wait,
};
use rustix::thread::{set_name, set_no_new_privs};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use super::check::Checks;
use super::enter::ENTERED;
use super::launch_order::LaunchOrder;
use super::logs::{Log, Output, PAUSE};
use super::procfs;
use super::state::{State, StateFile};
use super::{ENTER, LOGS, NAME, RUN, SOCKET, again, cgroup, timespec, user_of};
use crate::driver::{Exit, Reason, Refused};

/// The maximum number of connections of agents. There is one agent at a time, which has a few connections,
/// and for a moment those of a former agent whose end was not noticed yet. Beyond this number the oldest
/// connection is closed.
const AGENTS: usize = 4;
/// The longest line of an agent, in bytes.
const MAX_COMMAND: usize = 64;
/// The pause between two checks that the instance's directory still exists.
const DIRECTORY_CHECK: Duration = Duration::from_secs(30);
/// If memory is short, the kernel kills a supervisor only after almost all other processes, because
/// its run would be left without a process that ends it. Only a privileged process may set this.
const OOM_SCORE: &str = "-900";
/// The first pause between two kills. Each pause is twice the one before, up to a third of a second.
const KILL_AGAIN: Duration = Duration::from_millis(10);
const MAX_DOUBLINGS: u32 = 5;

/// Serves the agent at the standard input, and later agents that connect to the socket.
pub(super) fn serve() -> ExitCode {
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    let agent = stdin
        .ok()
        .filter(|fd| rustix::net::sockopt::socket_type(fd).is_ok());
    let Some(agent) = agent else {
        eprintln!("ssntp: an agent starts this, to look after an instance");
        return ExitCode::from(2);
    };
    let mut agent = UnixStream::from(agent);
    match Supervisor::prepare(&agent) {
        Ok(supervisor) => {
            supervisor.hold(agent);
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = agent.write_all(State::Failed(error).line().as_bytes());
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug)]
struct Supervisor {
    order: LaunchOrder,
    run: OwnedFd,
    listener: UnixListener,
    file: StateFile,
    state: State,
    /// Each signal writes a byte to this socket.
    signals: UnixStream,
    /// True after a signal that asks this process to end. The supervisor then asks its run to end,
    /// and stays until the run has ended.
    asked_to_end: Arc<AtomicBool>,
    logs: Vec<Log>,
    outputs: Vec<Output>,
    agents: Vec<AgentLink>,
    /// The run's first process, until it was waited for. Until then no other process or group can
    /// have its number.
    leader: Option<Pid>,
    /// The process that becomes the program reports an error here, if it fails.
    entering: Option<UnixStream>,
    /// What this process has reported: [`ENTERED`], and an error if the program does not run.
    complaint: Vec<u8>,
    /// The number of processes in the control group that were killed for memory before the run.
    killed_for_memory: u64,
    /// The health checks, once the program runs.
    checks: Option<Checks>,
}

/// A connection of an agent.
#[derive(Debug)]
struct AgentLink {
    stream: UnixStream,
    /// The beginning of a line whose end was not received yet.
    read: Vec<u8>,
}

impl Supervisor {
    /// Performs the steps that can fail before the program runs.
    fn prepare(agent: &UnixStream) -> Result<Self, Refused> {
        let system = |what: &'static str| move |e: rustix::io::Errno| Refused::io(what, &e.into());
        let order = LaunchOrder::read(agent).map_err(|e| Refused::io("its order", &e))?;
        // In a session of its own, the supervisor does not get signals for the agent's group or
        // terminal.
        setsid().map_err(system("a session"))?;
        set_child_subreaper(Some(getpid())).map_err(system("adopting orphans"))?;
        // The agent makes the interface in the namespace before it lets the program run.
        if order.has_network {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|e| Refused::new(Reason::NetworkFailure, format!("a network namespace: {e}")))?;
        }
        set_no_new_privs(true).map_err(system("no_new_privs"))?;
        let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
        // The name only shows in lists of processes.
        let _ = set_name(NAME);
        let (signals, asked_to_end) = signals().map_err(|e| Refused::io("signals", &e))?;
        let (place, run) =
            run_directory(order.place.as_ref()).map_err(|e| Refused::io("its run directory", &e))?;
        let logs = LOGS.map(|name| {
            let log = Log::open(Arc::clone(&place), name, order.log_bytes);
            log.map_err(|e| Refused::io(Path::new(&order.place).join(name).display(), &e))
        });
        let logs = logs.into_iter().collect::<Result<_, _>>()?;
        let file = StateFile::create(&run, &State::Held, order.exec.own_uid())
            .map_err(|e| Refused::io("its state", &e))?;
        let listener = listen(&run).map_err(|e| Refused::io("its socket", &e))?;
        Ok(Self {
            killed_for_memory: kills(&order),
            order,
            run,
            listener,
            file,
            state: State::Held,
            signals,
            asked_to_end,
            logs,
            outputs: Vec::new(),
            agents: Vec::new(),
            leader: None,
            entering: None,
            complaint: Vec::new(),
            checks: None,
        })
    }

    /// Waits until the agent has written the ID of the run to disk. If the agent ends before that,
    /// the program never runs.
    fn hold(mut self, agent: UnixStream) {
        let mut line = String::new();
        let received = (&agent).write_all(self.state.line().as_bytes()).and_then(|()| {
            BufReader::new(&agent)
                .take(MAX_COMMAND as u64)
                .read_line(&mut line)
        });
        // If the agent ends, the connection is closed and the line is empty.
        if received.is_ok() && line == "go\n" && agent.set_nonblocking(true).is_ok() {
            self.agents.push(AgentLink {
                stream: agent,
                read: Vec::new(),
            });
            match self.start() {
                Ok(()) => self.serve(),
                Err(error) => self.finish(State::Failed(error)),
            }
        } else {
            self.close();
        }
    }

    /// Starts the process that becomes the program.
    fn start(&mut self) -> Result<(), Refused> {
        let failed = |e: io::Error| Refused::io("the program's process", &e);
        self.checks = Checks::new(&self.order).map_err(|e| Refused::io("its health check", &e))?;
        self.state = State::Running {
            started: Some(SystemTime::now()),
            health: self.checks.as_ref().map(Checks::health),
        };
        // The state is written first, because from here on the program may run.
        self.file
            .write(&self.state)
            .map_err(|e| Refused::io("its state", &e))?;
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut ends = Vec::new();
        // Pipes instead of files, because only the supervisor can bound their length.
        for log in self.logs.drain(..) {
            let (reader, writer) = io::pipe().map_err(failed)?;
            ioctl_fionbio(&reader, true).map_err(|e| failed(e.into()))?;
            if let Some(user) = self.order.exec.user {
                // The owner of a pipe can open it again, as `/dev/stdout`.
                let (uid, gid) = user_of(user);
                rustix::fs::fchown(&writer, Some(uid), Some(gid)).map_err(|e| failed(e.into()))?;
            }
            ends.push(writer);
            self.outputs.push(Output::new(reader, log, Instant::now()));
        }
        let mut ends = ends.into_iter().map(Stdio::from);
        let mut command = again(ENTER.as_ref());
        command
            .stdin(OwnedFd::from(theirs))
            .stdout(ends.next().unwrap_or_else(Stdio::null))
            .stderr(ends.next().unwrap_or_else(Stdio::null))
            .process_group(0);
        let child = command.spawn().map_err(failed)?;
        // `command` holds the ends of the pipes. Only the run may hold them, because the end of its
        // output is noticed by their end.
        drop(command);
        self.leader = Some(Pid::from_child(&child));
        // If this fails, the process cannot read its order, and ends with an error.
        let _ = self.order.encode().and_then(|order| (&ours).write_all(&order));
        // These may be large and are not needed any more.
        self.order.exec.arguments = Vec::new();
        self.order.exec.env.clear();
        // From here on no error may end this process, because the run would be left without a
        // supervisor.
        let _ = ours.set_nonblocking(true);
        self.entering = Some(ours);
        Ok(())
    }

    /// Serves until the run has ended.
    fn serve(&mut self) {
        let (mut end, mut kills) = (None, 0);
        loop {
            let is_empty = self.reap(&mut end);
            if self.asked_to_end.swap(false, Ordering::AcqRel) {
                self.terminate();
            }
            let mut pause = if self.outputs.iter().any(Output::is_held) {
                PAUSE
            } else {
                DIRECTORY_CHECK
            };
            if end.is_some() {
                if is_empty {
                    break;
                }
                // The processes of the run can't be found once this process has ended, so it stays
                // until all of them have ended, even if one hangs in the kernel.
                self.kill();
                pause = KILL_AGAIN * (1 << kills);
                kills = MAX_DOUBLINGS.min(kills + 1);
            } else if self.is_homeless() {
                self.kill();
            }
            self.wait(pause.min(self.until_check()));
            self.check();
            // Output is taken before agents are answered, so that an agent that learns of the end
            // finds all output in the logs.
            self.enter();
            for output in &mut self.outputs {
                output.take(Instant::now());
            }
            self.listen_to_agents();
        }
        self.enter();
        // All processes have ended, so the pipes contain the last output.
        self.outputs.iter_mut().for_each(Output::drain);
        // With a complaint, the exit code is that of the process that could not become the program.
        let state = match end {
            _ if self.complaint != ENTERED => self.failure(),
            Some((status, ended)) => State::Ended(self.exit(status, ended)),
            None => State::Ended(Exit::default()),
        };
        self.finish(state);
    }

    /// Waits for the processes that have ended. Returns true if no process of the run is left.
    fn reap(&mut self, end: &mut Option<(WaitStatus, SystemTime)>) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if self.leader == Some(pid) => {
                    self.leader = None;
                    *end = Some((status, SystemTime::now()));
                }
                Ok(Some((pid, status))) => {
                    let checks = self.checks.as_mut();
                    if checks.is_some_and(|checks| checks.handle_end(pid, status)) {
                        self.tell_health();
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }

    /// The first process, if its program runs: checks are made beside it.
    fn checked(&self) -> Option<Pid> {
        let runs = self.entering.is_none() && self.complaint == ENTERED;
        self.leader.filter(|_| runs)
    }

    fn until_check(&self) -> Duration {
        let checks = self.checks.as_ref().filter(|_| self.checked().is_some());
        checks.map_or(DIRECTORY_CHECK, Checks::pause)
    }

    fn check(&mut self) {
        if let (Some(leader), Some(checks)) = (self.checked(), &mut self.checks)
            && checks.handle_time(leader)
        {
            self.tell_health();
        }
    }

    /// Writes and sends the health of the run. If it cannot be written, connected agents still get it.
    fn tell_health(&mut self) {
        if let State::Running { health, .. } = &mut self.state {
            *health = self.checks.as_ref().map(Checks::health);
            let _ = self.file.write(&self.state);
            self.send_state();
        }
    }

    /// True if the instance's directory was removed. No agent can find this supervisor then, and so
    /// none can end the run.
    fn is_homeless(&self) -> bool {
        rustix::fs::fstat(&self.run).is_ok_and(|stat| stat.st_nlink == 0)
    }

    fn wait(&self, limit: Duration) {
        let taken = self.outputs.iter().filter(|output| !output.is_held());
        let pipes = taken.filter_map(Output::pipe);
        let mut fds: Vec<_> = [self.signals.as_fd(), self.listener.as_fd()]
            .into_iter()
            .chain(pipes.map(AsFd::as_fd))
            .chain(self.entering.as_ref().map(AsFd::as_fd))
            .chain(self.checks.as_ref().and_then(Checks::output))
            .chain(self.agents.iter().map(|agent| agent.stream.as_fd()))
            .map(|fd: BorrowedFd<'_>| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // A signal that interrupts `poll` has written its byte, so the error does not matter.
        let _ = poll(&mut fds, timespec(limit).as_ref());
        // The bytes only wake the loop, so their number does not matter.
        let _ = (&self.signals).read(&mut [0; 64]);
    }

    /// Reads the connection to the process that becomes the program. The system closes it when the
    /// program is executed; before that an error may arrive.
    fn enter(&mut self) {
        let Some(stream) = &mut self.entering else { return };
        let mut piece = [0; super::state::LINE];
        match stream.read(&mut piece) {
            Ok(length @ 1..) => self.complaint.extend(piece.iter().take(length)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // An error means that the process has ended without having read its order.
            Ok(0) | Err(_) => {
                self.entering = None;
                if self.complaint == ENTERED {
                    self.send_state();
                }
            }
        }
    }

    fn failure(&self) -> State {
        let complaint = std::str::from_utf8(&self.complaint).ok();
        let state = complaint.and_then(|text| State::parse(text.trim_start()));
        let why = "the process that should become the program ended without a reason";
        state.unwrap_or_else(|| State::Failed(Refused::launch(why)))
    }

    fn exit(&self, status: WaitStatus, ended: SystemTime) -> Exit {
        let signal = status.terminating_signal();
        let State::Running { started, .. } = self.state else {
            return Exit::default();
        };
        let has_failed = status.exit_status() != Some(0);
        let last_lines = self.outputs.last().filter(|_| has_failed);
        Exit {
            last_lines: last_lines.map(Output::last_lines).unwrap_or_default(),
            code: status.exit_status().or(signal.map(|signal| 128 + signal)),
            signal,
            out_of_memory: kills(&self.order) > self.killed_for_memory,
            started,
            ended: Some(ended),
        }
    }

    /// Sends SIGTERM to the group of the run, and to processes that left the group.
    fn terminate(&self) {
        let Some(leader) = self.leader else { return };
        // The group comes first, because a signal to a group also reaches processes that fork just
        // now.
        let _ = kill_process_group(leader, Signal::TERM);
        let group = leader.as_raw_nonzero().get();
        self.signal(Signal::TERM, |stat| stat.group != group);
    }

    fn kill(&self) {
        self.signal(Signal::KILL, |_| true);
    }

    /// Signals the descendants of this process for which `filter` is true. The descendants are all
    /// processes of the run, in any session or group, because this process adopts orphans.
    fn signal(&self, signal: Signal, filter: impl Fn(&procfs::Stat) -> bool) {
        let run = procfs::descendants(getpid().as_raw_nonzero().get());
        let run = run.iter().filter(|stat| !stat.ended && filter(stat));
        run.for_each(|stat| procfs::signal(stat, signal));
    }

    fn finish(&mut self, state: State) {
        // The socket is removed first, because an agent that connects now would get no answer.
        self.close();
        self.state = state;
        // If this fails, connected agents still get the state.
        let _ = self.file.write(&self.state);
        self.send_state();
    }

    /// Removes the socket, so that no agent finds this supervisor any more.
    fn close(&self) {
        let _ = unlinkat(&self.run, SOCKET, AtFlags::empty());
    }

    /// Sends the state to every connected agent.
    fn send_state(&mut self) {
        let line = self.state.line();
        self.agents.retain_mut(|agent| agent.send(&line));
    }

    fn listen_to_agents(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                self.agents.push(AgentLink {
                    stream,
                    read: Vec::new(),
                });
            }
            // A socket that an agent forgot to close must not keep out the next agent.
            if self.agents.len() > AGENTS {
                self.agents.remove(0);
            }
        }
        // Taken out, because `listen_to` borrows the supervisor.
        let mut agents = std::mem::take(&mut self.agents);
        agents.retain_mut(|agent| self.listen_to(agent));
        self.agents = agents;
    }

    /// Carries out the lines of an agent, and answers each line with the state. Returns true if the
    /// agent is still connected.
    fn listen_to(&self, agent: &mut AgentLink) -> bool {
        let mut piece = [0; MAX_COMMAND];
        match agent.stream.read(&mut piece) {
            Ok(0) => return false,
            Ok(length) => agent.read.extend(piece.iter().take(length)),
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        }
        while let Some(end) = agent.read.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = agent.read.drain(..=end).collect();
            match &*line {
                b"term\n" => self.terminate(),
                b"kill\n" => self.kill(),
                _ => {}
            }
            if !agent.send(&self.state.line()) {
                return false;
            }
        }
        // No line of an agent is longer, so the peer is no agent, and the connection is closed.
        agent.read.len() < MAX_COMMAND
    }
}

impl AgentLink {
    /// Sends a line. Returns false if the connection is closed, or if its buffer is full because the
    /// agent has stopped reading.
    fn send(&mut self, line: &str) -> bool {
        self.stream
            .write(line.as_bytes())
            .is_ok_and(|written| written == line.len())
    }
}

/// A socket that gets a byte for each signal, and a flag that is set by signals that ask this
/// process to end.
fn signals() -> io::Result<(UnixStream, Arc<AtomicBool>)> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    let asked_to_end = Arc::new(AtomicBool::new(false));
    // The flag is set before the byte is written, so the loop that the byte wakes finds it.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&asked_to_end))?;
    }
    for signal in [SIGCHLD, SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok((reader, asked_to_end))
}

/// The number of processes in the run's control group that were killed for memory so far.
fn kills(order: &LaunchOrder) -> u64 {
    let file = order.limits.oom.as_ref().map(Path::new);
    file.and_then(cgroup::kills).unwrap_or(0)
}

/// Opens the instance's directory and its subdirectory of the run, which only the agent's user may
/// enter.
fn run_directory(place: &Path) -> io::Result<(Arc<OwnedFd>, OwnedFd)> {
    let place: OwnedFd = File::open(place)?.into();
    match mkdirat(&place, RUN, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let run = openat(&place, RUN, flags, Mode::empty())?;
    // A directory that was there already may have another mode.
    fchmod(&run, Mode::RWXU)?;
    Ok((Arc::new(place), run))
}

/// Listens in a directory. The address uses the descriptor of the directory, because the path of a
/// socket is limited to about a hundred bytes.
fn listen(run: &OwnedFd) -> io::Result<UnixListener> {
    // A supervisor that was killed has left its socket, which would make `bind` fail.
    let _ = unlinkat(run, SOCKET, AtFlags::empty());
    let listener = UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", run.as_raw_fd()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
