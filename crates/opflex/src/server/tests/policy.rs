//! The policy repository.

use super::*;
use crate::model::{Format, Schema};
use crate::server::ServerLimits;

fn world() -> World {
    let mut world = World::new(ServerSettings::default());
    world.put(vec![
        object("class4", "/class4/test/", "v0"),
        object("class6", "/class4/test/class6/test2/", "v0-child"),
    ]);
    world
}

fn resolve(world: &mut World, client: ConnectionId, text: &str, prr: i64) -> Value {
    let params = json!([{"subject": "class4", "policy_uri": text, "prr": prr}]);
    world.ask(client, "policy_resolve", params)["result"]["policy"].clone()
}

/// The only update that was sent to a connection.
fn update(world: &mut World, client: ConnectionId) -> Value {
    let mut messages = world.messages_to(client);
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(messages[0]["method"], "policy_update");
    messages.remove(0)["params"][0].take()
}

/// The URIs that were deleted by the updates to a connection, each of one class.
fn deleted(world: &mut World, client: ConnectionId) -> Vec<String> {
    let mut all = Vec::new();
    for update in world.messages_to(client) {
        let delete = update["params"][0]["delete"].as_array().unwrap();
        assert!(delete.iter().all(|gone| gone["subject"] == delete[0]["subject"]));
        all.extend(delete.iter().map(|gone| gone["uri"].as_str().unwrap().to_owned()));
    }
    all
}

fn nothing(world: &mut World, client: ConnectionId) {
    assert_eq!(world.messages_to(client), NOTHING);
}

#[test]
fn a_resolve_is_answered_with_the_subtree_parents_first() {
    let mut world = world();
    let client = world.element("pe1");
    assert_eq!(
        resolve(&mut world, client, "/class4/test/", 7200),
        json!([
            {"subject": "class4", "uri": "/class4/test/", "properties": [{"name": "p", "data": "v0"}],
             "children": ["/class4/test/class6/test2/"]},
            {"subject": "class6", "uri": "/class4/test/class6/test2/",
             "properties": [{"name": "p", "data": "v0-child"}], "children": [],
             "parent_subject": "class4", "parent_uri": "/class4/test/", "parent_relation": "class6"},
        ])
    );
    assert_eq!(resolve(&mut world, client, "/class4/missing/", 7200), json!([]));
    assert_eq!(world.server.sessions(world.now)[0].counters.unavailable, 1);
}

#[test]
fn a_resolve_with_another_class_is_answered_without_an_error() {
    let mut world = World::new(ServerSettings::default());
    let subnet = "/PolicyUniverse/PolicySpace/shop/GbpSubnets/web/GbpSubnet/one/";
    world.put(vec![
        ManagedObject::new("GbpSubnet", uri(subnet)).with("name", "one"),
    ]);
    let agent = world.element("host-1");
    let ask = |world: &mut World, class: &str| {
        let params = json!([{"subject": class, "policy_uri": subnet, "prr": 7200}]);
        world.ask(agent, "policy_resolve", params)["result"]["policy"].clone()
    };
    // After an error, an agent would repeat the resolve for ever.
    assert_eq!(ask(&mut world, "GbpSubnets"), json!([]));
    assert_eq!(world.server.sessions(world.now)[0].counters.unavailable, 1);
    world.put(vec![
        ManagedObject::new("GbpSubnet", uri(subnet)).with("name", "two"),
    ]);
    nothing(&mut world, agent);
    assert_eq!(uris(&ask(&mut world, "GbpSubnet")), [subnet]);
}

#[test]
fn several_resolves_in_one_request_send_each_object_once() {
    let mut world = world();
    let client = world.element("pe1");
    let one = |subject: &str, text: &str| json!({"subject": subject, "policy_uri": text, "prr": 60});
    let params = json!([
        one("class6", "/class4/test/class6/test2/"),
        one("class4", "/class4/test/"),
        one("class4", "/class4/missing/"),
        one("class4", "/class4/test/"),
    ]);
    let answer = world.ask(client, "policy_resolve", params);
    assert_eq!(
        uris(&answer["result"]["policy"]),
        ["/class4/test/", "/class4/test/class6/test2/"]
    );
    assert_eq!(world.server.sessions(world.now)[0].policies, 3);
    assert_eq!(
        world.ask(client, "policy_resolve", json!([]))["result"],
        json!({"policy": []})
    );
}

