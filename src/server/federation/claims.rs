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
//! the higher [`Rank`](super::Rank) stays; of equal ranks, that of the server with the greater UUID.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use crossbeam_channel::Sender;
use uuid::Uuid;

use super::frames::LinkFrame;
use super::roster::Changes;
use crate::proto::Refusal;
use crate::server::DisconnectReason;
use crate::server::admission::{Holder, Situation};
use crate::server::core::{Notice, ServerCore, State};
use crate::server::entry::CLAIM;
use crate::server::handler::Newcomer;
use ssntp_pki::{CertificateDer, CertificateInfo};
use ssntp_transport::ConnectionId;
use ssntp_transport::dispatch::Action;

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
    fn begin(&mut self, link: ConnectionId, now: Instant, verdict: Sender<u8>) -> Option<u64> {
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

impl State {
    /// Applies changes of another server's sessions. Ends the own session of a UUID if the other
    /// server's session outranks it.
    pub(super) fn apply_changes(&mut self, changes: Changes) {
        let gone = changes.gone.into_iter().map(Notice::RemoteDisconnected);
        self.notices.extend(gone);
        for row in changes.connected {
            // The clock of Lamport: the next admission here gets a greater stamp than this session.
            self.links.clock = self.links.clock.max(row.rank.stamp);
            if let Some(own) = self.sessions.of(row.info.uuid)
                && (row.rank, row.info.server) > (own.rank, self.environment.uuid)
            {
                self.end(own.info.id, DisconnectReason::Replaced, true);
            }
            self.notices.push(Notice::RemoteConnected(row));
        }
    }

    /// The link to the server that has a session of the newcomer's UUID, if this server's own rules
    /// admit the newcomer.
    fn link_to_holder(&self, newcomer: &Newcomer<'_>) -> Option<ConnectionId> {
        let row = self.links.roster.get(newcomer.uuid)?;
        let judged = self.judge(newcomer.uuid, newcomer.certificate, self.connections.len());
        // If the UUID has a session here as well, the servers resolve that by rank, without a claim.
        (judged == Ok(None)).then(|| self.links.to(row.info.server))?
    }

    fn claim(&mut self, link: ConnectionId, newcomer: &Newcomer<'_>, verdict: Sender<u8>) {
        let Newcomer {
            uuid, certificate, ..
        } = *newcomer;
        let Some(id) = self.links.claims.begin(link, self.now, verdict) else {
            return;
        };
        self.send_link_frame(
            link,
            &LinkFrame::Claim {
                id,
                uuid,
                certificate: Bytes::copy_from_slice(&certificate.der),
            },
        );
    }

    /// Judges a newcomer of another server, and ends this server's session if the newcomer may take
    /// it over. Returns the verdict for CLAIMED.
    pub(super) fn judge_claim(&mut self, uuid: Uuid, certificate: &Bytes) -> u8 {
        let Some(session) = self.sessions.of(uuid) else {
            return 0;
        };
        let Ok(certificate) = CertificateInfo::from_der(&CertificateDer::from(&certificate[..])) else {
            // A certificate that cannot be read proves nothing, so the session stays.
            return u8::MAX;
        };
        // The other server applies its own limits, so none applies here.
        let situation = Situation {
            server: self.environment.uuid,
            stopping: false,
            maximum: usize::MAX,
            sessions: 0,
            of_certificate: 0,
            banned: self.bans.left(uuid, self.now),
            holder: Some(Holder::new(
                session.info.id,
                &session.info.certificate,
                &certificate,
            )),
        };
        match self.admission.judge(uuid, certificate.uuid, &situation) {
            Ok(old) => {
                if let Some(old) = old {
                    self.end(old, DisconnectReason::Replaced, true);
                }
                0
            }
            Err(Refusal::UuidInUse(_)) => 1,
            Err(Refusal::UuidOwned(_)) => 2,
            Err(Refusal::OtherAuthority(_)) => 3,
            Err(_) => u8::MAX,
        }
    }
}

/// The refusal for a verdict of CLAIMED. `None` if the newcomer may have the UUID.
pub(in crate::server) fn refusal(verdict: u8, uuid: Uuid) -> Option<Refusal> {
    Some(match verdict {
        0 => return None,
        1 => Refusal::UuidInUse(uuid),
        2 => Refusal::UuidOwned(uuid),
        3 => Refusal::OtherAuthority(uuid),
        _ => Refusal::Busy("another server has its session and refuses the takeover"),
    })
}

impl ServerCore {
    /// Sends CLAIM to the server that has a session of the newcomer's UUID. `verdict` is dropped if
    /// no CLAIM is needed, or if no answer will come.
    pub(in crate::server) fn claim(
        &mut self,
        now: Instant,
        actions: &mut Vec<Action>,
        newcomer: &Newcomer<'_>,
        verdict: Sender<u8>,
    ) {
        self.at(now, actions, |core| {
            // A session at another server must not end for a newcomer that is then refused here, by
            // this server's rules or by the application.
            if let Some(link) = core.state.link_to_holder(newcomer)
                && core.consent(newcomer).is_ok()
            {
                core.state.claim(link, newcomer, verdict);
            }
        });
    }
}
