//! The sending direction, which stages, seals and writes data.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::split::{OVERHEAD, RECORD, Sealed, Sealer};
use crate::socket::{Duplex, WriteHalf};
use crate::stream::{AT_ONCE, Borrowed, BufferPool, Outgoing, Transmit, Tried};

#[derive(Debug)]
pub(super) struct TlsTransmit {
    stream: WriteHalf,
    sealer: Sealer,
    /// The front part is for short pieces, which are staged into records. The rest is for sealed
    /// records that are to be written.
    buffer: Borrowed,
}

/// Cuts parts into the data of records, all of them full except for the last. Data of a record that
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
            // Most items are one part, so most data goes from the item into the cipher without a copy.
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
                send(&staging[..RECORD])?;
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
    pub(super) fn new(stream: Arc<dyn Duplex>, sealer: Sealer, pool: BufferPool) -> Self {
        Self {
            stream: WriteHalf::new(stream),
            sealer,
            buffer: Borrowed::from(pool),
        }
    }

    /// Seals a short item, writes as much of it as the system takes, and keeps the rest. The item is
    /// sealed under one lock, so that it is sealed as a whole or not at all.
    fn begin(&mut self, item: &Outgoing) -> Tried {
        let (staging, out) = self.buffer.get().split_at_mut(AT_ONCE);
        let data = in_one_piece(item, staging);
        // Nothing is sealed while the receiving half opens a record, nor after an error. Then the
        // writer sends the item, and gets the same error.
        let Ok(Some(Sealed { len, before })) = self.sealer.try_seal(data, out) else {
            return Tried::Not;
        };
        self.stream.write_now(&before);
        self.stream.write_now(&out[..len]);
        if self.stream.has_rest() {
            Tried::Begun
        } else {
            Tried::Sent
        }
    }
}

/// The bytes of an item, which are copied only if it has several parts. They must not be longer
/// than `staging`.
fn in_one_piece<'a>(item: &'a Outgoing, staging: &'a mut [u8]) -> &'a [u8] {
    let mut parts = item.parts();
    match (parts.next(), parts.next()) {
        (Some(part), None) => return part,
        (None, _) => return &[],
        _ => {}
    }
    let mut len = 0;
    for part in item.parts() {
        staging[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    &staging[..len]
}

impl Transmit for TlsTransmit {
    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()> {
        self.stream.write_rest()?;
        let (staging, out) = self.buffer.get().split_at_mut(RECORD);
        let mut used = 0;
        each_record(batch.iter().flat_map(Outgoing::parts), staging, |data| {
            // Several records share a write, which saves system calls.
            if out.len() - used < RECORD + OVERHEAD {
                self.stream.write_all(&out[..used])?;
                used = 0;
            }
            let sealed = self.sealer.seal(data, &mut out[used..])?;
            // An alert or a key update was sealed before this record, under the earlier key, so it has
            // to leave first.
            if !sealed.before.is_empty() {
                self.stream.write_all(&out[..used])?;
                self.stream.write_all(&sealed.before)?;
                out.copy_within(used..used + sealed.len, 0);
                used = 0;
            }
            used += sealed.len;
            Ok(())
        })?;
        self.stream.write_all(&out[..used])
    }

    fn try_transmit(&mut self, item: &Outgoing) -> Tried {
        if item.len() > AT_ONCE || self.stream.has_rest() {
            return Tried::Not;
        }
        let tried = self.begin(item);
        self.buffer.release();
        tried
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.write_rest()?;
        self.stream.write_all(&self.sealer.take_pending()?)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stream.write_rest()?;
        self.stream.write_all(&self.sealer.close_notify()?)?;
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
            let mut staging = vec![0; RECORD + 1];
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

    #[test]
    fn an_item_sent_at_once_follows_pending_bytes_and_never_blocks() {
        use super::super::testing::{Ends, ends};
        use crate::host::threads;

        let Ends {
            here,
            sealer,
            opener,
            there,
            mut peer,
            ..
        } = ends();
        let mut transmit = TlsTransmit::new(here, sealer, BufferPool::new());
        let item = |len: usize| Outgoing::whole(vec![7; len].into(), 1);
        assert_eq!(
            transmit.try_transmit(&item(AT_ONCE + 1)),
            Tried::Not,
            "the item is too long"
        );
        let opening = opener.hold();
        assert_eq!(
            transmit.try_transmit(&item(1)),
            Tried::Not,
            "the reader opens a record"
        );
        drop(opening);
        assert_eq!(transmit.try_transmit(&item(AT_ONCE)), Tried::Sent);
        while peer.inbox.bytes_mut().len() < AT_ONCE {
            peer.receive.receive(&mut peer.inbox).unwrap();
        }

        opener.hold().pending = b"left by the reader".to_vec();
        assert_eq!(transmit.try_transmit(&item(20_000)), Tried::Sent);
        let mut first = [0; 18];
        assert_eq!(there.read(&mut first).unwrap(), first.len());
        assert_eq!(first, *b"left by the reader");
        assert_eq!(transmit.try_transmit(&item(1)), Tried::Sent);
        peer.inbox.bytes_mut().clear();
        while peer.inbox.bytes_mut().len() < 20_001 {
            peer.receive.receive(&mut peer.inbox).unwrap();
        }

        // The rest that the stream did not take is sent before a later item.
        let mut sent = 0;
        while transmit.try_transmit(&item(30_000)) == Tried::Sent {
            sent += 30_000;
        }
        assert_eq!(
            transmit.try_transmit(&item(1)),
            Tried::Not,
            "the rest of an item waits"
        );
        let last = threads::spawn("last", move || transmit.transmit(&[item(1)]));
        peer.inbox.bytes_mut().clear();
        while peer.inbox.bytes_mut().len() < sent + 30_001 {
            peer.receive.receive(&mut peer.inbox).unwrap();
        }
        last.unwrap().join().unwrap().unwrap();
        assert!(peer.inbox.bytes_mut().iter().all(|byte| *byte == 7));
    }

    #[test]
    fn the_system_may_keep_more_for_a_session_over_tls() {
        use socket2::{Domain, Socket, Type};

        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_tcp_notsent_lowat(1).unwrap();
        let system = socket.try_clone().unwrap();
        let (sealer, _) = super::super::testing::server();
        TlsTransmit::new(Arc::new(socket), sealer, BufferPool::new()).allow_unsent(1000);
        assert_eq!(system.tcp_notsent_lowat().unwrap(), 1000);
    }
}
