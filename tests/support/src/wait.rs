//! Waits for what no channel reports: files, processes, pages of another program.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use crate::LIMIT;

/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Calls `look` until it returns a value. As long as there is none, `look` returns what it has seen, with which
/// this fails at twice the [time limit](LIMIT) of a single wait.
#[track_caller]
pub fn wait_for<T, Seen: Debug>(mut look: impl FnMut() -> Result<T, Seen>) -> T {
    let deadline = Instant::now() + 2 * LIMIT;
    loop {
        match look() {
            Ok(value) => return value,
            Err(seen) => assert!(Instant::now() < deadline, "waited in vain; seen last: {seen:?}"),
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until a condition is true.
#[track_caller]
pub fn until(mut is_so: impl FnMut() -> bool) {
    wait_for(|| if is_so() { Ok(()) } else { Err("it is not so") });
}
