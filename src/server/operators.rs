//! Operators: who is connected, whose sessions end, who is kept out.
//!
//! ```text
//!  ListSessions, ListBans ─▶ may they? ─▶ a page of 64 ─▶ Sessions, Bans
//!  Kick, Unban ────────────▶ may they? ─ Handler::may_kick ─▶ State::kick ─▶ Kicked, Unbanned
//!                                                              │
//!                                      ConnectionFailure, end ◀┴▶ Bans ─▶ AdmissionPolicy::judge
//! ```
//!
//! The server deals with these frames itself, whatever its application is. A
//! list is asked for page by page, and a page is made when it is asked for, so
//! that the longest list takes no more room in a queue than 64 entries. Each
//! frame is dealt with alone: who asks for pages and reads none waits like any
//! other that does not read its answers.

use std::sync::Arc;
use std::time::Duration;

use log::{debug, warn};
use uuid::Uuid;

use super::bans::{Banned, MAX_BAN, MAX_ISSUER, Serial};
use super::core::{ServerCore, State};
use super::handler::DisconnectReason;
use super::sessions::{Session, SessionId, SessionInfo};
use crate::payload::{
    self, BanEntry, Bans, Id, InvalidFrameType, Kick, Kicked, ListBans, ListSessions, OperatorRefusal,
    Payload, SessionEntry, Sessions, Unban, Unbanned,
};
use crate::proto::{Command, Frame, FrameKind, FrameType, Item, answer_to_filtered};
use ssntp_transport::Role;
use ssntp_transport::excerpt;

/// The entries of a page: with some 500 bytes each half of the 64 KiB that a queue
/// may have, however little memory is left.
const PAGE: usize = 64;
/// The longest id that an answer repeats, in bytes.
const MAX_ID: usize = 64;
/// How much of a name stands in a list, in characters: a certificate may have
/// 64 KiB of it.
const MAX_NAME: usize = 256;

/// Whether it is a frame that the server takes from operators.
pub(super) fn is_of_operators(kind: FrameKind) -> bool {
    kind.frame_type == FrameType::COMMAND && kind.is_of_operators()
}

