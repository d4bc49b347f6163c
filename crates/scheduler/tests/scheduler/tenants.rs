//! The addresses of tenants' instances: an address is free only once no node has its instance.

use std::net::Ipv4Addr;
use std::time::{Duration, SystemTime};

use ssntp::Role;
use ssntp::payload::Payload;
use ssntp::pki::{SigningRequest, node_key, signing_request};
use ssntp::proto::{Command, Event};
use ssntp::server::{Enrolment, EnrolmentStore};
use ssntp_payload::{
    CommandSubject, ConcentratorInstanceAdded, Delete, DeleteFailure, Evacuate, InstanceDeleted,
    InstanceState, InstanceStopped, Maintenance, PublicIpAssigned, PublicIpUnassigned, Reason,
    ReleasePublicIp, Start, StartFailure, StartPayload, Tenant, TenantAction, TenantAdded, TenantEntry,
    TenantRefusal, TenantRemoved, Tenants,
};
use ssntp_payload::{EnrolmentAction, EnrolmentList, EnrolmentRefusal, ManageEnrolment};
use ssntp_scheduler::placement::Policy;
use ssntp_scheduler::{Enrolments, Scheduler, SchedulerConfig};
use ssntp_test_support::wait::wait_for;
use uuid::Uuid;

use super::client::Client;
use super::{Cluster, expect_failure, expect_start, start, start_on, stats};

const CNCI: Uuid = Uuid::from_u128(2);

/// A cluster, its controller, and a node that runs an instance with an address of the tenant `blue`.
fn with_running_instance() -> (Cluster, Client, Client, Start) {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let start = leased(&mut controller);
    start_on(&mut controller, &mut node, &start);
    send_running(&mut node, &[start.instance_uuid]);
    (cluster, controller, node, start)
}

/// Sends a request about the tenant `blue` and an instance, and returns its answer.
#[track_caller]
fn ask(controller: &mut Client, action: TenantAction, instance: Uuid) -> Tenants {
    let answer = answer(controller, action, instance, false);
    assert_eq!(answer.reason.as_str(), "", "{}", answer.detail);
    answer
}

#[track_caller]
fn answer(controller: &mut Client, action: TenantAction, instance: Uuid, lost: bool) -> Tenants {
    controller.drain();
    controller.send_payload(&Tenant {
        id: "1".into(),
        action,
        name: "blue".into(),
        instance_uuid: instance.into(),
        lost,
        entry: TenantEntry {
            tenant_uuid: Uuid::from_u128(1).into(),
            subnet: "10.1.0.0/24".into(),
            concentrator_uuid: CNCI.into(),
            concentrator_ip: "192.0.2.1/24".into(),
            ..TenantEntry::default()
        },
        ..Tenant::default()
    });
    controller.expect_payload()
}

#[track_caller]
fn has_address(controller: &mut Client, instance: Uuid) -> bool {
    let answer = ask(controller, TenantAction::Show, instance);
    let mut addresses = answer.entries[0].addresses.iter();
    addresses.any(|address| address.instance_uuid == instance)
}

/// A START of an instance with an address.
#[track_caller]
fn leased(controller: &mut Client) -> Start {
    let start = start(10);
    ask(controller, TenantAction::Add, start.instance_uuid);
    ask(controller, TenantAction::Lease, start.instance_uuid);
    start
}

fn send_running(node: &mut Client, instances: &[Uuid]) {
    let mut report = stats(node.uuid, instances);
    for instance in &mut report.instances {
        instance.state = InstanceState::Active;
    }
    node.send_payload(&report);
    node.expect_nothing();
}

#[test]
fn an_address_is_free_once_its_node_no_longer_lists_the_instance() {
    let (_cluster, mut controller, mut node, start) = with_running_instance();
    let instance = start.instance_uuid;
    // An instance that an evacuation has stopped may be kept, or removed without a further event.
    node.send_payload(&InstanceStopped {
        instance_uuid: instance.into(),
        ..InstanceStopped::default()
    });
    node.expect_nothing();
    assert!(has_address(&mut controller, instance));
    send_running(&mut node, &[]);
    assert!(!has_address(&mut controller, instance));
}

/// The tenant `blue`, and its concentrator, which has announced itself.
fn with_concentrator(cluster: &Cluster, controller: &mut Client) -> Client {
    ask(controller, TenantAction::Add, Uuid::nil());
    let mut cnci = Client::connect_as(&cluster.listener, Role::CNCIAGENT, CNCI);
    cnci.send_payload(&ConcentratorInstanceAdded {
        instance_uuid: CNCI.into(),
        tenant_uuid: Uuid::from_u128(1).into(),
        concentrator_ip: "192.0.2.1".into(),
        ..ConcentratorInstanceAdded::default()
    });
    cnci.expect_nothing();
    controller.drain();
    cnci
}

