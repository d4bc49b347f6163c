//! Kick, Unban and DrainServer: the ends of sessions and of servers, and bans; and the answers to operators.

use std::time::{Duration, Instant};

use log::{Level, debug, info};
use uuid::Uuid;

use crate::payload::{DrainServer, Id, InvalidFrameType, Kick, Kicked, OperatorRefusal, Unban, Unbanned};
use crate::proto::{Frame, FrameKind};
use crate::server::bans::{Bans, MAX_BAN, MAX_BANS};
use crate::server::delivery::Delivery;
use crate::server::log::{AUDIT, Log, Named};
use crate::server::sessions::SessionInfo;

/// The longest time for clients to leave a server that drains. Clients wait no longer than this either.
const LONGEST_DRAIN: Duration = Duration::from_secs(86_400);

/// The reason for which a command is not carried out, as a word and as text.
type Refused = (OperatorRefusal, String);

/// Bans the UUID of a Kick, if the command asks for it, and returns the answer. The caller ends the
/// `session` of that UUID if the answer counts it. If one of the two is impossible, neither is done.
pub(crate) fn kick(
    asked: &Kick,
    by: &SessionInfo,
    session: Option<&SessionInfo>,
    (bans, log): (&mut Bans, &mut Log),
    now: Instant,
) -> Kicked {
    let kicked = try_kick(asked, by, session, bans, now);
    let Ok((uuid, detail)) = kicked else {
        let (reason, detail) = kicked.map(|_| ()).err().unwrap_or_default();
        return Kicked {
            id: asked.id.clone(),
            reason,
            detail,
            ..Kicked::default()
        };
    };
    let count = u64::from(session.is_some());
    let banned = match asked.ban_s {
        0 => String::new(),
        seconds => format!(", banned for {seconds} s"),
    };
    // The certificate identifies an operator, because its UUID may change with each session.
    let operator = Named(by.certificate());
    let line = format_args!("{by} ({operator}): kicks UUID {uuid}: sessions ended: {count}{banned}");
    log.of_session(Level::Warn, (by, "kick"), now, line);
    let kicked = session.map(|info| format!(" ({})", Named(info.certificate())));
    let kicked = kicked.unwrap_or_default();
    info!(target: AUDIT, "kicked: UUID {uuid}{kicked}{banned}: by {by}, {operator}");
    Kicked {
        id: asked.id.clone(),
        detail: detail.into(),
        count,
        uuids: session.iter().map(|info| info.uuid.into()).collect(),
        uuid: uuid.into(),
        ban_s: asked.ban_s,
        ..Kicked::default()
    }
}

/// Bans the UUID of a Kick, if the command asks for it. Returns the UUID, and a note for the operator.
fn try_kick(
    asked: &Kick,
    by: &SessionInfo,
    session: Option<&SessionInfo>,
    bans: &mut Bans,
    now: Instant,
) -> Result<(Uuid, &'static str), Refused> {
    let ban = Duration::from_secs(asked.ban_s);
    if ban > MAX_BAN {
        let text = "a ban lasts a year at most; to keep a client out for good, revoke its certificate";
        return Err((OperatorRefusal::InvalidData, text.into()));
    }
    let uuid = parse_uuid(&asked.uuid)?;
    if session.is_none() && ban.is_zero() {
        return Err((OperatorRefusal::NotConnected, "no session has that UUID".into()));
    }
    if uuid == by.uuid {
        let text = "an operator cannot end its own session";
        return Err((OperatorRefusal::OwnSession, text.into()));
    }
    if ban.is_zero() {
        return Ok((uuid, ""));
    }
    if !bans.add(uuid, by.uuid, now, now + ban) {
        let text = format!("there are {MAX_BANS} bans already; end some first");
        return Err((OperatorRefusal::TooManyBans, text));
    }
    if session.is_some_and(|info| info.certificate().uuid.is_none()) {
        return Ok((
            uuid,
            "its certificate is not bound to its UUID, so it may connect with another UUID unless the certificate is revoked",
        ));
    }
    Ok((uuid, ""))
}

/// Ends a ban, and returns the answer.
pub(crate) fn unban(
    asked: &Unban,
    by: &SessionInfo,
    (bans, log): (&mut Bans, &mut Log),
    now: Instant,
) -> Unbanned {
    let lifted = parse_uuid(&asked.uuid).and_then(|uuid| {
        let none = (OperatorRefusal::NotBanned, "there is no such ban".to_owned());
        bans.lift(uuid, now).then_some(uuid).ok_or(none)
    });
    if let Ok(uuid) = lifted {
        let operator = Named(by.certificate());
        let line = format_args!("{by} ({operator}): ends the ban of UUID {uuid}");
        log.of_session(Level::Warn, (by, "unban"), now, line);
        info!(target: AUDIT, "ban ended: UUID {uuid}: by {by}, {operator}");
    }
    let (reason, detail) = lifted.err().unwrap_or_default();
    let id = asked.id.clone();
    Unbanned { id, reason, detail }
}

/// Checks a DrainServer at the server `own`, and returns the UUID of the server that it names. `is_allowed` is true
/// if the operator may give this server commands.
pub(crate) fn read_drain(asked: &DrainServer, own: Uuid, is_allowed: bool) -> Result<Uuid, Refused> {
    if !is_allowed {
        let text = format!("server {own} does not accept operators with this role");
        return Err((OperatorRefusal::NotAllowed, text));
    }
    if Duration::from_secs(asked.within_s) > LONGEST_DRAIN {
        let text = "the time for clients to leave is at most a day";
        return Err((OperatorRefusal::InvalidData, text.into()));
    }
    parse_uuid(&asked.uuid)
}

/// Sends an operator, who may be connected to another server, the answer to a command of the kind `asked`. An error
/// in `answer` is sent as InvalidFrameType with that reason.
pub(in crate::server) fn answer(
    delivery: &mut Delivery,
    to: &SessionInfo,
    asked: FrameKind,
    answer: Result<Frame, &'static str>,
) {
    let answer = answer.and_then(|answer| {
        let fits = delivery.own.check_length(answer.payload_bytes().len());
        fits.map(|()| answer).map_err(|_| "answer_too_long")
    });
    let answer = answer.unwrap_or_else(|reason| {
        debug!(target: "ssntp::server", "{to}: {asked} refused: {reason}");
        Frame::of(&InvalidFrameType::new(asked, reason.into()))
    });
    if to.server == delivery.own.uuid {
        return delivery.out.answer(to.id, &answer, 1);
    }
    let parcel = delivery.parcel(&answer);
    // If the link is gone, the operator's session is gone as well.
    let out = &mut delivery.out;
    let _ = delivery.links.send_to(to.uuid, None, &parcel, out);
}

fn parse_uuid(uuid: &Id) -> Result<Uuid, Refused> {
    let text = if uuid.is_empty() {
        "uuid is required; to keep a certificate out, revoke it"
    } else {
        "the value of uuid is not a UUID"
    };
    uuid.uuid().ok_or((OperatorRefusal::InvalidData, text.into()))
}
