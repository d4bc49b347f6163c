//! The sending direction: data is staged, sealed and written.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;

use super::RECORD;
use super::session::{Seal, Sealed, Shared, Step, Tools, lock};
use crate::transport::duplex::write_all;
use crate::transport::{BufferPool, Duplex, Outgoing, Transmit};

pub(super) struct TlsTransmit {
    pub(super) stream: Arc<dyn Duplex>,
    pub(super) session: Shared,
    pub(super) pool: BufferPool,
    /// The first record's length is staging, the rest ciphertext.
    pub(super) buffer: Option<Box<[u8]>>,
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

impl TlsTransmit {
    /// Seals `data` into `out` behind what is there, sending first what is
    /// in the way: earlier records, and what the reading side left.
    fn seal(&self, data: Sealed<'_>, out: &mut [u8], used: &mut usize) -> io::Result<()> {
        if out.len() - *used < SEALED {
            write_all(&*self.stream, &out[..*used])?;
            *used = 0;
        }
        let mut session = lock(&self.session)?;
        let mut tools = Tools {
            inbox: None,
            seal: Some(Seal {
                data,
                out: &mut out[*used..],
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
        let pending = session.take_pending();
        drop(session);
        if !pending.is_empty() {
            // It was made before this record, and its order is kept by
            // sending everything older first.
            write_all(&*self.stream, &out[..*used])?;
            write_all(&*self.stream, &pending)?;
            out.copy_within(*used..*used + written, 0);
            *used = 0;
        }
        *used += written;
        Ok(())
    }
}

impl Transmit for TlsTransmit {
    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()> {
        let mut buffer = self.buffer.take().unwrap_or_else(|| self.pool.take());
        let (staging, out) = buffer.split_at_mut(RECORD);
        let (mut staged, mut used) = (0, 0);
        for mut part in batch.iter().flat_map(Outgoing::parts) {
            while !part.is_empty() {
                if staged == 0 && part.len() >= RECORD {
                    let (record, rest) = part.split_at(RECORD);
                    self.seal(Sealed::Data(record), out, &mut used)?;
                    part = rest;
                    continue;
                }
                let n = part.len().min(RECORD - staged);
                staging[staged..staged + n].copy_from_slice(&part[..n]);
                staged += n;
                part = &part[n..];
                if staged == RECORD {
                    self.seal(Sealed::Data(staging), out, &mut used)?;
                    staged = 0;
                }
            }
        }
        if staged > 0 {
            self.seal(Sealed::Data(&staging[..staged]), out, &mut used)?;
        }
        write_all(&*self.stream, &out[..used])?;
        self.buffer = Some(buffer);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let pending = lock(&self.session)?.take_pending();
        write_all(&*self.stream, &pending)
    }

    fn finish(&mut self) -> io::Result<()> {
        let mut out = [0; 512];
        let mut tools = Tools {
            inbox: None,
            seal: Some(Seal {
                data: Sealed::CloseNotify,
                out: &mut out,
                written: 0,
            }),
        };
        let (pending, written) = {
            let mut session = lock(&self.session)?;
            while let (_, Ok(Step::Again)) = session.step(&mut [], &mut tools) {}
            // Taken before the reader can add records that come after it.
            (session.take_pending(), tools.seal.map_or(0, |seal| seal.written))
        };
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
