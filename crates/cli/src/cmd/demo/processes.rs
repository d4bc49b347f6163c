//! The child processes of a demo.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use rustix::process::{Pid, Signal, kill_process};

use crate::clock::now;
use crate::failure::Failure;
use crate::output::{note, printable};
use crate::service_manager;
use crate::signals::Stop;

/// The time limit for the first lines of a process.
const FIRST_LINES: Duration = Duration::from_secs(60);
/// The time limit for the end of a process after SIGTERM. A daemon ends itself by force much earlier.
const END: Duration = Duration::from_secs(30);
/// The time between two checks whether a process has ended or printed its line.
const POLL: Duration = Duration::from_millis(5);

/// The children, in the order in which they were started. The output files of each child are in the
/// demo's directory: NAME.out and NAME.log. Dropping this ends all children.
pub(super) struct Processes {
    directory: PathBuf,
    running: Vec<(String, Child)>,
}

impl Processes {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            running: Vec::new(),
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts this program with these words as a child, and blocks until its first line. Returns the
    /// line and the PID.
    pub(super) fn start(&mut self, name: &str, words: &str, stop: &Stop) -> Result<(String, u32), Failure> {
        self.start_in(name, "", words, stop)
    }

    /// As [`start`](Self::start), in a new network namespace that the shell script prepares. With an
    /// empty script, the child stays in the demo's namespace.
    pub(super) fn start_in(
        &mut self,
        name: &str,
        script: &str,
        words: &str,
        stop: &Stop,
    ) -> Result<(String, u32), Failure> {
        let own = self.command(name, program()?, words.split_whitespace())?;
        let command = match script {
            "" => own,
            script => {
                let begin = ["--net", "sh", "-c", script].map(OsStr::new).into_iter();
                let rest = std::iter::once(own.get_program()).chain(own.get_args());
                self.command(name, "unshare".into(), begin.chain(rest))?
            }
        };
        let pid = self.run(name, command)?;
        Ok((self.line(name, "", stop)?, pid))
    }

    /// Starts a program as a child, without waiting for its first line. Returns the PID.
    pub(super) fn spawn(&mut self, name: &str, program: PathBuf, words: &str) -> Result<u32, Failure> {
        let command = self.command(name, program, words.split_whitespace())?;
        self.run(name, command)
    }

    fn run(&mut self, name: &str, mut command: Command) -> Result<u32, Failure> {
        let child = command.spawn().map_err(|e| cannot_start(name, &e))?;
        let pid = child.id();
        self.running.push((name.to_owned(), child));
        Ok(pid)
    }

    /// Blocks until a child has printed a line that begins with `begin`, and returns the line.
    pub(super) fn line(&mut self, name: &str, begin: &str, stop: &Stop) -> Result<String, Failure> {
        let deadline = now() + FIRST_LINES;
        loop {
            let printed = fs::read_to_string(self.file(name, "out")).unwrap_or_default();
            let mut lines = printed
                .split_inclusive('\n')
                .filter_map(|line| line.strip_suffix('\n'));
            if let Some(line) = lines.find(|line| line.starts_with(begin)) {
                return Ok(line.to_owned());
            }
            if stop.requested() {
                return Err(stop.interrupted());
            }
            if let Some(ended) = self.missing() {
                return Err(Failure::new(format!("the {ended} has ended")));
            }
            if now() >= deadline {
                return Err(Failure::new(format!("the {name} prints nothing")));
            }
            pause();
        }
    }

    /// Starts this program with these words, for one command. `traceparent` is its trace context.
    pub(super) fn ctl(
        &self,
        words: impl Iterator<Item = String>,
        traceparent: Option<&str>,
    ) -> Result<Ctl, Failure> {
        let mut command = self.command("ctl", program()?, words)?;
        // The demo shows what the command prints, so the user's settings must not add log lines or a
        // trace. The daemons keep RUST_LOG, because their logs are only files.
        command.env_remove("RUST_LOG").env_remove("TRACEPARENT");
        command.envs(traceparent.map(|value| ("TRACEPARENT", value)));
        Ok(Ctl {
            child: command.spawn().map_err(|e| cannot_start("ctl", &e))?,
            stdout: self.file("ctl", "out"),
            stderr: self.file("ctl", "log"),
        })
    }

