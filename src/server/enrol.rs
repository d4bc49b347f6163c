//! Decides which nodes get certificates: [`Enrolment`], the owner of the issuer, of the store, and of the places of
//! the nodes that join at present. `joining` has the threads that ask it.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ssntp_pki::{
    CertificateInfo, Enrolled, EnrolmentRecords, Issuer, JoinRefusal, JoinRequest, SigningRequest, Trust,
};
use ssntp_transport::{locked, setters};

/// The maximum number of nodes that join at a time.
const AT_A_TIME: usize = 64;
/// The maximum number of those that have the same address.
const OF_ADDRESS: usize = 16;
/// The number of nodes that join at a time above which a wrong proof does not wait, so that other nodes find a place.
const MANY: usize = AT_A_TIME / 2;

/// Where a server keeps the records of the nodes that join. Several servers may share one.
///
/// # Threads
/// Several threads call it at once, and no dispatcher does. It may block; a second or so, because a node waits.
pub trait EnrolmentStore: Send + Sync {
    /// Calls `change` with the records. If that succeeds, stores them in one step, and returns its certificate. `change`
    /// may be called again with other records, if another server has changed them meanwhile. If a node joins, `token`
    /// is the id of its token: a store that several servers share may wait until its records have that.
    ///
    /// # Errors
    /// The error of `change`, and nothing is stored; [`JoinRefusal::Busy`]; [`JoinRefusal::Unavailable`] if the records
    /// cannot be stored, or it is not known whether they are.
    fn update(
        &self,
        token: Option<&str>,
        change: &mut dyn FnMut(&mut EnrolmentRecords) -> Result<Enrolled, JoinRefusal>,
    ) -> Result<Enrolled, JoinRefusal>;
}

/// Lets nodes join with tokens, and renews their certificates over their sessions: see
/// [`ServerConfig::enrol`](super::ServerConfig::enrol).
pub struct Enrolment {
    /// Replaced by [`Server::renew_issuer`](super::Server::renew_issuer).
    issuer: Mutex<Arc<Issuer>>,
    store: Box<dyn EnrolmentStore>,
    lifetime: Duration,
    /// The hosts of the nodes that join at present.
    places: Mutex<Vec<Option<IpAddr>>>,
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
        let mut hosts = locked(places);
        let of_host = hosts.iter().filter(|other| **other == host).count();
        (hosts.len() < AT_A_TIME && of_host < OF_ADDRESS).then(|| hosts.push(host))?;
        Some(Place { places, host })
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
        self.store.update(Some(&request.id), &mut |records| {
            records.join(request, signing, issuing)
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
        let signing = SigningRequest::from_pem(&String::from_utf8_lossy(request))?;
        let (issuer, authority) = (self.issuer(), trust.authority_of(before));
        if authority.is_some() && authority != trust.authority_of(issuer.info()) {
            let why = "another authority than the issuer's has issued the certificate";
            return Err(JoinRefusal::NotRenewable(why.to_owned()));
        }
        let issuing = (&*issuer, self.lifetime, now);
        self.store.update(None, &mut |records| {
            records.renew(before, authority.is_none(), &signing, issuing)
        })
    }
}

/// One of the nodes that join at present, by its host.
pub(super) struct Place<'a> {
    places: &'a Mutex<Vec<Option<IpAddr>>>,
    host: Option<IpAddr>,
}

impl Place<'_> {
    /// False if so many nodes join that a wrong proof has to make room for others.
    pub(super) fn may_wait(&self) -> bool {
        locked(self.places).len() <= MANY
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut hosts = locked(self.places);
        let own = hosts.iter().position(|host| *host == self.host);
        own.map(|own| hosts.swap_remove(own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{Testkit, Tokens};

    #[test]
    fn wrong_proofs_wait_in_at_most_half_of_the_places_and_an_address_has_its_share() {
        let enrolment = Testkit::new().unwrap().enrolment(&Tokens::default()).unwrap();
        let host = |last: u8| Some(IpAddr::from([192, 0, 2, last]));
        let mut places: Vec<_> = (0..64).map(|n| enrolment.place(host(n / 16)).unwrap()).collect();
        assert!(enrolment.place(host(9)).is_none());
        assert!(!places[0].may_wait());
        places.truncate(33);
        assert!(!places[0].may_wait());
        places.truncate(32);
        assert!(places[0].may_wait());
        let other: Vec<_> = (0..17).map_while(|_| enrolment.place(host(9))).collect();
        assert_eq!(other.len(), 16);
        assert!(enrolment.place(host(0)).is_none());
        drop((places, other));
        assert!(enrolment.place(host(0)).is_some_and(|place| place.may_wait()));
    }
}
