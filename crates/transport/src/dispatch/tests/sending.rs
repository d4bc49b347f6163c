//! Items of the core: past the writer, in lines, and beyond limits.

use super::*;

#[test]
fn the_last_item_is_answered_past_the_writer_once_and_others_are_not() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    let answer = |text| Step::Do(vec![b.send(text)]);
    world.read(&a, vec![answer("1"), answer("2")]);
    world.turn();
    assert_eq!(
        b.log(),
        ["1", "2"],
        "further input was expected, and then further items waited"
    );
    world.read(&a, vec![Step::Do(vec![b.send("3"), a.send("4")])]);
    world.turn();
    assert_eq!(
        (b.log(), a.log()),
        (vec!["3 at once".to_owned()], vec!["4 at once".to_owned()])
    );
    world.read(&a, vec![Step::Do(vec![b.send("5"), b.send("6")])]);
    world.turn();
    assert_eq!(b.log(), ["5 at once", "6"]);
    world.read(&a, vec![answer("7")]);
    world.busy.store(true, Ordering::SeqCst);
    world.turn();
    assert_eq!(b.log(), ["7"], "an event waits");
    world.busy.store(false, Ordering::SeqCst);
    // The other connection has used more, so that its turn is second.
    world.read(&b, vec![Step::Frames(100_000)]);
    world.turn();
    world.read(&a, vec![answer("8")]);
    world.read(&b, vec![Step::Note("input of another")]);
    world.turn();
    assert_eq!(b.log(), ["8"], "another connection has the next turn");
    while !world.runner.is_idle() {
        world.turn();
    }
    world.read(&a, vec![Step::Frames(300)]);
    world.runner.core_mut().at_settling = vec![b.send("9")];
    world.turn();
    assert_eq!(b.log(), ["9"], "the rest of the run is not handled yet");
}

#[test]
fn a_call_and_a_timer_send_past_the_writer_if_there_is_no_input() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.call(vec![b.send("1")]);
    world.call(vec![b.send("2")]);
    assert_eq!(b.log(), ["1 at once", "2 at once"]);
    world.runner.core_mut().due = Some(world.start);
    world.runner.core_mut().at_settling = vec![];
    world.read(&a, vec![Step::Note("input")]);
    world.call(vec![b.send("3")]);
    assert_eq!(b.log(), ["3"]);
    world.runner.core_mut().at_settling = vec![b.send("4")];
    world.tick(0);
    assert_eq!(b.log(), ["4"]);
    world.turn();
    world.runner.core_mut().due = Some(world.start);
    world.runner.core_mut().at_settling = vec![b.send("5")];
    world.tick(0);
    assert_eq!(b.log(), ["5 at once"]);
    world.runner.core_mut().due = Some(world.start);
    world.runner.core_mut().at_settling = vec![b.send("6")];
    world.tick(0);
    assert_eq!(b.log(), ["6 at once"], "each timer may send past the writer");
}

#[test]
fn the_core_is_told_of_the_pauses_of_remote_origins() {
    let mut world = World::new(Script::default());
    let [link, b] = [world.run("link"), world.run("b")];
    world.busy.store(true, Ordering::SeqCst);
    let origin = Origin::Remote {
        link: link.id,
        number: 7,
    };
    let send = || Action::Send {
        origin,
        to: b.id,
        item: long(172),
    };
    world.log();
    world.call([(); 3].map(|()| send()).into());
    assert_eq!(world.log(), ["link: 7 waits: true"]);
    while Wire::write(&b.outbox) {
        world.handle(DispatchEvent::Room(b.id));
    }
    assert_eq!(world.log(), ["link: 7 waits: false"]);
}

#[test]
fn items_of_a_turn_are_held_and_items_of_a_call_meet_the_policy() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.busy.store(true, Ordering::SeqCst);
    // Half of the queue is 500 bytes, and each item takes 300.
    world.read(&a, vec![Step::Do(b.send_from(&a, 3)), Step::Note("next")]);
    world.log();
    world.turn();
    assert_eq!(world.log(), NOTHING, "the item waits in the line");
    let sends = |count: usize| (0..count).map(|_| b.send_item(long(172))).collect();
    world.call(sends(1));
    assert_eq!(world.log(), NOTHING);
    world.call(sends(2));
    assert_eq!(world.log(), ["b: full", "b: full"], "three and one wait already");
    while Wire::write(&b.outbox) {
        world.handle(DispatchEvent::Room(b.id));
    }
    world.turn();
    assert_eq!(world.log(), ["a: next"]);
    assert_eq!(
        (b.outbox.sent().items, b.outbox.counters().figures().dropped),
        (4, 2)
    );
}

