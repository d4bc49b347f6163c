use std::net::Shutdown;

use super::*;
use crate::host::threads;
use crate::outbox::Limits;
use crate::outbox::tests::{Wire, item, long};
use crate::socket::{Duplex, memory};
use crate::stream::{BufferPool, plain};
use crate::table::Numbers;

/// The length of an item that is a batch of its own and takes 256 KiB and a
/// half of memory at most.
const UNIT: usize = 256 << 10;
/// What it takes of a queue.
const MEMORY: u64 = UNIT as u64 + 128;

/// Connections without threads: their writers write when a test says so.
struct Net {
    flow: Flow<&'static str>,
    numbers: Numbers,
    budget: Budget,
    start: Instant,
}

struct Peer {
    id: ConnectionId,
    outbox: Outbox,
    credit: Arc<Credit>,
    wire: Wire,
}

impl Net {
    fn new(budget: u64) -> Self {
        let budget = Budget::new(budget);
        Self {
            flow: Flow::new(budget.clone(), PATIENCE),
            numbers: Numbers::default(),
            budget,
            start: crate::outbox::now(),
        }
    }

    /// Whose queue holds so many units; others may fill half of it.
    fn peer(&mut self, units: u64) -> Peer {
        self.peer_with(Limits {
            bytes: units * MEMORY,
            ..Limits::default()
        })
    }

    fn peer_with(&mut self, limits: Limits) -> Peer {
        let id = self.numbers.take();
        let outbox = Outbox::within(limits, self.budget.clone());
        let wire = Wire::default();
        wire.open(&outbox);
        let credit = Arc::new(Credit::new(self.budget.clone()));
        self.flow
            .insert(id, outbox.clone(), limits.bytes, Arc::clone(&credit));
        Peer {
            id,
            outbox,
            credit,
            wire,
        }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn send_item(&mut self, from: &Peer, to: &Peer, item: Outgoing) -> Delivery {
        let now = self.start;
        self.flow.deliver(Some(from.id), to.id, item, false, now)
    }

    fn send(&mut self, from: &Peer, to: &Peer, units: usize) {
        for _ in 0..units {
            assert!(matches!(self.send_item(from, to, long(UNIT)), Delivery::Taken));
        }
    }

    /// The application sends by itself.
    fn tell(&mut self, to: &Peer, item: Outgoing) -> Delivery {
        self.flow.deliver(None, to.id, item, false, self.start)
    }

    /// A writer sends all that waits, and the line moves, until nothing is
    /// left of either.
    fn drain(&mut self, to: &Peer) {
        while Wire::write(&to.outbox) {
            assert!(self.flow.room(to.id).is_empty());
        }
    }

    fn waits(&self, sender: &Peer) -> bool {
        self.flow.ways.get(sender.id).unwrap().lines > 0
    }

    fn slow(&self, peer: &Peer) -> bool {
        self.flow.ways.get(peer.id).unwrap().slow
    }

    fn read(&mut self, from: &Peer, items: &[&'static str]) {
        from.credit.spend(100);
        self.flow.arrived(from.id, items.to_vec(), 100);
    }

    fn turn(&mut self) -> Option<ConnectionId> {
        Some(self.flow.next_turn()?.0)
    }
}

fn items<I>(input: Option<Input<I>>) -> Option<I> {
    match input {
        Some(Input::Item(item)) => Some(item),
        _ => None,
    }
}

/// One unit, for the writer.
fn write_one(peer: &Peer) -> bool {
    Wire::step(&peer.outbox).unwrap().unwrap().1
}

#[test]
fn others_may_fill_half_of_a_queue_and_what_is_beyond_waits() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(8), net.peer(8)];
    net.send(&sender, &receiver, 4);
    assert!(!net.waits(&sender));
    net.send(&sender, &receiver, 1);
    assert!(net.waits(&sender), "one over the mark");
    assert_eq!(receiver.outbox.waiting().items, 4);
    net.send(&sender, &receiver, 2);
    assert_eq!(net.budget.used(), 7 * MEMORY, "lines and queues are counted");
    assert!(!write_one(&receiver));
    assert!(write_one(&receiver), "half of the mark is told");
    net.flow.room(receiver.id);
    assert!(net.waits(&sender), "two fit, one still waits");
    net.drain(&receiver);
    assert!(!net.waits(&sender));
    assert_eq!(receiver.outbox.sent().items, 7);
    assert_eq!(net.budget.used(), 0);
    assert_eq!(net.flow.next_deadline(), None);
}

