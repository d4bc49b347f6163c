//! Who is charged for what waits: the sender, also after its connection has ended.

use super::*;

#[test]
fn a_sender_that_takes_its_own_connection_over_is_paused_and_its_receiver_is_not_charged() {
    let mut net = Net::new(1 << 40);
    let receiver = net.peer(4);
    let mut sender = net.again(7);
    let mut sent = 0;
    for n in 0..200 {
        // A paused connection gets no turn, so it sends nothing.
        if !net.waits(&sender) {
            net.send(&sender, &receiver, 6);
            sent += 6;
        }
        let former = sender;
        sender = net.again(7);
        match n % 2 {
            0 => drop(net.flow.remove(former.id)),
            _ => drop(net.flow.end(former.id, net.start)),
        }
        assert_eq!((net.flow.fault(), net.flow.overflow(receiver.id)), (None, None));
    }
    assert_eq!(sent, 6, "one turn of one sender");
    assert!(net.waits(&sender));
    assert_eq!(
        sender.credit.try_wait().0,
        Some(true),
        "one batch may be under way"
    );
    sender.credit.spend(1);
    assert_eq!(sender.credit.try_wait().0, None);
    net.drain(&receiver);
    assert!(!net.waits(&sender), "the items of the first connection have left");
    assert_eq!(sender.credit.try_wait().0, Some(true));
    assert_eq!(receiver.outbox.sent().items, 6);
    net.flow.remove(sender.id);
    assert_eq!((net.flow.ended_in_lines(), net.budget.used()), (0, 1));
}

#[test]
fn a_sender_that_comes_back_later_waits_for_the_items_of_its_former_connection() {
    let mut net = Net::new(1 << 40);
    let [receiver, other] = [net.peer(4), net.peer(4)];
    let sender = net.again(7);
    net.send(&sender, &receiver, 3);
    net.flow.remove(sender.id);
    net.send(&other, &receiver, 1);
    let [stranger, sender] = [net.again(8), net.again(7)];
    assert!(net.waits(&sender) && !net.waits(&stranger));
    net.read(&sender, &["a"]);
    assert!(net.flow.is_idle() && !net.flow.may_take_a_turn(sender.id));
    net.drain(&receiver);
    assert!(!net.waits(&sender) && net.flow.may_take_a_turn(sender.id));
    assert_eq!(net.turn(), Some(sender.id));
}

#[test]
fn each_connection_that_has_ended_counts_until_its_items_have_left() {
    let mut net = Net::new(1 << 40);
    let [receiver, stays] = [net.peer(4), net.peer(4)];
    for n in 0..50 {
        let sender = net.again(n);
        net.send(&sender, &receiver, 3);
        net.flow.remove(sender.id);
    }
    net.send(&stays, &receiver, 1);
    assert_eq!(net.flow.ended_in_lines(), 50);
    assert_eq!(net.flow.overflow(receiver.id), None);
    net.drain(&receiver);
    assert_eq!((net.flow.ended_in_lines(), net.flow.fault()), (0, None));
    assert!(!net.waits(&stays));
    assert_eq!((receiver.outbox.sent().items, net.budget.used()), (151, 0));
}

#[test]
fn items_that_wait_take_the_memory_of_those_that_have_sent_them() {
    let queues = Budget::new(1 << 40);
    let mut net = Net::new(64 * MEMORY);
    let limits = Limits {
        bytes: 4 * MEMORY,
        ..Limits::default()
    };
    let receiver = net.peer_within(limits, queues.clone());
    // All of them have one owner, which may have half of the memory.
    let part = net.budget.of(b"one certificate");
    let mut unfinished = Unfinished::new(&part);
    let frame = usize::try_from(4 * MEMORY).unwrap() + UNRESERVED;
    let mut granted = 0;
    for n in 0..100 {
        let look = unfinished.next_read(UNRESERVED, frame, || net.start, || ());
        if look == NextRead::Wait {
            break;
        }
        granted += 1;
        unfinished.done();
        let sender = net.again_within(n, &part);
        net.send(&sender, &receiver, 4);
        net.flow.remove(sender.id);
    }
    // Each takes four units, and the first two units are in the queue.
    assert_eq!(
        granted, 9,
        "the next one waits for memory, in the order of arrival"
    );
    assert_eq!((part.used(), queues.used()), (34 * MEMORY, 2 * MEMORY));
    let mut other = Unfinished::new(&net.budget.of(b"another certificate"));
    let look = other.next_read(UNRESERVED, frame, || net.start, || ());
    assert_eq!(look, NextRead::Read(usize::MAX), "others have their part");
    net.drain(&receiver);
    assert!(unfinished.is_granted());
    assert_eq!(receiver.outbox.sent().items, 36);
}

#[test]
fn a_slow_receiver_is_charged_for_its_line_from_then_on() {
    let queues = Budget::new(1 << 40);
    let mut net = Net::new(1 << 40);
    let limits = Limits {
        bytes: 4 * MEMORY,
        ..Limits::default()
    };
    let receiver = net.peer_within(limits, queues.clone());
    let sender = net.again(7);
    net.send(&sender, &receiver, 6);
    assert_eq!((net.budget.used(), queues.used()), (4 * MEMORY, 2 * MEMORY));
    net.flow.remove(sender.id);
    assert_eq!(net.flow.handle_deadline(net.at(1000)), [receiver.id]);
    assert_eq!((net.budget.used(), queues.used()), (0, 6 * MEMORY));
    assert_eq!(net.flow.ended_in_lines(), 0);
    assert_eq!(net.drop_overflow(&receiver, true), 2);
    net.flow.remove(receiver.id);
    receiver.outbox.discard();
    assert_eq!(queues.used(), 0);
}

#[test]
fn items_of_a_connection_that_has_just_ended_are_those_of_the_application() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.flow.remove(sender.id);
    net.send(&sender, &receiver, 4);
    assert_eq!(net.send_item(&sender, &receiver, long(UNIT)), Delivery::Overflows);
    assert_eq!(net.flow.ended_in_lines(), 0);
}

#[test]
fn a_connection_that_ends_while_its_answers_wait_pauses_no_successor() {
    let mut net = Net::new(1 << 40);
    let asker = net.again(7);
    net.send(&asker, &asker, 2);
    assert!(net.waits(&asker), "it has not read its answers");
    net.flow.remove(asker.id);
    let again = net.again(7);
    assert!(!net.waits(&again));
    assert_eq!((net.flow.ended_in_lines(), net.flow.fault()), (0, None));
}
