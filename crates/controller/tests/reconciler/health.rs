//! Health checks, and instances that have ended.

use super::*;

/// A workload of this count with a health check, and its instances.
fn checked(count: u32) -> (Bench, Vec<Uuid>) {
    let mut bench = Bench::new();
    let mut spec = web(count, "a");
    spec["health"] = serde_json::json!({"tcp": 80, "failures": 2});
    bench.apply(spec);
    bench.settle();
    let instances = bench.checked();
    (bench, instances)
}

/// The same, once all of them were healthy.
fn steady(count: u32) -> (Bench, Vec<Uuid>) {
    let (mut bench, instances) = checked(count);
    for one in &instances {
        bench.tell(*one, HealthState::Healthy);
    }
    bench.wait(5);
    bench.settle();
    assert_eq!(bench.workload().rollout.state, RolloutState::Steady);
    (bench, instances)
}

#[test]
fn an_instance_whose_check_fails_is_replaced() {
    let (mut bench, instances) = checked(1);
    let one = instances[0];
    bench.wait(10);
    bench.settle();
    assert_eq!(bench.core.status()["web"].healthy, 0, "no check has passed yet");
    bench.tell(one, HealthState::Healthy);
    bench.settle();
    assert_eq!(bench.core.status()["web"].healthy, 1);
    bench.tell(one, HealthState::Unhealthy);
    bench.settle();
    bench.wait(1);
    bench.settle();
    assert!(!bench.seen.instances.contains_key(&one) && bench.seen.instances.len() == 1);
}

#[test]
fn the_check_goes_to_the_node_with_each_start() {
    let mut bench = Bench::new();
    let mut spec = web(1, "a");
    spec["health"] = serde_json::json!({"command": ["test", "-e", "ready"], "start_s": 5});
    bench.apply(spec);
    let commands = bench.settle();
    let [Command::Start(payload)] = &commands[..] else {
        panic!("{commands:?}")
    };
    let health = payload.start.health.clone().unwrap();
    assert_eq!((health.command.len(), health.start_s, health.failures), (3, 5, 3));
}

#[test]
fn an_instance_that_its_node_is_starting_is_not_healthy_and_not_failed() {
    let mut spec = web(1, "a");
    spec["health"] = serde_json::json!({"tcp": 80});
    let (mut bench, uuid) = pending_with(spec);
    bench.seen.instances.get_mut(&uuid).unwrap().is_pending = false;
    bench.wait(200);
    bench.settle();
    let status = &bench.core.status()["web"];
    assert_eq!((status.running, status.healthy), (1, 0));
    assert_eq!(bench.seen.instances.len(), 1);
}

#[test]
fn nothing_follows_from_the_health_that_a_node_told_before_it_left() {
    let (mut bench, instances) = steady(1);
    bench.tell(instances[0], HealthState::Unhealthy);
    bench.seen.nodes.clear();
    bench.wait(30);
    assert!(bench.settle().is_empty());
    bench.tell(instances[0], HealthState::Healthy);
    bench.seen.nodes.insert(NODE);
    assert!(bench.settle().is_empty());
    assert_eq!(bench.core.status()["web"].healthy, 1);
}

#[test]
fn unknown_health_is_neither_healthy_nor_failed() {
    // The nodes of an older version make no checks.
    let (mut bench, instances) = steady(3);
    for one in &instances {
        bench.tell(*one, HealthState::Unset);
    }
    // The first STATS with an instance may not have its health yet.
    bench.settle();
    assert_eq!(bench.core.status()["web"].problem, None);
    bench.wait(1000);
    assert!(bench.settle().is_empty(), "none is replaced");
    let status = bench.core.status()["web"].clone();
    assert_eq!((status.running, status.healthy), (3, 0));
    assert!(status.problem.unwrap().contains("is unknown"));
    // One that is known to be unhealthy is replaced, because the others run.
    bench.tell(instances[0], HealthState::Unhealthy);
    assert!(matches!(bench.settle()[..], [Command::Delete { .. }]));
}

