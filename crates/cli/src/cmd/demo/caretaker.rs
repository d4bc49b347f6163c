//! `ssntp caretaker`: waits until a demo has ended, and removes what is left
//! of it.
//!
//! ```text
//!  demo ──── pipe ────▶ caretaker      the demo ends in any way: the pipe does, too
//!   │                       │
//!   └ scheduler, agents ◀───┤ SIGKILL
//!       └ workloads ◀───────┤ SIGKILL
//!   directory ◀─────────────┘ removed
//! ```
//!
//! A demo that ends in order has removed all of it by then. One that is killed
//! by SIGKILL can't, and neither its children nor their workloads, which
//! outlive agents on purpose, would end by themselves.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process};

use super::now;
use super::processes::{Processes, end_of, pause};
use crate::failure::Failure;

/// How long killed processes may take to be gone.
const END: Duration = Duration::from_secs(5);

/// Wait for the end of a demo, and remove what is left of it
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The demo's directory
    directory: PathBuf,
}

/// The process that waits for the end of this one. Dropping it waits for its
/// end in turn, so that nothing is left of that either.
pub(super) struct Caretaker(Child);

impl Caretaker {
    pub(super) fn start(directory: &Path) -> Result<Self, Failure> {
        // Of a group of its own, so that no Ctrl-C ends it, and elsewhere, so
        // that it does not find itself.
        let child = Command::new(Processes::program()?)
            .arg("caretaker")
            .arg(directory)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child
            .map(Self)
            .map_err(|e| Failure::new(format!("cannot start the caretaker: {e}")))
    }
}

impl Drop for Caretaker {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = end_of(&mut self.0, now() + 2 * END);
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // Nothing is ever written: what ends is the pipe.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    if !args.directory.exists() {
        return Ok(());
    }
    end_all(|| [programs_in(&args.directory), instances_below(&args.directory)].concat());
    fs::remove_dir_all(&args.directory)
        .map_err(|e| Failure::new(format!("{}: {e}", args.directory.display())))
}

/// Kills what our agents have started in a directory. Gives how many there
/// were at first.
pub(super) fn end_instances(directory: &Path) -> usize {
    end_all(|| instances_below(directory))
}

fn end_all(find: impl Fn() -> Vec<Pid>) -> usize {
    let mut left = find();
    let first = left.len();
    let deadline: Instant = now() + END;
    while !left.is_empty() && now() < deadline {
        for pid in left {
            let _ = kill_process(pid, Signal::KILL);
        }
        pause();
        left = find();
    }
    first
}

/// The processes of this program that run in a directory: a demo's children.
fn programs_in(directory: &Path) -> Vec<Pid> {
    let Ok(own) = fs::metadata("/proc/self/exe") else {
        return Vec::new();
    };
    processes(|proc| {
        // The same file, even where it was replaced since.
        let same =
            fs::metadata(proc.join("exe")).is_ok_and(|exe| (exe.dev(), exe.ino()) == (own.dev(), own.ino()));
        same && fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd == directory)
    })
}

/// The processes that belong to an instance in a directory: they run there, or
/// were given its directory by the agent.
fn instances_below(directory: &Path) -> Vec<Pid> {
    let is_place = |path: &Path| {
        let below = path.strip_prefix(directory);
        below.is_ok_and(|place| place.components().any(|part| part.as_os_str() == "instances"))
    };
    processes(|proc| {
        if fs::read_link(proc.join("cwd")).is_ok_and(|cwd| is_place(&cwd)) {
            return true;
        }
        let environment = fs::read(proc.join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| {
            let place = variable.strip_prefix(b"SSNTP_DIR=");
            place.is_some_and(|place| is_place(Path::new(OsStr::from_bytes(place))))
        })
    })
}

/// The processes of which that holds, without this one.
fn processes(which: impl Fn(&Path) -> bool) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse::<i32>().ok()?)?;
        (pid != getpid() && which(&entry.path())).then_some(pid)
    });
    pids.collect()
}
