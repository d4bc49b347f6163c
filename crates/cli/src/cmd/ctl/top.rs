//! `ssntp top`: the sessions of a server with their rates, the busiest first.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::Instant;

use clap::value_parser;
use crossbeam_channel::RecvTimeoutError;
use serde_json::{Value, json};
use ssntp::Role;
use ssntp::payload::SessionEntry;
use ssntp_daemon::{
    Failure, Seconds, Stop, note, print_json, print_line, print_text, reader_is_gone, terminal_size,
};
use ssntp_transport::{NEVER, now, wall_clock};

use super::json::session as session_json;
use super::list::over;
use super::session::await_session;
use super::{Invocation, Options, Session, sessions};
use crate::cmd::table::{Columns, list};

/// Show the sessions of a server that send and receive most, at intervals
///
/// Works with `ssntp server` and `ssntp scheduler`. On a terminal each list replaces the
/// one before and has as many sessions as fit. Without --count the command runs until it
/// is interrupted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only sessions with at least one of these roles, for example agent or agent,netagent
    #[arg(long, value_name = "ROLES")]
    role: Option<Role>,
    /// The time between two lists; the rates are averages over this time
    #[arg(long, value_name = "SECONDS", default_value = "2")]
    interval: Seconds,
    /// End after N lists
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
    // The last, because its heading is that of all fields after it.
    #[command(flatten)]
    options: Options,
}

/// A session, and its rates per second: frames and bytes that the server received, and frames and
/// bytes that the server sent.
struct Row(SessionEntry, [f64; 4]);

#[rustfmt::skip] // A table: one row a column.
const COLUMNS: Columns<(), Row> = &[
    ("uuid", |(), row| row.0.uuid.to_string()),
    ("roles", |(), row| row.0.roles.clone()),
    ("subject", |(), row| row.0.subject.clone()),
    ("frames in/s", |(), row| short(row.1[0])),
    ("bytes in/s", |(), row| short(row.1[1])),
    ("frames out/s", |(), row| short(row.1[2])),
    ("bytes out/s", |(), row| short(row.1[3])),
    ("frames queued", |(), row| row.0.frames_waiting.to_string()),
];

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let (options, stop) = (args.options, Stop::install()?);
    let cx = Invocation { options, stop };
    let done = watch(&cx, args.role, args.interval, args.count);
    // Without --count an interrupt is the usual end, so it is no failure, even while an answer is awaited.
    match (cx.stop.requested(), args.count) {
        (false, _) => done,
        (true, None) => Ok(()),
        (true, Some(_)) => Err(cx.stop.interrupted()),
    }
}

fn watch(cx: &Invocation, role: Option<Role>, interval: Seconds, count: Option<u64>) -> Result<(), Failure> {
    let session = Session::open_any(cx)?;
    let mut left = count;
    let mut before = Counted::of(sessions::all(&session, role)?, now());
    let client = session.controller.client();
    let pause = || cx.stop.channel().recv_timeout(interval.into()) == Err(RecvTimeoutError::Timeout);
    while left != Some(0) && pause() && !reader_is_gone() {
        let asked = sessions::all(&session, role);
        // A list that the server refuses again and again would never be the last one.
        let is_answered = count.is_some() && client.is_connected();
        if let Err(why) = &asked
            && client.ended().is_none()
            && !is_answered
        {
            note(format_args!("ssntp: {why}"));
            await_session(&client, NEVER, &cx.stop)?;
            continue;
        }
        let (sessions, at) = (asked?, now());
        let rows = before.rates(&sessions, at);
        before = Counted::of(sessions, at);
        print(&rows, session.json)?;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

fn print(rows: &[Row], json: bool) -> Result<(), Failure> {
    if json {
        let at = wall_clock();
        let value = |Row(session, [frames_in, bytes_in, frames_out, bytes_out]): &Row| {
            let mut value = session_json(session, at);
            value["per_second"] = json!({
                "frames_received": frames_in, "bytes_received": bytes_in,
                "frames_sent": frames_out, "bytes_sent": bytes_out,
            });
            value
        };
        return print_json(rows.iter().map(value).collect::<Value>());
    }
    let size = terminal_size().filter(|_| std::io::stdout().is_terminal());
    // The heading with the lines around it, and the line of the cursor, take five lines.
    let most = size.map_or(usize::MAX, |(_, height)| height.saturating_sub(5).max(1));
    let text = list(COLUMNS, &(), rows.iter().take(most));
    match size {
        None => print_line(format_args!("{text}\n")),
        Some(_) => print_text(over(&text)),
    }
}

/// The counters of all sessions at one time, by the number that the server gave the session.
struct Counted(HashMap<u64, [u64; 4]>, Instant);

impl Counted {
    fn of(sessions: Vec<SessionEntry>, at: Instant) -> Self {
        let counted = sessions.into_iter().map(|one| (one.number, counters(&one)));
        Self(counted.collect(), at)
    }

    /// These sessions with their rates since the time of the counters, those with most bytes first.
    fn rates(&self, sessions: &[SessionEntry], at: Instant) -> Vec<Row> {
        // Not zero, because it is a divisor.
        let seconds = at.saturating_duration_since(self.1).as_secs_f64().max(0.001);
        let rates = |session: &SessionEntry| {
            // The counters of a new session began at zero.
            let before = self.0.get(&session.number).copied().unwrap_or_default();
            let now = counters(session);
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = |at: usize| {
                let [now, before] = [now, before].map(|all| all.get(at).copied().unwrap_or_default());
                now.saturating_sub(before) as f64 / seconds
            };
            Row(session.clone(), std::array::from_fn(rate))
        };
        let mut rows: Vec<_> = sessions.iter().map(rates).collect();
        let bytes = |Row(_, [_, bytes_in, _, bytes_out]): &Row| bytes_in + bytes_out;
        rows.sort_by(|one, other| bytes(other).total_cmp(&bytes(one)));
        rows
    }
}

fn counters(session: &SessionEntry) -> [u64; 4] {
    [
        session.frames_received,
        session.bytes_received,
        session.frames_sent,
        session.bytes_sent,
    ]
}

/// A number with at most three digits before its point: 950, 1.2k, 34.5M.
fn short(number: f64) -> String {
    let units = ["", "k", "M", "G"];
    let mut rest = number;
    for unit in units {
        if rest < 999.5 {
            return match unit {
                "" => format!("{rest:.0}"),
                _ => format!("{rest:.1}{unit}"),
            };
        }
        rest /= 1000.0;
    }
    format!("{rest:.1}T")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn session(number: u64, bytes: u64) -> SessionEntry {
        SessionEntry {
            number,
            frames_received: bytes / 10,
            bytes_received: bytes,
            ..SessionEntry::default()
        }
    }

    #[test]
    fn the_session_with_most_bytes_comes_first_with_its_rates() {
        let began = now();
        let before = Counted::of(vec![session(1, 500_000), session(2, 0)], began);
        let later = [session(1, 500_000), session(2, 40_000), session(3, 20_000)];
        let rows = before.rates(&later, began + Duration::from_secs(2));
        let shown: Vec<_> = rows
            .iter()
            .map(|Row(session, rates)| (session.number, rates.map(short)))
            .collect();
        let rates = |[frames, bytes]: [&str; 2]| [frames, bytes, "0", "0"].map(str::to_owned);
        assert_eq!(
            shown,
            [
                (2, rates(["2.0k", "20.0k"])),
                (3, rates(["1.0k", "10.0k"])),
                (1, rates(["0", "0"]))
            ]
        );
    }
}
