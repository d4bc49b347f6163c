use std::net::Shutdown;

use super::turns::SHARE;
use super::*;
use crate::budget::Budget;
use crate::host::threads;
use crate::outbox::Limits;
use crate::outbox::tests::{Wire, item, long};
use crate::socket::{Duplex, memory};
use crate::stream::{BufferPool, plain};
use crate::table::Numbers;

/// As long as a share.
const TURN: Duration = Duration::from_nanos(SHARE.unsigned_abs());

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
            flow: Flow::new(PATIENCE),
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
        self.peer_within(limits, self.budget.clone())
    }

    fn peer_within(&mut self, limits: Limits, budget: Budget) -> Peer {
        let id = self.numbers.take();
        let outbox = Outbox::within(limits, budget);
        let wire = Wire::default();
        wire.open(&outbox);
        let credit = Arc::new(Credit::new(self.budget.clone()));
        self.flow.insert(id, outbox.clone(), limits, Arc::clone(&credit));
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
        self.flow
            .deliver(Origin::Connection(from.id), to.id, item, false, now)
    }

    fn send(&mut self, from: &Peer, to: &Peer, units: usize) {
        for _ in 0..units {
            assert_eq!(self.send_item(from, to, long(UNIT)), Delivery::Taken);
        }
    }

    /// The application sends by itself.
    fn tell(&mut self, to: &Peer, item: Outgoing) -> Delivery {
        self.flow
            .deliver(Origin::Application, to.id, item, false, self.start)
    }

    /// A writer sends all that waits, and the line moves, until nothing is
    /// left of either.
    fn drain(&mut self, to: &Peer) {
        while Wire::write(&to.outbox) {
            self.flow.room(to.id, self.start);
        }
        assert!(!self.flow.is_waited_for(to.id));
    }

    /// As the runner does it.
    fn drop_overflow(&mut self, to: &Peer, oldest: bool) -> usize {
        let mut dropped = 0;
        while self.flow.overflow(to.id).is_some() {
            self.flow.drop_one(to.id, oldest);
            dropped += 1;
        }
        dropped
    }

    fn waits(&self, sender: &Peer) -> bool {
        assert_eq!(self.flow.fault(), None);
        self.flow.is_held(sender.id)
    }

    fn slow(&self, peer: &Peer) -> bool {
        self.flow.state(peer.id).is_slow
    }

    fn read(&mut self, from: &Peer, items: &[&'static str]) {
        from.credit.spend(100);
        self.flow.arrived(from.id, items.to_vec(), 100);
    }

    fn turn(&mut self) -> Option<ConnectionId> {
        self.flow.next_turn()
    }

    /// A turn in which each item takes so long. Who had it, and how many items it had.
    fn whole_turn(&mut self, each: Duration) -> Option<(ConnectionId, u32)> {
        let (id, mut items) = (self.flow.next_turn()?, 0);
        while self.flow.take(id).is_some() {
            self.flow.charge(id, 1, each, Duration::ZERO);
            items += 1;
        }
        self.flow.end_turn(id);
        Some((id, items))
    }
}

