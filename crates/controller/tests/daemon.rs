//! A controller's daemon in this process: without a scheduler, and with a real one and a node that
//! carries out each command at once.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test may fail, and has time limits"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::client::{Client, ClientConfig, ClientEvent};
use ssntp::payload::Id;
use ssntp::proto::{Command, Frame};
use ssntp::server::{Server, ServerConfig};
use ssntp::transport::memory::MemoryListener;
use ssntp_controller::model::{InstanceState as Kept, RolloutState};
use ssntp_controller::store::StoreError;
use ssntp_controller::{
    Config, Handle, Limits, Query, Refused, RolloutOrder, RunningController, Snapshot, Spec, UserRequest,
};
use ssntp_payload::{
    CommandSubject, InstanceDeleted, InstanceState, InstanceStats, NodeStatus, Ready, StartPayload, Stats,
};
use ssntp_scheduler::placement::Policy;
use ssntp_scheduler::{ControllerMode, Scheduler, SchedulerConfig};
use ssntp_test_support::{bound_identity, identity, trust};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(60);

fn daemon(listener: &MemoryListener, store: &Path) -> RunningController {
    let client = ClientConfig::new(identity(Role::CONTROLLER), trust()).connect_in_memory(listener);
    let limits = Limits::default();
    let store = store.to_owned();
    RunningController::start(Config {
        client,
        store,
        limits,
    })
    .unwrap()
}

fn apply(command: &str, count: u32) -> UserRequest {
    UserRequest::Apply {
        specs: vec![web(count, command)],
        dry_run: false,
    }
}

fn web(count: u32, command: &str) -> Spec {
    let json = serde_json::json!({
        "name": "web", "count": count, "start": {"command": [command]}, "update": {"healthy_s": 0},
    });
    serde_json::from_value(json).unwrap()
}

/// Waits until a snapshot fulfils a condition.
fn until(handle: &Handle, condition: &str, shows: impl Fn(&Snapshot) -> bool) {
    let deadline = Instant::now() + LIMIT;
    let mut follow = handle.reading().follow(Some(0)).unwrap();
    while !shows(&handle.snapshot()) {
        assert!(Instant::now() < deadline, "{condition}: {:#?}", handle.snapshot());
        // A new row ends the wait, or else the time limit.
        let _ = follow.next(Duration::from_millis(20)).unwrap();
    }
}

#[test]
fn without_a_scheduler_orders_are_stored_and_no_start_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = MemoryListener::new();
    let controller = daemon(&nowhere, dir.path());
    let handle = controller.handle().clone();
    let mut follow = handle.reading().follow(None).unwrap();
    let dry = handle.request(
        "",
        UserRequest::Apply {
            specs: vec![web(2, "a")],
            dry_run: true,
        },
    );
    let dry = dry.unwrap().1;
    assert_eq!((dry[0].version, dry[0].revision), (1, 0));
    assert!(
        handle.snapshot().state.workloads.is_empty(),
        "a dry run changes nothing"
    );
    let applied = handle
        .request("token hands", apply("a", 2))
        .map(|done| done.1)
        .unwrap();
    assert_eq!((applied[0].version, applied[0].revision), (1, 1));
    let row = follow.next(LIMIT).unwrap().unwrap();
    assert_eq!(
        (
            row.id,
            row.kind.as_str(),
            row.workload.as_deref(),
            row.actor.as_deref()
        ),
        (1, "applied", Some("web"), Some("token hands"))
    );
    let snapshot = handle.snapshot();
    assert_eq!(snapshot.state.workloads["web"].spec.count, 2);
    assert!(!snapshot.health.online && !snapshot.health.told);
    assert_eq!(
        handle.request("", UserRequest::Delete("db".into())),
        Err(Refused::NotFound("db".into()))
    );
    assert!(
        handle
            .request("", UserRequest::Rollout("web".into(), RolloutOrder::Resume))
            .is_err()
    );
    handle
        .request("", UserRequest::Rollout("web".into(), RolloutOrder::Pause))
        .unwrap();
    drop(controller);
    assert_eq!(follow.next(LIMIT).unwrap().unwrap().kind, "rollout");
    // The end of the client may be a row as well.
    let mut rest = Vec::new();
    let end = loop {
        match follow.next(LIMIT) {
            Ok(row) => rest.push(row.unwrap().kind.clone()),
            Err(end) => break end,
        }
    };
    assert_eq!(end, StoreError::Closed);
    assert!(rest.iter().all(|kind| kind == "session"), "{rest:?}");
    assert_eq!(
        handle.request("", UserRequest::Delete("web".into())),
        Err(Refused::Store(StoreError::Closed))
    );

    let controller = daemon(&nowhere, dir.path());
    let snapshot = controller.handle().snapshot();
    let workload = &snapshot.state.workloads["web"];
    assert_eq!(
        (workload.rollout.state, workload.revision),
        (RolloutState::Paused, 2)
    );
    assert!(snapshot.state.instances.is_empty());
    let query = Query {
        limit: 10,
        ..Query::default()
    };
    let mut rows = controller
        .handle()
        .reading()
        .history()
        .unwrap()
        .rows(&query)
        .unwrap();
    rows.retain(|row| row.kind != "session");
    assert_eq!(rows.len(), 2);
}

