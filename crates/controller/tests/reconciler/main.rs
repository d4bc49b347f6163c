//! The reconciler in constructed situations. The simulation covers situations that are not listed here.

#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod health;
mod nodes;
mod orders;
mod rollouts;
mod surge;

use std::collections::BTreeSet;
use std::time::Duration;

use ssntp_controller::Spec;
use ssntp_controller::model::{InstanceState, RolloutState, State, Write};
use ssntp_controller::reconcile::{
    Answer, Command, Core, Labels, Now, Plan, Refused, RolloutOrder, Seen, SeenEnd, SeenInstance,
};
use ssntp_payload::HealthState;
use uuid::Uuid;

const NODE: Uuid = Uuid::from_u128(0xa0);

/// A reconciler whose plans are carried out at once by one node.
struct Bench {
    core: Core,
    seen: Seen,
    now: Now,
    uuids: u128,
    /// True if STARTs and DELETEs are carried out.
    obeys: bool,
    starts: usize,
}

impl Bench {
    fn new() -> Self {
        let seen = Seen {
            session: 1,
            told: true,
            nodes: BTreeSet::from([NODE]),
            ..Seen::default()
        };
        Self {
            core: Core::new(State::default()),
            seen,
            now: Now::default(),
            uuids: 0,
            obeys: true,
            starts: 0,
        }
    }

    fn apply(&mut self, json: serde_json::Value) {
        let spec: Spec = serde_json::from_value(json).unwrap();
        let (_, writes) = self.core.apply(vec![spec]).unwrap();
        self.core.handle_commit(writes, 1);
    }

    fn plan(&mut self) -> Plan {
        let uuids = &mut self.uuids;
        self.core.plan(self.now, &self.seen, &mut || {
            *uuids += 1;
            Uuid::from_u128(*uuids)
        })
    }

    /// Takes steps until there is nothing to do, and returns the commands.
    fn settle(&mut self) -> Vec<Command> {
        let mut all = Vec::new();
        loop {
            let plan = self.plan();
            if plan.is_empty() {
                return all;
            }
            self.core.handle_commit(plan.writes, 1);
            for command in &plan.commands {
                self.carry_out(command);
            }
            all.extend(plan.commands);
        }
    }

