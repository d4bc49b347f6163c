//! Settings of the C library's allocator that make it return freed memory to the system.
//!
//! By default the allocator keeps the memory of a wave of frames, in one arena for each few
//! threads, and raises the block size above which it returns memory: docs/performance.md has
//! figures. It reads its settings from the environment before `main`, so a daemon replaces its
//! own process by one with these settings.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

const SETTINGS: [(&str, &str); 2] = [
    // In bytes. A block of this size or larger is mapped, and returned as soon as it is freed.
    // Buffers of received frames have 80 KiB and must not be mapped one by one: with 64 KiB here,
    // eight busy senders had a third of the throughput.
    ("MALLOC_MMAP_THRESHOLD_", "131072"),
    // An arena may have as many free bytes at its end. A busy queue is filled and emptied by a megabyte
    // or two at a time: with 128 KiB here, eight busy senders caused ten times the page faults, and
    // a frame cost up to an eighth more of the processor.
    ("MALLOC_TRIM_THRESHOLD_", "2097152"),
];
/// For all threads together. Policy that was replaced leaves gaps, which are filled again only by threads
/// of the same arena: after six reloads of 13.5 MB an OpFlex server had 170 MiB with this, and 305 without.
const ONE_ARENA: (&str, &str) = ("MALLOC_ARENA_MAX", "1");

/// Starts the program once more with the settings, unless one of them is in the environment.
/// If that fails, the program continues with the allocator's defaults.
pub(crate) fn give_back(holds_policy: bool) {
    // The second start finds the variables set, so it does not start a third one.
    let is_set = SETTINGS.iter().any(|(name, _)| env::var_os(name).is_some());
    let Ok(program) = env::current_exe() else { return };
    if is_set || cfg!(not(target_env = "gnu")) {
        return;
    }
    let mut words = env::args_os();
    let mut again = Command::new(program);
    // The program keeps the name by which it was called, so that `ps` shows that name.
    if let Some(name) = words.next() {
        again.arg0(name);
    }
    // `exec` returns only if it fails.
    let _ = again
        .args(words)
        .envs(SETTINGS)
        .envs(holds_policy.then_some(ONE_ARENA))
        .exec();
}
