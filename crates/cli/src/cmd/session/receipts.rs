//! Receipts: the server's answers how many sessions received a frame.
//!
//! ```text
//!  input thread ─ ask ─▶ pending ─▶ the frame is sent, traced, with a number in its label
//!                           │
//!  main thread ─────────────┴─ answer, refusal, end of the session, time limit ─▶ a line
//! ```
//!
//! At most 1,024 receipts are pending. When the input ends, its thread blocks until none is
//! pending, which is at the latest when their time limits have passed.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

/// The maximum number of pending receipts. Each takes some 300 bytes.
const MAX_PENDING: usize = 1024;

/// The pending receipts.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    questions: Mutex<Questions>,
    /// Notified when receipts are no longer pending.
    removed: Condvar,
}

/// The pending receipts by the number of their question, and the last number that was used.
#[derive(Debug, Default)]
struct Questions {
    last: u64,
    pending: BTreeMap<u64, Pending>,
}

#[derive(Debug)]
struct Pending {
    id: Id,
    kind: FrameKind,
    until: Instant,
}

impl Pending {
    /// The line with the answer, or with the reason why there is none.
    fn line(&self, result: Result<u64, Error>) -> Value {
        let mut line = answer(&self.id, result.as_ref().map(|_| None).map_err(Error::clone));
        if let Ok(receivers) = result {
            line["receivers"] = receivers.into();
        }
        line
    }
}

impl Receipts {
    /// Adds a question to the frame, and returns its number. The receipt is pending from here on.
    pub(super) fn ask(
        &self,
        client: &Client,
        id: Id,
        frame: Frame,
        limit: Duration,
    ) -> Result<(u64, Frame), Error> {
        let server = client.server();
        if !server.is_some_and(|server| server.tracing && !server.role.intersects(Role::SCHEDULER)) {
            return Err(Error::new(
                "no_receipts",
                "this server does not report how many sessions received a frame",
            ));
        }
        let mut questions = lock(&self.questions);
        if questions.pending.len() >= MAX_PENDING {
            let why = format!("{MAX_PENDING} receipts are pending, which is the most");
            return Err(Error::new("too_many", why));
        }
        questions.last += 1;
        let number = questions.last;
        let (kind, until) = (frame.kind(), after(now(), limit));
        questions.pending.insert(number, Pending { id, kind, until });
        Ok((number, Question::numbered(frame, number)))
    }

    /// Removes a receipt without a line, because its frame could not be sent.
    pub(super) fn forget(&self, number: u64) {
        self.remove(&mut lock(&self.questions), number);
    }

    fn remove(&self, questions: &mut MutexGuard<'_, Questions>, number: u64) -> Option<Pending> {
        self.removed.notify_all();
        questions.pending.remove(&number)
    }

    /// The line about a frame of the server; `None` if the frame is not about a receipt.
    pub(super) fn take(&self, frame: &Frame) -> Option<Value> {
        let mut questions = lock(&self.questions);
        let pending = &questions.pending;
        let (number, result) = match answered(frame) {
            // A server that does not repeat the number answers in the order of the questions.
            Some(answer) => (
                answer.question.or_else(|| pending.keys().next().copied())?,
                Ok(answer.receivers),
            ),
            None => {
                let refusal = frame.payload::<InvalidFrameType>().ok()?;
                let kind = refusal.refused();
                let (number, _) = pending.iter().find(|(_, one)| one.kind == kind)?;
                (*number, Err(Error::new("refused", refusal.reason)))
            }
        };
        Some(self.remove(&mut questions, number)?.line(result))
    }

    /// The lines about all receipts, when the session has ended: their frames may be lost.
    pub(super) fn lose(&self) -> Vec<Value> {
        let why = "the session ended before the server answered; the frame may be lost";
        self.end(|_| true, &Error::new("disconnected", why))
    }

    /// The lines about receipts whose time limit has passed.
    pub(super) fn late(&self) -> Vec<Value> {
        let now = now();
        let why = "the server has not answered in time; the frame may be lost";
        self.end(|one| one.until <= now, &Error::new("timed_out", why))
    }

    fn end(&self, ends: impl Fn(&Pending) -> bool, why: &Error) -> Vec<Value> {
        let mut questions = lock(&self.questions);
        let all = std::mem::take(&mut questions.pending).into_iter();
        let (ended, pending): (BTreeMap<_, _>, _) = all.partition(|(_, one)| ends(one));
        questions.pending = pending;
        self.removed.notify_all();
        let lines = ended.values().map(|one: &Pending| one.line(Err(why.clone())));
        lines.collect()
    }

    /// Blocks until no receipt is pending.
    pub(super) fn await_all(&self) {
        let questions = lock(&self.questions);
        let left = self
            .removed
            .wait_while(questions, |questions| !questions.pending.is_empty());
        drop(left.unwrap_or_else(PoisonError::into_inner));
    }
}
