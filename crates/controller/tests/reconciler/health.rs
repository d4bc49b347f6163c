//! Health checks, and instances that have ended.

use super::*;

#[test]
fn an_instance_whose_check_fails_is_replaced() {
    let mut bench = Bench::new();
    let mut spec = web(1, "a");
    spec["health"] = serde_json::json!({"tcp": 80, "failures": 2});
    bench.apply(spec);
    bench.settle();
    let one = bench.checked()[0];
    bench.wait(10);
    bench.settle();
    assert_eq!(bench.core.status()["web"].healthy, 0, "no check has passed yet");
    bench.core.handle_check(one, true);
    bench.settle();
    assert_eq!(bench.core.status()["web"].healthy, 1);
    bench.core.handle_check(one, false);
    assert!(bench.settle().is_empty());
    bench.core.handle_check(one, false);
    bench.settle();
    bench.wait(1);
    bench.settle();
    assert!(!bench.seen.instances.contains_key(&one) && bench.seen.instances.len() == 1);
}

#[test]
fn an_instance_that_its_node_is_starting_is_not_checked() {
    let mut spec = web(1, "a");
    spec["health"] = serde_json::json!({"tcp": 80});
    let (mut bench, uuid) = pending_with(spec);
    assert!(bench.checked().is_empty());
    bench.seen.instances.get_mut(&uuid).unwrap().is_pending = false;
    bench.settle();
    assert_eq!(bench.checked(), [uuid]);
}

#[test]
fn an_instance_whose_node_returns_is_checked_anew() {
    let mut bench = Bench::new();
    let mut spec = web(1, "a");
    spec["health"] = serde_json::json!({"tcp": 80, "failures": 2});
    bench.apply(spec);
    bench.settle();
    let one = bench.checked()[0];
    bench.core.handle_check(one, true);
    bench.core.handle_check(one, false);
    bench.seen.nodes.clear();
    bench.settle();
    assert!(bench.checked().is_empty());
    // The outcome of a check that was under way when the node left.
    bench.core.handle_check(one, false);
    bench.wait(30);
    assert!(bench.settle().is_empty());
    bench.seen.nodes.insert(NODE);
    assert!(bench.settle().is_empty());
    assert_eq!(bench.checked(), [one]);
    bench.core.handle_check(one, false);
    assert!(
        bench.settle().is_empty(),
        "the failures before the absence do not count"
    );
    bench.core.handle_check(one, false);
    assert!(matches!(bench.settle()[..], [Command::Delete { instance, .. }] if instance == one));
}

#[test]
fn an_instance_that_has_ended_is_replaced_unless_its_node_restarts_it() {
    let mut bench = Bench::new();
    let mut spec = web(1, "a");
    spec["start"]["restart_policy"] = "always".into();
    bench.apply(spec);
    bench.settle();
    let (one, seen) = bench.seen.instances.iter_mut().next().unwrap();
    let one = *one;
    let how = "exited 143".to_owned();
    let is_success = false;
    seen.ended = Some(SeenEnd { is_success, how });
    seen.is_restart_due = true;
    bench.wait(400);
    assert!(bench.settle().is_empty());
    // A user stops the instance, so its node does not restart it, whatever its policy says.
    bench.seen.instances.get_mut(&one).unwrap().is_restart_due = false;
    assert!(bench.settle().is_empty(), "its output stays");
    assert!(bench.seen.instances.contains_key(&one));
    bench.wait(1);
    let commands = bench.settle();
    assert!(matches!(commands[..], [Command::Start(_)]), "{commands:?}");
}

#[test]
fn an_instance_that_has_succeeded_counts_as_done_and_not_as_running() {
    let mut bench = Bench::new();
    let mut spec = web(2, "a");
    spec["reschedule"] = serde_json::json!({"policy": "on-failure"});
    bench.apply(spec);
    bench.settle();
    for seen in bench.seen.instances.values_mut() {
        let (is_success, how) = (true, "exited 0".to_owned());
        seen.ended = Some(SeenEnd { is_success, how });
    }
    bench.settle();
    // A user prunes the nodes: no node has any of the instances.
    bench.seen.instances.clear();
    assert!(bench.settle().is_empty());
    let status = &bench.core.status()["web"];
    assert_eq!((status.running, status.healthy, status.done), (0, 0, 2));
    assert_eq!(bench.workload().rollout.state, RolloutState::Steady);
}

/// A steady workload of three instances.
fn three() -> Bench {
    let mut bench = Bench::new();
    bench.apply(web(3, "a"));
    bench.settle();
    bench.wait(5);
    bench.settle();
    bench
}

#[test]
fn a_check_that_fails_everywhere_replaces_one_instance_at_a_time() {
    let mut bench = Bench::new();
    let mut spec = web(3, "a");
    spec["health"] = serde_json::json!({"tcp": 80, "failures": 1});
    bench.apply(spec);
    bench.settle();
    bench
        .checked()
        .iter()
        .for_each(|one| bench.core.handle_check(*one, true));
    bench.wait(5);
    bench.settle();
    assert_eq!(bench.workload().rollout.state, RolloutState::Steady);
    let mut starts = 0;
    for _ in 0..60 {
        for one in bench.checked() {
            bench.core.handle_check(one, false);
        }
        bench.obeys = false;
        let commands = bench.settle();
        bench.obeys = true;
        let deletes = commands
            .iter()
            .filter(|command| matches!(command, Command::Delete { .. }));
        assert!(deletes.count() <= 1, "{commands:?}");
        commands.iter().for_each(|command| bench.carry_out(command));
        starts += commands
            .iter()
            .filter(|command| matches!(command, Command::Start(_)))
            .count();
        assert!(
            bench.seen.instances.len() >= 2,
            "never fewer than count - max_unavailable"
        );
        bench.wait(1);
    }
    assert!((3..25).contains(&starts), "{starts}: the pauses grow");
    let problem = bench.core.status()["web"].problem.clone().unwrap();
    assert!(problem.contains("unhealthy"), "{problem}");
}

#[test]
fn a_wrong_check_is_a_version_that_goes_back() {
    let mut bench = three();
    let mut spec = web(3, "a");
    spec["health"] = serde_json::json!({"tcp": 1, "failures": 1});
    bench.apply(spec);
    assert_eq!(bench.workload().version, 2);
    for _ in 0..60 {
        bench.settle();
        for one in bench.checked() {
            bench.core.handle_check(one, false);
        }
        bench.wait(2);
    }
    bench.settle();
    assert_eq!(bench.workload().version, 1, "{:?}", bench.workload().rollout);
    assert!(bench.checked().is_empty(), "the version that runs has no check");
    assert_eq!(bench.workload().spec.health, None);
}
