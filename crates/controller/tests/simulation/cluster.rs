//! A scheduler and its nodes, as a controller sees them. They answer STARTs like the real ones, lose
//! the frames that the real ones may lose, and run the instances that they get.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ssntp_controller::reconcile::{Answer, Command, Labels, SeenEnd, SeenInstance};
use ssntp_payload::{HealthState, StartPayload};
use uuid::Uuid;

use super::random::Random;

/// The time after which the scheduler answers a START that was lost.
const GIVEN_UP_MS: u64 = 60_000;

#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) labels: Labels,
    pub(crate) ended: bool,
    /// The time at which the start ends.
    pending_until: u64,
    pub(crate) is_pending: bool,
    /// True if the start fails.
    is_bad: bool,
    /// The time at which the instance fails, if it does.
    fails_at: Option<u64>,
    /// The health that its node tells.
    pub(crate) health: HealthState,
    /// The time at which the outcome of its checks is known.
    checked_at: u64,
    /// True if its checks fail on every node.
    is_sick: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) is_connected: bool,
    /// The node never reconnects.
    pub(crate) is_dead: bool,
    pub(crate) back_at: u64,
    /// True while all checks fail here.
    pub(crate) is_sick: bool,
    /// True while the node takes no START, because it is being emptied.
    pub(crate) is_in_maintenance: bool,
    pub(crate) instances: BTreeMap<Uuid, Running>,
    incoming: VecDeque<Command>,
}

#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) nodes: BTreeMap<Uuid, Node>,
    /// The instances that the scheduler knows, with their nodes; `None` for a held START.
    known: BTreeMap<Uuid, Option<Uuid>>,
    held: Vec<StartPayload>,
    given_up: Vec<(u64, Uuid)>,
    /// Answers on their way to the controller.
    pub(crate) answers: VecDeque<(Uuid, Answer)>,
    /// Every UUID that was ever sent to a node, with that node.
    given: BTreeMap<Uuid, Uuid>,
}

impl Cluster {
    pub(crate) fn new(nodes: u64) -> Self {
        let node = |number| {
            let node = Node {
                is_connected: true,
                ..Node::default()
            };
            (Uuid::from_u128(0xa000 + u128::from(number)), node)
        };
        Self {
            nodes: (0..nodes).map(node).collect(),
            ..Self::default()
        }
    }

    /// The scheduler receives a command.
    pub(crate) fn take(&mut self, command: Command, random: &mut Random) {
        match command {
            Command::Start(payload) => {
                let uuid = payload.start.instance_uuid;
                let is_known = self.known.contains_key(&uuid);
                if is_known {
                    self.answers.push_back((uuid, Answer::There));
                } else if random.happens(100) {
                    self.known.insert(uuid, None);
                    self.held.push(*payload);
                } else {
                    self.place(*payload, random);
                }
            }
            Command::Ask(uuid) => {
                let answer = if self.known.contains_key(&uuid) {
                    Answer::There
                } else {
                    not_started("full_cloud", false)
                };
                self.answers.push_back((uuid, answer));
            }
            Command::Delete { instance, node } => {
                if let Some(node) = self.nodes.get_mut(&node)
                    && node.is_connected
                {
                    node.incoming.push_back(Command::Delete {
                        instance,
                        node: Uuid::nil(),
                    });
                }
            }
        }
    }

    fn place(&mut self, payload: StartPayload, random: &mut Random) {
        let uuid = payload.start.instance_uuid;
        let open = |(_, node): &(&Uuid, &Node)| node.is_connected && !node.is_in_maintenance;
        let connected: Vec<_> = self.nodes.iter().filter(open).collect();
        if connected.is_empty() || random.happens(20) {
            self.known.remove(&uuid);
            // No scheduler should forget to answer, but the slot must not wait for ever if one does.
            if random.happens(200) {
                return;
            }
            return self.answers.push_back((uuid, not_started("full_cloud", false)));
        }
        let at = random.below(connected.len() as u64) as usize;
        let node = *connected[at].0;
        self.known.insert(uuid, Some(node));
        let given = *self.given.entry(uuid).or_insert(node);
        assert_eq!(given, node, "{uuid} was given to two nodes");
        let incoming = &mut self.nodes.get_mut(&node).unwrap().incoming;
        incoming.push_back(Command::Start(Box::new(payload)));
    }

