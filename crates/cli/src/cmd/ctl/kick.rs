//! `ssntp ctl kick`, `bans` and `unban`.

use std::time::Duration;

use serde_json::{Value, json};
use ssntp::payload::{BanEntry, Bans, Id, Kick, Kicked, ListBans, OperatorRefusal, Unban, Unbanned};
use uuid::Uuid;

use super::json::known;
use super::options::Options;
use super::sessions::{Operator, new_id, wall_clock};
use super::{json as shapes, tables};
use crate::failure::Failure;
use crate::output::{note, printable, say, say_json};
use crate::seconds::Age;
use crate::signals::Stop;

/// End sessions: of one client by its UUID, or all of a certificate by its serial
/// number
///
/// Clients reconnect unless --ban keeps them out. A server that restarts forgets all
/// bans: to keep a client out for good, revoke its certificate.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: Named,
    /// Keep it out for so long, as 90s, 30m, 12h or 7d; a year at most. One that is
    /// not connected is named by its whole UUID, or with --issuer
    #[arg(long, value_name = "TIME")]
    ban: Option<Age>,
}

/// End a ban before its time is over
#[derive(Debug, clap::Args)]
pub(super) struct UnbanArgs {
    #[command(flatten)]
    named: Named,
}

/// The client or the certificate that a command is about.
#[derive(Debug, clap::Args)]
struct Named {
    /// A client's UUID or the beginning of it, or a certificate's serial number, in
    /// hexadecimal with or without colons
    #[arg(value_name = "UUID|SERIAL")]
    who: String,
    /// Who issued the certificate, as in CN=cluster: needed where several
    /// authorities have given out that serial number
    #[arg(long)]
    issuer: Option<String>,
}

/// UUID, serial number and issuer, as the server is told them.
type Told = (Id, String, String);

pub(super) fn run(options: &Options, stop: &Stop, args: &Args) -> Result<(), Failure> {
    let ban = args.ban.map(Duration::from);
    if ban == Some(Duration::ZERO) {
        return Err(Failure::usage("--ban has to be longer than nothing"));
    }
    let operator = Operator::open(options, stop)?;
    let there = || {
        let sessions = operator.sessions(None)?;
        Ok(sessions.into_iter().map(|one| (one.uuid, one.serial)).collect())
    };
    let (uuid, serial, issuer) = args.named.find("session", there)?;
    let kick = Kick {
        id: new_id(),
        uuid,
        serial,
        issuer,
        ban_s: ban.unwrap_or_default().as_secs(),
    };
    let kicked: Kicked = operator.ask(&kick, |answer: &Kicked| answer.id == kick.id)?;
    check(&kicked.reason, &kicked.detail)?;
    if options.json {
        return say_json(kicked_json(&kicked));
    }
    let sessions = match kicked.count {
        1 => "1 session was ended".to_owned(),
        count => format!("{count} sessions were ended"),
    };
    let banned = match kicked.ban_s {
        0 => String::new(),
        seconds => format!(", banned for {}", tables::span(seconds)),
    };
    say(format_args!("{}: {sessions}{banned}", args.named.who))?;
    if !kicked.detail.is_empty() {
        note(format_args!("ssntp: {}", kicked.detail));
    }
    Ok(())
}

pub(super) fn bans(options: &Options, stop: &Stop) -> Result<(), Failure> {
    let bans = all_bans(&Operator::open(options, stop)?)?;
    let now = wall_clock();
    let values = bans.iter().map(|ban| shapes::ban(ban, now));
    match options.json {
        true => say_json(values.collect::<Value>()),
        false => say(tables::bans(&bans)),
    }
}

pub(super) fn unban(options: &Options, stop: &Stop, args: &UnbanArgs) -> Result<(), Failure> {
    let operator = Operator::open(options, stop)?;
    let there = || {
        let bans = all_bans(&operator)?;
        Ok(bans.into_iter().map(|ban| (ban.uuid, ban.serial)).collect())
    };
    let (uuid, serial, issuer) = args.named.find("ban", there)?;
    let unban = Unban {
        id: new_id(),
        uuid,
        serial,
        issuer,
    };
    let lifted: Unbanned = operator.ask(&unban, |answer: &Unbanned| answer.id == unban.id)?;
    check(&lifted.reason, &lifted.detail)?;
    match options.json {
        true => say_json(json!({"uuid": known(unban.uuid.as_str()), "serial": known(&unban.serial)})),
        false => say(format_args!("{}: it may come again", args.named.who)),
    }
}

