//! Links over streams in memory: their data and their ends.

use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};

use super::*;
use crate::dispatch::Threads;
use crate::end::EndReason;
use crate::outbox::Limits;
use crate::outbox::tests::{Wire, item, long};
use crate::socket::memory::{self, CAPACITY, MemoryStream};
use crate::stream::{BufferPool, Inbox, Load, Receive, Received, plain};

/// The time limits of a link are never reached, so the test notices a link that waits in vain.
const NEVER: Duration = Duration::from_secs(3600);
const LIMIT: Duration = Duration::from_secs(60);

/// Each byte is an item.
struct Bytewise;

impl Decode for Bytewise {
    type Item = u8;
    type Error = io::Error;

    fn decode(&mut self, input: &mut bytes::BytesMut, items: &mut Vec<u8>) -> io::Result<()> {
        items.extend(input.split());
        Ok(())
    }

    fn wanted(&self) -> usize {
        0
    }
}

/// Reports events to the test. It is dropped slowly, so that a caller that does not wait for a thread
/// to end is ahead of that thread.
struct Reporter(Sender<String>);

impl Reporter {
    fn report(&self, text: impl Into<String>) {
        self.0.send(text.into()).unwrap();
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        (0..1000).for_each(|_| std::thread::yield_now());
    }
}

/// Reports its drop by the writer's thread.
struct Writer(Reporter);

impl Drop for Writer {
    fn drop(&mut self) {
        (0..1000).for_each(|_| std::thread::yield_now());
        self.0.report("the writer is gone");
    }
}

/// The owner's handling of items.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    All,
    None,
    Panics,
}

struct Notes(Reporter, Takes);

impl Sink<u8> for Notes {
    fn items(&mut self, items: &mut Vec<u8>, bytes: usize) -> bool {
        assert!(self.1 != Takes::Panics, "the peer asked for this panic");
        // The items stay here, and are not reported again.
        self.0.report(format!("{items:?} in {bytes}"));
        self.1 == Takes::All
    }

    fn ended(&mut self, reason: EndReason) {
        self.0.report(reason.to_string());
    }

    fn finished(&mut self) {
        self.0.report("finished");
    }

    fn room(&self) -> Box<dyn Fn() + Send> {
        let writer = Writer(Reporter(self.0.0.clone()));
        Box::new(move || {
            let _ = &writer;
        })
    }
}

/// Checks the events of an aborted link: its threads end each by itself, in any order.
fn expect_both_ends(received: &Receiver<String>) {
    let next = || received.recv_timeout(LIMIT).unwrap();
    let mut both = [next(), next()];
    both.sort();
    assert_eq!(both, ["closed by this side", "the writer is gone"]);
    assert_eq!(next(), "finished");
}

/// A link, its events, and the other end of its stream.
struct Rig {
    link: Link,
    outbox: Outbox,
    received: Receiver<String>,
    peer: MemoryStream,
}

impl Rig {
    fn new(takes: Takes) -> Self {
        Self::with(takes, |halves| halves)
    }

    fn with(takes: Takes, change: impl FnOnce(Halves) -> Halves) -> Self {
        let (own, peer) = memory::pair();
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        peer.set_write_timeout(Some(LIMIT)).unwrap();
        let halves = change(plain(Arc::new(own), BufferPool::new()));
        let (sender, received) = unbounded();
        let outbox = Outbox::new(Default::default());
        let config = LinkConfig {
            write_timeout: None,
            linger: NEVER,
            ..LinkConfig::default()
        };
        let notes = Notes(Reporter(sender), takes);
        Self {
            link: Link::start(halves, Bytewise, outbox.clone(), notes, config).unwrap(),
            outbox,
            received,
            peer,
        }
    }

    fn expect(&self, expected: &str) {
        assert_eq!(self.received.recv_timeout(LIMIT).as_deref(), Ok(expected));
    }

