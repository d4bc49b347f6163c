//! The thread that writes the configuration or the table of tenants, to a file or to a document
//! of the engine. A disk or an engine may take seconds, and the dispatcher must not wait for it.
//!
//! ```text
//!  dispatcher ── the content ───▶ ssntp-config: writes the file, waits for the disk
//!      ▲ ◀── a call wakes it ───────── │
//!      └──── the result ◀──────────────┘
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};

use super::shared::{Shared, Written};
use ssntp::server::ServerHandle;
use ssntp_transport::replace;
use ssntp_transport::threads::{self, Joined};

/// A file or document, and the thread that writes it. Dropping it waits until the thread has
/// written all that was handed over.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    file: Option<PathBuf>,
    /// The engine's document, by name. The file is then a copy of it.
    document: Option<(Arc<Shared>, &'static str)>,
    writer: Option<Writer>,
    /// The result of a write that never reached the thread.
    failed: Option<String>,
}

#[derive(Debug)]
struct Writer {
    work: Sender<Bytes>,
    _thread: Joined,
    done: Receiver<Written>,
}

impl Keeper {
    /// A keeper of this file, whose thread has not started.
    pub(super) fn of(file: PathBuf) -> Self {
        Self {
            // The file is replaced by a rename. On a symbolic link, that would replace the link and
            // not its target.
            file: Some(fs::canonicalize(&file).unwrap_or(file)),
            ..Self::default()
        }
    }

    /// Writes to this document of the engine first, and then to the file, if there is one. Call it
    /// before [`start`](Self::start).
    pub(super) fn keep_in(&mut self, shared: &Arc<Shared>, name: &'static str) {
        self.document = Some((Arc::clone(shared), name));
    }

    /// True if there is a file or a document; otherwise the content is only in memory.
    pub(super) fn is_durable(&self) -> bool {
        self.file.is_some() || self.document.is_some()
    }

    /// Starts the thread if there is a file or a document. The caller sends the server that the
    /// thread wakes on the returned channel, because the server starts later.
    pub(super) fn start(&mut self) -> io::Result<Option<Sender<ServerHandle>>> {
        if !self.is_durable() {
            return Ok(None);
        }
        let (file, document) = (self.file.clone(), self.document.clone());
        // The next content is handed over only after the result of the previous one was taken,
        // except for one last content when the scheduler is dropped. So with two places no send
        // ever blocks.
        let (work, given) = bounded::<Bytes>(2);
        let (results, done) = bounded(2);
        let (server, servers) = bounded::<ServerHandle>(1);
        let write = move || {
            // The server has started before the first content arrives.
            let mut server = None;
            for content in given {
                let _ = results.send(write(file.as_deref(), document.as_ref(), &content));
                server = server.or_else(|| servers.recv().ok());
                if let Some(server) = &server {
                    // A busy dispatcher may refuse the call. It reads the result before it
                    // sleeps anyway.
                    let _ = server.post(|_| ());
                }
            }
        };
        let _thread = threads::joined("ssntp-config", write)?;
        self.writer = Some(Writer { work, _thread, done });
        Ok(Some(server))
    }

    /// Hands the new content over to the thread. The result of the previous one must have been
    /// taken, unless the scheduler ends. If there is no content, its error becomes the result.
    pub(super) fn write(&mut self, content: io::Result<Bytes>) {
        match (content, &self.writer) {
            (Ok(content), Some(writer)) => drop(writer.work.send(content)),
            (Ok(_), None) => self.failed = Some("the scheduler was not started by its own start".to_owned()),
            (Err(e), _) => self.failed = Some(e.to_string()),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        let writer = self.writer.as_ref();
        self.failed.is_some() || writer.is_some_and(|writer| !writer.done.is_empty())
    }

    /// Takes the result, if the write is done.
    pub(super) fn take_result(&mut self) -> Option<Written> {
        match self.failed.take() {
            Some(why) => Some(Written::Refused(why)),
            None => self.writer.as_ref()?.done.try_recv().ok(),
        }
    }
}

fn write(file: Option<&Path>, document: Option<&(Arc<Shared>, &'static str)>, content: &[u8]) -> Written {
    let copied = || file.map_or(Ok(()), |path| replace(path, content));
    let Some((shared, name)) = document else {
        return copied().map_or_else(|e| Written::Refused(e.to_string()), |()| Written::Done);
    };
    let written = shared.write(name, content);
    // The engine has the content, so a failure to write the copy is only logged.
    if written == Written::Done
        && let Err(e) = copied()
    {
        log::warn!(target: "ssntp::scheduler", "the copy of the {name} cannot be written: {e}");
    }
    written
}

#[cfg(test)]
impl Keeper {
    /// A keeper that writes nothing. Each write ends with the next result that the test sends.
    pub(super) fn held() -> (Self, Sender<Written>) {
        let (work, _) = bounded(2);
        let (results, done) = bounded(2);
        let writer = Writer {
            work,
            _thread: Joined::default(),
            done,
        };
        let keeper = Self {
            file: Some(PathBuf::new()),
            writer: Some(writer),
            ..Self::default()
        };
        (keeper, results)
    }
}
