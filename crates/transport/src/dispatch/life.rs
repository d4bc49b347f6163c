//! One connection in its runner's table.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Admitted, Core, DispatchEvent, Events};
use crate::flow::Credit;
use crate::host::after;
use crate::link::Link;
use crate::outbox::Outbox;
use crate::socket::Duplex;
use crate::table::{ConnectionId, Table};

/// While there are no more connections, the system may keep [`UNSENT_OF_FEW`] bytes for each that
/// it cannot send yet. An accepted one beyond them has a quarter of that, because the memory of all
/// sockets together is bounded.
const FEW: usize = 128;
/// With more of them a writer wakes less often: 1 to 100 is a tenth faster.
const UNSENT_OF_FEW: u32 = 1024 * 1024;

/// The threads of one connection, as their owner sees them.
pub trait Threads: Send + 'static {
    /// Waits for both, which have said that they are about to end.
    fn join(self);
}

impl Threads for Link {
    fn join(self) {
        Self::join(self);
    }
}

/// A connection from its admission until its threads are joined.
#[derive(Debug)]
pub(super) struct Life<T> {
    pub(super) outbox: Outbox,
    /// Shut down to end the connection at once, also while a newcomer is still being told.
    stream: Arc<dyn Duplex>,
    credit: Arc<Credit>,
    /// `None` until the threads have been started.
    threads: Option<T>,
    /// It sends its queue and then ends.
    ending: bool,
    /// Its threads are about to end.
    finished: bool,
    /// The step in which the dispatcher last sent in place of its writer.
    pub(super) sent_in_step: u64,
}

/// All connections of a runner.
#[derive(Debug)]
pub(super) struct Lives<T> {
    table: Table<Life<T>>,
    /// How long an ending connection may take to send its queue.
    parting: Duration,
    /// When ending connections are cut off, in the order of time.
    cut_off: VecDeque<(Instant, ConnectionId)>,
}

impl<T: Threads> Lives<T> {
    pub(super) fn new(parting: Duration) -> Self {
        Self {
            table: Table::default(),
            parting,
            cut_off: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Life<T>> {
        self.table.get_mut(id)
    }

    /// Whether a connection exists and has not begun to end.
    pub(super) fn is_open(&self, id: ConnectionId) -> bool {
        self.table.get(id).is_some_and(|life| !life.ending)
    }

    pub(super) fn admit<G>(&mut self, admitted: &Admitted<G>, stream: Arc<dyn Duplex>) {
        if self.table.len() < FEW {
            // A stream that has failed tells its reader so.
            let _ = stream.set_unsent(UNSENT_OF_FEW);
        }
        self.table.insert(
            admitted.id,
            Life {
                outbox: admitted.outbox.clone(),
                stream,
                credit: Arc::clone(&admitted.credit),
                threads: None,
                ending: false,
                finished: false,
                sent_in_step: 0,
            },
        );
    }

    /// Lets a connection send what waits and end, or ends it at once. Its way out is closed by
    /// the flow.
    pub(super) fn end(&mut self, id: ConnectionId, abort: bool, now: Instant) {
        let Some(life) = self.table.get_mut(id) else {
            return;
        };
        // The time runs from the first end. A peer could put its end off if each further one began
        // anew.
        if !std::mem::replace(&mut life.ending, true) {
            // All have the same time, so the list stays sorted.
            self.cut_off.push_back((after(now, self.parting), id));
        }
        if abort {
            life.abort();
        }
    }

    /// Notes that the threads run. A connection that has ended meanwhile is joined. True
    /// if the connection is removed now.
    pub(super) fn started(&mut self, id: ConnectionId, threads: T) -> bool {
        let Some(life) = self.table.get_mut(id) else {
            return false;
        };
        life.threads = Some(threads);
        self.reap(id)
    }

    /// Notes that the threads are about to end. True if the connection is removed now.
    pub(super) fn finished(&mut self, id: ConnectionId) -> bool {
        if let Some(life) = self.table.get_mut(id) {
            life.finished = true;
        }
        self.reap(id)
    }

    /// Removes a connection whose threads never ran.
    pub(super) fn never_started(&mut self, id: ConnectionId) -> bool {
        // No writer will count what waits as lost. The stream and the queue are closed by the drop.
        let life = self.remove(id);
        life.inspect(|life| life.outbox.discard()).is_some()
    }

    /// Joins the threads of a connection that has ended, if they are about to end. True if
    /// the connection is removed now.
    pub(super) fn reap(&mut self, id: ConnectionId) -> bool {
        let over = self
            .table
            .get(id)
            .is_some_and(|life| life.ending && life.finished && life.threads.is_some());
        if over && let Some(threads) = self.remove(id).and_then(|mut life| life.threads.take()) {
            // It does not block: both threads have said that they do nothing more.
            threads.join();
        }
        over
    }

    fn remove(&mut self, id: ConnectionId) -> Option<Life<T>> {
        let life = self.table.remove(id)?;
        // Only from the front, which is enough to bound the list by the connections that still
        // end. A search for the one in the middle would cost more than it frees.
        while let Some((_, id)) = self.cut_off.front()
            && !self.table.contains(*id)
        {
            self.cut_off.pop_front();
        }
        Some(life)
    }

    /// When the next ending connection is cut off.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.cut_off.front().map(|(at, _)| *at)
    }

    /// Cuts off connections whose time to send their queue is over. Without that, a peer
    /// that takes a byte now and then would keep its connection forever.
    pub(super) fn tick(&mut self, now: Instant) {
        while let Some((at, id)) = self.cut_off.front().copied()
            && at <= now
        {
            self.cut_off.pop_front();
            if let Some(life) = self.table.get(id) {
                life.abort();
            }
        }
    }

    pub(super) fn abort_all(&self) {
        for id in self.table.ids() {
            if let Some(life) = self.table.get(id) {
                life.abort();
            }
        }
    }
}

impl<T> Life<T> {
    fn abort(&self) {
        self.outbox.abort();
        // It wakes the reader, and the writer if it is in the middle of a write.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl<T> Drop for Life<T> {
    /// If the dispatcher has panicked, nobody else ends the threads of its connections.
    fn drop(&mut self) {
        self.abort();
        self.credit.end();
    }
}

/// Tells the dispatcher that the threads of an admitted connection run, or that they never
/// will. Dropping it tells that in any case, also after a panic, so no connection stays in
/// the table without threads.
pub struct Admission<C: Core, T: Send + 'static = Link> {
    id: ConnectionId,
    events: Events<DispatchEvent<C, T>>,
    threads: Option<io::Result<T>>,
}

impl<C: Core, T: Send + 'static> Admission<C, T> {
    /// For a connection that was just admitted.
    pub fn new(id: ConnectionId, events: Events<DispatchEvent<C, T>>) -> Self {
        Self {
            id,
            events,
            threads: None,
        }
    }

    /// Notes the threads, or why they could not be started.
    pub fn started(&mut self, threads: io::Result<T>) {
        self.threads = Some(threads);
    }
}

impl<C: Core, T: Send + 'static> fmt::Debug for Admission<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Admission").field(&self.id).finish()
    }
}

impl<C: Core, T: Send + 'static> Drop for Admission<C, T> {
    fn drop(&mut self) {
        let threads = self.threads.take();
        let threads = threads.unwrap_or_else(|| Err(io::Error::other("its handshake was given up")));
        let _ = self.events.send(DispatchEvent::Started(self.id, threads));
    }
}