    /// The bytes that the peer receives until the stream ends.
    fn received(&self) -> String {
        let (mut all, mut buffer) = (Vec::new(), [0; 1024]);
        while let n @ 1.. = self.peer.read(&mut buffer).unwrap() {
            all.extend_from_slice(&buffer[..n]);
        }
        String::from_utf8(all).unwrap()
    }

    /// Checks that both threads end, the writer first, and that none is left after the join.
    fn expect_end(self) {
        self.expect("the writer is gone");
        self.expect("finished");
        Threads::join(self.link);
        assert_eq!(self.received.try_recv(), Err(TryRecvError::Disconnected));
    }
}

#[test]
fn a_link_reports_items_once_and_sends_its_queue_after_the_end_of_the_peer() {
    let rig = Rig::new(Takes::All);
    for (sent, expected) in [(&[1, 2][..], "[1, 2] in 2"), (&[3], "[3] in 1")] {
        rig.peer.write(sent).unwrap();
        rig.expect(expected);
    }
    rig.outbox.push(item("answer"), Limits::NONE, false).unwrap();
    rig.peer.shutdown(Shutdown::Write).unwrap();
    rig.expect("the peer closed the connection");
    assert_eq!(rig.received(), "answer");
    rig.expect_end();
}

#[test]
fn a_close_sends_the_queue_and_waits_for_the_end_of_the_peer() {
    let rig = Rig::new(Takes::All);
    rig.outbox.push(item("last"), Limits::NONE, false).unwrap();
    rig.link.close();
    assert_eq!(rig.received(), "last");
    rig.peer.write(&[1]).unwrap();
    rig.expect("[1] in 1");
    rig.peer.shutdown(Shutdown::Both).unwrap();
    rig.expect("closed by this side");
    rig.expect_end();
}

#[test]
fn an_owner_that_takes_no_more_ends_the_link_and_the_peer_may_send_on() {
    let rig = Rig::new(Takes::None);
    rig.peer.write(&[1]).unwrap();
    rig.expect("[1] in 1");
    rig.expect("closed by this side");
    assert_eq!(rig.received(), "");
    let mut left = 3 * CAPACITY;
    while left > 0 {
        left -= rig.peer.write(&vec![2; left]).unwrap();
    }
    rig.peer.shutdown(Shutdown::Both).unwrap();
    rig.expect_end();
}

#[test]
fn an_abort_or_a_drop_ends_a_link_that_is_stuck_and_loses_its_queue() {
    for is_dropped in [false, true] {
        let Rig {
            link,
            outbox,
            received,
            peer: _peer,
        } = Rig::new(Takes::All);
        outbox.push(long(2 * CAPACITY), Limits::NONE, false).unwrap();
        if is_dropped {
            drop(link)
        } else {
            link.abort()
        }
        expect_both_ends(&received);
        assert_eq!((outbox.lost(), outbox.waiting()), (1, Load::default()));
    }
}

#[test]
fn a_reader_that_panics_ends_its_link_without_waiting_for_the_peer() {
    let rig = Rig::new(Takes::Panics);
    rig.peer.write(&[1]).unwrap();
    rig.expect("the reader panicked");
    rig.expect_end();
}

/// Leaves bytes for the socket whenever it has received some.
#[derive(Debug)]
struct Leaves(Box<dyn Receive>);

impl Receive for Leaves {
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<Received> {
        let received = self.0.receive(inbox)?;
        let flush = !received.end;
        Ok(Received { flush, ..received })
    }
}

#[test]
fn bytes_that_receiving_leaves_for_the_socket_are_flushed() {
    let wire = Wire::default();
    let transmit = Box::new(wire.clone());
    let rig = Rig::with(Takes::All, |halves| Halves {
        receive: Box::new(Leaves(halves.receive)),
        transmit,
        ..halves
    });
    rig.peer.write(&[1]).unwrap();
    rig.expect("[1] in 1");
    while !wire.log().contains(&"flush".to_owned()) {
        std::thread::yield_now();
    }
    rig.link.abort();
    expect_both_ends(&rig.received);
    Threads::join(rig.link);
    assert!(wire.is_free());
}
