//! Questions to the scheduler, such as for the list of its sessions, and their answers.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};
use thiserror::Error;
use uuid::Uuid;

use crate::error::CommandError;
use ssntp::client::Client;
use ssntp::payload::{self, InvalidFrameType, Payload};
use ssntp::proto::{ErrorCode, Frame, FrameKind};
use ssntp_transport::{deadline, locked, remaining};

/// The reason why a question has no answer.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum AskError {
    /// The question was not sent.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The scheduler refuses the question.
    #[error("the scheduler refused the question: {0}")]
    Refused(String),
    /// An answer cannot be read, and no other one came in time.
    #[error("the answer cannot be read: {0}")]
    Unreadable(#[source] payload::Error),
    /// The session has ended before the answer.
    #[error("the session with the scheduler has ended")]
    Lost,
    /// No answer came in time.
    #[error("the scheduler has not answered in {0:?}")]
    Late(Duration),
}

/// Sends a question, and waits for the answer for at most `limit`.
pub(crate) fn ask<Q: Payload, A: Payload>(
    client: &Client,
    questions: &Questions,
    question: &Q,
    is_answer: impl Fn(&A) -> bool,
    limit: Duration,
) -> Result<A, AskError> {
    let deadline = deadline(limit);
    // Registered before the frame is sent, so that no answer can arrive too early.
    let asked = questions.register(Q::KIND, A::KIND);
    let sent = client.send_timeout(Frame::of(question), limit);
    sent.map_err(|e| CommandError::Send(e.fault().clone()))?;
    asked.answer(is_answer, deadline, AskError::Late(limit))
}

/// The maximum number of pages of a list. At 64 entries a page this is more than a server can have.
const PAGES: usize = 16_384;

/// The entries of all pages of a list. `page` asks for the page that begins after a key, and returns its
/// entries and the key for the next page, which is 0 or empty after the last page.
///
/// # Errors
/// The first one of `page`.
pub fn all_pages<K: PartialOrd + Default, T, E>(
    mut page: impl FnMut(&K) -> Result<(Vec<T>, K), E>,
) -> Result<Vec<T>, E> {
    let (mut all, mut after) = (Vec::new(), K::default());
    for _ in 0..PAGES {
        let (entries, next) = page(&after)?;
        all.extend(entries);
        // The keys have to grow. Otherwise a faulty server could keep this loop running.
        if next <= after {
            break;
        }
        after = next;
    }
    Ok(all)
}

/// The questions that wait for answers.
#[derive(Debug, Default)]
pub(crate) struct Questions(Mutex<Vec<Registered>>);

#[derive(Debug)]
struct Registered {
    id: Uuid,
    question: FrameKind,
    answer: FrameKind,
    answers: Sender<Result<Bytes, AskError>>,
}

impl Questions {
    /// Passes a frame to the questions that it may answer.
    pub(crate) fn frame(&self, frame: &Frame) {
        let registered = locked(&self.0);
        // Every frame except those of streams passes here, so the cheap check comes first.
        if registered.is_empty() {
            return;
        }
        let is_refusal = frame.kind() == ErrorCode::INVALID_FRAME_TYPE;
        let refused = is_refusal
            .then(|| frame.payload::<InvalidFrameType>().ok())
            .flatten();
        for one in &*registered {
            let answer = match &refused {
                _ if one.answer == frame.kind() => Ok(frame.payload_bytes().clone()),
                Some(refused) if refused.refused() == one.question => {
                    Err(AskError::Refused(refused.reason.to_string()))
                }
                _ => continue,
            };
            // This fails only if the wait of the question is over, or the scheduler sends answers that
            // nobody has asked for.
            let _ = one.answers.try_send(answer);
        }
    }

    /// Ends all waits, because the session has ended.
    pub(crate) fn end(&self) {
        locked(&self.0).clear();
    }

    fn register(&self, question: FrameKind, answer: FrameKind) -> OpenQuestion<'_> {
        // The only sender is in the list, so removing it from the list ends the wait.
        let (sender, answers) = bounded(MAX_ANSWERS);
        let id = Uuid::new_v4();
        locked(&self.0).push(Registered {
            id,
            question,
            answer,
            answers: sender,
        });
        OpenQuestion {
            questions: self,
            id,
            answers,
        }
    }
}

/// A question that waits for its answer. Dropping it ends the registration.
struct OpenQuestion<'a> {
    questions: &'a Questions,
    id: Uuid,
    answers: Receiver<Result<Bytes, AskError>>,
}

/// The maximum number of answers that wait for one question. The channel also receives the answers to other
/// questions of its kind, of which a client has far fewer at a time. Further ones are dropped.
const MAX_ANSWERS: usize = 256;

impl OpenQuestion<'_> {
    /// Waits for its answer. Returns `late` at the deadline, or the error of the last answer that cannot
    /// be read: the id of such an answer is unknown, so it may answer another question of the kind.
    fn answer<A: Payload>(
        &self,
        is_answer: impl Fn(&A) -> bool,
        deadline: Instant,
        mut late: AskError,
    ) -> Result<A, AskError> {
        loop {
            let answer = match self.answers.recv_timeout(remaining(deadline)) {
                Ok(answer) => A::decode(&answer?),
                Err(e) if e.is_timeout() => return Err(late),
                Err(_) => return Err(AskError::Lost),
            };
            match answer {
                Ok(answer) if is_answer(&answer) => return Ok(answer),
                Ok(_) => {}
                Err(e) => late = AskError::Unreadable(e),
            }
        }
    }
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        locked(&self.questions.0).retain(|one| one.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use ssntp::proto::{Command, Event};
    use ssntp_payload::Tenants;

    use super::*;

    #[test]
    fn an_answer_that_cannot_be_read_fails_no_other_question() {
        let questions = Questions::default();
        let kind = Event::TENANTS.into();
        let asked = questions.register(Command::TENANT.into(), kind);
        let is_own = |answer: &Tenants| answer.id == "own";
        let answer = || asked.answer(is_own, deadline(Duration::ZERO), AskError::Late(Duration::ZERO));
        questions.frame(&Frame::with_payload(kind, "tenants: ["));
        assert!(matches!(answer(), Err(AskError::Unreadable(_))));
        questions.frame(&Frame::with_payload(kind, "tenants: ["));
        questions.frame(&Frame::with_payload(kind, "tenants: {id: own}"));
        assert_eq!(answer().unwrap().id, "own");
        assert!(matches!(answer(), Err(AskError::Late(_))));
    }

    #[test]
    fn answers_to_other_questions_of_its_kind_do_not_displace_an_answer() {
        let questions = Questions::default();
        let kind = Command::STATS.into();
        let asked = questions.register(kind, kind);
        for _ in 0..100 {
            questions.frame(&Frame::with_payload(kind, "another"));
        }
        questions.frame(&Frame::with_payload(kind, "its own"));
        let last = asked.answers.try_iter().last().unwrap().unwrap();
        assert_eq!(last, "its own");
    }
}
