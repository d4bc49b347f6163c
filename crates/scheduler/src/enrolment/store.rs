//! Where the records of nodes are kept: in memory, in a file, or in a document of the engine.
//!
//! It owns the records and makes one change at a time: a change is stored first, and only then shown. It
//! never knows who asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;
use std::{fs, io};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::{error, warn};
use uuid::Uuid;

use crate::figures::{EnrolmentFigures, tally};
use crate::shared::{ENROLMENT, MAX_DOCUMENT, Shared};
use ssntp::pki::{Enrolled, EnrolmentRecords, JoinRefusal, Trust};
use ssntp::server::EnrolmentStore;
use ssntp_engine::{EngineError, View, When};
use ssntp_payload::EnrolmentRefusal;
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
pub struct Enrolments(Arc<Parts>);

/// The records, and where they are stored.
#[derive(Debug, Default)]
struct Parts {
    /// `None`: in memory alone.
    file: Option<PathBuf>,
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
    /// Has a message when the engine has lost records that are known here.
    unwritten: OneMessage,
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

impl OneMessage {
    fn tell_if(&self, is_news: bool) {
        if is_news {
            // One message is enough for all changes.
            let _ = self.0.try_send(());
        }
    }
}

/// The records, and the revision of the document that has them.
#[derive(Debug, Default)]
struct Kept {
    records: Arc<EnrolmentRecords>,
    revision: Option<u64>,
    /// True if a view of the engine has shown this revision.
    is_shown: bool,
    /// True until the engine's document was read, or found to be missing: nobody knows what is revoked.
    is_unknown: bool,
    /// True if the engine's document lacks some of the records, because the engine was emptied or restored.
    is_unwritten: bool,
    /// A revision of the document that cannot be read, and the reason. The records are those of an earlier one, if
    /// there was any.
    unreadable: Option<(Option<u64>, String)>,
}

/// A change that is not made, or may not be: the reason, and its details.
#[derive(Debug)]
pub(super) struct NotDone(pub(super) EnrolmentRefusal, pub(super) String);

/// The node may have done nothing wrong, so it asks again.
impl From<NotDone> for JoinRefusal {
    fn from(NotDone(reason, why): NotDone) -> Self {
        if reason == EnrolmentRefusal::Busy {
            return Self::Busy;
        }
        warn!(target: "ssntp::scheduler", "a node gets no certificate now, and asks again: {reason}: {why}");
        Self::Unavailable
    }
}

pub(super) fn not(reason: EnrolmentRefusal, why: impl ToString) -> NotDone {
    NotDone(reason, why.to_string())
}

fn not_stored(why: impl ToString) -> NotDone {
    not(EnrolmentRefusal::NotStored, why)
}

fn unknown(why: impl Display) -> NotDone {
    let why = format_args!("it is not known whether that was done: {why}");
    not(EnrolmentRefusal::Unknown, why)
}

/// The present time in seconds since 1970.
pub(super) fn now() -> u64 {
    since_1970(wall_clock()).as_secs()
}

/// The permission to make a change, until it is dropped.
struct ChangeGuard<'a>(&'a Receiver<()>);

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        let _ = self.0.try_recv();
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
            Err(e) if e.kind() == io::ErrorKind::NotFound => EnrolmentRecords::default(),
            Err(e) => return Err(e),
            Ok(found) if found.len() > MAX_FILE as u64 => {
                return Err(unfit(format!("it has more than {MAX_FILE} bytes")));
            }
            Ok(_) => read(&fs::read(&path)?).map_err(unfit)?,
        };
        let parts = Parts {
            file: Some(path),
            ..Parts::default()
        };
        locked(&parts.kept).records = Arc::new(records);
        Ok(Self(Arc::new(parts)))
    }

    /// Keeps them in a document of the engine instead.
    pub(crate) fn keep_in(&self, shared: &Arc<Shared>) {
        let _ = self.0.shared.set(Arc::clone(shared));
        locked(&self.0.kept).is_unknown = true;
    }

    /// The trust, which also refuses the certificates that were revoked here.
    pub fn apply(&self, trust: &Trust) -> Trust {
        trust.with_revoked(self.records().revoked())
    }

    /// Has a message when the revoked certificates may have changed: call [`apply`](Self::apply) then.
    pub fn changes(&self) -> Receiver<()> {
        self.0.revoked.1.clone()
    }

    /// Has a message when the engine has lost records: call [`write_again`](Self::write_again) then.
    pub(super) fn unwritten(&self) -> &Receiver<()> {
        &self.0.unwritten.1
    }

    /// Stores records that the engine has lost, so that a scheduler that starts later knows them, too. Blocks while
    /// they are stored.
    pub(super) fn write_again(&self) {
        if let Err(NotDone(reason, why)) = self.change(|_| Ok(())) {
            warn!(target: "ssntp::scheduler",
                "tokens and certificates that the engine has lost are not stored again yet: {reason}: {why}");
        }
    }

    /// The reason why it is not known which certificates are revoked, so that no node may connect. `None` if it is
    /// known.
    pub fn unknown(&self) -> Option<String> {
        let kept = locked(&self.0.kept);
        let unreadable = kept.unreadable.as_ref().map(|(_, why)| why.as_str());
        let why = unreadable.unwrap_or("the engine was not read yet");
        kept.is_unknown
            .then(|| format!("it is not known which certificates are revoked: {why}"))
    }

    /// The fault of the engine's document, for the page about health.
    pub fn fault(&self) -> Option<String> {
        let (_, why) = locked(&self.0.kept).unreadable.clone()?;
        Some(self.unknown().unwrap_or_else(|| {
            format!("{why}: nobody joins, and a certificate that was revoked since is not known")
        }))
    }

    /// What is kept now, and the commands that were carried out, for metrics.
    pub fn figures(&self) -> EnrolmentFigures {
        let (records, now) = (self.records(), now());
        let certificates = records.certificates(now);
        let states = certificates.map(|(_, _, is_revoked)| if is_revoked { "revoked" } else { "valid" });
        EnrolmentFigures {
            tokens: records.tokens(now).count(),
            certificates: tally(["valid", "revoked"], states),
            commands: locked(&self.0.commands).clone(),
        }
    }

    /// Counts a command of an operator.
    pub(super) fn count(&self, action: &'static str, result: String) {
        *locked(&self.0.commands).entry((action, result)).or_default() += 1;
    }

    /// The records, as they are stored now.
    pub(super) fn records(&self) -> Arc<EnrolmentRecords> {
        Arc::clone(&locked(&self.0.kept).records)
    }

    /// True if the nodes whose certificates are all revoked may have changed since they were taken.
    pub(crate) fn has_lost(&self) -> bool {
        !self.0.has_taken_lost.load(Ordering::Acquire)
    }

    /// The nodes whose certificates are all revoked, if they may have changed since the last call.
    pub(crate) fn take_lost(&self) -> Option<BTreeSet<Uuid>> {
        if self.0.has_taken_lost.swap(true, Ordering::AcqRel) {
            return None;
        }
        let records = self.records();
        let nodes = |is_lost| {
            let its = records.certificates(0);
            its.filter(move |(.., is_revoked)| *is_revoked == is_lost)
                .map(|(_, one, _)| one.uuid)
        };
        let valid: BTreeSet<_> = nodes(false).collect();
        Some(nodes(true).filter(|node| !valid.contains(node)).collect())
    }

    /// Takes up the document in a view of the engine. Called by the engine's thread.
    pub(crate) fn take_view(&self, view: &View) {
        let document = view.documents.get(ENROLMENT);
        let revision = document.map(|document| document.revision);
        let mut kept = locked(&self.0.kept);
        let is_unreadable = kept.unreadable.as_ref().is_some_and(|(at, _)| *at == revision);
        // It was read before this scheduler's own change. An older revision after that is that of a restored
        // snapshot, which counts.
        if is_unreadable || !kept.is_shown && revision < kept.revision {
            return;
        }
        if revision == kept.revision {
            (kept.is_shown, kept.is_unknown, kept.unreadable) = (true, false, None);
            self.0.unwritten.tell_if(kept.is_unwritten);
            return;
        }
        drop(kept);
        match document.map_or(Ok(EnrolmentRecords::default()), |document| read(&document.text)) {
            Ok(stored) => {
                let known = self.records();
                let mut records = EnrolmentRecords::clone(if document.is_some() { &stored } else { &known });
                // Also a document that was restored gives nobody a revoked certificate back.
                records.keep_revoked(&known, now());
                let is_unwritten = records != stored;
                self.set(records, revision, true);
                locked(&self.0.kept).is_unwritten = is_unwritten;
                self.0.unwritten.tell_if(is_unwritten);
            }
            Err(why) => {
                let why = format!("the engine's document {ENROLMENT} cannot be read: {why}");
                let mut kept = locked(&self.0.kept);
                let nobody = if kept.is_unknown {
                    "no node connects or joins"
                } else {
                    "nobody joins"
                };
                error!(target: "ssntp::scheduler", "{why}: {nobody} until it is mended or deleted");
                kept.unreadable = Some((revision, why));
            }
        }
    }

    fn set(&self, records: EnrolmentRecords, revision: Option<u64>, is_shown: bool) {
        let mut kept = locked(&self.0.kept);
        let is_same = kept.records.revoked().eq(records.revoked());
        *kept = Kept {
            records: Arc::new(records),
            revision,
            is_shown,
            ..Kept::default()
        };
        // A node that joins again is not lost any more.
        self.0.has_taken_lost.store(false, Ordering::Release);
        self.0.revoked.tell_if(!is_same);
        self.0.is_newer.notify_all();
    }

    /// Reads the document again, because another scheduler may have changed it a moment ago. Blocks until the engine has
    /// answered.
    pub(super) fn read_again(&self) -> Result<(), NotDone> {
        let documents = self.0.shared.get().and_then(|shared| shared.documents());
        documents.map_or(Ok(()), |documents| documents.read().map_err(not_stored))
    }

    /// Waits until this token is known, for at most [`SHOWN`]: another scheduler may have added it a moment ago.
    /// False if too many nodes wait already.
    fn await_token(&self, id: &str) -> bool {
        if self.0.shared.get().is_none() || self.records().has_token(id) {
            return true;
        }
        let has_room = self.0.awaiting.fetch_add(1, Ordering::Relaxed) < AWAITING;
        if has_room {
            let kept = locked(&self.0.kept);
            let is_unknown = |kept: &mut Kept| !kept.records.has_token(id);
            drop(locked_again(
                self.0.is_newer.wait_timeout_while(kept, SHOWN, is_unknown),
            ));
        }
        self.0.awaiting.fetch_sub(1, Ordering::Relaxed);
        has_room
    }

    /// Waits until no other change is under way. `None` if others take too long, for example because the engine is away:
    /// few nodes join at a time, and others wait for them.
    fn begin_change(&self) -> Option<ChangeGuard<'_>> {
        let OneMessage(begin, end) = &self.0.changing;
        begin.send_timeout((), CHANGE_WAIT).ok()?;
        Some(ChangeGuard(end))
    }

    /// The records to change, their revision, and whether the engine has lost some; or the reason why nothing can be
    /// changed now.
    fn changeable(&self) -> Result<(Arc<EnrolmentRecords>, Option<u64>, bool), NotDone> {
        let kept = locked(&self.0.kept);
        match &kept.unreadable {
            Some((_, why)) => Err(not_stored(why)),
            None if kept.is_unknown => Err(not(EnrolmentRefusal::Busy, "the engine was not read yet")),
            None => Ok((Arc::clone(&kept.records), kept.revision, kept.is_unwritten)),
        }
    }

    /// Stores a change of the records, and shows it then. Blocks while it is stored. `change` is called again if
    /// another scheduler has changed them meanwhile.
    pub(super) fn change<T, E: From<NotDone>>(
        &self,
        mut change: impl FnMut(&mut EnrolmentRecords) -> Result<T, E>,
    ) -> Result<T, E> {
        let _guard = self
            .begin_change()
            .ok_or_else(|| not(EnrolmentRefusal::Busy, "other changes take too long"))?;
        for _ in 0..ATTEMPTS {
            let (before, revision, is_unwritten) = self.changeable()?;
            let mut records = EnrolmentRecords::clone(&before);
            records.forget_ended(now());
            let changed = change(&mut records)?;
            if records == *before && !is_unwritten {
                return Ok(changed);
            }
            if let Some(revision) = self.store(&records, revision)? {
                self.set(records, revision, false);
                return Ok(changed);
            }
            // An older revision counts as well: that of a restored snapshot.
            locked(&self.0.kept).is_shown = true;
            self.read_again()?;
        }
        Err(not_stored("other schedulers change the document all the time").into())
    }

    /// Stores the records. Returns the document's new revision, or `None` if another scheduler has changed it
    /// since this revision.
    fn store(
        &self,
        records: &EnrolmentRecords,
        revision: Option<u64>,
    ) -> Result<Option<Option<u64>>, NotDone> {
        let Some(shared) = self.0.shared.get() else {
            if let Some(path) = &self.0.file {
                let text = text(records, MAX_FILE)?;
                replace(path, &text).map_err(|e| not_stored(format_args!("{}: {e}", path.display())))?;
            }
            return Ok(Some(None));
        };
        let text = text(records, MAX_DOCUMENT)?;
        let documents = shared
            .documents()
            .ok_or_else(|| not(EnrolmentRefusal::Busy, "the scheduler has not joined yet"))?;
        match documents.write(ENROLMENT, &text, revision.map_or(When::Absent, When::At)) {
            Ok(revision) => Ok(Some(Some(revision))),
            Err(EngineError::Changed) => Ok(None),
            Err(e) if e.is_unknown() => Err(unknown(e)),
            Err(e) => Err(not_stored(e)),
        }
    }
}

