//! Nodes that join with a token: where their tokens and certificates are kept, and the commands of operators.
//!
//! ```text
//!  newcomer's thread, ssntp-enrol ─ join, renew ─▶ Enrolments ─ change ─▶ file, or document of the engine
//!                                                      ▲ │ revoked ─▶ the server's trust
//!  dispatcher ─ ManageTokens … ─▶ ssntp-tokens ────────┘ └ answer ─▶ dispatcher ─▶ operator
//! ```
//!
//! Each change is stored before anybody hears of it. Several schedulers share the document: a change counts
//! if nobody has changed the document since it was read, and is tried again otherwise.

mod records;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use log::info;

use self::records::Records;
use super::shared::{ENROLMENT, MAX_DOCUMENT, Shared};
use ssntp::payload::{Id, Payload};
use ssntp::pki::{CertificateInfo, Enrolled, JoinRefusal, StoredToken, Trust};
use ssntp::proto::{Command, Frame};
use ssntp::server::{EnrolmentStore, Redeem, ServerHandle, SessionInfo};
use ssntp_engine::{EngineError, View, When};
use ssntp_payload::{
    CertificateAction, EnrolmentRefusal, ManageCertificates, ManageTokens, NodeCertificate, NodeCertificates,
    TokenAction, TokenEntry, Tokens,
};
use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{locked, locked_again, replace, wall_clock};

/// The file in the directory of the scheduler's state.
const FILE: &str = "enrolment.json";
/// The longest file, in bytes: some 100,000 certificates.
const MAX_FILE: usize = 64 << 20;
/// The attempts at a change that others make at the same time.
const ATTEMPTS: usize = 8;
/// The time limit for the turn to make a change.
const TURN: Duration = Duration::from_secs(2);
/// The time limit for the view of the engine to show another scheduler's change.
const SHOWN: Duration = Duration::from_secs(2);
/// The number of operators' commands that wait for the thread.
const COMMANDS: usize = 64;
/// The entries of a page.
const PAGE: usize = 64;

/// The tokens and the certificates of nodes. A clone shares them.
///
/// # Threads
/// Changes block on the disk or the engine, so no dispatcher makes them. The other calls do not block.
#[derive(Clone, Debug, Default)]
pub struct Enrolments(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    place: Place,
    /// Set instead of the file if this is one of several schedulers.
    shared: OnceLock<Arc<Shared>>,
    /// True during a change, so that this scheduler makes one at a time.
    is_changing: Mutex<bool>,
    /// Signalled when a change is over.
    is_free: Condvar,
    kept: Mutex<Kept>,
    /// Signalled when `kept` has changed.
    is_newer: Condvar,
    /// Has a message when the revoked certificates may have changed.
    revoked: Changes,
}

#[derive(Debug)]
struct Changes(Sender<()>, Receiver<()>);

impl Default for Changes {
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
            Ok(_) => serde_json::from_slice(&fs::read(&path)?).map_err(|e| unfit(e.to_string()))?,
        };
        Ok(Self(Arc::new(Inner {
            place: Place::File(path),
            kept: Mutex::new(Kept {
                records: Arc::new(records),
                ..Kept::default()
            }),
            ..Inner::default()
        })))
    }

    /// Keeps them in a document of the engine instead.
    pub(crate) fn keep_in(&self, shared: &Arc<Shared>) {
        let _ = self.0.shared.set(Arc::clone(shared));
    }

    /// Takes up the document in a view of the engine. Called by the engine's thread.
    pub(crate) fn take_view(&self, view: &View) {
        self.0.take_view(view);
    }

    /// The trust, which also refuses the certificates that were revoked here.
    pub fn apply(&self, trust: &Trust) -> Trust {
        trust.with_revoked(self.0.records().revoked())
    }

    /// Has a message when the revoked certificates may have changed: call [`apply`](Self::apply) then.
    pub fn changes(&self) -> Receiver<()> {
        self.0.revoked.1.clone()
    }
}

/// The turn to make a change, until it is dropped.
struct Turn<'a>(&'a Inner);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *locked(&self.0.is_changing) = false;
        self.0.is_free.notify_one();
    }
}

/// A change that is not stored, or may not be.
#[derive(Debug)]
enum NotStored {
    Busy,
    Refused(String),
    Unknown(String),
}

impl From<NotStored> for JoinRefusal {
    fn from(not: NotStored) -> Self {
        match not {
            NotStored::Busy => Self::Busy,
            NotStored::Refused(why) => Self::Issuer(why),
            NotStored::Unknown(why) => {
                log::warn!(target: "ssntp::scheduler", "it is not known whether a join is stored: {why}");
                Self::Unavailable
            }
        }
    }
}

