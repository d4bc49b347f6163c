//! The threads that read the logs of instances, one for each stream. A thread reads a piece after the other,
//! as far as its stream has credit.
//!
//! ```text
//!  agent thread ── Open, Credit, Close, Ended ─▶ Stream ─▶ ssntp-stream ── frames ─▶ client
//!                                                             │
//!                                                             └ stdout.log.1, stdout.log, …
//! ```
//!
//! The agent's thread changes a stream under its lock, for which it never waits long, because no
//! file is read under the lock. There is no queue, so only the number of streams ([`MOST`]) has a
//! limit.
//!
//! | file | holds |
//! |---|---|
//! | `reader` | the next piece of a stream, from the instance's log files |

mod reader;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, warn};
use uuid::Uuid;

use self::reader::{Piece, Reader, Wanted};
use super::control::StreamOrder;
use ssntp::client::{ClientHandle, SendFault};
use ssntp::proto::Frame;
use ssntp_payload::{StreamEndReason, StreamEnded, stream_opened};
use ssntp_transport::{NEVER, locked, threads};

/// The maximum number of streams: twice the number that a scheduler opens to one node, because a stream
/// that was closed counts until its thread has noticed.
const MOST: usize = 128;
/// The pause after a read that found no more output, and after a frame for which the client had no room, before
/// the thread tries again.
const LOOK: Duration = Duration::from_millis(100);
/// The time for which the agent waits for the ends of the threads, which may wait for a disk that
/// does not answer.
const LAST_READ: Duration = Duration::from_millis(500);

/// The streams, by their UUIDs. A stream stays until its thread has ended.
type Table = BTreeMap<Uuid, Arc<Stream>>;

/// The streams of an agent.
#[derive(Debug)]
pub(crate) struct Streams {
    client: ClientHandle,
    table: Arc<Mutex<Table>>,
    /// Each thread has a clone; `None` once the agent ends.
    alive: Option<Sender<()>>,
    /// Disconnected once all threads have ended.
    ended: Receiver<()>,
}

#[derive(Debug)]
struct Stream {
    wanted: Mutex<Wanted>,
    /// Notified when `wanted` changes.
    changes: Condvar,
}

/// Adds a stream.
///
/// # Errors
/// There is no room for it, and this ends it; `None` if it is there already.
fn add(table: &mut Table, wanted: Wanted) -> Result<Arc<Stream>, Option<StreamEnded>> {
    let id = wanted.open.stream;
    if table.contains_key(&id) {
        // Answers name a stream by its UUID, so a refusal would end the first stream. The
        // scheduler refuses the second one before it arrives here.
        debug!("stream {id} is open already; it is not opened again");
        return Err(None);
    }
    if table.len() >= MOST {
        let text = format!("the instance's node has {MOST} streams already");
        return Err(Some(StreamEnded::new(id, StreamEndReason::TOO_MANY, text)));
    }
    let stream = Arc::new(Stream {
        wanted: Mutex::new(wanted),
        changes: Condvar::new(),
    });
    table.insert(id, Arc::clone(&stream));
    Ok(stream)
}

impl Streams {
    /// No streams yet. Their frames are sent with this client.
    pub(crate) fn new(client: ClientHandle) -> Self {
        let (alive, ended) = bounded(0);
        Self {
            client,
            table: Arc::default(),
            alive: Some(alive),
            ended,
        }
    }

    /// Carries out an order. Does not wait. Returns the end of a stream that could not be opened.
    pub(crate) fn take(&self, order: StreamOrder) -> Option<Frame> {
        match order {
            StreamOrder::Open { open, place, runs } => {
                let wanted = Wanted {
                    open,
                    dir: place.dir().to_owned(),
                    over: !runs,
                    closed: false,
                };
                return self.open(wanted).map(|ended| ended.frame());
            }
            StreamOrder::Credit(credit) => self.change(|wanted| {
                if wanted.open.stream == credit.stream {
                    wanted.open.credit = wanted.open.credit.saturating_add(credit.bytes);
                }
            }),
            StreamOrder::Close(stream) => self.change(|wanted| wanted.closed |= wanted.open.stream == stream),
            StreamOrder::CloseAll => self.change(|wanted| wanted.closed = true),
            StreamOrder::Ended(instance) => {
                self.change(|wanted| wanted.over |= wanted.open.instance == instance);
            }
        }
        None
    }