/// The conversation of data file 11 of the captures.
#[test]
fn only_clients_that_resolved_an_object_or_its_ancestor_get_updates() {
    let mut world = world();
    let (a, b) = (world.element("a"), world.element("b"));
    resolve(&mut world, a, "/class4/test/", 4);
    resolve(&mut world, b, "/class4/nothere/", 7200);

    world.put(vec![object("class4", "/class4/test/", "v1")]);
    let params = update(&mut world, a);
    assert_eq!(uris(&params["merge_children"]), ["/class4/test/"]);
    assert_eq!(
        params["merge_children"][0]["children"],
        json!(["/class4/test/class6/test2/"])
    );
    assert_eq!((&params["replace"], &params["delete"]), (&json!([]), &json!([])));
    nothing(&mut world, b);

    world.put(vec![object("class6", "/class4/test/class6/test2/", "c1")]);
    assert_eq!(
        uris(&update(&mut world, a)["merge_children"]),
        ["/class4/test/class6/test2/"]
    );

    world.put(vec![object("class6", "/class4/test/class6/test2/", "c1")]);
    nothing(&mut world, a);

    world.put(vec![object("class4", "/class4/nothere/", "new")]);
    assert_eq!(uris(&update(&mut world, b)["replace"]), ["/class4/nothere/"]);
    nothing(&mut world, a);

    world.put(vec![object("class4", "/class4/nobody/", "x")]);
    nothing(&mut world, a);
    nothing(&mut world, b);

    world.delete("/class4/test/class6/test2/");
    let deleted = json!([{"subject": "class6", "uri": "/class4/test/class6/test2/"}]);
    assert_eq!(update(&mut world, a)["delete"], deleted);

    world.pass(4.0);
    world.put(vec![object("class4", "/class4/test/", "v2")]);
    nothing(&mut world, a);
}

#[test]
fn updates_end_exactly_with_the_refresh_rate() {
    let mut world = world();
    let client = world.element("pe1");
    resolve(&mut world, client, "/class4/test/", 60);
    world.pass(30.0);
    resolve(&mut world, client, "/class4/test/", 60);
    world.pass(59.9);
    world.put(vec![object("class4", "/class4/test/", 1)]);
    assert_eq!(world.messages_to(client).len(), 1);
    world.pass(0.1);
    world.put(vec![object("class4", "/class4/test/", 2)]);
    nothing(&mut world, client);
    assert_eq!(world.server.sessions(world.now)[0].policies, 0);
}

#[test]
fn a_refresh_rate_of_zero_means_no_updates() {
    let mut world = world();
    let client = world.element("pe1");
    for prr in [0, -1, i64::MIN] {
        resolve(&mut world, client, "/class4/test/", 60);
        assert_eq!(
            resolve(&mut world, client, "/class4/test/", prr)
                .as_array()
                .unwrap()
                .len(),
            2
        );
        assert_eq!(world.server.sessions(world.now)[0].policies, 0);
    }
    resolve(&mut world, client, "/class4/test/", i64::MAX);
    world.put(vec![object("class4", "/class4/test/", 1)]);
    assert_eq!(world.messages_to(client).len(), 1);
}

#[test]
fn an_unresolve_ends_the_updates() {
    let mut world = world();
    let client = world.element("pe1");
    resolve(&mut world, client, "/class4/test/", 60);
    for _ in 0..2 {
        let params = json!([{"subject": "class4", "policy_uri": "/class4/test/"}]);
        assert_eq!(world.ask(client, "policy_unresolve", params)["result"], json!({}));
    }
    world.put(vec![object("class4", "/class4/test/", 1)]);
    nothing(&mut world, client);
}

