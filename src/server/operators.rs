//! The commands of operators that list and end sessions and ban clients. `servers` has those for servers,
//! `watching` has Watch.
//!
//! ```text
//!  ListSessions, ListBans ─▶ operator? ─▶ a page of 64 ─▶ Sessions, Bans
//!  Kick, Unban ────────────▶ operator? ─ Handler::may_kick ─▶ State::kick ─▶ Kicked, Unbanned
//!                                                              │
//!                                      ConnectionFailure, end ◀┴▶ Bans ─▶ AdmissionPolicy::judge
//! ```
//!
//! The server handles these frames itself; the application gets none of them. An operator requests a list
//! page by page, so the longest list takes no more room in a queue than 64 entries. Each frame is handled
//! alone, so that an operator that does not read its answers is held like any other peer.

use std::sync::Arc;
use std::time::Duration;

use log::{debug, info, warn};
use uuid::Uuid;

use super::audit::{AUDIT, Named};
use super::bans::{MAX_BAN, MAX_BANS};
use super::core::{ServerCore, State};
use super::delivery::Parcel;
use super::disconnect::DisconnectReason;
use super::sessions::{Session, SessionInfo};
use crate::payload::{
    self, BanEntry, Bans, DrainServer, Id, InvalidFrameType, Kick, Kicked, ListBans, ListServers,
    ListSessions, OperatorRefusal, Payload, SessionEntry, Sessions, Unban, Unbanned, Watch,
};
use crate::proto::{Command, Frame, FrameKind, FrameType, answer_to_filtered};
use ssntp_pki::Role;

/// The maximum number of entries of a page. With some 500 bytes each they take half of the 64 KiB that
/// every queue may have, even if no memory is left.
pub(super) const PAGE: usize = 64;
/// The longest id of a command, in bytes, because the answer repeats it.
const MAX_ID: usize = 64;
/// The length to which a list cuts a name in a certificate, in characters. A name may have 64 KiB.
const MAX_NAME: usize = 256;

/// True if this kind of frame is a command of operators.
pub(super) fn is_of_operators(kind: FrameKind) -> bool {
    kind.frame_type == FrameType::COMMAND && kind.is_of_operators()
}

/// The reason for which a command is not carried out, as a word and as text.
pub(super) type Refused = (OperatorRefusal, String);

impl ServerCore {
    /// Carries out a command of operators, see [`is_of_operators`].
    pub(super) fn handle_command(&mut self, info: &Arc<SessionInfo>, frame: &Frame) {
        let kind = frame.kind();
        let is_operator = info.role.intersects(self.state.operators);
        if !is_operator || !self.state.filter.allows(info.role, kind) {
            return self.state.filtered(info.id, kind, 1);
        }
        let changes = [Command::KICK, Command::UNBAN, Command::DRAIN_SERVER].contains(&Command(kind.operand));
        // Every operator may list and watch. The application may allow changes to only one of them.
        if changes && !self.may_kick(info) {
            if let Some(more) = info.may_log(&mut self.state.log, "may not kick", self.state.now) {
                warn!(target: "ssntp::server", "{info}: {kind} refused: the application does not allow it{more}");
            }
            if let Some(answer) = answer_to_filtered(kind) {
                self.state.answer(info.id, &answer, 1);
            }
            return;
        }
        let state = &mut self.state;
        let answered = match Command(kind.operand) {
            Command::LIST_SESSIONS => {
                read(frame, |asked: &ListSessions| &asked.id).map(|asked| state.list_sessions(info, &asked))
            }
            Command::LIST_BANS => {
                read(frame, |asked: &ListBans| &asked.id).map(|asked| state.list_bans(info, &asked))
            }
            Command::LIST_SERVERS => {
                read(frame, |asked: &ListServers| &asked.id).map(|asked| self.list_servers(info, &asked))
            }
            Command::KICK => {
                read(frame, |asked: &Kick| &asked.id).map(|asked| state.handle_kick(info, &asked))
            }
            Command::DRAIN_SERVER => read(frame, |asked: &DrainServer| &asked.id)
                .map(|asked| state.handle_drain(info, &asked, frame)),
            Command::WATCH => {
                read(frame, |asked: &Watch| &asked.id).and_then(|asked| state.watch(info, asked))
            }
            _ => read(frame, |asked: &Unban| &asked.id).map(|asked| state.handle_unban(info, &asked)),
        };
        if let Err(reason) = answered {
            self.state.invalid(info, kind, reason);
        }
    }

    fn may_kick(&mut self, info: &SessionInfo) -> bool {
        let mut may = false;
        self.guarded("may_kick", |handler, cx| {
            may = handler.cluster().is_none_or(|cluster| cluster.may_kick(cx, info));
        });
        may
    }
}

