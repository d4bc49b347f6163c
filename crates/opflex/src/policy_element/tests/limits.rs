//! The limits of an element, and its health.

use super::super::ElementLimits;
use super::holding::{declare, known, resolve};
use super::*;

#[test]
fn the_objects_of_a_server_are_limited() {
    let (mut world, server) = World::ready(ElementSettings {
        limits: ElementLimits {
            objects: 2,
            ..ElementLimits::default()
        },
        ..ElementSettings::default()
    });
    resolve(&mut world, "/a/");
    world.serve(server, &[object("/a/", 1), object("/a/b/", 1)]);
    let answers = world.ask(
        server,
        "policy_update",
        json!([{"replace": [object("/a/c/", 1)]}]),
    );
    assert_eq!(answers[0]["error"]["code"], "ERROR");
    world.ask(
        server,
        "policy_update",
        json!([{"merge_children": [object("/a/", 2)]}]),
    );
    assert_eq!(known(&world), ["/a/", "/a/b/"]);
    assert!(world.due() > 0.0);

    // Objects that the update deletes make room.
    let delete = json!([{"subject": "class", "uri": "/a/b/"}]);
    let update = json!([{"replace": [object("/a/c/", 1)], "delete": delete}]);
    assert_eq!(world.ask(server, "policy_update", update), NOTHING);
    assert_eq!(known(&world), ["/a/", "/a/c/"]);
    // A listed child counts, also if it never arrives.
    let listing = json!({"subject": "class", "uri": "/a/", "children": ["/a/c/", "/a/d/"]});
    let answers = world.ask(server, "policy_update", json!([{"merge_children": [listing]}]));
    assert_eq!(answers[0]["error"]["code"], "ERROR");
}

#[test]
fn an_answer_beyond_the_limit_is_reported_and_the_resolve_is_repeated() {
    let mut settings = ElementSettings::default();
    settings.limits.objects = 1;
    let (mut world, server) = World::ready(settings);
    world.act(|element, now| element.resolve_policy("class", uri("/a/"), false, now));
    let objects = [object("/a/", 1), object("/a/b/", 1)];
    world.serve(server, &objects);
    assert!(
        world
            .events
            .iter()
            .any(|event| matches!(event, ElementEvent::NotTaken { limit: 1, .. }))
    );
    assert_eq!((world.element.unanswered(), world.element.policy().len()), (1, 0));
    world.pass(12.0);
    world.serve(server, &objects[..1]);
    assert_eq!((world.element.unanswered(), world.element.policy().len()), (0, 1));
}

#[test]
fn what_an_answer_or_an_update_removes_makes_room_for_it() {
    let mut settings = ElementSettings::default();
    settings.limits.objects = 4;
    let (mut world, server) = World::ready(settings);
    resolve(&mut world, "/a/");
    let listing = |children: &[&str]| {
        let mut root = object("/a/", 1);
        root["children"] = json!(children);
        root
    };
    // The last child never arrives.
    let full = listing(&["/a/b/", "/a/c/", "/a/d/"]);
    world.serve(server, &[full, object("/a/b/", 1), object("/a/c/", 1)]);
    let update = json!([{"replace": [listing(&["/a/d/", "/a/e/"]), object("/a/e/", 1)]}]);
    assert_eq!(world.ask(server, "policy_update", update), NOTHING);
    assert_eq!(known(&world), ["/a/", "/a/e/"]);
    let update = json!([{"replace": [listing(&["/a/d/", "/a/e/", "/a/f/"]), object("/a/d/", 1)]}]);
    assert_eq!(world.ask(server, "policy_update", update), NOTHING);

    world.fail("a:1");
    world.pass(1.4);
    let server = world.accept("a:1", &ALL, &["a:1"]);
    let answer = [
        listing(&["/a/g/", "/a/h/"]),
        object("/a/g/", 1),
        object("/a/h/", 1),
    ];
    world.serve(server, &answer);
    assert_eq!(known(&world), ["/a/", "/a/g/", "/a/h/"]);
}

#[test]
fn an_unanswered_request_raises_one_alarm_and_degrades_the_health_until_it_is_answered() {
    let (mut world, server) = World::ready(ElementSettings::default());
    world.act(|element, now| element.resolve_policy("class", uri("/a/"), false, now));
    let alarms = |world: &World| {
        let is_alarm = |event: &&ElementEvent| matches!(event, ElementEvent::Unanswered { attempts: 3, .. });
        world.events.iter().filter(is_alarm).count()
    };
    let requests = |world: &mut World| {
        for _ in 0..100 {
            world.pass(1.0);
            world.send_text(
                server,
                &json!({"id": ["echo", 1], "method": "echo", "params": []}),
            );
        }
        world.take_sent(server)
    };
    assert_eq!(
        (alarms(&world), world.element.health()),
        (0, crate::policy_element::Health::Healthy)
    );
    let sent = requests(&mut world);
    assert_eq!(
        (alarms(&world), world.element.health()),
        (1, crate::policy_element::Health::Degraded)
    );
    let again = sent
        .iter()
        .rfind(|message| message["method"] == "policy_resolve")
        .unwrap();
    world.send_text(server, &json!({"id": again["id"], "result": {"policy": []}}));
    assert_eq!(
        (alarms(&world), world.element.health()),
        (1, crate::policy_element::Health::Healthy)
    );

    // An alarm ends with its declaration.
    declare(&mut world, "/ep/", 1);
    requests(&mut world);
    assert_eq!(world.element.health(), crate::policy_element::Health::Degraded);
    world.act(|element, _| element.undeclare(&uri("/ep/")));
    assert_eq!(world.element.health(), crate::policy_element::Health::Healthy);
}
