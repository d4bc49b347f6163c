//! The directory of a demo, and the processes that run in it.
//!
//! ```text
//!  demo ──── pipe ────▶ caretaker      the pipe ends when the demo ends in any way
//!   └ scheduler, agents ◀───┤ SIGTERM, SIGKILL
//!       └ workloads ◀───────┤
//!   directory ◀─────────────┘ removed
//! ```

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use uuid::Uuid;

use crate::failure::Failure;
use crate::output::{note, printable};
use crate::service_manager;

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
        caretaker
            .args(["-c", CARETAKER, "caretaker", &name])
            .current_dir(parent);
        // In a new process group, so that Ctrl-C does not end it.
        caretaker.process_group(0).stdin(Stdio::piped());
        let caretaker = caretaker.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let running = Vec::new();
        Ok(Self {
            directory,
            name,
            caretaker,
            running,
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
        let rest = lines
            .find_map(|line| line.strip_suffix('\n')?.split_once(text))?
            .1;
        rest.split(',').next().map(str::to_owned)
    }

    /// Starts a program that runs until [`end`](Self::end). Returns its PID.
    pub(super) fn start(&mut self, name: &str, words: &[String]) -> Result<u32, Failure> {
        let child = self.spawn(name, words)?;
        let pid = child.id();
        self.running.push((name.to_owned(), child));
        Ok(pid)
    }

    /// Starts a program in a new process group, because Ctrl-C is for the demo. Its output goes to files,
    /// because a pipe that is not read would block it.
    pub(super) fn spawn(&self, name: &str, words: &[String]) -> Result<Child, Failure> {
        let mut command = Command::new(&words[0]);
        // The demo's cluster has none of the user's settings.
        let is_setting = |name: &std::ffi::OsString| name.as_encoded_bytes().starts_with(b"SSNTP_");
        for name in std::env::vars_os().map(|(name, _)| name).filter(is_setting) {
            command.env_remove(name);
        }
        service_manager::hide_from(&mut command);
        command
            .args(&words[1..])
            .current_dir(&self.directory)
            .process_group(0)
            .stdin(Stdio::null());
        command
            .env("DEMO", &self.name)
            .env("TRACEPARENT", super::TRACE)
            .env_remove("RUST_LOG");
        command.stdout(File::create(self.path(&format!("{name}.out")))?);
        command.stderr(File::create(self.path(&format!("{name}.log")))?);
        command
            .spawn()
            .map_err(|e| Failure::new(format!("cannot start the {name}: {e}")))
    }

    /// Fails if a process has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        let ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        match self
            .running
            .iter_mut()
            .find_map(|(name, child)| ended(child).then_some(name))
        {
            Some(name) => Err(Failure::new(format!("the {name} has ended"))),
            None => Ok(()),
        }
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
            let lines: Vec<_> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(5)..] {
                note(format_args!("{name}: {}", printable(line)));
            }
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        drop(self.caretaker.stdin.take());
        let _ = self.caretaker.wait();
    }
}