    /// Advances the time of the scheduler and of every node.
    pub(crate) fn advance(&mut self, now: u64, random: &mut Random) {
        if random.happens(300) {
            for payload in std::mem::take(&mut self.held) {
                self.place(payload, random);
            }
        }
        let (due, later) = self.given_up.iter().partition(|(at, _)| *at <= now);
        self.given_up = later;
        for (_, uuid) in Vec::from_iter::<Vec<(u64, Uuid)>>(due) {
            let owner = self.known.get(&uuid).copied().flatten();
            let lives = owner.is_some_and(|node| self.nodes[&node].instances.contains_key(&uuid));
            if !lives {
                self.known.remove(&uuid);
                self.answers
                    .push_back((uuid, not_started("launch_failure", true)));
            }
        }
        let uuids: Vec<_> = self.nodes.keys().copied().collect();
        for uuid in uuids {
            self.advance_node(uuid, now, random);
        }
    }

    fn advance_node(&mut self, uuid: Uuid, now: u64, random: &mut Random) {
        let node = self.nodes.get_mut(&uuid).unwrap();
        if !node.is_connected && !node.is_dead && now >= node.back_at {
            node.is_connected = true;
        }
        while random.happens(700)
            && let Some(command) = node.incoming.pop_front()
        {
            match command {
                // The scheduler places it again.
                Command::Start(payload) if node.is_in_maintenance => {
                    let instance = payload.start.instance_uuid;
                    self.given.remove(&instance);
                    self.known.insert(instance, None);
                    self.held.push(*payload);
                }
                Command::Start(payload) => {
                    let start = &payload.start;
                    let program = start.command[0].as_str();
                    let running = Running {
                        labels: labels(&payload),
                        ended: false,
                        pending_until: now + random.between(0, 5000),
                        is_pending: true,
                        is_bad: program == "unstartable",
                        fails_at: (program == "fails").then(|| now + random.between(0, 3000)),
                        health: match start.health {
                            Some(_) => HealthState::Starting,
                            None => HealthState::Unset,
                        },
                        checked_at: now + random.between(0, 20_000),
                        is_sick: program == "sick",
                    };
                    node.instances.insert(start.instance_uuid, running);
                }
                Command::Delete { instance, .. } => {
                    node.instances.remove(&instance);
                    self.known.remove(&instance);
                }
                Command::Ask(_) => {}
            }
        }
        let due = |running: &Running| running.is_pending && now >= running.pending_until;
        let bad = node.instances.iter().filter(|(_, one)| due(one) && one.is_bad);
        for instance in bad.map(|(instance, _)| *instance).collect::<Vec<_>>() {
            node.instances.remove(&instance);
            self.known.remove(&instance);
            // An agent that is not connected keeps the failure until it is.
            self.answers
                .push_back((instance, not_started("launch_failure", true)));
        }
        for running in node.instances.values_mut() {
            running.is_pending &= now < running.pending_until;
            running.ended |= !running.is_pending && running.fails_at.is_some_and(|at| now >= at);
            if running.health != HealthState::Unset && !running.is_pending && now >= running.checked_at {
                running.health = if running.is_sick || node.is_sick {
                    HealthState::Unhealthy
                } else {
                    HealthState::Healthy
                };
            }
        }
        if node.is_connected {
            for instance in node.instances.keys() {
                self.known.insert(*instance, Some(uuid));
            }
        }
    }

    /// A node loses its connection, perhaps with the frames that were on their way to it.
    pub(crate) fn disconnect(&mut self, uuid: Uuid, now: u64, random: &mut Random) {
        let node = self.nodes.get_mut(&uuid).unwrap();
        node.is_connected = false;
        node.back_at = now + random.between(0, 200_000);
        if random.happens(500) {
            for command in std::mem::take(&mut node.incoming) {
                if let Command::Start(payload) = command {
                    self.given_up
                        .push((now + GIVEN_UP_MS, payload.start.instance_uuid));
                }
            }
        }
    }

