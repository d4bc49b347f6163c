//! The nodes of instances: those of a workload are spread, and leave a node that is being emptied.

use super::*;

const OTHER: Uuid = Uuid::from_u128(0xa1);

impl Bench {
    /// A workload of this count whose instances run on two nodes, in turn.
    fn spread(mut spec: serde_json::Value) -> Self {
        let mut bench = Self::new();
        bench.seen.nodes.insert(OTHER);
        spec["count"] = 4.into();
        bench.apply(spec);
        bench.settle();
        for (seen, node) in bench
            .seen
            .instances
            .values_mut()
            .zip([NODE, OTHER].into_iter().cycle())
        {
            seen.node = node;
        }
        bench.wait(5);
        bench.settle();
        assert_eq!(bench.workload().rollout.state, RolloutState::Steady);
        bench
    }

    /// A node goes into maintenance.
    fn empty(&mut self, node: Uuid) {
        self.seen.in_maintenance.insert(node);
    }

    fn running_on(&self, node: Uuid) -> usize {
        let all = self.seen.instances.values();
        all.filter(|seen| seen.node == node && seen.ended.is_none())
            .count()
    }

    /// Takes one plan, carries it out, and returns its STARTs and DELETEs.
    fn step(&mut self) -> (usize, usize) {
        let plan = self.plan();
        self.core.handle_commit(plan.writes, 1);
        for command in &plan.commands {
            self.carry_out(command);
        }
        let all = plan.commands.iter();
        let starts = all.clone().filter(|one| matches!(one, Command::Start(_))).count();
        (starts, all.count() - starts)
    }
}

fn siblings(commands: &[Command]) -> Vec<(Uuid, Vec<Uuid>)> {
    let starts = commands.iter().filter_map(|command| match command {
        Command::Start(payload) => Some(&payload.start),
        _ => None,
    });
    let uuids = |ids: &[ssntp::payload::Id]| ids.iter().map(|id| id.uuid().unwrap()).collect();
    starts
        .map(|start| (start.instance_uuid, uuids(&start.apart_from)))
        .collect()
}

#[test]
fn a_constraint_is_part_of_each_start_and_a_changed_one_is_rolled_out() {
    let mut bench = Bench::new();
    let of_zone = |zone: &str| {
        let mut spec = web(1, "a");
        spec["start"]["constraint"] = serde_json::json!({"zone": zone});
        spec
    };
    let zones = |commands: &[Command]| -> Vec<String> {
        let starts = commands.iter().filter_map(|command| match command {
            Command::Start(payload) => payload.start.requirements.labels.get("zone").cloned(),
            _ => None,
        });
        starts.collect()
    };
    bench.apply(of_zone("a"));
    assert_eq!(zones(&bench.settle()), ["a"]);
    bench.wait(5);
    bench.settle();
    bench.apply(of_zone("b"));
    let mut after = bench.settle();
    bench.wait(5);
    after.extend(bench.settle());
    assert_eq!(zones(&after), ["b"]);
    assert_eq!(bench.workload().versions.len(), 2);
}

#[test]
fn a_start_names_the_other_instances_of_its_workload() {
    let mut bench = Bench::new();
    bench.apply(web(3, "a"));
    let first = siblings(&bench.settle());
    let [(one, none), (two, before_two), (three, before_three)] = &first[..] else {
        panic!("{first:?}")
    };
    assert!(none.is_empty());
    assert_eq!((before_two, before_three), (&vec![*one], &vec![*two, *one]));
    // A replacement names those that stay, and not the instance that it replaces.
    bench.seen.instances.remove(two);
    bench.settle();
    bench.wait(1);
    let again = siblings(&bench.settle());
    let [(_, others)] = &again[..] else {
        panic!("{again:?}")
    };
    assert_eq!(BTreeSet::from_iter(others), BTreeSet::from([one, three]));

    let mut bench = Bench::new();
    let mut spec = web(3, "a");
    spec["spread"] = "none".into();
    bench.apply(spec);
    assert!(
        siblings(&bench.settle())
            .iter()
            .all(|(_, named)| named.is_empty())
    );
    // A list that is too long for a frame is cut.
    bench.apply(web(500, "a"));
    let many = siblings(&bench.settle());
    assert!(many.iter().all(|(_, named)| named.len() <= 64) && many.last().unwrap().1.len() == 64);
}

