//! The reader thread of a link: it receives and decodes, and closes the link at the end.

use std::io;
use std::sync::Arc;

use super::incoming::{Incoming, LAST_WRITE, LastWrites, Next, end_reason};
use super::writer::Writer;
use crate::end::EndReason;
use crate::guard::guard;
use crate::host::now;
use crate::outbox::Outbox;
use crate::socket::Duplex;
use crate::stream::{Decode, Receive};

/// The receiver of a link's items and events. The reader thread makes all calls. Only the function that
/// [`room`](Self::room) returns is called by the writer thread.
pub trait Sink<I>: Send + 'static {
    /// Receives items in the order of the stream, with the number of bytes that were received since the last
    /// call. It may block; then the socket fills and the peer cannot send more. False ends the link.
    fn items(&mut self, items: &mut Vec<I>, bytes: usize) -> bool;

    /// Returns the maximum number of bytes of the next read. `held` bytes of an item have arrived, and
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

    /// Returns a function that the writer thread calls when the queue has room again, if that was
    /// requested, and when a write fails, so that no sender waits for room in vain.
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
        let found =
            guard(|| self.read()).unwrap_or_else(|_| EndReason::Io(io::Error::other("the reader panicked")));
        self.end(found);
    }

    /// Ends the link after the last read.
    #[inline(never)]
    fn end(&mut self, found: EndReason) {
        let reason = end_reason(&self.outbox, found);
        let lost = reason.is_loss();
        self.sink.ended(reason);
        if !lost {
            // The peer may read no more, so the last writes have a short limit.
            let _ = self.stream.set_write_timeout(Some(LAST_WRITE));
            // A long item may have set one, with which a pause of the peer would end `drain`.
            let _ = self.stream.set_read_timeout(None);
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

    /// Receives until the link ends. Not inlined, because an idle link blocks in this stack frame, and a
    /// small one keeps the memory of an idle link low.
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