    /// The command of a child, in a new process group, because Ctrl-C is for the demo, which then ends
    /// the child.
    fn command<W: AsRef<OsStr>>(
        &self,
        name: &str,
        program: PathBuf,
        words: impl Iterator<Item = W>,
    ) -> Result<Command, Failure> {
        // The output goes to files, because a pipe that is not read during the steps would block the
        // child.
        let file = |end| File::create(self.file(name, end)).map_err(|e| cannot_start(name, &e));
        let mut command = Command::new(program);
        command
            .args(words)
            .current_dir(&self.directory)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file("out")?)
            .stderr(file("log")?);
        // The demo's cluster has none of the user's settings.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"SSNTP_") {
                command.env_remove(name);
            }
        }
        service_manager::hide_from(&mut command);
        Ok(command)
    }

    fn file(&self, name: &str, end: &str) -> PathBuf {
        self.directory.join(format!("{name}.{end}"))
    }

    /// The PID of a child.
    pub(super) fn pid(&self, name: &str) -> Option<i32> {
        let mut running = self.running.iter();
        let (_, child) = running.find(|(running, _)| running == name)?;
        i32::try_from(child.id()).ok()
    }

    /// The name of a child that has ended by itself.
    pub(super) fn missing(&mut self) -> Option<&str> {
        let ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        let mut children = self.running.iter_mut();
        children.find_map(|(name, child)| ended(child).then_some(name.as_str()))
    }

    /// Prints the last lines of each child's standard error.
    pub(super) fn print_logs(&self) {
        for (name, _) in &self.running {
            let text = fs::read_to_string(self.file(name, "log")).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(5)..] {
                note(format_args!("{name}: {}", printable(line)));
            }
        }
    }

    /// Ends every child in order, the last one first. Fails if a child ends with an error, or has to be
    /// killed.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        let mut result = Ok(());
        // The scheduler is the first child, and so the last to end: agents without a scheduler would log
        // that they cannot connect.
        while let Some((name, child)) = self.running.pop() {
            result = result.and(end_in_order(&name, child));
        }
        result
    }

    /// Kills one child, if it runs.
    pub(super) fn kill(&mut self, name: &str) {
        if let Some(mut child) = self.take(name) {
            end_of(&mut child, now());
        }
    }

    /// Ends one child in order, if it runs.
    pub(super) fn end_one(&mut self, name: &str) -> Result<(), Failure> {
        self.take(name).map_or(Ok(()), |child| end_in_order(name, child))
    }

    fn take(&mut self, name: &str) -> Option<Child> {
        let at = self.running.iter().position(|(running, _)| running == name)?;
        Some(self.running.remove(at).1)
    }
}

fn end_in_order(name: &str, mut child: Child) -> Result<(), Failure> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if name == "etcd" {
        // A signal ends etcd, which would count as an error. Its data is not needed any more.
        end_of(&mut child, now());
        return Ok(());
    }
    if let (Some(pid), Ok(None)) = (pid, child.try_wait()) {
        let _ = kill_process(pid, Signal::TERM);
    }
    match end_of(&mut child, now() + END) {
        true => Ok(()),
        false => Err(Failure::new(format!("the {name} did not end in order"))),
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A run of `ssntp ctl`. Dropping it kills the process.
pub(super) struct Ctl {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Ctl {
    /// The exit code and both outputs, once it has ended.
    pub(super) fn ended(&mut self) -> Option<(Option<i32>, String, String)> {
        let status = self.child.try_wait().ok()??;
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        Some((status.code(), text(&self.stdout), text(&self.stderr)))
    }

    /// Blocks until it has ended, or kills it after this time.
    pub(super) fn end(mut self, limit: Duration) {
        end_of(&mut self.child, now() + limit);
    }
}

impl Drop for Ctl {
    fn drop(&mut self) {
        end_of(&mut self.child, now());
    }
}

fn cannot_start(name: &str, error: &io::Error) -> Failure {
    Failure::new(format!("cannot start the {name}: {error}"))
}

/// This program, for a child.
pub(super) fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::new(format!("the path of this program: {e}")))
}

/// Blocks until the end of a child, and kills it at the deadline. Returns true if it ended by itself
/// with exit code 0.
pub(super) fn end_of(child: &mut Child, deadline: Instant) -> bool {
    while now() < deadline {
        if let Ok(Some(status)) = child.try_wait() {
            return status.success();
        }
        pause();
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// Sleeps for 5 ms, in waits for changes that cause no event.
pub(in crate::cmd) fn pause() {
    let never = crossbeam_channel::never::<()>();
    let _: Result<(), RecvTimeoutError> = never.recv_timeout(POLL);
}
