//! Where tokens and certificates are kept: in memory, in a file, or in a document of the engine.
//!
//! It owns the records and makes one change at a time: a change is stored first, and only then shown. It
//! never knows who asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;
use std::{fmt, fs, io};

use crossbeam_channel::{Receiver, Sender, bounded};
use uuid::Uuid;

use super::records::Records;
use crate::figures::{EnrolmentFigures, tally};
use crate::shared::{ENROLMENT, MAX_DOCUMENT, Shared};
use ssntp::pki::{CertificateInfo, Enrolled, JoinRefusal, Trust};
use ssntp::server::{EnrolmentStore, Redeem};
use ssntp_engine::{EngineError, View, When};
use ssntp_transport::{locked, locked_again, replace, since_1970, wall_clock};

/// The maximum number of nodes that wait for their token to be known here: a share of those that may join at a time,
/// so that unknown tokens hinder nobody.
const AWAITING: usize = 16;
/// The file in the directory of the scheduler's state.
const FILE: &str = "enrolment.json";
/// The longest file, in bytes: some 100,000 certificates.
const MAX_FILE: usize = 64 << 20;
/// The attempts at a change that others make at the same time.
const ATTEMPTS: usize = 8;
/// The time limit for waiting until another change is over.
const CHANGE_WAIT: Duration = Duration::from_secs(2);
/// The time limit for the view of the engine to show another scheduler's change.
const SHOWN: Duration = Duration::from_secs(2);

/// The tokens and the certificates of nodes. A clone shares them.
///
/// # Threads
/// Changes block on the disk or the engine, so no dispatcher makes them. The other calls do not block.
#[derive(Clone, Debug, Default)]
pub struct Enrolments(pub(super) Arc<RecordStore>);

/// The records, and where they are stored.
#[derive(Debug, Default)]
pub(super) struct RecordStore {
    place: Place,
    /// Set instead of the file if this is one of several schedulers.
    shared: OnceLock<Arc<Shared>>,
    /// Has a message during a change, so that this scheduler makes one at a time.
    changing: OneMessage,
    kept: Mutex<Kept>,
    /// Signalled when `kept` has changed.
    is_newer: Condvar,
    /// The number of nodes that wait for their token to be known here.
    awaiting: AtomicUsize,
    /// Has a message when the revoked certificates may have changed.
    revoked: OneMessage,
    /// True if the lost nodes are as they were when they were taken last.
    has_taken_lost: AtomicBool,
    /// The commands of operators by action and result.
    commands: Mutex<BTreeMap<(&'static str, String), u64>>,
}

/// A channel with room for one message.
#[derive(Debug)]
struct OneMessage(Sender<()>, Receiver<()>);

impl Default for OneMessage {
    fn default() -> Self {
        let (sender, receiver) = bounded(1);
        Self(sender, receiver)
    }
}

#[derive(Debug, Default)]
enum Place {
    #[default]
    Memory,
    File(PathBuf),
}

/// The records, and the revision of the document that has them.
#[derive(Clone, Debug, Default)]
struct Kept {
    records: Arc<Records>,
    revision: Option<u64>,
    /// True if a view of the engine has shown this revision.
    is_shown: bool,
    /// True until the engine's document was read, or found to be missing: nobody knows what is revoked.
    is_unknown: bool,
    unreadable: Option<Unreadable>,
}

/// A revision of the document that cannot be read. The records are those of an earlier one, if there was any.
#[derive(Clone, Debug)]
struct Unreadable {
    revision: Option<u64>,
    why: String,
}

impl Kept {
    /// A view of the engine has shown these records.
    fn be_shown(&mut self) {
        (self.is_shown, self.is_unknown, self.unreadable) = (true, false, None);
    }
}

impl Enrolments {
    /// Keeps tokens and certificates in a file in this directory. Blocks while the file is read.
    ///
    /// # Errors
    /// The file cannot be read, or is none of a scheduler.
    pub fn in_directory(directory: &Path) -> io::Result<Self> {
        let path = directory.join(FILE);
        let unfit = |why: String| {
            let why = format!("{}: {why}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, why)
        };
        let records = match fs::metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Records::default(),
            Err(e) => return Err(e),
            Ok(found) if found.len() > MAX_FILE as u64 => {
                return Err(unfit(format!("it has more than {MAX_FILE} bytes")));
            }
            Ok(_) => Records::read(&fs::read(&path)?).map_err(unfit)?,
        };
        Ok(Self(Arc::new(RecordStore {
            place: Place::File(path),
            kept: Mutex::new(Kept {
                records: Arc::new(records),
                ..Kept::default()
            }),
            ..RecordStore::default()
        })))
    }

