//! What the thread `ssntp-engine` shares with the dispatcher and the keepers: the last view of the
//! engine, and the handle for writing its documents.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use ssntp_engine::{Documents, EngineError, LONGEST, View};
use ssntp_transport::locked;

/// The name of the engine's document with the configuration of the cluster.
pub(super) const CONFIGURATION: &str = "configuration";
/// The name of the engine's document with the table of tenants.
pub(super) const TENANTS: &str = "tenants";
/// The name of the engine's document with the tokens and certificates of nodes that have joined.
pub(super) const ENROLMENT: &str = "enrolment";
/// The length limit of a document, in bytes. etcd takes requests of up to 1.5 MiB.
pub(super) const MAX_DOCUMENT: usize = 1 << 20;

// One answer has the three documents in base64, which is a third longer, and the members.
const _: () = assert!(LONGEST > 3 * MAX_DOCUMENT / 3 * 4 + (2 << 20));

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The document is written.
    Done,
    /// The document is not written, for this reason.
    Refused(String),
    /// The engine's answer was lost, so the document may or may not be written.
    Unknown(String),
}

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
        locked(&self.view).clone_from(view);
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
        locked(&self.view).clone()
    }

    /// Writes a document, as long as this scheduler leads. Blocks until the engine has answered, so only
    /// keepers call it.
    pub(super) fn write(&self, name: &str, text: &[u8]) -> Written {
        let len = text.len();
        if len > MAX_DOCUMENT {
            return Written::Refused(format!("its {len} bytes are more than {MAX_DOCUMENT}"));
        }
        let Some(documents) = self.documents.get() else {
            return Written::Refused("this scheduler has not joined the others yet".to_owned());
        };
        match documents.write_as_leader(name, text) {
            Ok(()) => Written::Done,
            Err(EngineError::NoLease) => Written::Refused("this scheduler does not lead any more".to_owned()),
            Err(e) if e.is_unknown() => Written::Unknown(e.to_string()),
            Err(e) => Written::Refused(e.to_string()),
        }
    }
}
