//! The names and stacks of the crate's threads.

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
    start(name, FULL_STACK, body)
}

/// A thread that is joined when this is dropped. The fields of a struct are dropped in their
/// order, so the field that ends the thread, such as the sender of its jobs, has to precede this.
#[derive(Debug, Default)]
pub struct Joined(Option<JoinHandle<()>>);

/// Starts a thread as [`spawn`] does. Dropping the result blocks until the thread has ended.
pub fn joined(name: impl Into<String>, body: impl FnOnce() + Send + 'static) -> io::Result<Joined> {
    Ok(Joined(Some(spawn(name, body)?)))
}

/// As [`joined`], with a small stack.
pub(crate) fn joined_small(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<Joined> {
    Ok(Joined(Some(spawn_small(name, body)?)))
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic has been logged by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Starts a thread with a small stack, for one direction of a link.
pub(crate) fn spawn_small(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    start(name, SMALL_STACK, body)
}

fn start<T: Send + 'static>(
    name: impl Into<String>,
    stack: usize,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).stack_size(stack).spawn(body)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    struct Owner {
        _jobs: Sender<()>,
        _thread: Joined,
    }

    #[test]
    fn dropping_an_owner_joins_its_thread() {
        let (jobs, given) = channel();
        let (ending, ended) = channel();
        let body = move || {
            given.into_iter().for_each(drop);
            ending.send(()).unwrap();
        };
        let owner = Owner {
            _jobs: jobs,
            _thread: joined("t", body).unwrap(),
        };
        drop(owner);
        assert_eq!(ended.try_recv(), Ok(()));
    }
}