#[test]
fn created_objects_are_sent_once_parents_first_and_deleted_ones_children_first() {
    let mut world = world();
    let client = world.element("pe1");
    resolve(&mut world, client, "/class4/new/", 60);
    world.put(vec![
        object("class4", "/class4/new/", 1),
        object("class6", "/class4/new/class6/a/", 1),
        object("class7", "/class4/new/class6/a/class7/b/", 1),
    ]);
    let params = update(&mut world, client);
    let all = [
        "/class4/new/",
        "/class4/new/class6/a/",
        "/class4/new/class6/a/class7/b/",
    ];
    assert_eq!(uris(&params["replace"]), all);
    world.delete("/class4/new/");
    let reversed: Vec<_> = all.into_iter().rev().collect();
    assert_eq!(deleted(&mut world, client), reversed);
}

#[test]
fn deleting_a_subtree_causes_updates_for_resolves_below_it() {
    let mut world = world();
    let client = world.element("pe1");
    let params = json!([{"subject": "class6", "policy_uri": "/class4/test/class6/test2/", "prr": 60}]);
    world.ask(client, "policy_resolve", params);
    world.delete("/class4/test/");
    let deleted = json!([{"subject": "class6", "uri": "/class4/test/class6/test2/"}]);
    assert_eq!(update(&mut world, client)["delete"], deleted);
}

#[test]
fn replacing_deletes_unlisted_children() {
    let mut world = world();
    let client = world.element("pe1");
    resolve(&mut world, client, "/class4/test/", 60);
    world.replace(vec![object("class4", "/class4/test/", "v0")]);
    let params = update(&mut world, client);
    assert_eq!(uris(&params["delete"]), ["/class4/test/class6/test2/"]);
    assert_eq!(
        (&params["replace"], &params["merge_children"]),
        (&json!([]), &json!([]))
    );
}

#[test]
fn an_update_is_built_once_for_all_receivers() {
    let mut world = world();
    let clients: Vec<_> = (0..3).map(|n| world.element(&format!("pe{n}"))).collect();
    for client in &clients {
        resolve(&mut world, *client, "/class4/test/", 60);
    }
    world.put(vec![object("class4", "/class4/test/", 1)]);
    let frames: Vec<_> = clients
        .iter()
        .map(|client| world.frames(*client).remove(0))
        .collect();
    assert!(frames.iter().all(|frame| frame.as_ptr() == frames[0].as_ptr()));
}

#[test]
fn policy_is_resolved_and_unresolved_by_identifier() {
    let mut world = world();
    let client = world.element("pe1");
    let ident = json!({"name": "web", "context": "/Space/s/"});
    let params = || json!([{"subject": "Group", "policy_ident": ident, "prr": 60}]);
    assert_eq!(
        world.ask(client, "policy_resolve", params())["result"],
        json!({"policy": []})
    );

    world.put(vec![
        object("Group", "/Space/s/Group/web/", 1),
        object("Other", "/Space/s/Other/web/", 1),
    ]);
    assert_eq!(
        uris(&update(&mut world, client)["replace"]),
        ["/Space/s/Group/web/"]
    );
    assert_eq!(
        uris(&world.ask(client, "policy_resolve", params())["result"]["policy"]),
        ["/Space/s/Group/web/"]
    );

    world.put(vec![object("Rule", "/Space/s/Group/web/Rule/1/", 1)]);
    assert_eq!(
        uris(&update(&mut world, client)["replace"]),
        ["/Space/s/Group/web/Rule/1/"]
    );

    // Resolved in one form and unresolved in the other: updates are still sent.
    let by_uri = json!([{"subject": "Group", "policy_uri": "/Space/s/Group/web/"}]);
    world.ask(client, "policy_unresolve", by_uri);
    world.delete("/Space/s/Group/web/");
    assert_eq!(
        deleted(&mut world, client),
        ["/Space/s/Group/web/Rule/1/", "/Space/s/Group/web/"]
    );

    world.ask(
        client,
        "policy_unresolve",
        json!([{"subject": "Group", "policy_ident": ident}]),
    );
    world.put(vec![object("Group", "/Space/s/Group/web/", 1)]);
    nothing(&mut world, client);
}

