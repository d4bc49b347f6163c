//! The pool: dialling, learned servers, fallback, health.

use super::super::{Health, PeerState};
use super::*;

fn settings(peers: &[&str]) -> ElementSettings {
    ElementSettings::new("pe1", "default", peers.iter().copied())
}

fn states(world: &World) -> Vec<(&str, PeerState)> {
    world.element.peers().collect()
}

#[test]
fn an_element_sends_an_echo_and_its_identity_first() {
    let mut world = World::new(settings(&["a:1"]));
    let connection = world.dialling("a:1").unwrap();
    world.act(|element, now| element.handle_connected(now, connection));
    let sent = world.sent.remove(&connection).unwrap();
    assert_eq!(
        sent[0],
        json!({"id": ["echo", 0], "method": "echo", "params": [0]})
    );
    assert_eq!(
        sent[1],
        json!({"id": ["send_identity", 1], "method": "send_identity", "params": [{
            "proto_version": "1.0", "name": "pe1", "domain": "default", "my_role": ["policy_element"],
            "data": {"mac": "00:00:00:00:00:00", "features": ["anycastFallback"]},
        }]})
    );
}

#[test]
fn all_configured_and_all_learned_servers_are_connected() {
    let mut world = World::new(settings(&["a:1", "b:1"]));
    world.accept("a:1", &ALL, &["a:1", "c:1"]);
    world.pass(0.0);
    assert_eq!(world.element.health(), Health::Degraded);
    world.accept("b:1", &ALL, &["b:1"]);
    world.accept("c:1", &ALL, &["a:1", "c:1"]);
    assert_eq!(world.element.health(), Health::Healthy);
    let ready = PeerState::Ready;
    assert_eq!(states(&world), [("a:1", ready), ("b:1", ready), ("c:1", ready)]);
}

/// The capture of a bootstrap: an anycast server that lists two others, which end one after the
/// other, and one of which returns.
#[test]
fn an_element_bootstraps_from_a_server_that_lists_only_others() {
    let mut world = World::new(settings(&["any:1"]));
    let anycast = world.accept("any:1", &[], &["b:1", "c:1"]);
    assert_eq!(world.closed[&anycast], CloseReason::NotInItsList);
    world.pass(0.0);
    world.accept("b:1", &ALL, &["b:1", "c:1"]);
    world.accept("c:1", &ALL, &["b:1", "c:1"]);
    assert_eq!(world.element.health(), Health::Healthy);

    world.fail("b:1");
    assert_eq!(world.element.health(), Health::Degraded);
    // The other server still lists it: it is dialled from time to time, and the health ignores it.
    for _ in 0..10 {
        world.pass(25.0);
        world.send_text(
            world.dialling("c:1").unwrap(),
            &json!({"id": ["echo", 1], "result": []}),
        );
        world.fail("b:1");
    }
    assert_eq!(world.dialling("any:1"), None);
    assert_eq!(world.element.health(), Health::Healthy);

    world.fail("c:1");
    assert_eq!(world.element.health(), Health::Down);
    let mut waited = 0.0;
    while world.dialling("any:1").is_none() {
        world.pass(0.25);
        waited += 0.25;
        for address in ["b:1", "c:1"] {
            if world.dialling(address).is_some() {
                world.fail(address);
            }
        }
        assert!(waited < 60.0);
    }
    world.accept("any:1", &[], &["b:1", "c:1"]);
    world.pass(0.0);
    world.accept("b:1", &ALL, &["b:1", "c:1"]);
    assert_eq!(world.element.health(), Health::Degraded);
}

#[test]
fn a_learned_server_is_given_up_after_four_failures_and_the_configured_ones_dialled_again() {
    let mut world = World::new(settings(&["any:1"]));
    world.accept("any:1", &[], &["b:1"]);
    world.pass(0.0);
    world.accept("b:1", &ALL, &["b:1"]);
    let lost = world.now;
    world.fail("b:1");
    for _ in 0..3 {
        while world.dialling("b:1").is_none() {
            world.pass(0.05);
        }
        world.fail("b:1");
    }
    let given_up = (world.now - lost).as_secs_f64();
    assert!((3.3..4.3).contains(&given_up), "{given_up}");
    world.pass(1.3);
    assert!(world.dialling("any:1").is_some());
    assert_eq!(states(&world), [("any:1", PeerState::Connecting)]);
}

#[test]
fn servers_that_list_only_each_other_are_dialled_after_a_pause() {
    let mut world = World::new(settings(&["any:1"]));
    world.accept("any:1", &[], &["a:1"]);
    world.pass(0.0);
    world.accept("a:1", &ALL, &["b:1"]);
    world.pass(0.0);
    world.accept("b:1", &ALL, &["a:1"]);
    world.pass(4.9);
    assert_eq!((world.element.health(), world.dialled.len()), (Health::Down, 3));
    world.pass(0.2);
    assert_eq!(world.dialled.len(), 4);
    assert!(world.dialling("any:1").is_some());
}

