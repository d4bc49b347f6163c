//! The receiving direction: records are opened as they arrive.

use std::io;
use std::sync::Arc;

use super::split::Opener;
use crate::socket::Duplex;
use crate::stream::{Borrowed, BufferPool, Inbox, Receive, Received};

/// Received ciphertext that is not opened yet, in a borrowed buffer while there is any.
#[derive(Debug)]
pub(super) struct Incoming {
    buffer: Borrowed,
    start: usize,
    end: usize,
    /// A part of a record, in exactly its own memory while the stream waits for the peer.
    part: Vec<u8>,
    /// True if the last read filled the buffer, so that there are likely more bytes.
    more: bool,
}

impl Incoming {
    pub(super) fn new(pool: BufferPool) -> Self {
        Self {
            buffer: Borrowed::from(pool),
            start: 0,
            end: 0,
            part: Vec::new(),
            more: false,
        }
    }

    /// Gives the buffer back before the stream waits for the peer.
    fn release(&mut self) {
        if let Some(buffer) = self.buffer.held() {
            self.part.extend_from_slice(&buffer[self.start..self.end]);
            (self.start, self.end) = (0, 0);
            self.buffer.release();
        }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Opens every complete record.
    pub(super) fn open(&mut self, opener: &mut Opener, inbox: &mut Inbox) -> io::Result<()> {
        let bytes = self.buffer.held().unwrap_or_default();
        let bytes = &mut bytes[self.start..self.end];
        self.start += opener.open(bytes, inbox)?;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            if !self.more {
                self.buffer.release();
            }
        }
        Ok(())
    }

    /// Reads at most `most` bytes. Blocks unless `ready` is set, which means that bytes have arrived.
    pub(super) fn read(&mut self, stream: &dyn Duplex, ready: bool, most: usize) -> io::Result<usize> {
        let buffer = self.buffer.get();
        if self.start > 0 {
            buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        // The part that was kept while the stream waited without a buffer.
        if !self.part.is_empty() {
            self.end = self.part.len();
            buffer[..self.end].copy_from_slice(&std::mem::take(&mut self.part));
        }
        // There is always room: the buffer holds less than one record, a record is at most a fifth
        // of the buffer, and the header of a longer one is refused.
        let room = &mut buffer[self.end..];
        let most = room.len().min(most);
        let room = &mut room[..most];
        let n = if ready {
            stream.try_read(room)?
        } else {
            stream.read(room)?
        };
        self.more = n == room.len();
        self.end += n;
        Ok(n)
    }
}

#[derive(Debug)]
pub(super) struct TlsReceive {
    pub(super) stream: Arc<dyn Duplex>,
    pub(super) opener: Opener,
    pub(super) incoming: Incoming,
}

impl TlsReceive {
    /// Opens the records that have arrived. Not inlined: an idle reader sleeps in the caller, and
    /// would keep the stack that opening takes.
    #[inline(never)]
    fn open(&mut self, inbox: &mut Inbox) -> io::Result<Received> {
        self.incoming.open(&mut self.opener, inbox)?;
        self.opener.noted()
    }
}

impl Receive for TlsReceive {
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<Received> {
        let before = inbox.bytes.len();
        // The last read of the handshake may have brought records that follow it. They are opened
        // before any wait, because the peer may send no more.
        let first = if self.incoming.is_empty() {
            self.opener.noted()?
        } else {
            self.open(inbox)?
        };
        if first.end || first.flush || inbox.bytes.len() > before {
            return Ok(first);
        }
        if self.incoming.buffer.held().is_some() && self.incoming.more {
            match self.incoming.read(&*self.stream, true, inbox.most) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return self.open(inbox),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.incoming.more = false,
                Err(e) => return Err(e),
            }
        }
        // A stream waits for bytes without a buffer.
        self.incoming.release();
        inbox.release();
        self.stream.wait_readable()?;
        match self.incoming.read(&*self.stream, true, inbox.most) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => self.open(inbox),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Received::default()),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
#[cfg(feature = "issue")]
mod tests {
    use std::time::Duration;

    use super::super::testing::{Ends, ends};
    use super::*;
    use crate::socket::is_timeout;

    #[test]
    fn pending_bytes_are_reported_to_the_writer_once() {
        let Ends {
            here: stream,
            opener,
            incoming,
            mut inbox,
            peer: _peer,
            ..
        } = ends();
        // An alert that waits for the writer, as rustls makes it when it
        // refuses to renegotiate in TLS 1.2.
        opener.hold().pending = vec![0; 31];
        let mut receive = TlsReceive {
            stream: Arc::clone(&stream),
            opener,
            incoming,
        };
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert!(receive.receive(&mut inbox).unwrap().flush);
        let again = receive.receive(&mut inbox);
        assert!(again.is_err_and(|e| is_timeout(&e)), "the writer sends the alert");
    }
}
