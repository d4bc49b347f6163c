//! The two threads that serve one stream.
//!
//! ```text
//!              start()                      end of stream, fault, abort()
//!  ┌─────────┐        ┌───────────────────┐        ┌─────────────────────────┐
//!  │ Halves  ├───────▶│ reader   writer   ├───────▶│ ended(reason): the rest │
//!  └─────────┘        └───────────────────┘        │ of the queue goes out,  │
//!                              │ Outbox::close()   │ the peer is told,       │
//!                              └──────────────────▶│ input is drained        │
//!                                                  └──────────┬──────────────┘
//!                                                  finished(): both threads end
//! ```
//!
//! The reader owns the writer's handle and joins it; whoever owns the
//! [`Link`] joins the reader. Once the writer has sent its last byte it
//! lingers for a moment so that the peer can read it: closing a socket that
//! holds unread input would destroy what is still under way.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::duplex::is_timeout;
use super::outbox::{Due, Outbox};
use super::{Decode, Duplex, Halves, Outgoing, threads};

/// How a link behaves.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Names its threads: `NAME.r` and `NAME.w`.
    pub name: String,
    /// How long the system may take not one byte before the peer counts as
    /// dead. Default: 30 s.
    pub write_timeout: Option<Duration>,
    /// How long, after the last byte was sent, the peer may take to end its
    /// side. Default: 1 s.
    pub linger: Duration,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            name: "link".into(),
            write_timeout: Some(Duration::from_secs(30)),
            linger: Duration::from_secs(1),
        }
    }
}

/// Whom a link tells. All calls come from the reader thread, but for those of
/// [`room`](Self::room).
pub trait Sink<I>: Send + 'static {
    /// Items in the order of the stream, and how many bytes were received
    /// for them. May block: the peer is then held back by its own socket.
    /// False ends the link.
    fn items(&mut self, items: &mut Vec<I>, bytes: usize) -> bool;

    /// So many bytes of an item are here whose end has not come, more than
    /// 128 KiB; or none any more, after that. May block. False ends the link.
    fn unfinished(&mut self, bytes: usize) -> bool {
        let _ = bytes;
        true
    }

    /// No more items will come. The link may still send what waits.
    fn ended(&mut self, reason: EndReason);

    /// Both threads are about to end; joining the link takes no time now.
    fn finished(&mut self);

    /// What the writer thread calls when the outbox was asked to tell of room,
    /// and where it fails: then nobody needs to wait for room any more.
    fn room(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| ())
    }
}

/// Why a link ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum EndReason {
    /// The peer ended the stream in order.
    PeerClosed,
    /// The peer ended the stream inside an item.
    Truncated,
    /// This side closed or aborted it.
    Local,
    /// Reading or writing failed.
    Io(io::Error),
    /// The peer broke the protocol.
    Protocol(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerClosed => f.write_str("the peer closed the connection"),
            Self::Truncated => f.write_str("the peer closed the connection in the middle of a frame"),
            Self::Local => f.write_str("closed by this side"),
            Self::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the connection was cut without close_notify")
            }
            Self::Io(e) => write!(f, "{e}"),
            Self::Protocol(e) => write!(f, "protocol error: {e}"),
        }
    }
}

/// A running link.
///
/// # Threads
/// Any thread may [`close`](Self::close) or [`abort`](Self::abort) it; the
/// owner [`join`](Self::join)s it. Dropping it aborts it and joins nobody.
#[derive(Debug)]
pub struct Link {
    outbox: Outbox,
    stream: Arc<dyn Duplex>,
    reader: Option<JoinHandle<()>>,
}

impl Link {
    /// Starts both threads. What `outbox` holds already goes out first. What
    /// `halves.inbox` holds is decoded before the first read. Does not block.
    ///
    /// # Errors
    /// The system gives no more threads; the stream is shut down then.
    pub fn start<D: Decode>(
        halves: Halves,
        decoder: D,
        outbox: Outbox,
        sink: impl Sink<D::Item>,
        config: LinkConfig,
    ) -> io::Result<Self> {
        let stream = Arc::clone(&halves.stream);
        let writer = WriterHandle::default();
        let started = start(halves, decoder, outbox.clone(), sink, config, &writer);
        if started.is_err() {
            outbox.abort();
            let _ = stream.shutdown(Shutdown::Both);
            join(&writer);
            outbox.shut();
            outbox.discard();
        }
        Ok(Self {
            outbox,
            stream,
            reader: Some(started?),
        })
    }

    /// Sends what waits, tells the peer, and ends. Does not wait for it.
    pub fn close(&self) {
        self.outbox.close();
    }

