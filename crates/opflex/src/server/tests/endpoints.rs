//! The endpoint registry.

use super::*;
use crate::model::LOOKED_AT;
use crate::server::{OnLeave, ServerLimits};

fn world(on_leave: OnLeave) -> World {
    World::new(ServerSettings {
        on_leave,
        ..ServerSettings::default()
    })
}

fn keep() -> World {
    world(OnLeave::Keep)
}

fn declare(world: &mut World, client: ConnectionId, objects: &[ManagedObject], prr: i64) {
    let answer = world.ask(
        client,
        "endpoint_declare",
        json!([{"endpoint": objects, "prr": prr}]),
    );
    assert_eq!(answer["result"], json!({}));
}

fn undeclare(world: &mut World, client: ConnectionId, text: &str) {
    let object = world.server.endpoints().get(&uri(text));
    let subject = object.map_or("ep", |object| object.subject().as_str()).to_owned();
    let answer = world.ask(
        client,
        "endpoint_undeclare",
        json!([{"subject": subject, "endpoint_uri": text}]),
    );
    assert_eq!(answer["result"], json!({}));
}

fn resolve(world: &mut World, client: ConnectionId, text: &str) -> Value {
    let params = json!([{"subject": "ep", "endpoint_uri": text, "prr": 7200}]);
    world.ask(client, "endpoint_resolve", params)["result"]["endpoint"].clone()
}

fn ep(text: &str, value: i64) -> ManagedObject {
    object("ep", text, value)
}

/// An endpoint of two objects.
fn with_ip(value: i64) -> [ManagedObject; 2] {
    [ep("/ep/1/", value), object("ip", "/ep/1/ip/a/", 1)]
}

fn known(world: &World) -> Vec<String> {
    world
        .server
        .endpoints()
        .iter()
        .map(|object| object.uri().to_string())
        .collect()
}

fn update(world: &mut World, client: ConnectionId) -> Value {
    let mut messages = world.messages_to(client);
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(messages[0]["method"], "endpoint_update");
    messages.remove(0)["params"][0].take()
}

#[test]
fn a_resolved_endpoint_causes_updates_when_it_is_created_changed_and_removed() {
    let mut world = keep();
    let (pe, asker) = (world.element("pe1"), world.element("pe2"));
    assert_eq!(resolve(&mut world, asker, "/ep/1/"), json!([]));

    declare(&mut world, pe, &with_ip(1), 60);
    let params = update(&mut world, asker);
    assert_eq!(
        (uris(&params["replace"]), &params["delete"]),
        (vec!["/ep/1/", "/ep/1/ip/a/"], &json!([]))
    );
    assert!(params.get("merge_children").is_none());

    declare(&mut world, pe, &with_ip(2), 60);
    assert_eq!(
        uris(&update(&mut world, asker)["replace"]),
        ["/ep/1/", "/ep/1/ip/a/"]
    );

    declare(&mut world, pe, &[ep("/ep/1/", 2)], 60);
    assert_eq!(uris(&update(&mut world, asker)["delete"]), ["/ep/1/ip/a/"]);

    declare(&mut world, pe, &[ep("/ep/1/", 2)], 60);
    assert_eq!(world.messages_to(asker), NOTHING);

    undeclare(&mut world, pe, "/ep/1/");
    assert_eq!(
        update(&mut world, asker)["delete"],
        json!([{"subject": "ep", "uri": "/ep/1/"}])
    );
    assert_eq!(known(&world), [""; 0]);
}

#[test]
fn a_declaration_ends_with_its_refresh_time_unless_renewed() {
    let mut world = keep();
    let (pe, asker) = (world.element("pe1"), world.element("pe2"));
    resolve(&mut world, asker, "/ep/1/");
    declare(&mut world, pe, &[ep("/ep/1/", 1)], 60);
    declare(&mut world, pe, &[ep("/ep/2/", 1)], 60);
    world.messages_to(asker);
    world.pass(40.0);
    declare(&mut world, pe, &[ep("/ep/2/", 1)], 60);
    world.pass(19.9);
    assert_eq!(known(&world), ["/ep/1/", "/ep/2/"]);
    world.pass(0.1);
    assert_eq!(known(&world), ["/ep/2/"]);
    assert_eq!(uris(&update(&mut world, asker)["delete"]), ["/ep/1/"]);
    world.pass(40.0);
    assert_eq!(known(&world), [""; 0]);
    assert_eq!(world.server.declaration(&uri("/ep/2/")), None);
}

