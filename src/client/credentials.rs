//! What a client shows and whom it trusts, both replaced while it runs.
//!
//! ```text
//!  renew() ─▶ newest ── the supervisor is woken ──▶ each later attempt
//!                                                    │ refused, and `proven` is
//!                                                    │ valid still
//!             proven ◀── a session stands ───────────┴▶ the same with `proven`
//! ```
//!
//! An authority is replaced on all hosts of a cluster, but not at one moment. So
//! a client whose new certificate a server does not take goes back to the one
//! that its last session had, for as long as that is valid. It never goes back
//! to an older trust: an authority may be gone from it because nobody is to
//! believe it any more.

use std::time::{Duration, Instant, SystemTime};

use super::core::At;
use super::{ClientError, DialFault};
use ssntp_transport::pki::{Identity, Trust};
use ssntp_transport::tls::{Connector, TlsError};

/// How long before the end of its certificate a session is replaced at the
/// latest: an attempt may take 20 s, and one back to the old certificate follows.
const MARGIN: Duration = Duration::from_secs(30);

/// How long a session goes on at least with an old certificate after the new one
/// was refused, and at most. In between it is half of the time that is left.
const AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(86_400));
/// At most where the server refused the client for now (ConnectionFailure), as it does
/// while it is being renewed itself.
const AGAIN_SOON: Duration = Duration::from_secs(60);

/// What one handshake needs.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    pub(super) identity: Identity,
    trust: Trust,
    pub(super) connector: Connector,
}

impl Credentials {
    pub(super) fn new(identity: &Identity, trust: &Trust, resumption: bool) -> Result<Self, ClientError> {
        let failed = |e: TlsError| ClientError::Tls(std::sync::Arc::new(e));
        let connector = Connector::mutual(identity, trust).map_err(failed)?;
        Ok(Self {
            identity: identity.clone(),
            trust: trust.clone(),
            connector: connector.resumption(resumption),
        })
    }

    /// Those with an older identity, where a fault may be that of the newer one
    /// and the older one may do.
    pub(super) fn older(
        &self,
        proven: Option<&Identity>,
        fault: &DialFault,
        wall: SystemTime,
    ) -> Option<Self> {
        let older = proven.filter(|older| !self.has(older) && older.info().check_validity(wall).is_ok())?;
        let at_fault = fault.may_be_of_identity();
        at_fault
            .then(|| Self::new(older, &self.trust, false).ok())
            .flatten()
    }

    /// Whether these show the same certificates.
    pub(super) fn has(&self, identity: &Identity) -> bool {
        self.identity.chain() == identity.chain()
    }
}

/// When a session that began with an older identity is to be replaced: at random
/// within `spread`, and before the older certificate ends.
pub(super) fn moment(older: &Identity, spread: Duration, at: At) -> Instant {
    at.now + spread.min(left(older, at)).mul_f64(at.share)
}

/// When to try again after the newer identity was refused.
pub(super) fn moment_after_refusal(older: &Identity, for_now: bool, at: At) -> Instant {
    let (least, most) = match for_now {
        true => (AGAIN.0, AGAIN_SOON),
        false => AGAIN,
    };
    at.now
        + (left(older, at) / 2)
            .clamp(least, most)
            .mul_f64(0.5 + at.share / 2.0)
}

fn left(identity: &Identity, at: At) -> Duration {
    let left = identity.info().not_after.duration_since(at.wall);
    left.unwrap_or_default().saturating_sub(MARGIN)
}
