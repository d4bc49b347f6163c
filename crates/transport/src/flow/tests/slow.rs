//! The time for which a receiver holds its senders.

use super::super::pace::PACE_CHECK;
use super::*;

#[test]
fn a_receiver_without_pace_is_slow_after_the_patience_and_not_before() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 6);
    assert_eq!(net.flow.next_deadline(), Some(net.start + PATIENCE));
    assert!(net.flow.handle_deadline(net.at(999)).is_empty());
    assert_eq!(net.flow.handle_deadline(net.at(1000)), [receiver.id]);
    assert!(!net.waits(&sender), "no sender waits for the receiver any more");
    assert_eq!(net.drop_overflow(&receiver, false), 2);
    assert_eq!(net.budget.used(), 4 * MEMORY, "the limit of the line");
    assert_eq!(net.send_item(&sender, &receiver, item("a")), Delivery::Overflows);
    assert!(!net.waits(&sender));
}

#[test]
fn a_receiver_that_took_everything_is_measured_again() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    for _ in 0..2 {
        net.send(&sender, &receiver, 6);
        assert_eq!(net.flow.next_deadline(), Some(net.start + PATIENCE));
        net.drain(&receiver);
        assert_eq!(net.flow.next_deadline(), None, "no sender waits");
    }
    net.send(&sender, &receiver, 6);
    assert_eq!(net.flow.handle_deadline(net.at(1000)), [receiver.id]);
    assert!(!net.waits(&sender), "no sender waits for the receiver any more");
}

#[test]
fn a_slow_receiver_stays_slow_until_it_keeps_the_pace_or_takes_everything() {
    for keeps_the_pace in [false, true] {
        let mut net = Net::new(1 << 40);
        let [sender, receiver] = [net.peer(4), net.peer(64)];
        net.send(&sender, &receiver, 33);
        net.flow.handle_deadline(net.at(1000));
        assert!(net.slow(&receiver));
        // The receiver takes some bytes, so that less than half of its mark waits.
        for second in 2..5 {
            for _ in 0..7 {
                write_one(&receiver);
            }
            net.flow.room(receiver.id, net.at(second * 1000));
            net.flow.handle_deadline(net.at(second * 1000));
            assert!(net.slow(&receiver), "less than the pace, in second {second}");
        }
        if keeps_the_pace {
            net.send(&sender, &receiver, 10);
            for _ in 0..16 {
                write_one(&receiver);
            }
            net.flow.handle_deadline(net.at(5000));
        } else {
            net.drain(&receiver);
        }
        assert!(!net.slow(&receiver));
        assert_eq!(net.flow.next_deadline(), None, "no sender waits");
        net.send(&sender, &receiver, 60);
        assert!(net.waits(&sender), "senders wait for the receiver again");
    }
}

#[test]
fn a_slow_receiver_releases_others_and_its_own_answers_hold_only_itself() {
    let mut net = Net::new(1 << 40);
    let [asker, other] = [net.peer(4), net.peer(4)];
    net.send(&asker, &asker, 4);
    net.tell(&asker, item("a timer"));
    net.send(&other, &asker, 1);
    net.flow.handle_deadline(net.at(1000));
    assert!(net.slow(&asker) && !net.waits(&other));
    assert_eq!(net.flow.overflow(asker.id), None, "a unit and some bytes");
    net.drain(&asker);
    // The dropped items are not counted any more: the line has its whole limit.
    for _ in 0..4 {
        assert_eq!(net.tell(&asker, long(UNIT)), Delivery::Taken);
    }
    assert_eq!(net.tell(&asker, long(UNIT)), Delivery::Overflows);
}

#[test]
fn a_receiver_that_holds_nobody_is_not_slow() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(8)];
    for _ in 0..6 {
        assert_eq!(net.tell(&receiver, long(UNIT)), Delivery::Taken);
    }
    assert_eq!(net.flow.next_deadline(), None, "only the application waits");
    assert!(net.flow.handle_deadline(net.at(5000)).is_empty());
    net.send(&sender, &receiver, 1);
    assert!(net.waits(&sender), "the sender has the whole patience");
    assert_eq!(net.flow.next_deadline(), Some(net.start + PATIENCE));
    assert_eq!(net.flow.handle_deadline(net.at(1000)), [receiver.id]);
    assert!(net.slow(&receiver) && !net.waits(&sender));
}

#[test]
fn dropping_a_loose_item_releases_no_origin() {
    let mut net = Net::new(1 << 40);
    let [sender, slow, full] = [net.peer(4), net.peer(4), net.peer(4)];
    net.send(&sender, &slow, 4);
    net.flow.handle_deadline(net.at(1000));
    net.send(&sender, &full, 3);
    assert!(net.slow(&slow) && net.waits(&sender));
    net.drain(&slow);
    assert!(net.waits(&sender));
    net.drain(&full);
    assert!(!net.waits(&sender));
}

