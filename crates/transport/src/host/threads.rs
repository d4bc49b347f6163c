//! Names and stacks of the crate's threads.

use std::io;
use std::thread::{Builder, JoinHandle};

/// The stack of a session's reader and writer. They have no large arrays on it; a TLS record
/// and a log line need some 20 KiB in a debug build. Untouched stack costs address space
/// only.
const SMALL_STACK: usize = 128 * 1024;

/// The stack of threads that run TLS handshakes or an application's code.
const FULL_STACK: usize = 2 * 1024 * 1024;

/// Starts a thread with a full stack, for handshakes and application code.
/// Linux shows the first 15 bytes of the name.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new()
        .name(name.into())
        .stack_size(FULL_STACK)
        .spawn(body)
}

/// Starts a thread with a small stack, for one direction of a link.
pub(crate) fn spawn_small<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new()
        .name(name.into())
        .stack_size(SMALL_STACK)
        .spawn(body)
}