#[test]
fn a_change_of_spread_replaces_no_instance() {
    let mut bench = Bench::spread(web(4, "a"));
    let mut spec = web(4, "a");
    spec["spread"] = "none".into();
    bench.apply(spec);
    assert!(bench.settle().is_empty() && bench.workload().version == 1);
}

#[test]
fn instances_leave_a_node_that_is_being_emptied_within_max_unavailable() {
    for limit in [1, 2] {
        let mut spec = web(4, "a");
        spec["update"] = serde_json::json!({"max_unavailable": limit});
        let mut bench = Bench::spread(spec);
        bench.empty(NODE);
        let (mut starts, mut least) = (0, 4);
        for _ in 0..40 {
            let (more, _) = bench.step();
            starts += more;
            // STARTs go to the node that is in service.
            least = least.min(bench.seen.instances.len());
        }
        assert_eq!((starts, least), (2, 4 - limit));
        assert_eq!((bench.running_on(NODE), bench.running_on(OTHER)), (0, 4));
        assert_eq!(bench.workload().rollout.failures, 0);
    }
}

#[test]
fn nothing_leaves_the_last_node_in_service() {
    let mut bench = Bench::spread(web(4, "a"));
    bench.empty(NODE);
    bench.empty(OTHER);
    assert!(bench.plan().is_empty());
    bench.seen.in_maintenance.clear();
    assert!(bench.settle().is_empty());
}

#[test]
fn instances_leave_also_while_the_roll_out_is_paused_and_keep_their_version() {
    let mut bench = Bench::spread(web(4, "a"));
    bench.apply(web(4, "b"));
    let writes = bench.core.rollout("web", RolloutOrder::Pause).unwrap();
    bench.core.handle_commit(writes, 1);
    bench.empty(NODE);
    bench.settle();
    bench.wait(10);
    bench.settle();
    assert_eq!((bench.running_on(NODE), bench.running_on(OTHER)), (0, 4));
    assert!(bench.core.state().instances.values().all(|one| one.version == 1));
}

#[test]
fn an_instance_that_ends_on_a_node_in_maintenance_has_not_failed() {
    let mut bench = Bench::spread(web(4, "a"));
    bench.apply(web(4, "b"));
    bench.empty(NODE);
    // EVACUATE without draining ends all of them.
    for seen in bench.seen.instances.values_mut().filter(|seen| seen.node == NODE) {
        let (is_success, how) = (false, "killed SIGTERM".to_owned());
        seen.ended = Some(SeenEnd { is_success, how });
    }
    for _ in 0..20 {
        bench.settle();
        bench.wait(5);
    }
    assert_eq!(bench.workload().version, 2);
    assert_eq!(bench.workload().rollout.state, RolloutState::Steady);
    assert_eq!((bench.running_on(NODE), bench.running_on(OTHER)), (0, 4));
}

/// Each step takes a minute, and so does each instance that leaves a node.
#[test]
fn instances_that_leave_a_node_do_not_end_a_roll_out_that_is_slow() {
    let update = serde_json::json!({"healthy_s": 60, "deadline_s": 100});
    let spec = |command: &str| {
        let mut spec = web(4, command);
        spec["update"] = update.clone();
        spec
    };
    let mut bench = Bench::new();
    bench.seen.nodes.insert(OTHER);
    bench.apply(spec("a"));
    bench.settle();
    bench.wait(60);
    bench.settle();
    bench.apply(spec("b"));
    for _ in 0..2 {
        bench.settle();
        bench.wait(60);
    }
    // All instances of the new version are on the node that takes STARTs.
    let third = Uuid::from_u128(0xa2);
    bench.seen.nodes.insert(third);
    bench.empty(OTHER);
    for _ in 0..20 {
        bench.settle();
        bench.wait(60);
    }
    let workload = bench.workload();
    assert_eq!(
        (workload.version, workload.rollout.state),
        (2, RolloutState::Steady)
    );
}

#[test]
fn an_instance_that_its_node_would_start_again_leaves_a_node_in_maintenance() {
    let mut bench = Bench::spread(web(4, "a"));
    bench.empty(NODE);
    for seen in bench.seen.instances.values_mut().filter(|seen| seen.node == NODE) {
        let (is_success, how) = (false, "exited 1".to_owned());
        seen.ended = Some(SeenEnd { is_success, how });
        seen.is_restart_due = true;
    }
    bench.settle();
    assert_eq!(bench.running_on(OTHER), 4);
}

