//! The threads of one connection on the server's side, as machines that are stepped. They act like
//! `accept` and `link`, and are suspended where a thread would block.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::BytesMut;
use crossbeam_channel::{Receiver, TryRecvError};
use uuid::Uuid;

use super::network::{SimTransmit, Stream, bytes_of};
use super::slots::{Acceptance, Slot};
use ssntp::proto::Item;
use ssntp::simulation::{CLAIM, Decoder, Entry, EntryStep, Environment, Grant, NoEntry, ServerCore};
use ssntp_test_support::random::Random;
use ssntp_transport::dispatch::{Admission, Admitted, DispatchEvent, Events, Threads, Verdict};
use ssntp_transport::flow::{Credit, NextRead, Unfinished};
use ssntp_transport::outbox::Outbox;
use ssntp_transport::slots::{HandshakeState, Slots, Wait};
use ssntp_transport::{
    BufferPool, ConnectionId, Duplex, EndReason, Incoming, LastWrites, Next, Receive, Writing, Wrote,
    end_reason, plain, silent_peer,
};

pub(super) type Core = ServerCore;
pub(super) type SimEvent = DispatchEvent<Core, SimThreads>;
pub(super) type SimEvents = Events<SimEvent>;

/// The time limits of `accept` and `link`.
const LINGER: Duration = Duration::from_secs(1);
const LAST_WRITE: Duration = Duration::from_secs(1);
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The result of a step of a thread, a peer or the dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Moved,
    /// It waits for another machine, or for a time.
    Waits(Option<Instant>),
    Over,
}

/// The world as a thread sees it.
pub(super) struct View<'a> {
    pub(super) now: Instant,
    pub(super) random: &'a mut Random,
    pub(super) events: &'a SimEvents,
    pub(super) full: &'a dyn Fn() -> bool,
    pub(super) write_timeout: Duration,
    pub(super) pool: &'a BufferPool,
    /// The maximum that one write takes, one of these.
    pub(super) pieces: &'a [usize],
    /// The time of day.
    pub(super) wall: SystemTime,
}

/// Small writes, so that a batch is written in many steps.
pub(super) const PIECES: &[usize] = &[1, 7, 64, 1000, 100_000];

/// The handle of both threads.
#[derive(Debug)]
pub(super) struct SimThreads {
    ended: Arc<AtomicBool>,
}

impl Threads for SimThreads {
    fn join(self) {
        assert!(
            self.ended.load(Ordering::Relaxed),
            "the dispatcher waits for a thread"
        );
    }
}

/// The writer of one connection: the steps of [`Writing`], suspended where the stream takes
/// nothing.
pub(super) struct Writer {
    /// At a server.
    id: Option<ConnectionId>,
    writing: Writing,
    stream: Stream,
    /// The longest time without a write to the stream, and the end of that time.
    limit: Duration,
    until: Option<Instant>,
    owes_room: Cell<bool>,
    /// The reader's result at the end.
    pub(super) hurry: bool,
    ends: bool,
    pub(super) over: bool,
}

impl Writer {
    /// The peer has `linger` to end its side, and the stream may take nothing for `limit`.
    pub(super) fn new(
        id: Option<ConnectionId>,
        outbox: &Outbox,
        stream: &Stream,
        linger: Duration,
        limit: Duration,
    ) -> Self {
        Self {
            id,
            writing: Writing::new(outbox.clone(), linger),
            stream: stream.clone(),
            limit,
            until: None,
            owes_room: Cell::new(false),
            hurry: false,
            ends: false,
            over: false,
        }
    }

    pub(super) fn step(&mut self, view: &mut View<'_>) -> Step {
        // A writer that fails reports room before it ends.
        if let Some(id) = self.id.filter(|_| self.owes_room.get() && !self.over) {
            if (view.full)() {
                return Step::Waits(None);
            }
            let _ = view.events.try_send(DispatchEvent::Room(id));
            self.owes_room.set(false);
            return Step::Moved;
        }
        self.write(view.now, view.random, view.pieces)
    }

