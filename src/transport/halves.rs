//! The two directions of a stream as its two threads see them.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;

use super::duplex::write_all;
use super::outbox::Outgoing;
use super::{BufferPool, Duplex, Inbox};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The peer is done; nothing more will come.
    pub end: bool,
    /// There are bytes for the socket that only the writer may send:
    /// [`Transmit::flush`] has to be called.
    pub flush: bool,
}

/// The sending direction. One thread owns it, and it alone writes to the
/// socket.
pub trait Transmit: Send + fmt::Debug {
    /// Sends everything in `batch` in order, in as few writes as it can.
    /// Blocks until the system has taken all of it.
    ///
    /// # Errors
    /// What the stream or TLS says, the write timeout included.
    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()>;

    /// Sends what the receiving side left for the socket.
    ///
    /// # Errors
    /// As [`transmit`](Self::transmit).
    fn flush(&mut self) -> io::Result<()>;

    /// Tells the peer that nothing more will come.
    ///
    /// # Errors
    /// As [`transmit`](Self::transmit).
    fn finish(&mut self) -> io::Result<()>;

    /// Gives buffers back: nothing is to be sent for now.
    fn idle(&mut self);
}

/// Both directions of one stream.
#[derive(Debug)]
pub struct Halves {
    /// The raw stream, to shut it down.
    pub stream: Arc<dyn Duplex>,
    /// What the reader thread owns.
    pub receive: Box<dyn Receive>,
    /// What the writer thread owns.
    pub transmit: Box<dyn Transmit>,
    /// What has been received and not decoded yet.
    pub inbox: Inbox,
    /// Whether what is sent goes to the stream as it is, so that a thread other
    /// than the writer may put it there too.
    pub in_clear: bool,
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
            stream: Arc::clone(&stream),
            pool: pool.clone(),
            buffer: None,
        }),
        stream,
        inbox: Inbox::new(pool),
        in_clear: true,
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
                return Ok(Received {
                    end: false,
                    flush: false,
                });
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
    stream: Arc<dyn Duplex>,
    pool: BufferPool,
    buffer: Option<Box<[u8]>>,
}

impl Transmit for PlainTransmit {
    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()> {
        let buffer = self.buffer.get_or_insert_with(|| self.pool.take());
        let mut used = 0;
        for part in batch.iter().flat_map(Outgoing::parts) {
            if part.len() > buffer.len() - used {
                write_all(&*self.stream, &buffer[..used])?;
                used = 0;
            }
            if part.len() > buffer.len() {
                write_all(&*self.stream, part)?;
            } else {
                buffer[used..used + part.len()].copy_from_slice(part);
                used += part.len();
            }
        }
        write_all(&*self.stream, &buffer[..used])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    fn idle(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give(buffer);
        }
    }
}
