//! The thread that writes a file of the scheduler, the configuration or the table of tenants, or
//! a document of the engine: a disk or an engine may take seconds, and the dispatcher must not
//! wait for it.
//!
//! ```text
//!  dispatcher ── a configuration ──▶ ssntp-config: writes the file, waits for the disk
//!      ▲ ◀── a call that wakes it ──── │
//!      └──── how it went ◀─────────────┘
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};

use super::term::Shared;
use ssntp::server::ServerHandle;
use ssntp_transport::replace;
use ssntp_transport::threads::{self, Joined};

/// A file, and the thread that writes it. Dropping it waits until all that it was given is on
/// the disk.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    file: Option<PathBuf>,
    /// The document that the file is a copy of.
    document: Option<(Arc<Shared>, &'static str)>,
    writer: Option<Writer>,
    /// The result of a content that the thread was not given.
    failed: Option<io::Error>,
}

#[derive(Debug)]
struct Writer {
    work: Sender<Bytes>,
    _thread: Joined,
    done: Receiver<io::Result<()>>,
}

impl Keeper {
    /// A keeper of this file, whose thread has not started.
    pub(super) fn of(file: PathBuf) -> Self {
        Self {
            file: Some(file),
            document: None,
            writer: None,
            failed: None,
        }
    }

    /// From the start on, the content goes to a document of the engine, and from there to the
    /// file, if there is one.
    pub(super) fn keep_in(&mut self, shared: &Arc<Shared>, name: &'static str) {
        self.document = Some((Arc::clone(shared), name));
    }

    /// Whether there is a file or a document; otherwise nothing is to be written.
    pub(super) fn is_durable(&self) -> bool {
        self.file.is_some() || self.document.is_some()
    }

    /// Starts the thread, if there is something to write. It takes the server that it wakes from the
    /// channel, because the server starts later.
    pub(super) fn start(&mut self) -> io::Result<Option<Sender<ServerHandle>>> {
        if !self.is_durable() {
            return Ok(None);
        }
        let (file, document) = (self.file.clone(), self.document.clone());
        // A content is given only after the result of the one before was taken, and one more
        // when the scheduler is dropped. So two places are enough, and neither side ever finds
        // a channel full.
        let (work, given) = bounded::<Bytes>(2);
        let (results, done) = bounded(2);
        let (server, servers) = bounded::<ServerHandle>(1);
        let write = move || {
            // The server has started before the first content is given.
            let (mut server, mut revision) = (None, None);
            for content in given {
                let _ = results.send(write(file.as_deref(), document.as_ref(), &content, &mut revision));
                server = server.or_else(|| servers.recv().ok());
                if let Some(server) = &server {
                    // If the dispatcher is too busy to take a call, it looks for the result
                    // anyway before it sleeps.
                    let _ = server.post(|_| ());
                }
            }
        };
        let _thread = threads::joined("ssntp-config", write)?;
        self.writer = Some(Writer { work, _thread, done });
        Ok(Some(server))
    }

    /// Hands over the new content of the file. The result of the previous one must have been
    /// taken, unless the scheduler ends.
    pub(super) fn write(&mut self, content: Bytes) {
        match &self.writer {
            Some(writer) => {
                let _ = writer.work.send(content);
            }
            None => self.fail(io::Error::other("the scheduler was not started by its own start")),
        }
    }

    /// In place of [`write`](Self::write), if there is no content: its result is this error.
    pub(super) fn fail(&mut self, why: io::Error) {
        self.failed = Some(why);
    }

    pub(super) fn is_done(&self) -> bool {
        let writer = self.writer.as_ref();
        self.failed.is_some() || writer.is_some_and(|writer| !writer.done.is_empty())
    }

    /// The result, if the writing is done.
    pub(super) fn result(&mut self) -> Option<io::Result<()>> {
        match self.failed.take() {
            Some(why) => Some(Err(why)),
            None => self.writer.as_ref()?.done.try_recv().ok(),
        }
    }
}

fn write(
    file: Option<&Path>,
    document: Option<&(Arc<Shared>, &'static str)>,
    content: &[u8],
    revision: &mut Option<u64>,
) -> io::Result<()> {
    let Some((shared, name)) = document else {
        return file.map_or(Ok(()), |path| replace(path, content));
    };
    shared.write(name, content, revision)?;
    // The engine has it, so a copy that cannot be written changes nothing.
    if let Some(path) = file
        && let Err(e) = replace(path, content)
    {
        log::warn!(target: "ssntp::scheduler", "{}: the copy of the {name} cannot be written: {e}", path.display());
    }
    Ok(())
}
