//! Resolves, declarations and reports: sent, repeated, refreshed, ended.

use super::super::{ElementLimits, ResolveReference, Store};
use super::*;
use crate::message::ErrorCode;
use crate::model::{ChangeKind, Ident, ManagedObject, Target};

const FIRST: u64 = 1 << 63;

pub(super) fn resolve(world: &mut World, text: &str) -> ResolveReference {
    world.act(|element, now| element.resolve_policy("class", uri(text), false, now))
}

fn follow(world: &mut World, text: &str) -> ResolveReference {
    world.act(|element, now| element.resolve_policy("class", uri(text), true, now))
}

pub(super) fn release(world: &mut World, reference: ResolveReference) {
    world.element.release(reference, world.now);
}

fn report(world: &mut World, text: &str, value: i64) {
    let object = ManagedObject::new("class", uri(text)).with("p", value);
    world.act(|element, now| element.report(object, now)).unwrap();
}

pub(super) fn declare(world: &mut World, text: &str, value: i64) {
    let object = ManagedObject::new("class", uri(text)).with("p", value);
    world
        .act(|element, now| element.declare(vec![object], now))
        .unwrap();
}

pub(super) fn known(world: &World) -> Vec<String> {
    world
        .element
        .policy()
        .iter()
        .map(|object| object.uri().to_string())
        .collect()
}

/// The changes in the latest events.
fn changed(world: &mut World) -> Vec<(String, ChangeKind)> {
    let events = std::mem::take(&mut world.events);
    let changes = events.into_iter().filter_map(|event| match event {
        ElementEvent::Changed { objects, .. } => Some(objects),
        _ => None,
    });
    changes
        .flatten()
        .map(|object| (object.uri.to_string(), object.kind))
        .collect()
}

fn sent(method: &str, text: &str) -> (String, String) {
    (method.to_owned(), text.to_owned())
}

#[test]
fn a_resolve_is_sent_once_and_its_result_is_an_event() {
    let (mut world, server) = World::ready(ElementSettings::default());
    resolve(&mut world, "/a/");
    resolve(&mut world, "/a/");
    assert_eq!(
        world.take_sent(server),
        [
            json!({"id": ["policy_resolve", FIRST], "method": "policy_resolve",
            "params": [{"subject": "class", "policy_uri": "/a/", "prr": 7200}]})
        ]
    );
    let result = json!({"policy": [object("/a/", 1), object("/elsewhere/", 1)]});
    world.send_text(
        server,
        &json!({"id": ["policy_resolve", FIRST], "result": result}),
    );
    assert_eq!(
        world.events[0],
        ElementEvent::Resolved {
            what: Store::Policy,
            subject: "class".into(),
            target: uri("/a/").into(),
            found: true,
        }
    );
    assert_eq!(changed(&mut world), [("/a/".to_owned(), ChangeKind::Created)]);
    assert_eq!(known(&world), ["/a/"]);
    let held: Vec<_> = world
        .element
        .items
        .iter()
        .map(|(_, item)| (item.references, item.answered))
        .collect();
    assert_eq!(held, [(2, true)]);
}

#[test]
fn earlier_requests_are_sent_on_connecting_by_role() {
    let mut world = World::new(ElementSettings::new("pe1", "default", ["a:1", "b:1", "c:1"]));
    resolve(&mut world, "/a/");
    declare(&mut world, "/ep/", 1);
    report(&mut world, "/stats/", 1);
    let expected = [
        ("a:1", "policy_repository", sent("policy_resolve", "/a/")),
        ("b:1", "endpoint_registry", sent("endpoint_declare", "/ep/")),
        ("c:1", "observer", sent("state_report", "/stats/")),
    ];
    for (address, role, expected) in expected {
        let connection = world.accept(address, &[role], &["a:1", "b:1", "c:1"]);
        assert_eq!(world.requests(connection)[1..], [expected]);
    }
}

#[test]
fn everything_is_sent_again_after_a_reconnect_with_new_numbers() {
    let (mut world, server) = World::ready(ElementSettings::default());
    resolve(&mut world, "/a/");
    declare(&mut world, "/ep/", 1);
    world.serve(server, &[object("/a/", 1)]);
    world.fail("a:1");
    world.pass(1.4);
    let server = world.accept("a:1", &ALL, &["a:1"]);
    let again: Vec<_> = world.take_sent(server)[1..]
        .iter()
        .map(|message| message["id"][1].as_u64().unwrap())
        .collect();
    assert_eq!(again, [FIRST + 2, FIRST + 3]);
    assert_eq!(known(&world), ["/a/"]);
}

