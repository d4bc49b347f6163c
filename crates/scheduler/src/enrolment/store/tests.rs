use std::sync::Barrier;
use std::thread;

use ssntp::Role;
use ssntp::pki::StoredToken;
use ssntp_engine::{Join, Member, Membership};
use ssntp_test_support::memory_engine::MemoryEngine;
use ssntp_test_support::wait::wait_for;
use uuid::Uuid;

use super::super::records::{MAX_TOKENS, TOLD};
use super::*;

const NEVER: u64 = 1 << 40;

fn token(id: &str, uses: u32) -> StoredToken {
    StoredToken {
        id: id.to_owned(),
        secret_sha256: "A".repeat(43),
        roles: Role::AGENT,
        uuid: None,
        uses_left: uses,
        ends: NEVER,
        made_by: "ops".to_owned(),
    }
}

fn enrolled(node: u128, key: &str) -> Enrolled {
    Enrolled {
        uuid: Uuid::from_u128(node),
        roles: Role::AGENT,
        serial: format!("{node:02x}:01"),
        ends: NEVER,
        token: "t".to_owned(),
        key: key.to_owned(),
        chain: "chain".to_owned(),
    }
}

/// The facts in a node's certificate.
fn shown(enrolled: &Enrolled) -> CertificateInfo {
    let mut info = CertificateInfo::nothing(&Vec::new().into());
    info.serial.clone_from(&enrolled.serial);
    info.uuid = Some(enrolled.uuid);
    info.roles = enrolled.roles;
    info
}

/// Joins as the library does: the token counts down, and the same key gets what it had before.
fn join(records: &Enrolments, node: u128, key: &str) -> Result<Enrolled, JoinRefusal> {
    records.join("t", key, &mut |token, before| {
        if let Some(before) = before {
            return Ok(before.clone());
        }
        if token.uses_left == 0 {
            return Err(JoinRefusal::Used);
        }
        token.uses_left -= 1;
        Ok(enrolled(node, key))
    })
}

fn add(records: &Enrolments, token: StoredToken) {
    let added = |records: &mut Records| records.add_token(token.clone()).map_err(NotStored::Refused);
    records.0.change(added).unwrap();
}

#[test]
fn what_is_stored_is_read_back_and_a_used_token_stays_used() {
    let directory = tempfile::tempdir().unwrap();
    let read = || Enrolments::in_directory(directory.path()).unwrap();
    let records = read();
    add(&records, token("t", 1));
    let first = join(&records, 1, "one").unwrap();
    assert_eq!(join(&read(), 2, "two"), Err(JoinRefusal::Used));
    // A node that lost its answer asks again with its key, also after a restart of the scheduler.
    assert_eq!(join(&read(), 3, "one"), Ok(first));
    assert_eq!(join(&read(), 4, "one").unwrap().uuid, Uuid::from_u128(1));
}

#[test]
fn a_change_that_cannot_be_stored_is_not_made() {
    let directory = tempfile::tempdir().unwrap();
    let records = Enrolments::in_directory(&directory.path().join("gone")).unwrap();
    let refused = join(&records, 1, "one").unwrap_err();
    assert_eq!(refused, JoinRefusal::Proof, "there is no token yet");
    let added: Result<(), NotStored> = records.0.change(|records| {
        records.add_token(token("t", 1)).unwrap();
        Ok(())
    });
    assert!(matches!(added, Err(NotStored::Refused(_))));
    assert_eq!(records.0.records().tokens(0).count(), 0);
}

#[test]
fn a_file_that_is_no_list_of_tokens_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(FILE), "{\"tokens\":{},\"more\":1}").unwrap();
    let why = Enrolments::in_directory(directory.path())
        .unwrap_err()
        .to_string();
    assert!(why.contains(FILE) && why.contains("more"), "{why}");
}