/// An element dials each address of a server, such as its IPv4 and its IPv6 address.
#[test]
fn an_endpoint_stays_while_another_connection_of_its_element_has_declared_it() {
    let mut world = world(OnLeave::Grace(Duration::from_secs(1)));
    let (a, b) = (world.element("agent1"), world.element("agent1"));
    for connection in [a, b] {
        declare(&mut world, connection, &[ep("/ep/1/", 1)], 7200);
    }
    declare(&mut world, b, &[ep("/ep/2/", 1)], 7200);
    world.leave(b);
    world.pass(2.0);
    assert_eq!(known(&world), ["/ep/1/"], "b alone has declared /ep/2/");
    world.leave(a);
    world.pass(2.0);
    assert_eq!(known(&world), [""; 0]);
}

#[test]
fn the_connections_of_a_former_owner_keep_no_endpoint() {
    let mut world = world(OnLeave::Remove);
    let (first, second) = (world.element("agent1"), world.element("agent2"));
    declare(&mut world, first, &[ep("/ep/1/", 1)], 7200);
    declare(&mut world, second, &[ep("/ep/1/", 2)], 7200);
    world.leave(second);
    assert_eq!(known(&world), [""; 0]);
}

#[test]
fn each_on_leave_setting_treats_endpoints_as_documented() {
    let after = |on_leave, seconds| {
        let mut world = world(on_leave);
        let pe = world.element("pe1");
        declare(&mut world, pe, &[ep("/ep/1/", 1)], 60);
        // An endpoint without a time of expiry is removed after the grace.
        declare(&mut world, pe, &[ep("/ep/2/", 1)], 0);
        world.leave(pe);
        if !matches!(on_leave, OnLeave::Grace(_)) {
            assert!(!known(&world).contains(&"/ep/2/".to_owned()));
        }
        world.pass(seconds);
        known(&world).len()
    };
    let grace = OnLeave::Grace(Duration::from_secs(30));
    assert_eq!((after(OnLeave::Keep, 59.0), after(OnLeave::Keep, 60.0)), (1, 0));
    assert_eq!((after(grace, 29.0), after(grace, 30.0)), (2, 0));
    assert_eq!(after(OnLeave::Grace(Duration::from_secs(3600)), 60.0), 1);
    assert_eq!(after(OnLeave::Remove, 0.0), 0);
}

#[test]
fn an_element_that_reconnects_in_time_keeps_its_endpoints() {
    let mut world = world(OnLeave::Grace(Duration::from_secs(30)));
    let (pe, asker) = (world.element("pe1"), world.element("pe2"));
    resolve(&mut world, asker, "/ep/1/");
    declare(&mut world, pe, &[ep("/ep/1/", 1)], 60);
    world.messages_to(asker);
    // The new connection begins before the end of the former one is noticed.
    let again = world.element("pe1");
    declare(&mut world, again, &[ep("/ep/1/", 1)], 60);
    world.leave(pe);
    world.pass(59.0);
    assert_eq!(known(&world), ["/ep/1/"]);
    assert_eq!(world.messages_to(asker), NOTHING);
}

#[test]
fn the_former_element_does_not_remove_an_endpoint_that_moved() {
    let mut world = world(OnLeave::Remove);
    let (old, new) = (world.element("pe1"), world.element("pe2"));
    declare(&mut world, old, &[ep("/ep/1/", 1)], 60);
    declare(&mut world, new, &[ep("/ep/1/", 2)], 60);
    undeclare(&mut world, old, "/ep/1/");
    world.leave(old);
    assert_eq!(known(&world), ["/ep/1/"]);
    undeclare(&mut world, new, "/ep/1/");
    assert_eq!(known(&world), [""; 0]);
    undeclare(&mut world, new, "/ep/never/");
}