#[test]
fn an_answer_removes_what_was_deleted_below_its_objects_in_the_meantime() {
    let (mut world, server) = World::ready(ElementSettings::default());
    resolve(&mut world, "/a/");
    let mut root = object("/a/", 1);
    root["children"] = json!(["/a/b/", "/a/c/"]);
    let parts = [object("/a/b/", 1), object("/a/b/x/", 1), object("/a/c/", 1)];
    world.serve(server, &[&[root.clone()], &parts[..]].concat());
    assert_eq!(known(&world).len(), 4);
    world.fail("a:1");
    world.pass(1.4);
    let server = world.accept("a:1", &ALL, &["a:1"]);
    // A long answer comes in pieces: the first ones list objects that are sent later.
    root["children"] = json!(["/a/b/"]);
    world.ask(server, "policy_update", json!([{"replace": [root]}]));
    assert_eq!(known(&world), ["/a/", "/a/b/", "/a/b/x/"]);
    world.send_text(
        server,
        &json!({"id": ["policy_resolve", FIRST + 1], "result": {"policy": [object("/a/b/", 1)]}}),
    );
    assert_eq!(known(&world), ["/a/", "/a/b/"]);
}

#[test]
fn a_request_without_answer_or_with_an_error_is_repeated_with_its_number() {
    let (mut world, server) = World::ready(ElementSettings::default());
    resolve(&mut world, "/a/");
    declare(&mut world, "/ep/", 1);
    let first = world.take_sent(server);
    let error = json!({"code": "ERROR", "message": "not now"});
    world.send_text(server, &json!({"id": first[0]["id"], "error": error}));
    assert!(
        matches!(&world.events[0], ElementEvent::Refused { error, about, .. }
        if error.code == ErrorCode::ERROR && about == "class /a/")
    );
    world.pass(8.9);
    assert_eq!(world.take_sent(server), NOTHING);
    world.pass(2.2);
    let mut again = world.take_sent(server);
    again.sort_by_key(|message| message["id"][1].as_u64());
    assert_eq!(again, first);
    world.pass(15.0);
    assert_eq!(world.take_sent(server), NOTHING);
    world.pass(7.0);
    world.serve(server, &[]);
    for _ in 0..10 {
        world.pass(60.0);
        world.send_text(server, &json!({"id": ["echo", 1], "result": []}));
    }
    assert_eq!(world.take_sent(server), NOTHING);
}

#[test]
fn an_answer_to_another_method_with_the_number_of_a_request_is_ignored() {
    let (mut world, server) = World::ready(ElementSettings::default());
    resolve(&mut world, "/a/");
    let asked = world.take_sent(server).pop().unwrap();
    for method in ["policy_unresolve", "endpoint_resolve", "state_report"] {
        let answer = json!({"id": [method, asked["id"][1]], "result": {"endpoint": [object("/a/", 1)]}});
        world.send_text(server, &answer);
    }
    assert!(known(&world).is_empty());
    world.pass(11.0);
    assert_eq!(world.requests(server), [sent("policy_resolve", "/a/")]);
    world.send_text(
        server,
        &json!({"id": asked["id"], "result": {"policy": [object("/a/", 1)]}}),
    );
    assert_eq!(known(&world), ["/a/"]);
}

#[test]
fn an_endpoint_resolve_is_not_repeated_once_answered() {
    let (mut world, server) = World::ready(ElementSettings::default());
    world.act(|element, now| element.resolve_endpoint("class", uri("/ep/"), now));
    world.serve(server, &[]);
    world.pass(100.0);
    assert_eq!(world.take_sent(server), NOTHING);
}

#[test]
fn a_request_is_repeated_only_to_servers_that_did_not_answer() {
    let mut world = World::new(ElementSettings::new("pe1", "default", ["a:1", "b:1"]));
    let a = world.accept("a:1", &ALL, &["a:1", "b:1"]);
    let b = world.accept("b:1", &ALL, &["a:1", "b:1"]);
    world.take_sent(a);
    world.take_sent(b);
    resolve(&mut world, "/a/");
    assert_eq!(world.sent[&a], world.sent[&b]);
    world.serve(a, &[object("/a/", 1)]);
    world.take_sent(b);
    world.pass(11.1);
    assert_eq!(world.take_sent(a), NOTHING);
    assert_eq!(world.requests(b), [sent("policy_resolve", "/a/")]);
    world.fail("b:1");
    world.pass(100.0);
    assert_eq!(world.take_sent(a), NOTHING);
}

