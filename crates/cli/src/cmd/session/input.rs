//! The thread that reads lines and executes them.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Receiver;
use serde_json::Value;
use ssntp::proto::{Frame, FrameKind, Operands};
use ssntp::{Client, Request, RequestError};
use ssntp_daemon::{Failure, input};
use ssntp_transport::{elapsed, locked, now, threads};
use uuid::Uuid;

use super::line::{Error, Id, Line, answer, payload, traced};
use super::{FLUSH, write};
use crate::receipt::{self, Question};

/// The longest line, in bytes: the longest payload as base64, or as text in which an escape
/// doubles every character, and the rest of the line.
const MAX_LINE: u64 = (32 << 20) + (64 << 10);
/// The maximum number of requests that wait for answers, each on its own thread. An answer may have 16 MiB,
/// and its thread blocks until the output is read.
const MAX_REQUESTS: usize = 32;
/// The maximum number of requests of other clients that wait for replies.
const MAX_ASKED: usize = 1024;
/// The maximum memory of their payloads, in bytes.
const MAX_ASKED_BYTES: usize = 64 << 20;
/// The longest `timeout` of a line, in seconds: a day.
const LONGEST: f64 = 86400.0;

/// Requests of other clients that wait for replies, oldest first.
#[derive(Debug, Default)]
pub(super) struct Asked(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    last: u64,
    bytes: usize,
    requests: VecDeque<(u64, Request)>,
}

impl Asked {
    /// Keeps a request until it is answered. Returns its number, and the oldest requests that were
    /// removed to make room for it.
    pub(super) fn keep(&self, request: Request) -> (u64, Vec<Request>) {
        let mut kept = locked(&self.0);
        kept.last += 1;
        kept.bytes += request.payload().len();
        let number = kept.last;
        kept.requests.push_back((number, request.copied()));
        let mut removed = Vec::new();
        while kept.requests.len() > MAX_ASKED || kept.bytes > MAX_ASKED_BYTES {
            let Some((_, old)) = kept.requests.pop_front() else {
                break;
            };
            kept.bytes -= old.payload().len();
            removed.push(old);
        }
        (number, removed)
    }

    /// Answers a request by `answer`, and removes it. If `answer` fails, the request still waits, so
    /// that the program can answer it again, for example with a shorter reply.
    fn answer(
        &self,
        number: u64,
        answer: impl FnOnce(&Request) -> Result<(), RequestError>,
    ) -> Result<(), Error> {
        let is_meant = |(other, _): &(u64, Request)| *other == number;
        let found = locked(&self.0).requests.iter().find(|one| is_meant(one)).cloned();
        let (_, request) = found.ok_or_else(|| {
            let why = format!("no request {number} waits for a reply");
            Error::new("no_such_request", why)
        })?;
        // This may wait for room in the session's queue. Further requests are kept meanwhile, for which
        // this one may have been removed.
        answer(&request)?;
        let mut kept = locked(&self.0);
        let at = kept.requests.iter().position(is_meant);
        if at.and_then(|at| kept.requests.remove(at)).is_some() {
            kept.bytes -= request.payload().len();
        }
        Ok(())
    }
}

/// The thread that reads.
pub(super) struct Input {
    pub(super) client: Arc<Client>,
    pub(super) asked: Arc<Asked>,
    pub(super) operands: Operands,
    pub(super) timeout: Duration,
    /// The threads of requests. Threads that have ended are removed before the next request.
    pub(super) requests: Vec<JoinHandle<()>>,
}

impl Input {
    /// Starts to read, on another thread. The channel gets the result of the input, once every line is
    /// answered and every frame is sent.
    pub(super) fn start(mut self) -> Result<Receiver<Result<(), Failure>>, Failure> {
        input::on_a_thread(move |end| {
            let _ = end.send(self.read());
        })
    }

