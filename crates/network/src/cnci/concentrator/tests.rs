//! A concentrator with a data plane and a disk that the test controls: its frames and its tables.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use ssntp::payload::InvalidFrameType;
use ssntp::proto::FrameKind;
use ssntp_payload::{
    AssignPublicIp, AssignPublicIpFailure, CnciPeer, CommandFailure, CommandSubject, PublicIpUnassigned,
    ReleasePublicIp, UnassignPublicIpFailure,
};

const CNCI: Uuid = Uuid::from_u128(0xc);
const TENANT: Uuid = Uuid::from_u128(0x7);
const NODE: Uuid = Uuid::from_u128(0xa);
const ONE: Uuid = Uuid::from_u128(1);
const TWO: Uuid = Uuid::from_u128(2);

/// A data plane that records its calls, and refuses them if the test says so.
#[derive(Debug, Default)]
struct Fake {
    calls: Arc<Mutex<Vec<String>>>,
    refuse: Arc<AtomicBool>,
}

impl Fake {
    fn call(&self, call: String) -> Result<(), String> {
        self.calls.lock().unwrap().push(call);
        if self.refuse.load(Ordering::Relaxed) {
            Err("no".into())
        } else {
            Ok(())
        }
    }
}

impl DataPlane for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }
    fn check(&self, tables: &Tables) -> Result<(), String> {
        if tables.tunnels.iter().any(|tunnel| tunnel.key == 0) {
            Err("a tunnel without a key".into())
        } else {
            Ok(())
        }
    }
    fn check_free(&self, public: IpAddr) -> Result<(), String> {
        if public == IpAddr::from([198, 51, 100, 9]) {
            Err("another host has it".into())
        } else {
            Ok(())
        }
    }
    fn apply(&mut self, tables: &Tables) -> Result<Vec<String>, String> {
        let tunnels = tables.tunnels.iter().map(|t| format!("{} ", t.subnet));
        let public = tables.public_ips.iter();
        let public = public.map(|ip| format!("{} to {} ", ip.public_ip, ip.private_ip));
        let peers = tables.peers.len();
        let summary = tunnels.chain(public).collect::<String>() + &format!("{peers} peers");
        self.call(summary).map(|()| Vec::new())
    }
    fn forward(&mut self, tables: &Tables) -> Result<(), String> {
        let counts = tables.tunnels.iter().map(|it| format!("{} ", it.addresses.len()));
        self.call(format!("forward {}", counts.collect::<String>()))
    }
}

#[test]
fn addresses_lead_to_the_node_of_their_instance_once_no_further_frame_waits() {
    let mut stage = Stage::new();
    let at = |node: u128, last: &[u8]| TenantAdded {
        agent_uuid: Uuid::from_u128(node).into(),
        addresses: last.iter().map(|last| [172, 16, 0, *last].into()).collect(),
        ..added("172.16.0.0/24")
    };
    let of = |tables: &Tables| {
        let tunnels = tables.tunnels.iter();
        let addresses = tunnels.map(|it| it.addresses.iter().map(|ip| ip.octets()[3]).collect());
        addresses.collect::<Vec<Vec<u8>>>()
    };
    stage.send(&at(1, &[2]));
    stage.send(&at(2, &[]));
    stage.calls();
    stage.send(&at(1, &[2, 3]));
    stage.send(&at(1, &[2, 3, 4]));
    assert_eq!(stage.calls(), [""; 0]);
    stage.concentrator.catch_up();
    assert_eq!(stage.calls(), ["forward 3 0 "]);
    assert_eq!(of(&stage.kept.lock().unwrap()), [vec![2, 3, 4], vec![]]);
    stage.concentrator.catch_up();
    stage.send(&at(1, &[2, 3, 4]));
    stage.concentrator.catch_up();
    assert_eq!(stage.calls(), [""; 0], "nothing has changed");
    // An instance moves: its new node says so first.
    stage.send(&at(2, &[3]));
    stage.concentrator.catch_up();
    assert_eq!(stage.calls(), ["forward 2 1 "]);
    stage.send(&at(1, &[2, 4]));
    stage.concentrator.catch_up();
    assert_eq!(stage.calls(), [""; 0]);
    // A fault of the data plane is repaired, and the tables are kept.
    stage.refuse.store(true, Ordering::Relaxed);
    stage.send(&at(1, &[2]));
    stage.concentrator.catch_up();
    assert_eq!(of(&stage.kept.lock().unwrap()), [vec![2], vec![3]]);
}