#[test]
fn requests_are_refreshed_after_a_third_to_a_half_of_the_refresh_rate() {
    let (mut world, server) = World::ready(ElementSettings {
        prr: Duration::from_secs(15),
        ..ElementSettings::default()
    });
    resolve(&mut world, "/a/");
    declare(&mut world, "/ep/", 1);
    report(&mut world, "/stats/", 1);
    world.serve(server, &[]);
    world.pass(4.99);
    assert_eq!(world.take_sent(server), NOTHING);
    world.pass(2.52);
    let mut again = world.requests(server);
    again.sort();
    assert_eq!(
        again,
        [
            sent("endpoint_declare", "/ep/"),
            sent("policy_resolve", "/a/"),
            sent("state_report", "/stats/")
        ]
    );
}

#[test]
fn an_empty_answer_removes_no_objects() {
    let (mut world, server) = World::ready(ElementSettings {
        prr: Duration::from_secs(15),
        ..ElementSettings::default()
    });
    resolve(&mut world, "/a/");
    world.serve(server, &[object("/a/", 1)]);
    world.pass(7.6);
    world.serve(server, &[]);
    assert_eq!(known(&world), ["/a/"]);
    world.fail("a:1");
    world.pass(1000.0);
    assert_eq!(known(&world), ["/a/"]);
}

#[test]
fn the_last_release_sends_an_unresolve_after_the_linger_time() {
    let (mut world, server) = World::ready(ElementSettings::default());
    let (one, two) = (resolve(&mut world, "/a/"), resolve(&mut world, "/a/"));
    world.serve(server, &[object("/a/", 1), object("/a/b/", 1)]);
    release(&mut world, one);
    world.pass(1.0);
    assert_eq!(world.take_sent(server), NOTHING);
    release(&mut world, two);
    world.pass(0.2);
    assert_eq!(world.take_sent(server), NOTHING);
    world.pass(0.1);
    assert_eq!(
        world.take_sent(server),
        [
            json!({"id": ["policy_unresolve", FIRST + 1], "method": "policy_unresolve",
            "params": [{"subject": "class", "policy_uri": "/a/"}]})
        ]
    );
    world.send_text(
        server,
        &json!({"id": ["policy_unresolve", FIRST + 1], "result": {}}),
    );
    assert_eq!((known(&world).len(), world.element.items.iter().count()), (0, 0));
    let update = json!([{"replace": [object("/a/", 2)]}]);
    assert_eq!(world.ask(server, "policy_update", update), NOTHING);
    assert_eq!(known(&world), [""; 0]);
}

#[test]
fn a_policy_that_is_resolved_again_in_time_is_not_unresolved() {
    let (mut world, server) = World::ready(ElementSettings::default());
    let one = resolve(&mut world, "/a/");
    world.serve(server, &[object("/a/", 1)]);
    release(&mut world, one);
    world.pass(0.2);
    resolve(&mut world, "/a/");
    world.pass(10.0);
    assert_eq!(world.take_sent(server), NOTHING);
    assert_eq!(known(&world), ["/a/"]);
}

#[test]
fn each_released_policy_is_kept_for_the_whole_linger_time() {
    let (mut world, server) = World::ready(ElementSettings::default());
    let (one, two) = (resolve(&mut world, "/a/"), resolve(&mut world, "/b/"));
    world.serve(server, &[object("/a/", 1), object("/b/", 1)]);
    release(&mut world, one);
    world.pass(0.2);
    release(&mut world, two);
    world.pass(0.1);
    assert_eq!(known(&world), ["/b/"]);
    world.pass(0.2);
    assert_eq!(known(&world), [""; 0]);
}

#[test]
fn a_policy_below_a_released_one_stays_if_it_is_resolved_itself() {
    let (mut world, server) = World::ready(ElementSettings::default());
    let outer = resolve(&mut world, "/a/");
    resolve(&mut world, "/a/b/");
    let under = json!({"subject": "class", "uri": "/a/b/", "parent_uri": "/a/"});
    world.serve(server, &[object("/a/", 1), under]);
    release(&mut world, outer);
    world.pass(1.0);
    assert_eq!(known(&world), ["/a/b/"]);
}