#[test]
fn an_object_that_is_resolved_twice_is_in_one_event() {
    let mut world = world();
    let client = world.element("pe1");
    resolve(&mut world, client, "/class4/test/", 60);
    let ident = json!({"name": "test", "context": "/"});
    world.ask(
        client,
        "policy_resolve",
        json!([{"subject": "class4", "policy_ident": ident, "prr": 60}]),
    );
    assert_eq!(world.server.sessions(world.now)[0].policies, 2);
    world.put(vec![object("class4", "/class4/test/", 1)]);
    assert_eq!(
        uris(&update(&mut world, client)["merge_children"]),
        ["/class4/test/"]
    );
}

#[test]
fn a_reload_sends_only_differences() {
    let mut world = world();
    let (a, b) = (world.element("a"), world.element("b"));
    resolve(&mut world, a, "/class4/test/", 60);
    resolve(&mut world, b, "/class4/other/", 60);
    let objects = vec![
        object("class4", "/class4/test/", "v0"),
        object("class4", "/class4/other/", 1),
    ];
    world.act(|server, now| drop(server.edit(Edit::Reload(objects), now).unwrap()));
    assert_eq!(
        uris(&update(&mut world, a)["delete"]),
        ["/class4/test/class6/test2/"]
    );
    assert_eq!(uris(&update(&mut world, b)["replace"]), ["/class4/other/"]);
}

#[test]
fn objects_that_stay_below_a_deleted_object_are_sent_again() {
    let mut world = world();
    let client = world.element("pe1");
    resolve(&mut world, client, "/class4/test/", 60);
    let child = object("class6", "/class4/test/class6/test2/", "v0-child");
    world.act(|server, now| drop(server.edit(Edit::Reload(vec![child]), now).unwrap()));
    let [deleted, sent] = &world.messages_to(client)[..] else {
        panic!("two updates");
    };
    assert_eq!(uris(&deleted["params"][0]["delete"]), ["/class4/test/"]);
    assert_eq!(
        uris(&sent["params"][0]["replace"]),
        ["/class4/test/class6/test2/"]
    );
}

/// libopflex refuses the rest of a message at the first class in `delete` that it does not know.
#[test]
fn deleted_objects_of_each_class_are_sent_in_a_message_of_their_own() {
    let mut world = world();
    let client = world.element("pe1");
    resolve(&mut world, client, "/class4/test/", 60);
    world.put(vec![object("FooBar", "/class4/test/FooBar/x/", 1)]);
    world.messages_to(client);
    world.delete("/class4/test/");
    let classes_of = |update: &Value| -> Vec<String> {
        let deleted = update["params"][0]["delete"].as_array().unwrap();
        let classes = deleted.iter().map(|object| object["subject"].as_str().unwrap());
        classes.map(str::to_owned).collect()
    };
    let classes: Vec<_> = world.messages_to(client).iter().map(classes_of).collect();
    assert_eq!(classes, [["class6"], ["FooBar"], ["class4"]]);
}

#[test]
fn children_are_deleted_before_their_parents_although_a_class_contains_itself() {
    let mut world = world();
    let client = world.element("pe1");
    resolve(&mut world, client, "/class4/new/", 60);
    let all = [
        ("class4", "/class4/new/"),
        ("class6", "/class4/new/class6/a/"),
        ("class4", "/class4/new/class6/a/class4/b/"),
    ];
    world.put(all.map(|(class, uri)| object(class, uri, 1)).into());
    world.messages_to(client);
    world.delete("/class4/new/");
    let children_first: Vec<_> = all.iter().rev().map(|(_, uri)| *uri).collect();
    assert_eq!(deleted(&mut world, client), children_first);
}

