//! The identity and the trust of a client, which [`renew`](super::ClientHandle::renew) replaces.
//!
//! ```text
//!  renew() ─▶ newest ── the client's thread is woken ──▶ each later attempt
//!                                                    │ refused, and `proven` is
//!                                                    │ valid still
//!             proven ◀── a session begins ───────────┴▶ a second one with `proven`
//! ```
//!
//! An authority is replaced on all hosts of a cluster, but not at the same moment. So if a server
//! refuses a client's new certificate, the client uses the certificate of its last session again,
//! as long as it is valid. The client never goes back to an older trust: an authority may have
//! been removed from it because it must not be trusted any more.

use std::time::{Duration, Instant, SystemTime};

use super::error::{ClientError, DialFault};
use super::time::At;
use ssntp_pki::{Identity, Trust};
use ssntp_transport::tls::{Connector, TlsError};

/// A session is replaced at least this long before its certificate expires: an attempt may take
/// 20 s, and a second attempt with the old certificate may follow.
const MARGIN: Duration = Duration::from_secs(30);

/// After a server has refused the new certificate, the client tries it again in half of the time
/// that is left to the old one, but not earlier than the first of these times and not later than
/// the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(86_400));
/// The upper bound if the server refused the client only for now (ConnectionFailure), as a server
/// does whose own certificate is being renewed.
const RETRY_SOON: Duration = Duration::from_secs(60);

/// Identity, trust, and the TLS connector made of both.
#[derive(Clone, Debug)]
pub(super) struct ClientCredentials {
    pub(super) identity: Identity,
    pub(super) trust: Trust,
    pub(super) connector: Connector,
}

impl ClientCredentials {
    pub(super) fn new(identity: &Identity, trust: &Trust, resumption: bool) -> Result<Self, ClientError> {
        let failed = |e: TlsError| ClientError::Tls(std::sync::Arc::new(e));
        let connector = trust.connector(identity).map_err(failed)?;
        Ok(Self {
            identity: identity.clone(),
            trust: trust.clone(),
            connector: connector.resumption(resumption),
        })
    }

    /// The same trust with the identity `proven` of the last session. `None` if that identity is
    /// not another one, if it has expired, or if `fault` has nothing to do with the identity.
    pub(super) fn older(
        &self,
        proven: Option<&Identity>,
        fault: &DialFault,
        wall: SystemTime,
    ) -> Option<Self> {
        let is_usable = |older: &&Identity| !self.has(older) && older.info().check_validity(wall).is_ok();
        let older = proven.filter(is_usable).filter(|_| fault.may_be_of_identity())?;
        // The connector is used for one attempt, so TLS tickets would be lost with it.
        Self::new(older, &self.trust, false).ok()
    }

    /// True if `identity` has the same certificates.
    pub(super) fn has(&self, identity: &Identity) -> bool {
        self.identity.chain() == identity.chain()
    }
}

/// The time at which a session with an older identity is replaced: at random within `spread`, and
/// before the older certificate expires.
pub(super) fn replacement_time(older: &Identity, spread: Duration, at: At) -> Instant {
    at.now + spread.min(left(older, at)).mul_f64(at.share)
}

/// The time of the next attempt with the newer identity after a server has refused it.
pub(super) fn retry_time(older: &Identity, for_now: bool, at: At) -> Instant {
    let (least, most) = if for_now { (RETRY.0, RETRY_SOON) } else { RETRY };
    at.now
        + (left(older, at) / 2)
            .clamp(least, most)
            .mul_f64(0.5 + at.share / 2.0)
}

/// The time until [`MARGIN`] before the certificate expires.
fn left(identity: &Identity, at: At) -> Duration {
    let left = identity.info().not_after.duration_since(at.wall);
    left.unwrap_or_default().saturating_sub(MARGIN)
}