    /// A step without its events for the dispatcher. One write takes at most one of `pieces`.
    pub(super) fn write(&mut self, now: Instant, random: &mut Random, pieces: &[usize]) -> Step {
        if self.over {
            return Step::Over;
        }
        if self.ends {
            self.stream.shut_down();
            self.over = true;
            return Step::Moved;
        }
        self.stream.set_piece(random.pick(pieces));
        let before = self.stream.written();
        let wrote = self.writing.step(&|| self.owes_room.set(true), || now);
        self.stream.set_piece(usize::MAX);
        let moved = self.stream.written() > before;
        if moved || !matches!(wrote, Wrote::Blocked) {
            self.until = None;
        }
        match wrote {
            Wrote::Again => Step::Moved,
            Wrote::Idle => Step::Waits(None),
            Wrote::Lingers(until) => Step::Waits(Some(until)),
            Wrote::Blocked if moved => Step::Moved,
            Wrote::Blocked => {
                let limit = if self.hurry { LAST_WRITE } else { self.limit };
                let until = *self.until.get_or_insert(now + limit);
                if now < until {
                    return Step::Waits(Some(until));
                }
                self.writing.fail(silent_peer(), &|| self.owes_room.set(true));
                self.stream.shut_down();
                Step::Moved
            }
            Wrote::Over => {
                self.ends = true;
                Step::Moved
            }
        }
    }
}

/// The reader of one connection: the steps of [`Incoming`], suspended where the thread blocks.
pub(super) struct Reader {
    pub(super) id: ConnectionId,
    stream: Stream,
    incoming: Incoming<Decoder>,
    receive: Box<dyn Receive>,
    unfinished: Unfinished,
    credit: Arc<Credit>,
    outbox: Outbox,
    ended: Arc<AtomicBool>,
    stage: Reading,
    piece: usize,
}

enum Reading {
    Decode,
    Hand(Vec<Item>, u64),
    /// For credit, with the number of wake-ups at the beginning of the wait.
    Credit(u64),
    /// For memory.
    Reserve(usize, usize),
    Receive,
    Ended(EndReason),
    WaitForClose(bool),
    Drain,
    WaitForWriter(LastWrites),
    Join,
    Finished,
    Over,
}

