use std::sync::Barrier;
use std::thread;

use ssntp::Role;
use ssntp::pki::{
    Authority, AuthorityRequest, Issuer, JoinToken, SigningRequest, StoredToken, node_key, signing_request,
};
use ssntp::transport::Address;
use ssntp_engine::{Join, Member, Membership};
use ssntp_test_support::memory_engine::MemoryEngine;
use ssntp_test_support::wait::wait_for;

use super::*;

/// An issuer, and tokens of its authority.
struct Site {
    authority: Authority,
    issuer: Issuer,
}

impl Site {
    fn new() -> Self {
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        Self {
            issuer: authority.issuer("one", Role::AGENT, 10).unwrap(),
            authority,
        }
    }

    /// A token for so many nodes, and its record.
    fn token(&self, uses: u32) -> (JoinToken, StoredToken) {
        let token = JoinToken::new(Address::tcp("localhost", 1), self.authority.info()).unwrap();
        let ends = wall_clock() + Duration::from_secs(3600);
        let stored = StoredToken::new(&token, Role::AGENT, None, uses, ends, "ops");
        (token, stored)
    }

    /// The token of new records.
    fn add(&self, records: &Enrolments, uses: u32) -> JoinToken {
        let (token, stored) = self.token(uses);
        add(records, stored).unwrap();
        token
    }

    fn join(&self, records: &Enrolments, token: &JoinToken, key: &Key) -> Result<Enrolled, JoinRefusal> {
        let request = token.request(Role::AGENT, String::new());
        let issuing = (&self.issuer, Duration::from_secs(3600), wall_clock());
        records.update(Some(token.id()), &mut |records| {
            records.join(&request, &key.0, issuing)
        })
    }
}

/// The key of a node.
struct Key(SigningRequest);

impl Key {
    fn new() -> Self {
        let request = signing_request(&node_key().unwrap(), "key").unwrap();
        Self(SigningRequest::from_pem(&request).unwrap())
    }
}

fn add(records: &Enrolments, token: StoredToken) -> Result<(), NotDone> {
    records.change(|records| records.add_token(token.clone()).map_err(not_stored))
}

/// The reason why nothing is changed.
fn reason(refused: Result<(), NotDone>) -> (EnrolmentRefusal, String) {
    let NotDone(reason, why) = refused.unwrap_err();
    (reason, why)
}

#[test]
fn what_is_stored_is_read_back_and_a_used_token_stays_used() {
    let (directory, site) = (tempfile::tempdir().unwrap(), Site::new());
    let read = || Enrolments::in_directory(directory.path()).unwrap();
    let records = read();
    let token = site.add(&records, 1);
    let [one, other] = [Key::new(), Key::new()];
    let first = site.join(&records, &token, &one).unwrap();
    assert_eq!(site.join(&read(), &token, &other), Err(JoinRefusal::Used));
    // A node that lost its answer asks again with its key, also after a restart of the scheduler.
    assert_eq!(site.join(&read(), &token, &one).unwrap().serial, first.serial);
}

#[test]
fn a_change_that_cannot_be_stored_is_not_made_and_a_node_asks_again() {
    let (directory, site) = (tempfile::tempdir().unwrap(), Site::new());
    let state = directory.path().join("state");
    fs::create_dir(&state).unwrap();
    let records = Enrolments::in_directory(&state).unwrap();
    let (token, one) = (site.add(&records, 1), Key::new());
    fs::remove_dir_all(&state).unwrap();
    assert_eq!(site.join(&records, &token, &one), Err(JoinRefusal::Unavailable));
    let (reason, why) = reason(add(&records, site.token(1).1));
    assert_eq!(reason, EnrolmentRefusal::NotStored);
    assert!(why.contains(FILE), "{why}");
    let kept = records.records();
    assert_eq!((kept.tokens(0).count(), kept.certificates(0).count()), (1, 0));
    fs::create_dir(&state).unwrap();
    assert!(site.join(&records, &token, &one).is_ok());
    assert_eq!(site.join(&records, &token, &Key::new()), Err(JoinRefusal::Used));
}

