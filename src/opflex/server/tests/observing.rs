//! The observer.

use std::time::SystemTime;

use super::*;
use crate::opflex::server::{RollUp, ServerLimits};

fn report(world: &mut World, client: ConnectionId, text: &str, value: impl Into<Value>) {
    let answer = world.ask(
        client,
        "state_report",
        json!([{"observable": [object("stats", text, value)]}]),
    );
    assert_eq!(answer["result"], json!({}));
}

#[test]
fn a_report_takes_the_place_of_the_one_before() {
    let mut world = World::new(Settings::default());
    let (a, b) = (world.element("a"), world.element("b"));
    report(&mut world, a, "/stats/1/", 1);
    report(&mut world, b, "/stats/2/", "text");
    world.pass(5.0);
    report(&mut world, b, "/stats/1/", 2);
    let observer = world.server.observer();
    let last = observer.get(&uri("/stats/1/")).unwrap();
    assert_eq!(
        (last.object.property("p"), &*last.element, last.count),
        (Some(&json!(2)), "b", 2)
    );
    assert_eq!(last.arrived, world.now);
    let order: Vec<_> = observer
        .reports()
        .map(|report| report.object.uri.as_str())
        .collect();
    assert_eq!(order, ["/stats/2/", "/stats/1/"]);
}

#[test]
fn reports_are_exported_with_their_times_and_numbers() {
    let mut world = World::new(Settings {
        roll_up: vec![RollUp {
            interval: Duration::from_secs(10),
            keep: 5,
        }],
        ..Settings::default()
    });
    let client = world.element("a");
    report(&mut world, client, "/other/", 0);
    for (wait, value) in [(0.0, 1), (5.0, 4), (6.0, 9)] {
        world.pass(wait);
        report(&mut world, client, "/stats/1/", value);
    }
    world.pass(2.0);
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let below = uri("/stats/");
    let exported: Vec<_> = world.server.observer().export(&below, world.now, wall).collect();
    let interval = |start: u64, samples: u64, min: f64, max: f64, sum: f64| json!({"start": start, "samples": samples, "min": min, "max": max, "sum": sum, "first": min, "last": max});
    assert_eq!(
        serde_json::to_value(exported).unwrap(),
        json!([{
            "object": object("stats", "/stats/1/", 9),
            "element": "a",
            "arrived": 999_998.0,
            "count": 3,
            "numbers": {"p": [{"interval": 10, "intervals": [
                interval(999_987, 2, 1.0, 4.0, 5.0), interval(999_997, 1, 9.0, 9.0, 9.0)]}]},
        }])
    );
}

#[test]
fn beyond_the_limit_the_oldest_makes_room() {
    let mut world = World::new(Settings {
        limits: ServerLimits {
            reports: 2,
            series: 1,
            ..ServerLimits::default()
        },
        ..Settings::default()
    });
    let client = world.element("a");
    for n in 0..4 {
        report(&mut world, client, &format!("/stats/{n}/"), n);
        report(&mut world, client, &format!("/stats/{n}/"), n);
    }
    let observer = world.server.observer();
    assert_eq!(observer.len(), 2);
    assert!(observer.get(&uri("/stats/3/")).is_some() && observer.get(&uri("/stats/1/")).is_none());
    // One number may be followed: it is free again when its object is dropped.
    assert_eq!(observer.numbers(&uri("/stats/2/")).count(), 1);
    assert_eq!(observer.numbers(&uri("/stats/3/")).count(), 0);
}

#[test]
fn a_malformed_report_is_refused_whole() {
    let mut world = World::new(Settings::default());
    let client = world.element("a");
    let bad = object("stats", "/stats/2/", 1).under("x", uri("/elsewhere/"));
    let params = json!([{"observable": [object("stats", "/stats/1/", 1), bad]}]);
    assert_eq!(code(&world.ask(client, "state_report", params)), "ERROR");
    assert!(world.server.observer().is_empty());
}