#[test]
fn a_slow_receiver_is_checked_again_after_a_pause() {
    let mut net = Net::new(1 << 40);
    net.flow.pace_checks.patience = Duration::ZERO;
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 3);
    assert_eq!(net.flow.handle_deadline(net.at(1)), [receiver.id]);
    assert_eq!(net.flow.next_deadline(), Some(net.at(1) + PACE_CHECK));
    assert!(net.flow.handle_deadline(net.at(100)).is_empty());
    assert_eq!(net.flow.handle_deadline(net.at(101)), [receiver.id]);
}

#[test]
fn a_slow_receiver_takes_no_more_than_its_share_of_the_budget() {
    let mut net = Net::new(9 * MEMORY);
    let [sender, receiver] = [net.peer(100), net.peer(100)];
    net.send(&sender, &receiver, 9);
    net.flow.handle_deadline(net.at(1000));
    assert_eq!(receiver.outbox.waiting().items, 5);
    assert_eq!(net.drop_overflow(&receiver, false), 2);
    assert_eq!(
        net.budget.used(),
        7 * MEMORY,
        "two items are in the line, and two units are free"
    );
}

#[test]
fn a_receiver_that_keeps_the_pace_may_hold_others() {
    // 16 units are the 4 MiB of a second.
    for (frames, sent, kept) in [
        (1, 16, true),
        (1, 15, false),
        (20_000, 1, true),
        (19_999, 1, false),
    ] {
        let mut net = Net::new(1 << 40);
        let [sender, receiver] = [net.peer(4), net.peer(64)];
        let unit = Outgoing::whole(vec![0; UNIT].into(), frames);
        for _ in 0..60 {
            net.send_item(&sender, &receiver, unit.clone());
        }
        assert!(net.waits(&sender));
        for _ in 0..sent {
            if write_one(&receiver) {
                net.flow.room(receiver.id, net.start);
            }
        }
        assert_eq!(
            net.flow.handle_deadline(net.at(1000)).is_empty(),
            kept,
            "{sent} units of {frames} frames"
        );
        assert_eq!(net.waits(&sender), kept);
        if kept {
            // In the next second the count begins again.
            assert_eq!(net.flow.next_deadline(), Some(net.at(2000)));
            assert!(net.flow.handle_deadline(net.at(1999)).is_empty());
            assert_eq!(net.flow.handle_deadline(net.at(2000)).len(), 1);
        }
    }
}

#[test]
fn a_check_that_comes_late_asks_for_no_more_than_one_in_time() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(64)];
    net.send(&sender, &receiver, 60);
    for _ in 0..16 {
        write_one(&receiver);
    }
    assert!(net.flow.handle_deadline(net.at(5000)).is_empty());
    assert!(net.waits(&sender));
}

/// Adds receivers that take nothing, and hold the sender.
fn hold_by_others(net: &mut Net, sender: &Peer, others: usize) {
    for _ in 0..others {
        let stuck = net.peer(4);
        net.send(sender, &stuck, 4);
    }
}

#[test]
fn receivers_that_are_measured_at_the_same_time_share_the_pace() {
    // 16 units are the 4 MiB of a second, and a unit is the least that each has to take.
    for (others, sent, kept) in [
        (7, 2, true),
        (7, 1, false),
        (63, 1, true),
        (63, 0, false),
        (200, 0, false),
    ] {
        let mut net = Net::new(1 << 40);
        let [sender, receiver] = [net.peer(4), net.peer(64)];
        net.send(&sender, &receiver, 40);
        hold_by_others(&mut net, &sender, others);
        for _ in 0..sent {
            write_one(&receiver);
        }
        let slow = net.flow.handle_deadline(net.at(1000));
        assert_eq!(
            !slow.contains(&receiver.id),
            kept,
            "{sent} units, and {others} others"
        );
        assert_eq!(
            slow.len(),
            others + usize::from(!kept),
            "a receiver that takes nothing is slow"
        );
    }
}

#[test]
fn receivers_share_the_pace_of_frames_as_well_and_64_of_them_at_most() {
    // 20,000 frames a second, and 312.5 for each of 64.
    for (others, frames, kept) in [
        (7, 2500, true),
        (7, 2499, false),
        (63, 313, true),
        (63, 312, false),
        (200, 313, true),
        (200, 312, false),
    ] {
        let mut net = Net::new(1 << 40);
        let sender = net.peer(4);
        // Its queue holds one item at a time.
        let receiver = net.peer_with(Limits {
            bytes: 2,
            ..Limits::default()
        });
        for _ in 0..2 {
            net.send_item(&sender, &receiver, Outgoing::whole(vec![0].into(), frames));
        }
        hold_by_others(&mut net, &sender, others);
        write_one(&receiver);
        let slow = net.flow.handle_deadline(net.at(1000));
        assert_eq!(
            !slow.contains(&receiver.id),
            kept,
            "{frames} frames, and {others} others"
        );
    }
}

