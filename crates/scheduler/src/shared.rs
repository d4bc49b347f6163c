//! What the thread `ssntp-engine` shares with the dispatcher and the keepers: the last view of the
//! engine, and the handle for writing its documents.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ssntp_cluster::clock::now;
use ssntp_engine::{Documents, View, When};

/// The name of the engine's document with the configuration of the cluster.
pub(super) const CONFIGURATION: &str = "configuration";
/// The name of the engine's document with the table of tenants.
pub(super) const TENANTS: &str = "tenants";
/// The length limit of a document, in bytes. etcd takes requests of up to 1.5 MiB.
const MAX_DOCUMENT: usize = 1 << 20;

/// The last view of the engine, and its documents.
#[derive(Debug, Default)]
pub(super) struct Shared {
    view: Mutex<View>,
    /// True until the dispatcher has read the current view.
    is_new: AtomicBool,
    documents: OnceLock<Documents>,
}

impl Shared {
    /// Called by the thread `ssntp-engine`.
    pub(super) fn set_view(&self, view: &View) {
        self.lock().clone_from(view);
        self.is_new.store(true, Ordering::Release);
    }

    /// The handle for writing documents; `None` until the scheduler has joined.
    pub(super) fn documents(&self) -> Option<&Documents> {
        self.documents.get()
    }

    /// The scheduler has joined. The dispatcher ignores views until then, so it must read the last
    /// one again.
    pub(super) fn set_documents(&self, documents: Documents) {
        let _ = self.documents.set(documents);
        self.is_new.store(true, Ordering::Release);
    }

    /// True if there is a view that the dispatcher has not taken.
    pub(super) fn is_new(&self) -> bool {
        self.is_new.load(Ordering::Acquire)
    }

    /// Marks the view as taken; true if it is new.
    pub(super) fn take_new(&self) -> bool {
        self.is_new.swap(false, Ordering::AcqRel)
    }

    /// The last view.
    pub(super) fn view(&self) -> View {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a document. Fails if this scheduler does not lead. `known` is the revision of the
    /// document after the caller's last write. Blocks until the engine has answered, so only
    /// keepers call it.
    pub(super) fn write(&self, name: &str, text: &[u8], known: &mut Option<u64>) -> io::Result<()> {
        if text.len() > MAX_DOCUMENT {
            let len = text.len();
            return Err(io::Error::other(format!(
                "its {len} bytes are more than {MAX_DOCUMENT}"
            )));
        }
        let view = self.view();
        let is_leading = view.acts(now()).is_some();
        let (true, Some(documents)) = (is_leading, self.documents.get()) else {
            return Err(io::Error::other("this scheduler does not lead any more"));
        };
        // The view may be a second old, and this scheduler may have written the document since.
        let revision = view
            .documents
            .get(name)
            .map(|document| document.revision)
            .max(*known);
        let when = revision.map_or(When::Absent, When::At);
        *known = Some(documents.write(name, text, when).map_err(io::Error::other)?);
        Ok(())
    }
}