/// The declaration of a virtual machine by agent-ovs: the endpoint in its bridge domain with its
/// attributes as children, and the endpoint of its address.
fn virtual_machine(host: &str) -> [Vec<ManagedObject>; 2] {
    let domain = "%2fPolicyUniverse%2fPolicySpace%2fshop%2fGbpBridgeDomain%2fbd%2f";
    let top = format!("/EprL2Universe/EprL2Ep/{domain}/00%3a11%3a22%3a33%3a44%3a55/");
    let attributes = format!("{top}GbpeReportedEpAttributeSet/");
    let attribute = format!("{attributes}GbpeReportedEpAttribute/vm-name/");
    let set = ManagedObject::new("GbpeReportedEpAttributeSet", uri(&attributes));
    let name = ManagedObject::new("GbpeReportedEpAttribute", uri(&attribute));
    let mut l2 = vec![
        ManagedObject::new("EprL2Ep", uri(&top))
            .with("uuid", "83f18f0b-80f7-46e2-b06c-4d9487b0c754")
            .with("interfaceName", host),
        set.under("EprL2Ep", uri(&top)),
        name.with("name", "vm-name")
            .with("value", "web-1")
            .under("GbpeReportedEpAttributeSet", uri(&attributes)),
    ];
    l2[0].children = vec![uri(&attributes)];
    l2[1].children = vec![uri(&attribute)];
    let l3 = uri("/EprL3Universe/EprL3Ep/%2fPolicyUniverse%2frd%2f/10.0.0.1/");
    [l2, vec![ManagedObject::new("EprL3Ep", l3).with("ip", "10.0.0.1")]]
}

#[test]
fn an_endpoint_moves_with_its_declared_children() {
    let mut world = world(OnLeave::Remove);
    let (old, new) = (world.element("host-1"), world.element("host-2"));
    for endpoint in virtual_machine("veth1") {
        declare(&mut world, old, &endpoint, 7200);
    }
    let all = known(&world);
    // The new host declares it before or after the former host undeclares it.
    let [mut l2, l3] = virtual_machine("veth2");
    l2.reverse();
    for endpoint in [l2, l3] {
        declare(&mut world, new, &endpoint, 7200);
    }
    for endpoint in virtual_machine("veth1") {
        undeclare(&mut world, old, endpoint[0].uri.as_str());
    }
    world.leave(old);
    assert_eq!(known(&world), all);
    let [l2, _] = virtual_machine("veth2");
    let present = world.server.endpoints().get(&l2[0].uri).unwrap();
    assert_eq!(present.property("interfaceName"), Some(&json!("veth2")));
    assert_eq!(present.children().count(), 1);
    // The parts of an endpoint move only with the endpoint.
    let part = json!([{"endpoint": [l2[2]], "prr": 60}]);
    let other = world.element("host-3");
    assert_eq!(code(&world.ask(other, "endpoint_declare", part)), "ERROR");
}

#[test]
fn the_same_element_on_a_new_connection_can_undeclare() {
    let mut world = keep();
    let pe = world.element("pe1");
    declare(&mut world, pe, &[ep("/ep/1/", 1)], 60);
    world.leave(pe);
    let pe = world.element("pe1");
    undeclare(&mut world, pe, "/ep/1/");
    assert_eq!(known(&world), [""; 0]);
}

#[test]
fn an_identifier_resolves_all_endpoints_that_have_it() {
    let mut world = keep();
    let (pe, asker) = (world.element("pe1"), world.element("pe2"));
    let ident = json!({"context": "/rd/", "identifier": "10.0.0.1"});
    let params = json!([{"subject": "ep", "endpoint_ident": ident, "prr": 60}]);
    let at = |text: &str| ep(text, 1).with("context", "/rd/").with("ip", "10.0.0.1");
    declare(&mut world, pe, &[at("/ep/1/"), at("/ep/2/"), ep("/ep/3/", 1)], 60);
    let answer = world.ask(asker, "endpoint_resolve", params);
    assert_eq!(uris(&answer["result"]["endpoint"]), ["/ep/1/", "/ep/2/"]);

    // The address moves away from one of the two.
    declare(&mut world, pe, &[ep("/ep/1/", 1)], 60);
    assert_eq!(uris(&update(&mut world, asker)["replace"]), ["/ep/1/"]);
    declare(&mut world, pe, &[ep("/ep/1/", 2)], 60);
    assert_eq!(world.messages_to(asker), NOTHING);

    world.ask(
        asker,
        "endpoint_unresolve",
        json!([{"subject": "ep", "endpoint_ident": ident}]),
    );
    undeclare(&mut world, pe, "/ep/2/");
    assert_eq!(world.messages_to(asker), NOTHING);
}

