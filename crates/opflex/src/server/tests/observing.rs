//! The observer.

use std::time::SystemTime;

use super::*;
use crate::message::StateReport;
use crate::server::{Observer, RollUp, ServerLimits};

fn report(world: &mut World, client: ConnectionId, text: &str, value: impl Into<Value>) {
    let answer = world.ask(
        client,
        "state_report",
        json!([{"observable": [object("stats", text, value)]}]),
    );
    assert_eq!(answer["result"], json!({}));
}

#[test]
fn a_report_replaces_the_former_report() {
    let mut world = World::new(ServerSettings::default());
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
    let mut world = World::new(ServerSettings {
        roll_up: vec![RollUp {
            interval: Duration::from_secs(10),
            keep: 5,
        }],
        ..ServerSettings::default()
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
    let exported: Vec<_> = world
        .server
        .observer()
        .export_after(None, &below, world.now, wall)
        .map(|(_, report)| report)
        .collect();
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
fn beyond_the_limit_the_oldest_report_is_dropped() {
    let mut world = World::new(ServerSettings {
        limits: ServerLimits {
            reports: 2,
            series: 1,
            ..ServerLimits::default()
        },
        ..ServerSettings::default()
    });
    let client = world.element("a");
    for n in 0..4 {
        report(&mut world, client, &format!("/stats/{n}/"), n);
        report(&mut world, client, &format!("/stats/{n}/"), n);
    }
    let observer = world.server.observer();
    assert_eq!(observer.len(), 2);
    assert!(observer.get(&uri("/stats/3/")).is_some() && observer.get(&uri("/stats/1/")).is_none());
    // One series is allowed: that of the last object.
    assert_eq!(observer.numbers(&uri("/stats/2/")).count(), 0);
    assert_eq!(observer.numbers(&uri("/stats/3/")).count(), 1);
}

#[test]
fn a_malformed_report_has_no_effect() {
    let mut world = World::new(ServerSettings::default());
    let client = world.element("a");
    let bad = object("stats", "/stats/2/", 1).under("x", uri("/elsewhere/"));
    let params = json!([{"observable": [object("stats", "/stats/1/", 1), bad]}]);
    assert_eq!(code(&world.ask(client, "state_report", params)), "ERROR");
    assert!(world.server.observer().is_empty());
}

#[test]
fn reports_are_limited_by_bytes_with_a_share_for_each_element() {
    let mut world = World::new(ServerSettings {
        limits: ServerLimits {
            report_bytes: 200_000,
            ..ServerLimits::default()
        },
        ..ServerSettings::default()
    });
    let (a, b) = (world.element("a"), world.element("b"));
    report(&mut world, b, "/stats/b/", 1);
    for n in 0..20 {
        report(&mut world, a, &format!("/stats/{n}/"), "x".repeat(30_000));
    }
    // A report that exceeds every share displaces no others.
    report(&mut world, a, "/stats/19/", "x".repeat(30_000));
    let long = json!([{"observable": [object("stats", "/stats/19/", "x".repeat(200_000))]}]);
    assert_eq!(code(&world.ask(a, "state_report", long)), "ERROR");
    let kept: Vec<_> = world
        .server
        .observer()
        .reports()
        .map(|report| report.object.uri.to_string())
        .collect();
    assert_eq!(kept, ["/stats/b/", "/stats/17/", "/stats/18/", "/stats/19/"]);
    // The share shrinks with the number of elements, so reports of the greedy one are dropped.
    for n in 0..3 {
        report(&mut world, b, &format!("/stats/b/{n}/"), "x".repeat(30_000));
    }
    let of = |name: &str| {
        let reports = world.server.observer().reports();
        reports.filter(|report| *report.element == *name).count()
    };
    assert_eq!((of("a"), of("b")), (2, 2));
}

#[test]
fn a_number_with_a_long_name_is_not_kept_over_time() {
    let mut world = World::new(ServerSettings::default());
    let client = world.element("a");
    // Each report replaces the former one, but the numbers of an object stay.
    for n in 0..100 {
        let name = format!("{n}{}", "x".repeat(10_000));
        let stats = ManagedObject::new("stats", uri("/stats/1/"))
            .with(name, n)
            .with("packets", n);
        world.ask(client, "state_report", json!([{"observable": [stats]}]));
    }
    let observer = world.server.observer();
    let stats = uri("/stats/1/");
    let names = observer.numbers(&stats).map(|(name, _)| name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["packets"]);
    assert_eq!(observer.series(), 1);
}

#[test]
fn a_report_that_is_not_repeated_within_the_refresh_time_is_dropped() {
    let mut world = World::new(ServerSettings {
        default_prr: Duration::from_secs(60),
        ..ServerSettings::default()
    });
    let client = world.element("a");
    report(&mut world, client, "/stats/1/", 1);
    report(&mut world, client, "/stats/2/", 1);
    world.pass(30.0);
    report(&mut world, client, "/stats/2/", 2);
    world.leave(client);
    world.pass(29.9);
    assert_eq!(world.server.observer().len(), 2);
    world.pass(0.1);
    let observer = world.server.observer();
    assert_eq!(observer.len(), 1);
    assert_eq!(observer.numbers(&uri("/stats/1/")).count(), 0);
    world.pass(30.0);
    assert!(world.server.observer().is_empty());
    assert_eq!(world.server.next_deadline(), None);
}

/// A counter as agent-ovs reports it, of one generation.
fn generation(agent: u64, classifier: u64, generation: u64) -> ManagedObject {
    let text = format!("/PolicyStatUniverse/GbpeL24ClassifierCounter/{agent}/{generation}/{classifier}/");
    ManagedObject::new("GbpeL24ClassifierCounter", uri(&text))
        .with("genId", generation)
        .with("packets", generation * 10)
}

#[test]
fn the_generations_of_a_counter_are_one_report_and_one_series() {
    let mut world = World::new(ServerSettings::default());
    let client = world.element("a");
    for n in 100..150 {
        let params = json!([{"observable": [generation(7, 1, n), generation(7, 2, n)]}]);
        world.ask(client, "state_report", params);
        world.pass(0.2);
    }
    let observer = world.server.observer();
    assert_eq!(observer.len(), 2);
    let counter = uri("/PolicyStatUniverse/GbpeL24ClassifierCounter/7/*/2/");
    let last = observer.get(&counter).unwrap();
    assert_eq!(
        (last.count, last.object.property("genId")),
        (50, Some(&json!(149)))
    );
    let (name, rows) = observer.numbers(&counter).next().unwrap();
    assert_eq!(
        (
            name.as_str(),
            rows[1].intervals[0].samples,
            rows[1].intervals[0].last
        ),
        ("packets", 50, 1490.0)
    );
    assert_eq!(
        observer.numbers(&counter).count(),
        1,
        "the generation counts nothing"
    );
    let below = uri("/PolicyStatUniverse/");
    let exported = observer.export_after(None, &below, world.now, SystemTime::UNIX_EPOCH);
    assert!(
        exported
            .flat_map(|(_, report)| report.numbers)
            .all(|(_, rows)| !rows[0].intervals.is_empty())
    );
}

/// Twenty agents with five counters each, a new generation every 5 s, for
/// three hours of virtual time; every minute one of them is another agent.
#[test]
fn an_observer_keeps_only_the_latest_reports() {
    let settings = ServerSettings {
        default_prr: Duration::from_secs(600),
        ..ServerSettings::default()
    };
    let mut world = World::new(settings.clone());
    let mut observer = Observer::new(&settings, None, world.now);
    let begin = world.now;
    let mut most = (0, 0);
    for round in (0..3 * 3600).step_by(5) {
        world.now = begin + Duration::from_secs(round);
        observer.handle_deadline(world.now);
        for agent in 0..20 {
            let agent = if agent == 0 { 100 + round / 60 } else { agent };
            let observable = (0..5)
                .map(|classifier| generation(agent, classifier, 1_000_000 + round))
                .collect();
            let reports = vec![StateReport { observable }];
            observer.handle_report(world.now, &"a".into(), reports).unwrap();
        }
        let (reports, series) = (observer.len(), observer.series());
        most = (most.0.max(reports), most.1.max(series));
    }
    // The series of the nineteen agents, and those of the changing agents of the last ten minutes.
    assert!(most.0 <= (19 + 11) * 5 && most.1 == most.0, "{most:?}");
}
