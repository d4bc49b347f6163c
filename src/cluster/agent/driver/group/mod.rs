//! Process groups that outlive the agent: what the drivers that run programs
//! have in common.
//!
//! ```text
//!  agent ── spawn ─▶ sh (leads the group; waits for "go" at its input)
//!    │                │
//!    ├ cgroup, limits │            nothing of the workload has run so far
//!    ├ commit         │
//!    └ "go" ─────────▶├─ program ── its children …       one process group
//!                     │     │
//!                     │ ◀───┘ exit code
//!                     └ writes it to the file `exit`
//! ```
//!
//! The shell between us and the program is there for three reasons. It holds
//! the program back until its handle is on disk: if the agent dies before,
//! the shell reads the end of its input and leaves, and the file `exit` tells
//! that nothing ever ran. It sees how the program
//! ends although the agent may be gone by then. And what it is given first,
//! limits and control group, holds for all that comes after it.
//!
//! A signal goes to the whole group; the shell itself waits it out. Processes
//! that leave the group are still reached where there is a control group.
//!
//! | file | holds |
//! |---|---|
//! | `procfs` | `/proc/PID/stat` |
//! | `cgroup` | limits and figures by control group, versions 1 and 2 |
//! | `logs` | what instances write, within bounds |
//! | `watch` | the thread that notices ends |

mod cgroup;
mod logs;
mod procfs;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use log::{info, warn};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, kill_process_group, prlimit};
use uuid::Uuid;

use self::cgroup::Cgroups;
pub(super) use self::logs::DEFAULT_LOG_MB;
use self::procfs::Stat;
use self::watch::Watch;
pub(super) use self::watch::is_alive;
use super::{Commit, EndSink, Ended, Exit, Found, Handle, LaunchError, Place, Running, Subject, Usage};
use crate::cluster::agent::tree;

/// What the shell does. Its arguments: the file for the exit code, the
/// program, the program's arguments.
const SHELL: &str = r#"IFS= read -r go
[ "$go" = go ] || exit 125
status=$1
shift
: >"$status"
trap : HUP INT QUIT TERM USR1 USR2 ALRM
"$@" </dev/null
code=$?
echo "$code" >"$status"
exit "$code""#;
/// What the file for the exit code says before the shell heard "go". It is
/// emptied then, which a full disk allows, too.
const HELD: &str = "held\n";
/// What the shell is called in lists of processes.
const SHELL_NAME: &str = "ssntp-instance";
/// How long the shell may take to start the program.
const FIRST_STEPS: Duration = Duration::from_secs(3);
/// How long an ended instance's remaining processes are waited for.
const LEFTOVERS: Duration = Duration::from_secs(2);
const MB: u64 = 1024 * 1024;
/// What an instance writes, in its directory.
const LOGS: [&str; 2] = ["stdout.log", "stderr.log"];

/// How instances are kept within their memory and CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confinement {
    /// By control groups where we may make some, else by resource limits.
    #[default]
    Auto,
    /// By resource limits: each process of an instance may have that much
    /// data, and there is no limit on CPUs.
    ResourceLimits,
}

/// A program to run as an instance.
#[derive(Debug)]
pub(super) struct Program<'a> {
    pub(super) place: &'a Place,
    /// Its file.
    pub(super) path: &'a Path,
    pub(super) arguments: &'a [OsString],
    pub(super) env: &'a BTreeMap<OsString, OsString>,
    pub(super) dir: &'a Path,
    /// Who runs it, where not the agent's own user.
    pub(super) user: Option<User>,
    /// 0: no limit.
    pub(super) mem_mb: i64,
    /// 0: no limit.
    pub(super) vcpus: i64,
}

/// A user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Launches, watches, signals and measures groups. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Groups(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cgroups: Cgroups,
    boot_id: String,
    watch: Watch,
    /// Launched and not watched yet; bounded by the number of instances.
    children: Mutex<HashMap<i32, Child>>,
    /// CPU time at the last measurement.
    samples: Mutex<HashMap<Uuid, Sample>>,
}

#[derive(Clone, Debug)]
struct Sample {
    handle: Handle,
    at: Instant,
    cpu: Duration,
}