fn items<I>(input: Option<Input<I>>) -> Option<I> {
    match input {
        Some(Input::Item(item, _)) => Some(item),
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
    assert!(net.waits(&sender), "the queue is at its mark");
    assert_eq!(receiver.outbox.waiting().items, 4);
    net.send(&sender, &receiver, 2);
    assert_eq!(net.budget.used(), 7 * MEMORY, "lines and queues are counted");
    assert!(!write_one(&receiver));
    assert!(write_one(&receiver), "half of the mark is told");
    net.flow.room(receiver.id, net.start);
    assert!(net.waits(&sender), "two find room, one still waits");
    net.drain(&receiver);
    assert!(!net.waits(&sender));
    assert_eq!(receiver.outbox.sent().items, 7);
    assert_eq!((net.budget.used(), net.flow.next_deadline()), (0, None));
}

#[test]
fn who_leaves_its_own_answers_is_held_and_holds_nobody_else() {
    let mut net = Net::new(1 << 40);
    let [asker, other] = [net.peer(64), net.peer(4)];
    let units = usize::try_from(ANSWERS / MEMORY).unwrap();
    net.send(&asker, &asker, units);
    assert!(!net.waits(&asker));
    net.send(&asker, &asker, 1);
    assert!(net.waits(&asker), "more than a mebibyte is its own");
    assert!(
        asker.credit.try_wait().0 == Some(true),
        "nothing of it is under way"
    );
    for _ in 0..8 {
        net.send(&other, &asker, 1);
        assert!(!net.waits(&other), "the queue is below its mark");
    }
    assert_eq!(net.flow.next_deadline(), None, "nobody waits for it");
    // Three of the four are before the last half of a mebibyte of answers.
    assert!(!write_one(&asker) && !write_one(&asker) && write_one(&asker));
    net.flow.room(asker.id, net.start);
    assert!(!net.waits(&asker));
    // Nor does it wait for a writer that has failed.
    net.send(&asker, &asker, units);
    assert!(net.waits(&asker));
    asker.outbox.fail(std::io::ErrorKind::TimedOut.into());
    net.flow.room(asker.id, net.start);
    assert!(!net.waits(&asker));
}

#[test]
fn answers_wait_for_room_as_everything_does_where_the_queue_is_short() {
    let mut net = Net::new(1 << 40);
    let [asker, other] = [net.peer(4), net.peer(4)];
    net.send(&asker, &asker, 2);
    assert!(net.waits(&asker), "half of the mark is its own");
    net.send(&asker, &asker, 2);
    assert!(net.waits(&asker));
    assert_eq!(net.flow.next_deadline(), None, "it waits for itself");
    assert!(net.flow.tick(net.at(5000)).is_empty());
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
    assert_eq!(net.flow.tick(net.at(1000)), [receiver.id]);
    assert_eq!(
        net.drop_overflow(&receiver, false),
        3,
        "though hardly any memory is taken"
    );
    net.drain(&receiver);
    assert_eq!(receiver.wire.log(), ["a", "b", "c", "d"]);
}

#[test]
fn the_share_of_the_budget_is_a_mark_too() {
    let mut net = Net::new(6 * MEMORY);
    let [sender, receiver, other] = [net.peer(100), net.peer(100), net.peer(100)];
    net.send(&sender, &receiver, 3);
    assert!(!net.waits(&sender));
    net.send(&sender, &receiver, 1);
    assert!(net.waits(&sender), "three wait, three are free: half for each");
    let told: Vec<_> = (0..3).map(|_| net.tell(&other, long(UNIT))).collect();
    assert_eq!(
        told,
        [Delivery::Taken, Delivery::Taken, Delivery::Overflows],
        "two are free: one in the queue, and one may always wait"
    );
}

#[test]
fn what_is_sent_to_a_receiver_leaves_in_the_order_in_which_it_was_sent() {
    let mut net = Net::new(1 << 40);
    let receiver = net.peer(4);
    let senders = [net.peer(1), net.peer(1), net.peer(1)];
    net.send(&senders[0], &receiver, 2);
    for name in ["a", "b", "c", "d", "e", "f"] {
        let n = receiver.outbox.waiting().items + name.len() as u64 + u64::from(name.as_bytes()[0]);
        let sender = &senders[usize::try_from(n % 3).unwrap()];
        net.send_item(sender, &receiver, item(name));
        // Whatever a timer, a call or an answer sends comes after that.
        net.tell(&receiver, item(&name.to_uppercase()));
        net.send_item(&receiver, &receiver, item(&name.repeat(2)));
    }
    assert!(senders.iter().all(|sender| net.waits(sender)));
    // One more would find room, but what waits comes first.
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
    net.flow.end_turn(sender.id);
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
    net.flow.end_turn(sender.id);
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
    net.flow.end_turn(sender.id);
    assert!(net.flow.next_deadline().is_some());
    assert!(net.flow.remove(receiver.id).is_empty());
    assert_eq!(net.flow.next_deadline(), None);
    assert!(!net.waits(&sender));
    assert_eq!(net.turn(), Some(sender.id));
    assert_eq!(receiver.outbox.lost(), 2, "what was in its line");
    assert_eq!(net.budget.used(), 2 * MEMORY + 100, "the line is given back");
    assert_eq!(net.send_item(&sender, &receiver, item("a")), Delivery::Gone);
    assert!(net.flow.remove(receiver.id).is_empty(), "twice is once");
}

#[test]
fn who_ends_with_grace_gets_its_line_first_and_holds_nobody() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 4);
    net.tell(&receiver, item("farewell"));
    receiver.credit.spend(1);
    net.flow.arrived(receiver.id, vec!["unread"], 1);
    assert_eq!(net.flow.end(receiver.id, net.start), ["unread"]);
    assert!(!net.waits(&sender) && net.flow.next_deadline().is_none());
    assert!(!receiver.credit.wait(), "its reader is to end");
    assert_eq!(net.send_item(&sender, &receiver, item("late")), Delivery::Gone);
    assert!(!receiver.outbox.is_closed());
    net.drain(&receiver);
    assert!(receiver.outbox.is_closed() && net.flow.connections() == 1);
    let log = receiver.wire.log();
    assert_eq!(
        (log.len(), &log[4..]),
        (6, &["farewell".to_owned(), "finish".to_owned()][..])
    );
    assert_eq!((receiver.outbox.lost(), net.budget.used()), (0, 0));
    // One without a line is closed at once, and so is one that cannot send any more.
    let [idle, lost] = [net.peer(4), net.peer(4)];
    net.flow.end(idle.id, net.start);
    net.send(&sender, &lost, 3);
    lost.outbox.abort();
    net.flow.end(lost.id, net.start);
    assert!(idle.outbox.is_closed() && net.flow.connections() == 1);
    assert_eq!(lost.outbox.lost(), 1);
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
fn a_receiver_that_is_closed_is_gone_and_its_line_lost() {
    let mut net = Net::new(1 << 40);
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 3);
    receiver.outbox.fail(std::io::ErrorKind::TimedOut.into());
    net.flow.room(receiver.id, net.start);
    assert!(!net.waits(&sender));
    assert_eq!(receiver.outbox.lost(), 1);
    assert_eq!(net.send_item(&sender, &receiver, long(UNIT)), Delivery::Gone);
    assert_eq!(net.tell(&receiver, long(9 * UNIT)), Delivery::Gone);
}

