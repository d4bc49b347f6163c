//! Decides which nodes get certificates: [`Enrolment`], the owner of the issuer, of the store, and of the places of
//! the nodes that join at present. `joining` has the threads that ask it.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ssntp_pki::{
    CertificateInfo, Enrolled, Issuer, JoinRefusal, JoinRequest, SigningRequest, StoredToken, Trust,
};
use ssntp_transport::{locked, setters};

/// The maximum number of nodes that join at a time.
const AT_A_TIME: usize = 64;
/// The maximum number of those that have the same address.
const OF_ADDRESS: usize = 16;
/// The maximum number of wrong proofs that wait at a time; the other places are for other nodes.
const WAITING: usize = AT_A_TIME / 2;

/// Decides about a join with the stored token, and with the certificate that the same key has got for it before.
pub type Redeem<'a> = dyn FnMut(&mut StoredToken, Option<&Enrolled>) -> Result<Enrolled, JoinRefusal> + 'a;

/// Where a server keeps tokens and the certificates of nodes. Several servers may share one.
///
/// # Threads
/// Several threads call it at once, and no dispatcher does. It may block; a second or so, because a node waits.
pub trait EnrolmentStore: Send + Sync {
    /// Calls `redeem` with the token `id`, and with the certificate that was issued for it to the same `key`
    /// ([`Enrolled::token`], [`Enrolled::key`]), if there is one. If that succeeds, stores the changed token and the
    /// certificate in one step, and returns the certificate. `redeem` may be called again with other values,
    /// if another server has changed them meanwhile.
    ///
    /// # Errors
    /// [`JoinRefusal::Proof`] if there is no such token; the error of `redeem`, and nothing is stored;
    /// [`JoinRefusal::Unavailable`] if it is not known whether both are stored.
    fn join(&self, id: &str, key: &str, redeem: &mut Redeem<'_>) -> Result<Enrolled, JoinRefusal>;

    /// Stores the certificate that follows `before`, before the node gets it, and returns it. If the node lost an
    /// answer, returns the one that [repeats](Enrolled::repeats) it, and stores nothing. The certificate `before` stays
    /// valid until its end. If it is `of_issuer`, and not of the authority itself, it has to be
    /// [stored](Enrolled::is_of): whoever steals an issuer signs what no store has.
    ///
    /// # Errors
    /// [`JoinRefusal::NotRenewable`], for example if `before` is to be revoked, or is not stored;
    /// [`JoinRefusal::Unavailable`].
    fn renew(
        &self,
        before: &CertificateInfo,
        of_issuer: bool,
        renewed: &Enrolled,
    ) -> Result<Enrolled, JoinRefusal>;
}

/// Lets nodes join with tokens, and renews their certificates over their sessions: see
/// [`ServerConfig::enrol`](super::ServerConfig::enrol).
pub struct Enrolment {
    /// Replaced by [`Server::renew_issuer`](super::Server::renew_issuer).
    issuer: Mutex<Arc<Issuer>>,
    store: Box<dyn EnrolmentStore>,
    lifetime: Duration,
    places: Mutex<Places>,
}

impl fmt::Debug for Enrolment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Enrolment({:?})", self.issuer())
    }
}

impl Enrolment {
    /// Issues the certificates of nodes with this issuer. At most 64 nodes join at a time, and 16 from one
    /// address; further ones are told to try again. They have a slot of
    /// [`max_handshakes`](super::ServerConfig::max_handshakes) only until their request has been received.
    pub fn new(issuer: Issuer, store: impl EnrolmentStore + 'static) -> Self {
        Self {
            issuer: Mutex::new(Arc::new(issuer)),
            store: Box::new(store),
            lifetime: Duration::from_secs(30 * 86_400),
            places: Mutex::default(),
        }
    }

    setters! {
        /// The lifetime of the certificates. Default: 30 days.
        lifetime: Duration;
    }

    pub(super) fn issuer(&self) -> Arc<Issuer> {
        Arc::clone(&locked(&self.issuer))
    }

    /// Issues further certificates with this issuer.
    pub(super) fn set_issuer(&self, issuer: Issuer) {
        *locked(&self.issuer) = Arc::new(issuer);
    }

