//! The commands of operators about tokens and certificates, carried out on a thread of their own, because
//! a change blocks while it is stored.

use std::io;

use crossbeam_channel::{Sender, TrySendError, bounded};
use log::info;

use super::store::{Enrolments, NotStored, RecordStore, now};
use ssntp::Role;
use ssntp::payload::Id;
use ssntp::pki::{Enrolled, StoredToken};
use ssntp::proto::{Command, Frame};
use ssntp::server::{ServerHandle, SessionInfo};
use ssntp_payload::{
    CertificateAction, EnrolmentRefusal, ManageCertificates, ManageTokens, NodeCertificate, NodeCertificates,
    TokenAction, TokenEntry, Tokens,
};
use ssntp_transport::excerpt;
use ssntp_transport::threads::{self, Joined};

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
                let (to, answer) = (from.uuid(), answer(&records.0, server.joins(), &from, &frame));
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

/// The answer to a command at a scheduler where no node can join.
pub(crate) fn no_issuer(frame: &Frame) -> Frame {
    refused(frame, EnrolmentRefusal::NoIssuer, "the scheduler has no issuer")
}

/// The answer that refuses a command.
fn refused(frame: &Frame, reason: EnrolmentRefusal, detail: &str) -> Frame {
    let detail = detail.to_owned();
    if frame.kind() == Command::MANAGE_TOKENS {
        let id = frame.payload().map(|asked: ManageTokens| asked.id);
        return Frame::of(&Tokens {
            id: id.unwrap_or_default(),
            reason,
            detail,
            ..Tokens::default()
        });
    }
    let id = frame.payload().map(|asked: ManageCertificates| asked.id);
    Frame::of(&NodeCertificates {
        id: id.unwrap_or_default(),
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
            NotStored::Refused(why) | NotStored::Away(why) => (EnrolmentRefusal::NotStored, why),
            NotStored::Unknown(why) => (EnrolmentRefusal::Unknown, why),
        }
    }
}

fn invalid(why: impl ToString) -> CommandRefused {
    (EnrolmentRefusal::InvalidData, why.to_string())
}

/// Carries out a command at a scheduler where nodes can join with the roles `joins`. Blocks while a change is
/// stored.
fn answer(store: &RecordStore, joins: Role, from: &SessionInfo, frame: &Frame) -> Frame {
    if joins.is_empty() {
        return no_issuer(frame);
    }
    let answer = if frame.kind() == Command::MANAGE_TOKENS {
        let asked = frame.payload().map_err(invalid);
        asked.and_then(|asked| manage_tokens(store, joins, from, asked).map(|page| Frame::of(&page)))
    } else {
        let asked = frame.payload().map_err(invalid);
        asked.and_then(|asked| manage_certificates(store, from, asked).map(|page| Frame::of(&page)))
    };
    answer.unwrap_or_else(|(reason, detail)| refused(frame, reason, &detail))
}

