use std::time::UNIX_EPOCH;

use super::*;
use ssntp::payload::Payload;
use ssntp_payload::{
    ConcentratorInstanceAdded, InstanceState, InstanceStats, NodeStatus, PublicIpAssigned,
    PublicIpUnassigned, Stats,
};

const NODE: Uuid = Uuid::from_u128(0x5be1c0de_7d1a_4b52_8a55_90d2c3b4a501);
const OTHER: Uuid = Uuid::from_u128(0x6be1c0de_7d1a_4b52_8a55_90d2c3b4a502);
const INSTANCE: Uuid = Uuid::from_u128(0x0f7a5a1e_3c55_4a0b_9d3c_6f1f2f9a1001);
const CNCI: Uuid = Uuid::from_u128(0xc2a1f0e9_8d7c_4b6a_9584_736251403f2e);

fn take(view: &mut View, payload: &impl Payload) -> Vec<String> {
    names_of(view.apply(&Frame::of(payload), UNIX_EPOCH))
}

/// The names of the changes, as programs read them.
fn names_of(changes: Vec<Change>) -> Vec<String> {
    changes.iter().map(name).collect()
}

pub(crate) fn name(change: &Change) -> String {
    let value = serde_json::to_value(change).unwrap();
    value["event"].as_str().unwrap().to_owned()
}

fn connected(node: Uuid) -> NodeConnected {
    NodeConnected {
        node_uuid: node.into(),
        node_type: NodeType::ComputeNode,
    }
}

fn disconnected(node: Uuid) -> NodeDisconnected {
    NodeDisconnected {
        node_uuid: node.into(),
        node_type: NodeType::ComputeNode,
    }
}

fn stats(node: Uuid, instances: &[(Uuid, InstanceState)]) -> Stats {
    let instances = instances.iter().map(|(uuid, state)| InstanceStats {
        instance_uuid: (*uuid).into(),
        state: state.clone(),
        ..InstanceStats::default()
    });
    Stats {
        node_uuid: node.into(),
        status: NodeStatus::Ready,
        instances: instances.collect(),
        ..Stats::default()
    }
}

/// An empty view that keeps this number of disconnected nodes.
fn view(history: usize) -> View {
    View {
        history: History(history),
        ..View::default()
    }
}

#[test]
fn names_stand_for_uuids_and_their_beginnings_are_of_one_entity_only() {
    let mut view = View::default();
    let twin = Uuid::from_u128(INSTANCE.as_u128() ^ 1);
    let mut named = stats(NODE, &[(INSTANCE, InstanceState::Active)]);
    named.hostname = "node2".into();
    named.instances[0].name = "web-3".into();
    take(&mut view, &named);
    let called = |view: &View, uuid| view.called(uuid).unwrap_or_default();
    assert_eq!(called(&view, NODE), "node2 (5be1c0de)");
    assert_eq!(called(&view, INSTANCE), "web-3 (0f7a5a1e)");
    assert_eq!(view.called(OTHER), None);
    take(&mut view, &stats(OTHER, &[(twin, InstanceState::Active)]));
    assert_eq!(called(&view, OTHER), "6be1c0de");
    assert_eq!(called(&view, INSTANCE), format!("web-3 ({INSTANCE})"));
    assert_eq!(called(&view, twin), twin.to_string());
}

#[test]
fn stats_replace_the_instances_of_a_node() {
    let mut view = View::default();
    let first = stats(NODE, &[(INSTANCE, InstanceState::Pending)]);
    assert_eq!(
        take(&mut view, &first),
        ["node_status", "instance_added", "node_stats"]
    );
    assert_eq!(take(&mut view, &first), ["node_stats"]);
    let second = stats(NODE, &[(INSTANCE, InstanceState::Active)]);
    assert_eq!(take(&mut view, &second), ["instance_state", "node_stats"]);
    assert_eq!(view.instance(INSTANCE).unwrap().state, InstanceState::Active);
    assert_eq!(view.instances_of(NODE).count(), 1);
    assert_eq!(
        take(&mut view, &stats(NODE, &[])),
        ["instance_gone", "node_stats"]
    );
    assert_eq!(view.instances().count(), 0);
}

#[test]
fn an_instance_belongs_to_the_node_that_listed_it_last() {
    let mut view = View::default();
    let here = |node| stats(node, &[(INSTANCE, InstanceState::Active)]);
    take(&mut view, &here(NODE));
    assert_eq!(
        take(&mut view, &here(OTHER)),
        ["node_status", "instance_added", "node_stats"]
    );
    assert_eq!(view.instance(INSTANCE).unwrap().node, OTHER);
    // STATS of its former node without the instance do not remove it.
    assert_eq!(take(&mut view, &stats(NODE, &[])), ["node_stats"]);
    assert_eq!(view.instance(INSTANCE).unwrap().node, OTHER);
}

