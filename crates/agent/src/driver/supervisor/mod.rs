//! A supervisor for each run of an instance, for the drivers that run programs. A supervisor is this
//! program, started again.
//!
//! ```text
//!  agent ── order ──▶ supervisor             the program, as `supervise-instance DIR`:
//!        ◀── held ───   │                    in a session of its own, adopts orphans,
//!        commit         │                    takes no new privileges
//!        ─── go ─────▶  ├── order ─▶ supervise-instance --enter
//!                       │              │ joins control groups, becomes the user,
//!                       │              │ changes directory, limits its data
//!                       │              ▼ exec
//!        ◀── running ── │ ◀─ closed ─ program ── its children …
//!                       │               │
//!                       │ ◀── pipes ────┘ ──▶ stdout.log, stderr.log, within bounds
//!        ◀── running ── │ ◀── health ── supervise-instance --check, again and again
//!        ◀── ended ──── │ ──▶ run/state
//! ```
//!
//! An instance outlives its agent. If the agent's binary is replaced, a supervisor goes on with the
//! file from which it was started. The next agent finds a supervisor by its socket.
//!
//! # Who owns what
//!
//! | resource | owner |
//! |---|---|
//! | the order, control groups, the supervisor's entry in the process table while the agent lives | agent |
//! | pipes, logs, state file, socket, every process of the run | supervisor |
//! | user, limits, directory, environment of the program | the process that becomes it |
//!
//! `run/` in the instance's directory has mode 0700 and belongs to the agent's user, so an instance
//! with a user of its own can neither reach the socket nor change the state. An instance that runs
//! as the agent's user can end its supervisor. The run is over then: its remaining processes are
//! killed, and its exit code is unknown.
//!
//! # States
//!
//! ```text
//!  held ── go ──▶ running ── the first process ended, all others were killed ──▶ ended
//!    │               └────── the program could not be executed ───────────────▶ failed
//!    └── its agent is gone: the program never runs
//! ```
//!
//! A supervisor ends once the run is `ended` or `failed`, which closes all of its
//! connections. The state stays in `run/state` until the next run.
//!
//! # The protocol
//!
//! The agent writes the order to the supervisor's standard input (`launch_order`). After it, and on each
//! connection to `run/socket`, both sides send lines:
//!
//! | agent | supervisor |
//! |---|---|
//! | `go` | lets a held program run |
//! | `term` | sends SIGTERM to the run's group and to processes that left the group |
//! | `kill` | sends SIGKILL to all processes of the run |
//! | any other line, such as `state` | changes nothing |
//!
//! The supervisor answers each line with the state, as one line (`state` has its form), and sends
//! each new state to every connection. A line of an agent has at most 64 bytes, a line of a
//! supervisor 512. Both ignore words that they do not know, because an older supervisor may meet a
//! newer agent.
//!
//! | file | holds |
//! |---|---|
//! | `serve` | the supervisor |
//! | `connection` | the agent's connection to a supervisor |
//! | `enter` | the process that becomes the program |
//! | `mounts` | its mount namespace |
//! | `check` | the health checks of a run |
//! | `launch_order` | the program to run, and its limits |
//! | `state` | the state of a run |
//! | `logs` | the output of instances, within bounds |
//! | `leftovers` | the end of processes that a run has left |
//! | `watch` | the agent's thread that notices ends |
//! | `measure` | the resources that instances use |
//! | `cgroup` | limits and figures by control group, versions 1 and 2 |
//! | `procfs` | `/proc/PID/stat` |

#![expect(
    clippy::disallowed_types,
    reason = "the sockets of supervisors, with time limits of their own"
)]

mod cgroup;
mod check;
mod connection;
mod enter;
pub(super) mod launch_order;
mod leftovers;
mod logs;
mod measure;
mod mounts;
mod procfs;
mod serve;
mod state;
mod watch;

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use log::{info, warn};
use rustix::event::Timespec;
use rustix::fs::{Gid, Uid};
use rustix::process::{Resource, geteuid, getrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities};
use uuid::Uuid;

