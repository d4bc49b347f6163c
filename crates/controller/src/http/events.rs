//! `/api/v1/events`: rows of the history as they are written, as server-sent events.
//!
//! ```text
//!  GET /api/v1/events?after=41         id: 42           the row's number; the browser sends the
//!  or Last-Event-ID: 41                data: {"id": 42, last one back after a reconnect, so no
//!                                                       row is missed and none comes twice
//!                                      event: reload    rows after 41 are no longer kept
//! ```
//!
//! With `output=UUID` the same stream has what an instance writes, from its last lines on:
//!
//! ```text
//!  event: begin                        what came of an earlier connection does not count any more
//!  event: output   {"out": "…"}        or "err"; the last one is {"end": null}, or why it ended
//! ```

use std::fmt::Write;
use std::time::Duration;

use uuid::Uuid;

use ssntp_admin::http::{Answer, Refused, Reply, Stream};
use ssntp_transport::{deadline, left};

use super::Source;
use super::source::{Following, Writing, Written};
use crate::Query;

/// How many clients may follow at a time. Each has a thread that sleeps nearly always.
pub(super) const FOLLOWERS: usize = 64;
/// The least time between two sends, so that a page changes at most four times a second. A client
/// that reads many old rows gets them as fast as it takes them.
const PACE: Duration = Duration::from_millis(250);
/// How long nothing may be sent: a proxy, or a browser, takes a longer silence for an end.
const SILENCE: Duration = Duration::from_secs(15);
/// How often it is looked whether the client is still there, and may still look.
const LOOK: Duration = Duration::from_secs(1);
/// The most rows of one send, and the most bytes of output: what an instance may write in this
/// time beyond it waits on its node.
const BATCH: usize = 256;
const OUTPUT: usize = 64 << 10;

/// The reply to a request for events. The stream ends when its client may not look any more.
pub(super) fn reply(
    source: &dyn Source,
    after: Option<i64>,
    instance: Option<Uuid>,
    may_look: impl Fn() -> bool + Send + 'static,
) -> Result<Reply, Refused> {
    let unavailable = |why| Refused::new(503, why);
    let answer = Answer::new(200, "text/event-stream", "");
    if let Some(after) = after {
        let rows = |newest_first| {
            source.rows(&Query {
                limit: 1,
                newest_first,
                ..Query::default()
            })
        };
        let (oldest, newest) = (
            rows(false).map_err(unavailable)?,
            rows(true).map_err(unavailable)?,
        );
        // A row that is still to come is one of another database, in whose place this one is. If no
        // row is kept at all, there is nothing that could be missed.
        if let (Some(oldest), Some(newest)) = (oldest.first(), newest.first())
            && (after < oldest.id.saturating_sub(1) || after > newest.id)
        {
            let body = |stream: &mut Stream| drop(stream.send("event: reload\ndata: {}\n\n"));
            return Ok(Reply::Parts(answer, Box::new(body)));
        }
    }
    let rows = source.follow(after).map_err(unavailable)?;
    let output = instance.map(|instance| Output(source.output(instance, true)));
    Ok(Reply::Parts(
        answer,
        Box::new(move |stream| send(stream, rows, output, &may_look)),
    ))
}

fn send(
    stream: &mut Stream,
    mut rows: Box<dyn Following>,
    mut output: Option<Output>,
    may_look: &dyn Fn() -> bool,
) {
    // The first bytes tell a browser that it is connected.
    let mut first = format!("retry: {}\n\n", LOOK.as_millis());
    if output.is_some() {
        first += "event: begin\ndata: {}\n\n";
    }
    if stream.send(first).is_err() {
        return;
    }
    let (mut soonest, mut latest) = (deadline(Duration::ZERO), deadline(SILENCE));
    let mut next_look = deadline(LOOK);
    while !stream.is_over() {
        if left(next_look).is_err() {
            if !may_look() {
                return;
            }
            next_look = deadline(LOOK);
        }
        let wait = if output.is_some() { PACE } else { LOOK };
        let Ok(mut text) = gather(&mut *rows, soonest, wait) else {
            return;
        };
        if output.as_mut().is_some_and(|output| !output.gather(&mut text)) {
            output = None;
        }
        if text.is_empty() {
            if left(latest).is_ok() {
                continue;
            }
            text.push_str(":\n\n");
        }
        if stream.send(text).is_err() {
            return;
        }
        (soonest, latest) = (deadline(PACE), deadline(SILENCE));
    }
}

/// What an instance writes.
struct Output(Result<Box<dyn Writing>, String>);

impl Output {
    /// Adds what is there; whether more may come.
    fn gather(&mut self, text: &mut String) -> bool {
        let end = text.len() + OUTPUT;
        while text.len() < end {
            let piece = match &mut self.0 {
                Ok(writing) => writing.next(Duration::ZERO),
                Err(why) => Some(Written::End(Some(std::mem::take(why)))),
            };
            let Some(piece) = piece else { break };
            let data = serde_json::to_string(&piece).unwrap_or_default();
            // Writing to a String cannot fail.
            let _ = write!(text, "event: output\ndata: {data}\n\n");
            if matches!(piece, Written::End(_)) {
                return false;
            }
        }
        true
    }
}

/// The rows that are there at a time; none if none comes while it waits.
fn gather(
    rows: &mut dyn Following,
    soonest: std::time::Instant,
    mut wait: Duration,
) -> Result<String, String> {
    let mut text = String::new();
    for _ in 0..BATCH {
        let Some(row) = rows.next(wait)? else { break };
        let data = serde_json::to_string(&*row).unwrap_or_default();
        // Writing to a String cannot fail. JSON has no line breaks of its own.
        let _ = write!(text, "id: {}\ndata: {data}\n\n", row.id);
        wait = left(soonest).unwrap_or_default();
    }
    Ok(text)
}