#[test]
fn an_object_that_gets_another_class_is_deleted_and_sent_again() {
    let mut world = world();
    let client = world.element("pe1");
    resolve(&mut world, client, "/class4/test/", 60);
    world.put(vec![object("class5", "/class4/test/", "v1")]);
    let [deleted, sent] = &world.messages_to(client)[..] else {
        panic!("two updates");
    };
    let former = json!([{"subject": "class4", "uri": "/class4/test/"}]);
    assert_eq!(deleted["params"][0]["delete"], former);
    assert_eq!(sent["params"][0]["merge_children"], json!([]));
    let all = ["/class4/test/", "/class4/test/class6/test2/"];
    assert_eq!(uris(&sent["params"][0]["replace"]), all);
}

/// agent-ovs resolves `GbpSubnets` with the URI of a `GbpSubnet`.
#[test]
fn a_client_may_resolve_a_uri_as_several_classes() {
    let mut world = world();
    let client = world.element("pe1");
    resolve(&mut world, client, "/class4/test/", 600);
    let other = json!([{"subject": "class4s", "policy_uri": "/class4/test/", "prr": 600}]);
    let answer = world.ask(client, "policy_resolve", other.clone());
    assert_eq!(answer["result"]["policy"], json!([]));
    world.put(vec![object("class4", "/class4/test/", "v2")]);
    assert_eq!(
        uris(&update(&mut world, client)["merge_children"]),
        ["/class4/test/"]
    );
    world.ask(client, "policy_unresolve", other);
    world.put(vec![object("class4", "/class4/test/", "v3")]);
    assert_eq!(
        uris(&update(&mut world, client)["merge_children"]),
        ["/class4/test/"]
    );
}

#[test]
fn a_large_update_is_sent_in_pieces() {
    let mut world = World::new(ServerSettings {
        limits: ServerLimits {
            update_objects: 10,
            ..ServerLimits::default()
        },
        ..ServerSettings::default()
    });
    let client = world.element("pe1");
    resolve(&mut world, client, "/class4/x/", 60);
    let child = |n| object("class6", &format!("/class4/x/class6/{n:02}/"), 1);
    world.put(
        std::iter::once(object("class4", "/class4/x/", 1))
            .chain((0..24).map(child))
            .collect(),
    );
    let sizes: Vec<_> = world
        .messages_to(client)
        .iter()
        .map(|u| u["params"][0]["replace"].as_array().unwrap().len())
        .collect();
    assert_eq!(sizes, [10, 10, 5]);
}

/// A server with a policy that is longer than one message, and the URIs of it.
fn long() -> (World, Vec<String>) {
    let mut world = World::new(ServerSettings {
        limits: ServerLimits {
            message_bytes: 20_000,
            ..ServerLimits::default()
        },
        ..ServerSettings::default()
    });
    let child = |n| object("class6", &format!("/class4/x/class6/{n:02}/"), "v".repeat(2000));
    let objects: Vec<_> = std::iter::once(object("class4", "/class4/x/", 1))
        .chain((0..99).map(child))
        .collect();
    let uris = objects.iter().map(|object| object.uri.to_string()).collect();
    world.put(objects);
    (world, uris)
}

#[test]
fn a_long_answer_is_sent_as_updates_before_the_result() {
    let (mut world, all) = long();
    let client = world.element("pe1");
    let resolve = json!({"id": ["policy_resolve", 7], "method": "policy_resolve",
        "params": [{"subject": "class4", "policy_uri": "/class4/x/", "prr": 60}]});
    let mut messages = world.send_text(client, &resolve);
    let lengths = messages.iter().map(|message| message.to_string().len());
    assert!(lengths.max().unwrap() <= 20_000);
    let result = messages.pop().unwrap();
    assert_eq!(result["id"], resolve["id"]);
    let updates = messages.iter().map(|update| {
        assert_eq!(update["method"], "policy_update");
        &update["params"][0]["replace"]
    });
    let sent: Vec<_> = updates
        .chain([&result["result"]["policy"]])
        .flat_map(uris)
        .collect();
    assert_eq!(sent, all);
    assert_eq!(world.server.sessions(world.now)[0].counters.unavailable, 0);
}

