//! The items in each line, the origins that they hold, and drops.

use super::*;

#[test]
fn others_may_fill_half_of_a_queue_and_further_items_wait() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(8), net.peer(8)];
    net.send(&sender, &receiver, 4);
    assert!(!net.waits(&sender));
    net.send(&sender, &receiver, 1);
    assert!(net.waits(&sender), "the queue is at its mark");
    assert_eq!(receiver.outbox.waiting().items, 4);
    net.send(&sender, &receiver, 2);
    assert_eq!(net.budget.used(), 7 * MEMORY, "lines and queues are counted");
    assert!(
        write_one(&receiver),
        "room is reported at three quarters of the mark"
    );
    net.flow.room(receiver.id, net.start);
    assert!(net.waits(&sender), "one item finds room, two still wait");
    net.drain(&receiver);
    assert!(!net.waits(&sender));
    assert_eq!(receiver.outbox.sent().items, 7);
    assert_eq!((net.budget.used(), net.flow.next_deadline()), (0, None));
}

#[test]
fn the_system_may_keep_more_for_a_receiver_that_takes_much() {
    let mut net = Net::new(1 << 40);
    net.flow.least_mark = MEMORY;
    let [sender, receiver] = [net.peer(1 << 10), net.peer(1 << 10)];
    net.send(&sender, &receiver, 2);
    assert!(net.waits(&sender));
    for _ in 0..100 {
        net.drain(&receiver);
        net.send(&sender, &receiver, 2);
    }
    let allowed = || {
        let log = receiver.wire.log();
        log.into_iter().filter(|call| call.ends_with("unsent"))
    };
    assert_eq!(allowed().count(), 0);
    net.drain(&receiver);
    net.start = net.at(100);
    net.send(&sender, &receiver, 2);
    assert!(!net.waits(&sender), "the mark is higher now");
    net.drain(&receiver);
    // It has taken 202 units in a tenth of a second.
    let mark = 202 * MEMORY / 10;
    assert!(allowed().eq([format!("{} unsent", mark / 4)]));
}

#[test]
fn unread_answers_hold_only_their_receiver() {
    let mut net = Net::new(1 << 40);
    let [asker, other] = [net.peer(64), net.peer(4)];
    // A quarter of the limit is half of the mark.
    let units = 16;
    net.send(&asker, &asker, units);
    assert!(!net.waits(&asker));
    net.send(&asker, &asker, 1);
    assert!(
        net.waits(&asker),
        "more than half of the mark are its own answers"
    );
    assert!(
        asker.credit.try_wait().0 == Some(true),
        "no input of the connection is under way"
    );
    for _ in 0..8 {
        net.send(&other, &asker, 1);
        assert!(!net.waits(&other), "the queue is below its mark");
    }
    assert_eq!(net.flow.next_deadline(), None, "no sender waits for the receiver");
    assert!((0..8).all(|_| !write_one(&asker)));
    net.flow.room(asker.id, net.start);
    assert!(
        net.waits(&asker),
        "more than a quarter of the mark are its own answers"
    );
    assert!(write_one(&asker));
    net.flow.room(asker.id, net.start);
    assert!(!net.waits(&asker));
    // The sender does not wait for a writer that has failed either.
    net.send(&asker, &asker, units);
    assert!(net.waits(&asker));
    asker.outbox.fail(std::io::ErrorKind::TimedOut.into());
    net.flow.room(asker.id, net.start);
    assert!(!net.waits(&asker));
}

#[test]
fn answers_of_one_run_beyond_their_bound_hold_no_other_sender() {
    let mut net = Net::new(1 << 40);
    let [asker, other] = [net.peer(64), net.peer(4)];
    net.send(&asker, &asker, 31);
    assert!(net.waits(&asker));
    net.send(&other, &asker, 1);
    assert!(!net.waits(&other) && !net.flow.is_waited_for(asker.id));
    asker.credit.spend(1);
    assert_eq!(asker.credit.try_wait().0, None, "the connection is not read from");
    assert_eq!(net.flow.state(asker.id).paused_since, Some(net.start));
    net.drain(&asker);
    assert_eq!(asker.credit.try_wait().0, Some(true));
    assert_eq!(net.flow.state(asker.id).paused_since, None);
}

