//! The counters that outlive sessions, and those of handshakes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};

use super::figures::{ClosedSession, Figures, HandshakeFigures};
use super::sessions::SessionCounters;
use ssntp_transport::{Occupancy, locked};

/// The maximum number of ended sessions that are kept, so that clients which connect and leave all the time
/// do not fill the memory.
const MOST_CLOSED: usize = 256;

/// The counters that outlive sessions.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Sessions that have begun.
    admitted: u64,
    /// The number of ended sessions by the word for the reason. The words are a fixed list, so no peer
    /// can make the map grow.
    ended: BTreeMap<&'static str, u64>,
    /// The last sessions that ended, the latest last.
    closed: VecDeque<ClosedSession>,
    /// The sums of the counters of sessions that are no longer in the index.
    past: SessionCounters,
}

impl Counters {
    /// Counts a session that begins.
    pub(super) fn admitted(&mut self) {
        self.admitted += 1;
    }

    /// Counts frames that were dropped for a session that is no longer in the index.
    pub(super) fn dropped(&mut self, frames: u64) {
        self.past.frames_dropped += frames;
    }

    /// Frames that were dropped for sessions that are no longer in the index.
    pub(super) fn dropped_by_past(&self) -> u64 {
        self.past.frames_dropped
    }

    /// Adds the counters of a session that leaves the index.
    pub(super) fn removed(&mut self, counters: &SessionCounters) {
        self.past.frames_unsupported += counters.frames_unsupported;
        self.past.frames_filtered += counters.frames_filtered;
        self.past.frames_dropped += counters.frames_dropped;
    }

    /// Counts and keeps an ended session that the application was told of.
    pub(super) fn closed(&mut self, session: ClosedSession) {
        *self.ended.entry(session.reason.word()).or_default() += 1;
        if self.closed.len() >= MOST_CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(session);
    }

    /// Sets the figures that are counted here. Those of the sessions in the index are there already.
    pub(super) fn show(&self, figures: &mut Figures) {
        let total = |count: fn(&SessionCounters) -> u64| -> u64 {
            let present = figures.sessions.iter().map(|session| count(&session.counters));
            present.sum::<u64>() + count(&self.past)
        };
        figures.unsupported = total(|of| of.frames_unsupported);
        figures.filtered = total(|of| of.frames_filtered);
        figures.dropped = total(|of| of.frames_dropped);
        figures.closed = self.closed.iter().cloned().collect();
        figures.admitted = self.admitted;
        figures.ended = self.ended.clone();
    }
}

/// The counters of handshakes, which the threads of newcomers change. A lock takes little time compared
/// with a handshake.
#[derive(Debug, Default)]
pub(super) struct HandshakeCounters {
    figures: Mutex<HandshakeFigures>,
    /// The number of handshakes under way. Set once the server accepts clients.
    pub(super) occupancy: OnceLock<Arc<Occupancy>>,
}

impl HandshakeCounters {
    /// Counts a handshake that led to a session or a link.
    pub(super) fn finished(&self, resumed: bool) {
        let mut figures = locked(&self.figures);
        if resumed {
            figures.resumed += 1;
        } else {
            figures.full += 1;
        }
    }

    /// Counts a newcomer that was refused or lost.
    pub(super) fn refused(&self, word: &'static str) {
        *locked(&self.figures).refused.entry(word).or_default() += 1;
    }

    /// Counts a node that has joined or renewed its certificate, or was refused that.
    #[cfg(feature = "issue")]
    pub(super) fn enrolled(&self, word: &'static str) {
        *locked(&self.figures).enrolments.entry(word).or_default() += 1;
    }

    pub(super) fn figures(&self) -> HandshakeFigures {
        let mut figures = locked(&self.figures).clone();
        if let Some(occupancy) = self.occupancy.get() {
            (figures.running, figures.limit) = (occupancy.running(), occupancy.limit());
            let without_thread = occupancy.without_thread();
            if without_thread > 0 {
                figures.refused.insert("thread", without_thread);
            }
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use rustls::pki_types::CertificateDer;
    use uuid::Uuid;

    use super::*;
    use crate::server::{DisconnectReason, SessionId, SessionInfo};
    use ssntp_pki::Role;
    use ssntp_pki::{CertificateInfo, KeptCertificate};
    use ssntp_transport::{ConnectionId, PeerAddress};

    #[test]
    fn the_last_ended_sessions_are_kept_and_all_are_counted() {
        let mut counted = Counters::default();
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
            counted.removed(&counters);
            counted.closed(ClosedSession {
                info: Arc::new(info),
                reason: DisconnectReason::PeerClosed,
                since: SystemTime::UNIX_EPOCH,
                until: SystemTime::UNIX_EPOCH,
                counters,
            });
        }
        let kept: Vec<_> = counted
            .closed
            .iter()
            .map(|closed| closed.info.uuid().as_u128())
            .collect();
        assert!(kept.into_iter().eq(5..u128::from(most) + 5));
        assert_eq!(
            (counted.ended["closed"], counted.past.frames_filtered),
            (most + 5, most + 5)
        );
    }
}