#[test]
fn the_next_request_is_answered_behind_a_long_answer() {
    let (mut world, _) = long();
    let client = world.element("pe1");
    let resolve = |xid: u64| {
        let params = json!([{"subject": "class4", "policy_uri": "/class4/x/", "prr": 60}]);
        json!({"id": ["policy_resolve", xid], "method": "policy_resolve", "params": params})
    };
    // Without calls of `continue_answer`, one piece is made for each message.
    let mut decoder = Decoder::new(Default::default());
    let mut messages = Vec::new();
    let text = format!("{}\0{}\0", resolve(1), resolve(2));
    decoder
        .decode(&mut BytesMut::from(text.as_bytes()), &mut messages)
        .unwrap();
    let mut messages = messages.into_iter();
    let first = messages.next().unwrap();
    world.act(|server, now| server.handle_message(now, client, first));
    assert_eq!(world.messages_to(client).len(), 1);
    let second = messages.next().unwrap();
    world.act(|server, now| server.handle_message(now, client, second));
    let results: Vec<_> = world
        .messages_to(client)
        .into_iter()
        .filter(|message| message.get("result").is_some())
        .collect();
    assert_eq!(results.len(), 1);
    assert_eq!(results[0]["id"], json!(["policy_resolve", 1]));
}

#[test]
fn changes_during_a_long_answer_reach_the_client() {
    let (mut world, all) = long();
    let client = world.element("pe1");
    let params = json!([{"subject": "class4", "policy_uri": "/class4/x/", "prr": 60}]);
    let text = json!({"id": 1, "method": "policy_resolve", "params": params});
    let mut messages = Vec::new();
    let mut decoder = Decoder::new(Default::default());
    decoder
        .decode(&mut BytesMut::from(format!("{text}\0").as_bytes()), &mut messages)
        .unwrap();
    world.act(|server, now| server.handle_message(now, client, messages.remove(0)));
    // The changes are in the part that was sent and in the part that was not.
    for n in [1, 97] {
        world.put(vec![object(
            "class6",
            &format!("/class4/x/class6/{n:02}/"),
            "new",
        )]);
        world.delete(&format!("/class4/x/class6/{:02}/", n + 1));
        world.put(vec![object("class6", &format!("/class4/x/class6/{n:02}a/"), 1)]);
    }
    while world.server.is_answering(client) {
        world.act(|server, _| assert!(server.continue_answer(client)));
    }
    let mut tree = crate::model::Tree::new();
    for message in world.messages_to(client) {
        let update: crate::message::Update = match message.get("result") {
            Some(result) => serde_json::from_value(json!({"replace": result["policy"]})).unwrap(),
            None => serde_json::from_value(message["params"][0].clone()).unwrap(),
        };
        let delete: Vec<Uri> = update.delete.into_iter().map(|deleted| deleted.uri).collect();
        let merge = update.merge_children.unwrap_or_default();
        tree.update(&delete, update.replace, merge).unwrap();
    }
    assert_eq!(tree.to_objects(), world.server.policy().to_objects());
    assert_eq!(tree.len(), all.len());
}

#[test]
fn a_large_update_is_split_by_bytes() {
    let (mut world, all) = long();
    let client = world.element("pe1");
    let objects = world.server.policy().to_objects();
    world.delete("/class4/x/");
    resolve(&mut world, client, "/class4/x/", 60);
    world.put(objects);
    let messages = world.messages_to(client);
    assert!(messages.iter().all(|update| update.to_string().len() <= 20_000));
    let replaced: Vec<_> = messages
        .iter()
        .flat_map(|update| uris(&update["params"][0]["replace"]))
        .collect();
    assert_eq!(replaced, all);
}

