//! The pages of lists: sessions, bans, and servers.

use std::time::Instant;

use crate::payload::{
    BanEntry, Bans as BanPage, ListBans, ListServers, ListSessions, ServerEntry, ServerState, Servers,
    SessionEntry, Sessions as SessionPage,
};
use crate::server::bans::Bans;
use crate::server::links::{LinkFigures, PeerState};
use crate::server::sessions::{Session, Sessions};
use ssntp_pki::Role;

/// The maximum number of entries of a page. With some 500 bytes each they take half of the 64 KiB that
/// every queue may have, even if no memory is left.
const PAGE: usize = 64;
/// The length to which a list cuts a name in a certificate, in characters. A name may have 64 KiB.
const MAX_NAME: usize = 256;

/// A page of sessions. The error is the reason in InvalidFrameType.
pub(crate) fn sessions(
    asked: &ListSessions,
    sessions: &Sessions,
    now: Instant,
) -> Result<SessionPage, &'static str> {
    let roles = match asked.roles.as_str() {
        "" => Role::ALL,
        roles => roles.parse().map_err(|_| "invalid_data")?,
    };
    // Numbers only grow, so a page begins after the last number of the page before, even if that
    // session has ended meanwhile.
    let is_listed =
        |session: &&Session| session.info.role.intersects(roles) && session.info.id.number() > asked.after;
    let listed = sessions.iter().filter(is_listed);
    let mut ids: Vec<_> = listed.map(|session| session.info.id).collect();
    let is_last = ids.len() <= PAGE;
    if !is_last {
        // Without this, each page would sort all remaining sessions, which may be thousands.
        ids.select_nth_unstable(PAGE);
        ids.truncate(PAGE);
    }
    ids.sort_unstable();
    let listed = ids.iter().filter_map(|id| sessions.get(*id));
    let entries: Vec<_> = listed.map(|session| session_entry(session, now)).collect();
    Ok(SessionPage {
        id: asked.id.clone(),
        total: sessions.len() as u64,
        next: next(is_last, entries.last().map(|entry| entry.number)),
        entries,
    })
}

fn session_entry(session: &Session, now: Instant) -> SessionEntry {
    let (info, counters) = (&session.info, session.counters());
    let certificate = info.certificate.glance();
    let seconds = |since| now.saturating_duration_since(since).as_secs();
    SessionEntry {
        number: info.id.number(),
        uuid: info.uuid.into(),
        roles: info.role.to_string(),
        address: info.address.to_string(),
        age_s: seconds(session.since),
        idle_s: seconds(session.silence.heard().unwrap_or(session.since)),
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

/// A page of bans.
pub(crate) fn bans(asked: &ListBans, bans: &Bans, now: Instant) -> BanPage {
    let bans = bans.standing(now).filter(|ban| ban.number > asked.after);
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
    BanPage {
        id: asked.id.clone(),
        next: next(is_last, entries.last().map(|entry| entry.number)),
        entries,
    }
}

/// All servers: `own` is the entry of this one. The others are linked, or dialled without a link.
pub(crate) fn servers(own: ServerEntry, links: &[LinkFigures], peers: Vec<(String, PeerState)>) -> Servers {
    let is_linked = |address: &str| links.iter().any(|link| address_of(link) == address);
    let away = peers.into_iter().filter_map(|(address, state)| match state {
        PeerState::Trying(detail) if !is_linked(&address) => Some(ServerEntry {
            address,
            detail,
            state: ServerState::Away,
            ..ServerEntry::default()
        }),
        _ => None,
    });
    let linked = links.iter().map(|link| ServerEntry {
        uuid: link.server.uuid.into(),
        address: address_of(link),
        roles: link.server.role.to_string(),
        state: if link.linked {
            ServerState::Linked
        } else {
            ServerState::Linking
        },
        age_s: link.age.as_secs(),
        sessions: link.sessions as u64,
        ..ServerEntry::default()
    });
    Servers {
        entries: std::iter::once(own).chain(linked).chain(away).collect(),
        ..Servers::default()
    }
}

/// Cuts a list of servers to the page that was asked for.
pub(crate) fn servers_page(asked: &ListServers, servers: &mut Servers) {
    // A fixed order, because each page is made from a new list: first by UUID, then peers without a
    // known UUID by address.
    let order = |one: &ServerEntry| (one.uuid.is_empty(), one.uuid.clone(), one.address.clone());
    servers.entries.sort_by_cached_key(order);
    let first = usize::try_from(asked.after).unwrap_or(usize::MAX);
    let rest = servers.entries.len().saturating_sub(first);
    if rest > PAGE {
        servers.next = asked.after + PAGE as u64;
    }
    let entries = std::mem::take(&mut servers.entries);
    servers.entries = entries.into_iter().skip(first).take(PAGE).collect();
    servers.id = asked.id.clone();
}

/// The address of a linked server: the advertised one, or the one that was dialled.
fn address_of(link: &LinkFigures) -> String {
    match link.server.advertised.as_str() {
        "" if link.server.dialled => link.server.address.to_string(),
        advertised => advertised.to_owned(),
    }
}

/// The field `next` of a page whose last entry has this number; 0 for the last page.
fn next(is_last: bool, number: Option<u64>) -> u64 {
    number.filter(|_| !is_last).unwrap_or_default()
}

/// The first [`MAX_NAME`] characters of a name.
fn beginning(text: &str) -> String {
    text.chars().take(MAX_NAME).collect()
}