    fn read(&mut self) -> Result<(), Failure> {
        let mut stdin = io::stdin().lock();
        let failed = |e| Failure::new(format!("standard input: {e}"));
        loop {
            let mut line = Vec::new();
            // One byte more than the limit distinguishes a long line from one that just fits.
            let got = (&mut stdin).take(MAX_LINE + 1).read_until(b'\n', &mut line);
            if got.map_err(failed)? == 0 {
                break;
            }
            if line.len() as u64 > MAX_LINE && line.last() != Some(&b'\n') {
                drop(line);
                // The rest of the line is skipped, or it would be read as another line.
                stdin.skip_until(b'\n').map_err(failed)?;
                let why = format!("the line is longer than {MAX_LINE} bytes");
                write(&answer(&Id::None, Err(Error::new("long_line", why))))?;
            } else if !line.trim_ascii().is_empty() {
                self.take(&line)?;
            }
        }
        // Each request has a time limit, so the threads end.
        for request in self.requests.drain(..) {
            let _ = request.join();
        }
        // If the client has ended, the reason is reported elsewhere.
        if self.client.flush(FLUSH) || self.client.ended().is_some() {
            Ok(())
        } else {
            Err(Failure::new("the last frames could not be sent"))
        }
    }

    /// Executes a line, and answers it. Fails if the answer cannot be written.
    fn take(&mut self, line: &[u8]) -> Result<(), Failure> {
        let line = match Line::read(line) {
            Ok(line) => line,
            Err((id, error)) => return write(&answer(&id, Err(error))),
        };
        let id = line.id().clone();
        match self.act(line) {
            Ok(true) => write(&answer(&id, Ok(None))),
            // Another thread answers.
            Ok(false) => Ok(()),
            Err(error) => write(&answer(&id, Err(error))),
        }
    }

    /// Executes a line. Returns false if the thread of a request writes the answer.
    fn act(&mut self, line: Line) -> Result<bool, Error> {
        match line {
            Line::Send {
                id,
                operand,
                payload: text,
                payload_base64,
                timeout,
                receipt: is_counted,
                trace,
                traceparent,
            } => {
                let frame = Frame::with_payload(self.kind(&operand)?, payload(text, payload_base64)?);
                let frame = traced(frame, trace.as_deref(), traceparent.as_deref())?;
                if !self.operands.may_be_sent(frame.kind()) {
                    let why =
                        format!("{operand} cannot be sent: it is a request, or belongs to the handshake");
                    return Err(Error::new("bad_operand", why));
                }
                let left = connected(&self.client, self.limit(timeout)?)?;
                if is_counted {
                    // The request follows its frame, on the same session or not at all.
                    let question = Question::receivers(frame.kind());
                    let sessions = self.client.handle().counters().sessions;
                    self.has_room()?;
                    self.send(frame, left)?;
                    let asked =
                        self.on_a_thread(move |client| counted(client, id, &question, sessions, left));
                    asked.map_err(|_| lost())?;
                    return Ok(false);
                }
                self.send(frame, left)?;
            }
            Line::Request {
                id,
                operand,
                to,
                payload: text,
                payload_base64,
                timeout,
            } => {
                let frame = Frame::with_payload(self.kind(&operand)?, payload(text, payload_base64)?);
                let limit = self.limit(timeout)?;
                self.request(id, to.unwrap_or_default(), frame, limit)?;
                return Ok(false);
            }
            Line::Reply {
                request,
                payload: text,
                payload_base64,
                ..
            } => {
                let payload = payload(text, payload_base64)?;
                let reply = |asked: &Request| self.client.reply(asked, payload);
                self.asked.answer(request, reply)?;
            }
            Line::Refuse { request, reason, .. } => {
                let refuse = |asked: &Request| self.client.refuse(asked, &reason);
                self.asked.answer(request, refuse)?;
            }
        }
        Ok(true)
    }

    fn kind(&self, operand: &str) -> Result<FrameKind, Error> {
        let kind = self.operands.kind(operand);
        kind.map_err(|e| Error::new("unknown_operand", e))
    }

    fn limit(&self, timeout: Option<f64>) -> Result<Duration, Error> {
        match timeout {
            None => Ok(self.timeout),
            Some(seconds) if (0.0..=LONGEST).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
            Some(_) => {
                let why = format!("timeout is not a number of seconds from 0 to {LONGEST}");
                Err(Error::new("bad_line", why))
            }
        }
    }