/// A scheduler and a node that runs each instance that it gets.
struct Cluster {
    listener: MemoryListener,
    _server: Server,
    stop: Option<crossbeam_channel::Sender<()>>,
    node: Option<JoinHandle<usize>>,
}

impl Cluster {
    fn start() -> Self {
        Self::of(SchedulerConfig::new())
    }

    fn of(config: SchedulerConfig) -> Self {
        let listener = MemoryListener::new();
        let server = ServerConfig::new(identity(Role::SCHEDULER), trust()).listen_in_memory(&listener);
        let config = config.policy(Policy::Opportunistic);
        let server = Scheduler::new(config).unwrap().start(server).unwrap();
        let uuid = Uuid::new_v4();
        let config = ClientConfig::new(bound_identity(Role::AGENT, uuid), trust());
        let client = Client::connect(config.uuid(uuid).connect_in_memory(&listener)).unwrap();
        let (stop, stopped) = crossbeam_channel::bounded(0);
        let node = std::thread::spawn(move || run_node(&client, uuid, &stopped));
        Self {
            listener,
            _server: server,
            stop: Some(stop),
            node: Some(node),
        }
    }

    /// The number of STARTs that the node has received.
    fn end(mut self) -> usize {
        drop(self.stop.take());
        self.node.take().unwrap().join().unwrap()
    }
}

fn run_node(client: &Client, uuid: Uuid, stopped: &crossbeam_channel::Receiver<()>) -> usize {
    let mut instances: BTreeMap<Uuid, InstanceStats> = BTreeMap::new();
    let mut starts = 0;
    let report = |instances: &BTreeMap<Uuid, InstanceStats>| {
        let ready = Ready {
            node_uuid: uuid.into(),
            mem_total_mb: 100_000,
            mem_available_mb: 100_000,
            disk_total_mb: 100_000,
            disk_available_mb: 100_000,
            cpus_online: 1000,
            ..Ready::default()
        };
        client.send(Frame::of(&ready)).unwrap();
        let stats = Stats {
            node_uuid: uuid.into(),
            status: NodeStatus::Ready,
            instances: instances.values().cloned().collect(),
            ..Stats::default()
        };
        client.send(Frame::of(&stats)).unwrap();
    };
    report(&instances);
    loop {
        let frame = crossbeam_channel::select! {
            recv(client.events()) -> event => match event.unwrap() {
                ClientEvent::Frame(frame) => frame,
                _ => continue,
            },
            recv(stopped) -> _ => return starts,
        };
        let subject = CommandSubject::of(&frame);
        let Some(instance) = subject.instance_uuid.uuid() else {
            continue;
        };
        if frame.kind() == Command::START {
            starts += 1;
            let payload: StartPayload = frame.payload().unwrap();
            let stats = InstanceStats {
                instance_uuid: Id::from(instance),
                state: InstanceState::Active,
                labels: payload.start.labels,
                ..InstanceStats::default()
            };
            assert!(
                instances.insert(instance, stats).is_none(),
                "an instance is started twice"
            );
        } else if frame.kind() == Command::DELETE && instances.remove(&instance).is_some() {
            let instance_uuid = instance.into();
            client
                .send(Frame::of(&InstanceDeleted {
                    instance_uuid,
                    ..Default::default()
                }))
                .unwrap();
        }
        report(&instances);
    }
}

