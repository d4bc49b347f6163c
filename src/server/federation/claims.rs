//! One UUID, one session: what servers do about a UUID that two of them have, or are to have.
//!
//! ```text
//!  newcomer ─▶ its server has a row of another one's session ── CLAIM ──▶ judged there by its
//!     ▲                                                                  own admission rules
//!     └─ admitted, or refused ◀─────────────── CLAIMED: 0, or why ◀──────────────┘
//! ```
//!
//! The newcomer waits for that on its handshake's thread, for [`CLAIM`] at most; without an answer it
//! is admitted. When two servers find that both have a session of one UUID, the one of the
//! higher [`Rank`](super::Rank) stays, and then the one of the greater server.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use crossbeam_channel::Sender;
use uuid::Uuid;

use super::frames::LinkFrame;
use super::links::News;
use super::roster::Changes;
use crate::proto::Refusal;
use crate::server::DisconnectReason;
use crate::server::admission::{Candidate, Holder, Standing};
use crate::server::core::{ServerCore, State};
use crate::server::entry::CLAIM;
use crate::server::handler::Newcomer;
use ssntp_transport::ConnectionId;
use ssntp_transport::dispatch::Action;
use ssntp_transport::pki::{CertificateDer, CertificateInfo};

/// How many newcomers may wait for another server at a time.
const MAX_CLAIMS: usize = 1024;

/// A newcomer that waits for the server which has a session of its UUID.
#[derive(Debug)]
struct Claim {
    link: ConnectionId,
    /// Until then.
    until: Instant,
    verdict: Sender<u8>,
}

/// All newcomers that wait so.
#[derive(Debug, Default)]
pub(super) struct Claims {
    waiting: HashMap<u64, Claim>,
    last: u64,
}

impl Claims {
    /// The number of a new one. `None` if too many wait.
    fn begin(&mut self, link: ConnectionId, now: Instant, verdict: Sender<u8>) -> Option<u64> {
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

    /// Another server has judged. Only the one that was asked may.
    pub(super) fn answer(&mut self, link: ConnectionId, id: u64, verdict: u8) {
        if self.waiting.get(&id).is_some_and(|claim| claim.link == link)
            && let Some(claim) = self.waiting.remove(&id)
        {
            // The newcomer may have stopped waiting.
            let _ = claim.verdict.try_send(verdict);
        }
    }

    /// A link has ended: nobody answers there.
    pub(super) fn give_up(&mut self, link: ConnectionId) {
        self.waiting.retain(|_, claim| claim.link != link);
    }
}

impl State {
    /// Takes what another server tells of its sessions. Where both have one of a UUID, one ends.
    pub(super) fn take_changes(&mut self, changes: Changes) {
        let gone = changes.gone.into_iter().map(News::Disconnected);
        self.links.news.extend(gone);
        for row in changes.connected {
            self.links.clock = self.links.clock.max(row.rank.stamp);
            let own = self
                .sessions
                .id_of(row.info.uuid)
                .and_then(|id| self.sessions.get(id));
            if let Some(own) = own
                && (row.rank, row.info.server) > (own.rank, self.environment.uuid)
            {
                self.end(own.info.id, DisconnectReason::Replaced, true);
            }
            self.links.news.push(News::Connected(row));
        }
    }

    /// The link to the server that has a session of a newcomer, if the newcomer may come in here.
    fn holder(&self, newcomer: &Newcomer<'_>) -> Option<ConnectionId> {
        let row = self.links.roster.get(newcomer.uuid)?;
        let judged = self.judge(newcomer.uuid, newcomer.certificate, self.connections.len());
        (judged == Ok(None)).then(|| self.links.to(row.info.server))?
    }

    fn claim(&mut self, link: ConnectionId, newcomer: &Newcomer<'_>, verdict: Sender<u8>) {
        let Newcomer {
            uuid, certificate, ..
        } = *newcomer;
        let Some(id) = self.links.claims.begin(link, self.now, verdict) else {
            return;
        };
        self.say(
            link,
            &LinkFrame::Claim {
                id,
                uuid,
                certificate: Bytes::copy_from_slice(&certificate.der),
            },
        );
    }

    /// Judges a newcomer of another server, which ends this server's session if it may.
    pub(super) fn claimed(&mut self, uuid: Uuid, certificate: &Bytes) -> u8 {
        let session = self.sessions.id_of(uuid).and_then(|id| self.sessions.get(id));
        let Some(session) = session else { return 0 };
        let Ok(certificate) = CertificateInfo::from_der(&CertificateDer::from(&certificate[..])) else {
            return u8::MAX;
        };
        let newcomer = Candidate {
            uuid,
            bound: certificate.uuid,
        };
        // The other server looks at its own limits.
        let standing = Standing {
            server: self.environment.uuid,
            stopping: false,
            maximum: usize::MAX - 1,
            sessions: 0,
            of_certificate: 0,
            banned: self.bans.left(uuid, self.now),
            holder: Some(Holder::new(
                session.info.id,
                &session.info.certificate,
                &certificate,
            )),
        };
        match self.admission.judge(newcomer, &standing) {
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

/// The refusal that the verdict of another server means. `None` if the newcomer may have the
/// UUID.
pub(in crate::server) fn refusal(verdict: u8, uuid: Uuid) -> Option<Refusal> {
    Some(match verdict {
        0 => return None,
        1 => Refusal::UuidInUse(uuid),
        2 => Refusal::UuidOwned(uuid),
        3 => Refusal::OtherAuthority(uuid),
        _ => Refusal::Busy("the server that has its session does not give it up"),
    })
}

impl ServerCore {
    /// Asks the server that has a session of this newcomer to give it up. `verdict` is dropped if
    /// nobody has to be asked, or if there will be no answer.
    pub(in crate::server) fn claim(
        &mut self,
        now: Instant,
        actions: &mut Vec<Action>,
        newcomer: &Newcomer<'_>,
        verdict: Sender<u8>,
    ) {
        self.at(now, actions, |core| {
            // A session elsewhere must not end for a newcomer that is refused here in any case,
            // by this server's rules or by the application.
            if let Some(link) = core.state.holder(newcomer)
                && core.consent(newcomer).is_ok()
            {
                core.state.claim(link, newcomer, verdict);
            }
        });
    }
}
