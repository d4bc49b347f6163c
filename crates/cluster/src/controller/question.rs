//! Questions to the scheduler, such as for its sessions, and their answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};
use thiserror::Error;
use uuid::Uuid;

use super::{CommandError, Controller, feed};
use ssntp::payload::{self, InvalidFrameType, Payload};
use ssntp::proto::{ErrorCode, Frame, FrameKind};

/// The most answers that wait for one question: those to other questions of the same kind come to
/// it, too.
const ANSWERS: usize = 16;

/// Why there is no answer.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum AskError {
    /// The question was not sent.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The scheduler does not take the question.
    #[error("the scheduler refuses it: {0}")]
    Refused(String),
    /// The answer cannot be read.
    #[error("the answer cannot be read: {0}")]
    Unreadable(#[source] payload::Error),
    /// The session has ended before the answer.
    #[error("the session with the scheduler has ended")]
    Lost,
    /// No answer came in time.
    #[error("the scheduler has not answered in {0:?}")]
    Late(Duration),
}

impl Controller {
    /// Asks the scheduler, and waits for the answer for at most `limit`. `is_answer` tells an
    /// answer from one to another question, by the id in both.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask<Q: Payload, A: Payload>(
        &self,
        question: &Q,
        is_answer: impl Fn(&A) -> bool,
        limit: Duration,
    ) -> Result<A, AskError> {
        let deadline = feed::now() + limit;
        // Before it is sent, so that no answer can come too early.
        let asked = Asked::of(&self.shared.questions, Q::KIND, A::KIND);
        let sent = self.client.send(Frame::of(question));
        sent.map_err(|e| CommandError::Send(e.fault().clone()))?;
        loop {
            let answer = asked.answers.recv_deadline(deadline);
            let answer = answer.map_err(|e| match e.is_timeout() {
                true => AskError::Late(limit),
                false => AskError::Lost,
            })??;
            let answer = A::decode(&answer).map_err(AskError::Unreadable)?;
            if is_answer(&answer) {
                return Ok(answer);
            }
        }
    }
}

/// The questions that wait for answers.
#[derive(Debug, Default)]
pub(super) struct Questions(Mutex<Vec<Waiting>>);

#[derive(Debug)]
struct Waiting {
    id: Uuid,
    question: FrameKind,
    answer: FrameKind,
    answers: Sender<Result<Bytes, AskError>>,
}

impl Questions {
    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a frame that may be an answer.
    pub(super) fn frame(&self, frame: &Frame) {
        let waiting = self.lock();
        // Every frame but those of streams passes here, so the cheap check comes first.
        if waiting.is_empty() {
            return;
        }
        let refused = match frame.kind() == ErrorCode::INVALID_FRAME_TYPE {
            true => frame.payload::<InvalidFrameType>().ok(),
            false => None,
        };
        for one in &*waiting {
            // One that has no room has given up on its answer, or is about to.
            if one.answer == frame.kind() {
                let _ = one.answers.try_send(Ok(frame.payload_bytes().clone()));
            } else if let Some(refused) = refused
                .as_ref()
                .filter(|refused| refused.refused() == one.question)
            {
                let why = refused.reason.to_string();
                let _ = one.answers.try_send(Err(AskError::Refused(why)));
            }
        }
    }

    /// The session has ended: no answer comes any more.
    pub(super) fn end(&self) {
        self.lock().clear();
    }
}

/// One question. Dropping it ends the wait.
struct Asked {
    questions: Arc<Questions>,
    id: Uuid,
    answers: Receiver<Result<Bytes, AskError>>,
}

impl Asked {
    fn of(questions: &Arc<Questions>, question: FrameKind, answer: FrameKind) -> Self {
        // The one sender is in the list, so that taking it out ends the wait.
        let (sender, answers) = bounded(ANSWERS);
        let id = Uuid::new_v4();
        questions.lock().push(Waiting {
            id,
            question,
            answer,
            answers: sender,
        });
        let questions = Arc::clone(questions);
        Self {
            questions,
            id,
            answers,
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.questions.lock().retain(|one| one.id != self.id);
    }
}