#[test]
fn own_answers_wait_beyond_their_own_mark() {
    let mut net = Net::new(1 << 40);
    let asker = net.peer(64);
    let units = usize::try_from(ANSWERS / MEMORY).unwrap();
    net.send(&asker, &asker, units);
    assert!(!net.waits(&asker));
    net.send(&asker, &asker, 1);
    assert!(net.waits(&asker));
    assert_eq!(net.flow.next_deadline(), None, "it waits for nobody but itself");
    net.send(&asker, &asker, units);
    while !write_one(&asker) {}
    net.flow.room(asker.id);
    assert_eq!(asker.outbox.waiting().items, units as u64, "its line keeps to it");
    net.drain(&asker);
    assert!(!net.waits(&asker));
    let narrow = net.peer(4);
    net.send(&narrow, &narrow, 2);
    assert!(!net.waits(&narrow));
    net.send(&narrow, &narrow, 1);
    assert!(net.waits(&narrow), "nor more than others may fill");
}

#[test]
fn a_receiver_that_keeps_an_item_back_for_its_length_is_asked_once() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(8), net.peer(8)];
    // Less than half of the mark waits, and the next takes more than the rest.
    net.send(&sender, &receiver, 1);
    net.send_item(&sender, &receiver, long(4 * UNIT));
    assert!(net.waits(&sender));
    assert!(net.flow.room(receiver.id).is_empty(), "it returns");
    assert!(net.waits(&sender));
    net.drain(&receiver);
    assert!(!net.waits(&sender));
    assert_eq!(receiver.wire.log(), [UNIT.to_string(), (4 * UNIT).to_string()]);
}

#[test]
fn a_limit_of_frames_makes_senders_wait_as_memory_does() {
    let mut net = Net::new(1 << 40);
    let few = Limits {
        frames: 2,
        ..Limits::default()
    };
    let [sender, receiver] = [net.peer(8), net.peer_with(few)];
    for name in ["a", "b", "c"] {
        net.send_item(&sender, &receiver, item(name));
    }
    assert!(net.waits(&sender));
    assert!(net.flow.room(receiver.id).is_empty());
    assert!(net.waits(&sender), "no memory is short, but a frame");
    let full = net.flow.tick(net.at(1000));
    assert_eq!(full[0].1.len(), 1);
    assert!(net.slow(&receiver), "though hardly any memory is taken");
    net.drain(&receiver);
    assert!(!net.slow(&receiver));
    assert_eq!(receiver.wire.log(), ["a", "b"]);
}

#[test]
fn the_share_of_the_budget_is_a_mark_too() {
    let mut net = Net::new(6 * MEMORY);
    let [sender, receiver, other] = [net.peer(100), net.peer(100), net.peer(100)];
    net.send(&sender, &receiver, 3);
    assert!(!net.waits(&sender));
    net.send(&sender, &receiver, 1);
    assert!(net.waits(&sender), "three wait, three are free: half for each");
    assert!(
        matches!(net.tell(&other, long(UNIT)), Delivery::Taken),
        "one may wait alone"
    );
    assert!(
        matches!(net.tell(&other, long(UNIT)), Delivery::Full(_)),
        "not more than is free"
    );
}