use self::cgroup::Cgroups;
use self::check::CHECK;
pub use self::connection::connect_to;
use self::connection::{answer, ask, reach, run_of};
pub use self::enter::find_program;
pub use self::launch_order::{Exec, Program};
use self::launch_order::{LaunchOrder, Limits};
use self::leftovers::{clear, kill_leftovers, kill_tree};
use self::measure::Sample;
pub(crate) use self::procfs::boot_id;
use self::state::State;
use self::watch::{Watch, Watched};
use super::{
    Commit, Driver, Exit, Found, InstanceDir, Launch, Measurable, NewsSink, Reason, Refused, RunId, Running,
    Usage, User, process,
};
use ssntp_payload::Start;
use ssntp_transport::{descriptors, locked, setters};

/// The subcommand that makes this program a supervisor.
const SUPERVISE: &str = "supervise-instance";
/// Replaces the directory in the arguments of the process that becomes the program.
const ENTER: &str = "--enter";
/// The name of a supervisor in lists of processes.
const NAME: &CStr = c"ssntp-instance";
/// The name of a run's directory in the instance's directory.
const RUN: &str = "run";
const SOCKET: &str = "socket";
/// The names of the logs in the instance's directory.
const LOGS: [&str; 2] = ["stdout.log", "stderr.log"];
/// The time limit for each answer of a supervisor during a launch. On a busy machine a process may need
/// seconds to begin.
const FIRST_STEPS: Duration = Duration::from_secs(30);
const MB: u64 = 1024 * 1024;

/// True if this program has called [`supervise`], and so can be started as a supervisor.
static SUPERVISES: AtomicBool = AtomicBool::new(false);

/// Makes this process the supervisor of an instance, if it was started as one. The process then has
/// to end with the returned code. A program with an agent that runs processes or virtual machines
/// calls this before anything else, or names another program that does
/// ([`ProcessDriver::supervisor`]).
///
/// ```no_run
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     if let Some(code) = ssntp_agent::driver::supervise() {
///         return code;
///     }
///     // …
///     ExitCode::SUCCESS
/// }
/// ```
#[must_use = "a supervisor ends with this code, and does nothing else"]
pub fn supervise() -> Option<ExitCode> {
    SUPERVISES.store(true, Ordering::Release);
    let mut arguments = std::env::args_os().skip(1);
    let asked = arguments.next().is_some_and(|argument| argument == SUPERVISE);
    asked.then(|| supervise_as(arguments.next().as_deref(), arguments.next()))
}

fn supervise_as(what: Option<&OsStr>, leader: Option<OsString>) -> ExitCode {
    close_inherited();
    match what {
        Some(what) if what == ENTER => enter::enter(),
        Some(what) if what == CHECK => check::check(&leader.unwrap_or_default().to_string_lossy()),
        _ => serve::serve(),
    }
}

/// Closes the files that whoever started the agent has left open, such as a lock: otherwise they would be
/// open as long as the instance runs. Called before this process opens a file of its own.
fn close_inherited() {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    // Collected first, because the list has a descriptor as well, which is closed with it.
    let open: Vec<i32> = open
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        let _ = nix::unistd::close(fd);
    }
}

/// The command that starts this program again. `/proc/self/exe` is the file that runs now, even if
/// a newer version has its name by now.
fn again(what: &OsStr) -> Command {
    started_again(Path::new("/proc/self/exe"), what)
}

fn started_again(program: &Path, what: &OsStr) -> Command {
    use std::os::unix::process::CommandExt;

    let mut command = Command::new(program);
    command.arg0(OsStr::from_bytes(NAME.to_bytes()));
    command.args([SUPERVISE.as_ref(), what]);
    // A supervisor must not keep the agent's directory or secrets of its environment.
    command.env_clear().current_dir("/");
    command
}

/// The means by which the memory and the CPUs of instances are limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confinement {
    /// Control groups if the agent may make some, otherwise resource limits. If the agent may mount,
    /// an instance with a user of its own also has its own `/tmp` and `/dev/shm`, and sees only
    /// its own processes.
    #[default]
    Auto,
    /// Resource limits: the memory limit applies to the data of each process, and CPUs are not
    /// limited.
    ResourceLimits,
}

/// Runs instances as processes, each with a supervisor. The source of `driver/process.rs` describes the environment of
/// a process. Another driver may run programs by it. Clones share all state.
#[derive(Clone, Debug)]
pub struct ProcessDriver {
    inner: Arc<Inner>,
    supervisor: Option<PathBuf>,
    log_mb: u32,
}