impl Groups {
    pub(super) fn new(confinement: Confinement) -> io::Result<Self> {
        let cgroups = match confinement {
            Confinement::Auto => Cgroups::detect(),
            Confinement::ResourceLimits => Cgroups::None,
        };
        info!("instances are confined by {cgroups:?}");
        Ok(Self(Arc::new(Inner {
            cgroups,
            boot_id: procfs::boot_id(),
            watch: Watch::start()?,
            children: Mutex::default(),
            samples: Mutex::default(),
        })))
    }

    /// Launches a program; see the module's picture.
    pub(super) fn launch(
        &self,
        program: &Program<'_>,
        commit: &mut Commit<'_>,
    ) -> Result<Handle, LaunchError> {
        let place = program.place;
        let log = |name: &str| {
            let path = place.dir().join(name);
            let log = OpenOptions::new().append(true).create(true).open(&path);
            log.map_err(|e| LaunchError::io(path.display(), &e))
        };
        let [stdout, stderr] = LOGS.map(log);
        let (stdout, stderr) = (stdout?, stderr?);
        prepare_exit_file(place, program.user).map_err(|e| LaunchError::io("its exit file", &e))?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SHELL, SHELL_NAME])
            .arg(place.exit_file())
            .arg(program.path)
            .args(program.arguments)
            .env_clear()
            .envs(program.env)
            .current_dir(program.dir)
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0);
        if let Some(user) = program.user {
            command.uid(user.uid).gid(user.gid);
        }
        let child = command.spawn().map_err(|e| LaunchError::io("/bin/sh", &e))?;
        let mut held = Held {
            groups: &self.0,
            instance: place.instance(),
            child: Some(child),
        };
        let handle = held.confine_and_commit(program, commit)?;
        held.go(handle.pid)
            .map_err(|e| LaunchError::io("its shell does not answer", &e))?;
        let cpu = Duration::ZERO;
        let sample = Sample {
            handle: handle.clone(),
            at: now(),
            cpu,
        };
        lock(&self.0.samples).insert(place.instance(), sample);
        Ok(handle)
    }

    /// Ends a group that was launched and is not watched, and takes notice of
    /// its end: it counts as never started.
    pub(super) fn abandon(&self, running: &Running) {
        if let Err(e) = self.kill(running) {
            warn!("instance {}: {e}", running.place.instance());
        }
        let child = lock(&self.0.children).remove(&running.handle.pid);
        if let Some(mut child) = child {
            let _ = child.wait();
        }
        kill_leftovers(&self.0.cgroups, running);
        self.0.cgroups.remove(running.place.instance());
    }

    /// Tells `sink` when the group has ended: its leader is gone, and what
    /// was left of it has been killed.
    pub(super) fn watch(&self, running: &Running, sink: &EndSink) {
        let child = lock(&self.0.children).remove(&running.handle.pid);
        let (cgroups, running_, sink) = (self.0.cgroups.clone(), running.clone(), Arc::clone(sink));
        let mut since = None;
        let on_end = move |status| {
            let since = *since.get_or_insert_with(now);
            let gone = !kill_leftovers(&cgroups, &running_);
            if !gone && since.elapsed() < LEFTOVERS {
                return false;
            }
            if !gone {
                warn!(
                    "instance {}: some of its processes do not end",
                    running_.place.instance()
                );
            }
            cgroups.remove(running_.place.instance());
            let exit = exit_of(&running_.place, status);
            sink(Ended {
                instance: running_.place.instance(),
                handle: running_.handle.clone(),
                exit,
            });
            true
        };
        self.0.watch.add(running.handle.clone(), child, Box::new(on_end));
    }

    /// Asks the whole group to end.
    pub(super) fn terminate(&self, running: &Running) -> io::Result<()> {
        await_program(&running.handle);
        signal(&running.handle, Signal::TERM)
    }

    /// Ends the whole group.
    pub(super) fn kill(&self, running: &Running) -> io::Result<()> {
        for pid in self.0.cgroups.pids(running.place.instance()) {
            kill_one(pid);
        }
        signal(&running.handle, Signal::KILL)
    }

    /// What became of a group that a former agent launched.
    pub(super) fn find(&self, running: &Running) -> Found {
        let handle = &running.handle;
        let same_boot = handle.boot_id == self.0.boot_id;
        if same_boot && is_alive(handle) {
            return Found::Running;
        }
        if same_boot {
            kill_leftovers(&self.0.cgroups, running);
        }
        self.0.cgroups.remove(running.place.instance());
        if fs::read_to_string(running.place.exit_file()).is_ok_and(|text| text == HELD) {
            return Found::NeverRan;
        }
        Found::Ended(exit_of(&running.place, None))
    }

    /// Finds the shell of an instance by the arguments it was given.
    pub(super) fn find_unrecorded(&self, place: &Place) -> Option<Handle> {
        let exit_file = place.exit_file().into_os_string().into_encoded_bytes();
        let is_shell = |pid: &i32| {
            let arguments = procfs::arguments(*pid).unwrap_or_default();
            let mut arguments = arguments.split(|b| *b == 0).skip(3);
            arguments.next() == Some(SHELL_NAME.as_bytes()) && arguments.next() == Some(&exit_file)
        };
        // Shells that the leader forked would have its arguments.
        let leads = |stat: &Stat| stat.group == stat.pid && !stat.zombie;
        let stat = procfs::pids()
            .filter(is_shell)
            .filter_map(procfs::stat)
            .find(leads)?;
        Some(self.handle(&stat))
    }

    /// Keeps each log of an instance within `mb`, and so does it with those
    /// of `more`, which are relative to its directory.
    pub(super) fn trim_logs(&self, place: &Place, mb: u32, more: &[&str]) {
        for log in LOGS.iter().chain(more) {
            logs::trim(&place.dir().join(log), u64::from(mb).max(1) * MB);
        }
    }

    /// What each instance uses: one look at all processes for all of them.
    pub(super) fn measure(&self, subjects: &[Subject]) -> Vec<Usage> {
        let mut groups: HashMap<i32, (u64, u64)> = HashMap::new();
        for stat in procfs::all() {
            let (pages, ticks) = groups.entry(stat.group).or_default();
            *pages += stat.resident_pages;
            *ticks += stat.cpu_ticks;
        }
        let at = now();
        let measure = |subject: &Subject| {
            let mut usage = Usage {
                disk_mb: disk_mb(subject.place.dir()),
                ..Usage::default()
            };
            match &subject.handle {
                Some(handle) => {
                    let of_group = groups.get(&handle.pid).copied();
                    self.measure_running(subject, handle, of_group, at, &mut usage);
                }
                None => (usage.memory_mb, usage.cpu_percent) = (0, 0),
            }
            usage
        };
        subjects.iter().map(measure).collect()
    }

    fn measure_running(
        &self,
        subject: &Subject,
        handle: &Handle,
        of_group: Option<(u64, u64)>,
        at: Instant,
        usage: &mut Usage,
    ) {
        let (cgroups, instance) = (&self.0.cgroups, subject.place.instance());
        let page = rustix::param::page_size() as u64;
        let memory = cgroups
            .memory(instance)
            .or(of_group.map(|(pages, _)| pages * page));
        if let Some(bytes) = memory {
            usage.memory_mb = i64::try_from(bytes.div_ceil(MB)).unwrap_or(-1);
        }
        let second = rustix::param::clock_ticks_per_second().max(1);
        let of_ticks = |ticks: u64| Duration::from_millis(ticks.saturating_mul(1000) / second);
        let cpu = cgroups.cpu_usec(instance).map(Duration::from_micros);
        let Some(cpu) = cpu.or(of_group.map(|(_, ticks)| of_ticks(ticks))) else {
            return;
        };
        let sample = Sample {
            handle: handle.clone(),
            at,
            cpu,
        };
        let before = lock(&self.0.samples).insert(instance, sample);
        if let Some(before) = before.filter(|before| before.handle == *handle && before.at < at) {
            usage.cpu_percent = percent(cpu.saturating_sub(before.cpu), at - before.at, subject.vcpus);
        }
    }

    /// Forgets what was kept to measure an instance, and its control group,
    /// should an agent have died too early to do so.
    pub(super) fn forget(&self, instance: Uuid) {
        lock(&self.0.samples).remove(&instance);
        self.0.cgroups.remove(instance);
    }

    fn handle(&self, stat: &Stat) -> Handle {
        Handle {
            pid: stat.pid,
            start_time: stat.start_time,
            boot_id: self.0.boot_id.clone(),
        }
    }
}