struct Stage {
    concentrator: Concentrator,
    calls: Arc<Mutex<Vec<String>>>,
    refuse: Arc<AtomicBool>,
    full: Arc<AtomicBool>,
    kept: Arc<Mutex<Tables>>,
}

impl Stage {
    fn new() -> Self {
        let fake = Fake::default();
        let (calls, refuse) = (Arc::clone(&fake.calls), Arc::clone(&fake.refuse));
        let (full, kept) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Mutex::new(Tables::default())),
        );
        let (disk, on_disk) = (Arc::clone(&full), Arc::clone(&kept));
        let keep: Keep = Box::new(move |tables| {
            if disk.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *on_disk.lock().unwrap() = tables.clone();
            Ok(())
        });
        let ip = "10.0.0.33".parse().unwrap();
        let concentrator = Concentrator::new(
            CNCI,
            TENANT,
            ip,
            String::new(),
            Tables::default(),
            Box::new(fake),
            keep,
        );
        Self {
            concentrator: concentrator.unwrap(),
            calls,
            refuse,
            full,
            kept,
        }
    }

    fn send<T: Payload>(&mut self, payload: &T) -> Vec<Frame> {
        self.concentrator.frame(&Frame::of(payload)).into_iter().collect()
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    #[track_caller]
    fn assign_reason(&mut self, request: &AssignPublicIp) -> Option<String> {
        let answers = self.send(request);
        assert_eq!(answers.len(), 1);
        match answers[0].payload::<AssignPublicIpFailure>() {
            Ok(failure) => {
                let subject = CommandSubject {
                    detail: failure.detail.clone(),
                    ..CommandSubject::of(&Frame::of(request))
                };
                assert_eq!(
                    failure,
                    AssignPublicIpFailure::of(subject, failure.reason.clone())
                );
                Some(failure.reason.to_string())
            }
            Err(_) => {
                let assigned: PublicIpAssigned = answers[0].payload().unwrap();
                assert_eq!(assigned.instance_uuid, request.instance_uuid);
                None
            }
        }
    }

    #[track_caller]
    fn release_reason(&mut self, request: &ReleasePublicIp) -> Option<String> {
        let answers = self.send(request);
        assert_eq!(answers.len(), 1);
        match answers[0].payload::<UnassignPublicIpFailure>() {
            Ok(failure) => Some(failure.reason.to_string()),
            Err(_) => {
                let released: PublicIpUnassigned = answers[0].payload().unwrap();
                assert_eq!(released.instance_uuid, request.instance_uuid);
                None
            }
        }
    }
}

fn added(subnet: &str) -> TenantAdded {
    TenantAdded {
        agent_uuid: NODE.into(),
        agent_ip: "10.0.0.7".into(),
        tenant_uuid: TENANT.into(),
        tenant_subnet: subnet.into(),
        concentrator_uuid: CNCI.into(),
        concentrator_ip: "10.0.0.33".into(),
        subnet_key: 4268,
        addresses: Vec::new(),
    }
}

fn assign(instance: Uuid, public: &str, private: &str) -> AssignPublicIp {
    AssignPublicIp {
        concentrator_uuid: CNCI.into(),
        tenant_uuid: TENANT.into(),
        instance_uuid: instance.into(),
        public_ip: public.into(),
        private_ip: private.into(),
        vnic_mac: String::new(),
    }
}

fn release(instance: Uuid, public: &str) -> ReleasePublicIp {
    ReleasePublicIp {
        concentrator_uuid: CNCI.into(),
        tenant_uuid: TENANT.into(),
        instance_uuid: instance.into(),
        public_ip: public.into(),
        ..ReleasePublicIp::default()
    }
}