#[test]
fn answers_from_the_line_count_when_they_are_in_the_queue() {
    let mut net = Net::new(1 << 40);
    let asker = net.peer(4);
    net.send(&asker, &asker, 4);
    for _ in 0..2 {
        write_one(&asker);
        net.flow.room(asker.id, net.start);
    }
    assert!(!net.flow.is_waited_for(asker.id));
    assert!(net.waits(&asker), "the queue is full of its answers");
    net.drain(&asker);
    assert!(!net.waits(&asker));
}

#[test]
fn room_for_answers_is_reported_although_others_wait_for_more() {
    let mut net = Net::new(1 << 40);
    let [asker, other] = [net.peer(64), net.peer(4)];
    net.send(&asker, &asker, 17);
    net.send(&other, &asker, 30);
    assert!(net.waits(&asker) && net.waits(&other));
    assert!((0..7).all(|_| !write_one(&asker)) && write_one(&asker));
    net.flow.room(asker.id, net.start);
    assert!(
        net.waits(&asker),
        "the queue is full again, and nine answers are in it"
    );
    assert!(write_one(&asker));
    net.flow.room(asker.id, net.start);
    assert!(!net.waits(&asker));
}

#[test]
fn answers_wait_for_room_like_other_items_if_the_queue_is_short() {
    let mut net = Net::new(1 << 40);
    let [asker, other] = [net.peer(4), net.peer(4)];
    net.send(&asker, &asker, 2);
    assert!(net.waits(&asker), "half of the mark are its own answers");
    net.send(&asker, &asker, 2);
    assert!(net.waits(&asker));
    assert_eq!(
        net.flow.next_deadline(),
        None,
        "the connection waits for its own answers"
    );
    assert!(net.flow.handle_deadline(net.at(5000)).is_empty());
    net.send(&other, &asker, 1);
    assert!(net.waits(&other) && net.flow.next_deadline().is_some());
    net.drain(&asker);
    assert!(!net.waits(&asker) && !net.waits(&other));
    assert_eq!((asker.outbox.sent().items, net.flow.next_deadline()), (5, None));
}

#[test]
fn a_long_item_needs_no_more_room_than_a_short_one() {
    let mut net = Net::new(1 << 40);
    let [long_sender, sender, receiver] = [net.peer(8), net.peer(8), net.peer(8)];
    net.send(&sender, &receiver, 3);
    net.send_item(&long_sender, &receiver, long(16 * UNIT));
    assert!(!net.waits(&long_sender));
    net.send(&sender, &receiver, 1);
    assert!(net.waits(&sender));
    net.drain(&receiver);
    assert!(!net.waits(&sender));
}

#[test]
fn a_limit_of_frames_makes_senders_wait_as_memory_does() {
    let mut net = Net::new(1 << 40);
    let few = Limits {
        frames: 4,
        ..Limits::default()
    };
    let [sender, receiver] = [net.peer(8), net.peer_with(few)];
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        net.send_item(&sender, &receiver, item(name));
    }
    assert!(net.waits(&sender));
    assert_eq!(receiver.outbox.waiting().frames, 2);
    assert_eq!(net.flow.handle_deadline(net.at(1000)), [receiver.id]);
    assert_eq!(
        net.drop_overflow(&receiver, false),
        3,
        "the limit of frames holds although little memory is used"
    );
    net.drain(&receiver);
    assert_eq!(receiver.wire.log(), ["a", "b", "c", "d"]);
}