#[test]
fn updates_replace_merge_and_delete_and_are_events() {
    let (mut world, server) = World::ready(ElementSettings::default());
    resolve(&mut world, "/a/");
    let child = |value: i64| {
        let mut child = object("/a/b/", value);
        child["parent_uri"] = json!("/a/");
        child
    };
    let mut parent = object("/a/", 1);
    parent["children"] = json!(["/a/b/"]);
    world.serve(server, &[parent, child(1)]);
    changed(&mut world);

    let merge = json!([{"replace": [], "merge_children": [object("/a/", 2)], "delete": []}]);
    assert_eq!(world.ask(server, "policy_update", merge), NOTHING);
    assert_eq!(changed(&mut world), [("/a/".to_owned(), ChangeKind::Modified)]);
    assert_eq!(known(&world).len(), 2);

    world.ask(server, "policy_update", json!([{"replace": [object("/a/", 2)]}]));
    assert_eq!(changed(&mut world), [("/a/b/".to_owned(), ChangeKind::Deleted)]);

    world.ask(server, "policy_update", json!([{"replace": [child(3)]}]));
    world.ask(server, "policy_update", json!([{"replace": [child(3)]}]));
    assert_eq!(changed(&mut world), [("/a/b/".to_owned(), ChangeKind::Created)]);

    world.ask(
        server,
        "policy_update",
        json!([{"delete": [{"subject": "class", "uri": "/a/"}]}]),
    );
    let deleted = [
        ("/a/".to_owned(), ChangeKind::Deleted),
        ("/a/b/".to_owned(), ChangeKind::Deleted),
    ];
    assert_eq!(changed(&mut world), deleted);
    // The resolve stays in force, and an update adds the object again.
    world.ask(server, "policy_update", json!([{"replace": [object("/a/", 4)]}]));
    assert_eq!(known(&world), ["/a/"]);
}

/// Joined servers tell of the same change of class one after the other.
#[test]
fn a_deletion_of_a_former_class_does_not_remove_the_new_object() {
    let (mut world, server) = World::ready(ElementSettings::default());
    resolve(&mut world, "/a/");
    world.serve(server, &[object("/a/", 1)]);
    let mut child = object("/a/b/", 1);
    world.ask(server, "policy_update", json!([{"replace": [child]}]));
    child["subject"] = json!("other");
    let delete = json!([{"delete": [{"subject": "class", "uri": "/a/b/"}]}]);
    let replace = json!([{"replace": [child]}]);
    for params in [&delete, &replace, &delete] {
        world.ask(server, "policy_update", params.clone());
    }
    assert_eq!(known(&world), ["/a/", "/a/b/"]);
}

#[test]
fn no_alarm_is_raised_while_one_of_two_servers_answers() {
    let mut world = World::new(ElementSettings::new("pe1", "default", ["a:1", "b:1"]));
    let a = world.accept("a:1", &ALL, &["a:1", "b:1"]);
    let b = world.accept("b:1", &ALL, &["a:1", "b:1"]);
    world.serve(a, &[]);
    world.take_sent(b);
    resolve(&mut world, "/a/");
    world.serve(a, &[object("/a/", 1)]);
    for _ in 0..12 {
        world.pass(10.0);
        for server in [a, b] {
            world.send_text(server, &json!({"id": ["echo", 1], "result": []}));
        }
    }
    assert!(world.requests(b).len() > 2, "it is asked again");
    assert_eq!(world.element.unanswered(), 0);
}

#[test]
fn a_malformed_update_has_no_effect() {
    let (mut world, server) = World::ready(ElementSettings::default());
    resolve(&mut world, "/a/");
    world.serve(server, &[object("/a/", 1)]);
    changed(&mut world);
    let mut bad = object("/a/b/", 1);
    bad["parent_uri"] = json!("/elsewhere/");
    for update in [
        json!([{"replace": [object("/a/", 2), bad]}]),
        json!([{"replace": [object("/a/", 2)]}, {"merge_children": [bad]}]),
        json!([{"replace": [object("/a/", 2)], "delete": [{"uri": "/a/"}]}]),
    ] {
        let answers = world.ask(server, "policy_update", update);
        assert_eq!(answers[0]["error"]["code"], "ERROR");
    }
    assert_eq!(changed(&mut world), []);
}

