//! The child processes, and the directory in which all that they write
//! stands. Dropping either leaves nothing of it.

use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use rustix::process::{Pid, Signal, kill_process};
use uuid::Uuid;

use super::caretaker::end_instances;
use super::now;
use super::steps::Interrupt;
use crate::failure::Failure;
use crate::output::{note, printable};
use crate::signals::Stop;

/// How long a process may take to say its first line.
const FIRST_WORD: Duration = Duration::from_secs(20);
/// How long one may take to end once it was asked to.
const END: Duration = Duration::from_secs(5);
/// Between two looks at whether it has.
const LOOK: Duration = Duration::from_millis(5);

/// A directory of its own for one demo.
pub(super) struct Directory(Option<PathBuf>);

impl Directory {
    pub(super) fn new() -> Result<Self, Failure> {
        let name = format!("ssntp-demo-{}", Uuid::new_v4());
        let path = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
        // As the system calls it when it says where a process runs.
        let path = path.canonicalize().unwrap_or(path);
        Ok(Self(Some(path)))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    /// Removes it; says what is wrong where that fails.
    pub(super) fn remove(mut self) -> Result<(), Failure> {
        let Some(path) = self.0.take() else { return Ok(()) };
        fs::remove_dir_all(&path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// One child, and where its standard error goes.
struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

/// The children, in the order in which they were started.
pub(super) struct Processes {
    directory: PathBuf,
    running: Vec<Process>,
}

impl Processes {
    pub(super) fn new(directory: &Directory) -> Self {
        Self {
            directory: directory.path().to_owned(),
            running: Vec::new(),
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// This program, for a child.
    pub(super) fn program() -> Result<PathBuf, Failure> {
        std::env::current_exe().map_err(|e| Failure::new(format!("where this program is: {e}")))
    }

    /// Starts a child, and waits for its first line; gives that and the PID.
    pub(super) fn start(
        &mut self,
        name: &str,
        words: &[&str],
        stop: &Stop,
    ) -> Result<(String, u32), Interrupt> {
        let log = self.directory.join(format!("{name}.log"));
        let failed = |e: std::io::Error| Failure::new(format!("cannot start the {name}: {e}"));
        let stderr = File::create(&log).map_err(failed)?;
        // A group of its own: Ctrl-C is for the demo, which then ends them.
        let child = Command::new(Self::program()?)
            .args(words)
            .current_dir(&self.directory)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn();
        let mut child = child.map_err(failed)?;
        let pid = child.id();
        let stdout = child.stdout.take();
        self.running.push(Process {
            name: name.to_owned(),
            log,
            child,
        });
        let (send, line) = crossbeam_channel::bounded(1);
        let reader = std::thread::Builder::new()
            .name("demo-first-line".into())
            .spawn(move || {
                let mut line = String::new();
                let read = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
                if matches!(read, Some(Ok(1..))) {
                    let _ = send.send(line);
                }
            });
        let reader = reader.map_err(failed)?;
        let said = wait_for(&line, stop);
        if said.is_err() {
            // Its end ends the reader.
            if let Some(process) = self.running.last_mut() {
                process.end();
            }
        }
        let _ = reader.join();
        match said {
            Ok(line) => Ok((line.trim().to_owned(), pid)),
            Err(None) => Err(Interrupt::Stopped),
            Err(Some(why)) => Err(Failure::new(format!("the {name} {why}")).into()),
        }
    }

    /// The name of a child that has ended though nobody asked it to.
    pub(super) fn missing(&mut self) -> Option<&str> {
        let ended = |process: &mut &mut Process| !matches!(process.child.try_wait(), Ok(None));
        self.running
            .iter_mut()
            .find_map(|mut process| ended(&mut process).then_some(process.name.as_str()))
    }

    /// Prints the last lines of what the children said of errors.
    pub(super) fn tell_logs(&self) {
        for process in &self.running {
            let text = fs::read_to_string(&process.log).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(5)..] {
                note(format_args!("{}: {}", process.name, printable(line)));
            }
        }
    }

    /// Asks every child to end, the last one first, and waits for each. Fails
    /// when one ends in another way, or when something is left of what they
    /// had started, which is ended as well.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        let mut wrong = None;
        while let Some(mut process) = self.running.pop() {
            if !process.end() {
                wrong.get_or_insert_with(|| format!("the {} did not end in order", process.name));
            }
        }
        let left = end_instances(&self.directory);
        if left > 0 {
            wrong.get_or_insert_with(|| format!("{left} processes were left, and had to be killed"));
        }
        match wrong {
            Some(wrong) => Err(Failure::new(wrong)),
            None => Ok(()),
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Process {
    /// SIGTERM, then SIGKILL. Says whether it ended by itself, and well.
    fn end(&mut self) -> bool {
        if let Ok(Some(status)) = self.child.try_wait() {
            return status.success();
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let asked = pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        let patience = if asked { END } else { Duration::ZERO };
        end_of(&mut self.child, now() + patience)
    }
}

/// Waits for the end of a child that has been asked to end, and kills it where
/// it has not by then. Says whether it ended by itself, and well.
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

fn wait_for(line: &crossbeam_channel::Receiver<String>, stop: &Stop) -> Result<String, Option<&'static str>> {
    crossbeam_channel::select! {
        recv(line) -> line => line.map_err(|_| Some("has ended at once")),
        recv(stop.channel()) -> _ => Err(None),
        default(FIRST_WORD) => Err(Some("says nothing")),
    }
}

/// What is waited for here wakes nobody.
pub(super) fn pause() {
    let never = crossbeam_channel::never::<()>();
    let _: Result<(), RecvTimeoutError> = never.recv_timeout(LOOK);
}
