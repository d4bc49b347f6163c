//! The order of turns, and the length of each.

use super::*;

#[test]
fn new_senders_delay_a_busy_connection_by_two_shares_each() {
    const NEW: u32 = 300;
    let each = Duration::from_micros(100);
    let mut net = Net::new(1 << 40);
    let busy = net.peer(1);
    net.read(&busy, &["x"; 100_000]);
    for _ in 0..2 * NEW {
        net.whole_turn(each);
    }
    let mut virtual_time = Duration::ZERO;
    let mut waited = Duration::ZERO;
    for n in 0..20 * NEW {
        // The connections begin to send one after the other and do not stop.
        if n < NEW {
            let one = net.peer(1);
            net.read(&one, &["x"; 10_000]);
        }
        let (id, items) = net.whole_turn(each).unwrap();
        let took = each * items;
        virtual_time += took;
        waited = if id == busy.id {
            Duration::ZERO
        } else {
            waited + took
        };
        // Each new sender takes one share to reach the charge of the busy one, and one as its next turn.
        let most = TURN * (2 * NEW + 1);
        assert!(waited <= most, "{waited:?} of {virtual_time:?} without a turn");
    }
    // All new senders have had turns.
    assert!(net.flow.senders.iter().all(|(_, sender)| sender.runs() > 0));
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
fn a_lone_frame_waits_for_one_turn_even_if_a_thousand_senders_have_unused_shares() {
    let mut net = Net::new(1 << 40);
    let crowd: Vec<_> = (0..1000).map(|_| net.peer(1)).collect();
    // These readers wait until their batch is handled. A batch is a third of a share.
    let batch = |net: &mut Net, peer: &Peer| net.read_bytes(peer, &["x"], 80_000);
    for peer in &crowd {
        batch(&mut net, peer);
    }
    let sparse = net.peer(1);
    for n in 0..5000 {
        let (id, _) = net.whole_turn(Duration::from_micros(100)).unwrap();
        let busy = crowd.iter().find(|peer| peer.id == id).unwrap();
        batch(&mut net, busy);
        if n >= 1000 && n % 5 == 0 {
            net.read(&sparse, &["x"]);
            let lone = net.whole_turn(Duration::from_micros(1)).unwrap();
            assert_eq!(lone, (sparse.id, 1), "after {n} turns of others");
        }
    }
}

#[test]
fn lone_frames_go_before_bulk_although_their_sender_uses_more_than_its_part() {
    let mut net = Net::new(1 << 40);
    let crowd: Vec<_> = (0..100).map(|_| net.peer(1)).collect();
    for peer in &crowd {
        net.read_bytes(peer, &["x"], LIGHT + 1);
    }
    let often = net.peer(1);
    for n in 0..10_000 {
        let (id, _) = net.whole_turn(TURN / 2).unwrap();
        let busy = crowd.iter().find(|peer| peer.id == id);
        net.read_bytes(busy.unwrap(), &["x"], LIGHT + 1);
        net.read_bytes(&often, &["x"], LIGHT);
        let lone = net.whole_turn(TURN / 4).unwrap();
        assert_eq!(lone, (often.id, 1), "after {n} turns of others");
    }
}

#[test]
fn bulk_keeps_half_of_the_time_however_many_connections_are_light() {
    let mut net = Net::new(1 << 40);
    let bulk = net.peer(1);
    net.read_bytes(&bulk, &["x"; 100_000], 1 << 20);
    let light: Vec<_> = (0..50).map(|_| net.peer(1)).collect();
    for peer in &light {
        net.read(peer, &["x"]);
    }
    let (mut of_bulk, mut of_each) = (Duration::ZERO, vec![Duration::ZERO; light.len()]);
    for _ in 0..50_000 {
        let (id, items) = net.whole_turn(TURN / 10).unwrap();
        let took = TURN / 10 * items;
        match light.iter().position(|peer| peer.id == id) {
            None => of_bulk += took,
            Some(which) => {
                of_each[which] += took;
                net.read(&light[which], &["x"]);
            }
        }
        let of_light: Duration = of_each.iter().sum();
        assert!(of_light <= of_bulk + TURN * 2, "{of_light:?} beside {of_bulk:?}");
    }
    // And the light ones share their half.
    let (least, most) = (of_each.iter().min().unwrap(), of_each.iter().max().unwrap());
    assert!(*most - *least <= TURN * 2, "{of_each:?}");
}

#[test]
fn a_connection_that_is_light_and_bulk_in_turn_has_its_part_of_bulk() {
    let mut net = Net::new(1 << 40);
    let crowd: Vec<_> = (0..10).map(|_| net.peer(1)).collect();
    for peer in &crowd {
        net.read_bytes(peer, &["x"; 10_000], 1 << 20);
    }
    let both = net.peer(1);
    net.read_bytes(&both, &["x"], 1 << 20);
    let (mut others, mut of_bulk, mut is_light) = (0, 0, false);
    for _ in 0..2_000 {
        let (id, _) = net.whole_turn(TURN).unwrap();
        if id == both.id {
            of_bulk += u32::from(!is_light);
            is_light = !is_light;
            net.read_bytes(&both, &["x"], if is_light { 1 } else { 1 << 20 });
        } else {
            others += 1;
        }
    }
    // A mebibyte is charged with four shares besides the time.
    assert!(of_bulk * 10 <= others, "{of_bulk} beside {others}");
}

#[test]
fn frames_of_many_shares_cost_as_many_rounds() {
    let mut net = Net::new(1 << 40);
    let [heavy, busy, sparse] = [net.peer(1), net.peer(1), net.peer(1)];
    net.read(&heavy, &["x"; 1_000]);
    net.read(&busy, &["x"; 100_000]);
    for _ in 0..2 {
        // Both connections have begun to send, so they are busy.
        net.whole_turn(TURN);
    }
    let (mut had, mut since_sparse) = ([Duration::ZERO; 2], 0);
    while had[0] < TURN * 1_000 {
        let id = net.turn().unwrap();
        // The longest payload takes ten shares to read, others a tenth of one.
        let each = if id == heavy.id { TURN * 10 } else { TURN / 10 };
        let mut items = 0;
        while net.flow.take(id).is_some() {
            net.flow.charge(id, 1, each, 0);
            items += 1;
        }
        net.flow.end_turn(id);
        if id == sparse.id {
            since_sparse = 0;
            continue;
        }
        had[usize::from(id == busy.id)] += each * items;
        // The connection had its turn before the others began another frame.
        assert!(
            since_sparse == 0 && (id == busy.id || items == 1),
            "{since_sparse}"
        );
        net.read(&sparse, &["x"]);
        since_sparse += 1;
    }
    let difference = had[0].abs_diff(had[1]);
    assert!(
        difference <= TURN * 11,
        "both connections have had the same time: {had:?}"
    );
}

#[test]
fn busy_connections_share_by_time_bytes_and_frames() {
    let mut net = Net::new(1 << 40);
    let [slow, fast] = [net.peer(1), net.peer(1)];
    for peer in [&slow, &fast] {
        net.read_bytes(peer, &["x"; 100_000], LIGHT + 1);
    }
    let mut had = [0, 0];
    for _ in 0..1000 {
        let id = net.turn().unwrap();
        let (which, each) = if id == slow.id { (0, 50) } else { (1, 10) };
        while net.flow.take(id).is_some() {
            // The actions of an item count as well as its time.
            let took = Duration::from_micros(each / 2);
            net.flow.charge(id, 1, took, 1 + each / 2);
            had[which] += 1;
        }
        net.flow.end_turn(id);
    }
    let ratio = f64::from(had[1]) / f64::from(had[0]);
    assert!((4.5..5.5).contains(&ratio), "{had:?}");
    // A mebibyte takes four shares, and so do four million frames.
    let [long, many] = [net.peer(1), net.peer(1)];
    net.read_bytes(&long, &["x"], 1 << 20);
    net.read_bytes(&many, &["x"], LIGHT + 1);
    for (peer, frames) in [(&long, 1), (&many, 4 << 20)] {
        assert_eq!(net.turn(), Some(peer.id));
        net.flow.take(peer.id);
        net.flow.charge(peer.id, frames, Duration::ZERO, 0);
        assert!(net.flow.take(peer.id).is_none());
        net.flow.end_turn(peer.id);
        net.read_bytes(peer, &["more"], LIGHT + 1);
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
fn a_turn_ends_with_exactly_one_share() {
    let mut net = Net::new(1 << 40);
    let peer = net.peer(1);
    net.read(&peer, &["a", "b"]);
    assert_eq!(net.turn(), Some(peer.id));
    net.flow.take(peer.id);
    net.flow.charge(peer.id, 0, TURN, 0);
    assert!(net.flow.take(peer.id).is_none());
    assert_eq!(net.flow.handled_runs(peer.id), 1);
}

#[test]
fn a_connection_that_has_ended_takes_no_turn() {
    let mut net = Net::new(1 << 40);
    let [ended, stays] = [net.peer(1), net.peer(1)];
    net.read(&ended, &["1"]);
    net.read(&stays, &["1"]);
    assert_eq!(net.flow.remove(ended.id), ["1"]);
    assert_eq!(net.turn(), Some(stays.id));
    assert_eq!(net.turn(), None);
    // A connection that was busy takes no turn after its end either.
    let [ended, stays] = [net.peer(1), net.peer(1)];
    for peer in [&ended, &stays] {
        net.read(peer, &["x"; 9]);
        net.whole_turn(TURN);
    }
    net.flow.remove(ended.id);
    assert_eq!(net.turn(), Some(stays.id));
}

#[test]
fn a_run_grows_while_it_is_short_and_shrinks_to_what_fits() {
    let mut net = Net::new(1 << 40);
    let peer = net.peer(1);
    let mut run = |frames, dealing, actions| {
        net.flow.charge(peer.id, frames, dealing, actions);
        net.flow.senders.get(peer.id).unwrap().run()
    };
    let (short, none) = (RUN_TARGET / 4 - Duration::from_nanos(1), 0);
    assert_eq!(
        run(FIRST_RUN - 1, short, none),
        FIRST_RUN,
        "the run was not used up"
    );
    assert_eq!(
        run(FIRST_RUN, RUN_TARGET / 4, none),
        FIRST_RUN,
        "the run was not short"
    );
    assert_eq!(
        run(FIRST_RUN, short, 9_000),
        2 * FIRST_RUN,
        "the actions of the run do not count"
    );
    assert_eq!(
        run(FIRST_RUN, RUN_TARGET, none),
        2 * FIRST_RUN,
        "the run was not too long"
    );
    assert_eq!(run(2 * FIRST_RUN, 4 * RUN_TARGET, none), FIRST_RUN / 2);
    assert_eq!(
        run(1, 4 * RUN_TARGET, none),
        FIRST_RUN / 2,
        "one frame cannot be divided"
    );
    assert_eq!(run(0, 4 * RUN_TARGET, none), FIRST_RUN / 2);
    assert_eq!(run(2, Duration::MAX / 2, none), 1);
    for _ in 0..40 {
        run(u32::MAX, Duration::ZERO, none);
    }
    assert_eq!(run(LONGEST_RUN, Duration::ZERO, none), LONGEST_RUN);
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
        "a batch gives credit once it is completely handled"
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
fn a_turn_grants_the_credit_of_finished_batches_and_lists_its_connection_again() {
    let mut net = Net::new(1 << 40);
    let peer = net.peer(1);
    net.read(&peer, &["a"]);
    net.read(&peer, &["b", "c"]);
    assert_eq!(net.turn(), Some(peer.id));
    net.flow.take(peer.id);
    assert!(net.flow.has_input(peer.id));
    net.flow.charge(peer.id, 1, TURN, 0);
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
fn an_end_returns_input_and_credit() {
    let mut net = Net::new(1 << 40);
    let peer = net.peer(1);
    net.read(&peer, &["a", "b"]);
    net.read(&peer, &["c"]);
    net.turn();
    net.flow.take(peer.id);
    peer.credit.spend(7);
    assert_eq!(net.flow.remove(peer.id), ["b", "c"]);
    assert_eq!(peer.credit.try_wait().0, Some(false), "the reader has to end");
    assert_eq!(net.budget.used(), 7, "the input under way");
    assert_eq!(net.flow.arrived(peer.id, vec!["late"], 7, net.start), ["late"]);
    net.flow.ended(peer.id, EndReason::Local);
    net.flow.put_back(peer.id, "late");
    net.flow.end_turn(peer.id);
    assert!(net.flow.take(peer.id).is_none() && !net.flow.has_input(peer.id));
    assert_eq!(net.turn(), None);
    drop(peer);
    assert_eq!(net.budget.used(), 0);
}

#[test]
fn input_has_the_age_of_its_oldest_batch() {
    let mut net = Net::new(1 << 40);
    let peer = net.peer(1);
    assert_eq!(net.flow.age(peer.id, net.at(5)), None);
    net.read(&peer, &["a"]);
    net.flow.arrived(peer.id, vec!["b"], 0, net.at(3));
    assert_eq!(net.flow.age(peer.id, net.at(5)), Some(Duration::from_millis(5)));
    net.turn();
    for _ in ["a", "b"] {
        net.flow.take(peer.id);
    }
    assert_eq!(net.flow.age(peer.id, net.at(5)), Some(Duration::from_millis(2)));
    net.flow.end_turn(peer.id);
    assert_eq!(net.flow.age(peer.id, net.at(5)), None);
}