/// The session of a node or a concentrator ends.
#[track_caller]
fn leave(cluster: &Cluster, client: Client) {
    let uuid = client.uuid;
    drop(client);
    cluster.wait_disconnected(uuid);
}

#[test]
fn an_address_is_kept_while_its_node_is_away_unless_an_operator_says_that_the_node_is_lost() {
    let (cluster, mut controller, node, start) = with_running_instance();
    let (instance, uuid) = (start.instance_uuid, node.uuid);
    let cnci = with_concentrator(&cluster, &mut controller);
    let shown = |controller: &mut Client| {
        let entry = ask(controller, TenantAction::Show, instance).entries.remove(0);
        let address = entry.addresses.into_iter().next().unwrap();
        (address.node_uuid, address.state)
    };
    let refused = |controller: &mut Client, lost: bool, why: &str| {
        let refused = answer(controller, TenantAction::Release, instance, lost);
        assert_eq!(refused.reason, TenantRefusal::InUse);
        assert!(refused.detail.contains(why), "{}", refused.detail);
    };
    assert_eq!(shown(&mut controller), (uuid.into(), String::new()));
    refused(&mut controller, true, "has this instance: delete it");
    leave(&cluster, node);
    assert_eq!(shown(&mut controller), (uuid.into(), "unknown".to_owned()));
    refused(
        &mut controller,
        false,
        "which is away, may still have this instance",
    );
    leave(&cluster, cnci);
    refused(&mut controller, true, "the concentrator of the tenant is away");
    let mut cnci = with_concentrator(&cluster, &mut controller);
    let released = answer(&mut controller, TenantAction::Release, instance, true);
    assert_eq!(released.reason.as_str(), "", "{}", released.detail);
    let removed: TenantRemoved = cnci.expect_payload();
    assert_eq!(
        (removed.agent_uuid, removed.concentrator_uuid),
        (uuid.into(), CNCI.into())
    );
    assert_eq!(
        (removed.tenant_subnet.as_str(), removed.subnet_key),
        ("10.1.0.0/24", 1)
    );
    assert!(!has_address(&mut controller, instance));
    // Its UUID is free as well.
    let mut other = cluster.node(1000, &mut []);
    controller.drain();
    start_on(&mut controller, &mut other, &start);
}

/// A typing error must not end an instance.
#[test]
fn a_release_as_lost_that_is_not_of_the_tenant_of_the_instance_ends_nothing() {
    let (cluster, mut controller, node, start) = with_running_instance();
    let (instance, uuid) = (start.instance_uuid, node.uuid);
    let _cnci = with_concentrator(&cluster, &mut controller);
    let mut ask = |action, lost| {
        controller.drain();
        controller.send_payload(&Tenant {
            id: "1".into(),
            action,
            name: "green".into(),
            instance_uuid: instance.into(),
            lost,
            entry: TenantEntry {
                tenant_uuid: Uuid::from_u128(11).into(),
                subnet: "10.1.0.0/24".into(),
                concentrator_uuid: Uuid::from_u128(12).into(),
                concentrator_ip: "192.0.2.2/24".into(),
                ..TenantEntry::default()
            },
            ..Tenant::default()
        });
        controller.expect_payload::<Tenants>().reason
    };
    leave(&cluster, node);
    assert_eq!(ask(TenantAction::Release, true), TenantRefusal::NoTenant);
    assert_eq!(ask(TenantAction::Add, false), TenantRefusal::NotRefused);
    assert_eq!(ask(TenantAction::Release, true), TenantRefusal::NotRefused);
    assert!(has_address(&mut controller, instance));
    let mut again = Client::connect_as(&cluster.listener, Role::AGENT, uuid);
    send_running(&mut again, &[instance]);
}

