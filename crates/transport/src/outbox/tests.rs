//! The tests act as the writer, by [`Wire::write`]. They start threads only for callers that have to
//! sleep.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;
use crate::host::{now, threads};

/// The system under an outbox: the calls so far, and the results of the next ones.
#[derive(Clone, Default)]
pub(crate) struct Wire(Arc<Mutex<System>>);

#[derive(Default)]
struct System {
    /// The calls in order: items by their bytes, and others by their names.
    log: Vec<String>,
    /// The results of the next attempts, then `Sent`.
    answers: VecDeque<Tried>,
    /// The number of calls before one fails.
    fails_after: Option<u32>,
    /// The error of the next call.
    fails_once: Option<io::ErrorKind>,
    /// The action of another thread in the middle of an attempt.
    meanwhile: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl Wire {
    /// Opens an outbox over it.
    pub(crate) fn open(&self, outbox: &Outbox) {
        outbox.open(Box::new(self.clone()));
    }

    /// Takes the writer's next step. `None` if the writer would sleep. Returns two flags: the end was
    /// sent, and room was reported.
    pub(crate) fn step(outbox: &Outbox) -> Option<io::Result<(bool, bool)>> {
        let (mut batch, room) = (Vec::new(), Cell::new(false));
        let due = outbox.try_next(&mut batch)?;
        let step_result = outbox.send(due, &mut batch, &|| {
            assert!(!room.replace(true), "room is reported twice")
        });
        Some(step_result.map(|over| (over, room.get())))
    }

    /// Takes the writer's steps until it would sleep. True if room was reported.
    pub(crate) fn write(outbox: &Outbox) -> bool {
        let mut room = false;
        while let Some(step) = Self::step(outbox) {
            let (over, has_room) = step.unwrap();
            room |= has_room;
            if over {
                break;
            }
        }
        room
    }

    /// The calls since the last log.
    pub(crate) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.system().log)
    }

    /// Makes the next call fail with this error.
    pub(crate) fn fail_once(&self, kind: io::ErrorKind) {
        self.system().fails_once = Some(kind);
    }

    /// True if no outbox holds it any more.
    pub(crate) fn is_free(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn system(&self) -> MutexGuard<'_, System> {
        self.0.lock().unwrap()
    }

    fn call(&self, call: impl Into<String>) -> io::Result<()> {
        let mut system = self.system();
        if let Some(kind) = system.fails_once.take() {
            return Err(kind.into());
        }
        if let Some(left) = &mut system.fails_after {
            if *left == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            *left -= 1;
        }
        system.log.push(call.into());
        Ok(())
    }
}

impl Transmit for Wire {
    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()> {
        assert!(!batch.is_empty(), "there is nothing to send");
        batch.iter().try_for_each(|item| self.call(text(item)))
    }

    fn try_transmit(&mut self, item: &Outgoing) -> Tried {
        let mut system = self.system();
        let answer = system.answers.pop_front().unwrap_or(Tried::Sent);
        let meanwhile = system.meanwhile.take();
        drop(system);
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        match answer {
            Tried::Sent => self.call(format!("{} at once", text(item))).unwrap(),
            Tried::Begun => self.call(format!("{} begun", text(item))).unwrap(),
            Tried::Not | Tried::Failed => {}
        }
        answer
    }

    fn flush(&mut self) -> io::Result<()> {
        self.call("flush")
    }

    fn finish(&mut self) -> io::Result<()> {
        self.call("finish")
    }

    fn allow_unsent(&mut self, bytes: u64) {
        self.call(format!("{bytes} unsent")).unwrap();
    }

    fn idle(&mut self) {
        self.call("idle").unwrap();
    }
}

/// Short items by their text, long ones by their length.
fn text(item: &Outgoing) -> String {
    let bytes = item.parts().collect::<Vec<_>>().concat();
    if bytes.len() > 100 {
        return bytes.len().to_string();
    }
    String::from_utf8(bytes).unwrap()
}

pub(crate) fn item(text: &str) -> Outgoing {
    Outgoing::whole(text.to_owned().into(), 1)
}

pub(crate) fn long(len: usize) -> Outgoing {
    Outgoing::whole(vec![0; len].into(), 1)
}

const NO_CALLS: [&str; 0] = [];

fn opened(limits: Limits) -> (Outbox, Wire) {
    opened_within(limits, Budget::unlimited())
}

fn opened_within(limits: Limits, budget: Budget) -> (Outbox, Wire) {
    let (outbox, wire) = (Outbox::within(limits, budget), Wire::default());
    wire.open(&outbox);
    (outbox, wire)
}

