use proptest::prelude::*;

use super::Relation::{Different, Same, SameAuthority};
use super::*;
use crate::server::certificates::Certificates;
use ssntp_pki::{
    Authority, AuthorityRequest, CertificateRequest, Identity, SigningRequest, node_key, signing_request,
};
use ssntp_transport::ConnectionId;

const SERVER: Uuid = Uuid::from_u128(1);
const CLIENT: Uuid = Uuid::from_u128(2);
const OTHER: Uuid = Uuid::from_u128(3);
const OLD: SessionId = SessionId(ConnectionId(7));

const FRESH: Result<Option<SessionId>, Refusal> = Ok(None);
const TAKES_OVER: Result<Option<SessionId>, Refusal> = Ok(Some(OLD));

/// A newcomer with the UUID [`CLIENT`], whose certificate is bound to it or unbound.
fn judge(
    policy: AdmissionPolicy,
    is_bound: bool,
    situation: &Situation,
) -> Result<Option<SessionId>, Refusal> {
    let situation = Situation {
        needs_bound: policy.require_bound_uuid,
        ..situation.clone()
    };
    policy.judge(CLIENT, is_bound.then_some(CLIENT), &situation)
}

/// A server with room and without sessions.
fn empty() -> Situation {
    Situation {
        server: SERVER,
        needs_bound: false,
        stopping: false,
        maximum: 8,
        sessions: 0,
        of_certificate: 0,
        banned: None,
        holder: None,
    }
}

/// The newcomer's UUID is connected.
fn held(relation: Relation, bound: bool) -> Situation {
    Situation {
        sessions: 1,
        of_certificate: usize::from(relation == Same),
        holder: Some(Holder {
            id: OLD,
            bound,
            relation,
        }),
        ..empty()
    }
}

#[test]
fn every_pair_of_certificates_for_one_uuid_gets_its_verdict() {
    let in_use = Err(Refusal::UuidInUse(CLIENT));
    let owned = Err(Refusal::UuidOwned(CLIENT));
    let other = Err(Refusal::OtherAuthority(CLIENT));
    // The columns: true if the newcomer is bound, true if the session is bound, and the relation of
    // their certificates.
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
    for (new, old, relation, expected) in rows {
        let verdict = judge(AdmissionPolicy::default(), new, &held(relation, old));
        assert_eq!(verdict, expected, "bound: {new}, before: {old}, {relation:?}");
    }
}

#[test]
fn a_holder_is_compared_by_its_certificate_and_its_issuer() {
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
    for (old, new, relation, is_bound) in rows {
        let holder = Holder::new(OLD, &KeptCertificate::new(old, None), new, &[], &one.trust());
        assert_eq!((holder.relation, holder.bound), (relation, is_bound));
    }
}

#[test]
fn issuers_of_nodes_below_one_authority_count_as_one_authority() {
    let [one, other] = [(); 2].map(|()| Authority::new(&AuthorityRequest::default()).unwrap());
    let trust = one.trust().and(&other.trust()).unwrap();
    // The chain of a node, each of another issuer with the same name.
    let node = |authority: &Authority| {
        let issuer = authority.issuer("issuer", Role::AGENT, 9).unwrap();
        let key = node_key().unwrap();
        let request = SigningRequest::from_pem(&signing_request(&key, "key").unwrap()).unwrap();
        let issued = issuer.issue(&request, Role::AGENT, CLIENT, Duration::from_secs(3600));
        let chain = issued.unwrap().chain + &key;
        Identity::from_pem(chain.as_bytes(), "node")
            .unwrap()
            .chain()
            .to_vec()
    };
    let (first, second, stranger) = (node(&one), node(&one), node(&other));
    let request = CertificateRequest::new(Role::CONTROLLER).uuid(CLIENT);
    let operator = one.issue(&request).unwrap().identity().chain().to_vec();
    // A thief of the other authority's issuer shows an issuer that has not issued its certificate.
    let mixed = [&stranger[..], &first[1..]].concat();
    let rows = [
        (&first, &second, SameAuthority),
        (&first, &stranger, Different),
        (&first, &mixed, Different),
        // So a stolen issuer ends no session of a controller, although it may choose the UUID.
        (&operator, &second, Different),
        (&second, &operator, Different),
    ];
    for (old, new, relation) in rows {
        let [old_leaf, leaf] = [old, new].map(|chain| CertificateInfo::from_der(&chain[0]).unwrap());
        let kept = KeptCertificate::new(&old_leaf, Some(old[1..].to_vec().into()));
        let holder = Holder::new(OLD, &kept, &leaf, &new[1..], &trust);
        assert_eq!(
            (holder.relation, holder.bound),
            (relation, true),
            "{}",
            leaf.subject
        );
    }
}

