//! Identity, keep-alive, and the end of sessions.

use super::*;
use crate::message::{Method, Peer, Role};
use crate::server::{Client, OnLeave};

fn world() -> World {
    World::new(ServerSettings::default())
}

#[test]
fn the_server_sends_an_echo_at_once() {
    let mut world = world();
    let connection = ConnectionId(1);
    world.act(|server, now| server.handle_connected(now, connection, Client::default()));
    assert_eq!(
        world.take_sent(connection),
        [json!({"id": ["echo", 0], "method": "echo", "params": [0]})]
    );
}

#[test]
fn an_echo_is_answered_before_any_identity() {
    let mut world = world();
    let client = world.connect();
    assert_eq!(
        world.ask(client, "echo", json!([1383103]))["result"],
        json!([1383103])
    );
    assert_eq!(world.ask(client, "echo", json!([]))["result"], json!({}));
    assert_eq!(world.closed(client), None);
}

#[test]
fn every_id_returns_untouched() {
    let mut world = world();
    let client = world.connect();
    for id in [
        json!(null),
        json!(18446744073709551615u64),
        json!({"a": [1.5]}),
        json!("x"),
        json!(["echo"]),
    ] {
        let answers = world.send_text(client, &json!({"id": id, "method": "echo", "params": [1]}));
        assert_eq!(answers, [json!({"id": id, "result": [1]})]);
    }
}

#[test]
fn an_identity_is_answered_with_the_identity_and_the_list_of_servers() {
    let mut settings = ServerSettings::new("pr1", "default");
    settings.location = Some("rack 1".to_owned());
    settings.locations.insert("pe1".to_owned(), "rack 2".to_owned());
    settings.peers.push(Peer {
        role: vec![Role::OBSERVER],
        connectivity_info: "10.0.0.8:8009".to_owned(),
        extra: Default::default(),
    });
    let mut world = World::new(settings);
    let client = world.connect();
    let all = json!(["policy_repository", "endpoint_registry", "observer"]);
    assert_eq!(
        world.ask(client, "send_identity", json!([identity("pe1")]))["result"],
        json!({
            "name": "pr1", "domain": "default", "my_location": "rack 1", "your_location": "rack 2",
            "data": {}, "my_role": all,
            "peers": [
                {"role": ["observer"], "connectivity_info": "10.0.0.8:8009"},
                {"role": all, "connectivity_info": "10.0.0.9:8009"},
            ],
        })
    );
    assert_eq!(&*world.server.sessions(world.now)[0].name.clone().unwrap(), "pe1");
}

#[test]
fn ipv6_addresses_are_listed_as_libopflex_splits_them() {
    let mut settings = ServerSettings::default();
    settings.peers.push(Peer {
        role: vec![Role::OBSERVER],
        connectivity_info: "[2001:db8::1]:8009".to_owned(),
        extra: Default::default(),
    });
    let mut world = World::new(settings);
    let client = ConnectionId(77);
    world.act(|server, now| {
        let dialled = Some("[::1]:18031".into());
        let address = "[::1]:1".into();
        server.handle_connected(
            now,
            client,
            Client {
                address,
                dialled,
                ..Client::default()
            },
        )
    });
    world.take_sent(client);
    let answer = world.ask(client, "send_identity", json!([identity("pe1")]));
    let peers = answer["result"]["peers"].as_array().unwrap();
    let addresses: Vec<_> = peers.iter().map(|peer| &peer["connectivity_info"]).collect();
    assert_eq!(addresses, ["2001:db8::1:8009", "::1:18031"]);
}

#[test]
fn a_wrong_domain_is_refused_with_a_reason_and_any_domain_is_answered_with_itself() {
    let mut other = identity("pe1");
    other["domain"] = "openstack".into();
    let mut world = World::new(ServerSettings::default());
    let client = world.connect();
    let answer = world.ask(client, "send_identity", json!([other]));
    assert_eq!(
        answer["error"]["message"],
        "the domain is \"default\" here, and \"openstack\" there"
    );
    let mut world = World::new(ServerSettings {
        any_domain: true,
        ..ServerSettings::default()
    });
    let client = world.connect();
    let answer = world.ask(client, "send_identity", json!([other]));
    assert_eq!(answer["result"]["domain"], "openstack");
}

