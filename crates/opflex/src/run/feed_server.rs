//! The threads that serve the readers of the feed, which are clients of its socket; see `feed`.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, TryRecvError};

use super::config::{CallError, ELEMENT_LOG as LOG, LocalSocket, StartError};
use super::element_side::ElementEvents;
use super::feed::{Feed, READERS, STOPPING, Seat, end};
use super::{local, machine};
use crate::policy_element::ElementCore;
use ssntp_transport::{Acceptance, Duplex, Newcomer};

/// The interval in which the connection of an idle reader is checked.
const IDLE: Duration = Duration::from_secs(1);

/// Listens at the socket. The threads call the dispatcher, so it has to run until all of them have ended,
/// which they do once it has handled `Stop`.
pub(super) fn start(socket: &LocalSocket, events: ElementEvents) -> Result<Acceptance, StartError> {
    // Four more, because a reader that is refused also needs a thread, which sends the refusal.
    local::start(socket, "feed", LOG, READERS + 4, move |newcomer| {
        serve(&events, newcomer)
    })
}

/// Runs `call` with the feed on the dispatcher's thread, and returns its result.
fn on_feed<T: Send + 'static>(
    events: &ElementEvents,
    call: impl FnOnce(&mut Feed, &ElementCore) -> T + Send + 'static,
) -> Result<T, CallError> {
    machine::call(events, |machine, _, _| {
        call(&mut machine.side.feed, &machine.side.core)
    })
}

/// Serves one reader until it disconnects, is too slow, or the element stops.
fn serve(events: &ElementEvents, newcomer: &Newcomer) -> io::Result<()> {
    let joined = on_feed(events, |feed, core| feed.join(core));
    let Seat { id, lines, waiting } = match joined.unwrap_or(Err(STOPPING)) {
        Ok(joined) => joined,
        // The `end` line shows that this is a refusal and not a crash.
        Err(reason) => return local::write_all(newcomer, &end(reason)),
    };
    let _leave = LeaveOnDrop { events, id };
    let mut is_complete = false;
    loop {
        let next = match lines.try_recv() {
            // The state at the beginning is queued piece by piece, each when the queue is empty.
            Err(TryRecvError::Empty) if !is_complete => {
                let more = on_feed(events, move |feed, core| feed.send_next(id, core));
                is_complete = !matches!(more, Ok(true));
                continue;
            }
            Err(TryRecvError::Empty) => lines.recv_timeout(IDLE),
            other => other.map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(text) => {
                local::write_all(newcomer, &text.bytes)?;
                waiting.fetch_sub(text.bytes.len(), Ordering::Relaxed);
            }
            Err(RecvTimeoutError::Timeout) if is_closed(newcomer) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Removes a reader from the feed when its thread ends, also by an error.
struct LeaveOnDrop<'a> {
    events: &'a ElementEvents,
    id: u64,
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        let id = self.id;
        // This fails only if the dispatcher has stopped.
        let _ = on_feed(self.events, move |feed, _| feed.leave(id));
    }
}

/// True if the reader has closed its connection. Bytes that it has sent are dropped.
fn is_closed(stream: &Newcomer) -> bool {
    match stream.try_read(&mut [0; 4096]) {
        Ok(read) => read == 0,
        Err(e) => !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
    }
}
