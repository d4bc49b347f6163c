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
//! The reader owns the writer's handle and joins it; the owner of the [`Link`] joins the
//! reader. Once the writer has sent its last byte it lingers for a moment so that the peer
//! can read it: closing a socket that holds unread input would destroy data that is still
//! on its way.
//!
//! | file | holds |
//! |---|---|
//! | `incoming` | what the reader decides, which a simulation uses as well |
//! | `reader` | the reader thread, and [`Sink`], which it tells |
//! | `writer` | the writer thread, and its steps, which a simulation uses as well |

mod incoming;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use self::incoming::{Incoming, LastWrites, Next, end_reason};
use self::reader::Reader;
pub use self::reader::Sink;
use self::writer::{WriterHandle, join, lock, write};
pub use self::writer::{Writing, Wrote, silent_peer};
use crate::host::threads;
use crate::outbox::Outbox;
use crate::socket::Duplex;
use crate::stream::{Decode, Halves};

/// The name and the time limits of a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Names its threads: `NAME.r` and `NAME.w`.
    pub name: String,
    /// How long a write may wait without progress before the peer counts as dead.
    /// Default: 30 s.
    pub write_timeout: Option<Duration>,
    /// How long the peer may take to end its side after the last byte was sent.
    /// Default: 1 s.
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
    /// Starts both threads. Items that are in `outbox` already are sent first. Bytes that
    /// are in `halves.inbox` are decoded before the first read. Does not block.
    ///
    /// # Errors
    /// The system has no more threads. Then the stream is shut down.
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

    /// Sends the queue, tells the peer, and ends. Does not wait for that.
    pub fn close(&self) {
        self.outbox.close();
    }

    /// Ends at once; the queue is lost. Does not wait for the threads.
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
        self.abort();
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
        receive,
        incoming: Incoming::new(decoder, inbox, config.write_timeout),
        outbox,
        sink,
    });
    threads::spawn_small(format!("{}.r", config.name), move || reader.run(&joins))
}
