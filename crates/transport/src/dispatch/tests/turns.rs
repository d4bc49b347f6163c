//! The distribution and the measurement of the dispatcher's time.

use super::*;

#[test]
fn a_run_ends_at_its_frames_and_a_rest_has_the_next_one() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.log();
    world.read(
        &a,
        vec![Step::Note("first"), Step::Frames(300), Step::Note("after")],
    );
    world.read(&b, vec![Step::Note("another")]);
    for _ in 0..2 {
        world.turn();
    }
    assert_eq!(
        world.log(),
        [
            "a: first",
            "a: 8 frames",
            "a: 16 frames",
            "a: 32 frames",
            "a: 64 frames",
            "a: 128 frames",
            "a: 52 frames",
            "a: after",
            "b: another",
        ]
    );
    assert!(world.runner.is_idle());
}

#[test]
fn a_turn_ends_after_the_run_that_uses_up_its_share() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.log();
    world.read(&a, vec![Step::Frames(8), Step::Frames(300)]);
    world.read(&b, vec![Step::Frames(2)]);
    let later = Cell::new(Duration::ZERO);
    for _ in 0..4 {
        world.runner.turn(world.start, || {
            later.set(later.get() + Duration::from_millis(1));
            later.get()
        });
    }
    // Each run takes a millisecond.
    assert_eq!(
        world.log(),
        ["a: 8 frames", "b: 2 frames", "a: 8 frames", "a: 8 frames"]
    );
}

#[test]
fn the_actions_of_a_run_are_charged_as_well() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.log();
    let many = (0..1100).map(|_| b.send("x")).collect();
    world.read(&a, vec![Step::Do(many), Step::Note("next")]);
    world.turn();
    // The queue of the receiver was full at the end.
    assert!(!world.log().contains(&"a: next".to_owned()));
    world.read(&b, vec![Step::Note("another")]);
    for _ in 0..2 {
        world.turn();
    }
    assert_eq!(world.log(), ["b: another", "a: next"]);
}

#[test]
fn a_look_sees_connections_input_and_times() {
    let mut world = World::new(Script::default());
    let look = |world: &mut World| {
        let (reply, received) = crossbeam_channel::bounded(1);
        world.handle(DispatchEvent::Look(Box::new(move |_, view| {
            let took = [view.dispatcher.waits, view.dispatcher.turns].map(|took| (took.count(), took.sum()));
            reply
                .send((view.connections, view.dispatcher.with_input, took))
                .unwrap();
        })));
        received.try_recv().unwrap()
    };
    let nothing = (0, Duration::ZERO);
    assert_eq!(look(&mut world), (0, 0, [nothing; 2]));
    let (peer, _idle) = (world.run("a"), world.run("b"));
    world.read(&peer, vec![Step::Frames(9)]);
    let long = Duration::from_micros(500);
    world.runner.waited(long);
    assert_eq!(look(&mut world), (2, 1, [(1, long), nothing]));
    let clock = Cell::new(Duration::ZERO);
    for _ in 0..2 {
        world
            .runner
            .turn(world.start, || clock.replace(clock.get() + long));
    }
    world.turn();
    assert_eq!(
        look(&mut world),
        (2, 0, [(1, long), (1, 2 * long)]),
        "one turn had both runs, and there was no other turn"
    );
}
