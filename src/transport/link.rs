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
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::outbox::{Outbox, Outgoing};
use super::queue::{self, Due};
use super::{Decode, Duplex, Halves, Transmit, threads};

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
    /// The stack of each of its two threads in bytes, of which only what is
    /// touched costs memory. Default: 128 KiB.
    pub stack: usize,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            name: "link".into(),
            write_timeout: Some(Duration::from_secs(30)),
            linger: Duration::from_secs(1),
            stack: threads::SMALL_STACK,
        }
    }
}

/// Where a link's reader delivers. All calls come from the reader thread.
pub trait Sink<I>: Send + 'static {
    /// After a silence bytes have arrived, and items are likely to follow
    /// within microseconds: whoever deals with them may be woken now, while
    /// they are being read.
    fn soon(&mut self) {}

    /// Items in the order of the stream, and how many bytes were received
    /// for them. May block: the peer is then held back by its own socket.
    /// False ends the link.
    fn items(&mut self, items: &mut Vec<I>, bytes: usize) -> bool;

    /// No more items will come. The link may still send what waits.
    fn ended(&mut self, reason: EndReason);

    /// Both threads are about to end; joining the link takes no time now.
    fn finished(&mut self);
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
    /// Starts both threads. What `outbox` holds already goes out first; up to
    /// 16 KiB of it on the calling thread, which may block for the write
    /// timeout. What `halves.inbox` holds is decoded before the first read.
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
        let started = start(halves, decoder, outbox.clone(), sink, config);
        if started.is_err() {
            outbox.abort();
            outbox.line().close();
            let _ = stream.shutdown(Shutdown::Both);
        }
        Ok(Self {
            outbox,
            stream,
            reader: Some(started?),
        })
    }

    /// The queue towards the writer.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
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

    /// Whether both threads have ended.
    pub fn is_finished(&self) -> bool {
        self.reader.as_ref().is_none_or(JoinHandle::is_finished)
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
) -> io::Result<JoinHandle<()>> {
    let Halves {
        stream,
        receive,
        mut transmit,
        inbox,
    } = halves;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(config.write_timeout)?;
    send_first(&outbox, &mut *transmit, &*stream);
    outbox.line().open(transmit);
    let writer = {
        let (outbox, stream, linger) = (outbox.clone(), Arc::clone(&stream), config.linger);
        threads::spawn_small(format!("{}.w", config.name), config.stack, move || {
            write(&outbox, &*stream, linger);
        })?
    };
    // Boxed, so that the thread's own frames hold a pointer each.
    let mut reader = Box::new(Reader {
        stream,
        receive,
        inbox,
        decoder,
        outbox,
        sink,
    });
    threads::spawn_small(format!("{}.r", config.name), config.stack, move || {
        reader.run(writer)
    })
}

/// Sends what waits already, if it is short, so that the stack of a writer
/// that has nothing more to say never grows as deep as sealing a record.
fn send_first(outbox: &Outbox, transmit: &mut dyn Transmit, stream: &dyn Duplex) {
    if !(1..=FIRST_BYTES).contains(&outbox.waiting().1) {
        return;
    }
    let mut batch = Vec::new();
    while let Some(item) = outbox.queue().pop() {
        batch.push(item);
    }
    let frames = batch.iter().map(|item| u64::from(item.frames())).sum();
    let bytes = batch.iter().map(|item| item.len() as u64).sum();
    outbox.begin_writing();
    match transmit.transmit(&batch) {
        Ok(()) => outbox.sent(batch.len() as u64, frames, bytes),
        Err(e) => fail(outbox, stream, e),
    }
    transmit.idle();
    outbox.queue().release();
}

/// What goes out on the thread that starts a link: as much as a socket that
/// is new has room for.
const FIRST_BYTES: u64 = 16 * 1024;

/// A wait after which whoever deals with items is likely to sleep too.
const SILENCE: Duration = Duration::from_micros(100);

struct Reader<D, S> {
    stream: Arc<dyn Duplex>,
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
    fn run(&mut self, writer: JoinHandle<()>) {
        // A fault of ours costs this link alone, and its owner hears of it.
        let found = catch_unwind(AssertUnwindSafe(|| self.read()))
            .unwrap_or_else(|_| EndReason::Io(io::Error::other("the reader panicked")));
        self.end(found, writer);
    }

