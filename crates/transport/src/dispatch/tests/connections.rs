//! Admission, ends, stops, and the threads of connections.

use super::*;

#[test]
fn a_replaced_connection_ends_before_the_newcomer_gets_its_answer() {
    let mut world = World::new(Script::default());
    let old = world.run("old");
    world.runner.core_mut().at_admission = vec![old.end(false)];
    let (reply, verdict) = crossbeam_channel::bounded::<Verdict<Script>>(0);
    // The receiver of the answer is dropped before the runner sends it.
    let closed = old.outbox.clone();
    let newcomer = crate::host::threads::spawn("newcomer", move || {
        assert!(verdict.recv().unwrap().is_ok());
        assert!(closed.is_closed());
    })
    .unwrap();
    let stream = Arc::new(memory::pair().0);
    world.handle(DispatchEvent::Admit(Box::new("new".into()), stream, reply));
    newcomer.join().unwrap();
    assert_eq!(
        world.log(),
        ["old after 0", "old: told", "new after 1", "new: told"]
    );
}

#[test]
fn all_connections_of_one_owner_have_half_of_the_memory() {
    let mut world = World::new(Script::default());
    let [one, other, another] = [world.run("one"), world.run("one"), world.run("another")];
    world.busy.store(true, Ordering::SeqCst);
    world.call(vec![one.send("1"), other.send("2"), another.send("3")]);
    let used = |peer: &Peer| peer.outbox.budget().used();
    assert_eq!([used(&one), used(&other), used(&another)], [258, 258, 129]);
    assert_eq!(world.budget.used(), 3 * 129);
}

#[test]
fn memory_for_unfinished_items_does_not_shorten_the_credit_of_readers() {
    let mut world = World::new(Script::default());
    let [one, other] = [world.run("one"), world.run("other")];
    let reserved = one.credit.budget().reserve();
    assert_eq!(reserved.ask(1 << 30, || ()), Asked::Granted);
    other.credit.spend(1);
    assert_eq!(other.credit.try_wait().0, Some(true), "no reader is far ahead");
    assert_eq!(world.budget.used(), (1 << 30) + 1, "both count in the budget");
    one.credit.spend(33 << 20);
    assert_eq!(
        other.credit.try_wait().0,
        None,
        "all readers together are far ahead"
    );
}

#[test]
fn a_refused_newcomer_leaves_no_trace() {
    let mut world = World::new(Script::default());
    world.runner.core_mut().refuses = true;
    let verdict = world.ask("x", memory::pair().0);
    assert_eq!(verdict.try_recv().unwrap().err(), Some("refused"));
    world.handle(DispatchEvent::Exit);
    assert!(world.runner.is_over());
    world.runner.core_mut().refuses = false;
    let next = world.admit("y");
    assert_eq!(next.id.0 % (1 << 24), 0, "the slot is free again");
}

#[test]
fn a_newcomer_that_left_before_its_verdict_is_removed() {
    let mut world = World::new(Script::default());
    let (reply, verdict) = crossbeam_channel::bounded(1);
    drop(verdict);
    let stream = Arc::new(memory::pair().0);
    world.handle(DispatchEvent::Admit(Box::new("x".into()), stream, reply));
    assert_eq!(world.log(), ["x after 0", "x: not told"]);
    world.handle(DispatchEvent::Exit);
    assert!(world.runner.is_over());
    assert_eq!(world.admit("y").id.0 % (1 << 24), 0, "the slot is free again");
}

#[test]
fn threads_that_cannot_be_started_end_the_connection() {
    let mut world = World::new(Script::default());
    let [open, ending] = [world.admit("open"), world.admit("ending")];
    world.busy.store(true, Ordering::SeqCst);
    world.call(vec![open.send("x"), ending.end(false)]);
    world.log();
    for peer in [&open, &ending] {
        world.handle(DispatchEvent::Started(
            peer.id,
            Err(io::Error::other("no threads")),
        ));
    }
    assert_eq!(world.log(), ["open: no threads"]);
    assert!(open.is_aborted() && ending.is_aborted());
    assert_eq!((open.outbox.lost(), world.budget.used()), (1, 0));
    world.handle(DispatchEvent::Exit);
    assert!(world.runner.is_over());
    assert_eq!(world.runner.next_deadline(), None, "no abort is scheduled");
}

#[test]
fn a_connection_counts_until_its_threads_are_joined() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.call(vec![peer.end(false)]);
    assert!(peer.outbox.is_closed());
    world.admit("b");
    assert!(world.runner.core().gone.is_empty());
    world.handle(DispatchEvent::Finished(peer.id));
    assert_eq!(peer.threads(), ["join"]);
    assert_eq!(world.runner.core().gone, [peer.id]);
    world.admit("c");
    let log = world.log();
    assert!(log.contains(&"b after 1".into()) && log.contains(&"c after 1".into()));
}