fn bytes(bytes: u64) -> Limits {
    Limits {
        bytes,
        ..Limits::default()
    }
}

#[test]
fn items_of_one_thread_leave_in_order_past_the_writer_and_through_it() {
    let (outbox, wire) = opened(Limits::default());
    outbox.push(item("a"), Limits::NONE, true).unwrap();
    outbox.push(item("b"), Limits::NONE, false).unwrap();
    outbox.push(item("c"), Limits::NONE, true).unwrap();
    assert_eq!(wire.log(), ["a at once"], "an item waits before c");
    Wire::write(&outbox);
    outbox.push(item("d"), Limits::NONE, true).unwrap();
    assert_eq!(wire.log(), ["b", "c", "d at once"]);
    assert_eq!((outbox.waiting(), outbox.sent().items), (Load::default(), 4));
    assert!(Wire::step(&outbox).is_none(), "the writer was not woken for d");
}

#[test]
fn the_system_may_keep_more_from_the_next_batch_on() {
    let (outbox, wire) = opened(Limits::default());
    outbox.allow_unsent(7);
    outbox.allow_unsent(8);
    outbox.push(item("a"), Limits::NONE, true).unwrap();
    outbox.push(item("b"), Limits::NONE, false).unwrap();
    Wire::write(&outbox);
    outbox.push(item("c"), Limits::NONE, false).unwrap();
    Wire::write(&outbox);
    assert_eq!(wire.log(), ["a at once", "8 unsent", "b", "c"]);
}

#[test]
fn the_rest_of_an_item_precedes_later_items() {
    let (outbox, wire) = opened(Limits::default());
    wire.system().answers = [Tried::Begun].into();
    outbox.push(item("a"), Limits::NONE, true).unwrap();
    assert_eq!(outbox.waiting(), item("a").load(), "the item is not sent yet");
    outbox.push(item("b"), Limits::NONE, true).unwrap();
    Wire::write(&outbox);
    outbox.push(item("c"), Limits::NONE, true).unwrap();
    assert_eq!(wire.log(), ["a begun", "flush", "b", "c at once"]);
    assert_eq!((outbox.waiting(), outbox.sent().items), (Load::default(), 3));
}

#[test]
fn only_an_item_sent_in_part_wakes_the_writer() {
    let (outbox, wire) = opened(Limits::default());
    wire.system().answers = [Tried::Begun].into();
    outbox.push(item("a"), Limits::NONE, true).unwrap();
    assert!(matches!(Wire::step(&outbox), Some(Ok((false, false)))));
    assert_eq!(wire.log(), ["a begun", "flush"]);
    assert!(Wire::step(&outbox).is_none());
    assert_eq!(outbox.waiting(), Load::default());
}

#[test]
fn an_item_that_cannot_be_sent_at_once_goes_to_the_writer() {
    let (outbox, wire) = opened(Limits::default());
    wire.system().answers = [Tried::Not].into();
    outbox.push(item("a"), Limits::NONE, true).unwrap();
    Wire::write(&outbox);
    assert_eq!(wire.log(), ["a"]);
    let unopened = Outbox::new(Limits::default());
    unopened.push(item("b"), Limits::NONE, true).unwrap();
    assert_eq!(unopened.waiting().items, 1, "no writer has started yet");
    wire.open(&unopened);
    Wire::write(&unopened);
    assert_eq!(wire.log(), ["b"]);
}

#[test]
fn no_item_passes_a_writer_that_writes() {
    let (outbox, wire) = opened(Limits::default());
    let held = outbox.sending();
    outbox.push(item("a"), Limits::NONE, true).unwrap();
    drop(held);
    Wire::write(&outbox);
    assert_eq!(wire.log(), ["a"]);
}

#[test]
fn a_failure_or_panic_past_the_writer_ends_the_writer_and_loses_each_item_once() {
    for panics in [false, true] {
        let budget = Budget::new(1 << 20);
        let (outbox, wire) = opened_within(Limits::default(), budget.clone());
        if panics {
            wire.system().meanwhile = Some(Box::new(|| panic!("a fault of this connection")));
        } else {
            wire.system().answers = [Tried::Failed].into();
        }
        outbox.push(item("a"), Limits::NONE, true).unwrap();
        outbox.push(item("b"), Limits::NONE, true).unwrap();
        assert!(matches!(Wire::step(&outbox), Some(Err(_))));
        outbox.fail(io::ErrorKind::BrokenPipe.into());
        outbox.shut();
        outbox.discard();
        assert_eq!((outbox.lost(), outbox.sent().items), (2, 0));
        assert_eq!((outbox.waiting(), budget.used()), (Load::default(), 0));
    }
}

