//! The orders of users, and what they leave for later ones.

use super::rollouts::quick;
use super::*;

#[test]
fn the_good_versions_are_kept_however_many_follow_that_are_not() {
    let mut bench = Bench::new();
    bench.rolls("a");
    bench.rolls("b");
    for number in 0..15 {
        bench.apply(quick(&format!("c{number}")));
    }
    for version in [2, 1] {
        bench.order(RolloutOrder::Back);
        bench.complete();
        assert_eq!(bench.workload().version, version);
        assert_eq!(bench.versions(), [version]);
    }
}

#[test]
fn a_spec_of_an_earlier_version_returns_to_that_version() {
    let mut bench = Bench::new();
    bench.rolls("a");
    bench.rolls("b");
    bench.rolls("a");
    let workload = bench.workload();
    assert_eq!((workload.version, workload.versions.len()), (1, 2));
}

#[test]
fn a_file_that_an_earlier_build_has_applied_changes_nothing() {
    let mut bench = Bench::new();
    let mut spec = web(2, "a");
    spec["health"] = serde_json::json!({"tcp": 80});
    spec["start"]["env"] = serde_json::json!({"A": "b"});
    bench.apply(spec.clone());
    let mut stored = serde_json::to_value(bench.workload()).unwrap();
    stored["versions"][0]["digest"] = "0123456789abcdef".into();
    let mut state = State::default();
    let stored = std::sync::Arc::new(serde_json::from_value(stored).unwrap());
    state.workloads.insert("web".to_owned(), stored);
    bench.core = Core::new(state);
    let (applied, writes) = bench
        .core
        .apply(vec![serde_json::from_value(spec).unwrap()])
        .unwrap();
    assert!(applied[0].version == 1 && writes.is_empty(), "{writes:?}");
}

#[test]
fn the_limit_of_all_instances_counts_other_workloads_and_the_surge() {
    let mut bench = Bench::new();
    let spec = |number: usize, surge: u32| {
        let mut spec = web(10_000, "a");
        spec["name"] = format!("w{number}").into();
        spec["update"] = serde_json::json!({ "surge": surge });
        spec
    };
    for number in 0..10 {
        bench.apply(spec(number, 0));
    }
    for spec in [spec(10, 0), spec(9, 1)] {
        let spec: Spec = serde_json::from_value(spec).unwrap();
        let error = bench.core.apply(vec![spec]).unwrap_err().to_string();
        assert!(error.contains("more than 100000 instances"), "{error}");
    }
    // One that is there already is not counted twice.
    bench.apply(spec(9, 0));
}

#[test]
fn a_version_that_is_applied_to_a_paused_roll_out_is_rolled_out() {
    let mut bench = Bench::new();
    bench.rolls("a");
    bench.apply(quick("b"));
    bench.order(RolloutOrder::Pause);
    let refused = bench.core.rollout("web", RolloutOrder::Pause).unwrap_err();
    assert!(refused.to_string().contains("is paused already"), "{refused}");
    bench.apply(quick("c"));
    assert_eq!(bench.workload().rollout.state, RolloutState::Rolling);
    bench.complete();
    assert_eq!(bench.versions(), [3]);
}