#[test]
fn a_server_that_lists_a_server_which_was_given_up_is_dialled_again() {
    let mut world = World::new(settings(&["a:1", "b:1"]));
    world.fail("a:1");
    world.accept("b:1", &[], &["c:1"]);
    for _ in 0..4 {
        world.pass(0.0);
        while world.dialling("c:1").is_none() {
            world.pass(0.05);
            if world.dialling("a:1").is_some() {
                world.fail("a:1");
            }
        }
        world.fail("c:1");
    }
    let given_up = world.now;
    while world.dialling("b:1").is_none() {
        world.pass(0.05);
        if world.dialling("a:1").is_some() {
            world.fail("a:1");
        }
        assert!((world.now - given_up).as_secs() < 20, "{:?}", states(&world));
    }
}

#[test]
fn a_server_is_used_only_if_its_list_has_the_dialled_address() {
    let mut world = World::new(settings(&["127.0.0.1:1"]));
    let connection = world.dialling("127.0.0.1:1").unwrap();
    world.act(|element, now| element.handle_connected(now, connection));
    // It is disconnected, although it has a role that the others lack.
    world.send_text(
        connection,
        &json!({"id": ["send_identity", 1], "result": {
            "name": "pr", "domain": "default", "my_role": ["policy_repository", "observer"],
            "peers": [{"role": ["policy_repository"], "connectivity_info": "localhost:1"}],
        }}),
    );
    world.pass(0.0);
    assert_eq!(world.closed[&connection], CloseReason::NotInItsList);
    world.accept("localhost:1", &ALL, &["localhost:1"]);
    assert_eq!(
        states(&world),
        [
            ("127.0.0.1:1", PeerState::Parked),
            ("localhost:1", PeerState::Ready)
        ]
    );
    assert_eq!(world.element.health(), Health::Healthy);
}

#[test]
fn a_server_with_an_empty_list_is_used_for_its_roles() {
    let mut world = World::new(settings(&["a:1"]));
    world.accept("a:1", &["policy_repository"], &[]);
    assert_eq!(states(&world), [("a:1", PeerState::Ready)]);
}

#[test]
fn a_server_that_no_list_has_any_more_is_disconnected() {
    let mut world = World::new(settings(&["a:1"]));
    world.accept("a:1", &ALL, &["a:1", "b:1"]);
    world.pass(0.0);
    let b = world.accept("b:1", &ALL, &["a:1", "b:1"]);
    // The first server returns with another list; the second still lists itself.
    world.fail("a:1");
    world.pass(1.4);
    world.accept("a:1", &ALL, &["a:1"]);
    assert!(!world.closed.contains_key(&b));
    world.fail("b:1");
    world.pass(1.4);
    world.accept("b:1", &ALL, &["a:1"]);
    assert_eq!(states(&world), [("a:1", PeerState::Ready)]);
}

#[test]
fn the_pause_before_dialling_again_grows_and_is_partly_random() {
    let mut world = World::new(settings(&["a:1"]));
    let mut waits = Vec::new();
    for _ in 0..10 {
        world.fail("a:1");
        let before = world.now;
        while world.dialling("a:1").is_none() {
            let due = world.element.next_deadline().unwrap();
            world.pass((due - world.now).as_secs_f64() + 1e-9);
        }
        waits.push((world.now - before).as_secs_f64());
    }
    for (wait, middle) in waits
        .iter()
        .zip([1.25, 1.25, 1.25, 2.5, 5.0, 10.0, 20.0, 20.0, 20.0, 20.0])
    {
        assert!((middle * 0.89..middle * 1.11).contains(wait), "{waits:?}");
    }
    assert!(waits[7] != waits[8]);
}

#[test]
fn dialling_and_the_identity_have_time_limits() {
    let mut world = World::new(settings(&["a:1"]));
    let connection = world.dialling("a:1").unwrap();
    world.pass(29.9);
    assert!(world.closed.is_empty());
    world.pass(0.2);
    assert_eq!(world.closed[&connection], CloseReason::IdentityTimeout);

    world.pass(2.0);
    let connection = world.dialling("a:1").unwrap();
    world.act(|element, now| element.handle_connected(now, connection));
    world.pass(44.9);
    assert!(!world.closed.contains_key(&connection));
    world.pass(0.2);
    assert_eq!(world.closed[&connection], CloseReason::IdentityTimeout);
}

