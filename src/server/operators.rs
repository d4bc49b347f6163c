//! Operators: controllers that list sessions, end them, and keep clients out. For servers see
//! `servers`.
//!
//! ```text
//!  ListSessions, ListBans ─▶ operator? ─▶ a page of 64 ─▶ Sessions, Bans
//!  Kick, Unban ────────────▶ operator? ─ Handler::may_kick ─▶ State::kick ─▶ Kicked, Unbanned
//!                                                              │
//!                                      ConnectionFailure, end ◀┴▶ Bans ─▶ AdmissionPolicy::judge
//! ```
//!
//! The server handles these frames itself, whatever its application is. A list is
//! asked for page by page, and a page is made when it is asked for, so the longest
//! list takes no more room in a queue than 64 entries. Each frame is handled alone:
//! an operator that asks for pages and does not read them is held back as any peer
//! that does not read its answers.

use std::sync::Arc;
use std::time::Duration;

use log::{debug, info, warn};
use uuid::Uuid;

use super::audit::{AUDIT, Named};
use super::bans::{MAX_BAN, MAX_BANS};
use super::core::{ServerCore, State};
use super::disconnect::DisconnectReason;
use super::federation::Bundle;
use super::sessions::{Session, SessionInfo};
use crate::payload::{
    self, BanEntry, Bans, DrainServer, Id, InvalidFrameType, Kick, Kicked, ListBans, ListServers,
    ListSessions, OperatorRefusal, Payload, SessionEntry, Sessions, Unban, Unbanned, Watch,
};
use crate::proto::{Command, Frame, FrameKind, FrameType, Item, Run, answer_to_filtered};
use ssntp_transport::Role;

/// The entries of a page: with some 500 bytes each half of the 64 KiB that a queue
/// may have, however little memory is left.
pub(super) const PAGE: usize = 64;
/// The longest id that an answer repeats, in bytes.
const MAX_ID: usize = 64;
/// How much of a certificate's name a list shows, in characters: it may have 64 KiB.
const MAX_NAME: usize = 256;

/// Whether the server handles this kind of frame for operators.
pub(super) fn is_of_operators(kind: FrameKind) -> bool {
    kind.frame_type == FrameType::COMMAND && kind.is_of_operators()
}

/// Why nothing was done: the reason and its text.
pub(super) type Refused = (OperatorRefusal, String);

impl ServerCore {
    /// Deals with frames for which [`is_of_operators`] holds.
    pub(super) fn operate(&mut self, info: &Arc<SessionInfo>, item: &Item) {
        match item {
            Item::Run(run) => run.frames().for_each(|frame| self.operated(info, &frame)),
            Item::Traced(frame) => self.operated(info, frame),
            Item::Unsupported(_) => {}
        }
    }

    fn operated(&mut self, info: &Arc<SessionInfo>, frame: &Frame) {
        let kind = frame.kind();
        let is_operator = info.role.intersects(self.state.operators);
        if !is_operator || !self.state.filter.allows(info.role, kind) {
            return self.state.filtered(info.id, kind, 1);
        }
        let changes = [Command::KICK, Command::UNBAN, Command::DRAIN_SERVER].contains(&Command(kind.operand));
        // Looking is harmless. Changes may be for one of several operators alone.
        if changes && !self.may_kick(info) {
            if let Some(more) = info.may_log(&mut self.state.log, "may not kick", self.state.now) {
                warn!(target: "ssntp::server", "{info}: {kind} refused: the application does not let it{more}");
            }
            if let Some(answer) = answer_to_filtered(kind) {
                self.state.answer(info.id, &answer, 1);
            }
            return;
        }
        if kind == Command::LIST_SERVERS {
            return match read(frame, |asked: &ListServers| &asked.id) {
                Ok(asked) => self.list_servers(info, &asked),
                Err(reason) => self.state.invalid(info, kind, reason),
            };
        }
        let state = &mut self.state;
        let answered = match Command(kind.operand) {
            Command::LIST_SESSIONS => {
                read(frame, |asked: &ListSessions| &asked.id).map(|asked| state.list_sessions(info, &asked))
            }
            Command::LIST_BANS => {
                read(frame, |asked: &ListBans| &asked.id).map(|asked| state.list_bans(info, &asked))
            }
            Command::KICK => read(frame, |asked: &Kick| &asked.id).map(|asked| state.kicked(info, &asked)),
            Command::DRAIN_SERVER => {
                read(frame, |asked: &DrainServer| &asked.id).map(|asked| state.drained(info, &asked, frame))
            }
            Command::WATCH => {
                read(frame, |asked: &Watch| &asked.id).and_then(|asked| state.watch(info, asked))
            }
            _ => read(frame, |asked: &Unban| &asked.id).map(|asked| state.unbanned(info, &asked)),
        };
        if let Err(reason) = answered {
            state.invalid(info, kind, reason);
        }
    }

