//! Room for twice as many sessions, where a number of them is asked for that
//! memory maps are too few for: threads without signal stacks.
//!
//! The standard library makes no signal stacks in a process that has SIGSEGV
//! and SIGBUS ignored from its start. There is no safe call that ignores a
//! signal, and the shell, which every Unix has, does nothing else here:
//!
//! ```text
//!  ssntp server ── exec ─▶ /bin/sh: trap '' SEGV BUS ── exec ─▶ ssntp server
//!                     one process id, the same arguments
//! ```
//!
//! * It costs the message of a stack overflow, "thread … has overflowed its
//!   stack". The process is killed all the same, as by every fault of its
//!   own: the kernel lets nobody ignore those.
//! * Children inherit what is ignored. So this is for servers, which have
//!   none, and never for an agent, whose instances are not to know of it.

use std::env;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use log::warn;
use ssntp::transport::{default_max_handshakes, more_without_signal_stacks};

/// What the shell does, to the program that is its `$0`.
const SCRIPT: &str = r#"trap '' SEGV BUS; exec "$0" "$@""#;

/// Names the process that was started again. It is one and the same through
/// every exec, and a child of it is another.
const MARK: &str = "SSNTP_STARTED_AGAIN";

/// Starts this process again, once, without signal stacks, where a number of
/// sessions is asked for and they are in its way. Returns where they are not,
/// and where it is not to be done: the server then says what it lacks.
///
/// Nothing of the process survives it: to be called before anything has
/// started.
pub(crate) fn drop_where_needed(sessions: Option<u32>) {
    let Some(sessions) = sessions else { return };
    let this = std::process::id().to_string();
    if env::var_os(MARK).is_some_and(|mark| mark == *this)
        || !more_without_signal_stacks(sessions as usize, default_max_handshakes())
    {
        return;
    }
    let Some(program) = this_program() else { return };
    let failed = Command::new("/bin/sh")
        .args(["-c", SCRIPT])
        .arg(program)
        .args(env::args_os().skip(1))
        .env(MARK, this)
        .exec();
    warn!("/bin/sh: {failed}: half of the memory maps are for signal stacks");
}

/// Where this program is, if it is still there and was started by itself: of one
/// that a dynamic loader was told to run, the loader is what runs.
fn this_program() -> Option<PathBuf> {
    let shown = fs::read("/proc/self/cmdline").ok()?;
    let mut words = shown.split_inclusive(|byte| *byte == 0);
    let alike = env::args_os().all(|word| {
        let shown = words.next().and_then(|shown| shown.strip_suffix(&[0]));
        shown == Some(word.as_bytes())
    });
    if !alike || words.next().is_some() {
        return None;
    }
    let path = env::current_exe().ok()?;
    let (there, running) = (fs::metadata(&path).ok()?, fs::metadata("/proc/self/exe").ok()?);
    (there.dev() == running.dev() && there.ino() == running.ino()).then_some(path)
}