#[test]
fn the_share_of_the_budget_limits_a_queue_as_well() {
    let mut net = Net::new(6 * MEMORY);
    let [sender, receiver, other] = [net.peer(100), net.peer(100), net.peer(100)];
    net.send(&sender, &receiver, 3);
    assert!(!net.waits(&sender));
    net.send(&sender, &receiver, 1);
    assert!(
        net.waits(&sender),
        "three units wait, three are free: half for each"
    );
    let deliveries: Vec<_> = (0..3).map(|_| net.tell(&other, long(UNIT))).collect();
    assert_eq!(
        deliveries,
        [Delivery::Taken, Delivery::Taken, Delivery::Overflows],
        "two units are free: one in the queue, and one may always wait"
    );
}

#[test]
fn items_leave_for_a_receiver_in_the_order_in_which_they_were_sent() {
    let mut net = Net::new(1 << 40);
    let receiver = net.peer(4);
    let senders = [net.peer(1), net.peer(1), net.peer(1)];
    net.send(&senders[0], &receiver, 2);
    for name in ["a", "b", "c", "d", "e", "f"] {
        let n = receiver.outbox.waiting().items + name.len() as u64 + u64::from(name.as_bytes()[0]);
        let sender = &senders[usize::try_from(n % 3).unwrap()];
        net.send_item(sender, &receiver, item(name));
        // Items of a timer, a call or an answer come after the line.
        net.tell(&receiver, item(&name.to_uppercase()));
        net.send_item(&receiver, &receiver, item(&name.repeat(2)));
    }
    assert!(senders.iter().all(|sender| net.waits(sender)));
    // There is room for one more item, but the line comes first.
    write_one(&receiver);
    net.tell(&receiver, item("a timer"));
    net.send_item(&senders[1], &receiver, item("a frame"));
    net.flow.room(receiver.id, net.start);
    net.drain(&receiver);
    let order = "a A aa b B bb c C cc d D dd e E ee f F ff".split(' ');
    assert!(
        receiver.wire.log()[2..]
            .iter()
            .eq(order.chain(["a timer", "a frame"]))
    );
    assert!(!senders.iter().any(|sender| net.waits(sender)));
    assert!(net.flow.is_idle(), "no connection has input");
    assert_eq!(net.flow.state(receiver.id).last_item_at, Some(net.start));
}

#[test]
fn a_sender_in_two_lines_takes_no_turn_before_it_has_left_both() {
    let mut net = Net::new(1 << 40);
    let [sender, first, second] = [net.peer(4), net.peer(4), net.peer(4)];
    net.read(&sender, &["more"]);
    assert_eq!(net.turn(), Some(sender.id));
    net.send(&sender, &first, 3);
    for _ in 0..3 {
        let (origin, later) = (Origin::Connection(sender.id), net.at(300));
        net.flow.deliver(origin, second.id, long(UNIT), false, later);
    }
    assert!(net.flow.take(sender.id).is_none());
    net.flow.end_turn(sender.id);
    net.read(&sender, &["even more"]);
    assert!(net.flow.is_idle());
    assert_eq!(net.flow.state(sender.id).paused_since, Some(net.start));
    net.drain(&first);
    assert!(net.waits(&sender) && net.flow.is_idle());
    assert_eq!(
        sender.credit.try_wait().0,
        None,
        "the sender is not read from either"
    );
    net.drain(&second);
    assert_eq!(sender.credit.try_wait().0, Some(true));
    assert_eq!(net.flow.state(sender.id).paused_since, None);
    assert_eq!(net.turn(), Some(sender.id));
    assert!(net.flow.is_idle(), "the connection is listed once");
    assert_eq!(items(net.flow.take(sender.id)), Some("more"));
}

#[test]
fn a_connection_released_in_its_own_turn_is_listed_once() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.read(&sender, &["more"]);
    assert_eq!(net.turn(), Some(sender.id));
    net.send(&sender, &receiver, 3);
    net.drain(&receiver);
    net.flow.end_turn(sender.id);
    assert_eq!(net.turn(), Some(sender.id));
    assert!(net.flow.is_idle());
}

