//! One connection of either end: its codec, its way into the dispatcher, and
//! the table of those that are open.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use crossbeam_channel::{Receiver, Sender};

use super::now;
use crate::opflex::message::{Decoder, Incoming};
use crate::opflex::peer::ConnectionId;
use crate::opflex::rpc;
use crate::transport::{
    Decode, EndReason, Halves, Limits, Link, LinkConfig, Outbox, Outgoing, PushError, Sink,
};

/// Events that wait for a dispatcher. Enough that a burst of readers need not
/// wait; when it is full they do, and their peers are held back by their
/// sockets.
pub(super) const EVENTS: usize = 256;

/// Batches of one connection that may wait for the dispatcher, so that who
/// sends much gets its turn and no more. A batch is what one read brought.
const TURNS: usize = 4;

/// Frames of one connection that follow each other go to it together, up to so
/// many bytes.
const RUN: usize = 64 * 1024;

/// From this length on the buffer of an unfinished message doubles.
const LONG: usize = 32 * 1024;

/// What the threads of a connection tell.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// The threads run, or could not be started.
    Started(ConnectionId, io::Result<Link>),
    /// The reader found messages.
    Messages(ConnectionId, Vec<Incoming>),
    /// Bytes came that are no whole message yet.
    Heard(ConnectionId),
    /// The reader has come to an end.
    Ended(ConnectionId, EndReason),
    /// The threads are about to end.
    Finished(ConnectionId),
}

/// What a dispatcher has to know of a connection before its threads start.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) id: ConnectionId,
    pub(super) outbox: Outbox,
    /// Who is there, for the log.
    pub(super) peer: String,
    turns: Receiver<()>,
}

/// A connection whose threads are still to be started.
#[derive(Debug)]
pub(super) struct Unstarted {
    id: ConnectionId,
    outbox: Outbox,
    turns: Sender<()>,
    queue: Limits,
}

/// A new connection: what the dispatcher is told first, and what is then
/// started.
pub(super) fn open(id: ConnectionId, peer: String, queue: Limits) -> (Opened, Unstarted) {
    let outbox = Outbox::new(queue);
    let (sender, receiver) = crossbeam_channel::bounded(TURNS);
    let opened = Opened {
        id,
        outbox: outbox.clone(),
        peer,
        turns: receiver,
    };
    let unstarted = Unstarted {
        id,
        outbox,
        turns: sender,
        queue,
    };
    (opened, unstarted)
}

/// Who may deal with messages on the thread of the reader that found them.
pub(super) trait AtOnce: Send + Sync {
    /// Deals with the messages, and says whether the connection goes on;
    /// `None` where they have to wait for their turn.
    fn deal(&self, id: ConnectionId, messages: &mut Vec<Incoming>) -> Option<bool>;
}

impl Unstarted {
    /// Starts both threads, and tells the dispatcher.
    pub(super) fn start<E: From<LinkEvent> + Send + 'static>(
        self,
        halves: Halves,
        decoder: Decoder,
        events: &Sender<E>,
        at_once: Option<Arc<dyn AtOnce>>,
        config: LinkConfig,
    ) {
        let id = self.id;
        let sink = Deliver {
            id,
            at_once,
            events: events.clone(),
            turns: self.turns,
            outbox: self.outbox.clone(),
            queue: self.queue,
        };
        let codec = Codec {
            decoder,
            wanted: 0,
            id,
            events: events.clone(),
            heard: now(),
        };
        let link = Link::start(halves, codec, self.outbox, sink, config);
        let _ = events.send(LinkEvent::Started(id, link).into());
    }
}

/// How often a long message tells that it is still on its way.
const HEARD: Duration = Duration::from_secs(5);

/// [`Decoder`] as the transport's codec.
struct Codec<E> {
    decoder: Decoder,
    wanted: usize,
    id: ConnectionId,
    events: Sender<E>,
    /// When the peer was last heard of.
    heard: Instant,
}

impl<E: From<LinkEvent> + Send + 'static> Decode for Codec<E> {
    type Item = Incoming;
    type Error = rpc::Error;

    fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Incoming>) -> Result<(), rpc::Error> {
        let result = self.decoder.decode(input, items);
        if !input.is_empty() {
            let now = now();
            if items.is_empty() && now > self.heard + HEARD {
                let _ = self.events.send(LinkEvent::Heard(self.id).into());
                self.heard = now;
            }
        }
        // Nobody announces a length. What is long already may become longer.
        self.wanted = if input.len() > LONG { usize::MAX } else { 0 };
        result
    }

    fn wanted(&self) -> usize {
        self.wanted
    }
}

/// Hands what a reader finds to the dispatcher.
struct Deliver<E> {
    id: ConnectionId,
    at_once: Option<Arc<dyn AtOnce>>,
    events: Sender<E>,
    turns: Sender<()>,
    outbox: Outbox,
    queue: Limits,
}

impl<E: From<LinkEvent> + Send + 'static> Sink<Incoming> for Deliver<E> {
    fn items(&mut self, items: &mut Vec<Incoming>, _bytes: usize) -> bool {
        if items.is_empty() {
            return true;
        }
        // Who asks and does not take the answers is heard again when it does.
        // The writer's time limit ends this wait.
        if self.outbox.is_half_full() {
            let half = usize::try_from(self.queue.bytes / 2).unwrap_or(usize::MAX);
            self.outbox.wait_for_room(half, None);
        }
        if let Some(desk) = self.at_once.as_ref().filter(|_| self.turns.is_empty())
            && let Some(goes_on) = desk.deal(self.id, items)
        {
            return goes_on;
        }
        // The dispatcher drops the other end with the connection.
        self.turns.send(()).is_ok()
            && self
                .events
                .send(LinkEvent::Messages(self.id, std::mem::take(items)).into())
                .is_ok()
    }

    fn ended(&mut self, reason: EndReason) {
        let _ = self.events.send(LinkEvent::Ended(self.id, reason).into());
    }

    fn finished(&mut self) {
        let _ = self.events.send(LinkEvent::Finished(self.id).into());
    }
}