#[test]
fn an_instance_that_moved_belongs_to_its_new_node_alone() {
    let mut view = view(1);
    let here = |node| stats(node, &[(INSTANCE, InstanceState::Active)]);
    take(&mut view, &here(NODE));
    take(&mut view, &here(OTHER));
    assert_eq!(
        (view.instances_of(NODE).count(), view.instances_of(OTHER).count()),
        (0, 1)
    );
    // The history has room for one node, so the node that disconnected first is forgotten.
    take(&mut view, &disconnected(NODE));
    take(&mut view, &stats(CNCI, &[]));
    assert_eq!(take(&mut view, &disconnected(CNCI)), ["node_disconnected"]);
    assert!(view.node(NODE).is_none(), "the node is forgotten");
    assert_eq!(view.instance(INSTANCE).unwrap().node, OTHER);
}

#[test]
fn instances_that_are_forgotten_with_their_node_are_reported_as_gone() {
    let mut view = view(0);
    take(&mut view, &stats(NODE, &[(CNCI, InstanceState::Active)]));
    let added = ConcentratorInstanceAdded {
        instance_uuid: CNCI.into(),
        ..ConcentratorInstanceAdded::default()
    };
    take(&mut view, &added);
    assert_eq!(
        take(&mut view, &disconnected(NODE)),
        ["instance_gone", "cnci_gone", "node_disconnected"]
    );
    assert_eq!((view.instances().count(), view.cncis().count()), (0, 0));
}

/// The history has no room for any node.
#[test]
fn nodes_are_forgotten_after_a_session_only_if_the_next_snapshot_does_not_name_them() {
    let mut view = view(0);
    view.connected(None);
    take(&mut view, &stats(NODE, &[(INSTANCE, InstanceState::Active)]));
    for is_there in [true, false] {
        view.disconnected(UNIX_EPOCH);
        assert_eq!(view.instances_of(NODE).count(), 1);
        view.connected(None);
        if is_there {
            take(&mut view, &connected(NODE));
        }
        let gone: &[&str] = if is_there { &[] } else { &["instance_gone"] };
        assert_eq!(
            take(&mut view, &SnapshotComplete::default()),
            [gone, &["snapshot_complete"]].concat()
        );
        assert_eq!(view.node(NODE).is_some(), is_there);
    }
}

#[test]
fn an_instance_that_is_listed_twice_counts_once() {
    let mut view = View::default();
    let twice = stats(
        NODE,
        &[
            (INSTANCE, InstanceState::Active),
            (INSTANCE, InstanceState::Exited),
        ],
    );
    take(&mut view, &twice);
    assert_eq!(view.instance(INSTANCE).unwrap().state, InstanceState::Active);
}

#[test]
fn a_node_that_has_left_is_shown_as_it_was() {
    let mut view = View::default();
    view.connected(None);
    take(&mut view, &connected(NODE));
    assert_eq!(
        take(&mut view, &SnapshotComplete::default()),
        ["snapshot_complete"]
    );
    assert!(view.has_snapshot());
    assert!(!view.is_complete(), "the node has sent no STATS yet");
    take(&mut view, &stats(NODE, &[(INSTANCE, InstanceState::Active)]));
    assert!(view.is_complete());
    assert_eq!(take(&mut view, &disconnected(NODE)), ["node_disconnected"]);
    assert!(!view.node(NODE).unwrap().connected);
    assert_eq!(view.instance(INSTANCE).unwrap().state, InstanceState::Active);
    take(&mut view, &connected(NODE));
    assert!(view.node(NODE).unwrap().connected);
    assert!(!view.is_complete(), "no STATS since it is back");
    assert!(
        !view.node(NODE).unwrap().is_current(),
        "no STATS since it is back"
    );
}

#[test]
fn without_a_session_no_node_is_known_to_be_connected() {
    let mut view = View::default();
    view.connected(None);
    take(&mut view, &connected(NODE));
    take(&mut view, &stats(NODE, &[]));
    view.disconnected(UNIX_EPOCH);
    assert!(!view.is_online());
    assert!(!view.node(NODE).unwrap().connected);
    view.connected(None);
    assert!(!view.is_complete(), "no node is known yet");
    take(&mut view, &connected(NODE));
    take(&mut view, &stats(NODE, &[]));
    assert!(!view.is_complete(), "further nodes may follow");
    take(&mut view, &SnapshotComplete::default());
    assert!(view.is_complete());
}