#[test]
fn a_missing_refresh_rate_means_the_default_and_an_absurd_one_means_the_connection() {
    let mut world = keep();
    let pe = world.element("pe1");
    let answer = world.ask(pe, "endpoint_declare", json!([{"endpoint": [ep("/ep/1/", 1)]}]));
    assert_eq!(answer["result"], json!({}));
    declare(&mut world, pe, &[ep("/ep/2/", 1)], 0);
    let answer = world.ask(
        pe,
        "endpoint_resolve",
        json!([{"subject": "ep", "endpoint_uri": "/ep/1/"}]),
    );
    assert_eq!(uris(&answer["result"]["endpoint"]), ["/ep/1/"]);
    assert_eq!(world.server.sessions(world.now)[0].endpoint_resolves, 1);
    for _ in 0..720 {
        world.pass(10.0);
        world.ask(pe, "echo", json!([]));
        world.take_sent(pe);
    }
    assert_eq!(known(&world), ["/ep/2/"]);
}

#[test]
fn a_request_is_carried_out_completely_or_not_at_all() {
    let mut world = keep();
    let pe = world.element("pe1");
    let bad = ep("/ep/2/", 1).under("x", uri("/elsewhere/"));
    let params = json!([{"endpoint": [ep("/ep/1/", 1)], "prr": 60}, {"endpoint": [bad], "prr": 60}]);
    assert_eq!(code(&world.ask(pe, "endpoint_declare", params)), "ERROR");
    assert_eq!(
        (known(&world).len(), world.server.sessions(world.now)[0].endpoints),
        (0, 0)
    );
}

#[test]
fn the_number_of_endpoint_objects_is_limited() {
    let mut world = World::new(ServerSettings {
        limits: ServerLimits {
            endpoint_objects: 2,
            ..ServerLimits::default()
        },
        ..ServerSettings::default()
    });
    let pe = world.element("pe1");
    declare(&mut world, pe, &[ep("/ep/1/", 1), ep("/ep/2/", 1)], 60);
    let more = json!([{"endpoint": [ep("/ep/3/", 1)], "prr": 60}]);
    assert_eq!(code(&world.ask(pe, "endpoint_declare", more)), "ERROR");
    declare(&mut world, pe, &[ep("/ep/2/", 2)], 60);
    assert_eq!(world.server.sessions(world.now)[0].endpoints, 2);
}

#[test]
fn an_element_cannot_remove_endpoints_of_another() {
    let mut world = keep();
    let (a, b) = (world.element("a"), world.element("b"));
    declare(&mut world, a, &with_ip(1), 60);
    declare(&mut world, a, &[ep("/other/2/", 1)], 60);
    let all = known(&world);
    // Objects without a declaration, above the endpoints of others and in them.
    for text in ["/", "/ep/", "/ep", "/ep/1/", "/ep/1/ip/a/"] {
        undeclare(&mut world, b, text);
        assert_eq!(known(&world), all, "{text}");
    }
    // The element has an endpoint above the endpoints of others, and removes it in each way.
    for text in ["/", "/ep/"] {
        declare(&mut world, b, &[ep(text, 1)], 60);
        assert_eq!(known(&world).len(), all.len() + 1, "{text}");
        undeclare(&mut world, b, text);
        assert_eq!(known(&world), all, "{text}");
        declare(&mut world, b, &[ep(text, 2)], 1);
        world.pass(1.0);
        assert_eq!(known(&world), all, "{text}");
    }
    let mut lists = ep("/ep/", 1);
    lists.children = vec![uri("/ep/1/")];
    declare(&mut world, b, &[lists], 60);
    declare(&mut world, b, &[ep("/ep/", 1)], 60);
    undeclare(&mut world, b, "/ep/");
    assert_eq!(known(&world), all);
    assert_eq!(world.server.sessions(world.now)[0].endpoints, 2);
}