#[derive(Debug)]
struct Inner {
    cgroups: Cgroups,
    /// True if programs with a user of their own get a mount namespace.
    isolates: bool,
    boot_id: String,
    /// The soft limit of open files with which this process was started.
    files: Option<u64>,
    watch: Watch,
    /// Supervisors that were launched and are not watched yet, by their process number; at most
    /// one for each instance.
    launched: Mutex<HashMap<i32, (Child, UnixStream)>>,
    /// The CPU time of each instance at the last measurement.
    samples: Mutex<HashMap<Uuid, Sample>>,
}

impl ProcessDriver {
    /// Finds out how this system can confine instances, and starts the thread that notices their ends, which
    /// ends with the last clone; the instances go on.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn new(confinement: Confinement) -> io::Result<Self> {
        let cgroups = match confinement {
            Confinement::Auto => Cgroups::detect(),
            Confinement::ResourceLimits => Cgroups::default(),
        };
        let isolates = confinement == Confinement::Auto && mounts::are_possible();
        let mounts = if isolates { "with" } else { "without" };
        info!("instances are confined by {cgroups:?}, {mounts} mount namespaces");
        let may_look = |sets: CapabilitySets| sets.effective.contains(CapabilitySet::SYS_PTRACE);
        if geteuid().is_root() && !capabilities(None).is_ok_and(may_look) {
            warn!("files that instances have removed and still use are not counted: no CAP_SYS_PTRACE");
        }
        // The limit is raised, because each run is a connection. Programs get the limit that
        // this process was started with, so it is read before it is first raised.
        static FILES: OnceLock<Option<u64>> = OnceLock::new();
        let files = *FILES.get_or_init(|| getrlimit(Resource::Nofile).current);
        descriptors();
        let inner = Inner {
            cgroups,
            isolates,
            boot_id: procfs::boot_id(),
            files,
            watch: Watch::start()?,
            launched: Mutex::default(),
            samples: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
            supervisor: None,
            log_mb: 16,
        })
    }

    setters! {
        /// The program to start as a supervisor; it has to call [`supervise`]. Default: this program, if it
        /// has called `supervise`.
        supervisor as Some: impl Into<PathBuf>;

        /// The maximum output of an instance that is kept, in MB, for each of `stdout.log` (of a machine: its
        /// serial port) and `stderr.log`. The older half is in a file of its own, whose name ends with `.1`. The
        /// limit counts for runs that start from now on. Default: 16.
        log_mb: u32;
    }

    /// Launches a program; see the module's picture. `await_ready` waits until the program that runs
    /// is ready for use. If it fails, the run is killed and counts as never started.
    ///
    /// # Errors
    /// The program did not start, and none of its processes is left.
    pub fn run(
        &self,
        program: Program<'_>,
        commit: &mut Commit<'_>,
        await_ready: impl FnOnce(&Running) -> Result<(), Refused>,
    ) -> Result<RunId, Refused> {
        let place = program.place.dir().as_os_str();
        let mut command = match &self.supervisor {
            Some(supervisor) => started_again(supervisor, place),
            None if SUPERVISES.load(Ordering::Acquire) => again(place),
            None => {
                return Err(Refused::launch(
                    "this program cannot be a supervisor: see driver::supervise",
                ));
            }
        };
        // From here on every error drops `starting`, which kills what has been started.
        let mut starting = Starting {
            cgroups: Some(&self.inner.cgroups),
            place: program.place,
            run: None,
        };
        let network = program.network;
        let order = self.order(program)?;
        let failed = |e: io::Error| Refused::io("its supervisor", &e);
        let (mut stream, theirs) = UnixStream::pair().map_err(failed)?;
        // A supervisor that hangs must not block the worker for ever.
        stream.set_read_timeout(Some(FIRST_STEPS)).map_err(failed)?;
        stream.set_write_timeout(Some(FIRST_STEPS)).map_err(failed)?;
        command
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn();
        // `command` holds the other end of the socket. Only the supervisor may hold it, because the
        // end of the supervisor is noticed by the end of the connection.
        drop(command);
        let child = child.map_err(failed)?;
        // The child stays in the process table until it is waited for, so `stat` finds it.
        let stat = procfs::stat(i32::try_from(child.id()).unwrap_or_default());
        let handle = stat
            .as_ref()
            .map_or_else(|_| RunId::default(), |stat| self.handle(stat));
        starting.run = Some((child, handle.clone()));
        stat.map_err(failed)?;
        // A supervisor that ended without reading the order has sent the reason.
        let sent = stream.write_all(&order);
        match (answer(&stream), sent) {
            (Ok(State::Held), Ok(())) => {}
            (Ok(State::Failed(error)), _) => return Err(error),
            (Ok(_), _) => return Err(failed(io::ErrorKind::InvalidData.into())),
            (Err(e), _) => return Err(failed(e)),
        }
        // The supervisor has made the namespace before it sent `held`. The program must not run
        // without its interface.
        if let Some(network) = network {
            network.connect(handle.pid)?;
        }
        commit(&handle).map_err(|e| Refused::io("its record cannot be saved", &e))?;
        // The handle is on disk, so the program may run.
        stream.write_all(b"go\n").map_err(failed)?;
        // A run that has ended already has run before.
        match answer(&stream).map_err(failed)? {
            State::Failed(error) => return Err(error),
            State::Held => return Err(failed(io::ErrorKind::InvalidData.into())),
            State::Running { .. } | State::Ended(_) => {}
        }
        await_ready(&Running {
            place: starting.place.clone(),
            handle: handle.clone(),
        })?;
        // The first measurement can then compute the CPU usage since the beginning of the run.
        let instance = starting.place.instance();
        let limits = self.inner.cgroups.limits(instance);
        locked(&self.inner.samples).insert(instance, Sample::first(&handle, limits));
        starting.cgroups = None;
        if let Some((child, _)) = starting.run.take() {
            locked(&self.inner.launched).insert(handle.pid, (child, stream));
        }
        Ok(handle)
    }

    /// Encodes the order for a supervisor. Also makes the control group; if that fails, only resource
    /// limits bound the instance.
    fn order(&self, program: Program<'_>) -> Result<Vec<u8>, Refused> {
        let (cgroups, instance) = (&self.inner.cgroups, program.place.instance());
        let bytes = u64::try_from(program.mem_mb).unwrap_or(0).saturating_mul(MB);
        let has_own_user = program.exec.own_uid().is_some();
        let mut order = LaunchOrder {
            place: program.place.dir().into(),
            log_bytes: u64::from(self.log_mb).max(1) * MB,
            exec: program.exec,
            limits: Limits {
                data: Some(bytes).filter(|bytes| *bytes > 0),
                // If the user ran other programs too, their processes would count for this limit.
                processes: has_own_user.then_some(program.pids.into()),
                files: self.inner.files,
                ..Limits::default()
            },
            has_network: program.network.is_some(),
            is_isolated: self.inner.isolates && has_own_user,
            administers_network: program.network.is_some_and(|wire| wire.is_concentrator()),
            check: program.check,
            address: program.address,
        };
        match cgroups.create(instance, program.mem_mb, program.vcpus, program.pids) {
            Ok(()) => {
                order.limits.cgroups = cgroups.groups(instance).map(Into::into).collect();
                order.limits.oom = cgroups.oom(instance).map(Into::into);
            }
            // Without control groups this fails for each instance, and `new` has logged that there
            // are none.
            Err(e) if cgroups.is_empty() => drop(e),
            Err(e) => warn!("instance {instance}: no control group: {e}"),
        }
        let too_long = |e: io::Error| Refused::new(Reason::InvalidData, e.to_string());
        order.encode().map_err(too_long)
    }

    fn handle(&self, stat: &procfs::Stat) -> RunId {
        RunId {
            pid: stat.pid,
            start_time: stat.start_time,
            boot_id: self.inner.boot_id.clone(),
        }
    }
}

