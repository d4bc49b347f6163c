//! The commands of operators about tokens and certificates, carried out on a thread of their own, because
//! a change blocks while it is stored. The thread also stores records again that the engine has lost.

use std::io;

use crossbeam_channel::{Sender, bounded, select};
use log::info;

use super::store::{Enrolments, NotDone, not, now};
use crate::parking::with_trace_of;
use ssntp::Role;
use ssntp::payload::Id;
use ssntp::pki::{Enrolled, StoredToken};
use ssntp::proto::Frame;
use ssntp::server::{ServerHandle, SessionInfo};
use ssntp_payload::{
    EnrolmentAction, EnrolmentList, EnrolmentRefusal, ManageEnrolment, NodeCertificate, TokenEntry,
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
            loop {
                let command = select! {
                    recv(given) -> command => command,
                    recv(records.unwritten()) -> _ => {
                        records.write_again();
                        continue;
                    }
                };
                let Ok((from, frame)) = command else { return };
                let desk = Desk {
                    records: &records,
                    joins: server.joins(),
                    from: &from,
                };
                let answer = if desk.joins.is_empty() {
                    no_issuer(&frame)
                } else {
                    answer(&frame, |asked| desk.carry_out(asked))
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
        let busy = || not(EnrolmentRefusal::Busy, "too many commands wait");
        handed_over.is_err().then(|| answer(frame, |_| Err(busy())))
    }
}

/// The answer to a command at a scheduler where no node can join.
pub(crate) fn no_issuer(frame: &Frame) -> Frame {
    let why = "no node can join: the scheduler has no issuer";
    answer(frame, |_| Err(not(EnrolmentRefusal::NoIssuer, why)))
}

/// Reads a command and lets `carry_out` carry it out. Returns the frame that answers it: with the id of the command, and
/// with the reason if it is refused.
fn answer(
    frame: &Frame,
    carry_out: impl FnOnce(&ManageEnrolment) -> Result<EnrolmentList, NotDone>,
) -> Frame {
    let (id, done) = match frame.payload::<ManageEnrolment>() {
        Ok(asked) => (asked.id.clone(), carry_out(&asked)),
        Err(why) => (Id::default(), Err(invalid(why))),
    };
    let answer = done.unwrap_or_else(|NotDone(reason, detail)| EnrolmentList {
        reason,
        detail,
        ..EnrolmentList::default()
    });
    Frame::of(&EnrolmentList { id, ..answer })
}

fn invalid(why: impl ToString) -> NotDone {
    not(EnrolmentRefusal::InvalidData, why)
}

/// One command of one operator: the records that it reads or changes, and who asks for it. It is made anew for each
/// command.
struct Desk<'a> {
    records: &'a Enrolments,
    /// The roles with which nodes can join.
    joins: Role,
    /// The operator.
    from: &'a SessionInfo,
}

/// The command of an operator of this scheduler, with the name in their certificate. It is passed on to the scheduler
/// that leads, which does not have the certificate.
pub(crate) fn with_operator(from: &SessionInfo, frame: &Frame) -> Option<Frame> {
    let mut asked = frame.payload::<ManageEnrolment>().ok()?;
    asked.token.made_by.clone_from(&from.certificate().subject);
    Some(with_trace_of(frame, Frame::of(&asked)))
}

