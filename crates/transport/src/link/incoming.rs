//! The decisions of a link, without threads, streams or a clock: the next step with received
//! bytes, the reason for the end, and the time limit of the last bytes. The link's threads carry
//! them out; a simulation does so in virtual time.

use std::io;
use std::time::{Duration, Instant};

use crate::end::EndReason;
use crate::flow::UNRESERVED;
use crate::outbox::Outbox;
use crate::socket::is_timeout;
use crate::stream::{Decode, Inbox, Load, Receive};

/// The longest read timeout in the middle of a long item.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that a write may wait without progress once the reader has ended and the stream is not lost. A
/// write that is under way keeps its own limit.
pub(super) const LAST_WRITE: Duration = Duration::from_secs(1);

/// The received bytes of a link that are not decoded yet.
#[derive(Debug)]
pub struct Incoming<D: Decode> {
    decoder: D,
    inbox: Inbox,
    /// The number of received bytes that no [`Next::Hand`] has reported yet.
    unreported: usize,
    /// The time that the peer may be silent in the middle of a long item.
    max_silence: Option<Duration>,
    /// The time since its last byte, counted in read timeouts.
    silent: Duration,
    /// True while an item is incomplete that needs reserved memory.
    is_long: bool,
    fault: Option<D::Error>,
    /// The end of the stream, or its error.
    end: Option<io::Result<()>>,
}

/// The next step of a reader.
#[derive(Debug)]
pub enum Next {
    /// Pass the items on, if there are any, with the number of bytes received since the last `Hand`. They
    /// may include the beginning of the next item.
    Hand(usize),
    /// Receive more of an item of which `held` bytes have arrived. `wanted` is its whole length, or
    /// 0 if that is unknown. Memory for it has to be reserved first.
    Receive {
        /// The number of bytes that have arrived.
        held: usize,
        /// The length of the whole item.
        wanted: usize,
    },
    /// End the link.
    End(EndReason),
}

impl<D: Decode> Incoming<D> {
    /// The bytes in `inbox` come first. In the middle of a long item the peer may be silent for
    /// `max_silence`, or without limit if that is `None`.
    pub fn new(decoder: D, inbox: Inbox, max_silence: Option<Duration>) -> Self {
        Self {
            decoder,
            unreported: inbox.bytes.len(),
            inbox,
            max_silence,
            silent: Duration::ZERO,
            is_long: false,
            fault: None,
            end: None,
        }
    }

    /// Decodes the received bytes, and returns the next step. Items that precede a fault or the end
    /// are passed on first.
    pub fn next(&mut self, items: &mut Vec<D::Item>) -> Next {
        // After a fault the rest of the input has no meaning.
        if self.fault.is_none() {
            let before = self.inbox.bytes.len();
            self.fault = self.decoder.decode(&mut self.inbox.bytes, items).err();
            // Also without items, if bytes of an item were skipped: they show that the peer is alive.
            if !items.is_empty() || before > self.inbox.bytes.len() {
                return Next::Hand(std::mem::take(&mut self.unreported));
            }
        }
        let held = self.inbox.bytes.len();
        Next::End(match (self.fault.take(), self.end.take()) {
            (Some(fault), _) => EndReason::Protocol(Box::new(fault)),
            (None, Some(Err(e))) => EndReason::Io(e),
            (None, Some(Ok(()))) if held == 0 && !self.decoder.skips() => EndReason::PeerClosed,
            (None, Some(Ok(()))) => EndReason::Truncated,
            (None, None)
                if self
                    .max_silence
                    .is_some_and(|limit| self.is_long && self.silent >= limit) =>
            {
                let why = format!("a frame did not come to its end, only {held} bytes of it have arrived");
                EndReason::Protocol(why.into())
            }
            (None, None) => {
                let wanted = self.decoder.wanted();
                return Next::Receive { held, wanted };
            }
        })
    }

    /// Allows the next read to bring `most` bytes, for which memory is reserved. Returns the new
    /// read timeout of the stream if that changes: short items have none, because they hold little
    /// memory.
    pub fn allow(&mut self, most: usize) -> Option<Option<Duration>> {
        // The inbox allocates this much at once, so it is told only now that the memory is reserved.
        self.inbox.wanted = self.decoder.wanted();
        self.inbox.most = most.min(self.inbox.room());
        let is_long = self.inbox.bytes.len().max(self.inbox.wanted) > UNRESERVED;
        let changes = std::mem::replace(&mut self.is_long, is_long) != is_long;
        changes.then(|| is_long.then(|| self.read_timeout()))
    }

