//! Sending past a writer that has nothing to do.
//!
//! Waking a thread costs more than the write that it is woken for. Whoever has
//! one item for a stream on which nothing waits and nothing is being written
//! may send it at once, as far as the system takes it without waiting:
//!
//! ```text
//!  Outbox::push_now(item)
//!     │ is the line free, the item short?  ── no ───▶ queue ──▶ writer
//!     │ yes
//!     ▼
//!  Transmit::try_transmit ── all of it ──▶ done
//!     └ a part, or nothing ─▶ the rest stays with the line, the writer is
//!                             woken and sends it before anything else
//! ```
//!
//! The line is a lock on the sending direction. Nobody waits for it but the
//! writer, and the writer only while one item is sealed and written without
//! blocking.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::Transmit;
use super::halves::Tried;
use super::outbox::Outgoing;

/// The sending direction while a link runs.
#[derive(Debug, Default)]
pub(super) struct Line {
    sending: Mutex<Option<Sending>>,
}

#[derive(Debug)]
struct Sending {
    transmit: Box<dyn Transmit>,
    /// Frames and bytes of an item that was begun and is not sent yet.
    begun: Option<(u64, u64)>,
}

/// The line, for as long as the writer writes.
#[derive(Debug)]
pub(super) struct Held<'a>(MutexGuard<'a, Option<Sending>>);

impl Line {
    /// From now on items may be sent.
    pub(super) fn open(&self, transmit: Box<dyn Transmit>) {
        *self.lock() = Some(Sending {
            transmit,
            begun: None,
        });
    }

    /// Gives buffers and keys back; nothing will be sent any more.
    pub(super) fn close(&self) {
        let sending = self.lock().take();
        drop(sending);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sending>> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what can be sent without waiting.
    pub(super) fn try_send(&self, item: &Outgoing) -> Tried {
        let mut line = match self.sending.try_lock() {
            Ok(line) => line,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Tried::Not,
        };
        let Some(Sending {
            transmit,
            begun: begun @ None,
        }) = &mut *line
        else {
            return Tried::Not;
        };
        // A fault in one session is not to end the thread that serves all.
        let tried = catch_unwind(AssertUnwindSafe(|| transmit.try_transmit(item)));
        match tried {
            Ok(Tried::Begun) => *begun = Some((u64::from(item.frames()), item.len() as u64)),
            Ok(Tried::Sent | Tried::Not) => {}
            // The writer finds nothing to send with, and ends the link.
            Ok(Tried::Failed) | Err(_) => *line = None,
        }
        tried.unwrap_or(Tried::Failed)
    }

    /// Keeps others off the stream.
    pub(super) fn hold(&self) -> Held<'_> {
        Held(self.lock())
    }
}

impl Held<'_> {
    /// Frames and bytes of what was begun by somebody else. The next flush or
    /// transmission sends its rest.
    pub(super) fn take_begun(&mut self) -> Option<(u64, u64)> {
        self.0.as_mut()?.begun.take()
    }

    /// What sends.
    ///
    /// # Errors
    /// It has failed on another thread.
    pub(super) fn transmit(&mut self) -> io::Result<&mut dyn Transmit> {
        match &mut *self.0 {
            Some(sending) => Ok(&mut *sending.transmit),
            None => Err(io::Error::other("sending failed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::halves::AT_ONCE;
    use super::super::{BufferPool, Duplex, memory, plain};
    use super::*;

    fn line() -> (Line, memory::MemoryStream) {
        let (near, far) = memory::pair();
        let line = Line::default();
        line.open(plain(Arc::new(near), BufferPool::new()).transmit);
        (line, far)
    }

    fn item(body: Vec<u8>) -> Outgoing {
        Outgoing::whole(body.into(), 1)
    }

    #[test]
    fn what_fits_goes_out_at_once() {
        let (line, far) = line();
        assert_eq!(line.try_send(&item(b"abc".to_vec())), Tried::Sent);
        let framed = Outgoing::framed(*b"12345678", b"body".to_vec().into());
        assert_eq!(line.try_send(&framed), Tried::Sent);
        let mut got = [0; 32];
        let mut held = 0;
        while held < 15 {
            held += far.read(&mut got[held..]).unwrap();
        }
        assert_eq!(&got[..held], b"abc12345678body");
        assert!(line.hold().take_begun().is_none());
    }

    #[test]
    fn what_does_not_fit_is_finished_by_the_writer_before_anything_else() {
        let (line, far) = line();
        assert_eq!(line.try_send(&item(vec![0; AT_ONCE + 1])), Tried::Not);
        // The stream has room for 64 KiB.
        let long: Vec<u8> = (0..90_000u32).map(|n| n.to_le_bytes()[1]).collect();
        let parts: Vec<_> = long.chunks(30_000).map(|part| item(part.to_vec())).collect();
        assert_eq!(line.try_send(&parts[0]), Tried::Sent);
        assert_eq!(line.try_send(&parts[1]), Tried::Sent);
        assert_eq!(line.try_send(&parts[2]), Tried::Begun);
        // Later items keep their place.
        assert_eq!(line.try_send(&item(vec![7])), Tried::Not);
        let reader = crate::transport::threads::spawn("t", move || {
            let mut got = Vec::new();
            let mut buffer = vec![0; 65536];
            while got.len() < 90_001 {
                let n = far.read(&mut buffer).unwrap();
                got.extend_from_slice(&buffer[..n]);
            }
            got
        });
        let mut held = line.hold();
        assert_eq!(held.take_begun(), Some((1, 30_000)));
        held.transmit().unwrap().transmit(&[item(vec![9])]).unwrap();
        let got = reader.unwrap().join().unwrap();
        assert!(got[..90_000] == long && got[90_000..] == [9]);
        assert!(held.take_begun().is_none());
    }

    #[test]
    fn nothing_is_written_while_the_writer_writes() {
        let (line, _far) = line();
        let held = line.hold();
        assert_eq!(line.try_send(&item(vec![1])), Tried::Not);
        drop(held);
        assert_eq!(line.try_send(&item(vec![1])), Tried::Sent);
        line.close();
        assert_eq!(line.try_send(&item(vec![1])), Tried::Not);
    }

    #[test]
    fn a_fault_is_left_to_the_writer() {
        let (line, far) = line();
        drop(far);
        assert_eq!(line.try_send(&item(vec![1])), Tried::Begun);
        assert!(line.hold().transmit().unwrap().flush().is_err());
    }

    #[derive(Debug)]
    struct Panics;

    impl Transmit for Panics {
        fn transmit(&mut self, _: &[Outgoing]) -> io::Result<()> {
            Ok(())
        }
        fn try_transmit(&mut self, _: &Outgoing) -> Tried {
            panic!("on purpose")
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn finish(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn idle(&mut self) {}
    }

    #[test]
    fn a_panic_ends_the_line_and_nothing_else() {
        let line = Line::default();
        line.open(Box::new(Panics));
        assert_eq!(line.try_send(&item(vec![1])), Tried::Failed);
        assert!(line.hold().transmit().is_err());
    }
}