    /// A place among the nodes that join at present; `None` if too many do.
    pub(super) fn place(&self, host: Option<IpAddr>) -> Option<Place<'_>> {
        let places = &self.places;
        let hosts = &mut locked(places).hosts;
        let of_host = hosts.iter().filter(|other| **other == host).count();
        (hosts.len() < AT_A_TIME && of_host < OF_ADDRESS).then(|| hosts.push(host))?;
        let waits = false;
        Some(Place { places, host, waits })
    }

    /// Decides about a request.
    pub(super) fn join(
        &self,
        request: &JoinRequest,
        signing: &SigningRequest,
        now: SystemTime,
    ) -> Result<Enrolled, JoinRefusal> {
        let issuer = self.issuer();
        let issuing = (&*issuer, self.lifetime, now);
        self.store
            .join(&request.id, signing.digest(), &mut |token, before| {
                token.redeem(request, signing, before, issuing)
            })
    }

    /// Issues the certificate that follows `before` for the key of a signing request. Of those that an authority has
    /// signed itself, only the certificates of the issuer's authority are renewed: another trusted one may be
    /// trusted for less time.
    pub(super) fn renew(
        &self,
        before: &CertificateInfo,
        request: &[u8],
        trust: &Trust,
        now: SystemTime,
    ) -> Result<Enrolled, JoinRefusal> {
        let refused = |why: &str| Err(JoinRefusal::NotRenewable(why.to_owned()));
        let Some(uuid) = before.uuid else {
            return refused("a certificate that is bound to no UUID is not renewed over a session");
        };
        let left = before.not_after.duration_since(now).unwrap_or_default();
        let life = before
            .not_after
            .duration_since(before.not_before)
            .unwrap_or_default();
        if left > life / 2 {
            return refused("the certificate is valid for more than half of its life");
        }
        let signing = SigningRequest::from_pem(&String::from_utf8_lossy(request))?;
        let (issuer, authority) = (self.issuer(), trust.authority_of(before));
        if authority.is_some() && authority != trust.authority_of(issuer.info()) {
            return refused("another authority than the issuer's has issued the certificate");
        }
        let renewed = issuer.issue(&signing, before.roles, uuid, self.lifetime)?;
        self.store.renew(before, authority.is_none(), &renewed)
    }
}

/// The nodes that join at present.
#[derive(Default)]
struct Places {
    hosts: Vec<Option<IpAddr>>,
    /// The number of those that wait after a wrong proof.
    waiting: usize,
}

/// One of the nodes that join at present, by its host.
pub(super) struct Place<'a> {
    places: &'a Mutex<Places>,
    host: Option<IpAddr>,
    waits: bool,
}

impl Place<'_> {
    /// Keeps the place while a wrong proof waits. False if so many do that it has to make room for others.
    pub(super) fn keep_waiting(&mut self) -> bool {
        let waiting = &mut locked(self.places).waiting;
        self.waits = *waiting < WAITING;
        *waiting += usize::from(self.waits);
        self.waits
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut places = locked(self.places);
        places.waiting -= usize::from(self.waits);
        let own = places.hosts.iter().position(|host| *host == self.host);
        own.map(|own| places.hosts.swap_remove(own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{Testkit, Tokens};

    #[test]
    fn wrong_proofs_that_wait_have_at_most_half_of_the_places_and_an_address_has_its_share() {
        let enrolment = Testkit::new().unwrap().enrolment(&Tokens::default()).unwrap();
        let host = |last: u8| Some(IpAddr::from([192, 0, 2, last]));
        let mut places: Vec<_> = (0..64).map(|n| enrolment.place(host(n / 16)).unwrap()).collect();
        assert!(enrolment.place(host(9)).is_none());
        let waiting = places
            .iter_mut()
            .filter_map(|place| place.keep_waiting().then_some(()));
        assert_eq!(waiting.count(), 32);
        // Those that may not wait leave.
        places.truncate(32);
        let other: Vec<_> = (0..17).map_while(|_| enrolment.place(host(9))).collect();
        assert_eq!(other.len(), 16);
        assert!(enrolment.place(host(0)).is_none());
        drop((places, other));
        assert!(
            enrolment
                .place(host(0))
                .is_some_and(|mut place| place.keep_waiting())
        );
    }
}