impl Inner {
    fn records(&self) -> Arc<Records> {
        Arc::clone(&locked(&self.kept).records)
    }

    fn take_view(&self, view: &View) {
        let document = view.documents.get(ENROLMENT);
        let revision = document.map(|document| document.revision);
        let mut kept = locked(&self.kept);
        if revision == kept.revision {
            kept.is_shown = true;
            return;
        }
        // It was read before this scheduler's own change. An older revision after that is that of a restored
        // snapshot, which counts.
        if !kept.is_shown && revision < kept.revision {
            return;
        }
        drop(kept);
        match document.map(|document| serde_json::from_slice(&document.text)) {
            None => self.set(Records::default(), None, true),
            Some(Ok(records)) => self.set(records, revision, true),
            Some(Err(e)) => log::error!(
                target: "ssntp::scheduler",
                "the engine's document {ENROLMENT} cannot be read, so nobody joins: {e}"
            ),
        }
    }

    fn set(&self, mut records: Records, revision: Option<u64>, is_shown: bool) {
        let mut kept = locked(&self.kept);
        // Also a document that was lost or restored gives nobody a revoked certificate back.
        records.keep_revoked(&kept.records);
        let before = std::mem::replace(&mut kept.records, Arc::new(records));
        (kept.revision, kept.is_shown) = (revision, is_shown);
        if !before.revoked().eq(kept.records.revoked()) {
            // One message is enough for all changes.
            let _ = self.revoked.0.try_send(());
        }
        self.is_newer.notify_all();
    }

    /// The turn to make a change. `None` if others take too long, for example because the engine is away:
    /// nodes that join wait in slots that other clients need.
    fn turn(&self) -> Option<Turn<'_>> {
        let is_busy = |is_changing: &mut bool| *is_changing;
        let waited = self
            .is_free
            .wait_timeout_while(locked(&self.is_changing), TURN, is_busy);
        let (mut is_changing, end) = locked_again(waited);
        if end.timed_out() {
            return None;
        }
        *is_changing = true;
        Some(Turn(self))
    }

    fn change<T, E: From<NotStored>>(
        &self,
        mut change: impl FnMut(&mut Records) -> Result<T, E>,
    ) -> Result<T, E> {
        let Some(_turn) = self.turn() else {
            return Err(NotStored::Busy.into());
        };
        for _ in 0..ATTEMPTS {
            let kept = locked(&self.kept).clone();
            let mut records = Records::clone(&kept.records);
            records.forget_ended(seconds(wall_clock()));
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
        let not_stored = |why: String| NotStored::Refused(why);
        let Some(shared) = self.shared.get() else {
            if let Place::File(path) = &self.place {
                let text = text(records, MAX_FILE)?;
                replace(path, &text).map_err(|e| not_stored(format!("{}: {e}", path.display())))?;
            }
            return Ok(Some(None));
        };
        let text = text(records, MAX_DOCUMENT)?;
        let documents = shared.documents();
        let documents = documents.ok_or_else(|| not_stored("the scheduler has not joined yet".to_owned()))?;
        match documents.write(ENROLMENT, &text, revision.map_or(When::Absent, When::At)) {
            Ok(revision) => Ok(Some(Some(revision))),
            Err(EngineError::Changed) => Ok(None),
            Err(e) if e.is_unknown() => Err(NotStored::Unknown(e.to_string())),
            Err(e) => Err(not_stored(e.to_string())),
        }
    }
}

/// The records as text. Chains that only repeat an answer give way if it is too long.
fn text(records: &mut Records, limit: usize) -> Result<Vec<u8>, NotStored> {
    loop {
        let text = serde_json::to_vec(&*records).map_err(|e| NotStored::Refused(e.to_string()))?;
        if text.len() <= limit {
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
        self.0.change(|records| records.join(id, key, redeem))
    }

    fn renew(&self, before: &CertificateInfo, enrolled: &Enrolled) -> Result<(), JoinRefusal> {
        self.0.change(|records| records.renew(&before.serial, enrolled))
    }
}

/// Carries out the commands of operators, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Clerk {
    work: Sender<(SessionInfo, Frame)>,
    _thread: Joined,
}

