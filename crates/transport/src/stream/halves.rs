//! The two directions of a stream as its two threads see them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::host::deadline::{deadline, left};
use crate::socket::duplex::{Duplex, WriteHalf, is_timeout};
use crate::stream::buffers::BufferPool;
use crate::stream::codec::Inbox;
use crate::stream::outgoing::Outgoing;

/// The receiving direction. One thread owns it.
pub trait Receive: Send + fmt::Debug {
    /// Blocks until bytes have been appended to `inbox` or the stream ends.
    /// What an earlier stage already took off the socket comes first, without
    /// waiting.
    ///
    /// # Errors
    /// What the stream or TLS says; an end without TLS's close_notify is
    /// `UnexpectedEof`.
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<Received>;
}

/// What [`Receive::receive`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The peer is done; nothing more will come.
    pub end: bool,
    /// There are bytes for the socket that only the sending direction may send:
    /// [`Transmit::flush`] has to be called.
    pub flush: bool,
}

/// The sending direction. Whoever has it writes to the socket, and nobody
/// else does.
pub trait Transmit: Send + fmt::Debug {
    /// Sends everything in `batch` in order, in as few writes as it can, after
    /// the rest of what was begun before. Blocks until the system has taken all
    /// of it.
    ///
    /// # Errors
    /// What the stream or TLS says, the write timeout included.
    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()>;

    /// Sends as much of one short item as the system takes without waiting, and
    /// gives buffers back. Waits for nobody. A fault of the stream is left to the
    /// next call.
    fn try_transmit(&mut self, item: &Outgoing) -> Tried;

    /// Sends the rest of what was begun, and what the receiving side left for
    /// the socket.
    ///
    /// # Errors
    /// As [`transmit`](Self::transmit).
    fn flush(&mut self) -> io::Result<()>;

    /// Tells the peer that nothing more will come.
    ///
    /// # Errors
    /// As [`transmit`](Self::transmit).
    fn finish(&mut self) -> io::Result<()>;

    /// Counts what the system takes from now on, as it takes it: the bytes of a
    /// long item before it has all of them. What does not count is judged by
    /// whole items.
    fn count_in(&mut self, written: Arc<AtomicU64>) {
        let _ = written;
    }

    /// Gives buffers back: nothing is to be sent for now.
    fn idle(&mut self);
}

/// The longest item that is sent at once: what two TLS records hold. More is
/// better sent by the writer, while other threads do other things.
pub(crate) const AT_ONCE: usize = 32 * 1024;

/// What [`Transmit::try_transmit`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// The system has all of the item.
    Sent,
    /// The rest of it goes before whatever is sent next.
    Begun,
    /// Nothing: it is too long, or something is to be sent before it, or the
    /// other direction is busy.
    Not,
    /// It has broken the stream: nothing more can be sent.
    Failed,
}

/// Both directions of one stream.
#[derive(Debug)]
pub struct Halves {
    /// The raw stream, to shut it down.
    pub stream: Arc<dyn Duplex>,
    /// What the reader thread owns.
    pub receive: Box<dyn Receive>,
    /// The sending direction: the writer's, or that of who sends in its place.
    pub transmit: Box<dyn Transmit>,
    /// What has been received and not decoded yet.
    pub inbox: Inbox,
}

impl Halves {
    /// Receives once, before the deadline, and sends what that calls for. Blocks.
    ///
    /// # Errors
    /// `TimedOut` at the deadline, else as [`Receive::receive`] and
    /// [`Transmit::flush`].
    pub fn receive_until(&mut self, deadline: Instant) -> io::Result<Received> {
        self.stream.set_read_timeout(Some(left(deadline)?))?;
        match self.receive.receive(&mut self.inbox) {
            Ok(received) => {
                if received.flush {
                    self.transmit.flush()?;
                }
                Ok(received)
            }
            Err(e) if is_timeout(&e) => Err(io::ErrorKind::TimedOut.into()),
            Err(e) => {
                // A fault of TLS has an alert to send; the rest is best effort.
                let _ = self.transmit.flush();
                Err(e)
            }
        }
    }
}