impl Reader {
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Reading::Over)
    }

    pub(super) fn waits_for_credit(&self) -> bool {
        matches!(self.stage, Reading::Credit(..))
    }

    pub(super) fn step(&mut self, writer: &mut Writer, view: &mut View<'_>) -> Step {
        let stage = std::mem::replace(&mut self.stage, Reading::Over);
        let (next, step) = self.go(stage, writer, view);
        self.stage = next;
        step
    }

    fn go(&mut self, stage: Reading, writer: &mut Writer, view: &mut View<'_>) -> (Reading, Step) {
        match stage {
            Reading::Decode => {
                let mut items = Vec::new();
                let next = match self.incoming.next(&mut items) {
                    Next::Hand(bytes) => {
                        let bytes = bytes as u64;
                        self.unfinished.done();
                        self.credit.spend(Credit::memory_of::<Item>(items.len(), bytes));
                        Reading::Hand(items, bytes)
                    }
                    Next::Receive { held, wanted } => Reading::Reserve(held, wanted),
                    Next::End(found) => self.reason(found),
                };
                (next, Step::Moved)
            }
            Reading::Hand(items, bytes) => {
                if (view.full)() {
                    return (Reading::Hand(items, bytes), Step::Waits(None));
                }
                let sent = view.events.try_send(DispatchEvent::Items(self.id, items, bytes));
                if sent.is_err() {
                    return (self.reason(EndReason::Local), Step::Moved);
                }
                (self.after_credit(), Step::Moved)
            }
            Reading::Credit(woken) => {
                if self.credit.woken() == woken {
                    return (Reading::Credit(woken), Step::Waits(None));
                }
                (self.after_credit(), Step::Moved)
            }
            Reading::Reserve(held, wanted) => {
                let now = view.now;
                match self.unfinished.next_read(held, wanted, || now, || ()) {
                    NextRead::Read(most) => {
                        let piece = match self.piece {
                            0 => usize::MAX,
                            piece => view.random.between(1, piece),
                        };
                        self.incoming.allow(most.min(piece));
                        (Reading::Receive, Step::Moved)
                    }
                    // The end of the connection ends this wait.
                    NextRead::Wait if self.outbox.is_closed() => (self.reason(EndReason::Local), Step::Moved),
                    NextRead::Wait => (Reading::Reserve(held, wanted), Step::Waits(None)),
                    NextRead::End(why) => (self.reason(EndReason::Memory(why)), Step::Moved),
                }
            }
            Reading::Receive => {
                if !self.stream.is_readable() {
                    return (Reading::Receive, Step::Waits(None));
                }
                self.incoming.receive(&mut *self.receive);
                (Reading::Decode, Step::Moved)
            }
            Reading::Ended(reason) => {
                if (view.full)() {
                    return (Reading::Ended(reason), Step::Waits(None));
                }
                let lost = reason.is_loss();
                let _ = view.events.try_send(DispatchEvent::Ended(self.id, reason));
                (Reading::WaitForClose(lost), Step::Moved)
            }
            Reading::WaitForClose(lost) => {
                if !self.outbox.is_closed() {
                    return (Reading::WaitForClose(lost), Step::Waits(None));
                }
                if lost || self.outbox.is_over() {
                    return (self.cut_off(), Step::Moved);
                }
                writer.hurry = true;
                self.outbox.close();
                (Reading::Drain, Step::Moved)
            }
            Reading::Drain => match self.stream.receive(1024) {
                Ok(bytes) if !bytes.is_empty() => (Reading::Drain, Step::Moved),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => (Reading::Drain, Step::Waits(None)),
                _ => {
                    let last = LastWrites::begin(&self.outbox, view.now);
                    (Reading::WaitForWriter(last), Step::Moved)
                }
            },
            Reading::WaitForWriter(mut last) => match last.look(&self.outbox, view.now) {
                Some(until) => (Reading::WaitForWriter(last), Step::Waits(Some(until))),
                None => (self.cut_off(), Step::Moved),
            },
            Reading::Join => {
                if !writer.over {
                    return (Reading::Join, Step::Waits(None));
                }
                self.outbox.discard();
                (Reading::Finished, Step::Moved)
            }
            Reading::Finished => {
                if (view.full)() {
                    return (Reading::Finished, Step::Waits(None));
                }
                self.unfinished.done();
                self.ended.store(true, Ordering::Relaxed);
                let _ = view.events.try_send(DispatchEvent::Finished(self.id));
                (Reading::Over, Step::Moved)
            }
            Reading::Over => (Reading::Over, Step::Over),
        }
    }

    fn after_credit(&self) -> Reading {
        match self.credit.try_wait() {
            (None, woken) => Reading::Credit(woken),
            (Some(false), _) => self.reason(EndReason::Local),
            (Some(true), _) => Reading::Decode,
        }
    }

    fn cut_off(&self) -> Reading {
        self.outbox.abort();
        self.stream.shut_down();
        Reading::Join
    }

    fn reason(&self, found: EndReason) -> Reading {
        Reading::Ended(end_reason(&self.outbox, found))
    }
}

/// The step at which a newcomer fails, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fails {
    Not,
    /// Its thread ends before the verdict.
    BeforeVerdict,
    /// CONNECTED cannot be written.
    Connected,
    /// The system cannot start a thread.
    Threads,
}

/// The handshake of one connection: the steps of an [`Entry`], suspended where a thread blocks.
pub(super) struct Newcomer {
    stream: Stream,
    /// None if this world has no slots.
    slot: Option<Slot>,
    environment: Arc<Environment>,
    entry: Entry,
    inbox: BytesMut,
    stage: Shaking,
    fails: Fails,
    piece: usize,
    deadline: Instant,
    /// The admitted session, and the ledger of its outbox.
    pub(super) admitted: Option<(ConnectionId, Outbox)>,
    /// The reason why it is not admitted.
    pub(super) turned: Option<NoEntry>,
}