    /// Removes the file of an earlier cluster from this directory, and with it all tokens.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(directory: &Path) -> io::Result<()> {
        match fs::remove_file(directory.join(FILE)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Keeps them in a document of the engine instead.
    pub(crate) fn keep_in(&self, shared: &Arc<Shared>) {
        let _ = self.0.shared.set(Arc::clone(shared));
        locked(&self.0.kept).is_unknown = true;
    }

    /// Takes up the document in a view of the engine. Called by the engine's thread.
    pub(crate) fn take_view(&self, view: &View) {
        self.0.take_view(view);
    }

    /// The trust, which also refuses the certificates that were revoked here.
    pub fn apply(&self, trust: &Trust) -> Trust {
        trust.with_revoked(self.0.records().revoked())
    }

    /// The reason why it is not known which certificates are revoked, so that no node may connect. `None` if it is
    /// known.
    pub fn unknown(&self) -> Option<String> {
        let kept = locked(&self.0.kept);
        let unreadable = kept.unreadable.as_ref().map(Unreadable::to_string);
        let why = unreadable.unwrap_or_else(|| "the engine was not read yet".to_owned());
        kept.is_unknown
            .then(|| format!("it is not known which certificates are revoked: {why}"))
    }

    /// The fault of the engine's document, for the page about health.
    pub fn fault(&self) -> Option<String> {
        let unreadable = locked(&self.0.kept).unreadable.clone()?;
        Some(self.unknown().unwrap_or_else(|| {
            format!("{unreadable}: nobody joins, and a certificate that was revoked since is not known")
        }))
    }

    /// What is kept now, and the commands that were carried out, for metrics.
    pub fn figures(&self) -> EnrolmentFigures {
        let (records, now) = (self.0.records(), now());
        let certificates = records.certificates(now);
        let states = certificates.map(|(_, _, is_revoked)| if is_revoked { "revoked" } else { "valid" });
        EnrolmentFigures {
            tokens: records.tokens(now).count(),
            certificates: tally(["valid", "revoked"], states),
            commands: locked(&self.0.commands).clone(),
        }
    }

    /// True if the nodes whose certificates are all revoked may have changed since they were taken.
    pub(crate) fn has_lost(&self) -> bool {
        !self.0.has_taken_lost.load(Ordering::Acquire)
    }

    /// The nodes whose certificates are all revoked, if they may have changed since the last call.
    pub(crate) fn take_lost(&self) -> Option<BTreeSet<Uuid>> {
        let is_new = !self.0.has_taken_lost.swap(true, Ordering::AcqRel);
        is_new.then(|| self.0.records().lost())
    }

    /// Has a message when the revoked certificates may have changed: call [`apply`](Self::apply) then.
    pub fn changes(&self) -> Receiver<()> {
        self.0.revoked.1.clone()
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the engine's document {ENROLMENT} cannot be read: {}",
            self.why
        )
    }
}

/// The present time in seconds since 1970.
pub(super) fn now() -> u64 {
    since_1970(wall_clock()).as_secs()
}

/// The permission to make a change, until it is dropped.
struct ChangeGuard<'a>(&'a RecordStore);

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        let _ = self.0.changing.1.try_recv();
    }
}

/// A change that is not stored, or may not be.
#[derive(Debug)]
pub(super) enum NotStored {
    Busy,
    Refused(String),
    /// The engine has not stored it, for example because this scheduler drains and has left the cluster.
    Away(String),
    Unknown(String),
}

