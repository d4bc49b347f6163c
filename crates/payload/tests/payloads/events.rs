//! All events except TraceReport.

use std::net::Ipv4Addr;

use ssntp::payload::*;
use ssntp_payload::*;

use super::*;

#[test]
fn tenant_added_and_removed_are_read_and_written_back() {
    let added: TenantAdded = current(&fixture("TenantAdded"));
    let expected = TenantAdded {
        agent_uuid: NODE.into(),
        agent_ip: "10.0.0.7".to_owned(),
        tenant_uuid: TENANT.into(),
        tenant_subnet: "172.16.0.0/24".to_owned(),
        concentrator_uuid: CNCI.into(),
        concentrator_ip: "10.0.0.33".to_owned(),
        subnet_key: 4268,
        addresses: Vec::new(),
    };
    assert_eq!(added, expected);
    // A key of this project, which others ignore.
    assert!(!text(&added.encode()).contains("addresses"));
    survives(&TenantAdded {
        addresses: vec![[172, 16, 0, 2].into()],
        ..expected
    });
    assert_eq!(added.subnet_key, subnet_key(Ipv4Addr::new(172, 16, 0, 0)));
    assert_eq!(subnet_key(Ipv4Addr::new(10, 0, 0, 255)), 0xff00_000a);

    let removed: TenantRemoved = current(&fixture("TenantRemoved"));
    assert_eq!(removed.agent_uuid, NODE);
    assert_eq!(removed.agent_ip, "10.0.0.7");
    assert_eq!(removed.tenant_uuid, TENANT);
    assert_eq!(removed.tenant_subnet, "172.16.0.0/24");
    assert_eq!(removed.concentrator_uuid, CNCI);
    assert_eq!(removed.concentrator_ip, "10.0.0.33");
    assert_eq!(removed.subnet_key, 4268);
}

#[test]
fn instance_deleted_and_stopped_are_read_and_written_back() {
    let deleted: InstanceDeleted = current(&fixture("InstanceDeleted"));
    assert_eq!(deleted.instance_uuid, INSTANCE);
    let stopped: InstanceStopped = current(&fixture("InstanceStopped"));
    assert_eq!(stopped.instance_uuid, INSTANCE);
    assert_eq!(InstanceStopped::decode(b""), Ok(InstanceStopped::default()));
}

#[test]
fn concentrator_instance_added_is_read_and_written_back() {
    let decoded: ConcentratorInstanceAdded = current(&fixture("ConcentratorInstanceAdded"));
    let expected = ConcentratorInstanceAdded {
        instance_uuid: CNCI.into(),
        tenant_uuid: TENANT.into(),
        concentrator_ip: "10.0.0.33".to_owned(),
        concentrator_mac: "02:42:0a:00:00:21".to_owned(),
    };
    assert_eq!(decoded, expected);
}

#[test]
fn public_ip_assigned_and_unassigned_are_read_and_written_back() {
    let assigned: PublicIpAssigned = current(&fixture("PublicIPAssigned"));
    let expected = PublicIpAssigned {
        concentrator_uuid: CNCI.into(),
        instance_uuid: INSTANCE.into(),
        public_ip: "198.51.100.20".to_owned(),
        private_ip: "172.16.0.5".to_owned(),
    };
    assert_eq!(assigned, expected);
    let unassigned: PublicIpUnassigned = current(&fixture("PublicIPUnassigned"));
    assert_eq!(unassigned.concentrator_uuid, CNCI);
    assert_eq!(unassigned.instance_uuid, INSTANCE);
    assert_eq!(unassigned.public_ip, "198.51.100.20");
    assert_eq!(unassigned.private_ip, "172.16.0.5");
}

#[test]
fn node_connected_and_disconnected_are_read_and_written_back() {
    let connected: NodeConnected = current(&fixture("NodeConnected"));
    assert_eq!(connected.node_uuid, NODE);
    assert_eq!(connected.node_type, NodeType::ComputeNode);
    let disconnected: NodeDisconnected = current(&fixture("NodeDisconnected"));
    assert_eq!(disconnected.node_uuid, NODE);
    assert_eq!(disconnected.node_type, NodeType::NetworkNode);
}