#[test]
fn a_held_sender_is_released_when_the_receiver_ends() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.read(&sender, &["more"]);
    net.turn();
    net.send(&sender, &receiver, 4);
    net.flow.end_turn(sender.id);
    assert!(net.flow.next_deadline().is_some());
    assert!(net.flow.remove(receiver.id).is_empty());
    assert_eq!(net.flow.next_deadline(), None);
    assert!(!net.waits(&sender));
    assert_eq!(net.turn(), Some(sender.id));
    assert_eq!(receiver.outbox.lost(), 2, "the items of its line");
    assert_eq!(
        net.budget.used(),
        2 * MEMORY + 100,
        "the memory of the line is released"
    );
    assert_eq!(net.send_item(&sender, &receiver, item("a")), Delivery::Closed);
    assert!(
        net.flow.remove(receiver.id).is_empty(),
        "a second end has no effect"
    );
}

#[test]
fn an_end_with_grace_sends_the_line_first_and_holds_no_origin() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 4);
    net.tell(&receiver, item("farewell"));
    receiver.credit.spend(1);
    net.flow.arrived(receiver.id, vec!["unread"], 1, net.start);
    net.flow.ended(receiver.id, EndReason::PeerClosed);
    assert_eq!(net.flow.end(receiver.id, net.start), ["unread"]);
    assert!(!net.waits(&sender) && net.flow.next_deadline().is_none());
    assert_eq!(receiver.credit.try_wait().0, Some(false), "the reader has to end");
    assert!(!net.flow.has_end(receiver.id), "the connection ends already");
    assert_eq!(net.send_item(&sender, &receiver, item("late")), Delivery::Closed);
    assert!(!receiver.outbox.is_closed());
    net.drain(&receiver);
    assert!(receiver.outbox.is_closed() && net.flow.connections() == 1);
    let log = receiver.wire.log();
    assert_eq!(
        (log.len(), &log[4..]),
        (6, &["farewell".to_owned(), "finish".to_owned()][..])
    );
    assert_eq!((receiver.outbox.lost(), net.budget.used()), (0, 0));
    // A connection without a line is closed at once, and so is a connection that cannot send any more.
    let [idle, lost] = [net.peer(4), net.peer(4)];
    net.flow.end(idle.id, net.start);
    net.send(&sender, &lost, 3);
    lost.outbox.abort();
    net.flow.end(lost.id, net.start);
    assert!(idle.outbox.is_closed() && net.flow.connections() == 1);
    assert_eq!(lost.outbox.lost(), 1);
    // A slow one is measured no more, because its line would be dropped to its limit.
    let slow = net.peer(4);
    net.send(&sender, &slow, 4);
    assert_eq!(net.flow.handle_deadline(net.at(1000)), [slow.id]);
    net.flow.end(slow.id, net.at(1000));
    assert_eq!(net.flow.next_deadline(), None);
}

#[test]
fn items_of_a_sender_that_has_ended_are_still_delivered() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 4);
    net.flow.remove(sender.id);
    net.drain(&receiver);
    assert_eq!(receiver.outbox.sent().items, 4);
}

#[test]
fn a_receiver_that_is_closed_is_gone_and_its_line_lost() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 3);
    receiver.outbox.fail(std::io::ErrorKind::TimedOut.into());
    net.flow.room(receiver.id, net.start);
    assert!(!net.waits(&sender));
    assert_eq!(receiver.outbox.lost(), 1);
    assert_eq!(net.send_item(&sender, &receiver, long(UNIT)), Delivery::Closed);
    assert_eq!(net.tell(&receiver, long(9 * UNIT)), Delivery::Closed);
}

