//! A cluster that is made up, for tests: any number of nodes and instances, and a history that grows
//! when a test says so.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Sender, unbounded};
use uuid::Uuid;

use crate::clock::ms;
use crate::daemon::{Outcome, UserRequest};
use crate::model::{Instance, InstanceState, Rollout, RolloutState, Workload, tenant_of};
use crate::source::{Listed, Output, Picture, Rows, Source, Written};
use crate::{Applied, Changed, Figures, Health, Query, Refused, Row, Snapshot, Spec, State, Status};
use ssntp::payload::{Id, SessionEntry};
use ssntp::proto::Frame;
use ssntp_payload::{
    FrameTrace, InstanceStats, NodeConnected, NodeDisconnected, NodeNetwork, NodeStatus, NodeTrace, NodeType,
    Stats, TenantEntry, TunnelStats,
};
use ssntp_view::View;

/// The moment at which all of it happens.
pub(crate) fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

pub(crate) fn ago(seconds: u64) -> SystemTime {
    now() - Duration::from_secs(seconds)
}

pub(crate) fn node_uuid(index: u32) -> Uuid {
    Uuid::from_u128(0x5be1_c0de_0000_0000_0000_0000_0000_0000 + (u128::from(index) << 64) * 7919)
}

pub(crate) fn instance_uuid(index: u32) -> Uuid {
    Uuid::from_u128(0x0f7a_5a1e_0000_0000_0000_0000_0000_0000 + (u128::from(index) << 64) * 104_729)
}

/// The history.
#[derive(Debug, Default)]
struct Kept {
    rows: Mutex<VecDeque<Row>>,
    written: Condvar,
}

#[derive(Debug)]
pub(crate) struct MadeUp {
    pub(crate) picture: Mutex<Picture>,
    nodes: u32,
    /// The number of the last row.
    last: Mutex<i64>,
    kept: Arc<Kept>,
    pub(crate) orders: Mutex<Vec<String>>,
    /// Who gave each of these orders.
    pub(crate) actors: Mutex<Vec<String>>,
    /// The refused orders, and who gave them.
    pub(crate) refused: Mutex<Vec<String>>,
    /// The names of tenants that the scheduler was asked for.
    pub(crate) asked: Mutex<Vec<String>>,
    /// The specs of the last order to apply.
    pub(crate) specs: Mutex<Vec<Spec>>,
    /// Those who follow the output of an instance.
    writers: Mutex<Vec<Sender<Written>>>,
    pub(crate) waiting: Arc<()>,
}

/// A cluster of so many nodes with so many instances each. Some of both are in trouble.
pub(crate) fn cluster(nodes: u32, each: u32) -> Arc<MadeUp> {
    let mut view = View::default();
    view.connected(None);
    let mut state = State::default();
    let mut slots = BTreeMap::new();
    for index in 0..nodes {
        add_node(&mut view, index, each, &mut state, &mut slots);
    }
    let mut status = BTreeMap::new();
    for (name, _, version, wanted) in WORKLOADS {
        let of_workload = state
            .instances
            .values()
            .filter(|i| i.workload == name && i.wanted);
        let count = |fits: &dyn Fn(&Instance) -> bool| {
            u32::try_from(of_workload.clone().filter(|i| fits(i)).count()).unwrap()
        };
        let running = count(&|i| i.state == InstanceState::Running);
        // The first slot whose instance is on the node that is gone.
        let is_lost = |i: &&Arc<Instance>| i.workload == name && !i.wanted;
        let lost = state.instances.values().filter(is_lost);
        let slot = lost.map(|i| i.slot).min().unwrap_or(running + 1);
        let problem = (running < wanted)
            .then(|| format!("{name}-{slot} was not started: no node in service has enough room"));
        let standing = Status {
            wanted,
            running,
            healthy: running,
            outdated: count(&|i| i.version != version),
            problem,
            ..Status::default()
        };
        status.insert(name.to_owned(), standing);
    }
    for (name, rollout, version, count) in WORKLOADS {
        let spec = format!(
            "{{\"name\":\"{name}\",\"count\":{count},\"start\":{{\"command\":[\"/usr/bin/{name}\",\"--serve\"]}}}}"
        );
        let spec: Spec = serde_json::from_str(&spec).unwrap();
        let workload = Workload {
            name: name.to_owned(),
            spec,
            version,
            stable: Some(1),
            good: Vec::new(),
            versions: Vec::new(),
            rollout: Rollout {
                state: rollout,
                ..Rollout::default()
            },
            deleting: false,
            revision: 7,
        };
        state.workloads.insert(name.to_owned(), Arc::new(workload));
    }
    let health = Health {
        online: true,
        told: true,
        leads: true,
        store: None,
    };
    let picture = Picture {
        taken: now(),
        kept: Arc::new(Snapshot {
            revision: 0,
            state,
            status,
            health,
        }),
        view: Arc::new(view),
        certificates: vec![
            ("this controller", now() + Duration::from_secs(86_400 * 9)),
            ("the scheduler", now() + Duration::from_secs(86_400 * 300)),
        ],
        distinctions: OnceLock::new(),
    };
    let made_up = Arc::new(MadeUp {
        picture: Mutex::new(picture),
        nodes,
        last: Mutex::default(),
        kept: Arc::default(),
        orders: Mutex::default(),
        actors: Mutex::default(),
        refused: Mutex::default(),
        asked: Mutex::default(),
        specs: Mutex::default(),
        writers: Mutex::default(),
        waiting: Arc::default(),
    });
    made_up.fill(each);
    made_up
}