    /// Ends at once; what waits is lost. Does not wait.
    pub fn abort(&self) {
        self.outbox.abort();
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Waits for both threads.
    pub fn join(mut self) {
        if let Some(reader) = self.reader.take() {
            // A panic has been logged by the panic hook; the link is over.
            let _ = reader.join();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.reader.is_some() {
            self.abort();
        }
    }
}

fn start<D: Decode>(
    halves: Halves,
    decoder: D,
    outbox: Outbox,
    sink: impl Sink<D::Item>,
    config: LinkConfig,
    joins: &WriterHandle,
) -> io::Result<JoinHandle<()>> {
    let Halves {
        stream,
        receive,
        transmit,
        inbox,
    } = halves;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(config.write_timeout)?;
    outbox.open(transmit);
    let writer = {
        let (outbox, stream, linger) = (outbox.clone(), Arc::clone(&stream), config.linger);
        let room = sink.room();
        threads::spawn_small(format!("{}.w", config.name), move || {
            write(&outbox, &*stream, linger, &*room);
        })?
    };
    *lock(joins) = Some(writer);
    let joins = Arc::clone(joins);
    // Boxed, so that the thread's own frames hold a pointer each.
    let mut reader = Box::new(Reader {
        stream,
        silence: config.write_timeout,
        is_long: false,
        receive,
        inbox,
        decoder,
        outbox,
        sink,
    });
    threads::spawn_small(format!("{}.r", config.name), move || reader.run(&joins))
}

/// The writer's handle, which the reader takes at its end. Where no reader could
/// be started, whoever tried to does.
type WriterHandle = Arc<Mutex<Option<JoinHandle<()>>>>;

fn lock(writer: &WriterHandle) -> MutexGuard<'_, Option<JoinHandle<()>>> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn join(writer: &WriterHandle) {
    let handle = lock(writer).take();
    if let Some(handle) = handle {
        // A panic has been logged by the panic hook.
        let _ = handle.join();
    }
}

/// From this length on an unfinished item is minded.
const LONG: usize = 128 * 1024;

/// The end of a long item that did not come to its own.
fn unfinished(held: usize) -> EndReason {
    let why = format!("a frame did not come to its end, {held} bytes of it are here");
    EndReason::Protocol(why.into())
}

struct Reader<D, S> {
    stream: Arc<dyn Duplex>,
    /// How long the peer may be silent in the middle of a long item.
    silence: Option<Duration>,
    /// Whether a long item is unfinished.
    is_long: bool,
    receive: Box<dyn super::Receive>,
    inbox: super::Inbox,
    decoder: D,
    outbox: Outbox,
    sink: S,
}

/// How long a write may take not one byte once the peer has ended its side or
/// broken the protocol; one under way already keeps its own limit.
const LAST_WRITE: Duration = Duration::from_secs(1);

impl<D: Decode, S: Sink<D::Item>> Reader<D, S> {
    fn run(&mut self, writer: &WriterHandle) {
        // A fault of ours costs this link alone, and its owner hears of it.
        let found = catch_unwind(AssertUnwindSafe(|| self.read()))
            .unwrap_or_else(|_| EndReason::Io(io::Error::other("the reader panicked")));
        self.end(found, writer);
    }

    /// Everything after the last byte that was read.
    #[inline(never)]
    fn end(&mut self, found: EndReason, writer: &WriterHandle) {
        let reason = match (self.outbox.failure(), found) {
            (Some(error), _) => EndReason::Io(error),
            (None, EndReason::Protocol(e)) => EndReason::Protocol(e),
            (None, _) if self.outbox.is_closed() => EndReason::Local,
            (None, found) => found,
        };
        // After a lost connection there is nobody to send the rest to; but
        // TLS that refuses a record has an alert to send.
        let lost = matches!(&reason, EndReason::Io(e) if e.kind() != io::ErrorKind::InvalidData);
        self.sink.ended(reason);
        if lost || self.outbox.is_over() {
            self.outbox.abort();
        } else {
            let _ = self.stream.set_write_timeout(Some(LAST_WRITE));
            self.outbox.close();
            self.drain();
            self.wait_for_writer();
            self.outbox.abort();
        }
        let _ = self.stream.shutdown(Shutdown::Both);
        join(writer);
        self.outbox.discard();
        self.sink.finished();
    }

