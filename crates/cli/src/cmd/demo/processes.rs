//! The directory of a demo, and the processes that run in it.
//!
//! ```text
//!  demo ──── pipe ────▶ caretaker      the pipe ends when the demo ends in any way
//!   └ scheduler, agents ◀───┤ SIGTERM, SIGKILL
//!       └ workloads ◀───────┤
//!   directory ◀─────────────┘ removed
//! ```

use std::fs::{self, DirBuilder, File};
use std::os::unix::{fs::DirBuilderExt, process::CommandExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use ssntp_daemon::{Failure, note, printable};
use uuid::Uuid;

/// Waits for the end of the demo, ends the remaining processes, and removes the directory `$1`. Workloads
/// outlive agents on purpose, so they and their supervisors are found by the name of the directory. If
/// processes had to be killed, the exit code is 1.
const CARETAKER: &str = r#"trap '' HUP INT TERM; cat >/dev/null; code=0
for i in $(seq 200); do
  pids=$(grep -lzsE "^(DEMO=$1\$|(SSNTP_DIR=)?/.*/$1/.*/instances/)" /proc/[0-9]*/environ /proc/[0-9]*/cmdline |
    sed 's,^/proc/,,; s,/.*,,')
  [ -z "$pids" ] && break
  case $i in 1) kill -TERM $pids ;; [3-9]?|1??) code=1; kill -KILL $pids ;; esac 2>/dev/null
  sleep 0.1
done
rm -rf "$1"; exit $code"#;

/// The trace of which all commands are a part.
const TRACE: &str = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";

/// The processes of a demo, in the order in which they were started. The output of each is in the
/// directory: NAME.out and NAME.log. If this is dropped, the caretaker kills them.
pub(super) struct Processes {
    directory: PathBuf,
    /// The name of the directory, which is in the environment of each process.
    name: String,
    caretaker: Child,
    running: Vec<(String, Child)>,
}

impl Processes {
    /// Makes the directory, and starts the process that removes it.
    pub(super) fn new() -> Result<Self, Failure> {
        let name = format!("ssntp-demo-{}", Uuid::new_v4());
        let parent = std::env::temp_dir().canonicalize()?;
        let directory = parent.join(&name);
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|e| Failure::at(&directory, e))?;
        let mut caretaker = Command::new("sh");
        caretaker.args(["-c", CARETAKER, "caretaker", &name]);
        // In a new process group, so that Ctrl-C does not end it.
        caretaker.current_dir(parent).process_group(0);
        caretaker.stdin(Stdio::piped());
        let caretaker = caretaker.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self {
            directory,
            name,
            caretaker,
            running: Vec::new(),
        })
    }

    /// The path of a file in the directory.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// What a file in the directory holds: the output of a process, NAME.out, or its errors, NAME.log.
    pub(super) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The rest of the first whole line of a process that has this text, up to a comma: in its output or its log.
    pub(super) fn line_with(&self, name: &str, text: &str) -> Option<String> {
        let printed = [".out", ".log"].map(|end| self.read(&format!("{name}{end}")));
        let mut lines = printed.iter().flat_map(|all| all.split_inclusive('\n'));
        let rest = lines.find_map(|line| Some(line.strip_suffix('\n')?.split_once(text)?.1))?;
        rest.split(',').next().map(str::to_owned)
    }

    /// Keeps a process that runs until [`end`](Self::end).
    pub(super) fn add(&mut self, name: &str, process: Child) {
        self.running.push((name.to_owned(), process));
    }

    /// Starts a program in a new process group, because Ctrl-C is for the demo. Its output goes to files,
    /// because a pipe that is not read would block it.
    pub(super) fn spawn(&self, name: &str, words: Vec<String>) -> Result<Child, Failure> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&self.directory);
        command.process_group(0).stdin(Stdio::null());
        // The demo's cluster has none of the user's settings and contexts, and no service manager.
        let path = std::env::var_os("PATH").map(|path| ("PATH", path));
        command.env_clear().envs(path).env("DEMO", &self.name);
        command.env("XDG_CONFIG_HOME", &self.directory);
        command.env("TRACEPARENT", TRACE);
        command.stdout(File::create(self.path(&format!("{name}.out")))?);
        command.stderr(File::create(self.path(&format!("{name}.log")))?);
        let started = command.spawn();
        started.map_err(|e| Failure::new(format!("cannot start the {name}: {e}")))
    }

    /// Fails if a process has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        for (name, child) in &mut self.running {
            if !matches!(child.try_wait(), Ok(None)) {
                return Err(Failure::new(format!("the {name} has ended")));
            }
        }
        Ok(())
    }

    /// Ends a process by a signal, if it runs.
    pub(super) fn end_one(&mut self, name: &str, signal: Signal) {
        if let Some(at) = self.running.iter().position(|(running, _)| running == name) {
            let mut child = self.running.remove(at).1;
            if let Ok(None) = child.try_wait() {
                let _ = kill_process(Pid::from_child(&child), signal);
            }
            let _ = child.wait();
        }
    }

    /// Ends all processes, and removes the directory.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        drop(self.caretaker.stdin.take());
        if self.caretaker.wait()?.success() {
            Ok(())
        } else {
            Err(Failure::new("some processes had not ended, and were killed"))
        }
    }

    /// Prints the last lines of each process's errors.
    pub(super) fn print_logs(&self) {
        for (name, _) in &self.running {
            let text = self.read(&format!("{name}.log"));
            let before = text.lines().count().saturating_sub(5);
            let last = text.lines().skip(before).map(printable);
            last.for_each(|line| note(format_args!("{name}: {line}")));
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // The error is that of an earlier failure.
        let _ = self.end();
    }
}
