//! The check of all sessions when the credentials of a server are replaced.
//!
//! ```text
//!  renew ─▶ ActiveCredentials, a new generation ─▶ every handshake that begins from now on
//!    │                                              │ at CONNECT: is it still the newest?
//!    └─▶ verify_sessions                            └─ no: the chain is verified again
//! ```
//!
//! No client slips through between the two, because the new generation is in force before the
//! dispatcher lists the sessions. A client that was admitted before is in the list. A client that is
//! admitted later was verified by the new generation, at TLS or again at CONNECT: the dispatcher refuses
//! clients of an earlier generation.

use std::borrow::Borrow;
use std::time::SystemTime;

use log::warn;

use super::disconnect::DisconnectReason;
use super::handle::ServerHandle;
use ssntp_pki::CertificateInfo;

/// The result of [`Server::renew`](super::Server::renew).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenewalReport {
    /// The number of sessions and links that were checked.
    pub sessions: usize,
    /// The number of these that were ended, because their certificates are no longer valid.
    pub ended: usize,
}

/// Verifies the certificates of all sessions and links, and ends those whose certificate is no longer
/// valid. Each certificate is verified once, on this thread; the dispatcher only lists and ends the
/// sessions.
pub(super) fn verify_sessions(handle: &ServerHandle, now: SystemTime) -> RenewalReport {
    let generation = handle.environment.active().generation();
    let sessions = handle.with(move |cx| cx.state.begin_generation(generation));
    // A server that has stopped has no sessions.
    let mut sessions = sessions.unwrap_or_default();
    let mut renewed = RenewalReport {
        sessions: sessions.len(),
        ended: 0,
    };
    // Grouped by certificate, so that each one is verified once.
    sessions.sort_by(|one, other| Borrow::<[u8]>::borrow(&one.0).cmp(other.0.borrow()));
    // If another thread has renewed meanwhile, the latest credentials decide.
    let active = handle.environment.active();
    for sessions in sessions.chunk_by(|one, other| one.0 == other.0) {
        let chain = sessions.first().map(|(certificate, _)| certificate.chain());
        let chain = chain.unwrap_or_default();
        if let Some(Ok(leaf)) = chain.first().map(CertificateInfo::from_der)
            && let Some(why) = active.objection(&chain, &leaf, now)
        {
            let invalid: Vec<_> = sessions.iter().map(|(_, id)| *id).collect();
            let ended = handle.with(move |cx| {
                let reason = || DisconnectReason::Certificate(why.clone());
                let ended = invalid.into_iter().map(|id| cx.state.dismiss(id, reason()));
                ended.filter(|ended| *ended).count()
            });
            renewed.ended += ended.unwrap_or_default();
        }
    }
    if renewed.ended > 0 {
        warn!(target: "ssntp::server",
            "{} of {} sessions ended: their certificates are no longer valid", renewed.ended, renewed.sessions
        );
    }
    renewed
}