/// A shell that waits for "go". Dropped before, it is killed and removed.
struct Held<'a> {
    groups: &'a Inner,
    instance: Uuid,
    child: Option<Child>,
}

impl Held<'_> {
    fn confine_and_commit(
        &self,
        program: &Program<'_>,
        commit: &mut Commit<'_>,
    ) -> Result<Handle, LaunchError> {
        let gone = || LaunchError::launch("its shell ended at once");
        let pid = self
            .child
            .as_ref()
            .and_then(|child| i32::try_from(child.id()).ok());
        let stat = pid.and_then(procfs::stat).ok_or_else(gone)?;
        self.confine(stat.pid, program);
        let handle = Handle {
            pid: stat.pid,
            start_time: stat.start_time,
            boot_id: self.groups.boot_id.clone(),
        };
        commit(&handle).map_err(|e| LaunchError::io("its state cannot be saved", &e))?;
        Ok(handle)
    }

    /// A limit that can't be set is no reason not to run.
    fn confine(&self, pid: i32, program: &Program<'_>) {
        let cgroups = &self.groups.cgroups;
        let grouped = cgroups
            .create(self.instance, program.mem_mb, program.vcpus)
            .and_then(|()| cgroups.join(self.instance, pid));
        match grouped {
            Ok(()) => return,
            Err(e) if *cgroups == Cgroups::None => drop(e),
            Err(e) => warn!("instance {}: no control group: {e}", self.instance),
        }
        let bytes = u64::try_from(program.mem_mb).unwrap_or(0).saturating_mul(MB);
        if bytes == 0 {
            return;
        }
        // Not the address space: many programs reserve far more of it than
        // they ever use.
        let limit = Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        if let Err(e) = prlimit(Pid::from_raw(pid), Resource::Data, limit) {
            warn!("instance {}: no memory limit: {e}", self.instance);
        }
    }

    /// Lets it run.
    fn go(&mut self, pid: i32) -> io::Result<()> {
        let Some(mut child) = self.child.take() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let stdin = child.stdin.take();
        let said = stdin.map_or(Err(io::ErrorKind::BrokenPipe.into()), |mut stdin| {
            stdin.write_all(b"go\n")
        });
        match said {
            Ok(()) => {
                lock(&self.groups.children).insert(pid, child);
                Ok(())
            }
            Err(e) => {
                self.child = Some(child);
                Err(e)
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended on its own: the wait says so either way.
            let _ = child.kill();
            let _ = child.wait();
            self.groups.cgroups.remove(self.instance);
        }
    }
}

