//! The two threads that serve one stream.
//!
//! ```text
//!              start()                      end of stream, fault, abort()
//!  ┌─────────┐        ┌───────────────────┐        ┌─────────────────────────┐
//!  │ Halves  ├───────▶│ reader   writer   ├───────▶│ ended(reason): the rest │
//!  └─────────┘        └───────────────────┘        │ of the queue goes out,  │
//!                              │ Outbox::close()   │ the end is sent,        │
//!                              └──────────────────▶│ input is drained        │
//!                                                  └──────────┬──────────────┘
//!                                                  finished(): both threads end
//! ```
//!
//! The reader owns the writer thread and joins it; the owner of the [`Link`] joins the reader.
//! After its last byte the writer lingers until the peer has ended its side: closing a socket
//! that holds unread input would destroy data that is still on its way to the peer.
//!
//! | file | holds |
//! |---|---|
//! | `incoming` | the reader's decisions, which a simulation uses as well |
//! | `reader` | the reader thread, and [`Sink`], which receives its items and events |
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
use self::writer::Writer;
pub use self::writer::{Writing, Wrote, silent_peer};
use crate::host::threads;
use crate::outbox::Outbox;
use crate::socket::Duplex;
use crate::stream::{Decode, Halves};

/// The thread names and the time limits of a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Names its threads: `NAME.r` and `NAME.w`.
    pub name: String,
    /// The time that a write may wait without progress before the peer counts as dead. `None` for
    /// no limit. Default: 30 s.
    pub write_timeout: Option<Duration>,
    /// The time that the peer has to end its side after the last byte was sent. Default: 1 s.
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
/// Any thread may [`close`](Self::close) or [`abort`](Self::abort) it; the owner
/// [`join`](Self::join)s it. Dropping it aborts it without waiting for its threads.
#[derive(Debug)]
pub struct Link {
    outbox: Outbox,
    stream: Arc<dyn Duplex>,
    reader: Option<JoinHandle<()>>,
}

impl Link {
    /// Starts both threads. Items that are already in `outbox` are sent first. Bytes that are in
    /// `halves.inbox` are decoded before the first read. Does not block.
    ///
    /// # Errors
    /// The system cannot start a thread. The stream is shut down then.
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
            // The writer, if it was started, has ended: it is dropped with the reader.
            outbox.abort();
            let _ = stream.shutdown(Shutdown::Both);
            outbox.shut();
            outbox.discard();
        }
        Ok(Self {
            outbox,
            stream,
            reader: Some(started?),
        })
    }

    /// Sends the queue, sends the end to the peer, and ends. Does not block.
    pub fn close(&self) {
        self.outbox.close();
    }

    /// Ends at once; the queue is lost. Does not block.
    pub fn abort(&self) {
        self.outbox.abort();
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Waits until both threads have ended.
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
    let name = format!("{}.w", config.name);
    let writer = Writer::start(
        name,
        outbox.clone(),
        Arc::clone(&stream),
        config.linger,
        sink.room(),
    )?;
    // Boxed, so that each stack frame of the thread holds a pointer only.
    let mut reader = Box::new(Reader {
        stream,
        receive,
        incoming: Incoming::new(decoder, inbox, config.write_timeout),
        outbox,
        sink,
        writer: Some(writer),
    });
    threads::spawn_small(format!("{}.r", config.name), move || reader.run())
}
