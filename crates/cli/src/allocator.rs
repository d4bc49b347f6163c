//! The C library's allocator, told to give memory back.
//!
//! It keeps what a wave of frames took, in one arena for each few threads, and raises the
//! length from which on memory goes back to the system: docs/performance.md has figures. It
//! reads its settings from the environment before `main`, so a daemon starts once more with
//! them, in the same process.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Blocks of this size or larger are mapped, and go back as soon as they are free; and as much may
/// be free at the end of an arena. Buffers of received frames have 80 KiB and must not be
/// mapped one by one: with 64 KiB here, eight busy senders had a third of the throughput.
const THRESHOLD: &str = "131072";

const SETTINGS: [&str; 2] = ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"];

/// Starts the program once more, unless one of the settings is there. Goes on with the
/// allocator as it is if that fails.
pub(crate) fn give_back() {
    // The second start finds the variables set, so it does not start a third one.
    let is_set = SETTINGS.iter().any(|name| env::var_os(name).is_some());
    let Ok(program) = env::current_exe() else { return };
    if is_set || cfg!(not(target_env = "gnu")) {
        return;
    }
    let mut words = env::args_os();
    let mut again = Command::new(program);
    // The program keeps the name by which it was called, so that `ps` shows the same.
    if let Some(name) = words.next() {
        again.arg0(name);
    }
    // It returns only if it fails.
    let _ = again
        .args(words)
        .envs(SETTINGS.map(|name| (name, THRESHOLD)))
        .exec();
}