const WORKLOADS: [(&str, RolloutState, u64, u32); 4] = [
    ("api", RolloutState::Rolling, 4, 3),
    ("batch", RolloutState::Steady, 1, 0),
    ("web", RolloutState::Steady, 2, 5),
    ("worker", RolloutState::Paused, 3, 2),
];

/// Adds a node. `slots` has the number of instances of each workload so far.
fn add_node(
    view: &mut View,
    index: u32,
    each: u32,
    state: &mut State,
    slots: &mut BTreeMap<&'static str, u32>,
) {
    let uuid = node_uuid(index);
    let node_type = NodeType::ComputeNode;
    let connected = NodeConnected {
        node_uuid: uuid.into(),
        node_type: node_type.clone(),
    };
    view.apply(&Frame::of(&connected), ago(90_000 + u64::from(index)));
    let mut stats = Stats {
        node_uuid: uuid.into(),
        status: match index % 97 {
            5 => NodeStatus::Stale,
            11 => NodeStatus::Full,
            17 => NodeStatus::Maintenance,
            _ => NodeStatus::Ready,
        },
        mem_total_mb: 64_000,
        mem_available_mb: 64_000 - i64::from(index * 7919 % 61_000),
        disk_total_mb: 500_000,
        disk_available_mb: i64::from(index * 104_729 % 500_000),
        load: i64::from(index * 31 % 17),
        cpus_online: 16,
        hostname: format!("rack{}-n{:02}", index / 20 + 1, index % 20),
        interval: 30,
        networks: vec![NodeNetwork {
            ip: format!("10.0.{}.{}", index / 200, index % 200 + 1),
            mac: String::new(),
        }],
        ..Stats::default()
    };
    if index.is_multiple_of(3) {
        let tunnel = TunnelStats {
            key: 1 + index % 2,
            up: index != 9,
            rx_bytes: 5_300_000,
            tx_bytes: 912_000,
            drops: 3,
        };
        stats.tunnels = vec![tunnel];
    }
    for slot in 0..each {
        let instance = instance_uuid(index * each + slot);
        let (workload, _, newest, count) = WORKLOADS[usize::try_from((index + slot) % 4).unwrap()];
        let of_workload = slots.entry(workload).or_default();
        *of_workload += 1;
        let in_slot = *of_workload;
        let mut one = InstanceStats {
            instance_uuid: instance.into(),
            state: ["active", "active", "active", "active", "exited"]
                [usize::try_from((index * 5 + slot) % 5).unwrap()]
            .into(),
            memory_usage_mb: 120 + i64::from(slot * 37),
            cpu_usage: i64::from((index + slot) * 13 % 100),
            name: format!("{workload}-{in_slot}").into(),
            restarts: i64::from(slot % 3),
            ..InstanceStats::default()
        };
        one.labels.insert("tier".into(), "front".into());
        if one.state == ssntp_payload::InstanceState::Exited {
            one.exit_code = i64::from(slot % 2);
        }
        let kept = Instance {
            uuid: instance,
            workload: workload.to_owned(),
            slot: in_slot,
            // The roll-out of api has replaced its first instance.
            version: if workload == "api" && in_slot > 1 {
                newest - 1
            } else {
                newest
            },
            node: Some(uuid),
            // The third node is gone for longer than the grace.
            state: if index == 2 {
                InstanceState::Lost
            } else {
                InstanceState::Running
            },
            wanted: index != 2,
            ending: String::new(),
            attempt: 0,
            since: ms(ago(3600)),
            revision: 1,
        };
        if index < 4 && in_slot <= count {
            state.instances.insert(instance, Arc::new(kept));
        }
        stats.instances.push(one);
    }
    if stats.status == NodeStatus::Stale {
        let earlier = Stats {
            status: NodeStatus::Ready,
            ..stats.clone()
        };
        view.apply(&Frame::of(&earlier), ago(95));
    }
    // The STATS of the node that is gone are from the time before.
    let age = if index == 2 { 250 } else { u64::from(index % 29) };
    view.apply(&Frame::of(&stats), ago(age));
    if index == 2 {
        view.apply(
            &Frame::of(&NodeDisconnected {
                node_uuid: uuid.into(),
                node_type,
            }),
            ago(240),
        );
    }
}

