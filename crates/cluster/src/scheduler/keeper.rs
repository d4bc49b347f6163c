//! The file of the configuration, written on a thread of its own, since a disk
//! may take seconds for what the dispatcher needs microseconds for.
//!
//! ```text
//!  dispatcher ── a configuration ──▶ ssntp-config: writes the file, waits for the disk
//!      ▲ ◀── a call that wakes it ──── │
//!      └──── how it went ◀─────────────┘
//! ```

use std::io;
use std::path::PathBuf;
use std::thread::JoinHandle;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};

use ssntp::server::ServerHandle;
use ssntp_transport::replace;
use ssntp_transport::threads;

/// The thread that writes. Dropping it waits until what it was given is on the
/// disk.
#[derive(Debug)]
pub(super) struct Keeper {
    work: Option<Sender<Bytes>>,
    done: Receiver<io::Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// The thread, and where it is to be given the server that it wakes.
    pub(super) fn start(path: PathBuf) -> io::Result<(Self, Sender<ServerHandle>)> {
        // One is given at a time, and one more at the end, whose results then
        // wait for nobody. So neither side ever finds a channel full.
        let (work, given) = bounded::<Bytes>(2);
        let (results, done) = bounded(2);
        let (server, servers) = bounded::<ServerHandle>(1);
        let write = move || {
            // Whoever gives something has a server.
            let mut server = None;
            for yaml in given {
                let _ = results.send(replace(&path, &yaml));
                server = server.or_else(|| servers.recv().ok());
                if let Some(server) = &server {
                    // A dispatcher that is too busy to be called asks for the
                    // result anyway, after what it is busy with.
                    let _ = server.post(|_| ());
                }
            }
        };
        let thread = threads::spawn("ssntp-config", write)?;
        let keeper = Self {
            work: Some(work),
            done,
            thread: Some(thread),
        };
        Ok((keeper, server))
    }

    /// Has this written. The result of the one before has to be taken first.
    pub(super) fn write(&self, yaml: Bytes) {
        if let Some(work) = &self.work {
            let _ = work.send(yaml);
        }
    }

    pub(super) fn is_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// How it went, if it is done.
    pub(super) fn result(&self) -> Option<io::Result<()>> {
        self.done.try_recv().ok()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
