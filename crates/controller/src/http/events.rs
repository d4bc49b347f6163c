//! `/api/v1/events`: rows of the history as server-sent events, sent when they are written.
//!
//! ```text
//!  GET /api/v1/events?after=41         id: 42           the row's number; the browser sends the
//!  or Last-Event-ID: 41                data: {"id": 42, last one back after a reconnect, so each
//!                                                       row arrives exactly once
//!                                      event: reload    rows after 41 are no longer stored
//! ```
//!
//! With `output=UUID` the same stream carries the output of an instance, from its last lines on:
//!
//! ```text
//!  event: begin                        the output of an earlier connection is to be discarded
//!  event: output   {"out": "…"}        or "err"; the last one is {"end": null}, or has a reason
//! ```

use std::fmt::Write;
use std::time::Duration;

use uuid::Uuid;

use ssntp_http::{Answer, Refused, Reply, Stream};
use ssntp_transport::{deadline, left};

use super::sight::unavailable;
use super::tokens::Right;
use crate::model::without_output;
use crate::source::{Output, Rows, Source, Written};

/// The maximum number of clients that may follow at a time. Each has a thread, which is nearly always asleep.
pub(super) const FOLLOWERS: usize = 64;
/// The least time between two sends, so that a page changes at most four times a second. Old rows
/// are sent without this pause.
const PACE: Duration = Duration::from_millis(250);
/// The longest time without a send. Proxies and browsers close a connection that is silent longer.
const SILENCE: Duration = Duration::from_secs(15);
/// The time between two checks that the client is connected and still has the right to read.
const CHECK: Duration = Duration::from_secs(1);
/// The maximum number of rows of one send.
const BATCH: usize = 256;
/// The maximum number of bytes of output of one send. Output beyond that waits on the node of the instance.
const OUTPUT: usize = 64 << 10;

/// The reply to a request for events. The stream ends when its client loses the right to read.
pub(super) fn reply(
    source: &dyn Source,
    after: Option<i64>,
    instance: Option<Uuid>,
    right: Right,
    may_read: impl Fn() -> bool + Send + 'static,
) -> Result<Reply, Refused> {
    let answer = Answer::new(200, "text/event-stream", "");
    // A number above the newest row means that the database was replaced. If no row is stored at all, no row
    // can have been missed.
    if let Some(after) = after
        && let Some((oldest, newest)) = source.stored().map_err(unavailable)?
        && (after < oldest.saturating_sub(1) || after > newest)
    {
        let body = |stream: &mut Stream| drop(stream.send("event: reload\ndata: {}\n\n"));
        return Ok(Reply::Parts(answer, Box::new(body)));
    }
    let mut rows = source.follow(after).map_err(unavailable)?;
    if right == Right::Read {
        let mut whole = rows;
        rows = Box::new(move |limit| Ok(whole(limit)?.map(|row| row.cut(without_output))));
    }
    let output = instance.map(|instance| {
        source.output(instance, true).unwrap_or_else(|why| {
            let mut end = Some(Written::End(Some(why)));
            Box::new(move |_| end.take())
        })
    });
    Ok(Reply::Parts(
        answer,
        Box::new(move |stream| send(stream, rows, output, &may_read)),
    ))
}

fn send(stream: &mut Stream, mut rows: Rows, mut output: Option<Output>, may_read: &dyn Fn() -> bool) {
    // A browser reports the connection as open only after the first bytes.
    let mut first = format!("retry: {}\n\n", CHECK.as_millis());
    if output.is_some() {
        first += "event: begin\ndata: {}\n\n";
    }
    if stream.send(first).is_err() {
        return;
    }
    // `soonest` is the time of the next send if there are rows, `latest` the time if there are none.
    let (mut soonest, mut latest) = (deadline(Duration::ZERO), deadline(SILENCE));
    let mut next_check = deadline(CHECK);
    while !stream.is_over() {
        if left(next_check).is_err() {
            if !may_read() {
                return;
            }
            next_check = deadline(CHECK);
        }
        let wait = if output.is_some() { PACE } else { CHECK };
        let Ok(mut text) = gather_rows(&mut rows, soonest, wait) else {
            return;
        };
        if output
            .as_mut()
            .is_some_and(|output| !gather_output(output, &mut text))
        {
            output = None;
        }
        if text.is_empty() {
            if left(latest).is_ok() {
                continue;
            }
            // A comment, which browsers ignore.
            text.push_str(":\n\n");
        }
        if stream.send(text).is_err() {
            return;
        }
        (soonest, latest) = (deadline(PACE), deadline(SILENCE));
    }
}

/// Adds the output that has arrived. False once the output has ended.
fn gather_output(output: &mut Output, text: &mut String) -> bool {
    let end = text.len() + OUTPUT;
    while text.len() < end
        && let Some(piece) = output(Duration::ZERO)
    {
        let data = serde_json::to_string(&piece).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = write!(text, "event: output\ndata: {data}\n\n");
        if matches!(piece, Written::End(_)) {
            return false;
        }
    }
    true
}

/// Waits for at most `wait` for a row, then collects further rows until the time `soonest`. The text
/// is empty if no row arrived.
fn gather_rows(rows: &mut Rows, soonest: std::time::Instant, mut wait: Duration) -> Result<String, String> {
    let mut text = String::new();
    for _ in 0..BATCH {
        let Some(row) = rows(wait)? else { break };
        let data = serde_json::to_string(&row).unwrap_or_default();
        // Writing to a String cannot fail. JSON has no line breaks of its own.
        let _ = write!(text, "id: {}\ndata: {data}\n\n", row.id);
        wait = left(soonest).unwrap_or_default();
    }
    Ok(text)
}
