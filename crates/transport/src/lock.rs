//! A lock on a directory or file that one process at a time may use.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// How long another user of the file may take to end: a former process that is being stopped,
/// or a child between its fork and its exec, which holds what its parent had open.
const ENDING: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// Locks an open directory or file for this process, or says that another user, such as
/// "another agent", has it. The lock ends when the file is closed, so a process that is
/// killed leaves none behind. Blocks for at most two seconds.
///
/// # Errors
/// Somebody else has the lock; or the file system has no locks.
pub fn lock(file: &File, other: &str) -> io::Result<()> {
    for _ in 0..ENDING.as_millis() / PAUSE.as_millis() {
        match flock(file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let _ = crossbeam_channel::after(PAUSE).recv();
            }
            result => return result,
        }
    }
    let text = format!("{other} uses it, also after {} s", ENDING.as_secs());
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