impl Desk<'_> {
    /// Carries out a command. Blocks while the document is read, and while a change is stored.
    fn carry_out(&self, asked: &ManageEnrolment) -> Result<EnrolmentList, NotDone> {
        let (token, node) = (&asked.token, &asked.uuid);
        // Before the first page, or the change. Without the engine, what is known is listed all the same.
        let read = if asked.after == 0 {
            self.records.read_again()
        } else {
            Ok(())
        };
        match &asked.action {
            EnrolmentAction::ListTokens => Ok(self.tokens(asked.after)),
            EnrolmentAction::ListCertificates => Ok(self.certificates(asked.after, |_| true)),
            EnrolmentAction::AddToken => self.change_with_audit("add", asked, &token.id, || {
                let stored = self.check_token(token).map_err(invalid)?;
                self.records
                    .change(|records| records.add_token(stored.clone()).map_err(invalid))?;
                let (id, roles, uses) = (&stored.id, stored.roles, stored.uses_left);
                let line = format!("token {id}: added for {roles}, {uses} uses");
                Ok((list_of_token(&stored), line))
            }),
            EnrolmentAction::RemoveToken => self.change_with_audit("remove", asked, &token.id, || {
                let id = excerpt(&token.id);
                let none = || not(EnrolmentRefusal::NotFound, format_args!("there is no token {id}"));
                read?;
                let removed = self
                    .records
                    .change(|records| records.remove_token(&token.id).ok_or_else(none))?;
                let line = format!("token {}: removed", removed.id);
                Ok((list_of_token(&removed), line))
            }),
            EnrolmentAction::Revoke => self.change_with_audit("revoke", asked, node.as_str(), || {
                let none = format_args!("no certificate was issued to {node} here");
                let none = || not(EnrolmentRefusal::NotFound, none);
                let uuid = node.uuid().ok_or_else(none)?;
                read?;
                let count = self
                    .records
                    .change(|records| records.revoke(uuid).ok_or_else(none))?;
                let line = format!("revoked: UUID {uuid}, {count} certificates");
                Ok((self.certificates(0, |one| one.uuid == uuid), line))
            }),
            other => Err(invalid(format_args!("no action {other:?}"))),
        }
    }

    /// Makes a change of `what`, counts it by its action, and writes its line to the audit log, or that it was refused.
    fn change_with_audit(
        &self,
        action: &'static str,
        asked: &ManageEnrolment,
        what: &str,
        change: impl FnOnce() -> Result<(EnrolmentList, String), NotDone>,
    ) -> Result<EnrolmentList, NotDone> {
        let by = format!("by {}, {}", self.from, excerpt(&asked.token.made_by));
        let done = change();
        match &done {
            Ok((_, line)) => {
                self.records.count(action, "done".to_owned());
                info!(target: "ssntp::audit", "{line}: {by}");
            }
            Err(NotDone(reason, why)) => {
                self.records.count(action, reason.to_string());
                info!(target: "ssntp::audit", "no {action} {}: {why}: {by}", excerpt(what));
            }
        }
        done.map(|(answer, _)| answer)
    }

    /// The page of the tokens after this number. A token that ends meanwhile moves the rest forward by one.
    fn tokens(&self, after: u64) -> EnrolmentList {
        let records = self.records.records();
        let (tokens, next) = page((1..).zip(records.tokens(now()).map(without_secret)), after);
        EnrolmentList {
            tokens,
            next,
            ..EnrolmentList::default()
        }
    }

    /// The page of these certificates after this number. One that is forgotten meanwhile moves the rest forward by one.
    fn certificates(&self, after: u64, is_wanted: impl Fn(&Enrolled) -> bool) -> EnrolmentList {
        let records = self.records.records();
        let wanted = records.certificates(now()).filter(|(_, one, _)| is_wanted(one));
        let wanted = wanted.map(|(number, one, is_revoked)| (number, certificate(one, is_revoked)));
        let (certificates, next) = page(wanted, after);
        EnrolmentList {
            certificates,
            next,
            ..EnrolmentList::default()
        }
    }

    /// Checks a token that the operator wants to add, and returns the record of it.
    fn check_token(&self, token: &TokenEntry) -> Result<StoredToken, String> {
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
        if token.uses_left == 0 || token.ends <= now() {
            return Err("nobody could join with it: it is for no node, or has ended".to_owned());
        }
        Ok(StoredToken {
            id: token.id.clone(),
            secret_sha256: token.secret_sha256.clone(),
            roles,
            uuid,
            uses_left: if uuid.is_some() { 1 } else { token.uses_left },
            ends: token.ends,
            made_by: format!("{}, {}", token.made_by, self.from.uuid()),
        })
    }
}

/// The first entries after this number, and the number of the last of them if there are more.
fn page<T>(all: impl Iterator<Item = (u64, T)>, after: u64) -> (Vec<T>, u64) {
    let mut rest = all.filter(|(number, _)| *number > after);
    let (numbers, entries): (Vec<_>, _) = rest.by_ref().take(PAGE).unzip();
    let next = rest.next().and_then(|_| numbers.last().copied());
    (entries, next.unwrap_or_default())
}

/// The answer that lists this token alone.
fn list_of_token(token: &StoredToken) -> EnrolmentList {
    EnrolmentList {
        tokens: vec![without_secret(token)],
        ..EnrolmentList::default()
    }
}

/// A token as operators see it: without the digest of its secret.
fn without_secret(token: &StoredToken) -> TokenEntry {
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
