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

/// True if the next event reports that the peer is not silent.
fn is_report(queue: &Queue<DispatchEvent<Script>>) -> bool {
    let event = queue.try_next().map(|(event, _)| event);
    matches!(event, Some(DispatchEvent::Items(ConnectionId(7), items, 0)) if items.is_empty())
}

#[test]
fn a_reader_that_waits_for_long_reads_once_now_and_then_and_reports_that_its_peer_is_not_silent() {
    const BRIEF: Duration = Duration::from_millis(2);
    let memory = Budget::new(1 << 20);
    let (mut feed, credit, queue) = feed(&memory);
    feed.pulses = [BRIEF; 2];
    // It waits for memory.
    let mut others: Vec<_> = (0..3u8).map(|n| Unfinished::new(&memory.of(&[n]))).collect();
    for other in &mut others {
        other.next_read(UNRESERVED, 500_000, now, || ());
    }
    assert!(matches!(feed.unfinished(8, 400_000), Ok(UNRESERVED)));
    assert!(matches!(feed.unfinished(UNRESERVED, 400_000), Ok(UNRESERVED)));
    drop(others);
    assert!(matches!(feed.unfinished(8, 400_000), Ok(usize::MAX)));
    // It is paused, also in the middle of a long item.
    credit.pause(true);
    assert!(
        matches!(feed.unfinished(8, 400_000), Ok(usize::MAX)),
        "one batch may be under way"
    );
    assert!(feed.items(&mut vec![Step::Note("x")], 10));
    for held in [0, 100_000] {
        let before = now();
        assert!(matches!(feed.unfinished(held, 400_000), Ok(usize::MAX)));
        assert!(now() - before >= BRIEF && feed.has_pulsed);
    }
    credit.pause(false);
    assert!(matches!(feed.unfinished(0, 0), Ok(usize::MAX)));
    assert!(!feed.has_pulsed);
    while !is_report(&queue) {
        credit.pause(true);
        assert!(feed.unfinished(0, 0).is_ok());
    }
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