/// Counts a change by its action, and writes it to the audit log: the line beside its value, or `what` was refused.
fn audited<T>(
    store: &RecordStore,
    from: &SessionInfo,
    (action, what): (&'static str, &str),
    done: Result<(T, String), CommandRefused>,
) -> Result<T, CommandRefused> {
    match done {
        Ok((value, line)) => {
            store.count(action, "done".to_owned());
            info!(target: "ssntp::audit", "{line}: by {from}");
            Ok(value)
        }
        Err((reason, why)) => {
            store.count(action, reason.to_string());
            info!(target: "ssntp::audit", "no {action} {}: {why}: by {from}", excerpt(what));
            Err((reason, why))
        }
    }
}

fn manage_tokens(
    store: &RecordStore,
    joins: Role,
    from: &SessionInfo,
    asked: ManageTokens,
) -> Result<Tokens, CommandRefused> {
    let (id, token) = (asked.id, asked.token);
    let (entries, next) = match asked.action {
        TokenAction::List => {
            let records = store.records();
            let tokens = records.tokens(now()).filter(|token| token.id > asked.after);
            page(tokens.map(shown), |entry: &TokenEntry| entry.id.clone())
        }
        TokenAction::Add => {
            let made_by = format!("{}, {}", from.certificate().subject, from.uuid());
            let added = stored(&token, joins, &made_by)
                .map_err(invalid)
                .and_then(|stored| {
                    store.change(|records| records.add_token(stored.clone()).map_err(invalid))?;
                    let (id, roles, uses) = (&stored.id, stored.roles, stored.uses_left);
                    let line = format!("token {id}: added for {roles}, {uses} uses");
                    Ok((shown(&stored), line))
                });
            let added = audited(store, from, ("add", &token.id), added)?;
            (vec![added], String::new())
        }
        TokenAction::Remove => {
            let none = || {
                (
                    EnrolmentRefusal::NotFound,
                    format!("there is no token {}", token.id),
                )
            };
            let removed = store.change(|records| records.remove_token(&token.id).ok_or_else(none));
            let removed = removed.map(|removed| (shown(&removed), format!("token {}: removed", removed.id)));
            let removed = audited(store, from, ("remove", &token.id), removed)?;
            (vec![removed], String::new())
        }
        other => return Err(invalid(format_args!("no action {other:?}"))),
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
    let uuid = asked.uuid;
    match asked.action {
        CertificateAction::List => {}
        CertificateAction::Revoke => {
            let none = || {
                (
                    EnrolmentRefusal::NotFound,
                    format!("no certificate was issued to {uuid} here"),
                )
            };
            let revoked = uuid.uuid().ok_or_else(none).and_then(|node| {
                let count = store.change(|records| records.revoke(node).ok_or_else(none))?;
                Ok(((), format!("revoked: UUID {node}, {count} certificates")))
            });
            audited(store, from, ("revoke", uuid.as_str()), revoked)?;
        }
        other => return Err(invalid(format_args!("no action {other:?}"))),
    }
    let records = store.records();
    // A certificate that is forgotten meanwhile moves the numbers of the rest forward by one.
    let wanted = records.certificates(now()).filter(|(number, one, _)| {
        *number > asked.after && (uuid.is_empty() || uuid.uuid() == Some(one.uuid))
    });
    let (entries, next) = page(wanted, |(number, ..)| *number);
    let entries = entries.into_iter();
    Ok(NodeCertificates {
        id: asked.id,
        entries: entries
            .map(|(_, one, is_revoked)| certificate(one, is_revoked))
            .collect(),
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

fn stored(token: &TokenEntry, joins: Role, made_by: &str) -> Result<StoredToken, String> {
    let uuid = match token.uuid.uuid() {
        None if !token.uuid.is_empty() => return Err(format!("{} is not a UUID", token.uuid)),
        Some(uuid) if uuid.is_nil() => return Err("the nil UUID is no node's".to_owned()),
        uuid => uuid,
    };
    let roles: Role = token.roles.parse().map_err(|e| format!("roles: {e}"))?;
    if roles.is_empty() || !Role::OF_NODES.contains(roles) {
        return Err(format!(
            "a token gives the roles {}, and not {roles}",
            Role::OF_NODES
        ));
    }
    if !joins.contains(roles) {
        return Err(format!(
            "the scheduler's issuer gives the roles {joins}, and not {roles}"
        ));
    }
    let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let (id, secret) = (&token.id, &token.secret_sha256);
    if id.is_empty() || id.len() > 64 || !id.bytes().all(is_base64url) {
        return Err("the id is not 1 to 64 letters and digits".to_owned());
    }
    if secret.len() != 43 || !secret.bytes().all(is_base64url) {
        return Err("secret_sha256 is not 32 bytes in base64url".to_owned());
    }
    if token.uses_left == 0 || token.ends <= now() {
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