impl From<NotStored> for JoinRefusal {
    fn from(not: NotStored) -> Self {
        match not {
            NotStored::Busy => Self::Busy,
            NotStored::Refused(why) => Self::Issuer(why),
            NotStored::Away(why) => {
                log::warn!(target: "ssntp::scheduler", "a node gets no certificate now, and asks again: {why}");
                Self::Unavailable
            }
            NotStored::Unknown(why) => {
                log::warn!(target: "ssntp::scheduler", "it is not known whether a join is stored: {why}");
                Self::Unavailable
            }
        }
    }
}

impl RecordStore {
    /// The records, as they are stored now.
    pub(super) fn records(&self) -> Arc<Records> {
        Arc::clone(&locked(&self.kept).records)
    }

    /// Counts a command of an operator.
    pub(super) fn count(&self, action: &'static str, result: String) {
        *locked(&self.commands).entry((action, result)).or_default() += 1;
    }

    fn take_view(&self, view: &View) {
        let document = view.documents.get(ENROLMENT);
        let revision = document.map(|document| document.revision);
        let mut kept = locked(&self.kept);
        if kept.unreadable.as_ref().is_some_and(|it| it.revision == revision) {
            return;
        }
        if revision == kept.revision {
            kept.be_shown();
            return;
        }
        // It was read before this scheduler's own change. An older revision after that is that of a restored
        // snapshot, which counts.
        if !kept.is_shown && revision < kept.revision {
            return;
        }
        drop(kept);
        match document.map(|document| Records::read(&document.text)) {
            None => self.set(Records::default(), None, true),
            Some(Ok(records)) => self.set(records, revision, true),
            Some(Err(why)) => {
                let unreadable = Unreadable { revision, why };
                let mut kept = locked(&self.kept);
                let nobody = if kept.is_unknown {
                    "no node connects or joins"
                } else {
                    "nobody joins"
                };
                log::error!(target: "ssntp::scheduler", "{unreadable}: {nobody} until it is mended or deleted");
                kept.unreadable = Some(unreadable);
            }
        }
    }

    /// The reason why nothing can be changed now.
    fn not_ready(&self) -> Option<NotStored> {
        let kept = locked(&self.kept);
        let unreadable = kept.unreadable.as_ref();
        let refused = unreadable.map(|why| NotStored::Refused(why.to_string()));
        refused.or(kept.is_unknown.then_some(NotStored::Busy))
    }

    /// Waits until this token is known, for at most [`SHOWN`]: another scheduler may have added it a moment ago.
    /// False if too many nodes wait already.
    fn await_token(&self, id: &str) -> bool {
        let is_unknown = |kept: &mut Kept| !kept.records.has_token(id);
        if self.shared.get().is_none() || !is_unknown(&mut locked(&self.kept)) {
            return true;
        }
        let has_room = self.awaiting.fetch_add(1, Ordering::Relaxed) < AWAITING;
        if has_room {
            let kept = locked(&self.kept);
            drop(locked_again(
                self.is_newer.wait_timeout_while(kept, SHOWN, is_unknown),
            ));
        }
        self.awaiting.fetch_sub(1, Ordering::Relaxed);
        has_room
    }

    fn set(&self, mut records: Records, revision: Option<u64>, is_shown: bool) {
        let mut kept = locked(&self.kept);
        // Also a document that was lost or restored gives nobody a revoked certificate back.
        records.keep_revoked(&kept.records);
        let before = std::mem::replace(&mut kept.records, Arc::new(records));
        kept.be_shown();
        // A node that joins again is not lost any more.
        self.has_taken_lost.store(false, Ordering::Release);
        (kept.revision, kept.is_shown) = (revision, is_shown);
        if !before.revoked().eq(kept.records.revoked()) {
            // One message is enough for all changes.
            let _ = self.revoked.0.try_send(());
        }
        self.is_newer.notify_all();
    }

