//! The sending direction: data is staged, sealed and written.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;

use super::RECORD;
use super::session::{Seal, Sealed, Session, Shared, Step, Tools, lock};
use crate::transport::duplex::{try_write_all, write_all};
use crate::transport::halves::{AT_ONCE, Tried};
use crate::transport::{BufferPool, Duplex, Outgoing, Transmit};

pub(super) struct TlsTransmit {
    pub(super) stream: Arc<dyn Duplex>,
    pub(super) session: Shared,
    pub(super) pool: BufferPool,
    /// The first record's length is staging, the rest ciphertext.
    pub(super) buffer: Option<Box<[u8]>>,
    /// Ciphertext of what was begun.
    pub(super) rest: Vec<u8>,
}

impl fmt::Debug for TlsTransmit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsTransmit")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

/// Room that one sealed record needs: its data, header, tag and padding
/// byte, or a key update before it.
const SEALED: usize = RECORD + 256;

/// Seals `data` into `out`. Returns the length, and what the reading side left
/// before that: it has to be sent first.
///
/// # Errors
/// What TLS says, and `BrokenPipe` where it takes no data any more.
fn seal(session: &mut Session, data: Sealed<'_>, out: &mut [u8]) -> io::Result<(usize, Vec<u8>)> {
    let is_data = matches!(data, Sealed::Data(_));
    let mut tools = Tools {
        inbox: None,
        seal: Some(Seal {
            data,
            out,
            written: 0,
        }),
    };
    loop {
        match session.step(&mut [], &mut tools).1 {
            Ok(Step::Again) => {}
            Ok(Step::Idle) => break,
            Err(e) => return Err(io::Error::new(io::ErrorKind::InvalidData, e)),
        }
    }
    let written = tools.seal.map_or(0, |seal| seal.written);
    if is_data && written == 0 {
        return Err(io::Error::new(io::ErrorKind::BrokenPipe, "TLS has ended"));
    }
    // Taken before the reader can add records that come after it.
    Ok((written, session.take_pending()))
}

/// Cuts parts into the data of records, all but the last of them full. What
/// lies in one part is not copied.
fn each_record<'a>(
    parts: impl Iterator<Item = &'a [u8]>,
    staging: &mut [u8],
    mut send: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut parts = parts.peekable();
    let mut staged = 0;
    while let Some(mut part) = parts.next() {
        let last = parts.peek().is_none();
        while !part.is_empty() {
            if staged == 0 && (last || part.len() >= RECORD) {
                let (record, rest) = part.split_at(part.len().min(RECORD));
                send(record)?;
                part = rest;
                continue;
            }
            let n = part.len().min(RECORD - staged);
            staging[staged..staged + n].copy_from_slice(&part[..n]);
            staged += n;
            part = &part[n..];
            if staged == RECORD {
                send(staging)?;
                staged = 0;
            }
        }
    }
    if staged > 0 {
        send(&staging[..staged])?;
    }
    Ok(())
}

impl TlsTransmit {
    /// Takes the buffer, in two: where short parts become a record, and where
    /// sealed ones wait for the socket.
    fn take_buffer(&mut self) -> Box<[u8]> {
        self.buffer.take().unwrap_or_else(|| self.pool.take())
    }

    fn send_rest(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.rest);
        write_all(&*self.stream, &rest)
    }

    /// Seals a short item and sends what the system takes of it; the rest of
    /// it stays.
    fn begin(&mut self, item: &Outgoing, buffer: &mut [u8]) -> Tried {
        let (staging, out) = buffer.split_at_mut(RECORD);
        // The reader has it while it opens a record.
        let Ok(mut session) = self.session.try_lock() else {
            return Tried::Not;
        };
        let (mut used, mut sealed) = (0, 0);
        let result = each_record(item.parts(), staging, |data| {
            let (written, pending) = seal(&mut session, Sealed::Data(data), &mut out[used..])?;
            sealed += written;
            if !pending.is_empty() {
                self.rest.extend_from_slice(&out[..used]);
                self.rest.extend_from_slice(&pending);
                out.copy_within(used..used + written, 0);
                used = 0;
            }
            used += written;
            Ok(())
        });
        drop(session);
        match result {
            Ok(()) => {}
            // The writer meets the same fault.
            Err(_) if sealed == 0 => return Tried::Not,
            // The peer would miss a record.
            Err(_) => return Tried::Failed,
        }
        let sent = if self.rest.is_empty() {
            try_write_all(&*self.stream, &out[..used])
        } else {
            0
        };
        self.rest.extend_from_slice(&out[sent..used]);
        if self.rest.is_empty() {
            Tried::Sent
        } else {
            Tried::Begun
        }
    }
}

impl Transmit for TlsTransmit {
    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()> {
        self.send_rest()?;
        let mut buffer = self.take_buffer();
        let (staging, out) = buffer.split_at_mut(RECORD);
        let mut used = 0;
        each_record(batch.iter().flat_map(Outgoing::parts), staging, |data| {
            if out.len() - used < SEALED {
                write_all(&*self.stream, &out[..used])?;
                used = 0;
            }
            let mut session = lock(&self.session)?;
            let (written, pending) = seal(&mut session, Sealed::Data(data), &mut out[used..])?;
            drop(session);
            if !pending.is_empty() {
                write_all(&*self.stream, &out[..used])?;
                write_all(&*self.stream, &pending)?;
                out.copy_within(used..used + written, 0);
                used = 0;
            }
            used += written;
            Ok(())
        })?;
        write_all(&*self.stream, &out[..used])?;
        self.buffer = Some(buffer);
        Ok(())
    }