    fn read_timeout(&self) -> Duration {
        self.max_silence.unwrap_or(READ_TIMEOUT).min(READ_TIMEOUT)
    }

    /// Receives once. True if the sending direction has bytes to flush.
    pub fn receive(&mut self, stream: &mut dyn Receive) -> bool {
        let held = self.inbox.bytes.len();
        let received = stream.receive(&mut self.inbox);
        self.unreported += self.inbox.bytes.len() - held;
        match received {
            Ok(received) => {
                self.silent = Duration::ZERO;
                self.end = received.end.then_some(Ok(()));
                received.flush
            }
            // The read timeout is shorter than the allowed silence, because other connections may need the
            // memory meanwhile.
            Err(e) if self.is_long && is_timeout(&e) => {
                self.silent += self.read_timeout();
                false
            }
            Err(e) => {
                self.end = Some(Err(e));
                false
            }
        }
    }
}

/// The reason for the end of a link, for which its reader has found the reason `found`.
pub fn end_reason(outbox: &Outbox, found: EndReason) -> EndReason {
    match (outbox.failure(), found) {
        // The reader finds an end of the stream when the writer has failed, so the writer's error
        // is the cause.
        (Some(error), _) => EndReason::Io(error),
        (None, found @ (EndReason::Protocol(_) | EndReason::Memory(_))) => found,
        (None, _) if outbox.is_closed() => EndReason::Local,
        (None, found) => found,
    }
}

/// Bounds the wait of an ending link for its writer: it waits as long as the writer makes progress,
/// because a peer that has ended its side may still receive.
#[derive(Debug)]
pub struct LastWrites {
    before: Load,
    until: Instant,
}

impl LastWrites {
    /// Begins the wait.
    pub fn begin(outbox: &Outbox, now: Instant) -> Self {
        Self {
            before: outbox.progress(),
            until: now + LAST_WRITE,
        }
    }

    /// Checks the writer. Returns the time of the next check, or `None` if the wait is over: everything is
    /// sent, or the writer made no progress for a second.
    pub fn look(&mut self, outbox: &Outbox, now: Instant) -> Option<Instant> {
        if outbox.wait_until_drained(Duration::ZERO) {
            return None;
        }
        if now >= self.until {
            let progress = outbox.progress();
            // Compared with the bytes of an item that was written in part, so that a peer that takes
            // one long item slowly is not cut off.
            if progress == self.before {
                return None;
            }
            *self = Self {
                before: progress,
                until: now + LAST_WRITE,
            };
        }
        Some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, OnceLock};

    use bytes::{Bytes, BytesMut};

    use super::*;
    use crate::outbox::Limits;
    use crate::outbox::tests::long;
    use crate::socket::{Duplex, memory};
    use crate::stream::{BufferPool, Outgoing, Received, Transmit, plain};

    /// Items whose first byte is their length in units of 10,000 bytes; 255 is a
    /// fault, 254 is skipped, and so is 253, after which a further byte is skipped.
    #[derive(Debug, Default)]
    struct Lengths {
        wanted: usize,
        skips: bool,
    }

    impl Decode for Lengths {
        type Item = Bytes;
        type Error = io::Error;

        fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Bytes>) -> io::Result<()> {
            self.wanted = 0;
            while let Some(first) = input.first() {
                if *first >= 253 {
                    match input.split_to(1)[0] {
                        255 => return Err(io::Error::other("as asked for")),
                        skipped => self.skips = skipped == 253,
                    }
                    continue;
                }
                let len = usize::from(*first).max(1) * 10_000;
                if input.len() < len {
                    self.wanted = len;
                    break;
                }
                items.push(input.split_to(len).freeze());
            }
            Ok(())
        }

        fn wanted(&self) -> usize {
            self.wanted
        }