#[test]
fn an_endpoint_below_one_of_another_element_stays_when_that_changes_or_is_removed() {
    let mut world = keep();
    let (a, b) = (world.element("a"), world.element("b"));
    declare(&mut world, a, &with_ip(1), 60);
    declare(&mut world, b, &[object("vm", "/ep/1/vm/b/", 1)], 60);
    declare(&mut world, a, &[ep("/ep/1/", 2)], 60);
    assert_eq!(known(&world), ["/ep/1/", "/ep/1/vm/b/"]);
    undeclare(&mut world, a, "/ep/1/");
    assert_eq!(known(&world), ["/ep/1/vm/b/"]);
    undeclare(&mut world, b, "/ep/1/vm/b/");
    assert_eq!(known(&world), [""; 0]);
}

#[test]
fn only_its_element_replaces_a_part_of_an_endpoint() {
    let mut world = keep();
    let (a, b) = (world.element("a"), world.element("b"));
    declare(&mut world, a, &with_ip(1), 60);
    let part = json!([{"endpoint": [object("ip", "/ep/1/ip/a/", 2)], "prr": 60}]);
    assert_eq!(code(&world.ask(b, "endpoint_declare", part)), "ERROR");
    let around = json!([{"endpoint": [ep("/ep/", 2), object("ip", "/ep/1/ip/a/", 2)], "prr": 60}]);
    assert_eq!(code(&world.ask(b, "endpoint_declare", around)), "ERROR");
    let value = |world: &World| {
        world
            .server
            .endpoints()
            .get(&uri("/ep/1/ip/a/"))
            .unwrap()
            .property("p")
            .cloned()
    };
    assert_eq!(value(&world), Some(json!(1)));
    // The endpoint moves as a whole.
    declare(&mut world, b, &[ep("/ep/1/", 3)], 60);
    assert_eq!(known(&world), ["/ep/1/"]);
    undeclare(&mut world, a, "/ep/1/");
    assert_eq!(known(&world), ["/ep/1/"]);
}

#[test]
fn the_memory_of_endpoints_is_limited_with_a_share_for_each_element() {
    let mut world = World::new(ServerSettings {
        limits: ServerLimits {
            endpoint_bytes: 200_000,
            ..ServerLimits::default()
        },
        ..ServerSettings::default()
    });
    let pe = world.element("pe1");
    let long = |text: &str| object("ep", text, "x".repeat(60_000));
    for _ in 0..3 {
        declare(&mut world, pe, &[long("/ep/1/")], 60);
    }
    let more = json!([{"endpoint": [long("/ep/2/")], "prr": 60}]);
    assert_eq!(code(&world.ask(pe, "endpoint_declare", more.clone())), "ERROR");
    // Another element has room, and the first may repeat its declarations.
    let other = world.element("pe2");
    assert_eq!(world.ask(other, "endpoint_declare", more)["result"], json!({}));
    declare(&mut world, pe, &[long("/ep/1/")], 60);
    undeclare(&mut world, pe, "/ep/1/");
    undeclare(&mut world, other, "/ep/2/");
    declare(&mut world, pe, &[long("/ep/3/")], 60);
    assert_eq!(known(&world), ["/ep/3/"]);
}

#[test]
fn short_texts_with_many_values_are_limited_by_memory() {
    let mut world = World::new(ServerSettings {
        limits: ServerLimits {
            endpoint_bytes: 4 << 20,
            ..ServerLimits::default()
        },
        ..ServerSettings::default()
    });
    let pe = world.element("pe1");
    // 6,000 characters each, for which a map node of some 600 bytes is allocated 875 times; on a
    // system of 32 bits half as much, twice as often.
    let values = 56_000 / usize::BITS as usize;
    let many = |n: usize| object("ep", &format!("/ep/{n}/"), vec![json!({"": 0}); values]);
    for n in 0..3 {
        declare(&mut world, pe, &[many(n)], 60);
    }
    let more = json!([{"endpoint": [many(3)], "prr": 60}]);
    assert_eq!(code(&world.ask(pe, "endpoint_declare", more)), "ERROR");
}

#[test]
fn the_identifiers_of_an_object_are_limited() {
    let mut world = keep();
    let pe = world.element("pe1");
    let named = |object: ManagedObject, n: usize| object.with("name", format!("n{n}"));
    let object = (0..100_000).fold(ep("/ep/1/", 1).with("context", "/c/"), named);
    declare(&mut world, pe, &[object], 60);
    assert_eq!(world.server.endpoints().idents(&uri("/ep/1/")).len(), 16);
}