    fn send(&self, frame: Frame, limit: Duration) -> Result<(), Error> {
        let sent = self.client.send_timeout(frame, limit);
        sent.map_err(|unsent| Error::from(unsent.fault()))
    }

    /// Sends a request on another thread, which writes the answer.
    fn request(&mut self, id: Id, to: Uuid, frame: Frame, limit: Duration) -> Result<(), Error> {
        self.on_a_thread(move |client| {
            let connected = connected(client, limit);
            let reply = connected.and_then(|left| Ok(client.request_to(to, frame, left)?));
            answer(&id, reply.map(Some))
        })
    }

    /// Fails if no further request may wait.
    fn has_room(&mut self) -> Result<(), Error> {
        self.requests.retain(|request| !request.is_finished());
        if self.requests.len() >= MAX_REQUESTS {
            let why = format!("{MAX_REQUESTS} requests wait for answers, which is the most");
            return Err(Error::new("too_many", why));
        }
        Ok(())
    }

    /// Runs a request on another thread, and writes its line.
    fn on_a_thread(&mut self, request: impl FnOnce(&Client) -> Value + Send + 'static) -> Result<(), Error> {
        self.has_room()?;
        let client = Arc::clone(&self.client);
        // If the output is no longer read, the main thread notices that itself.
        let request = threads::spawn("ssntp-request", move || drop(write(&request(&client))));
        self.requests
            .push(request.map_err(|e| Error::new("failed", Failure::thread(e)))?);
        Ok(())
    }
}

/// Asks the server for the receivers of a frame that was sent when the client had had this number of
/// sessions. Returns the line with the answer.
fn counted(client: &Client, id: Id, question: &Question, sessions: u64, limit: Duration) -> Value {
    let asked = receipt::receivers(client.handle().request(question.frame(), limit));
    let receivers = asked.map_err(unconfirmed).and_then(|receivers| {
        if client.handle().counters().sessions != sessions {
            return Err(lost());
        }
        let why = "this server does not report how many sessions receive a frame; it has taken the frame";
        receivers.ok_or_else(|| Error::new("no_receipts", why))
    });
    let mut line = answer(&id, receivers.as_ref().map(|_| None).map_err(Error::clone));
    if let Ok(receivers) = receivers {
        line["receivers"] = receivers.into();
    }
    line
}

/// The error of a receipt. The frame was sent, so it is not the frame for which there is no session or no room.
fn unconfirmed(why: RequestError) -> Error {
    match why {
        RequestError::Refused(_) | RequestError::TimedOut(_) => why.into(),
        RequestError::QueueFull => {
            let why = "the server could not be asked in time; the frame may be lost";
            Error::new("timed_out", why)
        }
        _ => lost(),
    }
}

fn lost() -> Error {
    let why = "the session ended before the server answered; the frame may be lost";
    Error::new("disconnected", why)
}

/// Blocks until there is a session, and returns the rest of the time limit.
fn connected(client: &Client, limit: Duration) -> Result<Duration, Error> {
    let began = now();
    match client.handle().wait_connected(Some(limit)) {
        Ok(true) => Ok(limit.saturating_sub(elapsed(began))),
        Ok(false) => Err(Error::new("not_connected", "no session is established")),
        Err(why) => Err(Error::new("ended", why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_that_did_not_come_never_says_that_the_frame_was_not_sent() {
        let said = |why| {
            let answer = answer(&Id::None, Err(unconfirmed(why)));
            answer["error"]["code"].as_str().unwrap_or_default().to_owned()
        };
        for (why, code) in [
            (RequestError::Refused("role_not_allowed".into()), "refused"),
            (RequestError::TimedOut(Duration::ZERO), "timed_out"),
            (RequestError::QueueFull, "timed_out"),
            (RequestError::TooMany(1), "disconnected"),
            (RequestError::NotConnected, "disconnected"),
            (RequestError::Disconnected, "disconnected"),
            (RequestError::Ended, "disconnected"),
        ] {
            assert_eq!(said(why), code);
        }
    }
}
