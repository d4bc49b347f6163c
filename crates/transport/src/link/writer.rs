//! The writer thread of a link: it sends what its outbox holds.

use std::io;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::outbox::{Due, Outbox};
use crate::socket::{Duplex, is_timeout};
use crate::stream::Outgoing;

/// The writer's handle, which the reader takes at its end. If no reader could be started,
/// the thread that tried to start it takes the handle.
pub(super) type WriterHandle = Arc<Mutex<Option<JoinHandle<()>>>>;

pub(super) fn lock(writer: &WriterHandle) -> MutexGuard<'_, Option<JoinHandle<()>>> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn join(writer: &WriterHandle) {
    let handle = lock(writer).take();
    if let Some(handle) = handle {
        // A panic has been logged by the panic hook.
        let _ = handle.join();
    }
}

pub(super) fn write(outbox: &Outbox, stream: &dyn Duplex, linger: Duration, room: &dyn Fn()) {
    let sent = Sent(outbox);
    let result = catch_unwind(AssertUnwindSafe(|| write_until_over(outbox, room)))
        .unwrap_or_else(|_| Err(io::Error::other("the writer panicked")));
    if let Err(e) = &result {
        fail(outbox, stream, e);
        room();
    }
    // Buffers and keys go back before the wait below.
    drop(sent);
    if let Ok(End::Drained) = result {
        // Until the reader has seen the end of the peer's side.
        outbox.wait_until_over(linger);
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn fail(outbox: &Outbox, stream: &dyn Duplex, error: &io::Error) {
    outbox.fail(if is_timeout(error) {
        io::Error::new(io::ErrorKind::TimedOut, "the peer takes no data")
    } else {
        io::Error::new(error.kind(), error.to_string())
    });
    let _ = stream.shutdown(Shutdown::Both);
}

/// Tells that the writer has sent its last byte, even if it panics.
struct Sent<'a>(&'a Outbox);

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.0.shut();
        // After a failure nothing is drained, and this changes nothing.
        self.0.drained();
    }
}

enum End {
    /// Everything is sent, and the peer has been told of the end.
    Drained,
    /// The link ended, so nothing more is sent.
    Over,
}

fn write_until_over(outbox: &Outbox, room: &dyn Fn()) -> io::Result<End> {
    let mut batch: Vec<Outgoing> = Vec::new();
    loop {
        let mut next = Some(outbox.next(&mut batch));
        // The whole queue is sent before the thread sleeps again.
        while let Some(due) = next {
            if due.over {
                return Ok(End::Over);
            }
            if send(outbox, due, &mut batch, room)? {
                return Ok(End::Drained);
            }
            next = outbox.try_next(&mut batch);
        }
        outbox.idle();
        // An idle thread keeps memory for one item at most.
        batch.shrink_to(1);
    }
}

/// Not inlined into its caller, so that an idle thread uses little stack.
#[inline(never)]
fn send(outbox: &Outbox, due: Due, batch: &mut Vec<Outgoing>, room: &dyn Fn()) -> io::Result<bool> {
    outbox.send(due, batch, room)
}