#[test]
fn only_a_silent_server_is_disconnected_and_not_a_slow_one() {
    let mut world = World::new(settings(&["a:1", "b:1"]));
    let a = world.accept("a:1", &ALL, &["a:1", "b:1"]);
    let b = world.accept("b:1", &ALL, &["a:1", "b:1"]);
    for _ in 0..14 {
        world.pass(10.0);
        world.element.handle_bytes(world.now, b);
    }
    assert_eq!(world.closed[&a], CloseReason::Silent);
    assert!(!world.closed.contains_key(&b));
    let echoes = world.sent[&b]
        .iter()
        .filter(|message| message["method"] == "echo")
        .count();
    assert_eq!(echoes, 10);
}

#[test]
fn a_server_with_an_unusable_identity_is_dialled_again_later() {
    let result =
        |peers: Value| json!({"id": ["send_identity", 1], "result": {"my_role": ALL, "peers": peers}});
    let peer = |text: &str| json!([{"role": ALL, "connectivity_info": text}]);
    for answer in [
        result(json!("a:1")),
        result(json!([{}])),
        result(peer("localhost")),
        result(peer("localhost:http")),
        result(peer("localhost:0")),
        result(peer(":8009")),
        result(peer("localhost:65536")),
        result(peer(&format!("{}:1", "x".repeat(2000)))),
        result(json!(vec![json!({"connectivity_info": "a:1"}); 2000])),
        json!({"id": ["send_identity", 1], "result": null}),
        json!({"id": ["send_identity", 1], "error": {"code": "EDOMAIN", "message": "no"}}),
    ] {
        let mut world = World::new(settings(&["a:1"]));
        let connection = world.dialling("a:1").unwrap();
        world.act(|element, now| element.handle_connected(now, connection));
        world.send_text(connection, &answer);
        assert!(world.closed.contains_key(&connection), "{answer}");
        assert_eq!(states(&world), [("a:1", PeerState::Waiting)]);
        world.pass(1.4);
        assert!(world.dialling("a:1").is_some());
    }
}

#[test]
fn an_ipv6_server_is_found_in_its_list_with_and_without_brackets() {
    for (configured, listed) in [
        ("[::1]:18031", "::1:18031"),
        ("::1:18031", "[::1]:18031"),
        ("::1:18031", "::1:18031"),
    ] {
        let mut world = World::new(settings(&[configured]));
        world.accept("[::1]:18031", &ALL, &[listed]);
        assert_eq!(
            states(&world),
            [("[::1]:18031", PeerState::Ready)],
            "{configured} {listed}"
        );
    }
}

#[test]
fn the_number_of_the_identity_does_not_matter_and_a_second_one_is_ignored() {
    let mut world = World::new(settings(&["a:1"]));
    let connection = world.dialling("a:1").unwrap();
    world.act(|element, now| element.handle_connected(now, connection));
    let result = json!({"my_role": ALL, "domain": "other", "peers": [{"connectivity_info": "a:1"}]});
    world.send_text(
        connection,
        &json!({"id": ["send_identity", 99], "result": result}),
    );
    assert_eq!(states(&world), [("a:1", PeerState::Ready)]);
    world.identify(connection, &[], &["b:1"]);
    assert_eq!(states(&world), [("a:1", PeerState::Ready)]);
}

#[test]
fn requests_and_answers_before_the_identity_end_the_connection() {
    for (text, answered) in [
        (json!({"id": 1, "method": "policy_update", "params": []}), true),
        (json!({"id": 1, "method": "nonsense", "params": []}), true),
        (
            json!({"id": ["policy_resolve", 1], "result": {"policy": []}}),
            false,
        ),
        (json!({"id": ["policy_resolve", 1], "error": {}}), false),
    ] {
        let mut world = World::new(settings(&["a:1"]));
        let connection = world.dialling("a:1").unwrap();
        world.act(|element, now| element.handle_connected(now, connection));
        world.take_sent(connection);
        world.send_text(connection, &text);
        let answers = world.take_sent(connection);
        assert_eq!(answers.len(), usize::from(answered), "{text}");
        assert!(!answered || answers[0]["error"]["code"] == "ESTATE");
        assert!(world.closed.contains_key(&connection));
    }
}