    /// Blocks here while the stream is idle: its frame, and those below, are
    /// what an idle session's reader costs.
    #[inline(never)]
    fn read(&mut self) -> EndReason {
        let mut items = Vec::new();
        let mut counted = self.inbox.bytes.len();
        let mut end = false;
        let mut fault = None;
        loop {
            let before = self.inbox.bytes.len();
            let decoded = self.decoder.decode(&mut self.inbox.bytes, &mut items);
            self.inbox.wanted = self.decoder.wanted();
            if !items.is_empty() || counted > 0 && before > self.inbox.bytes.len() {
                let bytes = std::mem::take(&mut counted);
                if !self.sink.items(&mut items, bytes) {
                    return EndReason::Local;
                }
                items.clear();
            }
            if let Err(fault) = decoded {
                return EndReason::Protocol(Box::new(fault));
            }
            if let Some(e) = fault {
                return EndReason::Io(e);
            }
            if end {
                return if self.inbox.is_empty() {
                    EndReason::PeerClosed
                } else {
                    EndReason::Truncated
                };
            }
            let held = self.inbox.bytes.len();
            if let Err(end) = self.mind_unfinished(held) {
                return end;
            }
            let received = self.receive.receive(&mut self.inbox);
            counted += self.inbox.bytes.len() - held;
            match received {
                Ok(received) => {
                    end = received.end;
                    if received.flush {
                        self.outbox.flush();
                    }
                }
                Err(e) if self.is_long && is_timeout(&e) => {
                    return unfinished(held);
                }
                // What came before it is delivered.
                Err(e) => fault = Some(e),
            }
        }
    }

    /// A long item that is not whole is to come to its end: its peer may be
    /// silent for as long as a write may take, and the owner may give it up.
    /// Short ones may take as long as they like, since they keep little.
    fn mind_unfinished(&mut self, held: usize) -> Result<(), EndReason> {
        let is_long = held > LONG;
        if std::mem::replace(&mut self.is_long, is_long) != is_long {
            // A stream that can't be told is cut, and the next read says so.
            let _ = self.stream.set_read_timeout(self.silence.filter(|_| is_long));
            if !is_long {
                self.sink.unfinished(0);
            }
        }
        if is_long && !self.sink.unfinished(held) {
            return Err(unfinished(held));
        }
        Ok(())
    }

    /// Takes what the peer still sends off the socket, until it ends its
    /// side or the writer has lingered long enough and shuts the stream down.
    fn drain(&self) {
        let mut scratch = [0; 1024];
        while matches!(self.stream.read(&mut scratch), Ok(n) if n > 0) {}
    }

    /// A peer that has ended its side may still receive: waits until the
    /// writer is done, for as long as it makes progress.
    fn wait_for_writer(&self) {
        let mut before = self.outbox.sent();
        while !self.outbox.wait_until_drained(LAST_WRITE) {
            let now = self.outbox.sent();
            if now == before {
                return;
            }
            before = now;
        }
    }
}

fn write(outbox: &Outbox, stream: &dyn Duplex, linger: Duration, room: &dyn Fn()) {
    let sent = Sent(outbox);
    let result = catch_unwind(AssertUnwindSafe(|| write_until_over(outbox, room)))
        .unwrap_or_else(|_| Err(io::Error::other("the writer panicked")));
    if let Err(e) = &result {
        fail(outbox, stream, e);
        room();
    }
    // Buffers and keys go back before the wait below.
    drop(sent);
    if let Ok(End::Drained) = result {
        // Until the reader has seen the end of the peer's side.
        outbox.wait_until_over(linger);
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn fail(outbox: &Outbox, stream: &dyn Duplex, error: &io::Error) {
    outbox.fail(if is_timeout(error) {
        io::Error::new(io::ErrorKind::TimedOut, "the peer takes no data")
    } else {
        io::Error::new(error.kind(), error.to_string())
    });
    let _ = stream.shutdown(Shutdown::Both);
}

/// Says that the writer has sent its last byte, also where it panics.
struct Sent<'a>(&'a Outbox);

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.0.shut();
        // After a failure nothing is drained, and this changes nothing.
        self.0.drained();
    }
}

enum End {
    /// Everything is sent, and the peer has been told.
    Drained,
    /// Nothing is to be sent any more.
    Over,
}

fn write_until_over(outbox: &Outbox, room: &dyn Fn()) -> io::Result<End> {
    let mut batch: Vec<Outgoing> = Vec::new();
    loop {
        let mut next = Some(outbox.next(&mut batch));
        // Everything that waits goes out before the thread sleeps again.
        while let Some(due) = next {
            if due.over {
                return Ok(End::Over);
            }
            if send(outbox, due, &mut batch, room)? {
                return Ok(End::Drained);
            }
            next = outbox.try_next(&mut batch);
        }
        outbox.idle();
        // An idle thread keeps room for an item at most.
        batch.shrink_to(1);
    }
}

/// Not part of its caller, so that what an idle thread has on its stack stays
/// small.
#[inline(never)]
fn send(outbox: &Outbox, due: Due, batch: &mut Vec<Outgoing>, room: &dyn Fn()) -> io::Result<bool> {
    outbox.send(due, batch, room)
}
