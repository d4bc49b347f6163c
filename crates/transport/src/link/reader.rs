//! The reader thread of a link: it receives, decodes, and brings the link to its end.

use std::io;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::writer::{WriterHandle, join};
use crate::end::EndReason;
use crate::flow::OWN;
use crate::outbox::Outbox;
use crate::socket::{Duplex, is_timeout};
use crate::stream::{Decode, Inbox, Receive};

/// The receiver of a link's items and events. All calls come from the reader thread, except
/// for those of [`room`](Self::room).
pub trait Sink<I>: Send + 'static {
    /// Takes items in the order of the stream, and how many bytes were received for them.
    /// It may block: then the peer's socket fills, and the peer has to wait. False ends the
    /// link.
    fn items(&mut self, items: &mut Vec<I>, bytes: usize) -> bool;

    /// Asks how many bytes the next read may bring at most: `held` bytes of an item are here,
    /// and it has `wanted` bytes in all, or 0 if that is not known. It may block until there
    /// is memory for the item.
    ///
    /// # Errors
    /// Why the link has to end.
    fn unfinished(&mut self, held: usize, wanted: usize) -> Result<usize, EndReason> {
        let _ = (held, wanted);
        Ok(usize::MAX)
    }

    /// Tells that no further items will come. The link may still send its queue.
    fn ended(&mut self, reason: EndReason);

    /// Tells that both threads are about to end, so that joining the link takes no time.
    fn finished(&mut self);

    /// A function that the writer thread calls when the outbox has room, if it was asked to
    /// tell, and when writing fails, since then no sender needs to wait for room.
    fn room(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| ())
    }
}

/// How often an unfinished item is looked at while its peer is silent.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Reader<D, S> {
    pub(super) stream: Arc<dyn Duplex>,
    /// How long the peer may be silent in the middle of a long item.
    pub(super) silence: Option<Duration>,
    /// Whether more of an item is awaited than each connection has memory for.
    pub(super) is_long: bool,
    pub(super) receive: Box<dyn Receive>,
    pub(super) inbox: Inbox,
    pub(super) decoder: D,
    pub(super) outbox: Outbox,
    pub(super) sink: S,
}

/// How long a write may wait without progress once the peer has ended its side or broken
/// the protocol. A write that is under way keeps its own limit.
const LAST_WRITE: Duration = Duration::from_secs(1);

impl<D: Decode, S: Sink<D::Item>> Reader<D, S> {
    pub(super) fn run(&mut self, writer: &WriterHandle) {
        // A panic ends this link only, and its owner is told.
        let found = catch_unwind(AssertUnwindSafe(|| self.read()))
            .unwrap_or_else(|_| EndReason::Io(io::Error::other("the reader panicked")));
        self.end(found, writer);
    }

    /// Brings the link to its end after the last read.
    #[inline(never)]
    fn end(&mut self, found: EndReason, writer: &WriterHandle) {
        let reason = match (self.outbox.failure(), found) {
            (Some(error), _) => EndReason::Io(error),
            (None, found @ (EndReason::Protocol(_) | EndReason::Memory(_))) => found,
            (None, _) if self.outbox.is_closed() => EndReason::Local,
            (None, found) => found,
        };
        // After a lost connection the rest cannot be sent. But if TLS refused a record,
        // there is an alert to send.
        let lost = matches!(&reason, EndReason::Io(e) if e.kind() != io::ErrorKind::InvalidData);
        self.sink.ended(reason);
        if lost || self.outbox.is_over() {
            self.outbox.abort();
        } else {
            let _ = self.stream.set_write_timeout(Some(LAST_WRITE));
            self.outbox.close();
            self.drain();
            self.wait_for_writer();
            self.outbox.abort();
        }
        let _ = self.stream.shutdown(Shutdown::Both);
        join(writer);
        self.outbox.discard();
        self.sink.finished();
    }

    /// Blocks here while the stream is idle. Not inlined: this stack frame and those below
    /// it are the stack of an idle session's reader.
    #[inline(never)]
    fn read(&mut self) -> EndReason {
        let mut items = Vec::new();
        let mut counted = self.inbox.bytes.len();
        let mut end = false;
        let mut fault = None;
        let mut silent = Duration::ZERO;
        loop {
            let before = self.inbox.bytes.len();
            let decoded = self.decoder.decode(&mut self.inbox.bytes, &mut items);
            if !items.is_empty() || counted > 0 && before > self.inbox.bytes.len() {
                let bytes = std::mem::take(&mut counted);
                if !self.sink.items(&mut items, bytes) {
                    return EndReason::Local;
                }
                items.clear();
            }
            if let Err(fault) = decoded {
                return EndReason::Protocol(Box::new(fault));
            }
            if let Some(e) = fault {
                return EndReason::Io(e);
            }
            if end {
                return if self.inbox.is_empty() {
                    EndReason::PeerClosed
                } else {
                    EndReason::Truncated
                };
            }
            let held = self.inbox.bytes.len();
            if let Err(end) = self.mind_unfinished(held, silent) {
                return end;
            }
            let received = self.receive.receive(&mut self.inbox);
            counted += self.inbox.bytes.len() - held;
            match received {
                Ok(received) => {
                    silent = Duration::ZERO;
                    end = received.end;
                    if received.flush {
                        self.outbox.flush();
                    }
                }
                Err(e) if self.is_long && is_timeout(&e) => silent += self.look(),
                // The bytes before the error are delivered first.
                Err(e) => fault = Some(e),
            }
        }
    }

    /// Reserves memory for a long unfinished item and limits its time: its peer may be silent
    /// for as long as a write may take. Short items have no limit, because they hold little
    /// memory.
    fn mind_unfinished(&mut self, held: usize, silent: Duration) -> Result<(), EndReason> {
        let wanted = self.decoder.wanted();
        self.inbox.most = self.sink.unfinished(held, wanted)?;
        // Reserved by now, so this much may be allocated.
        self.inbox.wanted = wanted;
        let is_long = held.max(wanted) > OWN;
        if std::mem::replace(&mut self.is_long, is_long) != is_long {
            // If the timeout cannot be set, the stream is broken, and the next read fails.
            let _ = self.stream.set_read_timeout(is_long.then(|| self.look()));
        }
        if self.silence.is_some_and(|limit| is_long && silent >= limit) {
            let why = format!("a frame did not come to its end, {held} bytes of it are here");
            return Err(EndReason::Protocol(why.into()));
        }
        Ok(())
    }

    fn look(&self) -> Duration {
        self.silence.map_or(LOOK, |limit| limit.min(LOOK))
    }

    /// Reads and drops further input until the peer ends its side, or the writer has
    /// lingered long enough and shuts the stream down.
    fn drain(&self) {
        let mut scratch = [0; 1024];
        while matches!(self.stream.read(&mut scratch), Ok(n) if n > 0) {}
    }

    /// Waits until the writer has sent everything, as long as it makes progress: a peer that
    /// has ended its side may still receive.
    fn wait_for_writer(&self) {
        let mut before = self.outbox.progress();
        while !self.outbox.wait_until_drained(LAST_WRITE) {
            let now = self.outbox.progress();
            if now == before {
                return;
            }
            before = now;
        }
    }
}
