//! The silence of a peer: when it was last heard, and whether it was asked for a sign of life.
//!
//! ```text
//!  heard ─ half of the limit ─▶ PROBE is sent ─ half of the limit ─▶ the session ends
//!    ▲                              │
//!    └── any bytes, InvalidFrameType┘
//! ```
//!
//! Every peer of the protocol answers [`PROBE`] with InvalidFrameType, and an operating system does not answer
//! for a process that was stopped. The answer is for the session, so the application does not get it.

use std::time::{Duration, Instant};

use crate::payload::InvalidFrameType;
use crate::proto::{ErrorCode, Frame, PROBE};

/// The number of looks at a peer within the limit.
pub(super) const LOOKS: u32 = 8;

/// The shortest limit. A session that has to wait for others counts as heard every six seconds only.
pub(super) const SHORTEST: Duration = Duration::from_secs(30);

/// The reason for the end of a session.
pub(super) const SILENT: &str = "the peer has sent nothing, and does not answer";

/// The silence of one peer.
#[derive(Debug)]
pub(super) struct Silence {
    began: Instant,
    heard: Option<Instant>,
    /// The time of the question that no bytes have followed.
    asked: Option<Instant>,
    looked: Instant,
    /// The number of questions without an answer.
    unanswered: u32,
}

/// What to do about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Nothing,
    /// Send [`PROBE`].
    Ask,
    /// End the session.
    End,
}

impl Silence {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            heard: None,
            asked: None,
            looked: now,
            unanswered: 0,
        }
    }

    /// Notes that bytes have come, or wait for this side.
    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = Some(now);
        self.asked = None;
    }

    /// The time at which bytes last came.
    pub(super) fn heard(&self) -> Option<Instant> {
        self.heard
    }

    /// Decides about a peer that may be silent for `limit`. Called [`LOOKS`] times in that time.
    pub(super) fn look(&mut self, now: Instant, limit: Duration) -> Look {
        let passed = |since: Instant| now.saturating_duration_since(since) >= limit / 2;
        // Then this process was stopped, or its host slept, so what the peer sent is not read yet.
        let has_slept = passed(std::mem::replace(&mut self.looked, now));
        match self.asked {
            Some(asked) if !has_slept && passed(asked) => Look::End,
            Some(_) if !has_slept => Look::Nothing,
            None if !passed(self.heard.unwrap_or(self.began)) => Look::Nothing,
            _ => {
                self.asked = Some(now);
                Look::Ask
            }
        }
    }

    /// Counts a question that is sent.
    pub(super) fn ask(&mut self) {
        self.unanswered += 1;
    }

    /// True if a frame is the answer to a question.
    pub(super) fn takes(&mut self, frame: &Frame) -> bool {
        let is_answer = self.unanswered > 0
            && frame.kind() == ErrorCode::INVALID_FRAME_TYPE
            && frame
                .payload::<InvalidFrameType>()
                .is_ok_and(|answer| answer.refused() == PROBE);
        self.unanswered -= u32::from(is_answer);
        is_answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Item;

    const LIMIT: Duration = Duration::from_secs(80);

    #[test]
    fn a_silent_peer_is_asked_after_half_of_the_limit_and_ended_after_the_other() {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut silence = Silence::new(start);
        let looks: Vec<_> = (1..=8).map(|n| silence.look(at(n * 10), LIMIT)).collect();
        let mut expected = [Look::Nothing; 8];
        (expected[3], expected[7]) = (Look::Ask, Look::End);
        assert_eq!(looks, expected);
        silence.ask();
        // Any bytes are a sign of life, and the answer is taken once.
        silence.hear(at(81));
        assert_eq!(silence.look(at(90), LIMIT), Look::Nothing);
        let answer = Item::Unsupported(PROBE).answer().unwrap();
        assert_eq!([silence.takes(&answer), silence.takes(&answer)], [true, false]);
        assert!(!silence.takes(&Frame::new(ErrorCode::INVALID_FRAME_TYPE)));
    }

    #[test]
    fn a_process_that_did_not_run_asks_again_before_it_ends_a_session() {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut silence = Silence::new(start);
        for n in 1..=4 {
            silence.look(at(n * 10), LIMIT);
        }
        assert_eq!(silence.look(at(1000), LIMIT), Look::Ask);
        assert_eq!(silence.look(at(1010), LIMIT), Look::Nothing);
    }
}