impl Driver for ProcessDriver {
    fn name(&self) -> &'static str {
        "process"
    }

    fn check(&self, start: &Start) -> Result<(), Refused> {
        process::check(start)
    }

    fn launch(&self, launch: &Launch<'_>, commit: &mut Commit<'_>) -> Result<RunId, Refused> {
        // A process is ready as soon as it runs.
        self.run(process::program(launch)?, commit, |_| Ok(()))
    }

    /// A run has ended when its supervisor is gone, and processes that it has left were killed.
    fn watch(&self, running: &Running, sink: &NewsSink) {
        let launched = locked(&self.inner.launched).remove(&running.handle.pid);
        let (child, stream) = launched.unzip();
        self.inner.watch.add(Watched {
            running: running.clone(),
            stream,
            child,
            cgroups: self.inner.cgroups.clone(),
            sink: Arc::clone(sink),
            looks: 0,
            line: Vec::new(),
        });
    }

    /// Asks all processes of the run to end.
    fn terminate(&self, running: &Running) -> io::Result<()> {
        match ask(running, "term\n") {
            // The supervisor has ended, and the watch reports the end.
            Err(_) if !is_alive(&running.handle) => Ok(()),
            other => other,
        }
    }

    /// Kills all processes of the run. If the supervisor does not answer, the agent kills them
    /// itself.
    fn kill(&self, running: &Running) -> io::Result<()> {
        if ask(running, "kill\n").is_ok() {
            return Ok(());
        }
        // A supervisor that is stopped or hangs does not answer, but the processes of the run are
        // still its descendants.
        kill_tree(&running.handle);
        kill_leftovers(&self.inner.cgroups, running);
        Ok(())
    }

    /// Finds out whether a run that a former agent launched has ended. If the system does not
    /// answer, the run counts as running, and the watch finds out later.
    fn find(&self, running: &Running) -> Found {
        let same_boot = running.handle.boot_id == self.inner.boot_id;
        let state = run_of(&running.place).ok().and_then(State::read);
        // A supervisor writes its last state just before it ends.
        let is_over = matches!(state, Some(State::Ended(_) | State::Failed(_)));
        if same_boot && !is_over && is_alive(&running.handle) {
            return Found::Running;
        }
        if same_boot && kill_leftovers(&self.inner.cgroups, running) {
            return Found::Running;
        }
        self.inner.cgroups.remove(running.place.instance());
        match state {
            // After a reboot the file may be older than the last state, which was perhaps not on the
            // disk yet.
            Some(State::Held | State::Failed(_)) if same_boot => Found::NeverRan,
            _ => Found::Ended(exit_of(&running.place)),
        }
    }

    /// The run whose supervisor listens in an instance's directory, if there is one.
    fn find_unrecorded(&self, place: &InstanceDir) -> Option<RunId> {
        let stream = connect_to(run_of(place).ok()?, SOCKET).ok()?;
        // The record is lost, so the kernel names the process that listens.
        let supervisor = rustix::net::sockopt::socket_peercred(&stream).ok()?.pid;
        let stat = procfs::stat(supervisor.as_raw_nonzero().get()).ok()?;
        Some(self.handle(&stat))
    }

    /// Kills the runs in directories directly below `instances` whose supervisor is not in `own`.
    /// The record of such a run is lost, so no command could ever end it.
    fn sweep(&self, instances: &Path, own: &HashSet<i32>) {
        for stat in procfs::all().iter().filter(|stat| !own.contains(&stat.pid)) {
            let Some(place) = supervised(stat.pid) else {
                continue;
            };
            if place.dir().parent() == Some(instances) {
                let instance = place.instance();
                warn!("instance {instance} runs although its record is gone: it is killed");
                let handle = self.handle(stat);
                kill_tree(&handle);
                clear(&self.inner.cgroups, &Running { place, handle });
            }
        }
    }

    fn measure(&self, instances: &[Measurable]) -> Vec<Usage> {
        self.usages(instances)
    }

    /// Also removes its control group, in case a former agent died before it did so.
    fn forget(&self, place: &InstanceDir) {
        locked(&self.inner.samples).remove(&place.instance());
        self.inner.cgroups.remove(place.instance());
    }
}

