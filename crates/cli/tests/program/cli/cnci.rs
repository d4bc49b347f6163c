//! `ssntp cnci` as a workload of a network node.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;
use ssntp_payload::{
    AssignPublicIp, AssignPublicIpFailure, CnciPeer, ConcentratorInstanceAdded, Delete, InstanceDeleted,
    PublicIpAssigned, PublicIpUnassigned, RefreshCnci, ReleasePublicIp, Start, StartFailure, Stats, VmType,
};
use uuid::Uuid;

use crate::processes::{Cluster, Program, ssntp};

const TENANT: &str = "93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50";

#[test]
fn a_concentrator_runs_as_a_workload_and_keeps_the_tables_of_its_tenant() {
    let cluster = Cluster::new();
    let mut network_node = cluster.agent("netagent", &["--state", "state", "--confinement", "rlimits"]);
    let network_uuid = network_node.uuid();
    cluster.next(|stats: &Stats| stats.node_uuid == network_uuid);

    let dir = cluster.dir.path().to_str().unwrap();
    let (ca, cert) = (format!("{dir}/ca.pem"), format!("{dir}/cnci.pem"));
    let concentrator = Uuid::new_v4();
    let id = concentrator.to_string();
    let mut start = Start {
        instance_uuid: concentrator,
        tenant_uuid: TENANT.into(),
        vm_type: VmType::Process,
        command: [
            env!("CARGO_BIN_EXE_ssntp"),
            "cnci",
            "--connect",
            &cluster.address,
            "--ca",
            &ca,
            "--cert",
            &cert,
            "--uuid",
            &id,
            "--tenant",
            TENANT,
            "--ip",
            "10.0.0.33",
            "--state",
            "tables",
        ]
        .map(String::from)
        .to_vec(),
        ..Start::default()
    };
    start.requirements.network_node = true;
    start.requirements.mem_mb = 256;
    cluster.send(&start);
    let added: ConcentratorInstanceAdded = cluster.next(|_| true);
    assert_eq!(
        (added.instance_uuid, added.tenant_uuid),
        (concentrator.into(), TENANT.into())
    );
    assert_eq!(added.concentrator_ip, "10.0.0.33");

    // A compute node runs a workload of the tenant, so the concentrator receives TenantAdded.
    let mut node = cluster.agent("agent", &["--state", "state2", "--confinement", "rlimits"]);
    let node_uuid = node.uuid();
    cluster.next(|stats: &Stats| stats.node_uuid == node_uuid);
    let mut workload = Start {
        instance_uuid: Uuid::new_v4(),
        tenant_uuid: TENANT.into(),
        vm_type: VmType::Process,
        command: ["sleep", "1000"].map(String::from).to_vec(),
        ..Start::default()
    };
    workload.networking.concentrator_uuid = concentrator.into();
    workload.networking.subnet = "172.16.0.0/24".into();
    workload.networking.private_ip = "172.16.0.5".into();
    cluster.send(&workload);
    cluster.next(|stats: &Stats| {
        stats
            .instances
            .iter()
            .any(|i| i.instance_uuid == workload.instance_uuid)
    });

    let assign = AssignPublicIp {
        concentrator_uuid: concentrator.into(),
        tenant_uuid: TENANT.into(),
        instance_uuid: workload.instance_uuid.into(),
        public_ip: "198.51.100.20".into(),
        private_ip: "172.16.0.5".into(),
        vnic_mac: "02:42:ac:10:00:05".into(),
    };
    cluster.send(&RefreshCnci {
        cnci_uuid: concentrator.into(),
        cncis: vec![CnciPeer {
            physical_ip: "10.0.0.34".into(),
            subnet: "172.17.0.0/24".into(),
            tunnel_ip: "192.168.0.2".into(),
            tunnel_id: 7,
        }],
    });
    cluster.send(&assign);
    let assigned: PublicIpAssigned = cluster.next(|_| true);
    assert_eq!(assigned.public_ip, "198.51.100.20");
    let mut other = assign.clone();
    other.instance_uuid = Uuid::new_v4().into();
    cluster.send(&other);
    let failure: AssignPublicIpFailure = cluster.next(|_| true);
    assert_eq!(failure.reason.as_str(), "assign_failure");

    let tables = cluster
        .dir
        .path()
        .join(format!("state/instances/{id}/work/tables"));
    let show = |json: &[&str]| {
        let mut command = ssntp(cluster.dir.path(), &["cnci", "show", "--state"]);
        let output = command.arg(&tables).args(json).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    // No answer confirms TenantAdded, so the table is read until it has the tenant.
    let shown = loop {
        let shown: Value = serde_json::from_str(&show(&["--json"])).unwrap();
        if shown["tunnels"]
            .as_array()
            .is_some_and(|tunnels| !tunnels.is_empty())
        {
            break shown;
        }
        cluster.next(|_: &Stats| true);
    };
    assert_eq!(shown["tunnels"][0]["agent_uuid"], node_uuid.to_string());
    assert_eq!(shown["tunnels"][0]["subnet"], "172.16.0.0/24");
    assert_eq!(shown["tunnels"][0]["key"], 4268);
    assert_eq!(shown["peers"][0]["tunnel_id"], 7);
    assert_eq!(
        shown["public_ips"][0]["instance_uuid"],
        workload.instance_uuid.to_string()
    );
    let text = show(&[]);
    for part in [
        &*id,
        TENANT,
        "tables only",
        "172.16.0.0/24",
        "198.51.100.20",
        "10.0.0.34",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }

    cluster.send(&ReleasePublicIp {
        concentrator_uuid: concentrator.into(),
        tenant_uuid: TENANT.into(),
        instance_uuid: workload.instance_uuid.into(),
        public_ip: "198.51.100.20".into(),
        ..ReleasePublicIp::default()
    });
    let released: PublicIpUnassigned = cluster.next(|_| true);
    assert_eq!(released.private_ip, "172.16.0.5");

    for (instance, agent) in [(workload.instance_uuid, node_uuid), (concentrator, network_uuid)] {
        cluster.send(&Delete {
            instance_uuid: instance.into(),
            workload_agent_uuid: agent.into(),
            stop: false,
        });
        cluster.next(|deleted: &InstanceDeleted| deleted.instance_uuid == instance);
    }
    node.end(Signal::TERM);
    network_node.end(Signal::TERM);
}

#[test]
fn a_concentrator_needs_its_certificate_its_uuid_and_tables_that_no_other_uses() {
    let cluster = Cluster::new();
    let id = Uuid::new_v4().to_string();
    let common = [
        "cnci",
        "--ca",
        "ca.pem",
        "--connect",
        &cluster.address,
        "--tenant",
        TENANT,
        "--ip",
        "10.0.0.33",
    ];
    let start = |arguments: &[&str]| {
        let mut command = ssntp(cluster.dir.path(), &common);
        command.args(arguments);
        command
    };
    let refused = |arguments: &[&str], code: i32, reason: &str| {
        let output = start(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(reason), "{text}");
    };
    refused(&["--cert", "cnci.pem"], 2, "--uuid");
    refused(&["--cert", "agent.pem", "--uuid", &id], 1, "cnciagent");
    refused(
        &["--cert", "cnci.pem", "--uuid", &id, "--state", "ca.pem"],
        1,
        "ca.pem",
    );

    let own = ["--cert", "cnci.pem", "--uuid", &id, "--state", "tables"];
    let mut running = Program::start(&mut start(&own));
    assert_eq!(running.first_line(), format!("cnci {id}"));
    cluster.next(|_: &ConcentratorInstanceAdded| true);
    refused(&own, 1, "another concentrator uses");
    running.end(Signal::INT);

    let other = Uuid::new_v4().to_string();
    refused(
        &["--cert", "cnci.pem", "--uuid", &other, "--state", "tables"],
        1,
        &id,
    );
    let file = cluster.dir.path().join("tables/cnci.yaml");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    refused(&own, 1, "cnci.yaml");
    let output = ssntp(cluster.dir.path(), &["cnci", "show", "--state", "tables"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));

    // Without a concentrator the scheduler refuses the command.
    let assign = AssignPublicIp {
        concentrator_uuid: id.as_str().into(),
        instance_uuid: other.as_str().into(),
        public_ip: "198.51.100.20".into(),
        ..AssignPublicIp::default()
    };
    cluster.send(&assign);
    assert_eq!(
        cluster.next(|_: &AssignPublicIpFailure| true).reason.as_str(),
        "no_instance"
    );
    let start = Start {
        instance_uuid: Uuid::new_v4(),
        ..Start::default()
    };
    cluster.send(&start);
    cluster.next(|_: &StartFailure| true);
}