#[test]
fn the_batch_of_a_failed_write_is_lost_and_earlier_batches_are_sent() {
    let budget = Budget::new(1 << 20);
    let (outbox, wire) = opened_within(Limits::default(), budget.clone());
    wire.system().answers = [Tried::Begun].into();
    outbox.push(item("a"), Limits::NONE, true).unwrap();
    outbox.push(item("b"), Limits::NONE, false).unwrap();
    outbox.push(item("c"), Limits::NONE, false).unwrap();
    wire.system().fails_after = Some(2);
    assert!(matches!(Wire::step(&outbox), Some(Err(_))));
    assert_eq!(wire.log(), ["a begun", "flush", "b"]);
    outbox.fail(io::ErrorKind::BrokenPipe.into());
    outbox.shut();
    outbox.discard();
    assert_eq!((outbox.sent().items, outbox.lost(), budget.used()), (1, 2, 0));
    assert!(matches!(
        outbox.push(item("d"), Limits::NONE, false),
        Err(PushError::Closed(_))
    ));
}

#[test]
fn a_batch_ends_at_its_bytes_and_at_its_items() {
    let (outbox, wire) = opened(Limits::default());
    let half = usize::try_from(BATCH_BYTES / 2).unwrap();
    for len in [half, half - 1, 1, 1] {
        outbox.push(long(len), Limits::NONE, false).unwrap();
    }
    let mut batch = Vec::new();
    let due = outbox.try_next(&mut batch).unwrap();
    assert_eq!(
        (batch.len(), due.batch.bytes, due.batch.items),
        (3, BATCH_BYTES, 3)
    );
    outbox.send(due, &mut batch, &|| ()).unwrap();
    assert!(batch.is_empty());
    Wire::write(&outbox);
    assert_eq!(wire.log().len(), 4);
    for _ in 0..=BATCH_ITEMS {
        outbox.push(item(""), Limits::NONE, false).unwrap();
    }
    outbox.try_next(&mut batch).unwrap();
    assert_eq!(batch.len(), BATCH_ITEMS);
}

#[test]
fn pending_bytes_of_the_reader_are_flushed_once_after_the_queue() {
    let (outbox, wire) = opened(Limits::default());
    outbox.push(item("a"), Limits::NONE, false).unwrap();
    outbox.flush();
    outbox.flush();
    Wire::write(&outbox);
    assert_eq!(wire.log(), ["a", "flush"]);
    outbox.flush();
    Wire::write(&outbox);
    assert_eq!(
        wire.log(),
        ["flush"],
        "after a nudge was handled, another is sent"
    );
    outbox.close();
    outbox.flush();
    outbox.abort();
    assert_eq!(outbox.shared.exit.len(), 1, "one nudge is enough for all");
}

#[test]
fn a_close_sends_the_queue_before_the_end() {
    let (outbox, wire) = opened(Limits::default());
    outbox.push(item("a"), Limits::NONE, false).unwrap();
    outbox.close();
    assert!(outbox.is_closed() && !outbox.is_over());
    assert!(matches!(
        outbox.push(item("b"), Limits::NONE, false),
        Err(PushError::Closed(_))
    ));
    assert!(matches!(Wire::step(&outbox), Some(Ok((true, false)))));
    assert_eq!(wire.log(), ["a", "finish"]);
}

#[test]
fn a_close_waits_for_a_push_that_is_under_way() {
    let (outbox, wire) = opened(Limits::default());
    // The item is counted, and not in the channel yet.
    outbox.accept(&item("a"), Limits::NONE).unwrap();
    outbox.close();
    assert!(matches!(Wire::step(&outbox), Some(Ok((false, false)))));
    outbox.enqueue(item("a"));
    assert!(matches!(Wire::step(&outbox), Some(Ok((true, false)))));
    assert_eq!(wire.log(), ["a", "finish"]);
}

#[test]
fn the_last_item_of_a_closing_outbox_wakes_the_writer() {
    let (outbox, wire) = opened(Limits::default());
    let closing = outbox.clone();
    wire.system().meanwhile = Some(Box::new(move || {
        closing.close();
        // The writer has read the ledger, and found an item waiting.
        assert!(closing.try_next(&mut Vec::new()).is_some());
    }));
    outbox.push(item("a"), Limits::NONE, true).unwrap();
    assert!(matches!(Wire::step(&outbox), Some(Ok((true, false)))));
    assert_eq!(wire.log(), ["a at once", "finish"]);
}

