//! Each rule alone, then all rules compared with a table that is searched from end to end.

use proptest::prelude::*;

use super::*;
use ssntp::payload::Id;
use ssntp_payload::Start;

const GB: i64 = 1024;

fn uuid(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn ready(mem_gb: i64) -> Ready {
    Ready {
        mem_available_mb: mem_gb * GB,
        disk_available_mb: 100 * GB,
        cpus_online: 8,
        hostname: "Host-A".into(),
        ..Ready::default()
    }
}

fn needs(mem_gb: i64) -> Needs {
    Needs {
        mem_mb: mem_gb * GB,
        vcpus: 1,
        ..Needs::default()
    }
}

/// Compute nodes 1, 2, … with this memory in GB.
fn nodes(policy: Policy, mem_gb: &[i64]) -> Placement {
    let mut placement = Placement::new(policy);
    for (n, mem_gb) in (1..).zip(mem_gb) {
        placement.connect(uuid(n), Role::AGENT);
        placement.ready(uuid(n), &ready(*mem_gb));
    }
    placement
}

/// The node on which the START is placed, or 0.
fn place(placement: &mut Placement, needs: &Needs) -> u128 {
    match placement.place(needs, None, &Siblings::new()) {
        Verdict::Placed(allocation) => allocation.node.as_u128(),
        _ => 0,
    }
}

#[test]
fn the_search_begins_after_the_last_node_and_wraps() {
    let mut placement = nodes(Policy::Opportunistic, &[8, 8, 2, 8]);
    let four = needs(4);
    let order: Vec<_> = (0..7).map(|_| place(&mut placement, &four)).collect();
    // Two STARTs of 4 GB fill 8.
    assert_eq!(order, [1, 2, 4, 1, 2, 4, 0]);
}

#[test]
fn a_strict_node_gets_one_start_for_each_ready() {
    let mut placement = nodes(Policy::Strict, &[8, 8]);
    let one = needs(1);
    assert_eq!([place(&mut placement, &one), place(&mut placement, &one)], [1, 2]);
    assert_eq!(
        placement.place(&one, None, &Siblings::new()),
        Verdict::Wait(uuid(1))
    );
    assert!(placement.would_fit(uuid(1), &one) && !placement.would_fit(uuid(1), &needs(9)));
    assert_eq!(
        placement.place(&needs(9), None, &Siblings::new()),
        Verdict::NoRoom,
        "waiting would not help"
    );
    placement.ready(uuid(1), &ready(7));
    assert_eq!(place(&mut placement, &one), 1);
}

#[test]
fn the_node_with_the_fewest_siblings_is_taken_even_if_it_is_not_ready_yet() {
    let crowd =
        |counts: &[(u128, usize)]| Siblings::from_iter(counts.iter().map(|(n, count)| (uuid(*n), *count)));
    let mut placement = nodes(Policy::Opportunistic, &[8, 8, 8]);
    let taken = |placement: &mut Placement, mem_gb, siblings: Siblings| match placement.place(
        &needs(mem_gb),
        None,
        &siblings,
    ) {
        Verdict::Placed(allocation) => (allocation.node.as_u128(), true),
        Verdict::Wait(node) => (node.as_u128(), false),
        verdict => panic!("{verdict:?}"),
    };
    assert_eq!(taken(&mut placement, 1, crowd(&[(1, 1), (2, 2)])), (3, true));
    assert_eq!(
        taken(&mut placement, 1, crowd(&[(1, 3), (2, 2), (3, 3)])),
        (2, true)
    );
    // Of several nodes the next one in turn is taken.
    assert_eq!(
        taken(&mut placement, 1, crowd(&[(1, 1), (2, 1), (3, 1)])),
        (3, true)
    );
    assert!(placement.await_ready(uuid(3)));
    assert_eq!(taken(&mut placement, 1, crowd(&[(1, 1), (2, 1)])), (3, false));
    assert_eq!(
        taken(&mut placement, 1, crowd(&[(1, 1), (2, 1), (3, 1)])),
        (1, true)
    );
    // A node that has no room for it is no choice.
    placement.ready(uuid(3), &ready(1));
    assert_eq!(taken(&mut placement, 5, crowd(&[(1, 1), (2, 2)])), (1, true));
    placement.close(uuid(3));
    assert_eq!(taken(&mut placement, 1, crowd(&[(1, 1), (2, 2)])), (1, true));
}

#[test]
fn memory_disk_and_cpus_have_to_suffice() {
    let mut placement = nodes(Policy::Opportunistic, &[8]);
    let base = needs(1);
    let over = [
        needs(9),
        Needs {
            disk_mb: 100 * GB + 1,
            ..base.clone()
        },
        Needs {
            vcpus: 9,
            ..base.clone()
        },
    ];
    for needs in over {
        assert_eq!(
            placement.place(&needs, None, &Siblings::new()),
            Verdict::NoRoom,
            "{needs:?}"
        );
    }
    let all = Needs {
        mem_mb: 8 * GB,
        disk_mb: 100 * GB,
        vcpus: 8,
        ..Needs::default()
    };
    assert_eq!(place(&mut placement, &all), 1);
    assert_eq!(
        placement.place(&base, None, &Siblings::new()),
        Verdict::NoRoom,
        "the forecast counts"
    );
    let cpus = Needs {
        vcpus: 8,
        ..Needs::default()
    };
    assert_eq!(place(&mut placement, &cpus), 1, "CPUs are shared");
}

#[test]
fn a_node_with_unknown_values_is_not_excluded() {
    let mut placement = Placement::new(Policy::Opportunistic);
    placement.connect(uuid(1), Role::AGENT);
    placement.ready(uuid(1), &Ready::default());
    assert_eq!(place(&mut placement, &needs(1 << 20)), 1);
    assert_eq!(
        place(&mut placement, &needs(1 << 20)),
        1,
        "the value stays unknown"
    );
}

#[test]
fn full_offline_and_maintenance_nodes_are_never_picked() {
    let mut placement = nodes(Policy::Strict, &[8, 8]);
    placement.close(uuid(1));
    placement.close(uuid(2));
    assert_eq!(
        placement.place(&needs(1), None, &Siblings::new()),
        Verdict::NoRoom
    );
    placement.ready(uuid(1), &ready(8));
    assert_eq!(place(&mut placement, &needs(1)), 1);
}

#[test]
fn a_start_waits_for_a_node_that_has_just_connected() {
    for policy in [Policy::Strict, Policy::Opportunistic] {
        let mut placement = Placement::new(policy);
        assert_eq!(
            placement.place(&needs(1), None, &Siblings::new()),
            Verdict::NoNode
        );
        placement.connect(uuid(1), Role::AGENT);
        assert_eq!(
            placement.place(&needs(1), None, &Siblings::new()),
            Verdict::Wait(uuid(1))
        );
    }
}

#[test]
fn network_nodes_accept_only_starts_that_need_them() {
    let mut placement = nodes(Policy::Opportunistic, &[8]);
    let network = Needs {
        network_node: true,
        ..needs(1)
    };
    assert_eq!(placement.place(&network, None, &Siblings::new()), Verdict::NoNode);
    placement.connect(uuid(7), Role::NETAGENT);
    placement.ready(uuid(7), &ready(8));
    assert_eq!(place(&mut placement, &network), 7);
    for _ in 0..4 {
        assert_eq!(place(&mut placement, &needs(1)), 1);
    }
    placement.disconnect(uuid(1));
    assert_eq!(
        placement.place(&needs(1), None, &Siblings::new()),
        Verdict::NoNode
    );
}

#[test]
fn an_agent_of_both_kinds_is_one_node() {
    let mut placement = Placement::new(Policy::Strict);
    placement.connect(uuid(1), Role::AGENT | Role::NETAGENT);
    placement.ready(uuid(1), &ready(8));
    let network = Needs {
        network_node: true,
        ..needs(1)
    };
    assert_eq!(place(&mut placement, &needs(1)), 1);
    assert_eq!(
        placement.place(&network, None, &Siblings::new()),
        Verdict::Wait(uuid(1))
    );
    placement.ready(uuid(1), &ready(8));
    assert_eq!(place(&mut placement, &network), 1);
    placement.disconnect(uuid(1));
    assert_eq!(placement.place(&network, None, &Siblings::new()), Verdict::NoNode);
    assert_eq!(
        placement.place(&needs(1), None, &Siblings::new()),
        Verdict::NoNode
    );
}

fn describe(placement: &mut Placement, node: u128, hostname: &str) {
    let hostname = hostname.to_owned();
    placement.describe(
        uuid(node),
        &Ready {
            hostname,
            ..Ready::default()
        },
    );
}

#[test]
fn a_uuid_or_a_name_selects_the_node() {
    let mut placement = nodes(Policy::Opportunistic, &[8, 8, 8]);
    describe(&mut placement, 3, "other");
    let called = |hostname: &str| Needs {
        hostname: hostname.into(),
        ..needs(1)
    };
    let named = |node_id: Id| Needs { node_id, ..needs(1) };
    assert_eq!(
        [0; 4].map(|_| place(&mut placement, &called("HOST-a"))),
        [1, 2, 1, 2]
    );
    assert_eq!(place(&mut placement, &called("other")), 3);
    assert_eq!(
        placement.place(&called("nobody"), None, &Siblings::new()),
        Verdict::NoRoom
    );
    assert_eq!(place(&mut placement, &named(uuid(2).into())), 2);
    for id in [Id::from(uuid(9)), Id::from("rack1")] {
        assert_eq!(
            placement.place(&named(id), None, &Siblings::new()),
            Verdict::NoRoom
        );
    }
    let both = Needs {
        hostname: "other".into(),
        ..named(uuid(2).into())
    };
    assert_eq!(placement.place(&both, None, &Siblings::new()), Verdict::NoRoom);
    placement.disconnect(uuid(3));
    assert_eq!(
        placement.place(&called("other"), None, &Siblings::new()),
        Verdict::NoRoom
    );
    let long = "x".repeat(MAX_HOSTNAME + 1);
    describe(&mut placement, 1, &long);
    assert_eq!(
        placement.place(&called(&long), None, &Siblings::new()),
        Verdict::NoRoom
    );
}

#[test]
fn a_start_runs_on_a_node_with_all_its_labels() {
    let mut placement = nodes(Policy::Opportunistic, &[8, 8, 8]);
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    for (node, labels) in [
        (1, vec![label("rack", "1"), label("zone", "a")]),
        (2, vec![label("zone", "a"), label("disk", "ssd")]),
        (3, vec![label("zone", "b"), label("disk", "ssd")]),
    ] {
        let labels = labels.into_iter().collect();
        placement.ready(uuid(node), &Ready { labels, ..ready(8) });
    }
    let wants = |labels: &[(&str, &str)]| Needs {
        labels: labels.iter().map(|(key, value)| label(key, value)).collect(),
        ..needs(1)
    };
    assert_eq!(
        [0; 3].map(|_| place(&mut placement, &wants(&[("zone", "a")]))),
        [1, 2, 1]
    );
    let both = wants(&[("disk", "ssd"), ("zone", "a")]);
    assert_eq!([0; 2].map(|_| place(&mut placement, &both)), [2, 2]);
    for (labels, why) in [
        (
            &[("zone", "c")][..],
            Some("no connected node has the label zone=c"),
        ),
        (
            &[("zone", "a"), ("disk", "tape")],
            Some("no connected node has the label disk=tape"),
        ),
        (
            &[("disk", "ssd"), ("rack", "1"), ("zone", "b")],
            Some("no connected node has the label disk=ssd and the label rack=1 and the label zone=b"),
        ),
        (&[("zone", "a")], None),
        (&[], None),
    ] {
        assert_eq!(placement.missing(&wants(labels)).as_deref(), why);
    }
    let on_one = Needs {
        node_id: uuid(1).into(),
        ..both.clone()
    };
    let why = format!("node {} does not have the label disk=ssd", uuid(1));
    assert_eq!(placement.missing(&on_one), Some(why));
    let of_network = Needs {
        network_node: true,
        ..wants(&[("zone", "a")])
    };
    let why = "no connected node has the label zone=a";
    assert_eq!(placement.missing(&of_network).as_deref(), Some(why));
    assert_eq!(
        placement.place(&wants(&[("zone", "c")]), None, &Siblings::new()),
        Verdict::NoRoom
    );
    // A label that the node does not have any more.
    placement.ready(uuid(2), &ready(8));
    assert_eq!(placement.place(&both, None, &Siblings::new()), Verdict::NoRoom);
}

#[test]
fn nodes_of_one_name_take_turns() {
    let mut placement = nodes(Policy::Strict, &[8, 1, 8, 8]);
    describe(&mut placement, 3, "other");
    let called = Needs {
        hostname: "host-a".into(),
        ..needs(2)
    };
    assert_eq!([0; 3].map(|_| place(&mut placement, &called)), [1, 4, 0]);
    assert_eq!(
        placement.place(&called, None, &Siblings::new()),
        Verdict::Wait(uuid(1))
    );
    assert_eq!(
        placement.place(&called, Some(uuid(1)), &Siblings::new()),
        Verdict::Wait(uuid(4))
    );
    for node in 1..=4 {
        placement.disconnect(uuid(node));
    }
    assert_eq!(placement.place(&called, None, &Siblings::new()), Verdict::NoNode);
}

#[test]
fn the_sender_itself_is_never_picked() {
    let mut placement = nodes(Policy::Opportunistic, &[8]);
    let own = |placement: &mut Placement| placement.place(&needs(1), Some(uuid(1)), &Siblings::new());
    assert_eq!(own(&mut placement), Verdict::NoNode);
    placement.connect(uuid(2), Role::AGENT);
    assert_eq!(own(&mut placement), Verdict::Wait(uuid(2)));
    placement.ready(uuid(2), &ready(8));
    for _ in 0..3 {
        assert!(matches!(own(&mut placement), Verdict::Placed(allocation) if allocation.node == uuid(2)));
    }
}

#[test]
fn a_failed_start_is_released_until_the_next_ready() {
    for policy in [Policy::Strict, Policy::Opportunistic] {
        let mut placement = nodes(policy, &[8]);
        let Verdict::Placed(allocation) = placement.place(&needs(8), None, &Siblings::new()) else {
            panic!("the START fits")
        };
        assert!(placement.take_back(&allocation));
        assert_eq!(place(&mut placement, &needs(8)), 1, "{policy:?}");
        // READY includes the second START.
        placement.ready(uuid(1), &ready(0));
        assert!(!placement.take_back(&allocation));
        assert_eq!(place(&mut placement, &needs(1)), 0);
        placement.close(uuid(1));
        assert!(!placement.take_back(&allocation), "a full node stays full");
    }
}

#[test]
fn numbers_below_zero_are_refused() {
    let mut start = Start::default();
    start.requirements.mem_mb = -1;
    assert_eq!(Needs::of(&start), Err("start.requirements.mem_mb"));
    start.requirements.mem_mb = 0;
    start.requirements.vcpus = -1;
    assert_eq!(Needs::of(&start), Err("start.requirements.vcpus"));
    start.requirements.vcpus = 0;
    let volume = |local, size| ssntp_payload::Storage {
        local,
        size,
        ..Default::default()
    };
    start.storage = vec![volume(true, 20), volume(false, 50), volume(true, 1)];
    assert_eq!(Needs::of(&start).map(|needs| needs.disk_mb), Ok(21 * GB));
    start.storage.push(volume(true, i64::MAX));
    assert_eq!(Needs::of(&start).map(|needs| needs.disk_mb), Ok(i64::MAX));
    start.storage.push(volume(true, -1));
    assert_eq!(Needs::of(&start), Err("start.storage.size"));
}

/// The nodes that accept a START, with their room and host name, in the order of their UUIDs.
type Open = Vec<(Uuid, Room, String)>;

proptest! {
    #[test]
    fn the_next_node_in_order_that_fits_is_found(
        steps in prop::collection::vec((0..8_u8, 1..20_u128, 0..16_i64, 0..16_i64), 1..200),
    ) {
        let mut placement = Placement::new(Policy::Opportunistic);
        let (mut open, mut last) = (Open::new(), Uuid::nil());
        for (step, node, mem_mb, disk_mb) in steps {
            let (name, node) = (format!("host-{}", node % 3), uuid(node));
            match step {
                0 => {
                    let report = Ready { mem_available_mb: mem_mb, disk_available_mb: disk_mb, ..Ready::default() };
                    let report = Ready { hostname: name.clone(), ..report };
                    placement.connect(node, Role::AGENT);
                    placement.ready(node, &report);
                    open.retain(|(other, ..)| *other != node);
                    open.push((node, Room::of(&report), name));
                    open.sort_by_key(|(uuid, ..)| *uuid);
                }
                1 | 2 => {
                    if step == 1 {
                        placement.disconnect(node);
                    } else {
                        placement.close(node);
                    }
                    open.retain(|(other, ..)| *other != node);
                }
                3 => {
                    let name = format!("host-{}", mem_mb % 3);
                    placement.describe(node, &Ready { hostname: name.clone(), ..Ready::default() });
                    let mut named = open.iter_mut().filter(|(other, ..)| *other == node);
                    named.by_ref().for_each(|(_, _, old)| old.clone_from(&name));
                }
                _ => {
                    let hostname = if step == 4 { name } else { String::new() };
                    let needs = Needs { mem_mb: mem_mb / 4, disk_mb: disk_mb / 4, hostname, ..Needs::default() };
                    let (later, earlier): (Vec<_>, Vec<_>) = open.iter_mut().partition(|(uuid, ..)| *uuid > last);
                    let mut all = later.into_iter().chain(earlier);
                    let wanted = all.find(|(_, room, name)| {
                        room.holds(Room::needed(&needs)) && (needs.hostname.is_empty() || needs.hostname == *name)
                    });
                    let placed = match placement.place(&needs, None, &Siblings::new()) {
                        Verdict::Placed(allocation) => Some(allocation.node),
                        _ => None,
                    };
                    prop_assert_eq!(placed, wanted.as_ref().map(|(uuid, ..)| *uuid));
                    if let Some((uuid, room, _)) = wanted {
                        last = *uuid;
                        *room = room.minus(Room([needs.mem_mb, needs.disk_mb, 0]));
                    }
                }
            }
        }
    }
}

#[test]
fn a_node_with_two_suspensions_is_excluded_until_both_end() {
    let mut placement = Placement::new(Policy::Opportunistic);
    let node = Uuid::from_u128(1);
    placement.connect(node, Role::AGENT);
    placement.ready(node, &Ready::default());
    placement.suspend(node, Suspension::Evacuating);
    placement.suspend(node, Suspension::Stale);
    placement.resume(node, Suspension::Stale);
    assert!(!placement.is_ready(node), "the node is being evacuated");
    placement.resume(node, Suspension::Evacuating);
    assert!(placement.is_ready(node));
}