/// The instance that a process supervises, if it is a supervisor of an agent like this one.
fn supervised(pid: i32) -> Option<InstanceDir> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0).skip(1);
    let dir = match (words.next()?, words.next()?) {
        (verb, dir) if verb == SUPERVISE.as_bytes() => Path::new(OsStr::from_bytes(dir)),
        _ => return None,
    };
    // An instance chooses the arguments of its processes, but not their user. So only an instance that
    // runs as the agent's user can pass for a supervisor. An agent in a container has the same user and
    // the same paths, but another root.
    let own = geteuid().as_raw();
    let root = |path: &str| fs::metadata(path).map(|root| (root.dev(), root.ino())).ok();
    if procfs::uids(pid)? != [own, own] || root(&format!("/proc/{pid}/root"))? != root("/")? {
        return None;
    }
    let instance = dir.file_name()?.to_str()?.parse().ok()?;
    Some(InstanceDir::new(instance, dir))
}

/// True if a child of a supervisor is a step of the supervisor's own, which becomes a program, or makes a check.
/// It joins the groups of the run itself, or needs none.
fn is_step(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).skip(1);
    // While a program is being executed there are no words.
    line.is_empty() || words.next() == Some(SUPERVISE.as_bytes())
}

/// A launch under way. If it is dropped before the launch has succeeded, the supervisor is killed
/// with its run.
struct Starting<'a> {
    /// `None` once the launch has succeeded, and no cleaning up is due.
    cgroups: Option<&'a Cgroups>,
    place: &'a InstanceDir,
    run: Option<(Child, RunId)>,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let Some(cgroups) = self.cgroups else { return };
        let Some((child, handle)) = &mut self.run else {
            return cgroups.remove(self.place.instance());
        };
        kill_tree(handle);
        // The supervisor may have ended by itself, so an error of `kill` does not matter.
        let _ = child.kill();
        let _ = child.wait();
        let (place, handle) = (self.place.clone(), handle.clone());
        clear(cgroups, &Running { place, handle });
    }
}

