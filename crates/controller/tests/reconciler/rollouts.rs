//! Roll-outs that go back, are paused, or wait for an instance that hangs.

use super::*;

/// A workload of one instance, two of whose failures end a roll-out.
pub(super) fn quick(command: &str) -> serde_json::Value {
    let mut spec = web(1, command);
    spec["update"] = serde_json::json!({"max_failures": 2});
    spec
}

impl Bench {
    pub(super) fn order(&mut self, order: RolloutOrder) {
        let writes = self.core.rollout("web", order).unwrap();
        self.core.handle_commit(writes, 1);
    }

    /// Applies a version, and waits until it is healthy to the end of its roll-out.
    pub(super) fn rolls(&mut self, command: &str) {
        self.apply(quick(command));
        self.complete();
    }

    pub(super) fn complete(&mut self) {
        self.settle();
        self.wait(5);
        self.settle();
        assert_eq!(self.workload().rollout.state, RolloutState::Steady);
    }

    /// All instances with this program end with an error.
    fn fail(&mut self, command: &str) {
        let state = self.core.state().clone();
        let digest = |version: u64| {
            let version = state.workloads["web"].version_of(version).unwrap();
            (version.template.start.command[0] == command).then(|| version.template.digest())
        };
        let failing: Vec<_> = (1..20)
            .filter(|number| state.workloads["web"].version_of(*number).is_some())
            .filter_map(digest)
            .collect();
        for seen in self.seen.instances.values_mut() {
            if seen
                .labels
                .as_ref()
                .is_some_and(|labels| failing.contains(&labels.digest))
            {
                let (is_success, how) = (false, "exited 1".to_owned());
                seen.ended = Some(SeenEnd { is_success, how });
            }
        }
    }

    /// The versions of the instances that run, by slot.
    pub(super) fn versions(&self) -> Vec<u64> {
        let state = self.core.state();
        let runs = |uuid: &Uuid| {
            self.seen
                .instances
                .get(uuid)
                .is_some_and(|seen| seen.ended.is_none())
        };
        let mut running: Vec<_> = state
            .instances
            .values()
            .filter(|i| i.wanted && runs(&i.uuid))
            .collect();
        running.sort_by_key(|instance| instance.slot);
        running.iter().map(|instance| instance.version).collect()
    }

    /// Rolls a version out that fails, until it has gone back by itself.
    fn fails_to_roll(&mut self, command: &str) {
        self.apply(quick(command));
        for _ in 0..4 {
            self.settle();
            self.fail(command);
            self.settle();
            self.wait(10);
        }
        self.complete();
    }
}

#[test]
fn going_back_leads_to_the_last_good_version_and_never_to_one_that_failed() {
    let mut bench = Bench::new();
    bench.rolls("a");
    bench.fails_to_roll("b");
    assert_eq!(bench.workload().version, 1);
    bench.rolls("c");
    assert_eq!((bench.workload().version, bench.workload().stable), (3, Some(3)));
    bench.order(RolloutOrder::Back);
    assert_eq!(bench.workload().version, 1);
    bench.complete();
    assert_eq!(bench.versions(), [1]);
    let refused = bench.core.rollout("web", RolloutOrder::Back).unwrap_err();
    assert!(refused.to_string().contains("no earlier version"), "{refused}");
    // The version that a user has left is not gone back to after the next one either.
    bench.rolls("d");
    bench.order(RolloutOrder::Back);
    assert_eq!(bench.workload().version, 1);
}

#[test]
fn an_order_to_go_back_is_a_roll_out_whose_failures_count() {
    let mut bench = Bench::new();
    bench.rolls("a");
    bench.rolls("b");
    bench.order(RolloutOrder::Back);
    for _ in 0..2 {
        bench.settle();
        bench.fail("a");
        bench.settle();
        bench.wait(10);
    }
    bench.complete();
    assert_eq!(bench.workload().version, 2, "{:?}", bench.workload().rollout);
    assert_eq!(bench.versions(), [2]);
}