fn sessions(nodes: u32) -> Listed<SessionEntry> {
    let entry = |index: u32| SessionEntry {
        number: u64::from(index) + 1,
        uuid: node_uuid(index).into(),
        roles: "agent".into(),
        address: format!("10.0.{}.{}:41{:03}", index / 200, index % 200 + 1, index % 1000),
        age_s: 90_000 + u64::from(index),
        idle_s: u64::from(index % 29),
        serial: format!("4f:{:02x}", index % 256),
        subject: format!("CN=agent-{index}"),
        issuer: "CN=cluster".into(),
        bound: true,
        frames_received: 3000,
        bytes_received: 1_200_000,
        frames_sent: 17,
        bytes_sent: 4096,
        frames_waiting: if index == 7 { 900 } else { 0 },
        bytes_waiting: if index == 7 { 3_100_000 } else { 0 },
        frames_dropped: if index == 9 { 4_321 } else { 0 },
    };
    // A node that is gone has no session.
    Ok(Arc::new(
        (0..nodes).filter(|index| *index != 2).map(entry).collect(),
    ))
}

/// The workload web gets values that may be secret, in its spec and in each of its versions.
pub(crate) fn with_secrets(kept: &mut Snapshot) {
    let web = Arc::make_mut(kept.state.workloads.get_mut("web").unwrap());
    let starts = web.versions.iter_mut().map(|version| &mut version.template.start);
    for start in starts.chain([&mut web.spec.start]) {
        start.env.insert("PASSWORD".into(), "hunter2".into());
    }
    let data = web
        .versions
        .iter_mut()
        .map(|version| &mut version.template.user_data);
    for data in data.chain([&mut web.spec.user_data]) {
        *data = "hunter2".into();
    }
}

fn tenants() -> Listed<TenantEntry> {
    let entry = |name: &str, key| TenantEntry {
        name: name.into(),
        tenant_uuid: Id::from(Uuid::from_u128(u128::from(key))),
        subnet: format!("172.16.{key}.0/24"),
        key,
        concentrator_uuid: instance_uuid(key).into(),
        concentrator_ip: format!("10.0.0.{}/24", 32 + key),
        addresses: Vec::new(),
    };
    Ok(Arc::new(vec![entry("blue", 1), entry("green", 2)]))
}

