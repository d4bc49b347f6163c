//! The supervisor itself: one thread that waits for everything at once.
//!
//! Nothing here waits for a workload or for an agent: all that they hold the
//! other end of is read and written without blocking, in bounded pieces.

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
use std::time::{Instant, SystemTime};

use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, mkdirat, openat, unlinkat};
use rustix::io::ioctl_fionbio;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, set_child_subreaper, setsid, wait,
};
use rustix::thread::{set_name, set_no_new_privs};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use super::logs::{Log, Output, PAUSE};
use super::order::Order;
use super::procfs;
use super::state::{State, StateFile};
use super::{ENTER, LOGS, NAME, RUN, SOCKET, again, cgroup, user_of};
use crate::agent::driver::{Exit, LaunchError, LaunchFault};

/// How many agents may be connected. There is one at a time, and for a moment a former one
/// whose end was not noticed yet. With more, the oldest connection is closed.
const AGENTS: usize = 4;
/// The longest line of an agent, in bytes.
const MAX_COMMAND: usize = 64;
/// How often the supervisor looks whether its instance's directory is still there, in seconds.
const LOOK_HOME: i64 = 30;
/// The kernel kills a supervisor for memory only after almost everything else, because the
/// run would be left without anybody to end it. Only a privileged process may ask for that.
const OOM_SCORE: &str = "-900";
/// The first pause between two kills, in nanoseconds. Each pause is twice the one before,
/// up to a third of a second.
const LOOK_AGAIN: i64 = 10_000_000;
const MAX_DOUBLINGS: u32 = 5;

/// Serves the agent at the standard input, and those that come after it.
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
    order: Order,
    run: OwnedFd,
    listener: UnixListener,
    file: StateFile,
    state: State,
    /// Each signal that comes writes a byte here.
    signals: UnixStream,
    /// A signal asked this process to end. It then asks its run to end, and stays.
    asked_to_end: Arc<AtomicBool>,
    logs: Vec<Log>,
    outputs: Vec<Output>,
    agents: Vec<Agent>,
    /// The run's first process, until it was waited for. Until then no other process can
    /// have its number or its group's.
    leader: Option<Pid>,
    /// The process that becomes the program reports here why it can't.
    entering: Option<UnixStream>,
    complaint: Vec<u8>,
    killed_for_memory: u64,
}

/// A connection, and the beginning of a line.
#[derive(Debug)]
struct Agent {
    stream: UnixStream,
    read: Vec<u8>,
}