#[test]
fn the_addresses_of_a_node_whose_certificates_are_revoked_are_freed_once_the_concentrator_is_told() {
    let records = Enrolments::default();
    let [issuer, other_issuer] = ["one", "two"].map(|name| {
        let authority = ssntp_test_support::authority();
        authority.issuer(name, Role::AGENT, 10).unwrap()
    });
    let enrolment = Enrolment::new(issuer, records.clone());
    let config = SchedulerConfig::new().enrolments(records.clone());
    let cluster = Cluster::with(config, |server| server.enrol(enrolment));
    let mut controller = cluster.controller();
    let revoke = |controller: &mut Client, node: Uuid| {
        let mut before = super::client::identity(Role::AGENT).info().clone();
        // It is the node's, and its life is over.
        (before.uuid, before.not_after) = (Some(node), before.not_before);
        for _ in 0..2 {
            let key = signing_request(&node_key().unwrap(), "key").unwrap();
            let key = SigningRequest::from_pem(&key).unwrap();
            let issuing = (&other_issuer, Duration::from_secs(3600), SystemTime::now());
            let renewed = records.update(None, &mut |records| records.renew(&before, false, &key, issuing));
            renewed.unwrap();
        }
        controller.drain();
        controller.send_payload(&ManageEnrolment {
            id: "1".into(),
            action: EnrolmentAction::Revoke,
            uuid: node.into(),
            ..ManageEnrolment::default()
        });
        let answer: EnrolmentList = controller.expect_payload();
        assert_eq!(answer.reason, EnrolmentRefusal::NotRefused, "{}", answer.detail);
    };
    for is_away_first in [true, false] {
        let mut node = cluster.node(1000, &mut [&mut controller]);
        let (uuid, start) = (node.uuid, leased(&mut controller));
        let instance = start.instance_uuid;
        start_on(&mut controller, &mut node, &start);
        send_running(&mut node, &[instance]);
        if is_away_first {
            leave(&cluster, node);
            revoke(&mut controller, uuid);
        } else {
            revoke(&mut controller, uuid);
            assert!(has_address(&mut controller, instance), "the node is there");
            leave(&cluster, node);
        }
        // The concentrator may send packets to the node until it is told.
        assert!(has_address(&mut controller, instance), "{is_away_first}");
        let mut cnci = Client::connect_as(&cluster.listener, Role::CNCIAGENT, CNCI);
        assert_eq!(cnci.expect_payload::<TenantRemoved>().agent_uuid, uuid);
        cnci.expect_nothing();
        assert!(!has_address(&mut controller, instance), "{is_away_first}");
        leave(&cluster, cnci);
        // The machine joins again, and has what the lost node had. Another instance may have the address.
        let mut again = cluster.node(1000, &mut []);
        again.send_payload(&stats(again.uuid, &[instance]));
        let delete: Delete = again.expect_payload();
        assert_eq!(delete.instance_uuid, instance, "{is_away_first}");
        again.send_payload(&stats(again.uuid, &[]));
        again.expect_nothing();
        leave(&cluster, again);
        controller.drain();
    }
}

/// A scheduler without --state, and without an etcd, does not know where instances are.
#[test]
fn an_address_that_an_earlier_scheduler_leased_is_released_as_lost_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.yaml");
    let config = || SchedulerConfig::new().configuration_file(file.clone());
    let cluster = Cluster::new(config());
    let mut controller = cluster.controller();
    let instance = leased(&mut controller).instance_uuid;
    drop(controller);
    cluster.stop();
    let cluster = Cluster::new(config());
    let mut controller = cluster.controller();
    let shown = ask(&mut controller, TenantAction::Show, instance)
        .entries
        .remove(0);
    assert_eq!(shown.addresses[0].state, "unclaimed");
    let unclaimed = || {
        let figures = Scheduler::figures(&cluster.server.handle());
        figures.unwrap().unclaimed_addresses
    };
    assert_eq!(unclaimed(), 1);
    let refused = answer(&mut controller, TenantAction::Release, instance, false);
    assert_eq!(refused.reason, TenantRefusal::InUse);
    assert!(
        refused.detail.contains("since this scheduler began"),
        "{}",
        refused.detail
    );
    let released = answer(&mut controller, TenantAction::Release, instance, true);
    assert_eq!(released.reason.as_str(), "", "{}", released.detail);
    assert!(!has_address(&mut controller, instance));
    assert_eq!(unclaimed(), 0);
    let mut node = cluster.node(1000, &mut []);
    node.send_payload(&stats(node.uuid, &[instance]));
    assert_eq!(node.expect_payload::<Delete>().instance_uuid, instance);
    // An address that this scheduler has leased is released without more ado.
    let own = leased(&mut controller).instance_uuid;
    ask(&mut controller, TenantAction::Release, own);
    assert!(!has_address(&mut controller, own));
}

/// A concentrator learns nothing from packets.
#[test]
fn a_concentrator_is_told_which_addresses_lead_to_a_node() {
    let cluster = Cluster::opportunistic();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let mut cnci = with_concentrator(&cluster, &mut controller);
    let [first, second] = [of_blue(1), of_blue(1)];
    start_on(&mut controller, &mut node, &first);
    let added = added(&node);
    let expect = |cnci: &mut Client, last: &[u8]| {
        let told: TenantAdded = cnci.expect_payload();
        let addresses = last.iter().map(|last| [10, 1, 0, *last].into()).collect();
        let wanted = TenantAdded {
            addresses,
            ..added.clone()
        };
        assert_eq!(told, wanted);
        cnci.expect_nothing();
    };
    node.send_payload(&added);
    expect(&mut cnci, &[2]);
    start_on(&mut controller, &mut node, &second);
    expect(&mut cnci, &[2, 3]);
    send_running(&mut node, &[first.instance_uuid, second.instance_uuid]);
    cnci.expect_nothing();
    leave(&cluster, cnci);
    send_running(&mut node, &[second.instance_uuid]);
    let mut cnci = Client::connect_as(&cluster.listener, Role::CNCIAGENT, CNCI);
    expect(&mut cnci, &[3]);
    send_running(&mut node, &[]);
    assert_eq!(cnci.expect_payload::<TenantRemoved>().agent_uuid, node.uuid);
    cnci.expect_nothing();
    // An instance of no tenant changes nothing there.
    start_on(&mut controller, &mut node, &start(1));
    cnci.expect_nothing();
}