#[test]
fn a_free_uuid_is_given_unless_the_certificate_forbids_it() {
    let policy = AdmissionPolicy::default();
    let strict = policy.require_bound_uuid(true);
    let own = (SERVER, None);
    let owner = (SERVER, Some(SERVER));
    let borrowed = (CLIENT, Some(OTHER));
    let candidate = |is_bound: bool| (CLIENT, is_bound.then_some(CLIENT));
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
    for (policy, (uuid, bound), expected) in rows {
        let situation = Situation {
            needs_bound: policy.require_bound_uuid,
            ..empty()
        };
        let verdict = policy.judge(uuid, bound, &situation);
        assert_eq!(verdict, expected, "{uuid} {bound:?} {policy:?}");
    }
    // If certificates must be bound, an unbound one cannot take over even its own session.
    let verdict = judge(strict, false, &held(Same, false));
    assert_eq!(verdict, Err(Refusal::UnboundCertificate));
}

#[test]
fn a_stopping_server_refuses_every_newcomer() {
    let stopping = |situation| Situation {
        stopping: true,
        ..situation
    };
    for situation in [empty(), held(Same, true), held(Different, false)] {
        let verdict = judge(AdmissionPolicy::default(), true, &stopping(situation));
        let refusal = verdict.unwrap_err();
        assert!(matches!(refusal, Refusal::Busy(_)), "{refusal}");
    }
}

#[test]
fn a_ban_is_temporary_and_comes_after_permanent_refusals() {
    let policy = AdmissionPolicy::default();
    let left = Duration::from_secs(60);
    let banned = |situation| Situation {
        banned: Some(left),
        ..situation
    };
    for situation in [empty(), held(Same, true), held(Different, false)] {
        let verdict = judge(policy, true, &banned(situation));
        assert_eq!(verdict, Err(Refusal::Banned(left)));
    }
    let verdict = judge(policy.require_bound_uuid(true), false, &banned(empty()));
    assert_eq!(verdict, Err(Refusal::UnboundCertificate));
}

#[test]
fn the_place_of_a_session_that_is_taken_over_counts_as_free() {
    let policy = AdmissionPolicy::default();
    let full = |sessions, of_certificate, situation| Situation {
        sessions,
        of_certificate,
        ..situation
    };
    let limit = Err(Refusal::SessionLimit(8));
    let share = Err(Refusal::CertificateLimit(6));
    let bound_to_it = Err(Refusal::CertificateLimit(1));
    // In the first column: true if the newcomer is bound to its UUID.
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
    for (bound, situation, expected) in rows {
        let verdict = judge(policy, bound, &situation);
        assert_eq!(verdict, expected, "{bound}, {situation:?}");
    }
}

#[test]
fn one_certificate_may_have_three_quarters_of_the_sessions_or_less_by_a_setting() {
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

/// The certificates of the model: the UUID that each is bound to, and the number of its issuer.
/// Several are bound to the same UUID.
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

/// A server that carries out the verdicts.
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
        let relation = |old: usize| {
            if old == number {
                Same
            } else if CERTIFICATES[old].1 == authority {
                SameAuthority
            } else {
                Different
            }
        };
        let holder = self.sessions.iter().find(|(_, has, ..)| *has == uuid);
        let situation = Situation {
            server: SERVER,
            needs_bound: self.policy.require_bound_uuid,
            stopping: false,
            maximum: self.maximum,
            sessions: self.taken(),
            of_certificate: self.places.connections_of(&certificate(number)),
            banned: None,
            holder: holder.map(|(id, _, old, _)| Holder {
                id: *id,
                bound: CERTIFICATES[*old].0.is_some(),
                relation: relation(*old),
            }),
        };
        let bound = bound.map(Uuid::from_u128);
        let verdict = self.policy.judge(uuid, bound, &situation)?;
        if let Some(old) = verdict {
            let at = self.sessions.iter().position(|(id, ..)| *id == old);
            self.end(at.expect("the replaced session exists"));
        }
        self.next += 1;
        let place = self.places.add(&certificate(number), Vec::new());
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
                let ended = self.leaving.swap_remove(at.index(self.leaving.len()));
                self.places.remove(&ended);
            }
            _ => {}
        }
    }
}

proptest! {
    #[test]
    fn no_sequence_of_connections_takes_a_uuid_from_its_owner(
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
            // If another client has its UUID, the owner is refused only for want of places.
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
                prop_assert!(model.places.connections_of(&certificate(number)) <= share + 1);
            }
        }
        let all = model.sessions.drain(..).map(|session| session.3);
        for leaving in all.chain(model.leaving.drain(..)) {
            model.places.remove(&leaving);
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
        // An owner with another certificate finds a place.
        let owner = Uuid::from_u128(10);
        let is_held = model.holder(owner).is_some();
        let verdict = model.connect(3, owner);
        // The last session beyond the limit may still be ending.
        prop_assert!(verdict.is_ok() || !is_held && model.taken() == maximum);
        prop_assert!(!is_held || verdict.is_ok());
    }
}
