//! A lock on a directory or file that one process at a time may have.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::time::Duration;

use crate::host::{deadline, left};

/// The time that another user of the file has to end: a former process that is being stopped, or a
/// child between its fork and its exec, which holds the open files of its parent.
const ENDING: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// Locks an open directory or file for this process. The lock ends when the file is closed, so a
/// killed process leaves none. Blocks for at most two seconds.
///
/// # Errors
/// Another user has the lock, which the text calls `other`, such as "another agent"; or the file system
/// has no locks.
pub fn lock(file: &File, other: &str) -> io::Result<()> {
    lock_within(file, other, ENDING)
}

/// As [`lock`], but blocks for at most `limit`.
///
/// # Errors
/// As [`lock`].
pub fn lock_within(file: &File, other: &str, limit: Duration) -> io::Result<()> {
    let end = deadline(limit);
    // The system's lock has no time limit, so this polls.
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if left(end).is_ok() => {
                let _ = crossbeam_channel::after(PAUSE).recv();
            }
            Err(TryLockError::WouldBlock) => break,
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => return Ok(()),
        }
    }
    let text = format!("{other} uses it, also after {} s", limit.as_secs());
    Err(io::Error::new(ErrorKind::WouldBlock, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_owner_and_waits_for_one_that_ends() {
        let dir = tempfile::tempdir().unwrap();
        let open = || File::open(dir.path()).unwrap();
        let first = open();
        lock(&first, "another test").unwrap();
        let refused = lock(&open(), "another test").unwrap_err();
        assert_eq!(refused.to_string(), "another test uses it, also after 2 s");
        let other = open();
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| lock(&other, "another test"));
            drop(first);
            waiting.join()
        });
        waiting.unwrap().unwrap();
    }
}