#[test]
fn an_abort_stops_the_writer_before_its_queue() {
    let (outbox, wire) = opened(Limits::default());
    outbox.push(item("a"), Limits::NONE, false).unwrap();
    outbox.abort();
    let due = outbox.try_next(&mut Vec::new()).unwrap();
    assert!(due.over && outbox.is_over() && outbox.failure().is_none());
    assert_eq!(wire.log(), NO_CALLS);
    let (outbox, _) = opened(Limits::default());
    outbox.fail(io::ErrorKind::TimedOut.into());
    assert!(outbox.try_next(&mut Vec::new()).unwrap().over);
    assert_eq!(outbox.failure().unwrap().kind(), io::ErrorKind::TimedOut);
}

#[test]
fn a_push_under_way_at_the_end_is_lost_once_and_gives_its_memory_back() {
    let budget = Budget::new(1 << 20);
    let (outbox, _) = opened_within(Limits::default(), budget.clone());
    outbox.accept(&item("a"), Limits::NONE).unwrap();
    assert_eq!(budget.used(), item("a").load().memory());
    outbox.abort();
    outbox.shut();
    outbox.discard();
    outbox.enqueue(item("a"));
    // The item is not counted a second time.
    outbox.discard();
    assert_eq!((outbox.lost(), outbox.counters().figures().dropped), (1, 0));
    assert_eq!((outbox.waiting(), budget.used()), (Load::default(), 0));
    drop(outbox);
    assert_eq!(budget.used(), 0);
}

#[test]
fn an_outbox_without_threads_gives_its_memory_back() {
    let budget = Budget::new(1 << 20);
    let outbox = Outbox::within(Limits::default(), budget.clone());
    outbox.push(item("a"), Limits::NONE, false).unwrap();
    assert_eq!(budget.used(), outbox.waiting().memory());
    drop(outbox);
    assert_eq!(budget.used(), 0);
}

#[test]
fn an_item_is_counted_in_the_budget_before_any_thread_can_drop_it() {
    let budget = Budget::new(1 << 30);
    let outbox = Outbox::within(Limits::NONE, budget.clone());
    // With a bound, so that this thread cannot push faster than the other one drops, for ever.
    let mark = Limits {
        frames: 64,
        ..Limits::NONE
    };
    let (all, done) = (20_000, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let drops = scope.spawn(|| {
            // The budget panics if more is given back than was taken.
            while !done.load(Ordering::Relaxed) {
                outbox.discard();
            }
        });
        let mut pushed = 0;
        while pushed < all && !drops.is_finished() {
            match outbox.push(item("a"), mark, false) {
                Ok(()) => pushed += 1,
                Err(PushError::Full(_)) => std::thread::yield_now(),
                Err(PushError::Closed(_)) => break,
            }
        }
        done.store(true, Ordering::Relaxed);
        drops.join().unwrap();
        assert_eq!(pushed, all);
    });
    outbox.discard();
    assert_eq!(budget.used(), 0);
}

#[test]
fn below_its_mark_a_queue_takes_one_more_item_however_long_it_is() {
    let budget = Budget::new(1 << 20);
    let limits = Limits {
        frames: 10,
        bytes: 100,
    };
    let (outbox, wire) = opened_within(limits, budget.clone());
    let is_full = |item, mark: u64| {
        let mark = Limits {
            frames: 5,
            bytes: mark,
        };
        matches!(outbox.push(item, mark, false), Err(PushError::Full(_)))
    };
    assert!(!is_full(long(5000), 0), "one item may wait alone");
    assert!(is_full(item("a"), 5128) && !is_full(item("b"), 5129));
    assert_eq!(budget.used(), 5128 + 129);
    let many = Outgoing::whole(b"many"[..].into(), 2);
    assert!(!is_full(many, 1 << 20) && !is_full(item("c"), 1 << 20));
    assert!(is_full(item("d"), 1 << 20), "five frames wait");
    Wire::write(&outbox);
    assert_eq!(wire.log(), ["5000", "b", "many", "c"]);
    outbox.push(item("e"), bytes(1), true).unwrap();
    assert_eq!(wire.log(), ["e at once"]);
    outbox.close();
    assert!(matches!(
        outbox.push(item("f"), bytes(1), true),
        Err(PushError::Closed(_))
    ));
}