#[test]
fn threads_that_finish_before_they_were_reported_are_joined_then() {
    let mut world = World::new(Script::default());
    let peer = world.admit("a");
    world.handle(DispatchEvent::Finished(peer.id));
    world.handle(DispatchEvent::Exit);
    assert!(!world.runner.is_over());
    world.handle(DispatchEvent::Started(
        peer.id,
        Ok(Fake(Arc::clone(&peer.threads))),
    ));
    assert_eq!(peer.threads(), ["join"]);
    assert!(world.runner.is_over());
    assert_eq!(world.runner.core().gone, [peer.id]);
    assert_eq!(world.log(), ["a after 0", "a: told", "a: closed by this side"]);
}

#[test]
fn an_abort_shuts_down_the_stream_of_a_newcomer_without_threads() {
    let mut world = World::new(Script::default());
    let [gently, at_once] = [world.admit("a"), world.admit("b")];
    world.call(vec![gently.end(false), at_once.end(true)]);
    assert!(!gently.is_aborted() && at_once.is_aborted());
    assert!(at_once.outbox.is_over() && !gently.outbox.is_over());
}

#[test]
fn no_request_waits_for_a_dispatcher_that_has_ended() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    let credit = Arc::clone(&peer.credit);
    credit.pause(true);
    credit.spend(1);
    let reader = crate::host::threads::spawn("reader", move || credit.wait(Duration::MAX)).unwrap();
    while peer.credit.waits_since().is_none() {
        std::thread::yield_now();
    }
    drop(world);
    assert_eq!(peer.credit.try_wait().0, Some(false), "the reader has to end");
    assert_eq!(reader.join().unwrap(), Some(false), "the connection is over");
    assert!(peer.is_aborted() && peer.outbox.is_closed());
}

#[test]
fn an_abort_after_an_end_with_grace_aborts() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.call(vec![peer.end(false)]);
    assert!(!peer.is_aborted());
    world.call(vec![peer.end(true)]);
    assert!(peer.is_aborted());
}

#[test]
fn an_end_has_its_turn_after_earlier_items() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.read(&peer, vec![Step::Note("item")]);
    world.handle(DispatchEvent::Ended(peer.id, EndReason::PeerClosed));
    world.log();
    assert!(!world.runner.is_idle());
    world.turn();
    assert_eq!(world.log(), ["a: item", "a: the peer closed the connection"]);
    assert!(peer.outbox.is_closed());
    assert!(world.runner.is_idle());
    world.handle(DispatchEvent::Ended(peer.id, EndReason::PeerClosed));
    assert!(world.runner.is_idle(), "the connection has ended already");
}

#[test]
fn input_before_an_end_is_handled_although_the_threads_have_finished() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.read(&peer, vec![Step::Note("item"), Step::Note("item")]);
    world.handle(DispatchEvent::Ended(peer.id, EndReason::Truncated));
    world.log();
    world.handle(DispatchEvent::Finished(peer.id));
    assert_eq!((world.log(), peer.threads()), (vec![], vec![]));
    while !world.runner.is_idle() {
        world.turn();
    }
    let truncated = format!("a: {}", EndReason::Truncated);
    assert_eq!(world.log(), ["a: item", "a: item", truncated.as_str()]);
    assert_eq!(peer.threads(), ["join"]);
    assert_eq!(world.runner.core().gone, [peer.id]);
    drop(peer);
    assert_eq!(world.budget.used(), 0);
}

#[test]
fn the_core_gets_the_unhandled_input_of_an_end() {
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.read(&peer, vec![Step::Note("item"), Step::Note("item")]);
    world.log();
    world.call(vec![peer.end(false)]);
    assert_eq!(world.log(), ["a: 2 left"]);
    world.read(&peer, vec![Step::Note("late")]);
    assert_eq!(world.log(), ["a: 1 left"]);
    world.turn();
    assert_eq!(world.log(), NOTHING, "no input is handled");
}

#[test]
fn each_ending_connection_is_aborted_at_its_own_time() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.run("b")];
    world.call(vec![a.end(false)]);
    world.start += Duration::from_secs(1);
    // A second end of the same connection gives it no more time.
    world.call(vec![b.end(false), a.end(false)]);
    world.start -= Duration::from_secs(1);
    assert_eq!(world.runner.next_deadline(), Some(world.at(5000)));
    world.tick(4999);
    assert!(!a.is_aborted());
    world.tick(5000);
    assert!(a.is_aborted() && !b.is_aborted());
    assert_eq!(world.runner.next_deadline(), Some(world.at(6000)));
    world.handle(DispatchEvent::Finished(b.id));
    assert_eq!(world.runner.next_deadline(), None, "the connection is removed");
}

