//! The thread that reads the logs of instances for all streams. It reads a piece for each stream in
//! turn, as far as the stream has credit.
//!
//! ```text
//!  agent thread ── Open, Credit, Close, Ended ─▶ table ─▶ ssntp-streams ── frames ─▶ client
//!                                             one entry for  │
//!                                             each stream    └ stdout.log.1, stdout.log, …
//! ```
//!
//! The agent's thread changes the table under its lock, for which it never waits long, because no
//! file is read under the lock. There is no queue, so only the number of streams ([`MOST`]) has a
//! limit.
//!
//! | file | holds |
//! |---|---|
//! | `reader` | the next piece of a stream, from the instance's log files |

mod reader;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, warn};
use uuid::Uuid;

use self::reader::{Piece, Reader};
use super::control::StreamOrder;
use ssntp::client::{ClientHandle, SendFault};
use ssntp::proto::{Frame, OpenStream, StreamEndReason, StreamEnded, stream_opened};
use ssntp_transport::threads;

/// The maximum number of streams. It is the number that a scheduler opens to one node.
const MOST: usize = 64;
/// The pause before a log is read again from which no more output could be read.
const LOOK: Duration = Duration::from_millis(100);
/// The time for which the agent waits for the end of the thread, which may wait for a disk that
/// does not answer.
const LAST_READ: Duration = Duration::from_millis(500);

/// The handle of the thread, and the table of streams.
#[derive(Debug)]
pub(crate) struct Streams {
    shared: Arc<Table>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected once the thread has ended.
    ended: Receiver<()>,
}

#[derive(Debug, Default)]
struct Table {
    requests: Mutex<Requests>,
    /// Notified when the requests change.
    changes: Condvar,
}

#[derive(Debug, Default)]
struct Requests {
    streams: BTreeMap<Uuid, Wanted>,
    /// True if the table has changed since the thread has copied it.
    changed: bool,
    stop: bool,
}

/// A stream as its controller has requested it.
#[derive(Clone, Debug)]
struct Wanted {
    /// The request. Its credit is the credit that is left.
    open: OpenStream,
    dir: PathBuf,
    /// True if the instance has ended and writes no more output.
    over: bool,
}

impl Requests {
    /// Adds a stream. If there is no room for it, the stream's end is returned.
    fn open(&mut self, wanted: Wanted) -> Option<StreamEnded> {
        let stream = wanted.open.stream;
        if self.streams.contains_key(&stream) {
            // Answers name a stream by its UUID, so a refusal would end the first stream. The
            // scheduler refuses the second one before it arrives here.
            debug!("stream {stream} is open already; it is not opened again");
            return None;
        }
        if self.streams.len() >= MOST {
            let text = format!("the instance's node has {MOST} streams already");
            return Some(StreamEnded::new(stream, StreamEndReason::TOO_MANY, text));
        }
        self.streams.insert(stream, wanted);
        None
    }
}

impl Streams {
    /// Starts the thread. It sends frames with this client.
    pub(crate) fn start(client: ClientHandle) -> io::Result<Self> {
        let shared = Arc::new(Table::default());
        let (alive, ended) = bounded(0);
        let served = Arc::clone(&shared);
        let thread = threads::spawn("ssntp-streams", move || {
            let _alive: Sender<()> = alive;
            served.run(&client);
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
            ended,
        })
    }