#[test]
fn a_name_in_invalid_utf_8_is_answered() {
    let mut world = World::new(ServerSettings::default());
    let client = world.connect();
    let text = json!({"id": 1, "method": "send_identity", "params": [identity("h?st")]}).to_string() + "\0";
    let bytes: Vec<u8> = text
        .bytes()
        .map(|byte| if byte == b'?' { 0xf6 } else { byte })
        .collect();
    let mut messages = Vec::new();
    let mut decoder = Decoder::new(Default::default());
    decoder
        .decode(&mut BytesMut::from(&bytes[..]), &mut messages)
        .unwrap();
    world.act(|server, now| server.handle_message(now, client, messages.remove(0)));
    assert!(world.messages_to(client)[0].get("result").is_some());
    assert_eq!(
        &*world.server.sessions(world.now)[0].name.clone().unwrap(),
        "h\u{f6}st"
    );
}

#[test]
fn a_server_without_roles_lists_only_other_servers() {
    let mut settings = ServerSettings::default();
    settings.roles.clear();
    let mut world = World::new(settings);
    let client = world.element("pe1");
    let answer = world.ask(client, "send_identity", json!([identity("pe1")]));
    assert_eq!(
        (&answer["result"]["my_role"], &answer["result"]["peers"]),
        (&json!([]), &json!([]))
    );
    for method in ["policy_resolve", "endpoint_declare", "state_report"] {
        assert_eq!(code(&world.ask(client, method, json!([]))), "EUNSUPPORTED");
    }
}

#[test]
fn each_fault_of_an_identity_has_its_error_code() {
    let wrong = |name: &str, value: Value| {
        let mut identity = identity("pe1");
        identity[name] = value;
        json!([identity])
    };
    let cases = [
        (wrong("proto_version", json!("2.0")), "EPROTO"),
        (wrong("proto_version", json!(null)), "EPROTO"),
        (wrong("domain", json!("other")), "EDOMAIN"),
        (wrong("domain", json!(null)), "EDOMAIN"),
        (wrong("name", json!("")), "ERROR"),
        (wrong("my_role", json!([])), "ERROR"),
        (json!([]), "EPROTO"),
    ];
    let too_long = [
        wrong("name", json!("x".repeat(1025))),
        wrong("my_location", json!("x".repeat(1025))),
        wrong("my_role", json!(["x".repeat(1025)])),
        wrong("my_role", json!(vec!["x"; 17])),
    ];
    let mut world = world();
    let client = world.connect();
    for (params, expected) in &cases {
        assert_eq!(
            code(&world.ask(client, "send_identity", params.clone())),
            *expected,
            "{params}"
        );
    }
    assert_eq!(world.closed(client), None);
    assert!(
        world
            .ask(client, "send_identity", json!([identity("pe1")]))
            .get("result")
            .is_some()
    );

    let mut world = World::new(ServerSettings {
        lenient: true,
        ..ServerSettings::default()
    });
    for params in too_long {
        let client = world.connect();
        assert_eq!(code(&world.ask(client, "send_identity", params)), "ERROR");
    }
    for (params, _) in cases {
        let client = world.connect();
        assert!(world.ask(client, "send_identity", params).get("result").is_some());
    }
}

#[test]
fn a_location_can_be_required() {
    let mut settings = ServerSettings {
        require_location: true,
        ..ServerSettings::default()
    };
    let mut world = World::new(settings.clone());
    let client = world.connect();
    assert_eq!(
        code(&world.ask(client, "send_identity", json!([identity("pe1")]))),
        "ELOCATION"
    );
    let mut located = identity("pe1");
    located["my_location"] = json!("here");
    let answer = world.ask(client, "send_identity", json!([located]));
    assert_eq!(answer["result"]["your_location"], "here");

    settings.default_location = Some("somewhere".to_owned());
    let mut world = World::new(settings);
    let client = world.connect();
    let answer = world.ask(client, "send_identity", json!([identity("pe1")]));
    assert_eq!(answer["result"]["your_location"], "somewhere");
}

