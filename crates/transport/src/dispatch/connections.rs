//! One connection in its runner's table.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Admitted, Core, DispatchEvent, Events};
use crate::deadlines::Deadlines;
use crate::flow::Credit;
use crate::host::after;
use crate::link::Link;
use crate::outbox::Outbox;
use crate::socket::Duplex;
use crate::table::{ConnectionId, Table};

/// The threads of one connection. Tests have connections without threads.
pub trait Threads: Send + 'static {
    /// Waits for both threads, which have reported that they are about to end.
    fn join(self);
}

impl Threads for Link {
    fn join(self) {
        Self::join(self);
    }
}

/// A connection from its admission until its threads are joined.
#[derive(Debug)]
pub(super) struct Connection<T> {
    pub(super) outbox: Outbox,
    /// Shut down to end the connection at once, also while its handshake thread sends the answer.
    stream: Arc<dyn Duplex>,
    credit: Arc<Credit>,
    /// `None` until the threads have been started.
    threads: Option<T>,
    /// True once the connection has begun to end: it sends its queue first.
    ending: bool,
    /// True once its threads have reported that they are about to end.
    finished: bool,
    /// The step in which the dispatcher last sent instead of the connection's writer.
    pub(super) sent_in_step: u64,
}

/// All connections of a runner.
#[derive(Debug)]
pub(super) struct Connections<T> {
    pub(super) table: Table<Connection<T>>,
    /// The time that an ending connection has to send its queue.
    parting: Duration,
    /// The times at which ending connections are aborted.
    cut_off: Deadlines<ConnectionId>,
}

impl<T: Threads> Connections<T> {
    pub(super) fn new(parting: Duration) -> Self {
        Self {
            table: Table::default(),
            parting,
            cut_off: Deadlines::default(),
        }
    }

    /// True if a connection exists and has not begun to end.
    pub(super) fn is_open(&self, id: ConnectionId) -> bool {
        self.table.get(id).is_some_and(|entry| !entry.ending)
    }

    pub(super) fn admit<G>(&mut self, admitted: &Admitted<G>, stream: Arc<dyn Duplex>) {
        self.table.insert(
            admitted.id,
            Connection {
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

    /// Ends a connection after its queue is sent, or at once if `abort` is set. The caller closes
    /// its queue in the flow.
    pub(super) fn end(&mut self, id: ConnectionId, abort: bool, now: Instant) {
        let Some(entry) = self.table.get_mut(id) else {
            return;
        };
        // The time runs from the first end. Otherwise a peer could postpone its end with each
        // further cause of an end.
        if !std::mem::replace(&mut entry.ending, true) {
            self.cut_off.set(id, after(now, self.parting));
        }
        if abort {
            entry.abort();
        }
    }

    /// Notes that the threads of a connection run. True if that connection has ended and is
    /// removed now.
    pub(super) fn started(&mut self, id: ConnectionId, threads: T) -> bool {
        if let Some(entry) = self.table.get_mut(id) {
            entry.threads = Some(threads);
        }
        self.reap(id)
    }

    /// Notes that the threads are about to end. True if the connection is removed now.
    pub(super) fn finished(&mut self, id: ConnectionId) -> bool {
        if let Some(entry) = self.table.get_mut(id) {
            entry.finished = true;
        }
        self.reap(id)
    }

    /// Removes a connection whose threads never ran.
    pub(super) fn never_started(&mut self, id: ConnectionId) -> bool {
        // There is no writer that would count the queue as lost. The drop closes the stream.
        let entry = self.remove(id);
        entry.inspect(|entry| entry.outbox.discard()).is_some()
    }

    /// Joins the threads of a connection that has ended, if they are about to end. True if the
    /// connection is removed now.
    pub(super) fn reap(&mut self, id: ConnectionId) -> bool {
        let over = self
            .table
            .get(id)
            .is_some_and(|entry| entry.ending && entry.finished && entry.threads.is_some());
        if over && let Some(threads) = self.remove(id).and_then(|mut entry| entry.threads.take()) {
            // This does not block: both threads have reported that they do nothing more.
            threads.join();
        }
        over
    }

    fn remove(&mut self, id: ConnectionId) -> Option<Connection<T>> {
        self.cut_off.clear(&id);
        self.table.remove(id)
    }

    /// The time at which the next ending connection is aborted.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.cut_off.next()
    }

    /// Aborts connections that have not sent their queue in time. Otherwise a peer that takes a
    /// byte now and then would keep its connection forever.
    pub(super) fn tick(&mut self, now: Instant) {
        while let Some(id) = self.cut_off.pop(now) {
            if let Some(entry) = self.table.get(id) {
                entry.abort();
            }
        }
    }

    pub(super) fn abort_all(&self) {
        self.table.iter().for_each(|(_, entry)| entry.abort());
    }
}

impl<T> Connection<T> {
    fn abort(&self) {
        self.outbox.abort();
        // The shutdown wakes the reader, and the writer if it is in a write.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl<T> Drop for Connection<T> {
    /// Ends the threads of the connection, also if the dispatcher panics.
    fn drop(&mut self) {
        self.abort();
        self.credit.end();
    }
}

/// Reports to the dispatcher, when it is dropped, whether the threads of an admitted connection
/// run. The report is sent also after a panic, so no connection stays in the table without
/// threads.
#[derive(Debug)]
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

    /// Notes the threads, or the error with which they could not be started.
    pub fn started(&mut self, threads: io::Result<T>) {
        self.threads = Some(threads);
    }
}

impl<C: Core, T: Send + 'static> Drop for Admission<C, T> {
    fn drop(&mut self) {
        let threads = self.threads.take();
        let threads = threads.unwrap_or_else(|| Err(io::Error::other("its handshake was given up")));
        let _ = self.events.send(DispatchEvent::Started(self.id, threads));
    }
}
