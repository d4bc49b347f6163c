//! All commands except START, STATS and CONFIGURE.

use ssntp::payload::*;
use ssntp_payload::*;

use super::*;

#[test]
fn stop_is_read_and_written_back() {
    let decoded: Stop = current(&fixture("old2017_STOP"));
    let expected = Stop {
        instance_uuid: INSTANCE.into(),
        workload_agent_uuid: NODE.into(),
        stop: false,
    };
    assert_eq!(decoded, expected);
}

#[test]
fn delete_has_a_flag_for_an_instance_that_is_kept_elsewhere() {
    for (name, stop) in [("DELETE", false), ("DELETE_stop", true)] {
        let decoded: Delete = current(&fixture(name));
        let expected = Delete {
            instance_uuid: INSTANCE.into(),
            workload_agent_uuid: NODE.into(),
            stop,
        };
        assert_eq!(decoded, expected);
    }
}

#[test]
fn restart_is_read_in_its_older_forms() {
    let decoded: Restart = older(&fixture("old2016_RESTART"));
    assert_eq!(decoded.tenant_uuid, TENANT);
    assert_eq!(decoded.instance_uuid, INSTANCE);
    assert_eq!(decoded.workload_agent_uuid, NODE);
    assert_eq!(decoded.fw_type, FwType::Efi);
    assert_eq!(decoded.persistence, Persistence::Host);
    assert_eq!(decoded.networking.vnic_mac, "02:42:ac:10:00:05");
    assert_eq!(decoded.networking.subnet_key, "4096");
    let expected = Requirements {
        mem_mb: 512,
        vcpus: 2,
        ..Requirements::default()
    };
    assert_eq!(decoded.requirements, expected);
    assert_eq!(older::<Restart>(&fixture("old2017_RESTART")), decoded);
}

#[test]
fn restart_is_read_in_its_current_form() {
    let document = format!(
        "restart:
  tenant_uuid: {TENANT}
  instance_uuid: {INSTANCE}
  workload_agent_uuid: {NODE}
  fw_type: legacy
  persistence: vm
  networking:
    vnic_mac: 02:42:ac:10:00:05
    vnic_uuid: \"\"
    concentrator_uuid: {CNCI}
    concentrator_ip: 10.0.0.33
    subnet: 172.16.0.0/24
    subnet_key: \"4268\"
    subnet_uuid: \"\"
    private_ip: 172.16.0.5
    public_ip: true
  requirements:
    mem_mb: 256
    vcpus: 1
    privileged: true
"
    );
    let decoded: Restart = current(document.as_bytes());
    assert_eq!(decoded.fw_type, FwType::Legacy);
    assert_eq!(decoded.persistence, Persistence::Vm);
    assert_eq!(decoded.networking.concentrator_uuid, CNCI);
    assert!(decoded.networking.public_ip && decoded.requirements.privileged);
    assert_eq!(
        (decoded.requirements.mem_mb, decoded.requirements.vcpus),
        (256, 1)
    );
}

#[test]
fn evacuate_without_a_next_state_goes_to_maintenance() {
    let decoded: Evacuate = current(&fixture("EVACUATE"));
    assert_eq!(decoded.workload_agent_uuid, NODE);
    assert_eq!(decoded.next_state, NextState::Maintenance);

    for (word, next_state) in [
        ("shutdown", NextState::Shutdown),
        ("update", NextState::Update),
        ("reboot", NextState::Reboot),
        ("sleep", NextState::Other("sleep".to_owned())),
    ] {
        let document = format!("evacuate:\n  workload_agent_uuid: {NODE}\n  next_state: {word}\n");
        assert_eq!(current::<Evacuate>(document.as_bytes()).next_state, next_state);
    }
    for word in ["maintenance", "\"\"", ""] {
        let document = format!("evacuate:\n  workload_agent_uuid: {NODE}\n  next_state: {word}\n");
        let decoded: Evacuate = older(document.as_bytes());
        assert_eq!(decoded.next_state, NextState::Maintenance);
        assert!(!text(&decoded.encode()).contains("next_state"));
    }
}

#[test]
fn restore_is_read_and_written_back() {
    let decoded: Restore = current(&fixture("Restore"));
    assert_eq!(decoded.workload_agent_uuid, NODE);
}

#[test]
fn assign_and_release_public_ip_are_read_and_written_back() {
    let assign: AssignPublicIp = current(&fixture("AssignPublicIP"));
    let expected = AssignPublicIp {
        concentrator_uuid: CNCI.into(),
        tenant_uuid: TENANT.into(),
        instance_uuid: INSTANCE.into(),
        public_ip: "198.51.100.20".to_owned(),
        private_ip: "172.16.0.5".to_owned(),
        vnic_mac: "02:42:0a:00:00:21".to_owned(),
    };
    assert_eq!(assign, expected);
    let release: ReleasePublicIp = current(&fixture("ReleasePublicIP"));
    assert_eq!(release.concentrator_uuid, CNCI);
    assert_eq!(release.tenant_uuid, TENANT);
    assert_eq!(release.instance_uuid, INSTANCE);
    assert_eq!(release.public_ip, "198.51.100.20");
    assert_eq!(release.private_ip, "172.16.0.5");
    assert_eq!(release.vnic_mac, "02:42:0a:00:00:21");
}

#[test]
fn attach_and_detach_volume_are_read_and_written_back() {
    let attach: AttachVolume = current(&fixture("AttachVolume"));
    let expected = AttachVolume {
        instance_uuid: INSTANCE.into(),
        volume_uuid: VOLUME.into(),
        workload_agent_uuid: NODE.into(),
    };
    assert_eq!(attach, expected);
    let detach: DetachVolume = current(&fixture("old2017_DetachVolume"));
    let expected = DetachVolume {
        instance_uuid: INSTANCE.into(),
        volume_uuid: VOLUME.into(),
        workload_agent_uuid: NODE.into(),
    };
    assert_eq!(detach, expected);
}

#[test]
fn refresh_cnci_is_read_and_written_back() {
    let decoded: RefreshCnci = current(&fixture("RefreshCNCI"));
    let expected = RefreshCnci {
        cnci_uuid: CNCI.into(),
        cncis: vec![CnciPeer {
            physical_ip: "10.0.0.33".to_owned(),
            subnet: "172.16.0.0/24".to_owned(),
            tunnel_ip: "192.168.0.1".to_owned(),
            tunnel_id: 0xdead_beef,
        }],
    };
    assert_eq!(decoded, expected);
}
