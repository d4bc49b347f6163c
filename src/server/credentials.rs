//! What a server proves and whom it trusts, and what becomes of sessions when that
//! changes.
//!
//! ```text
//!  renew ─▶ InForce, a new generation ─▶ every handshake that begins now
//!    │                                      │ at admission: is it still in force?
//!    └─▶ Look: sessions that stand          └─ no: the chain is verified again
//! ```
//!
//! No client slips through between the two: a generation is in force before the look
//! asks for the sessions. Who was admitted before that is among them; who comes later was
//! verified by this generation, or is verified again on its handshake's thread; and
//! the dispatcher admits no client by an earlier one.

use std::borrow::Borrow;
use std::time::SystemTime;

use log::warn;

use super::{DisconnectReason, ServerHandle};
use ssntp_transport::pki::{CertificateDer, CertificateInfo, Identity, Trust};
use ssntp_transport::tls::Acceptor;

/// What a server proves and whom it trusts at present.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Credentials {
    /// Its own certificate, see [`Identity::info`].
    pub identity: Identity,
    /// Whom it trusts: the authorities and their revocation lists.
    pub trust: Trust,
    /// How often both have been replaced since the server started.
    pub renewals: u64,
}

/// What [`Server::renew`](super::Server::renew) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewed {
    /// Sessions that stood and were looked at.
    pub sessions: usize,
    /// Those of them that were ended, since their certificates count no longer.
    pub ended: usize,
}

/// Credentials that handshakes are made with.
#[derive(Debug)]
pub(super) struct InForce {
    pub(super) acceptor: Acceptor,
    pub(super) credentials: Credentials,
    /// Whether sessions outlive their certificates.
    pub(super) outlive: bool,
}

impl InForce {
    pub(super) fn generation(&self) -> u64 {
        self.credentials.renewals
    }

    /// Why a client with these certificates would not be let in any more; `leaf` is
    /// its own. That it is not valid *yet* ends no session: then this host's clock
    /// has been set back, or has yet to be set.
    pub(super) fn objection(
        &self,
        chain: &[CertificateDer<'_>],
        leaf: &CertificateInfo,
        now: SystemTime,
    ) -> Option<String> {
        let at = now.max(leaf.not_before);
        let at = if self.outlive { at.min(leaf.not_after) } else { at };
        self.acceptor.objection(chain, at)
    }
}

/// How many certificates are verified before the sessions of those that count no
/// longer are ended.
const AT_A_TIME: usize = 64;

/// Looks at all sessions that stand, and ends those whose certificates count no
/// longer. Verifies each certificate once, on this thread: the dispatcher only says
/// who stands, and ends whom it is told to.
pub(super) fn look(handle: &ServerHandle, now: SystemTime) -> Renewed {
    let generation = handle.environment.in_force().generation();
    let standing = handle.with(move |cx| {
        cx.state.generation = cx.state.generation.max(generation);
        let sessions = cx.state.sessions.iter();
        let sessions = sessions.map(|session| (session.info.certificate.clone(), session.info.id));
        let links = cx.state.links.table.iter();
        let links = links.map(|(id, link)| (link.certificate.clone(), id.into()));
        sessions.chain(links).collect::<Vec<_>>()
    });
    // A server that has stopped has none.
    let mut standing = standing.unwrap_or_default();
    let mut renewed = Renewed {
        sessions: standing.len(),
        ended: 0,
    };
    standing.sort_by(|one, other| Borrow::<[u8]>::borrow(&one.0).cmp(other.0.borrow()));
    let of_one: Vec<_> = standing.chunk_by(|one, other| one.0 == other.0).collect();
    // Where somebody else has renewed meanwhile, the latest decides.
    let in_force = handle.environment.in_force();
    for some in of_one.chunks(AT_A_TIME) {
        let mut over = Vec::new();
        for sessions in some {
            let chain = sessions.first().map(|(certificate, _)| certificate.chain());
            let chain = chain.unwrap_or_default();
            if let Some(Ok(leaf)) = chain.first().map(CertificateInfo::from_der)
                && let Some(why) = in_force.objection(&chain, &leaf, now)
            {
                over.extend(sessions.iter().map(|(_, id)| (*id, why.clone())));
            }
        }
        if over.is_empty() {
            continue;
        }
        let ended = handle.with(move |cx| {
            let over = over.into_iter();
            let ended = over.map(|(id, why)| cx.state.dismiss(id, DisconnectReason::Certificate(why)));
            ended.filter(|ended| *ended).count()
        });
        renewed.ended += ended.unwrap_or_default();
    }
    if renewed.ended > 0 {
        warn!(target: "ssntp::server",
            "{} of {} sessions ended: their certificates count no longer", renewed.ended, renewed.sessions
        );
    }
    renewed
}