    /// An operator empties a node, or restores it. A node that is drained leaves that to the controllers.
    pub(crate) fn maintain(&mut self, uuid: Uuid, drains: bool) {
        let node = self.nodes.get_mut(&uuid).unwrap();
        node.is_in_maintenance = !node.is_in_maintenance;
        if node.is_in_maintenance && !drains {
            for running in node.instances.values_mut() {
                running.ended |= !running.is_pending;
            }
        }
    }

    /// A node is lost with all its instances. It may reconnect without them.
    pub(crate) fn destroy(&mut self, uuid: Uuid, now: u64, random: &mut Random) {
        self.disconnect(uuid, now, random);
        let is_last = self.nodes.values().filter(|node| !node.is_dead).count() < 2;
        let node = self.nodes.get_mut(&uuid).unwrap();
        for command in std::mem::take(&mut node.incoming) {
            if let Command::Start(payload) = command {
                self.given_up
                    .push((now + GIVEN_UP_MS, payload.start.instance_uuid));
            }
        }
        node.instances.clear();
        node.is_dead = !is_last && random.happens(300);
        // The scheduler forgets the instances of a node that stays away.
        self.known.retain(|_, owner| *owner != Some(uuid));
    }

    /// The scheduler is killed: held STARTs and its state are lost, and nodes connect again.
    pub(crate) fn restart_scheduler(&mut self, now: u64, random: &mut Random) {
        self.known.clear();
        self.held.clear();
        self.given_up.clear();
        self.answers.clear();
        for node in self.nodes.values_mut() {
            if node.is_connected {
                node.is_connected = false;
                node.back_at = now + random.between(0, 35_000);
            }
        }
    }

    /// An instance of a node ends by itself.
    pub(crate) fn fail_one(&mut self, random: &mut Random) {
        let all: Vec<_> = self
            .nodes
            .values_mut()
            .flat_map(|node| node.instances.values_mut())
            .collect();
        let count = all.len() as u64;
        if count > 0
            && let Some(one) = all.into_iter().nth(random.below(count) as usize)
        {
            one.ended = !one.is_pending;
        }
    }

    /// The instances that a node lists in its STATS.
    pub(crate) fn listed(&self, uuid: Uuid) -> BTreeMap<Uuid, SeenInstance> {
        let seen = |running: &Running| SeenInstance {
            node: uuid,
            is_pending: running.is_pending,
            ended: running.ended.then(|| SeenEnd {
                is_success: false,
                how: "exited 1".into(),
            }),
            is_restart_due: false,
            health: running.health.clone(),
            health_detail: String::new(),
            labels: Some(running.labels.clone()),
        };
        let instances = self.nodes[&uuid].instances.iter();
        instances
            .map(|(instance, running)| (*instance, seen(running)))
            .collect()
    }

    /// An instance that runs on a node in maintenance.
    pub(crate) fn is_left(&self) -> Option<Uuid> {
        let nodes = self.nodes.values().filter(|node| node.is_in_maintenance);
        let mut all = nodes.flat_map(|node| &node.instances);
        all.find(|(_, running)| !running.ended).map(|(uuid, _)| *uuid)
    }

    /// All running instances with their nodes.
    pub(crate) fn running(&self) -> impl Iterator<Item = (Uuid, &Running)> {
        let all = self.nodes.values().flat_map(|node| &node.instances);
        all.map(|(uuid, running)| (*uuid, running))
            .filter(|(_, running)| !running.ended && !running.is_pending)
    }

    /// Fails if an instance is on two nodes.
    pub(crate) fn check(&self) {
        let mut all = BTreeSet::new();
        for instance in self.nodes.values().flat_map(|node| node.instances.keys()) {
            assert!(all.insert(instance), "{instance} is on two nodes");
        }
    }
}

fn not_started(reason: &str, is_its_fault: bool) -> Answer {
    Answer::NotStarted {
        why: reason.into(),
        is_its_fault,
    }
}

/// The labels of a START.
pub(crate) fn labels(payload: &StartPayload) -> Labels {
    let labels = &payload.start.labels;
    Labels {
        workload: labels["ssntp.workload"].clone(),
        slot: labels["ssntp.slot"].parse().unwrap(),
        digest: labels["ssntp.template"].clone(),
    }
}
