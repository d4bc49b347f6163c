//! Fleets of some dozen agents, with a scheduler and a controller in the same process.

#![allow(clippy::disallowed_methods, reason = "tests wait with a time limit")]

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ssntp::Role;
use ssntp::client::ClientConfig;
use ssntp::server::{Server, ServerConfig};
use ssntp::transport::Address;
use ssntp_payload::{Requirements, Start};
use ssntp_scheduler::{Scheduler, SchedulerConfig};
use ssntp_view::{Controller, ControllerConfig, Node, Shown, View};
use uuid::Uuid;

use super::{Fleet, FleetConfig, FleetError};
use ssntp_test_support::{LIMIT, bound_identity, identity, trust};

/// A scheduler with the default placement: one START for each READY.
fn scheduler(address: &Address) -> Server {
    let server = ServerConfig::new(identity(Role::SCHEDULER), trust()).listen(address.clone());
    Scheduler::new(SchedulerConfig::new())
        .unwrap()
        .start(server)
        .unwrap()
}

/// Agents with 1000 MB each.
fn fleet(address: &Address, agents: usize) -> Fleet {
    let config = FleetConfig::new(identity(Role::AGENT), trust(), vec![address.clone()], agents)
        .interval(Duration::from_secs(5))
        .mem_mb(1000);
    Fleet::start(config).unwrap()
}

fn controller(address: &Address) -> Controller {
    let client = ClientConfig::new(identity(Role::CONTROLLER), trust()).address(address.clone());
    Controller::connect(ControllerConfig::new(client)).unwrap()
}

fn start(mem_mb: i64) -> Start {
    Start {
        instance_uuid: Uuid::new_v4(),
        requirements: Requirements {
            mem_mb,
            ..Requirements::default()
        },
        ..Start::default()
    }
}

