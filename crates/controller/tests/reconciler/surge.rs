//! Instances that start before others are stopped.

use super::*;

fn spec(count: u32, command: &str) -> serde_json::Value {
    let mut spec = web(count, command);
    spec["update"] = serde_json::json!({"max_unavailable": 0, "surge": 1, "max_failures": 2});
    spec
}

impl Bench {
    /// The first version of a workload of this count, which runs.
    fn surging(count: u32) -> Self {
        let mut bench = Self::new();
        bench.apply(spec(count, "a"));
        bench.watch(0, count as usize);
        assert_eq!(bench.starts, count as usize);
        bench
    }

    /// Takes steps for some time. The number of instances that run is never outside these limits.
    fn watch(&mut self, least: usize, most: usize) {
        for _ in 0..100 {
            let plan = self.plan();
            self.core.handle_commit(plan.writes, 1);
            for command in &plan.commands {
                self.carry_out(command);
                let running = self.slots().len();
                assert!((least..=most).contains(&running), "{running} run");
            }
            if plan.commands.is_empty() {
                self.wait(1);
            }
        }
    }

    /// The slot and the version of each instance that runs and is wanted.
    fn slots(&self) -> Vec<(u32, u64)> {
        let runs = |uuid: &Uuid| {
            self.seen
                .instances
                .get(uuid)
                .is_some_and(|seen| seen.ended.is_none())
        };
        let all = self.core.state().instances.values();
        let mut slots: Vec<_> = all
            .filter(|one| one.wanted && runs(&one.uuid))
            .map(|one| (one.slot, one.version))
            .collect();
        slots.sort_unstable();
        slots
    }

    /// The instance of a slot ends with an error.
    fn end(&mut self, slot: u32) -> Uuid {
        let mut all = self.core.state().instances.values();
        let uuid = all.find(|one| one.slot == slot && one.wanted).unwrap().uuid;
        let (is_success, how) = (false, "exited 1".to_owned());
        self.seen.instances.get_mut(&uuid).unwrap().ended = Some(SeenEnd { is_success, how });
        uuid
    }
}

#[test]
fn an_instance_is_stopped_only_once_another_one_is_healthy() {
    for count in [1, 3] {
        let mut bench = Bench::surging(count);
        bench.apply(spec(count, "b"));
        assert!(
            matches!(bench.settle()[..], [Command::Start(_)]),
            "nothing is stopped yet"
        );
        let more = bench.core.status()["web"].clone();
        assert_eq!((more.running, more.surge, more.wanted), (count, 1, count));
        bench.wait(4);
        assert!(
            bench.settle().is_empty(),
            "the new one is not healthy for long enough"
        );
        bench.watch(count as usize, count as usize + 1);
        assert_eq!(
            bench.slots(),
            (1..=count).map(|slot| (slot, 2)).collect::<Vec<_>>()
        );
        assert_eq!(bench.workload().rollout.state, RolloutState::Steady);
        assert_eq!(bench.core.status()["web"].surge, 0);
        assert_eq!(bench.starts, 2 * count as usize + 1);
    }
}

#[test]
fn an_instance_of_the_surge_stays_while_the_one_that_it_makes_up_for_does_not_end() {
    let mut bench = Bench::surging(1);
    bench.apply(spec(1, "b"));
    bench.settle();
    bench.wait(20);
    bench.obeys = false;
    assert!(matches!(bench.settle()[..], [Command::Delete { .. }]));
    for _ in 0..5 {
        bench.wait(60);
        bench.settle();
        assert_eq!(bench.slots(), [(2, 2)]);
    }
}

#[test]
fn an_instance_that_does_not_end_costs_no_other_one_while_none_of_the_surge_runs() {
    let mut bench = Bench::surging(2);
    bench.apply(spec(2, "b"));
    bench.settle();
    bench.wait(20);
    bench.obeys = false;
    assert!(matches!(bench.settle()[..], [Command::Delete { .. }]));
    bench.end(3);
    for _ in 0..5 {
        bench.wait(60);
        bench.settle();
        assert_eq!(bench.slots(), [(2, 1)]);
    }
}

#[test]
fn surge_and_max_unavailable_add_up() {
    let mut both = spec(4, "a");
    both["update"] = serde_json::json!({"max_unavailable": 1, "surge": 2});
    let mut bench = Bench::new();
    bench.apply(both.clone());
    bench.watch(0, 4);
    both["start"]["command"] = serde_json::json!(["b"]);
    bench.apply(both);
    bench.watch(3, 6);
    assert_eq!(bench.slots(), [(1, 2), (2, 2), (3, 2), (4, 2)]);
}

