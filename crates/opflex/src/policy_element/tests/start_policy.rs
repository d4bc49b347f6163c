//! The start policy: used until a server answers, and removed by the answer.

use super::holding::{known, release, resolve};
use super::*;
use crate::model::{Ident, ManagedObject, Target};

/// An element with a start policy of these URIs, whose objects have the value `old`.
fn starting_with(uris: &[&str]) -> (World, ConnectionId) {
    let (mut world, server) = World::ready(ElementSettings::default());
    let old = |text: &&str| ManagedObject::new("class", uri(text)).with("p", "old");
    world.element.start_with(uris.iter().map(old).collect()).unwrap();
    (world, server)
}

/// The URIs and the values of the policy.
fn values(world: &World) -> Vec<(String, String)> {
    let policy = world.element.policy().iter();
    policy
        .map(|object| {
            let value = object.property("p").and_then(Value::as_str).unwrap_or_default();
            (object.uri().to_string(), value.to_owned())
        })
        .collect()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter()
        .map(|(uri, value)| ((*uri).to_owned(), (*value).to_owned()))
        .collect()
}

fn answer(world: &mut World, server: ConnectionId, request: &Value, policy: &[Value]) {
    let answer = json!({"id": request["id"], "result": {"policy": policy}});
    world.send_text(server, &answer);
}

#[test]
fn the_start_policy_does_not_replace_received_policy() {
    let (mut world, server) = starting_with(&["/a/", "/a/b/", "/a/gone/"]);
    resolve(&mut world, "/a/");
    assert_eq!(
        values(&world),
        pairs(&[("/a/", "old"), ("/a/b/", "old"), ("/a/gone/", "old")])
    );
    world.serve(server, &[object("/a/", "new"), object("/a/b/", "new")]);
    // The server has answered about these objects.
    resolve(&mut world, "/a/b/");
    resolve(&mut world, "/a/gone/");
    assert_eq!(values(&world), pairs(&[("/a/", "new"), ("/a/b/", "new")]));
}

#[test]
fn an_answer_removes_only_start_policy_that_no_other_resolve_needs() {
    let (mut world, server) = starting_with(&["/a/", "/a/b/", "/a/c/", "/a/d/"]);
    resolve(&mut world, "/a/");
    resolve(&mut world, "/a/b/");
    resolve(&mut world, "/a/c/");
    let asked = world.take_sent(server);
    // Received for another resolve.
    answer(&mut world, server, &asked[1], &[object("/a/b/", "new")]);
    answer(&mut world, server, &asked[0], &[]);
    assert_eq!(values(&world), pairs(&[("/a/b/", "new"), ("/a/c/", "old")]));
    answer(&mut world, server, &asked[2], &[]);
    assert_eq!(values(&world), pairs(&[("/a/b/", "new")]));
}

#[test]
fn a_released_resolve_leaves_no_start_policy_in_an_answered_one() {
    let (mut world, server) = starting_with(&["/a/", "/a/b/"]);
    resolve(&mut world, "/a/");
    let inner = resolve(&mut world, "/a/b/");
    let asked = world.take_sent(server);
    answer(&mut world, server, &asked[0], &[object("/a/", "new")]);
    assert_eq!(known(&world), ["/a/", "/a/b/"]);
    release(&mut world, inner);
    world.pass(1.0);
    assert_eq!(known(&world), ["/a/"]);
}

#[test]
fn all_parts_of_a_long_answer_by_identifier_stay() {
    let (mut world, server) = World::ready(ElementSettings::default());
    let named = |text: &str| ManagedObject::new("class", uri(text)).with("name", "web");
    let start = vec![named("/s/1/").under("space", uri("/s/"))];
    world.element.start_with(start).unwrap();
    let ident = Ident {
        context: uri("/s/"),
        name: "web".into(),
    };
    world.act(|element, now| element.resolve_policy("class", Target::from(ident), false, now));
    assert_eq!(known(&world), ["/s/1/"]);
    let asked = world.take_sent(server).remove(0);
    let root = json!({"subject": "class", "uri": "/s/2/", "parent_uri": "/s/",
        "properties": [{"name": "name", "data": "web"}]});
    let first = json!([{"replace": [root, object("/s/2/x/", 1)]}]);
    assert_eq!(world.ask(server, "policy_update", first), NOTHING);
    answer(&mut world, server, &asked, &[object("/s/2/y/", 1)]);
    assert_eq!(known(&world), ["/s/2/", "/s/2/x/", "/s/2/y/"]);
}

#[test]
fn a_bad_answer_counts_as_no_answer() {
    let (mut world, server) = starting_with(&["/a/"]);
    resolve(&mut world, "/a/");
    let asked = world.take_sent(server).remove(0);
    let bad = json!({"subject": "class", "uri": "/a/", "parent_uri": "/elsewhere/"});
    answer(&mut world, server, &asked, &[bad]);
    assert_eq!(
        (values(&world), world.element.unanswered()),
        (pairs(&[("/a/", "old")]), 1)
    );
    world.pass(12.0);
    let again = world.take_sent(server).remove(0);
    answer(&mut world, server, &again, &[]);
    assert_eq!((known(&world).len(), world.element.unanswered()), (0, 0));
}

#[test]
fn a_bad_start_policy_does_not_replace_the_earlier_one() {
    let (mut world, _) = starting_with(&["/a/"]);
    let bad = ManagedObject::new("class", uri("/b/")).under("class", uri("/c/"));
    assert!(world.element.start_with(vec![bad]).is_err());
    resolve(&mut world, "/a/");
    assert_eq!(known(&world), ["/a/"]);
}