#[test]
fn what_the_application_sends_waits_up_to_the_limit_and_beyond_it_the_policy_decides() {
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
        assert_eq!(receiver.outbox.gauge().books().dropped, 2);
        // A sender waits behind it, and what it waits with is not dropped.
        net.send_item(&sender, &receiver, item("waits"));
        assert!(net.waits(&sender) && net.flow.overflow(receiver.id).is_none());
        net.drain(&receiver);
        assert_eq!(receiver.wire.log(), [&kept[..], &["waits"]].concat());
        assert_eq!(net.budget.used(), 0);
    }
}

#[test]
fn who_waits_takes_no_room_from_the_application() {
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
}

#[test]
fn no_receiver_meets_the_policy_for_what_others_hoard() {
    let mut net = Net::new(16 << 20);
    let [hoarders, honest] = [net.budget.of(b"one certificate"), net.budget.of(b"another")];
    let limits = Limits::default();
    let healthy = net.peer_within(limits, honest);
    for _ in 0..20 {
        // They ask and ask, and do not read their answers.
        let hoarder = net.peer_within(limits, hoarders.clone());
        while !net.waits(&hoarder) {
            net.send_item(&hoarder, &hoarder, long(30_000));
        }
        // What the application tells them may wait as well.
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
fn at_once_goes_past_the_writer() {
    let mut net = Net::new(1 << 40);
    let receiver = net.peer(4);
    let (now, origin) = (net.start, Origin::Application);
    net.flow.deliver(origin, receiver.id, item("a"), true, now);
    net.flow.deliver(origin, receiver.id, item("b"), false, now);
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
    assert_eq!(net.flow.tick(net.at(1000)), [receiver.id]);
    assert!(!net.waits(&sender), "nobody waits for it any more");
    assert_eq!(net.drop_overflow(&receiver, false), 2);
    assert_eq!(net.budget.used(), 4 * MEMORY, "its limit");
    assert_eq!(net.send_item(&sender, &receiver, item("a")), Delivery::Overflows);
    assert!(!net.waits(&sender));
}

#[test]
fn who_was_slow_stays_slow_until_it_has_kept_the_pace_or_taken_everything() {
    for keeps_the_pace in [false, true] {
        let mut net = Net::new(1 << 40);
        let [sender, receiver] = [net.peer(4), net.peer(64)];
        net.send(&sender, &receiver, 33);
        net.flow.tick(net.at(1000));
        assert!(net.slow(&receiver));
        // It takes a little, and less than half of its mark waits.
        for second in 2..5 {
            for _ in 0..7 {
                write_one(&receiver);
            }
            net.flow.room(receiver.id, net.at(second * 1000));
            net.flow.tick(net.at(second * 1000));
            assert!(net.slow(&receiver), "less than the pace, in second {second}");
        }
        if keeps_the_pace {
            net.send(&sender, &receiver, 10);
            for _ in 0..16 {
                write_one(&receiver);
            }
            net.flow.tick(net.at(5000));
        } else {
            net.drain(&receiver);
        }
        assert!(!net.slow(&receiver));
        assert_eq!(net.flow.next_deadline(), None, "nobody waits");
        net.send(&sender, &receiver, 60);
        assert!(net.waits(&sender), "it is waited for again");
    }
}

#[test]
fn a_slow_receiver_is_looked_at_again_and_without_patience_not_all_the_time() {
    let mut net = Net::new(1 << 40);
    net.flow.patience = Duration::ZERO;
    let [sender, receiver] = [net.peer(4), net.peer(4)];
    net.send(&sender, &receiver, 3);
    assert_eq!(net.flow.tick(net.at(1)), [receiver.id]);
    assert_eq!(net.flow.next_deadline(), Some(net.at(1) + LOOK));
    assert!(net.flow.tick(net.at(100)).is_empty());
    assert_eq!(net.flow.tick(net.at(101)), [receiver.id]);
}

#[test]
fn a_slow_receiver_takes_no_more_than_its_share_of_the_budget() {
    let mut net = Net::new(9 * MEMORY);
    let [sender, receiver] = [net.peer(100), net.peer(100)];
    net.send(&sender, &receiver, 9);
    net.flow.tick(net.at(1000));
    assert_eq!(receiver.outbox.waiting().items, 5);
    assert_eq!(net.drop_overflow(&receiver, false), 2);
    assert_eq!(net.budget.used(), 7 * MEMORY, "two in the line, and two are free");
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
            net.flow.tick(net.at(1000)).is_empty(),
            kept,
            "{sent} units of {frames} frames"
        );
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
    let slow = net.flow.tick(net.at(2000));
    assert!(slow.contains(&receiver.id), "and not two seconds' frames");
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
    assert_eq!(net.flow.looks.len(), 2);
    assert_eq!(net.flow.next_deadline(), Some(net.at(1000)));
    assert_eq!(net.flow.tick(net.at(1000)), [first.id]);
    assert_eq!(net.flow.next_deadline(), Some(net.at(1300)));
}

#[test]
fn many_that_begin_to_send_delay_a_busy_one_by_a_share_each() {
    const NEW: u32 = 300;
    let each = Duration::from_micros(100);
    let mut net = Net::new(1 << 40);
    let busy = net.peer(1);
    net.read(&busy, &["x"; 100_000]);
    let mut virtual_time = Duration::ZERO;
    let mut waited = Duration::ZERO;
    for _ in 0..NEW {
        // One after the other they begin to send and do not stop.
        let one = net.peer(1);
        net.read(&one, &["x"; 10_000]);
        for _ in 0..10 {
            let (id, items) = net.whole_turn(each).unwrap();
            let took = each * items;
            virtual_time += took;
            waited = if id == busy.id {
                Duration::ZERO
            } else {
                waited + took
            };
            let most = TURN * (NEW + 1);
            assert!(waited <= most, "{waited:?} of {virtual_time:?} without a turn");
        }
    }
    // And all of them have had some.
    assert!(
        net.flow
            .ways
            .iter()
            .all(|(_, way)| way.input[0].items.len() < 100_000)
    );
}

#[test]
fn a_connection_that_sends_less_than_its_share_goes_before_busy_ones() {
    let each = Duration::from_micros(100);
    let mut net = Net::new(1 << 40);
    let busy = [(); 20].map(|()| net.peer(1));
    for peer in &busy {
        net.read(peer, &["x"; 10_000]);
    }
    for _ in 0..busy.len() {
        net.whole_turn(each);
    }
    let sparse = net.peer(1);
    for _ in 0..500 {
        let (id, items) = net.whole_turn(each).unwrap();
        assert!(items <= 11 && id != sparse.id, "a turn ends with its share");
        net.read(&sparse, &["x"]);
        // Its frames use up less than a share for each round of twenty.
        let first = net.whole_turn(each / 3).unwrap();
        assert_eq!(first, (sparse.id, 1));
    }
}

#[test]
fn busy_connections_share_by_time_bytes_and_frames() {
    let mut net = Net::new(1 << 40);
    let [slow, fast] = [net.peer(1), net.peer(1)];
    for peer in [&slow, &fast] {
        net.read(peer, &["x"; 100_000]);
    }
    let mut had = [0, 0];
    for _ in 0..1000 {
        let id = net.turn().unwrap();
        let (which, each) = if id == slow.id { (0, 50) } else { (1, 10) };
        while net.flow.take(id).is_some() {
            // What an item causes counts as well as what it takes.
            net.flow.charge(
                id,
                1,
                Duration::from_micros(each / 2),
                Duration::from_micros(each / 2),
            );
            had[which] += 1;
        }
        net.flow.end_turn(id);
    }
    let ratio = f64::from(had[1]) / f64::from(had[0]);
    assert!((4.5..5.5).contains(&ratio), "{had:?}");
    // A mebibyte takes four shares, and so do four million frames.
    let [long, many] = [net.peer(1), net.peer(1)];
    long.credit.spend(1 << 20);
    net.flow.arrived(long.id, vec!["x"], 1 << 20);
    net.read(&many, &["x"]);
    for (peer, frames) in [(&long, 1), (&many, 4 << 20)] {
        assert_eq!(net.turn(), Some(peer.id));
        net.flow.take(peer.id);
        net.flow.charge(peer.id, frames, Duration::ZERO, Duration::ZERO);
        assert!(net.flow.take(peer.id).is_none());
        net.flow.end_turn(peer.id);
        net.read(peer, &["more"]);
    }
    let order: Vec<_> = std::iter::from_fn(|| net.whole_turn(TURN).map(|(id, _)| id))
        .take(10)
        .collect();
    assert!(
        !order[..6].contains(&long.id) && !order[..6].contains(&many.id),
        "{order:?}"
    );
    assert!(order.contains(&long.id) && order.contains(&many.id), "{order:?}");
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
    // Nor one that was busy.
    let [gone, stays] = [net.peer(1), net.peer(1)];
    for peer in [&gone, &stays] {
        net.read(peer, &["x"; 9]);
        net.whole_turn(TURN);
    }
    net.flow.remove(gone.id);
    assert_eq!(net.turn(), Some(stays.id));
}

#[test]
fn a_run_grows_while_it_is_short_and_shrinks_to_what_fits() {
    let mut net = Net::new(1 << 40);
    let peer = net.peer(1);
    let mut run = |frames, dealing, causing| {
        net.flow.charge(peer.id, frames, dealing, causing);
        net.flow.ways.get(peer.id).unwrap().run
    };
    let (short, none) = (RUN / 4 - Duration::from_nanos(1), Duration::ZERO);
    assert_eq!(run(FIRST_RUN - 1, short, none), FIRST_RUN, "it was not used up");
    assert_eq!(run(FIRST_RUN, RUN / 4, none), FIRST_RUN, "it was not short");
    assert_eq!(
        run(FIRST_RUN, short, 9 * RUN),
        2 * FIRST_RUN,
        "its actions do not count"
    );
    assert_eq!(run(FIRST_RUN, RUN, none), 2 * FIRST_RUN, "not too long");
    assert_eq!(run(2 * FIRST_RUN, 4 * RUN, none), FIRST_RUN / 2);
    assert_eq!(
        run(1, 4 * RUN, none),
        FIRST_RUN / 2,
        "one frame cannot be divided"
    );
    assert_eq!(run(0, 4 * RUN, none), FIRST_RUN / 2);
    assert_eq!(run(2, Duration::MAX / 2, none), 1);
    for _ in 0..40 {
        run(u32::MAX, none, none);
    }
    assert_eq!(run(LONGEST_RUN, none, none), LONGEST_RUN);
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
    net.flow.end_turn(peer.id);
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
    net.flow.charge(peer.id, 1, TURN, Duration::ZERO);
    net.flow.end_turn(peer.id);
    assert_eq!(net.budget.used(), 100);
    assert_eq!(net.turn(), Some(peer.id));
    net.flow.take(peer.id);
    net.flow.take(peer.id);
    assert!(!net.flow.has_input(peer.id));
    net.flow.end_turn(peer.id);
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
    assert_eq!(net.flow.arrived(peer.id, vec!["late"], 7), ["late"]);
    net.flow.ended(peer.id, EndReason::Local);
    net.flow.put_back(peer.id, "late");
    net.flow.end_turn(peer.id);
    assert!(net.flow.take(peer.id).is_none() && !net.flow.has_input(peer.id));
    assert_eq!(net.turn(), None);
    drop(peer);
    assert_eq!(net.budget.used(), 0);
}