    fn may_kick(&mut self, info: &SessionInfo) -> bool {
        let mut may = false;
        self.guarded("may_kick", |handler, cx| may = handler.may_kick(cx, info));
        may
    }
}

/// An operator's request, or the reason in InvalidFrameType.
pub(super) fn read<T: Payload>(frame: &Frame, id: fn(&T) -> &Id) -> Result<T, &'static str> {
    match T::decode(frame.payload_bytes()) {
        Ok(asked) if id(&asked).as_str().len() <= MAX_ID => Ok(asked),
        Err(payload::Error::Document(e)) if e.is_malformed() => Err("invalid_payload"),
        _ => Err("invalid_data"),
    }
}

impl State {
    fn invalid(&mut self, to: &SessionInfo, kind: FrameKind, reason: &str) {
        debug!(target: "ssntp::server", "{to}: {kind} refused: {reason}");
        let refusal = InvalidFrameType::new(kind, reason.into());
        self.answer(to.id, &Frame::of(&refusal), 1);
    }

    pub(super) fn tell(&mut self, to: &SessionInfo, asked: FrameKind, answer: &Frame) {
        match self.check_length(answer) {
            Ok(()) if to.server() != self.environment.uuid => {
                // If the link is gone, so is the session that asked.
                let _ = self.send_to_remote(None, to.uuid, || Bundle::from(&Run::of(answer)));
            }
            Ok(()) => self.answer(to.id, answer, 1),
            Err(_) => self.invalid(to, asked, "answer_too_long"),
        }
    }

    fn list_sessions(&mut self, info: &SessionInfo, asked: &ListSessions) {
        let roles = match asked.roles.as_str() {
            "" => Ok(Role::ALL),
            roles => roles.parse::<Role>(),
        };
        let Ok(roles) = roles else {
            return self.invalid(info, ListSessions::KIND, "invalid_data");
        };
        let meant = |session: &&Session| {
            session.info.role.intersects(roles) && session.info.id.0.sequence() > asked.after
        };
        let mut ids: Vec<_> = self
            .sessions
            .iter()
            .filter(meant)
            .map(|session| session.info.id)
            .collect();
        let is_last = ids.len() <= PAGE;
        if !is_last {
            // There may be thousands behind the page.
            ids.select_nth_unstable(PAGE);
            ids.truncate(PAGE);
        }
        ids.sort_unstable();
        let sessions = ids.iter().filter_map(|id| self.sessions.get(*id));
        let entries: Vec<_> = sessions.map(|session| self.entry(session)).collect();
        let page = Sessions {
            id: asked.id.clone(),
            total: self.sessions.len() as u64,
            next: next(is_last, entries.last().map(|entry| entry.number)),
            entries,
        };
        self.tell(info, ListSessions::KIND, &Frame::of(&page));
    }

    fn entry(&self, session: &Session) -> SessionEntry {
        let (info, counters) = (&session.info, session.counters());
        let certificate = info.certificate.glance();
        let seconds = |since| self.now.saturating_duration_since(since).as_secs();
        SessionEntry {
            number: info.id.0.sequence(),
            uuid: info.uuid.into(),
            roles: info.role.to_string(),
            address: info.address.to_string(),
            age_s: seconds(session.since),
            idle_s: seconds(session.received.unwrap_or(session.since)),
            serial: certificate.serial.clone(),
            subject: beginning(&certificate.subject),
            issuer: beginning(&certificate.issuer),
            bound: certificate.uuid.is_some(),
            frames_received: counters.frames_received,
            bytes_received: counters.bytes_received,
            frames_sent: counters.frames_sent,
            bytes_sent: counters.bytes_sent,
            frames_waiting: counters.frames_waiting,
            bytes_waiting: counters.bytes_waiting,
            frames_dropped: counters.frames_dropped,
        }
    }

    fn list_bans(&mut self, info: &SessionInfo, asked: &ListBans) {
        let now = self.now;
        let bans = self.bans.standing(now).filter(|ban| ban.number > asked.after);
        let bans: Vec<_> = bans.take(PAGE + 1).collect();
        let is_last = bans.len() <= PAGE;
        let entries = bans.into_iter().take(PAGE).map(|ban| BanEntry {
            number: ban.number,
            uuid: ban.uuid.into(),
            by: ban.by.into(),
            age_s: now.saturating_duration_since(ban.since).as_secs(),
            left_s: ban.until.saturating_duration_since(now).as_secs(),
        });
        let entries: Vec<_> = entries.collect();
        let page = Bans {
            id: asked.id.clone(),
            next: next(is_last, entries.last().map(|entry| entry.number)),
            entries,
        };
        self.tell(info, ListBans::KIND, &Frame::of(&page));
    }

