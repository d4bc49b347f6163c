//! The controllers that may send commands: all of them, or one master.

use std::time::Instant;

use ssntp::Role;
use ssntp::payload::{InvalidFrameType, InvalidFrameTypeReason};
use ssntp::proto::{Command, Event, Frame, FrameKind};
use ssntp_payload::Reason;
use ssntp_scheduler::{ControllerMode, SchedulerConfig};
use ssntp_test_support::LIMIT;
use uuid::Uuid;

use super::{Cluster, command, expect_failure, refused, start, stats};
use crate::client::Client;

fn with_master() -> Cluster {
    Cluster::new(SchedulerConfig::new().controllers(ControllerMode::Master))
}

#[test]
fn any_controller_may_command_by_default() {
    let cluster = Cluster::strict();
    let mut first = cluster.controller();
    let mut second = cluster.controller();
    refused(&mut second, &start(1), Reason::NoCn);
    first.drain();
    refused(&mut first, &start(1), Reason::NoCn);
}

#[test]
fn a_backups_command_is_refused_and_not_carried_out() {
    let cluster = with_master();
    let mut master = cluster.controller();
    let mut backup = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut master, &mut backup]);
    let kinds = [
        Command::START,
        Command::STOP,
        Command::EVACUATE,
        Command::DELETE,
        Command::RESTART,
        Command::ASSIGN_PUBLIC_IP,
        Command::RELEASE_PUBLIC_IP,
        Command::CONFIGURE,
        Command::ATTACH_VOLUME,
        Command::DETACH_VOLUME,
        Command::RESTORE,
        Command::REFRESH_CNCI,
    ];
    for kind in kinds {
        backup.send(&command(kind, "configure", node.uuid, Uuid::from_u128(1)));
        let answer: InvalidFrameType = backup.expect_payload();
        assert_eq!(answer.refused(), FrameKind::from(kind));
        assert_eq!(answer.reason, InvalidFrameTypeReason::RoleNotAllowed);
    }
    for client in [&mut master, &mut backup, &mut node] {
        client.expect_nothing();
    }
    let start = start(1);
    super::start_on(&mut master, &mut node, &start);
}

#[test]
fn backups_receive_the_same_reports_as_the_master() {
    let cluster = with_master();
    let mut master = cluster.controller();
    let mut backup = cluster.controller();
    let mut node = cluster.agent(Role::AGENT, &mut [&mut master, &mut backup]);
    node.send_payload(&stats(node.uuid, &[]));
    master.expect(Command::STATS);
    backup.expect(Command::STATS);
    drop(node);
    master.expect(Event::NODE_DISCONNECTED);
    backup.expect(Event::NODE_DISCONNECTED);
    let start = start(1);
    master.send_payload(&start);
    expect_failure(&mut master, &start, Reason::NoCn);
    expect_failure(&mut backup, &start, Reason::NoCn);
}

#[test]
fn the_longest_waiting_backup_takes_the_masters_place() {
    let cluster = with_master();
    let first = cluster.controller();
    let mut line: Vec<_> = (0..3).map(|_| cluster.controller()).collect();
    let master = line.remove(0);
    // The disconnections happen one after the other.
    drop(master);
    drop(first);
    let [mut second, mut third] = <[_; 2]>::try_from(line).ok().unwrap();
    until_master(&mut second);
    assert!(!commands(&mut third));
    // A controller that connects again is the last in the line of backups.
    let uuid = second.uuid;
    let mut again = Client::connect_as(&cluster.listener, Role::CONTROLLER, uuid);
    until_master(&mut third);
    assert!(!commands(&mut again));
}

/// The server needs a moment to notice a disconnection, so this asks until the answer changes.
fn until_master(controller: &mut Client) {
    let began = Instant::now();
    while !commands(controller) {
        assert!(began.elapsed() < LIMIT, "its commands are still refused");
    }
}

/// True if a command is accepted.
fn commands(controller: &mut Client) -> bool {
    controller.send(&Frame::new(Command::RESTORE));
    let answer: InvalidFrameType = loop {
        // Failures of the commands of others are skipped.
        let frame = controller.recv();
        if let Ok(answer) = frame.payload() {
            break answer;
        }
    };
    answer.reason != InvalidFrameTypeReason::RoleNotAllowed
}
