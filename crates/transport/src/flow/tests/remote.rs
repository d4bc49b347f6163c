//! Origins at another dispatcher: each is paused once and goes on once.

use super::super::accounts::MAX_LATE;
use super::*;

/// Sends this number of units for a remote origin.
fn send(net: &mut Net, link: &Peer, number: u64, to: &Peer, units: usize) {
    let origin = Origin::Remote {
        link: link.id,
        number,
    };
    for _ in 0..units {
        let delivered = net.flow.deliver(origin, to.id, long(UNIT), false, net.start);
        assert_eq!(delivered, Delivery::Taken);
    }
}

/// The changes since the last call: the origin, and true if it is paused.
fn changes(net: &mut Net) -> Vec<(u64, bool)> {
    let changes = net.flow.take_remote_pauses().into_iter();
    changes.map(|change| (change.number, change.paused)).collect()
}

#[test]
fn a_remote_origin_waits_from_its_first_item_in_a_line_to_its_last_and_its_link_goes_on() {
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
fn a_slow_or_ended_receiver_releases_remote_origins() {
    let mut net = Net::new(1 << 30);
    let [link, full, slow] = [64, 4, 4].map(|units| net.peer(units));
    send(&mut net, &link, 7, &full, 4);
    assert_eq!(changes(&mut net), [(7, true)]);
    net.flow.remove(full.id);
    assert_eq!(changes(&mut net), [(7, false)]);
    send(&mut net, &link, 7, &slow, 4);
    assert_eq!(changes(&mut net), [(7, true)]);
    let late = net.start + PATIENCE;
    net.flow.handle_deadline(late);
    assert!(net.slow(&slow));
    assert_eq!(changes(&mut net), [(7, false)]);
    // A slow receiver pauses no origin, and items beyond its limit meet the policy.
    let (link, number) = (link.id, 7);
    let late = net
        .flow
        .deliver(Origin::Remote { link, number }, slow.id, long(UNIT), false, late);
    assert_eq!(late, Delivery::Overflows);
    assert_eq!(changes(&mut net), []);
}

#[test]
fn late_items_of_remote_origins_pause_their_link_and_not_the_receiver() {
    let mut net = Net::new(1 << 30);
    let [link, receiver, other] = [64, 4, 4].map(|units| net.peer(units));
    // The other dispatcher does not pause its connections, or has sent these items before.
    let units = 64;
    assert_eq!(MAX_LATE >> 18, units as u64);
    for number in 0..4 {
        send(&mut net, &link, number, &receiver, units / 4);
    }
    assert!(!net.waits(&link));
    send(&mut net, &link, 4, &receiver, 3);
    assert!(net.waits(&link), "the link is not read");
    send(&mut net, &link, 5, &other, 3);
    assert_eq!(changes(&mut net).len(), 6);
    for receiver in [&receiver, &other] {
        assert_eq!(net.flow.overflow(receiver.id), None);
    }
    for _ in 0..units / 2 - 1 {
        assert!(net.waits(&link));
        write_one(&receiver);
        net.flow.room(receiver.id, net.start);
    }
    for _ in 0..4 {
        write_one(&receiver);
        net.flow.room(receiver.id, net.start);
    }
    assert!(!net.waits(&link), "half of the bound waits");
    net.drain(&receiver);
    net.drain(&other);
    // The items of a link that has ended are still delivered, and its account is closed after the last.
    send(&mut net, &link, 6, &receiver, 4);
    net.flow.remove(link.id);
    assert_eq!(net.flow.ended_in_lines(), 1);
    net.drain(&receiver);
    assert_eq!((net.flow.ended_in_lines(), net.flow.fault()), (0, None));
}

#[test]
fn a_connection_is_paused_for_another_dispatcher_until_that_ends_the_pause() {
    let mut net = Net::new(1 << 30);
    let sender = net.again(7);
    net.flow.pause(sender.id, true, net.start);
    assert!(net.flow.is_paused(sender.id));
    net.flow.pause(sender.id, false, net.start);
    assert!(!net.waits(&sender));
    // A pause that outlasts the connection applies to the next one of the same sender.
    net.flow.pause(sender.id, true, net.start);
    net.flow.remove(sender.id);
    let next = net.again(7);
    assert!(net.waits(&next));
    net.flow.pause(sender.id, false, net.start);
    assert!(!net.waits(&next));
    // A connection that is unknown is ignored.
    net.flow.remove(next.id);
    net.flow.pause(next.id, true, net.start);
    net.flow.pause(next.id, false, net.start);
}