#[test]
fn updates_are_answered_only_when_the_server_is_strict() {
    let update = json!([{"replace": [], "merge_children": [], "delete": []}]);
    let (mut world, server) = World::ready(ElementSettings::default());
    assert_eq!(world.ask(server, "policy_update", update.clone()), NOTHING);
    let (mut world, server) = World::ready(ElementSettings {
        acknowledge_updates: true,
        ..ElementSettings::default()
    });
    assert_eq!(world.ask(server, "policy_update", update)[0]["result"], json!({}));
    assert_eq!(
        world.ask(server, "endpoint_update", json!([{}]))[0]["result"],
        json!({})
    );
}

#[test]
fn referenced_policies_are_resolved_and_unresolved() {
    let (mut world, server) = World::ready(ElementSettings::default());
    let policy = [
        object("/a/", reference("/b/")),
        object("/b/", json!([reference("/c/"), reference("/d/")])),
        object("/c/", reference("/a/")),
        object("/d/", 1),
    ];
    let top = follow(&mut world, "/a/");
    let mut resolved = Vec::new();
    for _ in 0..4 {
        resolved.extend(
            world
                .sent
                .get(&server)
                .into_iter()
                .flatten()
                .map(|m| m["params"][0]["policy_uri"].clone()),
        );
        world.serve(server, &policy);
    }
    assert_eq!(resolved, ["/a/", "/b/", "/c/", "/d/"]);
    assert_eq!(world.element.followed, 4 - 1);

    // A reference changes: policies that are not reached any more are removed.
    world.ask(
        server,
        "policy_update",
        json!([{"merge_children": [object("/b/", reference("/c/"))]}]),
    );
    world.pass(0.3);
    assert_eq!(world.requests(server), [sent("policy_unresolve", "/d/")]);
    assert_eq!(known(&world), ["/a/", "/b/", "/c/"]);

    // The three policies refer to each other in a circle, and are removed together.
    release(&mut world, top);
    world.pass(0.3);
    assert_eq!(world.requests(server).len(), 3);
    assert_eq!((known(&world).len(), world.element.followed), (0, 0));
}

#[test]
fn following_can_begin_later_and_has_a_limit() {
    let (mut world, server) = World::ready(ElementSettings {
        limits: ElementLimits {
            followed: 1,
            ..ElementLimits::default()
        },
        ..ElementSettings::default()
    });
    resolve(&mut world, "/a/");
    world.serve(
        server,
        &[object("/a/", json!([reference("/b/"), reference("/c/")]))],
    );
    assert_eq!(world.take_sent(server), NOTHING);
    follow(&mut world, "/a/");
    assert_eq!(world.requests(server), [sent("policy_resolve", "/b/")]);
    // When a followed policy has gone, the limit allows another one.
    let update = json!([{"merge_children": [object("/a/", json!([reference("/c/")]))]}]);
    world.ask(server, "policy_update", update);
    world.pass(1.0);
    assert_eq!(
        world.requests(server),
        [sent("policy_unresolve", "/b/"), sent("policy_resolve", "/c/")]
    );
}

#[test]
fn policy_is_resolved_by_identifier() {
    let (mut world, server) = World::ready(ElementSettings::default());
    let ident = Ident {
        context: uri("/s/"),
        name: "web".into(),
    };
    let target: Target = ident.into();
    let reference = world.act(|element, now| element.resolve_policy("class", target, false, now));
    let request = world.take_sent(server).remove(0);
    assert_eq!(
        request["params"][0]["policy_ident"],
        json!({"context": "/s/", "name": "web"})
    );
    world.send_text(server, &json!({"id": request["id"], "result": {"policy": []}}));

    let named = json!({"subject": "class", "uri": "/s/1/", "properties": [{"name": "name", "data": "web"}], "parent_uri": "/s/"});
    let other = json!({"subject": "class", "uri": "/s/2/", "properties": [{"name": "name", "data": "db"}], "parent_uri": "/s/"});
    world.ask(server, "policy_update", json!([{"replace": [named, other]}]));
    world.ask(
        server,
        "policy_update",
        json!([{"replace": [object("/s/1/x/", 1)]}]),
    );
    assert_eq!(known(&world), ["/s/1/", "/s/1/x/"]);
    release(&mut world, reference);
    world.pass(1.0);
    assert_eq!(
        world.take_sent(server)[0]["params"][0]["policy_ident"]["name"],
        "web"
    );
    assert_eq!(known(&world), [""; 0]);
}

