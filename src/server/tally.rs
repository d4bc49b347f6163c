//! What a server counts beside what each session does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::disconnect::DisconnectReason;
use super::sessions::{Session, SessionCounters, SessionInfo};
use crate::proto::{FrameKind, FrameType};
use ssntp_transport::Load;

/// How many sessions that ended are remembered.
const MOST_CLOSED: usize = 256;
/// The types of frames by their numbers, the protocol's four among them.
const TYPES: usize = FrameType::ERROR.0 as usize + 1;
const OPERANDS: usize = 256;

/// What a server's core counts beside what each session does.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) started: Instant,
    /// By type, then operand: 40 KiB, since a look-up in a map takes as long as
    /// half of what a lone frame needs besides.
    kinds: Vec<KindTally>,
    pub(super) admitted: u64,
    // By words that this program knows, so no peer can make the map grow.
    pub(super) ended: BTreeMap<&'static str, u64>,
    pub(super) closed: VecDeque<Arc<Closed>>,
    /// Of sessions that are not in the index any more.
    pub(super) unsupported: u64,
    pub(super) filtered: u64,
    pub(super) dropped: u64,
    pub(super) answered: u64,
    pub(super) expired: u64,
    /// Frames that a rule forwards and that had no receiver.
    pub(super) unreceived: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KindTally {
    /// Frames, and their bytes.
    pub(super) received: [u64; 2],
    pub(super) sent: [u64; 2],
}

/// A session that has ended, by the dispatcher's clock.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) info: Arc<SessionInfo>,
    pub(super) reason: DisconnectReason,
    pub(super) since: Instant,
    pub(super) until: Instant,
    pub(super) counters: SessionCounters,
}

impl Tally {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            started: now,
            kinds: vec![KindTally::default(); TYPES * OPERANDS],
            admitted: 0,
            ended: BTreeMap::new(),
            closed: VecDeque::new(),
            unsupported: 0,
            filtered: 0,
            dropped: 0,
            answered: 0,
            expired: 0,
            unreceived: 0,
        }
    }

    /// Frames of a kind that is supported have come, in so many bytes.
    pub(super) fn received(&mut self, kind: FrameKind, frames: u32, bytes: u64) {
        if let Some(tally) = self.kind(kind) {
            tally.received[0] += u64::from(frames);
            tally.received[1] += bytes;
        }
    }

    /// Frames go to somebody.
    pub(super) fn sent(&mut self, kind: FrameKind, load: Load) {
        if let Some(tally) = self.kind(kind) {
            tally.sent[0] += load.frames;
            tally.sent[1] += load.bytes;
        }
    }

    /// Frames for a session that is ended for them: what that one has dropped
    /// itself has been counted.
    pub(super) fn dropped(&mut self, load: Load) {
        self.dropped += load.frames;
    }

    /// A session has left the index, and counts for itself no more.
    pub(super) fn gone(&mut self, counters: &SessionCounters) {
        self.unsupported += counters.frames_unsupported;
        self.filtered += counters.frames_filtered;
        self.dropped += counters.frames_dropped;
    }

    /// One that the application knew of has ended.
    pub(super) fn closed(
        &mut self,
        session: &Session,
        counters: SessionCounters,
        reason: &DisconnectReason,
        now: Instant,
    ) {
        *self.ended.entry(reason.word()).or_default() += 1;
        // Clients that connect and leave all the time do not fill the memory.
        if self.closed.len() >= MOST_CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(Arc::new(Closed {
            info: Arc::clone(&session.info),
            reason: reason.clone(),
            since: session.since,
            until: now,
            counters,
        }));
    }

    fn kind(&mut self, kind: FrameKind) -> Option<&mut KindTally> {
        let at = usize::from(kind.frame_type.0) * OPERANDS + usize::from(kind.operand);
        self.kinds.get_mut(at)
    }

    /// The kinds of which there have been frames, and their tallies.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (FrameKind, &KindTally)> {
        let types = (0..=u8::MAX).zip(self.kinds.chunks(OPERANDS));
        let kinds = types.flat_map(|(frame_type, tallies)| {
            let operands = (0..=u8::MAX).zip(tallies);
            operands.map(move |(operand, tally)| (FrameKind::new(FrameType(frame_type), operand), tally))
        });
        kinds.filter(|(_, tally)| **tally != KindTally::default())
    }
}

/// What newcomers have come to, as their threads count it.
#[derive(Debug, Default)]
pub(super) struct HandshakeTally {
    full: AtomicU64,
    resumed: AtomicU64,
    // Newcomers have a thread each. A lock for each refusal is little beside its handshake.
    refused: Mutex<BTreeMap<&'static str, u64>>,
}

impl HandshakeTally {
    /// One led to a session.
    pub(super) fn finished(&self, resumed: bool) {
        let count = if resumed { &self.resumed } else { &self.full };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// One did not.
    pub(super) fn refused(&self, word: &'static str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(word).or_default() += 1;
    }

    /// With a full handshake, with a resumed one, and refused by the word for the reason.
    pub(super) fn counts(&self) -> (u64, u64, BTreeMap<&'static str, u64>) {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.full), load(&self.resumed), refused.clone())
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;

    use uuid::Uuid;

    use super::*;
    use crate::server::SessionId;
    use ssntp_transport::pki::{CertificateInfo, KeptCertificate};
    use ssntp_transport::{ConnectionId, Limits, Outbox, PeerAddress, Role};

    #[test]
    fn the_last_sessions_that_ended_are_remembered_and_all_are_counted() {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let now = Instant::now();
        let mut tally = Tally::new(now);
        let nothing = CertificateInfo::nothing(&CertificateDer::from(vec![1]));
        let most = MOST_CLOSED as u64;
        for number in 0..most + 5 {
            let info = SessionInfo {
                server: uuid::Uuid::nil(),
                id: SessionId(ConnectionId(number)),
                uuid: Uuid::from_u128(number.into()),
                role: Role::AGENT,
                address: PeerAddress::Memory,
                certificate: KeptCertificate::new(&nothing, None),
                tracing: false,
            };
            let gauge = Outbox::new(Limits::default()).gauge();
            let session = Session::new(Arc::new(info), gauge, Arc::default(), now);
            let counters = SessionCounters {
                frames_filtered: 1,
                ..session.counters()
            };
            tally.gone(&counters);
            tally.closed(&session, counters, &DisconnectReason::PeerClosed, now);
        }
        let kept: Vec<_> = tally
            .closed
            .iter()
            .map(|closed| closed.info.uuid().as_u128())
            .collect();
        assert!(kept.into_iter().eq(5..u128::from(most) + 5));
        assert_eq!((tally.ended["closed"], tally.filtered), (most + 5, most + 5));
    }

    #[test]
    fn kinds_of_every_byte_are_counted_or_left_out() {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let mut tally = Tally::new(Instant::now());
        for frame_type in 0..=u8::MAX {
            for operand in 0..=u8::MAX {
                tally.received(FrameKind::new(FrameType(frame_type), operand), 2, 20);
            }
        }
        let kinds: Vec<_> = tally.kinds().collect();
        assert_eq!(kinds.len(), TYPES * OPERANDS);
        assert!(kinds.iter().all(|(_, tally)| tally.received == [2, 20]));
        assert!(kinds.is_sorted_by_key(|(kind, _)| *kind));
    }
}