/// Decodes a command. The error is the reason in InvalidFrameType.
pub(super) fn read<T: Payload>(frame: &Frame, id: fn(&T) -> &Id) -> Result<T, &'static str> {
    match T::decode(frame.payload_bytes()) {
        Ok(asked) if id(&asked).as_str().len() <= MAX_ID => Ok(asked),
        Err(payload::Error::Document(e)) if e.is_malformed() => Err("invalid_payload"),
        _ => Err("invalid_data"),
    }
}

impl State {
    /// Answers a command that cannot be carried out with InvalidFrameType.
    fn invalid(&mut self, to: &SessionInfo, kind: FrameKind, reason: &str) {
        debug!(target: "ssntp::server", "{to}: {kind} refused: {reason}");
        let refusal = InvalidFrameType::new(kind, reason.into());
        self.reply(to, &Frame::of(&refusal));
    }

    /// Sends a frame to an operator, who may be connected to another server.
    fn reply(&mut self, to: &SessionInfo, frame: &Frame) {
        if to.server() == self.environment.uuid {
            return self.answer(to.id, frame, 1);
        }
        // If the link is gone, the operator's session is gone as well.
        let _ = self.send_to_remote(None, to.uuid, &Parcel::frame(frame, self));
    }

    /// Sends the answer to a command of the kind `asked`.
    pub(super) fn answer_operator(&mut self, to: &SessionInfo, asked: FrameKind, answer: &Frame) {
        match self.check_length(answer) {
            Ok(()) => self.reply(to, answer),
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
        // Numbers only grow, so a page begins after the last number of the page before, even if that
        // session has ended meanwhile.
        let is_listed = |session: &&Session| {
            session.info.role.intersects(roles) && session.info.id.0.sequence() > asked.after
        };
        let mut ids: Vec<_> = self
            .sessions
            .iter()
            .filter(is_listed)
            .map(|session| session.info.id)
            .collect();
        let is_last = ids.len() <= PAGE;
        if !is_last {
            // Without this, each page would sort all remaining sessions, which may be thousands.
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
        self.answer_operator(info, ListSessions::KIND, &Frame::of(&page));
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
        self.answer_operator(info, ListBans::KIND, &Frame::of(&page));
    }

    fn handle_kick(&mut self, by: &SessionInfo, asked: &Kick) {
        let done = self.kick(by, asked);
        let answer = done.unwrap_or_else(|(reason, detail)| Kicked {
            reason,
            detail,
            ..Kicked::default()
        });
        let id = asked.id.clone();
        self.answer_operator(by, Kick::KIND, &Frame::of(&Kicked { id, ..answer }));
    }

    /// Ends the session of a client and bans its UUID, as far as the command names that. If one of the
    /// two is impossible, neither is done.
    fn kick(&mut self, by: &SessionInfo, asked: &Kick) -> Result<Kicked, Refused> {
        let ban = Duration::from_secs(asked.ban_s);
        if ban > MAX_BAN {
            let text = "a ban lasts a year at most; to keep a client out for good, revoke its certificate";
            return Err((OperatorRefusal::InvalidData, text.into()));
        }
        let uuid = named(&asked.uuid)?;
        let session = self.sessions.of(uuid);
        let session = session.map(|session| Arc::clone(&session.info));
        if session.is_none() && ban.is_zero() {
            return Err((OperatorRefusal::NotConnected, "no session has that UUID".into()));
        }
        if uuid == by.uuid {
            let text = "an operator cannot end its own session";
            return Err((OperatorRefusal::OwnSession, text.into()));
        }
        // The ban comes first, because it may fail for lack of room, and then the session must stay.
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
        // The certificate identifies an operator, because its UUID may change with each session.
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

    fn handle_unban(&mut self, by: &SessionInfo, asked: &Unban) {
        let (reason, detail) = self.unban(by, asked).err().unwrap_or_default();
        let id = asked.id.clone();
        self.answer_operator(by, Unban::KIND, &Frame::of(&Unbanned { id, reason, detail }));
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

/// Parses the UUID in a command.
pub(super) fn named(uuid: &Id) -> Result<Uuid, Refused> {
    let text = match uuid.is_empty() {
        true => "uuid is required; to keep a certificate out, revoke it",
        false => "the value of uuid is not a UUID",
    };
    uuid.uuid().ok_or((OperatorRefusal::InvalidData, text.into()))
}

/// The field `next` of a page whose last entry has this number; 0 for the last page.
fn next(is_last: bool, number: Option<u64>) -> u64 {
    number.filter(|_| !is_last).unwrap_or_default()
}

/// The first [`MAX_NAME`] characters of a name.
fn beginning(text: &str) -> String {
    text.chars().take(MAX_NAME).collect()
}