#[test]
fn a_policy_without_its_identifier_is_not_of_the_resolve_any_more() {
    let (mut world, server) = World::ready(ElementSettings::default());
    let ident = Ident {
        context: uri("/s/"),
        name: "web".into(),
    };
    let target: Target = ident.into();
    world.act(|element, now| element.resolve_policy("class", target.clone(), false, now));
    let named = |text: &str, name: &str| {
        json!({"subject": "class", "uri": text, "parent_uri": "/s/",
            "properties": [{"name": "name", "data": name}]})
    };
    let replace = json!([{"replace": [named("/s/1/", "web"), named("/s/2/", "web"), object("/s/1/x/", 1)]}]);
    world.ask(server, "policy_update", replace);
    assert_eq!(known(&world), ["/s/1/", "/s/1/x/", "/s/2/"]);
    world.ask(
        server,
        "policy_update",
        json!([{"merge_children": [named("/s/1/", "db")]}]),
    );
    assert_eq!(known(&world), ["/s/2/"]);
    let delete = json!([{"delete": [{"subject": "class", "uri": "/s/2/"}]}]);
    world.ask(server, "policy_update", delete);
    let roots = world.element.items.iter().map(|(_, item)| item.roots.len());
    assert_eq!((known(&world).len(), roots.sum::<usize>()), (0, 0));
}

#[test]
fn a_changed_declaration_is_sent_again_and_a_dropped_one_is_undeclared() {
    let (mut world, server) = World::ready(ElementSettings::default());
    declare(&mut world, "/ep/", 1);
    let first = world.take_sent(server).remove(0);
    assert_eq!(
        first["params"],
        json!([{"endpoint": [{"subject": "class", "uri": "/ep/", "properties": [{"name": "p", "data": 1}],
            "children": []}], "prr": 7200}])
    );
    declare(&mut world, "/ep/", 1);
    assert_eq!(world.take_sent(server), NOTHING);
    declare(&mut world, "/ep/", 2);
    assert_eq!(world.requests(server), [sent("endpoint_declare", "/ep/")]);
    // The answer to the first request is ignored.
    world.send_text(server, &json!({"id": first["id"], "result": {}}));
    world.pass(11.1);
    assert_eq!(world.requests(server), [sent("endpoint_declare", "/ep/")]);

    assert!(world.act(|element, _| element.undeclare(&uri("/ep/"))));
    assert!(!world.act(|element, _| element.undeclare(&uri("/ep/"))));
    assert_eq!(world.requests(server), [sent("endpoint_undeclare", "/ep/")]);
    world.pass(100.0);
    assert_eq!(world.take_sent(server), NOTHING);
}

#[test]
fn a_report_is_repeated_until_it_is_withdrawn() {
    let (mut world, server) = World::ready(ElementSettings {
        prr: Duration::from_secs(15),
        ..ElementSettings::default()
    });
    report(&mut world, "/stats/", 1);
    report(&mut world, "/stats/", 2);
    assert_eq!(world.requests(server).len(), 2);
    assert!(world.element.withdraw(&uri("/stats/")));
    assert!(!world.element.withdraw(&uri("/stats/")));
    world.pass(100.0);
    assert_eq!(world.take_sent(server), NOTHING);
    let bad = ManagedObject::new("class", uri("/a/b/")).under("class", uri("/x/"));
    assert!(
        world
            .act(|element, now| element.report(bad.clone(), now))
            .is_err()
    );
    assert!(world.act(|element, now| element.declare(vec![bad], now)).is_err());
}

#[test]
fn endpoints_are_resolved_updated_and_released() {
    let (mut world, server) = World::ready(ElementSettings::default());
    let reference = world.act(|element, now| element.resolve_endpoint("class", uri("/ep/"), now));
    world.serve(server, &[object("/ep/", 1)]);
    world.ask(
        server,
        "endpoint_update",
        json!([{"replace": [object("/ep/", 2)], "delete": []}]),
    );
    let value = |world: &World| {
        world
            .element
            .endpoints()
            .get(&uri("/ep/"))
            .and_then(|ep| ep.property("p"))
            .cloned()
    };
    assert_eq!(value(&world), Some(json!(2)));
    // Policy and endpoints are in separate trees.
    world.ask(
        server,
        "policy_update",
        json!([{"delete": [{"subject": "class", "uri": "/ep/"}]}]),
    );
    assert_eq!(value(&world), Some(json!(2)));
    world.ask(
        server,
        "endpoint_update",
        json!([{"delete": [{"subject": "class", "uri": "/ep/"}]}]),
    );
    assert_eq!(value(&world), None);
    release(&mut world, reference);
    world.pass(1.0);
    assert_eq!(world.requests(server), [sent("endpoint_unresolve", "/ep/")]);
}