#[test]
fn no_more_instances_are_added_than_are_to_be_replaced() {
    let mut many = spec(2, "a");
    many["update"]["surge"] = 1000.into();
    let mut bench = Bench::new();
    bench.apply(many.clone());
    bench.watch(0, 2);
    many["start"]["command"] = serde_json::json!(["b"]);
    bench.apply(many);
    bench.watch(2, 4);
    assert_eq!(bench.starts, 6);
}

#[test]
fn a_version_that_fails_beside_the_others_goes_back_and_stops_none_of_them() {
    let mut bench = Bench::surging(2);
    bench.apply(spec(2, "b"));
    bench.settle();
    let first = bench.end(3);
    bench.settle();
    bench.wait(1);
    bench.settle();
    let second = bench.end(3);
    bench.watch(2, 3);
    assert_eq!(bench.workload().version, 1, "{:?}", bench.workload().rollout);
    assert_eq!(bench.slots(), [(1, 1), (2, 1)]);
    assert_eq!(bench.starts, 4);
    for failed in [first, second] {
        assert!(bench.seen.instances.contains_key(&failed), "its output shows why");
    }
}

#[test]
fn going_back_keeps_the_instance_that_replaces_another_until_that_runs() {
    let mut bench = Bench::surging(1);
    bench.apply(spec(1, "b"));
    bench.settle();
    bench.wait(5);
    bench.settle();
    assert_eq!(bench.slots(), [(1, 2), (2, 2)]);
    // The new version runs in the slot of the surge alone.
    bench.end(1);
    bench.settle();
    let writes = bench.core.rollout("web", RolloutOrder::Back).unwrap();
    bench.core.handle_commit(writes, 1);
    bench.watch(1, 2);
    assert_eq!(bench.slots(), [(1, 1)]);
}

#[test]
fn the_surge_of_a_paused_roll_out_stays_beside_the_good_version() {
    let mut bench = Bench::surging(2);
    bench.apply(spec(2, "b"));
    bench.settle();
    let writes = bench.core.rollout("web", RolloutOrder::Pause).unwrap();
    bench.core.handle_commit(writes, 1);
    bench.watch(2, 3);
    assert_eq!(bench.slots(), [(1, 1), (2, 1), (3, 2)]);
    bench.end(3);
    bench.watch(2, 3);
    assert_eq!(bench.slots(), [(1, 1), (2, 1), (3, 2)]);
    let writes = bench.core.rollout("web", RolloutOrder::Resume).unwrap();
    bench.core.handle_commit(writes, 1);
    bench.watch(2, 3);
    assert_eq!(bench.slots(), [(1, 2), (2, 2)]);
}

#[test]
fn an_instance_leaves_a_node_once_another_one_runs() {
    let mut bench = Bench::surging(1);
    bench.seen.nodes.insert(Uuid::from_u128(0xa1));
    bench.seen.in_maintenance.insert(NODE);
    assert!(matches!(bench.settle()[..], [Command::Start(_), ..]));
    bench.watch(1, 2);
    assert_eq!(bench.slots(), [(1, 1)]);
    assert!(bench.seen.instances.values().all(|seen| seen.node != NODE));
}

#[test]
fn an_unhealthy_instance_is_replaced_once_another_one_is_healthy() {
    let mut checked = spec(1, "a");
    checked["health"] = serde_json::json!({"tcp": 80});
    let mut bench = Bench::new();
    bench.apply(checked);
    bench.settle();
    let one = bench.checked()[0];
    bench.tell(one, HealthState::Healthy);
    bench.watch(1, 1);
    bench.tell(one, HealthState::Unhealthy);
    assert!(matches!(bench.settle()[..], [Command::Start(_)]));
    let other = bench.checked().into_iter().find(|uuid| *uuid != one).unwrap();
    bench.wait(60);
    assert!(bench.settle().is_empty(), "the other one has not passed a check");
    bench.tell(other, HealthState::Healthy);
    assert!(matches!(bench.settle()[..], [Command::Delete { instance, .. }] if instance == one));
    assert!(bench.seen.instances.contains_key(&other));
}

#[test]
fn an_instance_of_the_surge_is_taken_over_after_the_database_was_lost() {
    let mut bench = Bench::surging(1);
    bench.apply(spec(1, "b"));
    bench.settle();
    bench.wait(5);
    bench.end(1);
    bench.core = Core::new(State::default());
    bench.apply(spec(1, "b"));
    bench.settle();
    let state = bench.core.state().clone();
    assert!(
        state.instances.values().any(|one| one.slot == 2 && one.wanted),
        "{state:?}"
    );
    bench.watch(1, 2);
    assert_eq!(bench.slots(), [(1, 1)]);
}