    /// Everything after the last byte that was read.
    #[inline(never)]
    fn end(&mut self, found: EndReason, writer: JoinHandle<()>) {
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
        if lost || self.outbox.is_aborted() {
            self.outbox.abort();
        } else {
            let _ = self.stream.set_write_timeout(Some(LAST_WRITE));
            self.outbox.close();
            self.drain();
            self.wait_for_writer();
            self.outbox.abort();
        }
        let _ = self.stream.shutdown(Shutdown::Both);
        let _ = writer.join();
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
        // A peer that sends less than an item at a time keeps nobody awake.
        let mut announce = true;
        loop {
            let before = self.inbox.bytes.len();
            let decoded = self.decoder.decode(&mut self.inbox.bytes, &mut items);
            self.inbox.wanted = self.decoder.wanted();
            if !items.is_empty() || counted > 0 && before > self.inbox.bytes.len() {
                let bytes = std::mem::take(&mut counted);
                announce |= !items.is_empty();
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
            let (sink, began) = (&mut self.sink, super::outbox::now());
            let received = self.receive.receive_telling(&mut self.inbox, &mut || {
                if announce && began.elapsed() >= SILENCE {
                    announce = false;
                    sink.soon();
                }
            });
            counted += self.inbox.bytes.len() - held;
            match received {
                Ok(received) => {
                    end = received.end;
                    if received.flush {
                        self.outbox.flush();
                    }
                }
                // What came before it is delivered.
                Err(e) => fault = Some(e),
            }
        }
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
        let mut before = self.outbox.written();
        while !self.outbox.wait_until_done(LAST_WRITE) {
            let now = self.outbox.written();
            if now == before {
                return;
            }
            before = now;
        }
    }
}

fn write(outbox: &Outbox, stream: &dyn Duplex, linger: Duration) {
    let done = Done(outbox);
    let result = catch_unwind(AssertUnwindSafe(|| write_until_closed(outbox)))
        .unwrap_or_else(|_| Err(io::Error::other("the writer panicked")));
    // Buffers and keys go back before the wait below.
    drop(done);
    match result {
        Ok(End::Closed) => {
            // Until the reader has seen the end of the peer's side.
            outbox.queue().wait_for_abort(super::deadline(linger));
            let _ = stream.shutdown(Shutdown::Both);
        }
        Ok(End::Aborted) => {}
        // Whoever aborts shuts the stream down, which is not its fault.
        Err(_) if outbox.is_aborted() => {}
        Err(e) => fail(outbox, stream, e),
    }
}

fn fail(outbox: &Outbox, stream: &dyn Duplex, error: io::Error) {
    outbox.fail(if super::duplex::is_timeout(&error) {
        io::Error::new(io::ErrorKind::TimedOut, "the peer takes no data")
    } else {
        error
    });
    let _ = stream.shutdown(Shutdown::Both);
}

/// Says that the writer has sent its last byte, also where it panics.
struct Done<'a>(&'a Outbox);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.line().close();
        self.0.done();
    }
}

enum End {
    Closed,
    Aborted,
}

fn write_until_closed(outbox: &Outbox) -> io::Result<End> {
    let mut batch: Vec<Outgoing> = Vec::new();
    loop {
        let mut next = Some(outbox.queue().next(&mut batch));
        // Everything that waits goes out before the thread sleeps again.
        while let Some(due) = next {
            if let Some(end) = send(outbox, &mut batch, due)? {
                return Ok(end);
            }
            next = outbox.queue().try_next(&mut batch);
        }
        outbox.line().hold().transmit()?.idle();
        queue::release(&mut batch);
    }
}

/// Sends one batch. Not part of its caller, so that what an idle thread has
/// on its stack stays small.
#[inline(never)]
fn send(outbox: &Outbox, batch: &mut Vec<Outgoing>, due: Due) -> io::Result<Option<End>> {
    if due.abort {
        return Ok(Some(End::Aborted));
    }
    let mut line = outbox.line().hold();
    if let Some((frames, bytes)) = line.take_begun() {
        outbox.begin_writing();
        line.transmit()?.flush()?;
        outbox.sent(1, frames, bytes);
    }
    let transmit = line.transmit()?;
    if !batch.is_empty() {
        outbox.begin_writing();
        transmit.transmit(batch)?;
        let items = batch.len() as u64;
        batch.clear();
        outbox.sent(items, due.frames, due.bytes);
    }
    if due.flush {
        transmit.flush()?;
    }
    if due.close {
        transmit.finish()?;
        return Ok(Some(End::Closed));
    }
    Ok(None)
}
