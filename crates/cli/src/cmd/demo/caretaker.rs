//! The directory of a demo, and `ssntp caretaker`: the process that removes the directory and kills
//! the remaining processes once the demo has ended.
//!
//! ```text
//!  demo ──── pipe ────▶ caretaker      the pipe ends when the demo ends in any way
//!   │                       │
//!   └ scheduler, agents ◀───┤ SIGKILL
//!       └ workloads ◀───────┤ SIGKILL
//!   directory ◀─────────────┘ removed
//! ```
//!
//! A demo that ends in order ends all its processes first. A demo that is killed by SIGKILL cannot,
//! and neither its children nor their workloads, which outlive agents on purpose, would end.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process};
use uuid::Uuid;

use super::processes::{end_of, pause, program};
use crate::clock::now;
use crate::failure::Failure;
use crate::signals::Stop;

/// The time limit for the end of killed processes. The demo waits twice as long for the caretaker.
const END: Duration = Duration::from_secs(5);

/// Wait for the end of a demo, and remove its directory and its remaining processes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The demo's directory
    directory: PathBuf,
}

/// The directory of one demo, and the process that removes it. Dropping this blocks until the process
/// has ended.
pub(super) struct Caretaker {
    directory: PathBuf,
    child: Child,
}

impl Caretaker {
    pub(super) fn start() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("ssntp-demo-{}", Uuid::new_v4()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Failure::at(&path, e))?;
        // The name without symbolic links, which /proc shows as the directory of a process.
        let directory = path.canonicalize().unwrap_or(path);
        // In a new process group, so that Ctrl-C does not end it, and in another directory, so that it
        // does not find itself.
        let child = Command::new(program()?)
            .arg("caretaker")
            .arg(&directory)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child
            .map_err(|e| {
                let _ = fs::remove_dir(&directory);
                Failure::new(format!("cannot start the caretaker: {e}"))
            })
            .map(|child| Self {
                directory: directory.clone(),
                child,
            })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Blocks until the directory is removed. Fails if processes had to be killed first.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        match self.wait() {
            true => Ok(()),
            false => Err(Failure::new("some processes had not ended, and were killed")),
        }
    }

    fn wait(&mut self) -> bool {
        drop(self.child.stdin.take());
        end_of(&mut self.child, now() + 2 * END)
    }
}

impl Drop for Caretaker {
    fn drop(&mut self) {
        self.wait();
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // A service manager sends SIGTERM to all processes of the demo at once, and this one ends last.
    let _stop = Stop::install_patiently()?;
    // The demo writes nothing into the pipe, which ends with the demo.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    let directory = &args.directory;
    // Repeated after each round, because a process may start another process before it is killed.
    let mut left = left_in(directory);
    let were_left = !left.is_empty();
    let deadline = now() + END;
    while !left.is_empty() && now() < deadline {
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        pause();
        left = left_in(directory);
    }
    fs::remove_dir_all(directory).map_err(|e| Failure::at(directory, e))?;
    match were_left {
        true => Err(Failure::Silent(1)),
        false => Ok(()),
    }
}

/// The processes of the demo in a directory: this program running there, and all processes that run in
/// the directory of an instance, or have it in their environment.
fn left_in(directory: &Path) -> Vec<Pid> {
    let file = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    // The file of this process, even if its name belongs to another file by now.
    let own = file(Path::new("/proc/self/exe"));
    let is_instance = |path: &Path| {
        let below = path.strip_prefix(directory);
        below.is_ok_and(|below| below.iter().any(|part| part == "instances"))
    };
    let is_left = |proc: &Path| {
        let cwd = fs::read_link(proc.join("cwd")).unwrap_or_default();
        if is_instance(&cwd) || cwd == directory && file(&proc.join("exe")) == own {
            return true;
        }
        let environment = fs::read(proc.join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| {
            let given = variable.strip_prefix(b"SSNTP_DIR=");
            given.is_some_and(|given| is_instance(Path::new(OsStr::from_bytes(given))))
        })
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        (pid != getpid() && is_left(&entry.path())).then_some(pid)
    });
    pids.collect()
}