#[test]
fn a_paused_roll_out_replaces_an_instance_by_the_version_of_its_slot() {
    let mut bench = Bench::new();
    bench.apply(web(3, "a"));
    bench.settle();
    bench.wait(5);
    bench.settle();
    bench.apply(web(3, "b"));
    bench.settle();
    assert_eq!(bench.versions(), [2, 1, 1]);
    bench.order(RolloutOrder::Pause);
    for _ in 0..3 {
        for command in ["a", "b"] {
            bench.fail(command);
            bench.settle();
            bench.wait(20);
            bench.settle();
            assert_eq!(bench.versions(), [2, 1, 1]);
        }
    }
    bench.order(RolloutOrder::Resume);
    for _ in 0..3 {
        bench.wait(20);
        bench.settle();
    }
    assert_eq!(bench.versions(), [2, 2, 2]);
}

#[test]
fn an_instance_that_hangs_blocks_its_own_slot_only() {
    let mut bench = Bench::new();
    bench.apply(web(3, "a"));
    bench.settle();
    bench.wait(5);
    bench.settle();
    bench.obeys = false;
    bench.apply(web(3, "b"));
    let commands = bench.settle();
    let [Command::Delete { instance: hung, .. }] = commands[..] else {
        panic!("{commands:?}");
    };
    // Far longer than the deadline of a step.
    for _ in 0..20 {
        bench.wait(60);
        for command in bench.settle() {
            if !matches!(command, Command::Delete { instance, .. } if instance == hung) {
                bench.obeys = true;
                bench.carry_out(&command);
                bench.obeys = false;
            }
        }
    }
    assert_eq!(bench.workload().version, 2, "{:?}", bench.workload().rollout);
    assert_eq!(bench.versions(), [2, 2]);
    let problem = bench.core.status()["web"].problem.clone().unwrap();
    assert!(problem.contains("does not end"), "{problem}");
}

#[test]
fn the_spec_is_that_of_the_version_that_runs() {
    let mut bench = Bench::new();
    bench.rolls("a");
    bench.fails_to_roll("b");
    assert_eq!(bench.workload().spec.start.command, ["a"]);
    let spec: Spec = serde_json::from_value(quick("a")).unwrap();
    let (applied, writes) = bench.core.apply(vec![spec]).unwrap();
    assert!(writes.is_empty(), "{applied:?}");
}

#[test]
fn the_last_three_failed_instances_of_a_slot_stay_on_their_node() {
    let mut bench = Bench::new();
    bench.apply(quick("a"));
    let mut failed = Vec::new();
    for _ in 0..5 {
        bench.settle();
        let runs = bench.seen.instances.iter().find(|(_, seen)| seen.ended.is_none());
        failed.push(*runs.unwrap().0);
        bench.fail("a");
        bench.settle();
        bench.wait(300);
    }
    bench.settle();
    let kept: Vec<_> = failed
        .iter()
        .filter(|uuid| bench.seen.instances.contains_key(uuid))
        .collect();
    assert_eq!(kept, failed[2..].iter().collect::<Vec<_>>());
    let stored = bench.core.state().instances[&failed[4]].clone();
    assert_eq!(
        (stored.state, stored.ending.as_str()),
        (InstanceState::Failed, "exited 1")
    );
    assert_eq!(bench.versions(), [1]);
    // With the workload its evidence goes, too.
    let writes = bench.core.delete("web").unwrap();
    bench.core.handle_commit(writes, 1);
    bench.settle();
    assert!(bench.seen.instances.is_empty());
}

/// A tenant's network may have five addresses.
#[test]
fn failed_instances_of_a_tenant_give_their_addresses_back_if_there_is_no_place_for_the_next_one() {
    let mut bench = Bench::new();
    let mut spec = quick("a");
    spec["start"]["tenant"] = "blue".into();
    bench.apply(spec);
    for _ in 0..3 {
        bench.settle();
        bench.fail("a");
        bench.settle();
        bench.wait(300);
    }
    bench.obeys = false;
    let commands = bench.settle();
    let [Command::Start(payload)] = &commands[..] else {
        panic!("{commands:?}");
    };
    assert_eq!(bench.seen.instances.len(), 3, "the failed ones stay");
    bench.obeys = true;
    let full = Answer::NotStarted {
        why: "no address of 10.0.0.0/29 is free".to_owned(),
        is_its_fault: false,
    };
    bench.core.handle_answer(payload.start.instance_uuid, full);
    let commands = bench.settle();
    let deletes = commands.iter().filter(|it| matches!(it, Command::Delete { .. }));
    assert_eq!(deletes.count(), 3, "{commands:?}");
    assert!(bench.seen.instances.is_empty());
    // Failures that follow are evidence again.
    bench.wait(300);
    bench.settle();
    bench.fail("a");
    bench.settle();
    bench.wait(300);
    bench.settle();
    assert_eq!(bench.seen.instances.len(), 2);
}