    fn open(&self, wanted: Wanted) -> Option<StreamEnded> {
        let id = wanted.open.stream;
        let stream = match add(&mut locked(&self.table), wanted) {
            Ok(stream) => stream,
            Err(ended) => return ended,
        };
        let (client, table, alive) = (self.client.clone(), Arc::clone(&self.table), self.alive.clone());
        let started = threads::spawn("ssntp-stream", move || {
            let _alive = alive;
            stream.run(&client);
            locked(&table).remove(&id);
        });
        let why = started.err()?;
        locked(&self.table).remove(&id);
        let text = format!("the instance's node cannot start a thread: {why}");
        Some(StreamEnded::new(id, StreamEndReason::TOO_MANY, text))
    }

    fn change(&self, change: impl Fn(&mut Wanted)) {
        for stream in locked(&self.table).values() {
            change(&mut locked(&stream.wanted));
            stream.changes.notify_one();
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.take(StreamOrder::CloseAll);
        self.alive = None;
        if self.ended.recv_timeout(LAST_READ) == Err(RecvTimeoutError::Timeout) {
            warn!("a thread that reads a log has not ended within {LAST_READ:?}; the agent ends without it");
        }
    }
}

impl Stream {
    /// Sends the frames of the stream, until it ends or is closed.
    fn run(&self, client: &ClientHandle) {
        let open = locked(&self.wanted).open;
        let mut reader = Reader::new(open.outputs);
        // StreamOpened is the first frame of every stream, before any data.
        let mut next = Some((stream_opened(open.stream), false));
        while let Some((frame, is_last)) = next
            && self.send(client, frame)
            && !is_last
        {
            next = self.next(&mut reader);
        }
    }

    /// The next frame, and true if it is the last one; `None` once the stream is closed.
    fn next(&self, reader: &mut Reader) -> Option<(Frame, bool)> {
        loop {
            let wanted = locked(&self.wanted).clone();
            if wanted.closed {
                return None;
            }
            let stream = wanted.open.stream;
            let ended = match reader.read(&wanted) {
                Ok(Piece::Data(data)) => {
                    // Further credit may have been added since.
                    let credit = &mut locked(&self.wanted).open.credit;
                    *credit = credit.saturating_sub(data.cost());
                    return Some((data.frame(), false));
                }
                Ok(Piece::NotYet) => {
                    self.wait(LOOK, |now| now.over == wanted.over);
                    continue;
                }
                Ok(Piece::NoCredit) => {
                    self.wait(NEVER, |now| now.open.credit == wanted.open.credit);
                    continue;
                }
                Ok(Piece::End) => StreamEnded::new(stream, StreamEndReason::DONE, ""),
                Err(e) => {
                    debug!("instance {}: its log: {e}", wanted.open.instance);
                    let text = format!("its log cannot be read: {e}");
                    StreamEnded::new(stream, StreamEndReason::UNREADABLE, text)
                }
            };
            return Some((ended.frame(), true));
        }
    }

    /// Sends a frame; false if the stream or its session has ended.
    fn send(&self, client: &ClientHandle, mut frame: Frame) -> bool {
        loop {
            match client.try_send(frame) {
                Ok(()) => return true,
                // The bytes were read from the log already, so the frame is kept until there is room.
                Err(e) if matches!(e.fault(), SendFault::Full) => frame = e.into_frame(),
                Err(_) => return false,
            }
            self.wait(LOOK, |_| true);
            if locked(&self.wanted).closed {
                return false;
            }
        }
    }

    /// Waits while the stream is not closed and this is true of it, for at most this time.
    fn wait(&self, time: Duration, is_same: impl Fn(&Wanted) -> bool) {
        let waits = |now: &mut Wanted| !now.closed && is_same(now);
        drop(self.changes.wait_timeout_while(locked(&self.wanted), time, waits));
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use ssntp_payload::{OpenStream, Outputs};

    #[test]
    fn a_second_stream_with_the_same_uuid_does_not_end_the_first() {
        let mut table = Table::default();
        let wanted = |stream, credit| Wanted {
            open: OpenStream {
                stream: Uuid::from_u128(stream),
                instance: Uuid::nil(),
                outputs: Outputs::BOTH,
                follow: true,
                tail: None,
                credit,
            },
            dir: PathBuf::new(),
            over: false,
            closed: false,
        };
        for stream in 1..=MOST as u128 {
            add(&mut table, wanted(stream, 7)).unwrap();
        }
        assert_eq!(add(&mut table, wanted(1, 8)).unwrap_err(), None);
        assert_eq!(locked(&table[&Uuid::from_u128(1)].wanted).open.credit, 7);
        let refused = add(&mut table, wanted(MOST as u128 + 1, 7)).unwrap_err().unwrap();
        assert_eq!(refused.reason, StreamEndReason::TOO_MANY);
        assert_eq!(table.len(), MOST);
    }
}