/// Tells the peer why there will be no session, ends the stream, and lets the
/// peer read what it was told, for `linger` at most. Blocks for that.
pub fn refuse(halves: &mut Halves, answer: Option<Outgoing>, linger: Duration) {
    let _ = halves.stream.set_write_timeout(Some(linger));
    if let Some(answer) = answer {
        let _ = halves.transmit.transmit(&[answer]);
    }
    let _ = halves.transmit.finish();
    drain(&*halves.stream, linger);
}

/// Reads until the peer ends its side, for `linger` at most: closing a socket
/// that holds unread input would destroy what is on its way to the peer.
pub fn drain(stream: &dyn Duplex, linger: Duration) {
    let end = deadline(linger);
    let mut scratch = [0; 4096];
    while let Ok(left) = left(end)
        && stream.set_read_timeout(Some(left)).is_ok()
        && matches!(stream.read(&mut scratch), Ok(n) if n > 0)
    {}
}

/// Both directions of `stream` in clear.
pub fn plain(stream: Arc<dyn Duplex>, pool: BufferPool) -> Halves {
    Halves {
        receive: Box::new(PlainReceive {
            stream: Arc::clone(&stream),
            pool: pool.clone(),
            buffer: None,
        }),
        transmit: Box::new(PlainTransmit {
            stream: WriteHalf::new(Arc::clone(&stream)),
            pool: pool.clone(),
            buffer: None,
            rest: Vec::new(),
        }),
        stream,
        inbox: Inbox::new(pool),
    }
}

#[derive(Debug)]
struct PlainReceive {
    stream: Arc<dyn Duplex>,
    pool: BufferPool,
    /// Held while the stream is busy.
    buffer: Option<Box<[u8]>>,
}

impl Receive for PlainReceive {
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<Received> {
        let mut buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => {
                inbox.release();
                self.stream.wait_readable()?;
                self.pool.take()
            }
        };
        let read = self.stream.try_read(&mut buffer);
        let n = match read {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.pool.give(buffer);
                return Ok(Received::default());
            }
            Err(e) => {
                self.pool.give(buffer);
                return Err(e);
            }
            Ok(n) => n,
        };
        inbox.append(&buffer[..n], n);
        // A full buffer means that more is likely there.
        if n == buffer.len() {
            self.buffer = Some(buffer);
        } else {
            self.pool.give(buffer);
        }
        Ok(Received {
            end: n == 0,
            flush: false,
        })
    }
}

#[derive(Debug)]
struct PlainTransmit {
    stream: WriteHalf,
    pool: BufferPool,
    buffer: Option<Box<[u8]>>,
    /// What was begun and is not sent.
    rest: Vec<u8>,
}

impl PlainTransmit {
    fn send_rest(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.rest);
        self.stream.write_all(&rest)
    }
}

impl Transmit for PlainTransmit {
    fn try_transmit(&mut self, item: &Outgoing) -> Tried {
        if item.len() > AT_ONCE || !self.rest.is_empty() {
            return Tried::Not;
        }
        for part in item.parts() {
            let sent = match self.rest.is_empty() {
                true => self.stream.try_write_all(part),
                false => 0,
            };
            self.rest.extend_from_slice(&part[sent..]);
        }
        match self.rest.is_empty() {
            true => Tried::Sent,
            false => Tried::Begun,
        }
    }

    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()> {
        self.send_rest()?;
        let buffer = self.buffer.get_or_insert_with(|| self.pool.take());
        let mut used = 0;
        for part in batch.iter().flat_map(Outgoing::parts) {
            if part.len() > buffer.len() - used {
                self.stream.write_all(&buffer[..used])?;
                used = 0;
            }
            if part.len() > buffer.len() {
                self.stream.write_all(part)?;
            } else {
                buffer[used..used + part.len()].copy_from_slice(part);
                used += part.len();
            }
        }
        self.stream.write_all(&buffer[..used])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_rest()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.send_rest()?;
        self.stream.finish()
    }

    fn count_in(&mut self, written: Arc<AtomicU64>) {
        self.stream.count_in(written);
    }

    fn idle(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give(buffer);
        }
    }
}