#[test]
fn with_a_scheduler_each_wanted_instance_is_started_once() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start();
    let controller = daemon(&cluster.listener, dir.path());
    let handle = controller.handle().clone();
    handle.request("", apply("a", 5)).unwrap();
    until(&handle, "5 instances run", |snapshot| {
        snapshot.status.get("web").is_some_and(|web| web.healthy == 5)
            && snapshot.state.workloads["web"].rollout.state == RolloutState::Steady
    });
    let uuids = |handle: &Handle| {
        handle
            .snapshot()
            .state
            .instances
            .keys()
            .copied()
            .collect::<Vec<_>>()
    };
    let before = uuids(&handle);
    drop(controller);

    // The next controller finds the instances, even if its database is lost.
    for lost in [false, true] {
        let other = tempfile::tempdir().unwrap();
        let store = if lost { other.path() } else { dir.path() };
        let controller = daemon(&cluster.listener, store);
        let handle = controller.handle();
        if lost {
            handle.request("", apply("a", 5)).unwrap();
        }
        until(handle, "they are found", |snapshot| {
            snapshot.health.told && snapshot.status.get("web").is_some_and(|web| web.running == 5)
        });
        assert_eq!(uuids(handle), before);
    }

    // The controller does not wait for a START that was recorded and never sent.
    let controller = daemon(&cluster.listener, dir.path());
    let handle = controller.handle().clone();
    handle.request("", apply("b", 3)).unwrap();
    until(&handle, "the new version is rolled out", |snapshot| {
        let web = &snapshot.state.workloads["web"];
        web.stable == Some(2) && snapshot.status["web"].healthy == 3 && snapshot.state.instances.len() == 3
    });
    assert!(
        handle
            .snapshot()
            .state
            .instances
            .values()
            .all(|one| one.version == 2 && one.state == Kept::Running)
    );
    handle.request("", UserRequest::Delete("web".into())).unwrap();
    until(&handle, "all is gone", |snapshot| {
        snapshot.state.workloads.is_empty() && snapshot.state.instances.is_empty()
    });
    drop(controller);
    assert_eq!(cluster.end(), 8);
}

/// A page follows the history after the row of its snapshot. If that row were older than all that are
/// kept, the page would load itself again and again.
#[test]
fn the_revision_of_a_snapshot_counts_rows_that_no_order_caused() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start();
    let controller = daemon(&cluster.listener, dir.path());
    let handle = controller.handle();
    // The beginning of the session is a row.
    let history = handle.reading().history().unwrap();
    until(handle, "the last row counts", |snapshot| {
        snapshot.health.told && snapshot.revision > 0 && snapshot.revision == history.last_id().unwrap()
    });
    drop(controller);
    assert_eq!(cluster.end(), 0);
}

#[test]
fn a_controller_that_only_deletes_notices_that_another_one_is_the_master() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cluster = Cluster::of(SchedulerConfig::new().controllers(ControllerMode::Master));
    let master = daemon(&cluster.listener, one.path());
    master.handle().request("", apply("a", 1)).unwrap();
    let runs = |snapshot: &Snapshot| snapshot.status.get("web").is_some_and(|web| web.running == 1);
    until(master.handle(), "it runs", runs);
    let backup = daemon(&cluster.listener, two.path());
    backup.handle().request("", apply("a", 0)).unwrap();
    until(backup.handle(), "it follows", |snapshot| !snapshot.health.leads);
    until(master.handle(), "it still runs", runs);
    drop((backup, master));
    assert_eq!(cluster.end(), 1);
}

#[test]
fn an_instance_whose_start_was_never_sent_is_queried() {
    let dir = tempfile::tempdir().unwrap();
    // This is the state after a controller was killed between the commit and the START.
    let nowhere = MemoryListener::new();
    let controller = daemon(&nowhere, dir.path());
    controller.handle().request("", apply("a", 1)).unwrap();
    drop(controller);
    let (store, state) = ssntp_controller::store::Store::open(dir.path(), Limits::default()).unwrap();
    let lost = Uuid::new_v4();
    let instance = ssntp_controller::model::Instance {
        uuid: lost,
        workload: "web".into(),
        slot: 1,
        version: state.workloads["web"].version,
        node: None,
        state: Kept::Starting,
        wanted: true,
        ending: String::new(),
        attempt: 0,
        since: 0,
        revision: 0,
    };
    store
        .commit(vec![ssntp_controller::model::Write::Instance(instance)])
        .unwrap();
    drop(store);

    let cluster = Cluster::start();
    let controller = daemon(&cluster.listener, dir.path());
    let handle = controller.handle();
    until(handle, "another instance runs", |snapshot| {
        snapshot.status.get("web").is_some_and(|web| web.running == 1)
    });
    let snapshot = handle.snapshot();
    assert_eq!(snapshot.state.instances[&lost].state, Kept::Lost);
    assert_eq!(cluster.end(), 1);
}