/// True if a supervisor runs, or if the system does not answer.
pub fn is_alive(handle: &RunId) -> bool {
    !procfs::has_ended(handle.pid, handle.start_time)
}

fn is_of(stat: &procfs::Stat, handle: &RunId) -> bool {
    stat.pid == handle.pid && stat.start_time == handle.start_time
}

/// The end of the last run, as its supervisor wrote it. A supervisor that was killed has written
/// none, and the exit code is unknown.
fn exit_of(place: &InstanceDir) -> Exit {
    match run_of(place).ok().and_then(State::read) {
        Some(State::Ended(exit)) => exit,
        _ => Exit::default(),
    }
}

/// Sleeps. It is for conditions that no event reports and that have to be checked again.
pub fn pause(time: Duration) {
    let _ = crossbeam_channel::after(time).recv();
}

fn user_of(user: User) -> (Uid, Gid) {
    (Uid::from_raw(user.uid), Gid::from_raw(user.gid))
}

/// The time limit of a `poll`. All of them are short, so none is left out.
fn timespec(limit: Duration) -> Option<Timespec> {
    limit.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise an agent that starts would kill the instance whose directory such a process names.
    #[test]
    fn a_process_of_another_user_is_no_supervisor_whatever_its_arguments() {
        use std::os::unix::fs::PermissionsExt;
        use std::os::unix::process::CommandExt;

        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // `cat` waits for a writer of this pipe.
        let pipe = dir.path().join(SUPERVISE);
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        // Set here, because the umask may forbid others to read.
        fs::set_permissions(&pipe, fs::Permissions::from_mode(0o644)).unwrap();
        let instance = Uuid::from_u128(1);
        let place = InstanceDir::new(instance, format!("/state/instances/{instance}"));
        let claims = |user: Option<u32>| {
            let mut command = Command::new("cat");
            command.arg(SUPERVISE).arg(place.dir()).current_dir(dir.path());
            user.map(|uid| command.uid(uid).gid(uid));
            let mut child = command.spawn().unwrap();
            let pid = i32::try_from(child.id()).unwrap();
            // The kernel shows the arguments of a program some time after it was executed.
            let line = || String::from_utf8(fs::read(format!("/proc/{pid}/cmdline")).unwrap());
            while !line().unwrap().contains(SUPERVISE) {
                assert_eq!(child.try_wait().unwrap(), None, "it has ended");
                pause(Duration::from_millis(1));
            }
            let found = supervised(pid);
            child.kill().unwrap();
            child.wait().unwrap();
            found
        };
        assert_eq!(claims(None).as_ref(), Some(&place));
        // Only root can start a process as another user.
        if geteuid().is_root() {
            assert_eq!(claims(Some(1_879_048_192)), None);
        }
    }
}