#[test]
fn slow_receivers_hold_nobody_and_share_nothing() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(64)];
    for _ in 0..7 {
        let stuck = net.peer(4);
        net.send(&sender, &stuck, 4);
    }
    assert_eq!(net.flow.handle_deadline(net.at(1000)).len(), 7);
    for _ in 0..40 {
        let (origin, later) = (Origin::Connection(sender.id), net.at(1000));
        net.flow.deliver(origin, receiver.id, long(UNIT), false, later);
    }
    // 16 units are the 4 MiB of a second.
    for _ in 0..15 {
        write_one(&receiver);
    }
    assert_eq!(net.flow.handle_deadline(net.at(2000)).len(), 8);
    assert!(net.slow(&receiver));
}

#[test]
fn a_frame_that_is_longer_than_a_seconds_worth_counts_as_it_leaves() {
    for (taken, kept) in [(5 << 20, true), (3 << 20, false)] {
        let mut net = Net::new(1 << 40);
        let [sender, receiver] = [net.peer(4), net.peer(4)];
        let (local, remote) = memory::pair();
        let halves = plain(Arc::new(local), BufferPool::new());
        receiver.outbox.open(halves.transmit);
        net.send_item(&sender, &receiver, long(16 << 20));
        net.send_item(&sender, &receiver, item("behind"));
        let writer = threads::spawn("writer", {
            let outbox = receiver.outbox.clone();
            move || drop(Wire::step(&outbox))
        })
        .unwrap();
        let (mut left, mut buffer) = (taken, vec![0; 64 << 10]);
        while left > 0 {
            let most = left.min(buffer.len());
            left -= remote.read(&mut buffer[..most]).unwrap();
        }
        // Bytes in the system count as taken; they are less than a mebibyte.
        while receiver.outbox.progress().bytes < taken as u64 {
            std::thread::yield_now();
        }
        assert_eq!(
            receiver.outbox.sent().items,
            0,
            "the writer still sends the frame"
        );
        assert_eq!(
            net.flow.handle_deadline(net.at(1000)).is_empty(),
            kept,
            "{taken} bytes"
        );
        remote.shutdown(Shutdown::Both).unwrap();
        writer.join().unwrap();
    }
}

#[test]
fn a_slow_receiver_is_still_held_by_its_own_answers() {
    let mut net = Net::new(1 << 40);
    let [asker, other] = [net.peer(4), net.peer(4)];
    net.send(&other, &asker, 4);
    net.flow.handle_deadline(net.at(1000));
    assert!(net.slow(&asker));
    net.send(&asker, &asker, 1);
    assert!(net.waits(&asker));
    net.drain(&asker);
    assert!(!net.waits(&asker) && !net.slow(&asker));
}

#[test]
#[cfg(debug_assertions)]
fn a_slow_receiver_that_takes_everything_while_its_answers_are_counted_is_measured_no_more() {
    use crate::outbox::interleaving;

    let mut net = Net::new(1 << 40);
    let [asker, other] = [net.peer(16), net.peer(4)];
    net.send(&other, &asker, 9);
    net.flow.handle_deadline(net.at(1000));
    for _ in 0..7 {
        write_one(&asker);
    }
    net.flow.room(asker.id, net.start);
    assert!(net.slow(&asker) && !net.flow.is_waited_for(asker.id));
    net.send(&asker, &asker, 4);
    // The writer moves after the fifth answer is in the queue.
    let (outbox, mut looks) = (asker.outbox.clone(), 0);
    interleaving::set(Some(Box::new(move || {
        looks += 1;
        if looks > 1 {
            Wire::write(&outbox);
        }
    })));
    net.send(&asker, &asker, 1);
    interleaving::set(None);
    assert!(!net.waits(&asker) && !net.slow(&asker));
    assert_eq!(net.flow.next_deadline(), None);
}

#[test]
fn each_receiver_has_its_own_deadline_and_they_come_in_order() {
    let mut net = Net::new(1 << 40);
    let [sender, first, second] = [net.peer(4), net.peer(2), net.peer(2)];
    let [leaves, drains] = [net.peer(2), net.peer(2)];
    for receiver in [&first, &leaves, &drains] {
        net.send(&sender, receiver, 2);
    }
    for _ in 0..2 {
        let (origin, later) = (Origin::Connection(sender.id), net.at(300));
        net.flow.deliver(origin, second.id, long(UNIT), false, later);
    }
    net.flow.remove(leaves.id);
    net.drain(&drains);
    assert_eq!(net.flow.pace_checks.len(), 2);
    assert_eq!(net.flow.next_deadline(), Some(net.at(1000)));
    assert_eq!(net.flow.handle_deadline(net.at(1000)), [first.id]);
    assert_eq!(net.flow.next_deadline(), Some(net.at(1300)));
}