#[test]
fn an_item_beyond_the_limit_replaces_the_oldest() {
    let mut world = World::new(Script {
        drops_oldest: true,
        ..Script::default()
    });
    let peer = world.run("a");
    world.busy.store(true, Ordering::SeqCst);
    let sends = [long(372), long(101), long(102), long(103), item("short")];
    world.call(sends.map(|item| peer.send_item(item)).into());
    while Wire::write(&peer.outbox) {
        world.handle(DispatchEvent::Room(peer.id));
    }
    assert_eq!(peer.log(), ["372", "103", "short"]);
}

#[test]
fn a_policy_that_ends_the_receiver_drops_one_item_and_loses_the_others() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.runner.core_mut().at_overflow = vec![peer.end(true)];
    world.busy.store(true, Ordering::SeqCst);
    world.call((0..9).map(|_| peer.send_item(long(300))).collect());
    assert!(peer.is_aborted());
    let books = peer.outbox.counters().figures();
    // Two items are in the queue, one waits, and one is beyond the limit. Later items are dropped.
    assert_eq!((books.waiting.items, books.dropped, books.lost), (2, 1, 6));
}

#[test]
fn the_line_of_a_slow_receiver_meets_the_policy() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.busy.store(true, Ordering::SeqCst);
    world.read(&a, vec![Step::Do(b.send_from(&a, 5))]);
    world.turn();
    world.log();
    assert_eq!(world.runner.next_deadline(), Some(world.at(1000)));
    world.tick(999);
    assert_eq!(world.log(), NOTHING);
    world.tick(1000);
    assert_eq!(world.log(), ["b: full", "b: full", "tick"]);
}

#[test]
fn an_end_with_grace_sends_the_line_first_and_an_end_of_time_loses_it() {
    for in_time in [true, false] {
        let mut world = World::new(Script::default());
        let [a, b] = [world.run("a"), world.run("b")];
        world.busy.store(true, Ordering::SeqCst);
        world.read(&a, vec![Step::Do(b.send_from(&a, 5)), Step::Note("next")]);
        world.turn();
        world.log();
        world.call(vec![b.send("farewell"), b.end(false), b.send("late")]);
        world.turn();
        assert_eq!(
            world.log(),
            ["a: next"],
            "no sender waits for the receiver any more"
        );
        assert!(!b.outbox.is_closed());
        if in_time {
            while Wire::write(&b.outbox) {
                world.handle(DispatchEvent::Room(b.id));
            }
            let log = b.wire.log();
            assert_eq!(log[5..], ["farewell", "finish"]);
            assert_eq!(b.outbox.lost(), 1, "the later item");
        } else {
            world.tick(5000);
            assert!(b.is_aborted());
        }
        world.handle(DispatchEvent::Finished(b.id));
        assert_eq!(b.threads(), ["join"]);
        let waits = b.outbox.waiting().frames;
        assert_eq!(b.outbox.lost() + waits + b.outbox.sent().frames, 7);
        assert_eq!(world.budget.used(), b.outbox.waiting().memory());
    }
}

#[test]
fn a_connection_that_is_lost_loses_its_line_at_once() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.busy.store(true, Ordering::SeqCst);
    world.read(&a, vec![Step::Do(b.send_from(&a, 5))]);
    world.turn();
    world.handle(DispatchEvent::Ended(
        b.id,
        EndReason::Io(io::ErrorKind::ConnectionReset.into()),
    ));
    world.turn();
    assert!(b.outbox.is_closed() && b.is_aborted());
    assert_eq!(b.outbox.lost(), 3);
}

#[test]
fn actions_of_a_settling_are_carried_out() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.runner.core_mut().at_settling = vec![peer.end(false)];
    world.call(vec![]);
    assert!(peer.outbox.is_closed());
}
