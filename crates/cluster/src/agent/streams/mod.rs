//! The thread that reads the logs of instances for all streams: a piece of each in turn,
//! as far as each has credit.
//!
//! ```text
//!  agent thread ── Open, Credit, Close, Ended ─▶ table ─▶ ssntp-streams ── frames ─▶ client
//!                                             one entry      │
//!                                             a stream       └ stdout.log.1, stdout.log, …
//! ```
//!
//! The agent's thread changes the table under its lock and never waits, because no file is
//! read under the lock. There is no queue, so only the number of streams ([`MOST`]) needs
//! a bound.
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

/// The most streams: what a scheduler opens to one node.
const MOST: usize = 64;
/// The pause between two looks at logs that are followed.
const LOOK: Duration = Duration::from_millis(100);
/// How long the thread may take to end: a disk may not answer.
const LAST_READ: Duration = Duration::from_millis(500);

/// The thread, and the streams that were opened.
#[derive(Debug)]
pub(crate) struct Streams {
    shared: Arc<Table>,
    client: ClientHandle,
    thread: Option<JoinHandle<()>>,
    /// Disconnected once the thread has ended.
    ended: Receiver<()>,
}

#[derive(Debug, Default)]
struct Table {
    asked: Mutex<Asked>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Asked {
    streams: BTreeMap<Uuid, Wanted>,
    /// Something in here has changed since the thread has looked.
    changed: bool,
    stop: bool,
}

/// A stream as it was asked for.
#[derive(Clone, Debug)]
struct Wanted {
    open: OpenStream,
    dir: PathBuf,
    credit: u32,
    /// Nothing more will be written.
    over: bool,
}

impl Asked {
    /// Adds a stream. Gives the end of one that there is no room for.
    fn open(&mut self, wanted: Wanted) -> Option<StreamEnded> {
        let stream = wanted.open.stream;
        if self.streams.contains_key(&stream) {
            // No answer names one of two streams with the same UUID, so a refusal would end the
            // first one. The scheduler refuses the second one before it comes here.
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
    /// Starts the thread, which sends with that client.
    pub(crate) fn start(client: ClientHandle) -> io::Result<Self> {
        let shared = Arc::new(Table::default());
        let (alive, ended) = bounded(0);
        let (served, sender) = (Arc::clone(&shared), client.clone());
        let thread = threads::spawn("ssntp-streams", move || {
            let _alive: Sender<()> = alive;
            served.run(&sender);
        })?;
        Ok(Self {
            shared,
            client,
            thread: Some(thread),
            ended,
        })
    }

    /// Carries out an order. Does not wait.
    pub(crate) fn take(&self, order: StreamOrder) {
        let mut asked = self.shared.lock();
        match order {
            StreamOrder::Open { open, place, runs } => {
                let wanted = Wanted {
                    open,
                    dir: place.dir().to_owned(),
                    credit: open.credit,
                    over: !runs,
                };
                if let Some(ended) = asked.open(wanted) {
                    // If there is no room for this frame, the controller's limit ends it.
                    let _ = self.client.try_send(ended.frame());
                    return;
                }
            }
            StreamOrder::Credit(credit) => {
                if let Some(wanted) = asked.streams.get_mut(&credit.stream) {
                    wanted.credit = wanted.credit.saturating_add(credit.bytes);
                }
            }
            StreamOrder::Close(stream) => drop(asked.streams.remove(&stream)),
            StreamOrder::CloseAll => asked.streams.clear(),
            StreamOrder::Ended(instance) => {
                let of_it = |wanted: &&mut Wanted| wanted.open.instance == instance;
                for wanted in asked.streams.values_mut().filter(of_it) {
                    wanted.over = true;
                }
            }
        }
        // Set under the lock, so the thread cannot miss it between its look and its sleep.
        asked.changed = true;
        drop(asked);
        self.shared.news.notify_one();
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.news.notify_one();
        if self.ended.recv_timeout(LAST_READ) == Err(RecvTimeoutError::Timeout) {
            warn!("the thread that reads logs has not ended in time; the agent ends without it");
            return;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// When the thread looks at a stream again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outlook {
    /// Not before more is asked for: its credit is used up.
    Waits,
    /// There may be more in a while.
    LookAgain,
    /// There may be more at once.
    GoesOn,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, client: &ClientHandle) {
        let mut readers: BTreeMap<Uuid, Served> = BTreeMap::new();
        let mut outlook = Outlook::Waits;
        while let Some(wanted) = self.next(outlook) {
            // Closes the files of streams that are over.
            readers.retain(|stream, _| wanted.contains_key(stream));
            outlook = Outlook::Waits;
            for (stream, wanted) in wanted {
                let served = readers.entry(stream).or_insert_with(|| Served::new(&wanted));
                outlook = outlook.max(self.serve(client, stream, &wanted, served));
            }
        }
    }

    /// The streams, once it is time to look; `None` at the end.
    fn next(&self, outlook: Outlook) -> Option<BTreeMap<Uuid, Wanted>> {
        let mut asked = self.lock();
        while !asked.changed && !asked.stop && outlook != Outlook::GoesOn {
            if outlook == Outlook::Waits {
                asked = self.news.wait(asked).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.news.wait_timeout(asked, LOOK);
            asked = waited.unwrap_or_else(PoisonError::into_inner).0;
            break;
        }
        // The streams are copied, so that files are read without the lock.
        asked.changed = false;
        (!asked.stop).then(|| asked.streams.clone())
    }

    /// Sends the next piece of a stream, or its end.
    fn serve(&self, client: &ClientHandle, stream: Uuid, wanted: &Wanted, served: &mut Served) -> Outlook {
        let outgoing = match served.unsent.take() {
            Some(outgoing) => outgoing,
            None => match served.reader.read(wanted) {
                Ok(Piece::Data(data)) => Outgoing {
                    cost: data.cost(),
                    frame: data.frame(),
                    is_last: false,
                },
                Ok(Piece::Sought) => return Outlook::GoesOn,
                Ok(Piece::NotYet) => return Outlook::LookAgain,
                Ok(Piece::NoCredit) => return Outlook::Waits,
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
                return Outlook::LookAgain;
            }
            // The session is over, and its streams with it.
            Err(_) => {
                self.lock().streams.remove(&stream);
                return Outlook::Waits;
            }
        }
        let mut asked = self.lock();
        if is_last {
            asked.streams.remove(&stream);
        } else if let Some(wanted) = asked.streams.get_mut(&stream) {
            // Taken from the table and not from the copy, because credit may have come
            // meanwhile.
            wanted.credit = wanted.credit.saturating_sub(cost);
        }
        Outlook::GoesOn
    }
}

/// How far a stream has come.
#[derive(Debug)]
struct Served {
    reader: Reader,
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

/// A frame that is to be sent.
#[derive(Debug)]
struct Outgoing {
    frame: Frame,
    /// How much of the stream's credit it uses.
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
    fn a_stream_that_is_open_is_not_ended_by_another_of_its_uuid() {
        let mut asked = Asked::default();
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
            credit,
            over: false,
        };
        for stream in 1..=MOST as u128 {
            assert!(asked.open(wanted(stream, 7)).is_none());
        }
        assert!(asked.open(wanted(1, 8)).is_none());
        assert_eq!(asked.streams[&Uuid::from_u128(1)].credit, 7);
        let refused = asked.open(wanted(MOST as u128 + 1, 7)).unwrap();
        assert_eq!(refused.reason, StreamEndReason::TOO_MANY);
        assert_eq!(asked.streams.len(), MOST);
    }
}