#[test]
fn the_memory_of_the_resolves_of_a_connection_is_limited() {
    let mut world = World::new(ServerSettings {
        limits: ServerLimits {
            resolve_bytes: 3000,
            ..ServerLimits::default()
        },
        ..ServerSettings::default()
    });
    let client = world.element("pe1");
    let long = format!("/class4/{}/", "x".repeat(600));
    for _ in 0..3 {
        resolve(&mut world, client, &long, 60);
    }
    let other = format!("/class4/{}/", "y".repeat(600));
    let more = json!([{"subject": "class4", "policy_uri": other, "prr": 60}]);
    assert_eq!(code(&world.ask(client, "policy_resolve", more)), "ERROR");
    let unresolve = json!([{"subject": "class4", "policy_uri": long}]);
    world.ask(client, "policy_unresolve", unresolve.clone());
    resolve(&mut world, client, &other, 60);
    // All connections share the memory.
    let more: Vec<_> = (0..3).map(|n| world.element(&format!("more{n}"))).collect();
    let answers = more.iter().map(|client| {
        let params = json!([{"subject": "class4", "policy_uri": "/class4/x/", "prr": 60}]);
        world
            .ask(*client, "policy_resolve", params)
            .get("result")
            .is_some()
    });
    assert_eq!(answers.collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn the_resolves_of_a_connection_are_limited() {
    let mut world = World::new(ServerSettings {
        limits: ServerLimits {
            resolves: 2,
            ..ServerLimits::default()
        },
        ..ServerSettings::default()
    });
    let client = world.element("pe1");
    for n in 0..2 {
        resolve(&mut world, client, &format!("/class4/{n}/"), 60);
    }
    let more = json!([{"subject": "class4", "policy_uri": "/class4/2/", "prr": 60}]);
    assert_eq!(code(&world.ask(client, "policy_resolve", more)), "ERROR");
    // A resolve in force can be repeated, and a resolve without updates is possible.
    resolve(&mut world, client, "/class4/1/", 60);
    resolve(&mut world, client, "/class4/2/", 0);
    world.leave(client);
    assert_eq!(world.server.next_deadline(), None);
}

#[test]
fn a_model_file_refuses_unknown_classes() {
    let schema = Schema::read(b"{\"classes\":{\"class4\":{}}}", Format::Json).unwrap();
    let mut world = World::new(ServerSettings::default());
    world.server = ServerCore::with_schema(ServerSettings::default(), Some(&schema.into()), world.now);
    let client = world.element("pe1");
    assert_eq!(resolve(&mut world, client, "/class4/x/", 60), json!([]));
    let unknown = json!([{"subject": "class5", "policy_uri": "/class5/x/", "prr": 60}]);
    assert_eq!(code(&world.ask(client, "policy_resolve", unknown)), "ERROR");
    let object = object("class5", "/class5/x/", 1);
    assert!(world.server.edit(Edit::Merge(vec![object]), world.now).is_err());
}

#[test]
fn parts_of_endpoints_and_reports_that_the_model_lacks_are_left_out() {
    let schema = br#"{"classes":{"ep":{"properties":{"p":"i64"}}}}"#;
    let schema = Schema::read(schema, Format::Json).unwrap();
    let mut world = World::new(ServerSettings::default());
    world.server = ServerCore::with_schema(ServerSettings::default(), Some(&schema.into()), world.now);
    let client = world.element("pe1");
    let mut known = object("ep", "/ep/1/", 1).with("new", "x");
    known.children = vec![uri("/ep/1/new/1/")];
    let objects = json!([known, object("new", "/ep/1/new/1/", 1)]);
    for (method, member) in [("endpoint_declare", "endpoint"), ("state_report", "observable")] {
        let answer = world.ask(client, method, json!([{member: objects, "prr": 60}]));
        assert_eq!(answer["result"], json!({}), "{method}: {answer}");
    }
    let objects = world.server.endpoints().to_objects();
    assert_eq!(objects, [object("ep", "/ep/1/", 1)]);
    assert_eq!(world.server.observer().reports().count(), 1);
    // Known properties are checked.
    let wrong = json!([{"endpoint": [object("ep", "/ep/2/", "text")], "prr": 60}]);
    assert_eq!(code(&world.ask(client, "endpoint_declare", wrong)), "ERROR");
}
