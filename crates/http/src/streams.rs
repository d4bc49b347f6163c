//! Answers that are streams: each has a thread of its own, and their number has a limit of its own
//! beside that of the connections.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;

use super::limited::Limited;
use ssntp_transport::{Duplex, Halves, Outgoing, locked, threads};

/// The time limit for reading one part.
const READING: Duration = Duration::from_secs(10);

/// Sends the parts of one answer. It has to return when [`Stream::is_over`] is true or a send fails.
pub type Body = Box<dyn FnOnce(&mut Stream) + Send>;

/// The connection of an answer that is sent in parts.
#[derive(Debug)]
pub struct Stream {
    limited: Arc<Limited>,
    halves: Halves,
}

impl Stream {
    pub(super) fn new(limited: Arc<Limited>, halves: Halves) -> Self {
        Self { limited, halves }
    }

    /// Sends a part. Blocks until the system has taken it, for at most 10 s.
    ///
    /// # Errors
    /// The client is gone or does not read, or the server stops. The function has to return then.
    pub fn send(&mut self, part: impl Into<Bytes>) -> io::Result<()> {
        self.limited.restart(READING);
        let part = Outgoing::whole(part.into(), 1);
        self.halves.transmit.transmit(&[part])?;
        self.halves.transmit.idle();
        Ok(())
    }

    /// True if the client has closed its side, or the server stops. A client sends no bytes after
    /// its request, so any input counts as an end.
    pub fn is_over(&self) -> bool {
        self.limited.is_readable()
    }
}

/// The open streams.
#[derive(Debug)]
pub(super) struct Streams {
    name: &'static str,
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    closed: bool,
    open: HashMap<u64, Arc<dyn Duplex>>,
    threads: Vec<JoinHandle<()>>,
}

impl Streams {
    pub(super) fn new(name: &'static str, max: usize) -> Self {
        let state = Mutex::default();
        Self { name, max, state }
    }

    /// A place for another stream; `None` if all places are taken, and after [`stop`](Self::stop).
    pub(super) fn place(self: &Arc<Self>, stream: Arc<dyn Duplex>) -> Option<Place> {
        let mut state = locked(&self.state);
        if state.closed || state.open.len() >= self.max {
            return None;
        }
        state.next += 1;
        let id = state.next;
        // A stop shuts the socket down through this, while the thread of the stream writes to it.
        state.open.insert(id, stream);
        let streams = Arc::clone(self);
        Some(Place { id, streams })
    }

    /// Ends every stream, and joins its thread.
    pub(super) fn stop(&self) {
        let mut state = locked(&self.state);
        state.closed = true;
        for stream in state.open.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// A place among the open streams. Dropping it releases the place.
pub(super) struct Place {
    id: u64,
    streams: Arc<Streams>,
}

impl Place {
    /// Runs the stream on a thread of its own.
    pub(super) fn run(self, mut stream: Stream, body: Body) -> io::Result<()> {
        let streams = Arc::clone(&self.streams);
        let name = format!("{}-stream", streams.name);
        let thread = threads::spawn(name, move || {
            body(&mut stream);
            // Sends close_notify. If the client is gone, this fails without effect.
            let _ = stream.halves.transmit.finish();
            drop(stream);
            drop(self);
        })?;
        let mut state = locked(&streams.state);
        // Threads that have ended are joined here, so that the list does not grow.
        for finished in state.threads.extract_if(.., |thread| thread.is_finished()) {
            let _ = finished.join();
        }
        if state.closed {
            // A stop in the meantime has shut the socket down, but could not join this thread.
            drop(state);
            let _ = thread.join();
        } else {
            state.threads.push(thread);
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.streams.state).open.remove(&self.id);
    }
}