/// The connections whose threads run, of one dispatcher.
#[derive(Debug, Default)]
pub(super) struct Links {
    open: HashMap<ConnectionId, Entry>,
    run: Run,
}

/// Frames for one connection that have not been given to it yet.
#[derive(Debug, Default)]
struct Run {
    to: Option<ConnectionId>,
    frames: Vec<Bytes>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    outbox: Outbox,
    turns: Option<Receiver<()>>,
    peer: String,
    link: Option<Link>,
    finished: bool,
    abort: bool,
}

impl Links {
    pub(super) fn add(&mut self, opened: Opened) {
        let entry = Entry {
            outbox: opened.outbox,
            turns: Some(opened.turns),
            peer: opened.peer,
            link: None,
            finished: false,
            abort: false,
        };
        self.open.insert(opened.id, entry);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Who is there, for the log.
    pub(super) fn peer(&self, id: ConnectionId) -> &str {
        self.open.get(&id).map_or("nobody", |entry| &entry.peer)
    }

    /// Takes a frame to be sent. It goes out with the next one for somebody
    /// else, or with [`flush`](Self::flush).
    ///
    /// # Errors
    /// Who did not get what was taken before, because its queue is full.
    pub(super) fn send(&mut self, id: ConnectionId, frame: Bytes) -> Result<(), ConnectionId> {
        // What is long, and may be shared with others, is not copied.
        let joins = self.run.to == Some(id) && self.run.bytes + frame.len() <= RUN;
        let sent = if joins { Ok(()) } else { self.flush() };
        self.run.to = Some(id);
        self.run.bytes += frame.len();
        self.run.frames.push(frame);
        sent
    }

    /// Sends all that was taken.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(super) fn flush(&mut self) -> Result<(), ConnectionId> {
        let Some(id) = self.run.to.take() else {
            return Ok(());
        };
        let bytes = std::mem::take(&mut self.run.bytes);
        let frames = u32::try_from(self.run.frames.len()).unwrap_or(u32::MAX);
        let body = match self.run.frames.pop() {
            // One alone may be shared with others.
            Some(only) if self.run.frames.is_empty() => only,
            last => {
                let mut body = Vec::with_capacity(bytes);
                for frame in self.run.frames.drain(..).chain(last) {
                    body.extend_from_slice(&frame);
                }
                Bytes::from(body)
            }
        };
        let Some(entry) = self.open.get(&id) else {
            return Ok(());
        };
        match entry.outbox.push_now(Outgoing::whole(body, frames)) {
            Err(PushError::Full(_)) => Err(id),
            _ => Ok(()),
        }
    }

    /// The queue of a connection, for an answer that comes later.
    pub(super) fn outbox(&self, id: ConnectionId) -> Option<Outbox> {
        Some(self.open.get(&id)?.outbox.clone())
    }

    /// One batch of this connection is done with.
    pub(super) fn took_turn(&self, id: ConnectionId) {
        if let Some(turns) = self.open.get(&id).and_then(|entry| entry.turns.as_ref()) {
            let _ = turns.try_recv();
        }
    }

    /// Whether a connection is there and has not been closed here.
    pub(super) fn is_open(&self, id: ConnectionId) -> bool {
        self.open.get(&id).is_some_and(|entry| entry.turns.is_some())
    }

    /// Ends a connection once what waits is sent.
    pub(super) fn close(&mut self, id: ConnectionId) {
        // Who is closed need not be told that it is too slow.
        if self.run.to == Some(id) {
            let _ = self.flush();
        }
        if let Some(entry) = self.open.get_mut(&id) {
            // Its reader waits for no turn any more.
            entry.turns = None;
            entry.outbox.close();
        }
    }

    pub(super) fn close_all(&mut self) {
        for entry in self.open.values_mut() {
            entry.turns = None;
            entry.outbox.close();
        }
    }

    /// Ends a connection at once.
    pub(super) fn abort(&mut self, id: ConnectionId) {
        if let Some(entry) = self.open.get_mut(&id) {
            entry.abort();
        }
    }

    pub(super) fn abort_all(&mut self) {
        self.open.values_mut().for_each(Entry::abort);
    }

    /// The threads run, or not; says whether they do.
    pub(super) fn started(&mut self, id: ConnectionId, link: io::Result<Link>) -> io::Result<()> {
        let Some(entry) = self.open.get_mut(&id) else {
            return Ok(());
        };
        match link {
            Ok(link) => {
                if entry.abort {
                    link.abort();
                }
                entry.link = Some(link);
                if entry.finished {
                    self.remove(id);
                }
                Ok(())
            }
            Err(e) => {
                self.open.remove(&id);
                Err(e)
            }
        }
    }

    /// The threads are about to end. True when nothing of the connection is
    /// left.
    pub(super) fn finished(&mut self, id: ConnectionId) -> bool {
        let Some(entry) = self.open.get_mut(&id) else {
            return false;
        };
        entry.finished = true;
        let started = entry.link.is_some();
        if started {
            self.remove(id);
        }
        started
    }

    fn remove(&mut self, id: ConnectionId) {
        if let Some(link) = self.open.remove(&id).and_then(|entry| entry.link) {
            link.join();
        }
    }
}

impl Entry {
    fn abort(&mut self) {
        self.turns = None;
        self.abort = true;
        self.outbox.close();
        if let Some(link) = &self.link {
            link.abort();
        }
    }
}