        fn skips(&self) -> bool {
            self.skips
        }
    }

    fn incoming(silence: Option<Duration>) -> (Incoming<Lengths>, Box<dyn Receive>, memory::MemoryStream) {
        let (local, remote) = memory::pair();
        local.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let halves = plain(Arc::new(local), BufferPool::new());
        let incoming = Incoming::new(Lengths::default(), halves.inbox, silence);
        (incoming, halves.receive, remote)
    }

    #[test]
    fn items_before_a_fault_are_passed_on_first() {
        let (mut incoming, mut receive, remote) = incoming(None);
        remote
            .write(&[&[1; 10_000][..], &[255], &[1; 10_000]].concat())
            .unwrap();
        let mut items = Vec::new();
        assert!(matches!(
            incoming.next(&mut items),
            Next::Receive { held: 0, wanted: 0 }
        ));
        incoming.allow(usize::MAX);
        incoming.receive(&mut *receive);
        assert!(matches!(incoming.next(&mut items), Next::Hand(20_001)));
        assert_eq!(items.len(), 1);
        items.clear();
        let next = incoming.next(&mut items);
        assert!(matches!(next, Next::End(EndReason::Protocol(_))) && items.is_empty());
    }

    #[test]
    fn skipped_bytes_are_handed_over_and_those_of_an_unfinished_item_come_with_the_rest() {
        let (mut incoming, mut receive, remote) = incoming(None);
        let mut items = Vec::new();
        let mut round = |items: &mut Vec<_>| {
            incoming.allow(usize::MAX);
            incoming.receive(&mut *receive);
            incoming.next(items)
        };
        remote.write(&[1, 0, 0]).unwrap();
        assert!(matches!(
            round(&mut items),
            Next::Receive {
                held: 3,
                wanted: 10_000
            }
        ));
        remote.write(&[0; 9997]).unwrap();
        assert!(matches!(round(&mut items), Next::Hand(10_000)));
        assert_eq!(items.len(), 1);
        items.clear();
        remote.write(&[254, 254]).unwrap();
        assert!(matches!(round(&mut items), Next::Hand(2)));
        assert!(items.is_empty());
        remote.write(&[2]).unwrap();
        assert!(matches!(round(&mut items), Next::Receive { held: 1, .. }));
        remote.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(matches!(round(&mut items), Next::End(EndReason::Truncated)));
    }

    #[test]
    fn a_read_brings_no_more_than_it_may_and_the_end_of_the_stream_is_an_end() {
        let (mut incoming, mut receive, remote) = incoming(None);
        let mut items = Vec::new();
        remote.write(&[254, 254, 254]).unwrap();
        incoming.allow(2);
        incoming.receive(&mut *receive);
        assert!(matches!(incoming.next(&mut items), Next::Hand(2)));
        remote.shutdown(std::net::Shutdown::Write).unwrap();
        incoming.receive(&mut *receive);
        assert!(matches!(incoming.next(&mut items), Next::Hand(1)));
        incoming.receive(&mut *receive);
        let next = incoming.next(&mut items);
        assert!(matches!(next, Next::End(EndReason::PeerClosed)));
    }

    #[test]
    fn an_end_within_a_skipped_item_is_not_in_order() {
        for (bytes, in_order) in [(&[253][..], false), (&[253, 254], true)] {
            let (mut incoming, mut receive, remote) = incoming(None);
            let mut items = Vec::new();
            remote.write(bytes).unwrap();
            remote.shutdown(std::net::Shutdown::Write).unwrap();
            incoming.receive(&mut *receive);
            assert!(matches!(incoming.next(&mut items), Next::Hand(_)));
            incoming.receive(&mut *receive);
            match incoming.next(&mut items) {
                Next::End(EndReason::PeerClosed) => assert!(in_order),
                next => assert!(
                    !in_order && matches!(next, Next::End(EndReason::Truncated)),
                    "{next:?}"
                ),
            }
        }
    }

    /// Receives the items of the test.
    #[derive(Debug)]
    struct Told(std::vec::IntoIter<Result<u8, io::ErrorKind>>);

    impl Receive for Told {
        fn receive(&mut self, inbox: &mut Inbox) -> io::Result<Received> {
            let byte = self.0.next().unwrap()?;
            inbox.append(&[byte], 1);
            Ok(Received::default())
        }
    }

    #[test]
    fn silence_counts_since_the_last_byte_of_a_long_item_and_other_errors_end_at_once() {
        let (silent, reset) = (io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset);
        let cases = [
            (vec![Ok(3), Err(silent), Ok(0), Err(silent), Err(silent)], false),
            (vec![Ok(3), Err(silent), Err(reset)], true),
            // The system has given the peer up. There is no time limit.
            (vec![Err(silent)], true),
            (vec![Ok(1), Err(silent)], true),
        ];
        for (items, is_lost) in cases {
            let (mut incoming, ..) = incoming(Some(2 * READ_TIMEOUT));
            let (mut left, mut receiver) = (items.len(), Told(items.into_iter()));
            let next = loop {
                incoming.allow(usize::MAX);
                incoming.receive(&mut receiver);
                left -= 1;
                match incoming.next(&mut Vec::new()) {
                    Next::Receive { .. } => {}
                    next => break next,
                }
            };
            assert_eq!((left, matches!(next, Next::End(EndReason::Io(_)))), (0, is_lost));
            assert!(is_lost || matches!(next, Next::End(EndReason::Protocol(_))));
        }
    }

    #[test]
    fn a_long_item_has_a_time_limit_and_a_short_one_has_not() {
        let mut items = Vec::new();
        for (first, is_long) in [(1, false), (3, true)] {
            let (mut incoming, mut receive, remote) = incoming(Some(3 * READ_TIMEOUT));
            remote.write(&[first]).unwrap();
            assert_eq!(incoming.allow(usize::MAX), None);
            incoming.receive(&mut *receive);
            let wanted = usize::from(first) * 10_000;
            let next = incoming.next(&mut items);
            assert!(matches!(next, Next::Receive { held: 1, wanted: all } if all == wanted));
            assert_eq!(incoming.allow(usize::MAX), is_long.then_some(Some(READ_TIMEOUT)));
            if is_long {
                for _ in 0..2 {
                    incoming.receive(&mut *receive);
                    assert!(matches!(incoming.next(&mut items), Next::Receive { .. }));
                }
                incoming.receive(&mut *receive);
                let next = incoming.next(&mut items);
                assert!(matches!(next, Next::End(EndReason::Protocol(_))), "{next:?}");
            }
        }
    }

    /// A sending direction. The test sets the number of bytes that the system has taken.
    #[derive(Debug, Default)]
    struct Slow(Arc<OnceLock<Arc<AtomicU64>>>);

    impl Transmit for Slow {
        fn transmit(&mut self, _: &[Outgoing]) -> io::Result<()> {
            Ok(())
        }
        fn count_in(&mut self, written: Arc<AtomicU64>) {
            self.0.set(written).unwrap();
        }
    }

    #[test]
    fn a_peer_that_takes_a_long_answer_slowly_gets_all_of_it() {
        let (slow, outbox) = (Slow::default(), Outbox::new(Default::default()));
        let taken = Arc::clone(&slow.0);
        outbox.open(Box::new(slow));
        outbox.push(long(100), Limits::NONE, false).unwrap();
        outbox.close();
        let begin = crate::host::now();
        let at = |seconds: u64| begin + LAST_WRITE * u32::try_from(seconds).unwrap();
        let mut last = LastWrites::begin(&outbox, begin);
        // Some bytes of one item in each second.
        for second in 1..10 {
            assert_eq!(last.look(&outbox, at(second) - LAST_WRITE / 2), Some(at(second)));
            taken.get().unwrap().fetch_add(1, Ordering::Relaxed);
            assert_eq!(last.look(&outbox, at(second)), Some(at(second + 1)));
        }
        assert_eq!(last.look(&outbox, at(10)), None, "the peer takes no more bytes");
        let mut last = LastWrites::begin(&outbox, begin);
        outbox.abort();
        assert_eq!(last.look(&outbox, begin), None, "the time is over");
    }

    #[test]
    fn the_error_of_a_writer_and_a_fault_of_the_peer_come_before_an_end_of_ours() {
        let outbox = Outbox::new(Default::default());
        let found = |found| end_reason(&outbox, found).to_string();
        assert_eq!(found(EndReason::PeerClosed), EndReason::PeerClosed.to_string());
        outbox.close();
        assert_eq!(found(EndReason::PeerClosed), EndReason::Local.to_string());
        assert_eq!(found(EndReason::Memory("none".into())), "none");
        outbox.fail(io::ErrorKind::BrokenPipe.into());
        assert!(end_reason(&outbox, EndReason::PeerClosed).is_loss());
    }
}
