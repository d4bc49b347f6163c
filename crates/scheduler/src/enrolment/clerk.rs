//! The commands of operators about tokens and certificates, carried out on a thread of their own, because
//! a change blocks while it is stored.

use std::io;

use crossbeam_channel::{Sender, bounded};
use log::info;

use super::store::{Enrolments, NotDone, not, now};
use ssntp::Role;
use ssntp::payload::Id;
use ssntp::pki::{Enrolled, EnrolmentRecords, StoredToken};
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
                let desk = Desk {
                    records: &records,
                    joins: server.joins(),
                    from: &from,
                };
                let answer = if desk.joins.is_empty() {
                    no_issuer(&frame)
                } else {
                    answer(&frame, Ok(desk))
                };
                let to = from.uuid();
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
        let handed_over = self.work.try_send((from.clone(), frame.clone()));
        handed_over
            .is_err()
            .then(|| answer(frame, Err(not(EnrolmentRefusal::Busy, "too many commands wait"))))
    }
}

/// The answer to a command at a scheduler where no node can join.
pub(crate) fn no_issuer(frame: &Frame) -> Frame {
    let why = not(EnrolmentRefusal::NoIssuer, "the scheduler has no issuer");
    answer(frame, Err(why))
}

fn invalid(why: impl ToString) -> NotDone {
    not(EnrolmentRefusal::InvalidData, why)
}

/// The answer to a command, which is carried out at this desk. Blocks while a change is stored.
fn answer(frame: &Frame, desk: Result<Desk<'_>, NotDone>) -> Frame {
    if frame.kind() == Command::MANAGE_TOKENS {
        let asked = frame.payload().map_err(invalid);
        let id = asked
            .as_ref()
            .map_or_else(|_| Id::default(), |asked: &ManageTokens| asked.id.clone());
        let ((entries, next), reason, detail) = told(desk.and_then(|desk| desk.manage_tokens(asked?)));
        return Frame::of(&Tokens {
            id,
            reason,
            detail,
            entries,
            next,
        });
    }
    let asked = frame.payload().map_err(invalid);
    let id = asked
        .as_ref()
        .map_or_else(|_| Id::default(), |asked: &ManageCertificates| asked.id.clone());
    let ((entries, next), reason, detail) = told(desk.and_then(|desk| desk.manage_certificates(asked?)));
    Frame::of(&NodeCertificates {
        id,
        reason,
        detail,
        entries,
        next,
    })
}

/// What an answer says of a command.
fn told<T: Default>(done: Result<T, NotDone>) -> (T, EnrolmentRefusal, String) {
    match done {
        Ok(done) => (done, EnrolmentRefusal::NotRefused, String::new()),
        Err(NotDone(reason, detail)) => (T::default(), reason, detail),
    }
}

/// What a command is carried out with.
struct Desk<'a> {
    records: &'a Enrolments,
    /// The roles with which nodes can join.
    joins: Role,
    /// The operator.
    from: &'a SessionInfo,
}

/// Entries, and the key of the last one if there are more.
type Page<T, K> = (Vec<T>, K);

impl Desk<'_> {
    /// Counts a change by its action, and writes it to the audit log: the line beside its value, or `what` was refused.
    fn audited<T>(
        &self,
        (action, what): (&'static str, &str),
        done: Result<(T, String), NotDone>,
    ) -> Result<T, NotDone> {
        let from = self.from;
        match &done {
            Ok((_, line)) => {
                self.records.count(action, "done".to_owned());
                info!(target: "ssntp::audit", "{line}: by {from}");
            }
            Err(NotDone(reason, why)) => {
                self.records.count(action, reason.to_string());
                info!(target: "ssntp::audit", "no {action} {}: {why}: by {from}", excerpt(what));
            }
        }
        done.map(|(value, _)| value)
    }

    fn manage_tokens(&self, asked: ManageTokens) -> Result<Page<TokenEntry, String>, NotDone> {
        let token = asked.token;
        let changed = match asked.action {
            TokenAction::List => {
                let records = self.records.records();
                let tokens = records.tokens(now()).filter(|token| token.id > asked.after);
                return Ok(page(tokens.map(shown), |entry| entry.id.clone()));
            }
            TokenAction::Add => {
                let added = self.stored(&token).map_err(invalid).and_then(|stored| {
                    self.records
                        .change(|records| records.add_token(stored.clone()).map_err(invalid))?;
                    let (id, roles, uses) = (&stored.id, stored.roles, stored.uses_left);
                    let line = format!("token {id}: added for {roles}, {uses} uses");
                    Ok((shown(&stored), line))
                });
                self.audited(("add", &token.id), added)?
            }
            TokenAction::Remove => {
                let none = format_args!("there is no token {}", token.id);
                let none = || not(EnrolmentRefusal::NotFound, none);
                let remove =
                    |records: &mut EnrolmentRecords| records.remove_token(&token.id).ok_or_else(none);
                let removed = self.records.change(remove);
                let removed = removed.map(|it| (shown(&it), format!("token {}: removed", it.id)));
                self.audited(("remove", &token.id), removed)?
            }
            other => return Err(invalid(format_args!("no action {other:?}"))),
        };
        Ok((vec![changed], String::new()))
    }

    fn manage_certificates(&self, asked: ManageCertificates) -> Result<Page<NodeCertificate, u64>, NotDone> {
        let uuid = asked.uuid;
        match asked.action {
            CertificateAction::List => {}
            CertificateAction::Revoke => {
                let none = format_args!("no certificate was issued to {uuid} here");
                let none = || not(EnrolmentRefusal::NotFound, none);
                let revoked = uuid.uuid().ok_or_else(none).and_then(|node| {
                    let revoke = |records: &mut EnrolmentRecords| records.revoke(node).ok_or_else(none);
                    let count = self.records.change(revoke)?;
                    Ok(((), format!("revoked: UUID {node}, {count} certificates")))
                });
                self.audited(("revoke", uuid.as_str()), revoked)?;
            }
            other => return Err(invalid(format_args!("no action {other:?}"))),
        }
        let records = self.records.records();
        // A certificate that is forgotten meanwhile moves the numbers of the rest forward by one.
        let wanted = records.certificates(now()).filter(|(number, one, _)| {
            *number > asked.after && (uuid.is_empty() || uuid.uuid() == Some(one.uuid))
        });
        let wanted = wanted.map(|(number, one, is_revoked)| (number, certificate(one, is_revoked)));
        let (entries, next) = page(wanted, |(number, _)| *number);
        Ok((entries.into_iter().map(|(_, one)| one).collect(), next))
    }

    /// The record of a token that the operator wants to add.
    fn stored(&self, token: &TokenEntry) -> Result<StoredToken, String> {
        let uuid = match token.uuid.uuid() {
            None if !token.uuid.is_empty() => return Err(format!("{} is not a UUID", token.uuid)),
            Some(uuid) if uuid.is_nil() => return Err("the nil UUID is no node's".to_owned()),
            uuid => uuid,
        };
        let roles: Role = token.roles.parse().map_err(|e| format!("roles: {e}"))?;
        if roles.is_empty() || !self.joins.contains(roles) {
            return Err(format!(
                "the scheduler's issuer gives the roles {}, and not {roles}",
                self.joins
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
            made_by: format!("{}, {}", self.from.certificate().subject, self.from.uuid()),
        })
    }
}

/// The first page of these entries.
fn page<T, K: Default>(mut all: impl Iterator<Item = T>, key: impl Fn(&T) -> K) -> Page<T, K> {
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