/// Waits until no agent is connected.
fn wait_disconnected(fleet: &Fleet) {
    let limit = Instant::now() + LIMIT;
    while fleet.counters().connected > 0 {
        assert!(Instant::now() < limit, "still connected: {:?}", fleet.counters());
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// True if this number of nodes have sent STATS since then, and therefore READY before.
fn have_reported(view: &View, nodes: usize, since: SystemTime) -> Option<()> {
    let has_reported = |node: &&Node| node.connected && node.seen.is_some_and(|seen| seen > since);
    (view.nodes().filter(has_reported).count() == nodes).then_some(())
}

#[test]
fn every_start_over_many_agents_is_confirmed_or_failed() {
    const AGENTS: usize = 50;
    const STARTS: usize = 100;
    let server = scheduler(&"127.0.0.1:0".parse().unwrap());
    let address = &server.addresses()[0];
    let fleet = fleet(address, AGENTS);
    let controller = controller(address);
    controller
        .wait(LIMIT, |view| have_reported(view, AGENTS, UNIX_EPOCH))
        .unwrap();

    // One of the instances fits on no node.
    let memory = (0..STARTS).map(|_| 100).chain([1001]);
    let orders: Vec<_> = memory
        .map(|mem_mb| controller.order(&start(mem_mb)).unwrap())
        .collect();
    let (mut nodes, mut failed) = (BTreeSet::new(), Vec::new());
    for order in &orders {
        match order.wait(LIMIT) {
            Ok(Shown::Running { node, .. }) => drop(nodes.insert(node)),
            Ok(other) => panic!("{other}"),
            Err(e) => failed.push(e.to_string()),
        }
    }
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(nodes.len(), AGENTS, "the instances are spread over all nodes");
    let counters = fleet.counters();
    assert_eq!((counters.launched, counters.lost), (STARTS as u64, 0));
    assert!(counters.sent > (AGENTS + STARTS) as u64 && counters.received >= STARTS as u64);
}

#[test]
fn agents_and_their_instances_return_to_a_restarted_scheduler() {
    const AGENTS: usize = 10;
    let server = scheduler(&"127.0.0.1:0".parse().unwrap());
    let address = server.addresses()[0].clone();
    let fleet = fleet(&address, AGENTS);
    let controller = controller(&address);
    controller
        .wait(LIMIT, |view| have_reported(view, AGENTS, UNIX_EPOCH))
        .unwrap();
    let mut started = HashSet::new();
    for order in (0..AGENTS).map(|_| controller.order(&start(100)).unwrap()) {
        let Ok(Shown::Running { instance, .. }) = order.wait(LIMIT) else {
            panic!("{} does not run", order.subject());
        };
        started.insert(instance);
    }

    drop(server);
    wait_disconnected(&fleet);
    let stopped_at = SystemTime::now();
    let _server = scheduler(&address);
    let listed = controller.wait(LIMIT, |view| {
        have_reported(view, AGENTS, stopped_at)?;
        Some(
            view.instances()
                .map(|instance| instance.uuid)
                .collect::<HashSet<_>>(),
        )
    });
    assert_eq!(listed, Some(started));
    let order = controller.order(&start(100)).unwrap();
    assert!(matches!(order.wait(LIMIT), Ok(Shown::Running { .. })));
}

#[test]
fn impossible_settings_of_a_fleet_are_refused() {
    let tcp: Address = "127.0.0.1:1".parse().unwrap();
    let start = |identity, address: &Address| {
        Fleet::start(FleetConfig::new(identity, trust(), vec![address.clone()], 1)).unwrap_err()
    };
    let error = start(identity(Role::CONTROLLER), &tcp);
    assert!(matches!(error, FleetError::Role(Role::CONTROLLER)), "{error}");
    let error = start(identity(Role::AGENT), &"unix:/x".parse().unwrap());
    assert!(matches!(error, FleetError::Address(_)), "{error}");
    let own = Uuid::from_u128(1);
    let error = start(bound_identity(Role::AGENT, own), &tcp);
    assert!(matches!(error, FleetError::Bound(uuid) if uuid == own), "{error}");
    let many = FleetConfig::new(identity(Role::AGENT), trust(), vec![tcp], usize::MAX);
    let error = Fleet::start(many).map(drop);
    assert!(matches!(error, Err(FleetError::Descriptors(_))), "{error:?}");
}

#[test]
fn starts_of_a_scheduler_that_ends_in_the_middle_are_confirmed_by_the_next() {
    const AGENTS: usize = 20;
    let server = scheduler(&"127.0.0.1:0".parse().unwrap());
    let address = server.addresses()[0].clone();
    let fleet = fleet(&address, AGENTS);
    let controller = controller(&address);
    controller
        .wait(LIMIT, |view| have_reported(view, AGENTS, UNIX_EPOCH))
        .unwrap();
    // There are more STARTs than nodes, so some wait for a READY when the scheduler ends.
    let orders: Vec<_> = (0..3 * AGENTS)
        .map(|_| controller.order(&start(100)).unwrap())
        .collect();
    let first = orders[0].wait(LIMIT);
    assert!(matches!(first, Ok(Shown::Running { .. })), "{first:?}");
    drop(server);
    wait_disconnected(&fleet);
    let launched = fleet.counters().launched;
    let stopped_at = SystemTime::now();
    let _server = scheduler(&address);
    controller
        .wait(LIMIT, |view| have_reported(view, AGENTS, stopped_at))
        .unwrap();
    let running: HashSet<_> = controller.look(|view| view.instances().map(|i| i.uuid).collect());
    assert_eq!(running.len() as u64, launched, "all launched instances are known");
    for order in &orders[1..] {
        let runs = running.contains(&order.subject().parse().unwrap());
        // The others have failed, or have no answer any more.
        assert_eq!(matches!(order.poll(), Some(Ok(_))), runs, "{}", order.subject());
    }
}

#[test]
#[expect(clippy::disallowed_types, reason = "a server that sends no bytes")]
fn a_fleet_ends_at_once_although_its_scheduler_does_not_answer() {
    // The server accepts the connection and sends no bytes.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string().parse().unwrap();
    let fleet = fleet(&address, 4);
    let _connecting = silent.accept().unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    let ending = std::thread::spawn(move || {
        drop(fleet);
        done.send(()).unwrap();
    });
    ended.recv_timeout(LIMIT).unwrap();
    ending.join().unwrap();
}