#[test]
fn a_line_moves_in_the_order_of_its_senders() {
    let mut net = Net::new(1 << 40);
    let receiver = net.peer(4);
    let senders = [net.peer(1), net.peer(1), net.peer(1)];
    net.send(&senders[0], &receiver, 2);
    for (sender, names) in senders.iter().zip([["a", "b"], ["c", "d"], ["e", "f"]]) {
        for name in names {
            net.send_item(sender, &receiver, item(name));
        }
    }
    assert!(senders.iter().all(|sender| net.waits(sender)));
    net.drain(&receiver);
    assert_eq!(receiver.wire.log()[2..], ["a", "b", "c", "d", "e", "f"]);
    assert!(!senders.iter().any(|sender| net.waits(sender)));
}

#[test]
fn a_sender_in_two_lines_takes_no_turn_before_it_has_left_both() {
    let mut net = Net::new(1 << 40);
    let [sender, first, second] = [net.peer(4), net.peer(4), net.peer(4)];
    net.read(&sender, &["more"]);
    assert_eq!(net.turn(), Some(sender.id));
    net.send(&sender, &first, 3);
    net.send(&sender, &second, 3);
    assert!(net.flow.take(sender.id).is_none());
    net.flow.end_turn(sender.id, 1, TURN);
    net.read(&sender, &["even more"]);
    assert!(net.flow.is_idle());
    net.drain(&first);
    assert!(net.waits(&sender) && net.flow.is_idle());
    net.drain(&second);
    assert_eq!(net.turn(), Some(sender.id));
    assert!(net.flow.is_idle(), "it is listed once");
    assert_eq!(items(net.flow.take(sender.id)), Some("more"));
}

#[test]
fn who_leaves_its_line_in_its_own_turn_is_listed_once() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.read(&sender, &["more"]);
    assert_eq!(net.turn(), Some(sender.id));
    net.send(&sender, &receiver, 3);
    net.drain(&receiver);
    net.flow.end_turn(sender.id, 1, TURN);
    assert_eq!(net.turn(), Some(sender.id));
    assert!(net.flow.is_idle());
}

#[test]
fn who_waits_is_held_and_goes_on_when_the_receiver_leaves() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.read(&sender, &["more"]);
    net.turn();
    net.send(&sender, &receiver, 4);
    net.flow.end_turn(sender.id, 1, TURN);
    assert!(net.flow.next_deadline().is_some());
    assert!(net.flow.remove(receiver.id).is_empty());
    assert_eq!(net.flow.next_deadline(), None);
    assert!(!net.waits(&sender));
    assert_eq!(net.turn(), Some(sender.id));
    assert_eq!(net.budget.used(), 2 * MEMORY + 100, "the line is given back");
    assert!(matches!(
        net.send_item(&sender, &receiver, item("a")),
        Delivery::Gone
    ));
    assert!(net.flow.remove(receiver.id).is_empty(), "twice is once");
}

#[test]
fn what_a_sender_that_left_has_in_a_line_is_still_delivered() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 4);
    net.flow.remove(sender.id);
    net.drain(&receiver);
    assert_eq!(receiver.outbox.sent().items, 4);
}

#[test]
fn a_receiver_that_is_closed_is_gone_also_where_it_is_full() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 2);
    receiver.outbox.close();
    assert!(matches!(
        net.send_item(&sender, &receiver, long(UNIT)),
        Delivery::Gone
    ));
    assert!(matches!(net.tell(&receiver, long(9 * UNIT)), Delivery::Gone));
    let idle = net.peer(4);
    idle.outbox.close();
    assert!(matches!(net.tell(&idle, item("a")), Delivery::Gone));
}

#[test]
fn what_the_application_sends_fills_the_whole_queue_and_comes_back_beyond() {
    let mut net = Net::new(1 << 40);
    let receiver = net.peer(4);
    for _ in 0..4 {
        assert!(matches!(net.tell(&receiver, long(UNIT)), Delivery::Taken));
    }
    assert!(matches!(net.tell(&receiver, item("a")), Delivery::Full(_)));
}