#[test]
fn a_node_of_both_types_is_one_node() {
    let mut view = View::default();
    take(&mut view, &connected(NODE));
    let network = NodeConnected {
        node_type: NodeType::NetworkNode,
        ..connected(NODE)
    };
    take(&mut view, &network);
    let node = view.node(NODE).unwrap();
    assert!(node.compute && node.network);
    take(&mut view, &disconnected(NODE));
    take(&mut view, &disconnected(NODE));
    assert_eq!(view.disconnected.len(), 1);
    // It comes back with one type.
    take(&mut view, &connected(NODE));
    let node = view.node(NODE).unwrap();
    assert!(node.compute && !node.network);
}

#[test]
fn events_change_the_view_before_stats() {
    let mut view = View::default();
    take(&mut view, &stats(NODE, &[(INSTANCE, InstanceState::Active)]));
    let stopped = InstanceStopped {
        instance_uuid: INSTANCE.into(),
        ..Default::default()
    };
    let later = UNIX_EPOCH + std::time::Duration::from_secs(90);
    assert_eq!(
        names_of(view.apply(&Frame::of(&stopped), later)),
        ["instance_stopped"]
    );
    let instance = view.instance(INSTANCE).unwrap();
    assert_eq!((&instance.state, instance.since), (&InstanceState::Exited, later));
    let instance_uuid = INSTANCE.into();
    assert_eq!(
        take(
            &mut view,
            &InstanceDeleted {
                instance_uuid,
                ..Default::default()
            }
        ),
        ["instance_deleted"]
    );
    assert_eq!(view.instance(INSTANCE).map(|i| i.uuid), None);
    // The next STATS cause no second change.
    assert_eq!(take(&mut view, &stats(NODE, &[])), ["node_stats"]);
}

#[test]
fn volumes_are_added_and_removed_by_stats() {
    let mut view = View::default();
    let mut stats = stats(NODE, &[(INSTANCE, InstanceState::Active)]);
    take(&mut view, &stats);
    stats.instances[0].volumes = vec!["data".into()];
    assert_eq!(take(&mut view, &stats), ["volume_attached", "node_stats"]);
    assert_eq!(view.find_volume("data").unwrap(), "data");
    stats.instances[0].volumes.clear();
    assert_eq!(take(&mut view, &stats), ["volume_detached", "node_stats"]);
}

#[test]
fn a_concentrator_has_addresses_until_its_instance_is_gone() {
    let mut view = View::default();
    let assigned = PublicIpAssigned {
        concentrator_uuid: CNCI.into(),
        instance_uuid: INSTANCE.into(),
        public_ip: "198.51.100.20".into(),
        private_ip: "172.16.0.5".into(),
    };
    // The event may arrive before the concentrator has announced itself again.
    assert_eq!(take(&mut view, &assigned), ["public_ip_assigned"]);
    assert_eq!(view.cnci(CNCI).unwrap().since, None);
    let added = ConcentratorInstanceAdded {
        instance_uuid: CNCI.into(),
        tenant_uuid: OTHER.into(),
        ..ConcentratorInstanceAdded::default()
    };
    assert_eq!(take(&mut view, &added), ["cnci_added"]);
    let cnci = view.cnci(CNCI).unwrap();
    assert_eq!(cnci.tenant, OTHER);
    assert_eq!(cnci.public_ips["198.51.100.20"].private_ip, "172.16.0.5");
    let unassigned = PublicIpUnassigned {
        concentrator_uuid: CNCI.into(),
        public_ip: "198.51.100.20".into(),
        ..PublicIpUnassigned::default()
    };
    assert_eq!(take(&mut view, &unassigned), ["public_ip_unassigned"]);
    assert!(view.cnci(CNCI).unwrap().public_ips.is_empty());
    take(&mut view, &stats(NODE, &[(CNCI, InstanceState::Active)]));
    assert_eq!(
        take(&mut view, &stats(NODE, &[])),
        ["instance_gone", "cnci_gone", "node_stats"]
    );
    assert_eq!(view.cncis().count(), 0);
}

