//! The thread that writes a file of the scheduler, the configuration or the table of tenants: a
//! disk may take seconds, and the dispatcher must not wait for it.
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

/// The writing thread. Dropping it waits until all that it was given is on the disk.
#[derive(Debug)]
pub(super) struct Keeper {
    work: Option<Sender<Bytes>>,
    done: Receiver<io::Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread. It takes the server that it wakes from the second channel, because
    /// the server starts later.
    pub(super) fn start(path: PathBuf) -> io::Result<(Self, Sender<ServerHandle>)> {
        // A file is given only after the result of the one before was taken, and one more when
        // the scheduler is dropped. So two places are enough, and neither side ever finds a
        // channel full.
        let (work, given) = bounded::<Bytes>(2);
        let (results, done) = bounded(2);
        let (server, servers) = bounded::<ServerHandle>(1);
        let write = move || {
            // The server has started before the first configuration is given.
            let mut server = None;
            for yaml in given {
                let _ = results.send(replace(&path, &yaml));
                server = server.or_else(|| servers.recv().ok());
                if let Some(server) = &server {
                    // If the dispatcher is too busy to take a call, it looks for the result
                    // anyway before it sleeps.
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

    /// Hands over the new content of the file. The result of the previous one must have been
    /// taken.
    pub(super) fn write(&self, yaml: Bytes) {
        if let Some(work) = &self.work {
            let _ = work.send(yaml);
        }
    }

    pub(super) fn is_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// The result, if the writing is done.
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