#[test]
fn items_of_the_application_beyond_the_limit_meet_the_policy() {
    for (oldest, kept) in [(false, ["a", "b", "c", "d"]), (true, ["a", "b", "e", "f"])] {
        let mut net = Net::new(1 << 40);
        let few = Limits {
            frames: 4,
            ..Limits::default()
        };
        let [sender, receiver] = [net.peer(4), net.peer_with(few)];
        for name in ["a", "b", "c", "d", "e", "f"] {
            let over = net.tell(&receiver, item(name)) == Delivery::Overflows;
            assert_eq!(over, name > "d");
            assert_eq!(net.drop_overflow(&receiver, oldest), usize::from(over));
        }
        assert_eq!(receiver.outbox.counters().figures().dropped, 2);
        // A sender is paused behind the application's items, and its item is not dropped.
        net.send_item(&sender, &receiver, item("waits"));
        assert!(net.waits(&sender) && net.flow.overflow(receiver.id).is_none());
        net.drain(&receiver);
        assert_eq!(receiver.wire.log(), [&kept[..], &["waits"]].concat());
        assert_eq!(net.budget.used(), 0);
    }
}

#[test]
fn held_items_take_no_room_from_the_application() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 20);
    for _ in 0..2 {
        assert_eq!(net.tell(&receiver, long(UNIT)), Delivery::Taken);
    }
    assert_eq!(net.tell(&receiver, item("a")), Delivery::Overflows);
}

#[test]
fn one_item_of_the_application_may_always_wait_however_long_it_is() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 3);
    assert_eq!(net.tell(&receiver, long(100 * UNIT)), Delivery::Taken);
    assert_eq!(net.tell(&receiver, item("a")), Delivery::Overflows);
    let newest = net.flow.overflow(receiver.id);
    assert_eq!(newest, Some(item("a").load()));
}

#[test]
fn no_receiver_meets_the_policy_because_of_the_queues_of_others() {
    let mut net = Net::new(16 << 20);
    let [hoarders, honest] = [net.budget.of(b"one certificate"), net.budget.of(b"another")];
    let limits = Limits::default();
    let healthy = net.peer_within(limits, honest);
    for _ in 0..20 {
        // These peers send requests without end, and do not read their answers.
        let hoarder = net.peer_within(limits, hoarders.clone());
        while !net.waits(&hoarder) {
            net.send_item(&hoarder, &hoarder, long(30_000));
        }
        // Items of the application may wait as well.
        for _ in 0..100 {
            net.tell(&hoarder, long(10_000));
            net.drop_overflow(&hoarder, true);
        }
    }
    assert!(net.budget.used() < 12 << 20, "{}", net.budget.used());
    for _ in 0..6 {
        assert_eq!(net.tell(&healthy, long(40_000)), Delivery::Taken);
    }
    net.drain(&healthy);
    assert_eq!(healthy.outbox.sent().items, 6);
}

#[test]
fn an_item_to_be_sent_at_once_goes_past_the_writer() {
    let mut net = Net::new(1 << 40);
    let receiver = net.peer(4);
    let (now, origin) = (net.start, Origin::Application);
    net.flow.deliver(origin, receiver.id, item("a"), true, now);
    net.flow.deliver(origin, receiver.id, item("b"), false, now);
    Wire::write(&receiver.outbox);
    assert_eq!(receiver.wire.log(), ["a at once", "b"]);
}

#[test]
fn a_released_sender_has_its_whole_credit() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 6);
    sender.credit.spend(1000);
    assert_eq!(sender.credit.try_wait().0, None, "one batch at a time");
    net.drain(&receiver);
    assert_eq!(sender.credit.try_wait().0, Some(true));
}

#[test]
fn a_dispatcher_that_is_dropped_gives_the_memory_of_its_lines_back() {
    let mut net = Net::new(1 << 30);
    let [from, to] = [64, 4].map(|units| net.peer(units));
    net.send(&from, &to, 3);
    assert!(net.flow.is_waited_for(to.id));
    let Net { flow, budget, .. } = net;
    drop((flow, from, to));
    assert_eq!(budget.used(), 0);
}
