//! The commands of operators about tokens and certificates, carried out on a thread of their own, because
//! a change blocks while it is stored.

use std::io;

use crossbeam_channel::{Sender, TrySendError, bounded};
use log::info;

use super::store::{Enrolments, NotStored, RecordStore};
use ssntp::payload::{Id, Payload};
use ssntp::pki::{Enrolled, StoredToken};
use ssntp::proto::{Command, Frame};
use ssntp::server::{ServerHandle, SessionInfo};
use ssntp_payload::{
    CertificateAction, EnrolmentRefusal, ManageCertificates, ManageTokens, NodeCertificate, NodeCertificates,
    TokenAction, TokenEntry, Tokens,
};
use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{since_1970, wall_clock};

/// The number of operators' commands that wait for the thread.
const COMMANDS: usize = 64;
/// The entries of a page.
const PAGE: usize = 64;

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
                let (to, answer) = (from.uuid(), answer(&records.0, &from, &frame));
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
type CommandRefused = (EnrolmentRefusal, String);

impl From<NotStored> for CommandRefused {
    fn from(not: NotStored) -> Self {
        match not {
            NotStored::Busy => (EnrolmentRefusal::Busy, "other changes take too long".to_owned()),
            NotStored::Refused(why) => (EnrolmentRefusal::NotStored, why),
            NotStored::Unknown(why) => (EnrolmentRefusal::Unknown, why),
        }
    }
}

/// Carries out a command. Blocks while a change is stored.
fn answer(store: &RecordStore, from: &SessionInfo, frame: &Frame) -> Frame {
    let answer = if frame.kind() == Command::MANAGE_TOKENS {
        asked(frame).and_then(|asked| manage_tokens(store, from, asked).map(|page| Frame::of(&page)))
    } else {
        asked(frame).and_then(|asked| manage_certificates(store, from, asked).map(|page| Frame::of(&page)))
    };
    answer.unwrap_or_else(|(reason, detail)| refused(frame, reason, &detail))
}

fn manage_tokens(
    store: &RecordStore,
    from: &SessionInfo,
    asked: ManageTokens,
) -> Result<Tokens, CommandRefused> {
    let ManageTokens {
        id,
        action,
        token,
        after,
    } = asked;
    let (entries, next) = match action {
        TokenAction::List => {
            let records = store.records();
            page(
                records.tokens().filter(|token| token.id > after).map(shown),
                |entry: &TokenEntry| entry.id.clone(),
            )
        }
        TokenAction::Add => {
            let made_by = format!("{}, {}", from.certificate().subject, from.uuid());
            let stored = stored(&token, &made_by).map_err(|why| (EnrolmentRefusal::InvalidData, why))?;
            let entry = shown(&stored);
            store.change(|records| {
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
            let removed = store.change(|records| {
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
    store: &RecordStore,
    from: &SessionInfo,
    asked: ManageCertificates,
) -> Result<NodeCertificates, CommandRefused> {
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
        let count = store.change(|records| {
            let has_any = records.certificates().any(|(one, _)| one.uuid == node);
            has_any.then(|| records.revoke(node)).ok_or_else(none)
        })?;
        info!(target: "ssntp::audit", "revoked: UUID {node}, {count} certificates: by {from}");
    }
    let records = store.records();
    let wanted = |one: &Enrolled| uuid.is_empty() || uuid.uuid() == Some(one.uuid);
    // A number in the order of issue. A certificate that ends meanwhile moves the rest forward by one.
    let all = records.certificates().zip(1_u64..);
    let from_here = all.filter(|((one, _), number)| *number > after && wanted(one));
    let (entries, next) = page(from_here, |(_, number)| *number);
    let entries = entries.into_iter();
    let entries = entries
        .map(|((one, is_revoked), _)| certificate(one, is_revoked))
        .collect();
    Ok(NodeCertificates {
        id,
        entries,
        next,
        ..NodeCertificates::default()
    })
}

/// The first entries, and the key of the last one if there are more.
fn page<T, K: Default>(mut all: impl Iterator<Item = T>, key: impl Fn(&T) -> K) -> (Vec<T>, K) {
    let entries: Vec<T> = all.by_ref().take(PAGE).collect();
    let next = all.next().and_then(|_| entries.last().map(key));
    (entries, next.unwrap_or_default())
}

fn asked<T: Payload>(frame: &Frame) -> Result<T, CommandRefused> {
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
    if token.uses_left == 0 || token.ends <= since_1970(wall_clock()).as_secs() {
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