#[test]
fn unreadable_frames_are_reported_and_change_nothing() {
    let mut view = View::default();
    for payload in ["", "a: [", "node_uuid: []", "node_uuid: n\ninstances: 7"] {
        let frame = Frame::with_payload(Command::STATS, payload);
        assert_eq!(
            names_of(view.apply(&frame, UNIX_EPOCH)),
            ["unreadable"],
            "{payload}"
        );
    }
    // A document without the UUID of a node belongs to no node.
    let frame = Frame::with_payload(Command::STATS, "node_uuid: rack1");
    assert!(view.apply(&frame, UNIX_EPOCH).is_empty());
    assert_eq!(view.nodes().count(), 0);
}

#[test]
fn every_payload_of_every_kind_is_handled_without_a_panic() {
    let payloads: [&[u8]; 5] = [
        b"",
        b"\xff\xfe",
        b"a: [",
        b"{}",
        b"instance_uuid: 7\nnode_uuid: 7\nreason: {}",
    ];
    let mut view = View::default();
    for kind in ssntp::proto::FrameKind::all() {
        for payload in payloads {
            view.apply(&Frame::with_payload(kind, payload), UNIX_EPOCH);
        }
    }
}

#[test]
fn disconnected_nodes_are_bounded() {
    let mut view = view(3);
    for n in 0..10u128 {
        let node = Uuid::from_u128(n);
        take(
            &mut view,
            &stats(node, &[(Uuid::from_u128(n << 64), InstanceState::Active)]),
        );
        take(&mut view, &disconnected(node));
    }
    assert_eq!(
        view.nodes().map(|node| node.uuid.as_u128()).collect::<Vec<_>>(),
        [7, 8, 9]
    );
    assert_eq!(view.instances().count(), 3);
}

#[test]
fn a_unique_beginning_of_a_uuid_names_an_entity() {
    let mut view = View::default();
    let similar = Uuid::from_u128(INSTANCE.as_u128() + 1);
    take(
        &mut view,
        &stats(
            NODE,
            &[
                (INSTANCE, InstanceState::Active),
                (similar, InstanceState::Active),
            ],
        ),
    );
    assert_eq!(view.find_node("5"), Ok(NODE));
    assert_eq!(view.find_node("5BE1C0DE-7"), Ok(NODE));
    assert_eq!(
        view.find_instance("0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001"),
        Ok(INSTANCE)
    );
    // A complete UUID need not be known to the view.
    assert_eq!(view.find_instance(&CNCI.to_string()), Ok(CNCI));
    let several = view.find_instance("0f7a").unwrap_err();
    assert_eq!(
        several.to_string(),
        format!("0f7a is the beginning of 2 instances: {INSTANCE}, {similar}")
    );
    assert_eq!(
        view.find_cnci("c2").unwrap_err().to_string(),
        "no CNCI is known whose UUID begins with c2"
    );
    for text in ["", "rack1", "0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a10011"] {
        assert!(
            matches!(view.find_instance(text), Err(FindError::NoUuid { .. })),
            "{text}"
        );
    }
}

#[test]
fn instances_are_found_by_name_first() {
    let mut view = View::default();
    let named = |names: &[(Uuid, &str)]| {
        let mut report = stats(NODE, &[]);
        report.instances = names
            .iter()
            .map(|(uuid, name)| InstanceStats {
                instance_uuid: (*uuid).into(),
                name: (*name).into(),
                ..InstanceStats::default()
            })
            .collect();
        report
    };
    // A name comes first even if the UUID of another instance begins with the same text.
    take(&mut view, &named(&[(INSTANCE, ""), (CNCI, "0f"), (OTHER, "web")]));
    assert_eq!(view.find_instance("web"), Ok(OTHER));
    assert_eq!(view.find_instance("0f"), Ok(CNCI));
    assert_eq!(view.find_instance("0f7"), Ok(INSTANCE));
    let unknown = view.find_instance("db").unwrap_err().to_string();
    assert_eq!(
        unknown,
        "no instance has the name db, or a UUID that begins with it"
    );
    assert_eq!(
        view.find_instance("x y").unwrap_err().to_string(),
        "no instance is called \"x y\""
    );

    take(&mut view, &named(&[(INSTANCE, "web"), (OTHER, "web")]));
    let several = view.find_instance("web").unwrap_err().to_string();
    assert_eq!(
        several,
        format!("2 instances are called web: {INSTANCE}, {OTHER}")
    );

    // A failed instance does not hide the one that runs in its place.
    let mut report = named(&[(INSTANCE, "web"), (OTHER, "web")]);
    report.instances[0].state = InstanceState::Exited;
    take(&mut view, &report);
    assert_eq!(view.find_instance("web"), Ok(OTHER));

    // Of those that have failed, the last one is shown.
    for (instance, ended) in report
        .instances
        .iter_mut()
        .zip(["2026-01-21T12:53:21Z", "2026-01-21T12:53:20Z"])
    {
        instance.state = InstanceState::Exited;
        instance.ended = ended.into();
    }
    take(&mut view, &report);
    assert!(matches!(
        view.find_instance("web"),
        Err(FindError::SameName { .. })
    ));
    assert_eq!(view.find_latest_instance("web"), Ok(INSTANCE));

    // A name that is a UUID could be the UUID of another instance.
    let whole = INSTANCE.to_string();
    take(&mut view, &named(&[(INSTANCE, "web"), (OTHER, &whole)]));
    assert_eq!(view.find_instance(&whole), Ok(INSTANCE));
    assert_eq!(&*view.instance(OTHER).unwrap().stats.name, "");
}