impl MadeUp {
    /// Some rows of each kind.
    fn fill(&self, each: u32) {
        let node = Some(node_uuid(2));
        let instance = Some(instance_uuid(2 * each));
        let web = Some("web".to_owned());
        let view = Arc::clone(&self.picture.lock().unwrap().view);
        let name = view.instance(instance_uuid(2 * each));
        let name = name.map_or("web-3", |instance| &instance.stats.name);
        self.row(
            7200,
            "session",
            None,
            None,
            None,
            "a session with the scheduler began",
        );
        self.row(3700, "applied", web.clone(), None, None, "workload web is new");
        self.row(
            3605,
            "starting",
            web.clone(),
            instance,
            None,
            &format!("{name} is started with version 2"),
        );
        self.row(
            3600,
            "running",
            web.clone(),
            instance,
            node,
            &format!("{name} runs on node rack1-n02"),
        );
        let hop = |role: &str, uuid, rx: u64, tx: u64| NodeTrace {
            ssntp_node_uuid: Id::from(uuid),
            ssntp_role: role.into(),
            rx_timestamp: ssntp_payload::timestamp::format(rx),
            tx_timestamp: ssntp_payload::timestamp::format(tx),
        };
        let begin = 1_789_999_000_000_000_000;
        let trace = FrameTrace {
            label: format!("START {name}"),
            frame_type: "COMMAND".into(),
            operand: "START".into(),
            start_timestamp: ssntp_payload::timestamp::format(begin),
            end_timestamp: ssntp_payload::timestamp::format(begin + 4_000_000),
            nodes: vec![
                hop("Controller", Uuid::from_u128(0xc0), 0, begin),
                hop(
                    "Scheduler",
                    Uuid::from_u128(0x5c),
                    begin + 310_000,
                    begin + 1_400_000,
                ),
                hop("CNAgent", node_uuid(2), begin + 1_730_000, begin + 4_000_000),
            ],
        };
        let trace = serde_json::to_string(&trace).unwrap();
        self.row(1000, "trace", None, None, None, &trace);
        self.row(
            240,
            "node",
            None,
            None,
            node,
            "compute node rack1-n02 has disconnected",
        );
        self.row(
            180,
            "lost",
            web,
            instance,
            node,
            &format!("{name} is lost: node rack1-n02 is away"),
        );
        self.row(
            30,
            "rollout",
            Some("api".into()),
            None,
            None,
            "workload api: 1 of 3 instances have version 4",
        );
        let worker = Some("worker".to_owned());
        self.row(20, "rollout", worker, None, None, "workload worker is paused");
    }

    /// Writes a row that is so many seconds old.
    pub(crate) fn row(
        &self,
        age: u64,
        kind: &str,
        workload: Option<String>,
        instance: Option<Uuid>,
        node: Option<Uuid>,
        text: &str,
    ) -> i64 {
        let mut last = self.last.lock().unwrap();
        *last += 1;
        let id = *last;
        drop(last);
        let state = self.picture.lock().unwrap().kept.state.clone();
        let of = workload.as_ref().and_then(|name| state.workloads.get(name));
        let tenant = of.and_then(|of| tenant_of(&of.spec.start));
        let mut rows = self.kept.rows.lock().unwrap();
        let (at, kind, text) = (ms(ago(age)), kind.to_owned(), text.to_owned());
        rows.push_back(Row {
            id,
            at,
            workload,
            instance,
            node,
            // A user applies and pauses; the controller does the rest.
            actor: (kind == "applied" || text.ends_with("paused")).then(|| "token alice".to_owned()),
            kind,
            tenant,
            text,
        });
        drop(rows);
        self.change(|kept| kept.revision = id);
        self.kept.written.notify_all();
        id
    }

    /// Forgets the oldest rows.
    pub(crate) fn forget(&self, count: usize) {
        drop(self.kept.rows.lock().unwrap().drain(..count));
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Snapshot)) {
        change(Arc::make_mut(&mut self.picture.lock().unwrap().kept));
    }

    pub(crate) fn see(&self, frame: &Frame) {
        let mut picture = self.picture.lock().unwrap();
        Arc::make_mut(&mut picture.view).apply(frame, now());
        picture.distinctions = OnceLock::new();
    }
}

impl Source for MadeUp {
    fn picture(&self) -> Result<Picture, String> {
        Ok(self.picture.lock().unwrap().clone())
    }

    fn kept(&self) -> Arc<Snapshot> {
        Arc::clone(&self.picture.lock().unwrap().kept)
    }

    fn sessions(&self) -> Listed<SessionEntry> {
        sessions(self.nodes)
    }

    fn tenants(&self) -> Listed<TenantEntry> {
        if self.picture.lock().unwrap().view.nodes().next().is_none() {
            return Ok(Arc::default());
        }
        tenants()
    }

    fn has_tenant(&self, name: &str) -> Result<bool, String> {
        self.asked.lock().unwrap().push(name.to_owned());
        if name == "silent" {
            return Err("the scheduler has not answered".to_owned());
        }
        Ok(Source::tenants(self)?.iter().any(|tenant| tenant.name == name))
    }

    fn rows(&self, query: &Query) -> Result<Vec<Row>, String> {
        let rows = self.kept.rows.lock().unwrap();
        let fits = |row: &&Row| {
            query.after.is_none_or(|after| row.id > after)
                && query.before.is_none_or(|before| row.id < before)
                && query.kind.as_ref().is_none_or(|kind| row.kind == *kind)
                && query
                    .workload
                    .as_ref()
                    .is_none_or(|name| row.workload.as_ref() == Some(name))
                && query
                    .instance
                    .is_none_or(|asked| row.instance.is_some_and(|uuid| asked.is_of(uuid)))
                && query
                    .node
                    .is_none_or(|asked| row.node.is_some_and(|uuid| asked.is_of(uuid)))
                && (query.tenant.is_none() || row.tenant == query.tenant)
        };
        let found = rows.iter().filter(fits).cloned();
        let limit = query.limit.min(1000);
        Ok(if query.newest_first {
            found.rev().take(limit).collect()
        } else {
            found.take(limit).collect()
        })
    }