/// The report of a node that it has instances of the tenant `blue`.
fn added(node: &Client) -> TenantAdded {
    TenantAdded {
        agent_uuid: node.uuid.into(),
        agent_ip: "192.0.2.7".into(),
        tenant_uuid: Uuid::from_u128(1).into(),
        tenant_subnet: "10.1.0.0/24".into(),
        concentrator_uuid: CNCI.into(),
        // Only the scheduler knows which addresses are leased.
        addresses: vec!["10.1.0.200".parse().unwrap()],
        ..TenantAdded::default()
    }
}

/// A tunnel lets its node send into the network of the tenant, and any agent may send TenantAdded.
#[test]
fn a_concentrator_learns_no_tunnel_to_a_node_without_an_instance_of_its_tenant() {
    let (cluster, mut controller, _node, _) = with_running_instance();
    let mut other = cluster.node(1000, &mut []);
    let mut cnci = with_concentrator(&cluster, &mut controller);
    other.send_payload(&added(&other));
    // The tenant has no such subnet.
    for subnet in ["10.2.0.0/24", "10.1.0.0/20"] {
        other.send_payload(&TenantAdded {
            tenant_subnet: subnet.into(),
            ..added(&other)
        });
    }
    other.expect_nothing();
    cnci.expect_nothing();
    leave(&cluster, cnci);
    let mut cnci = with_concentrator(&cluster, &mut controller);
    cnci.expect_nothing();
    // The report counts once the node has an instance.
    let start = of_blue(1);
    start_on(&mut controller, &mut other, &start);
    let told: TenantAdded = cnci.expect_payload();
    assert_eq!(told.agent_uuid, other.uuid);
    assert_eq!(told.addresses, [Ipv4Addr::new(10, 1, 0, 3)]);
    cnci.expect_nothing();
    // Its instance leaves while the concentrator is away.
    leave(&cluster, cnci);
    send_running(&mut other, &[start.instance_uuid]);
    send_running(&mut other, &[]);
    let mut cnci = Client::connect_as(&cluster.listener, Role::CNCIAGENT, CNCI);
    assert_eq!(cnci.expect_payload::<TenantRemoved>().agent_uuid, other.uuid);
    cnci.expect_nothing();
    leave(&cluster, cnci);
    Client::connect_as(&cluster.listener, Role::CNCIAGENT, CNCI).expect_nothing();
}

/// A report that is too long is not kept, and none of an earlier session is.
#[test]
fn a_tunnel_ends_with_the_last_instance_of_its_tenant_whatever_the_node_reports() {
    let cluster = Cluster::opportunistic();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let mut cnci = with_concentrator(&cluster, &mut controller);
    for (is_long, is_away) in [(true, false), (false, false), (false, true)] {
        let start = of_blue(1);
        start_on(&mut controller, &mut node, &start);
        let mut report = added(&node);
        report.concentrator_ip = if is_long { "1".repeat(1000) } else { String::new() };
        node.send_payload(&report);
        assert_eq!(cnci.expect_payload::<TenantAdded>().agent_uuid, node.uuid);
        if !is_long {
            let uuid = node.uuid;
            leave(&cluster, node);
            node = Client::connect_as(&cluster.listener, Role::AGENT, uuid);
        }
        send_running(&mut node, &[start.instance_uuid]);
        if is_away {
            leave(&cluster, cnci);
            send_running(&mut node, &[]);
            cnci = Client::connect_as(&cluster.listener, Role::CNCIAGENT, CNCI);
        } else {
            cnci.expect_nothing();
            send_running(&mut node, &[]);
        }
        assert_eq!(cnci.expect_payload::<TenantRemoved>().agent_uuid, node.uuid);
        cnci.expect_nothing();
        super::send_ready(&mut node, 1000);
        controller.drain();
    }
}