#[test]
fn at_once_goes_past_the_writer() {
    let mut net = Net::new(1 << 40);
    let receiver = net.peer(4);
    let now = net.start;
    net.flow.deliver(None, receiver.id, item("a"), true, now);
    net.flow.deliver(None, receiver.id, item("b"), false, now);
    Wire::write(&receiver.outbox);
    assert_eq!(receiver.wire.log(), ["a at once", "b"]);
}

#[test]
fn a_receiver_without_pace_is_slow_after_the_patience_and_not_before() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 6);
    assert_eq!(net.flow.next_deadline(), Some(net.start + PATIENCE));
    assert!(net.flow.tick(net.at(999)).is_empty());
    let overflow = net.flow.tick(net.at(1000));
    assert_eq!(
        (overflow.len(), overflow[0].0, overflow[0].1.len()),
        (1, receiver.id, 2)
    );
    assert!(!net.waits(&sender), "nobody waits for it any more");
    assert_eq!(receiver.outbox.waiting().items, 4, "its queue is full");
    assert_eq!(net.budget.used(), 4 * MEMORY);
    assert!(matches!(
        net.send_item(&sender, &receiver, item("a")),
        Delivery::Full(_)
    ));
    assert_eq!(net.flow.next_deadline(), None);
    // Half of its mark is one.
    assert!(!write_one(&receiver) && !write_one(&receiver));
    net.flow.room(receiver.id);
    assert!(net.slow(&receiver), "asked too early, it is watched on");
    assert!(write_one(&receiver));
    net.flow.room(receiver.id);
    assert!(!net.slow(&receiver));
    net.send(&sender, &receiver, 2);
    assert!(net.waits(&sender), "it is waited for again");
}

#[test]
fn a_slow_receiver_takes_no_more_than_its_share_of_the_budget() {
    let mut net = Net::new(8 * MEMORY);
    let [sender, receiver] = [net.peer(100), net.peer(100)];
    net.send(&sender, &receiver, 6);
    let full = net.flow.tick(net.at(1000));
    assert_eq!((full[0].1.len(), receiver.outbox.waiting().items), (2, 4));
    assert!(matches!(
        net.send_item(&sender, &receiver, long(UNIT)),
        Delivery::Full(_)
    ));
}

#[test]
fn what_does_not_fit_takes_what_its_sender_has_behind_it_along() {
    let mut net = Net::new(1 << 40);
    let [first, second, receiver] = [net.peer(4), net.peer(4), net.peer(4)];
    net.send(&first, &receiver, 2);
    net.send_item(&first, &receiver, long(3 * UNIT));
    net.send_item(&first, &receiver, item("behind"));
    net.send_item(&second, &receiver, item("another's"));
    let full = net.flow.tick(net.at(1000)).remove(0).1;
    assert_eq!(full.iter().map(Outgoing::len).collect::<Vec<_>>(), [3 * UNIT, 6]);
    Wire::write(&receiver.outbox);
    assert_eq!(receiver.wire.log().last().unwrap(), "another's");
}

#[test]
fn a_receiver_with_a_pace_of_bytes_or_frames_is_waited_for_on() {
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
        for _ in 0..33 {
            net.send_item(&sender, &receiver, unit.clone());
        }
        assert!(net.waits(&sender));
        for _ in 0..sent {
            write_one(&receiver);
        }
        let overflow = net.flow.tick(net.at(1000));
        assert_eq!(overflow.is_empty(), kept, "{sent} units of {frames} frames");
        assert_eq!(net.waits(&sender), kept);
        if kept {
            // The next second begins anew.
            assert_eq!(net.flow.next_deadline(), Some(net.at(2000)));
            assert!(net.flow.tick(net.at(1999)).is_empty());
            assert_eq!(net.flow.tick(net.at(2000)).len(), 1);
        }
    }
}