    fn kicked(&mut self, by: &SessionInfo, asked: &Kick) {
        let done = self.kick(by, asked);
        let answer = done.unwrap_or_else(|(reason, detail)| Kicked {
            reason,
            detail,
            ..Kicked::default()
        });
        let id = asked.id.clone();
        self.tell(by, Kick::KIND, &Frame::of(&Kicked { id, ..answer }));
    }

    /// Ends a session, and keeps its client out. It is done whole or not at all.
    fn kick(&mut self, by: &SessionInfo, asked: &Kick) -> Result<Kicked, Refused> {
        let ban = Duration::from_secs(asked.ban_s);
        if ban > MAX_BAN {
            let text = "a ban lasts a year at most; to keep a client out for good, revoke its certificate";
            return Err((OperatorRefusal::InvalidData, text.into()));
        }
        let uuid = named(&asked.uuid)?;
        let session = self.sessions.id_of(uuid).and_then(|id| self.sessions.get(id));
        let session = session.map(|session| Arc::clone(&session.info));
        if session.is_none() && ban.is_zero() {
            return Err((OperatorRefusal::NotConnected, "no session has that UUID".into()));
        }
        if uuid == by.uuid {
            let text = "an operator cannot end its own session";
            return Err((OperatorRefusal::OwnSession, text.into()));
        }
        // The ban comes before the end of the session, so that its client cannot come back in
        // between, and nothing has been done if there is no room for the ban.
        let until = self.now.checked_add(ban);
        if let Some(until) = until.filter(|_| !ban.is_zero())
            && !self.bans.add(uuid, by.uuid, self.now, until)
        {
            let text = format!("there are {MAX_BANS} bans already; end some first");
            return Err((OperatorRefusal::TooManyBans, text));
        }
        let is_unbound = session
            .as_ref()
            .is_some_and(|info| info.certificate().uuid.is_none());
        let detail = match is_unbound && !ban.is_zero() {
            true => {
                "its certificate is not bound to its UUID, so it may connect with another UUID unless the certificate is revoked"
            }
            false => "",
        };
        if let Some(info) = &session {
            self.dismiss(info.id, DisconnectReason::Kicked { by: by.uuid });
        }
        let count = u64::from(session.is_some());
        let banned = match asked.ban_s {
            0 => String::new(),
            seconds => format!(", banned for {seconds} s"),
        };
        // An operator's UUID may be a new one in each session, so the certificate names it.
        let operator = Named(by.certificate());
        if let Some(more) = by.may_log(&mut self.log, "kick", self.now) {
            warn!(target: "ssntp::server",
                "{by} ({operator}): kicks UUID {uuid}: sessions ended: {count}{banned}{more}");
        }
        let kicked = session
            .as_ref()
            .map(|info| format!(" ({})", Named(info.certificate())));
        let kicked = kicked.unwrap_or_default();
        info!(target: AUDIT, "kicked: UUID {uuid}{kicked}{banned}: by {by}, {operator}");
        Ok(Kicked {
            detail: detail.into(),
            count,
            uuids: session.iter().map(|info| info.uuid.into()).collect(),
            uuid: uuid.into(),
            ban_s: asked.ban_s,
            ..Kicked::default()
        })
    }

    fn unbanned(&mut self, by: &SessionInfo, asked: &Unban) {
        let (reason, detail) = self.unban(by, asked).err().unwrap_or_default();
        let id = asked.id.clone();
        self.tell(by, Unban::KIND, &Frame::of(&Unbanned { id, reason, detail }));
    }

    fn unban(&mut self, by: &SessionInfo, asked: &Unban) -> Result<(), Refused> {
        let uuid = named(&asked.uuid)?;
        if !self.bans.lift(uuid, self.now) {
            return Err((OperatorRefusal::NotBanned, "there is no such ban".into()));
        }
        if let Some(more) = by.may_log(&mut self.log, "unban", self.now) {
            warn!(target: "ssntp::server", "{by} ({}): ends the ban of UUID {uuid}{more}", Named(by.certificate()));
        }
        info!(target: AUDIT, "ban ended: UUID {uuid}: by {by}, {}", Named(by.certificate()));
        Ok(())
    }
}

/// The client that an operator names.
pub(super) fn named(uuid: &Id) -> Result<Uuid, Refused> {
    let text = match uuid.is_empty() {
        true => "a UUID is required; certificates are kept out by revoking them",
        false => "the value of uuid is not a UUID",
    };
    uuid.uuid().ok_or((OperatorRefusal::InvalidData, text.into()))
}

/// The `next` of a page that ends with this number.
fn next(is_last: bool, number: Option<u64>) -> u64 {
    number.filter(|_| !is_last).unwrap_or_default()
}

fn beginning(text: &str) -> String {
    text.chars().take(MAX_NAME).collect()
}
