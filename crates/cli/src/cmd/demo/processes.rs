//! The child processes of a demo. Dropping them ends them.

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
use crate::signals::Stop;

/// How long a process may take to print its first lines.
const FIRST_LINES: Duration = Duration::from_secs(20);
/// How long a process may take to end after SIGTERM.
const END: Duration = Duration::from_secs(5);
/// The time between two looks at whether a process has ended or printed its line.
const LOOK: Duration = Duration::from_millis(5);

/// The children, in the order in which they were started. The files of each are in
/// the demo's directory: NAME.out and NAME.log.
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

    /// Starts this program with some words as a child, and waits for its first line;
    /// gives that and the PID.
    pub(super) fn start(&mut self, name: &str, words: &str, stop: &Stop) -> Result<(String, u32), Failure> {
        self.start_in(name, "", words, stop)
    }

    /// The same in a network namespace of its own, which this shell script fills. Without a
    /// script it has that of the demo.
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

    /// Starts a program as a child, and does not wait for a line of it; gives its PID.
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

    /// Waits for the first line of a child that begins so.
    pub(super) fn line(&mut self, name: &str, begin: &str, stop: &Stop) -> Result<String, Failure> {
        let deadline = now() + FIRST_LINES;
        loop {
            let printed = fs::read_to_string(self.file(name, "out")).unwrap_or_default();
            let mut whole = printed
                .split_inclusive('\n')
                .filter_map(|line| line.strip_suffix('\n'));
            if let Some(line) = whole.find(|line| line.starts_with(begin)) {
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

    /// Starts this program with some words, for one command.
    pub(super) fn ctl(&self, words: impl Iterator<Item = String>, traceparent: &str) -> Result<Ctl, Failure> {
        let mut command = self.command("ctl", program()?, words)?;
        // Contexts and other settings of the user are not meant for the demo's cluster.
        command.env_clear().env("TRACEPARENT", traceparent);
        Ok(Ctl {
            child: command.spawn().map_err(|e| cannot_start("ctl", &e))?,
            stdout: self.file("ctl", "out"),
            stderr: self.file("ctl", "log"),
        })
    }

    /// A program as a child, such as this one: in a group of its own, since Ctrl-C is for the demo, which then
    /// ends the child.
    fn command<W: AsRef<OsStr>>(
        &self,
        name: &str,
        program: PathBuf,
        words: impl Iterator<Item = W>,
    ) -> Result<Command, Failure> {
        // The output goes to files and not to pipes: nobody reads on during the steps, and a pipe
        // that is full would stop the child.
        let file = |end| File::create(self.file(name, end)).map_err(|e| cannot_start(name, &e));
        let mut command = Command::new(program);
        command
            .args(words)
            .current_dir(&self.directory)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file("out")?)
            .stderr(file("log")?);
        Ok(command)
    }

    fn file(&self, name: &str, end: &str) -> PathBuf {
        self.directory.join(format!("{name}.{end}"))
    }

    /// The process of a child.
    pub(super) fn pid(&self, name: &str) -> Option<i32> {
        let mut running = self.running.iter();
        let (_, child) = running.find(|(running, _)| running == name)?;
        i32::try_from(child.id()).ok()
    }

    /// The name of a child that has ended without having been asked to.
    pub(super) fn missing(&mut self) -> Option<&str> {
        let ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        let mut children = self.running.iter_mut();
        children.find_map(|(name, child)| ended(child).then_some(name.as_str()))
    }

    /// Prints the last lines of each child's standard error.
    pub(super) fn tell_logs(&self) {
        for (name, _) in &self.running {
            let text = fs::read_to_string(self.file(name, "log")).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(5)..] {
                note(format_args!("{name}: {}", printable(line)));
            }
        }
    }

    /// Asks every child to end, the last one first, and waits for each. Fails if one
    /// ends with an error, or has to be killed.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        let mut result = Ok(());
        // The scheduler is the first child, and so the last one to end: agents without one would
        // log that they cannot reach it.
        while let Some((name, child)) = self.running.pop() {
            result = result.and(end_in_order(&name, child));
        }
        result
    }

    /// Kills one child.
    pub(super) fn kill(&mut self, name: &str) -> Result<(), Failure> {
        if let Some(at) = self.running.iter().position(|(running, _)| running == name) {
            let (_, mut child) = self.running.remove(at);
            child
                .kill()
                .map_err(|e| Failure::new(format!("the {name}: {e}")))?;
            let _ = child.wait();
        }
        Ok(())
    }

    /// Asks one child to end, and waits for it.
    pub(super) fn end_one(&mut self, name: &str) -> Result<(), Failure> {
        match self.running.iter().position(|(running, _)| running == name) {
            Some(at) => end_in_order(name, self.running.remove(at).1),
            None => Ok(()),
        }
    }
}

fn end_in_order(name: &str, mut child: Child) -> Result<(), Failure> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if name == "etcd" {
        // It ends by the signal, which would count as an error. Nothing of it is kept.
        let _ = child.kill();
        let _ = child.wait();
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

    /// Waits until it has ended, or kills it after this time.
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

/// Waits for the end of a child, and kills it if it has not ended by then. Says
/// whether it ended by itself and with exit code 0.
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

/// Sleeps for 5 ms, in waits for things that send no event.
pub(in crate::cmd) fn pause() {
    let never = crossbeam_channel::never::<()>();
    let _: Result<(), RecvTimeoutError> = never.recv_timeout(LOOK);
}
