//! `ssntp ctl kick`, `bans` and `unban`.

use std::time::Duration;

use serde_json::json;
use ssntp::payload::{BanEntry, Bans, Id, Kick, Kicked, ListBans, Unban, Unbanned};
use ssntp_daemon::{Failure, age, note, print_either, printable};
use ssntp_transport::wall_clock;
use ssntp_view::all_pages;
use uuid::Uuid;

use super::json::known as or_null;
use super::session::check;
use super::sessions::{self, new_id};
use super::{Invocation, Session, json as shapes, tables};
use crate::cmd::table::print;

/// End the session of a client
///
/// The client connects again unless --ban is given. A server loses its bans when it
/// restarts; to refuse a client permanently, revoke its certificate.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: NamedClient,
    /// Refuse the client for this time, for example 90s, 30m, 12h or 7d; a year at most.
    /// To ban a client that is not connected, give its whole UUID
    #[arg(long, value_name = "TIME", value_parser = age)]
    ban: Option<Duration>,
}

/// The client of a command.
#[derive(Debug, clap::Args)]
pub(super) struct NamedClient {
    /// The client's UUID, or the beginning of it
    #[arg(value_name = "UUID")]
    client: String,
}

pub(super) fn run(cx: &Invocation, args: &Args) -> Result<(), Failure> {
    if args.ban == Some(Duration::ZERO) {
        return Err(Failure::usage("--ban must be longer than 0 seconds"));
    }
    let session = Session::open_any(cx)?;
    let known = || {
        let sessions = sessions::all(&session, None)?;
        Ok(sessions.into_iter().map(|one| one.uuid).collect())
    };
    let uuid = args.named.find("session", known)?;
    let kick = Kick {
        id: new_id(),
        uuid,
        ban_s: args.ban.unwrap_or_default().as_secs(),
    };
    let kicked: Kicked = session.ask(&kick, |answer: &Kicked| answer.id == kick.id, true)?;
    check(&kicked.reason, &kicked.detail)?;
    let sessions = match kicked.count {
        1 => "1 session was ended".to_owned(),
        count => format!("{count} sessions were ended"),
    };
    let banned = match kicked.ban_s {
        0 => String::new(),
        seconds => format!(", banned for {}", tables::exact(seconds)),
    };
    let text = format_args!("{}: {sessions}{banned}", args.named.client);
    let uuids: Vec<_> = kicked.uuids.iter().map(Id::as_str).collect();
    let value = json!({
        "ended": kicked.count, "uuids": uuids, "uuid": kicked.uuid.as_str(),
        "ban_s": kicked.ban_s, "detail": or_null(&kicked.detail),
    });
    print_either(cx.options.json, value, text)?;
    if !cx.options.json && !kicked.detail.is_empty() {
        note(format_args!("ssntp: {}", kicked.detail));
    }
    Ok(())
}

pub(super) fn bans(cx: &Invocation) -> Result<(), Failure> {
    let bans = all_bans(&Session::open_any(cx)?)?;
    let now = wall_clock();
    print(cx.options.json, tables::BANS, &(), &bans, |ban| {
        shapes::ban(ban, now)
    })
}

fn all_bans(session: &Session<'_>) -> Result<Vec<BanEntry>, Failure> {
    let id = new_id();
    all_pages(|&after| {
        let id = id.clone();
        let request = ListBans { id, after };
        let page: Bans = session.ask(&request, |page: &Bans| page.id == request.id, false)?;
        Ok((page.entries, page.next))
    })
}

pub(super) fn unban(cx: &Invocation, named: &NamedClient) -> Result<(), Failure> {
    let session = Session::open_any(cx)?;
    let known = || {
        let bans = all_bans(&session)?;
        Ok(bans.into_iter().map(|ban| ban.uuid).collect())
    };
    let uuid = named.find("ban", known)?;
    let unban = Unban { id: new_id(), uuid };
    let lifted: Unbanned = session.ask(&unban, |answer: &Unbanned| answer.id == unban.id, true)?;
    check(&lifted.reason, &lifted.detail)?;
    let text = format_args!("{}: the ban is lifted", named.client);
    print_either(cx.options.json, json!({"uuid": unban.uuid.as_str()}), text)
}

impl NamedClient {
    /// The client's whole UUID. The beginning of a UUID is completed from those in `known`.
    pub(super) fn find(
        &self,
        of: &str,
        known: impl FnOnce() -> Result<Vec<Id>, Failure>,
    ) -> Result<Id, Failure> {
        let client = self.client.trim().to_ascii_lowercase();
        // The server compares the text of UUIDs, so only the form with hyphens is a whole UUID.
        if let Ok(uuid) = Uuid::try_parse(&client)
            && client.len() == 36
        {
            return Ok(uuid.into());
        }
        let known = known()?.iter().map(Id::to_string).collect();
        Ok(only(of, "a UUID", &client, known)?.into())
    }
}

/// The only one of these texts that begins so. `of` is what has them, and `kind` is what they are.
pub(super) fn only(of: &str, kind: &str, begin: &str, mut known: Vec<String>) -> Result<String, Failure> {
    known.retain(|one| !begin.is_empty() && one.starts_with(begin));
    // A node has a certificate for each renewal.
    known.sort();
    known.dedup();
    let begin = printable(begin);
    match known.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Failure::new(format!(
            "no {of} has {kind} that begins with {begin}"
        ))),
        several => {
            // A server may have thousands of sessions, and five UUIDs are enough for an error.
            let few: Vec<_> = several.iter().take(5).map(|one| printable(one)).collect();
            let (count, few) = (several.len(), few.join(", "));
            let more = if count > 5 { ", …" } else { "" };
            Err(Failure::new(format!(
                "{count} {of}s have {kind} that begins with {begin}: {few}{more}"
            )))
        }
    }
}