#[test]
fn a_file_that_is_no_list_of_tokens_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    for (text, what) in [
        ("{\"tokens\":{},\"more\":1}", "more"),
        ("{\"revoked\":{\"serial\":9}}", "serial"),
    ] {
        fs::write(directory.path().join(FILE), text).unwrap();
        let why = Enrolments::in_directory(directory.path())
            .unwrap_err()
            .to_string();
        assert!(why.contains(FILE) && why.contains(what), "{why}");
    }
}

#[test]
fn the_file_of_an_earlier_version_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let text = r#"{"tokens":{"t":{"id":"t","secret_sha256":"s","roles":"agent","uuid":null,"uses_left":1,
        "ends":1099511627776,"made_by":"ops"}},"certificates":[{"uuid":"00000000-0000-0000-0000-000000000001",
        "roles":"agent","serial":"01:01","ends":1099511627776,"token":"t","key":"k","chain":"c"}],
        "revoked":{"01:01":1099511627776}}"#;
    fs::write(directory.path().join(FILE), text).unwrap();
    let records = Enrolments::in_directory(directory.path()).unwrap();
    assert_eq!(records.records().tokens(0).count(), 1);
    assert_eq!(records.take_lost(), Some(BTreeSet::from([Uuid::from_u128(1)])));
}

#[test]
fn a_revoked_certificate_is_told_and_refused_and_its_node_is_lost() {
    let (site, records) = (Site::new(), Enrolments::default());
    let (token, one) = (site.add(&records, 2), Key::new());
    let first = site.join(&records, &token, &one).unwrap();
    site.join(&records, &token, &Key::new()).unwrap();
    assert!(records.changes().try_recv().is_err());
    assert_eq!(records.take_lost(), Some(BTreeSet::new()));
    let count = records.change(|records| Ok::<_, NotDone>(records.revoke(first.uuid)));
    assert_eq!(count.unwrap(), Some(1));
    assert!(records.changes().try_recv().is_ok());
    assert!(records.records().revoked().eq([first.serial.as_str()]));
    assert_eq!(site.join(&records, &token, &one), Err(JoinRefusal::Proof));
    assert!(records.has_lost());
    assert_eq!(records.take_lost(), Some(BTreeSet::from([first.uuid])));
    assert_eq!((records.has_lost(), records.take_lost()), (false, None));
}

#[test]
fn records_that_will_soon_have_no_room_are_told() {
    let (site, records) = (Site::new(), Enrolments::default());
    let token = site.add(&records, 9);
    let one = site.join(&records, &token, &Key::new()).unwrap();
    let records = records.records();
    let needed = serde_json::to_vec(&*records).unwrap().len();
    assert!(needed < one.chain.len(), "chains are not stored: {needed}");
    let told = |limit| ssntp_test_support::warnings(|| drop(text(&records, limit)));
    assert!(told(needed * 3).is_empty());
    let told = told(needed * 6 / 5);
    assert!(
        told.len() == 1 && told[0].contains("soon no node can join"),
        "{told:?}"
    );
    let NotDone(reason, why) = text(&records, needed - 1).unwrap_err();
    assert_eq!(reason, EnrolmentRefusal::NotStored);
    assert!(why.contains("no room"), "{why}");
}

/// One of several schedulers: the records, which a thread of its own keeps up to date.
fn one_of_several(engine: &MemoryEngine, uuid: u128) -> (Enrolments, Membership) {
    let (records, shared) = (Enrolments::default(), Arc::new(Shared::default()));
    records.keep_in(&shared);
    let member = Member {
        uuid: Uuid::from_u128(uuid),
        incarnation: 1,
        addresses: vec!["host:1".to_owned()],
        version: "1".to_owned(),
        token: 0,
    };
    let (viewed, of_all) = (records.clone(), Arc::clone(&shared));
    let tell = move |view: &View| {
        of_all.set_view(view);
        viewed.take_view(view);
    };
    let membership = Membership::start(Box::new(engine.clone()), Join { member, leads: true }, tell);
    let membership = membership.unwrap();
    shared.set_documents(membership.documents());
    (records, membership)
}