#[test]
fn an_instance_that_is_done_stays_done() {
    let mut spec = web(4, "a");
    spec["reschedule"] = serde_json::json!({"policy": "on-failure"});
    let mut bench = Bench::spread(spec);
    for seen in bench.seen.instances.values_mut() {
        let (is_success, how) = (true, "exited 0".to_owned());
        seen.ended = Some(SeenEnd { is_success, how });
    }
    bench.settle();
    bench.empty(NODE);
    assert!(bench.settle().is_empty());
    assert_eq!(bench.core.status()["web"].done, 4);
}

#[test]
fn a_node_that_comes_into_service_ends_the_pauses_of_instances_without_a_place() {
    for (is_its_fault, longest, starts_at_once) in [(false, 60, 2), (true, 300, 0)] {
        let mut bench = Bench::new();
        bench.obeys = false;
        bench.apply(web(2, "a"));
        // Answers all STARTs that are sent now.
        let refuse = |bench: &mut Bench| {
            let commands = bench.settle();
            for command in &commands {
                let Command::Start(payload) = command else {
                    panic!("{command:?}");
                };
                let answer = Answer::NotStarted {
                    why: "no node in service has enough room".into(),
                    is_its_fault,
                };
                bench.core.handle_answer(payload.start.instance_uuid, answer);
            }
            bench.settle();
            commands.len()
        };
        for _ in 0..12 {
            assert_eq!(refuse(&mut bench), 2);
            bench.wait(longest);
        }
        assert_eq!(refuse(&mut bench), 2);
        bench.wait(longest - 1);
        assert_eq!(refuse(&mut bench), 0);
        bench.seen.in_maintenance.insert(OTHER);
        bench.seen.nodes.insert(OTHER);
        assert_eq!(refuse(&mut bench), 0, "a node in maintenance has no place");
        bench.seen.in_maintenance.clear();
        assert_eq!(refuse(&mut bench), starts_at_once);
        bench.wait(1);
        assert_eq!(refuse(&mut bench), 2 - starts_at_once);
    }
}

#[test]
fn what_a_node_told_before_it_left_ends_no_instance() {
    let mut bench = Bench::new();
    bench.apply(web(1, "a"));
    bench.settle();
    let instance = *bench.seen.instances.keys().next().unwrap();
    let (is_success, how) = (false, "exited 1".to_owned());
    bench.seen.instances.get_mut(&instance).unwrap().ended = Some(SeenEnd { is_success, how });
    bench.seen.nodes = BTreeSet::from([Uuid::from_u128(0xb0)]);
    assert!(bench.settle().is_empty(), "its node may have started it again");
    let state = |bench: &Bench| bench.core.state().instances[&instance].state;
    assert_eq!(state(&bench), InstanceState::Running);
    bench.seen.nodes.insert(NODE);
    bench.settle();
    assert_eq!(state(&bench), InstanceState::Failed);
}

#[test]
fn an_answer_that_the_list_of_a_node_has_overtaken_changes_nothing() {
    let mut bench = Bench::new();
    bench.obeys = false;
    bench.apply(web(1, "a"));
    let commands = bench.settle();
    bench.obeys = true;
    bench.carry_out(&commands[0]);
    let instance = *bench.seen.instances.keys().next().unwrap();
    let (why, is_its_fault) = ("no room".to_owned(), true);
    bench
        .core
        .handle_answer(instance, Answer::NotStarted { why, is_its_fault });
    assert!(bench.settle().is_empty());
    assert_eq!(
        bench.core.state().instances[&instance].state,
        InstanceState::Running
    );
    assert_eq!(bench.workload().rollout.failures, 0);
}

#[test]
fn an_instance_of_a_node_that_is_away_is_not_taken_over() {
    let mut bench = Bench::new();
    bench.apply(web(1, "a"));
    bench.settle();
    let instance = *bench.seen.instances.keys().next().unwrap();
    // The database is lost.
    bench.core = Core::new(State::default());
    bench.seen.nodes = BTreeSet::from([Uuid::from_u128(0xb0)]);
    bench.apply(web(1, "a"));
    bench.settle();
    assert!(!bench.core.state().instances.contains_key(&instance));
}