#[test]
fn a_frame_that_is_longer_than_a_seconds_worth_counts_as_it_leaves() {
    for (taken, kept) in [(5 << 20, true), (3 << 20, false)] {
        let mut net = Net::new(1 << 40);
        let [sender, receiver] = [net.peer(4), net.peer(4)];
        let (here, there) = memory::pair();
        let halves = plain(Arc::new(here), BufferPool::new());
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
            left -= there.read(&mut buffer[..most]).unwrap();
        }
        // What the system holds counts as taken; it is less than a mebibyte.
        while receiver.outbox.progress().bytes < taken as u64 {
            std::thread::yield_now();
        }
        assert_eq!(receiver.outbox.sent().items, 0, "it is still at it");
        assert_eq!(net.flow.tick(net.at(1000)).is_empty(), kept, "{taken} bytes");
        there.shutdown(Shutdown::Both).unwrap();
        writer.join().unwrap();
    }
}

#[test]
fn a_late_look_measures_the_whole_wait() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(64)];
    net.send(&sender, &receiver, 33);
    for _ in 0..16 {
        write_one(&receiver);
    }
    assert_eq!(net.flow.tick(net.at(2000)).len(), 1, "a second's worth in two");
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    for _ in 0..3 {
        net.send_item(&sender, &receiver, Outgoing::whole(vec![0; UNIT].into(), 30_000));
    }
    write_one(&receiver);
    assert_eq!(
        net.flow.tick(net.at(2000)).len(),
        1,
        "and not two seconds' frames"
    );
}

#[test]
fn a_slow_receiver_is_watched_from_the_start_until_half_of_its_mark() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 4);
    net.flow.tick(net.at(1000));
    assert!(!write_one(&receiver) && !write_one(&receiver));
    assert!(write_one(&receiver), "one of two is left");
    net.flow.room(receiver.id);
    assert!(!net.slow(&receiver));
}

#[test]
fn who_waits_for_itself_alone_has_no_patience_to_lose() {
    let mut net = Net::new(1 << 40);
    let [asker, other] = [net.peer(8), net.peer(8)];
    net.send(&other, &asker, 5);
    net.send(&asker, &asker, 4);
    assert!(net.flow.next_deadline().is_some());
    // The other's item leaves the line, its own answers stay.
    while !write_one(&asker) {}
    net.flow.room(asker.id);
    assert!(!net.waits(&other) && net.waits(&asker));
    assert_eq!(net.flow.next_deadline(), None);
    assert!(net.flow.tick(net.at(5000)).is_empty());
    assert!(!net.slow(&asker));
    // Another behind it waits for it again.
    net.send(&other, &asker, 1);
    assert!(net.flow.next_deadline().is_some());
}

#[test]
fn a_slow_receiver_still_waits_for_its_own_answers() {
    let mut net = Net::new(1 << 40);
    let [asker, other] = [net.peer(4), net.peer(4)];
    net.send(&other, &asker, 4);
    net.flow.tick(net.at(1000));
    assert!(net.slow(&asker));
    net.send(&asker, &asker, 1);
    assert!(net.waits(&asker));
    net.drain(&asker);
    assert!(!net.waits(&asker) && !net.slow(&asker));
}

#[test]
fn the_first_deadline_is_that_of_who_was_waited_for_first() {
    let mut net = Net::new(1 << 40);
    let [sender, first, second] = [net.peer(4), net.peer(2), net.peer(2)];
    net.send(&sender, &first, 2);
    for _ in 0..2 {
        let later = net.at(300);
        net.flow
            .deliver(Some(sender.id), second.id, long(UNIT), false, later);
    }
    assert_eq!(net.flow.next_deadline(), Some(net.at(1000)));
    assert_eq!(net.flow.tick(net.at(1000)).len(), 1);
    assert_eq!(net.flow.next_deadline(), Some(net.at(1300)));
}

#[test]
fn who_leaves_or_is_free_takes_no_other_receivers_deadline_along() {
    let mut net = Net::new(1 << 40);
    let [sender, stays] = [net.peer(4), net.peer(2)];
    let [leaves, drains] = [net.peer(2), net.peer(2)];
    for receiver in [&stays, &leaves, &drains] {
        net.send(&sender, receiver, 2);
    }
    net.flow.remove(leaves.id);
    net.drain(&drains);
    assert_eq!(net.flow.awaited, [stays.id]);
    assert_eq!(net.flow.next_deadline(), Some(net.at(1000)));
}

