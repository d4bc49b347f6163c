//! Sending, sessions and renewals in any order, stepped on one thread: an uplink counts each frame that
//! it loses, sends none twice, and keeps their order.

use std::io;
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::client::uplink::{Obstacle, Uplink};
use crate::proto::Trace;
use crate::wire::outgoing;
use ssntp_pki::Role;
use ssntp_transport::{Limits, Outbox, Outgoing, Transmit, locked};

/// A step of the test.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A frame is offered by `send`, or as a request.
    Offer {
        request: bool,
    },
    /// A session begins.
    Up,
    /// The writer of the session sends the queue.
    Write,
    /// The connection is cut. The client's thread sees it later, or now.
    Cut,
    Down,
    /// The session is to be replaced.
    Leave,
    /// It ends without loss, and later the gap ends.
    Part,
    GiveUp,
    End,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => any::<bool>().prop_map(|request| Step::Offer { request }),
        4 => Just(Step::Up),
        4 => Just(Step::Write),
        2 => Just(Step::Cut),
        2 => Just(Step::Down),
        1 => Just(Step::Leave),
        2 => Just(Step::Part),
        1 => Just(Step::GiveUp),
        1 => Just(Step::End),
    ];
    prop::collection::vec(step, 1..80)
}

/// Collects all written bytes.
#[derive(Debug)]
struct Wire(Arc<Mutex<Vec<u32>>>);

impl Transmit for Wire {
    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()> {
        for item in batch {
            let bytes: Vec<u8> = item.parts().flatten().copied().collect();
            locked(&self.0).push(u32::from_be_bytes(bytes[8..].try_into().unwrap()));
        }
        Ok(())
    }
}

fn write(outbox: &Outbox) {
    let mut batch = Vec::new();
    while let Some(due) = outbox.try_next(&mut batch) {
        if due.over {
            return;
        }
        outbox.send(due, &mut batch, &|| ()).unwrap();
    }
}

/// Drops the queue, as the link does at its end.
fn cut(outbox: &Outbox) {
    outbox.abort();
    outbox.discard();
}

fn play(offline: Offline, steps: &[Step]) -> Result<(), TestCaseError> {
    let few = Limits {
        frames: 5,
        bytes: 1 << 20,
    };
    let server = server_info(false);
    let uplink = Uplink::new(Uuid::from_u128(1), Role::AGENT, offline, few);
    let (mut outboxes, mut lost, mut accepted) = (Vec::<Outbox>::new(), 0, Vec::new());
    let sent = Arc::new(Mutex::new(Vec::new()));
    for (number, step) in (0..).zip(steps) {
        match step {
            Step::Offer { request } => {
                let frame = stats(number);
                let offline = (!*request).then_some(offline);
                if uplink.offer(&frame, offline).is_ok() {
                    accepted.push(number);
                }
            }
            Step::Up => {
                if let Some(outbox) = uplink.up(&server) {
                    outbox.open(Box::new(Wire(Arc::clone(&sent))));
                    outboxes.push(outbox);
                }
            }
            Step::Write => outboxes.last().into_iter().for_each(write),
            Step::Cut => outboxes.last().into_iter().for_each(cut),
            Step::Down => {
                // The client's thread ends a session after its link has ended.
                outboxes.last().into_iter().for_each(cut);
                uplink.down();
            }
            Step::Part => {
                uplink.part();
                // The next session begins when this one has ended.
                outboxes.last().into_iter().for_each(write);
                outboxes.last().into_iter().for_each(cut);
            }
            Step::Leave => uplink.leave(),
            Step::GiveUp => {
                let now = ssntp_transport::now();
                uplink.limit_gap(now);
                lost += uplink.give_up(now);
            }
            Step::End => {
                lost += uplink.end(ClientError::Closed).map_or(0, |end| end.lost);
                outboxes.last().into_iter().for_each(write);
            }
        }
    }
    lost += uplink.end(ClientError::Closed).map_or(0, |end| end.lost);
    outboxes.iter().for_each(cut);
    lost += outboxes.iter().map(Outbox::lost).sum::<u64>();
    let sent = locked(&sent);
    prop_assert!(
        sent.is_sorted_by(|one, next| one < next),
        "in order and once: {:?}",
        sent
    );
    prop_assert!(sent.iter().all(|number| accepted.contains(number)));
    prop_assert_eq!(
        accepted.len() as u64,
        sent.len() as u64 + lost,
        "each is sent or counted"
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_frame_is_sent_once_in_order_or_counted_as_lost(steps in steps(), queues: bool) {
        let limits = Limits { frames: 4, bytes: 1 << 20 };
        play(if queues { Offline::Queue(limits) } else { Offline::Fail }, &steps)?;
    }
}

#[test]
fn a_wait_for_room_counts_the_stamp_that_a_trace_gets() {
    let frame = stats(1).traced(Trace::new("stamped"));
    let first = outgoing(&stats(0), false).load();
    // Enough for the first frame, and for the second one without its stamp.
    let queue = Limits {
        frames: 10,
        bytes: first.memory() * 2 - first.bytes + frame.encoded_len() as u64,
    };
    let uplink = Uplink::new(Uuid::from_u128(1), Role::AGENT, Offline::Fail, queue);
    uplink.up(&server_info(true)).unwrap();
    uplink.offer(&stats(0), Some(Offline::Fail)).ok().unwrap();
    let obstacle = uplink.offer(&frame, Some(Offline::Fail)).err().unwrap();
    assert!(matches!(&obstacle, Obstacle::Session(..)));
    let soon = Instant::now() + Duration::from_millis(20);
    let waited = uplink.wait(obstacle, Some(soon));
    assert!(matches!(waited, Err(SendFault::Full)), "{waited:?}");
}