#[test]
fn the_texts_of_an_instance_are_bounded() {
    let mut view = View::default();
    let mut report = stats(NODE, &[(INSTANCE, InstanceState::Exited)]);
    let instance = &mut report.instances[0];
    instance.name = "\u{1b}[31m".into();
    instance.labels = (0..1000).map(|n| (format!("k{n}"), "v".into())).collect();
    instance.labels.insert("x".repeat(100), "v".into());
    instance.labels.insert("a".into(), "\u{202e}".into());
    instance.started = "1".repeat(100_000).into();
    let long = "d".repeat(100_000);
    instance.detail = long.as_str().into();
    instance.last_lines = long.as_str().into();
    instance.health = long.as_str().into();
    instance.health_since = long.as_str().into();
    instance.health_detail = long.into();
    take(&mut view, &report);
    let kept = &view.instance(INSTANCE).unwrap().stats;
    let texts: [&str; 4] = [&kept.name, &kept.started, &kept.detail, &kept.last_lines];
    assert_eq!(texts, [""; 4]);
    assert_eq!(kept.health_text() + &kept.health_since, "");
    assert_eq!(kept.labels.len(), ssntp_payload::MAX_LABELS);
    assert!(kept.labels.keys().all(|key| key.starts_with('k')));
}

#[test]
fn a_change_has_the_end_of_an_instance_as_text() {
    let mut view = View::default();
    take(&mut view, &stats(NODE, &[(INSTANCE, InstanceState::Active)]));
    assert_eq!(view.instance(INSTANCE).unwrap().ending(), None);
    let mut report = stats(NODE, &[(INSTANCE, InstanceState::Exited)]);
    (report.instances[0].exit_code, report.instances[0].exit_signal) = (143, 15);
    let changes = view.apply(&Frame::of(&report), UNIX_EPOCH);
    let texts: Vec<_> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts[0],
        format!("instance {INSTANCE} is exited, after active: killed SIGTERM")
    );
}

#[test]
fn a_stale_node_is_shown_as_it_was() {
    let mut view = View::default();
    let later = UNIX_EPOCH + std::time::Duration::from_secs(90);
    take(&mut view, &stats(NODE, &[(INSTANCE, InstanceState::Active)]));
    let repeated = Stats {
        status: NodeStatus::Stale,
        ..stats(NODE, &[(INSTANCE, InstanceState::Active)])
    };
    assert_eq!(
        names_of(view.apply(&Frame::of(&repeated), later)),
        ["node_status", "node_stats"]
    );
    let node = view.node(NODE).unwrap();
    assert!(node.connected && !node.is_current());
    assert_eq!(node.seen, Some(UNIX_EPOCH), "the time of its last report");
    take(&mut view, &stats(NODE, &[]));
    assert!(view.node(NODE).unwrap().is_current());
}

#[test]
fn a_stale_node_brings_back_no_instance_that_an_event_has_ended() {
    let mut view = View::default();
    let other = Uuid::from_u128(7);
    let mut last = stats(
        NODE,
        &[(INSTANCE, InstanceState::Exited), (other, InstanceState::Active)],
    );
    last.instances[0].restart_due = true;
    take(&mut view, &last);
    take(
        &mut view,
        &InstanceStopped {
            instance_uuid: INSTANCE.into(),
            ..Default::default()
        },
    );
    let is_restart_due = |view: &View| view.instance(INSTANCE).unwrap().stats.restart_due;
    assert!(!is_restart_due(&view), "its node has given it up");
    take(
        &mut view,
        &InstanceDeleted {
            instance_uuid: other.into(),
            ..Default::default()
        },
    );
    last.status = NodeStatus::Stale;
    take(&mut view, &last);
    assert!(!is_restart_due(&view) && view.instance(other).is_none());
    // A new controller gets the same STATS first, and the events after them.
    let mut new = View::default();
    take(&mut new, &last);
    assert!(new.instance(other).is_some());
}

