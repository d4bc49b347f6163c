//! The reader thread of a link: it receives, decodes, and brings the link to its end.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::incoming::{Incoming, LAST_WRITE, LastWrites, Next, end_reason};
use super::writer::Writer;
use crate::end::EndReason;
use crate::host::now;
use crate::outbox::Outbox;
use crate::socket::Duplex;
use crate::stream::{Decode, Receive};

/// The receiver of a link's items and events. All calls come from the reader thread, except
/// for those of [`room`](Self::room).
pub trait Sink<I>: Send + 'static {
    /// Receives items in the order of the stream, with the number of bytes that were received for
    /// them. May block: then the peer's socket fills, and the peer has to wait. False ends the
    /// link.
    fn items(&mut self, items: &mut Vec<I>, bytes: usize) -> bool;

    /// Returns how many bytes the next read may bring. `held` bytes of an item have arrived, and
    /// `wanted` is its whole length, or 0 if that is unknown. May block until there is memory for
    /// the item.
    ///
    /// # Errors
    /// The reason for which the link has to end.
    fn unfinished(&mut self, held: usize, wanted: usize) -> Result<usize, EndReason> {
        let _ = (held, wanted);
        Ok(usize::MAX)
    }

    /// Called when no further items will come. The link may still send its queue.
    fn ended(&mut self, reason: EndReason);

    /// Called when both threads are about to end, so that joining the link does not block.
    fn finished(&mut self);

    /// A function for the writer thread to call when a requested report of room is due, and when
    /// writing fails, because then no sender needs to wait for room.
    fn room(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| ())
    }
}

pub(super) struct Reader<D: Decode, S> {
    pub(super) stream: Arc<dyn Duplex>,
    pub(super) receive: Box<dyn Receive>,
    pub(super) incoming: Incoming<D>,
    pub(super) outbox: Outbox,
    pub(super) sink: S,
    pub(super) writer: Option<Writer>,
}

impl<D: Decode, S: Sink<D::Item>> Reader<D, S> {
    pub(super) fn run(&mut self) {
        // A panic ends this link only, and is reported as the reason.
        let found = catch_unwind(AssertUnwindSafe(|| self.read()))
            .unwrap_or_else(|_| EndReason::Io(io::Error::other("the reader panicked")));
        self.end(found);
    }

    /// Ends the link after the last read.
    #[inline(never)]
    fn end(&mut self, found: EndReason) {
        let reason = end_reason(&self.outbox, found);
        let lost = reason.is_loss();
        self.sink.ended(reason);
        if !lost {
            // The peer may receive no more, so further writes have a short limit.
            let _ = self.stream.set_write_timeout(Some(LAST_WRITE));
            self.outbox.close();
            self.drain();
            let mut last = LastWrites::begin(&self.outbox, now());
            while let Some(until) = last.look(&self.outbox, now()) {
                self.outbox
                    .wait_until_drained(until.saturating_duration_since(now()));
            }
        }
        self.writer = None;
        self.outbox.discard();
        self.sink.finished();
    }

    /// Receives until the end; blocks in it while the stream is idle. Not inlined: this stack frame
    /// and those below it are the stack of an idle session's reader.
    #[inline(never)]
    fn read(&mut self) -> EndReason {
        let mut items = Vec::new();
        loop {
            match self.incoming.next(&mut items) {
                Next::Hand(bytes) => {
                    if !self.sink.items(&mut items, bytes) {
                        return EndReason::Local;
                    }
                    items.clear();
                }
                Next::Receive { held, wanted } => {
                    let most = match self.sink.unfinished(held, wanted) {
                        Ok(most) => most,
                        Err(end) => return end,
                    };
                    if let Some(timeout) = self.incoming.allow(most) {
                        // If this fails, the stream is broken, and the next read fails.
                        let _ = self.stream.set_read_timeout(timeout);
                    }
                    if self.incoming.receive(&mut *self.receive) {
                        self.outbox.flush();
                    }
                }
                Next::End(found) => return found,
            }
        }
    }

    /// Reads and drops further input until the peer ends its side, or the writer shuts the stream
    /// down after its linger time.
    fn drain(&self) {
        let mut scratch = [0; 1024];
        while matches!(self.stream.read(&mut scratch), Ok(n) if n > 0) {}
    }
}