#[test]
fn who_has_had_least_takes_the_next_turn() {
    let mut net = Net::new(1 << 40);
    let [one, other, quiet] = [net.peer(1), net.peer(1), net.peer(1)];
    for peer in [&one, &other] {
        net.read(peer, &["1", "2", "3"]);
    }
    let mut turns = |reads: bool| {
        if reads {
            net.read(&quiet, &["1"]);
        }
        let id = net.turn().unwrap();
        net.flow.take(id);
        let took = if id == quiet.id { TURN / 10 } else { TURN };
        net.flow.end_turn(id, 1, took);
        id
    };
    let order: Vec<_> = (0..8).map(|n| turns(n >= 2)).collect();
    let [a, b, q] = [one.id, other.id, quiet.id];
    // Its turns are short, so it has ten for each of theirs.
    assert_eq!(order, [a, b, q, q, q, q, q, q]);
}

#[test]
fn who_was_quiet_catches_up_with_little() {
    let mut net = Net::new(1 << 40);
    let [busy, late] = [net.peer(1), net.peer(1)];
    let turns = |net: &mut Net, count| {
        let turn = |_| {
            let id = net.turn().unwrap();
            net.flow.take(id);
            net.flow.end_turn(id, 1, TURN);
            id
        };
        (0..count).map(turn).collect::<Vec<_>>()
    };
    net.read(&busy, &["x"; 100]);
    turns(&mut net, 50);
    net.read(&late, &["x"; 100]);
    let [a, b] = [busy.id, late.id];
    assert!((1..2).contains(&(u128::from(BEHIND) / TURN.as_nanos())));
    assert_eq!(turns(&mut net, 8), [b, b, b, a, b, a, b, a]);
}

#[test]
fn bytes_and_frames_count_as_time_does() {
    let mut net = Net::new(1 << 40);
    let [long, many, short] = [net.peer(1), net.peer(1), net.peer(1)];
    for (peer, bytes, frames) in [(&long, 500, 1), (&many, 100, 7000), (&short, 400, 1)] {
        peer.credit.spend(bytes);
        net.flow.arrived(peer.id, vec!["1"], bytes);
        assert_eq!(net.turn(), Some(peer.id));
        net.flow.take(peer.id);
        net.flow.end_turn(peer.id, frames, Duration::ZERO);
    }
    for peer in [&many, &long, &short] {
        net.read(peer, &["2"]);
    }
    let order = [net.turn(), net.turn(), net.turn()];
    assert_eq!(order, [&short, &long, &many].map(|peer| Some(peer.id)));
}

#[test]
fn who_has_gone_takes_nobodys_turn() {
    let mut net = Net::new(1 << 40);
    let [gone, stays] = [net.peer(1), net.peer(1)];
    net.read(&gone, &["1"]);
    net.read(&stays, &["1"]);
    assert_eq!(net.flow.remove(gone.id), ["1"]);
    assert_eq!(net.turn(), Some(stays.id));
    assert_eq!(net.turn(), None);
}

#[test]
fn a_turn_grows_while_it_is_short_and_shrinks_to_what_fits() {
    let mut net = Net::new(1 << 40);
    let peer = net.peer(1);
    let mut turn = |frames, took| {
        net.flow.end_turn(peer.id, frames, took);
        net.flow.ways.get(peer.id).unwrap().turn
    };
    let short = TURN / 4 - Duration::from_nanos(1);
    assert_eq!(turn(FIRST_TURN - 1, short), FIRST_TURN, "it was not used up");
    assert_eq!(turn(FIRST_TURN, TURN / 4), FIRST_TURN, "it was not short");
    assert_eq!(turn(FIRST_TURN, short), 2 * FIRST_TURN);
    assert_eq!(turn(FIRST_TURN, TURN), 2 * FIRST_TURN, "not too long");
    assert_eq!(turn(2 * FIRST_TURN, 4 * TURN), FIRST_TURN / 2);
    assert_eq!(turn(1, 4 * TURN), FIRST_TURN / 2, "one frame cannot be divided");
    assert_eq!(turn(0, 4 * TURN), FIRST_TURN / 2);
    assert_eq!(turn(2, Duration::MAX), 1);
    for _ in 0..40 {
        turn(u32::MAX, Duration::ZERO);
    }
    assert_eq!(turn(LONGEST_TURN, Duration::ZERO), LONGEST_TURN);
}