#[test]
fn room_is_reported_once_when_so_much_has_left_or_nothing_waits() {
    let (outbox, _) = opened(Limits::default());
    assert!(!outbox.request_room(1), "no item waits");
    let unit = 256 << 10;
    for _ in 0..4 {
        outbox.push(long(unit), Limits::NONE, false).unwrap();
    }
    let memory = long(unit).load().memory();
    assert!(
        outbox.request_room(u64::MAX) && outbox.request_room(memory + 1),
        "the last item counts"
    );
    let has_room = || Wire::step(&outbox).unwrap().unwrap().1;
    assert_eq!([has_room(), has_room()], [false, true]);
    assert_eq!(outbox.left().0, 2 * memory);
    assert!(!outbox.request_room(2 * memory) && outbox.request_room(u64::MAX));
    assert_eq!([has_room(), has_room()], [false, true]);
}

/// Starts threads that sleep, and waits until they do.
fn asleep<T: Send + 'static>(
    outbox: &Outbox,
    waits: impl IntoIterator<Item = fn(&Outbox) -> T>,
) -> Vec<std::thread::JoinHandle<T>> {
    let sleepers: Vec<_> = waits
        .into_iter()
        .map(|wait| {
            let outbox = outbox.clone();
            threads::spawn("sleeper", move || wait(&outbox)).unwrap()
        })
        .collect();
    while (outbox.ledger().sleepers as usize) < sleepers.len() {
        std::thread::yield_now();
    }
    sleepers
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn every_sleeper_wakes_when_it_becomes_roomy() {
    let (outbox, _) = opened(bytes(1000));
    outbox.push(long(800), Limits::NONE, false).unwrap();
    let wait: fn(&Outbox) -> bool = |outbox| outbox.wait_for_room(bytes(500), None);
    let sleepers = asleep(&outbox, [wait; 3]);
    Wire::write(&outbox);
    assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap()));
    assert_eq!(outbox.ledger().sleepers, 0);
}

#[test]
fn an_end_wakes_every_sleeper() {
    let (outbox, _) = opened(bytes(1000));
    outbox.push(long(800), Limits::NONE, false).unwrap();
    let waits: [fn(&Outbox) -> bool; 3] = [
        |outbox| !outbox.wait_for_room(bytes(1), None),
        |outbox| !outbox.wait_until_empty(now() + LONG),
        |outbox| outbox.wait_until_closed(LONG),
    ];
    let sleepers = asleep(&outbox, waits);
    outbox.close();
    assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap()));
}

#[test]
fn a_writer_that_lingers_waits_for_the_end_and_not_for_the_close() {
    let (outbox, _) = opened(bytes(1000));
    outbox.close();
    let wait: fn(&Outbox) -> bool = |outbox| {
        outbox.wait_until_over(LONG);
        outbox.is_over()
    };
    let sleepers = asleep(&outbox, [wait]);
    outbox.abort();
    assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap()));
}

#[test]
fn a_wait_ends_at_its_limit_or_as_soon_as_its_condition_holds() {
    let (outbox, _) = opened(bytes(1000));
    let none = Duration::ZERO;
    assert!(outbox.wait_for_room(bytes(1), None) && outbox.wait_until_empty(now()));
    outbox.push(long(800), Limits::NONE, false).unwrap();
    assert!(!outbox.wait_for_room(bytes(500), Some(none)) && !outbox.wait_until_empty(now()));
    assert!(!outbox.wait_until_closed(none) && !outbox.wait_until_drained(none));
    outbox.close();
    assert!(outbox.wait_until_closed(LONG) && !outbox.wait_for_room(bytes(1), None));
    assert!(!outbox.wait_until_drained(none), "the writer has an item to send");
    Wire::write(&outbox);
    outbox.drained();
    assert!(outbox.wait_until_drained(LONG) && outbox.wait_until_empty(now()));
    outbox.abort();
    outbox.wait_until_over(LONG);
    let (outbox, _) = opened(bytes(1000));
    outbox.abort();
    assert!(outbox.wait_until_drained(LONG), "no writer drains the queue");
}

#[test]
fn buffers_go_back_when_the_writer_idles_and_keys_when_it_ends() {
    let (outbox, wire) = opened(Limits::default());
    outbox.idle();
    assert_eq!(wire.log(), ["idle"]);
    outbox.shut();
    outbox.idle();
    assert_eq!(wire.log(), NO_CALLS);
    assert!(wire.is_free());
}

#[test]
fn a_push_error_has_a_text() {
    assert_eq!(PushError::Full(item("a")).to_string(), "the queue is full");
    assert_eq!(
        PushError::Closed(item("a")).to_string(),
        "the connection is closed"
    );
}
