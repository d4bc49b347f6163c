//! The writer thread of a link: it sends what its outbox holds.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::guard::guard;
use crate::host::threads::{Joined, joined_small};
use crate::host::{after, now};
use crate::outbox::{Due, Outbox};
use crate::socket::{Duplex, is_timeout};
use crate::stream::Outgoing;

/// The writer thread. Dropping it ends the link and waits for the thread, also if the thread
/// of the reader, which owns it, could not be started.
#[derive(Debug)]
pub(super) struct Writer {
    outbox: Outbox,
    stream: Arc<dyn Duplex>,
    _thread: Joined,
}

impl Writer {
    pub(super) fn start(
        name: String,
        outbox: Outbox,
        stream: Arc<dyn Duplex>,
        linger: Duration,
        room: Box<dyn Fn() + Send>,
    ) -> io::Result<Self> {
        let (queue, sink) = (outbox.clone(), Arc::clone(&stream));
        let thread = joined_small(name, move || write(&queue, &*sink, linger, &*room))?;
        Ok(Self {
            outbox,
            stream,
            _thread: thread,
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // These end the thread, which is joined when the fields are dropped afterwards.
        self.outbox.abort();
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Sends until the link is over, and then shuts the stream down.
fn write(outbox: &Outbox, stream: &dyn Duplex, linger: Duration, room: &dyn Fn()) {
    let mut writing = Writing::new(outbox.clone(), linger);
    loop {
        match guard(|| writing.step(room, now)) {
            Ok(Wrote::Again) => {}
            Ok(Wrote::Idle) => writing.wait(),
            Ok(Wrote::Lingers(until)) => outbox.wait_until_over(until.saturating_duration_since(now())),
            Ok(Wrote::Blocked) => writing.fail(silent_peer(), room),
            Ok(Wrote::Over) => break,
            Err(_) => writing.fail(io::Error::other("the writer panicked"), room),
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
}

/// The error if the peer has received no byte for the write timeout.
pub fn silent_peer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer receives no data")
}

/// The work of a writer, step by step: on its thread, or in virtual time.
#[derive(Debug)]
pub struct Writing {
    outbox: Outbox,
    batch: Vec<Outgoing>,
    due: Option<Due>,
    linger: Duration,
    /// After everything is sent: the time until which the peer may end its side.
    lingers: Option<Instant>,
    over: bool,
}

/// The result of a step of a writer.
#[derive(Debug)]
pub enum Wrote {
    /// There is a next step.
    Again,
    /// There is nothing to send.
    Idle,
    /// The stream takes no bytes at present.
    Blocked,
    /// It waits for the end of the link until this time.
    Lingers(Instant),
    /// It has ended.
    Over,
}

impl Writing {
    /// A writer of `outbox`. After the last byte the peer has `linger` to end its side.
    pub fn new(outbox: Outbox, linger: Duration) -> Self {
        Self {
            outbox,
            batch: Vec::new(),
            due: None,
            linger,
            lingers: None,
            over: false,
        }
    }

    /// Sends one batch. Calls `room` if a requested report of room is due, and when writing fails.
    /// Not inlined, so that an idle thread uses little stack.
    #[inline(never)]
    pub fn step(&mut self, room: &dyn Fn(), now: impl Fn() -> Instant) -> Wrote {
        if let Some(until) = self.lingers {
            self.over |= self.outbox.is_over() || now() >= until;
            if !self.over {
                return Wrote::Lingers(until);
            }
        }
        if self.over {
            return Wrote::Over;
        }
        // A batch that did not fit into the stream, or that `wait` has fetched, comes first.
        let next = self.due.take();
        let Some(due) = next.or_else(|| self.outbox.try_next(&mut self.batch)) else {
            self.outbox.idle();
            // An idle thread keeps memory for one item at most.
            self.batch.shrink_to(1);
            return Wrote::Idle;
        };
        if due.over {
            self.over = true;
            self.end();
            return Wrote::Again;
        }
        match self.outbox.send(due, &mut self.batch, room) {
            Ok(false) => {}
            Ok(true) => {
                self.lingers = Some(after(now(), self.linger));
                self.end();
            }
            Err(e) if is_timeout(&e) => {
                self.due = Some(due);
                return Wrote::Blocked;
            }
            Err(e) => self.fail(io::Error::new(e.kind(), e.to_string()), room),
        }
        Wrote::Again
    }

    /// Waits until there is something to send.
    fn wait(&mut self) {
        self.due = Some(self.outbox.next(&mut self.batch));
    }

    /// Ends the writer, because writing failed.
    pub fn fail(&mut self, error: io::Error, room: &dyn Fn()) {
        self.over = true;
        self.outbox.fail(error);
        self.end();
        room();
    }

    /// Drops the sending direction.
    fn end(&self) {
        self.outbox.shut();
        // After a failure this changes nothing.
        self.outbox.drained();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::outbox::Limits;
    use crate::outbox::tests::{Wire, item};

    const LINGER: Duration = Duration::from_secs(1);

    fn writing() -> (Writing, Outbox, Wire) {
        let (outbox, wire) = (Outbox::new(Default::default()), Wire::default());
        wire.open(&outbox);
        (Writing::new(outbox.clone(), LINGER), outbox, wire)
    }

    #[test]
    fn a_writer_sends_all_of_a_closed_queue_and_lingers_until_the_link_is_over() {
        let begin = now();
        for aborted in [true, false] {
            let (mut writing, outbox, wire) = writing();
            let mut step = |after: Duration| writing.step(&|| (), || begin + after);
            assert!(matches!(step(Duration::ZERO), Wrote::Idle));
            outbox.push(item("last"), Limits::NONE, false).unwrap();
            outbox.close();
            while !matches!(step(Duration::ZERO), Wrote::Lingers(until) if until == begin + LINGER) {}
            assert_eq!(outbox.waiting().items, 0);
            assert!(outbox.wait_until_drained(Duration::ZERO) && wire.is_free());
            assert!(matches!(step(LINGER / 2), Wrote::Lingers(_)));
            if aborted {
                outbox.abort();
            }
            let after = if aborted { LINGER / 2 } else { LINGER };
            assert!(matches!(step(after), Wrote::Over));
        }
    }

    #[test]
    fn a_writer_that_fails_reports_room_and_is_over() {
        let (mut writing, outbox, wire) = writing();
        let reports = Cell::new(0);
        outbox.push(item("lost"), Limits::NONE, false).unwrap();
        writing.fail(silent_peer(), &|| reports.set(reports.get() + 1));
        assert!(matches!(writing.step(&|| (), now), Wrote::Over));
        assert_eq!(outbox.failure().unwrap().to_string(), "the peer receives no data");
        assert!(reports.get() == 1 && wire.is_free());
    }

    #[test]
    fn a_writer_gives_memory_back_while_it_has_nothing_to_send() {
        let (mut writing, outbox, wire) = writing();
        let mut step = || writing.step(&|| (), now);
        for _ in 0..100 {
            outbox.push(item("a"), Limits::NONE, false).unwrap();
        }
        assert!(matches!(step(), Wrote::Again));
        assert!(matches!(step(), Wrote::Idle));
        assert_eq!(wire.log()[99..], ["a", "idle"]);
        assert!(writing.batch.capacity() < 10);
        outbox.push(item("b"), Limits::NONE, false).unwrap();
        writing.wait();
        assert!(writing.due.is_some(), "the writer slept until an item arrived");
    }

    #[test]
    fn an_abort_ends_a_writer_before_its_queue() {
        let (mut writing, outbox, wire) = writing();
        outbox.push(item("lost"), Limits::NONE, false).unwrap();
        outbox.abort();
        let mut step = || writing.step(&|| (), now);
        assert!(matches!(step(), Wrote::Again));
        assert!(matches!(step(), Wrote::Over));
        assert!(wire.log().is_empty() && wire.is_free());
    }

    #[test]
    fn a_write_without_room_goes_on_later_and_one_that_fails_ends_the_writer() {
        let (mut writing, outbox, wire) = writing();
        let mut step = || writing.step(&|| (), now);
        outbox.push(item("a"), Limits::NONE, false).unwrap();
        wire.fail_once(io::ErrorKind::TimedOut);
        assert!(matches!(step(), Wrote::Blocked));
        assert!(matches!(step(), Wrote::Again));
        assert_eq!(wire.log(), ["a"]);
        outbox.push(item("b"), Limits::NONE, false).unwrap();
        wire.fail_once(io::ErrorKind::ConnectionReset);
        assert!(matches!(step(), Wrote::Again));
        assert!(matches!(step(), Wrote::Over));
        assert_eq!(outbox.failure().unwrap().kind(), io::ErrorKind::ConnectionReset);
    }
}
