//! A scheduler whose process was stopped, or overloaded, handles the frames that arrived meanwhile
//! before time limits apply again, so that no node that has reported counts as stale.

use std::time::{Duration, Instant};

/// If the first time limit is over by more than this, the scheduler was paused.
const LATE: Duration = Duration::from_secs(2);
/// The time after a pause in which the scheduler handles the frames of its clients before time
/// limits apply again.
const CATCH_UP: Duration = Duration::from_secs(2);

/// A pause of the scheduler.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// The time at which time limits apply again.
    resumes: Option<Instant>,
}

impl Pause {
    /// The timer has run, while `first` is the first time limit.
    pub(super) fn handle_timer(&mut self, now: Instant, first: Option<Instant>) {
        let is_late = first.is_some_and(|at| now > at + LATE);
        self.resumes = match self.resumes {
            None if is_late => Some(now + CATCH_UP),
            // The pause ends only after all late time limits have expired.
            Some(resumes) if is_late || now < resumes => Some(resumes),
            _ => None,
        };
    }

    /// True if time limits do not apply yet.
    pub(super) fn is_catching_up(&self, now: Instant) -> bool {
        self.resumes.is_some_and(|resumes| now < resumes)
    }

    /// The time limit `first`, or the end of the time in which limits do not apply, if that is later.
    pub(super) fn postponed(&self, first: Instant) -> Instant {
        self.resumes.map_or(first, |resumes| first.max(resumes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp_transport::now;

    #[test]
    fn after_a_pause_frames_are_handled_before_time_limits() {
        let (mut pause, limit) = (Pause::default(), now());
        let mut run = |at, first| {
            pause.handle_timer(at, first);
            (pause.is_catching_up(at), pause.postponed(limit))
        };
        // The process was not paused.
        assert_eq!(run(limit, Some(limit)), (false, limit));
        // The process was paused for 18 s.
        let late = limit + Duration::from_secs(18);
        assert_eq!(run(late, Some(limit)), (true, late + CATCH_UP));
        assert_eq!(run(late + CATCH_UP, Some(limit)), (false, late + CATCH_UP));
        // All time limits have expired.
        assert_eq!(run(late + CATCH_UP * 2, None), (false, limit));
    }
}