    /// Carries out an order. Does not wait. Returns the end of a stream for which there is no room.
    pub(crate) fn take(&self, order: StreamOrder) -> Option<Frame> {
        let mut requests = self.shared.lock();
        match order {
            StreamOrder::Open { open, place, runs } => {
                let wanted = Wanted {
                    open,
                    dir: place.dir().to_owned(),
                    over: !runs,
                };
                if let Some(ended) = requests.open(wanted) {
                    return Some(ended.frame());
                }
            }
            StreamOrder::Credit(credit) => {
                if let Some(wanted) = requests.streams.get_mut(&credit.stream) {
                    wanted.open.credit = wanted.open.credit.saturating_add(credit.bytes);
                }
            }
            StreamOrder::Close(stream) => drop(requests.streams.remove(&stream)),
            StreamOrder::CloseAll => requests.streams.clear(),
            StreamOrder::Ended(instance) => {
                let of_it = |wanted: &&mut Wanted| wanted.open.instance == instance;
                for wanted in requests.streams.values_mut().filter(of_it) {
                    wanted.over = true;
                }
            }
        }
        // The flag is set under the lock, so the thread cannot miss it between its check and its
        // sleep.
        requests.changed = true;
        drop(requests);
        self.shared.changes.notify_one();
        None
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changes.notify_one();
        if self.ended.recv_timeout(LAST_READ) == Err(RecvTimeoutError::Timeout) {
            warn!("the thread that reads logs has not ended within {LAST_READ:?}; the agent ends without it");
            return;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The time at which the thread serves a stream again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NextTurn {
    /// After a change of the table: the stream has no credit, or has ended.
    OnChange,
    /// After [`LOOK`].
    Later,
    /// At once.
    Now,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, client: &ClientHandle) {
        let mut readers: BTreeMap<Uuid, Served> = BTreeMap::new();
        let mut turn = NextTurn::OnChange;
        while let Some(wanted) = self.next(turn) {
            // This closes the files of streams that have ended.
            readers.retain(|stream, _| wanted.contains_key(stream));
            turn = NextTurn::OnChange;
            for (stream, wanted) in wanted {
                let served = readers.entry(stream).or_insert_with(|| Served::new(&wanted));
                turn = turn.max(self.serve(client, stream, &wanted, served));
            }
        }
    }

    /// Waits until the next turn, and copies the table; `None` when the agent ends.
    fn next(&self, turn: NextTurn) -> Option<BTreeMap<Uuid, Wanted>> {
        let mut requests = self.lock();
        while !requests.changed && !requests.stop && turn != NextTurn::Now {
            if turn == NextTurn::OnChange {
                requests = self
                    .changes
                    .wait(requests)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.changes.wait_timeout(requests, LOOK);
            requests = waited.unwrap_or_else(PoisonError::into_inner).0;
            break;
        }
        // The table is copied, so that files are read without the lock.
        requests.changed = false;
        (!requests.stop).then(|| requests.streams.clone())
    }

    /// Sends the next piece of a stream, or its end.
    fn serve(&self, client: &ClientHandle, stream: Uuid, wanted: &Wanted, served: &mut Served) -> NextTurn {
        let outgoing = match served.unsent.take() {
            Some(outgoing) => outgoing,
            None => match served.reader.read(wanted) {
                Ok(Piece::Data(data)) => Outgoing {
                    cost: data.cost(),
                    frame: data.frame(),
                    is_last: false,
                },
                Ok(Piece::Searching) => return NextTurn::Now,
                Ok(Piece::NotYet) => return NextTurn::Later,
                Ok(Piece::NoCredit) => return NextTurn::OnChange,
                Ok(Piece::End) => Outgoing::last(StreamEnded::new(stream, StreamEndReason::DONE, "")),
                Err(e) => {
                    debug!("instance {}: its log: {e}", wanted.open.instance);
                    let text = format!("its log cannot be read: {e}");
                    Outgoing::last(StreamEnded::new(stream, StreamEndReason::UNREADABLE, text))
                }
            },
        };
        let Outgoing { frame, cost, is_last } = outgoing;
        match client.try_send(frame) {
            Ok(()) => {}
            Err(e) if matches!(e.fault(), SendFault::Full) => {
                let frame = e.into_frame();
                // The bytes were read from the log already, so the frame is kept until there is
                // room.
                served.unsent = Some(Outgoing { frame, cost, is_last });
                return NextTurn::Later;
            }
            // The session has ended, and so have its streams.
            Err(_) => {
                self.lock().streams.remove(&stream);
                return NextTurn::OnChange;
            }
        }
        let mut requests = self.lock();
        if is_last {
            requests.streams.remove(&stream);
        } else if let Some(wanted) = requests.streams.get_mut(&stream) {
            // The credit of the table is reduced and not that of the copy, because further credit
            // may have been added to the table.
            wanted.open.credit = wanted.open.credit.saturating_sub(cost);
        }
        NextTurn::Now
    }
}

/// A stream that the thread serves.
#[derive(Debug)]
struct Served {
    reader: Reader,
    /// A frame for which the client had no room.
    unsent: Option<Outgoing>,
}

impl Served {
    fn new(wanted: &Wanted) -> Self {
        // StreamOpened is the first frame of every stream, before any data.
        Self {
            reader: Reader::new(wanted.open.outputs),
            unsent: Some(Outgoing {
                frame: stream_opened(wanted.open.stream),
                cost: 0,
                is_last: false,
            }),
        }
    }
}

/// A frame of a stream.
#[derive(Debug)]
struct Outgoing {
    frame: Frame,
    /// The credit that the frame uses.
    cost: u32,
    is_last: bool,
}

impl Outgoing {
    fn last(ended: StreamEnded) -> Self {
        Self {
            frame: ended.frame(),
            cost: 0,
            is_last: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp::proto::Outputs;

    #[test]
    fn a_second_stream_with_the_same_uuid_does_not_end_the_first() {
        let mut requests = Requests::default();
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
        };
        for stream in 1..=MOST as u128 {
            assert!(requests.open(wanted(stream, 7)).is_none());
        }
        assert!(requests.open(wanted(1, 8)).is_none());
        assert_eq!(requests.streams[&Uuid::from_u128(1)].open.credit, 7);
        let refused = requests.open(wanted(MOST as u128 + 1, 7)).unwrap();
        assert_eq!(refused.reason, StreamEndReason::TOO_MANY);
        assert_eq!(requests.streams.len(), MOST);
    }
}