#[test]
fn a_request_before_the_identity_is_answered_estate_and_ends_the_connection() {
    for method in [
        "policy_resolve",
        "endpoint_declare",
        "state_report",
        "policy_update",
        "no_such_method",
    ] {
        for params in [json!([]), json!(["bad"])] {
            let mut world = world();
            let client = world.connect();
            assert_eq!(code(&world.ask(client, method, params)), "ESTATE");
            assert!(matches!(
                world.closed(client),
                Some(CloseReason::RequestBeforeIdentity(_))
            ));
            assert_eq!(world.server.session_count(), 0);
        }
    }
    let mut world = world();
    let client = world.connect();
    let custom = json!([{"method": "org.opendaylight.opflex.policy_query", "params": {}}]);
    assert_eq!(code(&world.ask(client, "custom", custom)), "EUNSUPPORTED");
    assert_eq!(world.closed(client), None);
}

#[test]
fn an_answer_before_the_identity_ends_the_connection() {
    for answer in [
        json!({"id": ["policy_update", 1], "result": {}}),
        json!({"id": ["policy_update", 1], "error": {"code": "ERROR"}}),
        json!({"id": ["policy_resolve", 1], "result": 7}),
    ] {
        let mut world = world();
        let client = world.connect();
        assert_eq!(world.send_text(client, &answer), NOTHING);
        assert!(matches!(
            world.closed(client),
            Some(CloseReason::ResponseBeforeIdentity(_))
        ));
    }
    let mut world = world();
    let client = world.connect();
    for answer in [
        json!({"id": ["echo", 0], "result": [0]}),
        json!({"id": ["echo", 0], "error": {}}),
        json!({"id": ["monitor", 0], "result": [0]}),
    ] {
        assert_eq!(world.send_text(client, &answer), NOTHING);
    }
    assert_eq!(world.closed(client), None);
}

#[test]
fn a_server_refuses_methods_of_a_client_and_the_session_goes_on() {
    let mut world = world();
    let client = world.element("pe1");
    for (method, params, expected) in [
        (
            "policy_update",
            json!([{"replace": [], "merge_children": [], "delete": []}]),
            "EUNSUPPORTED",
        ),
        ("endpoint_update", json!([]), "EUNSUPPORTED"),
        ("custom", json!([]), "EUNSUPPORTED"),
        ("transact", json!([]), "EUNSUPPORTED"),
        ("monitor", json!({}), "EUNSUPPORTED"),
        (
            "policy_resolve",
            json!([{"subject": "c", "policy_uri": "/c/"}]),
            "ERROR",
        ),
        ("policy_resolve", json!({}), "ERROR"),
    ] {
        assert_eq!(code(&world.ask(client, method, params)), expected, "{method}");
    }
    for answer in [
        json!({"id": ["policy_update", 1], "result": {}}),
        json!({"id": ["endpoint_update", 1], "result": {}}),
        json!({"id": ["policy_update", 1], "error": {"code": "ERROR", "message": "no"}}),
    ] {
        assert_eq!(world.send_text(client, &answer), NOTHING);
    }
    assert_eq!(world.closed(client), None);
    let counters = world.server.sessions(world.now)[0].counters;
    assert_eq!(
        (
            counters.requests(Method::PolicyResolve),
            counters.refused(Method::PolicyResolve)
        ),
        (2, 2)
    );
    assert_eq!((counters.unknown, counters.update_errors), (2, 1));
}

#[test]
fn echoes_come_at_ten_seconds_and_every_fifteen() {
    let mut world = world();
    let client = world.element("pe1");
    world.pass(41.0);
    let ids: Vec<_> = world
        .take_sent(client)
        .iter()
        .map(|echo| echo["id"].clone())
        .collect();
    assert_eq!(ids, [json!(["echo", 1]), json!(["echo", 2]), json!(["echo", 3])]);
    assert_eq!(world.closed(client), None);
}

#[test]
fn only_a_silent_client_is_disconnected() {
    let mut world = world();
    let (silent, alive) = (world.element("pe1"), world.element("pe2"));
    for _ in 0..14 {
        world.pass(10.0);
        world.send_text(alive, &json!({"id": ["echo", 1], "result": []}));
    }
    assert_eq!(world.closed(silent), Some(&CloseReason::Silent));
    assert_eq!((world.closed(alive), world.server.session_count()), (None, 1));
}