#[test]
fn a_revoked_certificate_is_told_refused_and_forgotten_at_its_end() {
    let records = Enrolments::default();
    add(&records, token("t", 2));
    let first = join(&records, 1, "one").unwrap();
    let other = join(&records, 2, "two").unwrap();
    assert!(records.changes().try_recv().is_err());
    let count = records
        .0
        .change(|records| Ok::<_, NotStored>(records.revoke(first.uuid)));
    assert_eq!(count.unwrap(), Some(1));
    assert!(records.changes().try_recv().is_ok());
    assert!(records.0.records().revoked().eq([first.serial.as_str()]));
    assert_eq!(join(&records, 1, "one"), Err(JoinRefusal::Used));
    let next = Enrolled {
        serial: "09:09".to_owned(),
        ..first.clone()
    };
    let mut kept = Records::clone(&records.0.records());
    assert!(matches!(
        kept.renew(&shown(&first), true, &next),
        Err(JoinRefusal::NotRenewable(_))
    ));
    assert_eq!(kept.renew(&shown(&other), true, &next), Ok(next));
    kept.forget_ended(NEVER + TOLD);
    assert_eq!(
        (
            kept.tokens(0).count(),
            kept.certificates(0).count(),
            kept.revoked().count()
        ),
        (0, 0, 0)
    );
}

#[test]
fn what_has_ended_is_not_listed_before_the_next_change_forgets_it() {
    let mut records = Records::default();
    records.add_token(token("t", 1)).unwrap();
    records
        .join("t", "key", &mut |_, _| Ok(enrolled(1, "key")))
        .unwrap();
    let listed = |now| (records.tokens(now).count(), records.certificates(now).count());
    assert_eq!((listed(NEVER - 1), listed(NEVER)), ((1, 1), (0, 0)));
}

#[test]
fn a_token_that_has_ended_is_known_for_a_day_and_makes_room_for_others() {
    let mut records = Records::default();
    let ended = |id: &str| StoredToken {
        ends: 1000,
        ..token(id, 1)
    };
    let told = |records: &mut Records| records.join("t", "key", &mut |_, _| Err(JoinRefusal::Ended));
    records.add_token(ended("t")).unwrap();
    records.forget_ended(1000 + TOLD - 1);
    assert_eq!(told(&mut records), Err(JoinRefusal::Ended));
    records.forget_ended(1000 + TOLD);
    assert_eq!(told(&mut records), Err(JoinRefusal::Proof));
    for number in 0..MAX_TOKENS {
        records.add_token(ended(&number.to_string())).unwrap();
    }
    records.forget_ended(1001);
    records.add_token(token("t", 1)).unwrap();
}

#[test]
fn a_node_that_renews_again_and_again_does_not_fill_the_records() {
    let mut records = Records::default();
    records.add_token(token("t", 2)).unwrap();
    for node in [1, 2] {
        let joined = records.join("t", &node.to_string(), &mut |_, _| Ok(enrolled(node, "key")));
        joined.unwrap();
    }
    let mut keys = 0;
    let mut renew = |records: &mut Records, node: u128| {
        keys += 1;
        records.renew(&shown(&enrolled(node, "")), true, &renewed(node, keys, "issuer"))
    };
    while renew(&mut records, 1).is_ok() {}
    assert_eq!(records.certificates(0).count(), 33);
    assert!(matches!(renew(&mut records, 1), Err(JoinRefusal::NotRenewable(why)) if why.contains("32")));
    assert!(renew(&mut records, 2).is_ok());
    // Revoked ones do not count: the node has joined again.
    records.revoke(Uuid::from_u128(1));
    let again = Enrolled {
        serial: "01:77".to_owned(),
        ..enrolled(1, "again")
    };
    records.join("t", "again", &mut |_, _| Ok(again.clone())).unwrap();
    assert!(
        records
            .renew(&shown(&again), true, &renewed(1, 99, "issuer"))
            .is_ok()
    );
}

#[test]
fn of_the_certificates_of_issuers_only_those_in_the_records_are_renewed() {
    let mut records = Records::default();
    records.add_token(token("t", 1)).unwrap();
    let joined = records.join("t", "key", &mut |_, _| Ok(enrolled(1, "key")));
    let joined = shown(&joined.unwrap());
    let mut forged = [joined.clone(), joined.clone(), joined.clone()];
    forged[0].serial = "01:02".to_owned();
    forged[1].uuid = Some(Uuid::from_u128(2));
    forged[2].roles = Role::NETAGENT;
    for forged in &forged {
        let refused = records.renew(forged, true, &renewed(1, 1, "issuer"));
        assert!(matches!(refused, Err(JoinRefusal::NotRenewable(why)) if why.contains("records")));
    }
    assert!(records.renew(&joined, true, &renewed(1, 1, "issuer")).is_ok());
    // One that the authority itself has issued.
    assert!(records.renew(&forged[0], false, &renewed(1, 2, "issuer")).is_ok());
}

