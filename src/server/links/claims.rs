//! One UUID, one session: how linked servers avoid and resolve two sessions of one UUID.
//!
//! ```text
//!  newcomer ─▶ its UUID has a session at another server ── CLAIM ──▶ that server judges by its
//!     ▲                                                              own admission rules
//!     └─ admitted, or refused ◀──────────── CLAIMED: 0, or a code ◀──────────┘
//! ```
//!
//! The newcomer waits for the answer on its handshake's thread, for at most [`CLAIM`]. If no answer
//! comes, it is admitted. If two servers find that both have a session of one UUID, the session with
//! the higher [`Rank`](crate::server::sessions::Rank) stays; of equal ranks, that of the server with the greater UUID.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use uuid::Uuid;

use crate::proto::Refusal;
use ssntp_transport::ConnectionId;

/// The longest time for which a newcomer waits for the server that has a session of its UUID.
pub const CLAIM: Duration = Duration::from_secs(2);
/// The maximum number of newcomers that wait for another server at a time. Further ones are admitted
/// without asking.
const MAX_CLAIMS: usize = 1024;

/// A newcomer that waits for the verdict of the server that has a session of its UUID.
#[derive(Debug)]
struct Claim {
    link: ConnectionId,
    /// The time after which the newcomer no longer waits.
    until: Instant,
    verdict: Sender<u8>,
}

/// All newcomers that wait for a verdict, by the id in CLAIM.
#[derive(Debug, Default)]
pub(super) struct Claims {
    waiting: HashMap<u64, Claim>,
    last: u64,
}

impl Claims {
    /// Adds a newcomer. Returns the id for CLAIM, or `None` if [`MAX_CLAIMS`] newcomers wait.
    pub(super) fn begin(&mut self, link: ConnectionId, now: Instant, verdict: Sender<u8>) -> Option<u64> {
        // Claims without an answer stay until room is needed, because no timer removes them.
        if self.waiting.len() >= MAX_CLAIMS {
            self.waiting.retain(|_, claim| claim.until > now);
        }
        if self.waiting.len() >= MAX_CLAIMS {
            return None;
        }
        self.last += 1;
        let until = now + CLAIM;
        self.waiting.insert(self.last, Claim { link, until, verdict });
        Some(self.last)
    }

    /// Hands a verdict to the newcomer, if it came over the link over which CLAIM was sent.
    pub(super) fn answer(&mut self, link: ConnectionId, id: u64, verdict: u8) {
        if self.waiting.get(&id).is_some_and(|claim| claim.link == link)
            && let Some(claim) = self.waiting.remove(&id)
        {
            // The newcomer may have stopped waiting.
            let _ = claim.verdict.try_send(verdict);
        }
    }

    /// Drops the claims of a link that has ended, so that their newcomers wait no longer.
    pub(super) fn drop_link(&mut self, link: ConnectionId) {
        self.waiting.retain(|_, claim| claim.link != link);
    }
}

/// The verdict of CLAIMED for the judgement of this server's admission rules.
pub(crate) fn verdict<T>(judged: &Result<T, Refusal>) -> u8 {
    match judged {
        Ok(_) => 0,
        Err(Refusal::UuidInUse(_)) => 1,
        Err(Refusal::UuidOwned(_)) => 2,
        Err(Refusal::OtherAuthority(_)) => 3,
        Err(_) => u8::MAX,
    }
}

/// The refusal for a verdict of CLAIMED. `None` if the newcomer may have the UUID.
pub(crate) fn refusal(verdict: u8, uuid: Uuid) -> Option<Refusal> {
    Some(match verdict {
        0 => return None,
        1 => Refusal::UuidInUse(uuid),
        2 => Refusal::UuidOwned(uuid),
        3 => Refusal::OtherAuthority(uuid),
        _ => Refusal::Busy("another server has its session and refuses the takeover"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_answered_by_the_server_that_was_asked_and_by_no_other() {
        let (mut claims, now) = (Claims::default(), ssntp_transport::now());
        let (sender, verdict) = crossbeam_channel::bounded(1);
        let [asked, other] = [1, 2].map(ConnectionId);
        let id = claims.begin(asked, now, sender).unwrap();
        claims.answer(other, id, 0);
        assert!(verdict.try_recv().is_err());
        claims.answer(asked, id, 1);
        assert_eq!(verdict.try_recv(), Ok(1));
    }
}