impl Clerk {
    /// Starts the thread. The caller sends the server that sends the answers on the returned channel, because
    /// the server starts later.
    pub(crate) fn start(records: Enrolments) -> io::Result<(Self, Sender<ServerHandle>)> {
        let (work, given) = bounded::<(SessionInfo, Frame)>(COMMANDS);
        let (server, servers) = bounded::<ServerHandle>(1);
        let run = move || {
            let Ok(server) = servers.recv() else { return };
            for (from, frame) in given {
                let (to, answer) = (from.uuid(), records.answer(&from, &frame));
                // Without an answer the operator's command reaches its time limit, and says so.
                let _ = server.post(move |cx| {
                    let _ = cx.send(to, &answer);
                });
            }
        };
        let _thread = threads::joined("ssntp-tokens", run)?;
        Ok((Self { work, _thread }, server))
    }

    /// Hands over a command. Returns the answer if there is no room for it.
    pub(crate) fn hand_over(&self, from: &SessionInfo, frame: &Frame) -> Option<Frame> {
        match self.work.try_send((from.clone(), frame.clone())) {
            Ok(()) => None,
            Err(TrySendError::Full((_, frame)) | TrySendError::Disconnected((_, frame))) => {
                Some(refused(&frame, EnrolmentRefusal::Busy, "too many commands wait"))
            }
        }
    }
}

/// The answer that refuses a command.
pub(crate) fn refused(frame: &Frame, reason: EnrolmentRefusal, detail: &str) -> Frame {
    let detail = detail.to_owned();
    if frame.kind() == Command::MANAGE_TOKENS {
        let id = frame.payload().map(|asked: ManageTokens| asked.id);
        let id = id.unwrap_or_default();
        return Frame::of(&Tokens {
            id,
            reason,
            detail,
            ..Tokens::default()
        });
    }
    let id = frame.payload().map(|asked: ManageCertificates| asked.id);
    let id = id.unwrap_or_default();
    Frame::of(&NodeCertificates {
        id,
        reason,
        detail,
        ..NodeCertificates::default()
    })
}

/// The reason why a command was not carried out, and its details.
type Refused = (EnrolmentRefusal, String);

impl From<NotStored> for Refused {
    fn from(not: NotStored) -> Self {
        match not {
            NotStored::Busy => (EnrolmentRefusal::Busy, "other changes take too long".to_owned()),
            NotStored::Refused(why) => (EnrolmentRefusal::NotStored, why),
            NotStored::Unknown(why) => (EnrolmentRefusal::Unknown, why),
        }
    }
}

impl Enrolments {
    /// Carries out a command. Blocks while a change is stored.
    fn answer(&self, from: &SessionInfo, frame: &Frame) -> Frame {
        let answer = if frame.kind() == Command::MANAGE_TOKENS {
            asked(frame).and_then(|asked| self.manage_tokens(from, asked).map(|page| Frame::of(&page)))
        } else {
            asked(frame).and_then(|asked| self.manage_certificates(from, asked).map(|page| Frame::of(&page)))
        };
        answer.unwrap_or_else(|(reason, detail)| refused(frame, reason, &detail))
    }

    fn manage_tokens(&self, from: &SessionInfo, asked: ManageTokens) -> Result<Tokens, Refused> {
        let ManageTokens {
            id,
            action,
            token,
            after,
        } = asked;
        let (entries, next) = match action {
            TokenAction::List => {
                let records = self.0.records();
                page(
                    records.tokens().filter(|token| token.id > after).map(shown),
                    |entry: &TokenEntry| entry.id.clone(),
                )
            }
            TokenAction::Add => {
                let made_by = format!("{}, {}", from.certificate().subject, from.uuid());
                let stored = stored(&token, &made_by).map_err(|why| (EnrolmentRefusal::InvalidData, why))?;
                let entry = shown(&stored);
                self.0.change(|records| {
                    let added = records.add_token(stored.clone());
                    added.map_err(|why| (EnrolmentRefusal::InvalidData, why))
                })?;
                info!(
                    target: "ssntp::audit",
                    "token {}: added for {}, {} uses: by {from}", entry.id, entry.roles, entry.uses_left
                );
                (vec![entry], String::new())
            }
            TokenAction::Remove => {
                let removed = self.0.change(|records| {
                    let removed = records.remove_token(&token.id);
                    removed.ok_or_else(|| {
                        (
                            EnrolmentRefusal::NotFound,
                            format!("there is no token {}", token.id),
                        )
                    })
                })?;
                info!(target: "ssntp::audit", "token {}: removed: by {from}", removed.id);
                (vec![shown(&removed)], String::new())
            }
            other => return Err((EnrolmentRefusal::InvalidData, format!("no action {other:?}"))),
        };
        Ok(Tokens {
            id,
            entries,
            next,
            ..Tokens::default()
        })
    }