#[test]
fn input_comes_in_order_and_its_end_last() {
    let mut net = Net::new(1 << 40);
    let peer = net.peer(1);
    net.read(&peer, &["a", "b"]);
    net.read(&peer, &[]);
    net.read(&peer, &["c"]);
    net.flow.ended(peer.id, EndReason::PeerClosed);
    assert_eq!(net.turn(), Some(peer.id));
    assert_eq!(items(net.flow.take(peer.id)), Some("a"));
    net.flow.put_back(peer.id, "rest of a");
    assert_eq!(items(net.flow.take(peer.id)), Some("rest of a"));
    assert_eq!(net.budget.used(), 300);
    assert_eq!(items(net.flow.take(peer.id)), Some("b"));
    net.flow.put_back(peer.id, "rest of b");
    assert_eq!(items(net.flow.take(peer.id)), Some("rest of b"));
    assert_eq!(
        net.budget.used(),
        300,
        "a batch is paid for once all of it is dealt with"
    );
    assert_eq!(items(net.flow.take(peer.id)), Some("c"));
    assert_eq!(net.budget.used(), 100);
    assert!(net.flow.has_input(peer.id), "the end");
    assert!(matches!(
        net.flow.take(peer.id),
        Some(Input::End(EndReason::PeerClosed))
    ));
    assert!(!net.flow.has_input(peer.id) && net.flow.take(peer.id).is_none());
    net.flow.end_turn(peer.id, 4, TURN);
    assert!(net.flow.is_idle());
}

#[test]
fn a_turn_gives_the_credit_of_finished_batches_back_and_lists_who_has_more() {
    let mut net = Net::new(1 << 40);
    let peer = net.peer(1);
    net.read(&peer, &["a"]);
    net.read(&peer, &["b", "c"]);
    assert_eq!(net.turn(), Some(peer.id));
    net.flow.take(peer.id);
    assert!(net.flow.has_input(peer.id));
    net.flow.end_turn(peer.id, 1, TURN);
    assert_eq!(net.budget.used(), 100);
    assert_eq!(net.turn(), Some(peer.id));
    net.flow.take(peer.id);
    net.flow.take(peer.id);
    assert!(!net.flow.has_input(peer.id));
    net.flow.end_turn(peer.id, 2, TURN);
    assert_eq!((net.turn(), net.budget.used()), (None, 0));
}

#[test]
fn who_leaves_gives_its_input_and_credit_back() {
    let mut net = Net::new(1 << 40);
    let peer = net.peer(1);
    net.read(&peer, &["a", "b"]);
    net.read(&peer, &["c"]);
    net.turn();
    net.flow.take(peer.id);
    peer.credit.spend(7);
    assert_eq!(net.flow.remove(peer.id), ["b", "c"]);
    assert!(!peer.credit.wait(), "its reader is to end");
    assert_eq!(net.budget.used(), 7, "what is on its way");
    net.flow.arrived(peer.id, vec!["late"], 7);
    net.flow.ended(peer.id, EndReason::Local);
    net.flow.put_back(peer.id, "late");
    net.flow.end_turn(peer.id, 1, TURN);
    assert!(net.flow.take(peer.id).is_none() && !net.flow.has_input(peer.id));
    assert_eq!(net.turn(), None);
    drop(peer);
    assert_eq!(net.budget.used(), 0);
}
