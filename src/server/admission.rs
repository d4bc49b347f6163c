//! Admission: the policy, and the judgement of one newcomer.
//!
//! ```text
//!  Candidate: the newcomer ──┐
//!  Standing: who is there ───┼─▶ AdmissionPolicy::judge ─▶ Ok(whom it replaces) or Refusal
//!  AdmissionPolicy ──────────┘
//! ```
//!
//! The judgement is a pure function of the newcomer and of what it finds. The first
//! row that applies decides:
//!
//! | the newcomer | verdict |
//! |---|---|
//! | the server is shutting down | ConnectionFailure |
//! | its UUID is the server's own | ConnectionAborted |
//! | its certificate is bound to another UUID | ConnectionAborted |
//! | its certificate is bound to none, and has to be | ConnectionAborted |
//! | an operator has banned its UUID, and the ban lasts | ConnectionFailure |
//! | its UUID is connected with the same certificate | it takes over |
//! | … its certificate is bound to the UUID, the old one is not | it takes over |
//! | … both are bound to the UUID, by the same authority | it takes over |
//! | … both are bound to the UUID, by different authorities | ConnectionFailure |
//! | … the old certificate is bound to the UUID, its own is not | ConnectionFailure |
//! | … neither is bound | ConnectionFailure |
//! | the server has as many sessions as it may | ConnectionFailure |
//! | its certificate has as many sessions as one may | ConnectionFailure |
//!
//! A session counts from its admission until its threads are joined, and
//! [`Certificates`](super::certificates::Certificates) counts those of each certificate. A
//! newcomer that takes a session over may have its
//! place at once, although the old session's threads end a moment later. So
//! there is one session at most beyond each limit, and only while it ends.

use std::time::Duration;

use uuid::Uuid;

use super::sessions::SessionId;
use crate::proto::Refusal;
use ssntp_transport::pki::{CertificateInfo, KeptCertificate};

/// Whom a server admits, beyond what the protocol demands.
///
/// ```
/// use ssntp::server::AdmissionPolicy;
///
/// let policy = AdmissionPolicy::default().require_bound_uuid(true).sessions_per_certificate(1);
/// assert!(policy.require_bound_uuid);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdmissionPolicy {
    /// Whether a client's certificate has to be bound to its UUID, by a
    /// `urn:uuid:` SAN. One that is not gets ConnectionAborted. Without this, the holder of
    /// any certificate with the role can act as an entity that is away, even if that entity
    /// has a bound certificate. Default: false.
    pub require_bound_uuid: bool,
    /// The most sessions of one certificate; further ones get
    /// ConnectionFailure. At least 1, and a number beyond the default has no
    /// effect: one certificate never takes every place. A certificate that is
    /// bound to a UUID has one session at a time in any case, and one more place for
    /// the session before it while that ends.
    /// Default: three quarters of the server's maximum, and 1 where that is
    /// less.
    pub sessions_per_certificate: Option<usize>,
}

impl AdmissionPolicy {
    /// Sets whether a client's certificate has to be bound to its UUID.
    #[must_use]
    pub fn require_bound_uuid(mut self, required: bool) -> Self {
        self.require_bound_uuid = required;
        self
    }

    /// Sets the most sessions of one certificate.
    #[must_use]
    pub fn sessions_per_certificate(mut self, sessions: usize) -> Self {
        self.sessions_per_certificate = Some(sessions);
        self
    }

