//! One run: the values drawn from the seed, the faults, and the invariants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ssntp_controller::Spec;
use ssntp_controller::model::{Instance, InstanceState, RolloutState, State, Workload, Write};
use ssntp_controller::reconcile::{Command, Core, Now, RolloutOrder, Seen};
use ssntp_payload::HealthState;
use uuid::Uuid;

use super::cluster::Cluster;
use super::random::Random;

/// The time limit, in virtual time, after the faults are over: the longest pauses are five
/// minutes, and a START without an answer is asked about after three.
const CALM_MS: u64 = 1_200_000;
const NAMES: [&str; 3] = ["cache", "db", "web"];

/// The faults that may happen in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// The controller is killed at any point.
    pub(crate) kills: bool,
    /// Commits fail.
    pub(crate) store: bool,
    /// Nodes disconnect, and die.
    pub(crate) nodes: bool,
    /// The scheduler is killed, and sessions are lost with what is on its way.
    pub(crate) sessions: bool,
    /// Instances end by themselves.
    pub(crate) ends: bool,
    /// The database is lost once, and with it the record of STARTs under way, so these may run twice.
    pub(crate) database: bool,
    /// Health checks fail on a node.
    pub(crate) checks: bool,
    /// Operators empty nodes, and restore them.
    pub(crate) maintenance: bool,
    /// The time of day jumps, by days in both directions.
    pub(crate) clock: bool,
}

/// The time in milliseconds after which an instance that does not end counts as one that hangs.
const STUCK: u64 = 60_000;