#[test]
fn a_stop_reaches_the_core_once_and_aborts_the_rest_after_the_grace() {
    let mut world = World::new(Script::default());
    let [a, b] = [world.run("a"), world.admit("b")];
    world.runner.core_mut().at_stop = vec![a.end(false), Action::Stop];
    world.log();
    world.handle(DispatchEvent::Stop);
    world.start += Duration::from_secs(1);
    world.handle(DispatchEvent::Stop);
    world.start -= Duration::from_secs(1);
    assert_eq!(world.log(), ["stop"]);
    assert_eq!(world.runner.next_deadline(), Some(world.at(3000)));
    world.tick(2999);
    assert!(!a.is_aborted() && !b.is_aborted());
    world.tick(3000);
    assert!(
        a.is_aborted() && b.is_aborted(),
        "a newcomer without threads is aborted as well"
    );
    assert!(world.runner.next_deadline() > Some(world.at(3000)), "once");
    world.handle(DispatchEvent::Started(b.id, Ok(Fake(Arc::clone(&b.threads)))));
    world.handle(DispatchEvent::Stop);
    world.handle(DispatchEvent::Exit);
    assert!(!world.runner.is_over());
    world.log();
    for peer in [&a, &b] {
        world.handle(DispatchEvent::Finished(peer.id));
    }
    assert!(world.runner.is_over());
    assert_eq!(world.log(), ["b: closed by this side"]);
}

#[test]
fn a_timer_of_the_core_is_due_at_its_time_and_not_before() {
    let mut world = World::new(Script::default());
    assert_eq!(world.runner.next_deadline(), None);
    world.tick(1000);
    world.runner.core_mut().due = Some(world.at(100));
    world.tick(99);
    assert_eq!(world.log(), NOTHING);
    world.tick(100);
    world.tick(101);
    assert_eq!(world.log(), ["tick"]);
}

#[test]
fn dropping_an_admission_reports_it() {
    let (events, queue) = events::channel::<DispatchEvent<Script, Fake>>(2);
    let mut world = World::new(Script::default());
    let [a, b] = [world.admit("a"), world.admit("b")];
    drop(Admission::new(a.id, events.clone()));
    let mut admission = Admission::new(b.id, events);
    admission.started(Ok(Fake(Arc::clone(&b.threads))));
    drop(admission);
    assert!(matches!(queue.try_next(), Some((DispatchEvent::Started(id, Err(_)), _)) if id == a.id));
    assert!(matches!(queue.try_next(), Some((DispatchEvent::Started(id, Ok(_)), _)) if id == b.id));
}

#[test]
fn the_thread_runs_until_the_exit_and_the_last_connection() {
    let (events, queue) = events::channel::<DispatchEvent<Script, Fake>>(8);
    let mut world = World::new(Script::default());
    let peer = world.run("a");
    world.log();
    let note = |core: &mut Script, _, _: &mut Vec<Action>| core.log.push("call".into());
    events.send(DispatchEvent::Call(Box::new(note))).unwrap();
    peer.credit.spend(Credit::memory_of::<Step>(1, 10));
    let items = vec![Step::Note("item")];
    events.send(DispatchEvent::Items(peer.id, items, 10)).unwrap();
    let (runner, threads, budget) = (world.runner, Arc::clone(&peer.threads), world.budget);
    assert!(!is_dispatcher());
    let thread = crate::host::threads::spawn("dispatcher", move || {
        run(runner, &queue);
        assert!(is_dispatcher());
    })
    .unwrap();
    let (reply, counted) = crossbeam_channel::bounded(1);
    while budget.used() > 0 {
        std::thread::yield_now();
    }
    let look = move |core: &Script, view: &View<'_, Step>| {
        reply
            .send((core.log.clone(), view.dispatcher.waits.count()))
            .unwrap();
    };
    events.send(DispatchEvent::Look(Box::new(look))).unwrap();
    let (log, waits) = counted.recv().unwrap();
    assert_eq!(log[..4], ["time", "call", "time", "a: item"]);
    assert_eq!(waits, 3, "each event is counted");
    events.send(DispatchEvent::Exit).unwrap();
    events
        .send(DispatchEvent::Ended(peer.id, EndReason::PeerClosed))
        .unwrap();
    assert!(peer.outbox.wait_until_closed(Duration::from_secs(60)));
    events.send(DispatchEvent::Finished(peer.id)).unwrap();
    thread.join().unwrap();
    assert_eq!(*threads.lock().unwrap(), ["join"]);
}

#[test]
fn a_connection_that_is_not_read_can_be_told_so() {
    let mut world = World::new(Script::default());
    let peer = world.run("one");
    world.log();
    world.runner.core_mut().at_settling = vec![peer.send("alive")];
    world.handle(DispatchEvent::Unread(peer.id));
    assert_eq!(world.log(), ["one: unread"]);
    assert_eq!(peer.log(), ["alive at once"]);
}