    /// Decides about one newcomer: where it is admitted, which session it takes
    /// over, which is to end first.
    ///
    /// # Errors
    /// The [`Refusal`] of the first row of the table that applies.
    pub(super) fn judge(
        &self,
        newcomer: Candidate,
        standing: &Standing,
    ) -> Result<Option<SessionId>, Refusal> {
        let uuid = newcomer.uuid;
        // First, because the rows below tell some clients to stay away for good, and they are to
        // come back to the server that is started next.
        if standing.stopping {
            return Err(Refusal::Busy("the server is shutting down"));
        }
        if uuid == standing.server {
            return Err(Refusal::OwnUuid(uuid));
        }
        match newcomer.bound {
            // The handshake has looked at this already; the rows below rely on it.
            Some(bound) if bound != uuid => return Err(Refusal::BorrowedUuid { claimed: uuid, bound }),
            None if self.require_bound_uuid => return Err(Refusal::UnboundCertificate),
            _ => {}
        }
        // A ban is of a UUID, so it comes after the rows that decide whose the UUID is.
        if let Some(left) = standing.banned {
            return Err(Refusal::Banned(left));
        }
        if let Some(holder) = &standing.holder {
            match (holder.likeness, newcomer.bound.is_some(), holder.bound) {
                (Likeness::Same, ..) | (_, true, false) | (Likeness::SameAuthority, true, true) => {}
                (Likeness::Different, true, true) => return Err(Refusal::OtherAuthority(uuid)),
                // Otherwise any certificate with the role could end the session of the owner.
                (_, false, true) => return Err(Refusal::UuidOwned(uuid)),
                (_, false, false) => return Err(Refusal::UuidInUse(uuid)),
            }
        }
        // The session that is taken over gives its place up, though its threads end later.
        let freed = usize::from(standing.holder.is_some());
        if standing.sessions >= standing.maximum.saturating_add(freed) {
            return Err(Refusal::SessionLimit(standing.maximum));
        }
        let same = standing.holder.as_ref().map(|holder| holder.likeness) == Some(Likeness::Same);
        let (share, beyond) = match newcomer.bound {
            // One for the session, and one for the one before it, which still ends.
            Some(_) => (1, 1),
            None => (self.share(standing.maximum), usize::from(same)),
        };
        if standing.of_certificate >= share + beyond {
            return Err(Refusal::CertificateLimit(share));
        }
        Ok(standing.holder.as_ref().map(|holder| holder.id))
    }

    /// How many of `maximum` sessions one certificate may have.
    pub(super) fn share(&self, maximum: usize) -> usize {
        // A quarter remains for others, whatever one certificate does that has leaked.
        let most = maximum - maximum.div_ceil(4);
        self.sessions_per_certificate
            .map_or(most, |sessions| sessions.min(most))
            .max(1)
    }
}

/// Who asks to be admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The UUID of its CONNECT.
    pub(super) uuid: Uuid,
    /// The UUID that its certificate is bound to.
    pub(super) bound: Option<Uuid>,
}

/// What the newcomer finds.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    /// The server's own UUID.
    pub(super) server: Uuid,
    pub(super) stopping: bool,
    pub(super) maximum: usize,
    /// Sessions, those included whose threads still end.
    pub(super) sessions: usize,
    /// Those of them that have the newcomer's certificate.
    pub(super) of_certificate: usize,
    /// For how long the newcomer is kept out still.
    pub(super) banned: Option<Duration>,
    /// The session that has the newcomer's UUID.
    pub(super) holder: Option<Holder>,
}

/// The session that has the UUID which a newcomer asks for.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) id: SessionId,
    /// Whether its certificate is bound to the UUID.
    pub(super) bound: bool,
    pub(super) likeness: Likeness,
}

impl Holder {
    /// The session `id` with its certificate, beside the newcomer's.
    pub(super) fn new(id: SessionId, old: &KeptCertificate, new: &CertificateInfo) -> Self {
        let likeness = if old.is(new) {
            Likeness::Same
        } else if old.info().has_same_issuer(new) {
            Likeness::SameAuthority
        } else {
            Likeness::Different
        };
        Self {
            id,
            bound: match likeness {
                Likeness::Same => new.uuid.is_some(),
                _ => old.info().uuid.is_some(),
            },
            likeness,
        }
    }
}