impl Supervisor {
    /// Does everything that can fail before the program runs.
    fn prepare(agent: &UnixStream) -> Result<Self, LaunchError> {
        let system = |what: &'static str| move |e: rustix::io::Errno| LaunchError::io(what, &e.into());
        let order = Order::read(agent).map_err(|e| LaunchError::io("its order", &e))?;
        // A session of its own: signals for the agent's group or terminal do not reach it.
        setsid().map_err(system("a session"))?;
        set_child_subreaper(Some(getpid())).map_err(system("adopting orphans"))?;
        // The agent makes the interface in the namespace before it lets the program run.
        if order.has_network {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|e| LaunchError::new(LaunchFault::Network, format!("a network namespace: {e}")))?;
        }
        set_no_new_privs(true).map_err(system("no_new_privs"))?;
        let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
        // A name in lists of processes, and no more.
        let _ = set_name(NAME);
        let (signals, asked_to_end) = signals().map_err(|e| LaunchError::io("signals", &e))?;
        let (place, run) =
            run_directory(order.place.as_ref()).map_err(|e| LaunchError::io("its run directory", &e))?;
        let logs = LOGS.map(|name| {
            let log = Log::open(Arc::clone(&place), name, order.log_bytes);
            log.map_err(|e| LaunchError::io(Path::new(&order.place).join(name).display(), &e))
        });
        let logs = logs.into_iter().collect::<Result<_, _>>()?;
        let file = StateFile::create(&run, &State::Held, order.own_uid())
            .map_err(|e| LaunchError::io("its state", &e))?;
        let listener = listen(&run).map_err(|e| LaunchError::io("its socket", &e))?;
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
        })
    }

    /// Waits until the agent has written the run down. If the agent ends before that, nothing
    /// runs.
    fn hold(mut self, agent: UnixStream) {
        let mut line = String::new();
        let said = (&agent).write_all(self.state.line().as_bytes()).and_then(|()| {
            BufReader::new(&agent)
                .take(MAX_COMMAND as u64)
                .read_line(&mut line)
        });
        // An agent that ends closes the connection, and the line is then empty.
        if said.is_ok() && line == "go\n" && agent.set_nonblocking(true).is_ok() {
            self.agents.push(Agent {
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

    /// Starts the process that is to become the program.
    fn start(&mut self) -> Result<(), LaunchError> {
        let failed = |e: io::Error| LaunchError::io("the program's process", &e);
        self.state = State::Running {
            started: Some(SystemTime::now()),
        };
        // From here on it may have run.
        self.file
            .write(&self.state)
            .map_err(|e| LaunchError::io("its state", &e))?;
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut ends = Vec::new();
        // Pipes instead of files, because only the supervisor can bound their length.
        for log in self.logs.drain(..) {
            let (reader, writer) = io::pipe().map_err(failed)?;
            ioctl_fionbio(&reader, true).map_err(|e| failed(e.into()))?;
            if let Some(user) = self.order.user {
                // So that it can open it again, as `/dev/stdout`.
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
        // It holds the ends of the pipes, which only the run is to hold.
        drop(command);
        self.leader = Some(Pid::from_child(&child));
        // If this fails, the process cannot read its order, and ends with an error.
        let _ = self.order.encode().and_then(|order| (&ours).write_all(&order));
        // The rest of it may be large.
        self.order.arguments = Vec::new();
        self.order.env.clear();
        // From here on no error may end this process, or the run would be left alone.
        let _ = ours.set_nonblocking(true);
        self.entering = Some(ours);
        Ok(())
    }

    /// Serves until the run has ended.
    fn serve(&mut self) {
        let (mut end, mut looks) = (None, 0);
        loop {
            let alone = self.reap(&mut end);
            if self.asked_to_end.swap(false, Ordering::AcqRel) {
                self.terminate();
            }
            let mut pause = match self.outputs.iter().any(Output::is_held) {
                true => seconds(0, PAUSE.subsec_nanos().into()),
                false => seconds(LOOK_HOME, 0),
            };
            if end.is_some() {
                if alone {
                    break;
                }
                // Its processes can't be found once this process has ended, so it stays until
                // all of them have, even if one hangs in the kernel.
                self.kill();
                pause = seconds(0, LOOK_AGAIN << looks);
                looks = MAX_DOUBLINGS.min(looks + 1);
            } else if self.is_homeless() {
                self.kill();
            }
            self.wait(&pause);
            // Output is taken before agents are answered: an agent that hears of the end finds
            // all of it in the logs.
            self.enter();
            for output in &mut self.outputs {
                output.take(Instant::now());
            }
            self.listen_to_agents();
        }
        self.enter();
        // All of the run has ended, so what is left in the pipes is its last output.
        self.outputs.iter_mut().for_each(Output::drain);
        // A complaint counts more than the exit code, which is that of the process that could
        // not become the program.
        let state = match end {
            _ if !self.complaint.is_empty() => self.failure(),
            Some((status, ended)) => State::Ended(self.exit(status, ended)),
            None => State::Ended(Exit::default()),
        };
        self.finish(state);
    }

    /// Waits for the processes that have ended; returns whether no process of the run is left.
    fn reap(&mut self, end: &mut Option<(WaitStatus, SystemTime)>) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if self.leader == Some(pid) => {
                    self.leader = None;
                    *end = Some((status, SystemTime::now()));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Whether the instance's directory was removed. No agent can find this supervisor then,
    /// or end its run.
    fn is_homeless(&self) -> bool {
        rustix::fs::fstat(&self.run).is_ok_and(|stat| stat.st_nlink == 0)
    }

    fn wait(&self, limit: &Timespec) {
        let taken = self.outputs.iter().filter(|output| !output.is_held());
        let pipes = taken.filter_map(Output::pipe);
        let mut fds: Vec<_> = [self.signals.as_fd(), self.listener.as_fd()]
            .into_iter()
            .chain(pipes.map(AsFd::as_fd))
            .chain(self.entering.as_ref().map(AsFd::as_fd))
            .chain(self.agents.iter().map(|agent| agent.stream.as_fd()))
            .map(|fd: BorrowedFd<'_>| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // A signal that interrupts it has left its byte.
        let _ = poll(&mut fds, Some(limit));
        // One byte or many: all that matters is that the loop looks again.
        let _ = (&self.signals).read(&mut [0; 64]);
    }

    /// Takes notice of the end of the connection to the process: it is closed when the program
    /// is executed.
    fn enter(&mut self) {
        let Some(stream) = &mut self.entering else { return };
        let mut piece = [0; super::state::LINE];
        match stream.read(&mut piece) {
            Ok(0) => {
                self.entering = None;
                if self.complaint.is_empty() {
                    self.tell();
                }
            }
            Ok(length) => self.complaint.extend(piece.iter().take(length)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.entering = None,
        }
    }

    fn failure(&self) -> State {
        let state = std::str::from_utf8(&self.complaint).ok().and_then(State::parse);
        let why = "its process does not say why it does not run the program";
        state.unwrap_or_else(|| State::Failed(LaunchError::launch(why)))
    }

    fn exit(&self, status: WaitStatus, ended: SystemTime) -> Exit {
        let signal = status.terminating_signal();
        let State::Running { started } = self.state else {
            return Exit::default();
        };
        Exit {
            code: status.exit_status().or(signal.map(|signal| 128 + signal)),
            signal,
            out_of_memory: kills(&self.order) > self.killed_for_memory,
            started,
            ended: Some(ended),
        }
    }

    /// Asks all of the run to end: its group at one stroke, and what left it.
    fn terminate(&self) {
        let Some(leader) = self.leader else { return };
        // The group first, because a signal to a group misses no process that forks meanwhile.
        let _ = kill_process_group(leader, Signal::TERM);
        let group = leader.as_raw_nonzero().get();
        self.signal(Signal::TERM, |stat| stat.group != group);
    }

    fn kill(&self) {
        self.signal(Signal::KILL, |_| true);
    }

    /// Signals all descendants of this process. They are all processes of the run, whatever
    /// session or group they are in, because this process adopts orphans.
    fn signal(&self, signal: Signal, which: impl Fn(&procfs::Stat) -> bool) {
        let run = procfs::descendants(getpid().as_raw_nonzero().get());
        let run = run.iter().filter(|stat| !stat.ended && which(stat));
        run.for_each(|stat| procfs::signal(stat, signal));
    }

    fn finish(&mut self, state: State) {
        // The socket goes first: an agent that connects now would get no answer any more.
        self.close();
        self.state = state;
        // If that fails, connected agents are still told.
        let _ = self.file.write(&self.state);
        self.tell();
    }

    /// Removes the socket, so that no agent finds this supervisor any more.
    fn close(&self) {
        let _ = unlinkat(&self.run, SOCKET, AtFlags::empty());
    }

    /// Sends the state to every agent that is connected.
    fn tell(&mut self) {
        let line = self.state.line();
        self.agents.retain_mut(|agent| agent.say(&line));
    }

    fn listen_to_agents(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                self.agents.push(Agent {
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

    /// Carries out the lines of an agent, and answers each with the state, also an unknown one. Returns
    /// whether the agent is still connected.
    fn listen_to(&self, agent: &mut Agent) -> bool {
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
            if !agent.say(&self.state.line()) {
                return false;
            }
        }
        // No line is that long, so the other end is no agent.
        agent.read.len() < MAX_COMMAND
    }
}

impl Agent {
    /// Whether the agent takes the line. An agent whose buffer is full has stopped reading.
    fn say(&mut self, line: &str) -> bool {
        self.stream
            .write(line.as_bytes())
            .is_ok_and(|written| written == line.len())
    }
}

/// A socket that has a byte for each signal that matters, and whether that was
/// one that asks this process to end.
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

fn seconds(tv_sec: i64, tv_nsec: i64) -> Timespec {
    Timespec { tv_sec, tv_nsec }
}

/// How many processes of the run's control group were killed for memory so far.
fn kills(order: &Order) -> u64 {
    let file = order.oom.as_ref().map(Path::new);
    file.and_then(cgroup::kills).unwrap_or(0)
}

/// Opens the instance's directory, and in it the directory of the run, which only the
/// agent's user may enter.
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

/// Listens in a directory, through its descriptor: the path of a socket may be
/// no longer than about a hundred bytes, and a state directory's is.
fn listen(run: &OwnedFd) -> io::Result<UnixListener> {
    // A supervisor that was killed has left its socket, which would make `bind` fail.
    let _ = unlinkat(run, SOCKET, AtFlags::empty());
    let listener = UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", run.as_raw_fd()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
