//! The questions of a controller to the scheduler.

use std::time::Duration;

use ssntp::Role;
use ssntp::client::ClientConfig;
use ssntp::payload::{ListSessions, Sessions};
use ssntp_payload::{Tenant, TenantAction, TenantEntry, TenantRefusal, Tenants};
use ssntp_test_support::LIMIT;
use ssntp_view::{AskError, Controller, ControllerConfig};
use uuid::Uuid;

use super::{Cluster, client, expect_no_frames, expect_start, ready, start, stats};

fn controller(cluster: &Cluster, role: Role) -> Controller {
    let identity = client::identity(role);
    let client =
        ClientConfig::new(identity, ssntp_test_support::trust()).connect_in_memory(&cluster.listener);
    Controller::connect(ControllerConfig::new(client)).unwrap()
}

#[test]
fn a_question_gets_its_own_answer_and_ends_with_its_session() {
    let cluster = Cluster::strict();
    let controller = controller(&cluster, Role::CONTROLLER);
    let question = |id| ListSessions {
        id,
        ..ListSessions::default()
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let question = question(Uuid::new_v4().into());
                let answer: Sessions = controller
                    .ask(&question, |answer: &Sessions| answer.id == question.id, LIMIT)
                    .unwrap();
                assert_eq!(answer.total, 1);
            });
        }
    });
    // The answer to another question does not count.
    let late = controller.ask(
        &question("a".into()),
        |_: &Sessions| false,
        Duration::from_millis(50),
    );
    assert!(matches!(late, Err(AskError::Late(_))), "{late:?}");
    let (answers, was_seen) = crossbeam_channel::bounded(1);
    let is_answer = |_: &Sessions| answers.send(()).is_err();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| controller.ask(&question("b".into()), is_answer, LIMIT));
        was_seen.recv_timeout(LIMIT).unwrap();
        controller.close();
        assert!(matches!(asked.join().unwrap(), Err(AskError::Lost)));
    });
    cluster.stop();
}

#[test]
fn a_question_that_the_scheduler_does_not_accept_is_refused() {
    let cluster = Cluster::strict();
    let controller = controller(&cluster, Role::CNCIAGENT);
    let question = ListSessions {
        id: "a".into(),
        ..ListSessions::default()
    };
    let refused = controller.ask(&question, |_: &Sessions| true, LIMIT);
    assert!(matches!(refused, Err(AskError::Refused(_))), "{refused:?}");
    controller.close();
    cluster.stop();
}

#[test]
fn the_address_of_an_instance_is_not_released_while_a_connected_node_has_it() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.agent(Role::AGENT, &mut [&mut controller]);
    let ordered = start(10);
    let ask = |controller: &mut client::Client, action: TenantAction| -> Tenants {
        controller.drain();
        controller.send_payload(&Tenant {
            id: "1".into(),
            action,
            name: "blue".into(),
            instance_uuid: ordered.instance_uuid.into(),
            entry: TenantEntry {
                tenant_uuid: Uuid::from_u128(1).into(),
                subnet: "10.1.0.0/24".into(),
                concentrator_uuid: Uuid::from_u128(2).into(),
                concentrator_ip: "192.0.2.1/24".into(),
                ..TenantEntry::default()
            },
            ..Tenant::default()
        });
        controller.expect_payload()
    };
    ask(&mut controller, TenantAction::Add);
    assert_eq!(
        ask(&mut controller, TenantAction::Lease).entries[0]
            .addresses
            .len(),
        1
    );
    // The START waits for the node's READY.
    controller.send_payload(&ordered);
    let refused = ask(&mut controller, TenantAction::Release);
    assert_eq!(refused.reason, TenantRefusal::InUse);
    assert_eq!(refused.detail, "the START of this instance waits for a node");
    node.send_payload(&ready(node.uuid, 1000));
    expect_start(&mut node, &ordered);
    node.send_payload(&stats(node.uuid, &[ordered.instance_uuid]));
    expect_no_frames(&mut node, &mut []);
    let refused = ask(&mut controller, TenantAction::Release);
    assert_eq!(refused.reason, TenantRefusal::InUse);
    let reason = format!("node {} has this instance", node.uuid);
    assert!(refused.detail.starts_with(&reason), "{}", refused.detail);
    // The node of the instance is disconnected.
    let uuid = node.uuid;
    node.close();
    cluster.wait_disconnected(uuid);
    let refused = ask(&mut controller, TenantAction::Release);
    let reason = format!("node {uuid}, which is away, may still have this instance");
    assert!(refused.detail.starts_with(&reason), "{}", refused.detail);
    cluster.stop();
}