/// A certificate that a node gets at a renewal for one of its keys.
fn renewed(node: u128, key: u32, issuer: &str) -> Enrolled {
    Enrolled {
        serial: format!("{node:02x}:{key:02x}:02"),
        token: String::new(),
        chain: format!("node-----END CERTIFICATE-----\n{issuer}"),
        ..enrolled(node, &key.to_string())
    }
}

#[test]
fn a_renewal_is_repeated_for_the_same_key_until_its_certificate_is_used() {
    let mut records = Records::default();
    records.add_token(token("t", 1)).unwrap();
    let joined = records.join("t", "key", &mut |_, _| Ok(enrolled(1, "key")));
    let (before, first) = (shown(&joined.unwrap()), renewed(1, 7, "issuer"));
    records.renew(&before, true, &first).unwrap();
    // The node asks again, for a certificate that would have another serial number.
    let other = |issuer| Enrolled {
        serial: "01:66".to_owned(),
        ..renewed(1, 7, issuer)
    };
    for _ in 0..100 {
        records.forget_ended(0);
        assert_eq!(
            records.renew(&before, true, &other("issuer")).as_ref(),
            Ok(&first)
        );
    }
    assert_eq!(records.certificates(0).count(), 2);
    // Not that of an issuer which was replaced, perhaps because it was stolen, and not the one that is to be renewed.
    let second = records.renew(&before, true, &other("another issuer")).unwrap();
    assert_eq!(second, other("another issuer"));
    let third = renewed(1, 7, "issuer");
    assert_eq!(records.renew(&shown(&first), true, &third), Ok(third));
    let kept = records.certificates(0).map(|(_, one, _)| !one.chain.is_empty());
    assert!(kept.eq([true, false, true, true]));
}

#[test]
fn chains_give_way_before_a_certificate_does() {
    let mut records = Records::default();
    records.add_token(token("t", 9)).unwrap();
    for node in 0..9 {
        let joined = records.join("t", &node.to_string(), &mut |_, _| {
            Ok(Enrolled {
                chain: "c".repeat(1000),
                ..enrolled(node, &node.to_string())
            })
        });
        joined.unwrap();
    }
    assert!(text(&mut records, 4000).unwrap().len() <= 4000);
    let chains = records
        .certificates(0)
        .filter(|(_, one, _)| !one.chain.is_empty());
    // The newest keep theirs.
    assert!(chains.map(|(_, one, _)| one.uuid.as_u128()).eq([7, 8]));
    assert!(matches!(text(&mut records, 100), Err(NotStored::Refused(_))));
}