#[test]
fn a_client_without_identity_is_dropped_in_time() {
    let mut world = world();
    let (late, element) = (world.connect(), world.element("pe1"));
    world.pass(44.9);
    world.ask(late, "echo", json!([]));
    assert_eq!(world.closed(late), None);
    world.pass(0.2);
    assert_eq!(world.closed(late), Some(&CloseReason::IdentityTimeout));
    assert_eq!(world.closed(element), None);
}

#[test]
fn a_second_identity_replaces_the_first() {
    let mut world = world();
    let client = world.element("pe1");
    world.ask(client, "send_identity", json!([identity("pe2")]));
    assert_eq!(&*world.server.sessions(world.now)[0].name.clone().unwrap(), "pe2");
}

#[test]
fn names_can_be_made_unique() {
    let mut world = world();
    let (first, _) = (world.element("pe1"), world.element("pe1"));
    assert_eq!(world.closed(first), None);

    let mut world = World::new(ServerSettings {
        unique_names: true,
        on_leave: OnLeave::Remove,
        ..ServerSettings::default()
    });
    let (first, second) = (world.element("pe1"), world.element("pe1"));
    assert_eq!(
        (world.closed(first), world.closed(second)),
        (Some(&CloseReason::Replaced), None)
    );
    // A second identity on the same connection closes no connection, also with another name.
    for name in ["pe1", "pe2"] {
        world.ask(second, "send_identity", json!([identity(name)]));
    }
    world.element("pe1");
    assert_eq!((world.closed(second), world.server.session_count()), (None, 2));
}

#[test]
fn the_counters_of_an_agent_do_not_fall_when_its_session_takes_another_name() {
    let mut world = world();
    let client = world.element("pe1");
    let resolve = json!([{"subject": "a", "policy_uri": "/a/"}]);
    world.ask(client, "policy_resolve", resolve);
    let of = |world: &World, name: &str| {
        let agents = world.server.agents_after(None, 10, world.now);
        let agent = agents.into_iter().find(|agent| *agent.name == *name);
        agent.unwrap().counters.requests(Method::PolicyResolve)
    };
    assert_eq!(of(&world, "pe1"), 1);
    world.ask(client, "send_identity", json!([identity("pe2")]));
    assert_eq!((of(&world, "pe1"), of(&world, "pe2")), (1, 0));
}

#[test]
fn late_events_of_a_closed_connection_are_ignored() {
    let mut world = world();
    let client = world.element("pe1");
    world.leave(client);
    world.leave(client);
    assert_eq!(
        world.send_text(client, &json!({"id": 1, "method": "echo"})),
        NOTHING
    );
    assert_eq!(world.server.next_deadline(), None);
}

#[test]
fn with_name_from_certificate_an_element_has_the_name_of_its_certificate() {
    let mut world = World::new(ServerSettings {
        name_from_certificate: true,
        ..ServerSettings::default()
    });
    let come = |world: &mut World, certified: Option<&str>| {
        let client = world.connect_certified(certified);
        let answer = world.ask(client, "send_identity", json!([identity("host-1")]));
        (client, answer)
    };
    let (owner, _) = come(&mut world, Some("host-1"));
    let (impostor, answer) = come(&mut world, Some("host-2"));
    assert!(answer.get("result").is_some(), "{answer}");
    let endpoint = json!([{"endpoint": [object("ep", "/ep/1/", 1)], "prr": 60}]);
    world.ask(owner, "endpoint_declare", endpoint);
    let resolved = json!([{"subject": "ep", "endpoint_uri": "/ep/1/"}]);
    world.ask(impostor, "endpoint_undeclare", resolved);
    assert_eq!(
        world.server.endpoints().len(),
        1,
        "the endpoint does not belong to the impostor"
    );
    let names: Vec<_> = world
        .server
        .sessions(world.now)
        .into_iter()
        .map(|session| session.name)
        .collect();
    assert_eq!(names, [Some("host-1".into()), Some("host-2".into())]);
    let (_, answer) = come(&mut world, None);
    assert_eq!(code(&answer), "ERROR");
}
