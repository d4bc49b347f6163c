//! Ends a wait of one thread from another thread.
//!
//! ```text
//!  waiting thread                          any thread
//!  watch(stream) ── registers ──▶ ┌───────┐
//!  poll(socket, pipe)             │Cancel │ ◀── cancel(): shuts the stream down,
//!  select!(…, done())             └───────┘      drops the pipe, ends done()
//! ```

use std::convert::Infallible;
use std::io::{self, PipeReader, PipeWriter};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::duplex::Duplex;
use crate::host::locked;

/// Ends the wait of one thread: for a connection attempt, a handshake or a pause. Cancelling is
/// final.
///
/// # Threads
/// A clone is another handle. One thread at a time waits with it; any thread may
/// [`cancel`](Self::cancel), which does not block.
#[derive(Clone, Debug)]
pub struct Cancel {
    state: Arc<Mutex<CancelState>>,
    done: Receiver<Infallible>,
}

#[derive(Debug)]
struct CancelState {
    /// `None` once cancelled: dropping it disconnects `done`.
    open: Option<Sender<Infallible>>,
    awaited: Option<Awaited>,
}

/// The object in which the thread waits. Ending the object wakes the thread.
#[derive(Debug)]
enum Awaited {
    Stream(Arc<dyn Duplex>),
    Pipe(#[expect(dead_code, reason = "dropping it wakes the reader")] PipeWriter),
}

impl Default for Cancel {
    fn default() -> Self {
        Self::new()
    }
}

impl Cancel {
    /// A handle that is not cancelled.
    pub fn new() -> Self {
        let (open, done) = crossbeam_channel::bounded(0);
        let state = CancelState {
            open: Some(open),
            awaited: None,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            done,
        }
    }

    /// Ends the present wait and every later one.
    pub fn cancel(&self) {
        let mut state = self.lock();
        state.open = None;
        if let Some(Awaited::Stream(stream)) = state.awaited.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// True if it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.lock().open.is_none()
    }

    /// A channel without messages, which is disconnected once this is cancelled, for `select!`.
    pub fn done(&self) -> &Receiver<Infallible> {
        &self.done
    }

    /// Waits for `time`. False at once if it is cancelled.
    pub fn pause(&self, time: Duration) -> bool {
        matches!(self.done.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }

    /// Shuts `stream` down if this is cancelled while the guard lives.
    pub fn watch(&self, stream: &Arc<dyn Duplex>) -> CancelWatch<'_> {
        self.register(Awaited::Stream(Arc::clone(stream)))
    }

    /// A pipe that ends if this is cancelled while the guard lives, for `poll` together with a
    /// socket.
    pub(crate) fn pipe(&self) -> io::Result<(PipeReader, CancelWatch<'_>)> {
        let (reader, writer) = io::pipe()?;
        Ok((reader, self.register(Awaited::Pipe(writer))))
    }

    fn register(&self, awaited: Awaited) -> CancelWatch<'_> {
        let mut state = self.lock();
        if state.open.is_some() {
            state.awaited = Some(awaited);
        // Cancelled before: the wait must end at once. A pipe ends by its drop.
        } else if let Awaited::Stream(stream) = awaited {
            let _ = stream.shutdown(Shutdown::Both);
        }
        CancelWatch { cancel: self }
    }

    fn lock(&self) -> MutexGuard<'_, CancelState> {
        locked(&self.state)
    }
}

/// The error of a cancelled attempt.
pub(crate) fn cancelled_error() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "cancelled")
}

/// The registration of an object with a [`Cancel`], which ends the object. Dropping this removes the registration.
#[derive(Debug)]
pub struct CancelWatch<'a> {
    cancel: &'a Cancel,
}

impl Drop for CancelWatch<'_> {
    fn drop(&mut self) {
        self.cancel.lock().awaited = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::threads;
    use crate::socket::memory;

    #[test]
    fn a_watched_stream_ends_and_an_unwatched_one_does_not() {
        let cancel = Cancel::new();
        let (a, b) = memory::pair();
        let (a, b): (Arc<dyn Duplex>, Arc<dyn Duplex>) = (Arc::new(a), Arc::new(b));
        drop(cancel.watch(&b));
        let _watch = cancel.watch(&a);
        let reader = Arc::clone(&a);
        let thread = threads::spawn("t", move || reader.read(&mut [0; 1])).unwrap();
        cancel.cancel();
        assert_eq!(thread.join().unwrap().unwrap(), 0);
        assert!(cancel.is_cancelled());
    }

    #[test]
    fn no_wait_begins_after_a_cancel() {
        let cancel = Cancel::new();
        assert!(cancel.pause(Duration::from_millis(1)));
        cancel.cancel();
        assert!(!cancel.pause(Duration::from_secs(60)));
        let (a, _b) = memory::pair();
        let a: Arc<dyn Duplex> = Arc::new(a);
        let _watch = cancel.watch(&a);
        assert_eq!(a.read(&mut [0; 1]).unwrap(), 0);
        let (pipe, _watch) = cancel.pipe().unwrap();
        assert_eq!(io::Read::read(&mut &pipe, &mut [0; 1]).unwrap(), 0);
    }
}