enum Shaking {
    Begin,
    Takes(EntryStep, Box<Option<Admitting>>),
    Verdict(Receiver<Verdict<Core>>),
    Claimed(Receiver<u8>, Instant),
    Send(Vec<u8>, Box<Option<Admitting>>),
    Started(Admission<Core, SimThreads>),
    Refuse(Vec<u8>, Instant),
    Linger(Instant),
    Over,
}

struct Admitting {
    admission: Admission<Core, SimThreads>,
    admitted: Admitted<Grant>,
}

impl Newcomer {
    pub(super) fn new(
        stream: Stream,
        environment: &Arc<Environment>,
        entry: Entry,
        fails: Fails,
        piece: usize,
        now: Instant,
    ) -> Self {
        Self {
            stream,
            slot: None,
            environment: Arc::clone(environment),
            entry,
            inbox: BytesMut::new(),
            stage: Shaking::Begin,
            fails,
            piece,
            deadline: now + HANDSHAKE,
            admitted: None,
            turned: None,
        }
    }

    /// The same, with a handshake that begins once it has a slot.
    pub(super) fn with_slot_of(mut self, acceptance: &Rc<RefCell<Acceptance>>) -> Self {
        self.slot = Some(Slot::of(acceptance));
        self
    }

    /// True if its handshake was cut to make room for another newcomer.
    pub(super) fn was_cut(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| slot.was_cut)
    }

    /// The server at the other end of a link.
    pub(super) fn peer(&self) -> Option<Uuid> {
        self.entry.peer()
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Shaking::Over)
    }

    /// The two threads of the connection, if the step started them.
    pub(super) fn step(&mut self, stopping: bool, view: &mut View<'_>) -> (Step, Option<(Reader, Writer)>) {
        if self.is_over() {
            return (Step::Over, None);
        }
        let mut stopping = stopping;
        if let Some(slot) = &mut self.slot {
            match slot.take(&self.stream, view.now) {
                None => stopping = slot.state() == Some(HandshakeState::Stopping),
                Some(Step::Over) => {
                    self.stream.shut_down();
                    self.stage = Shaking::Over;
                    return (Step::Moved, None);
                }
                Some(step) => {
                    self.deadline = view.now + HANDSHAKE;
                    return (step, None);
                }
            }
        }
        let stage = std::mem::replace(&mut self.stage, Shaking::Over);
        let (next, step, threads) = self.go(stage, stopping, view);
        self.stage = next;
        let wait = match (&self.stage, step) {
            (Shaking::Takes(EntryStep::Receive, _) | Shaking::Linger(_), Step::Waits(_)) => Some(Wait::Read),
            (Shaking::Send(..) | Shaking::Refuse(..), Step::Waits(_)) => Some(Wait::Write),
            _ => None,
        };
        let is_over = self.is_over();
        if let Some(slot) = &mut self.slot {
            slot.waits(wait, view.now);
            if is_over {
                slot.give_back(view.now);
            }
        }
        (step, threads)
    }

    /// True if its handshake is under way, with or without a slot: it was neither cut nor stopped.
    fn goes_on(&self, to: impl FnOnce(&mut Slots<Stream>, u64) -> bool) -> bool {
        self.slot.as_ref().is_none_or(|slot| slot.advance(to))
    }

    fn go(
        &mut self,
        stage: Shaking,
        stopping: bool,
        view: &mut View<'_>,
    ) -> (Shaking, Step, Option<(Reader, Writer)>) {
        let next = match stage {
            Shaking::Begin => Shaking::Takes(self.entry.begin(&mut self.inbox, view.wall), Box::new(None)),
            Shaking::Takes(EntryStep::Receive, admitting) => {
                let most = view.random.between(1, self.piece.max(40));
                let taking = match self.stream.receive(most) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        if stopping {
                            self.entry.stopping()
                        } else if view.now < self.deadline {
                            let until = self.deadline;
                            let receive = Shaking::Takes(EntryStep::Receive, admitting);
                            return (receive, Step::Waits(Some(until)), None);
                        } else {
                            self.entry.lost(io::ErrorKind::TimedOut.into())
                        }
                    }
                    Ok(bytes) => {
                        self.inbox.extend_from_slice(&bytes);
                        self.entry.received(&mut self.inbox, bytes.is_empty(), view.wall)
                    }
                    Err(e) => self.entry.lost(e),
                };
                Shaking::Takes(taking, admitting)
            }
            Shaking::Takes(EntryStep::Claim(..) | EntryStep::Admit(_), admitting)
                if !self.goes_on(|slots, slot| slots.input_complete(slot, view.now)) =>
            {
                Shaking::Takes(self.entry.stopping(), admitting)
            }
            Shaking::Takes(EntryStep::Claim(call, word), admitting) => {
                if (view.full)() {
                    let claim = Shaking::Takes(EntryStep::Claim(call, word), admitting);
                    return (claim, Step::Waits(None), None);
                }
                let _ = view.events.try_send(DispatchEvent::Call(call));
                Shaking::Claimed(word, view.now + CLAIM)
            }
            Shaking::Claimed(word, until) => {
                let message = word.try_recv();
                if message == Err(TryRecvError::Empty) && view.now < until {
                    return (Shaking::Claimed(word, until), Step::Waits(Some(until)), None);
                }
                Shaking::Takes(self.entry.claimed(message.ok()), Box::new(None))
            }
            Shaking::Takes(EntryStep::Admit(request), admitting) => {
                if (view.full)() {
                    let admit = Shaking::Takes(EntryStep::Admit(request), admitting);
                    return (admit, Step::Waits(None), None);
                }
                let (reply, verdict) = crossbeam_channel::bounded(1);
                let stream = Arc::new(self.stream.clone());
                let _ = view.events.try_send(DispatchEvent::Admit(request, stream, reply));
                if self.fails == Fails::BeforeVerdict {
                    self.gone()
                } else {
                    Shaking::Verdict(verdict)
                }
            }
            Shaking::Verdict(verdict) => match verdict.try_recv() {
                Err(TryRecvError::Empty) => return (Shaking::Verdict(verdict), Step::Waits(None), None),
                Err(TryRecvError::Disconnected) => panic!("a newcomer got no verdict"),
                Ok(Err(refusal)) => Shaking::Takes(self.entry.decided(Err(refusal)), Box::new(None)),
                Ok(Ok(admitted)) => {
                    let admission = Admission::new(admitted.id, view.events.clone());
                    self.admitted = Some((admitted.id, admitted.outbox.clone()));
                    let taking = self.entry.decided(Ok(&admitted.grant));
                    Shaking::Takes(taking, Box::new(Some(Admitting { admission, admitted })))
                }
            },
            Shaking::Takes(EntryStep::Send(item), admitting) => Shaking::Send(bytes_of(&item), admitting),
            Shaking::Send(mut bytes, mut admitting) => {
                let most = bytes.len().min(view.random.between(1, self.piece.max(100)));
                let written = match self.stream.send(&bytes[..most]) {
                    _ if self.fails == Fails::Connected => Err(io::ErrorKind::BrokenPipe.into()),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock && view.now < self.deadline => {
                        let until = self.deadline;
                        return (Shaking::Send(bytes, admitting), Step::Waits(Some(until)), None);
                    }
                    written => written,
                };
                match written {
                    Ok(written) if written < bytes.len() => {
                        bytes.drain(..written);
                        Shaking::Send(bytes, admitting)
                    }
                    Ok(_) => Shaking::Takes(self.entry.sent(), admitting),
                    Err(e) => {
                        if let Some(admitting) = &mut *admitting {
                            admitting.admission.started(Err(e.kind().into()));
                        }
                        Shaking::Takes(self.entry.lost(e), admitting)
                    }
                }
            }
            Shaking::Takes(EntryStep::Start, admitting) => {
                let Some(mut admitting) = *admitting else {
                    panic!("no newcomer was admitted");
                };
                if !self.goes_on(Slots::admitted) {
                    admitting.admission.started(Err(io::ErrorKind::TimedOut.into()));
                    self.stream.shut_down();
                    return (Shaking::Started(admitting.admission), Step::Moved, None);
                }
                let (started, threads) = self.start(admitting.admitted, view);
                admitting.admission.started(started);
                return (Shaking::Started(admitting.admission), Step::Moved, threads);
            }
            Shaking::Takes(EntryStep::End(why), admitting) if admitting.is_some() => {
                self.turned = Some(why);
                self.stream.shut_down();
                let Some(admitting) = *admitting else {
                    return (Shaking::Over, Step::Moved, None);
                };
                Shaking::Started(admitting.admission)
            }
            Shaking::Takes(EntryStep::End(why), _) => {
                let answer = why.answer(&self.environment).as_ref().map(bytes_of);
                self.turned = Some(why);
                Shaking::Refuse(answer.unwrap_or_default(), view.now + LINGER)
            }
            Shaking::Started(admission) => {
                if (view.full)() {
                    return (Shaking::Started(admission), Step::Waits(None), None);
                }
                // It reports its end to the dispatcher.
                drop(admission);
                Shaking::Over
            }
            Shaking::Refuse(mut bytes, until) => match self.stream.send(&bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && view.now < until => {
                    return (Shaking::Refuse(bytes, until), Step::Waits(Some(until)), None);
                }
                Ok(written) if written < bytes.len() => {
                    bytes.drain(..written);
                    Shaking::Refuse(bytes, until)
                }
                _ => {
                    self.stream.end();
                    Shaking::Linger(until)
                }
            },
            Shaking::Linger(until) => match self.stream.receive(4096) {
                Ok(bytes) if !bytes.is_empty() => Shaking::Linger(until),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && view.now < until => {
                    return (Shaking::Linger(until), Step::Waits(Some(until)), None);
                }
                _ => self.gone(),
            },
            Shaking::Over => return (Shaking::Over, Step::Over, None),
        };
        (next, Step::Moved, None)
    }

    fn gone(&self) -> Shaking {
        self.stream.shut_down();
        Shaking::Over
    }

    fn start(
        &mut self,
        admitted: Admitted<Grant>,
        view: &View<'_>,
    ) -> (io::Result<SimThreads>, Option<(Reader, Writer)>) {
        let outbox = admitted.outbox.clone();
        outbox.open(Box::new(SimTransmit::new(self.stream.clone())));
        if self.fails == Fails::Threads {
            outbox.abort();
            outbox.shut();
            outbox.discard();
            self.stream.shut_down();
            return (Err(io::ErrorKind::OutOfMemory.into()), None);
        }
        let ended = Arc::new(AtomicBool::new(false));
        let mut halves = plain(Arc::new(self.stream.clone()), view.pool.clone());
        halves.inbox.bytes_mut().unsplit(std::mem::take(&mut self.inbox));
        let reader = Reader {
            id: admitted.id,
            stream: self.stream.clone(),
            incoming: Incoming::new(admitted.grant.decoder, halves.inbox, Some(view.write_timeout)),
            receive: halves.receive,
            unfinished: Unfinished::new(admitted.credit.budget()),
            credit: Arc::clone(&admitted.credit),
            outbox: outbox.clone(),
            ended: Arc::clone(&ended),
            stage: Reading::Decode,
            piece: self.piece,
        };
        let limit = view.write_timeout;
        let writer = Writer::new(Some(admitted.id), &outbox, &self.stream, LINGER, limit);
        let threads = SimThreads { ended };
        (Ok(threads), Some((reader, writer)))
    }
}
