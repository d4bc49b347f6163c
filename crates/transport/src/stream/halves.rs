//! The two directions of a stream, one for each of its two threads.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::buffers::{Borrowed, BufferPool};
use super::codec::Inbox;
use super::outgoing::Outgoing;
use crate::host::{deadline, left};
use crate::socket::{Duplex, WriteHalf, is_timeout};

/// The receiving direction. One thread owns it.
pub trait Receive: Send + fmt::Debug {
    /// Blocks until bytes have been appended to `inbox` or the stream ends. Bytes that the
    /// handshake has already taken off the socket come first, without waiting.
    ///
    /// # Errors
    /// The error of the stream or of TLS. An end without TLS's close_notify is `UnexpectedEof`.
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<Received>;
}

/// The result of [`Receive::receive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The peer has ended its side.
    pub end: bool,
    /// There are bytes for the socket that only the sending direction may send:
    /// [`Transmit::flush`] has to be called.
    pub flush: bool,
}

/// The sending direction. Only its holder writes to the socket.
///
/// An implementation that keeps no bytes between two calls, and leaves everything to the writer,
/// needs only [`transmit`](Self::transmit).
pub trait Transmit: Send + fmt::Debug {
    /// Sends all items of `batch` in order, after the rest of an earlier item, in as few writes as
    /// possible. Blocks until the system has taken all of it.
    ///
    /// # Errors
    /// The error of the stream or of TLS, including the write timeout.
    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()>;

    /// Sends as much of one short item as the system takes without blocking, and gives buffers
    /// back. An error of the stream is left to the next call.
    fn try_transmit(&mut self, item: &Outgoing) -> Tried {
        let _ = item;
        Tried::Not
    }

    /// Sends the rest of an item, and the bytes that the receiving direction left for the socket.
    ///
    /// # Errors
    /// As [`transmit`](Self::transmit).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Tells the peer of the end of this side.
    ///
    /// # Errors
    /// As [`transmit`](Self::transmit).
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// From now on, adds the number of bytes that the system takes to `written`, also of an item that it
    /// takes in part. Default: not counted, so progress is measured by whole items.
    fn count_in(&mut self, written: Arc<AtomicU64>) {
        let _ = written;
    }

    /// As [`Duplex::allow_unsent`]. Default: no effect.
    fn allow_unsent(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Gives buffers back, because there is nothing to send at present.
    fn idle(&mut self) {}
}

/// The longest item that the dispatcher sends instead of the writer: two TLS records. The writer sends longer
/// ones, so that the dispatcher can do other work meanwhile.
pub(crate) const AT_ONCE: usize = 32 * 1024;

/// The result of [`Transmit::try_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// The system has taken all of the item.
    Sent,
    /// The system has taken a part. The rest is sent before the next item.
    Begun,
    /// Nothing was sent: the item is too long, other bytes have to go first, or the receiving
    /// direction holds the lock.
    Not,
    /// The stream is broken, and nothing more can be sent.
    Failed,
}

/// Both directions of one stream.
#[derive(Debug)]
pub struct Halves {
    /// The raw stream, to shut it down.
    pub stream: Arc<dyn Duplex>,
    /// The receiving direction, which the reader thread owns.
    pub receive: Box<dyn Receive>,
    /// The sending direction, for the writer or a thread that sends in its place.
    pub transmit: Box<dyn Transmit>,
    /// The received bytes that are not decoded yet.
    pub inbox: Inbox,
}

impl Halves {
    /// Receives once, before the deadline, and sends the bytes that receiving caused. Blocks.
    ///
    /// # Errors
    /// `TimedOut` at the deadline, else as [`Receive::receive`] and [`Transmit::flush`].
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
                // After a TLS error there is an alert to send. The error is reported even if
                // the alert cannot be sent.
                let _ = self.transmit.flush();
                Err(e)
            }
        }
    }
}

/// Tells the peer why there is no session, ends the stream, and waits at most `linger` for the peer
/// to read the answer. Blocks.
pub fn refuse(halves: &mut Halves, answer: Option<Outgoing>, linger: Duration) {
    let _ = halves.stream.set_write_timeout(Some(linger));
    if let Some(answer) = answer {
        let _ = halves.transmit.transmit(&[answer]);
    }
    let _ = halves.transmit.finish();
    drain(&*halves.stream, linger);
}

/// Reads until the peer ends its side, for at most `linger`: closing a socket that holds unread
/// input would destroy data that is on its way to the peer. Blocks.
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
            buffer: Borrowed::from(pool.clone()),
        }),
        transmit: Box::new(PlainTransmit {
            stream: WriteHalf::new(Arc::clone(&stream)),
            buffer: Borrowed::from(pool.clone()),
        }),
        stream,
        inbox: Inbox::new(pool),
    }
}

#[derive(Debug)]
struct PlainReceive {
    stream: Arc<dyn Duplex>,
    /// Held while the stream is busy.
    buffer: Borrowed,
}

impl Receive for PlainReceive {
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<Received> {
        if self.buffer.held().is_none() {
            inbox.release();
            self.stream.wait_readable()?;
        }
        let buffer = self.buffer.get();
        let most = buffer.len().min(inbox.most);
        let buffer = &mut buffer[..most];
        let read = self.stream.try_read(buffer);
        if let Ok(n) = read {
            inbox.append(&buffer[..n], n);
        }
        // A full buffer means that there are likely more bytes.
        if !matches!(read, Ok(n) if n == buffer.len()) {
            self.buffer.release();
        }
        match read {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Received::default()),
            Err(e) => Err(e),
            Ok(n) => Ok(Received {
                end: n == 0,
                flush: false,
            }),
        }
    }
}

#[derive(Debug)]
struct PlainTransmit {
    stream: WriteHalf,
    buffer: Borrowed,
}

impl Transmit for PlainTransmit {
    fn try_transmit(&mut self, item: &Outgoing) -> Tried {
        if item.len() > AT_ONCE || self.stream.has_rest() {
            return Tried::Not;
        }
        item.parts().for_each(|part| self.stream.write_now(part));
        if self.stream.has_rest() {
            Tried::Begun
        } else {
            Tried::Sent
        }
    }

    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()> {
        self.stream.write_rest()?;
        let buffer = self.buffer.get();
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
        self.stream.write_rest()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stream.write_rest()?;
        self.stream.finish()
    }

    fn count_in(&mut self, written: Arc<AtomicU64>) {
        self.stream.count_in(written);
    }

    fn allow_unsent(&mut self, bytes: u64) {
        self.stream.allow_unsent(bytes);
    }

    fn idle(&mut self) {
        self.buffer.release();
    }
}
