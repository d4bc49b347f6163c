//! The receiving direction: records are opened as they arrive.

use std::io;
use std::sync::Arc;

use rustls::InvalidMessage;

use super::split::{Opener, invalid};
use crate::socket::Duplex;
use crate::stream::{Borrowed, BufferPool, Inbox, Receive, Received};

/// Received ciphertext that is not opened yet, in a borrowed buffer while there is any.
#[derive(Debug)]
pub(super) struct Ciphertext {
    buffer: Borrowed,
    start: usize,
    end: usize,
    /// A part of a record, in exactly its own memory while the stream waits for the peer.
    part: Vec<u8>,
    /// True if the last read filled the buffer, so that there are likely more bytes.
    more: bool,
}

impl Ciphertext {
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

    /// The bytes that are not opened yet.
    pub(super) fn unopened(&mut self) -> &[u8] {
        &self.buffer.held().unwrap_or_default()[self.start..self.end]
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

    /// Reads at most `most` bytes, without blocking: false if none have arrived.
    ///
    /// # Errors
    /// The error of the stream, `UnexpectedEof` at its end, or that of a handshake message in so many
    /// records that the buffer does not hold all of them.
    pub(super) fn read(&mut self, stream: &dyn Duplex, most: usize) -> io::Result<bool> {
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
        let room = &mut buffer[self.end..];
        // Of other records the buffer holds a part of one, which is at most a fifth of the buffer; the
        // header of a longer one is refused. But the records of a handshake message stay until all of them
        // have arrived, and each takes 22 bytes more than it brings.
        if room.is_empty() {
            return Err(invalid(InvalidMessage::HandshakePayloadTooLarge));
        }
        let most = room.len().min(most);
        let read = match stream.try_read(&mut room[..most]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
            read => read.unwrap_or_default(),
        };
        self.more = read == most;
        self.end += read;
        Ok(read > 0)
    }
}

#[derive(Debug)]
pub(super) struct TlsReceive {
    pub(super) stream: Arc<dyn Duplex>,
    pub(super) opener: Opener,
    pub(super) incoming: Ciphertext,
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
        loop {
            if self.incoming.buffer.held().is_none() || !self.incoming.more {
                // A stream waits for bytes without a buffer.
                self.incoming.release();
                inbox.release();
                self.stream.wait_readable()?;
            }
            if self.incoming.read(&*self.stream, inbox.most)? {
                return self.open(inbox);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::handshake::agree;
    use super::super::testing::{Ends, ends, server};
    use super::*;
    use crate::host::{deadline, threads};
    use crate::socket::{is_timeout, memory, write_all};

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

    #[test]
    fn a_handshake_message_in_too_many_records_is_refused_with_its_reason() {
        let (local, remote) = memory::pair();
        // The first record announces a ClientHello of 65,535 bytes; each brings one byte.
        let peer = threads::spawn("peer", move || {
            let record = |byte| [22, 3, 1, 0, 1, byte];
            let hello = [1, 0, 0xff, 0xff].into_iter().chain([0; 30_000]);
            let bytes: Vec<u8> = hello.flat_map(record).collect();
            // Until the server gives up.
            let _ = write_all(&remote, &bytes, |_| {});
            remote
        })
        .unwrap();
        let (mut sealer, mut opener) = server();
        let (mut incoming, mut inbox) = (Ciphertext::new(BufferPool::new()), Inbox::new(BufferPool::new()));
        let agreed = agree(
            &local,
            &mut sealer,
            &mut opener,
            &mut incoming,
            &mut inbox,
            deadline(Duration::from_secs(60)),
        );
        let error = agreed.err().unwrap().to_string();
        assert_eq!(
            error,
            "TLS: received corrupt message of type handshake payload too large"
        );
        drop(local);
        peer.join().unwrap();
    }
}