#[test]
fn a_concentrator_that_comes_back_after_a_node_has_left_learns_the_end_of_the_tunnel_to_it() {
    let cluster = Cluster::opportunistic();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let mut cnci = with_concentrator(&cluster, &mut controller);
    let (start, uuid) = (of_blue(1), node.uuid);
    start_on(&mut controller, &mut node, &start);
    node.send_payload(&added(&node));
    cnci.expect(Event::TENANT_ADDED);
    send_running(&mut node, &[start.instance_uuid]);
    leave(&cluster, cnci);
    send_running(&mut node, &[]);
    leave(&cluster, node);
    let mut cnci = Client::connect_as(&cluster.listener, Role::CNCIAGENT, CNCI);
    assert_eq!(cnci.expect_payload::<TenantRemoved>().agent_uuid, uuid);
    leave(&cluster, cnci);
    Client::connect_as(&cluster.listener, Role::CNCIAGENT, CNCI).expect_nothing();
}

/// The agent reports its tenants before its STATS.
#[test]
fn a_report_about_a_tenant_waits_for_the_first_stats_after_a_restart_of_the_scheduler() {
    let dir = tempfile::tempdir().unwrap();
    let config = || SchedulerConfig::new().configuration_file(dir.path().join("cluster.yaml"));
    let cluster = Cluster::new(config());
    let instance = leased(&mut cluster.controller()).instance_uuid;
    cluster.stop();
    let cluster = Cluster::new(config());
    let mut cnci = Client::connect_as(&cluster.listener, Role::CNCIAGENT, CNCI);
    let mut node = cluster.node(1000, &mut []);
    node.send_payload(&added(&node));
    node.expect_nothing();
    cnci.expect_nothing();
    send_running(&mut node, &[instance]);
    let told: TenantAdded = cnci.expect_payload();
    assert_eq!(told.addresses, [Ipv4Addr::new(10, 1, 0, 2)]);
}

/// The instance has ended while no scheduler ran, and the concentrator still has the tunnel to its node.
#[test]
fn a_tunnel_ends_if_the_first_stats_after_a_restart_of_the_scheduler_lack_the_instance() {
    let dir = tempfile::tempdir().unwrap();
    let config = || SchedulerConfig::new().configuration_file(dir.path().join("cluster.yaml"));
    let cluster = Cluster::new(config());
    leased(&mut cluster.controller());
    cluster.stop();
    let cluster = Cluster::new(config());
    let mut cnci = Client::connect_as(&cluster.listener, Role::CNCIAGENT, CNCI);
    let mut node = cluster.node(1000, &mut []);
    node.send_payload(&added(&node));
    send_running(&mut node, &[]);
    assert_eq!(cnci.expect_payload::<TenantRemoved>().agent_uuid, node.uuid);
    send_running(&mut node, &[]);
    cnci.expect_nothing();
}

fn of_blue(mem_mb: i64) -> Start {
    Start {
        tenant_uuid: "blue".into(),
        ..start(mem_mb)
    }
}

#[test]
fn a_start_that_names_a_tenant_gets_an_address_in_its_network() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cluster.yaml");
    for config in [
        SchedulerConfig::new(),
        SchedulerConfig::new().configuration_file(&file),
    ] {
        let cluster = Cluster::new(config.policy(Policy::Opportunistic));
        let mut controller = cluster.controller();
        let mut node = cluster.node(1000, &mut [&mut controller]);
        let _cnci = with_concentrator(&cluster, &mut controller);
        let mut by_uuid = of_blue(1);
        by_uuid.tenant_uuid = Uuid::from_u128(1).into();
        let mut chosen = of_blue(1);
        chosen.networking.private_ip = "10.1.0.9".into();
        let mut addresses = Vec::new();
        for start in [of_blue(1), by_uuid, chosen] {
            let text = String::from_utf8(start.encode().to_vec()).unwrap();
            let text = text.replacen("start:\n", "start:\n  command_id: '7'\n", 1);
            controller.send_text(Command::START, &format!("{text}---\n#cloud-config\n---\n{{}}\n"));
            let frame = node.recv();
            let given: StartPayload = frame.payload().unwrap();
            let networking = given.start.networking;
            assert_eq!(CommandSubject::of(&frame).command_id, "7");
            assert_eq!(given.user_data.unwrap().as_text(), Some("#cloud-config\n"));
            assert_eq!(given.start.tenant_uuid, Uuid::from_u128(1));
            assert_eq!(networking.concentrator_uuid, CNCI);
            assert_eq!(
                (networking.concentrator_ip.as_str(), networking.subnet.as_str()),
                ("192.0.2.1", "10.1.0.0/24")
            );
            assert_eq!(networking.subnet_key, "1");
            if let Ok(table) = std::fs::read_to_string(file.with_extension("tenants.yaml")) {
                // Another instance would get it if the scheduler ended now.
                assert!(table.contains(&start.instance_uuid.to_string()), "{table}");
            }
            addresses.push((networking.private_ip, start.instance_uuid));
        }
        let ips: Vec<_> = addresses.iter().map(|(ip, _)| ip.as_str()).collect();
        assert_eq!(ips, ["10.1.0.2", "10.1.0.3", "10.1.0.9"]);
        // An address is free with its instance.
        node.send_payload(&StartFailure {
            node_uuid: node.uuid.into(),
            instance_uuid: addresses[0].1.into(),
            reason: Reason::LaunchFailure,
            command_id: "7".into(),
            ..StartFailure::default()
        });
        node.expect_nothing();
        assert!(!has_address(&mut controller, addresses[0].1));
        assert!(has_address(&mut controller, addresses[1].1));
    }
}