#[test]
fn records_that_will_soon_have_no_room_are_told_and_chains_do_not_count() {
    let mut records = Records::default();
    records.add_token(token("t", 9)).unwrap();
    for node in 0..9 {
        let joined = records.join("t", &node.to_string(), &mut |_, _| {
            Ok(Enrolled {
                chain: "c".repeat(1000),
                ..enrolled(node, &node.to_string())
            })
        });
        joined.unwrap();
    }
    let mut without = records.clone();
    while without.drop_a_chain() {}
    let needed = serde_json::to_vec(&without).unwrap().len();
    let mut told = |limit| {
        ssntp_test_support::warnings(|| {
            text(&mut records, limit).unwrap();
        })
    };
    assert!(told(needed * 3).is_empty());
    let told = told(needed * 6 / 5);
    assert!(
        told.len() == 1 && told[0].contains("soon no node can join"),
        "{told:?}"
    );
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
    let engine = MemoryEngine::new();
    let (one, _first) = one_of_several(&engine, 1);
    let (two, _second) = one_of_several(&engine, 2);
    add(&one, token("t", 1));
    let at_once = Barrier::new(4);
    let results: Vec<_> = thread::scope(|scope| {
        let joins = [(&one, 1), (&two, 2), (&one, 3), (&two, 4)].map(|(records, node)| {
            let at_once = &at_once;
            scope.spawn(move || {
                at_once.wait();
                // The other scheduler waits until it has the token in its view.
                join(records, node, &node.to_string())
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
fn without_an_answer_of_the_engine_a_join_is_unknown_and_the_same_key_asks_again() {
    let engine = MemoryEngine::new();
    let (records, _membership) = one_of_several(&engine, 1);
    add(&records, token("t", 1));
    engine.fail(Some(EngineError::Away("cut".to_owned())));
    assert_eq!(join(&records, 1, "one"), Err(JoinRefusal::Unavailable));
    engine.fail(None);
    assert_eq!(join(&records, 1, "one").unwrap().uuid, Uuid::from_u128(1));
    assert_eq!(join(&records, 2, "two"), Err(JoinRefusal::Used));
}

#[test]
fn a_node_that_joins_while_the_scheduler_leaves_the_cluster_is_told_to_try_again() {
    let engine = MemoryEngine::new();
    let (records, membership) = one_of_several(&engine, 1);
    add(&records, token("t", 1));
    drop(membership);
    assert_eq!(join(&records, 1, "one"), Err(JoinRefusal::Unavailable));
    let (other, _membership) = one_of_several(&engine, 2);
    assert!(join(&other, 1, "one").is_ok());
    let engine = MemoryEngine::new();
    let (records, _membership) = one_of_several(&engine, 1);
    add(&records, token("t", 1));
    engine.fail(Some(EngineError::Refused("no room".to_owned())));
    assert_eq!(join(&records, 1, "one"), Err(JoinRefusal::Unavailable));
}

#[test]
fn an_engine_that_lost_its_document_is_written_again_and_revoked_certificates_stay_so() {
    let engine = MemoryEngine::new();
    let (records, _membership) = one_of_several(&engine, 1);
    add(&records, token("t", 2));
    let first = join(&records, 1, "one").unwrap();
    let revoke = |records: &mut Records| Ok::<_, NotStored>(records.revoke(first.uuid));
    assert_eq!(records.0.change(revoke).unwrap(), Some(1));
    engine.lose();
    // The engine's thread notices the loss when it reads next.
    wait_for(|| {
        let added: Result<(), NotStored> = records.0.change(|records| {
            records.remove_token("u");
            records.add_token(token("u", 1)).map_err(NotStored::Refused)
        });
        added.map_err(|why| format!("{why:?}"))
    });
    assert!(records.0.records().revoked().eq([first.serial.as_str()]));
    let (other, _membership) = one_of_several(&engine, 2);
    wait_for(|| match other.0.records().revoked().count() {
        1 => Ok(()),
        count => Err(count),
    });
    assert_eq!(
        other.0.records().tokens(0).map(|token| token.id.as_str()).last(),
        Some("u")
    );
}

#[test]
fn nothing_is_changed_before_the_document_was_read_or_while_it_cannot_be() {
    let (records, shared) = (Enrolments::default(), Arc::new(Shared::default()));
    records.keep_in(&shared);
    let change = || records.0.change(|_| Ok::<_, NotStored>(()));
    assert!(matches!(change(), Err(NotStored::Busy)));
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
    assert!(matches!(change(), Err(NotStored::Refused(why)) if why.contains("cannot be read")));
    assert!(records.unknown().is_some());
    // An operator deletes it.
    view(None);
    assert!(change().is_ok());
    assert_eq!([records.unknown(), records.fault()], [None, None]);
}

#[test]
fn a_join_does_not_wait_long_for_another_change_and_is_told_to_try_again() {
    let records = Enrolments::default();
    add(&records, token("t", 1));
    let guard = records.0.begin_change().unwrap();
    assert_eq!(join(&records, 1, "one"), Err(JoinRefusal::Busy));
    drop(guard);
    assert!(join(&records, 1, "one").is_ok());
}

#[test]
fn unknown_tokens_that_wait_for_another_scheduler_do_not_hold_up_a_known_one() {
    let engine = MemoryEngine::new();
    let (records, _membership) = one_of_several(&engine, 1);
    add(&records, token("t", 1));
    let unknown = || records.join("unknown", "key", &mut |_, _| Err(JoinRefusal::Used));
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..AWAITING).map(|_| scope.spawn(unknown)).collect();
        wait_for(|| match records.0.awaiting.load(Ordering::Relaxed) {
            AWAITING => Ok(()),
            fewer => Err(fewer),
        });
        assert_eq!(unknown(), Err(JoinRefusal::Busy));
        assert!(join(&records, 1, "one").is_ok());
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), Err(JoinRefusal::Proof));
        }
    });
}