#[test]
fn a_token_counts_once_among_several_schedulers_that_are_asked_at_once() {
    let (engine, site) = (MemoryEngine::new(), Site::new());
    let (one, _first) = one_of_several(&engine, 1);
    let (two, _second) = one_of_several(&engine, 2);
    let token = site.add(&one, 1);
    let at_once = Barrier::new(4);
    let results: Vec<_> = thread::scope(|scope| {
        let joins = [&one, &two, &one, &two].map(|records| {
            let (at_once, site, token) = (&at_once, &site, &token);
            scope.spawn(move || {
                let key = Key::new();
                at_once.wait();
                // The other scheduler waits until it has the token in its view.
                site.join(records, token, &key)
            })
        });
        joins.map(|thread| thread.join().unwrap()).into()
    });
    let joined: Vec<_> = results.iter().flatten().collect();
    assert_eq!(joined.len(), 1, "{results:?}");
    assert!(
        results
            .iter()
            .flat_map(|result| result.as_ref().err())
            .all(|why| *why == JoinRefusal::Used)
    );
}

#[test]
fn a_change_that_others_forestall_each_time_is_known_not_to_be_made() {
    let (engine, site) = (MemoryEngine::new(), Site::new());
    let (one, _first) = one_of_several(&engine, 1);
    let (two, _second) = one_of_several(&engine, 2);
    let forestalled = one.change(|records| {
        two.read_again()?;
        site.add(&two, 1);
        records.add_token(site.token(1).1).map_err(not_stored)
    });
    assert_eq!(reason(forestalled).0, EnrolmentRefusal::NotStored);
    assert_eq!(one.records().tokens(0).count(), ATTEMPTS);
}

#[test]
fn without_an_answer_of_the_engine_a_join_is_unknown_and_the_same_key_asks_again() {
    let (engine, site) = (MemoryEngine::new(), Site::new());
    let (records, _membership) = one_of_several(&engine, 1);
    let (token, one) = (site.add(&records, 1), Key::new());
    engine.fail(Some(EngineError::Away("cut".to_owned())));
    assert_eq!(site.join(&records, &token, &one), Err(JoinRefusal::Unavailable));
    engine.fail(None);
    site.join(&records, &token, &one).unwrap();
    assert_eq!(site.join(&records, &token, &Key::new()), Err(JoinRefusal::Used));
}

#[test]
fn a_node_that_joins_while_the_scheduler_leaves_the_cluster_is_told_to_try_again() {
    let (engine, site) = (MemoryEngine::new(), Site::new());
    let (records, membership) = one_of_several(&engine, 1);
    let (token, one) = (site.add(&records, 1), Key::new());
    drop(membership);
    assert_eq!(site.join(&records, &token, &one), Err(JoinRefusal::Unavailable));
    let (other, _membership) = one_of_several(&engine, 2);
    assert!(site.join(&other, &token, &one).is_ok());
    let engine = MemoryEngine::new();
    let (records, _membership) = one_of_several(&engine, 1);
    let token = site.add(&records, 1);
    engine.fail(Some(EngineError::Refused("no room".to_owned())));
    assert_eq!(site.join(&records, &token, &one), Err(JoinRefusal::Unavailable));
}

#[test]
fn an_engine_that_lost_its_document_is_written_again_and_revoked_certificates_stay_so() {
    let (engine, site) = (MemoryEngine::new(), Site::new());
    let (records, _membership) = one_of_several(&engine, 1);
    let token = site.add(&records, 2);
    let first = site.join(&records, &token, &Key::new()).unwrap();
    let revoke = |records: &mut EnrolmentRecords| Ok::<_, NotDone>(records.revoke(first.uuid));
    assert_eq!(records.change(revoke).unwrap(), Some(1));
    engine.lose();
    let (next, stored) = site.token(1);
    // The engine's thread notices the loss when it reads next.
    wait_for(|| {
        let added: Result<(), NotDone> = records.change(|records| {
            records.remove_token(next.id());
            records.add_token(stored.clone()).map_err(not_stored)
        });
        added.map_err(|why| format!("{why:?}"))
    });
    assert!(records.records().revoked().eq([first.serial.as_str()]));
    let (other, _membership) = one_of_several(&engine, 2);
    wait_for(|| match other.records().revoked().count() {
        1 => Ok(()),
        count => Err(count),
    });
    assert!(other.records().has_token(next.id()));
}