#[test]
fn the_last_four_connections_of_an_element_that_declared_an_endpoint_keep_it() {
    let mut world = world(OnLeave::Remove);
    let all: Vec<_> = (0..5).map(|_| world.element("pe1")).collect();
    for connection in &all {
        declare(&mut world, *connection, &[ep("/ep/1/", 1)], 60);
    }
    for connection in &all[2..] {
        world.leave(*connection);
    }
    assert_eq!(known(&world), ["/ep/1/"], "the second one keeps it");
    world.leave(all[1]);
    assert_eq!(known(&world), [""; 0]);
}

#[test]
fn an_endpoint_of_another_element_gets_no_other_parent() {
    let mut world = keep();
    let (pe, other) = (world.element("pe1"), world.element("pe2"));
    declare(&mut world, pe, &[ep("/ep/1/a/", 1)], 60);
    let mut above = ep("/ep/1/", 2);
    above.children = vec![uri("/ep/1/a/")];
    declare(&mut world, other, &[above], 60);
    let below = world.server.endpoints().get(&uri("/ep/1/a/")).unwrap();
    assert_eq!(below.parent_uri(), None);
    let above = world.server.endpoints().get(&uri("/ep/1/")).unwrap();
    assert_eq!(above.children().count(), 0);
}

fn limited(endpoint_bytes: usize) -> World {
    World::new(ServerSettings {
        limits: ServerLimits {
            endpoint_bytes,
            ..ServerLimits::default()
        },
        ..ServerSettings::default()
    })
}

#[test]
fn an_endpoint_that_moves_needs_room_at_its_new_element() {
    let mut world = limited(200_000);
    let long = |text: &str| object("ep", text, "x".repeat(60_000));
    let (pe, other) = (world.element("pe1"), world.element("pe2"));
    declare(&mut world, pe, &[long("/ep/1/")], 60);
    declare(&mut world, other, &[long("/ep/2/")], 60);
    let moved = json!([{"endpoint": [long("/ep/1/")], "prr": 60}]);
    assert_eq!(code(&world.ask(other, "endpoint_declare", moved)), "ERROR");
}

#[test]
fn the_name_of_an_element_takes_room_with_each_endpoint() {
    let fits = |limit: usize, length: usize| {
        let mut world = limited(limit);
        let pe = world.element(&"n".repeat(length));
        let endpoints: Vec<_> = (0..25).map(|n| ep(&format!("/ep/{n}/"), 1)).collect();
        let asked = json!([{ "endpoint": endpoints, "prr": 60 }]);
        world.ask(pe, "endpoint_declare", asked)["result"] == json!({})
    };
    let enough = (1..).map(|n| n * 1000).find(|limit| fits(*limit, 1)).unwrap();
    // An element has half of the limit at most.
    assert!(!fits(enough + 2 * 25 * 700, 900) && fits(enough + 2 * 25 * 1000, 900));
}

#[test]
fn an_endpoint_inside_of_one_that_expires_stays_while_it_is_declared_itself() {
    let mut world = keep();
    let pe = world.element("pe1");
    declare(&mut world, pe, &with_ip(1), 60);
    declare(&mut world, pe, &[object("vm", "/ep/1/vm/a/", 1)], 120);
    world.pass(60.0);
    assert_eq!(known(&world), ["/ep/1/vm/a/"]);
    world.pass(60.0);
    assert_eq!(known(&world), [""; 0]);
}

#[test]
fn an_endpoint_inside_of_another_one_ends_with_its_own_connection() {
    let mut world = world(OnLeave::Remove);
    let (a, b) = (world.element("pe1"), world.element("pe1"));
    declare(&mut world, a, &with_ip(1), 60);
    declare(&mut world, b, &[object("vm", "/ep/1/vm/a/", 1)], 60);
    world.leave(a);
    assert_eq!(known(&world), ["/ep/1/vm/a/"]);
}

#[test]
fn an_undeclare_of_another_class_removes_nothing() {
    let mut world = keep();
    let pe = world.element("pe1");
    declare(&mut world, pe, &[ep("/ep/1/", 1)], 60);
    let former = json!([{"subject": "former", "endpoint_uri": "/ep/1/"}]);
    world.ask(pe, "endpoint_undeclare", former);
    assert_eq!(known(&world), ["/ep/1/"]);
}