/// How the certificates of a session and of a newcomer are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Likeness {
    /// They are the same one.
    Same,
    /// Two of the same authority.
    SameAuthority,
    /// Two of different authorities.
    Different,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Likeness::{Different, Same, SameAuthority};
    use super::*;
    use crate::Role;
    use crate::server::certificates::Certificates;
    use ssntp_transport::ConnectionId;
    use ssntp_transport::pki::{Authority, AuthorityRequest, CertificateDer, CertificateRequest};

    const SERVER: Uuid = Uuid::from_u128(1);
    const CLIENT: Uuid = Uuid::from_u128(2);
    const OTHER: Uuid = Uuid::from_u128(3);
    const OLD: SessionId = SessionId(ConnectionId(7));

    const FRESH: Result<Option<SessionId>, Refusal> = Ok(None);
    const TAKES_OVER: Result<Option<SessionId>, Refusal> = Ok(Some(OLD));

    fn candidate(bound: bool) -> Candidate {
        Candidate {
            uuid: CLIENT,
            bound: bound.then_some(CLIENT),
        }
    }

    /// A server with room and without sessions.
    fn empty() -> Standing {
        Standing {
            server: SERVER,
            stopping: false,
            maximum: 8,
            sessions: 0,
            of_certificate: 0,
            banned: None,
            holder: None,
        }
    }

    /// The newcomer's UUID is connected.
    fn held(likeness: Likeness, bound: bool) -> Standing {
        Standing {
            sessions: 1,
            of_certificate: usize::from(likeness == Same),
            holder: Some(Holder {
                id: OLD,
                bound,
                likeness,
            }),
            ..empty()
        }
    }

    #[test]
    fn every_pair_of_certificates_for_one_uuid_has_its_row() {
        let in_use = Err(Refusal::UuidInUse(CLIENT));
        let owned = Err(Refusal::UuidOwned(CLIENT));
        let other = Err(Refusal::OtherAuthority(CLIENT));
        // The columns: whether the newcomer is bound, whether the session that
        // stands is, and how their certificates are related.
        let rows = [
            (false, false, Same, TAKES_OVER),
            (true, true, Same, TAKES_OVER),
            (true, false, SameAuthority, TAKES_OVER),
            (true, false, Different, TAKES_OVER),
            (true, true, SameAuthority, TAKES_OVER),
            (true, true, Different, other),
            (false, true, SameAuthority, owned.clone()),
            (false, true, Different, owned),
            (false, false, SameAuthority, in_use.clone()),
            (false, false, Different, in_use),
        ];
        for (new, old, likeness, expected) in rows {
            let verdict = AdmissionPolicy::default().judge(candidate(new), &held(likeness, old));
            assert_eq!(verdict, expected, "bound: {new}, before: {old}, {likeness:?}");
        }
    }

    #[test]
    fn a_holder_is_compared_by_its_certificate_and_who_issued_it() {
        let [one, other] = [(); 2].map(|()| Authority::new(&AuthorityRequest::default()).unwrap());
        let certificate = |authority: &Authority, bound: bool| {
            let request = CertificateRequest::new(Role::AGENT);
            let request = if bound { request.uuid(CLIENT) } else { request };
            let issued = authority.issue(&request).unwrap();
            CertificateInfo::from_der(&issued.identity().chain()[0]).unwrap()
        };
        let [new, bound] = [false, true].map(|bound| certificate(&one, bound));
        let rows = [
            (&new, &new, Same, false),
            (&bound, &bound, Same, true),
            (&bound, &new, SameAuthority, true),
            (&new, &bound, SameAuthority, false),
            (&certificate(&other, true), &new, Different, true),
        ];
        for (old, new, likeness, is_bound) in rows {
            let holder = Holder::new(OLD, &KeptCertificate::new(old, None), new);
            assert_eq!((holder.likeness, holder.bound), (likeness, is_bound));
        }
    }

    #[test]
    fn a_uuid_that_nobody_has_is_given_to_who_may_have_it() {
        let policy = AdmissionPolicy::default();
        let strict = policy.require_bound_uuid(true);
        let own = Candidate {
            uuid: SERVER,
            bound: None,
        };
        let owner = Candidate {
            bound: Some(SERVER),
            ..own
        };
        let borrowed = Candidate {
            uuid: CLIENT,
            bound: Some(OTHER),
        };
        let own_uuid = Err(Refusal::OwnUuid(SERVER));
        let unbound = Err(Refusal::UnboundCertificate);
        let not_its_own = Err(Refusal::BorrowedUuid {
            claimed: CLIENT,
            bound: OTHER,
        });
        let rows = [
            (policy, candidate(false), FRESH),
            (policy, candidate(true), FRESH),
            (strict, candidate(true), FRESH),
            (strict, candidate(false), unbound),
            (policy, own, own_uuid.clone()),
            (strict, own, own_uuid.clone()),
            (strict, owner, own_uuid),
            (policy, borrowed, not_its_own.clone()),
            (strict, borrowed, not_its_own),
        ];
        for (policy, newcomer, expected) in rows {
            assert_eq!(
                policy.judge(newcomer, &empty()),
                expected,
                "{newcomer:?} {policy:?}"
            );
        }
        // Where certificates have to be bound, one that is not takes nothing
        // over, not even from itself.
        let verdict = strict.judge(candidate(false), &held(Same, false));
        assert_eq!(verdict, Err(Refusal::UnboundCertificate));
    }

    #[test]
    fn a_server_that_stops_admits_nobody() {
        let stopping = |standing| Standing {
            stopping: true,
            ..standing
        };
        for standing in [empty(), held(Same, true), held(Different, false)] {
            let verdict = AdmissionPolicy::default().judge(candidate(true), &stopping(standing));
            let refusal = verdict.unwrap_err();
            assert!(matches!(refusal, Refusal::Busy(_)), "{refusal}");
        }
    }

    #[test]
    fn who_is_banned_may_come_later_unless_it_never_may() {
        let policy = AdmissionPolicy::default();
        let left = Duration::from_secs(60);
        let banned = |standing| Standing {
            banned: Some(left),
            ..standing
        };
        for standing in [empty(), held(Same, true), held(Different, false)] {
            let verdict = policy.judge(candidate(true), &banned(standing));
            assert_eq!(verdict, Err(Refusal::Banned(left)));
        }
        let verdict = policy
            .require_bound_uuid(true)
            .judge(candidate(false), &banned(empty()));
        assert_eq!(verdict, Err(Refusal::UnboundCertificate));
    }

    #[test]
    fn what_a_takeover_frees_counts_as_free() {
        let policy = AdmissionPolicy::default();
        let full = |sessions, of_certificate, standing| Standing {
            sessions,
            of_certificate,
            ..standing
        };
        let limit = Err(Refusal::SessionLimit(8));
        let share = Err(Refusal::CertificateLimit(6));
        let bound_to_it = Err(Refusal::CertificateLimit(1));
        // Whether the newcomer is bound to its UUID.
        let rows = [
            (false, full(7, 5, empty()), FRESH),
            (false, full(8, 0, empty()), limit.clone()),
            (false, full(8, 6, empty()), limit.clone()),
            (false, full(7, 6, empty()), share.clone()),
            (false, full(8, 6, held(Same, false)), TAKES_OVER),
            (false, full(7, 7, held(Same, false)), share),
            (false, full(9, 6, held(Same, false)), limit.clone()),
            // A session and the one before it, which still ends.
            (true, full(7, 1, empty()), FRESH),
            (true, full(7, 2, empty()), bound_to_it.clone()),
            (true, full(8, 1, held(Same, true)), TAKES_OVER),
            (true, full(7, 2, held(Same, true)), bound_to_it.clone()),
            // The session that it replaces belongs to another certificate, so
            // that does not free a place of its own.
            (true, full(8, 1, held(SameAuthority, true)), TAKES_OVER),
            (true, full(8, 2, held(SameAuthority, true)), bound_to_it),
            (true, full(8, 0, held(Different, false)), TAKES_OVER),
            (true, full(9, 0, held(Different, false)), limit),
        ];
        for (bound, standing, expected) in rows {
            assert_eq!(
                policy.judge(candidate(bound), &standing),
                expected,
                "{bound}, {standing:?}"
            );
        }
    }

    #[test]
    fn a_certificate_may_have_three_quarters_and_a_setting_lowers_it() {
        let policy = AdmissionPolicy::default();
        for (maximum, share) in [
            (0, 1),
            (1, 1),
            (2, 1),
            (3, 2),
            (4, 3),
            (5, 3),
            (8, 6),
            (2000, 1500),
        ] {
            assert_eq!(policy.share(maximum), share, "of {maximum}");
        }
        assert_eq!(policy.share(usize::MAX), usize::MAX / 4 * 3 + 2);
        let of_2000 = |sessions| policy.sessions_per_certificate(sessions).share(2000);
        assert_eq!([0, 1, 700, 1999].map(of_2000), [1, 1, 700, 1500]);
    }

    fn certificate(number: usize) -> CertificateInfo {
        CertificateInfo::nothing(&CertificateDer::from(number.to_be_bytes().to_vec()))
    }

    /// Certificates of the model, as what they are bound to and who issued
    /// them. Several of them claim each of two UUIDs.
    const CERTIFICATES: [(Option<u128>, u8); 8] = [
        (None, 0),
        (None, 0),
        (None, 1),
        (Some(10), 0),
        (Some(10), 0),
        (Some(10), 1),
        (Some(11), 0),
        (Some(12), 1),
    ];

    #[derive(Clone, Debug)]
    enum Step {
        /// A client with this certificate asks for this UUID.
        Connect(usize, u128),
        /// A session ends; its threads still run.
        End(prop::sample::Index),
        /// The threads of a session that is over are joined.
        Join(prop::sample::Index),
    }

    fn step(certificates: std::ops::Range<usize>) -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (certificates, 10u128..16).prop_map(|(certificate, uuid)| Step::Connect(certificate, uuid)),
            1 => any::<prop::sample::Index>().prop_map(Step::End),
            2 => any::<prop::sample::Index>().prop_map(Step::Join),
        ]
    }

    /// A server that does what the judge says.
    struct Model {
        policy: AdmissionPolicy,
        maximum: usize,
        places: Certificates,
        sessions: Vec<(SessionId, Uuid, usize, KeptCertificate)>,
        leaving: Vec<KeptCertificate>,
        next: u64,
    }

    impl Model {
        fn new(maximum: usize, share: Option<usize>) -> Self {
            Self {
                policy: AdmissionPolicy {
                    sessions_per_certificate: share,
                    ..AdmissionPolicy::default()
                },
                maximum,
                places: Certificates::default(),
                sessions: Vec::new(),
                leaving: Vec::new(),
                next: 0,
            }
        }

        /// The certificate of the session that has the UUID.
        fn holder(&self, uuid: Uuid) -> Option<usize> {
            let mut sessions = self.sessions.iter();
            sessions.find(|(_, has, ..)| *has == uuid).map(|s| s.2)
        }

        fn taken(&self) -> usize {
            self.sessions.len() + self.leaving.len()
        }

        fn end(&mut self, at: usize) {
            let (.., place) = self.sessions.remove(at);
            self.leaving.push(place);
        }

        fn connect(&mut self, number: usize, uuid: Uuid) -> Result<Option<SessionId>, Refusal> {
            let (bound, authority) = CERTIFICATES[number];
            let likeness = |old: usize| match CERTIFICATES[old].1 == authority {
                _ if old == number => Same,
                true => SameAuthority,
                false => Different,
            };
            let holder = self.sessions.iter().find(|(_, has, ..)| *has == uuid);
            let standing = Standing {
                server: SERVER,
                stopping: false,
                maximum: self.maximum,
                sessions: self.taken(),
                of_certificate: self.places.sessions_of(&certificate(number)),
                banned: None,
                holder: holder.map(|(id, _, old, _)| Holder {
                    id: *id,
                    bound: CERTIFICATES[*old].0.is_some(),
                    likeness: likeness(*old),
                }),
            };
            let bound = bound.map(Uuid::from_u128);
            let verdict = self.policy.judge(Candidate { uuid, bound }, &standing)?;
            if let Some(old) = verdict {
                let at = self.sessions.iter().position(|(id, ..)| *id == old);
                self.end(at.expect("who is replaced is there"));
            }
            self.next += 1;
            let place = self.places.take(&certificate(number), Vec::new());
            self.sessions
                .push((SessionId(ConnectionId(self.next)), uuid, number, place));
            Ok(verdict)
        }

        fn run(&mut self, step: &Step) {
            match step {
                Step::Connect(number, uuid) => {
                    let _ = self.connect(*number, Uuid::from_u128(*uuid));
                }
                Step::End(at) if !self.sessions.is_empty() => self.end(at.index(self.sessions.len())),
                Step::Join(at) if !self.leaving.is_empty() => {
                    let gone = self.leaving.swap_remove(at.index(self.leaving.len()));
                    self.places.give(&gone);
                }
                _ => {}
            }
        }
    }

    proptest! {
        #[test]
        fn no_sequence_gives_a_uuid_to_other_than_its_owner(
            maximum in 1usize..8,
            share in prop::option::of(1usize..4),
            steps in prop::collection::vec(step(0..CERTIFICATES.len()), 0..80),
        ) {
            let mut model = Model::new(maximum, share);
            let share = model.policy.share(maximum);
            for step in &steps {
                let Step::Connect(number, uuid) = step else {
                    model.run(step);
                    continue;
                };
                let uuid = Uuid::from_u128(*uuid);
                let is_owner = |number: usize| CERTIFICATES[number].0.map(Uuid::from_u128) == Some(uuid);
                let before = model.holder(uuid);
                let taken = model.taken();
                let verdict = model.connect(*number, uuid);
                let after = model.holder(uuid);
                // The owner gives way to an owner only.
                if before.is_some_and(is_owner) {
                    prop_assert!(after.is_some_and(is_owner));
                }
                // The owner is refused for want of places, and for nothing
                // else, where somebody else has its UUID.
                if is_owner(*number) && before.is_some_and(|old| !is_owner(old)) {
                    match verdict {
                        Ok(_) => prop_assert_eq!(after, Some(*number)),
                        Err(Refusal::SessionLimit(_)) => prop_assert!(taken > maximum),
                        Err(Refusal::CertificateLimit(_)) => prop_assert!(!model.leaving.is_empty()),
                        Err(other) => prop_assert!(false, "{}", other),
                    }
                }
                // A refusal changes nothing.
                prop_assert!(after == before || after == Some(*number));
                prop_assert!(model.taken() <= maximum + 1);
                prop_assert!(model.sessions.len() <= maximum);
                for number in 0..CERTIFICATES.len() {
                    let of_it = model.sessions.iter().filter(|session| session.2 == number);
                    prop_assert!(of_it.count() <= share);
                    prop_assert!(model.places.sessions_of(&certificate(number)) <= share + 1);
                }
            }
            let all = model.sessions.drain(..).map(|session| session.3);
            for gone in all.chain(model.leaving.drain(..)) {
                model.places.give(&gone);
            }
            prop_assert_eq!(model.places.counted(), (0, 0));
        }

        #[test]
        fn one_certificate_keeps_no_owner_out(
            maximum in 2usize..10,
            steps in prop::collection::vec(step(0..1), 0..80),
        ) {
            let mut model = Model::new(maximum, None);
            for step in &steps {
                model.run(step);
            }
            // The others' sessions have all the room that it leaves.
            let owner = Uuid::from_u128(10);
            let is_held = model.holder(owner).is_some();
            let verdict = model.connect(3, owner);
            // Its last session beyond the limit may still be ending.
            prop_assert!(verdict.is_ok() || !is_held && model.taken() == maximum);
            prop_assert!(!is_held || verdict.is_ok());
        }
    }
}