    fn manage_certificates(
        &self,
        from: &SessionInfo,
        asked: ManageCertificates,
    ) -> Result<NodeCertificates, Refused> {
        let ManageCertificates {
            id,
            action,
            uuid,
            after,
        } = asked;
        if let CertificateAction::Other(other) = &action {
            return Err((EnrolmentRefusal::InvalidData, format!("no action {other:?}")));
        }
        if action == CertificateAction::Revoke {
            let none = || {
                (
                    EnrolmentRefusal::NotFound,
                    format!("no certificate was issued to {uuid} here"),
                )
            };
            let node = uuid.uuid().ok_or_else(none)?;
            let count = self.0.change(|records| {
                let has_any = records.certificates().any(|(one, _)| one.uuid == node);
                has_any.then(|| records.revoke(node)).ok_or_else(none)
            })?;
            info!(target: "ssntp::audit", "revoked: UUID {node}, {count} certificates: by {from}");
        }
        let records = self.0.records();
        let wanted = |one: &Enrolled| uuid.is_empty() || uuid.uuid() == Some(one.uuid);
        // A number in the order of issue. A certificate that ends meanwhile moves the rest forward by one.
        let all = records.certificates().zip(1_u64..);
        let from_here = all.filter(|((one, _), number)| *number > after && wanted(one));
        let mut entries: Vec<_> = from_here
            .take(PAGE + 1)
            .map(|((one, is_revoked), number)| (certificate(one, is_revoked), number))
            .collect();
        let more = entries.len() > PAGE;
        entries.truncate(PAGE);
        let next = entries.last().filter(|_| more).map_or(0, |(_, number)| *number);
        let entries = entries.into_iter().map(|(entry, _)| entry).collect();
        Ok(NodeCertificates {
            id,
            entries,
            next,
            ..NodeCertificates::default()
        })
    }
}

/// The first entries, and the key of the last one if there are more.
fn page<T>(mut all: impl Iterator<Item = T>, key: impl Fn(&T) -> String) -> (Vec<T>, String) {
    let entries: Vec<T> = all.by_ref().take(PAGE).collect();
    let next = all.next().and_then(|_| entries.last().map(key));
    (entries, next.unwrap_or_default())
}

fn asked<T: Payload>(frame: &Frame) -> Result<T, Refused> {
    frame
        .payload()
        .map_err(|e| (EnrolmentRefusal::InvalidData, e.to_string()))
}

fn shown(token: &StoredToken) -> TokenEntry {
    TokenEntry {
        id: token.id.clone(),
        secret_sha256: String::new(),
        roles: token.roles.to_string(),
        uuid: token.uuid.map(Id::from).unwrap_or_default(),
        uses_left: token.uses_left,
        ends: token.ends,
        made_by: token.made_by.clone(),
    }
}

fn stored(token: &TokenEntry, made_by: &str) -> Result<StoredToken, String> {
    let uuid = match token.uuid.uuid() {
        None if !token.uuid.is_empty() => return Err(format!("{} is not a UUID", token.uuid)),
        Some(uuid) if uuid.is_nil() => return Err("the nil UUID is no node's".to_owned()),
        uuid => uuid,
    };
    let roles = token.roles.parse().map_err(|e| format!("roles: {e}"))?;
    let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let (id, secret) = (&token.id, &token.secret_sha256);
    if id.is_empty() || id.len() > 64 || !id.bytes().all(is_base64url) {
        return Err("the id is not 1 to 64 letters and digits".to_owned());
    }
    if secret.len() != 43 || !secret.bytes().all(is_base64url) {
        return Err("secret_sha256 is not 32 bytes in base64url".to_owned());
    }
    if token.uses_left == 0 || token.ends <= seconds(wall_clock()) {
        return Err("nobody could join with it: it is for no node, or has ended".to_owned());
    }
    Ok(StoredToken {
        id: id.clone(),
        secret_sha256: secret.clone(),
        roles,
        uuid,
        uses_left: if uuid.is_some() { 1 } else { token.uses_left },
        ends: token.ends,
        made_by: made_by.to_owned(),
    })
}

fn certificate(one: &Enrolled, is_revoked: bool) -> NodeCertificate {
    NodeCertificate {
        uuid: one.uuid.into(),
        roles: one.roles.to_string(),
        serial: one.serial.clone(),
        ends: one.ends,
        token: one.token.clone(),
        is_revoked,
    }
}

/// Whole seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