#[test]
fn failed_instances_of_a_tenant_stay_if_the_next_one_has_found_a_place_since() {
    let mut bench = Bench::new();
    let mut spec = quick("a");
    spec["start"]["tenant"] = "blue".into();
    spec["count"] = 2.into();
    bench.apply(spec.clone());
    bench.obeys = false;
    let commands = bench.settle();
    bench.obeys = true;
    let [Command::Start(first), Command::Start(second)] = &commands[..] else {
        panic!("{commands:?}");
    };
    let full = Answer::NotStarted {
        why: "no address of 10.0.0.0/29 is free".to_owned(),
        is_its_fault: false,
    };
    bench.core.handle_answer(first.start.instance_uuid, full);
    bench.carry_out(&commands[1]);
    bench.settle();
    bench.wait(1);
    bench.complete();
    let (is_success, how) = (false, "exited 1".to_owned());
    let seen = bench.seen.instances.get_mut(&second.start.instance_uuid);
    seen.unwrap().ended = Some(SeenEnd { is_success, how });
    bench.settle();
    bench.wait(1);
    bench.complete();
    assert_eq!((bench.versions(), bench.seen.instances.len()), (vec![1, 1], 3));
    // Maintenance replaces both.
    let other = Uuid::from_u128(0xa1);
    bench.seen.nodes.insert(other);
    bench.seen.in_maintenance.insert(NODE);
    for _ in 0..4 {
        bench.settle();
        bench.wait(5);
    }
    let all = bench.seen.instances.values();
    let moved = all.filter(|seen| seen.node == other && seen.ended.is_none());
    assert_eq!((moved.count(), bench.seen.instances.len()), (2, 3));
}

#[test]
fn an_address_of_its_own_is_free_before_the_successor_starts() {
    let mut bench = Bench::new();
    let mut spec = quick("a");
    spec["start"]["tenant"] = "blue".into();
    spec["start"]["networking"] = serde_json::json!({"private_ip": "10.0.0.2"});
    bench.apply(spec);
    bench.settle();
    let first = *bench.seen.instances.keys().next().unwrap();
    bench.fail("a");
    bench.obeys = false;
    bench.wait(300);
    let commands = bench.settle();
    assert!(
        matches!(commands[..], [Command::Delete { instance, .. }] if instance == first),
        "{commands:?}"
    );
    bench.obeys = true;
    bench.carry_out(&commands[0]);
    bench.wait(300);
    let commands = bench.settle();
    assert!(matches!(commands[..], [Command::Start(_)]), "{commands:?}");
}

#[test]
fn each_row_has_the_tenant_of_its_instance_when_it_was_written() {
    let mut bench = Bench::new();
    let mut rows = Vec::new();
    for tenant in ["blue", "green"] {
        let mut spec = quick("a");
        spec["start"]["tenant"] = tenant.into();
        let spec: Spec = serde_json::from_value(spec).unwrap();
        let mut writes = bench.core.apply(vec![spec]).unwrap().1;
        for _ in 0..40 {
            rows.extend(writes.iter().filter_map(|write| match write {
                Write::Event(event) => Some(event.clone()),
                _ => None,
            }));
            bench.core.handle_commit(writes, 1);
            let plan = bench.plan();
            plan.commands.iter().for_each(|command| bench.carry_out(command));
            writes = plan.writes;
            bench.wait(1);
        }
    }
    assert!(rows.iter().all(|row| row.tenant.is_some()), "{rows:#?}");
    let of = |kind: &str| {
        let rows = rows.iter().filter(|row| row.kind == kind);
        rows.map(|row| row.tenant.as_deref().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of("applied"), ["blue", "green"]);
    assert_eq!(of("starting"), ["blue", "green"]);
    assert_eq!(of("gone"), ["blue"], "the instance of the former version");
}