    fn carry_out(&mut self, command: &Command) {
        self.starts += usize::from(matches!(command, Command::Start(_)));
        match command {
            _ if !self.obeys => {}
            Command::Start(payload) => {
                let labels = &payload.start.labels;
                let labels = Labels {
                    workload: labels["ssntp.workload"].clone(),
                    slot: labels["ssntp.slot"].parse().unwrap(),
                    digest: labels["ssntp.template"].clone(),
                };
                let seen = SeenInstance {
                    node: *self.seen.nodes.last().unwrap(),
                    is_pending: false,
                    ended: None,
                    is_restart_due: false,
                    health: match payload.start.health {
                        Some(_) => HealthState::Starting,
                        None => HealthState::Unset,
                    },
                    health_detail: String::new(),
                    labels: Some(labels),
                };
                self.seen.instances.insert(payload.start.instance_uuid, seen);
            }
            Command::Delete { instance, .. } => drop(self.seen.instances.remove(instance)),
            Command::Ask(_) => {}
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.now.elapsed += Duration::from_secs(seconds);
        self.now.unix_ms += i64::try_from(seconds).unwrap() * 1000;
    }

    /// The instances that their nodes check.
    fn checked(&self) -> Vec<Uuid> {
        let all = self.seen.instances.iter();
        all.filter(|(_, seen)| seen.health != HealthState::Unset)
            .map(|(uuid, _)| *uuid)
            .collect()
    }

    /// The node of an instance tells its health.
    fn tell(&mut self, instance: Uuid, health: HealthState) {
        let seen = self.seen.instances.get_mut(&instance).unwrap();
        seen.health_detail = if health == HealthState::Unhealthy {
            "port 80: refused".into()
        } else {
            String::new()
        };
        seen.health = health;
    }

    /// The only workload.
    fn workload(&self) -> &ssntp_controller::model::Workload {
        self.core.state().workloads.values().next().unwrap()
    }
}

fn web(count: u32, command: &str) -> serde_json::Value {
    serde_json::json!({"name": "web", "count": count, "start": {"command": [command]}})
}

#[test]
fn a_cold_start_with_5_000_instances_starts_none_again() {
    let mut bench = Bench::new();
    bench.apply(web(5000, "a"));
    while bench.seen.instances.len() < 5000 {
        bench.settle();
    }
    assert_eq!(bench.starts, 5000);
    // The next process has the same database.
    let state = bench.core.state().clone();
    assert!(
        state
            .instances
            .values()
            .all(|instance| instance.state == InstanceState::Running)
    );
    bench.core = Core::new(state);
    let before = std::mem::replace(&mut bench.seen.told, false);
    assert!(
        bench.plan().is_empty(),
        "no decision is made before the snapshot is complete"
    );
    bench.seen.told = before;
    assert!(bench.plan().is_empty());
    assert_eq!(bench.core.status()["web"].running, 5000);

    // A process whose database was lost finds its instances by their labels.
    bench.core = Core::new(State::default());
    bench.apply(web(5000, "a"));
    let commands = bench.settle();
    assert!(commands.is_empty(), "{} commands", commands.len());
    let instances = &bench.core.state().instances;
    assert!(instances.len() == 5000 && instances.values().all(|i| i.wanted && i.version == 1));
    assert_eq!((bench.starts, bench.core.status()["web"].running), (5000, 5000));
}

#[test]
fn an_answer_counts_again_if_its_effect_could_not_be_written() {
    let mut bench = Bench::new();
    bench.obeys = false;
    bench.apply(web(1, "a"));
    let commands = bench.settle();
    let [Command::Start(payload)] = &commands[..] else {
        panic!("{commands:?}");
    };
    let not_started = Answer::NotStarted {
        why: "its image is not available".into(),
        is_its_fault: true,
    };
    bench.core.handle_answer(payload.start.instance_uuid, not_started);
    // The database is full for a while.
    for _ in 0..3 {
        let plan = bench.plan();
        let gone = plan
            .writes
            .iter()
            .any(|write| matches!(write, Write::InstanceGone(_)));
        assert!(gone, "{plan:?}");
    }
    bench.settle();
    assert_eq!(bench.workload().rollout.failures, 1);
    assert_eq!(bench.core.status()["web"].starting, 0, "a pause has begun");
}

#[test]
fn adopted_instances_that_are_not_needed_are_deleted() {
    let mut bench = Bench::new();
    bench.apply(web(3, "a"));
    bench.settle();
    bench.core = Core::new(State::default());
    bench.apply(web(2, "a"));
    let commands = bench.settle();
    assert!(matches!(commands[..], [Command::Delete { .. }]), "{commands:?}");
    assert_eq!(bench.seen.instances.len(), 2);
}

#[test]
fn instances_without_a_slot_are_deleted_and_fill_no_history() {
    let mut bench = Bench::new();
    bench.apply(web(1, "a"));
    bench.settle();
    let known = bench.seen.instances.values().next().unwrap().clone();
    let list = |bench: &mut Bench, node: Uuid, numbers: std::ops::Range<u128>| {
        for number in numbers {
            let one = SeenInstance {
                node,
                ..known.clone()
            };
            bench
                .seen
                .instances
                .insert(Uuid::from_u128(0xbad_0000 + number), one);
        }
    };
    // One node does not delete its instances, and another one lists new ones all the time.
    let other = Uuid::from_u128(0xa1);
    bench.seen.nodes.insert(other);
    list(&mut bench, NODE, 0..5000);
    for round in 1..20 {
        list(&mut bench, other, round * 10_000..round * 10_000 + 100);
        let plan = bench.plan();
        assert!(plan.writes.is_empty(), "{:?}", plan.writes);
        let is_of_other =
            |command: &&Command| matches!(command, Command::Delete { node, .. } if *node == other);
        let deletes: Vec<_> = plan.commands.iter().filter(is_of_other).collect();
        assert_eq!(deletes.len(), 100);
        deletes.into_iter().for_each(|command| bench.carry_out(command));
    }
    // A workload that is deleted stays until the nodes have none of them.
    let writes = bench.core.delete("web").unwrap();
    bench.core.handle_commit(writes, 1);
    bench.obeys = false;
    bench.settle();
    assert_eq!(bench.core.state().workloads.len(), 1);
    bench.obeys = true;
    bench.wait(300);
    bench.settle();
    assert!(bench.core.state().workloads.is_empty() && bench.seen.instances.is_empty());
}

#[test]
fn a_slot_takes_no_other_instance_in_its_pause() {
    let mut bench = Bench::new();
    bench.apply(web(1, "a"));
    bench.settle();
    bench.obeys = false;
    let mut rows = 0;
    for number in 0..100 {
        // A node drops its instance, and lists another one for the slot.
        let (_, one) = bench.seen.instances.pop_first().unwrap();
        bench
            .seen
            .instances
            .insert(Uuid::from_u128(0xbad_0000 + number), one);
        loop {
            let plan = bench.plan();
            if plan.is_empty() {
                break;
            }
            rows += plan
                .writes
                .iter()
                .filter(|write| matches!(write, Write::Event(_)))
                .count();
            bench.core.handle_commit(plan.writes, 1);
        }
        bench.wait(1);
    }
    assert!((4..20).contains(&rows), "{rows}");
}

#[test]
fn a_roll_out_takes_one_step_after_the_other() {
    let mut bench = Bench::new();
    bench.apply(web(4, "a"));
    bench.settle();
    bench.wait(5);
    bench.settle();
    assert_eq!(bench.workload().stable, Some(1));
    bench.apply(web(4, "b"));
    for step in 1..=4 {
        let commands = bench.settle();
        let [Command::Delete { .. }, Command::Start(_)] = commands[..] else {
            panic!("step {step}: {commands:?}");
        };
        let status = &bench.core.status()["web"];
        assert_eq!(
            (status.healthy, status.running, status.outdated),
            (3, 4, 4 - step)
        );
        bench.wait(4);
        assert!(
            bench.settle().is_empty(),
            "the instance has to be healthy for 5 s"
        );
        if step == 2 {
            let writes = bench.core.rollout("web", RolloutOrder::Pause).unwrap();
            bench.core.handle_commit(writes, 1);
            bench.wait(100);
            assert!(bench.settle().is_empty());
            let writes = bench.core.rollout("web", RolloutOrder::Resume).unwrap();
            bench.core.handle_commit(writes, 1);
        }
        bench.wait(1);
    }
    assert!(bench.settle().is_empty());
    assert_eq!((bench.workload().stable, bench.workload().version), (Some(2), 2));
    let writes = bench.core.rollout("web", RolloutOrder::Back).unwrap();
    bench.core.handle_commit(writes, 1);
    assert_eq!(bench.workload().version, 1);
    assert_eq!(bench.settle().len(), 2, "the roll-back takes steps as well");
}

#[test]
fn a_step_that_takes_too_long_ends_the_roll_out() {
    let mut bench = Bench::new();
    bench.apply(web(2, "a"));
    bench.settle();
    bench.wait(5);
    bench.settle();
    bench.apply(web(2, "b"));
    bench.settle();
    bench.obeys = false;
    for instance in bench.seen.instances.values_mut() {
        instance.labels = None;
    }
    bench.wait(299);
    bench.settle();
    assert_eq!(bench.workload().version, 2);
    // The first replacement is healthy by now, and the next one never becomes so.
    bench.wait(300);
    bench.settle();
    assert_eq!(bench.workload().version, 1);
    assert!(
        bench.workload().rollout.why.contains("within 300 s"),
        "{:?}",
        bench.workload().rollout
    );
}

#[test]
fn the_time_without_a_session_or_as_a_backup_does_not_count_for_a_step() {
    let mut bench = Bench::new();
    bench.apply(web(2, "a"));
    bench.settle();
    bench.wait(5);
    bench.settle();
    bench.apply(web(2, "b"));
    bench.settle();
    bench.obeys = false;
    bench.wait(5);
    // The first replacement is available, and the START of the second one is under way.
    let commands = bench.settle();
    let Some(Command::Delete { instance, .. }) = commands.first() else {
        panic!("{commands:?}");
    };
    bench.seen.instances.remove(instance);
    let commands = bench.settle();
    let Some(Command::Start(payload)) = commands.first() else {
        panic!("{commands:?}");
    };
    let second = payload.start.instance_uuid;
    bench.seen.told = false;
    bench.wait(400);
    bench.settle();
    bench.seen.session = 2;
    bench.seen.told = true;
    bench.settle();
    assert_eq!(bench.workload().version, 2, "the session has begun just now");
    bench.wait(290);
    bench.core.handle_answer(second, Answer::NotMaster);
    bench.settle();
    bench.wait(30);
    let commands = bench.settle();
    assert!(
        matches!(commands[..], [Command::Ask(asked)] if asked == second),
        "{commands:?}"
    );
    let why = "it is not known".to_owned();
    bench.core.handle_answer(
        second,
        Answer::NotStarted {
            why,
            is_its_fault: false,
        },
    );
    let commands = bench.settle();
    assert!(matches!(commands[..], [Command::Start(_)]), "{commands:?}");
    assert_eq!(
        bench.workload().version,
        2,
        "this controller was a backup until now"
    );
    bench.wait(300);
    bench.settle();
    assert_eq!(bench.workload().version, 1);
}

#[test]
fn a_slot_that_fails_waits_longer_each_time() {
    let mut bench = Bench::new();
    bench.obeys = false;
    bench.apply(web(1, "a"));
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let commands = bench.settle();
        let [Command::Start(payload)] = &commands[..] else {
            panic!("{commands:?}");
        };
        let reason = "image_failure".to_owned();
        let is_its_fault = true;
        bench.core.handle_answer(
            payload.start.instance_uuid,
            Answer::NotStarted {
                why: reason,
                is_its_fault,
            },
        );
        let mut pause = 0;
        while bench.settle().is_empty() {
            bench.wait(1);
            pause += 1;
            assert!(pause < 1000);
        }
        pauses.push(pause);
        // The START that ended the wait is answered in the next round.
        let last = bench.core.state().instances.keys().last().copied().unwrap();
        bench.core.handle_answer(last, Answer::NotMaster);
        bench.settle();
        bench.wait(30);
    }
    assert_eq!(pauses[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
    assert_eq!(
        bench.core.status()["web"].problem.as_deref(),
        Some("image_failure")
    );
}

#[test]
fn a_backup_changes_nothing() {
    let mut bench = Bench::new();
    bench.obeys = false;
    bench.apply(web(1, "a"));
    bench.settle();
    let first = *bench.core.state().instances.keys().next().unwrap();
    bench.core.handle_answer(first, Answer::NotMaster);
    assert!(bench.settle().is_empty());
    assert!(bench.core.is_backup(bench.now) && bench.core.state().instances.is_empty());
    bench.wait(29);
    assert!(bench.settle().is_empty());
    bench.wait(1);
    assert_eq!(bench.settle().len(), 1);
}

#[test]
fn a_node_that_is_away_for_longer_than_the_grace_loses_its_instances() {
    let mut bench = Bench::new();
    bench.apply(web(1, "a"));
    bench.settle();
    let (old, _) = bench.seen.instances.pop_first().unwrap();
    bench.seen.nodes.clear();
    bench.settle();
    bench.wait(59);
    assert!(bench.settle().is_empty());
    bench.wait(1);
    let other = Uuid::from_u128(0xa1);
    bench.seen.nodes.insert(other);
    let commands = bench.settle();
    assert!(matches!(commands[..], [Command::Start(_)]), "{commands:?}");
    // The node reconnects with the instance, which is not needed any more.
    let new = *bench.seen.instances.keys().next().unwrap();
    let mut back = bench.seen.instances[&new].clone();
    back.node = NODE;
    bench.seen.instances.insert(old, back);
    bench.seen.nodes.insert(NODE);
    let commands = bench.settle();
    assert!(
        matches!(commands[..], [Command::Delete { instance, .. }] if instance == old),
        "{commands:?}"
    );
    assert!(bench.seen.instances.contains_key(&new));
}

#[test]
fn an_instance_that_is_found_on_a_node_that_is_away_is_lost_there() {
    for is_pending in [false, true] {
        let mut bench = Bench::new();
        let mut spec = web(1, "a");
        spec["reschedule"] = serde_json::json!({"grace_s": 0});
        bench.apply(spec);
        let plan = bench.plan();
        bench.core.handle_commit(plan.writes, 1);
        plan.commands.iter().for_each(|command| bench.carry_out(command));
        // The node lists the instance, and leaves before the controller looks.
        let (uuid, seen) = bench.seen.instances.iter_mut().next().unwrap();
        seen.is_pending = is_pending;
        let uuid = *uuid;
        bench.seen.nodes.clear();
        let mut told = Vec::new();
        for _ in 0..3 {
            let writes = bench.plan().writes;
            let rows = writes.iter().filter_map(|write| match write {
                Write::Event(row) if row.instance == Some(uuid) => Some((row.kind, row.node)),
                _ => None,
            });
            told.extend(rows);
            bench.core.handle_commit(writes, 1);
        }
        assert!(matches!(told[..], [_, ("lost", Some(NODE))]), "{told:?}");
        let instance = &bench.core.state().instances[&uuid];
        assert!(!instance.wanted && instance.node == Some(NODE), "{instance:?}");
    }
}

#[test]
fn a_plan_that_could_not_be_written_is_made_again() {
    let mut bench = Bench::new();
    bench.apply(web(2, "a"));
    for _ in 0..3 {
        let plan = bench.plan();
        assert_eq!(plan.commands.len(), 2);
        assert!(bench.core.state().instances.is_empty());
    }
    assert_eq!(bench.settle().len(), 2);
}

#[test]
fn orders_that_do_not_fit_the_state_are_refused() {
    let mut bench = Bench::new();
    assert!(
        bench
            .core
            .delete("web")
            .unwrap_err()
            .to_string()
            .contains("no workload web")
    );
    bench.apply(web(1, "a"));
    let refused = |core: &Core, order| core.rollout("web", order).unwrap_err().to_string();
    assert!(refused(&bench.core, RolloutOrder::Back).contains("no earlier version"));
    assert!(refused(&bench.core, RolloutOrder::Resume).contains("not paused"));
    let long = "x".repeat(61 << 10);
    let spec: Spec = serde_json::from_value(web(1, &long)).unwrap();
    assert!(
        bench
            .core
            .apply(vec![spec])
            .unwrap_err()
            .to_string()
            .starts_with("start: it has")
    );
    let mut many: Vec<Spec> = Vec::new();
    for number in 0..10 {
        let mut spec: Spec = serde_json::from_value(web(10_000, "a")).unwrap();
        spec.name = format!("w{number}");
        many.push(spec);
    }
    // Each order is valid by itself, but not all of them together, so none is carried out.
    let error = bench.core.apply(many.clone()).unwrap_err().to_string();
    assert!(error.contains("more than 100000 instances"), "{error}");
    many.truncate(3);
    many[2].count = 20_000;
    let error = bench.core.apply(many.clone()).unwrap_err().to_string();
    assert!(error.starts_with("w2.count"), "{error}");
    many[2] = many[0].clone();
    let error = bench.core.apply(many.clone()).unwrap_err().to_string();
    assert!(error.starts_with("w0.name: two of"), "{error}");
    many.truncate(2);
    let (applied, writes) = bench.core.apply(many).unwrap();
    assert_eq!((applied.len(), writes.len()), (2, 4));
    bench.core.handle_commit(writes, 1);
    // A spec that is applied again is unchanged.
    let spec: Spec = serde_json::from_value(web(1, "a")).unwrap();
    let (applied, writes) = bench.core.apply(vec![spec]).unwrap();
    assert!(writes.is_empty() && applied[0].differences.is_empty());
    let spec: Spec = serde_json::from_value(web(2, "b")).unwrap();
    let (applied, _) = bench.core.apply(vec![spec]).unwrap();
    let paths: Vec<_> = applied[0]
        .differences
        .iter()
        .map(|one| one.path.as_str())
        .collect();
    assert_eq!(paths, ["count", "start.command"]);
    // Values that may be secret are named and not shown.
    let mut spec = web(1, "a");
    spec["user_data"] = "hunter2".into();
    spec["start"]["env"] = serde_json::json!({ "PASSWORD": "hunter2" });
    let spec: Spec = serde_json::from_value(spec).unwrap();
    let (applied, _) = bench.core.apply(vec![spec]).unwrap();
    let named = format!("{:?}", applied[0].differences);
    let (is_named, is_shown) = (named.contains("start.env"), named.contains("hunter2"));
    assert!(is_named && named.contains("user_data") && !is_shown, "{named}");
    let writes = bench.core.delete("web").unwrap();
    assert!(matches!(writes[..], [Write::Event(_), Write::Workload(_)]));
    bench.core.handle_commit(writes, 1);
    let spec: Spec = serde_json::from_value(web(1, "a")).unwrap();
    assert!(
        bench
            .core
            .apply(vec![spec])
            .unwrap_err()
            .to_string()
            .contains("being deleted")
    );
    for order in [RolloutOrder::Back, RolloutOrder::Pause, RolloutOrder::Resume] {
        let refused = bench.core.rollout("web", order).unwrap_err();
        assert!(matches!(refused, Refused::Conflict(_)), "{refused}");
        assert!(refused.to_string().contains("being deleted"), "{refused}");
    }
}

/// A workload whose instance its node is starting, and the instance.
fn pending() -> (Bench, Uuid) {
    pending_with(web(1, "a"))
}

fn pending_with(spec: serde_json::Value) -> (Bench, Uuid) {
    let mut bench = Bench::new();
    bench.apply(spec);
    let plan = bench.plan();
    bench.core.handle_commit(plan.writes, 1);
    plan.commands.iter().for_each(|command| bench.carry_out(command));
    let (uuid, seen) = bench.seen.instances.iter_mut().next().unwrap();
    seen.is_pending = true;
    let uuid = *uuid;
    assert!(bench.settle().is_empty());
    (bench, uuid)
}

#[test]
fn an_unwanted_instance_that_its_node_is_starting_blocks_its_slot() {
    let (mut bench, old) = pending();
    bench.apply(web(1, "b"));
    bench.obeys = false;
    for _ in 0..10 {
        for command in bench.settle() {
            assert!(!matches!(command, Command::Start(_)), "{command:?} beside {old}");
        }
        bench.wait(60);
    }
}

#[test]
fn that_another_controller_leads_says_nothing_about_an_instance_that_was_queried() {
    let mut bench = Bench::new();
    bench.apply(web(1, "a"));
    let plan = bench.plan();
    bench.core.handle_commit(plan.writes, 1);
    let [Command::Start(start)] = &plan.commands[..] else {
        panic!("{:?}", plan.commands)
    };
    let one = start.start.instance_uuid;
    bench.obeys = false;
    bench.wait(200);
    let commands = bench.settle();
    assert!(
        matches!(commands[..], [Command::Ask(asked)] if asked == one),
        "{commands:?}"
    );
    bench.core.handle_answer(one, Answer::NotMaster);
    bench.settle();
    assert!(bench.core.state().instances.contains_key(&one));
}

#[test]
fn a_starting_instance_is_given_up_when_its_node_is_away_too_long() {
    let (mut bench, old) = pending();
    bench.seen.nodes = BTreeSet::from([Uuid::from_u128(0xa1)]);
    assert!(bench.settle().is_empty());
    bench.wait(60);
    let commands = bench.settle();
    assert!(matches!(commands[..], [Command::Start(_)]), "{commands:?}");
    // A deleted workload does not wait for the instance either.
    let writes = bench.core.delete("web").unwrap();
    bench.core.handle_commit(writes, 1);
    bench.settle();
    assert!(bench.core.state().workloads.is_empty());
    // The node reconnects with the instance.
    bench.seen.nodes.insert(NODE);
    bench.seen.instances.get_mut(&old).unwrap().is_pending = false;
    let commands = bench.settle();
    assert!(
        matches!(commands[..], [Command::Delete { instance, .. }] if instance == old),
        "{commands:?}"
    );
}

#[test]
fn an_instance_that_is_deleted_while_it_starts_is_queried() {
    let (mut bench, old) = pending();
    // A new version: the node deletes what it is starting, and its START is never answered.
    bench.apply(web(1, "b"));
    let commands = bench.settle();
    let [Command::Delete { instance, .. }, Command::Ask(asked)] = &commands[..] else {
        panic!("{commands:?}");
    };
    assert_eq!((*instance, *asked), (old, old));
    let why = "full_cloud".to_owned();
    bench.core.handle_answer(
        old,
        Answer::NotStarted {
            why,
            is_its_fault: false,
        },
    );
    let commands = bench.settle();
    assert!(matches!(commands[..], [Command::Start(_)]), "{commands:?}");
}

#[test]
fn an_unanswered_start_that_is_no_longer_wanted_is_queried_early() {
    let mut bench = Bench::new();
    bench.obeys = false;
    bench.apply(web(1, "a"));
    let commands = bench.settle();
    let [Command::Start(lost)] = &commands[..] else {
        panic!("{commands:?}");
    };
    bench.wait(40);
    assert!(bench.settle().is_empty());
    // Otherwise the slot would be blocked for longer than the roll-out may take.
    bench.apply(web(1, "b"));
    let commands = bench.settle();
    let [Command::Ask(asked)] = commands[..] else {
        panic!("{commands:?}");
    };
    assert_eq!(asked, lost.start.instance_uuid);
    let why = String::new();
    let answer = Answer::NotStarted {
        why,
        is_its_fault: false,
    };
    bench.core.handle_answer(asked, answer);
    let commands = bench.settle();
    assert!(matches!(commands[..], [Command::Start(_)]), "{commands:?}");
}

#[test]
fn a_second_order_to_go_back_is_refused() {
    let mut bench = Bench::new();
    for command in ["a", "b", "c"] {
        let mut spec = web(1, command);
        spec["update"] = serde_json::json!({"healthy_s": 0});
        bench.apply(spec);
        bench.settle();
    }
    assert_eq!((bench.workload().version, bench.workload().stable), (3, Some(3)));
    let writes = bench.core.rollout("web", RolloutOrder::Back).unwrap();
    bench.core.handle_commit(writes, 1);
    assert_eq!(bench.workload().version, 2);
    let again = bench.core.rollout("web", RolloutOrder::Back).unwrap_err();
    assert!(
        again.to_string().contains("goes back to version 2 already"),
        "{again}"
    );
    bench.settle();
    assert_eq!(bench.workload().rollout.state, RolloutState::Steady);
    bench.core.rollout("web", RolloutOrder::Back).unwrap();
}

#[test]
fn a_jump_of_the_clock_changes_no_decision() {
    let day = 86_400_000;
    for jump in [-day, day, 30 * day] {
        // A START is under way, and its instance is not wanted any more.
        let mut bench = Bench::new();
        bench.obeys = false;
        bench.apply(web(1, "a"));
        bench.settle();
        bench.apply(web(1, "b"));
        bench.settle();
        bench.now.unix_ms += jump;
        let commands = bench.settle();
        assert!(commands.is_empty(), "the slot is not free: {commands:?}");
        bench.wait(181);
        let commands = bench.settle();
        let is_started = |command: &Command| matches!(command, Command::Start(_));
        assert!(commands.iter().any(is_started), "{jump}: {commands:?}");

        // A slot whose instance could not be started waits.
        let mut bench = Bench::new();
        bench.obeys = false;
        bench.apply(web(1, "a"));
        for pause in [1, 2, 4] {
            let commands = bench.settle();
            let [Command::Start(start)] = &commands[..] else {
                panic!("{commands:?}");
            };
            let why = "full_cloud".to_owned();
            let is_its_fault = false;
            let answer = Answer::NotStarted { why, is_its_fault };
            bench.core.handle_answer(start.start.instance_uuid, answer);
            bench.settle();
            bench.now.unix_ms += jump;
            assert!(bench.settle().is_empty());
            bench.wait(pause);
        }
    }
}

#[test]
fn a_jump_of_the_clock_does_not_make_an_instance_forgotten() {
    let week = 7 * 86_400_000;
    for jump in [2 * week, -2 * week] {
        let mut bench = Bench::new();
        bench.apply(web(1, "a"));
        bench.settle();
        let old = *bench.seen.instances.keys().next().unwrap();
        bench.seen.nodes.clear();
        let writes = bench.core.delete("web").unwrap();
        bench.core.handle_commit(writes, 1);
        bench.settle();
        assert!(bench.core.state().workloads.is_empty());
        bench.now.unix_ms += jump;
        bench.settle();
        bench.wait(3600);
        bench.settle();
        assert!(bench.core.state().instances.contains_key(&old), "{jump}");
        // After the grace the node is not waited for, even if the clock was wrong before.
        bench.wait(1);
        bench.settle();
        assert!(bench.core.state().instances.is_empty(), "{jump}");
    }
}