/// The records in a JSON text.
fn read(json: &[u8]) -> Result<EnrolmentRecords, String> {
    let records: EnrolmentRecords = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    records.check().map_err(|e| e.to_string())?;
    Ok(records)
}

/// The records as text.
fn text(records: &EnrolmentRecords, limit: usize) -> Result<Vec<u8>, NotDone> {
    let text = serde_json::to_vec(records).map_err(not_stored)?;
    let len = text.len();
    if len > limit {
        let why = format_args!("there is no room for more: {len} bytes of {limit}");
        return Err(not_stored(why));
    }
    if len > limit / 5 * 4 {
        warn!(target: "ssntp::scheduler",
            "the records of tokens and certificates have {len} bytes of {limit}: \
             soon no node can join or renew; a shorter --node-lifetime forgets certificates earlier"
        );
    }
    Ok(text)
}

impl EnrolmentStore for Enrolments {
    fn update(
        &self,
        token: Option<&str>,
        change: &mut dyn FnMut(&mut EnrolmentRecords) -> Result<Enrolled, JoinRefusal>,
    ) -> Result<Enrolled, JoinRefusal> {
        if token.is_some_and(|id| !self.await_token(id)) {
            return Err(JoinRefusal::Busy);
        }
        self.change(change)
    }
}

#[cfg(test)]
mod tests;