#[test]
fn unknown_names_are_kept() {
    let document = format!("node_connected:\n  node_uuid: {NODE}\n  node_type: storage_node\n");
    let decoded: NodeConnected = current(document.as_bytes());
    assert_eq!(decoded.node_type, NodeType::Other("storage_node".to_owned()));
    assert!(!decoded.node_type.is_known());
    assert_eq!(NodeType::from("compute_node"), NodeType::ComputeNode);
}

#[test]
fn commands_of_operators_and_their_answers_are_read_and_written_back() {
    let list: ListSessions = current(&fixture("ours_ListSessions"));
    assert_eq!((list.roles.as_str(), list.after), ("agent,netagent", 0));
    let sessions: Sessions = current(&fixture("ours_Sessions"));
    assert_eq!(
        (sessions.total, sessions.next, sessions.entries.len()),
        (2000, 12, 1)
    );
    assert_eq!(sessions.entries[0].uuid, NODE);
    assert!(sessions.entries[0].bound);
    let kick: Kick = current(&fixture("ours_Kick"));
    assert_eq!((kick.uuid.as_str(), kick.ban_s), (NODE, 3600));
    let kicked: Kicked = current(&fixture("ours_Kicked"));
    assert_eq!((kicked.count, kicked.uuids), (1, vec![NODE.into()]));
    assert_eq!(kicked.reason, OperatorRefusal::NotRefused);
    let _: ListBans = current(&fixture("ours_ListBans"));
    let bans: Bans = current(&fixture("ours_Bans"));
    assert_eq!((bans.entries[0].age_s, bans.entries[0].left_s), (600, 3000));
    let unban: Unban = current(&fixture("ours_Unban"));
    assert_eq!(unban.uuid, NODE);
    let unbanned: Unbanned = current(&fixture("ours_Unbanned"));
    assert_eq!(unbanned.reason, OperatorRefusal::NotBanned);
    let watch: Watch = current(&fixture("ours_Watch"));
    assert_eq!((watch.uuid.as_str(), watch.kind.as_str()), (NODE, "STATS"));
    let watched: Watched = current(&fixture("ours_Watched"));
    assert_eq!((watched.frames, watched.bytes, watched.missed), (3, 360, 0));
    let _: ListServers = current(&fixture("ours_ListServers"));
    let drain: DrainServer = current(&fixture("ours_DrainServer"));
    assert_eq!(drain.within_s, 30);
    let servers: Servers = current(&fixture("ours_Servers"));
    assert_eq!(servers.entries[0].state, ServerState::Own);
    let draining: Draining = current(&fixture("ours_Draining"));
    assert_eq!(draining.within_s, 30);
    let tenant: Tenant = current(&fixture("ours_Tenant"));
    assert_eq!((tenant.action, tenant.entry.key), (TenantAction::Add, 0));
    let tenants: Tenants = current(&fixture("ours_Tenants"));
    assert_eq!(tenants.entries[0].addresses[0].ip, "172.16.0.2");
    assert_eq!(tenants.reason.as_str(), "");
    let complete: SnapshotComplete = current(&fixture("ours_SnapshotComplete"));
    assert_eq!(
        (complete.nodes, complete.reporting, complete.instances),
        (3, 2, 41)
    );
    let leader: NewLeader = current(&fixture("ours_NewLeader"));
    assert_eq!(leader.token, 7 << 20 | 1);
    let add: ManageEnrolment = current(&fixture("ours_ManageEnrolment"));
    assert_eq!(
        (add.action, add.token.secret_sha256.len()),
        (EnrolmentAction::AddToken, 43)
    );
    let list: EnrolmentList = current(&fixture("ours_EnrolmentList"));
    assert_eq!(
        (list.tokens[0].uses_left, list.certificates[0].uuid.as_str()),
        (1, NODE)
    );
    assert!(list.certificates[0].is_revoked && list.reason == EnrolmentRefusal::NotRefused);
    // The `id` is required, so that the operator can match the answer.
    let without = ListSessions::decode(b"list_sessions:\n  after: 1\n").unwrap_err();
    assert_eq!(without.path(), "list_sessions.id");
}