fn all_bans(operator: &Operator<'_>) -> Result<Vec<BanEntry>, Failure> {
    let (id, mut after, mut all) = (new_id(), 0, Vec::new());
    loop {
        let question = ListBans {
            id: id.clone(),
            after,
        };
        let page: Bans = operator.ask(&question, |page: &Bans| page.id == question.id)?;
        all.extend(page.entries);
        if page.next <= after {
            return Ok(all);
        }
        after = page.next;
    }
}

impl Named {
    /// What the server is to be told. A whole UUID, a number with colons and one
    /// whose issuer is named are what they look like; anything else is looked for
    /// among those that the server knows.
    fn find(
        &self,
        of: &str,
        there: impl FnOnce() -> Result<Vec<(Id, String)>, Failure>,
    ) -> Result<Told, Failure> {
        let who = self.who.trim().to_ascii_lowercase();
        let certificate = |issuer: &str| (Id::default(), who.clone(), issuer.to_owned());
        if let Some(issuer) = &self.issuer {
            return Ok(certificate(issuer));
        }
        match Uuid::try_parse(&who) {
            Ok(uuid) if who.len() == 36 => return Ok((uuid.into(), String::new(), String::new())),
            _ if who.contains(':') => return Ok(certificate("")),
            _ => {}
        }
        let there = there()?;
        let is_it = |serial: &str| !serial.is_empty() && digits(serial) == digits(&who);
        let begins = |uuid: &Id| !who.is_empty() && uuid.as_str().starts_with(&who);
        let uuids: Vec<_> = there
            .iter()
            .map(|one| &one.0)
            .filter(|uuid| begins(uuid))
            .collect();
        let is_serial = there.iter().any(|one| is_it(&one.1));
        match (uuids.as_slice(), is_serial) {
            ([uuid], false) => Ok(((*uuid).clone(), String::new(), String::new())),
            ([], true) => Ok(certificate("")),
            ([], false) => Err(Failure::new(format!(
                "no {of} has a UUID that begins with {}, or that serial number",
                printable(&self.who)
            ))),
            (several, true) => Err(Failure::new(format!(
                "{} is a serial number and the beginning of {} UUIDs: give the number with colons, or a whole UUID",
                printable(&self.who),
                several.len()
            ))),
            (several, false) => {
                let few: Vec<_> = several
                    .iter()
                    .take(5)
                    .map(|uuid| printable(uuid.as_str()))
                    .collect();
                Err(Failure::new(format!(
                    "{} UUIDs begin with {}: {}{}",
                    several.len(),
                    printable(&self.who),
                    few.join(", "),
                    if several.len() > few.len() { ", …" } else { "" }
                )))
            }
        }
    }
}

/// The digits of a serial number without what may be left out.
fn digits(serial: &str) -> String {
    let digits = serial.replace(':', "").to_ascii_lowercase();
    digits.trim_start_matches('0').to_owned()
}

/// Fails if the server refused.
fn check(reason: &OperatorRefusal, detail: &str) -> Result<(), Failure> {
    match reason.as_str() {
        "" => Ok(()),
        reason if detail.is_empty() => Err(Failure::new(reason)),
        _ => Err(Failure::new(detail)),
    }
}

fn kicked_json(kicked: &Kicked) -> Value {
    let uuids: Vec<_> = kicked.uuids.iter().map(Id::as_str).collect();
    json!({
        "ended": kicked.count, "uuids": uuids, "uuid": known(kicked.uuid.as_str()),
        "serial": known(&kicked.serial), "issuer": known(&kicked.issuer),
        "ban_s": kicked.ban_s, "detail": known(&kicked.detail),
    })
}