/// Objects without their last slash.
#[test]
fn an_element_that_omits_the_last_slash_gets_no_part_of_an_endpoint() {
    let mut world = keep();
    let (a, b) = (world.element("a"), world.element("b"));
    declare(&mut world, a, &with_ip(1), 60);
    declare(&mut world, b, &[ep("/ep/1", 1)], 60);
    let part = json!([{"endpoint": [ep("/ep/1", 2), object("ip", "/ep/1/ip/a/", 2)], "prr": 60}]);
    assert_eq!(code(&world.ask(b, "endpoint_declare", part)), "ERROR");
    declare(&mut world, a, &with_ip(3), 60);
    undeclare(&mut world, b, "/ep/1");
    assert_eq!(known(&world), ["/ep/1/", "/ep/1/ip/a/"]);
    undeclare(&mut world, a, "/ep/1/");

    // Nor does it lock out the element that comes later.
    declare(
        &mut world,
        b,
        &[ep("/ep/1", 1), object("ip", "/ep/1/ip/a/", 2)],
        60,
    );
    declare(&mut world, a, &with_ip(3), 60);
    undeclare(&mut world, b, "/ep/1");
    assert_eq!(known(&world), ["/ep/1/", "/ep/1/ip/a/"]);
    undeclare(&mut world, a, "/ep/1/");
    assert_eq!(known(&world), [""; 0]);
}

#[test]
fn a_new_object_is_not_added_to_an_endpoint_of_another_element() {
    let mut world = keep();
    let (a, b) = (world.element("a"), world.element("b"));
    declare(&mut world, a, &with_ip(1), 60);
    let around = json!([{"endpoint": [ep("/ep/", 2), object("ip", "/ep/1/ip/b/", 2)], "prr": 60}]);
    assert_eq!(code(&world.ask(b, "endpoint_declare", around)), "ERROR");
}

/// An element has half of the limit at most, so two objects of 60,000 bytes are too many.
#[test]
fn what_stays_below_an_endpoint_takes_room() {
    let refused = |world: &mut World, pe, declares: Value| {
        let answer = world.ask(pe, "endpoint_declare", declares);
        answer.get("error").is_some()
    };
    let long = |text: &str| object("ep", text, "x".repeat(60_000));
    let lists = || {
        let mut top = ep("/ep/1/", 1);
        top.children = vec![uri("/ep/1/ip/a/")];
        top
    };
    let part = || long("/ep/1/ip/a/");
    let mut world = limited(200_000);
    let pe = world.element("pe1");
    declare(&mut world, pe, &[ep("/ep/1/", 1), part()], 60);
    declare(&mut world, pe, &[lists()], 60);
    let more = json!([{"endpoint": [long("/ep/2/")], "prr": 60}]);
    assert!(refused(&mut world, pe, more.clone()), "the part stays");
    // A part that goes makes room.
    declare(&mut world, pe, &[ep("/ep/1/", 1), long("/ep/1/ip/b/")], 60);
    declare(&mut world, pe, &[ep("/ep/1/", 1)], 60);
    declare(&mut world, pe, &[long("/ep/2/")], 60);

    let mut world = limited(200_000);
    let pe = world.element("pe1");
    let twice =
        json!([{"endpoint": [ep("/ep/1/", 1), part()], "prr": 60}, {"endpoint": [lists()], "prr": 60}]);
    assert!(!refused(&mut world, pe, twice));
    assert!(
        refused(&mut world, pe, more),
        "the part of the first declare stays"
    );

    let mut world = limited(200_000);
    let pe = world.element("pe1");
    declare(&mut world, pe, &[long("/ep/1/")], 60);
    let small = json!({"endpoint": [ep("/ep/1/", 1)], "prr": 60});
    let many = json!([small, small, small, {"endpoint": [long("/ep/2/"), long("/ep/3/")], "prr": 60}]);
    assert!(refused(&mut world, pe, many), "the former bytes count once");

    // An object that lands in an inner endpoint counts for that one.
    let mut world = limited(200_000);
    let pe = world.element("pe1");
    declare(&mut world, pe, &[ep("/ep/1/", 1)], 60);
    declare(&mut world, pe, &[ep("/ep/", 1), part()], 60);
    let mut around = ep("/ep/", 1);
    around.children = vec![uri("/ep/1/"), uri("/ep/1/ip/a/")];
    declare(&mut world, pe, &[around], 60);
    let more = json!([{"endpoint": [long("/ep/2/")], "prr": 60}]);
    assert!(refused(&mut world, pe, more));
}