    fn try_transmit(&mut self, item: &Outgoing) -> Tried {
        if item.len() > AT_ONCE || !self.rest.is_empty() {
            return Tried::Not;
        }
        let mut buffer = self.take_buffer();
        let tried = self.begin(item, &mut buffer);
        self.pool.give(buffer);
        tried
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_rest()?;
        let pending = lock(&self.session)?.take_pending();
        write_all(&*self.stream, &pending)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.send_rest()?;
        let mut out = [0; 512];
        let mut session = lock(&self.session)?;
        let (written, pending) = match seal(&mut session, Sealed::CloseNotify, &mut out) {
            Ok(sealed) => sealed,
            // What the reading side had to say of it is told all the same.
            Err(_) => (0, session.take_pending()),
        };
        drop(session);
        write_all(&*self.stream, &pending)?;
        write_all(&*self.stream, &out[..written])?;
        self.stream.shutdown(Shutdown::Write)
    }

    fn idle(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give(buffer);
        }
    }
}

impl Drop for TlsTransmit {
    fn drop(&mut self) {
        self.idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_full_records_and_whole_ones_are_not_copied() {
        let bytes: Vec<u8> = (0..100_000u32).map(|n| n.to_le_bytes()[1]).collect();
        for lengths in [
            &[100_000][..],
            &[10, 90_000, 9990],
            &[16_384, 16_384],
            &[8, 100, 8, 16_268, 1],
            &[40_000, 5],
            &[],
        ] {
            let (mut at, mut parts) = (0, Vec::new());
            for len in lengths {
                parts.push(&bytes[at..at + len]);
                at += len;
            }
            let mut staging = vec![0; RECORD];
            let (mut got, mut records) = (Vec::new(), Vec::new());
            let result = each_record(parts.iter().copied(), &mut staging, |record| {
                records.push(record.len());
                got.extend_from_slice(record);
                Ok(())
            });
            result.unwrap();
            assert!(got == bytes[..at], "{lengths:?}");
            let (last, full) = records.split_last().unwrap_or((&0, &[]));
            assert!(full.iter().all(|len| *len == RECORD), "{records:?}");
            assert!(*last <= RECORD && (*last > 0 || lengths.is_empty()));
            if let [_] = lengths {
                assert!(staging.iter().all(|byte| *byte == 0), "{lengths:?} was copied");
            }
        }
    }

    #[cfg(all(feature = "issue", any(feature = "aws-lc-rs", feature = "ring")))]
    #[test]
    fn what_goes_out_at_once_comes_after_what_the_reader_left_and_waits_for_nobody() {
        use std::sync::Mutex;

        use super::super::testing::{Ends, ends};
        use crate::transport::threads;

        let Ends {
            here,
            session,
            there,
            mut peer,
            ..
        } = ends();
        let mut transmit = TlsTransmit {
            stream: here,
            session: Arc::new(Mutex::new(session)),
            pool: BufferPool::new(),
            buffer: None,
            rest: Vec::new(),
        };
        let item = |len: usize| Outgoing::whole(vec![7; len].into(), 1);
        assert_eq!(transmit.try_transmit(&item(AT_ONCE + 1)), Tried::Not, "too long");
        let session = Arc::clone(&transmit.session);
        let opening = session.lock().unwrap();
        assert_eq!(transmit.try_transmit(&item(1)), Tried::Not, "the reader opens");
        drop(opening);
        assert_eq!(transmit.try_transmit(&item(AT_ONCE)), Tried::Sent);
        while peer.inbox.bytes_mut().len() < AT_ONCE {
            peer.receive.receive(&mut peer.inbox).unwrap();
        }

        session.lock().unwrap().pending = b"left by the reader".to_vec();
        assert_eq!(transmit.try_transmit(&item(20_000)), Tried::Begun);
        assert_eq!(transmit.try_transmit(&item(1)), Tried::Not, "something is begun");
        transmit.flush().unwrap();
        let mut first = [0; 18];
        assert_eq!(there.read(&mut first).unwrap(), first.len());
        assert_eq!(first, *b"left by the reader");
        assert_eq!(transmit.try_transmit(&item(1)), Tried::Sent);
        peer.inbox.bytes_mut().clear();
        while peer.inbox.bytes_mut().len() < 20_001 {
            peer.receive.receive(&mut peer.inbox).unwrap();
        }

        // What does not fit waits, and goes before what comes later.
        let mut sent = 0;
        while transmit.try_transmit(&item(30_000)) == Tried::Sent {
            sent += 30_000;
        }
        let last = threads::spawn("last", move || transmit.transmit(&[item(1)]));
        peer.inbox.bytes_mut().clear();
        while peer.inbox.bytes_mut().len() < sent + 30_001 {
            peer.receive.receive(&mut peer.inbox).unwrap();
        }
        last.unwrap().join().unwrap().unwrap();
        assert!(peer.inbox.bytes_mut().iter().all(|byte| *byte == 7));
    }
}
