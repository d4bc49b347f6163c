//! Receipts: what the server says became of a frame.
//!
//! ```text
//!  input thread ─ ask ─▶ pending ─▶ the frame is sent, traced, with a number in its label
//!                           │
//!  main thread ─────────────┴─ the server's answer, its refusal, the end of the session, the time ─▶ a line
//! ```
//!
//! Each pending receipt has one of 1,024 places. The input thread waits at its end until all are
//! back, which happens at the latest when their times are over.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use serde_json::Value;
use ssntp::Role;
use ssntp::client::Client;
use ssntp::payload::InvalidFrameType;
use ssntp::proto::{Frame, FrameKind};
use ssntp_transport::after;

use super::input::lock;
use super::line::{Error, Id, answer};
use crate::clock::now;
use crate::receipt::{Question, answered};

/// How many receipts may be pending. Each is some 300 bytes.
const MAX_PENDING: usize = 1024;

/// The receipts that are pending, by the number of their question.
#[derive(Debug)]
pub(super) struct Receipts {
    pending: Mutex<(u64, BTreeMap<u64, Pending>)>,
    places: (Sender<()>, Receiver<()>),
}

#[derive(Debug)]
struct Pending {
    id: Id,
    kind: FrameKind,
    until: Instant,
    place: Sender<()>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let _ = self.place.try_send(());
    }
}

impl Pending {
    /// The line about it.
    fn told(&self, result: Result<u64, Error>) -> Value {
        let is_ok = result.is_ok();
        let mut line = answer(&self.id, result.as_ref().map(|_| None).map_err(Error::clone));
        if let (true, Ok(receivers)) = (is_ok, result) {
            line["receivers"] = receivers.into();
        }
        line
    }
}

impl Default for Receipts {
    fn default() -> Self {
        let places = bounded(MAX_PENDING);
        for _ in 0..MAX_PENDING {
            let _ = places.0.try_send(());
        }
        Self {
            pending: Mutex::default(),
            places,
        }
    }
}

impl Receipts {
    /// The frame with its question, and the number of that. The receipt is pending from here on.
    pub(super) fn ask(
        &self,
        client: &Client,
        id: Id,
        frame: Frame,
        limit: Duration,
    ) -> Result<(u64, Frame), Error> {
        let server = client.server();
        if !server.is_some_and(|server| server.tracing() && !server.role().intersects(Role::SCHEDULER)) {
            return Err(Error::new(
                "no_receipts",
                "this server does not tell who received a frame",
            ));
        }
        if self.places.1.try_recv().is_err() {
            let why = format!("{MAX_PENDING} receipts are pending, as many as may");
            return Err(Error::new("too_many", why));
        }
        let mut pending = lock(&self.pending);
        pending.0 += 1;
        let number = pending.0;
        let place = self.places.0.clone();
        let (kind, until) = (frame.kind(), after(now(), limit));
        pending.1.insert(
            number,
            Pending {
                id,
                kind,
                until,
                place,
            },
        );
        Ok((number, Question::numbered(frame, number)))
    }

    /// A frame could not be sent, so its sender is told that in place of a receipt.
    pub(super) fn forget(&self, number: u64) {
        lock(&self.pending).1.remove(&number);
    }

    /// The line that a frame of the server makes, if it is about a receipt.
    pub(super) fn take(&self, frame: &Frame) -> Option<Value> {
        let mut pending = lock(&self.pending);
        if let Some(answer) = answered(frame) {
            // A server that does not repeat the number answers in the order of the questions.
            let number = answer.question.or_else(|| pending.1.keys().next().copied())?;
            return Some(pending.1.remove(&number)?.told(Ok(answer.receivers)));
        }
        let refusal = frame.payload::<InvalidFrameType>().ok()?;
        let kind = refusal.refused();
        let (number, _) = pending.1.iter().find(|(_, one)| one.kind == kind)?;
        let number = *number;
        let why = Error::new("refused", refusal.reason);
        Some(pending.1.remove(&number)?.told(Err(why)))
    }

    /// The session has ended: what was sent in it may be lost.
    pub(super) fn lose(&self) -> Vec<Value> {
        let why = "the session ended before the server told; the frame may be lost";
        self.end(|_| true, &Error::new("disconnected", why))
    }

    /// Receipts whose time is over.
    pub(super) fn late(&self) -> Vec<Value> {
        let now = now();
        let why = "the server has not told in time; the frame may be lost";
        self.end(|one| one.until <= now, &Error::new("timed_out", why))
    }

    fn end(&self, meant: impl Fn(&Pending) -> bool, why: &Error) -> Vec<Value> {
        let mut pending = lock(&self.pending);
        let mut lines = Vec::new();
        pending.1.retain(|_, one| {
            let ends = meant(one);
            if ends {
                lines.push(one.told(Err(why.clone())));
            }
            !ends
        });
        lines
    }

    /// Waits until none is pending.
    pub(super) fn await_all(&self) {
        for _ in 0..MAX_PENDING {
            let _ = self.places.1.recv();
        }
    }
}
