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
//!
//! | file | holds |
//! |---|---|
//! | `reader` | the reader thread, and [`Sink`], which it tells |
//! | `writer` | the writer thread |

mod reader;
mod writer;

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use self::reader::Reader;
pub use self::reader::Sink;
use self::writer::{WriterHandle, join, lock, write};
use crate::host::threads;
use crate::outbox::Outbox;
use crate::socket::duplex::Duplex;
use crate::stream::codec::Decode;
use crate::stream::halves::Halves;

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