#[test]
fn a_session_begins_with_the_concentrator_and_its_addresses() {
    let mut stage = Stage::new();
    let first = stage.concentrator.announcement();
    assert_eq!(first.len(), 1);
    let added: ConcentratorInstanceAdded = first[0].payload().unwrap();
    assert_eq!(
        (added.instance_uuid, added.tenant_uuid),
        (CNCI.into(), TENANT.into())
    );
    assert_eq!(added.concentrator_ip, "10.0.0.33");
    assert_eq!(stage.calls(), ["0 peers"]);
    let kept = stage.kept.lock().unwrap().clone();
    assert_eq!(
        (kept.ip.as_str(), kept.data_plane.as_str()),
        ("10.0.0.33", "fake")
    );
    // Later sessions also begin with the assigned addresses.
    let assigned = stage.send(&assign(ONE, "198.51.100.20", "172.16.0.5"));
    assert_eq!(stage.concentrator.announcement()[1..], assigned);
}

#[test]
fn tunnels_and_peers_are_added_and_removed() {
    let mut stage = Stage::new();
    stage.calls();
    assert_eq!(stage.send(&added("172.16.1.0/24")), []);
    assert_eq!(stage.send(&added("172.16.0.5/24")), []);
    assert_eq!(stage.send(&added("172.16.0.0/24")), []);
    assert_eq!(
        stage.calls(),
        ["172.16.1.0/24 0 peers", "172.16.0.0/24 172.16.1.0/24 0 peers"],
        "a repeated event does not call the data plane again"
    );
    let subnets = |stage: &Stage| -> Vec<String> {
        stage
            .kept
            .lock()
            .unwrap()
            .tunnels
            .iter()
            .map(|t| t.subnet.clone())
            .collect()
    };
    assert_eq!(subnets(&stage), ["172.16.0.0/24", "172.16.1.0/24"]);
    let mut moved = added("172.16.0.0/24");
    moved.agent_ip = "10.0.0.8".into();
    stage.send(&moved);
    assert_eq!(stage.kept.lock().unwrap().tunnels[0].agent_ip, "10.0.0.8");
    let removed = TenantRemoved {
        agent_uuid: NODE.into(),
        tenant_uuid: TENANT.into(),
        tenant_subnet: "172.16.0.0/24".into(),
        concentrator_uuid: CNCI.into(),
        ..TenantRemoved::default()
    };
    for _ in 0..2 {
        assert_eq!(stage.send(&removed), []);
    }
    assert_eq!(subnets(&stage), ["172.16.1.0/24"]);

    let peer = |subnet: &str| CnciPeer {
        physical_ip: "10.0.0.34".into(),
        subnet: subnet.into(),
        tunnel_ip: "192.168.0.2".into(),
        tunnel_id: 1,
    };
    let refresh = |cncis| RefreshCnci {
        cnci_uuid: CNCI.into(),
        cncis,
    };
    stage.calls();
    stage.send(&refresh(vec![peer("172.17.0.0/24"), peer("172.18.0.0/24")]));
    stage.send(&refresh(vec![peer("172.18.0.0/24")]));
    stage.send(&refresh(vec![peer("172.18.0.0/24")]));
    assert_eq!(stage.calls(), ["172.16.1.0/24 2 peers", "172.16.1.0/24 1 peers"]);
    assert_eq!(stage.kept.lock().unwrap().peers.len(), 1);
    // If the data plane or the disk refuses, the tables are unchanged.
    stage.refuse.store(true, Ordering::Relaxed);
    stage.full.store(true, Ordering::Relaxed);
    assert_eq!(stage.send(&refresh(vec![])), []);
    assert_eq!(stage.concentrator.tables.peers, []);
}

#[test]
fn an_address_keeps_its_private_one_if_the_new_one_cannot_be_saved() {
    let mut stage = Stage::new();
    let public = "198.51.100.20";
    assert_eq!(stage.assign_reason(&assign(ONE, public, "172.16.0.5")), None);
    stage.calls();
    stage.full.store(true, Ordering::Relaxed);
    let reason = stage.assign_reason(&assign(ONE, public, "172.16.0.6"));
    assert_eq!(reason.as_deref(), Some("assign_failure"));
    assert_eq!(
        stage.calls(),
        [
            "198.51.100.20 to 172.16.0.6 0 peers",
            "198.51.100.20 to 172.16.0.5 0 peers"
        ]
    );
    let ips = &stage.concentrator.tables.public_ips;
    assert_eq!(ips[0].private_ip, "172.16.0.5");
}