#[test]
fn an_element_refuses_methods_of_a_server_and_the_session_goes_on() {
    let (mut world, server) = World::ready(settings(&[]));
    for (method, params, code) in [
        ("policy_resolve", json!([]), "EUNSUPPORTED"),
        ("send_identity", json!([]), "EUNSUPPORTED"),
        ("state_report", json!([]), "EUNSUPPORTED"),
        ("custom", json!([]), "EUNSUPPORTED"),
        ("update", json!({}), "EUNSUPPORTED"),
        ("policy_update", json!([7]), "ERROR"),
        ("policy_update", json!({}), "ERROR"),
    ] {
        let answers = world.ask(server, method, params);
        assert_eq!(answers[0]["error"]["code"], code, "{method}");
    }
    assert_eq!(world.ask(server, "echo", json!([5]))[0]["result"], json!([5]));
    for stray in [
        json!({"id": ["policy_resolve", 5], "result": {"policy": []}}),
        json!({"id": ["policy_resolve", 5], "error": {}}),
        json!({"id": ["policy_resolve", 5], "result": {"policy": 7}}),
        json!({"id": ["monitor", 5], "result": {}}),
        json!({"id": ["echo", 5], "error": {}}),
    ] {
        world.send_text(server, &stray);
        assert_eq!(world.take_sent(server), NOTHING);
    }
    assert!(world.closed.is_empty());
}

#[test]
fn a_learned_location_is_sent_in_later_identities() {
    let mut world = World::new(settings(&["a:1", "b:1"]));
    let connection = world.dialling("a:1").unwrap();
    world.act(|element, now| element.handle_connected(now, connection));
    let result = json!({"my_role": ALL, "your_location": "rack 1", "peers": [{"connectivity_info": "a:1"}]});
    world.send_text(connection, &json!({"id": ["send_identity", 1], "result": result}));
    assert!(world.events.contains(&ElementEvent::Location {
        location: "rack 1".to_owned()
    }));
    let other = world.accept("b:1", &ALL, &["b:1"]);
    assert_eq!(world.take_sent(other)[0]["params"][0]["my_location"], "rack 1");

    world.act(|element, now| element.reset(now));
    assert_eq!(
        (world.element.location(), world.element.health()),
        (None, Health::Down)
    );
    assert_eq!(world.closed[&other], CloseReason::Asked);
    world.pass(0.0);
    let again = world.accept("a:1", &ALL, &["a:1"]);
    assert!(
        world.take_sent(again)[0]["params"][0]
            .get("my_location")
            .is_none()
    );
}

#[test]
fn in_transport_mode_a_server_without_proxies_is_refused() {
    let mut world = World::new(ElementSettings {
        require_proxies: true,
        ..settings(&["a:1"])
    });
    let connection = world.accept("a:1", &ALL, &["a:1"]);
    assert!(matches!(world.closed[&connection], CloseReason::BadIdentity(_)));
    world.pass(1.4);
    let connection = world.dialling("a:1").unwrap();
    world.act(|element, now| element.handle_connected(now, connection));
    let data = json!({"proxy_v4": "1.1.1.1", "proxy_v6": "2.2.2.2", "proxy_mac": "3.3.3.3"});
    let result = json!({"my_role": ALL, "data": data, "peers": [{"connectivity_info": "a:1"}]});
    world.send_text(connection, &json!({"id": ["send_identity", 1], "result": result}));
    assert_eq!(world.element.health(), Health::Healthy);
    assert_eq!(world.element.proxies.as_ref().unwrap().v6, "2.2.2.2");
}

#[test]
fn the_number_of_learned_servers_is_limited() {
    let mut world = World::new(settings(&["any:1"]));
    let names: Vec<String> = (1..1000).map(|port| format!("x:{port}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    world.accept("any:1", &[], &names);
    world.pass(0.0);
    assert_eq!(world.dialled.len(), 1 + 64);
}

#[test]
fn a_stopped_element_does_not_dial() {
    let (mut world, server) = World::ready(settings(&[]));
    world.act(|element, now| element.stop(now));
    assert_eq!(world.closed[&server], CloseReason::Asked);
    assert_eq!(world.events, [ElementEvent::Health { health: Health::Down }]);
    world.pass(100.0);
    assert_eq!(world.dialled.len(), 1);
}

#[test]
fn absurd_settings_do_not_panic_or_loop() {
    for duration in [Duration::ZERO, Duration::MAX] {
        let mut settings = settings(&["a:1"]);
        settings.prr = duration;
        settings.retry = duration;
        settings.reconnect = duration;
        settings.reconnect_max = duration;
        settings.identity_timeout = Duration::MAX;
        settings.dial_timeout = Duration::MAX;
        settings.linger = duration;
        settings.keepalive.first = duration;
        settings.keepalive.interval = duration;
        settings.keepalive.silence = Duration::MAX;
        let (mut world, server) = World::ready(settings);
        let reference = world.act(|e, now| e.resolve_policy("class", uri("/a/"), true, now));
        world.pass(0.02);
        world.send_text(
            server,
            &json!({"id": ["policy_update", 1], "method": "policy_update", "params": [{}]}),
        );
        world.element.release(reference, world.now);
        world.pass(0.02);
        world.fail("a:1");
        world.pass(0.02);
    }
}
