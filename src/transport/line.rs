//! Sending past a writer that has nothing to do.
//!
//! Waking a thread costs more than the write that it is woken for. Whoever has
//! one item for a stream on which nothing waits and nothing is being written
//! may write it at once, as far as the system takes it without waiting:
//!
//! ```text
//!  Outbox::push_now(item)
//!     │ is the line free?  ── no ───▶ queue ──▶ writer
//!     │ yes
//!     ▼
//!  try_write ── all of it ──▶ done
//!     └ a part, or nothing ─▶ the rest stays on the line, the writer is woken
//!                             and sends it before anything else
//! ```
//!
//! The line is a lock that nobody waits for but the writer, and the writer
//! only for one write that does not block.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::Duplex;
use super::duplex::write_all;
use super::outbox::Outgoing;

/// The way to a stream in clear.
#[derive(Debug)]
pub(super) struct Line {
    stream: Arc<dyn Duplex>,
    rest: Mutex<Option<Rest>>,
}

/// What was begun and is not sent yet.
#[derive(Debug)]
pub(super) struct Rest {
    item: Outgoing,
    /// Bytes of it that are sent.
    sent: usize,
}

/// What became of an item.
#[derive(Debug)]
pub(super) enum Tried {
    /// The system has all of it.
    Sent,
    /// The writer has to send the rest.
    Begun,
    /// Somebody else is writing: the item is to be queued.
    Busy(Outgoing),
}

impl Line {
    pub(super) fn new(stream: Arc<dyn Duplex>) -> Self {
        Self {
            stream,
            rest: Mutex::new(None),
        }
    }

    /// Writes what can be written without waiting.
    pub(super) fn try_send(&self, item: Outgoing) -> Tried {
        let mut rest = match self.rest.try_lock() {
            Ok(rest) => rest,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Tried::Busy(item),
        };
        if rest.is_some() {
            return Tried::Busy(item);
        }
        let mut sent = 0;
        'parts: for part in item.parts() {
            let mut left = part;
            while !left.is_empty() {
                match self.stream.try_write(left) {
                    Ok(0) => break 'parts,
                    Ok(written) => left = &left[written..],
                    // The writer meets the same fault, and tells it.
                    Err(_) => {
                        sent += part.len() - left.len();
                        break 'parts;
                    }
                }
            }
            sent += part.len() - left.len();
        }
        if sent == item.len() {
            return Tried::Sent;
        }
        *rest = Some(Rest { item, sent });
        Tried::Begun
    }

    /// The line, for as long as the writer writes.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Rest>> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what was begun. Returns how many frames and bytes are done with.
    pub(super) fn finish(&self, rest: &mut Option<Rest>) -> io::Result<(u64, u64)> {
        let Some(begun) = rest else {
            return Ok((0, 0));
        };
        let mut skip = begun.sent;
        for part in begun.item.parts() {
            let done = skip.min(part.len());
            skip -= done;
            write_all(&*self.stream, &part[done..])?;
        }
        let done = (u64::from(begun.item.frames()), begun.item.len() as u64);
        *rest = None;
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory;
    use super::*;

    fn line() -> (Line, memory::MemoryStream) {
        let (near, far) = memory::pair();
        (Line::new(Arc::new(near)), far)
    }

    fn item(body: Vec<u8>) -> Outgoing {
        Outgoing::whole(body.into(), 1)
    }

    #[test]
    fn what_fits_goes_out_at_once() {
        let (line, far) = line();
        assert!(matches!(line.try_send(item(b"abc".to_vec())), Tried::Sent));
        let framed = Outgoing::framed(*b"12345678", b"body".to_vec().into());
        assert!(matches!(line.try_send(framed), Tried::Sent));
        let mut got = [0; 32];
        let mut held = 0;
        while held < 15 {
            held += far.read(&mut got[held..]).unwrap();
        }
        assert_eq!(&got[..held], b"abc12345678body");
    }

    #[test]
    fn what_does_not_fit_is_finished_by_the_writer_before_anything_else() {
        let (line, far) = line();
        let long: Vec<u8> = (0..4_000_000u32).map(|n| n.to_le_bytes()[0]).collect();
        assert!(matches!(line.try_send(item(long.clone())), Tried::Begun));
        // Later items keep their place.
        assert!(matches!(line.try_send(item(vec![7])), Tried::Busy(back) if back.len() == 1));
        let reader = crate::transport::threads::spawn("t", move || {
            let mut got = Vec::new();
            let mut buffer = vec![0; 65536];
            while got.len() < 4_000_000 {
                let n = far.read(&mut buffer).unwrap();
                got.extend_from_slice(&buffer[..n]);
            }
            got
        });
        let done = line.finish(&mut line.lock()).unwrap();
        assert_eq!(done, (1, 4_000_000));
        assert!(reader.unwrap().join().unwrap() == long);
        assert_eq!(line.finish(&mut line.lock()).unwrap(), (0, 0));
    }

    #[test]
    fn nothing_is_written_while_the_writer_writes() {
        let (line, _far) = line();
        let held = line.lock();
        assert!(matches!(line.try_send(item(vec![1])), Tried::Busy(_)));
        drop(held);
        assert!(matches!(line.try_send(item(vec![1])), Tried::Sent));
    }

    #[test]
    fn a_fault_is_left_to_the_writer() {
        let (line, far) = line();
        drop(far);
        assert!(matches!(line.try_send(item(vec![1])), Tried::Begun));
        assert!(line.finish(&mut line.lock()).is_err());
    }
}
