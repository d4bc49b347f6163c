//! The writer thread of a link: it sends what its outbox holds.

use std::io;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::outbox::{Due, Outbox};
use crate::socket::duplex::{Duplex, is_timeout};
use crate::stream::outgoing::Outgoing;

/// The writer's handle, which the reader takes at its end. Where no reader could
/// be started, whoever tried to does.
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

/// Says that the writer has sent its last byte, also where it panics.
struct Sent<'a>(&'a Outbox);

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.0.shut();
        // After a failure nothing is drained, and this changes nothing.
        self.0.drained();
    }
}

enum End {
    /// Everything is sent, and the peer has been told.
    Drained,
    /// Nothing is to be sent any more.
    Over,
}

fn write_until_over(outbox: &Outbox, room: &dyn Fn()) -> io::Result<End> {
    let mut batch: Vec<Outgoing> = Vec::new();
    loop {
        let mut next = Some(outbox.next(&mut batch));
        // Everything that waits goes out before the thread sleeps again.
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
        // An idle thread keeps room for an item at most.
        batch.shrink_to(1);
    }
}

/// Not part of its caller, so that what an idle thread has on its stack stays
/// small.
#[inline(never)]
fn send(outbox: &Outbox, due: Due, batch: &mut Vec<Outgoing>, room: &dyn Fn()) -> io::Result<bool> {
    outbox.send(due, batch, room)
}
