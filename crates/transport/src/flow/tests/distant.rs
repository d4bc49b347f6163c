//! Origins at another dispatcher: each is held once and released once.

use super::*;

/// Sends this number of units for a distant origin.
fn send(net: &mut Net, link: &Peer, number: u64, to: &Peer, units: usize) {
    let origin = Origin::Distant {
        link: link.id,
        number,
    };
    for _ in 0..units {
        let delivered = net.flow.deliver(origin, to.id, long(UNIT), false, net.start);
        assert_eq!(delivered, Delivery::Taken);
    }
}

/// The changes since the last call: the origin, and true if it is held.
fn changes(net: &mut Net) -> Vec<(u64, bool)> {
    let changes = net.flow.take_distant().into_iter();
    changes.map(|change| (change.number, change.waits)).collect()
}

#[test]
fn a_distant_origin_waits_from_its_first_item_in_a_line_to_its_last_and_its_link_goes_on() {
    let mut net = Net::new(1 << 30);
    let [link, full, other] = [64, 4, 64].map(|units| net.peer(units));
    send(&mut net, &link, 7, &full, 2);
    assert_eq!(changes(&mut net), [], "the queue is below its mark");
    send(&mut net, &link, 7, &full, 3);
    send(&mut net, &link, 8, &full, 1);
    send(&mut net, &link, 9, &other, 3);
    assert_eq!(changes(&mut net), [(7, true), (8, true)]);
    assert!(!net.waits(&link), "the server still reads from the link");
    write_one(&full);
    net.flow.room(full.id, net.start);
    assert_eq!(changes(&mut net), [], "one of three has left the line");
    net.drain(&full);
    assert_eq!(changes(&mut net), [(7, false), (8, false)]);
    assert!(!net.waits(&link), "the counts are right");
}

#[test]
fn a_slow_or_ended_receiver_releases_distant_origins() {
    let mut net = Net::new(1 << 30);
    let [link, full, slow] = [64, 4, 4].map(|units| net.peer(units));
    send(&mut net, &link, 7, &full, 4);
    assert_eq!(changes(&mut net), [(7, true)]);
    net.flow.remove(full.id);
    assert_eq!(changes(&mut net), [(7, false)]);
    send(&mut net, &link, 7, &slow, 4);
    assert_eq!(changes(&mut net), [(7, true)]);
    let late = net.start + PATIENCE;
    net.flow.tick(late);
    assert!(net.slow(&slow));
    assert_eq!(changes(&mut net), [(7, false)]);
    // A slow receiver holds no origin, and items beyond its limit meet the policy.
    let (link, number) = (link.id, 7);
    let late = net
        .flow
        .deliver(Origin::Distant { link, number }, slow.id, long(UNIT), false, late);
    assert_eq!(late, Delivery::Overflows);
    assert_eq!(changes(&mut net), []);
}

#[test]
fn too_many_late_items_of_a_distant_origin_meet_the_policy() {
    let mut net = Net::new(1 << 30);
    let [link, full] = [64, 4].map(|units| net.peer(units));
    let origin = Origin::Distant {
        link: link.id,
        number: 7,
    };
    let mut send = || net.flow.deliver(origin, full.id, long(UNIT), false, net.start);
    // Its limit is 1 MiB, but items that may be on a link are accepted in any case.
    let taken = (0..128).take_while(|_| send() != Delivery::Overflows).count() as u64;
    let (fits, late) = (LONG_LINE / MEMORY, 8);
    assert!((fits..fits + late).contains(&taken), "{taken}");
    assert_eq!(changes(&mut net), [(7, true)]);
}

#[test]
fn a_connection_is_held_for_another_dispatcher_until_its_release() {
    let mut net = Net::new(1 << 30);
    let sender = net.peer(64);
    net.flow.hold_for_another(sender.id, false, net.start);
    net.flow.hold_for_another(sender.id, true, net.start);
    assert!(net.flow.is_held(sender.id));
    net.flow.hold_for_another(sender.id, false, net.start);
    assert!(!net.waits(&sender));
    // A connection that has ended meanwhile is ignored.
    net.flow.remove(sender.id);
    net.flow.hold_for_another(sender.id, false, net.start);
}