/// Signals the group of a process that is still that process.
fn signal(handle: &Handle, signal: Signal) -> io::Result<()> {
    match Pid::from_raw(handle.pid) {
        Some(pid) if is_alive(handle) => Ok(kill_process_group(pid, signal)?),
        _ => Ok(()),
    }
}

/// Waits until the shell has started the program: a signal before that would
/// be waited out by the shell, or by its copy that is about to become the
/// program, and the program would never hear of it.
fn await_program(leader: &Handle) {
    let deadline = now() + FIRST_STEPS;
    // Empty while the process is becoming another program.
    let arguments = |pid| procfs::arguments(pid).filter(|arguments| !arguments.is_empty());
    while is_alive(leader) && now() < deadline {
        if let Some(shell) = arguments(leader.pid) {
            let in_group = |stat: &Stat| stat.group == leader.pid && stat.pid != leader.pid;
            let is_other = |stat: &Stat| arguments(stat.pid).is_some_and(|others| others != shell);
            if procfs::all().iter().any(|stat| in_group(stat) && is_other(stat)) {
                return;
            }
        }
        let _ = crossbeam_channel::after(Duration::from_millis(1)).recv();
    }
}

fn kill_one(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may have ended.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Kills what is left of a group whose leader has ended; whether there was
/// anything.
fn kill_leftovers(cgroups: &Cgroups, running: &Running) -> bool {
    let leader = &running.handle;
    let mut left = cgroups.pids(running.place.instance());
    let all = procfs::all();
    // While one of its processes lives, a group's number names no other
    // process. So a process of that number is a later one, with its own group.
    if !all
        .iter()
        .any(|stat| stat.pid == leader.pid && stat.start_time != leader.start_time)
    {
        let of_group = |stat: &&Stat| stat.group == leader.pid && stat.pid != leader.pid && !stat.zombie;
        left.extend(all.iter().filter(of_group).map(|stat| stat.pid));
    }
    left.iter().for_each(|pid| kill_one(*pid));
    !left.is_empty()
}

/// A file that the instance's user may write.
fn prepare_exit_file(place: &Place, user: Option<User>) -> io::Result<()> {
    let path = place.exit_file();
    fs::write(&path, HELD)?;
    user.map_or(Ok(()), |user| chown(&path, Some(user.uid), Some(user.gid)))
}

/// What the shell wrote, else what the system says of the shell itself.
fn exit_of(place: &Place, status: Option<ExitStatus>) -> Exit {
    let written = fs::read_to_string(place.exit_file()).ok();
    let written = written.and_then(|text| text.strip_suffix('\n')?.parse().ok());
    let of_status = |status: ExitStatus| status.code().or(status.signal().map(|signal| 128 + signal));
    Exit {
        code: written.or(status.and_then(of_status)),
    }
}

fn disk_mb(dir: &Path) -> i64 {
    let bytes = tree::disk_usage(dir);
    bytes
        .and_then(|bytes| i64::try_from(bytes.div_ceil(MB)).ok())
        .unwrap_or(-1)
}

fn percent(cpu: Duration, over: Duration, vcpus: i64) -> i64 {
    let cpus = match u64::try_from(vcpus) {
        Ok(vcpus) if vcpus > 0 => vcpus,
        _ => std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
    };
    let available = over.as_micros().saturating_mul(u128::from(cpus)).max(1);
    let percent = cpu.as_micros().saturating_mul(100) / available;
    i64::try_from(percent.min(100)).unwrap_or(100)
}

/// The file of a program, found as a shell would.
pub(super) fn find_program(name: &str, path: Option<&OsStr>, dir: &Path) -> Result<PathBuf, LaunchError> {
    let candidates = if name.contains('/') {
        vec![dir.join(name)]
    } else {
        let dirs = path.map(std::env::split_paths).into_iter().flatten();
        dirs.map(|entry| dir.join(entry).join(name)).collect()
    };
    let is_program = |path: &&PathBuf| {
        let metadata = fs::metadata(path);
        metadata.is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0)
    };
    let found = candidates.iter().find(is_program);
    let found = found.ok_or_else(|| LaunchError::launch(format!("there is no program {name:?}")))?;
    check_interpreter(found)?;
    Ok(found.clone())
}

/// A script whose interpreter is missing would look as if it had run.
fn check_interpreter(script: &Path) -> Result<(), LaunchError> {
    use std::io::Read;

    let mut start = Vec::new();
    let read = File::open(script).and_then(|file| file.take(256).read_to_end(&mut start));
    // Programs that can't be read may run all the same.
    let Ok(_) = read else { return Ok(()) };
    let line = start
        .strip_prefix(b"#!")
        .and_then(|rest| rest.split(|b| *b == b'\n').next());
    let text = line.and_then(|line| std::str::from_utf8(line).ok());
    match text.and_then(|text| text.split_whitespace().next()) {
        Some(interpreter) if !Path::new(interpreter).exists() => {
            let script = script.display();
            Err(LaunchError::launch(format!(
                "{script} asks for {interpreter}, which is not there"
            )))
        }
        _ => Ok(()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they hold is whole at any moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "CPU usage is time over time")]
fn now() -> Instant {
    Instant::now()
}