#[test]
fn a_version_of_unknown_health_goes_back_and_is_never_good() {
    let mut bench = three();
    let mut spec = web(3, "b");
    spec["health"] = serde_json::json!({"tcp": 80});
    bench.apply(spec);
    for _ in 0..40 {
        for one in bench.checked() {
            bench.tell(one, HealthState::Unset);
        }
        bench.settle();
        assert!(bench.seen.instances.len() >= 2);
        bench.wait(10);
    }
    assert_eq!(bench.workload().version, 1, "{:?}", bench.workload().rollout);
    assert_eq!(bench.workload().good, [1]);
}

#[test]
fn a_replacement_has_to_be_healthy_before_the_next_one() {
    let (mut bench, instances) = steady(3);
    for one in &instances {
        bench.tell(*one, HealthState::Unhealthy);
    }
    bench.settle();
    bench.wait(1);
    bench.settle();
    bench.wait(100);
    assert!(bench.settle().is_empty(), "its first checks are under way");
    assert_eq!(bench.seen.instances.len(), 3);
    let new = bench.checked().into_iter().find(|one| !instances.contains(one));
    bench.tell(new.unwrap(), HealthState::Healthy);
    assert!(matches!(bench.settle()[..], [Command::Delete { .. }]));
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
    let (mut bench, _) = steady(3);
    let mut starts = 0;
    for _ in 0..60 {
        for one in bench.checked() {
            bench.tell(one, HealthState::Unhealthy);
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
    assert!(problem.contains("unhealthy: port 80: refused"), "{problem}");
}

#[test]
fn an_instance_that_was_never_healthy_has_failed_at_once_however_long_its_grace_was() {
    let (mut bench, _) = steady(1);
    for _ in 0..6 {
        // The first STATS with an instance may not have its health yet.
        for health in [HealthState::Unset, HealthState::Starting] {
            let all: Vec<_> = bench.seen.instances.keys().copied().collect();
            all.into_iter().for_each(|one| bench.tell(one, health.clone()));
            bench.settle();
        }
        bench.wait(62);
        for one in bench.checked() {
            bench.tell(one, HealthState::Unhealthy);
        }
        bench.settle();
        bench.wait(300);
        bench.settle();
    }
    let instances = bench.core.state().instances.values();
    let attempts = instances.map(|instance| instance.attempt).max();
    assert!(attempts >= Some(4), "{attempts:?}: the pauses grow");
}

#[test]
fn an_instance_that_ran_for_long_has_not_failed_at_once() {
    // The nodes of an older version make no checks.
    for health in [HealthState::Healthy, HealthState::Unset] {
        let (mut bench, _) = steady(1);
        for is_gone in [false, true, false] {
            for one in bench.checked() {
                bench.tell(one, health.clone());
            }
            bench.settle();
            bench.wait(100);
            bench.settle();
            if is_gone {
                bench.seen.instances.retain(|_, seen| seen.ended.is_some());
            }
            for seen in bench.seen.instances.values_mut() {
                let (is_success, how) = (false, "exited 1".to_owned());
                seen.ended = Some(SeenEnd { is_success, how });
                seen.health = HealthState::Unset;
            }
            bench.settle();
            bench.wait(1);
            let starts = bench.starts;
            bench.settle();
            assert_eq!(bench.starts, starts + 1, "{health:?}: the pause is the first one");
        }
    }
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
            bench.tell(one, HealthState::Unhealthy);
        }
        bench.wait(2);
    }
    bench.settle();
    assert_eq!(bench.workload().version, 1, "{:?}", bench.workload().rollout);
    assert!(bench.checked().is_empty(), "the version that runs has no check");
    assert_eq!(bench.workload().spec.health, None);
}

#[test]
fn failures_of_the_former_version_do_not_count_for_the_next_one() {
    let (mut bench, former) = steady(3);
    for one in &former {
        bench.tell(*one, HealthState::Unhealthy);
    }
    let mut spec = web(3, "b");
    spec["health"] = serde_json::json!({"tcp": 80, "failures": 2});
    spec["update"] = serde_json::json!({ "max_failures": 1 });
    bench.apply(spec);
    for _ in 0..20 {
        bench.settle();
        for one in bench.checked() {
            if !former.contains(&one) {
                bench.tell(one, HealthState::Healthy);
            }
        }
        bench.wait(6);
    }
    let workload = bench.workload();
    assert_eq!(
        (workload.version, workload.stable),
        (2, Some(2)),
        "{:?}",
        workload.rollout
    );
}