#[test]
fn a_tunnel_that_failed_is_made_by_the_next_repair() {
    let mut stage = Stage::new();
    stage.refuse.store(true, Ordering::Relaxed);
    stage.send(&added("172.16.0.0/24"));
    stage.refuse.store(false, Ordering::Relaxed);
    stage.calls();
    // A repair does not change the tables, so the disk is not needed.
    stage.full.store(true, Ordering::Relaxed);
    assert_eq!(stage.send(&added("172.16.0.0/24")), []);
    stage.concentrator.apply();
    assert_eq!(stage.calls(), ["172.16.0.0/24 0 peers"]);
}

/// A concentrator that is killed then would begin with a tunnel to a node that has left.
#[test]
fn tables_that_could_not_be_saved_are_saved_by_the_next_repair() {
    let mut stage = Stage::new();
    stage.full.store(true, Ordering::Relaxed);
    stage.send(&added("172.16.0.0/24"));
    assert_eq!(stage.kept.lock().unwrap().tunnels, []);
    stage.full.store(false, Ordering::Relaxed);
    stage.concentrator.apply();
    assert_eq!(stage.kept.lock().unwrap().tunnels.len(), 1);
}

#[test]
fn a_tunnel_that_the_data_plane_refuses_changes_nothing() {
    let mut stage = Stage::new();
    stage.calls();
    let mut wrong = added("172.16.0.0/24");
    wrong.subnet_key = 0;
    assert_eq!(stage.send(&wrong), []);
    assert_eq!(stage.calls(), [""; 0]);
    assert_eq!(stage.concentrator.tables.tunnels, []);
}

#[test]
fn invalid_events_are_refused() {
    let mut stage = Stage::new();
    let rows: [fn(&mut TenantAdded); 5] = [
        |a| a.concentrator_uuid = ONE.into(),
        |a| a.tenant_uuid = ONE.into(),
        |a| a.tenant_subnet = "everywhere".into(),
        |a| a.agent_ip = "there".into(),
        |a| a.agent_uuid = "node".into(),
    ];
    for change in rows {
        let mut event = added("172.16.0.0/24");
        change(&mut event);
        let answers = stage.send(&event);
        let refusal: InvalidFrameType = answers[0].payload().unwrap();
        assert_eq!(refusal.reason.as_str(), "invalid_data");
    }
    for kind in [
        FrameKind::from(Event::TENANT_ADDED),
        Event::TENANT_REMOVED.into(),
        Command::REFRESH_CNCI.into(),
    ] {
        let answer = stage.concentrator.frame(&Frame::with_payload(kind, "{"));
        let refusal: InvalidFrameType = answer.unwrap().payload().unwrap();
        assert_eq!(
            (refusal.refused(), refusal.reason.as_str()),
            (kind, "invalid_payload")
        );
    }
    assert_eq!(stage.concentrator.tables.tunnels, []);
}

#[test]
fn public_addresses_are_assigned_and_released() {
    let mut stage = Stage::new();
    stage.calls();
    let first = assign(ONE, "198.51.100.20", "172.16.0.5");
    assert_eq!(stage.assign_reason(&first), None);
    assert_eq!(
        stage.assign_reason(&first),
        None,
        "the assignment is confirmed again"
    );
    assert_eq!(stage.calls(), ["198.51.100.20 to 172.16.0.5 0 peers"]);
    let assign_failure = Some("assign_failure".to_owned());
    assert_eq!(
        stage.assign_reason(&assign(TWO, "198.51.100.20", "172.16.0.6")),
        assign_failure
    );
    assert_eq!(
        stage.assign_reason(&assign(ONE, "198.51.100.21", "172.16.0.5")),
        assign_failure
    );
    assert_eq!(
        stage.assign_reason(&assign(TWO, "198.51.100.3", "")),
        None,
        "no private address is known"
    );
    let kept: Vec<_> = stage
        .kept
        .lock()
        .unwrap()
        .public_ips
        .iter()
        .map(|ip| ip.public_ip.clone())
        .collect();
    assert_eq!(
        kept,
        ["198.51.100.3", "198.51.100.20"],
        "the addresses are sorted by number"
    );

    assert_eq!(
        stage.release_reason(&release(NODE, "198.51.100.20")).as_deref(),
        Some("no_instance")
    );
    assert_eq!(
        stage.release_reason(&release(TWO, "198.51.100.20")).as_deref(),
        Some("release_failure")
    );
    assert_eq!(stage.release_reason(&release(ONE, "198.51.100.20")), None);
    assert_eq!(
        stage.release_reason(&release(ONE, "198.51.100.20")).as_deref(),
        Some("no_instance")
    );
    assert_eq!(
        stage.assign_reason(&assign(TWO, "198.51.100.20", "172.16.0.6")),
        None
    );
}