#[test]
fn a_start_whose_tenant_cannot_give_it_an_address_is_refused() {
    let cluster = Cluster::opportunistic();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let expect = |controller: &mut Client, start: &Start, reason: Reason, why: &str| {
        controller.send_payload(start);
        let failure = expect_failure(controller, start, reason);
        assert_eq!(failure.detail, why);
    };
    let none = "there is no tenant \"blue\"";
    expect(&mut controller, &of_blue(1), Reason::InvalidData, none);
    ask(&mut controller, TenantAction::Add, Uuid::nil());
    let why = "the concentrator of tenant blue does not run";
    expect(&mut controller, &of_blue(1), Reason::NoNetCn, why);
    let _cnci = with_concentrator(&cluster, &mut controller);
    let mut outside = of_blue(1);
    outside.networking.private_ip = "10.2.0.9".into();
    let why = "\"10.2.0.9\" is no address of an instance in 10.1.0.0/24";
    expect(&mut controller, &outside, Reason::InvalidData, why);
    // The concentrator computes the MAC address.
    let mut other_mac = of_blue(1);
    other_mac.networking.vnic_mac = "02:00:00:00:00:09".into();
    let why = "vnic_mac \"02:00:00:00:00:09\": in a tenant's network it follows from the address";
    expect(&mut controller, &other_mac, Reason::InvalidData, why);
    // No node has room, so the address is free again.
    let large = of_blue(2000);
    controller.send_payload(&large);
    expect_failure(&mut controller, &large, Reason::FullCloud);
    assert!(!has_address(&mut controller, large.instance_uuid));
    // The START of another implementation is not changed.
    let mut foreign = start(1);
    foreign.tenant_uuid = Uuid::from_u128(77).into();
    start_on(&mut controller, &mut node, &foreign);
}

/// The next scheduler knows nothing of a START that was refused.
#[test]
fn a_start_that_waits_when_the_scheduler_stops_leaves_no_address_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.yaml");
    let cluster = Cluster::new(SchedulerConfig::new().configuration_file(&file));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let _cnci = with_concentrator(&cluster, &mut controller);
    let [running, waiting] = [of_blue(1), of_blue(1)];
    start_on(&mut controller, &mut node, &running);
    // The node has not sent READY since, so this START waits for it.
    controller.send_payload(&waiting);
    wait_for(|| {
        let starts = Scheduler::figures(&cluster.server.handle()).unwrap().starts;
        (starts.held == 1).then_some(()).ok_or("it is not held")
    });
    let figures = Scheduler::figures(&cluster.server.handle()).unwrap();
    assert_eq!(figures.unclaimed_addresses, 0, "a node and a START have them");
    cluster.stop();
    let table = std::fs::read_to_string(file.with_extension("tenants.yaml")).unwrap();
    let names = |start: &Start| table.contains(&start.instance_uuid.to_string());
    assert!(names(&running) && !names(&waiting), "{table}");
}

#[test]
fn a_start_that_is_too_long_with_its_address_is_refused_and_closes_no_node() {
    let config = SchedulerConfig::new();
    let cluster = Cluster::with(config, |server| server.max_payload(4096));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let _cnci = with_concentrator(&cluster, &mut controller);
    let long = of_blue(1);
    let text = format!("{}---\n", String::from_utf8(long.encode().to_vec()).unwrap());
    let user_data = "#cloud-config\n".to_owned() + &"#".repeat(4070 - text.len()) + "\n";
    controller.send_text(Command::START, &format!("{text}{user_data}"));
    let failure = expect_failure(&mut controller, &long, Reason::InvalidData);
    assert!(
        failure.detail.contains("the maximum is 4096"),
        "{}",
        failure.detail
    );
    assert!(!has_address(&mut controller, long.instance_uuid));
    let next = of_blue(1);
    start_on(&mut controller, &mut node, &next);
}

