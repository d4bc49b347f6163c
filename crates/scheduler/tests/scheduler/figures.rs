//! The figures of a scheduler.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::client::ClientConfig;
use ssntp::proto::{Command, ErrorCode, Frame, Status};
use ssntp::server::{CallError, Server};
use ssntp_network::cnci::{Cnci, CnciConfig};
use ssntp_payload::{InstanceState, Reason, StartFailure};
use ssntp_scheduler::placement::Policy;
use ssntp_scheduler::{ControllerMode, Scheduler, SchedulerConfig, SchedulerFigures};
use uuid::Uuid;

use super::{Cluster, expect_failure, refused, start, start_on, stats};
use ssntp_test_support::LIMIT;

fn figures(cluster: &Cluster) -> SchedulerFigures {
    Scheduler::figures(&cluster.server.handle()).unwrap()
}

fn failed(figures: &SchedulerFigures) -> Vec<(&'static str, u64)> {
    figures
        .starts
        .failed
        .iter()
        .map(|(word, count)| (*word, *count))
        .collect()
}

#[test]
fn each_start_is_counted_once_by_its_outcome() {
    let config = SchedulerConfig::new().policy(Policy::Opportunistic);
    let cluster = Cluster::new(config.absence(Duration::from_millis(10)));
    let mut controller = cluster.controller();
    refused(&mut controller, &start(1), Reason::NoCn);
    let mut node = cluster.node(1000, &mut [&mut controller]);
    refused(&mut controller, &start(100_000), Reason::FullCloud);
    controller.send_text(Command::START, ": no document");
    controller.expect(ErrorCode::START_FAILURE);

    let [runs, fails, odd, silent] = [1; 4].map(start);
    for start in [&runs, &fails, &odd, &silent] {
        start_on(&mut controller, &mut node, start);
    }
    assert_eq!(figures(&cluster).starts.in_flight, 4);
    let mut report = stats(node.uuid, &[runs.instance_uuid, silent.instance_uuid]);
    report.instances[0].state = InstanceState::Active;
    node.send_payload(&report);
    controller.expect(Command::STATS);
    refused(&mut controller, &runs, Reason::AlreadyRunning);
    for (start, reason) in [(&fails, Reason::ImageFailure), (&odd, Reason::from("moonlight"))] {
        node.send_payload(&StartFailure {
            node_uuid: node.uuid.into(),
            instance_uuid: start.instance_uuid.into(),
            reason: reason.clone(),
            ..StartFailure::default()
        });
        expect_failure(&mut controller, start, reason);
    }
    drop(node);
    expect_failure_after_disconnect(&mut controller, &silent);
    let figures = figures(&cluster);
    let starts = &figures.starts;
    assert_eq!([starts.received, starts.given, starts.started], [8, 4, 1]);
    assert_eq!(
        failed(&figures),
        [
            ("already_running", 1),
            ("full_cloud", 1),
            ("image_failure", 1),
            ("invalid_data", 1),
            ("no_answer", 1),
            ("no_cn", 1),
            ("other", 1),
        ]
    );
    assert_eq!((starts.start_time.count(), starts.failure_time.count()), (1, 7));
    assert_eq!((starts.in_flight, starts.held), (0, 0));
    // The START had been sent to the node that is away, so it took at least 10 ms.
    assert!(starts.failure_time.sum() >= Duration::from_millis(10));
}

fn expect_failure_after_disconnect(controller: &mut super::client::Client, start: &ssntp_payload::Start) {
    controller.expect(ssntp::proto::Event::NODE_DISCONNECTED);
    expect_failure(controller, start, Reason::LaunchFailure);
}

#[test]
fn nodes_and_instances_are_counted_by_state() {
    let config = SchedulerConfig::new().controllers(ControllerMode::Master);
    let cluster = Cluster::new(config);
    let mut controller = cluster.controller();
    let _backup = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let mut full = cluster.agent(Role::AGENT, &mut [&mut controller]);
    full.send(&Frame::new(Status::FULL));
    full.expect_nothing();
    let _new = cluster.agent(Role::AGENT, &mut [&mut controller]);
    let before = figures(&cluster);
    let count = |states: &BTreeMap<&'static str, usize>| -> BTreeMap<_, _> {
        let counts = states.clone().into_iter();
        counts.filter(|(_, count)| *count > 0).collect()
    };
    assert_eq!(
        count(&before.nodes),
        BTreeMap::from([("full", 1), ("ready", 1), ("waiting", 1)])
    );
    assert_eq!((before.controllers, before.master), (2, Some(controller.uuid)));
    assert!(count(&before.instances).is_empty());

    let [given, held] = [1; 2].map(start);
    start_on(&mut controller, &mut node, &given);
    controller.send_payload(&held);
    controller.expect_nothing();
    let mut report = stats(node.uuid, &[0, 1, 2].map(Uuid::from_u128));
    report.instances[1].state = InstanceState::Active;
    report.instances[2].state = InstanceState::Exited;
    node.send_payload(&report);
    controller.expect(Command::STATS);
    let after = figures(&cluster);
    assert_eq!(
        count(&after.instances),
        BTreeMap::from([
            ("ended", 1),
            ("held", 1),
            ("pending", 1),
            ("running", 1),
            ("starting", 1)
        ])
    );
    assert_eq!((after.starts.held, after.starts.in_flight), (1, 1));
    assert!(after.starts.held_bytes > 0 && after.limits.held_starts > 1);
}

#[test]
fn a_concentrator_reports_its_tables_and_is_counted() {
    let cluster = Cluster::strict();
    let config = ClientConfig::new(
        super::client::identity(Role::CNCIAGENT),
        ssntp_test_support::trust(),
    );
    let client = config.connect_in_memory(&cluster.listener).uuid(Uuid::new_v4());
    let config = CnciConfig::new(client, Uuid::new_v4(), "10.0.0.33".parse().unwrap());
    let cnci = Cnci::start(config).unwrap();
    let deadline = Instant::now() + LIMIT;
    while figures(&cluster).concentrators == 0 {
        assert!(
            Instant::now() < deadline,
            "the concentrator does not announce itself"
        );
        std::thread::yield_now();
    }
    let figures = cnci.figures().unwrap();
    assert!(figures.client.server.is_some() && figures.client.counters.sessions == 1);
    assert_eq!(
        [
            figures.tunnels,
            figures.peers,
            figures.public_ips,
            figures.frames_held
        ],
        [0; 4]
    );
}

#[test]
fn a_server_without_a_scheduler_has_no_scheduler_figures() {
    let listener = ssntp::transport::memory::MemoryListener::new();
    let config = ssntp::server::ServerConfig::new(
        super::client::identity(Role::SCHEDULER),
        ssntp_test_support::trust(),
    );
    let server = Server::start(config.listen_in_memory(&listener), ()).unwrap();
    let figures = Scheduler::figures(&server.handle());
    assert_eq!(figures.err(), Some(CallError::OtherHandler));
}
