//! A reader's items, and its waits for credit and memory.

use super::*;
use crate::flow::{UNRESERVED, Unfinished};
use crate::link::Sink;

/// A reader's feed, its credit, and the channel of its events.
fn feed(memory: &Budget) -> (Feed<Script>, Arc<Credit>, Queue<DispatchEvent<Script>>) {
    let (events, queue) = events::channel(8);
    let admitted = Admitted {
        id: ConnectionId(7),
        outbox: Outbox::new(Limits::default()),
        credit: Arc::new(Credit::new(memory.clone())),
        grant: (),
    };
    (Feed::new(&admitted, events), admitted.credit, queue)
}

#[test]
fn complete_items_count_as_credit_and_no_more_as_unfinished() {
    let memory = Budget::new(1 << 24);
    let (mut feed, _, queue) = feed(&memory);
    assert!(matches!(feed.unfinished(8, 300_000), Ok(usize::MAX)));
    assert_eq!(memory.used(), 300_000 - UNRESERVED as u64);
    assert!(feed.items(&mut vec![Step::Note("x")], 300_000));
    assert_eq!(memory.used(), Credit::memory_of::<Step>(1, 300_000));
    let event = queue.try_next();
    assert!(matches!(event, Some((DispatchEvent::Items(_, items, 300_000), _)) if items.len() == 1));
}

#[test]
fn progress_of_a_long_item_is_reported_without_items() {
    let memory = Budget::new(1 << 26);
    let (mut feed, _, queue) = feed(&memory);
    // The progress of the second item counts from its own begin.
    for held in [1 << 20, UNRESERVED] {
        let limit = now() + Duration::from_secs(60);
        let event = loop {
            assert!(feed.unfinished(held, 15 << 20).is_ok());
            match queue.try_next() {
                Some((event, _)) => break event,
                None => std::thread::yield_now(),
            }
            assert!(now() < limit, "no report of {held} bytes");
        };
        assert!(matches!(event, DispatchEvent::Items(ConnectionId(7), items, 0) if items.is_empty()));
        assert!(feed.items(&mut vec![Step::Note("x")], 10));
        assert!(queue.try_next().is_some());
    }
}

#[test]
fn a_peer_is_not_silent_while_its_reader_waits_for_memory() {
    let memory = Budget::new(1 << 20);
    let (mut feed, credit, queue) = feed(&memory);
    feed.pulse = Duration::from_millis(1500);
    let mut others: Vec<_> = (0..3u8).map(|n| Unfinished::new(&memory.of(&[n]))).collect();
    for other in &mut others {
        other.next_read(UNRESERVED, 500_000, now, || ());
    }
    let reader = crate::host::threads::spawn("reader", move || feed.unfinished(8, 400_000)).unwrap();
    let limit = now() + Duration::from_secs(60);
    let (mut reports, mut unread) = (0, 0);
    while reports < 2 || unread == 0 {
        match queue.next(Some(limit)).unwrap().0 {
            DispatchEvent::Items(ConnectionId(7), items, 0) if items.is_empty() => reports += 1,
            DispatchEvent::Unread(ConnectionId(7)) => unread += 1,
            _ => panic!("another event"),
        }
    }
    drop(others);
    assert!(matches!(reader.join().unwrap(), Ok(usize::MAX)));
    drop(credit);
}

#[test]
fn a_reader_that_is_paused_for_long_reads_a_little_now_and_then() {
    let memory = Budget::new(1 << 20);
    let (mut feed, credit, queue) = feed(&memory);
    feed.pulse = Duration::from_secs(1);
    credit.pause(true);
    let mut read = |held| {
        let before = now();
        assert!(matches!(feed.unfinished(held, 400_000), Ok(usize::MAX)));
        now() - before >= feed.pulse
    };
    assert!(!read(8), "one batch may be under way");
    assert!(feed.items(&mut vec![Step::Note("x")], 10) && queue.try_next().is_some());
    let mut read = |held| {
        let before = now();
        assert!(matches!(feed.unfinished(held, 400_000), Ok(usize::MAX)));
        now() - before >= feed.pulse
    };
    // Also in the middle of a long item.
    let waits = [0, 80_000, 160_000, 240_000, 320_000].map(&mut read);
    assert_eq!(waits, [true, false, false, false, true]);
    let events = std::iter::from_fn(|| queue.try_next());
    let unread = events.filter(|(event, _)| matches!(event, DispatchEvent::Unread(ConnectionId(7))));
    assert_eq!(unread.count(), 2);
    credit.pause(false);
    assert!(!read(0));
    credit.pause(true);
    assert!(read(0), "the rest of a pulse is of no use later");
}

#[test]
fn a_reader_waits_for_credit_and_for_memory_until_its_connection_ends() {
    let memory = Budget::new(1 << 20);
    let (mut feed, credit, queue) = feed(&memory.of(b"its certificate"));
    credit.pause(true);
    assert!(feed.items(&mut vec![Step::Note("x")], 10) && queue.try_next().is_some());
    let reader = crate::host::threads::spawn("reader", move || (feed.unfinished(0, 0), feed)).unwrap();
    while credit.waits_since().is_none() {
        assert!(!reader.is_finished(), "the reader is paused, and continues");
        std::thread::yield_now();
    }
    credit.end();
    let (waits, mut feed) = reader.join().unwrap();
    assert!(matches!(waits, Err(EndReason::Local)), "{waits:?}");
    let mut others: Vec<_> = (0..3u8).map(|n| Unfinished::new(&memory.of(&[n]))).collect();
    for other in &mut others {
        other.next_read(UNRESERVED, 500_000, now, || ());
    }
    let waits = feed.unfinished(3 * UNRESERVED, 400_000);
    assert!(matches!(waits, Err(EndReason::Local)), "{waits:?}");
}