pub(crate) struct World {
    pub(crate) random: Random,
    faults: Faults,
    has_lost_database: bool,
    is_calm: bool,
    trace: bool,
    pub(crate) now: u64,
    /// The time of day at the beginning, in milliseconds.
    day: i64,
    pub(crate) cluster: Cluster,
    pub(crate) disk: State,
    core: Core,
    seen: Seen,
    reported: BTreeSet<Uuid>,
    online_at: Option<u64>,
    sent: VecDeque<Command>,
    written: BTreeSet<Uuid>,
    /// The time at which an instance was no longer wanted.
    unwanted_at: BTreeMap<Uuid, u64>,
    /// The versions of each workload that were healthy to the end of a roll-out.
    good: BTreeSet<(String, u64)>,
    /// The slots of each paused workload that had the new version when it was paused.
    paused: BTreeMap<String, BTreeSet<u32>>,
    uuids: u128,
    pub(crate) starts: u64,
    pub(crate) kills: u64,
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults, trace: bool) -> Self {
        let mut random = Random::new(seed);
        let cluster = Cluster::new(random.between(1, 6));
        Self {
            random,
            faults,
            has_lost_database: false,
            is_calm: false,
            trace,
            now: 0,
            day: 1_700_000_000_000,
            cluster,
            disk: State::default(),
            core: Core::new(State::default()),
            seen: Seen::default(),
            reported: BTreeSet::new(),
            online_at: Some(0),
            sent: VecDeque::new(),
            written: BTreeSet::new(),
            unwanted_at: BTreeMap::new(),
            good: BTreeSet::new(),
            paused: BTreeMap::new(),
            uuids: 0,
            starts: 0,
            kills: 0,
        }
    }

    fn tell(&self, text: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>9} {}", self.now, text());
        }
    }

    fn time(&self) -> Now {
        Now {
            elapsed: Duration::from_millis(self.now),
            unix_ms: self.day + self.now as i64,
        }
    }

    /// Causes faults and orders of users for some time, then waits for a calm state.
    pub(crate) fn run(&mut self) {
        let until = self.random.between(100_000, 600_000);
        while self.now < until {
            if self.random.happens(15) {
                self.order();
            }
            self.fault();
            self.step();
        }
        self.is_calm = true;
        for node in self.cluster.nodes.values_mut() {
            node.back_at = node.back_at.min(until + 20_000);
            node.is_sick = false;
        }
        let mut alive = self.cluster.nodes.values_mut().filter(|node| !node.is_dead);
        if alive.all(|node| node.is_in_maintenance) {
            for node in self.cluster.nodes.values_mut() {
                node.is_in_maintenance = false;
            }
        }
        let expected = self.last_orders();
        self.settle();
        for (name, version) in expected {
            let workload = &self.disk.workloads[&name];
            assert_eq!(
                workload.version, version,
                "{name} is to go back: {:?}",
                workload.rollout
            );
            assert!(!workload.rollout.why.is_empty(), "{name} says why it went back");
        }
    }

    /// Users apply versions that can run. If there is a version to roll back to, they also apply versions
    /// that cannot run. Returns the workloads that are to be rolled back, with the version.
    fn last_orders(&mut self) -> BTreeMap<String, u64> {
        let mut expected = BTreeMap::new();
        for name in self.disk.workloads.keys().cloned().collect::<Vec<_>>() {
            let workload = &self.disk.workloads[&name];
            if workload.deleting {
                continue;
            }
            let stable = workload.stable.filter(|stable| {
                let version = workload.version_of(*stable);
                version.is_some_and(|version| version.template.start.command[0] == "runs")
            });
            let paused = workload.rollout.state == RolloutState::Paused;
            let fails = self.random.happens(400);
            let program = match stable {
                Some(stable) if fails && !paused => {
                    expected.insert(name.clone(), stable);
                    ["fails", "unstartable", "sick"][self.random.below(3) as usize]
                }
                _ => "runs",
            };
            let mut spec = self.spec(&name, program);
            // With a count of 0 every version is a good one.
            spec.count = spec.count.max(1);
            // The time is long enough to detect the failure.
            spec.update.healthy_s = 60;
            if program == "runs" {
                // A full cluster must not cause the roll-back, because the former version may fail as well.
                spec.update.deadline_s = 3600;
            }
            spec.start.command.push(format!("last-{}", self.now));
            self.apply(spec);
        }
        expected
    }

    fn spec(&mut self, name: &str, what: &str) -> Spec {
        let random = &mut self.random;
        let surge = random.below(6).saturating_sub(3);
        let mut json = serde_json::json!({
            "name": name,
            "count": random.below(7),
            "start": { "command": [what, format!("v{}", random.below(4))] },
            "update": {
                "surge": surge,
                "max_unavailable": random.between(u64::from(surge == 0), 2),
                "healthy_s": random.between(0, 10),
                "deadline_s": random.between(100, 300),
            },
            "reschedule": { "grace_s": random.between(20, 90) },
        });
        if what == "sick" || random.happens(400) {
            json["health"] = serde_json::json!({"tcp": 80});
        }
        serde_json::from_value(json).unwrap()
    }

    /// A user gives a random order.
    fn order(&mut self) {
        let name = NAMES[self.random.below(3) as usize];
        match self.random.below(11) {
            0 => self.write(|core| core.delete(name)),
            1 => self.write(|core| core.rollout(name, RolloutOrder::Back)),
            2 => self.write(|core| core.rollout(name, RolloutOrder::Pause)),
            3 => self.write(|core| core.rollout(name, RolloutOrder::Resume)),
            what => {
                let all = ["unstartable", "fails", "sick", "runs", "runs", "runs", "runs"];
                let what = all[what as usize - 4];
                let spec = self.spec(name, what);
                self.apply(spec);
            }
        }
    }

    pub(crate) fn apply(&mut self, spec: Spec) {
        self.tell(|| format!("apply {}: {} x {:?}", spec.name, spec.count, spec.start.command));
        self.write(|core| core.apply(vec![spec]).map(|(_, writes)| writes));
    }

    fn write<E>(&mut self, order: impl FnOnce(&mut Core) -> Result<Vec<Write>, E>) {
        if let Ok(writes) = order(&mut self.core) {
            self.commit(&writes);
            self.core.handle_commit(writes, 1);
        }
    }

    fn commit(&mut self, writes: &[Write]) {
        for write in writes {
            if let Write::Event(event) = write {
                self.tell(|| format!("{}: {}", event.kind, event.text));
            }
            match write {
                Write::Instance(instance) => {
                    self.check_available(instance);
                    self.written.insert(instance.uuid);
                    if !instance.wanted {
                        self.unwanted_at.entry(instance.uuid).or_insert(self.now);
                    }
                }
                Write::Workload(workload) => self.check_rollout(workload),
                Write::WorkloadGone(name) => self.good.retain(|(of, _)| of != name),
                _ => {}
            }
            take(&mut self.disk, write.clone());
        }
    }

    /// The controller removes a running instance only while enough others run. One of the count may also be
    /// missing beside slots that hang.
    fn check_available(&self, instance: &Instance) {
        let is_alive = |instance: &Instance| {
            let seen = self.seen.instances.get(&instance.uuid);
            seen.is_some_and(|seen| seen.ended.is_none() && self.seen.nodes.contains(&seen.node))
        };
        let runs = |instance: &Instance| {
            instance.wanted && instance.state == InstanceState::Running && is_alive(instance)
        };
        let hangs = |instance: &Instance| {
            let since = self.unwanted_at.get(&instance.uuid);
            !instance.wanted && is_alive(instance) && since.is_some_and(|since| since + STUCK <= self.now)
        };
        let before = self.disk.instances.get(&instance.uuid);
        let workload = self.disk.workloads.get(&instance.workload);
        let Some(workload) = workload.filter(|workload| {
            let is_removed = before.is_some_and(|before| runs(before)) && !instance.wanted;
            is_removed && !workload.deleting && instance.slot <= workload.spec.slots()
        }) else {
            return;
        };
        let all = self.disk.instances.values();
        let of_workload: Vec<_> = all.filter(|other| other.workload == workload.name).collect();
        let others = of_workload
            .iter()
            .filter(|other| other.slot <= workload.spec.slots() && other.uuid != instance.uuid && runs(other))
            .count();
        let of_count = of_workload
            .iter()
            .filter(|other| other.slot <= workload.spec.count && hangs(other));
        let hanging = of_count.map(|other| other.slot).collect::<BTreeSet<_>>().len();
        let mut allowed = workload.spec.update.max_unavailable as usize;
        if hanging > 0 && instance.slot <= workload.spec.count {
            allowed = allowed.max(hanging + 1);
        }
        assert!(
            others + allowed >= workload.spec.count as usize,
            "{} is removed, and only {others} of {} others run",
            instance.uuid,
            workload.name
        );
    }

    /// A version that never was good is never gone back to.
    fn check_rollout(&mut self, workload: &Workload) {
        let (name, version) = (&workload.name, workload.version);
        let before = self.disk.workloads.get(name);
        let is_new = before.is_none_or(|before| before.version != version);
        let is_good = self.good.contains(&(name.clone(), version));
        match workload.rollout.state {
            RolloutState::Back if is_new => assert!(is_good, "{name} goes back to version {version}"),
            RolloutState::Steady if workload.stable == Some(version) => {
                self.good.insert((name.clone(), version));
            }
            RolloutState::Paused if !self.paused.contains_key(name) => {
                let of_workload = self
                    .disk
                    .instances
                    .values()
                    .filter(|i| i.wanted && i.workload == *name);
                let is_new = of_workload.filter(|instance| instance.version == version);
                self.paused.insert(name.clone(), is_new.map(|i| i.slot).collect());
            }
            _ => {}
        }
        if workload.rollout.state != RolloutState::Paused {
            self.paused.remove(name);
        }
    }

    /// A paused roll-out starts its version in no further slot.
    fn check_start(&self, uuid: Uuid) {
        let instance = &self.disk.instances[&uuid];
        let workload = &self.disk.workloads[&instance.workload];
        let is_replaced = |other: &Instance| {
            let seen = self.seen.instances.get(&other.uuid);
            other.workload == workload.name
                && other.slot <= workload.spec.count
                && (other.version != workload.version
                    || seen.is_some_and(|seen| {
                        seen.health == HealthState::Unhealthy || self.seen.in_maintenance.contains(&seen.node)
                    }))
        };
        assert!(
            instance.slot <= workload.spec.count
                || (instance.slot <= workload.spec.slots()
                    && (workload.rollout.slots.contains(&instance.slot)
                        || self.disk.instances.values().any(|other| is_replaced(other)))),
            "{uuid} is started in slot {}, and nothing is to be replaced",
            instance.slot
        );
        if let Some(slots) = self.paused.get(&instance.workload)
            && workload.stable.is_some_and(|stable| stable != workload.version)
            && instance.version == workload.version
        {
            assert!(
                slots.contains(&instance.slot),
                "{uuid} is started by a paused roll-out"
            );
        }
    }

    fn fault(&mut self) {
        let Faults {
            nodes,
            sessions,
            ends,
            database,
            ..
        } = self.faults;
        let now = self.now;
        if nodes && self.random.happens(10) {
            let all: Vec<_> = self.cluster.nodes.keys().copied().collect();
            let one = all[self.random.below(all.len() as u64) as usize];
            if self.random.happens(300) {
                self.cluster.destroy(one, now, &mut self.random)
            } else {
                self.cluster.disconnect(one, now, &mut self.random)
            }
            self.tell(|| format!("node {one} is away"));
        }
        if sessions && self.random.happens(5) {
            self.tell(|| "the scheduler is killed".into());
            self.cluster.restart_scheduler(now, &mut self.random);
            self.lose_session();
        }
        if sessions && self.random.happens(5) {
            self.tell(|| "the session is lost".into());
            self.lose_session();
        }
        if self.faults.checks && self.random.happens(10) {
            let count = self.cluster.nodes.len() as u64;
            let at = self.random.below(count) as usize;
            let node = self.cluster.nodes.values_mut().nth(at).unwrap();
            node.is_sick = !node.is_sick;
        }
        if self.faults.maintenance && self.random.happens(10) {
            let all: Vec<_> = self.cluster.nodes.keys().copied().collect();
            let one = all[self.random.below(all.len() as u64) as usize];
            let drains = self.random.happens(700);
            self.cluster.maintain(one, drains);
            self.tell(|| format!("node {one} goes into maintenance, or is restored"));
        }
        if self.faults.clock && self.random.happens(20) {
            self.day = 1_700_000_000_000 + self.random.below(2_000_000_000) as i64;
            self.tell(|| format!("the clock jumps to {}", self.day));
        }
        if ends && self.random.happens(10) {
            self.cluster.fail_one(&mut self.random);
        }
        if self.faults.kills && self.random.happens(10) {
            self.kill();
        }
        if database && !self.has_lost_database && self.random.happens(2) {
            self.tell(|| "the database is lost".into());
            self.has_lost_database = true;
            let specs: Vec<_> = self
                .disk
                .workloads
                .values()
                .map(|workload| workload.spec.clone())
                .collect();
            self.disk = State::default();
            self.good.clear();
            self.kill();
            specs.into_iter().for_each(|spec| self.apply(spec));
        }
    }

    fn lose_session(&mut self) {
        self.seen.told = false;
        self.seen.nodes.clear();
        self.seen.in_maintenance.clear();
        self.reported.clear();
        let keep = self.random.below(self.sent.len() as u64 + 1) as usize;
        let sent: Vec<_> = self.sent.drain(..).take(keep).collect();
        // Messages that were sent before the kill still arrive.
        for command in sent {
            self.cluster.take(command, &mut self.random);
        }
        self.cluster.answers.clear();
        self.online_at = Some(self.now + self.random.between(0, 5000));
    }

    /// The controller's process is killed, and another one is started.
    fn kill(&mut self) {
        self.tell(|| "the controller is killed".into());
        self.kills += 1;
        self.lose_session();
        self.core = Core::new(self.disk.clone());
        self.seen.instances.clear();
    }

    fn is_killed(&mut self) -> bool {
        let killed = self.faults.kills && !self.is_calm && self.random.happens(30);
        if killed {
            self.kill();
        }
        killed
    }

    /// Advances the time by a moment.
    pub(crate) fn step(&mut self) {
        self.now += if self.is_calm {
            1000
        } else {
            self.random.between(50, 2500)
        };
        while let Some(command) = self.sent.pop_front() {
            if !self.is_calm && self.random.happens(200) {
                self.sent.push_front(command);
                break;
            }
            self.cluster.take(command, &mut self.random);
        }
        let now = self.now;
        self.cluster.advance(now, &mut self.random);
        self.cluster.check();
        if !(self.faults.nodes || self.faults.sessions || self.faults.database) {
            self.nothing_runs_twice();
        }
        self.hear();
        self.control();
    }

    /// The reports of the session.
    fn hear(&mut self) {
        if let Some(at) = self.online_at {
            if self.now < at {
                return;
            }
            self.online_at = None;
            self.seen.session += 1;
        }
        let nodes: Vec<_> = self
            .cluster
            .nodes
            .iter()
            .map(|(uuid, node)| (*uuid, node.is_connected))
            .collect();
        for (uuid, is_connected) in nodes {
            if !is_connected {
                self.seen.nodes.remove(&uuid);
                self.seen.in_maintenance.remove(&uuid);
                self.reported.remove(&uuid);
            } else if self.random.happens(300) {
                let listed = self.cluster.listed(uuid);
                self.seen.instances.retain(|_, seen| seen.node != uuid);
                self.seen.instances.extend(listed);
                self.seen.nodes.insert(uuid);
                if self.cluster.nodes[&uuid].is_in_maintenance {
                    self.seen.in_maintenance.insert(uuid);
                } else {
                    self.seen.in_maintenance.remove(&uuid);
                }
                self.reported.insert(uuid);
            }
        }
        let connected = self.cluster.nodes.iter().filter(|(_, node)| node.is_connected);
        self.seen.told |=
            connected.clone().count() > 0 && connected.clone().all(|(uuid, _)| self.reported.contains(uuid));
        while self.random.happens(800)
            && let Some((instance, answer)) = self.cluster.answers.pop_front()
        {
            self.tell(|| format!("answer for {instance}: {answer:?}"));
            self.core.handle_answer(instance, answer);
        }
    }

    fn control(&mut self) {
        let time = self.time();
        for _ in 0..50 {
            let uuids = &mut self.uuids;
            let mut next = || {
                *uuids += 1;
                Uuid::from_u128(*uuids)
            };
            let plan = self.core.plan(time, &self.seen, &mut next);
            if plan.is_empty() {
                return;
            }
            if self.is_killed() {
                return;
            }
            if self.faults.store && !self.is_calm && self.random.happens(50) {
                return;
            }
            self.commit(&plan.writes);
            if self.is_killed() {
                return;
            }
            self.core.handle_commit(plan.writes, 1);
            assert_eq!(*self.core.state(), self.disk, "memory and disk differ");
            for command in plan.commands {
                if self.is_killed() {
                    return;
                }
                self.tell(|| format!("sends {command:?}").chars().take(120).collect());
                if let Command::Start(payload) = &command {
                    let uuid = payload.start.instance_uuid;
                    assert!(
                        self.written.contains(&uuid),
                        "{uuid} is started before it is written down"
                    );
                    self.check_start(uuid);
                    self.starts += 1;
                }
                self.sent.push_back(command);
            }
        }
        panic!("the reconciler does not come to rest");
    }

    fn nothing_runs_twice(&self) {
        let mut slots = BTreeSet::new();
        for (uuid, running) in self.cluster.running() {
            let slot = (&running.labels.workload, running.labels.slot);
            assert!(slots.insert(slot), "{slot:?} runs twice, also as {uuid}");
        }
    }

    /// Waits until exactly the wanted instances run.
    pub(crate) fn settle(&mut self) {
        self.is_calm = true;
        let until = self.now + CALM_MS;
        let mut difference = self.difference();
        while let Some(text) = &difference {
            assert!(self.now < until, "{text}; {:#?}", self.core.status());
            self.step();
            difference = self.difference();
        }
        // The state stays the same.
        let starts = self.starts;
        (0..60).for_each(|_| self.step());
        assert_eq!(self.difference(), None);
        assert_eq!(self.starts, starts, "no instance is started without a reason");
    }

    /// The difference between the running and the wanted instances.
    pub(crate) fn difference(&self) -> Option<String> {
        let mut expected = BTreeSet::new();
        for workload in self.disk.workloads.values() {
            if workload.deleting {
                return Some(format!("{} is still being deleted", workload.name));
            }
            if workload.rollout.state != RolloutState::Steady {
                return Some(format!("{}: {:?}", workload.name, workload.rollout));
            }
            let digest = workload
                .version_of(workload.version)
                .map(|version| version.template.digest());
            for slot in 1..=workload.spec.count {
                expected.insert((workload.name.clone(), slot, digest.clone()));
            }
        }
        let mut found = BTreeSet::new();
        for (uuid, running) in self.cluster.running() {
            let labels = running.labels.clone();
            // If the database is lost, no process knows that an instance of a deleted workload should not
            // run. The instance has the labels of that workload, so a user can find it.
            if self.has_lost_database && !self.disk.workloads.contains_key(&labels.workload) {
                continue;
            }
            let slot = (labels.workload, labels.slot, Some(labels.digest));
            if !expected.contains(&slot) {
                return Some(format!("{slot:?} runs as {uuid}"));
            }
            if !found.insert(slot.clone()) {
                return Some(format!("{slot:?} runs twice, also as {uuid}"));
            }
        }
        if let Some(uuid) = self.cluster.is_left() {
            return Some(format!("{uuid} runs on a node in maintenance"));
        }
        let missing = expected.difference(&found).next();
        missing.map(|slot| format!("{slot:?} does not run"))
    }
}

fn take(state: &mut State, write: Write) {
    match write {
        Write::Workload(mut workload) => {
            workload.revision = 1;
            drop(state.workloads.insert(workload.name.clone(), (*workload).into()));
        }
        Write::WorkloadGone(name) => drop(state.workloads.remove(&name)),
        Write::Instance(mut instance) => {
            instance.revision = 1;
            drop(state.instances.insert(instance.uuid, instance.into()));
        }
        Write::InstanceGone(uuid) => drop(state.instances.remove(&uuid)),
        _ => {}
    }
}