    fn figures(&self, node: Uuid, since: i64) -> Result<Vec<Figures>, String> {
        // The last figures are those of the node's STATS.
        const LAST: i64 = 59;
        let picture = self.picture.lock().unwrap();
        let Some(known) = picture.view.node(node) else {
            return Ok(Vec::new());
        };
        let stats = &known.stats;
        let instances = i64::try_from(known.instances.len()).unwrap();
        let figure = |minute: i64| {
            let wave = |minute: i64| minute * minute % 17 + minute % 5;
            let swing = wave(minute) - wave(LAST);
            Figures {
                node,
                at: ms(ago(3600)) + minute * 60_000,
                mem_available_mb: (stats.mem_available_mb - swing * 300).clamp(0, stats.mem_total_mb.max(0)),
                mem_total_mb: stats.mem_total_mb,
                disk_available_mb: stats.disk_available_mb,
                disk_total_mb: stats.disk_total_mb,
                load: (stats.load + swing / 2).max(0),
                instances: (instances - (LAST - minute) / 20).max(0),
            }
        };
        Ok((0..=LAST)
            .map(figure)
            .filter(|figure| figure.at >= since)
            .collect())
    }

    fn follow(&self, after: Option<i64>) -> Result<Rows, String> {
        let rows = self.kept.rows.lock().unwrap();
        let mut last = after.unwrap_or_else(|| rows.back().map_or(0, |row| row.id));
        let kept = Arc::clone(&self.kept);
        Ok(Box::new(move |limit| {
            let rows = kept.rows.lock().unwrap();
            let is_next = |row: &&Row| row.id > last;
            let waited = kept
                .written
                .wait_timeout_while(rows, limit, |rows| !rows.iter().any(|row| is_next(&row)));
            let next = waited.unwrap().0.iter().find(is_next).cloned();
            last = next.as_ref().map_or(last, |row| row.id);
            Ok(next)
        }))
    }

    fn output(&self, _: Uuid, follow: bool) -> Result<Output, String> {
        let (sender, pieces) = unbounded();
        let first = "listening on 10.0.0.7:8080\n<script>document.title = 'wrong'</script>\n";
        sender.send(Written::Out(first.into())).unwrap();
        if follow {
            self.writers.lock().unwrap().push(sender)
        } else {
            sender.send(Written::End(None)).unwrap()
        }
        Ok(Box::new(move |limit| pieces.recv_timeout(limit).ok()))
    }

    fn request(&self, actor: &str, request: UserRequest) -> Outcome {
        match request {
            UserRequest::Apply { specs, dry_run } => {
                for spec in &specs {
                    spec.check().map_err(Refused::Invalid)?;
                }
                let names: Vec<_> = specs.iter().map(|spec| spec.name.clone()).collect();
                *self.specs.lock().unwrap() = specs;
                self.note(actor, format!("apply {} {dry_run}", names.join(" ")));
                Ok((9, names.into_iter().map(applied).collect()))
            }
            UserRequest::Delete(workload) => {
                self.note(actor, format!("delete {workload}"));
                Err(Refused::NotFound(workload))
            }
            UserRequest::NoteRefused(text) => {
                self.refused.lock().unwrap().push(format!("{text}: by {actor}"));
                Ok((8, Vec::new()))
            }
            UserRequest::Rollout(workload, order) => {
                self.note(actor, format!("{order:?} {workload}"));
                Ok((8, Vec::new()))
            }
        }
    }
}

impl MadeUp {
    fn note(&self, actor: &str, order: String) {
        self.actors.lock().unwrap().push(actor.to_owned());
        self.orders.lock().unwrap().push(order);
    }

    /// An instance writes something to all who follow it.
    pub(crate) fn writes(&self, piece: &Written) {
        let mut writers = self.writers.lock().unwrap();
        writers.retain(|writer| writer.send(piece.clone()).is_ok());
    }
}

fn applied(name: String) -> Applied {
    Applied {
        name,
        change: Changed::Created,
        version: 1,
        revision: 9,
        differences: Vec::new(),
    }
}