/// Another instance may get its private address, and would be reached at the public one.
#[test]
fn the_public_address_of_an_instance_is_taken_back_with_its_address() {
    let (cluster, mut controller, mut node, start) = with_running_instance();
    let instance = start.instance_uuid;
    let assigned = |private_ip: &str| PublicIpAssigned {
        concentrator_uuid: CNCI.into(),
        instance_uuid: instance.into(),
        public_ip: "198.51.100.20".into(),
        private_ip: private_ip.into(),
    };
    let expect_release = |cnci: &mut Client, private_ip: &str| {
        let release: ReleasePublicIp = cnci.expect_payload();
        let of = (release.instance_uuid, release.public_ip, release.private_ip);
        assert_eq!(of, (instance.into(), "198.51.100.20".into(), private_ip.into()));
    };
    let mut cnci = Client::connect_as(&cluster.listener, Role::CNCIAGENT, CNCI);
    let mut other = cluster.connect(Role::CNCIAGENT);
    cnci.send_payload(&assigned("10.1.0.2"));
    other.send_payload(&PublicIpAssigned {
        concentrator_uuid: other.uuid.into(),
        ..assigned("10.1.0.2")
    });
    cnci.expect_nothing();
    other.expect_nothing();
    send_running(&mut node, &[]);
    assert!(!has_address(&mut controller, instance));
    assert_eq!(cnci.expect_payload::<TenantRemoved>().agent_uuid, node.uuid);
    expect_release(&mut cnci, "10.1.0.2");
    cnci.send_payload(&PublicIpUnassigned {
        concentrator_uuid: CNCI.into(),
        instance_uuid: instance.into(),
        public_ip: "198.51.100.20".into(),
        private_ip: "10.1.0.2".into(),
    });
    cnci.expect_nothing();
    // A concentrator that was away meanwhile reports the address when it connects.
    cnci.send_payload(&assigned("10.1.0.2"));
    expect_release(&mut cnci, "10.1.0.2");
    ask(&mut controller, TenantAction::Lease, instance);
    cnci.send_payload(&assigned("10.1.0.9"));
    expect_release(&mut cnci, "10.1.0.9");
    // The tenant of another concentrator has no addresses.
    other.expect_nothing();
}

#[test]
fn an_instance_that_is_being_moved_keeps_its_address_even_if_the_event_of_its_end_was_lost() {
    let (cluster, mut controller, mut node, start) = with_running_instance();
    let instance = start.instance_uuid;
    let mut other = cluster.node(1000, &mut []);
    controller.drain();
    controller.send_payload(&Evacuate {
        workload_agent_uuid: node.uuid.into(),
        moves: true,
        ..Evacuate::default()
    });
    node.expect(Command::EVACUATE);
    node.send_payload(&Maintenance::default());
    send_running(&mut node, &[]);
    expect_start(&mut other, &start);
    assert!(has_address(&mut controller, instance));
    send_running(&mut other, &[instance]);
    send_running(&mut other, &[]);
    assert!(!has_address(&mut controller, instance));
}

#[test]
fn an_instance_that_its_node_has_already_keeps_its_address() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let start = leased(&mut controller);
    start_on(&mut controller, &mut node, &start);
    node.send_payload(&StartFailure {
        node_uuid: node.uuid.into(),
        instance_uuid: start.instance_uuid.into(),
        reason: Reason::AlreadyRunning,
        ..StartFailure::default()
    });
    expect_failure(&mut controller, &start, Reason::AlreadyRunning);
    assert!(has_address(&mut controller, start.instance_uuid));
}

#[test]
fn an_instance_that_may_still_be_started_keeps_its_address() {
    let config = SchedulerConfig::new();
    let cluster = Cluster::new(config.start_time(Duration::from_secs(60), Duration::from_millis(20)));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    for is_listed in [false, true] {
        let start = leased(&mut controller);
        let instance = start.instance_uuid;
        node.send_payload(&super::ready(node.uuid, 1000));
        node.expect_nothing();
        start_on(&mut controller, &mut node, &start);
        // The node does not answer in time.
        expect_failure(&mut controller, &start, Reason::LaunchFailure);
        node.expect_payload::<Delete>();
        assert!(has_address(&mut controller, instance));
        if is_listed {
            send_running_and_expect_delete(&mut node, instance);
            assert!(has_address(&mut controller, instance));
            send_running(&mut node, &[]);
        } else {
            node.send_payload(&DeleteFailure {
                node_uuid: node.uuid.into(),
                instance_uuid: instance.into(),
                reason: Reason::NoInstance,
                ..DeleteFailure::default()
            });
            node.expect_nothing();
        }
        assert!(!has_address(&mut controller, instance), "{is_listed}");
    }
}

fn send_running_and_expect_delete(node: &mut Client, instance: Uuid) {
    let mut report = stats(node.uuid, &[instance]);
    report.instances[0].state = InstanceState::Active;
    node.send_payload(&report);
    node.expect_payload::<Delete>();
}