#[test]
fn invalid_requests_are_refused() {
    let mut stage = Stage::new();
    type Change = fn(&mut AssignPublicIp);
    let rows: [(Change, &str); 6] = [
        (|a| a.concentrator_uuid = ONE.into(), "no_instance"),
        (|a| a.tenant_uuid = ONE.into(), "invalid_data"),
        (|a| a.instance_uuid = "".into(), "invalid_data"),
        (|a| a.public_ip = "everywhere".into(), "invalid_data"),
        (|a| a.private_ip = "here".into(), "invalid_data"),
        (|a| a.vnic_mac = "02:42".into(), "invalid_data"),
    ];
    for (change, reason) in rows {
        let mut request = assign(ONE, "198.51.100.20", "172.16.0.5");
        change(&mut request);
        assert_eq!(stage.assign_reason(&request).as_deref(), Some(reason));
    }
    for (payload, reason, public_ip) in [
        ("[", "invalid_payload", ""),
        (
            "assign_public_ip:\n  public_ip: 198.51.100.20\n",
            "invalid_data",
            "198.51.100.20",
        ),
    ] {
        let answer = stage
            .concentrator
            .frame(&Frame::with_payload(Command::ASSIGN_PUBLIC_IP, payload));
        let failure: AssignPublicIpFailure = answer.unwrap().payload().unwrap();
        assert_eq!(
            (failure.reason.as_str(), failure.public_ip.as_str()),
            (reason, public_ip)
        );
        let answer = stage
            .concentrator
            .frame(&Frame::with_payload(Command::RELEASE_PUBLIC_IP, payload));
        let failure: UnassignPublicIpFailure = answer.unwrap().payload().unwrap();
        assert_eq!(failure.reason.as_str(), reason);
    }
}

#[test]
fn tables_are_unchanged_if_the_data_plane_or_the_disk_refuses() {
    let mut stage = Stage::new();
    let (one, two) = (assign(ONE, "198.51.100.1", ""), assign(TWO, "198.51.100.2", ""));
    assert_eq!(stage.assign_reason(&one), None);
    for fault in [Arc::clone(&stage.refuse), Arc::clone(&stage.full)] {
        fault.store(true, Ordering::Relaxed);
        assert_eq!(stage.assign_reason(&two).as_deref(), Some("assign_failure"));
        assert_eq!(
            stage.release_reason(&release(ONE, "198.51.100.1")).as_deref(),
            Some("release_failure")
        );
        assert_eq!(stage.concentrator.tables.public_ips.len(), 1);
        fault.store(false, Ordering::Relaxed);
    }
    assert_eq!(stage.assign_reason(&two), None);
    assert_eq!(stage.release_reason(&release(ONE, "198.51.100.1")), None);
}

#[test]
fn an_address_of_another_host_is_refused_with_the_reason() {
    let mut stage = Stage::new();
    let [answer] = stage.send(&assign(ONE, "198.51.100.9", "")).try_into().unwrap();
    let failure: AssignPublicIpFailure = answer.payload().unwrap();
    assert_eq!(failure.detail, "198.51.100.9: another host has it");
    assert_eq!(stage.concentrator.tables.public_ips, []);
}

#[test]
fn a_configuration_is_checked() {
    let mut stage = Stage::new();
    assert_eq!(stage.send(&Configure::default()), []);
    let answer = stage
        .concentrator
        .frame(&Frame::with_payload(Command::CONFIGURE, "configure: 3"));
    assert_eq!(
        answer.unwrap().payload::<InvalidConfiguration>().unwrap().refused,
        "configure: 3"
    );
    assert_eq!(stage.concentrator.frame(&Frame::new(Command::EVACUATE)), None);
}