#[test]
fn what_lands_in_an_endpoint_that_goes_takes_room() {
    let mut world = limited(200_000);
    let pe = world.element("pe1");
    let long = |text: &str| object("ep", text, "x".repeat(60_000));
    let mut around = ep("/ep/", 1);
    around.children = vec![uri("/ep/1/")];
    declare(&mut world, pe, &[around], 60);
    declare(&mut world, pe, &[ep("/ep/1/", 1)], 60);
    declare(&mut world, pe, &[ep("/ep/", 1), long("/ep/1/ip/a/")], 60);
    assert_eq!(known(&world), ["/ep/", "/ep/1/ip/a/"]);
    let more = json!([{"endpoint": [long("/ep2/")], "prr": 60}]);
    assert_eq!(code(&world.ask(pe, "endpoint_declare", more.clone())), "ERROR");
    undeclare(&mut world, pe, "/ep/");
    assert_eq!(world.ask(pe, "endpoint_declare", more)["result"], json!({}));
}

#[test]
fn what_moves_with_an_endpoint_takes_room_of_its_new_element_alone() {
    let long = |text: &str| object("ep", text, "x".repeat(60_000));
    let lists = |text: &str| {
        let mut top = ep(text, 2);
        top.children = vec![uri("/ep/1/ip/a/")];
        top
    };
    // With its last slash and without it, and with the part and without it.
    for moves in [
        vec![lists("/ep/1")],
        vec![lists("/ep/1/")],
        vec![ep("/ep/1/", 2), long("/ep/1/ip/a/")],
    ] {
        let mut world = limited(200_000);
        let (a, b) = (world.element("a"), world.element("b"));
        declare(&mut world, a, &[ep("/ep/1", 1), long("/ep/1/ip/a/")], 60);
        declare(&mut world, b, &moves, 60);
        let more = |text: &str| json!([{"endpoint": [long(text)], "prr": 60}]);
        assert_eq!(code(&world.ask(b, "endpoint_declare", more("/ep/2/"))), "ERROR");
        assert_eq!(
            world.ask(a, "endpoint_declare", more("/ep/3/"))["result"],
            json!({})
        );
    }
}

#[test]
fn a_declare_of_an_object_above_the_endpoints_of_others_looks_at_none_of_them() {
    let mut world = keep();
    let (pe, other) = (world.element("pe1"), world.element("pe2"));
    let endpoints: Vec<_> = (0..50).map(|n| ep(&format!("/ep/{n}/"), 1)).collect();
    declare(&mut world, other, &endpoints, 60);
    declare(&mut world, pe, &[ep("/ep/", 1)], 60);
    // It does not become the parent of those that are declared again.
    declare(&mut world, other, &endpoints, 60);
    LOOKED_AT.set(0);
    declare(&mut world, pe, &[ep("/ep/", 2)], 60);
    assert_eq!(LOOKED_AT.get(), 0);
}

#[test]
fn what_is_taken_undeclared_or_replaced_looks_at_no_endpoint_of_others() {
    let mut world = world(OnLeave::Remove);
    let (other, a, b) = (world.element("pe1"), world.element("a"), world.element("b"));
    let endpoints: Vec<_> = (0..50).map(|n| ep(&format!("/ep/x/{n}/"), 1)).collect();
    declare(&mut world, other, &endpoints, 60);
    LOOKED_AT.set(0);
    for taker in [a, b, a, b] {
        declare(&mut world, taker, &[ep("/ep/", 1), ep("/ep/x/", 1)], 60);
        declare(&mut world, taker, &[ep("/ep/", 1)], 60);
    }
    undeclare(&mut world, b, "/ep/");
    declare(&mut world, b, &[ep("/ep/", 1)], 60);
    world.leave(b);
    assert_eq!(LOOKED_AT.get(), 0);
    assert_eq!(known(&world).len(), 50);
}