    /// Waits until no other change is under way. `None` if others take too long, for example because the engine is away:
    /// few nodes join at a time, and others wait for them.
    fn begin_change(&self) -> Option<ChangeGuard<'_>> {
        self.changing.0.send_timeout((), CHANGE_WAIT).ok()?;
        Some(ChangeGuard(self))
    }

    /// Stores a change of the records, and shows it then. Blocks while it is stored. `change` is called again if
    /// another scheduler has changed them meanwhile.
    pub(super) fn change<T, E: From<NotStored>>(
        &self,
        mut change: impl FnMut(&mut Records) -> Result<T, E>,
    ) -> Result<T, E> {
        let Some(_guard) = self.begin_change() else {
            return Err(NotStored::Busy.into());
        };
        for _ in 0..ATTEMPTS {
            if let Some(why) = self.not_ready() {
                return Err(why.into());
            }
            let kept = locked(&self.kept).clone();
            let mut records = Records::clone(&kept.records);
            records.forget_ended(now());
            let changed = change(&mut records)?;
            if records == *kept.records {
                return Ok(changed);
            }
            if let Some(revision) = self.store(&mut records, kept.revision)? {
                self.set(records, revision, false);
                return Ok(changed);
            }
            // The view with the other change may have come already, and was not taken up.
            if let Some(shared) = self.shared.get() {
                locked(&self.kept).is_shown = true;
                self.take_view(&shared.view());
            }
            let waits = |now: &mut Kept| now.revision == kept.revision;
            drop(locked_again(self.is_newer.wait_timeout_while(
                locked(&self.kept),
                SHOWN,
                waits,
            )));
        }
        Err(NotStored::Unknown("other schedulers change the document all the time".to_owned()).into())
    }

    /// Stores the records. Returns the document's new revision, or `None` if another scheduler has changed it
    /// since this revision.
    fn store(&self, records: &mut Records, revision: Option<u64>) -> Result<Option<Option<u64>>, NotStored> {
        let Some(shared) = self.shared.get() else {
            if let Place::File(path) = &self.place {
                let text = text(records, MAX_FILE)?;
                replace(path, &text).map_err(|e| NotStored::Refused(format!("{}: {e}", path.display())))?;
            }
            return Ok(Some(None));
        };
        let text = text(records, MAX_DOCUMENT)?;
        let documents = shared.documents();
        let documents = documents.ok_or(NotStored::Busy)?;
        match documents.write(ENROLMENT, &text, revision.map_or(When::Absent, When::At)) {
            Ok(revision) => Ok(Some(Some(revision))),
            Err(EngineError::Changed) => Ok(None),
            Err(e) if e.is_unknown() => Err(NotStored::Unknown(e.to_string())),
            Err(e) => Err(NotStored::Away(e.to_string())),
        }
    }
}

/// The records as text. Chains that only repeat an answer give way if it is too long.
fn text(records: &mut Records, limit: usize) -> Result<Vec<u8>, NotStored> {
    loop {
        let text = serde_json::to_vec(&*records).map_err(|e| NotStored::Refused(e.to_string()))?;
        if text.len() <= limit {
            let needed = text.len().saturating_sub(records.chains());
            if needed > limit / 5 * 4 {
                log::warn!(target: "ssntp::scheduler",
                    "the records of tokens and certificates have {needed} bytes of {limit}: \
                     soon no node can join or renew; a shorter --node-lifetime forgets certificates earlier"
                );
            }
            return Ok(text);
        }
        if !records.drop_a_chain() {
            let why = format!("there is no room for more: {} bytes of {limit}", text.len());
            return Err(NotStored::Refused(why));
        }
    }
}

impl EnrolmentStore for Enrolments {
    fn join(&self, id: &str, key: &str, redeem: &mut Redeem<'_>) -> Result<Enrolled, JoinRefusal> {
        if !self.0.await_token(id) {
            return Err(JoinRefusal::Busy);
        }
        self.0.change(|records| records.join(id, key, redeem))
    }

    fn renew(
        &self,
        before: &CertificateInfo,
        of_issuer: bool,
        renewed: &Enrolled,
    ) -> Result<Enrolled, JoinRefusal> {
        self.0.change(|records| records.renew(before, of_issuer, renewed))
    }
}

#[cfg(test)]
mod tests;
