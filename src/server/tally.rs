//! The counters of a server, apart from those of its sessions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::figures::{ClosedSession, HandshakeFigures};
use super::routing::KindTable;
use super::sessions::SessionCounters;
use crate::proto::FrameKind;
use ssntp_transport::{Load, Occupancy};

/// The maximum number of ended sessions that are kept, so that clients which connect and leave all the time
/// do not fill the memory.
const MOST_CLOSED: usize = 256;

/// The counters of a server's core.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) kinds: KindTable<KindTally>,
    pub(super) admitted: u64,
    /// The number of ended sessions by the word for the reason. The words are a fixed list, so no peer
    /// can make the map grow.
    pub(super) ended: BTreeMap<&'static str, u64>,
    /// The last sessions that ended, the latest last.
    pub(super) closed: VecDeque<ClosedSession>,
    /// This and the next two: counts of sessions that are no longer in the index.
    pub(super) unsupported: u64,
    pub(super) filtered: u64,
    pub(super) dropped: u64,
    pub(super) answered: u64,
    /// Frames for which a rule found no receiver.
    pub(super) unreceived: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KindTally {
    pub(super) received: Load,
    pub(super) sent: Load,
}

impl Tally {
    /// Counts received frames of a supported kind, and their bytes.
    pub(super) fn received(&mut self, kind: FrameKind, frames: u32, bytes: u64) {
        if let Some(tally) = self.kinds.get_or_default(kind) {
            let (items, frames) = (1, frames.into());
            tally.received += Load { items, frames, bytes };
        }
    }

    /// Counts frames that are sent, once for each receiver.
    pub(super) fn sent(&mut self, kind: FrameKind, load: Load) {
        if let Some(tally) = self.kinds.get_or_default(kind) {
            tally.sent += load;
        }
    }

    /// Adds the counters of a session that leaves the index.
    pub(super) fn gone(&mut self, counters: &SessionCounters) {
        self.unsupported += counters.frames_unsupported;
        self.filtered += counters.frames_filtered;
        self.dropped += counters.frames_dropped;
    }

    /// Counts and keeps an ended session that the application was told of.
    pub(super) fn closed(&mut self, session: ClosedSession) {
        *self.ended.entry(session.reason.word()).or_default() += 1;
        if self.closed.len() >= MOST_CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(session);
    }
}

/// The counters of handshakes, which the threads of newcomers change. A lock takes little time compared
/// with a handshake.
#[derive(Debug, Default)]
pub(super) struct HandshakeTally(Mutex<HandshakeFigures>);

impl HandshakeTally {
    /// Counts a handshake that led to a session or a link.
    pub(super) fn finished(&self, resumed: bool) {
        let mut figures = self.lock();
        match resumed {
            true => figures.resumed += 1,
            false => figures.full += 1,
        }
    }

    /// Counts a newcomer that was refused or lost.
    pub(super) fn refused(&self, word: &'static str) {
        *self.lock().refused.entry(word).or_default() += 1;
    }

    /// The figures. `occupancy` is `None` only while the server starts.
    pub(super) fn figures(&self, occupancy: Option<&Occupancy>) -> HandshakeFigures {
        let mut figures = self.lock().clone();
        if let Some(occupancy) = occupancy {
            (figures.running, figures.limit) = (occupancy.running(), occupancy.max());
            let without_thread = occupancy.without_thread();
            if without_thread > 0 {
                figures.refused.insert("thread", without_thread);
            }
        }
        figures
    }

    fn lock(&self) -> MutexGuard<'_, HandshakeFigures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use rustls::pki_types::CertificateDer;
    use uuid::Uuid;

    use super::*;
    use crate::proto::FrameType;
    use crate::server::{DisconnectReason, SessionId, SessionInfo};
    use ssntp_pki::{CertificateInfo, KeptCertificate, Role};
    use ssntp_transport::{ConnectionId, PeerAddress};

    #[test]
    fn the_last_ended_sessions_are_kept_and_all_are_counted() {
        let mut tally = Tally::default();
        let nothing = CertificateInfo::nothing(&CertificateDer::from(vec![1]));
        let most = MOST_CLOSED as u64;
        for number in 0..most + 5 {
            let info = SessionInfo {
                server: Uuid::nil(),
                id: SessionId(ConnectionId(number)),
                uuid: Uuid::from_u128(number.into()),
                role: Role::AGENT,
                address: PeerAddress::Memory,
                certificate: KeptCertificate::new(&nothing, None),
                tracing: false,
            };
            let counters = SessionCounters {
                frames_filtered: 1,
                ..SessionCounters::default()
            };
            tally.gone(&counters);
            tally.closed(ClosedSession {
                info: Arc::new(info),
                reason: DisconnectReason::PeerClosed,
                since: SystemTime::UNIX_EPOCH,
                until: SystemTime::UNIX_EPOCH,
                counters,
            });
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
    fn frames_of_every_known_type_are_counted_by_kind() {
        let mut tally = Tally::default();
        for frame_type in 0..=u8::MAX {
            for operand in 0..=u8::MAX {
                tally.received(FrameKind::new(FrameType(frame_type), operand), 2, 20);
            }
        }
        let kinds: Vec<_> = tally.kinds.iter().collect();
        let known = (0..=u8::MAX).filter(|byte| FrameType(*byte).is_known()).count();
        assert!(kinds.len() >= known * 256);
        assert!(
            kinds
                .iter()
                .all(|(_, tally)| (tally.received.frames, tally.received.bytes) == (2, 20))
        );
        assert!(kinds.is_sorted_by_key(|(kind, _)| *kind));
    }
}