/// This is independent of the sender, and of the checks of the scheduler.
#[test]
fn the_kept_parts_of_a_frame_are_bounded() {
    let mut view = view(4);
    let long = "x".repeat(1 << 19);
    let ids = |n: usize| vec![Id::from(long.as_str()); n];
    let mut huge = stats(NODE, &[(INSTANCE, InstanceState::from(long.as_str()))]);
    huge.hostname.clone_from(&long);
    huge.status = long.as_str().into();
    huge.instances[0].ssh_ip = long.as_str().into();
    huge.instances[0].volumes = ids(1);
    take(&mut view, &huge);
    huge = stats(NODE, &[(INSTANCE, InstanceState::Active)]);
    huge.instances[0].volumes = (0..2000).map(|n| Id::from(Uuid::from_u128(n))).collect();
    let changes = view.apply(&Frame::of(&huge), UNIX_EPOCH);
    let failure = format!("instance_uuid: {0}\nreason: {0}\n", "x".repeat(5000));
    let failed = view.apply(
        &Frame::with_payload(ssntp::proto::ErrorCode::START_FAILURE, failure),
        UNIX_EPOCH,
    );
    let trace = format!(
        "frames: [{{label: {long}, nodes: [{}]}}]\n",
        "{ssntp_role: r},".repeat(2000)
    );
    let traced = view.apply(&Frame::with_payload(Event::TRACE_REPORT, trace), UNIX_EPOCH);
    let added = format!(
        "concentrator_instance_added: {{instance_uuid: {CNCI}, tenant_uuid: {}}}\n",
        "x".repeat(5000)
    );
    let added = view.apply(
        &Frame::with_payload(Event::CONCENTRATOR_INSTANCE_ADDED, added),
        UNIX_EPOCH,
    );
    for changes in [&changes, &failed, &traced, &added] {
        assert!(format!("{changes:?}").len() < 200_000);
    }
    assert!(
        format!("{view:?}").len() < 200_000,
        "{}",
        format!("{view:?}").len()
    );
    huge.tunnels = vec![ssntp_payload::TunnelStats::default(); 5000];
    take(&mut view, &huge);
    assert_eq!(view.node(NODE).unwrap().stats.tunnels.len(), 4096);
}

/// A failure keeps all that its command names, and thousands of failures may wait for a subscriber.
#[test]
fn each_text_that_a_failure_keeps_is_bounded() {
    let mut view = view(4);
    let texts = [
        "concentrator_uuid",
        "tenant_uuid",
        "instance_uuid",
        "public_ip",
        "private_ip",
        "vnic_mac",
        "reason",
        "detail",
        "command_id",
    ];
    for text in texts {
        let payload = format!("{text}: {}\n", "x".repeat(5000));
        let frame = Frame::with_payload(ssntp::proto::ErrorCode::ASSIGN_PUBLIC_IP_FAILURE, payload);
        let changes = view.apply(&frame, UNIX_EPOCH);
        assert!(matches!(changes[..], [Change::Failed(_)]), "{text}: {changes:?}");
        assert!(format!("{changes:?}").len() < 1000, "{text}");
    }
}

#[test]
fn unknown_nodes_are_bounded() {
    let mut view = view(4);
    for node in 1..=MAX_NODES as u128 {
        assert!(view.connected_node(Uuid::from_u128(node), UNIX_EPOCH).is_some());
    }
    assert!(take(&mut view, &stats(NODE, &[(INSTANCE, InstanceState::Active)])).is_empty());
    assert!(take(&mut view, &connected(NODE)).is_empty());
    assert_eq!((view.nodes().count(), view.instances().count()), (MAX_NODES, 0));
    assert!(!take(&mut view, &stats(Uuid::from_u128(1), &[])).is_empty());
}

#[test]
fn before_the_snapshot_it_is_not_known_whether_the_scheduler_heeds_constraints() {
    let mut view = View::default();
    view.connected(None);
    assert_eq!(view.heeds_constraints(), None);
    for constraints in [false, true] {
        let snapshot = SnapshotComplete {
            constraints,
            ..SnapshotComplete::default()
        };
        take(&mut view, &snapshot);
        assert_eq!(view.heeds_constraints(), Some(constraints));
    }
}