/// Any node may report about an instance that the scheduler does not know, and any controller may ask.
#[test]
fn an_instance_whose_node_has_not_reported_to_this_scheduler_keeps_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.yaml");
    let config = || SchedulerConfig::new().configuration_file(file.clone());
    let cluster = Cluster::new(config());
    let mut controller = cluster.controller();
    let start = leased(&mut controller);
    let instance = start.instance_uuid;
    drop(controller);
    cluster.stop();
    let cluster = Cluster::new(config());
    let mut controller = cluster.controller();
    controller.send_payload(&start);
    expect_failure(&mut controller, &start, Reason::NoCn);
    assert!(has_address(&mut controller, instance), "a START was refused");
    let mut node = cluster.node(1000, &mut [&mut controller]);
    node.send_payload(&InstanceDeleted {
        instance_uuid: instance.into(),
        ..InstanceDeleted::default()
    });
    node.expect_nothing();
    assert!(has_address(&mut controller, instance), "it is not this node's");
    send_running(&mut node, &[instance]);
    send_running(&mut node, &[]);
    assert!(!has_address(&mut controller, instance));
}

#[test]
fn an_address_that_an_earlier_scheduler_leased_is_free_if_the_instance_cannot_be_moved() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.yaml");
    let config = || SchedulerConfig::new().configuration_file(file.clone());
    let cluster = Cluster::new(config());
    let mut controller = cluster.controller();
    let start = leased(&mut controller);
    drop(controller);
    cluster.stop();
    let cluster = Cluster::new(config());
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let instance = start.instance_uuid;
    start_on(&mut controller, &mut node, &start);
    send_running(&mut node, &[instance]);
    controller.send_payload(&Evacuate {
        workload_agent_uuid: node.uuid.into(),
        moves: true,
        ..Evacuate::default()
    });
    node.expect(Command::EVACUATE);
    node.send_payload(&InstanceStopped {
        instance_uuid: instance.into(),
        ..InstanceStopped::default()
    });
    node.expect_nothing();
    assert!(!has_address(&mut controller, instance));
}

#[test]
fn a_start_that_an_earlier_scheduler_sent_has_failed_unless_another_node_may_have_it() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    for (reason, is_answer) in [
        (Reason::ImageFailure, true),
        // The earlier scheduler may have placed the START on another node, which has not connected yet.
        (Reason::FullCn, false),
        (Reason::NodeMaintenance, false),
    ] {
        let start = leased(&mut controller);
        node.send_payload(&StartFailure {
            node_uuid: node.uuid.into(),
            instance_uuid: start.instance_uuid.into(),
            reason: reason.clone(),
            ..StartFailure::default()
        });
        node.expect_nothing();
        if is_answer {
            expect_failure(&mut controller, &start, reason);
        } else {
            // The other node's STATS are the answer.
            controller.expect_nothing();
        }
        // Any node could say this.
        assert!(has_address(&mut controller, start.instance_uuid));
    }
}

#[test]
fn a_repeated_failure_does_not_free_an_address_that_was_leased_since() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let start = leased(&mut controller);
    let instance = start.instance_uuid;
    let fail = |node: &mut Client| {
        node.send_payload(&StartFailure {
            node_uuid: node.uuid.into(),
            instance_uuid: instance.into(),
            reason: Reason::ImageFailure,
            ..StartFailure::default()
        });
        node.expect_nothing();
    };
    start_on(&mut controller, &mut node, &start);
    fail(&mut node);
    assert!(!has_address(&mut controller, instance));
    // A controller leases the address again, and its START has not arrived yet.
    ask(&mut controller, TenantAction::Lease, instance);
    fail(&mut node);
    assert!(has_address(&mut controller, instance));
}

#[test]
fn a_start_that_failed_after_it_was_given_up_frees_its_address() {
    let config = SchedulerConfig::new();
    let cluster = Cluster::new(config.start_time(Duration::from_secs(60), Duration::from_millis(20)));
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    let start = leased(&mut controller);
    start_on(&mut controller, &mut node, &start);
    expect_failure(&mut controller, &start, Reason::LaunchFailure);
    node.expect_payload::<Delete>();
    node.send_payload(&StartFailure {
        node_uuid: node.uuid.into(),
        instance_uuid: start.instance_uuid.into(),
        reason: Reason::ImageFailure,
        ..StartFailure::default()
    });
    node.expect_nothing();
    assert!(!has_address(&mut controller, start.instance_uuid));
}

#[test]
fn an_instance_that_only_its_node_knows_keeps_its_address() {
    let cluster = Cluster::strict();
    let mut controller = cluster.controller();
    let mut node = cluster.node(1000, &mut [&mut controller]);
    // The scheduler has restarted, and the node has sent no STATS yet.
    let start = leased(&mut controller);
    for reason in [Reason::AlreadyRunning, Reason::InstanceExists] {
        node.send_payload(&StartFailure {
            node_uuid: node.uuid.into(),
            instance_uuid: start.instance_uuid.into(),
            reason,
            ..StartFailure::default()
        });
        node.expect_nothing();
        assert!(has_address(&mut controller, start.instance_uuid));
    }
}