#[test]
fn records_that_an_engine_lost_are_known_to_a_scheduler_that_starts_later() {
    let (engine, site) = (MemoryEngine::new(), Site::new());
    let (records, membership) = one_of_several(&engine, 1);
    let (token, unused) = (site.add(&records, 2), site.add(&records, 1));
    let [first, second] = [(); 2].map(|()| site.join(&records, &token, &Key::new()).unwrap());
    let revoke = |node: Uuid| {
        let revoke = |records: &mut EnrolmentRecords| Ok::<_, NotDone>(records.revoke(node));
        records.change(revoke).unwrap()
    };
    assert_eq!(revoke(first.uuid), Some(1));
    engine.lose();
    records.unwritten().recv_timeout(Duration::from_secs(60)).unwrap();
    records.write_again();
    // A node that joined before can still be revoked.
    assert_eq!(revoke(second.uuid), Some(1));
    drop(membership);
    let (later, _membership) = one_of_several(&engine, 2);
    wait_for(|| match later.records().revoked().count() {
        2 => Ok(()),
        count => Err(count),
    });
    assert!(later.records().has_token(unused.id()));
}

#[test]
fn nothing_is_changed_before_the_document_was_read_or_while_it_cannot_be() {
    let (site, records, shared) = (Site::new(), Enrolments::default(), Arc::new(Shared::default()));
    let token = site.add(&records, 1);
    let kept = serde_json::to_string(&*records.records()).unwrap();
    records.keep_in(&shared);
    let change = || records.change(|_| Ok::<_, NotDone>(()));
    assert_eq!(reason(change()).0, EnrolmentRefusal::Busy);
    assert!(records.unknown().unwrap().contains("not read yet"));
    let view = |text: Option<(&str, u64)>| {
        let document = |(text, revision): (&str, u64)| ssntp_engine::Document {
            text: text.into(),
            revision,
        };
        let documents = text.map(|text| (ENROLMENT.to_owned(), document(text)));
        records.take_view(&View {
            documents: documents.into_iter().collect(),
            ..View::default()
        });
    };
    view(Some(("{", 7)));
    let (refused, why) = reason(change());
    assert_eq!(refused, EnrolmentRefusal::NotStored);
    assert!(why.contains("cannot be read"), "{why}");
    assert!(records.unknown().is_some());
    // It is mended, and cannot be read again: what was read before is known, and a node asks again.
    view(Some((&kept, 8)));
    assert_eq!([records.unknown(), records.fault()], [None, None]);
    view(Some(("{", 9)));
    assert_eq!(records.unknown(), None);
    assert!(records.fault().unwrap().contains("nobody joins"));
    let refused = site.join(&records, &token, &Key::new());
    assert_eq!(refused, Err(JoinRefusal::Unavailable));
    // An operator deletes it: what was read before is to be written again.
    view(None);
    assert!(reason(change()).1.contains("has not joined yet"));
    assert_eq!([records.unknown(), records.fault()], [None, None]);
}

#[test]
fn a_join_does_not_wait_long_for_another_change_and_is_told_to_try_again() {
    let (site, records) = (Site::new(), Enrolments::default());
    let (token, one) = (site.add(&records, 1), Key::new());
    let guard = records.begin_change().unwrap();
    assert_eq!(site.join(&records, &token, &one), Err(JoinRefusal::Busy));
    drop(guard);
    assert!(site.join(&records, &token, &one).is_ok());
}

#[test]
fn unknown_tokens_that_wait_for_another_scheduler_do_not_hold_up_a_known_one() {
    let (engine, site) = (MemoryEngine::new(), Site::new());
    let (records, _membership) = one_of_several(&engine, 1);
    let token = site.add(&records, 1);
    let (unknown, _) = site.token(1);
    let [one, other] = [Key::new(), Key::new()];
    let unknown = || site.join(&records, &unknown, &other);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..AWAITING).map(|_| scope.spawn(unknown)).collect();
        wait_for(|| match records.0.awaiting.load(Ordering::Relaxed) {
            AWAITING => Ok(()),
            fewer => Err(fewer),
        });
        assert_eq!(unknown(), Err(JoinRefusal::Busy));
        assert!(site.join(&records, &token, &one).is_ok());
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), Err(JoinRefusal::Proof));
        }
    });
}