/// Why nothing is done, and in words.
type Refused = (OperatorRefusal, String);

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
        let changes = kind == Command::KICK || kind == Command::UNBAN;
        if changes && !self.may_kick(info) {
            if let Some(more) = self.state.log.admit(info.uuid, "may not kick", self.state.now) {
                warn!(target: "ssntp::server", "{info}: {kind} refused: the application does not let it{more}");
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
            Command::KICK => read(frame, |asked: &Kick| &asked.id).map(|asked| state.kicked(info, &asked)),
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

/// A question, or the reason with which it is refused.
fn read<T: Payload>(frame: &Frame, id: fn(&T) -> &Id) -> Result<T, &'static str> {
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

    fn tell(&mut self, to: &SessionInfo, asked: FrameKind, answer: &Frame) {
        match self.check_length(answer) {
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
        }
    }

    fn list_bans(&mut self, info: &SessionInfo, asked: &ListBans) {
        let now = self.now;
        let bans = self.bans.standing(now).filter(|ban| ban.number > asked.after);
        let bans: Vec<_> = bans.take(PAGE + 1).collect();
        let is_last = bans.len() <= PAGE;
        let entries = bans.into_iter().take(PAGE).map(|ban| {
            let (uuid, serial, issuer) = ban.who.named();
            BanEntry {
                number: ban.number,
                uuid,
                serial,
                issuer: beginning(&issuer),
                by: ban.by.into(),
                age_s: now.saturating_duration_since(ban.since).as_secs(),
                left_s: ban.until.saturating_duration_since(now).as_secs(),
            }
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

    /// Ends sessions, and keeps their clients out. Nothing is done where it cannot
    /// be done whole.
    fn kick(&mut self, by: &SessionInfo, asked: &Kick) -> Result<Kicked, Refused> {
        let ban = Duration::from_secs(asked.ban_s);
        if ban > MAX_BAN {
            let text = "a ban lasts a year at most: what is to last has its certificate revoked";
            return Err((OperatorRefusal::InvalidData, text.into()));
        }
        let target = Target::read(&asked.uuid, &asked.serial, &asked.issuer)?;
        let (who, sessions) = self.find(target, !ban.is_zero())?;
        if sessions.contains(&by.id) {
            let text = "it would end the operator's own session: let another one do it";
            return Err((OperatorRefusal::OwnSession, text.into()));
        }
        let until = self.now.checked_add(ban);
        if let Some(until) = until.filter(|_| !ban.is_zero())
            && !self.bans.add(who.clone(), by.uuid, self.now, until)
        {
            let text = "there are as many bans as there may be, 1024: lift some";
            return Err((OperatorRefusal::TooManyBans, text.into()));
        }
        let mut detail = String::new();
        let infos = sessions.iter().filter_map(|id| self.sessions.get(*id));
        if matches!(who, Banned::Uuid(_))
            && !ban.is_zero()
            && infos
                .clone()
                .any(|session| session.info.certificate().uuid.is_none())
        {
            detail = "its certificate is not bound to its UUID: it may come back under another one, unless \
                      the serial number is banned"
                .into();
        }
        let uuids = infos.take(PAGE).map(|session| session.info.uuid.into()).collect();
        for id in &sessions {
            self.dismiss(*id, DisconnectReason::Kicked { by: by.uuid });
        }
        let (uuid, serial, issuer) = who.named();
        if let Some(more) = self.log.admit(by.uuid, "kick", self.now) {
            let banned = match asked.ban_s {
                0 => String::new(),
                seconds => format!(", banned for {seconds} s"),
            };
            warn!(target: "ssntp::server",
                "{by}: kicks {}: sessions ended: {}{banned}{more}", who.shown(), sessions.len()
            );
        }
        Ok(Kicked {
            detail,
            count: sessions.len() as u64,
            uuids,
            uuid,
            serial,
            issuer,
            ban_s: asked.ban_s,
            ..Kicked::default()
        })
    }

    /// Who is meant, and the sessions. Who has none is found where it is named
    /// whole, and `absent` ones are wanted.
    fn find(&self, target: Target, absent: bool) -> Result<(Banned, Vec<SessionId>), Refused> {
        let refused = |text: &str| Err((OperatorRefusal::NotConnected, text.to_owned()));
        let (serial, issuer) = match target {
            Target::Uuid(uuid) => {
                let sessions = Vec::from_iter(self.sessions.id_of(uuid));
                return match sessions.is_empty() && !absent {
                    true => refused("no session has that UUID"),
                    false => Ok((Banned::Uuid(uuid), sessions)),
                };
            }
            Target::Certificate { serial, issuer } => (serial, issuer),
        };
        let mut issuers: Vec<String> = issuer.iter().cloned().collect();
        let mut sessions = Vec::new();
        for session in self.sessions.iter() {
            let certificate = &session.info.certificate;
            if !certificate.serial().is_some_and(|raw| serial.is(raw)) {
                continue;
            }
            let of = &certificate.info().issuer;
            if issuer.as_ref().is_none_or(|issuer| issuer == of) {
                sessions.push(session.info.id);
                if !issuers.contains(of) {
                    issuers.push(of.clone());
                }
            }
        }
        match issuers.as_slice() {
            _ if sessions.is_empty() && !absent => {
                refused("no session has a certificate with that serial number, of that issuer")
            }
            [] => refused(
                "no session has a certificate with that serial number: to ban one that is not connected, its \
                 issuer has to be named",
            ),
            [one] if one.len() > MAX_ISSUER && absent => {
                let text = format!("the name of its issuer is longer than {MAX_ISSUER} bytes");
                Err((OperatorRefusal::InvalidData, text))
            }
            [one] => Ok((
                Banned::Certificate {
                    serial,
                    issuer: one.clone(),
                },
                sessions,
            )),
            several => Err(ambiguous(several)),
        }
    }

    fn unbanned(&mut self, by: &SessionInfo, asked: &Unban) {
        let (reason, detail) = match self.unban(by, asked) {
            Ok(()) => Default::default(),
            Err(refused) => refused,
        };
        let id = asked.id.clone();
        self.tell(by, Unban::KIND, &Frame::of(&Unbanned { id, reason, detail }));
    }

    fn unban(&mut self, by: &SessionInfo, asked: &Unban) -> Result<(), Refused> {
        let target = Target::read(&asked.uuid, &asked.serial, &asked.issuer)?;
        let meant = self.bans.standing(self.now).filter(|ban| target.means(&ban.who));
        let meant: Vec<_> = meant.collect();
        match meant.as_slice() {
            [] => Err((OperatorRefusal::NotBanned, "there is no such ban".into())),
            [ban] => {
                let (number, who) = (ban.number, ban.who.shown());
                self.bans.lift(number);
                if let Some(more) = self.log.admit(by.uuid, "unban", self.now) {
                    warn!(target: "ssntp::server", "{by}: lifts the ban of {who}{more}");
                }
                Ok(())
            }
            several => {
                let issuers: Vec<_> = several.iter().map(|ban| ban.who.named().2).collect();
                Err(ambiguous(&issuers))
            }
        }
    }
}

/// Whom an operator names.
enum Target {
    Uuid(Uuid),
    Certificate { serial: Serial, issuer: Option<String> },
}

impl Target {
    fn read(uuid: &Id, serial: &str, issuer: &str) -> Result<Self, Refused> {
        let invalid = |text: &str| Err((OperatorRefusal::InvalidData, text.to_owned()));
        match (uuid.is_empty(), serial.is_empty()) {
            (false, true) if !issuer.is_empty() => invalid("a UUID has no issuer"),
            (false, true) => match uuid.uuid() {
                Some(uuid) => Ok(Self::Uuid(uuid)),
                None => invalid("the UUID is not one"),
            },
            (true, false) if issuer.len() > MAX_ISSUER => {
                invalid("the name of the issuer is longer than 1024 bytes")
            }
            (true, false) => match Serial::read(serial) {
                Some(serial) => Ok(Self::Certificate {
                    serial,
                    issuer: Some(issuer.to_owned()).filter(|issuer| !issuer.is_empty()),
                }),
                None => invalid("the serial number is not hexadecimal digits"),
            },
            _ => invalid("either a UUID or a serial number has to be named"),
        }
    }

    fn means(&self, banned: &Banned) -> bool {
        match (self, banned) {
            (Self::Uuid(uuid), Banned::Uuid(banned)) => uuid == banned,
            (
                Self::Certificate { serial, issuer },
                Banned::Certificate {
                    serial: own,
                    issuer: of,
                },
            ) => serial == own && issuer.as_ref().is_none_or(|issuer| issuer == of),
            _ => false,
        }
    }
}

impl Banned {
    /// As logs show it.
    fn shown(&self) -> String {
        match self {
            Self::Uuid(uuid) => format!("UUID {uuid}"),
            Self::Certificate { serial, issuer } => {
                format!("certificate {} of {}", serial.shown(), excerpt(issuer))
            }
        }
    }

    /// UUID, serial number and issuer, as payloads have them.
    fn named(&self) -> (Id, String, String) {
        match self {
            Self::Uuid(uuid) => ((*uuid).into(), String::new(), String::new()),
            Self::Certificate { serial, issuer } => (Id::default(), serial.shown(), issuer.clone()),
        }
    }
}

fn ambiguous(issuers: &[String]) -> Refused {
    let few: Vec<_> = issuers.iter().take(5).map(|issuer| beginning(issuer)).collect();
    let text = format!(
        "{} issuers have given out that serial number, one has to be named: {}",
        issuers.len(),
        few.join("; ")
    );
    (OperatorRefusal::Ambiguous, text)
}

/// What to ask for after a page that ends with this number.
fn next(is_last: bool, number: Option<u64>) -> u64 {
    number.filter(|_| !is_last).unwrap_or_default()
}

fn beginning(text: &str) -> String {
    text.chars().take(MAX_NAME).collect()
}
